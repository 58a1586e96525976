/* Pooling over the last two dims of [batch, channels, height, width]. The public operations bring 1-d and unbatched
 * input to that shape, fill defaults in, and decide the output size; the nodes get it as integers. */
#include "core/sized.h"
#include "ops/helpers.h"
#include "ops/integer_windows.h"

#include <string.h>

extern const kiln_op kiln_op_max_pool, kiln_op_max_pool_grad, kiln_op_avg_pool, kiln_op_avg_pool_grad,
    kiln_op_adaptive_avg_pool, kiln_op_adaptive_avg_pool_grad, kiln_op_adaptive_max_pool, kiln_op_max_pool1d,
    kiln_op_max_pool2d, kiln_op_avg_pool1d, kiln_op_avg_pool2d, kiln_op_adaptive_avg_pool1d,
    kiln_op_adaptive_avg_pool2d, kiln_op_adaptive_max_pool1d, kiln_op_adaptive_max_pool2d;

/* ---- Checks ---- */

static const char *shape_of(const kiln_tensor *t)
{
    return kiln_shape_text(t->ndim, t->shape);
}

static bool check_ints(const kiln_call *c, int wanted)
{
    return kiln_check_attr(c, c->attrs.nints == wanted, "takes %d integers, not %d", wanted, c->attrs.nints);
}

/* All sizes stay below 2^31: arithmetic on them cannot overflow. */
static bool check_window(const kiln_call *c, const kiln_window *w, const int64_t *size)
{
    for (int a = 0; a < 2; a++) {
        long long kernel = w->kernel[a], stride = w->stride[a], padding = w->padding[a], dilation = w->dilation[a];
        if (!kiln_check_attr(c, kernel >= 1 && kernel <= INT32_MAX, "the kernel size is %lld; it must be at least 1",
                             kernel) ||
            !kiln_check_attr(c, stride >= 1 && stride <= INT32_MAX, "stride is %lld; it must be at least 1", stride) ||
            !kiln_check_attr(c, dilation >= 1 && dilation <= INT32_MAX, "dilation is %lld; it must be at least 1",
                             dilation))
            return false;
        long long span = dilation * (kernel - 1) + 1;
        if (!kiln_check_attr(c, padding >= 0 && padding <= span / 2,
                             "padding is %lld; it must be at most half of what the kernel spans, %lld", padding, span))
            return false;
        if (size[a] > INT32_MAX || padding > INT32_MAX)
            return kiln_fail(KILN_E_SHAPE, c->op->name, "input %s is too large to pool", shape_of(c->in[0]));
    }
    return true;
}

/* The number of windows along an axis, as PyTorch counts them: in ceil mode the last one may hang over the end, but not
 * begin in the padding there. 0 when none fits. */
static int64_t output_size(const kiln_window *w, int a, int64_t size, bool ceil_mode)
{
    int64_t room = size + 2 * w->padding[a] - w->dilation[a] * (w->kernel[a] - 1) - 1;
    if (room < 0 && !(ceil_mode && room > -w->stride[a]))
        return 0;
    int64_t n = (room + (ceil_mode ? w->stride[a] - 1 : 0)) / w->stride[a] + 1;
    return ceil_mode && (n - 1) * w->stride[a] >= size + w->padding[a] ? n - 1 : n;
}

static bool output_sizes(const kiln_call *c, kiln_window *w, const int64_t *size, bool ceil_mode)
{
    for (int a = 0; a < 2; a++) {
        w->out[a] = output_size(w, a, size[a], ceil_mode);
        if (w->out[a] >= 1 && size[a] >= 1)
            continue;
        kiln_fail(KILN_E_SHAPE, c->op->name,
                  "the window spans %lld along the %s, more than the padded input's %lld: input %s, padding %lld",
                  (long long)(w->dilation[a] * (w->kernel[a] - 1) + 1), a ? "width" : "height",
                  (long long)(size[a] + 2 * w->padding[a]), shape_of(c->in[0]), (long long)w->padding[a]);
        return kiln_hint("use a smaller kernel");
    }
    return true;
}

