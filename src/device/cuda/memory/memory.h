/* The memory of a CUDA device. Addresses are reserved ahead, more than the device has memory; memory is put behind them
 * as it is asked for, and taken away by trimming. Small blocks and large ones lie in ranges of their own, the arena in
 * a third, at whose end it grows and shrinks. Where the driver has no virtual memory, blocks come from cudaMalloc and
 * there is no arena. KILN_CUDA_MEMCHECK puts guard.h in the place of all that. */
#ifndef KILN_CUDA_MEMORY_H
#define KILN_CUDA_MEMORY_H

#include "device/cuda/common/cuda.h"

/* After the context was made, which took `context` bytes. False with an error. */
bool kiln_cuda_memory_open(kiln_cuda_device *d, uint64_t context);
void kiln_cuda_memory_close(kiln_cuda_device *d);

/* Slots of the device table. */
kiln_address kiln_cuda_allocate(void *dev, size_t bytes);
void kiln_cuda_release(void *dev, kiln_address address, size_t bytes);
void kiln_cuda_trim(void *dev);
size_t kiln_cuda_arena(void *dev, size_t bytes, kiln_address *address);
uint64_t kiln_cuda_overhead(void *dev);

bool kiln_cuda_memory_guarded(const kiln_cuda_device *d); /* whether it is so */

/* With KILN_CUDA_MEMCHECK, when the stream is idle: did something write beyond its block? False with an error. */
bool kiln_cuda_memory_check(kiln_cuda_device *d);

/* Around what makes the driver or a library take or give memory (opening it, making graphs): the difference counts as
 * overhead. What other processes do meanwhile counts too, since the driver tells no one from another. */
uint64_t kiln_cuda_watch(kiln_cuda_device *d); /* what kiln_cuda_watched wants, which has to follow */
void kiln_cuda_watched(kiln_cuda_device *d, uint64_t before);

#endif
