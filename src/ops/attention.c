/* Attention as nodes, whose kernels never write the scores to memory: `attention`, which all devices have, and
 * `attention_masked`, with a mask, lengths of keys and dropout, which is a composition where a device has no kernel. */
#include "ops/attention.h"
#include <math.h>
#include <string.h>
#include "core/counts.h"
#include "ops/widen.h"

extern const kiln_op kiln_op_random_uniform;

/* ---- How results lie ---- */

void kiln_attention_lay_shape(int64_t *shape, const kiln_tensor *like, int64_t rows, int64_t width)
{
    int n = like->ndim;
    memcpy(shape, like->shape, (size_t)n * sizeof *shape);
    shape[n - 2] = rows;
    shape[n - 1] = width;
    if (n < 4)
        return;
    for (int d = n - 2; d > 1; d--)
        shape[d] = like->shape[d - 1];
    shape[1] = rows;
}

kiln_tensor *kiln_attention_laid(kiln_tensor *t)
{
    int64_t dims[KILN_MAX_DIMS] = {0};
    if (!t || t->ndim < 4)
        return t;
    int n = t->ndim;
    for (int d = 2; d < n - 1; d++)
        dims[d] = d - 1;
    dims[1] = n - 2;
    dims[n - 1] = n - 1;
    return kiln_permute(t, n, dims);
}

kiln_tensor *kiln_attention_upright(kiln_tensor *t)
{
    int64_t dims[KILN_MAX_DIMS] = {0};
    if (!t || t->ndim < 4)
        return t;
    int n = t->ndim;
    for (int d = 1; d < n - 2; d++)
        dims[d] = d + 1;
    dims[n - 2] = 1;
    dims[n - 1] = n - 1;
    return kiln_permute(t, n, dims);
}

/* ---- Scores ---- */

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

/* True for keys behind the last one that there is. [..., 1, S] */
static kiln_tensor *missing_keys(kiln_tensor *lengths, int64_t s)
{
    kiln_tensor *missing = NULL;
    kiln_on_device (lengths->device)
        missing = kiln_ge(kiln_arange(0, (double)s, 1, KILN_I64), kiln_unsqueeze(kiln_unsqueeze(lengths, -1), -1));
    return missing;
}

kiln_tensor *kiln_attention_scores_of(const kiln_attention_scores *s)
{
    kiln_tensor *scores = kiln_matmul(kiln_mul_scalar(s->q, s->attrs->f[KILN_ATTEND_SCALE]), kiln_turned(s->k));
    if (!scores)
        return NULL;
    int64_t rows = scores->shape[scores->ndim - 2], keys = scores->shape[scores->ndim - 1];
    if (s->mask && s->mask->dtype == KILN_BOOL)
        scores = kiln_masked_fill(scores, kiln_logical_not(s->mask), -INFINITY);
    else if (s->mask)
        scores = kiln_add(scores, kiln_cast(s->mask, kiln_dtype_of(scores)));
    if (s->lengths)
        scores = kiln_masked_fill(scores, missing_keys(s->lengths, keys), -INFINITY);
    if (s->attrs->i[KILN_ATTEND_CAUSAL] && scores)
        scores = kiln_masked_fill(scores, later_positions(scores, rows, keys), -INFINITY);
    return scores;
}

kiln_tensor *kiln_attention_kept(const kiln_attention_scores *s)
{
    const kiln_attrs *a = s->attrs;
    const kiln_tensor *q = s->q, *k = s->k;
    if (a->nints <= KILN_ATTEND_DROPOUT || !a->i[KILN_ATTEND_DROPOUT])
        return NULL;
    kiln_attrs draw = {.nints = 1, .i = {KILN_F32}, .nfloats = 2};
    draw.f[0] = a->f[KILN_ATTEND_SEED];
    draw.f[1] = a->f[KILN_ATTEND_OFFSET];
    for (int d = 0; d < q->ndim - 1; d++)
        draw.i[draw.nints++] = q->shape[d];
    draw.i[draw.nints++] = k->shape[k->ndim - 2];
    kiln_tensor *uniform = kiln_op_create(&kiln_op_random_uniform, &draw, q->device);
    double p = a->f[KILN_ATTEND_P];
    return kiln_mul_scalar(kiln_cast(kiln_ge_scalar(uniform, p), (kiln_dtype)q->dtype), 1 / (1 - p));
}

