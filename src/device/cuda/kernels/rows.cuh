/* How kernels that work on rows are launched: with rows in registers (held.cuh), or a warp or a block a row. */
#ifndef KILN_CUDA_ROWS_CUH
#define KILN_CUDA_ROWS_CUH

#include "device/cuda/kernels/held.cuh"

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

/* ---- Rows in registers ---- */

/* Blocks of 256 threads that a multiprocessor should have room for, with two packs a thread and with four: eight leave
 * 32 registers, six 40, five 48, four 64. */
#define HELD_BOUNDS(T, V, E, two, four)                                                                                \
    __launch_bounds__((E) < kiln_holding<T, V>::most ? 256 : kiln_holding<T, V>::threads,                              \
                      (E) == kiln_holding<T, V>::most    ? 1                                                           \
                      : sizeof(T) == 8                   ? 4                                                           \
                      : (E) == kiln_holding<T, V>::least ? two                                                         \
                                                         : four)

/* Threads of a block: a team that is no block by itself gets company, unless that would leave multiprocessors idle. */
static unsigned held_threads(int64_t rows, int team)
{
    return team > 32 ? (unsigned)team : rows * team < (1 << 15) ? 32 : rows * team < (1 << 18) ? 128 : 256;
}

/* One row a team. No memory has room for so many rows that a grid has no room for them. */
static unsigned held_grid(int64_t rows, int team)
{
    int64_t teams = held_threads(rows, team) / team;
    return kiln_grid((rows + teams - 1) / teams);
}

/* Calls `held` for rows of s.n elements, or `parts` where they are too long to be held, with the team behind the other
 * arguments. */
#define HELD_KERNEL(held, parts, T, s, stream, ...)                                                                    \
    do {                                                                                                               \
        if (kiln_packs<T>((s).n))                                                                                      \
            HELD_KERNEL_OF(held, parts, T, kiln_wide<T>, s, stream, __VA_ARGS__);                                      \
        else                                                                                                           \
            HELD_KERNEL_OF(held, parts, T, 1, s, stream, __VA_ARGS__);                                                 \
    } while (0)
#define HELD_KERNEL_OF(held, parts, T, V, s, stream, ...)                                                              \
    do {                                                                                                               \
        typedef kiln_holding<T, V> h_;                                                                                 \
        int each_ = h_::each((s).n), team_ = h_::team((s).n);                                                          \
        auto call_ = (s).n > h_::longest  ? parts<T, V>                                                                \
                     : each_ == h_::least ? held<T, V, h_::least>                                                      \
                     : each_ < h_::most   ? held<T, V, 2 * h_::least>                                                  \
                                          : held<T, V, h_::most>;                                                      \
        call_<<<held_grid((s).outer, team_), held_threads((s).outer, team_), 0, stream>>>(__VA_ARGS__, team_);         \
    } while (0)

/* ---- A warp or a block a row ---- */

typedef struct teams {
    bool block; /* a block a row; else a warp */
    unsigned threads, grid;
} teams;

static teams teams_for(int64_t rows, int64_t n, unsigned threads)
{
    teams t = {n > 1024 || (n >= 256 && rows <= 512), threads, 0};
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
