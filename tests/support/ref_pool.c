/* Pooling: every window is listed, then its largest element or its mean is taken. */
#include <math.h>
#include <string.h>
#include "support/ref.h"

/* Where the windows of one axis lie. */
typedef struct axis {
    int64_t in, out, kernel, stride, padding, dilation;
    bool adaptive;
} axis;

/* The places of window o: first, one past the last (before the cut to the row), step. */
static void window(const axis *a, int64_t o, int64_t *start, int64_t *end)
{
    if (a->adaptive) {
        *start = o * a->in / a->out;
        *end = ((o + 1) * a->in + a->out - 1) / a->out;
        return;
    }
    *start = o * a->stride - a->padding;
    *end = *start + (a->kernel - 1) * a->dilation + 1;
}

/* How many windows fit, by PyTorch's rule: with ceil_mode the last may hang over, but must start inside. */
static int64_t windows(const axis *a, bool ceil_mode)
{
    int64_t room = a->in + 2 * a->padding - a->dilation * (a->kernel - 1) - 1;
    int64_t n = (room + (ceil_mode ? a->stride - 1 : 0)) / a->stride + 1;
    if (ceil_mode && (n - 1) * a->stride >= a->in + a->padding)
        n--;
    return n;
}

typedef struct pool {
    int spatial; /* 1 or 2 */
    axis axes[2];
    bool include_pad;
    int64_t planes;
} pool;

static pool start_pool(const ref_call *c, int spatial)
{
    const ref_tensor *x = c->in[0];
    pool p = {.spatial = spatial, .planes = 1};
    p.axes[0] = (axis){1, 1, 1, 1, 0, 1, false};
    p.axes[1] = p.axes[0];
    p.axes[1].in = x->shape[x->ndim - 1];
    if (spatial == 2)
        p.axes[0].in = x->shape[x->ndim - 2];
    for (int d = 0; d < x->ndim - spatial; d++)
        p.planes *= x->shape[d];
    return p;
}

static ref_tensor *pool_out(ref_call *c, int j, kiln_dtype dtype, const pool *p, int64_t h, int64_t w)
{
    int64_t shape[KILN_MAX_DIMS];
    int n = c->in[0]->ndim;
    memcpy(shape, c->in[0]->shape, sizeof shape);
    shape[n - 1] = w;
    if (p->spatial == 2)
        shape[n - 2] = h;
    return ref_out(c, j, dtype, n, shape);
}

