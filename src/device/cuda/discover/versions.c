/* Which driver, which CUDA, which libraries: each is opened to be asked, so this is for people who look, not for the
 * start of a program. */
#include <cublasLt.h>
#include <dlfcn.h>
#include <stdio.h>
#include "device/cuda/discover/discover.h"
#include "device/cuda/discover/driver.h"
#include "device/cuda/common/library.h"
#include "device/cuda/discover/nvml.h"
#if __has_include(<cudnn.h>)
#include <cudnn.h>
#else
#define CUDNN_MAJOR 9
#endif

#define TEXT_(x) #x
#define TEXT(x)  TEXT_(x)

/* How a library tells its version. */
typedef enum answer {
    ANSWER_RESULT, /* size_t f(void): 91300 is 9.13.0 */
    ANSWER_NUMBER, /* int f(int *): likewise */
    ANSWER_PARTS   /* int f(int *major, int *minor) */
} answer;

static const struct library {
    const char *name, *file, *function;
    answer answer;
} libraries[] = {
    {"cuBLASLt", "libcublasLt.so." TEXT(CUBLAS_VER_MAJOR), "cublasLtGetVersion", ANSWER_RESULT},
    {"cuDNN", "libcudnn.so." TEXT(CUDNN_MAJOR), "cudnnGetVersion", ANSWER_RESULT},
    {"NVRTC", "libnvrtc.so.13", "nvrtcVersion", ANSWER_PARTS},
    {"NCCL", "libnccl.so.2", "ncclGetVersion", ANSWER_NUMBER},
};
enum { LIBRARIES = sizeof libraries / sizeof *libraries };

static bool ask(void *function, answer how, char *version, size_t size)
{
    int number = 0, minor = 0;
    if (how == ANSWER_PARTS) {
        if (((int (*)(int *, int *))(uintptr_t)function)(&number, &minor) != 0)
            return false;
        snprintf(version, size, "%d.%d", number, minor);
        return true;
    }
    if (how == ANSWER_RESULT)
        number = (int)((size_t(*)(void))(uintptr_t)function)();
    else if (((int (*)(int *))(uintptr_t)function)(&number) != 0)
        return false;
    snprintf(version, size, "%d.%d.%d", number / 10000, number / 100 % 100, number % 100);
    return true;
}

static void list_library(kiln_device_library *to, const struct library *from)
{
    *to = (kiln_device_library){0};
    snprintf(to->name, sizeof to->name, "%s", from->name);
    void *library = kiln_cuda_library_find(from->file, to->why, sizeof to->why);
    if (!library)
        return;
    void *function = dlsym(library, from->function);
    if (!function || !ask(function, from->answer, to->version, sizeof to->version))
        snprintf(to->why, sizeof to->why, "%s does not tell its version", from->file);
    kiln_cuda_library_close(library);
}

static void list_driver(kiln_device_library *to)
{
    const kiln_cuda_driver *d = kiln_cuda_driver_get();
    char number[16] = "";
    *to = (kiln_device_library){.name = "NVIDIA driver"};
    if (!d->version)
        snprintf(to->why, sizeof to->why, "%s", d->why);
    else if (kiln_cuda_nvml_driver(number, sizeof number))
        snprintf(to->version, sizeof to->version, "%s for CUDA %d.%d", number, d->version / 1000,
                 d->version % 1000 / 10);
    else
        snprintf(to->version, sizeof to->version, "for CUDA %d.%d", d->version / 1000, d->version % 1000 / 10);
}

/* It is linked into the plugin. */
static void list_runtime(kiln_device_library *to)
{
    *to = (kiln_device_library){.name = "CUDA"};
    snprintf(to->version, sizeof to->version, "%d.%d", CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
}

int kiln_cuda_libraries(kiln_device_library *list, int room)
{
    int n = 0;
    if (n < room)
        list_driver(&list[n++]);
    if (n < room)
        list_runtime(&list[n++]);
    for (int i = 0; i < LIBRARIES && n < room; i++)
        list_library(&list[n++], &libraries[i]);
    return n;
}
