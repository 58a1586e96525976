/* LSTM. The input's products are one matmul over all steps; what is left of a step, the product with h and the gates,
 * is the node lstm_cells, and its gradient lstm_cells_grad. That one leaves the gradients of all steps' gates behind,
 * from which the gradients of the weights are again one matmul each. */
#include <string.h>
#include "ops/helpers.h"
#include "ops/widen.h"

extern const kiln_op kiln_op_lstm_cells, kiln_op_lstm_cells_grad;

static bool check_typed(const kiln_call *c, int operand, const char *name, kiln_dtype dtype, int ndim,
                        const int64_t *shape)
{
    const kiln_tensor *t = c->in[operand];
    if (!t || (t->ndim == ndim && !memcmp(t->shape, shape, (size_t)ndim * sizeof *shape)))
        return !t || (dtype == c->in[0]->dtype ? kiln_check_same_dtype(c, 0, operand)
                                               : kiln_check_dtype(c, operand, UINT32_C(1) << dtype));
    return kiln_fail(KILN_E_SHAPE, c->op->name, "%s is %s, but must be %s", name, kiln_shape_text(t->ndim, t->shape),
                     kiln_shape_text(ndim, shape));
}

static bool check_shape(const kiln_call *c, int operand, const char *name, int ndim, const int64_t *shape)
{
    return check_typed(c, operand, name, (kiln_dtype)c->in[0]->dtype, ndim, shape);
}

/* A cell state and its gradient: they add up over all steps, so 16 bits are too few for them. */
static bool check_cell(const kiln_call *c, int operand, const char *name, int ndim, const int64_t *shape)
{
    return check_typed(c, operand, name, kiln_wide((kiln_dtype)c->in[0]->dtype), ndim, shape);
}

static kiln_tensor *slice(kiln_tensor *t, int dim, int64_t start, int64_t end)
{
    return kiln_slice(t, dim, start, end, 1);
}

/* ---- lstm_cells ---- */

/* x [T, N, 4H] (the input's part of the gates), h0 and c0 [N, H], w_hh [4H, H] -> h and c [T + 1, N, H], which begin
 * with h0 and c0, and the gates [T, N, 4H] after their activations. Where x is half, c0 and c are f32; a step starts
 * from the h that is stored. */
static bool lstm_cells_infer(kiln_call *c)
{
    const kiln_tensor *x = c->in[0];
    if (!kiln_check_ndim(c, 0, 3, 3) ||
        !kiln_check_attr(c, x->shape[2] % 4 == 0, "x %s: its last dim must be four times the width of h",
                         kiln_shape_text(x->ndim, x->shape)))
        return false;
    int64_t t = x->shape[0], n = x->shape[1], h = x->shape[2] / 4;
    if (!check_shape(c, 1, "h0", 2, (int64_t[]){n, h}) || !check_cell(c, 2, "c0", 2, (int64_t[]){n, h}) ||
        !check_shape(c, 3, "w_hh", 2, (int64_t[]){4 * h, h}))
        return false;
    kiln_desc_set(&c->out[0], (kiln_dtype)x->dtype, 3, (int64_t[]){t + 1, n, h});
    kiln_desc_set(&c->out[1], kiln_wide((kiln_dtype)x->dtype), 3, (int64_t[]){t + 1, n, h});
    kiln_desc_like(&c->out[2], x);
    return true;
}

/* Lists of steps that are stacked at the end, since an operation has at most KILN_MAX_INPUTS operands. */
static kiln_tensor *stacked(kiln_tensor *before, kiln_tensor *next)
{
    next = kiln_unsqueeze(next, 0);
    return before ? kiln_cat(2, (kiln_tensor *[]){before, next}, 0) : next;
}

