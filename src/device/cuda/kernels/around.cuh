/* What stands around a kernel of rows: programs of groups (group/text.h) that make elements of its operands, and that
 * go on from elements of its first result. A kernel takes it as an argument and asks it for nothing at run time. given
 * which operands are made: bits, in the order of operands that can be finishes     whether elements of the result are
 * handed on instead of stored Halves are rounded on both ways, as if they had been in memory. Compiled ahead, where
 * nothing is around, and as text with generated kernels. */
#ifndef KILN_CUDA_AROUND_CUH
#define KILN_CUDA_AROUND_CUH

#include "device/cuda/kernels/held.cuh"

struct kiln_alone {
    static constexpr unsigned given = 0;
    static constexpr bool finishes = false;
    template <int STEP> struct fetched {
    };

    template <int STEP> __device__ __forceinline__ fetched<STEP> fetch(int64_t) const
    {
        return {};
    }
};

/* In place of the program that there is not. */
struct kiln_nothing {
    enum { N = 4 };
    struct fetched {
    };
};

static __device__ __forceinline__ constexpr int kiln_least(int a, int b)
{
    return a < b ? a : b;
}

template <typename LEAD, typename END, unsigned GIVEN, bool FINISHES> struct kiln_around {
    static constexpr unsigned given = GIVEN;
    static constexpr bool finishes = FINISHES;
    const LEAD &before;
    const END &behind;

    template <int STEP> struct fetched {
        typename END::fetched at[STEP < END::N ? 1 : STEP / END::N];
    };

    /* Elements i … of the operands, STEP of each: take(operand, number, element). */
    template <int STEP, typename F> __device__ __forceinline__ void make(int64_t i, F take) const
    {
        constexpr int n = LEAD::N;
#pragma unroll
        for (int part = 0; part < STEP; part += n) {
            uint64_t x[2 * n];
            before.elements(i + part, kiln_least(n, STEP - part), x);
            int gift = 0;
#pragma unroll
            for (int operand = 0; operand < 2; operand++) {
                if (!(GIVEN >> operand & 1))
                    continue;
#pragma unroll
                for (int v = 0; v < kiln_least(n, STEP - part); v++)
                    take(operand, part + v, __uint_as_float((unsigned)x[gift * n + v]));
                gift++;
            }
        }
    }

    /* What will be read for elements i … of the result: it can be on its way while they are computed. */
    template <int STEP> __device__ __forceinline__ fetched<STEP> fetch(int64_t i) const
    {
        fetched<STEP> f;
#pragma unroll
        for (int part = 0; part < STEP; part += END::N)
            f.at[part / END::N] = behind.fetch(i + part, kiln_least(END::N, STEP - part));
        return f;
    }

    template <int STEP> __device__ __forceinline__ void go_on(int64_t i, const fetched<STEP> &f, const float *y) const
    {
#pragma unroll
        for (int part = 0; part < STEP; part += END::N) {
            uint64_t unused[END::N];
            behind.elements(i + part, kiln_least(END::N, STEP - part), y + part, unused, f.at[part / END::N]);
        }
    }
};

/* How many neighbours of a held row are made or handed on at once. */
template <typename H> constexpr int kiln_cell = H::width < 4 ? H::width : 4;

/* Elements of a row, of which the first is number `first` of all, as they are made for its operands. */
template <typename A, typename C, typename H>
static __device__ __forceinline__ void kiln_take(const A &around, const C &c, int64_t first, int left, H &x, H &y)
{
#pragma unroll
    for (int k = 0; k < H::each; k += kiln_cell<H>)
        if (H::place(c, k) < left)
            around.template make<kiln_cell<H>>(first + H::place(c, k), [&](int operand, int i, float value) {
                (operand ? y : x).all.set(k + i, H::element::to(value));
            });
}

/* Hands on what f makes of elements k … of a held row, by their numbers. */
template <typename H, typename A, typename AHEAD, typename C, typename F>
static __device__ __forceinline__ void kiln_finish(const A &around, const AHEAD &ahead, int64_t first, int k,
                                                   const C &c, F f)
{
    constexpr int step = kiln_cell<H>;
    float y[step];
#pragma unroll
    for (int i = 0; i < step; i++)
        y[i] = H::element::of(H::element::to(f(k + i)));
    around.template go_on<step>(first + H::place(c, k), ahead, y);
}

/* Puts what f makes of elements k … k + COUNT - 1 where they belong. */
template <typename H, int N, int COUNT, typename A, typename T, typename C, typename F>
static __device__ __forceinline__ void kiln_put(const A &around, T *to, int64_t first, int k, const C &c, int left, F f)
{
    if constexpr (A::finishes) {
#pragma unroll
        for (int i = k; i < k + COUNT; i += kiln_cell<H>)
            if (H::place(c, i) < left)
                kiln_finish<H>(around, around.template fetch<kiln_cell<H>>(first + H::place(c, i)), first, i, c, f);
    } else
        H::template put<N, COUNT>(to, k, c, left, f);
}

#endif
