/* The device table of CUDA: opening, copies, waiting. Plans are in exec.c, memory is in memory.c. */
#include <string.h>
#include "core/alloc.h"
#include "core/fail.h"
#include "device/cuda/compile/codegen.h"
#include "device/cuda/discover/discover.h"
#include "device/cuda/conv/cudnn.h"
#include "device/cuda/launch/exec.h"
#include "device/cuda/memory/guard.h"
#include "device/cuda/common/library.h"
#include "device/cuda/gemm/cublaslt.h"
#include "device/cuda/memory/memory.h"
#include "device/cuda/discover/nvml.h"
#include "device/cuda/launch/pending.h"
#include "device/cuda/memory/pinned.h"
#include "device/cuda/launch/staging.h"

/* What a kernel broke stays broken: every call from then on says so, also one that asks for nothing. */
static bool still_works(void)
{
    size_t available, total;
    int mode = kiln_cuda_relax(); /* it may be asked while a stream is captured */
    bool works = cudaMemGetInfo(&available, &total) == cudaSuccess;
    kiln_cuda_unrelax(mode);
    cudaGetLastError();
    return works;
}

kiln_code kiln_cuda_code(kiln_cuda_device *d, cudaError_t e)
{
    cudaGetLastError();
    if (e == cudaErrorMemoryAllocation)
        return KILN_E_MEMORY;
    d->lost |= !still_works();
    return d->lost ? KILN_E_LOST : KILN_E_DEVICE;
}

bool kiln_cuda_ok(kiln_cuda_device *d, cudaError_t e, const char *what)
{
    return e == cudaSuccess ||
           kiln_fail(kiln_cuda_code(d, e), NULL, "cuda:%d: %s: %s", d->index, what, cudaGetErrorString(e));
}

bool kiln_cuda_has_memory(kiln_cuda_device *d, cudaError_t e)
{
    if (e != cudaErrorMemoryAllocation)
        return kiln_cuda_ok(d, e, "memory cannot be taken");
    cudaGetLastError();
    return false;
}

bool kiln_cuda_enter(kiln_cuda_device *d)
{
    if (d->lost)
        return kiln_fail(KILN_E_LOST, NULL, "cuda:%d was lost by an earlier error", d->index);
    cudaError_t e = cudaSetDevice(d->index);
    if (e == cudaSuccess)
        return true;
    cudaGetLastError();
    bool memory = e == cudaErrorMemoryAllocation; /* for its context, when it is opened */
    d->lost = !memory;
    return kiln_fail(memory ? KILN_E_MEMORY : KILN_E_LOST, NULL, "cuda:%d: cannot be used: %s", d->index,
                     cudaGetErrorString(e));
}

bool kiln_cuda_idle(kiln_cuda_device *d)
{
    pthread_mutex_lock(&d->lock);
    cudaStream_t stream = kiln_cuda_stream(d);
    bool ok = stream && kiln_cuda_ok(d, cudaStreamSynchronize(stream), "a step failed");
    pthread_mutex_unlock(&d->lock);
    return ok;
}

/* ---- Opening ---- */

static void cuda_close(void *dev)
{
    kiln_cuda_device *d = dev;
    if (cudaSetDevice(d->index) == cudaSuccess) {
        kiln_cuda_flush(d);
        kiln_cuda_staging_close(d);
        kiln_cuda_codegen_close(d);
        kiln_cuda_lt_close(d);
        kiln_cuda_dnn_close(d);
        if (d->run_stream) {
            cudaStreamSynchronize(d->run_stream);
            cudaStreamDestroy(d->run_stream);
        }
        for (int i = 0; i < KILN_CUDA_AHEAD; i++)
            if (d->graph_ends[i])
                cudaEventDestroy(d->graph_ends[i]);
        kiln_cuda_memory_close(d);
        cudaFree(d->status);
        cudaFreeHost(d->record);
    }
    pthread_mutex_destroy(&d->lock);
    kiln_free(d->flights);
    kiln_free(d);
}

static bool take(kiln_cuda_device *d)
{
    cudaError_t e = cudaSetDevice(d->index);
    if (e != cudaErrorDevicesUnavailable)
        return kiln_cuda_ok(d, e, "cannot be used");
    cudaGetLastError();
    kiln_fail(KILN_E_DEVICE, "device", "cuda:%d serves one process at a time, and another one has it", d->index);
    return kiln_hint("nvidia-smi names that process; nvidia-smi -c 0 lets several share the device");
}

static bool make_events(kiln_cuda_device *d)
{
    bool ok = true;
    for (int i = 0; ok && i < KILN_CUDA_AHEAD; i++)
        ok = kiln_cuda_ok(d, cudaEventCreateWithFlags(&d->graph_ends[i], cudaEventDisableTiming), "no event");
    return ok;
}