static bool lstm_cells_compose(kiln_call *c, kiln_tensor **out)
{
    kiln_tensor *x = c->in[0], *h = c->in[1], *cell = c->in[2], *w = kiln_transpose(c->in[3], 0, 1);
    int64_t width = h->shape[1];
    out[0] = kiln_unsqueeze(h, 0);
    out[1] = kiln_unsqueeze(cell, 0);
    out[2] = x->shape[0] ? NULL : kiln_clone(x);
    for (int64_t t = 0; t < x->shape[0]; t++) {
        kiln_tensor *sum = kiln_add(kiln_select(x, 0, t), kiln_matmul(h, w)), *gate[4];
        for (int k = 0; k < 4; k++) {
            gate[k] = slice(sum, 1, k * width, (k + 1) * width);
            gate[k] = k == 2 ? kiln_tanh(gate[k]) : kiln_sigmoid(gate[k]);
        }
        cell = kiln_add(kiln_mul(gate[1], cell), kiln_mul(gate[0], gate[2]));
        h = kiln_mul(gate[3], kiln_tanh(cell));
        out[0] = stacked(out[0], h);
        out[1] = stacked(out[1], cell);
        out[2] = stacked(out[2], kiln_cat(4, gate, 1));
        if (!out[0] || !out[1] || !out[2])
            return false;
    }
    for (int j = 0; x->shape[0] == 0 && j < 2; j++)
        out[j] = kiln_clone(out[j]);
    return out[0] && out[1] && out[2];
}

/* Σ over all steps of (gradient of the gates)ᵀ·(the h before the step), as one product. */
static kiln_tensor *recurrent_weight_grad(kiln_tensor *gx, kiln_tensor *h)
{
    if (!gx)
        return NULL;
    int64_t rows = gx->shape[0] * gx->shape[1], width = h->shape[2];
    kiln_tensor *before = kiln_reshape(slice(h, 0, 0, gx->shape[0]), 2, (int64_t[]){rows, width});
    return kiln_matmul(kiln_transpose(kiln_reshape(gx, 2, (int64_t[]){rows, 4 * width}), 0, 1), before);
}

static bool lstm_cells_rule(kiln_grad_call *g)
{
    kiln_tensor *outs[KILN_MAX_OUTPUTS];
    kiln_tensor *in[] = {g->out[2], g->out[1], g->in[3], g->gout[0], g->gout[1], g->gout[2]};
    if (!kiln_op_call(&kiln_op_lstm_cells_grad, in, 6, g->attrs, outs))
        return false;
    for (int k = 0; k < 3; k++)
        g->gin[k] = outs[k];
    if (g->need[3])
        g->gin[3] = recurrent_weight_grad(outs[0], g->out[0]);
    return !g->need[3] || g->gin[3];
}

const kiln_op kiln_op_lstm_cells = {
    .name = "lstm_cells",
    .attrs = "",
    .cls = KILN_CLASS_SCAN,
    .dtypes = KILN_T_FLOATS,
    .min_in = 4,
    .max_in = 4,
    .nout = 3,
    .infer = lstm_cells_infer,
    .compose = lstm_cells_compose,
    .grad_reads = {KILN_READS_W | KILN_READS_RESULT},
    .grad = lstm_cells_rule,
    .cases = KILN_CASES{"x[2,3,8] x[3,2] s[3,2] x[8,2]", "x[3,1,12] x[1,3] s[1,3] x[12,3]",
                        "x[0,2,4] x[2,1] s[2,1] x[4,1]", "x[2,0,4] x[0,1] s[0,1] x[4,1]", NULL},
};

/* ---- lstm_cells_grad ---- */

/* gates [T, N, 4H] and c [T + 1, N, H] of lstm_cells, w_hh, and the gradients of h, c and gates, each of which may be
 * absent -> the gradients of x, h0 and c0. */
enum { GATES, C, W, GH, GC, GGATES };

static bool lstm_cells_grad_infer(kiln_call *c)
{
    const kiln_tensor *gates = c->in[GATES];
    if (!kiln_check_ndim(c, 0, 3, 3) ||
        !kiln_check_attr(c, gates->shape[2] % 4 == 0, "gates %s: the last dim must be four times the width of h",
                         kiln_shape_text(gates->ndim, gates->shape)))
        return false;
    int64_t t = gates->shape[0], n = gates->shape[1], h = gates->shape[2] / 4, all[3] = {t + 1, n, h};
    if (!check_cell(c, C, "c", 3, all) || !check_shape(c, W, "w_hh", 2, (int64_t[]){4 * h, h}) ||
        (c->nin > GH && !check_shape(c, GH, "the gradient of h", 3, all)) ||
        (c->nin > GC && !check_cell(c, GC, "the gradient of c", 3, all)) ||
        (c->nin > GGATES && !check_shape(c, GGATES, "the gradient of gates", 3, gates->shape)))
        return false;
    kiln_desc_like(&c->out[0], gates);
    kiln_desc_set(&c->out[1], (kiln_dtype)gates->dtype, 2, all + 1);
    kiln_desc_set(&c->out[2], kiln_wide((kiln_dtype)gates->dtype), 2, all + 1);
    return true;
}

