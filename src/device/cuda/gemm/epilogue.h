/* Groups that cuBLASLt can do at the end of a product, which then goes to its place at once instead of to the workspace
 * and through the group's kernel. Knows plans, and nothing of CUDA. */
#ifndef KILN_CUDA_EPILOGUE_H
#define KILN_CUDA_EPILOGUE_H

#include "plan/plan.h"

enum { KILN_CUDA_BIAS_ALIGN = 16 }; /* bytes that a bias's address is a multiple of: the library may read as many */

/* to = the product plus a bias. */
typedef struct kiln_cuda_epilogue {
    const kiln_operand *to;   /* NULL: there is no epilogue */
    const kiln_operand *bias; /* one element for each column of the product */
    int16_t added;            /* which instruction of the group that is */
    bool goes_on;             /* the group has others behind it */
} kiln_cuda_epilogue;

/* What the library is to do behind the product of kernel `k`, whose rows have n elements: where its group begins with a
 * bias, and what comes of that is stored in any case. No epilogue otherwise. Looks at shapes, dtypes and offsets alone:
 * the same before and after buffers have their places. */
kiln_cuda_epilogue kiln_cuda_epilogue_of(const kiln_kernel *k, int64_t n);

/* What is left of a group that goes on, whose head is the sum then; with `stored` it still stores that itself. To be
 * freed with kiln_free; NULL when there is no memory. */
kiln_group *kiln_cuda_epilogue_rest(const kiln_kernel *k, const kiln_cuda_epilogue *e, bool stored);

#endif
