/* Counting and describing GPUs. Nothing is opened: no context is made on a device that nobody uses. */
#ifndef KILN_CUDA_DISCOVER_H
#define KILN_CUDA_DISCOVER_H

#include "device/cuda/common/cuda.h"

/* Slots of the device table. */
int kiln_cuda_count(char *why, size_t size);
bool kiln_cuda_describe(int index, kiln_device_info *info);
bool kiln_cuda_usable(int index, char *why, size_t size);
int kiln_cuda_libraries(kiln_device_library *list, int room);

/* Where the device sits ("0000:17:00.0"); false, without an error, where the driver does not say. */
bool kiln_cuda_bus(int index, char *bus, int size);

/* Whether other processes may run kernels beside this one's (MPS). */
bool kiln_cuda_is_shared(int index);

#endif
