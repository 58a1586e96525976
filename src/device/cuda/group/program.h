/* Groups of a plan: launching them, and the programs (group.h) they become. For C alone. */
#ifndef KILN_CUDA_PROGRAM_H
#define KILN_CUDA_PROGRAM_H

#include "device/cuda/common/cuda.h"
#include "device/cuda/group/group.h"

/* Groups: pointwise, or ended by a reduction, or fed by a product that lies at `head` (NULL: none), dense. */
bool kiln_cuda_group_launch(const kiln_cuda_call *c, const kiln_group *g, const void *head);
size_t kiln_cuda_group_workspace(const kiln_cuda_device *d, const kiln_group *g);

/* ---- Programs ---- */

typedef struct kiln_cuda_lowered {
    kiln_cuda_large k; /* as a parameter of the kernels for small programs too: they take its beginning */
    bool wide;
} kiln_cuda_lowered;

/* `to` starts as zeros. False with an error. */
bool kiln_cuda_lower_group(kiln_cuda_lowered *to, const kiln_cuda_call *c, const kiln_group *g, const void *head);

/* The shape of a reduction and how it is cut; `order` receives the dims in the order they are walked. */
void kiln_cuda_lower_reduction(kiln_cuda_reduction *r, const kiln_group *g, int *order);

#endif
