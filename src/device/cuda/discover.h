#ifndef KILN_CUDA_DISCOVER_H
#define KILN_CUDA_DISCOVER_H

#include "device/cuda/cuda.h"

int kiln_cuda_count(char *why, size_t size); /* 0 with the reason */
bool kiln_cuda_describe(int index, kiln_device_info *info);

#endif