/* Every window of a node must begin before the input's end and, for a maximum, hold an element of the input. */
static bool check_output(const kiln_call *c, const kiln_window *w, const int64_t *size, bool maximum)
{
    for (int a = 0; a < 2; a++) {
        int64_t k = w->kernel[a], s = w->stride[a], p = w->padding[a], d = w->dilation[a], n = w->out[a];
        bool holds = n >= 1 && n <= INT32_MAX && size[a] >= 1 && (n - 1) * s < size[a] + p;
        for (int64_t o = 0; maximum && holds && d > 1 && o < n && o * s < p; o++) {
            int64_t skipped = (p - o * s + d - 1) / d; /* elements of the window that lie before the input */
            holds = skipped < k && o * s - p + skipped * d < size[a];
        }
        if (!holds)
            return kiln_fail(KILN_E_SHAPE, c->op->name,
                             "an input %s of size %lld does not have %lld windows that hold an element: kernel %lld, "
                             "stride %lld, padding %lld, dilation %lld",
                             a ? "width" : "height", (long long)size[a], (long long)n, (long long)k, (long long)s,
                             (long long)p, (long long)d);
    }
    return true;
}

static void describe(kiln_call *c, int j, kiln_dtype dtype, const int64_t *size)
{
    const int64_t *planes = c->in[0]->shape;
    kiln_desc_set(&c->out[j], dtype, 4, (int64_t[]){planes[0], planes[1], size[0], size[1]});
}

/* ---- Maxima: values and where they were found, in the plane's row-major order. The gradient goes there. ---- */

enum { MAX_POOL_INTS = 10, AVG_POOL_INTS = 9 };

static bool max_pool_infer(kiln_call *c)
{
    if (!check_ints(c, MAX_POOL_INTS) || !kiln_check_ndim(c, 0, 4, 4))
        return false;
    kiln_window w;
    memcpy(&w, c->attrs.i, MAX_POOL_INTS * sizeof(int64_t));
    const int64_t *size = c->in[0]->shape + 2;
    if (!check_window(c, &w, size) || !check_output(c, &w, size, true))
        return false;
    describe(c, 0, c->in[0]->dtype, w.out);
    describe(c, 1, KILN_I64, w.out);
    return true;
}

static bool maximum_grad(kiln_grad_call *g)
{
    if (!g->need[0] || !g->gout[0])
        return true;
    const int64_t *size = g->in[0]->shape + 2;
    g->gin[0] = KILN_OP(max_pool_grad, KILN_IN(g->gout[0], g->out[1]), KILN_I(size[0], size[1]));
    return g->gin[0] != NULL;
}

static bool max_pool_grad_infer(kiln_call *c)
{
    const int64_t *size = c->attrs.i;
    if (!check_ints(c, 2) || !kiln_check_ndim(c, 0, 4, 4) || !kiln_check_ndim(c, 1, 4, 4) ||
        !kiln_check_dtype(c, 1, 1 << KILN_I64) ||
        !kiln_check_attr(c, size[0] >= 1 && size[1] >= 1 && size[0] <= INT32_MAX && size[1] <= INT32_MAX,
                         "cannot make planes of height %lld and width %lld", (long long)size[0], (long long)size[1]))
        return false;
    for (int d = 0; d < 4; d++)
        if (!kiln_check_size(c, 1, d, c->in[0]->shape[d]))
            return false;
    describe(c, 0, c->in[0]->dtype, size);
    return true;
}

/* [planes, elements of a plane] */
static kiln_tensor *as_rows(kiln_tensor *t)
{
    return kiln_reshape(t, KILN_SHAPE(t->shape[0] * t->shape[1], t->shape[2] * t->shape[3]));
}

static bool max_pool_grad_compose(kiln_call *c, kiln_tensor **out)
{
    const int64_t *to = c->out[0].shape;
    kiln_tensor *zeros = kiln_fill_like(c->in[0], KILN_SHAPE(to[0] * to[1], to[2] * to[3]), 0);
    out[0] = kiln_reshape(kiln_scatter_add(zeros, 1, as_rows(c->in[1]), as_rows(c->in[0])), 4, to);
    return out[0] != NULL;
}

