/* Attention. scaled_dot_product_attention is what users call. Without mask and dropout it is the node `attention`,
 * whose kernel never writes the scores to memory; with them, a composition. */
#include <math.h>
#include <string.h>
#include "core/counts.h"
#include "ops/widen.h"

extern const kiln_op kiln_op_dropout, kiln_op_attention_grad;

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

static kiln_tensor *turned(kiln_tensor *t)
{
    return kiln_transpose(t, -1, -2);
}

/* scale·q·kᵀ; minus infinity where a causal score must not look. */
static kiln_tensor *scores_of(kiln_tensor *q, kiln_tensor *k, double scale, bool causal)
{
    kiln_tensor *scores = kiln_matmul(kiln_mul_scalar(q, scale), turned(k));
    if (!causal || !scores)
        return scores;
    int64_t l = scores->shape[scores->ndim - 2], s = scores->shape[scores->ndim - 1];
    return kiln_masked_fill(scores, later_positions(scores, l, s), -INFINITY);
}

/* ---- attention ---- */

/* q [..., L, E], k [..., S, E], v [..., S, Ev], all with the same batch dims and S > 0 -> y [..., L, Ev] and the
 * logarithms of the softmax's denominators [..., L], which the gradient starts from; these in f32 where q is half. */
static bool attention_infer(kiln_call *c)
{
    const kiln_tensor *q = c->in[0], *k = c->in[1], *v = c->in[2];
    for (int i = 0; i < 3; i++)
        if (!kiln_check_same_dtype(c, 0, i) || !kiln_check_ndim(c, i, 2, KILN_MAX_DIMS))
            return false;
    int n = q->ndim - 2;
    size_t batch = (size_t)n * sizeof *q->shape;
    if (!kiln_check_attr(c,
                         k->ndim == n + 2 && v->ndim == n + 2 && !memcmp(q->shape, k->shape, batch) &&
                             !memcmp(q->shape, v->shape, batch) && k->shape[n + 1] == q->shape[n + 1] &&
                             k->shape[n] == v->shape[n] && k->shape[n] > 0,
                         "q %s, k %s and v %s do not fit", kiln_shape_text(q->ndim, q->shape),
                         kiln_shape_text(k->ndim, k->shape), kiln_shape_text(v->ndim, v->shape)))
        return false;
    kiln_desc_like(&c->out[0], q);
    c->out[0].shape[n + 1] = v->shape[n + 1];
    kiln_desc_set(&c->out[0], (kiln_dtype)q->dtype, q->ndim, c->out[0].shape);
    kiln_desc_set(&c->out[1], kiln_wide((kiln_dtype)q->dtype), n + 1, q->shape);
    return true;
}

static bool attention_compose(kiln_call *c, kiln_tensor **out)
{
    kiln_tensor *scores = scores_of(c->in[0], c->in[1], c->attrs.f[0], c->attrs.i[0]);
    out[0] = kiln_matmul(kiln_softmax(scores, -1), c->in[2]);
    out[1] = kiln_logsumexp(scores, KILN_DIMS(-1), false);
    return out[0] && out[1];
}

static bool attention_rule(kiln_grad_call *g)
{
    kiln_tensor *gy = g->gout[0] ? g->gout[0] : kiln_zeros_like(g->out[0]);
    kiln_tensor *in[] = {g->in[0], g->in[1], g->in[2], g->out[0], g->out[1], gy, g->gout[1]};
    return kiln_op_call(&kiln_op_attention_grad, in, 7, g->attrs, g->gin);
}

/* Products of the scores' size: `of_q` that sum over the width of q, `of_v` over that of v; causal ones half of it. */
static int64_t score_flops(const kiln_work *w, int of_q, int of_v)
{
    const kiln_work_shape *q = &w->in[0], *v = &w->in[2];
    int64_t scores = kiln_times(kiln_count(q->ndim - 1, q->shape), v->shape[v->ndim - 2]);
    int64_t widths = of_q * q->shape[q->ndim - 1] + of_v * v->shape[v->ndim - 1];
    return kiln_times(scores, w->ints[0] ? widths : 2 * widths);
}

static int64_t attention_flops(const kiln_work *w)
{
    return score_flops(w, 1, 1);
}

static int64_t attention_grad_flops(const kiln_work *w)
{
    return score_flops(w, 3, 2);
}

const kiln_op kiln_op_attention = {
    .name = "attention",
    .attrs = "causal | scale",
    .cls = KILN_CLASS_ATTENTION,
    .dtypes = KILN_T_FLOATS,
    .min_in = 3,
    .max_in = 3,
    .nout = 2,
    .infer = attention_infer,
    .compose = attention_compose,
    .grad_reads = {KILN_READS_OPERANDS | KILN_READS_RESULT},
    .grad = attention_rule,
    .flops = attention_flops,
    .cases = KILN_CASES{"x[3,4] x[5,4] x[5,2] | 0 | 0.5", "x[2,3,4] x[2,3,4] x[2,3,4] | 1 | 0.5",
                        "x[2,7,3] x[2,4,3] x[2,4,5] | 1 | -0.5", "x[1,2,3,4] x[1,2,8,4] x[1,2,8,4] | 1 | 0.3",
                        "x[2,0,4] x[2,3,4] x[2,3,4] | 0 | 1", "x[0,3,4] x[0,3,4] x[0,3,4] | 1 | 1", NULL},
};

