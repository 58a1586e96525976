/* Is there a GPU, and if not, why not: each reason told apart and worded for a person. Nothing is opened here: no
 * context is made on a device that nobody uses. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "core/fail.h"
#include "device/cuda/discover.h"
#include "device/cuda/nvml.h"

/* Whether the driver's library is there; it is what the runtime opens, too, but the runtime does not say what it
 * misses. */
static bool driver_there(char *why, size_t size)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (driver) {
        dlclose(driver);
        return true;
    }
    snprintf(why, size, "no NVIDIA driver on this machine (libcuda.so.1 was not found where libraries are looked for)");
    return false;
}

static void version_text(char *text, size_t size, int version)
{
    snprintf(text, size, "%d.%d", version / 1000, version % 1000 / 10);
}

int kiln_cuda_count(char *why, size_t size)
{
    int n = 0, driver = 0, runtime = 0;
    if (!driver_there(why, size))
        return 0;
    char has[16], wants[16];
    cudaError_t e = cudaGetDeviceCount(&n);
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    version_text(has, sizeof has, driver);
    version_text(wants, sizeof wants, runtime);
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    if (e == cudaSuccess && n > 0)
        return n;
    cudaGetLastError(); /* it has been noted */
    if (e == cudaErrorInsufficientDriver)
        snprintf(why, size, "the NVIDIA driver is too old: it knows CUDA %s, Kiln was built for %s", has, wants);
    else if ((e == cudaErrorNoDevice || e == cudaSuccess) && visible)
        snprintf(why, size, "no device is visible: CUDA_VISIBLE_DEVICES is \"%s\"", visible);
    else if (e == cudaErrorNoDevice || e == cudaSuccess)
        snprintf(why, size, "the NVIDIA driver (CUDA %s) finds no device", has);
    else
        snprintf(why, size, "the NVIDIA driver does not work: %s", cudaGetErrorString(e));
    return 0;
}

/* The runtime tells only with a context, which an open device has; otherwise the driver's library may know. */
static uint64_t free_memory(int index, uint64_t total)
{
    size_t available = 0, all = 0;
    uint64_t bytes = total;
    if (kiln_cuda_opened(index)) {
        bool ok = cudaSetDevice(index) == cudaSuccess && cudaMemGetInfo(&available, &all) == cudaSuccess;
        cudaGetLastError(); /* a device that is lost has nothing */
        return ok ? available : 0;
    }
    return kiln_cuda_nvml_free(index, &bytes) && bytes < total ? bytes : total;
}

bool kiln_cuda_describe(int index, kiln_device_info *info)
{
    struct cudaDeviceProp p;
    cudaError_t e = cudaGetDeviceProperties(&p, index);
    if (e != cudaSuccess)
        return kiln_fail(KILN_E_DEVICE, "device", "cuda:%d: %s", index, cudaGetErrorString(e));
    int driver = 0, runtime = 0;
    char has[16], built[16];
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    version_text(has, sizeof has, driver);
    version_text(built, sizeof built, runtime);
    snprintf(info->name, sizeof info->name, "%.127s", p.name);
    info->memory_total = p.totalGlobalMem;
    info->memory_free = free_memory(index, p.totalGlobalMem);
    info->threads = p.multiProcessorCount;
    snprintf(info->features, sizeof info->features, "compute capability %d.%d, CUDA %s (driver: %s)", p.major, p.minor,
             built, has);
    return true;
}
