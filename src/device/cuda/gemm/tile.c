/* Which tiles a product is made of. */
#include "device/cuda/gemm/tile.h"

enum { SHORTEST_SPLIT = 128 }; /* elements along k */

typedef kiln_cuda_tile_cost tile;

static int64_t times(int64_t n, int64_t of) /* that it takes, rounded up */
{
    return (n + of - 1) / of;
}

static bool by_tensor_cores(int32_t rows, int32_t cols, int32_t slices)
{
    return KILN_CUDA_TILE_TENSOR(rows, cols, slices);
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

static size_t shared_floats(int64_t rows, int64_t cols, int64_t slices, int64_t k)
{
    if (KILN_CUDA_TILE_TENSOR(rows, cols, slices))
        return larger(KILN_CUDA_TENSOR_ROOM / sizeof(float), (size_t)KILN_CUDA_TENSOR_SUMS(rows, cols, slices));
    if (KILN_CUDA_TILE_STRAIGHT(rows, cols, slices))
        return (size_t)(rows * cols * (slices / KILN_CUDA_TILE_BESIDE(rows, cols)));
    int64_t chunks = times(KILN_CUDA_TILE_SLICE(k, slices), KILN_CUDA_TILE_CHUNK);
    int64_t stages = chunks < KILN_CUDA_TILE_STAGES ? chunks : KILN_CUDA_TILE_STAGES;
    return (size_t)((KILN_CUDA_TILE_SUMS(rows, cols) + stages * KILN_CUDA_TILE_STAGE(rows, cols)) * slices);
}

size_t kiln_cuda_tiling_partials(const kiln_cuda_tiling *t, kiln_cuda_sizes e)
{
    return t->splits == 1 ? 0 : (size_t)(t->splits * e.m * e.n * e.matrices) * sizeof(float);
}

/* About how long the product takes, in nanoseconds: how often every block makes a tile, and summing splits. */
static int64_t time_of(const kiln_cuda_tiling *t, kiln_cuda_sizes e)
{
    const tile *one = e.costs->tiles;
    while (one->rows != t->rows || one->cols != t->cols || one->slices != t->slices)
        one++;
    int64_t k = KILN_CUDA_TILE_SPLIT(e.k, t->splits);
    return times(t->tiles, e.costs->blocks) * (one->start + k * one->step / 1000) + t->summing;
}

kiln_cuda_tiling kiln_cuda_tiling_with(int32_t rows, int32_t cols, int32_t slices, int32_t splits, kiln_cuda_sizes e)
{
    kiln_cuda_tiling t = {.rows = rows, .cols = cols, .slices = slices, .splits = splits};
    t.across = times(e.n, cols);
    t.down = times(e.m, rows);
    t.tiles = t.across * t.down * e.matrices * splits;
    t.shared = shared_floats(rows, cols, slices, KILN_CUDA_TILE_SPLIT(e.k, splits)) * sizeof(float);
    if (splits > 1)
        t.summing = e.costs->sum_splits + 2 * (int64_t)kiln_cuda_tiling_partials(&t, e) / e.costs->summed;
    t.nanoseconds = time_of(&t, e);
    return t;
}

/* As many splits as there are blocks for; fewer where some would have nothing to do. */
static int32_t most_splits(const tile *one, kiln_cuda_sizes e)
{
    int64_t whole = kiln_cuda_tiling_with(one->rows, one->cols, one->slices, 1, e).tiles;
    int64_t splits = e.costs->blocks / whole, enough = times(e.k, SHORTEST_SPLIT);
    splits = splits < enough ? splits : enough;
    return splits > 1 ? (int32_t)times(e.k, KILN_CUDA_TILE_SPLIT(e.k, splits)) : 1;
}

typedef struct search {
    kiln_cuda_sizes e;
    int64_t most, least; /* tiles, cost so far */
    kiln_cuda_tiling *best;
} search;

static void try_tiling(search *s, const tile *one, int32_t splits)
{
    kiln_cuda_tiling t = kiln_cuda_tiling_with(one->rows, one->cols, one->slices, splits, s->e);
    int64_t cost = t.nanoseconds + t.tiles * s->e.costs->room / 1000; /* and the room that tiles take */
    if (t.tiles <= s->most && cost < s->least) {
        s->least = cost;
        *s->best = t;
    }
}

static bool find(kiln_cuda_sizes e, int64_t most, bool split, kiln_cuda_tiling *t)
{
    int64_t work;
    if (e.m < 1 || e.n < 1 || e.k < 1 || e.matrices < 1 || __builtin_mul_overflow(e.m, e.n, &work) ||
        __builtin_mul_overflow(work, e.k, &work) || __builtin_mul_overflow(work, e.matrices, &work) ||
        work > (e.tensor ? e.costs->most_tensor_work : e.costs->most_work))
        return false;
    search s = {e, most, INT64_MAX, t};
    for (int i = 0; i < KILN_CUDA_TILE_COSTS; i++) {
        const tile *one = &e.costs->tiles[i];
        bool tensor = by_tensor_cores(one->rows, one->cols, one->slices);
        if (tensor ? !e.tensor : work > e.costs->most_work)
            continue;
        try_tiling(&s, one, 1);
        if (tensor && split)
            try_tiling(&s, one, most_splits(one, e));
    }
    /* Where blocks make more than one of the largest tiles a library, which keeps all of the device busy, wins earlier:
     * 16640 × 192 × 192 took it 6 µs, and a chain with what follows 24. */
    bool waves = s.least < INT64_MAX && t->tiles > e.costs->blocks && t->rows * t->cols >= 128 * 128;
    t->large = e.tensor && s.least > e.costs->most_tensor_time / (waves ? 2 : 1);
    return s.least <= (e.tensor ? e.costs->most_large_time : e.costs->most_time);
}

bool kiln_cuda_tiling_of(kiln_cuda_sizes e, kiln_cuda_tiling *t)
{
    return find(e, INT64_MAX, true, t);
}

bool kiln_cuda_tiling_within(kiln_cuda_sizes e, int64_t most, kiln_cuda_tiling *t)
{
    return find(e, most, false, t);
}
