/* Softmax and normalisation. softmax, log_softmax and normalize_rows are nodes, since a kernel that holds a row beats
 * any composition; group, RMS and batch norm are written with them and with reductions, layer norm with a node of its
 * own (layer_norm.c). */
#include <string.h>
#include "ops/part.h"
#include "ops/widen.h"

extern const kiln_op kiln_op_layer_norm_rows, kiln_op_layer_norm_rows_grad;

/* ---- softmax, log_softmax ---- */

static bool softmax_infer(kiln_call *c)
{
    if (!kiln_check_dim(c, &c->attrs.i[0], c->in[0]->ndim))
        return false;
    kiln_desc_like(&c->out[0], c->in[0]);
    return true;
}

/* x less its largest element along dim, which changes neither result nor gradient and keeps exp from overflowing. */
static kiln_tensor *shifted(kiln_tensor *x, int64_t dim)
{
    kiln_tensor *largest = NULL;
    if (x && kiln_numel(x) == 0)
        return x;
    kiln_no_grad
        largest = kiln_amax(x, 1, &dim, true);
    return kiln_sub(x, largest);
}

/* For devices without a kernel. */
static bool softmax_compose(kiln_call *c, kiln_tensor **out)
{
    int64_t dim = c->attrs.i[0];
    kiln_tensor *e = kiln_exp(shifted(c->in[0], dim));
    out[0] = kiln_div(e, kiln_sum(e, 1, &dim, true));
    return out[0] != NULL;
}

static bool softmax_grad(kiln_grad_call *g)
{
    kiln_tensor *y = kiln_widen(g->out[0]), *gy = kiln_widen(g->gout[0]);
    kiln_tensor *along = kiln_sum(kiln_mul(gy, y), 1, &g->attrs->i[0], true);
    g->gin[0] = kiln_cast(kiln_mul(y, kiln_sub(gy, along)), (kiln_dtype)g->out[0]->dtype);
    return g->gin[0] != NULL;
}

static bool log_softmax_compose(kiln_call *c, kiln_tensor **out)
{
    int64_t dim = c->attrs.i[0];
    kiln_tensor *d = shifted(c->in[0], dim);
    out[0] = kiln_sub(d, kiln_log(kiln_sum(kiln_exp(d), 1, &dim, true)));
    return out[0] != NULL;
}

static bool log_softmax_grad(kiln_grad_call *g)
{
    kiln_tensor *y = kiln_widen(g->out[0]), *gy = kiln_widen(g->gout[0]);
    kiln_tensor *along = kiln_sum(gy, 1, &g->attrs->i[0], true);
    g->gin[0] = kiln_cast(kiln_sub(gy, kiln_mul(kiln_exp(y), along)), (kiln_dtype)g->out[0]->dtype);
    return g->gin[0] != NULL;
}

static const char *const softmax_cases[] = {
    "x[5] | 0", "x[2,3] | -1", "x[2,3] | 0", "x[2,3,4] | 1", "x[3,1] | 1", "x[] | 0", "x[0,3] | 1", "x[3,37] | 1", NULL,
};

const kiln_op kiln_op_softmax = {
    .name = "softmax",
    .attrs = "dim",
    .cls = KILN_CLASS_ROWS,
    .along = 1,
    .autocast = KILN_CAST_FLOAT,
    .dtypes = KILN_T_FLOATS,
    .min_in = 1,
    .max_in = 1,
    .infer = softmax_infer,
    .compose = softmax_compose,
    .grad_reads = {KILN_READS_RESULT},
    .grad = softmax_grad,
    .cases = softmax_cases,
};

const kiln_op kiln_op_log_softmax = {
    .name = "log_softmax",
    .attrs = "dim",
    .cls = KILN_CLASS_ROWS,
    .along = 1,
    .autocast = KILN_CAST_FLOAT,
    .dtypes = KILN_T_FLOATS,
    .min_in = 1,
    .max_in = 1,
    .grad_skips = KILN_SKIPS_OPERANDS,
    .infer = softmax_infer,
    .compose = log_softmax_compose,
    .grad = log_softmax_grad,
    .cases = softmax_cases,
};

kiln_tensor *kiln_softmax(kiln_tensor *x, int dim)
{
    return KILN_OP(softmax, KILN_IN(x), KILN_I(dim));
}

