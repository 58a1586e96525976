/* What is launched before a graph. */
#include "device/cuda/launch/prologue.h"
#include <string.h>

/* All of it is copied with each launch, so that there is one for few scalars too. */
template <int MOST> struct parameters {
    kiln_cuda_prologue h;
    double values[MOST];
};

template <int MOST> static __global__ void prologue(const __grid_constant__ parameters<MOST> p)
{
    const kiln_cuda_prologue &h = p.h;
    for (int i = (int)threadIdx.x; i < h.n; i += (int)blockDim.x)
        h.scalars[h.first + i] = p.values[i];
    for (int i = (int)threadIdx.x; i < h.nbarriers; i += (int)blockDim.x)
        h.barriers[i] = 0;
    if (threadIdx.x == 0 && h.first == 0) {
        h.state->run = h.run;
        h.record->done = h.run - 1;
    }
}

template <int MOST> static cudaError_t launch(cudaStream_t stream, const kiln_cuda_prologue &h, const double *values)
{
    parameters<MOST> p;
    p.h = h;
    if (h.n > 0)
        memcpy(p.values, values, (size_t)h.n * sizeof *values);
    void *arguments[] = {&p};
    return cudaLaunchKernel((const void *)prologue<MOST>, 1, 128, arguments, 0, stream);
}

extern "C" cudaError_t kiln_cuda_prologue_launch(cudaStream_t stream, const kiln_cuda_prologue *h, const double *values)
{
    enum { FEW = 24, SOME = 240 };
    return h->n <= FEW    ? launch<FEW>(stream, *h, values)
           : h->n <= SOME ? launch<SOME>(stream, *h, values)
                          : launch<KILN_CUDA_PROLOGUE_SCALARS>(stream, *h, values);
}
