/* Pinned host memory of the size asked for. */
#include "device/cuda/memory/pinned.h"
#include <unistd.h>
#include "device/cuda/common/cuda.h"

/* Pinned pages are lost to everyone else, so there are as many as were asked for: allocators that round up to powers of
 * two take up to twice as much. */
void *kiln_cuda_pinned(void *dev, size_t bytes)
{
    kiln_cuda_device *d = dev;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    void *memory = NULL;
    if (!bytes || bytes > SIZE_MAX - page || !kiln_cuda_enter(d))
        return NULL;
    bytes = (bytes + page - 1) / page * page;
    if (cudaHostAlloc(&memory, bytes, cudaHostAllocDefault) == cudaSuccess)
        return memory;
    cudaGetLastError(); /* the caller does without */
    return NULL;
}

/* Waits for what may still be copying to or from it, since the caller need not know what the device is at. */
void kiln_cuda_unpin(void *dev, void *memory)
{
    kiln_cuda_device *d = dev;
    if (!memory || cudaSetDevice(d->index) != cudaSuccess)
        return;
    pthread_mutex_lock(&d->lock); /* another thread may be capturing on the stream */
    cudaStream_t stream = kiln_cuda_stream(d);
    if (stream)
        cudaStreamSynchronize(stream);
    pthread_mutex_unlock(&d->lock);
    cudaFreeHost(memory);
    cudaGetLastError();
}
