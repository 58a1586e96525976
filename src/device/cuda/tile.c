/* Which tiles a product is made of. */
#include "device/cuda/tile.h"

enum {
    /* Multiply-adds beyond which a library that keeps the whole device busy for longer does better. */
    MOST_WORK = 48 << 20,
    /* Picoseconds for a tile that takes a block from other products of the same wave. Also about what tiles cost each
     * other in the second level cache. */
    ROOM = 4500,
    /* Beyond this estimate, in nanoseconds, k is so long, and the result so small, that it should be cut between
     * blocks. */
    MOST_TIME = 25000
};

/* What a tile takes: lines, by k, through the times of products with constant sizes that bench/cuda_tiles showed on an
 * H200. */
typedef struct tile {
    int32_t rows, cols, slices;
    int64_t start; /* nanoseconds, with any k */
    int64_t step;  /* picoseconds for an element along k */
} tile;

static const tile tiles[] = {
    {8, 8, 128, 400, 1500}, {16, 8, 64, 380, 2350},  {16, 16, 32, 300, 5900}, {16, 32, 16, 280, 12000},
    {16, 32, 8, 600, 8200}, {32, 32, 8, 700, 12500}, {32, 64, 4, 800, 22000}, {64, 64, 2, 900, 41000},
};
enum { TILES = sizeof tiles / sizeof *tiles };

static int64_t times(int64_t n, int64_t of) /* that it takes, rounded up */
{
    return (n + of - 1) / of;
}

kiln_cuda_tiling kiln_cuda_tiling_with(int32_t rows, int32_t cols, int32_t slices, int64_t m, int64_t n, int64_t k,
                                       int64_t matrices)
{
    kiln_cuda_tiling t = {.rows = rows, .cols = cols, .slices = slices};
    t.across = times(n, cols);
    t.down = times(m, rows);
    t.tiles = t.across * t.down * matrices;
    if (KILN_CUDA_TILE_STRAIGHT(rows, cols, slices)) {
        t.shared = (size_t)(rows * cols * (slices / KILN_CUDA_TILE_BESIDE(rows, cols))) * sizeof(float);
        return t;
    }
    int64_t chunks = times(KILN_CUDA_TILE_SLICE(k, slices), KILN_CUDA_TILE_CHUNK);
    int64_t stages = chunks < KILN_CUDA_TILE_STAGES ? chunks : KILN_CUDA_TILE_STAGES;
    int64_t floats = KILN_CUDA_TILE_SUMS(rows, cols) + stages * KILN_CUDA_TILE_STAGE(rows, cols);
    t.shared = (size_t)(floats * slices) * sizeof(float);
    return t;
}

/* About how long the product takes, in nanoseconds: how often every block makes a tile … */
static int64_t time_of(const tile *one, const kiln_cuda_tiling *t, int64_t k)
{
    return times(t->tiles, KILN_CUDA_TILE_BLOCKS) * (one->start + k * one->step / 1000);
}

bool kiln_cuda_tiling_within(int64_t m, int64_t n, int64_t k, int64_t matrices, int64_t most, kiln_cuda_tiling *t)
{
    int64_t work;
    if (m < 1 || n < 1 || k < 1 || matrices < 1 || __builtin_mul_overflow(m, n, &work) ||
        __builtin_mul_overflow(work, k, &work) || __builtin_mul_overflow(work, matrices, &work) || work > MOST_WORK)
        return false;
    int64_t least = INT64_MAX;
    for (int i = 0; i < TILES; i++) {
        kiln_cuda_tiling one = kiln_cuda_tiling_with(tiles[i].rows, tiles[i].cols, tiles[i].slices, m, n, k, matrices);
        one.nanoseconds = time_of(&tiles[i], &one, k);
        int64_t cost = one.nanoseconds + one.tiles * ROOM / 1000; /* … and the room that tiles take */
        if (one.tiles <= most && cost < least) {
            least = cost;
            *t = one;
        }
    }
    return least <= MOST_TIME;
}

bool kiln_cuda_tiling_of(int64_t m, int64_t n, int64_t k, int64_t matrices, kiln_cuda_tiling *t)
{
    return kiln_cuda_tiling_within(m, n, k, matrices, INT64_MAX, t);
}
