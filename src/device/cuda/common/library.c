/* Opening libraries by name, then in the folders where CUDA is usually installed. */
#include "device/cuda/common/library.h"
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "core/fail.h"

/* Variables that say where CUDA or cuDNN was installed, and where it is if none does. */
static const char *const variables[] = {"CUDA_HOME", "CUDA_PATH", "CUDNN_PATH"};
static const char *const folders[] = {"lib64", "lib"};
static const char usual[] = "/usr/local/cuda";

enum { PATH_SIZE = 1024, TRIED_SIZE = 1024, REASON_SIZE = 300 };

typedef struct attempt {
    const char *file;
    char tried[TRIED_SIZE]; /* folders, for the message */
    char
        reason[REASON_SIZE]; /* the loader's, of a library that is there but cannot be opened; otherwise of the first */
} attempt;

static void *try_path(attempt *a, const char *path, bool keep_reason)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const char *reason = library ? NULL : dlerror();
    if (reason && keep_reason)
        snprintf(a->reason, sizeof a->reason, "%s", reason);
    return library;
}

static void *try_root(attempt *a, const char *root)
{
    char path[PATH_SIZE];
    void *library = NULL;
    for (size_t f = 0; !library && f < sizeof folders / sizeof *folders; f++) {
        int length = snprintf(path, sizeof path, "%s/%s/%s", root, folders[f], a->file);
        if (length < 0 || (size_t)length >= sizeof path)
            continue;
        FILE *there = fopen(path, "rb");
        if (there)
            fclose(there);
        library = try_path(a, path, there != NULL);
        size_t used = strlen(a->tried);
        snprintf(a->tried + used, sizeof a->tried - used, ", in %s/%s", root, folders[f]);
    }
    return library;
}

static void *find_library(attempt *a)
{
    void *library = try_path(a, a->file, true);
    for (size_t v = 0; !library && v < sizeof variables / sizeof *variables; v++) {
        const char *root = getenv(variables[v]);
        if (root && *root)
            library = try_root(a, root);
    }
    return library ? library : try_root(a, usual);
}

void *kiln_cuda_library_find(const char *file, char *why, size_t size)
{
    attempt a = {.file = file};
    void *library = find_library(&a);
    if (!library)
        snprintf(why, size, "%s. It was looked for where the system looks for libraries%s", a.reason, a.tried);
    return library;
}

void *kiln_cuda_library_open(const char *operation, const char *file, const char *title,
                             const kiln_cuda_symbol *symbols, size_t count)
{
    char why[REASON_SIZE + TRIED_SIZE + 64];
    void *library = kiln_cuda_library_find(file, why, sizeof why);
    if (!library) {
        kiln_fail(KILN_E_UNSUPPORTED, operation, "%s (%s) cannot be opened: %s", title, file, why);
        return kiln_hint("install %s, or name the folder it is in: LD_LIBRARY_PATH", title);
    }
    for (size_t i = 0; i < count; i++) {
        *symbols[i].to = dlsym(library, symbols[i].name);
        if (*symbols[i].to)
            continue;
        dlclose(library);
        kiln_fail(KILN_E_UNSUPPORTED, operation, "%s (%s) has no function %s: it is of another version", title, file,
                  symbols[i].name);
        return kiln_hint("install the version of %s that Kiln was built for", title);
    }
    return library;
}

void kiln_cuda_library_close(void *library)
{
    if (library)
        dlclose(library);
}

bool kiln_cuda_libraries_wanted(void)
{
    const char *wish = getenv("KILN_CUDA_LIBRARIES");
    return !wish || strcmp(wish, "0") != 0;
}

int kiln_cuda_relax(void)
{
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    cudaThreadExchangeStreamCaptureMode(&mode);
    return (int)mode;
}

void kiln_cuda_unrelax(int before)
{
    enum cudaStreamCaptureMode mode = (enum cudaStreamCaptureMode)before;
    cudaThreadExchangeStreamCaptureMode(&mode);
}
