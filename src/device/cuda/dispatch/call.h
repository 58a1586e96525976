/* Which launcher runs a kernel of a plan (those compiled ahead, the libraries', or what is generated for a group), and
 * what it gets. */
#ifndef KILN_CUDA_CALL_H
#define KILN_CUDA_CALL_H

#include "device/cuda/common/cuda.h"

/* For the device table. */
bool kiln_cuda_supports(void *dev, const kiln_op *op, kiln_dtype dtype);
unsigned kiln_cuda_can(void *dev, const kiln_op *op, kiln_dtype dtype, const kiln_work *work);
size_t kiln_cuda_workspace(void *dev, const kiln_kernel *kernel);

/* Without addresses when there is no binding; `scalars` are the plan's, on the device. */
void kiln_cuda_make_call(kiln_cuda_call *c, kiln_cuda_device *d, const kiln_plan *plan, const kiln_kernel *k,
                         const kiln_binding *binding, const double *scalars);

/* By the kernels compiled ahead, the libraries, or what is generated for a group. */
bool kiln_cuda_launch(const kiln_cuda_call *c);

/* That of the call's operation, which is no product, by its name and dtype; NULL: there is none. */
const kiln_cuda_kernel *kiln_cuda_kernel_of(const kiln_cuda_call *c);

#endif
