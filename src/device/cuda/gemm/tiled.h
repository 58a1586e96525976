/* Products of f32 matrices by tiles, as calls of a plan. */
#ifndef KILN_CUDA_TILED_H
#define KILN_CUDA_TILED_H

#include "device/cuda/common/launch.h"
#include "device/cuda/gemm/tile.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Whether the product that the call begins with can be made by tiles: small, in f32, with one stride from matrix to
 * matrix; where the tiling is large it is if the call is of a chain, which has chosen the tiling. Fills in sizes and
 * strides, and addresses where the call has a binding. */
bool kiln_cuda_tiled_of(const kiln_cuda_call *c, kiln_cuda_matrices *s, kiln_cuda_tiling *t);

/* Puts the product on the call's stream; to `to`, dense. `partials`: room for the tiling's. False with an error. */
bool kiln_cuda_tiled_launch(const kiln_cuda_call *c, const kiln_cuda_matrices *s, const kiln_cuda_tiling *t, float *to,
                            float *partials);

/* What its tiles cover. */
static inline kiln_cuda_sizes kiln_cuda_sizes_of(const kiln_cuda_matrices *s, const kiln_cuda_tiling *t, bool tf32,
                                                 const kiln_cuda_costs *costs)
{
    return (kiln_cuda_sizes){s->m, s->n, s->k, kiln_cuda_tiling_matrices(t), tf32, costs};
}

#ifdef __cplusplus
}
#endif
#endif
