/* Convolution and its adjoints, as one sum over (batch, group, channel, place, kernel place), and resizing. */
#include <math.h>
#include <string.h>
#include "support/ref.h"

/* [batch, channels, height, width] with the window that walks over it. */
typedef struct geometry {
    int64_t batch, in_channels, out_channels, groups, in[2], out[2], kernel[2], stride[2], padding[2], dilation[2];
} geometry;

/* Calls f for each product of the convolution: places in x, w and y. */
typedef void (*visit)(void *context, int64_t x, int64_t w, int64_t y);

/* The kernel's taps at one place of the output. */
static void visit_taps(const geometry *g, const int64_t at[5], visit f, void *context)
{
    int64_t b = at[0], o = at[1], i = at[2], oh = at[3], ow = at[4];
    int64_t per_group = g->in_channels / g->groups, group = o / (g->out_channels / g->groups);
    for (int64_t kh = 0; kh < g->kernel[0]; kh++)
        for (int64_t kw = 0; kw < g->kernel[1]; kw++) {
            int64_t h = oh * g->stride[0] - g->padding[0] + kh * g->dilation[0];
            int64_t w = ow * g->stride[1] - g->padding[1] + kw * g->dilation[1];
            if (h < 0 || h >= g->in[0] || w < 0 || w >= g->in[1])
                continue;
            f(context, ((b * g->in_channels + group * per_group + i) * g->in[0] + h) * g->in[1] + w,
              ((o * per_group + i) * g->kernel[0] + kh) * g->kernel[1] + kw,
              ((b * g->out_channels + o) * g->out[0] + oh) * g->out[1] + ow);
        }
}

static void visit_all(const geometry *g, visit f, void *context)
{
    int64_t at[5];
    for (at[0] = 0; at[0] < g->batch; at[0]++)
        for (at[1] = 0; at[1] < g->out_channels; at[1]++)
            for (at[2] = 0; at[2] < g->in_channels / g->groups; at[2]++)
                for (at[3] = 0; at[3] < g->out[0]; at[3]++)
                    for (at[4] = 0; at[4] < g->out[1]; at[4]++)
                        visit_taps(g, at, f, context);
}

/* to[a] += left[b] * right[c], with which of x, w, y is which given by `kind`. */
typedef struct sums {
    char kind; /* 'y' forward, 'x' gradient of the input, 'w' of the weight */
    const double *left, *right;
    ref_tensor *to;
} sums;

static void add_product(void *context, int64_t x, int64_t w, int64_t y)
{
    sums *s = context;
    int64_t to = s->kind == 'y' ? y : s->kind == 'x' ? x : w;
    double p = s->kind == 'y'   ? s->left[x] * s->right[w]
               : s->kind == 'x' ? s->left[y] * s->right[w]
                                : s->left[y] * s->right[x];
    s->to->data[to] += p;
    s->to->size[to] += fabs(p);
}

static void accumulate(const geometry *g, char kind, const ref_tensor *left, const ref_tensor *right, ref_tensor *to)
{
    for (int64_t i = 0; i < to->count; i++)
        to->size[i] = 0;
    sums s = {kind, left->data, right->data, to};
    visit_all(g, add_product, &s);
}

/* The integers: strides, paddings, dilations, groups; 0 stands for 1 where 1 is the least. */
static void read_window(const ref_call *c, geometry *g)
{
    for (int a = 0; a < 2; a++) {
        g->stride[a] = REF_INT(c, a) ? REF_INT(c, a) : 1;
        g->padding[a] = REF_INT(c, 2 + a);
        g->dilation[a] = REF_INT(c, 4 + a) ? REF_INT(c, 4 + a) : 1;
    }
    g->groups = REF_INT(c, 6) ? REF_INT(c, 6) : 1;
}

static void run_convolution(ref_call *c)
{
    const int64_t *x = c->in[0]->shape, *w = c->in[1]->shape;
    geometry g = {.batch = x[0], .in_channels = x[1], .out_channels = w[0], .in = {x[2], x[3]}, .kernel = {w[2], w[3]}};
    read_window(c, &g);
    for (int a = 0; a < 2; a++)
        g.out[a] = (g.in[a] + 2 * g.padding[a] - g.dilation[a] * (g.kernel[a] - 1) - 1) / g.stride[a] + 1;
    ref_tensor *out = ref_out(c, 0, c->in[0]->dtype, 4, (int64_t[]){x[0], w[0], g.out[0], g.out[1]});
    accumulate(&g, 'y', c->in[0], c->in[1], out);
}

static void run_convolution_input_grad(ref_call *c)
{
    const int64_t *y = c->in[0]->shape, *w = c->in[1]->shape;
    geometry g = {.batch = y[0], .out_channels = y[1], .out = {y[2], y[3]}, .kernel = {w[2], w[3]}};
    read_window(c, &g);
    g.in_channels = w[1] * g.groups;
    g.in[0] = REF_INT(c, 7);
    g.in[1] = REF_INT(c, 8);
    ref_tensor *out = ref_out(c, 0, c->in[0]->dtype, 4, (int64_t[]){y[0], g.in_channels, g.in[0], g.in[1]});
    accumulate(&g, 'x', c->in[0], c->in[1], out);
}