/* ---- attention_grad ---- */

/* Operands q, k, v, the two results of attention, and the gradients of both (the second one may be absent); results the
 * gradients of q, k and v. With P the weights and D the scores' gradient:
 *
 *   P = exp(scale·q·kᵀ - lse)   D = P·(gy·vᵀ - Σ gy·y + glse)   gq = scale·D·k   gk = scale·Dᵀ·q   gv = Pᵀ·gy */
enum { Q, K, V, Y, LSE, GY, GLSE };

static bool attention_grad_infer(kiln_call *c)
{
    kiln_call forward = *c;
    forward.nin = 3;
    if (!attention_infer(&forward))
        return false;
    for (int k = Y; k < c->nin; k++) {
        const kiln_tensor *t = c->in[k];
        const kiln_desc *d = &forward.out[k == LSE || k == GLSE];
        if (t && !kiln_check_attr(c,
                                  t->ndim == d->ndim && t->dtype == d->dtype &&
                                      !memcmp(t->shape, d->shape, (size_t)d->ndim * sizeof *d->shape),
                                  "operand %d is %s, it must be %s", k + 1, kiln_shape_text(t->ndim, t->shape),
                                  kiln_shape_text(d->ndim, d->shape)))
            return false;
    }
    for (int k = 0; k < 3; k++)
        kiln_desc_like(&c->out[k], c->in[k]);
    return true;
}

/* What the gradient, and its own gradient, are made of. */
typedef struct parts {
    kiln_tensor *p, *above; /* the weights, and gy·vᵀ - Σ gy·y + glse */
} parts;

static parts parts_of(kiln_tensor *const *in, const kiln_attrs *a)
{
    kiln_tensor *p = kiln_exp(kiln_sub(scores_of(in[Q], in[K], a->f[0], a->i[0]), kiln_unsqueeze(in[LSE], -1)));
    kiln_tensor *along = kiln_sum(kiln_mul(in[GY], in[Y]), KILN_DIMS(-1), true);
    if (in[GLSE])
        along = kiln_sub(along, kiln_unsqueeze(in[GLSE], -1));
    return (parts){p, kiln_sub(kiln_matmul(in[GY], turned(in[V])), along)};
}

static bool attention_grad_compose(kiln_call *c, kiln_tensor **out)
{
    kiln_tensor *in[7] = {NULL};
    memcpy(in, c->in, (size_t)c->nin * sizeof *in);
    double scale = c->attrs.f[0];
    parts x = parts_of(in, &c->attrs);
    kiln_tensor *d = kiln_mul(x.p, x.above);
    out[0] = kiln_mul_scalar(kiln_matmul(d, in[K]), scale);
    out[1] = kiln_matmul(turned(d), kiln_mul_scalar(in[Q], scale));
    out[2] = kiln_matmul(turned(x.p), in[GY]);
    return out[0] && out[1] && out[2];
}

/* a + b where either may be absent. */
static kiln_tensor *joined(kiln_tensor *a, kiln_tensor *b)
{
    return a && b ? kiln_add(a, b) : a ? a : b;
}

/* With uq, uk, uv what flows back to gq, gk and gv: gradients of D, P and the scores first, of the operands from them.
 */
static bool attention_grad_rule(kiln_grad_call *g)
{
    kiln_tensor *in[7] = {NULL}, *uq = kiln_widen(g->gout[0]), *uk = kiln_widen(g->gout[1]);
    kiln_tensor *uv = kiln_widen(g->gout[2]);
    double scale = g->attrs->f[0];
    uint64_t failures = kiln_fail_count();
    for (int i = 0; i < g->nin; i++)
        in[i] = kiln_widen(g->in[i]);
    kiln_tensor *gd = NULL, *gp = NULL, *d = NULL;
    parts x = parts_of(in, g->attrs);
    if (uq || uk) {
        d = kiln_mul(x.p, x.above);
        gd = joined(uq ? kiln_matmul(uq, turned(in[K])) : NULL, uk ? kiln_matmul(in[Q], turned(uk)) : NULL);
        gd = kiln_mul_scalar(gd, scale);
        gp = kiln_mul(gd, x.above);
    }
    if (uv)
        gp = joined(gp, kiln_matmul(in[GY], turned(uv)));
    kiln_tensor *gs = kiln_mul(gp, x.p), *gs_scaled = kiln_mul_scalar(gs, scale);
    g->gin[Q] = kiln_matmul(gs_scaled, in[K]);
    g->gin[K] = kiln_matmul(turned(gs_scaled), in[Q]);
    g->gin[LSE] = kiln_neg(kiln_sum(gs, KILN_DIMS(-1), false));
    if (uk)
        g->gin[Q] = joined(g->gin[Q], kiln_mul_scalar(kiln_matmul(d, uk), scale));
    if (uq)
        g->gin[K] = joined(g->gin[K], kiln_mul_scalar(kiln_matmul(turned(d), uq), scale));
    if (uv)
        g->gin[GY] = kiln_matmul(x.p, uv);
    if (gd) {
        kiln_tensor *ga = kiln_mul(gd, x.p), *along = kiln_sum(ga, KILN_DIMS(-1), true);
        g->gin[V] = kiln_matmul(turned(ga), in[GY]);
        g->gin[Y] = kiln_neg(kiln_mul(in[GY], along));
        g->gin[GY] = joined(g->gin[GY], kiln_sub(kiln_matmul(ga, in[V]), kiln_mul(in[Y], along)));
        if (in[GLSE])
            g->gin[GLSE] = kiln_squeeze(along, -1);
    }
    for (int i = 0; i < g->nin; i++)
        if (g->gin[i] && g->in[i])
            g->gin[i] = kiln_cast(g->gin[i], (kiln_dtype)g->in[i]->dtype);
    return kiln_fail_count() == failures;
}

