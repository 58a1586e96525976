/* All pointwise kernels of one instruction set: included by pointwise_plain.c, pointwise_avx2.c and pointwise_avx512.c,
 * which are compiled for theirs and define KILN_PW_TABLE and KILN_PW_ISA. */
#include <string.h>
#include "device/cpu/group/pointwise.h"
#include "device/cpu/math/vector_math.h"
#ifdef __F16C__
#include <immintrin.h>
#endif

#ifdef __clang__
#pragma clang diagnostic ignored "-Wpass-failed" /* rows that call the C library stay scalar */
#define KILN_PW_IVDEP _Pragma("clang loop vectorize(assume_safety)")
#else
#define KILN_PW_IVDEP _Pragma("GCC ivdep")
#endif
#define KEEP(...) __VA_ARGS__
#define DROP(...)

/* The names pointwise.def uses stand for those of the class that is being written. */
#define K(x)              K_(CLASS, x)
#define K_(cls, x)        K__(cls, x)
#define K__(cls, x)       kiln_##cls##_##x
#define k_div(a, b)       ((a) / (b))
#define k_abs             K(abs)
#define k_isnan           K(isnan)
#define k_floor           K(floor)
#define k_ceil            K(ceil)
#define k_round           K(round)
#define k_trunc           K(trunc)
#define k_clamp           K(clamp)
#define k_floor_divide    K(floor_divide)
#define k_remainder       K(remainder)
#define k_fmod            K(fmod)
#define k_pow             K(pow)
#define k_atan2           K(atan2)
#define k_hypot           K(hypot)
#define k_sqrt            K(sqrt)
#define k_exp             K(exp)
#define k_exp2            K(exp2)
#define k_expm1           K(expm1)
#define k_log             K(log)
#define k_log2            K(log2)
#define k_log10           K(log10)
#define k_log1p           K(log1p)
#define k_sin             K(sin)
#define k_cos             K(cos)
#define k_tan             K(tan)
#define k_asin            K(asin)
#define k_acos            K(acos)
#define k_atan            K(atan)
#define k_sinh            K(sinh)
#define k_cosh            K(cosh)
#define k_tanh            K(tanh)
#define k_asinh           K(asinh)
#define k_acosh           K(acosh)
#define k_atanh           K(atanh)
#define k_erf             K(erf)
#define k_erfc            K(erfc)
#define k_sigmoid         K(sigmoid)
#define k_softplus        K(softplus)
#define k_gate_slope      K(gate_slope)
#define k_silu_slope      K(silu_slope)
#define k_normal_cdf      K(normal_cdf)
#define k_normal_pdf      K(normal_pdf)
#define k_gelu_tanh       K(gelu_tanh)
#define k_gelu_tanh_slope K(gelu_tanh_slope)
#define k_mish            K(mish)

/* A run-time scalar as an integer: truncated, and the nearest one where it does not fit. */
KILN_PW_INLINE int64_t saturate(double x)
{
    int above = x >= 0x1p63, outside = above | (x < -0x1p63);
    int64_t inside = (int64_t)((outside | (x != x)) ? 0.0 : x);
    return outside ? (above ? INT64_MAX : INT64_MIN) : inside;
}

/* Casts truncate. What does not fit, and NaN, becomes the lowest number, as with the processor's own instructions. */
KILN_PW_INLINE int64_t truncated_i64(double x)
{
    return (int64_t)(((x >= -0x1p63) & (x < 0x1p63)) ? x : -0x1p63);
}

KILN_PW_INLINE int64_t truncated_i32(double x)
{
    return (int64_t)(((x > -0x1p31 - 1) & (x < 0x1p31)) ? x : -0x1p31);
}

#define T               float
#define CLASS           f32
#define RING            float
#define INDEX           double
#define SCALAR(x)       (x)
#define SCALAR_INDEX(x) (x)
#define LOWEST          -__builtin_inff()
#define HIGHEST         __builtin_inff()
#define IF_F            KEEP
#define IF_N            KEEP
#define IF_NB           KEEP
#define IF_I            DROP
#define IF_IB           DROP
#define OWN             KILN_V32
#define DOUBLE          KILN_V64
#define LOAD            lane_widen_some
#define STORE           lane_narrow_some
#define CHOICE(x, y)    y
#include "ops/pointwise_math.h"
#include "device/cpu/group/pointwise_vectors.h"
#include "device/cpu/group/pointwise_rows.h"

