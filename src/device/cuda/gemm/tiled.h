/* Products of matrices of f32, f16 or bf16 by tiles, as calls of a plan. */
#ifndef KILN_CUDA_TILED_H
#define KILN_CUDA_TILED_H

#include "device/cuda/common/launch.h"
#include "device/cuda/gemm/tile.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What the operands of the product that a call begins with are multiplied as: their own dtype, or the one that they are
 * rounded to on the way. */
kiln_dtype kiln_cuda_multiplied_as(const kiln_cuda_call *c);

/* Whether a product may be made by tensor cores: in 16 bits, or where TF32 is allowed. */
bool kiln_cuda_takes_tensor(const kiln_cuda_call *c);

/* Whether the product that the call begins with can be made by tiles: small, not in f64, with one stride from matrix to
 * matrix; where the tiling is large it is if the call is of a chain, which has chosen the tiling. Fills in sizes and
 * strides, and addresses where the call has a binding. */
bool kiln_cuda_tiled_of(const kiln_cuda_call *c, kiln_cuda_matrices *s, kiln_cuda_tiling *t);

/* Puts the product on the call's stream; to `to`, dense and, like both operands, of this dtype. `partials`: room for
 * the tiling's. False with an error. */
bool kiln_cuda_tiled_launch(const kiln_cuda_call *c, const kiln_cuda_matrices *s, const kiln_cuda_tiling *t,
                            kiln_dtype dtype, void *to, float *partials);

/* What its tiles cover. */
static inline kiln_cuda_sizes kiln_cuda_sizes_of(const kiln_cuda_matrices *s, const kiln_cuda_tiling *t, bool tensor,
                                                 const kiln_cuda_costs *costs)
{
    return (kiln_cuda_sizes){s->m, s->n, s->k, kiln_cuda_tiling_matrices(t), tensor, costs};
}

#ifdef __cplusplus
}
#endif
#endif