static bool max_pool_grad_grad(kiln_grad_call *g)
{
    if (!g->need[0])
        return true;
    g->gin[0] = kiln_reshape(kiln_gather(as_rows(g->gout[0]), 1, as_rows(g->in[1])), 4, g->in[0]->shape);
    return g->gin[0] != NULL;
}

/* ---- Means ---- */

static bool read_average(const kiln_call *c, kiln_window *w, const int64_t *size)
{
    const int64_t *i = c->attrs.i;
    memcpy(w, i, 6 * sizeof *i);
    w->dilation[0] = w->dilation[1] = 1;
    memcpy(w->out, i + 6, sizeof w->out);
    return check_window(c, w, size) && check_output(c, w, size, false);
}

static bool avg_pool_infer(kiln_call *c)
{
    kiln_window w;
    if (!check_ints(c, AVG_POOL_INTS) || !kiln_check_ndim(c, 0, 4, 4) || !read_average(c, &w, c->in[0]->shape + 2))
        return false;
    c->attrs.i[8] = c->attrs.i[8] != 0;
    describe(c, 0, c->in[0]->dtype, w.out);
    return true;
}

static bool check_gradient(const kiln_call *c, const int64_t *out)
{
    return kiln_check_size(c, 0, 2, out[0]) && kiln_check_size(c, 0, 3, out[1]);
}

static bool avg_pool_grad_infer(kiln_call *c)
{
    kiln_window w;
    const int64_t *size = c->attrs.i + AVG_POOL_INTS;
    if (!check_ints(c, AVG_POOL_INTS + 2) || !kiln_check_ndim(c, 0, 4, 4) || !read_average(c, &w, size) ||
        !check_gradient(c, w.out))
        return false;
    c->attrs.i[8] = c->attrs.i[8] != 0;
    describe(c, 0, c->in[0]->dtype, size);
    return true;
}

static bool avg_pool_grad(kiln_grad_call *g)
{
    if (!g->need[0])
        return true;
    kiln_attrs attrs = *g->attrs;
    attrs.nints = AVG_POOL_INTS + 2;
    memcpy(attrs.i + AVG_POOL_INTS, g->in[0]->shape + 2, 2 * sizeof(int64_t));
    g->gin[0] = KILN_OP(avg_pool_grad, KILN_IN(g->gout[0]), &attrs);
    return g->gin[0] != NULL;
}

static bool avg_pool_grad_grad(kiln_grad_call *g)
{
    if (!g->need[0])
        return true;
    kiln_attrs attrs = *g->attrs;
    attrs.nints = AVG_POOL_INTS;
    g->gin[0] = KILN_OP(avg_pool, KILN_IN(g->gout[0]), &attrs);
    return g->gin[0] != NULL;
}

/* ---- Integers ---- */

static bool max_pool_compose(kiln_call *c, kiln_tensor **out)
{
    kiln_window w;
    memcpy(&w, c->attrs.i, MAX_POOL_INTS * sizeof(int64_t));
    return kiln_windows_maximum(c->in[0], &w, &out[0], &out[1]);
}

static bool avg_pool_compose(kiln_call *c, kiln_tensor **out)
{
    kiln_window w;
    if (!read_average(c, &w, c->in[0]->shape + 2))
        return false;
    return (out[0] = kiln_windows_mean(c->in[0], &w, c->attrs.i[8])) != NULL;
}

/* ---- Adaptive: window o of n covers floor(o·size/n) … ceil((o+1)·size/n) - 1 ---- */

