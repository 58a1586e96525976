/* How a product is computed, in a word: by which tiles, or by a library and with what. It decides the order of its
 * sums, and so its bits. A plan whose products have such words (kiln_choice in plan/plan.h) is lowered by them. */
#ifndef KILN_CUDA_CHOICE_H
#define KILN_CUDA_CHOICE_H

#include "device/cuda/gemm/tile.h"

typedef enum kiln_cuda_way {
    KILN_CUDA_ANY_WAY, /* nothing was chosen */
    KILN_CUDA_BY_TILES,
    KILN_CUDA_BY_LIBRARY,
    KILN_CUDA_WITH_BIAS, /* by the library, the group behind it included */
    KILN_CUDA_BY_ITSELF  /* a sum that no product makes */
} kiln_cuda_way;

enum { KILN_CUDA_WAY_BITS = 4, KILN_CUDA_TILE_BITS = 12 };

static inline kiln_cuda_way kiln_cuda_way_of(uint64_t choice)
{
    return (kiln_cuda_way)(choice & ((1 << KILN_CUDA_WAY_BITS) - 1));
}

static inline uint64_t kiln_cuda_choose_tiles(const kiln_cuda_tiling *t)
{
    const int at = KILN_CUDA_WAY_BITS, each = KILN_CUDA_TILE_BITS;
    return KILN_CUDA_BY_TILES | (uint64_t)t->rows << at | (uint64_t)t->cols << (at + each) |
           (uint64_t)t->slices << (at + 2 * each) | (uint64_t)t->splits << (at + 3 * each);
}

static inline kiln_cuda_tiling kiln_cuda_chosen_tiles(uint64_t choice, kiln_cuda_sizes e)
{
    const uint64_t mask = (1 << KILN_CUDA_TILE_BITS) - 1, t = choice >> KILN_CUDA_WAY_BITS;
    const int each = KILN_CUDA_TILE_BITS;
    return kiln_cuda_tiling_with((int32_t)(t & mask), (int32_t)(t >> each & mask), (int32_t)(t >> 2 * each & mask),
                                 (int32_t)(t >> 3 * each), e);
}

#endif
