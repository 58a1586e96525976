/* Operands of tiles: what a tile needs of one, and how elements become numbers. Elements lie in memory as floats or as
 * halves. What is multiplied has a type of its own: floats may be read as if they had been converted to halves before,
 * so that a product needs no copy of a weight that is kept in f32. */
#ifndef KILN_CUDA_PANEL_CUH
#define KILN_CUDA_PANEL_CUH

#include "device/cuda/gemm/tile.h"
#include "device/cuda/kernels/halves.cuh"

/* The types of a product: of a and of b in memory, and of what is multiplied, which the result is rounded to. */
template <typename A, typename B, typename As> struct kiln_cuda_types {
    typedef A a;
    typedef B b;
    typedef As as;
};

/* Lines along k, rows of a or columns of b. */
template <typename T> struct kiln_cuda_panel {
    const T *from;      /* the first line's first element */
    int64_t line, step; /* from line to line, along k */
    int lines;          /* that there are */
    bool vector;        /* can be read several at a time along what has stride 1: four, or 16 bytes … */
    bool fours;         /* … where there is a multiple of four … */
    bool whole;         /* … and of as many k */
};

/* ---- Numbers ---- */

static __device__ __forceinline__ float kiln_cuda_float_of(float x)
{
    return x;
}
static __device__ __forceinline__ float kiln_cuda_float_of(kiln_f16 x)
{
    return kiln_of_f16(x.bits);
}
static __device__ __forceinline__ float kiln_cuda_float_of(kiln_bf16 x)
{
    return kiln_of_bf16(x.bits);
}

/* What is left of a number that is converted to the type of the second operand. */
static __device__ __forceinline__ float kiln_cuda_rounded(float x, float)
{
    return x;
}
static __device__ __forceinline__ float kiln_cuda_rounded(float x, kiln_f16)
{
    return kiln_round_f16(x);
}
static __device__ __forceinline__ float kiln_cuda_rounded(float x, kiln_bf16)
{
    return kiln_round_bf16(x);
}

/* The number that an element is in a product of As. */
template <typename As, typename T> static __device__ __forceinline__ float kiln_cuda_number(T x)
{
    return sizeof(T) == 2 ? kiln_cuda_float_of(x) : kiln_cuda_rounded(kiln_cuda_float_of(x), As{});
}

/* Two numbers as a word of halves, the first one below. */
static __device__ __forceinline__ uint32_t kiln_cuda_pair(float x, float y, kiln_f16)
{
    uint32_t pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(y), "f"(x));
    return pair;
}
static __device__ __forceinline__ uint32_t kiln_cuda_pair(float x, float y, kiln_bf16)
{
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(y), "f"(x));
    return pair;
}

/* The two numbers of such a word. */
static __device__ __forceinline__ void kiln_cuda_apart(uint32_t pair, float &x, float &y, kiln_f16)
{
    x = kiln_of_f16((uint16_t)pair);
    y = kiln_of_f16((uint16_t)(pair >> 16));
}
static __device__ __forceinline__ void kiln_cuda_apart(uint32_t pair, float &x, float &y, kiln_bf16)
{
    x = __uint_as_float(pair << 16);
    y = __uint_as_float(pair & 0xffff0000);
}

/* Two numbers rounded: together where that takes fewer instructions. */
template <typename As>
static __device__ __forceinline__ void kiln_cuda_rounded_pair(float a, float b, float &x, float &y, As as)
{
    x = kiln_cuda_rounded(a, as);
    y = kiln_cuda_rounded(b, as);
}
static __device__ __forceinline__ void kiln_cuda_rounded_pair(float a, float b, float &x, float &y, kiln_f16 as)
{
    kiln_cuda_apart(kiln_cuda_pair(a, b, as), x, y, as);
}

/* ---- Fours of elements, as they lie in memory until they are used ---- */

template <typename T> struct kiln_cuda_four { /* of halves */
    uint2 words;

    static __device__ __forceinline__ kiln_cuda_four of(T a, T b, T c, T d)
    {
        return kiln_cuda_four{uint2{a.bits | (uint32_t)b.bits << 16, c.bits | (uint32_t)d.bits << 16}};
    }

    template <typename As> __device__ __forceinline__ void numbers(float (&x)[4]) const
    {
        kiln_cuda_apart(words.x, x[0], x[1], T{});
        kiln_cuda_apart(words.y, x[2], x[3], T{});
    }
};

template <> struct kiln_cuda_four<float> {
    float4 x;

    static __device__ __forceinline__ kiln_cuda_four of(float a, float b, float c, float d)
    {
        return kiln_cuda_four{float4{a, b, c, d}};
    }

    template <typename As> __device__ __forceinline__ void numbers(float (&to)[4]) const
    {
        kiln_cuda_rounded_pair(x.x, x.y, to[0], to[1], As{});
        kiln_cuda_rounded_pair(x.z, x.w, to[2], to[3], As{});
    }
};

/* ---- Results ---- */

/* Four neighbours of a row, or less: those of c from element `at`. */
struct kiln_cuda_cell {
    int64_t at;
    int n; /* 0: none */
    float x[4];
};

static __device__ __forceinline__ void kiln_cuda_store_four(float *to, const float (&x)[4])
{
    *(float4 *)to = make_float4(x[0], x[1], x[2], x[3]);
}
template <typename T> static __device__ __forceinline__ void kiln_cuda_store_four(T *to, const float (&x)[4])
{
    *(uint2 *)to = uint2{kiln_cuda_pair(x[0], x[1], T{}), kiln_cuda_pair(x[2], x[3], T{})};
}

static __device__ __forceinline__ void kiln_cuda_store_one(float *to, float x)
{
    *to = x;
}
template <typename T> static __device__ __forceinline__ void kiln_cuda_store_one(T *to, float x)
{
    *to = kiln_element<T>::to(x);
}

/* `vector`: cells are whole, and aligned to four elements. */
template <typename T>
static __device__ __forceinline__ void kiln_cuda_store_cell(T *c, const kiln_cuda_cell &cell, bool vector)
{
    if (vector && cell.n)
        kiln_cuda_store_four(c + cell.at, cell.x);
#pragma unroll
    for (int v = 0; v < 4; v++)
        if (!vector && v < cell.n)
            kiln_cuda_store_one(c + cell.at + v, cell.x[v]);
}

#endif
