/* Convolution. Three nodes, all over [batch, channels, height, width], make a family closed under differentiation:
 *   y  = convolution(x, w)               y[n,o] = sum over c, u, v of w[o,c,u,v] · x[n,c](stride·i + dilation·u -
 * padding) gx = convolution_input_grad(gy, w)   the adjoint in x: also the transposed convolution gw =
 * convolution_weight_grad(gy, x)  the adjoint in w Each is linear in both operands, so the gradient of any is made of
 * the other two. The public operations are compositions that add defaults, the bias, and dims for 1-d and unbatched
 * input. */
#include "core/counts.h"
#include "core/sized.h"
#include "ops/integer_windows.h"

#include <string.h>

enum { STRIDE, PADDING = 2, DILATION = 4, GROUPS = 6, SIZE = 7, WINDOW_INTS = 7 }; /* integers of the nodes */

#define CONV_ATTRS "stride_h stride_w padding_h padding_w dilation_h dilation_w groups"

extern const kiln_op kiln_op_convolution, kiln_op_convolution_input_grad, kiln_op_convolution_weight_grad,
    kiln_op_conv1d, kiln_op_conv2d, kiln_op_conv_transpose1d, kiln_op_conv_transpose2d;

/* ---- Checks ---- */

static const char *shape_of(const kiln_tensor *t)
{
    return kiln_shape_text(t->ndim, t->shape);
}

/* A shape as the caller knows it: the public operations compute with 4-d ones that may have been made up. */
static const char *x_text(const kiln_call *c, const int64_t *shape)
{
    return c->op->cls == KILN_CLASS_COMPOSITE ? shape_of(c->in[0]) : kiln_shape_text(4, shape);
}

static const char *w_text(const kiln_call *c, const int64_t *shape)
{
    return c->op->cls == KILN_CLASS_COMPOSITE ? shape_of(c->in[1]) : kiln_shape_text(4, shape);
}

/* Sizes that windows are computed from stay below 2^31, so that the arithmetic on them cannot overflow. */
static bool check_window(const kiln_call *c, const int64_t *ints)
{
    for (int axis = 0; axis < 2; axis++) {
        int64_t stride = ints[STRIDE + axis], padding = ints[PADDING + axis], dilation = ints[DILATION + axis];
        if (!kiln_check_attr(c, stride >= 1 && stride <= INT32_MAX, "stride is %lld; it must be at least 1",
                             (long long)stride) ||
            !kiln_check_attr(c, padding >= 0 && padding <= INT32_MAX, "padding is %lld; it must not be negative",
                             (long long)padding) ||
            !kiln_check_attr(c, dilation >= 1 && dilation <= INT32_MAX, "dilation is %lld; it must be at least 1",
                             (long long)dilation))
            return false;
    }
    return kiln_check_attr(c, ints[GROUPS] >= 1, "groups is %lld; it must be at least 1", (long long)ints[GROUPS]);
}

static bool check_extents(const kiln_call *c, int operand, int first)
{
    const kiln_tensor *t = c->in[operand];
    for (int d = first; d < t->ndim; d++)
        if (t->shape[d] > INT32_MAX)
            return kiln_fail(KILN_E_SHAPE, c->op->name, "dim %d of operand %d, of shape %s, is larger than 2^31 - 1", d,
                             operand + 1, shape_of(t));
    return true;
}

/* Windows that fit along an axis; 0 or less when the kernel is larger than the padded input. */
static int64_t output_size(const int64_t *ints, int axis, int64_t size, int64_t kernel)
{
    int64_t room = size + 2 * ints[PADDING + axis] - ints[DILATION + axis] * (kernel - 1) - 1;
    return room < 0 ? 0 : room / ints[STRIDE + axis] + 1;
}

