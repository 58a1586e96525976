/* Running sums, products and linear recurrences along a dim. */
#include "ops/helpers.h"
#include "ops/widen.h"

extern const kiln_op kiln_op_linear_recurrence;

static bool infer_scan(kiln_call *c)
{
    if (!kiln_check_dim(c, &c->attrs.i[0], c->in[0]->ndim))
        return false;
    kiln_desc_like(&c->out[0], c->in[0]);
    return true;
}

/* Integers and bools are counted in i64, as PyTorch does. */
static kiln_tensor *countable(kiln_tensor *x)
{
    return x && !kiln_dtype_is_float((kiln_dtype)x->dtype) ? kiln_cast(x, KILN_I64) : x;
}

#define SCAN_CASES                                                                                                     \
    KILN_CASES                                                                                                         \
    {                                                                                                                  \
        "x[5] | 0", "x[3,4] | 0", "x[3,4] | -1", "x[2,5,3] | 1", "x[] | 0", "x[1] | 0", "x[0,3] | 1", "x[3,0] | 1",    \
            "x[4,33] | 1", "x[17,70] | 0", NULL                                                                        \
    }

/* Each element is part of all sums from its own on: the sums of the gradient from the other end. */
static bool grad_cumsum(kiln_grad_call *g)
{
    if (!g->need[0] || !g->gout[0])
        return true;
    const int64_t dim = g->attrs->i[0];
    kiln_tensor *turned = kiln_cumsum(kiln_flip(g->gout[0], 1, &dim), (int)dim);
    g->gin[0] = kiln_flip(turned, 1, &dim);
    return g->gin[0] != NULL;
}

const kiln_op kiln_op_cumsum = {
    .name = "cumsum",
    .attrs = "dim",
    .cls = KILN_CLASS_SCAN,
    .autocast = KILN_CAST_FLOAT,
    .dtypes = KILN_T_FLOATS | 1 << KILN_I64,
    .min_in = 1,
    .max_in = 1,
    .infer = infer_scan,
    .grad_reads = {KILN_READS_NOTHING},
    .grad = grad_cumsum,
    .cases = SCAN_CASES,
};

kiln_tensor *kiln_cumsum(kiln_tensor *x, int dim)
{
    KILN_TIDY;
    return KILN_KEPT(KILN_OP(cumsum, KILN_IN(countable(x)), KILN_I(dim)));
}

/* ---- Linear recurrences ---- */

static bool infer_recurrence(kiln_call *c)
{
    const kiln_tensor *a = c->in[0], *b = c->in[1];
    bool alike = a->dtype == b->dtype && a->ndim == b->ndim;
    for (int d = 0; alike && d < a->ndim; d++)
        alike = a->shape[d] == b->shape[d];
    if (!alike)
        return kiln_fail(KILN_E_SHAPE, c->op->name, "factors and terms must be of one shape and type");
    return infer_scan(c);
}

/* x moved by `by` places along dim; `value` comes in at the end where it is missing. */
static kiln_tensor *moved(kiln_tensor *x, int dim, int64_t by, double value)
{
    int64_t pad[2 * KILN_MAX_DIMS] = {0};
    int place = 2 * (x->ndim - 1 - dim);
    pad[place] = by;
    pad[place + 1] = -by;
    return kiln_pad(x, place + 2, pad, KILN_PAD_CONSTANT, value);
}

/* For devices without a kernel: what is n places away joins what is nearer, n = 1, 2, 4, … */
static bool compose_recurrence(kiln_call *c, kiln_tensor **out)
{
    int dim = (int)c->attrs.i[0];
    bool backward = c->attrs.i[1];
    kiln_tensor *a = c->in[0], *s = c->in[1];
    if (a->ndim == 0)
        return (out[0] = kiln_clone(s)) != NULL;
    if (backward)
        a = moved(a, dim, -1, 0);
    for (int64_t n = 1; a && s && n < s->shape[dim]; n *= 2) {
        int64_t by = backward ? -n : n;
        kiln_tensor *next = kiln_add(s, kiln_mul(a, moved(s, dim, by, 0)));
        a = kiln_mul(a, moved(a, dim, by, 0));
        s = next;
    }
    out[0] = s == c->in[1] ? kiln_clone(s) : s;
    return out[0] != NULL;
}

