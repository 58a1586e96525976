/* The plan that chains are made of. */
#include "device/cuda/launch/through.h"
#include "device/cuda/launch/rewrite.h"

bool kiln_cuda_reads(const kiln_kernel *k, int32_t buffer)
{
    for (kiln_access a = {0}; kiln_next_access(k, &a);)
        if (!a.writes && a.buffer == buffer)
            return true;
    return false;
}

bool kiln_cuda_stays(const kiln_plan *plan, int32_t maker, int32_t reader, int32_t buffer)
{
    for (int32_t k = maker + 1; k <= reader; k++)
        if (kiln_cuda_writes(plan, &plan->kernels[k], buffer))
            return false;
    return true;
}

bool kiln_cuda_read_through(const kiln_plan *plan, const kiln_cuda_part *parts, int64_t nparts, kiln_plan **through)
{
    int64_t absorbed = 0;
    *through = kiln_cuda_plan_copy(plan);
    bool ok = *through != NULL;
    for (int64_t i = 0; ok && i < nparts; i++)
        if (parts[i].end - parts[i].first > 1) /* a chain */
            ok = kiln_cuda_read_casts(*through, &parts[i], &absorbed) &&
                 kiln_cuda_read_numbers(*through, &parts[i], &absorbed);
    if (ok && absorbed)
        return true;
    kiln_cuda_plan_free(*through);
    *through = NULL;
    return ok;
}