/* The sizes of an output, with the error for kernels that do not fit. x_shape and w_shape are 4-d. */
static bool output_sizes(const kiln_call *c, const int64_t *ints, const int64_t *x_shape, const int64_t *w_shape,
                         int64_t *sizes)
{
    for (int axis = 0; axis < 2; axis++) {
        int64_t size = x_shape[2 + axis], kernel = w_shape[2 + axis];
        if (kernel < 1)
            return kiln_fail(KILN_E_SHAPE, c->op->name, "weight %s has a kernel without elements", w_text(c, w_shape));
        sizes[axis] = output_size(ints, axis, size, kernel);
        if (sizes[axis] >= 1)
            continue;
        long long reach = (long long)(ints[DILATION + axis] * (kernel - 1) + 1);
        kiln_fail(KILN_E_SHAPE, c->op->name,
                  "the kernel spans %lld along the %s, more than the padded input's %lld: input %s, weight %s, padding "
                  "%lld, dilation %lld",
                  reach, axis ? "width" : "height", (long long)(size + 2 * ints[PADDING + axis]), x_text(c, x_shape),
                  w_text(c, w_shape), (long long)ints[PADDING + axis], (long long)ints[DILATION + axis]);
        return kiln_hint("use a smaller kernel or dilation, or more padding");
    }
    return true;
}

static bool check_channels(const kiln_call *c, const int64_t *x_shape, const int64_t *w_shape, int64_t groups)
{
    if (w_shape[0] % groups) {
        kiln_fail(KILN_E_SHAPE, c->op->name, "weight %s has %lld output channels, which %lld groups do not divide",
                  w_text(c, w_shape), (long long)w_shape[0], (long long)groups);
        return false;
    }
    int64_t channels;
    if (!__builtin_mul_overflow(w_shape[1], groups, &channels) && channels == x_shape[1])
        return true;
    kiln_fail(KILN_E_SHAPE, c->op->name,
              "input %s has %lld channels, but weight %s takes %lld channels in each of %lld groups",
              x_text(c, x_shape), (long long)x_shape[1], w_text(c, w_shape), (long long)w_shape[1], (long long)groups);
    return kiln_hint("weight is [out_channels, in_channels / groups, kernel height, kernel width]");
}

/* What the three nodes check alike: two 4-d operands of one dtype, the integers they share. */
static bool check_node(kiln_call *c, int nints)
{
    return kiln_check_attr(c, c->attrs.nints == nints, "takes %d integers, not %d", nints, c->attrs.nints) &&
           kiln_check_ndim(c, 0, 4, 4) && kiln_check_ndim(c, 1, 4, 4) && kiln_check_same_dtype(c, 0, 1) &&
           check_window(c, c->attrs.i) && check_extents(c, 0, 0) && check_extents(c, 1, 0);
}

static bool convolution_infer(kiln_call *c)
{
    if (!check_node(c, WINDOW_INTS))
        return false;
    const int64_t *x = c->in[0]->shape, *w = c->in[1]->shape, *ints = c->attrs.i;
    int64_t sizes[2];
    if (!check_channels(c, x, w, ints[GROUPS]) || !output_sizes(c, ints, x, w, sizes))
        return false;
    kiln_desc_set(&c->out[0], c->in[0]->dtype, 4, (int64_t[]){x[0], w[0], sizes[0], sizes[1]});
    return true;
}

/* Whether gy is what convolution(x, w) would give. */
static bool check_output(const kiln_call *c, const int64_t *gy, const int64_t *x, const int64_t *w)
{
    int64_t sizes[2];
    if (!check_channels(c, x, w, c->attrs.i[GROUPS]) || !output_sizes(c, c->attrs.i, x, w, sizes))
        return false;
    int64_t expected[4] = {x[0], w[0], sizes[0], sizes[1]};
    for (int d = 0; d < 4; d++)
        if (gy[d] != expected[d])
            return kiln_fail(KILN_E_SHAPE, c->op->name,
                             "the gradient is %s, but an input of %s with a weight of %s gives an output of %s",
                             kiln_shape_text(4, gy), kiln_shape_text(4, x), kiln_shape_text(4, w),
                             kiln_shape_text(4, expected));
    return true;
}

static bool check_sizes(const kiln_call *c)
{
    const int64_t *size = c->attrs.i + SIZE;
    return kiln_check_attr(c, size[0] >= 0 && size[1] >= 0 && size[0] <= INT32_MAX && size[1] <= INT32_MAX,
                           "cannot make a result of height %lld and width %lld", (long long)size[0],
                           (long long)size[1]);
}

