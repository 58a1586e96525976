/* Compositions that several families and the gradient engine share. */
#ifndef KILN_OPS_HELPERS_H
#define KILN_OPS_HELPERS_H

#include "ops/op.h"

/* What gather, scatter and their kin want of indices: to be below the size of dim ints[0]. */
kiln_demand kiln_demand_below_dim(int ndim, const int64_t *shape, const int64_t *ints);

/* Sums a broadcast tensor back to `shape` (leading dims gone, others size 1 kept): the adjoint of broadcasting. */
kiln_tensor *kiln_sum_to(kiln_tensor *t, int ndim, const int64_t *shape);

/* x as a 0-dim or any-shape tensor filled with a scalar of x's dtype and device, shape of x. */
kiln_tensor *kiln_fill_like(const kiln_tensor *x, int ndim, const int64_t *shape, double value);

/* A window with the given strides (in elements) onto a dense tensor's storage: a VIEW whose gradient is as_strided_add.
 */
kiln_tensor *kiln_as_strided(kiln_tensor *x, int ndim, const int64_t *shape, const int64_t *stride, int64_t offset);

/* A dense copy of such a window, whose offset is a run-time number. */
kiln_tensor *kiln_strided_copy(kiln_tensor *x, int ndim, const int64_t *shape, const int64_t *stride, double offset);

/* Takes `n` random numbers from this thread's generator: floats[0] = seed, floats[1] = offset for a random_* node. */
void kiln_random_take(int64_t n, double *seed_and_offset);

/* The gradient rule of an operation with a `compose` and no rule of its own: by differentiating the composition. */
bool kiln_grad_by_composition(kiln_grad_call *g);

#endif
