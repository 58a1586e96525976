/* Products by the plain kernel (copy.h), an element a thread, where no library can or is to be asked. */
#ifndef KILN_CUDA_PLAIN_H
#define KILN_CUDA_PLAIN_H

#include "device/cuda/gemm/cublaslt.h"

/* The product that the call begins with, straight to a slot, which a fault must keep from being written: a library
 * cannot be told. It takes no scratch memory. */
void kiln_cuda_plain_guarded(const kiln_cuda_call *c);

/* What kiln_cuda_lt_run would make of it, without a bias or a sum. */
void kiln_cuda_plain_run(cudaStream_t stream, const kiln_cuda_product *p, const void *a, const void *b, void *c);

#endif
