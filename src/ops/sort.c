/* Orders: sorting, the k largest, the places of extremes. NaN counts as greater than every number, equal elements keep
 * their order. Gradients go back to where the elements came from. */
#include "ops/helpers.h"
#include "ops/view.h"

/* out[0] are elements of in[0] picked along `dim` by out[1]. */
static bool grad_by_indices(kiln_grad_call *g, int dim)
{
    if (!g->need[0] || !g->gout[0])
        return true;
    g->gin[0] = kiln_scatter_add(kiln_zeros_like(g->in[0]), dim, g->out[1], g->gout[0]);
    return g->gin[0] != NULL;
}

/* Calls an operation of two results; *second may be unwanted. */
static kiln_tensor *call_two(const kiln_op *op, kiln_tensor *x, const kiln_attrs *attrs, kiln_tensor **second)
{
    kiln_tensor *out[KILN_MAX_OUTPUTS] = {NULL};
    if (second)
        *second = NULL;
    if (!kiln_op_call(op, KILN_IN(x), attrs, out))
        return NULL;
    if (second)
        *second = out[1];
    return out[0];
}

/* ---- sort ---- */

static bool infer_sort(kiln_call *c)
{
    if (!kiln_check_dim(c, &c->attrs.i[0], c->in[0]->ndim))
        return false;
    c->attrs.i[1] = c->attrs.i[1] != 0;
    kiln_desc_like(&c->out[0], c->in[0]);
    kiln_desc_like(&c->out[1], c->in[0]);
    c->out[1].dtype = KILN_I64;
    return true;
}

static bool grad_sort(kiln_grad_call *g)
{
    return grad_by_indices(g, (int)g->attrs->i[0]);
}

const kiln_op kiln_op_sort = {
    .name = "sort",
    .attrs = "dim descending",
    .cls = KILN_CLASS_SORT,
    .along = 1,
    .dtypes = KILN_T_ALL,
    .min_in = 1,
    .max_in = 1,
    .nout = 2,
    .infer = infer_sort,
    .grad_reads = {KILN_READS_RESULT},
    .grad = grad_sort,
    .cases = KILN_CASES{"d[7] | 0 0", "d[7] | 0 1", "d[3,5] | 0 0", "d[3,5] | -1 1", "d[2,6,3] | 1 0", "d[] | 0 0",
                        "d[1] | -1 1", "d[0,3] | 1 0", "d[3,0] | 1 1", "d[5,40] | 1 0", "d[2,90] | 1 1", NULL},
};

kiln_tensor *kiln_sort(kiln_tensor *x, int dim, bool descending, kiln_tensor **indices)
{
    return call_two(&kiln_op_sort, x, KILN_I(dim, descending), indices);
}

kiln_tensor *kiln_argsort(kiln_tensor *x, int dim, bool descending)
{
    kiln_tensor *indices = NULL;
    kiln_sort(x, dim, descending, &indices);
    return indices;
}

/* ---- topk ---- */

static bool infer_topk(kiln_call *c)
{
    const kiln_tensor *x = c->in[0];
    int64_t k = c->attrs.i[0], *dim = &c->attrs.i[1];
    if (!kiln_check_dim(c, dim, x->ndim))
        return false;
    int64_t size = x->ndim ? x->shape[*dim] : 1;
    if (k < 0 || k > size)
        return kiln_fail(KILN_E_SHAPE, c->op->name, "k is %lld, but dim %lld of %s has %lld elements", (long long)k,
                         (long long)*dim, kiln_shape_of(x), (long long)size);
    if (!kiln_check_attr(c, k == 1 || x->ndim > 0, "a number without dims has a first element only"))
        return false;
    c->attrs.i[2] = c->attrs.i[2] != 0;
    kiln_desc_like(&c->out[0], x);
    if (x->ndim)
        c->out[0].shape[*dim] = k;
    kiln_desc_set(&c->out[0], c->out[0].dtype, x->ndim, c->out[0].shape);
    c->out[1] = c->out[0];
    c->out[1].dtype = KILN_I64;
    return true;
}

static bool grad_topk(kiln_grad_call *g)
{
    return grad_by_indices(g, (int)g->attrs->i[1]);
}