static bool check_adaptive(const kiln_call *c, const int64_t *size, const int64_t *out)
{
    if (!kiln_check_attr(c, out[0] >= 0 && out[1] >= 0 && out[0] <= INT32_MAX && out[1] <= INT32_MAX,
                         "the output size is [%lld, %lld]; neither may be negative", (long long)out[0],
                         (long long)out[1]))
        return false;
    if (size[0] < 1 || size[1] < 1 || size[0] > INT32_MAX || size[1] > INT32_MAX)
        return kiln_fail(KILN_E_SHAPE, c->op->name, "cannot pool planes of height %lld and width %lld",
                         (long long)size[0], (long long)size[1]);
    return true;
}

static bool adaptive_infer(kiln_call *c)
{
    if (!check_ints(c, 2) || !kiln_check_ndim(c, 0, 4, 4) || !check_adaptive(c, c->in[0]->shape + 2, c->attrs.i))
        return false;
    describe(c, 0, c->in[0]->dtype, c->attrs.i);
    describe(c, 1, KILN_I64, c->attrs.i); /* read where there are two outputs */
    return true;
}

static bool adaptive_avg_pool_grad_infer(kiln_call *c)
{
    if (!check_ints(c, 2) || !kiln_check_ndim(c, 0, 4, 4) || !check_adaptive(c, c->attrs.i, c->in[0]->shape + 2))
        return false;
    describe(c, 0, c->in[0]->dtype, c->attrs.i);
    return true;
}

static bool adaptive_avg_pool_grad(kiln_grad_call *g)
{
    const int64_t *size = g->in[0]->shape + 2;
    if (!g->need[0])
        return true;
    g->gin[0] = KILN_OP(adaptive_avg_pool_grad, KILN_IN(g->gout[0]), KILN_I(size[0], size[1]));
    return g->gin[0] != NULL;
}

static bool adaptive_avg_pool_grad_grad(kiln_grad_call *g)
{
    const int64_t *size = g->in[0]->shape + 2;
    if (!g->need[0])
        return true;
    g->gin[0] = KILN_OP(adaptive_avg_pool, KILN_IN(g->gout[0]), KILN_I(size[0], size[1]));
    return g->gin[0] != NULL;
}

/* ---- The public operations ---- */

typedef enum pool_kind { MAXIMUM, AVERAGE, ADAPTIVE_AVERAGE, ADAPTIVE_MAXIMUM } pool_kind;

typedef struct request {
    kiln_window w;
    int64_t size[2]; /* of the input planes */
    bool flat, ceil_mode, include_pad;
} request;

static void read_windows(kiln_call *c, bool flat, pool_kind kind, request *r)
{
    int64_t *i = c->attrs.i, n = flat ? 1 : 2;
    for (int64_t a = 0; a < n; a++) { /* the defaults, for the attributes of this call too */
        i[n + a] = i[n + a] ? i[n + a] : i[a];
        if (kind == MAXIMUM)
            i[3 * n + a] = i[3 * n + a] ? i[3 * n + a] : 1;
    }
    for (int64_t a = 0; a < 2; a++) {
        bool made_up = flat && a == 0; /* 1-d: an axis of size 1 */
        int64_t at = flat ? 0 : a;
        r->w.kernel[a] = made_up ? 1 : i[at];
        r->w.stride[a] = made_up ? 1 : i[n + at];
        r->w.padding[a] = made_up ? 0 : i[2 * n + at];
        r->w.dilation[a] = made_up || kind == AVERAGE ? 1 : i[3 * n + at];
    }
    int64_t *flags = i + (kind == MAXIMUM ? 4 : 3) * n;
    flags[0] = r->ceil_mode = flags[0] != 0;
    if (kind == AVERAGE)
        flags[1] = r->include_pad = flags[1] != 0;
}

static int ints_wanted(bool flat, pool_kind kind)
{
    int n = flat ? 1 : 2;
    return kind == MAXIMUM ? 4 * n + 1 : kind == AVERAGE ? 3 * n + 2 : n;
}

