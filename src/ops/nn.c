/* Layers that are not products or norms: dropout, embedding, attention; all written with other operations. */
#include <math.h>
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
    if (!training || p == 0)
        return x;
    if (p == 1) /* not a constant: NaN stays, and the graph too */
        return kiln_mul_scalar(x, 0);
    return KILN_OP(dropout, KILN_IN(x), KILN_F(p));
}

/* ---- embedding ---- */

/* weight [rows, ...], indices of any shape -> indices' shape + [...] */
static bool embedding_infer(kiln_call *c)
{
    const kiln_tensor *weight = c->in[0], *indices = c->in[1];
    int64_t padding = c->attrs.i[0], shape[2 * KILN_MAX_DIMS];
    if (!kiln_check_ndim(c, 0, 1, KILN_MAX_DIMS) || !kiln_check_dtype(c, 1, 1 << KILN_I32 | 1 << KILN_I64) ||
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
    .dtypes = KILN_T_NUMBERS,
    .min_in = 2,
    .max_in = 2,
    .infer = embedding_infer,
    .compose = embedding_compose,
    .cases = KILN_CASES{"x[5,3] i5[4] | -1", "x[5,3] i5[2,3] | -1", "x[7,2] i6[3] | 6", "x[4,3] i4[] | -1",
                        "x[4,3] i4[0] | -1", NULL},
};

kiln_tensor *kiln_embedding(kiln_tensor *weight, kiln_tensor *indices, int64_t padding_idx)
{
    return KILN_OP(embedding, KILN_IN(weight, indices), KILN_I(padding_idx));
}

/* ---- scaled_dot_product_attention ---- */

enum { CAUSAL, DROPOUT };  /* integers */
enum { SCALE, DROPOUT_P }; /* floats */

static bool attention_sizes_fit(const kiln_call *c, const kiln_tensor *q, const kiln_tensor *k, const kiln_tensor *v)
{
    int64_t e = q->shape[q->ndim - 1], s = k->shape[k->ndim - 2];
    if (k->shape[k->ndim - 1] == e && v->shape[v->ndim - 2] == s)
        return true;
    kiln_fail(KILN_E_SHAPE, c->op->name, "q %s, k %s and v %s: %s", kiln_shape_text(q->ndim, q->shape),
              kiln_shape_text(k->ndim, k->shape), kiln_shape_text(v->ndim, v->shape),
              k->shape[k->ndim - 1] != e ? "q and k must have the same last dim"
                                         : "k and v must have the same number of positions (dim -2)");
    return kiln_hint("q is [..., L, E], k [..., S, E], v [..., S, Ev]");
}

/* Adds another operand's batch dims (all but the last two) to the broadcast of those before it. */
static bool broadcast_batch(const kiln_call *c, const kiln_tensor *t, int *n, int64_t *shape)
{
    if (kiln_broadcast(*n, shape, t->ndim - 2, t->shape, n, shape))
        return true;
    return kiln_fail(KILN_E_SHAPE, c->op->name, "the batch dims of %s do not broadcast with those before it, %s",
                     kiln_shape_text(t->ndim, t->shape), kiln_shape_text(*n, shape));
}

static bool mask_fits(const kiln_call *c, int n, const int64_t *scores)
{
    const kiln_tensor *mask = c->in[3];
    int64_t shape[KILN_MAX_DIMS];
    int m;
    if (!mask)
        return true;
    if (!kiln_check_dtype(c, 3, KILN_T_BOOL | KILN_T_FLOATS))
        return false;
    if (kiln_broadcast(n, scores, mask->ndim, mask->shape, &m, shape) && m == n &&
        kiln_count(m, shape) == kiln_count(n, scores))
        return true;
    return kiln_fail(KILN_E_SHAPE, c->op->name, "mask %s does not broadcast to the scores %s",
                     kiln_shape_text(mask->ndim, mask->shape), kiln_shape_text(n, scores));
}

static bool attention_infer(kiln_call *c)
{
    for (int k = 0; k < 3; k++)
        if (!kiln_check_ndim(c, k, 2, KILN_MAX_DIMS) || !kiln_check_same_dtype(c, 0, k))
            return false;
    const kiln_tensor *q = c->in[0], *k = c->in[1], *v = c->in[2];
    int64_t shape[KILN_MAX_DIMS];
    int n = 0;
    if (!attention_sizes_fit(c, q, k, v) || !broadcast_batch(c, q, &n, shape) || !broadcast_batch(c, k, &n, shape))
        return false;
    shape[n] = q->shape[q->ndim - 2];
    shape[n + 1] = k->shape[k->ndim - 2];
    if (!mask_fits(c, n + 2, shape) || !broadcast_batch(c, v, &n, shape))
        return false;
    shape[n] = q->shape[q->ndim - 2];
    shape[n + 1] = v->shape[v->ndim - 1];
    kiln_desc_set(&c->out[0], (kiln_dtype)q->dtype, n + 2, shape);
    return true;
}

/* True where position j lies after i: what a causal score must not see. [L, S] */
static kiln_tensor *later_positions(const kiln_tensor *like, int64_t l, int64_t s)
{
    kiln_tensor *later = NULL;
    kiln_on_device (like->device) {
        kiln_tensor *i = kiln_arange(0, (double)l, 1, KILN_I64), *j = kiln_arange(0, (double)s, 1, KILN_I64);
        later = kiln_gt(j, kiln_unsqueeze(i, 1));
    }
    return later;
}

/* Softmax over the last dim. A row that the mask leaves nothing of becomes zeros, not NaN. */
static kiln_tensor *masked_softmax(kiln_tensor *scores)
{
    kiln_tensor *empty = NULL;
    kiln_no_grad
        empty = kiln_eq_scalar(kiln_amax(scores, KILN_DIMS(-1), true), -INFINITY);
    return kiln_masked_fill(kiln_softmax(kiln_masked_fill(scores, empty, 0), -1), empty, 0);
}

static kiln_tensor *attention_weights(const kiln_call *c, kiln_tensor *scores)
{
    kiln_tensor *mask = c->in[3];
    if (!scores)
        return NULL;
    int64_t l = scores->shape[scores->ndim - 2], s = scores->shape[scores->ndim - 1];
    if (c->attrs.i[CAUSAL])
        scores = kiln_masked_fill(scores, later_positions(scores, l, s), -INFINITY);
    if (!mask || s == 0)
        return kiln_softmax(scores, -1);
    if (mask->dtype == KILN_BOOL)
        scores = kiln_masked_fill(scores, kiln_logical_not(mask), -INFINITY);
    else
        scores = kiln_add(scores, kiln_cast(mask, kiln_dtype_of(scores)));
    return masked_softmax(scores);
}

static bool attention_compose(kiln_call *c, kiln_tensor **out)
{
    kiln_tensor *q = c->in[0], *k = c->in[1], *v = c->in[2];
    kiln_tensor *scores = kiln_matmul(kiln_mul_scalar(q, c->attrs.f[SCALE]), kiln_transpose(k, -1, -2));
    kiln_tensor *weights = attention_weights(c, scores);
    if (c->attrs.i[DROPOUT])
        weights = KILN_OP(dropout, KILN_IN(weights), KILN_F(c->attrs.f[DROPOUT_P]));
    out[0] = kiln_cast(kiln_matmul(kiln_cast(weights, (kiln_dtype)v->dtype), v), c->out[0].dtype);
    return out[0] != NULL;
}

const kiln_op kiln_op_scaled_dot_product_attention = {
    .name = "scaled_dot_product_attention",
    .attrs = "causal dropout | scale dropout_p",
    .cls = KILN_CLASS_COMPOSITE,
    .autocast = KILN_CAST_LOWER,
    .dtypes = KILN_T_FLOATS,
    .min_in = 3,
    .max_in = 4,
    .infer = attention_infer,
    .compose = attention_compose,
    .cases = KILN_CASES{"x[3,4] x[5,4] x[5,2] - | 0 0 | 0.5 0", "x[2,3,4] x[2,3,4] x[2,3,4] - | 1 0 | 0.5 0",
                        "x[2,2,3,4] x[2,2,5,4] x[2,2,5,4] b[3,5] | 0 0 | 0.5 0",
                        "x[2,2,3,4] x[1,2,3,4] x[2,1,3,4] x[3,3] | 1 0 | 0.3 0",
                        "x[2,3,4] x[2,5,4] x[2,5,4] x[2,3,5] | 0 0 | 0.5 0", NULL},
};

kiln_tensor *kiln_scaled_dot_product_attention(kiln_tensor *q, kiln_tensor *k, kiln_tensor *v, kiln_tensor *mask,
                                               double dropout_p, bool causal, double scale)
{
    const char *op = "scaled_dot_product_attention";
    if (!(dropout_p >= 0 && dropout_p < 1))
        return kiln_fail(KILN_E_ARGUMENT, op, "dropout_p is %g; it lies between 0 and 1", dropout_p);
    if (scale == 0 && q && q->ndim)
        scale = 1 / sqrt((double)q->shape[q->ndim - 1]);
    kiln_attrs a = {.nints = 2, .nfloats = 2, .i = {causal, dropout_p > 0}, .f = {scale, dropout_p}};
    return KILN_OP(scaled_dot_product_attention, KILN_IN(q, k, v, mask), &a);
}

const kiln_op *const kiln_ops_nn[] = {
    &kiln_op_dropout,
    &kiln_op_embedding,
    &kiln_op_scaled_dot_product_attention,
    NULL,
};