static bool convolution_input_grad_infer(kiln_call *c)
{
    if (!check_node(c, WINDOW_INTS + 2) || !check_sizes(c))
        return false;
    const int64_t *gy = c->in[0]->shape, *w = c->in[1]->shape, *ints = c->attrs.i;
    int64_t channels;
    if (__builtin_mul_overflow(w[1], ints[GROUPS], &channels) || channels > INT32_MAX)
        return kiln_fail(KILN_E_SHAPE, c->op->name, "weight %s in %lld groups has too many channels",
                         shape_of(c->in[1]), (long long)ints[GROUPS]);
    int64_t x[4] = {gy[0], channels, ints[SIZE], ints[SIZE + 1]};
    if (!check_output(c, gy, x, w))
        return false;
    kiln_desc_set(&c->out[0], c->in[0]->dtype, 4, x);
    return true;
}

static bool convolution_weight_grad_infer(kiln_call *c)
{
    if (!check_node(c, WINDOW_INTS + 2) || !check_sizes(c))
        return false;
    const int64_t *gy = c->in[0]->shape, *x = c->in[1]->shape, *ints = c->attrs.i;
    if (x[1] % ints[GROUPS])
        return kiln_fail(KILN_E_SHAPE, c->op->name, "input %s has %lld channels, which %lld groups do not divide",
                         shape_of(c->in[1]), (long long)x[1], (long long)ints[GROUPS]);
    int64_t w[4] = {gy[1], x[1] / ints[GROUPS], ints[SIZE], ints[SIZE + 1]};
    if (!check_output(c, gy, x, w))
        return false;
    kiln_desc_set(&c->out[0], c->in[0]->dtype, 4, w);
    return true;
}

/* ---- Integers ---- */

static kiln_window window_of(const int64_t *ints, const int64_t *w, const int64_t *out)
{
    kiln_window by = {.out = {out[2], out[3]}};
    for (int axis = 0; axis < 2; axis++) {
        by.kernel[axis] = w[2 + axis];
        by.stride[axis] = ints[STRIDE + axis];
        by.padding[axis] = ints[PADDING + axis];
        by.dilation[axis] = ints[DILATION + axis];
    }
    return by;
}

static bool convolution_compose(kiln_call *c, kiln_tensor **out)
{
    kiln_window by = window_of(c->attrs.i, c->in[1]->shape, c->out[0].shape);
    return (out[0] = kiln_windows_convolve(c->in[0], c->in[1], &by, c->attrs.i[GROUPS])) != NULL;
}

static bool convolution_input_grad_compose(kiln_call *c, kiln_tensor **out)
{
    const int64_t *ints = c->attrs.i;
    kiln_window by = window_of(ints, c->in[1]->shape, c->in[0]->shape);
    return (out[0] = kiln_windows_convolve_back(c->in[0], c->in[1], &by, ints[GROUPS], ints + SIZE)) != NULL;
}

/* ---- Gradients ---- */

static kiln_tensor *convolve(kiln_tensor *x, kiln_tensor *w, const int64_t *window)
{
    kiln_attrs attrs = {.nints = WINDOW_INTS};
    memcpy(attrs.i, window, WINDOW_INTS * sizeof *window);
    return KILN_OP(convolution, KILN_IN(x, w), &attrs);
}

/* The adjoints; `size` holds the height and width of what comes out. */
static kiln_tensor *adjoint(const kiln_op *op, kiln_tensor *gy, kiln_tensor *other, const int64_t *window,
                            const int64_t *size)
{
    kiln_attrs attrs = {.nints = WINDOW_INTS + 2};
    memcpy(attrs.i, window, WINDOW_INTS * sizeof *window);
    memcpy(attrs.i + SIZE, size, 2 * sizeof *size);
    return kiln_op_one(op, KILN_IN(gy, other), &attrs);
}

static kiln_tensor *input_grad(kiln_tensor *gy, kiln_tensor *w, const int64_t *window, const int64_t *size)
{
    return adjoint(&kiln_op_convolution_input_grad, gy, w, window, size);
}

static kiln_tensor *weight_grad(kiln_tensor *gy, kiln_tensor *x, const int64_t *window, const int64_t *size)
{
    return adjoint(&kiln_op_convolution_weight_grad, gy, x, window, size);
}

static bool made_all(const kiln_grad_call *g)
{
    for (int i = 0; i < g->nin; i++)
        if (g->need[i] && !g->gin[i])
            return false;
    return true;
}

