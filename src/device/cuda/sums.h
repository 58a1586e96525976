/* Sums that products do on their way. A bias's gradient is the sum of dy over its rows, and the product that is its
 * weight's gradient reads dy as well: cuBLASLt can sum one operand along the dim that it sums products along. So a plan
 * is rewritten before it is lowered: a sum that may as well be made when such a product is has no kernel any more, and
 * the product has one more output, the last one, and one integer, which tells what it is the sum of. */
#ifndef KILN_CUDA_SUMS_H
#define KILN_CUDA_SUMS_H

#include "device/cuda/cuda.h"

enum { KILN_CUDA_SUM_OF_A = 1, KILN_CUDA_SUM_OF_B }; /* of [m, k], to m elements; of [k, n], to n elements */

/* *joined: the plan with fewer kernels, NULL where it has no such sums. It lives no longer than the plan. False with an
 * error. */
bool kiln_cuda_join_sums(kiln_cuda_device *d, const kiln_plan *plan, kiln_plan **joined);
void kiln_cuda_free_joined(kiln_plan *joined); /* may be NULL */

/* The sum that a product makes, and of what; NULL and 0 for those that make none. */
static inline const kiln_operand *kiln_cuda_sum(const kiln_kernel *product, int64_t *of)
{
    *of = product->nints ? product->ints[0] : 0;
    return *of ? &product->out[product->nout - 1] : NULL;
}

#endif
