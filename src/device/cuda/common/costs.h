/* What things cost on a GPU: figures by which work is cut into tiles and units. They belong to the kind of GPU they
 * were measured on; one that nobody measured has those of the kind that is nearest to it, and its own number of blocks.
 * Since tiles decide in which order sums are made, results are the same bits on GPUs with the same figures. */
#ifndef KILN_CUDA_COSTS_H
#define KILN_CUDA_COSTS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What a tile of a product takes: a line, by k. */
typedef struct kiln_cuda_tile_cost {
    int32_t rows, cols, slices;
    int64_t start; /* nanoseconds, with any k */
    int64_t step;  /* picoseconds for an element along k */
} kiln_cuda_tile_cost;

enum { KILN_CUDA_TILE_COSTS = 13, KILN_CUDA_MOST_BLOCKS = 512 };

/* Nanoseconds where nothing else is said. */
typedef struct kiln_cuda_costs {
    const char *measured; /* on which GPU, with which program */
    int capability;       /* 90 for 9.0 */
    int blocks;           /* at work at a time */

    /* Links of a chain (chain/times.c, chain/waves.c). */
    int64_t barrier;            /* of the grid */
    int64_t tiny;               /* a link that moves little */
    int64_t fold;               /* and one that folds results by shared memory */
    int64_t store;              /* and each store of a group */
    int64_t little;             /* bytes that a block moves in that time … */
    int64_t bytes_a_nanosecond; /* … and of those beyond */

    /* Products (gemm/tile.c). */
    int64_t most_work,
        most_tensor_work; /* multiply-adds beyond which a library that keeps the device busy does better */
    int64_t room;         /* picoseconds for a tile that takes a block from others of its wave; also
                             about what tiles cost each other in the second level cache */
    int64_t most_time; /* beyond it the library does better: k is long and the result small, or there is much to do */
    int64_t most_tensor_time, most_large_time; /* with tensor cores; and where a chain would fall apart */
    int64_t sum_splits; /* a wave that adds splits, with what their tiles take from other products … */
    int64_t summed;     /* … and bytes of partial sums that are written and read in a nanosecond */
    kiln_cuda_tile_cost tiles[KILN_CUDA_TILE_COSTS];
} kiln_cuda_costs;

/* Those of a GPU. */
kiln_cuda_costs kiln_cuda_costs_of(int capability, int multiprocessors);

#ifdef __cplusplus
}
#endif
#endif