static bool convolution_grad(kiln_grad_call *g)
{
    const int64_t *window = g->attrs->i;
    kiln_tensor *x = g->in[0], *w = g->in[1], *gy = g->gout[0];
    if (g->need[0])
        g->gin[0] = input_grad(gy, w, window, x->shape + 2);
    if (g->need[1])
        g->gin[1] = weight_grad(gy, x, window, w->shape + 2);
    return made_all(g);
}

static bool convolution_input_grad_grad(kiln_grad_call *g)
{
    const int64_t *window = g->attrs->i;
    kiln_tensor *gy = g->in[0], *w = g->in[1], *grad = g->gout[0];
    if (g->need[0])
        g->gin[0] = convolve(grad, w, window);
    if (g->need[1])
        g->gin[1] = weight_grad(gy, grad, window, w->shape + 2);
    return made_all(g);
}

static bool convolution_weight_grad_grad(kiln_grad_call *g)
{
    const int64_t *window = g->attrs->i;
    kiln_tensor *gy = g->in[0], *x = g->in[1], *grad = g->gout[0];
    if (g->need[0])
        g->gin[0] = convolve(x, grad, window);
    if (g->need[1])
        g->gin[1] = input_grad(gy, grad, window, x->shape + 2);
    return made_all(g);
}

/* ---- The public operations. Their geometry is brought to that of the nodes first: 4-d shapes, integers for both
 * axes; a 1-d convolution is a 2-d one of height 1. ---- */

typedef struct geometry {
    int64_t x[4], w[4];
    int64_t window[WINDOW_INTS], extra[2]; /* extra: output padding of the transposed ones */
    bool flat, single;                     /* 1-d; without a batch dim */
} geometry;

/* The integers of the public operations, in the order of their attributes. */
enum { CONV1D_INTS = 4, CONV2D_INTS = 7, TRANSPOSE1D_INTS = 5, TRANSPOSE2D_INTS = 9 };

static void defaults(kiln_attrs *a, const char *ones)
{
    for (int i = 0; i < a->nints; i++)
        if (ones[i] == '1' && a->i[i] == 0)
            a->i[i] = 1;
}

static bool read_shapes(const kiln_call *c, bool flat, geometry *g)
{
    const kiln_tensor *x = c->in[0], *w = c->in[1];
    int full = flat ? 3 : 4;
    if (!kiln_check_ndim(c, 0, full - 1, full) || !kiln_check_ndim(c, 1, full, full) ||
        !kiln_check_same_dtype(c, 0, 1) || !check_extents(c, 0, 0) || !check_extents(c, 1, 0))
        return false;
    g->flat = flat;
    g->single = x->ndim == full - 1;
    const int64_t *channels = x->shape + !g->single;
    memcpy(g->x, (int64_t[]){g->single ? 1 : x->shape[0], channels[0], flat ? 1 : channels[1], channels[2 - flat]},
           sizeof g->x);
    memcpy(g->w, (int64_t[]){w->shape[0], w->shape[1], flat ? 1 : w->shape[2], w->shape[3 - flat]}, sizeof g->w);
    return true;
}

static bool read_conv(kiln_call *c, bool flat, geometry *g)
{
    const int64_t *i = c->attrs.i;
    int wanted = flat ? CONV1D_INTS : CONV2D_INTS;
    if (!kiln_check_attr(c, c->attrs.nints == wanted, "takes %d integers, not %d", wanted, c->attrs.nints))
        return false;
    defaults(&c->attrs, flat ? "1011" : "1100111");
    if (flat)
        memcpy(g->window, (int64_t[]){1, i[0], 0, i[1], 1, i[2], i[3]}, sizeof g->window);
    else
        memcpy(g->window, i, sizeof g->window);
    return check_window(c, g->window) && read_shapes(c, flat, g);
}