/* The recurrence in the other direction brings the gradient from where it arises to where it belongs. */
static bool grad_recurrence(kiln_grad_call *g)
{
    if (!g->gout[0])
        return true;
    kiln_tensor *a = g->in[0], *s = g->out[0];
    int dim = (int)g->attrs->i[0];
    bool backward = g->attrs->i[1];
    kiln_tensor *back = KILN_OP(linear_recurrence, KILN_IN(a, g->gout[0]), KILN_I(dim, !backward));
    g->gin[1] = g->need[1] ? back : NULL;
    if (!back || !g->need[0])
        return back != NULL;
    if (a->ndim == 0) /* no factor is used */
        g->gin[0] = kiln_zeros_like(a);
    else if (backward)
        g->gin[0] = kiln_mul(moved(back, dim, 1, 0), s);
    else
        g->gin[0] = kiln_mul(back, moved(s, dim, 1, 0));
    return g->gin[0] != NULL;
}

/* s[i] = b[i] + a[i]·s[i-1] along dim; backward s[i] = b[i] + a[i+1]·s[i+1]. Neither uses a[0]. */
const kiln_op kiln_op_linear_recurrence = {
    .name = "linear_recurrence",
    .attrs = "dim backward",
    .cls = KILN_CLASS_SCAN,
    .dtypes = KILN_T_FLOATS,
    .min_in = 2,
    .max_in = 2,
    .infer = infer_recurrence,
    .compose = compose_recurrence,
    .grad_reads = {KILN_READS_X | KILN_READS_RESULT, KILN_READS_X},
    .grad = grad_recurrence,
    .cases = KILN_CASES{"x[5] x[5] | 0 0", "x[5] x[5] | 0 1", "x[3,4] x[3,4] | 0 0", "x[3,4] x[3,4] | -1 1",
                        "x[2,5,3] x[2,5,3] | 1 0", "x[2,5,3] x[2,5,3] | 1 1", "x[] x[] | 0 0", "x[1] x[1] | 0 1",
                        "x[0,3] x[0,3] | 1 0", "x[3,0] x[3,0] | 1 1", "x[4,33] x[4,33] | 1 0",
                        "x[17,70] x[17,70] | 0 1", "x[37,9] x[37,9] | 1 1", NULL},
};

/* ---- Running products ---- */

/* d y[i] / d x[k] for i from k on is the product of x[0 … i] without x[k]: that of what stands before k, which is
 * y[k-1], times that of what stands between k and i. Nothing is divided, so zeros do no harm. */
static bool grad_cumprod(kiln_grad_call *g)
{
    if (!g->need[0] || !g->gout[0])
        return true;
    kiln_tensor *x = kiln_widen(g->in[0]), *y = kiln_widen(g->out[0]), *gy = kiln_widen(g->gout[0]);
    if (!x || !y || !gy)
        return false;
    int dim = (int)g->attrs->i[0];
    if (x->ndim == 0)
        return (g->gin[0] = gy) != NULL;
    g->gin[0] = kiln_mul(moved(y, dim, 1, 1), KILN_OP(linear_recurrence, KILN_IN(x, gy), KILN_I(dim, 1)));
    return g->gin[0] != NULL;
}

const kiln_op kiln_op_cumprod = {
    .name = "cumprod",
    .attrs = "dim",
    .cls = KILN_CLASS_SCAN,
    .autocast = KILN_CAST_FLOAT,
    .dtypes = KILN_T_FLOATS | 1 << KILN_I64,
    .min_in = 1,
    .max_in = 1,
    .infer = infer_scan,
    .grad_reads = {KILN_READS_X | KILN_READS_RESULT},
    .grad = grad_cumprod,
    .cases = SCAN_CASES,
};

kiln_tensor *kiln_cumprod(kiln_tensor *x, int dim)
{
    KILN_TIDY;
    return KILN_KEPT(KILN_OP(cumprod, KILN_IN(countable(x)), KILN_I(dim)));
}

const kiln_op *const kiln_ops_scan[] = {&kiln_op_cumsum, &kiln_op_cumprod, &kiln_op_linear_recurrence, NULL};
