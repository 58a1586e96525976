/* Small kernels beside the libraries: gathering strided operands, and the products and convolutions the libraries
 * cannot be asked for. Where `stop` is not NULL nothing is written while *stop is not 0. */
#ifndef KILN_CUDA_COPY_H
#define KILN_CUDA_COPY_H

#include "device/cuda/common/launch.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { KILN_CUDA_GATHER_DIMS = KILN_MAX_DIMS };

/* `to`, dense, receives the window of `from` with these sizes and strides (in elements of `element` bytes: 2, 4, 8). */
typedef struct kiln_cuda_window {
    int ndim;
    int64_t shape[KILN_CUDA_GATHER_DIMS], stride[KILN_CUDA_GATHER_DIMS];
} kiln_cuda_window;
void kiln_cuda_gather(cudaStream_t stream, void *to, const void *from, size_t element, const kiln_cuda_window *window);

/* to[0 … bytes-1] = 0; elements of 2 bytes at least. */
void kiln_cuda_zero(cudaStream_t stream, void *to, size_t bytes, const int32_t *stop);

/* c = a · b, c [batch…, m, n] dense; an element a thread. Strides in elements, of the batch's dims first. */
typedef struct kiln_cuda_plain_product {
    int64_t m, n, k;
    int nbatch;
    int64_t batch[KILN_MAX_DIMS], a_batch[KILN_MAX_DIMS], b_batch[KILN_MAX_DIMS];
    int64_t a_row, a_col, b_row, b_col;
} kiln_cuda_plain_product;
void kiln_cuda_plain_matmul(cudaStream_t stream, kiln_dtype dtype, const kiln_cuda_plain_product *p, const void *a,
                            const void *b, void *c, const int32_t *stop);

/* x [batch, channels, height, width], w [outputs, channels / groups, kernel…], y [batch, outputs, out…]; pairs are
 * height, width. Nothing but int64_t, so that two can be compared as bytes. */
typedef enum kiln_cuda_conv_kind {
    KILN_CUDA_CONV_FORWARD,
    KILN_CUDA_CONV_INPUT_GRAD,
    KILN_CUDA_CONV_WEIGHT_GRAD
} kiln_cuda_conv_kind;
typedef struct kiln_cuda_conv {
    int64_t kind, dtype, tf32; /* f32 may be rounded to TF32: 0 or 1, and 0 for other dtypes */
    int64_t batch, channels, outputs, groups;
    int64_t size[2], kernel[2], out[2];
    int64_t stride[2], padding[2], dilation[2];
} kiln_cuda_conv;

/* The kind says which one is written; the others are only read. All have elements. */
typedef struct kiln_cuda_conv_data {
    void *x, *w, *y;
} kiln_cuda_conv_data;
void kiln_cuda_plain_conv(cudaStream_t stream, const kiln_cuda_conv *s, const kiln_cuda_conv_data *data,
                          const int32_t *stop);

/* The gradient of few weights: scratch bytes where the convolution is such a one, else 0; and making it. */
size_t kiln_cuda_few_weights_bytes(const kiln_cuda_conv *s);
void kiln_cuda_few_weights(cudaStream_t stream, const kiln_cuda_conv *s, const kiln_cuda_conv_data *data,
                           void *workspace);

#ifdef __cplusplus
}
#endif
#endif
