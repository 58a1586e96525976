/* Padding: by a number (a kernel of its own), or by the tensor's own elements (written with cat). */
#include "ops/helpers.h"
#include "ops/view.h"
#include "ops/widen.h"

static bool infer_constant_pad(kiln_call *c)
{
    const kiln_tensor *x = c->in[0];
    int64_t shape[KILN_MAX_DIMS];
    if (!kiln_check_attr(c, c->attrs.nints == 2 * x->ndim, "%d paddings for %s: each dim needs two", c->attrs.nints,
                         kiln_shape_of(x)))
        return false;
    for (int d = 0; d < x->ndim; d++) {
        int64_t lo = c->attrs.i[2 * d], hi = c->attrs.i[2 * d + 1];
        if (__builtin_add_overflow(x->shape[d], lo, &shape[d]) || __builtin_add_overflow(shape[d], hi, &shape[d]) ||
            shape[d] < 0)
            return kiln_fail(KILN_E_SHAPE, c->op->name, "dim %d of %s cannot be padded by %lld and %lld", d,
                             kiln_shape_of(x), (long long)lo, (long long)hi);
    }
    kiln_desc_set(&c->out[0], (kiln_dtype)x->dtype, x->ndim, shape);
    return true;
}

static bool grad_constant_pad(kiln_grad_call *g)
{
    if (!g->need[0] || !g->gout[0])
        return true;
    extern const kiln_op kiln_op_constant_pad;
    kiln_attrs a = {.nints = g->attrs->nints, .nfloats = 1};
    for (int i = 0; i < a.nints; i++)
        a.i[i] = -g->attrs->i[i];
    g->gin[0] = KILN_OP(constant_pad, KILN_IN(g->gout[0]), &a);
    return g->gin[0] != NULL;
}

const kiln_op kiln_op_constant_pad = {
    .name = "constant_pad",
    .attrs = "lo hi... | value",
    .cls = KILN_CLASS_INDEX,
    .dtypes = KILN_T_ALL,
    .min_in = 1,
    .max_in = 1,
    .infer = infer_constant_pad,
    .grad_reads = {KILN_READS_NOTHING},
    .grad = grad_constant_pad,
    .cases = KILN_CASES{"x[3] | 1 2 | 0", "x[2,3] | 0 1 2 0 | 1", "x[4,5] | -1 2 1 -2 | 1",
                        "x[2,3,4] | 1 1 0 0 -1 -1 | 0", "x[] | | 0", "x[0,2] | 1 1 0 1 | 1", "x[3] | -2 -1 | 0",
                        "x[5,5] | -4 3 -5 6 | 1", "x[30,17,9] | 1 2 3 4 5 6 | 0", NULL},
};

/* What negative paddings leave of a dim. */
static kiln_tensor *cut_dim(kiln_tensor *x, int dim, int64_t lo, int64_t hi)
{
    if (!x || (lo >= 0 && hi >= 0))
        return x;
    return kiln_slice(x, dim, lo < 0 ? -lo : 0, x->shape[dim] + (hi < 0 ? hi : 0), 1);
}

/* One dim of x with its own elements on both sides. */
static kiln_tensor *extend_dim(kiln_tensor *x, kiln_pad_mode mode, int dim, int64_t lo, int64_t hi)
{
    lo = lo < 0 ? 0 : lo;
    hi = hi < 0 ? 0 : hi;
    if (!x || (lo == 0 && hi == 0))
        return x;
    int64_t n = x->shape[dim], flipped[] = {dim}, shape[KILN_MAX_DIMS];
    kiln_tensor *before, *after;
    memcpy(shape, x->shape, sizeof shape);
    switch (mode) {
    case KILN_PAD_REFLECT:
        before = kiln_flip(kiln_slice(x, dim, 1, 1 + lo, 1), 1, flipped);
        after = kiln_flip(kiln_slice(x, dim, n - 1 - hi, n - 1, 1), 1, flipped);
        break;
    case KILN_PAD_REPLICATE:
        shape[dim] = lo;
        before = kiln_expand(kiln_slice(x, dim, 0, 1, 1), x->ndim, shape);
        shape[dim] = hi;
        after = kiln_expand(kiln_slice(x, dim, n - 1, n, 1), x->ndim, shape);
        break;
    default: before = kiln_slice(x, dim, n - lo, n, 1); after = kiln_slice(x, dim, 0, hi, 1);
    }
    return kiln_cat(3, (kiln_tensor *const[]){before, x, after}, dim);
}

/* A negative padding cuts off: first where the dim then goes round in circles, last where it is mirrored or its edge
 * repeated, which what is cut off takes part in. */
static kiln_tensor *pad_dim(kiln_tensor *x, kiln_pad_mode mode, int dim, int64_t lo, int64_t hi)
{
    if (mode == KILN_PAD_CIRCULAR)
        return extend_dim(cut_dim(x, dim, lo, hi), mode, dim, lo, hi);
    return cut_dim(extend_dim(x, mode, dim, lo, hi), dim, lo, hi);
}