kiln_tensor *kiln_log_softmax(kiln_tensor *x, int dim)
{
    return KILN_OP(log_softmax, KILN_IN(x), KILN_I(dim));
}

/* ---- normalize_rows ---- */

/* A row is the last n dims: y = (x - mean)·rstd with rstd = 1 / sqrt(biased variance + eps). Outputs y, mean, rstd; the
 * last two have one element a row. */
static bool normalize_rows_infer(kiln_call *c)
{
    const kiln_tensor *x = c->in[0];
    int64_t n = c->attrs.i[0];
    if (!kiln_check_attr(c, n >= 1 && n <= x->ndim, "rows of %lld dims in x %s", (long long)n,
                         kiln_shape_text(x->ndim, x->shape)))
        return false;
    kiln_desc_like(&c->out[0], x);
    kiln_desc_set(&c->out[1], (kiln_dtype)x->dtype, x->ndim - (int)n, x->shape);
    c->out[2] = c->out[1];
    return true;
}

static kiln_tensor *mean_of_rows(kiln_tensor *x, int n)
{
    static const int64_t dims[KILN_MAX_DIMS] = {-1, -2, -3, -4, -5, -6, -7, -8};
    return kiln_mean(x, n, dims, true);
}

/* One element a row, with n dims of size 1 behind it: the shape that broadcasts with x. */
static kiln_tensor *beside_rows(kiln_tensor *t, int n)
{
    int64_t shape[KILN_MAX_DIMS];
    if (!t)
        return NULL;
    for (int d = 0; d < t->ndim + n; d++)
        shape[d] = d < t->ndim ? t->shape[d] : 1;
    return kiln_reshape(t, t->ndim + n, shape);
}

static bool normalize_rows_compose(kiln_call *c, kiln_tensor **out)
{
    kiln_tensor *x = c->in[0];
    int n = (int)c->attrs.i[0];
    kiln_tensor *mean = mean_of_rows(x, n), *d = kiln_sub(x, mean);
    kiln_tensor *rstd = kiln_rsqrt(kiln_add_scalar(mean_of_rows(kiln_square(d), n), c->attrs.f[0]));
    out[0] = kiln_mul(d, rstd);
    out[1] = kiln_reshape(mean, c->out[1].ndim, c->out[1].shape);
    out[2] = kiln_reshape(rstd, c->out[2].ndim, c->out[2].shape);
    return out[0] && out[1] && out[2];
}

/* dy[i]/dx[j] = rstd·(δij - 1/N - y[i]·y[j]/N),  dmean/dx[j] = 1/N,  drstd/dx[j] = -rstd²·y[j]/N,  N elements a row. */
static bool normalize_rows_grad(kiln_grad_call *g)
{
    int n = (int)g->attrs->i[0];
    const kiln_tensor *x = g->in[0];
    int64_t row = kiln_count(n, x->shape + x->ndim - n);
    kiln_tensor *y = kiln_widen(g->out[0]), *rstd = kiln_widen(beside_rows(g->out[2], n)), *sum = NULL;
    if (g->gout[0]) {
        kiln_tensor *gy = kiln_widen(g->gout[0]), *along = mean_of_rows(kiln_mul(gy, y), n);
        sum = kiln_mul(rstd, kiln_sub(kiln_sub(gy, mean_of_rows(gy, n)), kiln_mul(y, along)));
        if (!sum)
            return false;
    }
    if (g->gout[1]) {
        kiln_tensor *part = kiln_div_scalar(beside_rows(g->gout[1], n), (double)row);
        sum = sum ? kiln_add(sum, part) : kiln_expand(part, x->ndim, x->shape);
        if (!sum)
            return false;
    }
    if (g->gout[2]) {
        kiln_tensor *each = kiln_mul(beside_rows(g->gout[2], n), kiln_square(rstd));
        kiln_tensor *part = kiln_mul(y, kiln_div_scalar(each, -(double)row));
        sum = sum ? kiln_add(sum, part) : part;
        if (!sum)
            return false;
    }
    g->gin[0] = sum;
    return true;
}

