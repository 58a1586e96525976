/* Operations with groups around them: one makes operands, another goes on from the first result. */
#ifndef KILN_CUDA_GROUP_AROUND_H
#define KILN_CUDA_GROUP_AROUND_H

#include "device/cuda/common/launch.h"

/* Whether the call's kernel has a group on either side of an operation that is no product. */
bool kiln_cuda_is_around(const kiln_cuda_call *c);

/* `kernel`: the operation's, which has KILN_CUDA_AROUND. */
size_t kiln_cuda_around_workspace(const kiln_cuda_call *c, const kiln_cuda_kernel *kernel);
bool kiln_cuda_around_launch(const kiln_cuda_call *c, const kiln_cuda_kernel *kernel);

/* What is generated for all of it, to be freed with kiln_free; NULL: nothing, or, with an error, there is no memory. */
char *kiln_cuda_around_text(const kiln_cuda_call *c, const kiln_cuda_kernel *kernel);

#endif
