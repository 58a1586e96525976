/* NVML, the library behind nvidia-smi: what can be learned of a device that nobody has opened. Opened for each question
 * and closed again: only people ask. */
#ifndef KILN_CUDA_NVML_H
#define KILN_CUDA_NVML_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes free on the device at that place of the bus ("0000:17:00.0"). False, without an error, where nobody knows. */
bool kiln_cuda_nvml_free(const char *bus, uint64_t *bytes);

/* "580.65.06". Likewise. */
bool kiln_cuda_nvml_driver(char *version, size_t size);

#endif
