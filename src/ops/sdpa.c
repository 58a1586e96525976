/* scaled_dot_product_attention, what users call: heads that share keys and values, broadcast operands, masks and
 * lengths become views that the nodes of attention.c take as they lie. What these do not do is composed of other
 * operations: no keys at all, and dropout in a step that is a part of a larger batch. */
#include <math.h>
#include <string.h>
#include "core/counts.h"
#include "core/sized.h"
#include "ops/attention.h"
#include "ops/helpers.h"
#include "ops/part.h"
#include "ops/widen.h"

extern const kiln_op kiln_op_dropout;

enum { Q, K, V, MASK, LENGTHS, OPERANDS };

/* ---- Shapes ---- */

static bool sizes_fit(const kiln_call *c, const kiln_tensor *q, const kiln_tensor *k, const kiln_tensor *v)
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

/* How many heads of q share a head of k and v; 1 where each has its own, or where operands broadcast. */
static int64_t sharers(const kiln_tensor *q, const kiln_tensor *k, const kiln_tensor *v)
{
    int n = q->ndim;
    if (n < 3 || n == KILN_MAX_DIMS || k->ndim != n || v->ndim != n)
        return 1;
    int64_t heads = q->shape[n - 3], keys = k->shape[n - 3];
    return keys > 1 && v->shape[n - 3] == keys && heads > keys && heads % keys == 0 ? heads / keys : 1;
}

/* Adds another operand's batch dims (all but the last two) to the broadcast of those before it; `share`: how many heads
 * each of its heads stands for. */
static bool broadcast_batch(const kiln_call *c, const kiln_tensor *t, int64_t share, int *n, int64_t *shape)
{
    int64_t own[KILN_MAX_DIMS];
    memcpy(own, t->shape, sizeof own);
    if (share > 1)
        own[t->ndim - 3] *= share;
    if (kiln_broadcast(*n, shape, t->ndim - 2, own, n, shape))
        return true;
    kiln_fail(KILN_E_SHAPE, c->op->name, "the batch dims of %s do not broadcast with those before it, %s",
              kiln_shape_text(t->ndim, t->shape), kiln_shape_text(*n, shape));
    return kiln_hint("k and v may have fewer heads (dim -3) than q, if their number divides q's");
}

static bool mask_fits(const kiln_call *c, int n, const int64_t *scores)
{
    const kiln_tensor *mask = c->in[MASK];
    int64_t shape[KILN_MAX_DIMS];
    int m;
    if (!mask)
        return true;
    if (!kiln_check_dtype(c, MASK, KILN_T_BOOL | KILN_T_FLOATS))
        return false;
    if (kiln_broadcast(n, scores, mask->ndim, mask->shape, &m, shape) && m == n &&
        kiln_count(m, shape) == kiln_count(n, scores))
        return true;
    return kiln_fail(KILN_E_SHAPE, c->op->name, "mask %s does not broadcast to the scores %s",
                     kiln_shape_text(mask->ndim, mask->shape), kiln_shape_text(n, scores));
}

/* Lengths are the first ones of the batch dims. */
static bool lengths_fit(const kiln_call *c, int n, const int64_t *batch)
{
    const kiln_tensor *lengths = c->nin > LENGTHS ? c->in[LENGTHS] : NULL;
    if (!lengths)
        return true;
    if (!kiln_check_dtype(c, LENGTHS, 1 << KILN_I64))
        return false;
    if (lengths->ndim <= n && !memcmp(lengths->shape, batch, (size_t)lengths->ndim * sizeof *batch))
        return true;
    kiln_fail(KILN_E_SHAPE, c->op->name, "lengths %s are not one for each sequence of %s",
              kiln_shape_text(lengths->ndim, lengths->shape), kiln_shape_text(n, batch));
    return kiln_hint("for q [N, heads, L, E] they are [N]");
}

