/* layer_norm_rows and its gradient: the nodes behind layer_norm and rms_norm, each one pass over the rows. */
#include <string.h>
#include "ops/helpers.h"
#include "ops/widen.h"

extern const kiln_op kiln_op_layer_norm_rows_grad;

/* One element a row, with n dims of size 1 behind it: the shape that broadcasts with x. */
static kiln_tensor *beside_rows(kiln_tensor *t, int n)
{
    for (int k = 0; t && k < n; k++)
        t = kiln_unsqueeze(t, -1);
    return t;
}

static const int64_t last_dims[KILN_MAX_DIMS] = {-1, -2, -3, -4, -5, -6, -7, -8};

static bool row_shape_fits(const kiln_call *c, int operand, int n)
{
    const kiln_tensor *x = c->in[0], *t = operand < c->nin ? c->in[operand] : NULL;
    return !t ||
           (kiln_check_same_dtype(c, 0, operand) &&
            kiln_check_attr(c, t->ndim == n && !memcmp(t->shape, x->shape + x->ndim - n, (size_t)n * sizeof *t->shape),
                            "operand %d is %s, but must be a row of x %s", operand + 1,
                            kiln_shape_text(t->ndim, t->shape), kiln_shape_text(x->ndim, x->shape)));
}

/* Rows that are only scaled, as in rms_norm: their mean counts as 0. */
static bool is_plain(const kiln_attrs *a)
{
    return a->nints > 1 && a->i[1];
}

/* ---- layer_norm_rows ---- */

/* A row is the last n dims: y = (x - mean)·rstd·weight + bias, weight and bias of a row's shape or absent. Outputs y,
 * and mean and rstd, which have one element a row, in f32 where x is half. */
static bool layer_norm_rows_infer(kiln_call *c)
{
    const kiln_tensor *x = c->in[0];
    int n = (int)c->attrs.i[0];
    if (!kiln_check_attr(c, n >= 1 && n <= x->ndim, "rows of %d dims in x %s", n, kiln_shape_text(x->ndim, x->shape)) ||
        !row_shape_fits(c, 1, n) || !row_shape_fits(c, 2, n))
        return false;
    kiln_desc_like(&c->out[0], x);
    kiln_desc_set(&c->out[1], kiln_wide((kiln_dtype)x->dtype), x->ndim - n, x->shape);
    c->out[2] = c->out[1];
    return true;
}

static bool layer_norm_rows_compose(kiln_call *c, kiln_tensor **out)
{
    kiln_tensor *x = c->in[0], *weight = c->nin > 1 ? c->in[1] : NULL, *bias = c->nin > 2 ? c->in[2] : NULL;
    int n = (int)c->attrs.i[0];
    bool plain = is_plain(&c->attrs);
    kiln_tensor *mean = kiln_mean(x, n, last_dims, true), *d = plain ? x : kiln_sub(x, mean);
    kiln_tensor *rstd = kiln_rsqrt(kiln_add_scalar(kiln_mean(kiln_square(d), n, last_dims, true), c->attrs.f[0]));
    kiln_tensor *y = kiln_mul(d, rstd);
    y = weight ? kiln_mul(y, weight) : y;
    out[0] = bias ? kiln_add(y, bias) : y;
    out[1] = kiln_reshape(plain ? kiln_zeros_like(mean) : mean, c->out[1].ndim, c->out[1].shape);
    out[2] = kiln_reshape(rstd, c->out[2].ndim, c->out[2].shape);
    return out[0] && out[1] && out[2];
}

/* What flows back through mean and rstd as results: dmean/dx = 1/N, or 0 where rows are only scaled, drstd/dx =
 * -rstd³·(x - mean)/N, N elements a row. */
static kiln_tensor *add_figures(kiln_grad_call *g, kiln_tensor *gx)
{
    if (!g->gout[1] && !g->gout[2])
        return gx;
    int n = (int)g->attrs->i[0];
    kiln_tensor *x = kiln_widen(g->in[0]);
    gx = kiln_widen(gx);
    double row = (double)kiln_count(n, x->shape + x->ndim - n);
    if (g->gout[1] && !is_plain(g->attrs))
        gx = kiln_add(gx, kiln_div_scalar(beside_rows(g->gout[1], n), row));
    if (g->gout[2]) {
        kiln_tensor *mean = beside_rows(g->out[1], n), *rstd = beside_rows(g->out[2], n);
        kiln_tensor *each = kiln_mul(beside_rows(g->gout[2], n), kiln_mul(rstd, kiln_square(rstd)));
        gx = kiln_sub(gx, kiln_mul(kiln_sub(x, mean), kiln_div_scalar(each, row)));
    }
    return gx;
}

static bool layer_norm_rows_rule(kiln_grad_call *g)
{
    kiln_dtype dtype = (kiln_dtype)g->in[0]->dtype;
    kiln_tensor *outs[KILN_MAX_OUTPUTS], *gy = g->gout[0] ? g->gout[0] : kiln_zeros_like(g->out[0]);
    kiln_tensor *in[] = {g->in[0], g->out[1], g->out[2], gy, g->nin > 1 ? g->in[1] : NULL};
    if (!kiln_op_call(&kiln_op_layer_norm_rows_grad, in, 5, KILN_I(g->attrs->i[0], is_plain(g->attrs)), outs))
        return false;
    g->gin[0] = kiln_cast(add_figures(g, outs[0]), dtype);
    g->gin[1] = outs[1];
    g->gin[2] = outs[2];
    return g->gin[0] && g->gin[1] && g->gin[2];
}

