/* Copies of plans. */
#include "device/cuda/launch/rewrite.h"
#include "core/alloc.h"

kiln_plan *kiln_cuda_plan_copy(const kiln_plan *plan)
{
    kiln_plan *p = kiln_alloc_zero(1, sizeof *p);
    if (!p)
        return NULL;
    p->device = plan->device;
    p->nkernels = plan->nkernels;
    p->nbuffers = plan->nbuffers;
    p->buffers = plan->buffers;
    p->nslots = plan->nslots;
    p->noutputs = plan->noutputs;
    p->nscalars = plan->nscalars;
    p->kernels = KILN_ARENA_NEW(&p->pool, kiln_kernel, plan->nkernels);
    for (int64_t k = 0; p->kernels && k < plan->nkernels; k++)
        p->kernels[k] = plan->kernels[k];
    if (p->kernels)
        return p;
    kiln_cuda_plan_free(p);
    return NULL;
}

void kiln_cuda_plan_free(kiln_plan *copy)
{
    if (!copy)
        return;
    kiln_arena_free(&copy->pool);
    kiln_free(copy);
}
