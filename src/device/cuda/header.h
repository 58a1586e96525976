/* The first node of every graph (or several, where there are many scalars): numbers the run, tells the host that those
 * before it are over, and writes run-time scalars first … first+n-1 to device memory. Chains find their barriers at 0.
 * Its parameters are set anew for each run. */
#ifndef KILN_CUDA_HEADER_H
#define KILN_CUDA_HEADER_H

#include "device/cuda/launch.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { KILN_CUDA_HEADER = 480 }; /* scalars a node can bring: its parameters are below 4 KiB */
typedef struct kiln_cuda_header {
    kiln_cuda_state *state;
    kiln_cuda_record *record;
    double *scalars;
    unsigned long long *barriers; /* of the plan's chains, set to 0 */
    unsigned long long run;
    int32_t first, n, nbarriers;
    double values[KILN_CUDA_HEADER];
} kiln_cuda_header;
const void *kiln_cuda_header_kernel(void);

#ifdef __cplusplus
}
#endif
#endif
