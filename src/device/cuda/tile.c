/* Which tiles a product is made of. */
#include "device/cuda/tile.h"

enum {
    /* Multiply-adds beyond which a library that keeps the whole device busy for longer does better. */
    MOST_WORK = 48 << 20,
    /* Blocks at work at a time, on every device: what an H100 or H200 has. */
    BLOCKS = 132,
    /* Beyond this estimate k is so long, and the result so small, that it should be cut between blocks. */
    MOST_CYCLES = 40000
};

typedef struct tile {
    int32_t rows, cols, slices;
} tile;

#define TILE(rows, cols, slices) {rows, cols, slices},
static const tile tiles[] = {KILN_CUDA_TILES(TILE)};
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
    int64_t chunks = times(KILN_CUDA_TILE_SLICE(k, slices), KILN_CUDA_TILE_CHUNK);
    int64_t stages = chunks < KILN_CUDA_TILE_STAGES ? chunks : KILN_CUDA_TILE_STAGES;
    int64_t floats = KILN_CUDA_TILE_SUMS(rows, cols) + stages * KILN_CUDA_TILE_STAGE(rows, cols);
    t.shared = (size_t)(floats * slices) * sizeof(float);
    return t;
}

/* About how long the tiles take: how often every block makes one, and for one the wait for the first bytes, 24 bytes a
 * cycle from the second level cache, shared memory read for every multiply-add, and the sums. */
static int64_t cycles(const kiln_cuda_tiling *t, int64_t k)
{
    int64_t area = (int64_t)t->rows * t->cols, length = KILN_CUDA_TILE_SLICE(k, t->slices), used = times(k, length);
    int64_t own = area * t->slices / KILN_CUDA_TILE_THREADS;
    int64_t bytes = (t->rows + t->cols) * k * 4;
    int64_t reads = own >= 16 ? 16 : own >= 8 ? 12 : own >= 4 ? 8 : 7; /* for four k of a warp's elements */
    int64_t inner = length / 4 * 16 * (own >= 16 ? 16 : reads);
    return times(t->tiles, BLOCKS) * (1200 + bytes / 24 + inner + used * 8 + area * t->slices / 64);
}

bool kiln_cuda_tiling_of(int64_t m, int64_t n, int64_t k, int64_t matrices, kiln_cuda_tiling *t)
{
    int64_t work;
    if (m < 1 || n < 1 || k < 1 || matrices < 1 || __builtin_mul_overflow(m, n, &work) ||
        __builtin_mul_overflow(work, k, &work) || __builtin_mul_overflow(work, matrices, &work) || work > MOST_WORK)
        return false;
    int64_t least = INT64_MAX;
    for (int i = 0; i < TILES; i++) {
        kiln_cuda_tiling one = kiln_cuda_tiling_with(tiles[i].rows, tiles[i].cols, tiles[i].slices, m, n, k, matrices);
        int64_t cost = cycles(&one, k);
        if (cost < least) {
            least = cost;
            *t = one;
        }
    }
    return least <= MOST_CYCLES;
}
