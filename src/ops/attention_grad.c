/* The gradient of attention as nodes, and the gradient of that. */
#include <math.h>
#include <string.h>
#include "ops/attention.h"
#include "ops/widen.h"

/* Operands q, k, v, the two results of attention, the gradients of both (the second one may be absent), mask and
 * lengths; results the gradients of q, k and v, as results lie. With P the weights, M what dropout makes of them, and D
 * the scores' gradient:
 *
 *   P = exp(scale·q·kᵀ + mask - lse)   D = P·(M·(gy·vᵀ) - Σ gy·y + glse)
 *   gq = scale·D·k   gk = scale·Dᵀ·q   gv = (M·P)ᵀ·gy */
enum { Q, K, V, Y, LSE, GY, GLSE, MASK, LENGTHS, OPERANDS };

static bool attention_grad_infer(kiln_call *c)
{
    kiln_call forward = *c;
    forward.nin = 3;
    if (!kiln_attention_infer(&forward))
        return false;
    if (!kiln_attention_masks_fit(c, MASK))
        return false;
    for (int k = Y; k < c->nin && k < MASK; k++) {
        const kiln_tensor *t = c->in[k];
        const kiln_desc *d = &forward.out[k == LSE || k == GLSE];
        if (t && !kiln_check_attr(c,
                                  t->ndim == d->ndim && t->dtype == d->dtype &&
                                      !memcmp(t->shape, d->shape, (size_t)d->ndim * sizeof *d->shape),
                                  "operand %d is %s, it must be %s", k + 1, kiln_shape_text(t->ndim, t->shape),
                                  kiln_shape_text(d->ndim, d->shape)))
            return false;
    }
    for (int k = 0; k < 3; k++) {
        const kiln_tensor *t = c->in[k];
        int64_t shape[KILN_MAX_DIMS];
        kiln_attention_lay_shape(shape, t, t->shape[t->ndim - 2], t->shape[t->ndim - 1]);
        kiln_desc_set(&c->out[k], (kiln_dtype)t->dtype, t->ndim, shape);
    }
    return true;
}

/* What the gradient, and its own gradient, are made of; operands are upright. */
typedef struct parts {
    kiln_tensor *p, *above; /* the weights, and M·(gy·vᵀ) - Σ gy·y + glse */
    kiln_tensor *kept;      /* M; NULL: all ones */
} parts;

static kiln_tensor *times(kiln_tensor *x, kiln_tensor *kept)
{
    return kept ? kiln_mul(x, kept) : x;
}

static parts parts_of(kiln_tensor *const *in, const kiln_attrs *a)
{
    kiln_attention_scores s = {in[Q], in[K], in[MASK], in[LENGTHS], a};
    parts x = {.kept = kiln_attention_kept(&s)};
    x.p = kiln_exp(kiln_sub(kiln_attention_scores_of(&s), kiln_unsqueeze(in[LSE], -1)));
    kiln_tensor *along = kiln_sum(kiln_mul(in[GY], in[Y]), KILN_DIMS(-1), true);
    if (in[GLSE])
        along = kiln_sub(along, kiln_unsqueeze(in[GLSE], -1));
    x.above = kiln_sub(times(kiln_matmul(in[GY], kiln_turned(in[V])), x.kept), along);
    return x;
}

/* The operands in f32 at least, and upright; in[] has room for all there can be. */
static void widen_operands(kiln_tensor *const *from, int count, kiln_tensor **in)
{
    for (int i = 0; i < count; i++)
        in[i] = i == Y || i == GY ? kiln_attention_upright(kiln_widen(from[i])) : kiln_widen(from[i]);
}

kiln_tensor *kiln_attention_mask_grad(kiln_tensor *const *operands, int count, const kiln_attrs *a)
{
    kiln_tensor *in[OPERANDS] = {NULL};
    widen_operands(operands, count, in);
    parts x = parts_of(in, a);
    return kiln_mul(x.p, x.above);
}

