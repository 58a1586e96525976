/* Reductions: sum, product, extremes and logic are nodes; mean, variance, norms and logsumexp are written with them.
 * Their integers end with "keepdim dims...": the rule lists every reduced dim, in order, so that equal calls are equal.
 */
#include <math.h>
#include "ops/helpers.h"
#include "ops/widen.h"

/* ---- Shapes ---- */

/* Normalises the dims that stand in the integers from `first` on (none given: all) and describes the output. */
static bool reduce_rule(kiln_call *c, int first, kiln_dtype dtype)
{
    const kiln_tensor *x = c->in[0];
    kiln_attrs *a = &c->attrs;
    for (; a->nints < first; a->nints++)
        a->i[a->nints] = 0;
    bool all = a->nints == first, listed[KILN_MAX_DIMS] = {false};
    for (int k = first; k < a->nints; k++) {
        int64_t dim = a->i[k];
        if (!kiln_check_dim(c, &dim, x->ndim) ||
            !kiln_check_attr(c, !listed[dim], "dim %lld of x %s is listed twice", (long long)a->i[k],
                             kiln_shape_text(x->ndim, x->shape)))
            return false;
        listed[dim] = true;
    }
    bool keepdim = a->i[first - 1] != 0;
    a->i[first - 1] = keepdim;
    int64_t shape[KILN_MAX_DIMS];
    int n = 0;
    a->nints = first;
    for (int d = 0; d < x->ndim; d++) {
        bool gone = all || listed[d];
        if (gone)
            a->i[a->nints++] = d;
        if (!gone || keepdim)
            shape[n++] = gone ? 1 : x->shape[d];
    }
    kiln_desc_set(&c->out[0], dtype, n, shape);
    return true;
}

/* An extreme of nothing does not exist. */
static bool check_not_empty(const kiln_call *c, int first)
{
    const kiln_tensor *x = c->in[0];
    for (int k = first; k < c->attrs.nints; k++) {
        int d = (int)c->attrs.i[k];
        if (!kiln_check_attr(c, x->shape[d] != 0, "dim %d of x %s has no elements to choose from", d,
                             kiln_shape_text(x->ndim, x->shape)))
            return false;
    }
    return true;
}

static bool infer_same(kiln_call *c)
{
    return reduce_rule(c, 1, c->in[0]->dtype);
}

static bool infer_extreme(kiln_call *c)
{
    return infer_same(c) && check_not_empty(c, 1);
}

static bool infer_prefixed(kiln_call *c)
{
    return reduce_rule(c, 2, c->in[0]->dtype);
}

/* How many elements fall into one. */
static int64_t reduced_count(const kiln_tensor *x, const kiln_attrs *a, int first)
{
    int64_t count = 1;
    for (int k = first; k < a->nints; k++)
        count *= x->shape[a->i[k]];
    return count;
}

/* A reduction's result (or its gradient) in the shape that broadcasts with x: reduced dims have size 1. */
static kiln_tensor *with_dims(kiln_tensor *t, const kiln_tensor *x, const kiln_attrs *a, int first)
{
    int64_t shape[KILN_MAX_DIMS];
    for (int d = 0; d < x->ndim; d++)
        shape[d] = x->shape[d];
    for (int k = first; k < a->nints; k++)
        shape[a->i[k]] = 1;
    return a->i[first - 1] ? t : kiln_reshape(t, x->ndim, shape);
}

/* `op`, one of the records with integers "keepdim dims...", over the dims of another reduction. */
static kiln_tensor *reduce_over(const kiln_op *op, kiln_tensor *x, const kiln_attrs *a, int first, bool keepdim)
{
    kiln_attrs own; /* mostly room: filled in, not cleared */
    own.nfloats = 0;
    own.nints = 1;
    own.i[0] = keepdim;
    for (int k = first; k < a->nints; k++)
        own.i[own.nints++] = a->i[k];
    return kiln_op_one(op, KILN_IN(x), &own);
}

/* ---- Gradients of the nodes ---- */

static bool sum_grad(kiln_grad_call *g)
{
    const kiln_tensor *x = g->in[0];
    g->gin[0] = kiln_expand(with_dims(g->gout[0], x, g->attrs, 1), x->ndim, x->shape);
    return g->gin[0] != NULL;
}

