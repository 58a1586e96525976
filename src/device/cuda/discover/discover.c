/* How many GPUs there are, which, and whether Kiln can use them. */
#include "device/cuda/discover/discover.h"
#include <stdio.h>
#include <stdlib.h>
#include "core/fail.h"
#include "core/fork.h"
#include "device/cuda/discover/driver.h"
#include "device/cuda/discover/nvml.h"

enum { OLDEST = 80 }; /* compute capability: the first that our kernels are built for */

int kiln_cuda_count(char *why, size_t size)
{
    const kiln_cuda_driver *d = kiln_cuda_driver_get();
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    if (d->count == 0)
        snprintf(why, size, "%s", d->why);
    else if (visible)
        snprintf(why, size, "CUDA_VISIBLE_DEVICES is \"%.100s\"", visible);
    return d->count;
}

/* An attribute the driver does not know counts as 0. */
static int attribute(CUdevice device, CUdevice_attribute which)
{
    int value = 0;
    return kiln_cuda_driver_get()->attribute(&value, which, device) == CUDA_SUCCESS ? value : 0;
}

static bool find_device(int index, CUdevice *device)
{
    const kiln_cuda_driver *d = kiln_cuda_driver_get();
    CUresult e = index < d->count ? d->get(device, index) : CUDA_ERROR_INVALID_DEVICE;
    return e == CUDA_SUCCESS ||
           kiln_fail(KILN_E_DEVICE, "device", "the driver does not find cuda:%d (error %d)", index, (int)e);
}

bool kiln_cuda_bus(int index, char *bus, int size)
{
    const kiln_cuda_driver *d = kiln_cuda_driver_get();
    CUdevice device;
    return index < d->count && d->get(&device, index) == CUDA_SUCCESS && d->bus(bus, size, device) == CUDA_SUCCESS;
}

bool kiln_cuda_is_shared(int index)
{
    const kiln_cuda_driver *d = kiln_cuda_driver_get();
    CUdevice device;
    return index < d->count && d->get(&device, index) == CUDA_SUCCESS &&
           attribute(device, CU_DEVICE_ATTRIBUTE_MPS_ENABLED) != 0;
}

bool kiln_cuda_usable(int index, char *why, size_t size)
{
    CUdevice device;
    if (kiln_cuda_driver_get()->forks != kiln_forks()) {
        snprintf(why, size,
                 "CUDA was asked for devices by the process that this one was forked from, and works only there");
        return false;
    }
    if (kiln_cuda_driver_get()->get(&device, index) != CUDA_SUCCESS) {
        snprintf(why, size, "the driver does not find it");
        return false;
    }
    int major = attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
        minor = attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
    if (10 * major + minor < OLDEST)
        snprintf(why, size, "it has compute capability %d.%d, Kiln's kernels need %d.%d or more", major, minor,
                 OLDEST / 10, OLDEST % 10);
    else if (attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE) == CU_COMPUTEMODE_PROHIBITED)
        snprintf(why, size, "it is set to compute nothing (prohibited mode); nvidia-smi -c 0 sets it to its default");
    else
        return true;
    return false;
}

/* What the runtime says where this process has the device open, what NVML says otherwise. */
static uint64_t free_memory(int index, CUdevice device, const kiln_device_info *info)
{
    unsigned flags;
    int active = 0, current;
    size_t now = 0, total;
    uint64_t bytes;
    if (kiln_cuda_driver_get()->context(device, &flags, &active) == CUDA_SUCCESS && active &&
        cudaGetDevice(&current) == cudaSuccess && cudaSetDevice(index) == cudaSuccess) {
        cudaError_t e = cudaMemGetInfo(&now, &total);
        cudaSetDevice(current);
        if (e == cudaSuccess)
            return now;
        cudaGetLastError(); /* somebody else will meet it, too */
    }
    bool known = info->bus[0] && kiln_cuda_nvml_free(info->bus, &bytes);
    return known && bytes < info->memory_total ? bytes : info->memory_total; /* a part of a GPU has less than it all */
}

bool kiln_cuda_describe(int index, kiln_device_info *info)
{
    const kiln_cuda_driver *d = kiln_cuda_driver_get();
    CUdevice device;
    size_t total = 0;
    if (!find_device(index, &device))
        return false;
    if (d->name(info->name, sizeof info->name, device) != CUDA_SUCCESS)
        snprintf(info->name, sizeof info->name, "a device without a name");
    if (d->bus(info->bus, sizeof info->bus, device) != CUDA_SUCCESS)
        info->bus[0] = '\0';
    if (d->memory(&total, device) == CUDA_SUCCESS)
        info->memory_total = total;
    info->memory_free = free_memory(index, device, info);
    info->threads = attribute(device, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
    info->capability[0] = attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
    info->capability[1] = attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
    bool alone = attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE) == CU_COMPUTEMODE_EXCLUSIVE_PROCESS;
    snprintf(info->features, sizeof info->features, "compute capability %d.%d%s%s", info->capability[0],
             info->capability[1], alone ? ", for one process at a time" : "",
             kiln_cuda_is_shared(index) ? ", shared through MPS" : "");
    return true;
}
