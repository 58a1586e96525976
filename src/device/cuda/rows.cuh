/* How kernels that work on rows are launched: a row belongs to a warp, or to a block where rows are long or few. */
#ifndef KILN_CUDA_ROWS_CUH
#define KILN_CUDA_ROWS_CUH

#include "device/cuda/reduce.cuh"

typedef struct shape {
    int64_t outer, n, inner;
} shape;

/* [outer, n, inner] around dims first … end-1. */
static shape split(const kiln_cuda_operand *x, int64_t first, int64_t end)
{
    shape s = {1, 1, 1};
    for (int d = 0; d < x->ndim; d++)
        *(d < first ? &s.outer : d < end ? &s.n : &s.inner) *= x->shape[d];
    return s;
}

typedef struct teams {
    bool block; /* a block a row; else a warp */
    unsigned threads, grid;
} teams;

/* `threads`: of a block, 0: any. */
static teams teams_for(int64_t rows, int64_t n, unsigned threads)
{
    teams t = {n > 1024 || (n >= 256 && rows <= 512), threads, 0};
    if (!threads)
        t.threads = t.block ? (n <= 4096 ? 256 : n <= 16384 ? 512 : 1024) : rows < 1024 ? 32 : 128;
    int64_t a_block = t.block ? 1 : t.threads / 32;
    t.grid = kiln_grid((rows + a_block - 1) / a_block);
    return t;
}

template <bool BLOCK> static __device__ __forceinline__ int64_t next_row(unsigned grid)
{
    return BLOCK ? grid : (int64_t)grid * (blockDim.x / 32);
}

/* Calls `kernel` with the team and with whole vectors where rows begin at multiples of 16 bytes. */
#define ROW_KERNEL(kernel, t, T, wide, shared, stream, ...)                                                            \
    do {                                                                                                               \
        if ((t).block && (wide))                                                                                       \
            kernel<T, true, kiln_wide<T>><<<(t).grid, (t).threads, shared, stream>>>(__VA_ARGS__);                     \
        else if ((t).block)                                                                                            \
            kernel<T, true, 1><<<(t).grid, (t).threads, shared, stream>>>(__VA_ARGS__);                                \
        else if (wide)                                                                                                 \
            kernel<T, false, kiln_wide<T>><<<(t).grid, (t).threads, shared, stream>>>(__VA_ARGS__);                    \
        else                                                                                                           \
            kernel<T, false, 1><<<(t).grid, (t).threads, shared, stream>>>(__VA_ARGS__);                               \
    } while (0)

#endif
