/* Products of matrices of f32, f16 or bf16 by tiles: a block makes a tile of the result, and k is cut into slices that
 * parts of the block sum side by side. Where k is long and there are few tiles it is split between blocks first
 * (split-k): the tiles of each split are partial sums, which are added in order. Read by C, by CUDA sources and by
 * generated kernels, which bring the integer types along. */
#ifndef KILN_CUDA_TILE_H
#define KILN_CUDA_TILE_H

#ifndef __CUDACC_RTC__
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#endif

/* c = a · b for each of some matrices, c [m, n] and dense, a [m, k], b [k, n]. Strides in elements, below 2^28 within a
 * matrix; a matrix that all share has 0 for the way to the next. */
typedef struct kiln_cuda_matrices {
    const void *a, *b;
    int64_t m, n, k;
    int64_t a_row, a_col, b_row, b_col;
    int64_t a_matrix, b_matrix;
} kiln_cuda_matrices;

enum {
    KILN_CUDA_TILE_THREADS = 512, /* in a block */
    KILN_CUDA_TILE_CHUNK = 16,    /* elements along k that a slice has in one stage of shared memory */
    KILN_CUDA_TILE_STAGES = 3,    /* chunks under way, those being read included */
    KILN_CUDA_TILE_PAD = 4,       /* floats behind a line, so that lines begin in different banks */
    KILN_CUDA_TILE_ALIGN = 128, /* of shared memory: all banks once, so that a line of the cache is copied in one go */
    KILN_CUDA_TILE_STRAIGHT_AREA = 512
};

/* The tiles there are, (rows, columns, slices): those that multiply in f32, and those by tensor cores in TF32 or 16
 * bits.
 */
#define KILN_CUDA_TILES(X)                                                                                             \
    X(8, 8, 128) X(16, 8, 64) X(16, 16, 32) X(16, 32, 16) X(16, 32, 8) X(32, 32, 8) X(32, 64, 4) X(64, 64, 2)
#define KILN_CUDA_TENSOR_TILES(X) X(32, 32, 16) X(64, 32, 8) X(64, 64, 4) X(128, 64, 2) X(128, 128, 2)

/* Whether a tile is made by tensor cores (tensor.cuh), 32 elements a thread, or 64. */
#define KILN_CUDA_TENSOR_BLOCKS(rows, cols, slices) ((rows) * (cols) * (slices) / (32 * KILN_CUDA_TILE_THREADS))
#define KILN_CUDA_TILE_TENSOR(rows, cols, slices)   (KILN_CUDA_TENSOR_BLOCKS(rows, cols, slices) > 0)

/* Whether a tile's operands go straight to registers (straight.cuh), 16 elements a thread, or through shared memory. */
#define KILN_CUDA_TILE_STRAIGHT(rows, cols, slices)                                                                    \
    ((rows) * (cols) <= KILN_CUDA_TILE_STRAIGHT_AREA && (rows) * (cols) * (slices) == 16 * KILN_CUDA_TILE_THREADS)

/* Slices that a warp makes then, and adds up. */
#define KILN_CUDA_TILE_BESIDE(rows, cols) ((rows) * (cols) < 512 ? 512 / ((rows) * (cols)) : 1)

/* Elements along k in a slice, through shared memory: slice i sums those from i times as many, in ascending order. The
 * last ones may be shorter or empty. */
#define KILN_CUDA_TILE_SLICE(k, slices) (((k) + 4 * (slices)-1) / (4 * (slices)) * 4)

/* Floats of shared memory: what a slice sums in one stage, and the sums of all slices. */
#define KILN_CUDA_TILE_PANEL(lines)      ((lines) * (KILN_CUDA_TILE_CHUNK + KILN_CUDA_TILE_PAD))
#define KILN_CUDA_TILE_STAGE(rows, cols) (KILN_CUDA_TILE_PANEL(rows) + KILN_CUDA_TILE_PANEL(cols) + 16)
#define KILN_CUDA_TILE_SUMS(rows, cols)  ((rows) * ((cols) + KILN_CUDA_TILE_PAD))

/* The same with tensor cores: elements along k of a stage, and bytes that all stages take at most, beyond which a block
 * of a device with little shared memory would not fit. Sums take their place, of every slice or of all together. Which
 * elements a slice sums does not depend on how they lie in memory, so neither do the bits of the result. */
#define KILN_CUDA_TENSOR_LONG(slices) ((slices) < 4 ? 32 : 8 * (slices))
#define KILN_CUDA_TENSOR_PAD          8 /* floats behind a row of sums */
#define KILN_CUDA_TENSOR_ROOM         (96 * 1024)
#define KILN_CUDA_TENSOR_SUMS(rows, cols, slices)                                                                      \
    ((rows) * ((cols) + KILN_CUDA_TENSOR_PAD) * (KILN_CUDA_TENSOR_BLOCKS(rows, cols, slices) == 1 ? (slices) : 1))

/* Elements along k in a split: a multiple of what large tiles take at a time. */
#define KILN_CUDA_TILE_SPLIT(k, splits) ((splits) == 1 ? (k) : ((k) + 64 * (splits)-1) / (64 * (splits)) * 64)

#ifndef __CUDACC_RTC__
#include "device/cuda/common/costs.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kiln_cuda_tiling {
    int32_t rows, cols;          /* of a tile */
    int32_t slices;              /* of k, summed in order */
    int32_t splits;              /* of k, likewise, by different blocks */
    int64_t across, down, tiles; /* in a row of tiles, in a column of tiles, in all splits of all matrices */
    size_t shared;               /* bytes of shared memory a block needs */
    int64_t nanoseconds;         /* that it takes, about … */
    int64_t summing;             /* … of which to add splits */
    bool large;                  /* a library is faster at it: tiles are for chains that would fall apart without it */
} kiln_cuda_tiling;

/* How many matrices the tiles are of. */
static inline int64_t kiln_cuda_tiling_matrices(const kiln_cuda_tiling *t)
{
    return t->tiles / (t->across * t->down * t->splits);
}

typedef struct kiln_cuda_sizes { /* what there is to be tiled */
    int64_t m, n, k, matrices;
    bool tensor;                  /* operands are of 16 bits, or may be rounded to TF32 */
    const kiln_cuda_costs *costs; /* of the device */
} kiln_cuda_sizes;

/* Whether such products are made by tiles, and how, if nothing else shares the device. A function of the product and
 * the kind of device alone; in a chain (waves.c) the tiles may be coarser. */
bool kiln_cuda_tiling_of(kiln_cuda_sizes e, kiln_cuda_tiling *t);

/* The same with at most so many tiles, and without splits; false also where none has so few. */
bool kiln_cuda_tiling_within(kiln_cuda_sizes e, int64_t most, kiln_cuda_tiling *t);

/* The tiling with these tiles, of those there are, whether or not it is a good one. */
kiln_cuda_tiling kiln_cuda_tiling_with(int32_t rows, int32_t cols, int32_t slices, int32_t splits, kiln_cuda_sizes e);

/* Bytes of partial sums; 0 where there are no splits. */
size_t kiln_cuda_tiling_partials(const kiln_cuda_tiling *t, kiln_cuda_sizes e);

#ifdef __cplusplus
}
#endif
#endif
#endif
