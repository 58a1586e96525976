/* Signs to words: each reason for which there may be no GPU, told apart. It looks at nothing itself, so that a test can
 * show it machines that are not there. */
#include "device/cuda/discover/reason.h"
#include <cuda.h>
#include <stdio.h>
#include <string.h>

static void no_library(const kiln_cuda_signs *s, char *why, size_t size)
{
    if (!strstr(s->loader, "No such file"))
        snprintf(why, size, "the NVIDIA driver's library cannot be opened: %s", s->loader);
    else
        snprintf(why, size, "no NVIDIA driver: libcuda.so.1 is not where the system looks for libraries%s",
                 s->container ? "; a container gets it from its host, when it is started with GPUs" : "");
}

static void too_old(const kiln_cuda_signs *s, char *why, size_t size)
{
    snprintf(why, size, "the NVIDIA driver is too old: it knows CUDA %d.%d, Kiln needs %d.%d", s->version / 1000,
             s->version % 1000 / 10, s->needed / 1000, s->needed % 1000 / 10);
}

static void hidden(const kiln_cuda_signs *s, char *why, size_t size)
{
    bool all = !*s->visible || !strncmp(s->visible, "-1", 2);
    snprintf(why, size, "no device is visible: CUDA_VISIBLE_DEVICES is \"%.100s\", which %s", s->visible,
             all ? "hides them all" : "begins with a device that is not there");
}

/* The module's files are missing or closed: whatever the driver says, it comes from that. */
static bool no_way_in(const kiln_cuda_signs *s, char *why, size_t size)
{
    if (s->missing && s->container)
        snprintf(why, size, "this container was given no GPU: %s is not there", s->missing);
    else if (s->missing && !s->module)
        snprintf(why, size, "the NVIDIA driver is installed, but its kernel module is not loaded: %s is not there",
                 s->missing);
    else if (s->missing)
        snprintf(why, size, "the NVIDIA driver's kernel module is loaded, but %s is not there", s->missing);
    else if (s->forbidden)
        snprintf(why, size, "this user has no permission to open %s", s->forbidden);
    else
        return false;
    return true;
}

static bool known_code(const kiln_cuda_signs *s, char *why, size_t size)
{
    const char *text = NULL;
    switch (s->code) {
    case CUDA_ERROR_STUB_LIBRARY:
        text = "the libcuda.so.1 that was found is the CUDA toolkit's stub, not the driver's: is there a folder "
               "\"stubs\" in LD_LIBRARY_PATH?";
        break;
    case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
        text = "the NVIDIA driver's library and its kernel module are of different versions: restart the machine "
               "after an update of the driver";
        break;
    case CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE:
        text = "the libcuda.so.1 that was found is of CUDA's compatibility package, which does not work with this "
               "GPU: take its folder out of LD_LIBRARY_PATH";
        break;
    case CUDA_ERROR_SYSTEM_NOT_READY:
        text = "the system is not ready for CUDA: is NVIDIA's fabric manager running?";
        break;
    case CUDA_ERROR_MPS_CONNECTION_FAILED:
    case CUDA_ERROR_MPS_SERVER_NOT_READY:
    case CUDA_ERROR_MPS_RPC_FAILURE:
        text = "NVIDIA's MPS server, through which devices are shared, does not answer";
        break;
    case CUDA_ERROR_DEVICE_UNAVAILABLE: text = "the devices are in use by others, or kept from this process"; break;
    default: return false;
    }
    snprintf(why, size, "%s", text);
    return true;
}

void kiln_cuda_reason(const kiln_cuda_signs *s, char *why, size_t size)
{
    bool none = s->code == CUDA_SUCCESS || s->code == CUDA_ERROR_NO_DEVICE;
    if (s->loader)
        no_library(s, why, size);
    else if (s->lacks)
        snprintf(why, size, "the NVIDIA driver is too old: it has no function %s", s->lacks);
    else if (s->version && s->version < s->needed)
        too_old(s, why, size);
    else if (known_code(s, why, size))
        return;
    else if (s->code != CUDA_SUCCESS && no_way_in(s, why, size))
        return;
    else if (none && s->visible)
        hidden(s, why, size);
    else if (none)
        snprintf(why, size, "the NVIDIA driver (CUDA %d.%d) finds no device", s->version / 1000,
                 s->version % 1000 / 10);
    else
        snprintf(why, size, "the NVIDIA driver does not start: %s (error %d)", s->code_text, s->code);
}
