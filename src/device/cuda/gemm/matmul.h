/* Products of a plan, with or without a group behind them. */
#ifndef KILN_CUDA_MATMUL_H
#define KILN_CUDA_MATMUL_H

#include "device/cuda/common/cuda.h"

bool kiln_cuda_matmul_launch(const kiln_cuda_call *c);
size_t kiln_cuda_matmul_workspace(const kiln_cuda_call *c);

/* How the product of a call is computed (choice.h); 0 where there is nothing to compute. False with an error. */
bool kiln_cuda_matmul_choose(const kiln_cuda_call *c, uint64_t *choice);

/* Whether the product of a call that has been given a sum (launch/sums.h) can make it: the call has a plan. False with
 * an error. */
bool kiln_cuda_matmul_can_sum(const kiln_cuda_call *c, bool *can);

/* ---- The sum of an operand that a product may make as well (launch/sums.h) ---- */

enum { KILN_CUDA_SUM_OF_A = 1, KILN_CUDA_SUM_OF_B }; /* of [m, k], to m elements; of [k, n], to n elements */

/* The sum that a product makes, and of what; NULL and 0 for those that make none. */
static inline const kiln_operand *kiln_cuda_sum(const kiln_kernel *product, int64_t *of)
{
    *of = product->nints ? product->ints[0] : 0;
    return *of ? &product->out[product->nout - 1] : NULL;
}

#endif