const kiln_op kiln_op_normalize_rows = {
    .name = "normalize_rows",
    .attrs = "n | eps",
    .cls = KILN_CLASS_ROWS,
    .led = 1,
    .autocast = KILN_CAST_FLOAT,
    .dtypes = KILN_T_FLOATS,
    .min_in = 1,
    .max_in = 1,
    .nout = 3,
    .infer = normalize_rows_infer,
    .compose = normalize_rows_compose,
    .grad_reads = {KILN_READS_RESULT},
    .grad = normalize_rows_grad,
    .cases = KILN_CASES{"x[5] | 1 | 1e-5", "x[2,3] | 1 | 1e-5", "x[2,3,4] | 2 | 1e-3", "x[3,37] | 1 | 1e-5",
                        "x[0,3] | 1 | 1e-5", NULL},
};

static kiln_tensor *normalize_rows(kiln_tensor *x, int n, double eps)
{
    kiln_tensor *outs[KILN_MAX_OUTPUTS] = {NULL};
    kiln_attrs a = {.nints = 1, .nfloats = 1, .i = {n}, .f = {eps}};
    return kiln_op_call(&kiln_op_normalize_rows, KILN_IN(x), &a, outs) ? outs[0] : NULL;
}

/* y·weight + bias, either of which may be absent, seen in the given shape and in y's type. */
static kiln_tensor *scale_and_shift(kiln_tensor *y, kiln_tensor *weight, kiln_tensor *bias, int n, const int64_t *shape)
{
    if (!y)
        return NULL;
    if (weight)
        y = kiln_mul(y, kiln_reshape(kiln_cast(weight, (kiln_dtype)y->dtype), n, shape));
    if (bias && y)
        y = kiln_add(y, kiln_reshape(kiln_cast(bias, (kiln_dtype)y->dtype), n, shape));
    return y;
}

/* ---- layer_norm, rms_norm ---- */

/* The integers are the normalised shape: x ends with it, and weight and bias have it. */
static bool row_norm_infer(kiln_call *c)
{
    const kiln_tensor *x = c->in[0];
    int n = c->attrs.nints;
    const int64_t *shape = c->attrs.i;
    if (n < 1 || n > x->ndim || memcmp(x->shape + x->ndim - n, shape, (size_t)n * sizeof *shape))
        return kiln_fail(KILN_E_SHAPE, c->op->name, "x %s does not end with the normalised shape %s",
                         kiln_shape_text(x->ndim, x->shape), kiln_shape_text(n, shape));
    for (int k = 1; k < c->nin; k++) {
        const kiln_tensor *t = c->in[k];
        if (t && (t->ndim != n || memcmp(t->shape, shape, (size_t)n * sizeof *shape)))
            return kiln_fail(KILN_E_SHAPE, c->op->name, "%s %s must have the normalised shape %s",
                             k == 1 ? "weight" : "bias", kiln_shape_text(t->ndim, t->shape), kiln_shape_text(n, shape));
    }
    kiln_desc_like(&c->out[0], x);
    return true;
}

/* One node, whose kernel may take half precision, where all operands are of one type; otherwise what is half becomes
 * f32. */
static bool row_norm_compose(kiln_call *c, bool plain, kiln_tensor **out)
{
    bool same = true;
    for (int k = 1; k < c->nin; k++)
        same &= !c->in[k] || c->in[k]->dtype == c->in[0]->dtype;
    kiln_tensor *in[3] = {same ? c->in[0] : kiln_widen(c->in[0])}, *outs[KILN_MAX_OUTPUTS];
    kiln_attrs a = {.nints = 2, .nfloats = 1, .i = {c->attrs.nints, plain}, .f = {c->attrs.f[0]}};
    for (int k = 1; in[0] && k < c->nin; k++)
        if (c->in[k] && !(in[k] = kiln_cast(c->in[k], (kiln_dtype)in[0]->dtype)))
            return false;
    if (!kiln_op_call(&kiln_op_layer_norm_rows, in, 3, &a, outs))
        return false;
    out[0] = kiln_cast(outs[0], c->out[0].dtype);
    return out[0] != NULL;
}

static bool layer_norm_compose(kiln_call *c, kiln_tensor **out)
{
    return row_norm_compose(c, false, out);
}

static bool rms_norm_compose(kiln_call *c, kiln_tensor **out)
{
    return row_norm_compose(c, true, out);
}