const kiln_op kiln_op_topk = {
    .name = "topk",
    .attrs = "k dim largest",
    .cls = KILN_CLASS_SORT,
    .along = 2,
    .dtypes = KILN_T_ALL,
    .min_in = 1,
    .max_in = 1,
    .nout = 2,
    .infer = infer_topk,
    .grad_reads = {KILN_READS_RESULT},
    .grad = grad_topk,
    .cases = KILN_CASES{"d[7] | 3 0 1", "d[7] | 2 0 0", "d[7] | 7 0 1", "d[3,5] | 2 0 1", "d[3,5] | 5 -1 0",
                        "d[2,6,3] | 4 1 1", "d[] | 1 0 1", "d[4] | 0 0 1", "d[0,3] | 2 1 1", "d[3,60] | 4 1 1",
                        "d[2,100] | 70 1 0", NULL},
};

/* Of two values there is hardly an order: PyTorch refuses, too. */
static bool is_bool(const char *op, const kiln_tensor *x)
{
    if (!x || x->dtype != KILN_BOOL)
        return false;
    kiln_fail(KILN_E_DTYPE, op, "x %s is bool, which it does not take", kiln_shape_of(x));
    kiln_hint("convert it with kiln_cast");
    return true;
}

kiln_tensor *kiln_topk(kiln_tensor *x, int64_t k, int dim, bool largest, kiln_tensor **indices)
{
    if (indices)
        *indices = NULL;
    if (is_bool("topk", x))
        return NULL;
    return call_two(&kiln_op_topk, x, KILN_I(k, dim, largest), indices);
}

/* ---- argmax, argmin ---- */

static void reduced_desc(const kiln_call *c, kiln_desc *d, kiln_dtype dtype, int64_t dim, bool keepdim)
{
    const kiln_tensor *x = c->in[0];
    int64_t shape[KILN_MAX_DIMS];
    int n = 0;
    for (int i = 0; i < x->ndim; i++)
        if (i != dim || keepdim)
            shape[n++] = i == dim ? 1 : x->shape[i];
    kiln_desc_set(d, dtype, n, shape);
}

static bool check_extreme(kiln_call *c)
{
    const kiln_tensor *x = c->in[0];
    int64_t *dim = &c->attrs.i[0];
    if (!kiln_check_dim(c, dim, x->ndim))
        return false;
    if (x->ndim && x->shape[*dim] == 0)
        return kiln_fail(KILN_E_SHAPE, c->op->name, "dim %lld of %s is empty and has no extreme", (long long)*dim,
                         kiln_shape_of(x));
    c->attrs.i[1] = c->attrs.i[1] != 0;
    return true;
}

static bool infer_arg(kiln_call *c)
{
    if (!check_extreme(c))
        return false;
    reduced_desc(c, &c->out[0], KILN_I64, c->attrs.i[0], c->attrs.i[1] != 0);
    return true;
}

#define EXTREME_CASES                                                                                                  \
    KILN_CASES                                                                                                         \
    {                                                                                                                  \
        "d[7] | 0 0", "d[3,5] | 0 0", "d[3,5] | -1 1", "d[2,6,3] | 1 0", "d[2,6,3] | 1 1", "d[] | 0 0", "d[1] | 0 1",  \
            "d[0,3] | 1 0", "d[33,50] | 1 0", "d[40,130] | 0 0", NULL                                                  \
    }

const kiln_op kiln_op_argmax = {
    .name = "argmax",
    .attrs = "dim keepdim",
    .cls = KILN_CLASS_SORT,
    .along = 1,
    .dtypes = KILN_T_ALL,
    .min_in = 1,
    .max_in = 1,
    .infer = infer_arg,
    .cases = EXTREME_CASES,
};

const kiln_op kiln_op_argmin = {
    .name = "argmin",
    .attrs = "dim keepdim",
    .cls = KILN_CLASS_SORT,
    .along = 1,
    .dtypes = KILN_T_ALL,
    .min_in = 1,
    .max_in = 1,
    .infer = infer_arg,
    .cases = EXTREME_CASES,
};

