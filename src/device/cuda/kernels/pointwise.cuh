/* The dialect of pointwise.def for CUDA: the k_ functions for float, double, int64_t and uint8_t (bool), what turns one
 * register class into another, and what moves elements between memory and registers. Compiled ahead into group.cu; as
 * text it is the beginning of every kernel that codegen.c generates, so it includes nothing but pointwise_math.h.
 *
 * Functions that are long when inlined are calls: a kernel that interprets has every row of the table in it. */
#ifndef KILN_CUDA_POINTWISE_CUH
#define KILN_CUDA_POINTWISE_CUH

#ifdef __CUDACC_RTC__
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long int64_t;
typedef unsigned long uint64_t;
#define KILN_PW_CALL static __device__ __forceinline__
#else
#include <stdint.h>
#define KILN_PW_CALL static __device__ __noinline__
#endif
#define KILN_PW_INLINE static __device__ __forceinline__

/* ---- Floats ---- */

#define KILN_BOTH1(how, name, called)                                                                                  \
    how float k_##name(float x)                                                                                        \
    {                                                                                                                  \
        return called##f(x);                                                                                           \
    }                                                                                                                  \
    KILN_PW_CALL double k_##name(double x)                                                                             \
    {                                                                                                                  \
        return called(x);                                                                                              \
    }
#define KILN_BOTH2(how, name, called)                                                                                  \
    how float k_##name(float x, float y)                                                                               \
    {                                                                                                                  \
        return called##f(x, y);                                                                                        \
    }                                                                                                                  \
    KILN_PW_CALL double k_##name(double x, double y)                                                                   \
    {                                                                                                                  \
        return called(x, y);                                                                                           \
    }
KILN_BOTH1(KILN_PW_INLINE, abs, fabs)
KILN_BOTH1(KILN_PW_INLINE, floor, floor)
KILN_BOTH1(KILN_PW_INLINE, ceil, ceil)
KILN_BOTH1(KILN_PW_INLINE, trunc, trunc)
KILN_BOTH1(KILN_PW_INLINE, round, rint)
KILN_BOTH1(KILN_PW_INLINE, exp, exp)
KILN_BOTH1(KILN_PW_INLINE, exp2, exp2)
KILN_BOTH1(KILN_PW_INLINE, log, log)
KILN_BOTH1(KILN_PW_INLINE, log2, log2)
KILN_BOTH1(KILN_PW_CALL, expm1, expm1)
KILN_BOTH1(KILN_PW_CALL, log10, log10)
KILN_BOTH1(KILN_PW_CALL, log1p, log1p)
KILN_BOTH1(KILN_PW_CALL, sin, sin)
KILN_BOTH1(KILN_PW_CALL, cos, cos)
KILN_BOTH1(KILN_PW_CALL, tan, tan)
KILN_BOTH1(KILN_PW_CALL, asin, asin)
KILN_BOTH1(KILN_PW_CALL, acos, acos)
KILN_BOTH1(KILN_PW_CALL, atan, atan)
KILN_BOTH1(KILN_PW_CALL, sinh, sinh)
KILN_BOTH1(KILN_PW_CALL, cosh, cosh)
KILN_BOTH1(KILN_PW_CALL, tanh, tanh)
KILN_BOTH1(KILN_PW_CALL, asinh, asinh)
KILN_BOTH1(KILN_PW_CALL, acosh, acosh)
KILN_BOTH1(KILN_PW_CALL, atanh, atanh)
KILN_BOTH1(KILN_PW_CALL, erf, erf)
KILN_BOTH1(KILN_PW_CALL, erfc, erfc)
KILN_BOTH2(KILN_PW_CALL, fmod, fmod)
KILN_BOTH2(KILN_PW_CALL, pow, pow)
KILN_BOTH2(KILN_PW_CALL, atan2, atan2)
KILN_BOTH2(KILN_PW_CALL, hypot, hypot)

/* Roots and quotients as IEEE 754 has them, like those of the language, which call a slow function where any thread of a
 * warp has a 0: an optimizer does, for each weight whose gradient is 0 all along. */
KILN_PW_INLINE float k_sqrt(float x)
{
    const bool small = x < 0x1p-100f; /* what is left of a remainder would be lost */
    const float s = small ? x * 0x1p64f : x;
    float r;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(s));
    const float g = __fmul_rn(s, r);
    const float y = __fmaf_rn(__fmaf_rn(-g, g, s), __fmul_rn(r, 0.5f), g);
    return s == 0 || s == __int_as_float(0x7f800000) ? x : small ? y * 0x1p-32f : y;
}

KILN_PW_INLINE double k_sqrt(double x)
{
    return sqrt(x);
}

