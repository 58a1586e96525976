/* Plans that are rewritten before they are lowered: copies of what lowering and running look at. What is changed is
 * taken from the copy's pool. */
#ifndef KILN_CUDA_REWRITE_H
#define KILN_CUDA_REWRITE_H

#include "plan/plan.h"

/* Lives no longer than the plan. NULL with an error. */
kiln_plan *kiln_cuda_plan_copy(const kiln_plan *plan);
void kiln_cuda_plan_free(kiln_plan *copy); /* may be NULL */

#endif
