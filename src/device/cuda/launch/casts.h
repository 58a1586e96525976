/* Chains that read through casts. Under autocast every weight and every batch is converted to 16 bits before products
 * use it, which in a chain would be a wave of its own. Products by tiles and groups can as well read the f32 value and
 * convert it on the way, with the same bits. So chains are made of a plan that is rewritten: operands and loads that a
 * cast of the same chain made are those of the cast's own operand, and casts that nobody reads any more are gone.
 * Kernels keep their numbers. Kernels that run one by one are those of the plan as it was. */
#ifndef KILN_CUDA_CASTS_H
#define KILN_CUDA_CASTS_H

#include "device/cuda/launch/exec.h"

/* *through: the plan for chains (rewrite.h), NULL where that is the plan itself. False with an error. */
bool kiln_cuda_read_through(const kiln_plan *plan, const kiln_cuda_part *parts, int64_t nparts, kiln_plan **through);

#endif