static void maxima(ref_call *c, const pool *p, bool with_places)
{
    const ref_tensor *x = c->in[0];
    const axis *h = &p->axes[0], *w = &p->axes[1];
    ref_tensor *values = pool_out(c, 0, x->dtype, p, h->out, w->out);
    ref_tensor *places = with_places ? pool_out(c, 1, KILN_I64, p, h->out, w->out) : NULL;
    for (int64_t i = 0; i < values->count; i++) {
        int64_t plane = i / (h->out * w->out), best = -1, h0, h1, w0, w1;
        window(h, i / w->out % h->out, &h0, &h1);
        window(w, i % w->out, &w0, &w1);
        const double *data = x->data + plane * h->in * w->in;
        for (int64_t r = h0; r < h1; r += h->dilation)
            for (int64_t s = w0; s < w1; s += w->dilation) {
                if (r < 0 || r >= h->in || s < 0 || s >= w->in)
                    continue;
                int64_t at = r * w->in + s;
                if (best < 0 || (!isnan(data[best]) && (isnan(data[at]) || data[at] > data[best])))
                    best = at;
            }
        values->data[i] = best < 0 ? -INFINITY : data[best];
        if (places)
            places->data[i] = (double)best;
    }
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Means of windows, or (adjoint) each element of x spread evenly over its window in a plane of h->in × w->in. */
static void means(ref_call *c, const pool *p, bool adjoint)
{
    const ref_tensor *x = c->in[0];
    const axis *h = &p->axes[0], *w = &p->axes[1];
    bool whole = !kiln_dtype_is_float(x->dtype);
    ref_tensor *out = adjoint ? pool_out(c, 0, x->dtype, p, h->in, w->in) : pool_out(c, 0, x->dtype, p, h->out, w->out);
    for (int64_t i = 0; i < out->count; i++)
        out->size[i] = 0;
    for (int64_t i = 0; i < p->planes * h->out * w->out; i++) {
        int64_t plane = i / (h->out * w->out), h0, h1, w0, w1;
        window(h, i / w->out % h->out, &h0, &h1);
        window(w, i % w->out, &w0, &w1);
        int64_t area = (least(h1, h->in + h->padding) - h0) * (least(w1, w->in + w->padding) - w0);
        h0 = most(h0, 0), w0 = most(w0, 0), h1 = least(h1, h->in), w1 = least(w1, w->in);
        if (!p->include_pad)
            area = (h1 - h0) * (w1 - w0);
        for (int64_t r = h0; r < h1; r++)
            for (int64_t s = w0; s < w1; s++) {
                int64_t at = (plane * h->in + r) * w->in + s;
                double v = (adjoint ? x->data[i] : x->data[at]) / (whole ? 1 : (double)area);
                out->data[adjoint ? at : i] += v;
                out->size[adjoint ? at : i] += fabs(v);
            }
        if (whole) /* a quotient of integers */
            out->data[i] = area ? trunc(out->data[i] / (double)area) : 0;
    }
}

/* kernel, stride (0: the kernel), padding, dilation of both axes from lists of pairs; dilation may be absent. */
static void read_axes(const ref_call *c, pool *p, bool dilated)
{
    for (int a = 0; a < 2; a++) {
        int axis_number = a, step = 2;
        if (p->spatial == 1) {
            if (a == 0)
                continue;
            axis_number = 0, step = 1;
        }
        axis *x = &p->axes[a];
        x->kernel = REF_INT(c, axis_number);
        x->stride = REF_INT(c, step + axis_number) ? REF_INT(c, step + axis_number) : x->kernel;
        x->padding = REF_INT(c, 2 * step + axis_number);
        x->dilation = dilated && REF_INT(c, 3 * step + axis_number) ? REF_INT(c, 3 * step + axis_number) : 1;
    }
}

static void run_max_pool(ref_call *c)
{
    pool p = start_pool(c, 2);
    read_axes(c, &p, true);
    p.axes[0].out = REF_INT(c, 8);
    p.axes[1].out = REF_INT(c, 9);
    maxima(c, &p, true);
}

/* Each element goes to the place its index names. */
static void run_max_pool_grad(ref_call *c)
{
    const ref_tensor *x = c->in[0], *places = c->in[1];
    int64_t height = REF_INT(c, 0), width = REF_INT(c, 1), an_image = x->shape[2] * x->shape[3];
    ref_tensor *out = ref_out(c, 0, x->dtype, 4, (int64_t[]){x->shape[0], x->shape[1], height, width});
    for (int64_t i = 0; i < out->count; i++)
        out->size[i] = 0;
    for (int64_t i = 0; i < x->count; i++) {
        int64_t at = i / an_image * height * width + (int64_t)places->data[i];
        out->data[at] += x->data[i];
        out->size[at] += fabs(x->data[i]);
    }
}

static void public_max(ref_call *c, int spatial)
{
    pool p = start_pool(c, spatial);
    read_axes(c, &p, true);
    for (int a = 2 - spatial; a < 2; a++)
        p.axes[a].out = windows(&p.axes[a], REF_INT(c, 4 * spatial) != 0);
    maxima(c, &p, false);
}

static void run_max_pool1d(ref_call *c)
{
    public_max(c, 1);
}

static void run_max_pool2d(ref_call *c)
{
    public_max(c, 2);
}

static void run_avg_pool(ref_call *c)
{
    pool p = start_pool(c, 2);
    read_axes(c, &p, false);
    p.axes[0].out = REF_INT(c, 6);
    p.axes[1].out = REF_INT(c, 7);
    p.include_pad = REF_INT(c, 8);
    means(c, &p, false);
}

static void run_avg_pool_grad(ref_call *c)
{
    pool p = start_pool(c, 2);
    read_axes(c, &p, false);
    for (int a = 0; a < 2; a++) {
        p.axes[a].out = REF_INT(c, 6 + a);
        p.axes[a].in = REF_INT(c, 9 + a);
    }
    p.include_pad = REF_INT(c, 8);
    means(c, &p, true);
}

static void public_mean(ref_call *c, int spatial)
{
    pool p = start_pool(c, spatial);
    read_axes(c, &p, false);
    for (int a = 2 - spatial; a < 2; a++)
        p.axes[a].out = windows(&p.axes[a], REF_INT(c, 3 * spatial) != 0);
    p.include_pad = REF_INT(c, 3 * spatial + 1);
    means(c, &p, false);
}

static void run_avg_pool1d(ref_call *c)
{
    public_mean(c, 1);
}

static void run_avg_pool2d(ref_call *c)
{
    public_mean(c, 2);
}

static pool adaptive(const ref_call *c, int spatial)
{
    pool p = start_pool(c, spatial);
    for (int a = 2 - spatial; a < 2; a++) {
        p.axes[a].adaptive = true;
        p.axes[a].out = REF_INT(c, a - (2 - spatial));
    }
    return p;
}

static void run_adaptive_avg_pool(ref_call *c)
{
    pool p = adaptive(c, 2);
    means(c, &p, false);
}

static void run_adaptive_avg_pool1d(ref_call *c)
{
    pool p = adaptive(c, 1);
    means(c, &p, false);
}

static void run_adaptive_avg_pool_grad(ref_call *c)
{
    pool p = adaptive(c, 2);
    for (int a = 0; a < 2; a++) {
        p.axes[a].out = p.axes[a].in;
        p.axes[a].in = REF_INT(c, a);
    }
    means(c, &p, true);
}

static void run_adaptive_max_pool(ref_call *c)
{
    pool p = adaptive(c, 2);
    maxima(c, &p, true);
}

static void run_adaptive_max_pool1d(ref_call *c)
{
    pool p = adaptive(c, 1);
    maxima(c, &p, false);
}

static void run_adaptive_max_pool2d(ref_call *c)
{
    pool p = adaptive(c, 2);
    maxima(c, &p, false);
}

const ref_entry ref_entries_pool[] = {
    {"max_pool", run_max_pool, 0},
    {"max_pool_grad", run_max_pool_grad, 0},
    {"max_pool1d", run_max_pool1d, 0},
    {"max_pool2d", run_max_pool2d, 0},
    {"avg_pool", run_avg_pool, 0},
    {"avg_pool_grad", run_avg_pool_grad, 0},
    {"avg_pool1d", run_avg_pool1d, 0},
    {"avg_pool2d", run_avg_pool2d, 0},
    {"adaptive_avg_pool", run_adaptive_avg_pool, 0},
    {"adaptive_avg_pool_grad", run_adaptive_avg_pool_grad, 0},
    {"adaptive_avg_pool1d", run_adaptive_avg_pool1d, 0},
    {"adaptive_avg_pool2d", run_adaptive_avg_pool, 0},
    {"adaptive_max_pool", run_adaptive_max_pool, 0},
    {"adaptive_max_pool1d", run_adaptive_max_pool1d, 0},
    {"adaptive_max_pool2d", run_adaptive_max_pool2d, 0},
    {NULL, NULL, 0},
};