const kiln_op kiln_op_layer_norm = {
    .name = "layer_norm",
    .attrs = "shape... | eps",
    .cls = KILN_CLASS_COMPOSITE,
    .autocast = KILN_CAST_FLOAT,
    .dtypes = KILN_T_FLOATS,
    .min_in = 1,
    .max_in = 3,
    .keeps_half = true,
    .infer = row_norm_infer,
    .compose = layer_norm_compose,
    .cases = KILN_CASES{"x[2,5] x[5] x[5] | 5 | 1e-5", "x[2,5] - - | 5 | 1e-5", "x[2,3,4] x[3,4] - | 3 4 | 1e-5",
                        "x[3,2,4] - x[4] | 4 | 1e-3", "x[0,4] x[4] x[4] | 4 | 1e-5", NULL},
};

const kiln_op kiln_op_rms_norm = {
    .name = "rms_norm",
    .attrs = "shape... | eps",
    .cls = KILN_CLASS_COMPOSITE,
    .dtypes = KILN_T_FLOATS,
    .min_in = 1,
    .max_in = 2,
    .keeps_half = true,
    .infer = row_norm_infer,
    .compose = rms_norm_compose,
    .cases = KILN_CASES{"x[2,5] x[5] | 5 | 1e-5", "x[2,5] - | 5 | 1e-5", "x[2,3,4] x[3,4] | 3 4 | 1e-3", NULL},
};

/* Attributes "shape... | eps"; false with an error when the list cannot be one. */
static bool shape_attrs(const char *op, int n, const int64_t *shape, double eps, kiln_attrs *a)
{
    if (n < 1 || n > KILN_MAX_DIMS || !shape)
        return kiln_fail(KILN_E_ARGUMENT, op, "a normalised shape of %d dims; it takes 1 to %d", n, KILN_MAX_DIMS);
    *a = (kiln_attrs){.nints = n, .nfloats = 1, .f = {eps}};
    memcpy(a->i, shape, (size_t)n * sizeof *shape);
    return true;
}

kiln_tensor *kiln_layer_norm(kiln_tensor *x, int n, const int64_t *normalized_shape, kiln_tensor *weight,
                             kiln_tensor *bias, double eps)
{
    kiln_attrs a;
    if (!shape_attrs("layer_norm", n, normalized_shape, eps, &a))
        return NULL;
    return KILN_OP(layer_norm, KILN_IN(x, weight, bias), &a);
}

kiln_tensor *kiln_rms_norm(kiln_tensor *x, int n, const int64_t *normalized_shape, kiln_tensor *weight, double eps)
{
    kiln_attrs a;
    if (!shape_attrs("rms_norm", n, normalized_shape, eps, &a))
        return NULL;
    return KILN_OP(rms_norm, KILN_IN(x, weight), &a);
}

/* ---- group_norm, batch_norm ---- */

/* Operands from 1 on have one element a channel. */
static bool check_channels(const kiln_call *c)
{
    static const char *const batch[] = {"", "running_mean", "running_var", "weight", "bias"};
    static const char *const group[] = {"", "weight", "bias"};
    if (!kiln_check_ndim(c, 0, 2, KILN_MAX_DIMS))
        return false;
    for (int k = 1; k < c->nin; k++) {
        const kiln_tensor *t = c->in[k], *x = c->in[0];
        if (t && (t->ndim != 1 || t->shape[0] != x->shape[1]))
            return kiln_fail(KILN_E_SHAPE, c->op->name,
                             "%s %s must have one element for each of the %lld channels of x %s",
                             (c->nin > 3 ? batch : group)[k], kiln_shape_text(t->ndim, t->shape),
                             (long long)x->shape[1], kiln_shape_text(x->ndim, x->shape));
    }
    return true;
}

/* [C, 1, 1, …]: broadcasts with [N, C, …]. */
static void channel_shape(const kiln_tensor *x, int64_t *shape)
{
    shape[0] = x->shape[1];
    for (int d = 2; d < x->ndim; d++)
        shape[d - 1] = 1;
}

static bool group_norm_infer(kiln_call *c)
{
    const kiln_tensor *x = c->in[0];
    int64_t groups = c->attrs.i[0];
    if (!check_channels(c) ||
        !kiln_check_attr(c, groups >= 1 && x->shape[1] % groups == 0,
                         "%lld channels of x %s do not divide into %lld groups", (long long)x->shape[1],
                         kiln_shape_text(x->ndim, x->shape), (long long)groups))
        return false;
    kiln_desc_like(&c->out[0], x);
    return true;
}