/* ---- attention ---- */

/* q [..., L, E], k [..., S, E], v [..., S, Ev], all with the same batch dims and S > 0 -> y, [..., L, Ev] as results
 * lie, and the logarithms of the softmax's denominators [..., L], which the gradient starts from; these in f32 where q
 * is half. */
bool kiln_attention_infer(kiln_call *c)
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
    int64_t shape[KILN_MAX_DIMS];
    kiln_attention_lay_shape(shape, q, q->shape[n], v->shape[n + 1]);
    kiln_desc_set(&c->out[0], (kiln_dtype)q->dtype, q->ndim, shape);
    kiln_desc_set(&c->out[1], kiln_wide((kiln_dtype)q->dtype), n + 1, q->shape);
    return true;
}

static bool attention_compose(kiln_call *c, kiln_tensor **out)
{
    kiln_tensor *scores =
        kiln_attention_scores_of(&(kiln_attention_scores){.q = c->in[0], .k = c->in[1], .attrs = &c->attrs});
    out[0] = kiln_attention_laid(kiln_matmul(kiln_softmax(scores, -1), c->in[2]));
    out[1] = kiln_logsumexp(scores, KILN_DIMS(-1), false);
    return out[0] && out[1];
}

/* The gradient's operands are q, k, v, y, lse, gy, glse, and what else there is. */
static bool attention_rule(kiln_grad_call *g)
{
    const kiln_op *op = g->op == &kiln_op_attention ? &kiln_op_attention_grad : &kiln_op_attention_masked_grad;
    kiln_tensor *gy = g->gout[0] ? g->gout[0] : kiln_zeros_like(g->out[0]), *out[KILN_MAX_OUTPUTS];
    kiln_tensor *in[9] = {g->in[0], g->in[1], g->in[2], g->out[0], g->out[1], gy, g->gout[1]};
    for (int i = 3; i < g->nin; i++)
        in[4 + i] = g->in[i];
    bool ok = kiln_op_call(op, in, 4 + g->nin, g->attrs, out);
    for (int k = 0; ok && k < 3; k++)
        ok = (g->gin[k] = kiln_attention_upright(out[k])) != NULL;
    if (ok && g->nin > 3 && g->in[3] && g->need[3])
        ok = (g->gin[3] = kiln_attention_mask_grad(in, 4 + g->nin, g->attrs)) != NULL;
    return ok;
}

int64_t kiln_attention_flops(const kiln_work *w, int of_q, int of_v)
{
    const kiln_work_shape *q = &w->in[0], *v = &w->in[2];
    int64_t scores = kiln_times(kiln_count(q->ndim - 1, q->shape), v->shape[v->ndim - 2]);
    int64_t widths = of_q * q->shape[q->ndim - 1] + of_v * v->shape[v->ndim - 1];
    return kiln_times(scores, w->ints[KILN_ATTEND_CAUSAL] ? widths : 2 * widths); /* causal ones half of it */
}

static int64_t attention_flops(const kiln_work *w)
{
    return kiln_attention_flops(w, 1, 1);
}

const kiln_op kiln_op_attention = {
    .name = "attention",
    .attrs = "causal | scale",
    .cls = KILN_CLASS_ATTENTION,
    .dtypes = KILN_T_FLOATS,
    .min_in = 3,
    .max_in = 3,
    .nout = 2,
    .infer = kiln_attention_infer,
    .compose = attention_compose,
    .grad_reads = {KILN_READS_OPERANDS | KILN_READS_RESULT},
    .grad = attention_rule,
    .flops = attention_flops,
    .cases = KILN_CASES{"x[3,4] x[5,4] x[5,2] | 0 | 0.5", "x[2,3,4] x[2,3,4] x[2,3,4] | 1 | 0.5",
                        "x[2,7,3] x[2,4,3] x[2,4,5] | 1 | -0.5", "x[1,2,3,4] x[1,2,8,4] x[1,2,8,4] | 1 | 0.3",
                        "x[2,0,4] x[2,3,4] x[2,3,4] | 0 | 1", "x[0,3,4] x[0,3,4] x[0,3,4] | 1 | 1",
                        "x[2,2,3,3,2] x[2,2,3,4,2] x[2,2,3,4,3] | 0 | 0.4", NULL},
};

