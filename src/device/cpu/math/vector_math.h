/* The k_ functions of pointwise.def for the CPU, by register class: kiln_f32_exp, kiln_f64_exp, kiln_i64_pow, … Those
 * of floats are the functions of math/ for single numbers: no tables, no calls, so that the compiler turns a loop over
 * them into vector code. */
#ifndef KILN_CPU_VECTOR_MATH_H
#define KILN_CPU_VECTOR_MATH_H

#include <math.h>
#include "core/half.h"

#define KILN_PW_INLINE static inline __attribute__((always_inline, unused))

#define BITS    32
#define VECTORS 0
#include "device/cpu/math/functions.h"
#define BITS    64
#define VECTORS 0
#include "device/cpu/math/functions.h"

/* KILN_V32(exp), KILN_V64(exp): the same on vectors, where there are any; on single numbers where there are none. */
#if defined(__AVX2__) && defined(__FMA__)
#define BITS    32
#define VECTORS 1
#include "device/cpu/math/functions.h"
#define BITS    64
#define VECTORS 1
#include "device/cpu/math/functions.h"
#define KILN_V32(name) kiln_v32_##name
#define KILN_V64(name) kiln_v64_##name
#else
#define KILN_V32(name) kiln_f32_##name
#define KILN_V64(name) kiln_f64_##name
#endif

/* ---- What is one instruction ---- */

#define KILN_INSTRUCTION(name, called)                                                                                 \
    KILN_PW_INLINE float kiln_f32_##name(float x)                                                                      \
    {                                                                                                                  \
        return __builtin_##called##f(x);                                                                               \
    }                                                                                                                  \
    KILN_PW_INLINE double kiln_f64_##name(double x)                                                                    \
    {                                                                                                                  \
        return __builtin_##called(x);                                                                                  \
    }
KILN_INSTRUCTION(abs, fabs)
KILN_INSTRUCTION(sqrt, sqrt)
KILN_INSTRUCTION(floor, floor)
KILN_INSTRUCTION(ceil, ceil)
KILN_INSTRUCTION(trunc, trunc)
KILN_INSTRUCTION(round, rint)

/* ---- What floats have in doubles ---- */

#define KILN_THROUGH_F64(name, called)                                                                                 \
    KILN_PW_INLINE float kiln_f32_##name(float x)                                                                      \
    {                                                                                                                  \
        return (float)kiln_f64_##called(x);                                                                            \
    }
#define KILN_THROUGH_F64_2(name, called)                                                                               \
    KILN_PW_INLINE float kiln_f32_##name(float x, float y)                                                             \
    {                                                                                                                  \
        return (float)kiln_f64_##called(x, y);                                                                         \
    }
KILN_THROUGH_F64(sinh, sinh)
KILN_THROUGH_F64(cosh, cosh)
KILN_THROUGH_F64_2(hypot, hypot_f32)
KILN_THROUGH_F64_2(pow, pow_f32)

KILN_PW_INLINE int kiln_f32_isnan(float x)
{
    return x != x;
}

KILN_PW_INLINE int kiln_f64_isnan(double x)
{
    return x != x;
}

/* ---- i64 and bool (b8): nothing here is undefined; what has no answer gives 0 ---- */

#define KILN_WHOLE(name)                                                                                               \
    KILN_PW_INLINE int64_t kiln_i64_##name(int64_t x)                                                                  \
    {                                                                                                                  \
        return x;                                                                                                      \
    }
KILN_WHOLE(floor)
KILN_WHOLE(ceil)
KILN_WHOLE(trunc)
KILN_WHOLE(round)

KILN_PW_INLINE int kiln_i64_isnan(int64_t x)
{
    (void)x;
    return 0;
}

KILN_PW_INLINE int kiln_b8_isnan(uint8_t x)
{
    (void)x;
    return 0;
}

KILN_PW_INLINE int64_t kiln_i64_abs(int64_t x)
{
    return x < 0 ? (int64_t)(0 - (uint64_t)x) : x;
}

KILN_PW_INLINE int64_t kiln_i64_clamp(int64_t x, int64_t low, int64_t high)
{
    int64_t at_least = x < low ? low : x;
    return at_least > high ? high : at_least;
}

/* The quotient rounded towards zero; 0 for b = 0, and the wrapped INT64_MIN / -1. */
KILN_PW_INLINE int64_t kiln_i64_quotient(int64_t a, int64_t b)
{
    if (b == 0)
        return 0;
    return b == -1 ? (int64_t)(0 - (uint64_t)a) : a / b;
}

KILN_PW_INLINE int64_t kiln_i64_fmod(int64_t a, int64_t b)
{
    return b == 0 || b == -1 ? 0 : a % b;
}

KILN_PW_INLINE int64_t kiln_i64_floor_divide(int64_t a, int64_t b)
{
    int64_t rest = kiln_i64_fmod(a, b);
    return kiln_i64_quotient(a, b) - (rest != 0 && (rest < 0) != (b < 0));
}

KILN_PW_INLINE int64_t kiln_i64_remainder(int64_t a, int64_t b)
{
    int64_t rest = kiln_i64_fmod(a, b);
    return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

/* Wraps; a negative power is 0 unless the base is 1 or -1. */
KILN_PW_INLINE int64_t kiln_i64_pow(int64_t base, int64_t power)
{
    if (power < 0)
        return base == 1 ? 1 : base == -1 ? (power & 1 ? -1 : 1) : 0;
    uint64_t result = 1, square = (uint64_t)base;
    for (; power > 0; power >>= 1, square *= square)
        result = power & 1 ? result * square : result;
    return (int64_t)result;
}

#endif
