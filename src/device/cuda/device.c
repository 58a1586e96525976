/* The device table of CUDA: opening, memory, copies, waiting. Plans are in exec.c. */
#include <stdio.h>
#include <string.h>
#include "core/alloc.h"
#include "core/fail.h"
#include "device/cuda/codegen.h"
#include "device/cuda/discover.h"
#include "device/cuda/dnn.h"
#include "device/cuda/exec.h"
#include "device/cuda/lt.h"
#include "device/cuda/pinned.h"
#include "device/cuda/staging.h"

bool kiln_cuda_ok(kiln_cuda_device *d, cudaError_t e, const char *what)
{
    if (e == cudaSuccess)
        return true;
    cudaGetLastError();
    bool memory = e == cudaErrorMemoryAllocation;
    d->lost |= !memory; /* what a kernel broke stays broken: the context is gone */
    return kiln_fail(memory ? KILN_E_MEMORY : KILN_E_LOST, NULL, "cuda:%d: %s: %s", d->index, what,
                     cudaGetErrorString(e));
}

bool kiln_cuda_enter(kiln_cuda_device *d)
{
    if (d->lost)
        return kiln_fail(KILN_E_LOST, NULL, "cuda:%d was lost by an earlier error", d->index);
    return kiln_cuda_ok(d, cudaSetDevice(d->index), "cannot be used");
}

/* ---- Opening ---- */

static void cuda_close(void *dev)
{
    kiln_cuda_device *d = dev;
    if (cudaSetDevice(d->index) == cudaSuccess) {
        kiln_cuda_staging_close(d);
        kiln_cuda_codegen_close(d);
        kiln_cuda_lt_close(d);
        kiln_cuda_dnn_close(d);
        if (d->stream)
            cudaStreamDestroy(d->stream);
        cudaFree(d->state);
        cudaFreeHost(d->record);
    }
    pthread_mutex_destroy(&d->lock);
    kiln_free(d->flights);
    kiln_free(d);
}

static bool set_up(kiln_cuda_device *d)
{
    struct cudaDeviceProp p;
    if (!kiln_cuda_enter(d) || !kiln_cuda_ok(d, cudaGetDeviceProperties(&p, d->index), "cannot be described"))
        return false;
    d->multiprocessors = p.multiProcessorCount;
    d->capability = p.major * 10 + p.minor;
    return kiln_cuda_ok(d, cudaStreamCreateWithFlags(&d->stream, cudaStreamNonBlocking), "no stream") &&
           kiln_cuda_ok(d, cudaMalloc((void **)&d->state, sizeof *d->state), "no memory") &&
           kiln_cuda_ok(d, cudaMemset(d->state, 0, sizeof *d->state), "memory cannot be written") &&
           kiln_cuda_ok(d, cudaHostAlloc((void **)&d->record, sizeof *d->record, cudaHostAllocMapped),
                        "no pinned memory") &&
           kiln_cuda_ok(d, cudaHostGetDevicePointer((void **)&d->mapped, d->record, 0),
                        "pinned memory is not mapped") &&
           memset((void *)d->record, 0, sizeof *d->record);
}

static void *cuda_open(int index)
{
    kiln_cuda_device *d = kiln_alloc_zero(1, sizeof *d);
    if (!d)
        return NULL;
    d->index = index;
    pthread_mutex_init(&d->lock, NULL);
    if (set_up(d))
        return d;
    cuda_close(d);
    return NULL;
}

/* ---- Memory and copies ---- */

static kiln_address cuda_allocate(void *dev, size_t bytes)
{
    kiln_cuda_device *d = dev;
    void *p = NULL;
    if (!kiln_cuda_enter(d))
        return 0;
    if (cudaMalloc(&p, bytes) != cudaSuccess) {
        cudaGetLastError(); /* the pool above says it */
        return 0;
    }
    return (kiln_address)(uintptr_t)p;
}

static void cuda_release(void *dev, kiln_address address, size_t bytes)
{
    (void)bytes;
    if (kiln_cuda_enter(dev))
        cudaFree((void *)(uintptr_t)address);
}

/* From pageable memory this returns when the bytes have been taken. */
static bool cuda_copy_in(void *dev, kiln_address to, const void *from, size_t bytes)
{
    kiln_cuda_device *d = dev;
    return kiln_cuda_enter(d) &&
           kiln_cuda_ok(d, cudaMemcpyAsync((void *)(uintptr_t)to, from, bytes, cudaMemcpyHostToDevice, d->stream),
                        "copying to it failed");
}

static bool cuda_wait(void *dev)
{
    kiln_cuda_device *d = dev;
    return kiln_cuda_enter(d) && kiln_cuda_ok(d, cudaStreamSynchronize(d->stream), "a step failed") &&
           kiln_cuda_settle(d);
}

static bool cuda_copy_out(void *dev, void *to, kiln_address from, size_t bytes)
{
    kiln_cuda_device *d = dev;
    return kiln_cuda_enter(d) &&
           kiln_cuda_ok(d, cudaMemcpyAsync(to, (const void *)(uintptr_t)from, bytes, cudaMemcpyDeviceToHost, d->stream),
                        "copying from it failed") &&
           cuda_wait(d);
}

static const kiln_device_table table = {.version = KILN_DEVICE_VERSION,
                                        .kind = "cuda",
                                        .runs_on = true,
                                        .count = kiln_cuda_count,
                                        .describe = kiln_cuda_describe,
                                        .open = cuda_open,
                                        .close = cuda_close,
                                        .allocate = cuda_allocate,
                                        .release = cuda_release,
                                        .pinned = kiln_cuda_pinned,
                                        .unpin = kiln_cuda_unpin,
                                        .copy_in = cuda_copy_in,
                                        .copy_out = cuda_copy_out,
                                        .mark = kiln_cuda_mark,
                                        .copy_in_later = kiln_cuda_copy_in_later,
                                        .await_copy = kiln_cuda_await_copy,
                                        .copied = kiln_cuda_copied,
                                        .supports = kiln_cuda_supports,
                                        .workspace = kiln_cuda_workspace,
                                        .lower = kiln_cuda_lower,
                                        .dispose = kiln_cuda_dispose,
                                        .run = kiln_cuda_run,
                                        .wait = cuda_wait};

KILN_PLUGIN_API const kiln_device_table *kiln_device_plugin(void);
const kiln_device_table *kiln_device_plugin(void)
{
    return &table;
}