/* Equal extremes share the gradient evenly. */
static bool extreme_grad(kiln_grad_call *g)
{
    kiln_tensor *x = g->in[0], *gy = kiln_widen(with_dims(g->gout[0], x, g->attrs, 1));
    kiln_tensor *chosen = kiln_cast(kiln_eq(x, with_dims(g->out[0], x, g->attrs, 1)), kiln_dtype_of(gy));
    kiln_tensor *ties = kiln_sum(chosen, g->attrs->nints - 1, g->attrs->i + 1, true);
    g->gin[0] = kiln_mul(chosen, kiln_div(gy, ties));
    return g->gin[0] != NULL;
}

/* Multiplies up what lies before (direction 1) or after (-1) each element of the last dim, in log₂ n steps. */
static kiln_tensor *product_beside(kiln_tensor *x, int64_t n, int direction)
{
    kiln_tensor *p = kiln_pad(x, 2, (int64_t[]){direction, -direction}, KILN_PAD_CONSTANT, 1);
    for (int64_t s = 1; s < n - 1; s *= 2)
        p = kiln_mul(p, kiln_pad(p, 2, (int64_t[]){direction * s, -direction * s}, KILN_PAD_CONSTANT, 1));
    return p;
}

/* d prod / d x[i] is the product of all others, formed without dividing so that zeros do no harm: [..., n] -> same. */
static kiln_tensor *product_of_others(kiln_tensor *x, int64_t n)
{
    if (n <= 1)
        return kiln_ones_like(x);
    return kiln_mul(product_beside(x, n, 1), product_beside(x, n, -1));
}

static bool prod_grad(kiln_grad_call *g)
{
    kiln_tensor *x = kiln_widen(g->in[0]);
    if (!x)
        return false;
    const kiln_attrs *a = g->attrs;
    int64_t order[KILN_MAX_DIMS] = {0}, back[KILN_MAX_DIMS] = {0}, moved[KILN_MAX_DIMS], flat[KILN_MAX_DIMS];
    int kept = 0, last = x->ndim - (a->nints - 1);
    for (int d = 0, k = 1; d < x->ndim; d++) { /* the reduced dims go to the end, and become one there */
        bool gone = k < a->nints && a->i[k] == d;
        k += gone;
        if (!gone)
            flat[kept] = x->shape[d];
        int at = gone ? last++ : kept++;
        order[at] = d;
        back[d] = at;
        moved[at] = x->shape[d];
    }
    flat[kept] = reduced_count(x, a, 1);
    kiln_tensor *others = product_of_others(kiln_reshape(kiln_permute(x, x->ndim, order), kept + 1, flat), flat[kept]);
    kiln_tensor *gy = kiln_unsqueeze(kiln_reshape(g->gout[0], kept, flat), -1);
    g->gin[0] = kiln_permute(kiln_reshape(kiln_mul(gy, others), x->ndim, moved), x->ndim, back);
    return g->gin[0] != NULL;
}

/* ---- Nodes ---- */

static const char *const reduce_cases[] = {
    "x[5]",
    "x[2,3]",
    "x[2,3] | 1",
    "x[2,3,4] | 0 1",
    "x[2,3] | 0 -1",
    "x[2,3,4] | 1 2 0",
    "x[3,1,5] | 0 -2 0",
    "x[] | 0",
    "x[0,3] | 0 0",
    "x[2,0] | 1 0",
    NULL,
};
static const char *const extreme_cases[] = {
    "d[5]",    "d[2,3]",       "d[2,3] | 1", "d[2,3,4] | 0 1", "d[2,3] | 0 -1", "d[2,3,4] | 1 2 0", "d[3,1,5] | 0 -2 0",
    "d[] | 0", "d[0,3] | 0 1", NULL,
};
static const char *const logic_cases[] = {
    "b[5]",         "b[2,3]",  "b[2,3] | 1", "b[2,3,4] | 0 1", "b[2,3,4] | 1 2 0", "b[0,3] | 0 0",
    "b[0,3] | 0 1", "b[] | 0", NULL,
};