static bool sdpa_infer(kiln_call *c)
{
    for (int k = 0; k < 3; k++)
        if (!kiln_check_ndim(c, k, 2, KILN_MAX_DIMS) || !kiln_check_same_dtype(c, 0, k))
            return false;
    const kiln_tensor *q = c->in[Q], *k = c->in[K], *v = c->in[V];
    int64_t shape[KILN_MAX_DIMS], share = sharers(q, k, v);
    int n = 0;
    if (!sizes_fit(c, q, k, v) || !broadcast_batch(c, q, 1, &n, shape) || !broadcast_batch(c, k, share, &n, shape))
        return false;
    shape[n] = q->shape[q->ndim - 2];
    shape[n + 1] = k->shape[k->ndim - 2];
    if (!mask_fits(c, n + 2, shape) || !broadcast_batch(c, v, share, &n, shape) || !lengths_fit(c, n, shape))
        return false;
    shape[n] = q->shape[q->ndim - 2];
    shape[n + 1] = v->shape[v->ndim - 1];
    kiln_desc_set(&c->out[0], (kiln_dtype)q->dtype, n + 2, shape);
    return true;
}

/* ---- Views that agree in their batch dims ---- */

/* Dim -3 of t as [heads / share, share], or with a dim of 1 behind it. */
static kiln_tensor *split_heads(kiln_tensor *t, int64_t share, bool shares)
{
    int64_t shape[KILN_MAX_DIMS];
    int n = t->ndim;
    if (n < 3 || n == KILN_MAX_DIMS)
        return t;
    memcpy(shape, t->shape, (size_t)(n - 2) * sizeof *shape);
    memcpy(shape + n - 1, t->shape + n - 2, 2 * sizeof *shape);
    shape[n - 2] = shares && t->shape[n - 3] > 1 ? share : 1;
    shape[n - 3] = t->shape[n - 3] / shape[n - 2];
    return kiln_reshape(t, n + 1, shape);
}

/* t with the batch dims given, and its own last two. */
static kiln_tensor *expand_batch(kiln_tensor *t, int n, const int64_t *batch, int64_t rows, int64_t columns)
{
    int64_t shape[KILN_MAX_DIMS];
    memcpy(shape, batch, (size_t)n * sizeof *shape);
    shape[n] = rows;
    shape[n + 1] = columns;
    if (!t || (t->ndim == n + 2 && !memcmp(t->shape, shape, (size_t)(n + 2) * sizeof *shape)))
        return t;
    return kiln_expand(t, n + 2, shape);
}

static kiln_tensor *expand_lengths(kiln_tensor *t, int n, const int64_t *batch)
{
    while (t && t->ndim < n)
        t = kiln_unsqueeze(t, -1);
    return t ? kiln_expand(t, n, batch) : NULL;
}

/* Fills in[] with views of the call's operands, all with the same batch dims, `n` of them. False with an error. */
static bool align(const kiln_call *c, int64_t share, kiln_tensor **in, int *n, int64_t *batch)
{
    const kiln_desc *y = &c->out[0];
    memset(in, 0, OPERANDS * sizeof *in);
    memcpy(in, c->in, (size_t)c->nin * sizeof *in);
    if (in[MASK] && in[MASK]->dtype != KILN_BOOL) /* while it is small: later it is as large as the scores */
        in[MASK] = kiln_cast(in[MASK], kiln_wide((kiln_dtype)in[Q]->dtype));
    *n = y->ndim - 2;
    memcpy(batch, y->shape, (size_t)*n * sizeof *batch);
    if (share > 1) {
        batch[*n] = share;
        batch[*n - 1] /= share;
        ++*n;
        in[Q] = split_heads(in[Q], share, true);
        in[K] = split_heads(in[K], share, false);
        in[V] = split_heads(in[V], share, false);
        in[MASK] = in[MASK] ? split_heads(in[MASK], share, true) : NULL;
        if (!in[Q] || !in[K] || !in[V] || (c->in[MASK] && !in[MASK]))
            return false;
    }
    const kiln_tensor *q = in[Q], *k = in[K], *v = in[V];
    int64_t rows = q->shape[q->ndim - 2], keys = k->shape[k->ndim - 2];
    in[Q] = expand_batch(in[Q], *n, batch, rows, q->shape[q->ndim - 1]);
    in[K] = expand_batch(in[K], *n, batch, keys, k->shape[k->ndim - 1]);
    in[V] = expand_batch(in[V], *n, batch, keys, v->shape[v->ndim - 1]);
    in[MASK] = expand_batch(in[MASK], *n, batch, rows, keys);
    in[LENGTHS] = expand_lengths(in[LENGTHS], *n, batch);
    return in[Q] && in[K] && in[V] && (in[MASK] || !c->in[MASK]) &&
           (in[LENGTHS] || c->nin <= LENGTHS || !c->in[LENGTHS]);
}

