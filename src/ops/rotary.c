/* Rotary position embedding: pairs of elements, one of each half of a row, turned by an angle that grows with the row's
 * position. One pass over memory; the gradient is the turn backwards. */
#include "ops/widen.h"

extern const kiln_op kiln_op_rotary;

/* x [..., T, D], cos and sin [T, D/2] (f32 where x is half) -> as x, dense. */
static bool rotary_infer(kiln_call *c)
{
    const kiln_tensor *x = c->in[0];
    if (!kiln_check_ndim(c, 0, 2, KILN_MAX_DIMS))
        return false;
    int64_t length = x->shape[x->ndim - 2], width = x->shape[x->ndim - 1];
    if (!kiln_check_attr(c, width % 2 == 0, "rows of x %s have no halves: the last dim is odd",
                         kiln_shape_text(x->ndim, x->shape)))
        return false;
    for (int k = 1; k <= 2; k++) {
        const kiln_tensor *t = c->in[k];
        if (!kiln_check_dtype(c, k, UINT32_C(1) << kiln_wide((kiln_dtype)x->dtype)) ||
            !kiln_check_attr(c, t->ndim == 2 && t->shape[0] == length && t->shape[1] == width / 2,
                             "%s %s must have a row for each position of x %s, and half its width",
                             k == 1 ? "cos" : "sin", kiln_shape_text(t->ndim, t->shape),
                             kiln_shape_text(x->ndim, x->shape)))
            return false;
    }
    kiln_desc_like(&c->out[0], x);
    return true;
}

static kiln_tensor *half_of(kiln_tensor *x, int which)
{
    int64_t half = x ? x->shape[x->ndim - 1] / 2 : 0;
    return kiln_slice(x, -1, which * half, (which + 1) * half, 1);
}

static bool rotary_compose(kiln_call *c, kiln_tensor **out)
{
    kiln_tensor *a = half_of(c->in[0], 0), *b = half_of(c->in[0], 1), *cos = c->in[1];
    kiln_tensor *sin = c->attrs.i[0] ? kiln_neg(c->in[2]) : c->in[2];
    kiln_tensor *turned[] = {kiln_sub(kiln_mul(a, cos), kiln_mul(b, sin)),
                             kiln_add(kiln_mul(b, cos), kiln_mul(a, sin))};
    out[0] = kiln_cat(2, turned, -1);
    return out[0] != NULL;
}

static bool rotary_rule(kiln_grad_call *g)
{
    kiln_tensor *gy = g->gout[0];
    bool back = g->attrs->i[0];
    if (!gy)
        return true;
    if (g->need[0] && !(g->gin[0] = KILN_OP(rotary, KILN_IN(gy, g->in[1], g->in[2]), KILN_I(!back))))
        return false;
    if (!g->need[1] && !g->need[2])
        return true;
    kiln_tensor *x = kiln_widen(g->in[0]), *a = half_of(x, 0), *b = half_of(x, 1);
    kiln_tensor *wide = kiln_widen(gy), *ga = half_of(wide, 0), *gb = half_of(wide, 1);
    kiln_tensor *across = kiln_sub(kiln_mul(gb, a), kiln_mul(ga, b));
    g->gin[1] = kiln_add(kiln_mul(ga, a), kiln_mul(gb, b));
    g->gin[2] = back ? kiln_neg(across) : across;
    return g->gin[1] && g->gin[2];
}

const kiln_op kiln_op_rotary = {
    .name = "rotary",
    .attrs = "back",
    .cls = KILN_CLASS_ATTENTION,
    .dtypes = KILN_T_FLOATS,
    .min_in = 3,
    .max_in = 3,
    .infer = rotary_infer,
    .compose = rotary_compose,
    .grad_reads = {KILN_READS_Y | KILN_READS_Z, KILN_READS_X},
    .grad = rotary_rule,
    .cases =
        KILN_CASES{"x[3,4] s[3,2] s[3,2] | 0", "x[2,3,5,6] s[5,3] s[5,3] | 0", "x[2,3,2] s[3,1] s[3,1] | 1",
                   "x[2,2,4,16] s[4,8] s[4,8] | 1", "x[0,3,4] s[3,2] s[3,2] | 0", "x[2,0,4] s[0,2] s[0,2] | 0", NULL},
};

kiln_tensor *kiln_rotary(kiln_tensor *x, kiln_tensor *cos, kiln_tensor *sin)
{
    return KILN_OP(rotary, KILN_IN(x, cos, sin), KILN_I(0));
}

const kiln_op *const kiln_ops_rotary[] = {&kiln_op_rotary, NULL};