#define NODE(op_name, folds, types, cast, rule, reads, gradient, its_cases)                                            \
    const kiln_op kiln_op_##op_name = {                                                                                \
        .name = #op_name,                                                                                              \
        .attrs = "keepdim dims...",                                                                                    \
        .cls = KILN_CLASS_REDUCE,                                                                                      \
        .fold = KILN_FOLD_##folds,                                                                                     \
        .autocast = cast,                                                                                              \
        .dtypes = types,                                                                                               \
        .min_in = 1,                                                                                                   \
        .max_in = 1,                                                                                                   \
        .infer = rule,                                                                                                 \
        .grad_reads = {reads},                                                                                         \
        .grad = gradient,                                                                                              \
        .cases = its_cases,                                                                                            \
    }
enum { SUMMED = KILN_T_FLOATS | 1 << KILN_I64 }; /* narrower integers are widened by the wrappers */

NODE(sum, SUM, SUMMED, KILN_CAST_FLOAT, infer_same, KILN_READS_NOTHING, sum_grad, reduce_cases);
NODE(prod, PROD, SUMMED, KILN_CAST_FLOAT, infer_same, KILN_READS_X, prod_grad, reduce_cases);
NODE(amax, MAX, SUMMED, KILN_CAST_NONE, infer_extreme, KILN_READS_X | KILN_READS_RESULT, extreme_grad, extreme_cases);
NODE(amin, MIN, SUMMED, KILN_CAST_NONE, infer_extreme, KILN_READS_X | KILN_READS_RESULT, extreme_grad, extreme_cases);
NODE(any, ANY, KILN_T_BOOL, KILN_CAST_NONE, infer_same, 0, NULL, logic_cases);
NODE(all, ALL, KILN_T_BOOL, KILN_CAST_NONE, infer_same, 0, NULL, logic_cases);

/* ---- Compositions ---- */

static kiln_tensor *mean_of(kiln_tensor *x, const kiln_attrs *a, int first, bool keepdim)
{
    return kiln_div_scalar(reduce_over(&kiln_op_sum, x, a, first, keepdim), (double)reduced_count(x, a, first));
}

static bool mean_compose(kiln_call *c, kiln_tensor **out)
{
    out[0] = mean_of(c->in[0], &c->attrs, 1, c->attrs.i[0]);
    return out[0] != NULL;
}

/* Two passes: the mean, then the squared deviations from it. */
static kiln_tensor *variance_of(kiln_tensor *x, const kiln_attrs *a)
{
    double freedom = (double)reduced_count(x, a, 2) - (double)a->i[0]; /* a correction may be any number */
    kiln_tensor *squares = kiln_square(kiln_sub(x, mean_of(x, a, 2, true)));
    return kiln_div_scalar(reduce_over(&kiln_op_sum, squares, a, 2, a->i[1]), freedom > 0 ? freedom : 0);
}

static bool var_compose(kiln_call *c, kiln_tensor **out)
{
    out[0] = variance_of(c->in[0], &c->attrs);
    return out[0] != NULL;
}

/* x^power, but `at_zero` where x is 0, with gradient 0 there instead of an infinite one. */
static kiln_tensor *power_off_zero(kiln_tensor *x, double power, bool is_sqrt, double at_zero)
{
    kiln_tensor *zero = kiln_eq_scalar(x, 0), *safe = kiln_masked_fill(x, zero, 1);
    return kiln_masked_fill(is_sqrt ? kiln_sqrt(safe) : kiln_pow_scalar(safe, power), zero, at_zero);
}

static bool std_compose(kiln_call *c, kiln_tensor **out)
{
    out[0] = power_off_zero(variance_of(c->in[0], &c->attrs), 0.5, true, 0);
    return out[0] != NULL;
}

/* log sum exp(x - m) + m, with m the maximum, or 0 where that is infinite so that no inf - inf arises. */
static bool logsumexp_compose(kiln_call *c, kiln_tensor **out)
{
    const kiln_attrs *a = &c->attrs;
    kiln_tensor *x = c->in[0], *m = NULL;
    if (reduced_count(x, a, 1) == 0) {
        out[0] = kiln_log(reduce_over(&kiln_op_sum, kiln_exp(x), a, 1, a->i[0]));
        return out[0] != NULL;
    }
    kiln_no_grad {
        m = reduce_over(&kiln_op_amax, x, a, 1, true);
        m = kiln_masked_fill(m, kiln_isinf(m), 0);
    }
    kiln_tensor *sum = reduce_over(&kiln_op_sum, kiln_exp(kiln_sub(x, m)), a, 1, true);
    kiln_tensor *none = kiln_eq_scalar(sum, 0); /* all are -inf: so is the result, and nothing flows back */
    kiln_tensor *y = kiln_masked_fill(kiln_add(kiln_log(kiln_masked_fill(sum, none, 1)), m), none, -INFINITY);
    out[0] = kiln_reshape(y, c->out[0].ndim, c->out[0].shape);
    return out[0] != NULL;
}

