/* cuBLASLt: strided, batched products whose algorithm is chosen once for each shape. */
#ifndef KILN_CUDA_LT_H
#define KILN_CUDA_LT_H

#include "device/cuda/common/cuda.h"

enum { KILN_CUDA_LT_SCRATCH = 32 << 20 }; /* bytes for a product: what NVIDIA advises for Hopper */

/* c = a · b for each of `batch` matrices, c [m, n] and dense, a [m, k], b [k, n], each with one of its dims without
 * gaps: the last one, or, `turned`, the last but one. With one matrix a vector may take part, aligned to
 * KILN_CUDA_BIAS_ALIGN (epilogue.h): a bias [n] that is added to each of its rows, or the place for a sum. Strides in
 * elements; `align` is what addresses are multiples of, in bytes. Nothing but int64_t, so that two can be compared as
 * bytes. */
typedef struct kiln_cuda_matrix {
    int64_t turned, ld, stride, align;
} kiln_cuda_matrix;
typedef struct kiln_cuda_product {
    int64_t dtype, tf32; /* f32 may be rounded to TF32: 0 or 1, and 0 for other dtypes */
    int64_t m, n, k, batch;
    kiln_cuda_matrix a, b;
    int64_t c_stride, c_align;
    int64_t bias;    /* 0 or 1 */
    int64_t sum;     /* along k: KILN_CUDA_SUM_OF_A or _B (sums.h); 0: none. Not with a bias */
    int64_t scratch; /* bytes that it may take at most */
} kiln_cuda_product;

/* Whether the library has an algorithm for the product; it may lack one that finishes it. False with an error. */
bool kiln_cuda_lt_has(kiln_cuda_device *d, const kiln_cuda_product *p, bool *has);

/* Scratch bytes the product takes: always the same ones, and none where there is no algorithm. False with an error. */
bool kiln_cuda_lt_bytes(kiln_cuda_device *d, const kiln_cuda_product *p, size_t *bytes);

/* Puts the product on the device's stream; vector: the bias, or where the sum goes; NULL for neither. `bytes` is what
 * the workspace has. */
bool kiln_cuda_lt_run(kiln_cuda_device *d, const kiln_cuda_product *p, const void *a, const void *b, void *vector,
                      void *c, void *workspace, size_t bytes);

/* For closing a device. */
void kiln_cuda_lt_close(kiln_cuda_device *d);

#endif