/* KILN_FLAT: of all elements, as one row. */
static kiln_tensor *arg_call(const kiln_op *op, kiln_tensor *x, int dim, bool keepdim)
{
    KILN_TIDY;
    if (is_bool(op->name, x))
        return NULL;
    if (dim != KILN_FLAT || !x)
        return KILN_KEPT(kiln_op_one(op, KILN_IN(x), KILN_I(dim, keepdim)));
    const int64_t all = -1, ones[KILN_MAX_DIMS] = {1, 1, 1, 1, 1, 1, 1, 1};
    if (kiln_numel(x) == 0)
        return kiln_fail(KILN_E_SHAPE, op->name, "%s is empty and has no extreme", kiln_shape_of(x));
    kiln_tensor *index = kiln_op_one(op, KILN_IN(kiln_reshape(x, 1, &all)), KILN_I(0, false));
    return KILN_KEPT(keepdim ? kiln_reshape(index, x->ndim, ones) : index);
}

kiln_tensor *kiln_argmax(kiln_tensor *x, int dim, bool keepdim)
{
    return arg_call(&kiln_op_argmax, x, dim, keepdim);
}

kiln_tensor *kiln_argmin(kiln_tensor *x, int dim, bool keepdim)
{
    return arg_call(&kiln_op_argmin, x, dim, keepdim);
}

/* ---- max, min: an extreme and its place ---- */

static bool infer_extreme(kiln_call *c)
{
    if (!check_extreme(c))
        return false;
    reduced_desc(c, &c->out[0], (kiln_dtype)c->in[0]->dtype, c->attrs.i[0], c->attrs.i[1] != 0);
    reduced_desc(c, &c->out[1], KILN_I64, c->attrs.i[0], c->attrs.i[1] != 0);
    return true;
}

/* The value is gathered from where the index says, so that the gradient goes there. */
static bool compose_extreme(kiln_call *c, kiln_tensor **out, const kiln_op *arg)
{
    int dim = (int)c->attrs.i[0];
    bool keepdim = c->attrs.i[1] != 0;
    kiln_tensor *x = c->in[0], *index = kiln_op_one(arg, KILN_IN(x), KILN_I(dim, true));
    kiln_tensor *value = kiln_gather(x, dim, index);
    out[0] = keepdim || x->ndim == 0 ? value : kiln_squeeze(value, dim);
    out[1] = keepdim || x->ndim == 0 ? index : kiln_squeeze(index, dim);
    return out[0] && out[1];
}

static bool compose_max(kiln_call *c, kiln_tensor **out)
{
    return compose_extreme(c, out, &kiln_op_argmax);
}

static bool compose_min(kiln_call *c, kiln_tensor **out)
{
    return compose_extreme(c, out, &kiln_op_argmin);
}

const kiln_op kiln_op_max = {
    .name = "max",
    .attrs = "dim keepdim",
    .cls = KILN_CLASS_COMPOSITE,
    .dtypes = KILN_T_ALL,
    .min_in = 1,
    .max_in = 1,
    .nout = 2,
    .keeps_half = true,
    .infer = infer_extreme,
    .compose = compose_max,
    .cases = EXTREME_CASES,
};

const kiln_op kiln_op_min = {
    .name = "min",
    .attrs = "dim keepdim",
    .cls = KILN_CLASS_COMPOSITE,
    .dtypes = KILN_T_ALL,
    .min_in = 1,
    .max_in = 1,
    .nout = 2,
    .keeps_half = true,
    .infer = infer_extreme,
    .compose = compose_min,
    .cases = EXTREME_CASES,
};

kiln_tensor *kiln_max(kiln_tensor *x, int dim, bool keepdim, kiln_tensor **indices)
{
    return call_two(&kiln_op_max, x, KILN_I(dim, keepdim), indices);
}

kiln_tensor *kiln_min(kiln_tensor *x, int dim, bool keepdim, kiln_tensor **indices)
{
    return call_two(&kiln_op_min, x, KILN_I(dim, keepdim), indices);
}

const kiln_op *const kiln_ops_sort[] = {
    &kiln_op_sort, &kiln_op_topk, &kiln_op_argmax, &kiln_op_argmin, &kiln_op_max, &kiln_op_min, NULL,
};