/* Which formula a p-norm takes: chosen by the wrapper, since p itself is a run-time scalar. */
enum norm_kind { NORM_COUNT, NORM_ABS, NORM_EUCLID, NORM_MAX, NORM_MIN, NORM_POWER, NORM_NEGATIVE_POWER, NORM_KINDS };

static bool infer_norm(kiln_call *c)
{
    kiln_attrs *a = &c->attrs;
    if (!infer_prefixed(c) || !kiln_check_attr(c, a->i[0] >= 0 && a->i[0] < NORM_KINDS, "kind %lld is none of 0 … %d",
                                               (long long)a->i[0], NORM_KINDS - 1))
        return false;
    bool has_neutral = a->i[0] != NORM_MAX && a->i[0] != NORM_MIN && a->i[0] != NORM_NEGATIVE_POWER;
    return has_neutral || check_not_empty(c, 2);
}

/* 1 where x is not 0, and 0 where it is: constants both, but the graph goes on, with gradient 0. */
static kiln_tensor *ones_off_zero(kiln_tensor *x)
{
    kiln_tensor *zero = kiln_eq_scalar(x, 0);
    return kiln_masked_fill(kiln_masked_fill(x, kiln_logical_not(zero), 1), zero, 0);
}

static kiln_tensor *norm_by_kind(kiln_tensor *x, const kiln_attrs *a)
{
    bool keepdim = a->i[1];
    double p = a->f[0];
    switch (a->i[0]) {
    case NORM_COUNT: return reduce_over(&kiln_op_sum, ones_off_zero(x), a, 2, keepdim);
    case NORM_ABS: return reduce_over(&kiln_op_sum, kiln_abs(x), a, 2, keepdim);
    case NORM_EUCLID: return power_off_zero(reduce_over(&kiln_op_sum, kiln_square(x), a, 2, keepdim), 0.5, true, 0);
    case NORM_MAX: return reduce_over(&kiln_op_amax, kiln_abs(x), a, 2, keepdim);
    case NORM_MIN: return reduce_over(&kiln_op_amin, kiln_abs(x), a, 2, keepdim);
    default: break;
    }
    double at_zero = a->i[0] == NORM_NEGATIVE_POWER ? INFINITY : 0;
    kiln_tensor *powers = power_off_zero(kiln_abs(x), p, false, at_zero);
    return power_off_zero(reduce_over(&kiln_op_sum, powers, a, 2, keepdim), 1 / p, false, at_zero);
}

static bool norm_compose(kiln_call *c, kiln_tensor **out)
{
    out[0] = norm_by_kind(c->in[0], &c->attrs);
    return out[0] != NULL;
}

static const char *const var_cases[] = {
    "x[5] | 1 0", "x[2,3] | 0 0", "x[2,3] | 1 1 1", "x[2,3,4] | 1 0 0 2", "x[3,2,4] | 2 0 1 2", NULL,
};

const kiln_op kiln_op_mean = {
    .name = "mean",
    .attrs = "keepdim dims...",
    .cls = KILN_CLASS_COMPOSITE,
    .dtypes = KILN_T_FLOATS,
    .min_in = 1,
    .max_in = 1,
    .infer = infer_same,
    .compose = mean_compose,
    .cases = KILN_CASES{"x[5]", "x[2,3]", "x[2,3] | 1 0", "x[2,3,4] | 0 1", "x[2,3,4] | 1 2 0", "x[] | 0", NULL},
};

const kiln_op kiln_op_var = {
    .name = "var",
    .attrs = "correction keepdim dims...",
    .cls = KILN_CLASS_COMPOSITE,
    .dtypes = KILN_T_FLOATS,
    .min_in = 1,
    .max_in = 1,
    .infer = infer_prefixed,
    .compose = var_compose,
    .cases = var_cases,
};

const kiln_op kiln_op_std = {
    .name = "std",
    .attrs = "correction keepdim dims...",
    .cls = KILN_CLASS_COMPOSITE,
    .dtypes = KILN_T_FLOATS,
    .min_in = 1,
    .max_in = 1,
    .infer = infer_prefixed,
    .compose = std_compose,
    .cases = var_cases,
};