static void run_convolution_weight_grad(ref_call *c)
{
    const int64_t *y = c->in[0]->shape, *x = c->in[1]->shape;
    geometry g = {.batch = y[0], .in_channels = x[1], .out_channels = y[1], .in = {x[2], x[3]}, .out = {y[2], y[3]}};
    read_window(c, &g);
    g.kernel[0] = REF_INT(c, 7);
    g.kernel[1] = REF_INT(c, 8);
    ref_tensor *out = ref_out(c, 0, c->in[0]->dtype, 4, (int64_t[]){y[1], x[1] / g.groups, g.kernel[0], g.kernel[1]});
    accumulate(&g, 'w', c->in[0], c->in[1], out);
}

/* ---- The public forms: one or two spatial dims, with or without a batch, with a bias ---- */

/* x as [batch, channels, height, width]: a missing batch or height is 1. `spatial` is 1 or 2. */
static ref_tensor as_images(const ref_tensor *x, int spatial)
{
    ref_tensor t = *x;
    const int64_t *s = x->shape;
    bool batched = x->ndim == spatial + 2;
    t.shape[0] = batched ? s[0] : 1;
    t.shape[1] = s[batched];
    t.shape[2] = spatial == 2 ? s[batched + 1] : 1;
    t.shape[3] = s[x->ndim - 1];
    t.ndim = 4;
    return t;
}

static ref_tensor as_kernel(const ref_tensor *w, int spatial)
{
    ref_tensor t = *w;
    t.shape[2] = spatial == 2 ? w->shape[2] : 1;
    t.shape[3] = w->shape[w->ndim - 1];
    t.ndim = 4;
    return t;
}

/* Output 0 with x's number of dims: [batch, channels, (height,) width]. */
static ref_tensor *image_out(ref_call *c, int spatial, const int64_t nchw[4])
{
    int64_t shape[4];
    int n = 0;
    if (c->in[0]->ndim == spatial + 2)
        shape[n++] = nchw[0];
    shape[n++] = nchw[1];
    if (spatial == 2)
        shape[n++] = nchw[2];
    shape[n++] = nchw[3];
    return ref_out(c, 0, c->in[0]->dtype, n, shape);
}

static void add_bias(const ref_call *c, ref_tensor *out, const int64_t nchw[4])
{
    if (c->nin < 3 || !c->in[2])
        return;
    for (int64_t i = 0; i < out->count; i++) {
        double b = c->in[2]->data[i / (nchw[2] * nchw[3]) % nchw[1]];
        out->data[i] += b;
        out->size[i] += fabs(b);
    }
}

/* ints for one dim: stride padding dilation groups; spread to the seven of two dims. */
static void spread_attrs(ref_call *c, int spatial, int dilation_at, int groups_at)
{
    if (spatial == 2)
        return;
    const kiln_attrs a = c->attrs;
    const int64_t wide[7] = {1, a.i[0], 0, a.i[1], 1, a.i[dilation_at], a.i[groups_at]};
    memcpy(c->attrs.i, wide, sizeof wide);
}

static void forward(ref_call *c, int spatial)
{
    ref_tensor x = as_images(c->in[0], spatial), w = as_kernel(c->in[1], spatial);
    geometry g = {.batch = x.shape[0], .in_channels = x.shape[1], .out_channels = w.shape[0]};
    spread_attrs(c, spatial, 2, 3);
    read_window(c, &g);
    for (int a = 0; a < 2; a++) {
        g.in[a] = x.shape[2 + a];
        g.kernel[a] = w.shape[2 + a];
        g.out[a] = (g.in[a] + 2 * g.padding[a] - g.dilation[a] * (g.kernel[a] - 1) - 1) / g.stride[a] + 1;
    }
    const int64_t nchw[4] = {g.batch, g.out_channels, g.out[0], g.out[1]};
    ref_tensor *out = image_out(c, spatial, nchw);
    accumulate(&g, 'y', &x, &w, out);
    add_bias(c, out, nchw);
}

/* The adjoint of a convolution whose output is this operation's input. */
static void transposed(ref_call *c, int spatial)
{
    ref_tensor x = as_images(c->in[0], spatial), w = as_kernel(c->in[1], spatial);
    int64_t extra[2] = {0, REF_INT(c, 2)};
    if (spatial == 2) { /* strides, paddings, output paddings, dilations, groups: take the third pair out */
        extra[0] = REF_INT(c, 4);
        extra[1] = REF_INT(c, 5);
        memmove(c->attrs.i + 4, c->attrs.i + 6, 3 * sizeof *c->attrs.i);
    }
    spread_attrs(c, spatial, 4, 3);
    geometry g = {.batch = x.shape[0], .out_channels = x.shape[1]};
    read_window(c, &g);
    g.in_channels = w.shape[1] * g.groups;
    for (int a = 0; a < 2; a++) {
        g.out[a] = x.shape[2 + a];
        g.kernel[a] = w.shape[2 + a];
        g.in[a] = (g.out[a] - 1) * g.stride[a] - 2 * g.padding[a] + g.dilation[a] * (g.kernel[a] - 1) + extra[a] + 1;
    }
    const int64_t nchw[4] = {g.batch, g.in_channels, g.in[0], g.in[1]};
    ref_tensor *out = image_out(c, spatial, nchw);
    accumulate(&g, 'x', &x, &w, out);
    add_bias(c, out, nchw);
}

