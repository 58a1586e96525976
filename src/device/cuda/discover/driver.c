/* Opening the driver and asking it for devices, once. It stays open: the runtime opens it, too. */
#include "device/cuda/discover/driver.h"
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include "core/fork.h"

static kiln_cuda_driver driver;
static pthread_once_t once = PTHREAD_ONCE_INIT;

#define TEXT_(x) #x
#define TEXT(x)  TEXT_(x) /* headers give some functions the name of their newest version */

static const char *find_functions(void *library)
{
    const struct {
        const char *name;
        void **to;
    } functions[] = {{TEXT(cuInit), (void **)&driver.init},
                     {TEXT(cuGetErrorString), (void **)&driver.error_text},
                     {TEXT(cuDriverGetVersion), (void **)&driver.get_version},
                     {TEXT(cuDeviceGetCount), (void **)&driver.get_count},
                     {TEXT(cuDeviceGet), (void **)&driver.get},
                     {TEXT(cuDeviceGetName), (void **)&driver.name},
                     {TEXT(cuDeviceTotalMem), (void **)&driver.memory},
                     {TEXT(cuDeviceGetAttribute), (void **)&driver.attribute},
                     {TEXT(cuDeviceGetPCIBusId), (void **)&driver.bus},
                     {TEXT(cuDevicePrimaryCtxGetState), (void **)&driver.context}};
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        if (!(*functions[i].to = dlsym(library, functions[i].name)))
            return functions[i].name;
    return NULL;
}

/* CUDA_SUCCESS with driver.count, or what went wrong. */
static CUresult ask(void)
{
    CUresult code = driver.init(0);
    if (code == CUDA_SUCCESS)
        code = driver.get_count(&driver.count);
    if (code != CUDA_SUCCESS)
        driver.count = 0;
    return code;
}

static void look(void)
{
    driver.forks = kiln_forks();
    /* Any driver of the same major version will do. */
    kiln_cuda_signs s = {.needed = CUDART_VERSION / 1000 * 1000, .visible = getenv("CUDA_VISIBLE_DEVICES")};
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        s.loader = dlerror();
    else if (!(s.lacks = find_functions(library))) {
        if (driver.get_version(&driver.version) != CUDA_SUCCESS)
            driver.version = 0;
        if (!driver.version || driver.version >= s.needed)
            s.code = ask();
    }
    if (driver.count > 0)
        return;
    s.version = driver.version;
    if (s.code != CUDA_SUCCESS && (driver.error_text((CUresult)s.code, &s.code_text) != CUDA_SUCCESS || !s.code_text))
        s.code_text = "an error it has no words for";
    kiln_cuda_look_around(&s);
    kiln_cuda_reason(&s, driver.why, sizeof driver.why);
}

const kiln_cuda_driver *kiln_cuda_driver_get(void)
{
    pthread_once(&once, look);
    return &driver;
}
