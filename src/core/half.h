/* The 16-bit floats: IEEE half (f16) and the upper half of an f32 (bf16). Conversion to them rounds to nearest even;
 * a NaN stays one and comes out quiet. Selects instead of branches, so that loops over these vectorise. */
#ifndef KILN_CORE_HALF_H
#define KILN_CORE_HALF_H

#include <stdint.h>

static inline uint32_t kiln_bits_of_f32(float value)
{
    union {
        float f;
        uint32_t u;
    } both = {.f = value};
    return both.u;
}

static inline float kiln_f32_of_bits(uint32_t bits)
{
    union {
        uint32_t u;
        float f;
    } both = {.u = bits};
    return both.f;
}

static inline float kiln_f16_to_f32(uint16_t half)
{
    const uint32_t rebias = (127u - 15u) << 23;
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16, magnitude = half & 0x7fffu;
    uint32_t bits = (magnitude << 13) + rebias;
    bits += magnitude >= 0x7c00u ? rebias : 0u; /* infinity and NaN: f32's largest exponent */
    bits |= magnitude > 0x7c00u ? 0x00400000u : 0u;
    float subnormal = (float)(int32_t)magnitude * 0x1p-24f; /* exact */
    bits = magnitude < 0x0400u ? kiln_bits_of_f32(subnormal) : bits;
    return kiln_f32_of_bits(sign | bits);
}

static inline uint16_t kiln_f32_to_f16(float value)
{
    uint32_t bits = kiln_bits_of_f32(value), magnitude = bits & 0x7fffffffu;
    uint32_t normal = magnitude - ((127u - 15u) << 23);
    normal = (normal + 0xfffu + ((normal >> 13) & 1u)) >> 13;
    /* Beside 0.5 an f32's last bit is worth 2^-24, as a subnormal half's is: the addition does the rounding. */
    uint32_t subnormal = kiln_bits_of_f32(kiln_f32_of_bits(magnitude) + 0.5f) - kiln_bits_of_f32(0.5f);
    uint32_t half = magnitude < 0x38800000u ? subnormal : normal;
    half = magnitude >= 0x47800000u ? 0x7c00u : half;
    half = magnitude > 0x7f800000u ? 0x7e00u | ((magnitude >> 13) & 0x3ffu) : half;
    return (uint16_t)(((bits >> 16) & 0x8000u) | half);
}

static inline float kiln_bf16_to_f32(uint16_t half)
{
    uint32_t bits = (uint32_t)half << 16;
    bits |= (bits & 0x7fffffffu) > 0x7f800000u ? 0x00400000u : 0u;
    return kiln_f32_of_bits(bits);
}

static inline uint16_t kiln_f32_to_bf16(float value)
{
    uint32_t bits = kiln_bits_of_f32(value);
    uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    uint32_t quiet = (bits >> 16) | 0x40u;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

#endif
