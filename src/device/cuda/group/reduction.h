/* What a kernel knows of a reduction. Read by C, by CUDA sources and by generated kernels, which bring the integer
 * types along. */
#ifndef KILN_CUDA_REDUCTION_H
#define KILN_CUDA_REDUCTION_H

#ifndef __CUDACC_RTC__
#include <stdint.h>
#endif

enum { /* what is left of a group's result in its dtype */
       KILN_CUDA_AS_IS,
       KILN_CUDA_WRAP_U8,
       KILN_CUDA_WRAP_I32,
       KILN_CUDA_ROUND_F16,
       KILN_CUDA_ROUND_BF16
};

/* The dtype of a load: an i64 of which only matters whether it is 0. */
enum { KILN_CUDA_NOT_ZERO = 64 };

/* The elements of a reduction are walked as [outer, reduced, inner]. The reduced dim is cut into `chunks` of `chunk`;
 * where there are several, partial results [outer, chunks, inner], eight bytes each, are combined by a second kernel.
 */
typedef struct kiln_cuda_reduction {
    int64_t outer, reduced, inner, chunk, chunks;
    uint16_t src;       /* register */
    uint8_t cls, fold;  /* kiln_pw_class, kiln_fold */
    uint8_t dtype;      /* of the result */
    int32_t lanes;      /* rows (inner is 1): threads that share one; columns: threads side by side in a block */
    int32_t threads;    /* in a block */
    uint64_t *partials; /* NULL when there is one chunk */
    void *to;
    const int32_t *stop;
} kiln_cuda_reduction;

/* Threads that combine partial results in a block, and the columns they share. */
enum { KILN_CUDA_COMBINE = 256, KILN_CUDA_COMBINED = 32 };

#endif