const kiln_op kiln_op_attention_grad = {
    .name = "attention_grad",
    .attrs = "causal | scale",
    .cls = KILN_CLASS_ATTENTION,
    .dtypes = KILN_T_FLOATS,
    .min_in = 6,
    .max_in = 7,
    .nout = 3,
    .infer = attention_grad_infer,
    .compose = attention_grad_compose,
    .grad = attention_grad_rule,
    .flops = attention_grad_flops,
    .cases = KILN_CASES{"x[3,4] x[5,4] x[5,2] x[3,2] s[3] x[3,2] s[3] | 0 | 0.5",
                        "x[2,3,4] x[2,3,4] x[2,3,4] x[2,3,4] s[2,3] x[2,3,4] - | 1 | 0.5",
                        "x[2,7,3] x[2,4,3] x[2,4,5] x[2,7,5] s[2,7] x[2,7,5] - | 1 | -0.3",
                        "x[1,3,2] x[1,6,2] x[1,6,3] x[1,3,3] s[1,3] x[1,3,3] s[1,3] | 1 | 0.3",
                        "x[0,3,4] x[0,3,4] x[0,3,4] x[0,3,4] s[0,3] x[0,3,4] - | 1 | 1",
                        "x[2,0,4] x[2,3,4] x[2,3,4] x[2,0,4] s[2,0] x[2,0,4] - | 0 | 1", NULL},
};

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

static bool sdpa_infer(kiln_call *c)
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
    if (!mask || scores->shape[scores->ndim - 1] == 0)
        return kiln_softmax(scores, -1);
    if (mask->dtype == KILN_BOOL)
        scores = kiln_masked_fill(scores, kiln_logical_not(mask), -INFINITY);
    else
        scores = kiln_add(scores, kiln_cast(mask, kiln_dtype_of(scores)));
    return masked_softmax(scores);
}

/* Whether it is the node `attention`: nothing in between, and operands that it takes as they are. */
static bool is_plain(const kiln_call *c)
{
    const kiln_tensor *q = c->in[0], *k = c->in[1], *v = c->in[2];
    size_t batch = (size_t)(q->ndim - 2) * sizeof *q->shape;
    return !c->in[3] && !c->attrs.i[DROPOUT] && k->ndim == q->ndim && v->ndim == q->ndim &&
           !memcmp(q->shape, k->shape, batch) && !memcmp(q->shape, v->shape, batch) && k->shape[k->ndim - 2] > 0;
}

static bool sdpa_compose(kiln_call *c, kiln_tensor **out)
{
    kiln_tensor *q = c->in[0], *k = c->in[1], *v = c->in[2];
    if (is_plain(c)) {
        kiln_tensor *outs[KILN_MAX_OUTPUTS];
        kiln_attrs a = {.nints = 1, .nfloats = 1, .i = {c->attrs.i[CAUSAL]}, .f = {c->attrs.f[SCALE]}};
        bool ok = kiln_op_call(&kiln_op_attention, KILN_IN(q, k, v), &a, outs);
        out[0] = outs[0];
        return ok;
    }
    q = kiln_widen(q);
    k = kiln_widen(k);
    kiln_tensor *weights = attention_weights(c, scores_of(q, k, c->attrs.f[SCALE], c->attrs.i[CAUSAL]));
    if (c->attrs.i[DROPOUT])
        weights = KILN_OP(dropout, KILN_IN(weights), KILN_F(c->attrs.f[DROPOUT_P]));
    out[0] = kiln_cast(kiln_matmul(weights, kiln_widen(v)), c->out[0].dtype);
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
    .max_in = 4,
    .infer = sdpa_infer,
    .compose = sdpa_compose,
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

const kiln_op *const kiln_ops_attention[] = {
    &kiln_op_attention,
    &kiln_op_attention_grad,
    &kiln_op_scaled_dot_product_attention,
    NULL,
};