const kiln_op kiln_op_layer_norm_rows = {
    .name = "layer_norm_rows",
    .attrs = "n plain | eps",
    .cls = KILN_CLASS_ROWS,
    .led = 1,
    .dtypes = KILN_T_FLOATS,
    .min_in = 1,
    .max_in = 3,
    .nout = 3,
    .infer = layer_norm_rows_infer,
    .compose = layer_norm_rows_compose,
    .grad_reads = {KILN_READS_X | KILN_READS_Y | KILN_READS_RESULT},
    .grad = layer_norm_rows_rule,
    .cases = KILN_CASES{"x[5] x[5] x[5] | 1 | 1e-5", "x[2,3] - x[3] | 1 | 1e-5", "x[2,3,4] x[3,4] - | 2 | 1e-3",
                        "x[3,37] x[37] x[37] | 1 | 1e-5", "x[0,3] x[3] x[3] | 1 | 1e-5", "x[5] x[5] - | 1 1 | 1e-5",
                        "x[2,3,4] - x[3,4] | 2 1 | 1e-3", NULL},
};

/* ---- layer_norm_rows_grad ---- */

/* x, mean, rstd (in f32 where x is half), gy, and the weight or nothing -> the gradients of x, weight and bias. */
enum { X, MEAN, RSTD, GY, WEIGHT };

static bool layer_norm_rows_grad_infer(kiln_call *c)
{
    const kiln_tensor *x = c->in[X], *gy = c->in[GY];
    int n = (int)c->attrs.i[0];
    if (!kiln_check_attr(c, n >= 1 && n <= x->ndim, "rows of %d dims in x %s", n, kiln_shape_text(x->ndim, x->shape)) ||
        !kiln_check_same_dtype(c, X, GY) || !row_shape_fits(c, WEIGHT, n) ||
        !kiln_check_attr(c, gy->ndim == x->ndim && !memcmp(gy->shape, x->shape, (size_t)x->ndim * sizeof *x->shape),
                         "the gradient %s must have the shape of x %s", kiln_shape_text(gy->ndim, gy->shape),
                         kiln_shape_text(x->ndim, x->shape)))
        return false;
    for (int k = MEAN; k <= RSTD; k++) {
        const kiln_tensor *t = c->in[k];
        if (!kiln_check_dtype(c, k, UINT32_C(1) << kiln_wide((kiln_dtype)x->dtype)) ||
            !kiln_check_attr(c,
                             t->ndim == x->ndim - n && !memcmp(t->shape, x->shape, (size_t)t->ndim * sizeof *t->shape),
                             "%s %s must have one element for each row of x %s", k == MEAN ? "mean" : "rstd",
                             kiln_shape_text(t->ndim, t->shape), kiln_shape_text(x->ndim, x->shape)))
            return false;
    }
    kiln_desc_like(&c->out[0], x);
    kiln_desc_set(&c->out[1], (kiln_dtype)x->dtype, n, x->shape + x->ndim - n);
    c->out[2] = c->out[1];
    return true;
}

/* With z = (x - mean)·rstd and u = gy·weight: gx = rstd·(u - mean(u) - z·mean(u·z)), gweight = Σ gy·z, gbias = Σ gy.
 * Where rows are only scaled, mean(u) is left out. */
static bool layer_norm_rows_grad_compose(kiln_call *c, kiln_tensor **out)
{
    kiln_tensor *x = c->in[X], *gy = c->in[GY], *weight = c->nin > WEIGHT ? c->in[WEIGHT] : NULL;
    int n = (int)c->attrs.i[0], lead = x->ndim - n;
    static const int64_t leading[KILN_MAX_DIMS] = {0, 1, 2, 3, 4, 5, 6, 7};
    kiln_tensor *rstd = beside_rows(c->in[RSTD], n), *z = kiln_mul(kiln_sub(x, beside_rows(c->in[MEAN], n)), rstd);
    kiln_tensor *u = weight ? kiln_mul(gy, weight) : gy, *along = kiln_mean(kiln_mul(u, z), n, last_dims, true);
    kiln_tensor *less = is_plain(&c->attrs) ? u : kiln_sub(u, kiln_mean(u, n, last_dims, true));
    out[0] = kiln_mul(rstd, kiln_sub(less, kiln_mul(z, along)));
    out[1] = lead ? kiln_sum(kiln_mul(gy, z), lead, leading, false) : kiln_mul(gy, z);
    out[2] = lead ? kiln_sum(gy, lead, leading, false) : kiln_clone(gy);
    return out[0] && out[1] && out[2];
}

const kiln_op kiln_op_layer_norm_rows_grad = {
    .name = "layer_norm_rows_grad",
    .attrs = "n plain",
    .cls = KILN_CLASS_ROWS,
    .led = 1 << X | 1 << GY,
    .dtypes = KILN_T_FLOATS,
    .min_in = 4,
    .max_in = 5,
    .nout = 3,
    .infer = layer_norm_rows_grad_infer,
    .compose = layer_norm_rows_grad_compose,
    .grad = kiln_grad_by_composition,
    .cases = KILN_CASES{"x[5] s[] s[] x[5] x[5] | 1", "x[2,3] s[2] s[2] x[2,3] - | 1",
                        "x[2,3,2] s[2] s[2] x[2,3,2] x[3,2] | 2", "x[3,37] s[3] s[3] x[3,37] x[37] | 1",
                        "x[0,3] s[0] s[0] x[0,3] x[3] | 1", "x[2,3,2] s[2] s[2] x[2,3,2] x[3,2] | 2 1",
                        "x[3,5] s[3] s[3] x[3,5] - | 1 1", NULL},
};
