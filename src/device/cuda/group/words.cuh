/* Elements of a group on their way: words in registers, cells of several words, and what moves them between memory and
 * cells. Compiled ahead with the interpreter and as text with generated kernels, which bring the enum of dtypes along.
 */
#ifndef KILN_CUDA_WORDS_CUH
#define KILN_CUDA_WORDS_CUH

#include "device/cuda/kernels/pointwise.cuh"
#include "device/cuda/group/reduction.h"
#ifndef __CUDACC_RTC__
#include "kiln/dtype.h"
#endif

/* kiln_pw_class and kiln_fold, which are for C alone. */
enum { F32, F64, I64, B8 };
enum { SUM, PROD, MAX, MIN, ANY, ALL };

/* ---- Elements in registers: words of 4 bytes in narrow groups, of 8 in wide ones ---- */

KILN_PW_INLINE void unpack(uint32_t w, float &x)
{
    x = __uint_as_float(w);
}
KILN_PW_INLINE void unpack(uint32_t w, uint8_t &x)
{
    x = (uint8_t)w;
}
KILN_PW_INLINE void unpack(uint64_t w, float &x)
{
    x = __uint_as_float((uint32_t)w);
}
KILN_PW_INLINE void unpack(uint64_t w, double &x)
{
    x = __longlong_as_double((long long)w);
}
KILN_PW_INLINE void unpack(uint64_t w, int64_t &x)
{
    x = (int64_t)w;
}
KILN_PW_INLINE void unpack(uint64_t w, uint64_t &x)
{
    x = w;
}
KILN_PW_INLINE void unpack(uint64_t w, uint8_t &x)
{
    x = (uint8_t)w;
}
template <typename X, typename W> KILN_PW_INLINE X as(W w)
{
    X x;
    unpack(w, x);
    return x;
}

KILN_PW_INLINE uint32_t bits(float x)
{
    return __float_as_uint(x);
}
KILN_PW_INLINE uint64_t bits(double x)
{
    return (uint64_t)__double_as_longlong(x);
}
KILN_PW_INLINE uint64_t bits(int64_t x)
{
    return (uint64_t)x;
}
KILN_PW_INLINE uint64_t bits(uint64_t x)
{
    return x;
}
KILN_PW_INLINE uint32_t bits(uint8_t x)
{
    return x;
}

template <bool wide> struct group_words;
template <> struct group_words<false> {
    typedef uint32_t word;
};
template <> struct group_words<true> {
    typedef uint64_t word;
};

template <bool wide> struct __align__(16) cell
{
    typedef typename group_words<wide>::word word;
    enum { N = wide ? 2 : 4 };
    word w[N];
};

/* ---- Between memory and words ---- */

template <typename W> KILN_PW_INLINE W widen(int dtype, const void *data, int64_t at)
{
    switch (dtype) {
    case KILN_BOOL: return ((const uint8_t *)data)[at] != 0;
    case KILN_CUDA_NOT_ZERO: return ((const uint64_t *)data)[at] != 0;
    case KILN_F16: return bits(kiln_of_f16(((const uint16_t *)data)[at]));
    case KILN_BF16: return bits(kiln_of_bf16(((const uint16_t *)data)[at]));
    case KILN_F32: return ((const uint32_t *)data)[at];
    }
    if constexpr (sizeof(W) == 8) {
        switch (dtype) {
        case KILN_U8: return ((const uint8_t *)data)[at];
        case KILN_I32: return (uint64_t)(int64_t)((const int32_t *)data)[at];
        default: return ((const uint64_t *)data)[at]; /* i64, f64 */
        }
    }
    return 0;
}

template <typename W> KILN_PW_INLINE void narrow(int dtype, void *data, int64_t at, W w)
{
    switch (dtype) {
    case KILN_BOOL: ((uint8_t *)data)[at] = w != 0; return;
    case KILN_F16: ((uint16_t *)data)[at] = kiln_to_f16(as<float>(w)); return;
    case KILN_BF16: ((uint16_t *)data)[at] = kiln_to_bf16(as<float>(w)); return;
    case KILN_F32: ((uint32_t *)data)[at] = (uint32_t)w; return;
    }
    if constexpr (sizeof(W) == 8) {
        switch (dtype) {
        case KILN_U8: ((uint8_t *)data)[at] = (uint8_t)w; return;
        case KILN_I32: ((uint32_t *)data)[at] = (uint32_t)w; return;
        default: ((uint64_t *)data)[at] = w; /* i64, f64 */
        }
    }
}

/* Four elements side by side, or two, as one access; data + at is aligned to all of them. */
KILN_PW_INLINE cell<false> widen_all(int dtype, const void *data, int64_t at, cell<false>)
{
    cell<false> c;
    if (dtype == KILN_F32) {
        uint4 x = *(const uint4 *)((const uint32_t *)data + at);
        c.w[0] = x.x, c.w[1] = x.y, c.w[2] = x.z, c.w[3] = x.w;
    } else if (dtype == KILN_BOOL) {
        uint32_t x = *(const uint32_t *)((const uint8_t *)data + at);
        for (int v = 0; v < 4; v++)
            c.w[v] = (x >> 8 * v & 0xff) != 0;
    } else {
        uint2 x = *(const uint2 *)((const uint16_t *)data + at);
        for (int v = 0; v < 4; v++) {
            uint16_t half = (uint16_t)((v < 2 ? x.x : x.y) >> 16 * (v & 1));
            c.w[v] = bits(dtype == KILN_F16 ? kiln_of_f16(half) : kiln_of_bf16(half));
        }
    }
    return c;
}

