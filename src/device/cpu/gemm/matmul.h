/* Matrix products of a plan: strided, batched operands, with the group that finishes the result while it is in cache.
 */
#ifndef KILN_CPU_MATMUL_H
#define KILN_CPU_MATMUL_H

#include "device/cpu/gemm/gemm.h"
#include "device/cpu/group/group.h"

typedef struct kiln_cpu_matmul {
    kiln_gemm shape; /* everything but addresses */
    int64_t a_offset, b_offset;
    int64_t *a_batch, *b_batch;
    size_t gemm_bytes; /* of the workspace; the group's registers follow */
    int32_t c_buffer; /* where the product itself goes: its own kernel's result, or a store of the group; -1: nowhere */
    kiln_cpu_group group;
} kiln_cpu_matmul;

bool kiln_cpu_matmul_lower(kiln_cpu_matmul *m, const kiln_plan *plan, const kiln_kernel *kernel, kiln_arena *pool);
size_t kiln_cpu_matmul_workspace(const kiln_kernel *kernel, int threads);
void kiln_cpu_matmul_run(const kiln_cpu_matmul *m, const kiln_plan *plan, const kiln_kernel *kernel,
                         const kiln_binding *binding);

#endif
