/* Layers that are not products or norms: dropout and embedding, written with other operations. */
#include "ops/op.h"

/* ---- dropout ---- */

static bool dropout_infer(kiln_call *c)
{
    kiln_desc_like(&c->out[0], c->in[0]);
    return true;
}

/* x·keep / (1 - p), where keep is 1 with probability 1 - p. */
static bool dropout_compose(kiln_call *c, kiln_tensor **out)
{
    kiln_tensor *x = c->in[0], *uniform = NULL;
    double p = c->attrs.f[0];
    kiln_on_device (x->device)
        uniform = kiln_rand(x->ndim, x->shape, KILN_F32);
    kiln_tensor *keep = kiln_cast(kiln_ge_scalar(uniform, p), (kiln_dtype)x->dtype);
    out[0] = kiln_mul(x, kiln_mul_scalar(keep, 1 / (1 - p)));
    return out[0] != NULL;
}

/* Draws another mask at each call, so it has no cases: its tests look at averages. */
const kiln_op kiln_op_dropout = {
    .name = "dropout",
    .attrs = "| p",
    .cls = KILN_CLASS_COMPOSITE,
    .dtypes = KILN_T_FLOATS,
    .min_in = 1,
    .max_in = 1,
    .infer = dropout_infer,
    .compose = dropout_compose,
};

kiln_tensor *kiln_dropout(kiln_tensor *x, double p, bool training)
{
    if (!(p >= 0 && p <= 1))
        return kiln_fail(KILN_E_ARGUMENT, "dropout", "p is %g; a probability lies between 0 and 1", p);
    if (!kiln_tensor_given(x, "dropout", 1))
        return NULL;
    if (!training || p == 0)
        return x;
    if (p == 1) /* not a constant: NaN stays, and the graph too */
        return kiln_mul_scalar(x, 0);
    return KILN_OP(dropout, KILN_IN(x), KILN_F(p));
}

/* ---- embedding ---- */

/* weight [rows, width], indices of any shape -> indices' shape + [width] */
static bool embedding_infer(kiln_call *c)
{
    const kiln_tensor *weight = c->in[0], *indices = c->in[1];
    int64_t padding = c->attrs.i[0], shape[2 * KILN_MAX_DIMS];
    if (!kiln_check_ndim(c, 0, 2, 2) || !kiln_check_dtype(c, 1, 1 << KILN_I32 | 1 << KILN_I64) ||
        !kiln_check_attr(c, padding >= -1 && padding < weight->shape[0], "padding_idx %lld is no row of weight %s",
                         (long long)padding, kiln_shape_text(weight->ndim, weight->shape)))
        return false;
    int n = 0;
    for (int d = 0; d < indices->ndim; d++)
        shape[n++] = indices->shape[d];
    for (int d = 1; d < weight->ndim; d++)
        shape[n++] = weight->shape[d];
    if (n > KILN_MAX_DIMS)
        return kiln_fail(KILN_E_SHAPE, c->op->name, "indices %s and weight %s give %d dims, there are at most %d",
                         kiln_shape_text(indices->ndim, indices->shape), kiln_shape_text(weight->ndim, weight->shape),
                         n, KILN_MAX_DIMS);
    kiln_desc_set(&c->out[0], (kiln_dtype)weight->dtype, n, shape);
    return true;
}

static bool embedding_compose(kiln_call *c, kiln_tensor **out)
{
    kiln_tensor *weight = c->in[0];
    int64_t padding = c->attrs.i[0], count = kiln_numel(c->in[1]);
    kiln_tensor *flat = kiln_reshape(kiln_cast(c->in[1], KILN_I64), 1, &count);
    kiln_tensor *rows = kiln_index_select(weight, 0, flat);
    if (padding >= 0) { /* the padding row is shown, and nothing flows back to it */
        int64_t shape[KILN_MAX_DIMS] = {count, 1, 1, 1, 1, 1, 1, 1};
        kiln_tensor *pad = kiln_reshape(kiln_eq_scalar(flat, (double)padding), weight->ndim, shape);
        rows = kiln_where(pad, kiln_detach(rows), rows);
    }
    out[0] = kiln_reshape(rows, c->out[0].ndim, c->out[0].shape);
    return out[0] != NULL;
}

const kiln_op kiln_op_embedding = {
    .name = "embedding",
    .attrs = "padding_idx",
    .cls = KILN_CLASS_COMPOSITE,
    .dtypes = KILN_T_ALL,
    .min_in = 2,
    .max_in = 2,
    .keeps_half = true,
    .infer = embedding_infer,
    .compose = embedding_compose,
    .cases = KILN_CASES{"x[5,3] i5[4] | -1", "x[5,3] i5[2,3] | -1", "x[7,2] i6[3] | 6", "x[4,3] i4[] | -1",
                        "x[4,3] i4[0] | -1", NULL},
};

kiln_tensor *kiln_embedding(kiln_tensor *weight, kiln_tensor *indices, int64_t padding_idx)
{
    return KILN_OP(embedding, KILN_IN(weight, indices), KILN_I(padding_idx));
}

const kiln_op *const kiln_ops_nn[] = {
    &kiln_op_dropout,
    &kiln_op_embedding,
    NULL,
};