static bool set_up(kiln_cuda_device *d)
{
    struct cudaDeviceProp p;
    if (!take(d) || !kiln_cuda_ok(d, cudaGetDeviceProperties(&p, d->index), "cannot be described"))
        return false;
    d->multiprocessors = p.multiProcessorCount;
    d->capability = p.major * 10 + p.minor;
    d->costs = kiln_cuda_costs_of(d->capability, d->multiprocessors);
    d->shared = kiln_cuda_is_shared(d->index);
    return kiln_cuda_ok(d, cudaStreamCreateWithFlags(&d->run_stream, cudaStreamNonBlocking), "no stream") &&
           make_events(d) && kiln_cuda_ok(d, cudaMalloc((void **)&d->status, sizeof *d->status), "no memory") &&
           kiln_cuda_ok(d, cudaMemset(d->status, 0, sizeof *d->status), "memory cannot be written") &&
           kiln_cuda_ok(d, cudaHostAlloc((void **)&d->record, sizeof *d->record, cudaHostAllocMapped),
                        "no pinned memory") &&
           kiln_cuda_ok(d, cudaHostGetDevicePointer((void **)&d->mapped, d->record, 0),
                        "pinned memory is not mapped") &&
           memset((void *)d->record, 0, sizeof *d->record);
}

/* What the context takes: the difference it made, where the driver can tell without one; else all that is not free, of
 * which other processes may have a part. */
static uint64_t context_bytes(const char *bus, bool known, uint64_t before)
{
    uint64_t after = 0;
    size_t available = 0, total = 0;
    if (known && kiln_cuda_nvml_free(bus, &after))
        return before > after ? before - after : 0;
    if (cudaMemGetInfo(&available, &total) != cudaSuccess)
        cudaGetLastError();
    return total - available;
}

static void *cuda_open(int index)
{
    kiln_cuda_device *d = kiln_alloc_zero(1, sizeof *d);
    if (!d)
        return NULL;
    uint64_t before = 0;
    char bus[32];
    bool known = kiln_cuda_bus(index, bus, sizeof bus) && kiln_cuda_nvml_free(bus, &before);
    d->index = index;
    pthread_mutex_init(&d->lock, NULL);
    if (set_up(d) && kiln_cuda_memory_open(d, context_bytes(bus, known, before)))
        return d;
    cuda_close(d);
    return NULL;
}

/* ---- Copies and waiting ---- */

/* With the lock: a copy that met another thread's capture would become a part of its graph. */
static bool copy(kiln_cuda_device *d, void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                 const char *failed)
{
    pthread_mutex_lock(&d->lock);
    cudaStream_t stream = kiln_cuda_stream(d);
    bool ok = stream && kiln_cuda_ok(d, cudaMemcpyAsync(to, from, bytes, kind, stream), failed);
    pthread_mutex_unlock(&d->lock);
    return ok;
}

/* From pageable memory this returns when the bytes have been taken. */
static bool cuda_copy_in(void *dev, kiln_address to, const void *from, size_t bytes)
{
    return kiln_cuda_enter(dev) &&
           copy(dev, (void *)(uintptr_t)to, from, bytes, cudaMemcpyHostToDevice, "copying to it failed");
}

static bool cuda_wait(void *dev)
{
    kiln_cuda_device *d = dev;
    return kiln_cuda_enter(d) && kiln_cuda_drain(d) && kiln_cuda_memory_check(d);
}

static bool cuda_copy_out(void *dev, void *to, kiln_address from, size_t bytes)
{
    return kiln_cuda_enter(dev) &&
           copy(dev, to, (const void *)(uintptr_t)from, bytes, cudaMemcpyDeviceToHost, "copying from it failed") &&
           cuda_wait(dev);
}

static kiln_device_table table = {.version = KILN_DEVICE_VERSION,
                                  .kind = "cuda",
                                  .runs_on = true,
                                  .counts_products = true,
                                  .row_bytes = 16,
                                  .roomy = 128 << 20, /* the scratch of a step of some thousand rows; not much memory */
                                  .count = kiln_cuda_count,
                                  .describe = kiln_cuda_describe,
                                  .open = cuda_open,
                                  .close = cuda_close,
                                  .allocate = kiln_cuda_allocate,
                                  .release = kiln_cuda_release,
                                  .trim = kiln_cuda_trim,
                                  .arena = kiln_cuda_arena,
                                  .overhead = kiln_cuda_overhead,
                                  .pinned = kiln_cuda_pinned,
                                  .unpin = kiln_cuda_unpin,
                                  .copy_in = cuda_copy_in,
                                  .copy_out = cuda_copy_out,
                                  .mark = kiln_cuda_mark,
                                  .copy_in_later = kiln_cuda_copy_in_later,
                                  .await_copy = kiln_cuda_await_copy,
                                  .copied = kiln_cuda_copied,
                                  .copy_out_later = kiln_cuda_copy_out_later,
                                  .copied_out = kiln_cuda_copied_out,
                                  .supports = kiln_cuda_supports,
                                  .can = kiln_cuda_can,
                                  .workspace = kiln_cuda_workspace,
                                  .choose = kiln_cuda_choose,
                                  .lower = kiln_cuda_lower,
                                  .dispose = kiln_cuda_dispose,
                                  .run = kiln_cuda_run,
                                  .time = kiln_cuda_time,
                                  .wait = cuda_wait,
                                  .usable = kiln_cuda_usable,
                                  .libraries = kiln_cuda_libraries};

KILN_PLUGIN_API const kiln_device_table *kiln_device_plugin(void);
const kiln_device_table *kiln_device_plugin(void)
{
    table.apart = kiln_cuda_guards_wanted().on;
    return &table;
}
