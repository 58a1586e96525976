/* Elements of rows: how they are computed with, how they are loaded, and how they lie in registers, which is how they
 * lie in memory. halves.cuh has those of 16 bits. Compiled ahead and as text with generated kernels. */
#ifndef KILN_CUDA_LYING_CUH
#define KILN_CUDA_LYING_CUH

#include "device/cuda/kernels/reduce.cuh"

/* What elements are computed as, and how: no more exactly than their type has room for. */
template <typename T> struct kiln_element {
    typedef T real;

    static __device__ __forceinline__ real of(T x)
    {
        return x;
    }

    static __device__ __forceinline__ T to(real x)
    {
        return x;
    }

    /* Of two words of a row, which are elements here but pairs of halves, and of what is in a word. */
    static __device__ __forceinline__ T larger(T a, T b)
    {
        return kiln_larger(a, b);
    }

    static __device__ __forceinline__ real largest(T x)
    {
        return x;
    }

    static __device__ __forceinline__ real exp(real x)
    {
        return kiln_exp(x);
    }

    /* exp(x) / sum, from what was made of the sum once. */
    static __device__ __forceinline__ real divisor(double sum)
    {
        return (real)(1 / sum);
    }

    static __device__ __forceinline__ real exp_over(real x, real divisor)
    {
        return kiln_exp(x) * divisor;
    }
};

/* ---- Loading ---- */

/* Loads in place of `v` where place < left: as one predicated instruction, so that many are on their way and neither
 * branches nor predicates are kept. They are not taken to never change: other blocks may have written them in the same
 * launch. ONCE: nobody asks for them again, so the first level cache keeps what is asked for (weights). */
#define KILN_LOAD_IF(how)                                                                                              \
    asm volatile("{\n\t"                                                                                               \
                 ".reg .pred there;\n\t"                                                                               \
                 "setp.lt.s32 there, %5, %6;\n\t"                                                                      \
                 "@there ld.global" how ".v4.b32 {%0, %1, %2, %3}, [%4];\n\t"                                          \
                 "}"                                                                                                   \
                 : "+r"(v[0]), "+r"(v[1]), "+r"(v[2]), "+r"(v[3])                                                      \
                 : "l"(from), "r"(place), "r"(left)                                                                    \
                 : "memory")
template <bool ONCE>
static __device__ __forceinline__ void kiln_load_if(const void *from, int place, int left, unsigned (&v)[4])
{
    if (ONCE)
        KILN_LOAD_IF(".L1::no_allocate");
    else
        KILN_LOAD_IF("");
}
#undef KILN_LOAD_IF

#define KILN_LOAD_IF(type, bits, letter)                                                                               \
    template <bool>                                                                                                    \
    static __device__ __forceinline__ void kiln_load_if(const void *from, int place, int left, type &v)                \
    {                                                                                                                  \
        asm volatile("{\n\t"                                                                                           \
                     ".reg .pred there;\n\t"                                                                           \
                     "setp.lt.s32 there, %2, %3;\n\t"                                                                  \
                     "@there ld.global." bits " %0, [%1];\n\t"                                                         \
                     "}"                                                                                               \
                     : "+" letter(v)                                                                                   \
                     : "l"(from), "r"(place), "r"(left)                                                                \
                     : "memory");                                                                                      \
    }
KILN_LOAD_IF(unsigned short, "b16", "h")
KILN_LOAD_IF(unsigned, "b32", "r")
KILN_LOAD_IF(unsigned long long, "b64", "l")
#undef KILN_LOAD_IF

/* What N elements are moved as, by their bytes. */
template <int BYTES> struct kiln_moved;
template <> struct kiln_moved<2> {
    typedef unsigned short type;
};
template <> struct kiln_moved<4> {
    typedef unsigned type;
};
template <> struct kiln_moved<8> {
    typedef unsigned long long type;
};
template <> struct kiln_moved<16> {
    typedef unsigned type[4];
};

/* N elements as they lie in memory: one a word, or two of 16 bits. */
template <typename T, int N, bool PAIRS = sizeof(T) == 2> struct kiln_lying {
    T at[N];

    __device__ __forceinline__ T operator[](int i) const
    {
        return at[i];
    }

    __device__ __forceinline__ void set(int i, T x)
    {
        at[i] = x;
    }

    __device__ __forceinline__ void fill(T x)
    {
#pragma unroll
        for (int i = 0; i < N; i++)
            at[i] = x;
    }
};

template <typename T, int N> struct kiln_lying<T, N, true> {
    unsigned at[(N + 1) / 2];

    __device__ __forceinline__ T operator[](int i) const
    {
        return T{(unsigned short)(at[i / 2] >> i % 2 * 16)};
    }

    __device__ __forceinline__ void set(int i, T x)
    {
        at[i / 2] = i % 2 ? (at[i / 2] & 0xffff) | (unsigned)x.bits << 16 : (at[i / 2] & ~0xffffu) | x.bits;
    }

    __device__ __forceinline__ void fill(T x)
    {
#pragma unroll
        for (int i = 0; i < (N + 1) / 2; i++)
            at[i] = x.bits * 0x10001u;
    }
};

#endif