static void run_conv1d(ref_call *c)
{
    forward(c, 1);
}

static void run_conv2d(ref_call *c)
{
    forward(c, 2);
}

static void run_conv_transpose1d(ref_call *c)
{
    transposed(c, 1);
}

static void run_conv_transpose2d(ref_call *c)
{
    transposed(c, 2);
}

/* ---- Resizing ---- */

/* The elements of a row of `in` that element o of a row of `out` is mixed from. */
typedef struct taps {
    int n;
    int64_t at[4];
    double weight[4];
} taps;

static double cubic(double d)
{
    const double a = -0.75;
    d = fabs(d);
    if (d <= 1)
        return ((a + 2) * d - (a + 3)) * d * d + 1;
    return d < 2 ? (((d - 5) * d + 8) * d - 4) * a : 0;
}

static taps find_taps(int64_t mode, bool align, int64_t in, int64_t out, int64_t o)
{
    if (mode == KILN_NEAREST)
        return (taps){1, {o * in / out}, {1}};
    double x = align ? (out > 1 ? (double)(o * (in - 1)) / (double)(out - 1) : 0)
                     : ((double)o + 0.5) * (double)in / (double)out - 0.5;
    if (mode == KILN_LINEAR && x < 0)
        x = 0;
    taps t = {.n = mode == KILN_LINEAR ? 2 : 4};
    int64_t left = (int64_t)floor(x);
    for (int k = 0; k < t.n; k++) {
        int64_t at = left + k - (mode == KILN_BICUBIC);
        t.weight[k] = mode == KILN_LINEAR ? (k ? x - (double)left : 1 - (x - (double)left)) : cubic(x - (double)at);
        t.at[k] = at < 0 ? 0 : at >= in ? in - 1 : at;
    }
    return t;
}

/* Planes of in[0]×in[1] to planes of out[0]×out[1], or, transposed, the adjoint of that. */
static void resize(ref_call *c, int spatial, const int64_t size[2], bool adjoint)
{
    ref_tensor x = as_images(c->in[0], spatial);
    const int64_t nchw[4] = {x.shape[0], x.shape[1], size[0], size[1]};
    ref_tensor *result = image_out(c, spatial, nchw);
    for (int64_t i = 0; i < result->count; i++)
        result->size[i] = 0;
    const int64_t *small = adjoint ? size : x.shape + 2, *large = adjoint ? x.shape + 2 : size;
    for (int64_t i = 0; i < x.shape[0] * x.shape[1] * large[0] * large[1]; i++) {
        int64_t plane = i / (large[0] * large[1]);
        taps h = find_taps(REF_INT(c, 0), REF_INT(c, 1), small[0], large[0], i / large[1] % large[0]);
        taps w = find_taps(REF_INT(c, 0), REF_INT(c, 1), small[1], large[1], i % large[1]);
        for (int k = 0; k < h.n * w.n; k++) {
            int64_t at = (plane * small[0] + h.at[k / w.n]) * small[1] + w.at[k % w.n], to = adjoint ? at : i;
            double v = h.weight[k / w.n] * w.weight[k % w.n] * x.data[adjoint ? i : at];
            result->data[to] += v;
            result->size[to] += fabs(v);
        }
    }
}

static void run_resize(ref_call *c)
{
    resize(c, 2, &REF_INT(c, 2), false);
}

static void run_resize_grad(ref_call *c)
{
    resize(c, 2, &REF_INT(c, 2), true);
}

static void run_interpolate(ref_call *c)
{
    int spatial = c->attrs.nints - 2;
    const int64_t size[2] = {spatial == 2 ? REF_INT(c, 2) : 1, REF_INT(c, 1 + spatial)};
    resize(c, spatial, size, false);
}

const ref_entry ref_entries_conv[] = {
    {"convolution", run_convolution, 0},
    {"convolution_input_grad", run_convolution_input_grad, 0},
    {"convolution_weight_grad", run_convolution_weight_grad, 0},
    {"conv1d", run_conv1d, 0},
    {"conv2d", run_conv2d, 0},
    {"conv_transpose1d", run_conv_transpose1d, 0},
    {"conv_transpose2d", run_conv_transpose2d, 0},
    {"resize", run_resize, 4}, /* places and weights are themselves rounded */
    {"resize_grad", run_resize_grad, 4},
    {"interpolate", run_interpolate, 4},
    {NULL, NULL, 0},
};
