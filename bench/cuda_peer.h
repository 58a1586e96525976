/* The GPU without Kiln, for benchmarks that measure beside it: the driver's own functions, found at run time, on the
 * context that Kiln uses too. */
#ifndef KILN_BENCH_CUDA_PEER_H
#define KILN_BENCH_CUDA_PEER_H

#include <cuda.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#define PEER_TEXT_(x) #x
#define PEER_TEXT(x)  PEER_TEXT_(x) /* some names stand for a newer version's */

#define PEER_FUNCTIONS(M)                                                                                              \
    M(cuInit)                                                                                                          \
    M(cuDeviceGet)                                                                                                     \
    M(cuDevicePrimaryCtxRetain)                                                                                        \
    M(cuCtxSetCurrent)                                                                                                 \
    M(cuStreamCreate)                                                                                                  \
    M(cuStreamSynchronize)                                                                                             \
    M(cuStreamBeginCapture)                                                                                            \
    M(cuStreamEndCapture)                                                                                              \
    M(cuMemAlloc)                                                                                                      \
    M(cuMemFree)                                                                                                       \
    M(cuMemsetD8Async)                                                                                                 \
    M(cuMemcpyHtoD)                                                                                                    \
    M(cuMemcpyDtoDAsync)                                                                                               \
    M(cuModuleLoadData)                                                                                                \
    M(cuModuleGetFunction)                                                                                             \
    M(cuLaunchKernel)                                                                                                  \
    M(cuGraphInstantiateWithFlags)                                                                                     \
    M(cuGraphExecDestroy)                                                                                              \
    M(cuGraphDestroy)                                                                                                  \
    M(cuGraphLaunch)

typedef struct cuda_peer {
#define PEER_FIELD(f) __typeof__(&f) f;
    PEER_FUNCTIONS(PEER_FIELD)
#undef PEER_FIELD
    CUstream stream;
} cuda_peer;

/* What goes wrong in a peer ends the program: its figures would mean nothing. */
static inline void peer_check(CUresult result, const char *what)
{
    if (result == CUDA_SUCCESS)
        return;
    fprintf(stderr, "%s failed: error %d of the CUDA driver\n", what, (int)result);
    exit(1);
}
#define PEER(p, f, ...) peer_check((p)->f(__VA_ARGS__), #f)

static inline cuda_peer peer_open(void)
{
    cuda_peer p = {.stream = NULL};
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    const struct {
        const char *name;
        void **to;
    } symbols[] = {
#define PEER_SYMBOL(f) {PEER_TEXT(f), (void **)&p.f},
        PEER_FUNCTIONS(PEER_SYMBOL)
#undef PEER_SYMBOL
    };
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        *symbols[i].to = driver ? dlsym(driver, symbols[i].name) : NULL;
        if (*symbols[i].to)
            continue;
        fprintf(stderr, "the CUDA driver has no %s\n", symbols[i].name);
        exit(1);
    }
    CUdevice device;
    CUcontext context;
    PEER(&p, cuInit, 0);
    PEER(&p, cuDeviceGet, &device, 0);
    PEER(&p, cuDevicePrimaryCtxRetain, &context, device);
    PEER(&p, cuCtxSetCurrent, context);
    PEER(&p, cuStreamCreate, &p.stream, CU_STREAM_NON_BLOCKING);
    return p;
}

static inline void peer_wait(cuda_peer *p)
{
    PEER(p, cuStreamSynchronize, p->stream);
}

#endif
