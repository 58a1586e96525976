/* Convolution and pooling of integers, for which no device has kernels. */
#ifndef KILN_OPS_INTEGER_WINDOWS_H
#define KILN_OPS_INTEGER_WINDOWS_H

#include "ops/op.h"

/* How windows lie on the two axes of a plane. */
typedef struct kiln_window {
    int64_t kernel[2], stride[2], padding[2], dilation[2], out[2];
} kiln_window;

/* Compositions of `convolution` and `convolution_input_grad`, of max_pool and avg_pool (whose mean is cut off like a
 * quotient of integers in C). x or gy is [batch, channels, height, width]. */
kiln_tensor *kiln_windows_convolve(kiln_tensor *x, kiln_tensor *w, const kiln_window *by, int64_t groups);
kiln_tensor *kiln_windows_convolve_back(kiln_tensor *gy, kiln_tensor *w, const kiln_window *by, int64_t groups,
                                        const int64_t *size);
bool kiln_windows_maximum(kiln_tensor *x, const kiln_window *by, kiln_tensor **values, kiln_tensor **indices);
kiln_tensor *kiln_windows_mean(kiln_tensor *x, const kiln_window *by, bool include_pad);

#endif