static bool read_transpose(kiln_call *c, bool flat, geometry *g)
{
    const int64_t *i = c->attrs.i;
    int wanted = flat ? TRANSPOSE1D_INTS : TRANSPOSE2D_INTS;
    if (!kiln_check_attr(c, c->attrs.nints == wanted, "takes %d integers, not %d", wanted, c->attrs.nints))
        return false;
    defaults(&c->attrs, flat ? "10011" : "110000111");
    int64_t flat_window[WINDOW_INTS] = {1, i[0], 0, i[1], 1, i[4], i[3]};
    int64_t window[WINDOW_INTS] = {i[0], i[1], i[2], i[3], i[6], i[7], i[8]};
    memcpy(g->window, flat ? flat_window : window, sizeof g->window);
    g->extra[0] = flat ? 0 : i[4];
    g->extra[1] = flat ? i[2] : i[5];
    if (!check_window(c, g->window) || !read_shapes(c, flat, g))
        return false;
    for (int axis = 0; axis < 2; axis++) {
        int64_t stride = g->window[STRIDE + axis], dilation = g->window[DILATION + axis], extra = g->extra[axis];
        if (!kiln_check_attr(c, extra >= 0 && (extra < stride || extra < dilation),
                             "output_padding is %lld; it must be below the stride (%lld) or the dilation (%lld)",
                             (long long)extra, (long long)stride, (long long)dilation))
            return false;
    }
    return true;
}

/* Describes the result from its 4-d shape, and checks the bias against its channels. */
static bool describe_result(kiln_call *c, const geometry *g, const int64_t *y)
{
    const kiln_tensor *bias = c->nin > 2 ? c->in[2] : NULL;
    if (bias) {
        if (!kiln_check_same_dtype(c, 0, 2))
            return false;
        if (bias->ndim != 1 || bias->shape[0] != y[1])
            return kiln_fail(KILN_E_SHAPE, c->op->name, "bias is %s, but there are %lld output channels: weight %s",
                             shape_of(bias), (long long)y[1], shape_of(c->in[1]));
    }
    int64_t shape[4];
    int n = 0;
    for (int d = g->single; d < 4; d++)
        if (!(d == 2 && g->flat))
            shape[n++] = y[d];
    kiln_desc_set(&c->out[0], c->in[0]->dtype, n, shape);
    return true;
}

static bool infer_conv(kiln_call *c, bool flat)
{
    geometry g;
    int64_t sizes[2];
    if (!read_conv(c, flat, &g) || !check_channels(c, g.x, g.w, g.window[GROUPS]) ||
        !output_sizes(c, g.window, g.x, g.w, sizes))
        return false;
    return describe_result(c, &g, (int64_t[]){g.x[0], g.w[0], sizes[0], sizes[1]});
}

static bool transpose_sizes(const kiln_call *c, const geometry *g, int64_t *sizes)
{
    for (int axis = 0; axis < 2; axis++) {
        int64_t size = g->x[2 + axis], kernel = g->w[2 + axis];
        int64_t stride = g->window[STRIDE + axis], padding = g->window[PADDING + axis];
        sizes[axis] =
            (size - 1) * stride - 2 * padding + g->window[DILATION + axis] * (kernel - 1) + g->extra[axis] + 1;
        if (size < 1 || kernel < 1 || sizes[axis] < 1 || sizes[axis] > INT32_MAX)
            return kiln_fail(KILN_E_SHAPE, c->op->name,
                             "the output would have a %s of %lld: input %s, weight %s, stride %lld, padding %lld",
                             axis ? "width" : "height", (long long)sizes[axis], shape_of(c->in[0]), shape_of(c->in[1]),
                             (long long)stride, (long long)padding);
    }
    return true;
}

static bool infer_transpose(kiln_call *c, bool flat)
{
    geometry g;
    int64_t sizes[2];
    if (!read_transpose(c, flat, &g))
        return false;
    int64_t groups = g.window[GROUPS], channels;
    if (g.x[1] != g.w[0] || g.w[0] % groups) {
        kiln_fail(KILN_E_SHAPE, c->op->name, "input %s has %lld channels and weight %s takes %lld, in %lld groups",
                  shape_of(c->in[0]), (long long)g.x[1], shape_of(c->in[1]), (long long)g.w[0], (long long)groups);
        return kiln_hint("weight is [in_channels, out_channels / groups, kernel…]; groups divide both numbers of "
                         "channels");
    }
    if (__builtin_mul_overflow(g.w[1], groups, &channels) || channels > INT32_MAX)
        return kiln_fail(KILN_E_SHAPE, c->op->name, "weight %s in %lld groups makes too many channels",
                         shape_of(c->in[1]), (long long)groups);
    return transpose_sizes(c, &g, sizes) && describe_result(c, &g, (int64_t[]){g.x[0], channels, sizes[0], sizes[1]});
}

