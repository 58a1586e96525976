/* A kernel that does nothing for so many microseconds, on one thread. */
#ifndef KILN_CUDA_DELAY_H
#define KILN_CUDA_DELAY_H

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

cudaError_t kiln_cuda_delay_launch(cudaStream_t stream, unsigned microseconds);

#ifdef __cplusplus
}
#endif
#endif