/* ---- By a node, or composed ---- */

enum { CAUSAL, DROPOUT };  /* integers */
enum { SCALE, DROPOUT_P }; /* floats */

/* Whether the whole of a batch's dropout is drawn here. */
static bool draws_whole(const kiln_call *c, int n, const int64_t *batch, kiln_tensor *const *in)
{
    int64_t scores[KILN_MAX_DIMS];
    kiln_draw_part part;
    if (!c->attrs.i[DROPOUT])
        return true;
    memcpy(scores, batch, (size_t)n * sizeof *scores);
    scores[n] = in[Q]->shape[n];
    scores[n + 1] = in[K]->shape[n];
    return kiln_part_of_draw(c->op->name, n + 2, scores, &part) && part.dim < 0;
}

static kiln_tensor *by_node(const kiln_call *c, kiln_tensor *const *in, int n)
{
    kiln_tensor *outs[KILN_MAX_OUTPUTS];
    bool plain = !in[MASK] && !in[LENGTHS] && !c->attrs.i[DROPOUT];
    kiln_attrs a = {.nints = 1, .nfloats = 1, .i = {c->attrs.i[CAUSAL]}, .f = {c->attrs.f[SCALE]}};
    if (!plain) {
        a.nints = 2;
        a.nfloats = 4;
        a.i[KILN_ATTEND_DROPOUT] = c->attrs.i[DROPOUT];
        a.f[KILN_ATTEND_P] = c->attrs.f[DROPOUT_P];
    }
    if (c->attrs.i[DROPOUT])
        kiln_random_take(kiln_times(kiln_count(n + 1, in[Q]->shape), in[K]->shape[n]), &a.f[KILN_ATTEND_SEED]);
    return kiln_op_call(plain ? &kiln_op_attention : &kiln_op_attention_masked, in, plain ? 3 : OPERANDS, &a, outs)
               ? kiln_attention_upright(outs[0])
               : NULL;
}

/* Softmax over the last dim. A row that the mask leaves nothing of becomes zeros, not NaN. */
static kiln_tensor *masked_softmax(kiln_tensor *scores)
{
    kiln_tensor *empty = NULL;
    kiln_no_grad
        empty = kiln_eq_scalar(kiln_amax(scores, KILN_DIMS(-1), true), -INFINITY);
    return kiln_masked_fill(kiln_softmax(kiln_masked_fill(scores, empty, 0), -1), empty, 0);
}

static kiln_tensor *composed(const kiln_call *c, kiln_tensor *const *in)
{
    kiln_attrs a = {.nints = 1, .nfloats = 1, .i = {c->attrs.i[CAUSAL]}, .f = {c->attrs.f[SCALE]}};
    kiln_attention_scores s = {kiln_widen(in[Q]), kiln_widen(in[K]), in[MASK], in[LENGTHS], &a};
    kiln_tensor *weights = kiln_attention_scores_of(&s);
    if (!weights)
        return NULL;
    bool hides = (in[MASK] || in[LENGTHS]) && weights->shape[weights->ndim - 1] > 0;
    weights = hides ? masked_softmax(weights) : kiln_softmax(weights, -1);
    if (c->attrs.i[DROPOUT])
        weights = KILN_OP(dropout, KILN_IN(weights), KILN_F(c->attrs.f[DROPOUT_P]));
    return kiln_cast(kiln_matmul(weights, kiln_widen(in[V])), c->out[0].dtype);
}