const kiln_op kiln_op_logsumexp = {
    .name = "logsumexp",
    .attrs = "keepdim dims...",
    .cls = KILN_CLASS_COMPOSITE,
    .autocast = KILN_CAST_FLOAT,
    .dtypes = KILN_T_FLOATS,
    .min_in = 1,
    .max_in = 1,
    .infer = infer_same,
    .compose = logsumexp_compose,
    .cases = KILN_CASES{"x[5]", "x[2,3]", "x[2,3] | 1 1", "x[2,3,4] | 0 0 2", "x[3,4] | 0 0", "x[] | 0", NULL},
};

const kiln_op kiln_op_norm = {
    .name = "norm",
    .attrs = "kind keepdim dims... | p",
    .cls = KILN_CLASS_COMPOSITE,
    .autocast = KILN_CAST_FLOAT,
    .dtypes = KILN_T_FLOATS,
    .min_in = 1,
    .max_in = 1,
    .infer = infer_norm,
    .compose = norm_compose,
    .cases = KILN_CASES{"d[2,3] | 0 0 1 | 0", "d[5] | 1 0 | 1", "d[2,3] | 2 0 | 2", "d[2,3,4] | 2 1 1 | 2",
                        "d[2,3] | 3 0 1 | 0", "d[2,3] | 4 0 0 | 0", "d[2,3] | 5 0 1 | 3", "d[3,4] | 5 1 0 | 1.5",
                        "d[2,3] | 6 0 1 | -1", NULL},
};

/* ---- Wrappers ---- */

/* `given` are the integers before keepdim, and the floats. */
static kiln_tensor *reduce_call(const kiln_op *op, kiln_tensor *x, const kiln_attrs *given, int n, const int64_t *dims,
                                bool keepdim)
{
    kiln_attrs a; /* mostly room: filled in, not cleared */
    if (!kiln_check_list(op->name, n, dims, KILN_MAX_DIMS))
        return NULL;
    kiln_attrs_copy(&a, given);
    a.i[a.nints++] = keepdim;
    for (int k = 0; k < n; k++)
        a.i[a.nints++] = dims[k];
    return kiln_op_one(op, KILN_IN(x), &a);
}

/* Integers and bools are counted and compared as i64. */
static kiln_tensor *as_number(kiln_tensor *x)
{
    return x && !kiln_dtype_is_float(x->dtype) ? kiln_cast(x, KILN_I64) : x;
}

kiln_tensor *kiln_sum(kiln_tensor *x, int n, const int64_t *dims, bool keepdim)
{
    KILN_TIDY;
    return KILN_KEPT(reduce_call(&kiln_op_sum, as_number(x), KILN_NO_ATTRS, n, dims, keepdim));
}

kiln_tensor *kiln_sum_all(kiln_tensor *x)
{
    return kiln_sum(x, 0, NULL, false);
}

kiln_tensor *kiln_mean(kiln_tensor *x, int n, const int64_t *dims, bool keepdim)
{
    return reduce_call(&kiln_op_mean, x, KILN_NO_ATTRS, n, dims, keepdim);
}

kiln_tensor *kiln_mean_all(kiln_tensor *x)
{
    return kiln_mean(x, 0, NULL, false);
}

kiln_tensor *kiln_prod(kiln_tensor *x, int n, const int64_t *dims, bool keepdim)
{
    KILN_TIDY;
    return KILN_KEPT(reduce_call(&kiln_op_prod, as_number(x), KILN_NO_ATTRS, n, dims, keepdim));
}

static kiln_tensor *extreme_call(const kiln_op *op, kiln_tensor *x, int n, const int64_t *dims, bool keepdim)
{
    KILN_TIDY;
    kiln_tensor *y = reduce_call(op, as_number(x), KILN_NO_ATTRS, n, dims, keepdim);
    return KILN_KEPT(y ? kiln_cast(y, (kiln_dtype)x->dtype) : NULL);
}

kiln_tensor *kiln_amax(kiln_tensor *x, int n, const int64_t *dims, bool keepdim)
{
    return extreme_call(&kiln_op_amax, x, n, dims, keepdim);
}

