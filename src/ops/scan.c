/* Running sums and products along a dim. */
#include "ops/helpers.h"

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
    .grad = grad_cumsum,
    .cases = SCAN_CASES,
};

kiln_tensor *kiln_cumsum(kiln_tensor *x, int dim)
{
    return KILN_OP(cumsum, KILN_IN(countable(x)), KILN_I(dim));
}

/* d y[i] / d x[k] for i from k on is the product of x[0 … i] without x[k]. Dividing y[i] by x[k] would fail at zeros
 * and lose their second derivatives, so the products are made anew for each k: time and memory grow with the square of
 * the dim's length (the cube for the second derivative). */
static bool grad_cumprod(kiln_grad_call *g)
{
    if (!g->need[0] || !g->gout[0])
        return true;
    kiln_tensor *x = g->in[0], *gy = g->gout[0];
    int dim = (int)g->attrs->i[0];
    int64_t n = x->ndim ? x->shape[dim] : 1, before = 1, after = 1;
    for (int d = 0; d < x->ndim; d++)
        *(d < dim ? &before : &after) *= d == dim ? 1 : x->shape[d];
    if (before * n * after == 0)
        return (g->gin[0] = kiln_zeros_like(x)) != NULL;
    const int64_t rows[] = {before, n, after}, square[] = {before, after, n, n}, last = 3;

    kiln_tensor *row = kiln_unsqueeze(kiln_transpose(kiln_reshape(x, 3, rows), 1, 2), 2);
    kiln_tensor *weight = kiln_unsqueeze(kiln_transpose(kiln_reshape(gy, 3, rows), 1, 2), 2);
    kiln_tensor *one = kiln_fill_like(x, 0, NULL, 1), *ones = kiln_fill_like(x, 2, square + 2, 1);
    kiln_tensor *self = kiln_ne(kiln_tril(kiln_triu(ones, 0), 0), kiln_fill_like(x, 0, NULL, 0));
    kiln_tensor *without = kiln_where(self, one, kiln_expand(row, 4, square)); /* [k][i]: x[i], or 1 for i = k */
    kiln_tensor *slopes = kiln_triu(kiln_cumprod(without, 3), 0);
    kiln_tensor *gx = kiln_sum(kiln_mul(slopes, weight), 1, &last, false);
    g->gin[0] = kiln_reshape(kiln_transpose(gx, 1, 2), x->ndim, x->shape);
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
    .grad = grad_cumprod,
    .cases = SCAN_CASES,
};

kiln_tensor *kiln_cumprod(kiln_tensor *x, int dim)
{
    return KILN_OP(cumprod, KILN_IN(countable(x)), KILN_I(dim));
}

const kiln_op *const kiln_ops_scan[] = {&kiln_op_cumsum, &kiln_op_cumprod, NULL};
