/* What the losses take from pick.c. */
#ifndef KILN_OPS_PICK_H
#define KILN_OPS_PICK_H

#include "ops/op.h"

/* nll_loss_pick(x, target)[dim, ignore_index] and nll_loss_place(g, target)[dim, ignore_index, classes]. */
extern const kiln_op kiln_op_nll_loss_pick, kiln_op_nll_loss_place;

/* x's shape without one dim; returns the number of dims left. */
int kiln_shape_without(const kiln_tensor *x, int dim, int64_t *shape);

/* Class indices have the shape of x without its class dim; false with an error in the operation's name otherwise. */
bool kiln_targets_fit(const kiln_call *c, const kiln_tensor *x, const kiln_tensor *target, int dim);

/* Whether x [N, C] is so large that all of it is best written by the kernels that go through it in any case (gpt2's
 * logits are a fifth of what a step needs). Small ones do best in few kernels. */
static inline bool kiln_is_large_choice(const kiln_tensor *x, int64_t dim)
{
    return dim == x->ndim - 1 && kiln_numel(x) >= 1 << 20;
}

/* True where target is ignore_index. */
kiln_tensor *kiln_ignored_targets(kiln_tensor *target, int64_t ignore);

#endif
