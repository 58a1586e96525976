/* Pinned host memory: what the device copies to and from without a detour. */
#ifndef KILN_CUDA_PINNED_H
#define KILN_CUDA_PINNED_H

#include <stddef.h>

void *kiln_cuda_pinned(void *dev, size_t bytes);
void kiln_cuda_unpin(void *dev, void *memory);

#endif