#define T               double
#define CLASS           f64
#define RING            double
#define INDEX           double
#define SCALAR(x)       (x)
#define SCALAR_INDEX(x) (x)
#define LOWEST          -__builtin_inf()
#define HIGHEST         __builtin_inf()
#define IF_F            KEEP
#define IF_N            KEEP
#define IF_NB           KEEP
#define IF_I            DROP
#define IF_IB           DROP
#define OWN             KILN_V64
#define DOUBLE          KILN_V64
#define LOAD            lane_load_some
#define STORE           lane_store_some
#define CHOICE(x, y)    x
#include "ops/pointwise_math.h"
#include "device/cpu/group/pointwise_vectors.h"
#include "device/cpu/group/pointwise_rows.h"

#define T               int64_t
#define CLASS           i64
#define RING            uint64_t
#define INDEX           uint64_t
#define SCALAR(x)       saturate(x)
#define SCALAR_INDEX(x) saturate(x)
#define LOWEST          INT64_MIN
#define HIGHEST         INT64_MAX
#define IF_F            DROP
#define IF_N            KEEP
#define IF_NB           KEEP
#define IF_I            KEEP
#define IF_IB           KEEP
#include "device/cpu/group/pointwise_rows.h"

#define T               uint8_t
#define CLASS           b8
#define RING            uint8_t
#define INDEX           uint8_t
#define SCALAR(x)       ((x) != 0)
#define SCALAR_INDEX(x) ((x) != 0)
#define LOWEST          0
#define HIGHEST         1
#define IF_F            DROP
#define IF_N            DROP
#define IF_NB           KEEP
#define IF_I            DROP
#define IF_IB           KEEP
#include "device/cpu/group/pointwise_rows.h"

/* ---- Casts from class to class ---- */

#define CAST(from, from_type, to, to_type, value)                                                                      \
    static void cast_##from##_##to(void *d_, const void *a_, const void *b, const void *c, const double *scalars,      \
                                   int64_t n)                                                                          \
    {                                                                                                                  \
        to_type *d = d_;                                                                                               \
        const from_type *a = a_;                                                                                       \
        (void)b, (void)c, (void)scalars;                                                                               \
        KILN_PW_IVDEP for (int64_t i = 0; i < n; i++)                                                                  \
        {                                                                                                              \
            const from_type x = a[i];                                                                                  \
            d[i] = (to_type)(value);                                                                                   \
        }                                                                                                              \
    }
CAST(f32, float, f32, float, x)
CAST(f32, float, f64, double, x)
CAST(f32, float, i64, int64_t, truncated_i64(x))
CAST(f32, float, i32, int64_t, truncated_i32(x))
CAST(f32, float, b8, uint8_t, x != 0)
CAST(f64, double, f32, float, x)
CAST(f64, double, f64, double, x)
CAST(f64, double, i64, int64_t, truncated_i64(x))
CAST(f64, double, i32, int64_t, truncated_i32(x))
CAST(f64, double, b8, uint8_t, x != 0)
CAST(i64, int64_t, f32, float, x)
CAST(i64, int64_t, f64, double, x)
CAST(i64, int64_t, i64, int64_t, x)
CAST(i64, int64_t, b8, uint8_t, x != 0)
CAST(b8, uint8_t, f32, float, x)
CAST(b8, uint8_t, f64, double, x)
CAST(b8, uint8_t, i64, int64_t, x)
CAST(b8, uint8_t, b8, uint8_t, x)

/* ---- Between memory and registers ---- */