static bool group_norm_compose(kiln_call *c, kiln_tensor **out)
{
    kiln_tensor *x = c->in[0];
    int64_t groups = c->attrs.i[0], shape[KILN_MAX_DIMS];
    int64_t row = kiln_count(x->ndim - 1, x->shape + 1) / groups;
    kiln_tensor *rows = kiln_reshape(x, 3, (int64_t[]){x->shape[0], groups, row});
    kiln_tensor *y = kiln_reshape(normalize_rows(rows, 1, c->attrs.f[0]), x->ndim, x->shape);
    channel_shape(x, shape);
    out[0] = scale_and_shift(y, c->in[1], c->in[2], x->ndim - 1, shape);
    return out[0] != NULL;
}

const kiln_op kiln_op_group_norm = {
    .name = "group_norm",
    .attrs = "groups | eps",
    .cls = KILN_CLASS_COMPOSITE,
    .autocast = KILN_CAST_FLOAT,
    .dtypes = KILN_T_FLOATS,
    .min_in = 1,
    .max_in = 3,
    .infer = group_norm_infer,
    .compose = group_norm_compose,
    .cases = KILN_CASES{"x[2,4,3] x[4] x[4] | 2 | 1e-5", "x[2,4] - - | 2 | 1e-5", "x[2,6,2,2] x[6] - | 3 | 1e-3",
                        "x[1,3,4] - x[3] | 1 | 1e-5", NULL},
};

kiln_tensor *kiln_group_norm(kiln_tensor *x, int64_t groups, kiln_tensor *weight, kiln_tensor *bias, double eps)
{
    kiln_attrs a = {.nints = 1, .nfloats = 1, .i = {groups}, .f = {eps}};
    return KILN_OP(group_norm, KILN_IN(x, weight, bias), &a);
}

static int64_t values_per_channel(const kiln_tensor *x)
{
    return x->shape[0] * kiln_count(x->ndim - 2, x->shape + 2);
}

static bool batch_norm_infer(kiln_call *c)
{
    const kiln_tensor *x = c->in[0];
    kiln_desc_like(&c->out[0], x);
    if (x->ndim == 1 && x->shape[0] == 0) /* PyTorch lets this one pass: no channels at all */
        return true;
    if (!check_channels(c))
        return false;
    if (c->attrs.i[0] && values_per_channel(x) == 1) {
        kiln_fail(KILN_E_SHAPE, c->op->name, "x %s has one value a channel, training needs two",
                  kiln_shape_text(x->ndim, x->shape));
        return kiln_hint("use a larger batch, or evaluation mode");
    }
    return kiln_check_attr(c, !c->in[1] == !c->in[2], "running_mean and running_var are given both or not at all") &&
           kiln_check_attr(c, c->attrs.i[0] || c->in[1], "evaluation needs running_mean and running_var");
}

/* running = (1 - momentum)·running + momentum·scale·batch */
static bool update_running(kiln_tensor *running, kiln_tensor *batch, double momentum, double scale)
{
    bool done = true;
    if (running)
        kiln_no_grad {
            kiln_tensor *fresh = kiln_mul_scalar(kiln_reshape(batch, 1, running->shape), momentum * scale);
            done = kiln_assign(running, kiln_add(kiln_mul_scalar(running, 1 - momentum), fresh));
        }
    return done;
}

/* y = (x - mean)·scale + shift with scale = weight·rstd, by the batch's own figures, which also go into the running
 * ones (the variance unbiased).
 *
 * Gradients are to take two sums over x, not four. So x is centred around a constant k, which happens to be the mean:
 * var = mean((x - k)²) - (mean - k)² and y = (x - k)·scale + (bias - (mean - k)·scale) hold for any k, and what the
 * gradient owes to the mean is then computed with one element a channel. */
