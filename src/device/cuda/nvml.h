/* What the driver's management library knows of a device without a context on it. */
#ifndef KILN_CUDA_NVML_H
#define KILN_CUDA_NVML_H

#include <stdbool.h>
#include <stdint.h>

/* Bytes of the device that no process has; false, without an error, where that cannot be told. */
bool kiln_cuda_nvml_free(int index, uint64_t *bytes);

#endif