/* x and w with the dims the nodes want. */
static kiln_tensor *lift(kiln_tensor *t, bool flat, bool single)
{
    if (single)
        t = kiln_unsqueeze(t, 0);
    return flat ? kiln_unsqueeze(t, 2) : t;
}

/* Bias added, and the dims given back. */
static bool finish(const kiln_call *c, const geometry *g, kiln_tensor *y, kiln_tensor **out)
{
    if (c->nin > 2 && c->in[2])
        y = kiln_add(y, kiln_reshape(c->in[2], KILN_SHAPE(-1, 1, 1)));
    if (g->flat)
        y = kiln_squeeze(y, 2);
    if (g->single)
        y = kiln_squeeze(y, 0);
    out[0] = y;
    return y != NULL;
}

static bool compose_conv(kiln_call *c, bool flat, kiln_tensor **out)
{
    geometry g;
    if (!read_conv(c, flat, &g))
        return false;
    kiln_tensor *y = convolve(lift(c->in[0], flat, g.single), lift(c->in[1], flat, false), g.window);
    return finish(c, &g, y, out);
}

static bool compose_transpose(kiln_call *c, bool flat, kiln_tensor **out)
{
    geometry g;
    int64_t sizes[2], missing[2];
    if (!read_transpose(c, flat, &g) || !transpose_sizes(c, &g, sizes))
        return false;
    kiln_tensor *x = lift(c->in[0], flat, g.single);
    /* With an output padding of a stride or more, a convolution of the output has more windows than x has elements:
     * zeros stand for these. */
    for (int axis = 0; axis < 2; axis++)
        missing[axis] = output_size(g.window, axis, sizes[axis], g.w[2 + axis]) - g.x[2 + axis];
    if (missing[0] || missing[1])
        x = kiln_pad(x, 4, (int64_t[]){0, missing[1], 0, missing[0]}, KILN_PAD_CONSTANT, 0);
    kiln_tensor *y = input_grad(x, lift(c->in[1], flat, false), g.window, sizes);
    return finish(c, &g, y, out);
}

#define PUBLIC(name, kind, flat)                                                                                       \
    static bool name##_infer(kiln_call *c)                                                                             \
    {                                                                                                                  \
        return infer_##kind(c, flat);                                                                                  \
    }                                                                                                                  \
    static bool name##_compose(kiln_call *c, kiln_tensor **out)                                                        \
    {                                                                                                                  \
        return compose_##kind(c, flat, out);                                                                           \
    }
PUBLIC(conv1d, conv, true)
PUBLIC(conv2d, conv, false)
PUBLIC(conv_transpose1d, transpose, true)
PUBLIC(conv_transpose2d, transpose, false)

/* Where an option list takes 0 for the default, an argument that must be given may not be 0. */
static bool are_given(const char *op, int64_t stride, int64_t dilation, int64_t groups)
{
    if (stride && dilation && groups)
        return true;
    return kiln_fail(KILN_E_ARGUMENT, op, "stride is %lld, dilation %lld, groups %lld: each must be at least 1",
                     (long long)stride, (long long)dilation, (long long)groups);
}

kiln_tensor *kiln_conv1d(kiln_tensor *x, kiln_tensor *weight, kiln_tensor *bias, int64_t stride, int64_t padding,
                         int64_t dilation, int64_t groups)
{
    if (!are_given("conv1d", stride, dilation, groups))
        return NULL;
    return KILN_OP(conv1d, KILN_IN(x, weight, bias), KILN_I(stride, padding, dilation, groups));
}

kiln_tensor *kiln_conv2d_(kiln_tensor *x, kiln_tensor *weight, kiln_tensor *bias, const kiln_conv_options *given)
{
    kiln_conv_options o;
    if (!KILN_TAKE_OPTIONS("conv2d", o, given))
        return NULL;
    return KILN_OP(
        conv2d, KILN_IN(x, weight, bias),
        KILN_I(o.stride[0], o.stride[1], o.padding[0], o.padding[1], o.dilation[0], o.dilation[1], o.groups));
}

