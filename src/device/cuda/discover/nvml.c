/* Five functions of NVML, declared here because the toolkit comes without its header as often as with it. */
#include "device/cuda/discover/nvml.h"
#include <dlfcn.h>

typedef struct device_memory {
    unsigned long long total, free, used;
} device_memory;

typedef struct nvml {
    void *library;
    int (*init)(void);
    int (*shutdown)(void);
    int (*device)(const char *bus, void **device);
    int (*memory)(void *device, device_memory *memory);
    int (*driver)(char *version, unsigned size);
} nvml;

static bool start(nvml *n)
{
    *n = (nvml){.library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)};
    if (!n->library)
        return false;
    *(void **)&n->init = dlsym(n->library, "nvmlInit_v2");
    *(void **)&n->shutdown = dlsym(n->library, "nvmlShutdown");
    *(void **)&n->device = dlsym(n->library, "nvmlDeviceGetHandleByPciBusId_v2");
    *(void **)&n->memory = dlsym(n->library, "nvmlDeviceGetMemoryInfo");
    *(void **)&n->driver = dlsym(n->library, "nvmlSystemGetDriverVersion");
    if (n->init && n->shutdown && n->device && n->memory && n->driver && n->init() == 0)
        return true;
    dlclose(n->library);
    return false;
}

static void end(nvml *n)
{
    n->shutdown();
    dlclose(n->library);
}

bool kiln_cuda_nvml_free(const char *bus, uint64_t *bytes)
{
    nvml n;
    void *device;
    device_memory memory;
    if (!start(&n))
        return false;
    bool ok = n.device(bus, &device) == 0 && n.memory(device, &memory) == 0;
    if (ok)
        *bytes = memory.free;
    end(&n);
    return ok;
}

bool kiln_cuda_nvml_driver(char *version, size_t size)
{
    nvml n;
    if (!start(&n))
        return false;
    bool ok = n.driver(version, (unsigned)size) == 0;
    end(&n);
    return ok;
}
