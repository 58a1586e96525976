/* Sums that products do on their way. A bias's gradient is the sum of dy over its rows, and the product that is its
 * weight's gradient reads dy as well: cuBLASLt can sum one operand along the dim that it sums products along. So a plan
 * is rewritten before it is lowered: a sum that may as well be made when such a product is has no kernel any more, and
 * the product has one more output, the last one, and one integer, which tells what it is the sum of. */
#ifndef KILN_CUDA_SUMS_H
#define KILN_CUDA_SUMS_H

#include "device/cuda/gemm/matmul.h"

/* *absorbed: the plan with fewer kernels (rewrite.h), NULL where it has no such sums. False with an error. */
bool kiln_cuda_absorb_sums(kiln_cuda_device *d, const kiln_plan *plan, kiln_plan **absorbed);

#endif