kiln_tensor *kiln_conv_transpose1d(kiln_tensor *x, kiln_tensor *weight, kiln_tensor *bias, int64_t stride,
                                   int64_t padding, int64_t output_padding, int64_t groups, int64_t dilation)
{
    if (!are_given("conv_transpose1d", stride, dilation, groups))
        return NULL;
    return KILN_OP(conv_transpose1d, KILN_IN(x, weight, bias),
                   KILN_I(stride, padding, output_padding, groups, dilation));
}

kiln_tensor *kiln_conv_transpose2d_(kiln_tensor *x, kiln_tensor *weight, kiln_tensor *bias,
                                    const kiln_conv_options *given)
{
    kiln_conv_options o;
    if (!KILN_TAKE_OPTIONS("conv_transpose2d", o, given))
        return NULL;
    return KILN_OP(conv_transpose2d, KILN_IN(x, weight, bias),
                   KILN_I(o.stride[0], o.stride[1], o.padding[0], o.padding[1], o.output_padding[0],
                          o.output_padding[1], o.dilation[0], o.dilation[1], o.groups));
}

/* ---- Records ---- */

/* An output pixel of an image takes as many multiply-adds as there are weights. */
static int64_t conv_flops(const kiln_work_shape *y, int64_t weights)
{
    int64_t places = kiln_times(y->shape[0], kiln_times(y->shape[2], y->shape[3]));
    return kiln_times(kiln_times(2, places), weights);
}

static int64_t convolution_flops(const kiln_work *w)
{
    const kiln_work_shape *weight = &w->in[1];
    int64_t taps = kiln_times(weight->shape[2], weight->shape[3]);
    return kiln_times(kiln_times(2, w->results), kiln_times(weight->shape[1], taps));
}

static int64_t convolution_input_grad_flops(const kiln_work *w)
{
    return conv_flops(&w->in[0], kiln_count(w->in[1].ndim, w->in[1].shape));
}

static int64_t convolution_weight_grad_flops(const kiln_work *w)
{
    return conv_flops(&w->in[0], w->results);
}

const kiln_op kiln_op_convolution = {
    .name = "convolution",
    .attrs = CONV_ATTRS,
    .cls = KILN_CLASS_CONV,
    .autocast = KILN_CAST_LOWER,
    .dtypes = KILN_T_NUMBERS,
    .min_in = 2,
    .max_in = 2,
    .infer = convolution_infer,
    .compose = convolution_compose,
    .grad_reads = {KILN_READS_Y, KILN_READS_X},
    .grad = convolution_grad,
    .flops = convolution_flops,
    .cases = KILN_CASES{"x[2,3,5,6] x[4,3,3,2] | 1 1 0 0 1 1 1", "x[2,4,7,6] x[6,2,3,3] | 2 1 1 2 1 2 2",
                        "x[1,3,4,4] x[3,1,3,3] | 1 1 1 1 1 1 3", "x[3,2,1,9] x[5,2,1,4] | 1 2 0 3 1 2 1",
                        "x[1,2,4,5] x[3,2,1,1] | 1 1 0 0 1 1 1", "x[0,2,4,4] x[3,2,3,3] | 1 1 1 1 1 1 1", NULL},
};

const kiln_op kiln_op_convolution_input_grad = {
    .name = "convolution_input_grad",
    .attrs = CONV_ATTRS " height width",
    .cls = KILN_CLASS_CONV,
    .dtypes = KILN_T_NUMBERS,
    .min_in = 2,
    .max_in = 2,
    .infer = convolution_input_grad_infer,
    .compose = convolution_input_grad_compose,
    .grad_reads = {KILN_READS_Y, KILN_READS_X},
    .grad = convolution_input_grad_grad,
    .flops = convolution_input_grad_flops,
    .cases = KILN_CASES{"x[2,4,3,5] x[4,3,3,2] | 1 1 0 0 1 1 1 5 6", "x[2,6,4,6] x[6,2,3,3] | 2 1 1 2 1 2 2 7 6",
                        "x[1,3,4,4] x[3,1,3,3] | 1 1 1 1 1 1 3 4 4", "x[2,3,2,2] x[3,2,3,3] | 3 2 0 1 1 1 1 7 4",
                        "x[0,3,4,4] x[3,2,3,3] | 1 1 1 1 1 1 1 4 4", NULL},
};