/* ---- attention_masked ---- */

/* The same with a mask of the scores' shape, bool or of the type of the logarithms, lengths of the batch dims' shape,
 * and dropout. A query that sees no key gets zeros; its logarithm is infinity, which makes all its weights 0. */
bool kiln_attention_masks_fit(const kiln_call *c, int first)
{
    const kiln_tensor *q = c->in[0], *k = c->in[1], *mask = first < c->nin ? c->in[first] : NULL;
    const kiln_tensor *lengths = first + 1 < c->nin ? c->in[first + 1] : NULL;
    int n = q->ndim;
    size_t bytes = (size_t)(n - 1) * sizeof *q->shape;
    if (mask &&
        (!kiln_check_dtype(c, first, KILN_T_BOOL | 1u << kiln_wide((kiln_dtype)q->dtype)) ||
         !kiln_check_attr(
             c, mask->ndim == n && !memcmp(mask->shape, q->shape, bytes) && mask->shape[n - 1] == k->shape[n - 2],
             "the mask %s has not the shape of the scores of q %s and k %s", kiln_shape_text(mask->ndim, mask->shape),
             kiln_shape_text(n, q->shape), kiln_shape_text(n, k->shape))))
        return false;
    return !lengths ||
           (kiln_check_dtype(c, first + 1, 1 << KILN_I64) &&
            kiln_check_attr(
                c, lengths->ndim == n - 2 && !memcmp(lengths->shape, q->shape, (size_t)(n - 2) * sizeof *q->shape),
                "the lengths %s have not the shape of the batch dims of q %s",
                kiln_shape_text(lengths->ndim, lengths->shape), kiln_shape_text(n, q->shape)));
}

static bool masked_infer(kiln_call *c)
{
    return kiln_attention_infer(c) && kiln_attention_masks_fit(c, 3);
}

static bool masked_compose(kiln_call *c, kiln_tensor **out)
{
    kiln_attention_scores s = {c->in[0], c->in[1], c->nin > 3 ? c->in[3] : NULL, c->nin > 4 ? c->in[4] : NULL,
                               &c->attrs};
    kiln_tensor *scores = kiln_attention_scores_of(&s), *kept = kiln_attention_kept(&s);
    kiln_tensor *empty = kiln_eq_scalar(kiln_amax(scores, KILN_DIMS(-1), true), -INFINITY);
    scores = kiln_masked_fill(scores, empty, 0);
    kiln_tensor *weights = kiln_masked_fill(kiln_softmax(scores, -1), empty, 0);
    if (c->attrs.i[KILN_ATTEND_DROPOUT])
        weights = kiln_mul(weights, kept);
    out[0] = kiln_attention_laid(kiln_matmul(weights, c->in[2]));
    out[1] = kiln_masked_fill(kiln_logsumexp(scores, KILN_DIMS(-1), false), kiln_squeeze(empty, -1), INFINITY);
    return out[0] && out[1];
}

const kiln_op kiln_op_attention_masked = {
    .name = "attention_masked",
    .attrs = "causal dropout | scale dropout_p seed offset",
    .cls = KILN_CLASS_ATTENTION,
    .draws = KILN_ATTEND_DROPOUT + 1,
    .dtypes = KILN_T_FLOATS,
    .min_in = 3,
    .max_in = 5,
    .nout = 2,
    .infer = masked_infer,
    .compose = masked_compose,
    .grad_reads = {KILN_READS_OPERANDS | KILN_READS_RESULT},
    .grad = attention_rule,
    .flops = attention_flops,
    .cases = KILN_CASES{"x[3,4] x[5,4] x[5,2] b[3,5] - | 0 0 | 0.5 0 0 0",
                        "x[2,3,4] x[2,3,4] x[2,3,4] s[2,3,3] - | 1 0 | 0.5 0 0 0",
                        "x[2,2,3,4] x[2,2,5,4] x[2,2,5,4] - n4,1,2,9[2,2] | 0 0 | 0.4 0 0 0",
                        "x[2,3,4] x[2,6,4] x[2,6,3] s[2,3,6] n4,6[2] | 1 0 | -0.5 0 0 0",
                        "x[0,3,4] x[0,3,4] x[0,3,4] b[0,3,3] - | 1 0 | 1 0 0 0", NULL},
};