/* In what a memory type M is loaded to and stored from a register type R, element by element. */
#define STRIDED(name, M, R, loaded)                                                                                    \
    static void load_strided_##name(void *reg_, const void *mem_, int64_t stride, int64_t n)                           \
    {                                                                                                                  \
        R *reg = reg_;                                                                                                 \
        const M *mem = mem_;                                                                                           \
        for (int64_t i = 0; i < n; i++) {                                                                              \
            const M x = mem[i * stride];                                                                               \
            reg[i] = (R)(loaded);                                                                                      \
        }                                                                                                              \
    }                                                                                                                  \
    static void splat_##name(void *reg_, const void *mem_, int64_t n)                                                  \
    {                                                                                                                  \
        R *reg = reg_;                                                                                                 \
        const M x = *(const M *)mem_;                                                                                  \
        const R value = (R)(loaded);                                                                                   \
        for (int64_t i = 0; i < n; i++)                                                                                \
            reg[i] = value;                                                                                            \
    }
#define DENSE(name, M, R, loaded, stored)                                                                              \
    static void load_##name(void *reg_, const void *mem_, int64_t n)                                                   \
    {                                                                                                                  \
        R *reg = reg_;                                                                                                 \
        const M *mem = mem_;                                                                                           \
        KILN_PW_IVDEP for (int64_t i = 0; i < n; i++)                                                                  \
        {                                                                                                              \
            const M x = mem[i];                                                                                        \
            reg[i] = (R)(loaded);                                                                                      \
        }                                                                                                              \
    }                                                                                                                  \
    static void store_##name(void *mem_, const void *reg_, int64_t n)                                                  \
    {                                                                                                                  \
        M *mem = mem_;                                                                                                 \
        const R *reg = reg_;                                                                                           \
        KILN_PW_IVDEP for (int64_t i = 0; i < n; i++)                                                                  \
        {                                                                                                              \
            const R x = reg[i];                                                                                        \
            mem[i] = (M)(stored);                                                                                      \
        }                                                                                                              \
    }
#define NARROW(which, name, R, value)                                                                                  \
    static void which##_##name(void *reg_, int64_t n)                                                                  \
    {                                                                                                                  \
        R *reg = reg_;                                                                                                 \
        KILN_PW_IVDEP for (int64_t i = 0; i < n; i++)                                                                  \
        {                                                                                                              \
            const R x = reg[i];                                                                                        \
            reg[i] = (R)(value);                                                                                       \
        }                                                                                                              \
    }

DENSE(bool, uint8_t, uint8_t, x != 0, x != 0)
DENSE(u8, uint8_t, int64_t, x, x)
DENSE(i32, int32_t, int64_t, x, x)
DENSE(i64, int64_t, int64_t, x, x)
DENSE(bf16, uint16_t, float, kiln_bf16_to_f32(x), kiln_f32_to_bf16(x))
DENSE(f32, float, float, x, x)
DENSE(f64, double, double, x, x)
STRIDED(bool, uint8_t, uint8_t, x != 0)
STRIDED(u8, uint8_t, int64_t, x)
STRIDED(i32, int32_t, int64_t, x)
STRIDED(i64, int64_t, int64_t, x)
STRIDED(bf16, uint16_t, float, kiln_bf16_to_f32(x))
STRIDED(f16, uint16_t, float, kiln_f16_to_f32(x))
STRIDED(f32, float, float, x)
STRIDED(f64, double, double, x)
NARROW(wrap, u8, int64_t, (uint8_t)x)
NARROW(wrap, i32, int64_t, (int32_t)x)
NARROW(round, bf16, float, kiln_bf16_to_f32(kiln_f32_to_bf16(x)))

#ifdef __F16C__

/* The conversion instructions take eight elements or, with AVX-512, sixteen; a last part goes through a buffer. */
#ifdef __AVX512F__
#define STEP          16
#define WIDEN(to, at) _mm512_storeu_ps(to, _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i_u *)(at))))
#define HALVE(to, at)                                                                                                  \
    _mm256_storeu_si256((__m256i_u *)(to), _mm512_cvtps_ph(_mm512_loadu_ps(at), _MM_FROUND_TO_NEAREST_INT))