static kiln_tensor *normalize_by_batch(const kiln_call *c, kiln_tensor *x, kiln_tensor *weight, kiln_tensor *bias)
{
    double momentum = c->attrs.f[0], eps = c->attrs.f[1];
    int64_t dims[KILN_MAX_DIMS] = {0};
    if (!x)
        return NULL;
    for (int d = 2; d < x->ndim; d++)
        dims[d - 1] = d;
    kiln_tensor *mean = kiln_mean(x, x->ndim - 1, dims, true), *k = kiln_detach(mean);
    kiln_tensor *centred = kiln_sub(x, k), *off = kiln_sub(mean, k);
    kiln_tensor *var = kiln_sub(kiln_mean(kiln_square(centred), x->ndim - 1, dims, true), kiln_square(off));
    double n = (double)values_per_channel(x);
    if (!update_running(c->in[1], mean, momentum, 1) || !update_running(c->in[2], var, momentum, n / (n - 1)))
        return NULL;
    kiln_tensor *scale = kiln_rsqrt(kiln_add_scalar(var, eps));
    if (weight)
        scale = kiln_mul(scale, weight);
    kiln_tensor *shift = kiln_mul(off, scale);
    return kiln_add(kiln_mul(centred, scale), bias ? kiln_sub(bias, shift) : kiln_neg(shift));
}

static kiln_tensor *for_channels(kiln_tensor *t, kiln_tensor *x, int n, const int64_t *shape)
{
    return t && x ? kiln_reshape(kiln_cast(t, (kiln_dtype)x->dtype), n, shape) : NULL;
}

static bool batch_norm_compose(kiln_call *c, kiln_tensor **out)
{
    if (kiln_numel(c->in[0]) == 0) /* there is nothing to learn from it, and nothing to normalise */
        return (out[0] = kiln_clone(c->in[0])) != NULL;
    kiln_tensor *x = kiln_widen(c->in[0]), *y;
    int64_t shape[KILN_MAX_DIMS];
    int n = c->in[0]->ndim - 1;
    channel_shape(c->in[0], shape);
    if (c->attrs.i[0]) {
        y = normalize_by_batch(c, x, for_channels(c->in[3], x, n, shape), for_channels(c->in[4], x, n, shape));
    } else {
        kiln_tensor *mean = kiln_widen(c->in[1]), *var = kiln_widen(c->in[2]);
        kiln_tensor *rstd = kiln_rsqrt(kiln_add_scalar(var, c->attrs.f[1]));
        y = kiln_mul(kiln_sub(x, kiln_reshape(mean, n, shape)), kiln_reshape(rstd, n, shape));
        y = scale_and_shift(y, c->in[3], c->in[4], n, shape);
    }
    out[0] = kiln_cast(y, c->out[0].dtype);
    return out[0] != NULL;
}

/* Operands: x, running_mean, running_var, weight, bias. The running figures change in training, so the cases train
 * without them. */
const kiln_op kiln_op_batch_norm = {
    .name = "batch_norm",
    .attrs = "training | momentum eps",
    .cls = KILN_CLASS_COMPOSITE,
    .dtypes = KILN_T_FLOATS,
    .min_in = 1,
    .max_in = 5,
    .keeps_half = true, /* it widens by itself: the running figures are changed in place */
    .infer = batch_norm_infer,
    .compose = batch_norm_compose,
    .cases = KILN_CASES{"x[4,3] - - x[3] x[3] | 1 | 0.1 1e-5", "x[2,3,2,2] - - - - | 1 | 0.1 1e-5",
                        "x[2,3,5] - - x[3] - | 1 | 0.1 1e-3", "x[2,3,2,2] x[3] q[3] x[3] x[3] | 0 | 0.1 1e-5",
                        "x[1,4] x[4] q[4] - - | 0 | 0.1 1e-3", NULL},
};

kiln_tensor *kiln_batch_norm(kiln_tensor *x, kiln_tensor *running_mean, kiln_tensor *running_var, kiln_tensor *weight,
                             kiln_tensor *bias, bool training, double momentum, double eps)
{
    kiln_attrs a = {.nints = 1, .nfloats = 2, .i = {training}, .f = {momentum, eps}};
    if (training)
        kiln_part_mixes();
    return KILN_OP(batch_norm, KILN_IN(x, running_mean, running_var, weight, bias), &a);
}

const kiln_op *const kiln_ops_norm[] = {
    &kiln_op_softmax,
    &kiln_op_log_softmax,
    &kiln_op_normalize_rows,
    &kiln_op_layer_norm,
    &kiln_op_rms_norm,
    &kiln_op_group_norm,
    &kiln_op_batch_norm,
    &kiln_op_layer_norm_rows,
    &kiln_op_layer_norm_rows_grad,
    NULL,
};
