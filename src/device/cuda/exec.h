/* Plans on CUDA: lowering and running (exec.c), and what is known of the runs that are under way. */
#ifndef KILN_CUDA_EXEC_H
#define KILN_CUDA_EXEC_H

#include "device/cuda/cuda.h"
#include "device/cuda/header.h"

bool kiln_cuda_supports(void *dev, const kiln_op *op, kiln_dtype dtype);
size_t kiln_cuda_workspace(void *dev, const kiln_kernel *kernel);
void *kiln_cuda_lower(void *dev, const kiln_plan *plan);
void kiln_cuda_dispose(void *dev, void *exec);
bool kiln_cuda_run(void *dev, void *exec, const kiln_binding *binding);

/* Called when the stream is idle: lets go of finished runs; if one met a bad index, it and all that were given after it
 * have failed, and the error says so. */
bool kiln_cuda_settle(kiln_cuda_device *d);

#endif
