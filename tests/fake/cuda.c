/* A driver without a GPU, for test_discover.c: it says what the environment tells it to. It has the functions with
 * which devices are counted and described; whoever makes a context on one is caught. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cuda.h>

/* The number at that place of a list with commas in it; the last one counts for all that follow. */
static int setting(const char *name, int place, int otherwise)
{
    const char *text = getenv(name);
    if (!text || !*text)
        return otherwise;
    for (const char *comma; place-- > 0 && (comma = strchr(text, ','));)
        text = comma + 1;
    return atoi(text);
}

static int started;

/* As the real one does, to start a program that makes device files. */
static void fork_and_wait(void)
{
    pid_t child = fork();
    if (child == 0)
        _exit(0);
    waitpid(child, NULL, 0);
}

CUresult cuInit(unsigned flags)
{
    (void)flags;
    if (setting("FAKE_CUDA_FORKS", 0, 0))
        fork_and_wait();
    CUresult code = (CUresult)setting("FAKE_CUDA_INIT", 0, CUDA_SUCCESS);
    started = code == CUDA_SUCCESS;
    return code;
}

CUresult cuGetErrorString(CUresult code, const char **text)
{
    *text = code == CUDA_ERROR_UNKNOWN ? "unknown error" : NULL;
    return *text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuDriverGetVersion(int *version)
{
    *version = setting("FAKE_CUDA_VERSION", 0, CUDA_VERSION);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *count)
{
    *count = setting("FAKE_CUDA_COUNT", 0, 1);
    return started ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult cuDeviceGet(CUdevice *device, int index)
{
    *device = index;
    return index < setting("FAKE_CUDA_COUNT", 0, 1) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceGetName(char *name, int size, CUdevice device)
{
    snprintf(name, (size_t)size, "Fake GPU %d", device);
    return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem(size_t *bytes, CUdevice device) /* the header names its newest version */
{
    (void)device;
    *bytes = (size_t)8 << 30;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute which, CUdevice device)
{
    int capability = setting("FAKE_CUDA_CAPABILITY", device, 90);
    switch (which) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = capability / 10; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = capability % 10; break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = 12; break;
    case CU_DEVICE_ATTRIBUTE_MPS_ENABLED: *value = setting("FAKE_CUDA_MPS", device, 0); break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_MODE: *value = setting("FAKE_CUDA_MODE", device, CU_COMPUTEMODE_DEFAULT); break;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetPCIBusId(char *bus, int size, CUdevice device)
{
    snprintf(bus, (size_t)size, "0000:%02x:00.0", 0x17 + device);
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active)
{
    (void)device;
    *flags = 0;
    *active = 0;
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    (void)context;
    fprintf(stderr, "a context was made on device %d\n", device);
    _exit(99);
}
