/* Elements of 16 bits in kernels of rows: computed in float, rounded once. */
#ifndef KILN_CUDA_HALVES_CUH
#define KILN_CUDA_HALVES_CUH

#include "device/cuda/kernels/held.cuh"
#include "device/cuda/kernels/pointwise.cuh"

struct kiln_f16 {
    uint16_t bits;
};

struct kiln_bf16 {
    uint16_t bits;
};

/* Two to the power of x: with an error of about 2⁻²² times the result, and 0 below 2⁻¹²⁶. One instruction, where expf
 * has seven: more bits than that are rounded away in any case. */
static __device__ __forceinline__ float kiln_exp2_of_half(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* What halves have in common; their words are pairs. */
struct kiln_half_element {
    typedef float real;
    static constexpr float log2_of_e = 1.442695041f;

    static __device__ __forceinline__ float exp(float x)
    {
        return kiln_exp2_of_half(x * log2_of_e);
    }

    /* The logarithm of the sum, which is at least 1, is taken off the exponent. */
    static __device__ __forceinline__ float divisor(double sum)
    {
        return log2f((float)sum);
    }

    static __device__ __forceinline__ float exp_over(float x, float divisor)
    {
        return kiln_exp2_of_half(__fmaf_rn(x, log2_of_e, -divisor));
    }
};

template <> struct kiln_element<kiln_f16> : kiln_half_element {
    static __device__ __forceinline__ float of(kiln_f16 x)
    {
        return kiln_of_f16(x.bits);
    }

    static __device__ __forceinline__ kiln_f16 to(float x)
    {
        return kiln_f16{kiln_to_f16(x)};
    }

    static __device__ __forceinline__ unsigned larger(unsigned a, unsigned b)
    {
        unsigned c;
        asm("max.f16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
        return c;
    }

    static __device__ __forceinline__ float largest(unsigned x)
    {
        return kiln_larger(kiln_of_f16((uint16_t)x), kiln_of_f16((uint16_t)(x >> 16)));
    }
};

template <> struct kiln_element<kiln_bf16> : kiln_half_element {
    static __device__ __forceinline__ float of(kiln_bf16 x)
    {
        return kiln_of_bf16(x.bits);
    }

    static __device__ __forceinline__ kiln_bf16 to(float x)
    {
        return kiln_bf16{kiln_to_bf16(x)};
    }

    static __device__ __forceinline__ unsigned larger(unsigned a, unsigned b)
    {
        unsigned c;
        asm("max.bf16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
        return c;
    }

    static __device__ __forceinline__ float largest(unsigned x)
    {
        return kiln_larger(kiln_of_bf16((uint16_t)x), kiln_of_bf16((uint16_t)(x >> 16)));
    }
};

#endif