const kiln_op kiln_op_convolution_weight_grad = {
    .name = "convolution_weight_grad",
    .attrs = CONV_ATTRS " kernel_h kernel_w",
    .cls = KILN_CLASS_CONV,
    .dtypes = KILN_T_FLOATS,
    .min_in = 2,
    .max_in = 2,
    .infer = convolution_weight_grad_infer,
    .grad_reads = {KILN_READS_Y, KILN_READS_X},
    .grad = convolution_weight_grad_grad,
    .flops = convolution_weight_grad_flops,
    .cases = KILN_CASES{"x[2,4,3,5] x[2,3,5,6] | 1 1 0 0 1 1 1 3 2", "x[2,6,4,6] x[2,4,7,6] | 2 1 1 2 1 2 2 3 3",
                        "x[1,3,4,4] x[1,3,4,4] | 1 1 1 1 1 1 3 3 3", "x[9,2,3,3] x[9,1,3,3] | 1 1 1 1 1 1 1 3 3",
                        "x[0,3,4,4] x[0,2,4,4] | 1 1 1 1 1 1 1 3 3", NULL},
};

#define PUBLIC_RECORD(op, node, names, ...)                                                                            \
    const kiln_op kiln_op_##op = {                                                                                     \
        .name = #op,                                                                                                   \
        .attrs = names,                                                                                                \
        .cls = KILN_CLASS_COMPOSITE,                                                                                   \
        .autocast = KILN_CAST_LOWER,                                                                                   \
        .dtypes = KILN_T_NUMBERS,                                                                                      \
        .min_in = 2,                                                                                                   \
        .max_in = 3,                                                                                                   \
        .keeps_half = true,                                                                                            \
        .heart = &kiln_op_##node,                                                                                      \
        .infer = op##_infer,                                                                                           \
        .compose = op##_compose,                                                                                       \
        .cases = KILN_CASES{__VA_ARGS__, NULL},                                                                        \
    }

PUBLIC_RECORD(conv1d, convolution, "stride padding dilation groups", "x[2,3,7] x[4,3,3] x[4] | 0 0 0 0",
              "x[2,4,8] x[6,2,3] x[6] | 2 1 2 2", "x[3,5] x[2,3,2] - | 1 1 1 1");
PUBLIC_RECORD(conv2d, convolution, CONV_ATTRS, "x[2,3,5,5] x[4,3,3,3] x[4] | 0 0 0 0 0 0 0",
              "x[2,4,6,7] x[4,2,3,2] x[4] | 2 1 1 2 1 2 2", "x[2,2,4,4] x[3,2,2,2] - | 1 1 0 0 1 1 1",
              "x[2,4,5] x[3,2,3,3] x[3] | 1 1 1 1 1 1 1");
PUBLIC_RECORD(conv_transpose1d, convolution_input_grad, "stride padding output_padding groups dilation",
              "x[2,3,4] x[3,2,3] x[2] | 0 0 0 0 0", "x[2,4,4] x[4,2,3] x[4] | 2 1 1 2 1",
              "x[1,2,3] x[2,1,2] - | 1 0 1 1 2");
PUBLIC_RECORD(conv_transpose2d, convolution_input_grad,
              "stride_h stride_w padding_h padding_w output_padding_h output_padding_w dilation_h dilation_w groups",
              "x[2,3,3,4] x[3,2,3,3] x[2] | 0 0 0 0 0 0 0 0 0", "x[2,4,3,3] x[4,2,3,2] x[4] | 2 3 1 0 1 2 1 1 2",
              "x[1,2,3,3] x[2,1,2,2] - | 1 1 1 1 1 0 2 2 1", "x[2,3,3] x[2,1,2,2] x[1] | 2 2 0 0 0 0 1 1 1");

const kiln_op *const kiln_ops_conv[] = {
    &kiln_op_convolution, &kiln_op_convolution_input_grad, &kiln_op_convolution_weight_grad, &kiln_op_conv1d,
    &kiln_op_conv2d,      &kiln_op_conv_transpose1d,       &kiln_op_conv_transpose2d,        NULL,
};