kiln_tensor *kiln_amin(kiln_tensor *x, int n, const int64_t *dims, bool keepdim)
{
    return extreme_call(&kiln_op_amin, x, n, dims, keepdim);
}

static kiln_tensor *as_bool(kiln_tensor *x)
{
    return x && x->dtype != KILN_BOOL ? kiln_ne_scalar(x, 0) : x;
}

/* PyTorch still has u8 for the logic of u8, from before it had bool. */
static kiln_tensor *logic_call(const kiln_op *op, kiln_tensor *x, int n, const int64_t *dims, bool keepdim)
{
    KILN_TIDY;
    kiln_tensor *y = reduce_call(op, as_bool(x), KILN_NO_ATTRS, n, dims, keepdim);
    return KILN_KEPT(y && x->dtype == KILN_U8 ? kiln_cast(y, KILN_U8) : y);
}

kiln_tensor *kiln_any(kiln_tensor *x, int n, const int64_t *dims, bool keepdim)
{
    return logic_call(&kiln_op_any, x, n, dims, keepdim);
}

kiln_tensor *kiln_all(kiln_tensor *x, int n, const int64_t *dims, bool keepdim)
{
    return logic_call(&kiln_op_all, x, n, dims, keepdim);
}

kiln_tensor *kiln_var(kiln_tensor *x, int n, const int64_t *dims, int64_t correction, bool keepdim)
{
    return reduce_call(&kiln_op_var, x, KILN_I(correction), n, dims, keepdim);
}

kiln_tensor *kiln_std(kiln_tensor *x, int n, const int64_t *dims, int64_t correction, bool keepdim)
{
    return reduce_call(&kiln_op_std, x, KILN_I(correction), n, dims, keepdim);
}

kiln_tensor *kiln_logsumexp(kiln_tensor *x, int n, const int64_t *dims, bool keepdim)
{
    KILN_TIDY;
    if (x && !kiln_dtype_is_float(x->dtype))
        x = kiln_cast(x, KILN_F32);
    return KILN_KEPT(reduce_call(&kiln_op_logsumexp, x, KILN_NO_ATTRS, n, dims, keepdim));
}

static enum norm_kind norm_kind_of(double p)
{
    if (p == 0 || p == 1 || p == 2)
        return p == 0 ? NORM_COUNT : p == 1 ? NORM_ABS : NORM_EUCLID;
    if (isinf(p))
        return p > 0 ? NORM_MAX : NORM_MIN;
    return p < 0 ? NORM_NEGATIVE_POWER : NORM_POWER;
}

kiln_tensor *kiln_norm(kiln_tensor *x, double p, int n, const int64_t *dims, bool keepdim)
{
    kiln_attrs a = {.nints = 1, .nfloats = 1, .i = {norm_kind_of(p)}, .f = {p}};
    return reduce_call(&kiln_op_norm, x, &a, n, dims, keepdim);
}

/* ---- Shared helpers ---- */

kiln_tensor *kiln_sum_to(kiln_tensor *t, int ndim, const int64_t *shape)
{
    if (!t)
        return NULL;
    int64_t dims[KILN_MAX_DIMS], wanted[KILN_MAX_DIMS];
    int n = 0, lead = t->ndim - ndim;
    for (int d = 0; d < ndim; d++)
        wanted[d] = shape[d]; /* `shape` may lie in the trace, which moves when something is recorded */
    for (int d = 0; d < t->ndim; d++)
        if (d < lead || (wanted[d - lead] == 1 && t->shape[d] != 1))
            dims[n++] = d;
    bool leading = n == lead; /* nothing but dims that go */
    if (n)
        t = kiln_sum(t, n, dims, !leading);
    return lead && !leading ? kiln_reshape(t, ndim, wanted) : t;
}

kiln_tensor *kiln_fill_like(const kiln_tensor *x, int ndim, const int64_t *shape, double value)
{
    kiln_tensor *filled = NULL;
    if (x)
        kiln_on_device (x->device)
            filled = kiln_full(ndim, shape, value, x->dtype);
    return filled;
}

const kiln_op *const kiln_ops_reduce[] = {
    &kiln_op_sum,  &kiln_op_prod, &kiln_op_amax, &kiln_op_amin,      &kiln_op_any,  &kiln_op_all,
    &kiln_op_mean, &kiln_op_var,  &kiln_op_std,  &kiln_op_logsumexp, &kiln_op_norm, NULL,
};