static bool sdpa_compose(kiln_call *c, kiln_tensor **out)
{
    kiln_tensor *in[OPERANDS], *y;
    int64_t batch[KILN_MAX_DIMS], share = sharers(c->in[Q], c->in[K], c->in[V]);
    int n;
    uint64_t failures = kiln_fail_count();
    if (!align(c, share, in, &n, batch))
        return false;
    if (in[K]->shape[n] > 0 && draws_whole(c, n, batch, in))
        y = by_node(c, in, n);
    else if (kiln_fail_count() == failures)
        y = composed(c, in);
    else
        y = NULL;
    out[0] = y && share > 1 ? kiln_reshape(y, c->out[0].ndim, c->out[0].shape) : y;
    return out[0] != NULL;
}

const kiln_op kiln_op_scaled_dot_product_attention = {
    .name = "scaled_dot_product_attention",
    .attrs = "causal dropout | scale dropout_p",
    .cls = KILN_CLASS_COMPOSITE,
    .autocast = KILN_CAST_LOWER,
    .dtypes = KILN_T_FLOATS,
    .keeps_half = true,
    .heart = &kiln_op_attention,
    .min_in = 3,
    .max_in = OPERANDS,
    .infer = sdpa_infer,
    .compose = sdpa_compose,
    .cases = KILN_CASES{"x[3,4] x[5,4] x[5,2] - | 0 0 | 0.5 0", "x[2,3,4] x[2,3,4] x[2,3,4] - | 1 0 | 0.5 0",
                        "x[2,2,3,4] x[2,2,5,4] x[2,2,5,4] b[3,5] | 0 0 | 0.5 0",
                        "x[2,2,3,4] x[1,2,3,4] x[2,1,3,4] x[3,3] | 1 0 | 0.3 0",
                        "x[2,3,4] x[2,5,4] x[2,5,4] x[2,3,5] | 0 0 | 0.5 0",
                        "x[2,4,3,2] x[2,2,5,2] x[2,2,5,3] - | 0 0 | 0.5 0",
                        "x[2,6,3,2] x[2,3,3,2] x[2,3,3,2] b[2,1,3,3] | 1 0 | 0.5 0",
                        "x[2,4,3,2] x[2,2,5,2] x[2,2,5,3] b[4,3,5] n5,2[2] | 0 0 | 0.5 0",
                        "x[2,2,3,2] x[2,2,5,2] x[2,2,5,3] - n0,3[2] | 1 0 | 0.5 0", NULL},
};

/* ---- What users call ---- */

static kiln_tensor *attend(kiln_tensor *q, kiln_tensor *k, kiln_tensor *v, const kiln_sdpa_options *o)
{
    const char *op = "scaled_dot_product_attention";
    double scale = o->scale;
    if (!(o->dropout >= 0 && o->dropout < 1))
        return kiln_fail(KILN_E_ARGUMENT, op, "dropout_p is %g; it lies between 0 and 1", o->dropout);
    if (scale == 0 && q && q->ndim)
        scale = 1 / sqrt((double)q->shape[q->ndim - 1]);
    kiln_attrs a = {.nints = 2, .nfloats = 2, .i = {o->causal, o->dropout > 0}, .f = {scale, o->dropout}};
    return KILN_OP(scaled_dot_product_attention, KILN_IN(q, k, v, o->mask, o->lengths), &a);
}

kiln_tensor *kiln_sdpa_(kiln_tensor *q, kiln_tensor *k, kiln_tensor *v, const kiln_sdpa_options *options)
{
    kiln_sdpa_options o;
    return KILN_TAKE_OPTIONS("sdpa", o, options) ? attend(q, k, v, &o) : NULL;
}

kiln_tensor *kiln_scaled_dot_product_attention(kiln_tensor *q, kiln_tensor *k, kiln_tensor *v, kiln_tensor *mask,
                                               double dropout_p, bool causal, double scale)
{
    return attend(q, k, v, &(kiln_sdpa_options){.mask = mask, .dropout = dropout_p, .causal = causal, .scale = scale});
}

const kiln_op *const kiln_ops_attention[] = {
    &kiln_op_attention,
    &kiln_op_attention_masked,
    &kiln_op_attention_grad,
    &kiln_op_attention_masked_grad,
    &kiln_op_scaled_dot_product_attention,
    NULL,
};