KILN_PW_INLINE float k_div(float a, float b)
{
    const bool zero = a == 0;
    const float q = (zero ? 0x1p-30f : a) / b; /* neither 0 nor infinite but where b is infinite or 0 */
    return zero ? a * q : q;
}

KILN_PW_INLINE double k_div(double a, double b)
{
    return a / b;
}

KILN_PW_INLINE bool k_isnan(float x)
{
    return x != x;
}

KILN_PW_INLINE bool k_isnan(double x)
{
    return x != x;
}

#define T float
#include "ops/pointwise_math.h"
#undef T
#define T double
#include "ops/pointwise_math.h"
#undef T

/* ---- Integers and bools: nothing here is undefined; what has no answer gives 0 ---- */

#define KILN_WHOLE(name)                                                                                               \
    KILN_PW_INLINE int64_t k_##name(int64_t x)                                                                         \
    {                                                                                                                  \
        return x;                                                                                                      \
    }
KILN_WHOLE(floor)
KILN_WHOLE(ceil)
KILN_WHOLE(trunc)
KILN_WHOLE(round)

KILN_PW_INLINE bool k_isnan(int64_t)
{
    return false;
}

KILN_PW_INLINE bool k_isnan(uint8_t)
{
    return false;
}

KILN_PW_INLINE int64_t k_abs(int64_t x)
{
    return x < 0 ? (int64_t)(0 - (uint64_t)x) : x;
}

KILN_PW_INLINE int64_t k_clamp(int64_t x, int64_t low, int64_t high)
{
    int64_t at_least = x < low ? low : x;
    return at_least > high ? high : at_least;
}

KILN_PW_CALL int64_t k_quotient(int64_t a, int64_t b) /* towards zero */
{
    return b == 0 ? 0 : b == -1 ? (int64_t)(0 - (uint64_t)a) : a / b;
}

KILN_PW_CALL int64_t k_fmod(int64_t a, int64_t b)
{
    return b == 0 || b == -1 ? 0 : a % b;
}

KILN_PW_INLINE int64_t k_floor_divide(int64_t a, int64_t b)
{
    int64_t rest = k_fmod(a, b);
    return k_quotient(a, b) - (rest != 0 && (rest < 0) != (b < 0));
}

KILN_PW_INLINE int64_t k_remainder(int64_t a, int64_t b)
{
    int64_t rest = k_fmod(a, b);
    return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

/* Wraps; a negative power is 0 unless the base is 1 or -1. */
KILN_PW_CALL int64_t k_pow(int64_t base, int64_t power)
{
    if (power < 0)
        return base == 1 ? 1 : base == -1 ? (power & 1 ? -1 : 1) : 0;
    uint64_t result = 1, square = (uint64_t)base;
    for (; power > 0; power >>= 1, square *= square)
        result = power & 1 ? result * square : result;
    return (int64_t)result;
}

/* ---- From class to class ---- */

/* Truncation; what does not fit saturates, NaN gives 0. */
KILN_PW_INLINE int64_t kiln_saturate(double x)
{
    if (x != x)
        return 0;
    return x >= 9223372036854775808.0   ? (int64_t)0x7fffffffffffffffu
           : x < -9223372036854775808.0 ? (int64_t)0x8000000000000000u
                                        : (int64_t)x;
}

template <typename D, typename A> struct kiln_cast_to {
    static __device__ __forceinline__ D from(A x)
    {
        return (D)x;
    }
};
template <typename A> struct kiln_cast_to<uint8_t, A> {
    static __device__ __forceinline__ uint8_t from(A x)
    {
        return x != 0;
    }
};
template <> struct kiln_cast_to<int64_t, float> {
    static __device__ __forceinline__ int64_t from(float x)
    {
        return kiln_saturate(x);
    }
};
template <> struct kiln_cast_to<int64_t, double> {
    static __device__ __forceinline__ int64_t from(double x)
    {
        return kiln_saturate(x);
    }
};

/* ---- 16-bit floats: to nearest even ---- */

KILN_PW_INLINE float kiln_of_f16(uint16_t h)
{
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
    return f;
}

KILN_PW_INLINE uint16_t kiln_to_f16(float f)
{
    uint16_t h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
    return h;
}

KILN_PW_INLINE float kiln_of_bf16(uint16_t h)
{
    return __uint_as_float((uint32_t)h << 16);
}

KILN_PW_INLINE uint16_t kiln_to_bf16(float f)
{
    uint16_t h;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(f));
    return h;
}

/* What a conversion there and back leaves. A bf16 above sixteen zeros is the float that it stands for: one instruction. */
KILN_PW_INLINE float kiln_round_bf16(float f)
{
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(f), "f"(0.0f));
    return __uint_as_float(pair);
}

KILN_PW_INLINE float kiln_round_f16(float f)
{
    return kiln_of_f16(kiln_to_f16(f));
}

#endif