static bool read_request(kiln_call *c, bool flat, pool_kind kind, request *r)
{
    int full = flat ? 3 : 4;
    if (!check_ints(c, ints_wanted(flat, kind)) || !kiln_check_ndim(c, 0, full - 1, full))
        return false;
    const kiln_tensor *x = c->in[0];
    int64_t channels = x->shape[x->ndim - full + 1];
    if (channels == 0 && kind != ADAPTIVE_AVERAGE)
        return kiln_fail(KILN_E_SHAPE, c->op->name, "input %s has no channels", shape_of(x));
    r->flat = flat;
    r->size[0] = flat ? 1 : x->shape[x->ndim - 2];
    r->size[1] = x->shape[x->ndim - 1];
    if (kind == ADAPTIVE_AVERAGE || kind == ADAPTIVE_MAXIMUM) {
        r->w.out[0] = flat ? 1 : c->attrs.i[0];
        r->w.out[1] = c->attrs.i[flat ? 0 : 1];
        return check_adaptive(c, r->size, r->w.out);
    }
    read_windows(c, flat, kind, r);
    return check_window(c, &r->w, r->size) && output_sizes(c, &r->w, r->size, r->ceil_mode);
}

static bool infer_pool(kiln_call *c, bool flat, pool_kind kind)
{
    request r = {0};
    if (!read_request(c, flat, kind, &r))
        return false;
    const kiln_tensor *x = c->in[0];
    int64_t shape[4];
    memcpy(shape, x->shape, sizeof shape);
    shape[x->ndim - 1] = r.w.out[1];
    if (!flat)
        shape[x->ndim - 2] = r.w.out[0];
    kiln_desc_set(&c->out[0], x->dtype, x->ndim, shape);
    return true;
}

static kiln_tensor *pool(kiln_tensor *x, pool_kind kind, const request *r)
{
    const kiln_window *w = &r->w;
    kiln_attrs attrs = {0};
    kiln_tensor *outs[2];
    switch (kind) {
    case MAXIMUM:
        attrs.nints = MAX_POOL_INTS;
        memcpy(attrs.i, w, MAX_POOL_INTS * sizeof(int64_t));
        return kiln_op_call(&kiln_op_max_pool, KILN_IN(x), &attrs, outs) ? outs[0] : NULL;
    case AVERAGE:
        attrs.nints = AVG_POOL_INTS;
        memcpy(attrs.i, w, 6 * sizeof(int64_t));
        memcpy(attrs.i + 6, w->out, sizeof w->out);
        attrs.i[8] = r->include_pad;
        return KILN_OP(avg_pool, KILN_IN(x), &attrs);
    case ADAPTIVE_AVERAGE: return KILN_OP(adaptive_avg_pool, KILN_IN(x), KILN_I(w->out[0], w->out[1]));
    case ADAPTIVE_MAXIMUM:
        attrs.nints = 2;
        memcpy(attrs.i, w->out, sizeof w->out);
        return kiln_op_call(&kiln_op_adaptive_max_pool, KILN_IN(x), &attrs, outs) ? outs[0] : NULL;
    }
    return NULL;
}

static bool compose_pool(kiln_call *c, bool flat, pool_kind kind, kiln_tensor **out)
{
    request r;
    kiln_tensor *x = c->in[0];
    bool single = x->ndim == (flat ? 2 : 3);
    if (!read_request(c, flat, kind, &r))
        return false;
    if (kiln_count(c->out[0].ndim, c->out[0].shape) == 0) { /* nothing of x is in it */
        out[0] = kiln_reshape(kiln_slice(x, 0, 0, 0, 1), c->out[0].ndim, c->out[0].shape);
        return out[0] != NULL;
    }
    if (single)
        x = kiln_unsqueeze(x, 0);
    if (flat)
        x = kiln_unsqueeze(x, 2);
    kiln_tensor *y = pool(x, kind, &r);
    if (flat)
        y = kiln_squeeze(y, 2);
    if (single)
        y = kiln_squeeze(y, 0);
    out[0] = y;
    return y != NULL;
}