#else
#define STEP          8
#define WIDEN(to, at) _mm256_storeu_ps(to, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i_u *)(at))))
#define HALVE(to, at)                                                                                                  \
    _mm_storeu_si128((__m128i_u *)(to), _mm256_cvtps_ph(_mm256_loadu_ps(at), _MM_FROUND_TO_NEAREST_INT))
#endif

static void load_f16(void *reg_, const void *mem_, int64_t n)
{
    float *reg = reg_, last[STEP];
    const uint16_t *mem = mem_;
    uint16_t rest[STEP] = {0};
    int64_t i = 0;
    for (; i + STEP <= n; i += STEP)
        WIDEN(reg + i, mem + i);
    if (i == n)
        return;
    memcpy(rest, mem + i, (size_t)(n - i) * sizeof *mem);
    WIDEN(last, rest);
    memcpy(reg + i, last, (size_t)(n - i) * sizeof *reg);
}

static void store_f16(void *mem_, const void *reg_, int64_t n)
{
    const float *reg = reg_;
    float rest[STEP] = {0};
    uint16_t *mem = mem_, last[STEP];
    int64_t i = 0;
    for (; i + STEP <= n; i += STEP)
        HALVE(mem + i, reg + i);
    if (i == n)
        return;
    memcpy(rest, reg + i, (size_t)(n - i) * sizeof *reg);
    HALVE(last, rest);
    memcpy(mem + i, last, (size_t)(n - i) * sizeof *mem);
}

#else

DENSE(f16, uint16_t, float, kiln_f16_to_f32(x), kiln_f32_to_f16(x))

#endif

/* Through a buffer that stays in the nearest cache. */
static void round_f16(void *reg_, int64_t n)
{
    float *reg = reg_;
    uint16_t half[256];
    for (int64_t i = 0; i < n; i += 256) {
        int64_t count = n - i < 256 ? n - i : 256;
        store_f16(half, reg + i, count);
        load_f16(reg + i, half, count);
    }
}

/* ---- The table ---- */

#define PER_DTYPE(f)                                                                                                   \
    {                                                                                                                  \
        [KILN_BOOL] = f##_bool, [KILN_U8] = f##_u8, [KILN_I32] = f##_i32, [KILN_I64] = f##_i64, [KILN_F16] = f##_f16,  \
        [KILN_BF16] = f##_bf16, [KILN_F32] = f##_f32, [KILN_F64] = f##_f64                                             \
    }
#define PER_CLASS(name)                                                                                                \
    {                                                                                                                  \
        [KILN_PW_F32] = f32_##name, [KILN_PW_F64] = f64_##name, [KILN_PW_I64] = i64_##name, [KILN_PW_BOOL] = b8_##name \
    }
#define CASTS(from)                                                                                                    \
    {                                                                                                                  \
        [KILN_PW_F32] = cast_##from##_f32, [KILN_PW_F64] = cast_##from##_f64, [KILN_PW_I64] = cast_##from##_i64,       \
        [KILN_PW_BOOL] = cast_##from##_b8                                                                              \
    }
static const kiln_pw_table table = {
    .isa = KILN_PW_ISA,
    .fn = PER_CLASS(rows),
    .joined = {[KILN_PW_F32] = f32_joins, [KILN_PW_F64] = f64_joins},
    .to_i32 = {[KILN_PW_F32] = cast_f32_i32, [KILN_PW_F64] = cast_f64_i32},
    .cast = {[KILN_PW_F32] = CASTS(f32),
             [KILN_PW_F64] = CASTS(f64),
             [KILN_PW_I64] = CASTS(i64),
             [KILN_PW_BOOL] = CASTS(b8)},
    .load = PER_DTYPE(load),
    .load_strided = PER_DTYPE(load_strided),
    .splat = PER_DTYPE(splat),
    .store = PER_DTYPE(store),
    .wrap = {[KILN_U8] = wrap_u8, [KILN_I32] = wrap_i32},
    .round = {[KILN_F16] = round_f16, [KILN_BF16] = round_bf16},
    .fold = PER_CLASS(folds),
    .reduce = PER_CLASS(reductions),
};
const kiln_pw_table *const KILN_PW_TABLE = &table;
