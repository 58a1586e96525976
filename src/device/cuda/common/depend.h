/* Which kernels of a plan must wait for which: those that touch the same memory, one of them writing, in the plan's
 * order. What has no such reason to wait can run side by side. */
#ifndef KILN_CUDA_DEPEND_H
#define KILN_CUDA_DEPEND_H

#include "device/cuda/common/cuda.h"

typedef struct kiln_cuda_waits {
    int64_t *first; /* by kernel, and one more: where its predecessors begin in `of` */
    int32_t *of;    /* ascending; without those that another of them waits for, as far as that was looked for */
    int64_t n, capacity;
} kiln_cuda_waits;

/* False with an error; what was made is freed either way with the second. */
bool kiln_cuda_find_waits(kiln_cuda_waits *w, const kiln_plan *plan);
void kiln_cuda_free_waits(kiln_cuda_waits *w);

/* Whether two buffers of a plan have memory in common; whether a kernel touches any of a buffer's, or writes to it. */
bool kiln_cuda_share_memory(const kiln_plan *plan, int32_t a, int32_t b);
bool kiln_cuda_touches(const kiln_plan *plan, const kiln_kernel *k, int32_t buffer);
bool kiln_cuda_writes(const kiln_plan *plan, const kiln_kernel *k, int32_t buffer);

/* Whether a kernel writes to a slot: to memory that outlives the step, which a fault must keep it from. */
bool kiln_cuda_writes_slot(const kiln_plan *plan, const kiln_kernel *k);

#endif
