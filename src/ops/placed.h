/* Gradients of windows. What flows back to a slice is the gradient of a part of its operand. The walk keeps such parts
 * as they come and lays them side by side once, when all have arrived: the thirds of a product that q, k and v were cut
 * from, or the hundred positions that a loop went through, are written in one pass. */
#ifndef KILN_OPS_PLACED_H
#define KILN_OPS_PLACED_H

#include "ops/op.h"

typedef struct kiln_placed {
    kiln_tensor *grad;
    int dim;       /* along which it has fewer elements than the whole, … */
    int64_t start; /* … and where it begins there */
    int64_t order; /* in which they came: sums do not depend on how a list is sorted */
} kiln_placed;

/* One part, in zeros of the whole's shape. Where it begins may change from step to step without a new plan. */
kiln_tensor *kiln_place(const kiln_placed *p, int ndim, const int64_t *shape);

/* The sum of what was placed, as a tensor of the whole's shape; NULL with an error. Changes the order of `placed`. */
kiln_tensor *kiln_lay_out(kiln_placed *placed, int64_t n, int ndim, const int64_t *shape);

#endif
