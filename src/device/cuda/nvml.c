/* Free memory by NVML, which is opened for each question: few are asked. */
#include "device/cuda/nvml.h"
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stddef.h>

/* Of nvml.h, which need not be installed. */
typedef struct memory_info {
    unsigned long long total, free, used;
} memory_info;

typedef struct library {
    int (*start)(void);
    int (*stop)(void);
    int (*device)(const char *bus_id, void **device);
    int (*memory)(void *device, memory_info *info);
} library;

static bool find_functions(void *file, library *l)
{
    l->start = (int (*)(void))(uintptr_t)dlsym(file, "nvmlInit_v2");
    l->stop = (int (*)(void))(uintptr_t)dlsym(file, "nvmlShutdown");
    l->device = (int (*)(const char *, void **))(uintptr_t)dlsym(file, "nvmlDeviceGetHandleByPciBusId_v2");
    l->memory = (int (*)(void *, memory_info *))(uintptr_t)dlsym(file, "nvmlDeviceGetMemoryInfo");
    return l->start && l->stop && l->device && l->memory;
}

/* The library counts devices in another order than the runtime does: they are told by their place on the bus. */
static bool ask(const library *l, const char *bus_id, uint64_t *bytes)
{
    void *device;
    memory_info info;
    if (l->start() != 0)
        return false;
    bool ok = l->device(bus_id, &device) == 0 && l->memory(device, &info) == 0;
    if (ok)
        *bytes = info.free;
    l->stop();
    return ok;
}

bool kiln_cuda_nvml_free(int index, uint64_t *bytes)
{
    char bus_id[32];
    if (cudaDeviceGetPCIBusId(bus_id, sizeof bus_id, index) != cudaSuccess) {
        cudaGetLastError();
        return false;
    }
    void *file = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    library l;
    bool ok = file && find_functions(file, &l) && ask(&l, bus_id, bytes);
    if (file)
        dlclose(file);
    return ok;
}