kiln_tensor *kiln_max_pool2d_(kiln_tensor *x, int64_t kh, int64_t kw, const kiln_pool_options *given)
{
    kiln_pool_options o;
    if (!KILN_TAKE_OPTIONS("max_pool2d", o, given))
        return NULL;
    return KILN_OP(max_pool2d, KILN_IN(x),
                   KILN_I(kh, kw, o.stride[0], o.stride[1], o.padding[0], o.padding[1], o.dilation[0], o.dilation[1],
                          o.ceil_mode));
}

kiln_tensor *kiln_avg_pool2d_(kiln_tensor *x, int64_t kh, int64_t kw, const kiln_pool_options *given)
{
    kiln_pool_options o;
    if (!KILN_TAKE_OPTIONS("avg_pool2d", o, given))
        return NULL;
    for (int a = 0; a < 2; a++)
        if (o.dilation[a] > 1)
            return kiln_fail(KILN_E_ARGUMENT, "avg_pool2d", "dilation is %lld; a mean is over neighbours only",
                             (long long)o.dilation[a]);
    return KILN_OP(avg_pool2d, KILN_IN(x),
                   KILN_I(kh, kw, o.stride[0], o.stride[1], o.padding[0], o.padding[1], o.ceil_mode, !o.exclude_pad));
}

/* Where an option list takes 0 for the default, an argument that must be given may not be 0. */
static bool is_given(const char *op, const char *what, int64_t value)
{
    return value || kiln_fail(KILN_E_ARGUMENT, op, "%s is 0; it must be at least 1", what);
}

kiln_tensor *kiln_max_pool1d(kiln_tensor *x, int64_t kernel, int64_t stride, int64_t padding, int64_t dilation,
                             bool ceil_mode)
{
    if (!is_given("max_pool1d", "stride", stride) || !is_given("max_pool1d", "dilation", dilation))
        return NULL;
    return KILN_OP(max_pool1d, KILN_IN(x), KILN_I(kernel, stride, padding, dilation, ceil_mode));
}

kiln_tensor *kiln_avg_pool1d(kiln_tensor *x, int64_t kernel, int64_t stride, int64_t padding, bool ceil_mode,
                             bool count_include_pad)
{
    if (!is_given("avg_pool1d", "stride", stride))
        return NULL;
    return KILN_OP(avg_pool1d, KILN_IN(x), KILN_I(kernel, stride, padding, ceil_mode, count_include_pad));
}

kiln_tensor *kiln_adaptive_avg_pool1d(kiln_tensor *x, int64_t length)
{
    return KILN_OP(adaptive_avg_pool1d, KILN_IN(x), KILN_I(length));
}

kiln_tensor *kiln_adaptive_max_pool1d(kiln_tensor *x, int64_t length)
{
    return KILN_OP(adaptive_max_pool1d, KILN_IN(x), KILN_I(length));
}

kiln_tensor *kiln_adaptive_avg_pool2d(kiln_tensor *x, int64_t height, int64_t width)
{
    return KILN_OP(adaptive_avg_pool2d, KILN_IN(x), KILN_I(height, width));
}

kiln_tensor *kiln_adaptive_max_pool2d(kiln_tensor *x, int64_t height, int64_t width)
{
    return KILN_OP(adaptive_max_pool2d, KILN_IN(x), KILN_I(height, width));
}

/* ---- Records ---- */

#define MAX_ATTRS "kernel_h kernel_w stride_h stride_w padding_h padding_w dilation_h dilation_w"
#define AVG_ATTRS "kernel_h kernel_w stride_h stride_w padding_h padding_w"

/* Places in a plane. */
static kiln_demand max_pool_grad_demand(int ndim, const int64_t *shape, const int64_t *ints)
{
    (void)ndim, (void)shape;
    return (kiln_demand){ints[0] * ints[1], INT64_MIN};
}

const kiln_op kiln_op_max_pool_grad = {
    .name = "max_pool_grad",
    .attrs = "height width",
    .cls = KILN_CLASS_POOL,
    .dtypes = KILN_T_FLOATS,
    .min_in = 2,
    .max_in = 2,
    .demand = max_pool_grad_demand,
    .infer = max_pool_grad_infer,
    .compose = max_pool_grad_compose,
    .grad_reads = {KILN_READS_Y},
    .grad = max_pool_grad_grad,
    .cases = KILN_CASES{"x[2,3,3,3] i36[2,3,3,3] | 6 6", "x[2,1,4,2] i6[2,1,4,2] | 2 3", "x[0,3,2,2] i9[0,3,2,2] | 3 3",
                        NULL},
};