KILN_PW_INLINE cell<true> widen_all(int dtype, const void *data, int64_t at, cell<true>)
{
    cell<true> c;
    if (dtype == KILN_F64 || dtype == KILN_I64) {
        ulonglong2 x = *(const ulonglong2 *)((const uint64_t *)data + at);
        c.w[0] = x.x, c.w[1] = x.y;
    } else if (dtype == KILN_F32 || dtype == KILN_I32) {
        uint2 x = *(const uint2 *)((const uint32_t *)data + at);
        c.w[0] = dtype == KILN_F32 ? (uint64_t)x.x : (uint64_t)(int64_t)(int32_t)x.x;
        c.w[1] = dtype == KILN_F32 ? (uint64_t)x.y : (uint64_t)(int64_t)(int32_t)x.y;
    } else
        for (int v = 0; v < 2; v++)
            c.w[v] = widen<uint64_t>(dtype, data, at + v);
    return c;
}

/* Stores that stay one each: compilers make several of a vector whose elements are there at different times, as those of
 * a long computation are, and memory then takes twice as long. */
KILN_PW_INLINE void store_at_once(uint32_t *to, uint4 x)
{
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w)
                 : "memory");
}

KILN_PW_INLINE void store_at_once(void *to, uint2 x)
{
    asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(to), "r"(x.x), "r"(x.y) : "memory");
}

KILN_PW_INLINE void store_at_once(uint64_t *to, ulonglong2 x)
{
    asm volatile("st.global.v2.b64 [%0], {%1, %2};" ::"l"(to), "l"(x.x), "l"(x.y) : "memory");
}

KILN_PW_INLINE void narrow_all(int dtype, void *data, int64_t at, const cell<false> &c)
{
    if (dtype == KILN_F32)
        store_at_once((uint32_t *)data + at, make_uint4(c.w[0], c.w[1], c.w[2], c.w[3]));
    else if (dtype == KILN_BOOL) {
        uint32_t x = 0;
        for (int v = 0; v < 4; v++)
            x |= (uint32_t)(c.w[v] != 0) << 8 * v;
        *(uint32_t *)((uint8_t *)data + at) = x;
    } else {
        uint32_t x[2] = {0, 0};
        for (int v = 0; v < 4; v++) {
            float f = as<float>(c.w[v]);
            x[v / 2] |= (uint32_t)(dtype == KILN_F16 ? kiln_to_f16(f) : kiln_to_bf16(f)) << 16 * (v & 1);
        }
        store_at_once((uint16_t *)data + at, make_uint2(x[0], x[1]));
    }
}

KILN_PW_INLINE void narrow_all(int dtype, void *data, int64_t at, const cell<true> &c)
{
    if (dtype == KILN_F64 || dtype == KILN_I64)
        store_at_once((uint64_t *)data + at, make_ulonglong2(c.w[0], c.w[1]));
    else if (dtype == KILN_F32 || dtype == KILN_I32)
        store_at_once((uint32_t *)data + at, make_uint2((uint32_t)c.w[0], (uint32_t)c.w[1]));
    else
        for (int v = 0; v < 2; v++)
            narrow<uint64_t>(dtype, data, at + v, c.w[v]);
}

/* ---- Cells: elements place, place + step, …, of which the first n are wanted ---- */

template <bool wide> KILN_PW_INLINE cell<wide> load_splat(int dtype, const void *data)
{
    typedef typename cell<wide>::word word;
    cell<wide> c;
    word w = widen<word>(dtype, data, 0);
    for (int v = 0; v < cell<wide>::N; v++)
        c.w[v] = w;
    return c;
}

template <bool wide>
KILN_PW_INLINE cell<wide> load_line(int dtype, const void *data, int64_t at, int64_t step, bool vector, int n)
{
    cell<wide> c = {};
    if (vector && n == cell<wide>::N)
        return widen_all(dtype, data, at, c);
    for (int v = 0; v < cell<wide>::N; v++)
        if (v < n)
            c.w[v] = widen<typename cell<wide>::word>(dtype, data, at + v * step);
    return c;
}

template <bool wide>
KILN_PW_INLINE void store_line(int dtype, void *data, int64_t at, bool vector, const cell<wide> &c, int n)
{
    if (vector && n == cell<wide>::N)
        narrow_all(dtype, data, at, c);
    else
        for (int v = 0; v < cell<wide>::N; v++)
            if (v < n)
                narrow(dtype, data, at + v, c.w[v]);
}

/* What a store and a load after it would leave. */
template <bool wide> KILN_PW_INLINE void settle(int after, cell<wide> &d)
{
#pragma unroll
    for (int v = 0; v < cell<wide>::N; v++)
        switch (after) {
        case KILN_CUDA_ROUND_F16: d.w[v] = bits(kiln_round_f16(as<float>(d.w[v]))); break;
        case KILN_CUDA_ROUND_BF16: d.w[v] = bits(kiln_round_bf16(as<float>(d.w[v]))); break;
        case KILN_CUDA_WRAP_U8: d.w[v] = (uint8_t)d.w[v]; break;
        case KILN_CUDA_WRAP_I32: d.w[v] = (typename cell<wide>::word)(int64_t)(int32_t)d.w[v]; break;
        }
}

/* A run-time scalar as a row of the class wants it; as_index: iota, which computes in double. */
KILN_PW_INLINE uint64_t scalar(int cls, bool as_index, double x)
{
    switch (cls) {
    case F32: return as_index ? bits(x) : bits((float)x);
    case F64: return bits(x);
    case I64: return bits(kiln_saturate(x));
    default: return x != 0;
    }
}

#endif
