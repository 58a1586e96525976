/* What the implementations of convolution share: the shape of the problem. conv.c is the plain one, made of matrix
 * products, and chooses; conv_direct.c is for few channels; conv_dnnl.c hands the work to oneDNN where it was found and
 * takes the shape. */
#ifndef KILN_CPU_CONV_H
#define KILN_CPU_CONV_H

#include "device/cpu/common/call.h"

typedef enum kiln_conv_kind { KILN_CONV_FORWARD, KILN_CONV_INPUT_GRAD, KILN_CONV_WEIGHT_GRAD } kiln_conv_kind;

/* x [batch, channels, height, width], w [outputs, channels / groups, kernel…], y [batch, outputs, out…]. Pairs are
 * height, width. */
typedef struct kiln_conv {
    kiln_conv_kind kind;
    kiln_dtype dtype;
    int64_t batch, channels, outputs, groups;
    int64_t size[2], kernel[2], out[2];
    int64_t stride[2], padding[2], dilation[2];
} kiln_conv;

/* The three arrays; the kind says which one is written. */
typedef struct kiln_conv_data {
    void *x, *w, *y;
} kiln_conv_data;

/* Whether the direct kernels take the shape and are the fastest; if so, the others are not asked. */
bool kiln_conv_direct_takes(const kiln_conv *shape);
size_t kiln_conv_direct_workspace(const kiln_conv *shape);
void kiln_conv_direct_run(const kiln_conv *shape, const kiln_conv_data *data, void *workspace);

/* NULL where oneDNN is not there or refuses; the plain kernels do it then. */
void *kiln_conv_dnnl_new(const kiln_conv *shape);
size_t kiln_conv_dnnl_workspace(const kiln_conv *shape); /* bytes a run needs; 0 where it refuses */
bool kiln_conv_dnnl_run(void *state, const kiln_conv_data *data, void *workspace); /* false: nothing was computed */
void kiln_conv_dnnl_free(void *state);

#endif
