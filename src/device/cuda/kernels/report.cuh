/* Bad indices, from inside a kernel. */
#ifndef KILN_CUDA_REPORT_CUH
#define KILN_CUDA_REPORT_CUH

#include "device/cuda/common/fault.h"

/* Notes the bad index; of several the one with the smallest `order` (its position) stays, so that it does not depend on
 * scheduling. Rare, so a lock will do. */
static __device__ __noinline__ void kiln_cuda_report(kiln_cuda_fault f, int64_t order, int64_t index, int64_t limit)
{
    volatile kiln_cuda_status *state = f.state;
    const unsigned long long run = f.run ? f.run : state->run;
    while (atomicCAS(&f.state->lock, 0, 1) != 0)
        __nanosleep(100);
    __threadfence();
    bool first = f.record->run == 0;
    bool earlier = f.record->run == run && f.record->kernel == f.kernel && order < f.record->order;
    if (first || earlier) {
        f.record->kernel = f.kernel;
        f.record->index = index;
        f.record->limit = limit;
        f.record->order = order;
        f.record->run = run;
    }
    state->stop = 1;
    if (f.barrier)
        atomicOr(f.barrier, KILN_CUDA_STOPPED);
    __threadfence_system();
    atomicExch(&f.state->lock, 0);
}

#endif