static kiln_tensor *plus(kiln_tensor *a, kiln_tensor *b)
{
    return a && b ? kiln_add(a, b) : a ? a : b;
}

/* Operand k at step t, or NULL where it is absent. */
static kiln_tensor *at_step(const kiln_call *c, int k, int64_t t)
{
    return k < c->nin && c->in[k] ? kiln_select(c->in[k], 0, t) : NULL;
}

/* The gradients of one step's gates before their activations, [N, 4H]; *gc goes from c's to that of the c before. */
static kiln_tensor *step_back(const kiln_call *c, int64_t t, kiln_tensor *gh, kiln_tensor **gc)
{
    kiln_tensor *gates = kiln_select(c->in[GATES], 0, t), *from = at_step(c, GGATES, t), *gate[4], *g[4];
    kiln_tensor *before = kiln_select(c->in[C], 0, t), *tanh_c = kiln_tanh(kiln_select(c->in[C], 0, t + 1));
    if (!gates || !before)
        return NULL;
    int64_t width = before->shape[1];
    for (int k = 0; k < 4; k++)
        gate[k] = slice(gates, 1, k * width, (k + 1) * width);
    kiln_tensor *through = kiln_mul(kiln_mul(gh, gate[3]), kiln_rsub_scalar(kiln_square(tanh_c), 1));
    *gc = plus(*gc, through);
    g[0] = kiln_mul(*gc, gate[2]);
    g[1] = kiln_mul(*gc, before);
    g[2] = kiln_mul(*gc, gate[0]);
    g[3] = kiln_mul(gh, tanh_c);
    for (int k = 0; k < 4; k++) {
        if (from)
            g[k] = kiln_add(g[k], slice(from, 1, k * width, (k + 1) * width));
        kiln_tensor *slope =
            k == 2 ? kiln_rsub_scalar(kiln_square(gate[k]), 1) : kiln_mul(gate[k], kiln_rsub_scalar(gate[k], 1));
        g[k] = kiln_mul(g[k], slope);
    }
    *gc = kiln_mul(*gc, gate[1]);
    return kiln_cat(4, g, 1);
}

static bool lstm_cells_grad_compose(kiln_call *c, kiln_tensor **out)
{
    const kiln_tensor *gates = c->in[GATES];
    int64_t steps = gates->shape[0];
    kiln_tensor *gh = NULL, *gc = NULL, *zeros = kiln_fill_like(gates, c->out[1].ndim, c->out[1].shape, 0);
    out[0] = steps ? NULL : kiln_clone(c->in[GATES]);
    for (int64_t t = steps - 1; t >= 0; t--) {
        gh = plus(gh, at_step(c, GH, t + 1));
        gc = plus(gc, at_step(c, GC, t + 1));
        kiln_tensor *g = step_back(c, t, gh ? gh : zeros, &gc);
        if (!g)
            return false;
        gh = kiln_matmul(g, c->in[W]);
        g = kiln_unsqueeze(g, 0);
        out[0] = out[0] ? kiln_cat(2, (kiln_tensor *[]){g, out[0]}, 0) : g;
    }
    out[1] = plus(gh, at_step(c, GH, 0));
    out[2] = plus(gc, at_step(c, GC, 0));
    for (int k = 0; k < 3; k++) /* results of their own, also where they are what was given */
        out[k] = out[k] ? kiln_clone(out[k]) : k ? kiln_clone(zeros) : NULL;
    return out[0] && out[1] && out[2];
}

const kiln_op kiln_op_lstm_cells_grad = {
    .name = "lstm_cells_grad",
    .attrs = "",
    .cls = KILN_CLASS_SCAN,
    .dtypes = KILN_T_FLOATS,
    .min_in = 3,
    .max_in = 6,
    .nout = 3,
    .infer = lstm_cells_grad_infer,
    .compose = lstm_cells_grad_compose,
    .grad = kiln_grad_by_composition,
    .cases = KILN_CASES{"x[2,3,8] s[3,3,2] x[8,2] x[3,3,2] s[3,3,2] x[2,3,8]", "x[3,2,4] s[4,2,1] x[4,1] x[4,2,1] - -",
                        "x[2,1,8] s[3,1,2] x[8,2] - s[3,1,2] -", "x[1,2,4] s[2,2,1] x[4,1] - - x[1,2,4]",
                        "x[0,2,4] s[1,2,1] x[4,1] x[1,2,1] s[1,2,1] -", NULL},
};

