/* What the implementations of convolution share: the shape of the problem, and where its arrays are. conv_columns.c
 * makes matrix products of any; conv_direct.c is for few channels; conv_pairs.c and conv_pairs_weight.c are for bf16 on
 * processors that multiply pairs of them; conv_dnnl.c hands the work to oneDNN where it was found and takes the shape.
 * conv.c chooses. All compute in f32 what is stored in 16 bits. */
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
    bool handed_over; /* there is a `finish`, as there always is in 16 bits */
} kiln_conv;

/* The three arrays; the kind says which one is made: stored, unless `finish` gets it. */
typedef struct kiln_conv_data {
    void *x, *w, *y;
    kiln_cpu_finish *finish;
    void *context;
} kiln_conv_data;

/* Whether the direct kernels take the shape and are the fastest. */
bool kiln_conv_direct_takes(const kiln_conv *shape);
size_t kiln_conv_direct_workspace(const kiln_conv *shape);
void kiln_conv_direct_run(const kiln_conv *shape, const kiln_conv_data *data, void *workspace);

/* The same for bf16 as pairs. */
bool kiln_conv_pairs_takes(const kiln_conv *shape);
size_t kiln_conv_pairs_workspace(const kiln_conv *shape);
void kiln_conv_pairs_run(const kiln_conv *shape, const kiln_conv_data *data, void *workspace);
size_t kiln_conv_pairs_weight_workspace(const kiln_conv *shape); /* for the weight's gradient */
void kiln_conv_pairs_weight_run(const kiln_conv *shape, const kiln_conv_data *data, void *workspace);

/* Takes all shapes. */
size_t kiln_conv_columns_workspace(const kiln_conv *shape);
void kiln_conv_columns_run(const kiln_conv *shape, const kiln_conv_data *data, void *workspace);

/* NULL where oneDNN is not there or refuses; it is made of columns then. */
void *kiln_conv_dnnl_new(const kiln_conv *shape);
size_t kiln_conv_dnnl_workspace(const kiln_conv *shape); /* bytes a run needs; 0 where it refuses */
/* The workspace must suffice for columns too, which take over if oneDNN fails. */
void kiln_conv_dnnl_run(void *state, const kiln_conv_data *data, void *workspace);
void kiln_conv_dnnl_free(void *state);

static inline bool kiln_conv_is_half(const kiln_conv *c)
{
    return c->dtype == KILN_F16 || c->dtype == KILN_BF16;
}

#endif
