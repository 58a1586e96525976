/* cuBLASLt: strided, batched products whose algorithm is chosen once for each shape. */
#ifndef KILN_CUDA_LT_H
#define KILN_CUDA_LT_H

#include "device/cuda/cuda.h"

/* c = a · b for each of `batch` matrices, c [m, n] and dense, a [m, k], b [k, n], each with one of its dims without
 * gaps: the last one, or, `turned`, the last but one. One matrix may be finished at once: a bias [n] is added to each
 * of its rows, then what is below 0 becomes 0. Strides in elements; `align` is what addresses are multiples of, in
 * bytes. Nothing but int64_t, so that two can be compared as bytes. */
typedef struct kiln_cuda_matrix {
    int64_t turned, ld, stride, align;
} kiln_cuda_matrix;
typedef struct kiln_cuda_product {
    int64_t dtype, tf32; /* f32 may be rounded to TF32: 0 or 1, and 0 for other dtypes */
    int64_t m, n, k, batch;
    kiln_cuda_matrix a, b;
    int64_t c_stride, c_align;
    int64_t bias; /* 0 or 1. Biases are aligned to KILN_CUDA_BIAS_ALIGN (epilogue.h) */
} kiln_cuda_product;

/* Whether the library has an algorithm for the product; it may lack one that finishes it. False with an error. */
bool kiln_cuda_lt_has(kiln_cuda_device *d, const kiln_cuda_product *p, bool *has);

/* Scratch bytes the product takes: always the same ones. False with an error. */
bool kiln_cuda_lt_bytes(kiln_cuda_device *d, const kiln_cuda_product *p, size_t *bytes);

/* Puts the product on the device's stream; bias: NULL for none. `bytes` is what the workspace has. */
bool kiln_cuda_lt_run(kiln_cuda_device *d, const kiln_cuda_product *p, const void *a, const void *b, const void *bias,
                      void *c, void *workspace, size_t bytes);

/* For closing a device. */
void kiln_cuda_lt_close(kiln_cuda_device *d);

#endif