/* ---- lstm ---- */

/* Operands x, h0, c0, w_ih, w_hh, b_ih, b_hh; results y, hn, cn. */
static bool lstm_infer(kiln_call *c)
{
    const kiln_tensor *x = c->in[0], *h0 = c->in[1];
    if (!kiln_check_ndim(c, 0, 3, 3) || !kiln_check_ndim(c, 1, 2, 2))
        return false;
    int64_t n = x->shape[1], h = h0->shape[1], state[2] = {n, h};
    if (!check_shape(c, 1, "h0", 2, state) || !check_shape(c, 2, "c0", 2, state) ||
        !check_shape(c, 3, "w_ih", 2, (int64_t[]){4 * h, x->shape[2]}) ||
        !check_shape(c, 4, "w_hh", 2, (int64_t[]){4 * h, h}) ||
        (c->nin > 5 && !check_shape(c, 5, "b_ih", 1, (int64_t[]){4 * h})) ||
        (c->nin > 6 && !check_shape(c, 6, "b_hh", 1, (int64_t[]){4 * h})))
        return false;
    kiln_desc_set(&c->out[0], (kiln_dtype)x->dtype, 3, (int64_t[]){x->shape[0], n, h});
    kiln_desc_set(&c->out[1], (kiln_dtype)x->dtype, 2, state);
    c->out[2] = c->out[1];
    return true;
}

static bool lstm_compose(kiln_call *c, kiln_tensor **out)
{
    kiln_tensor *in[7] = {NULL}, *outs[KILN_MAX_OUTPUTS];
    memcpy(in, c->in, (size_t)c->nin * sizeof *in);
    kiln_tensor *x = kiln_linear(in[0], in[3], plus(in[5], in[6]));
    if (!kiln_op_call(&kiln_op_lstm_cells, KILN_IN(x, in[1], kiln_widen(in[2]), in[4]), KILN_NO_ATTRS, outs))
        return false;
    int64_t steps = c->in[0]->shape[0];
    out[0] = slice(outs[0], 0, 1, steps + 1);
    out[1] = kiln_select(outs[0], 0, steps);
    out[2] = kiln_select(outs[1], 0, steps);
    for (int j = 0; j < 3; j++)
        out[j] = kiln_cast(out[j], c->out[j].dtype);
    return out[0] && out[1] && out[2];
}

const kiln_op kiln_op_lstm = {
    .name = "lstm",
    .attrs = "",
    .cls = KILN_CLASS_COMPOSITE,
    .autocast = KILN_CAST_LOWER,
    .dtypes = KILN_T_FLOATS,
    .keeps_half = true,
    .heart = &kiln_op_lstm_cells,
    .min_in = 5,
    .max_in = 7,
    .nout = 3,
    .infer = lstm_infer,
    .compose = lstm_compose,
    .cases = KILN_CASES{"x[3,2,3] x[2,2] x[2,2] x[8,3] x[8,2] x[8] x[8]", "x[2,3,1] x[3,2] x[3,2] x[8,1] x[8,2] - x[8]",
                        "x[2,2,2] x[2,1] x[2,1] x[4,2] x[4,1] - -", NULL},
};

kiln_tensor *kiln_lstm(kiln_tensor *x, kiln_tensor *h0, kiln_tensor *c0, kiln_tensor *w_ih, kiln_tensor *w_hh,
                       kiln_tensor *b_ih, kiln_tensor *b_hh, kiln_tensor **hn, kiln_tensor **cn)
{
    kiln_tensor *outs[KILN_MAX_OUTPUTS] = {NULL};
    bool ok = kiln_op_call(&kiln_op_lstm, KILN_IN(x, h0, c0, w_ih, w_hh, b_ih, b_hh), KILN_NO_ATTRS, outs);
    if (hn)
        *hn = ok ? outs[1] : NULL;
    if (cn)
        *cn = ok ? outs[2] : NULL;
    return ok ? outs[0] : NULL;
}

const kiln_op *const kiln_ops_lstm[] = {
    &kiln_op_lstm_cells,
    &kiln_op_lstm_cells_grad,
    &kiln_op_lstm,
    NULL,
};
