/* What is launched before every graph (several times where there are very many scalars): numbers the run, tells the
 * host that those before it are over, and writes run-time scalars first … first+n-1 to device memory. Chains find their
 * barriers at 0. It is no node of the graph, since a graph that is changed while it runs has to be brought to the
 * device anew, which takes longer than many a step. */
#ifndef KILN_CUDA_PROLOGUE_H
#define KILN_CUDA_PROLOGUE_H

#include "device/cuda/common/launch.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { KILN_CUDA_PROLOGUE_SCALARS = 4000 }; /* scalars that one can bring: a kernel's parameters are below 32 KiB */
typedef struct kiln_cuda_prologue {
    kiln_cuda_status *state;
    kiln_cuda_record *record;
    double *scalars;
    unsigned long long *barriers; /* of the plan's chains, set to 0 */
    unsigned long long run;
    int32_t first, n, nbarriers;
} kiln_cuda_prologue;
cudaError_t kiln_cuda_prologue_launch(cudaStream_t stream, const kiln_cuda_prologue *h, const double *values);

#ifdef __cplusplus
}
#endif
#endif
