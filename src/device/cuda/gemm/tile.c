/* Which tiles a product is made of. */
#include "device/cuda/gemm/tile.h"

enum {
    /* Multiply-adds beyond which a library that keeps the whole device busy for longer does better. */
    MOST_WORK = 48 << 20,
    MOST_TENSOR_WORK = 2000 << 20,
    /* Picoseconds for a tile that takes a block from other products of the same wave. Also about what tiles cost each
     * other in the second level cache. */
    ROOM = 4500,
    /* Beyond this estimate, in nanoseconds, the library does better: k is long and the result small, or there is much
     * to do without tensor cores. With them a product may be large, if it is not too large. */
    MOST_TIME = 9000,
    MOST_TENSOR_TIME = 15000,
    MOST_LARGE_TIME = 40000,
    /* Nanoseconds of a wave that adds splits and of what their tiles take from other products, and bytes of partial
     * sums that are written and read in one. */
    SUM_SPLITS = 5000,
    SUMMED = 2000,
    SHORTEST_SPLIT = 128 /* elements along k */
};

/* What a tile takes: lines, by k, through the times of products with constant sizes that bench/cuda_tiles showed on an
 * H200. */
typedef struct tile {
    int32_t rows, cols, slices;
    int64_t start; /* nanoseconds, with any k */
    int64_t step;  /* picoseconds for an element along k */
} tile;

static const tile tiles[] = {
    {8, 8, 128, 400, 1500},     {16, 8, 64, 380, 2350},  {16, 16, 32, 300, 5900},  {16, 32, 16, 280, 12000},
    {16, 32, 8, 600, 8200},     {32, 32, 8, 700, 12500}, {32, 64, 4, 800, 22000},  {64, 64, 2, 900, 41000},
    {32, 32, 16, 1300, 5000},   {64, 32, 8, 1800, 6700}, {64, 64, 4, 1800, 12600}, {128, 64, 2, 1800, 21600},
    {128, 128, 2, 2500, 22000},
};
enum { TILES = sizeof tiles / sizeof *tiles };

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
        return larger(
            (size_t)(KILN_CUDA_TENSOR_STAGES(rows, cols, slices) * (rows + cols) * KILN_CUDA_TENSOR_LONG(slices)),
            (size_t)KILN_CUDA_TENSOR_SUMS(rows, cols, slices));
    if (KILN_CUDA_TILE_STRAIGHT(rows, cols, slices))
        return (size_t)(rows * cols * (slices / KILN_CUDA_TILE_BESIDE(rows, cols)));
    int64_t chunks = times(KILN_CUDA_TILE_SLICE(k, slices), KILN_CUDA_TILE_CHUNK);
    int64_t stages = chunks < KILN_CUDA_TILE_STAGES ? chunks : KILN_CUDA_TILE_STAGES;
    return (size_t)((KILN_CUDA_TILE_SUMS(rows, cols) + stages * KILN_CUDA_TILE_STAGE(rows, cols)) * slices);
}

kiln_cuda_tiling kiln_cuda_tiling_with(int32_t rows, int32_t cols, int32_t slices, int32_t splits, kiln_cuda_extent e)
{
    kiln_cuda_tiling t = {.rows = rows, .cols = cols, .slices = slices, .splits = splits};
    t.across = times(e.n, cols);
    t.down = times(e.m, rows);
    t.tiles = t.across * t.down * e.matrices * splits;
    t.shared = shared_floats(rows, cols, slices, KILN_CUDA_TILE_SPLIT(e.k, splits)) * sizeof(float);
    t.summing = splits > 1 ? SUM_SPLITS + 2 * (int64_t)kiln_cuda_tiling_partials(&t, e) / SUMMED : 0;
    return t;
}

size_t kiln_cuda_tiling_partials(const kiln_cuda_tiling *t, kiln_cuda_extent e)
{
    return t->splits == 1 ? 0 : (size_t)(t->splits * e.m * e.n * e.matrices) * sizeof(float);
}

/* About how long the product takes, in nanoseconds: how often every block makes a tile, and summing splits … */
static int64_t time_of(const tile *one, const kiln_cuda_tiling *t, kiln_cuda_extent e)
{
    int64_t k = KILN_CUDA_TILE_SPLIT(e.k, t->splits);
    return times(t->tiles, KILN_CUDA_TILE_BLOCKS) * (one->start + k * one->step / 1000) + t->summing;
}

/* As many splits as there are blocks for; fewer where some would have nothing to do. */
static int32_t most_cuts(const tile *one, kiln_cuda_extent e)
{
    int64_t whole = kiln_cuda_tiling_with(one->rows, one->cols, one->slices, 1, e).tiles;
    int64_t splits = KILN_CUDA_TILE_BLOCKS / whole, enough = times(e.k, SHORTEST_SPLIT);
    splits = splits < enough ? splits : enough;
    return splits > 1 ? (int32_t)times(e.k, KILN_CUDA_TILE_SPLIT(e.k, splits)) : 1;
}

typedef struct search {
    kiln_cuda_extent e;
    int64_t most, least; /* tiles, cost so far */
    kiln_cuda_tiling *best;
} search;

static void try_tiling(search *s, const tile *one, int32_t splits)
{
    kiln_cuda_tiling t = kiln_cuda_tiling_with(one->rows, one->cols, one->slices, splits, s->e);
    t.nanoseconds = time_of(one, &t, s->e);
    int64_t cost = t.nanoseconds + t.tiles * ROOM / 1000; /* … and the room that tiles take */
    if (t.tiles <= s->most && cost < s->least) {
        s->least = cost;
        *s->best = t;
    }
}

static bool find(kiln_cuda_extent e, int64_t most, bool split, kiln_cuda_tiling *t)
{
    int64_t work;
    if (e.m < 1 || e.n < 1 || e.k < 1 || e.matrices < 1 || __builtin_mul_overflow(e.m, e.n, &work) ||
        __builtin_mul_overflow(work, e.k, &work) || __builtin_mul_overflow(work, e.matrices, &work) ||
        work > (e.tf32 ? MOST_TENSOR_WORK : MOST_WORK))
        return false;
    search s = {e, most, INT64_MAX, t};
    for (int i = 0; i < TILES; i++) {
        bool tensor = by_tensor_cores(tiles[i].rows, tiles[i].cols, tiles[i].slices);
        if (tensor ? !e.tf32 : work > MOST_WORK)
            continue;
        try_tiling(&s, &tiles[i], 1);
        if (tensor && split)
            try_tiling(&s, &tiles[i], most_cuts(&tiles[i], e));
    }
    t->large = e.tf32 && s.least > MOST_TENSOR_TIME;
    return s.least <= (e.tf32 ? MOST_LARGE_TIME : MOST_TIME);
}

bool kiln_cuda_tiling_of(kiln_cuda_extent e, kiln_cuda_tiling *t)
{
    return find(e, INT64_MAX, true, t);
}

bool kiln_cuda_tiling_within(kiln_cuda_extent e, int64_t most, kiln_cuda_tiling *t)
{
    return find(e, most, false, t);
}