/* Integers: the mode, then two paddings a dim, last dim first, for as many dims as are given. */
static bool infer_pad(kiln_call *c)
{
    static const char *const names[] = {"constant", "reflect", "replicate", "circular"};
    const kiln_tensor *x = c->in[0];
    int n = c->attrs.nints - 1;
    int64_t mode = c->attrs.i[0], shape[KILN_MAX_DIMS];
    if (!kiln_check_attr(c, mode >= 0 && mode <= KILN_PAD_CIRCULAR, "mode %lld is no kiln_pad_mode", (long long)mode) ||
        !kiln_check_attr(c, n >= 0 && n % 2 == 0 && n / 2 <= x->ndim, "%d paddings for %s: two a dim, last dim first",
                         n, kiln_shape_of(x)))
        return false;
    memcpy(shape, x->shape, sizeof shape);
    for (int k = 0; k < n / 2; k++) {
        int d = x->ndim - 1 - k;
        int64_t lo = c->attrs.i[1 + 2 * k], hi = c->attrs.i[2 + 2 * k], most = lo > hi ? lo : hi, left = shape[d];
        bool overflow =
            __builtin_add_overflow(shape[d], lo, &shape[d]) || __builtin_add_overflow(shape[d], hi, &shape[d]);
        if (mode == KILN_PAD_CIRCULAR && !overflow)
            left = shape[d] - (lo > 0 ? lo : 0) - (hi > 0 ? hi : 0); /* what is not cut off */
        bool fits = mode == KILN_PAD_CONSTANT || most <= 0 ? true
                    : mode == KILN_PAD_REFLECT             ? most < left
                    : mode == KILN_PAD_REPLICATE           ? left > 0
                                                           : most <= left;
        if (overflow || shape[d] < 0 || !fits)
            return kiln_fail(KILN_E_SHAPE, c->op->name, "dim %d of %s cannot be padded by %lld and %lld in mode %s", d,
                             kiln_shape_of(x), (long long)lo, (long long)hi, names[mode]);
    }
    kiln_desc_set(&c->out[0], (kiln_dtype)x->dtype, x->ndim, shape);
    return true;
}

static bool compose_pad(kiln_call *c, kiln_tensor **out)
{
    kiln_tensor *x = c->in[0];
    int ndim = x->ndim, n = (c->attrs.nints - 1) / 2;
    const int64_t *pad = c->attrs.i + 1;
    if (c->attrs.i[0] == KILN_PAD_CONSTANT) {
        kiln_attrs a = {.nints = 2 * ndim, .nfloats = 1, .f = {c->attrs.f[0]}};
        for (int k = 0; k < n; k++) {
            a.i[2 * (ndim - 1 - k)] = pad[2 * k];
            a.i[2 * (ndim - 1 - k) + 1] = pad[2 * k + 1];
        }
        return (out[0] = KILN_OP(constant_pad, KILN_IN(x), &a)) != NULL;
    }
    x = kiln_widen(x); /* gradients are summed dim by dim */
    for (int k = 0; k < n; k++)
        x = pad_dim(x, (kiln_pad_mode)c->attrs.i[0], ndim - 1 - k, pad[2 * k], pad[2 * k + 1]);
    x = x && x->dtype == c->out[0].dtype ? kiln_clone(x) : kiln_cast(x, c->out[0].dtype);
    return (out[0] = x) != NULL; /* a copy, also where there is nothing to add */
}

const kiln_op kiln_op_pad = {
    .name = "pad",
    .attrs = "mode pad... | value",
    .cls = KILN_CLASS_COMPOSITE,
    .dtypes = KILN_T_ALL,
    .min_in = 1,
    .max_in = 1,
    .keeps_half = true,
    .infer = infer_pad,
    .compose = compose_pad,
    .cases = KILN_CASES{"x[2,3] | 0 1 2 | 1", "x[2,3,4] | 0 1 -1 0 2 | 0", "x[2,5] | 1 2 3 | 0",
                        "x[2,3,4] | 1 3 1 2 0 | 0", "x[2,3] | 2 2 3 | 0", "x[2,3,4] | 2 1 1 2 0 | 0",
                        "x[2,3] | 3 3 2 | 0", "x[2,3,4] | 3 1 4 3 0 | 0", "x[4,5] | 1 -1 2 | 0", "x[4,5] | 3 2 -2 | 0",
                        "x[] | 0 | 0", "x[0,3] | 2 1 1 | 0", "x[2,20,31] | 1 5 7 3 2 | 0", NULL},
};

kiln_tensor *kiln_pad(kiln_tensor *x, int n, const int64_t *pad, kiln_pad_mode mode, double value)
{
    if (!kiln_check_list("pad", n, pad, 2 * KILN_MAX_DIMS) ||
        (x && mode == KILN_PAD_CONSTANT && !kiln_check_number("pad", value, (kiln_dtype)x->dtype)))
        return NULL;
    kiln_attrs a = {.nints = n + 1, .i = {mode}, .nfloats = 1, .f = {value}};
    for (int i = 0; i < n; i++)
        a.i[i + 1] = pad[i];
    return KILN_OP(pad, KILN_IN(x), &a);
}