/* PyTorch's types: maxima of all numbers, means of floats and i64. */
enum { AVERAGED = KILN_T_FLOATS | 1 << KILN_I64 };

/* The second output, which maxima have, says where they were found: their gradient reads that. */
#define NODE(op, names, types, outputs, shape_rule, composition, gradient, ...)                                        \
    const kiln_op kiln_op_##op = {                                                                                     \
        .name = #op,                                                                                                   \
        .attrs = names,                                                                                                \
        .cls = KILN_CLASS_POOL,                                                                                        \
        .dtypes = types,                                                                                               \
        .min_in = 1,                                                                                                   \
        .max_in = 1,                                                                                                   \
        .nout = outputs,                                                                                               \
        .infer = shape_rule,                                                                                           \
        .compose = composition,                                                                                        \
        .grad_reads = {(outputs) == 2 ? KILN_READS_RESULT : KILN_READS_NOTHING},                                       \
        .grad = gradient,                                                                                              \
        .cases = KILN_CASES{__VA_ARGS__, NULL},                                                                        \
    }

NODE(max_pool, MAX_ATTRS " out_h out_w", KILN_T_NUMBERS, 2, max_pool_infer, max_pool_compose, maximum_grad,
     "d[2,3,6,6] | 2 2 2 2 0 0 1 1 3 3", "d[2,2,7,5] | 3 2 2 1 1 1 1 2 4 5", "d[1,1,7,7] | 3 3 1 2 1 0 2 1 5 3",
     "d[2,2,5,5] | 2 2 2 2 0 0 1 1 3 3");
NODE(avg_pool, AVG_ATTRS " out_h out_w include_pad", AVERAGED, 1, avg_pool_infer, avg_pool_compose, avg_pool_grad,
     "x[2,3,6,6] | 2 2 2 2 0 0 3 3 1", "x[2,2,7,5] | 3 2 2 1 1 1 4 6 1", "x[2,2,7,5] | 3 2 2 1 1 1 4 6 0",
     "x[1,2,6,8] | 3 3 2 2 1 1 4 5 1");
NODE(avg_pool_grad, AVG_ATTRS " out_h out_w include_pad height width", KILN_T_FLOATS, 1, avg_pool_grad_infer, NULL,
     avg_pool_grad_grad, "x[2,3,3,3] | 2 2 2 2 0 0 3 3 1 6 6", "x[2,2,4,6] | 3 2 2 1 1 1 4 6 1 7 5",
     "x[2,2,4,6] | 3 2 2 1 1 1 4 6 0 7 5");
NODE(adaptive_avg_pool, "out_h out_w", KILN_T_FLOATS, 1, adaptive_infer, NULL, adaptive_avg_pool_grad,
     "x[2,3,6,7] | 3 4", "x[2,2,4,3] | 1 1", "x[1,2,3,2] | 5 3");
NODE(adaptive_avg_pool_grad, "height width", KILN_T_FLOATS, 1, adaptive_avg_pool_grad_infer, NULL,
     adaptive_avg_pool_grad_grad, "x[2,3,3,4] | 6 7", "x[2,2,1,1] | 4 3", "x[1,2,5,3] | 3 2");
NODE(adaptive_max_pool, "out_h out_w", KILN_T_FLOATS, 2, adaptive_infer, NULL, maximum_grad, "d[2,3,6,7] | 3 4",
     "d[2,2,4,3] | 1 1", "d[1,2,3,2] | 5 3");