static bool attention_grad_compose(kiln_call *c, kiln_tensor **out)
{
    kiln_tensor *in[OPERANDS] = {NULL};
    memcpy(in, c->in, (size_t)c->nin * sizeof *in);
    in[Y] = kiln_attention_upright(in[Y]);
    in[GY] = kiln_attention_upright(in[GY]);
    double scale = c->attrs.f[0];
    parts x = parts_of(in, &c->attrs);
    kiln_tensor *d = kiln_mul(x.p, x.above);
    out[0] = kiln_attention_laid(kiln_mul_scalar(kiln_matmul(d, in[K]), scale));
    out[1] = kiln_attention_laid(kiln_matmul(kiln_turned(d), kiln_mul_scalar(in[Q], scale)));
    out[2] = kiln_attention_laid(kiln_matmul(kiln_turned(times(x.p, x.kept)), in[GY]));
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
    kiln_tensor *in[OPERANDS] = {NULL}, *uq = kiln_attention_upright(kiln_widen(g->gout[0])),
                *uk = kiln_attention_upright(kiln_widen(g->gout[1]));
    kiln_tensor *uv = kiln_attention_upright(kiln_widen(g->gout[2]));
    double scale = g->attrs->f[0];
    uint64_t failures = kiln_fail_count();
    widen_operands(g->in, g->nin, in);
    kiln_tensor *gd = NULL, *gp = NULL, *d = NULL;
    parts x = parts_of(in, g->attrs);
    if (uq || uk) {
        d = kiln_mul(x.p, x.above);
        gd = joined(uq ? kiln_matmul(uq, kiln_turned(in[K])) : NULL, uk ? kiln_matmul(in[Q], kiln_turned(uk)) : NULL);
        gd = kiln_mul_scalar(gd, scale);
        gp = kiln_mul(gd, x.above);
    }
    if (uv)
        gp = joined(gp, times(kiln_matmul(in[GY], kiln_turned(uv)), x.kept));
    kiln_tensor *gs = kiln_mul(gp, x.p), *gs_scaled = kiln_mul_scalar(gs, scale);
    g->gin[Q] = kiln_matmul(gs_scaled, in[K]);
    g->gin[K] = kiln_matmul(kiln_turned(gs_scaled), in[Q]);
    g->gin[LSE] = kiln_neg(kiln_sum(gs, KILN_DIMS(-1), false));
    if (in[MASK] && in[MASK]->dtype != KILN_BOOL)
        g->gin[MASK] = gs;
    if (uk)
        g->gin[Q] = joined(g->gin[Q], kiln_mul_scalar(kiln_matmul(d, uk), scale));
    if (uq)
        g->gin[K] = joined(g->gin[K], kiln_mul_scalar(kiln_matmul(kiln_turned(d), uq), scale));
    if (uv)
        g->gin[GY] = kiln_matmul(times(x.p, x.kept), uv);
    if (gd) {
        kiln_tensor *ga = kiln_mul(gd, x.p), *along = kiln_sum(ga, KILN_DIMS(-1), true);
        ga = times(ga, x.kept);
        g->gin[V] = kiln_matmul(kiln_turned(ga), in[GY]);
        g->gin[Y] = kiln_neg(kiln_mul(in[GY], along));
        g->gin[GY] = joined(g->gin[GY], kiln_sub(kiln_matmul(ga, in[V]), kiln_mul(in[Y], along)));
        if (in[GLSE])
            g->gin[GLSE] = kiln_squeeze(along, -1);
    }
    g->gin[Y] = kiln_attention_laid(g->gin[Y]);
    g->gin[GY] = kiln_attention_laid(g->gin[GY]);
    for (int i = 0; i < g->nin; i++)
        if (g->gin[i] && g->in[i])
            g->gin[i] = kiln_cast(g->gin[i], (kiln_dtype)g->in[i]->dtype);
    return kiln_fail_count() == failures;
}

static int64_t attention_grad_flops(const kiln_work *w)
{
    return kiln_attention_flops(w, 3, 2);
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
                        "x[2,3,2,4] x[2,3,5,4] x[2,3,5,2] x[2,2,3,2] s[2,3,2] x[2,2,3,2] s[2,3,2] | 0 | 0.5",
                        "x[0,3,4] x[0,3,4] x[0,3,4] x[0,3,4] s[0,3] x[0,3,4] - | 1 | 1",
                        "x[2,0,4] x[2,3,4] x[2,3,4] x[2,0,4] s[2,0] x[2,0,4] - | 0 | 1", NULL},
};

const kiln_op kiln_op_attention_masked_grad = {
    .name = "attention_masked_grad",
    .attrs = "causal dropout | scale dropout_p seed offset",
    .cls = KILN_CLASS_ATTENTION,
    .draws = KILN_ATTEND_DROPOUT + 1,
    .dtypes = KILN_T_FLOATS,
    .min_in = 6,
    .max_in = OPERANDS,
    .nout = 3,
    .infer = attention_grad_infer,
    .compose = attention_grad_compose,
    .grad = attention_grad_rule,
    .flops = attention_grad_flops,
    .cases = KILN_CASES{"x[3,4] x[5,4] x[5,2] x[3,2] s[3] x[3,2] s[3] b[3,5] - | 0 0 | 0.5 0 0 0",
                        "x[2,3,4] x[2,3,4] x[2,3,4] x[2,3,4] s[2,3] x[2,3,4] - s[2,3,3] - | 1 0 | 0.5 0 0 0",
                        "x[2,2,3,4] x[2,2,5,4] x[2,2,5,4] x[2,3,2,4] s[2,2,3] x[2,3,2,4] - - n4,0,2,9[2,2] "
                        "| 0 0 | 0.4 0 0 0",
                        "x[0,3,4] x[0,3,4] x[0,3,4] x[0,3,4] s[0,3] x[0,3,4] - b[0,3,3] - | 1 0 | 1 0 0 0", NULL},
};
