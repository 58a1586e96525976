/* Making programs (group.h) of a plan's groups, for C alone. */
#ifndef KILN_CUDA_PROGRAM_H
#define KILN_CUDA_PROGRAM_H

#include "device/cuda/cuda.h"
#include "device/cuda/group.h"

typedef struct kiln_cuda_lowered {
    kiln_cuda_large k; /* as a parameter of the kernels for small programs too: they take its beginning */
    bool wide;
} kiln_cuda_lowered;

/* `to` starts as zeros. False with an error. */
bool kiln_cuda_lower_group(kiln_cuda_lowered *to, const kiln_cuda_call *c, const kiln_group *g, const void *head);

/* The shape of a reduction and how it is cut; `order` receives the dims in the order they are walked. */
void kiln_cuda_lower_reduction(kiln_cuda_reduction *r, const kiln_group *g, int *order);

#endif