#define PUBLIC(op, kind, flat, types, names, ...)                                                                      \
    static bool op##_infer(kiln_call *c)                                                                               \
    {                                                                                                                  \
        return infer_pool(c, flat, kind);                                                                              \
    }                                                                                                                  \
    static bool op##_compose(kiln_call *c, kiln_tensor **out)                                                          \
    {                                                                                                                  \
        return compose_pool(c, flat, kind, out);                                                                       \
    }                                                                                                                  \
    const kiln_op kiln_op_##op = {                                                                                     \
        .name = #op,                                                                                                   \
        .attrs = names,                                                                                                \
        .cls = KILN_CLASS_COMPOSITE,                                                                                   \
        .dtypes = types,                                                                                               \
        .min_in = 1,                                                                                                   \
        .max_in = 1,                                                                                                   \
        .keeps_half = true,                                                                                            \
        .infer = op##_infer,                                                                                           \
        .compose = op##_compose,                                                                                       \
        .cases = KILN_CASES{__VA_ARGS__, NULL},                                                                        \
    }

PUBLIC(max_pool1d, MAXIMUM, true, KILN_T_NUMBERS, "kernel stride padding dilation ceil_mode", "d[2,3,8] | 2 0 0 0 0",
       "d[2,3,8] | 3 2 1 2 1", "d[3,8] | 3 1 1 1 0");
PUBLIC(max_pool2d, MAXIMUM, false, KILN_T_NUMBERS, MAX_ATTRS " ceil_mode", "d[2,3,6,6] | 2 2 0 0 0 0 0 0 0",
       "d[1,1,4,4] | 2 2 0 0 0 0 0 0 0", "d[1,3,2,2] | 2 2 0 0 0 0 0 0 0", "d[2,2,7,6] | 3 2 2 3 1 1 1 1 1",
       "d[2,5,5] | 3 3 1 1 1 1 1 1 0");
PUBLIC(avg_pool1d, AVERAGE, true, AVERAGED, "kernel stride padding ceil_mode include_pad", "x[2,3,8] | 2 0 0 0 1",
       "x[2,3,8] | 3 2 1 1 1", "x[3,8] | 3 2 1 1 0");
PUBLIC(avg_pool2d, AVERAGE, false, AVERAGED, AVG_ATTRS " ceil_mode include_pad", "x[2,3,6,6] | 2 2 0 0 0 0 0 1",
       "x[2,2,7,6] | 3 2 2 3 1 1 1 1", "x[2,2,7,6] | 3 2 2 3 1 1 1 0", "x[2,5,5] | 3 3 1 1 1 1 0 1");
PUBLIC(adaptive_avg_pool1d, ADAPTIVE_AVERAGE, true, KILN_T_FLOATS, "length", "x[2,3,7] | 3", "x[3,4] | 1");
PUBLIC(adaptive_avg_pool2d, ADAPTIVE_AVERAGE, false, KILN_T_FLOATS, "height width", "x[2,3,5,7] | 2 3",
       "x[2,4,4] | 1 1");
PUBLIC(adaptive_max_pool1d, ADAPTIVE_MAXIMUM, true, KILN_T_FLOATS, "length", "d[2,3,7] | 3", "d[3,4] | 1");
PUBLIC(adaptive_max_pool2d, ADAPTIVE_MAXIMUM, false, KILN_T_FLOATS, "height width", "d[2,3,5,7] | 2 3",
       "d[2,4,4] | 1 1");

const kiln_op *const kiln_ops_pool[] = {
    &kiln_op_max_pool,
    &kiln_op_max_pool_grad,
    &kiln_op_avg_pool,
    &kiln_op_avg_pool_grad,
    &kiln_op_adaptive_avg_pool,
    &kiln_op_adaptive_avg_pool_grad,
    &kiln_op_adaptive_max_pool,
    &kiln_op_max_pool1d,
    &kiln_op_max_pool2d,
    &kiln_op_avg_pool1d,
    &kiln_op_avg_pool2d,
    &kiln_op_adaptive_avg_pool1d,
    &kiln_op_adaptive_avg_pool2d,
    &kiln_op_adaptive_max_pool1d,
    &kiln_op_adaptive_max_pool2d,
    NULL,
};
