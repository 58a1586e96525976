/* Products: matmul is a node for operands of two and more dims; everything else is written with it. */
#include <string.h>
#include "core/counts.h"
#include "ops/op.h"

/* ---- matmul ---- */

/* a [..., m, k] · b [..., k, n]; a 1-d operand stands for a row on the left, a column on the right. */
static bool inner_sizes_fit(const char *op, const kiln_tensor *a, const kiln_tensor *b)
{
    if (a->ndim == 0 || b->ndim == 0) {
        kiln_fail(KILN_E_SHAPE, op, "a %s and b %s: both need at least one dim", kiln_shape_text(a->ndim, a->shape),
                  kiln_shape_text(b->ndim, b->shape));
        kiln_hint("multiply by a single number with kiln_mul");
        return false;
    }
    int at = b->ndim == 1 ? 0 : b->ndim - 2;
    if (a->shape[a->ndim - 1] == b->shape[at])
        return true;
    kiln_fail(KILN_E_SHAPE, op,
              "a %s and b %s: dim %d of a has size %lld, dim %d of b has size %lld, they must be equal",
              kiln_shape_text(a->ndim, a->shape), kiln_shape_text(b->ndim, b->shape), a->ndim - 1,
              (long long)a->shape[a->ndim - 1], at, (long long)b->shape[at]);
    if (b->ndim >= 2 && a->shape[a->ndim - 1] == b->shape[b->ndim - 1])
        kiln_hint("transpose b: kiln_transpose(b, -1, -2)");
    return false;
}

static bool matmul_infer(kiln_call *c)
{
    const kiln_tensor *a = c->in[0], *b = c->in[1];
    if (!kiln_check_same_dtype(c, 0, 1) || !inner_sizes_fit(c->op->name, a, b) ||
        !kiln_check_ndim(c, 0, 2, KILN_MAX_DIMS) || !kiln_check_ndim(c, 1, 2, KILN_MAX_DIMS))
        return false;
    int64_t shape[KILN_MAX_DIMS];
    int batch;
    if (!kiln_broadcast(a->ndim - 2, a->shape, b->ndim - 2, b->shape, &batch, shape)) {
        kiln_fail(KILN_E_SHAPE, c->op->name, "a %s and b %s: their batch dims (all but the last two) do not broadcast",
                  kiln_shape_text(a->ndim, a->shape), kiln_shape_text(b->ndim, b->shape));
        return false;
    }
    shape[batch] = a->shape[a->ndim - 2];
    shape[batch + 1] = b->shape[b->ndim - 1];
    kiln_desc_set(&c->out[0], a->dtype, batch + 2, shape);
    return true;
}

/* Columns lie one behind the other in memory: a transposed view. */
static bool is_transposed(const kiln_tensor *t)
{
    return t->stride[t->ndim - 2] == 1 && t->stride[t->ndim - 1] != 1;
}

static kiln_tensor *turned(kiln_tensor *t)
{
    return kiln_transpose(t, -1, -2);
}

/* Whether the batch dims of an operand are broadcast to those of gy. */
static bool is_broadcast(const kiln_tensor *t, const kiln_tensor *gy)
{
    return t->ndim != gy->ndim || memcmp(t->shape, gy->shape, (size_t)(t->ndim - 2) * sizeof *t->shape);
}

/* x [..., m, k], with the batch dims of gy, as [kept…, dropped…·m, k]: batch dims that `to` has are kept, those that it
 * is broadcast along lie with the rows. */
static kiln_tensor *beside_rows(kiln_tensor *x, const kiln_tensor *to, const kiln_tensor *gy)
{
    int64_t whole[KILN_MAX_DIMS], order[KILN_MAX_DIMS], flat[KILN_MAX_DIMS], rows = 1;
    int n = gy->ndim - 2, lead = gy->ndim - to->ndim, kept = 0, dropped = 0;
    for (int d = 0; d < n; d++) {
        whole[d] = gy->shape[d];
        bool keeps = d >= lead && to->shape[d - lead] != 1;
        if (keeps)
            flat[kept++] = gy->shape[d];
        else
            rows *= gy->shape[d];
    }
    for (int d = 0, k = 0; d < n; d++)
        order[d >= lead && to->shape[d - lead] != 1 ? k++ : kept + dropped++] = d;
    order[n] = n;
    order[n + 1] = n + 1;
    whole[n] = x->shape[x->ndim - 2];
    whole[n + 1] = flat[kept + 1] = x->shape[x->ndim - 1];
    flat[kept] = rows * whole[n];
    return kiln_reshape(kiln_permute(kiln_expand(x, n + 2, whole), n + 2, order), kept + 2, flat);
}

/* The gradient of the second operand of a·b, which has the batch dims of `to` and is broadcast: one product that sums
 * over all it was broadcast along. */
static kiln_tensor *summed_grad(kiln_tensor *a, kiln_tensor *gy, const kiln_tensor *to)
{
    if (!a || !gy)
        return NULL;
    kiln_tensor *sum = kiln_matmul(turned(beside_rows(a, to, gy)), beside_rows(gy, to, gy));
    int64_t shape[KILN_MAX_DIMS];
    memcpy(shape, to->shape, sizeof shape);
    for (int d = 1; sum && d <= 2; d++)
        shape[to->ndim - d] = sum->shape[sum->ndim - d];
    return sum ? kiln_reshape(sum, to->ndim, shape) : NULL;
}

/* gy·bᵀ and aᵀ·gy. For an operand that is a transposed view, the transpose of the gradient is computed instead: so the
 * gradient of what it is a view of comes out dense. */
static bool matmul_grad(kiln_grad_call *g)
{
    kiln_tensor *gy = g->gout[0], *a = g->in[0], *b = g->in[1];
    if (g->need[0] && is_broadcast(a, gy)) /* of bᵀ·aᵀ */
        g->gin[0] = turned(summed_grad(turned(b), turned(gy), a));
    else if (g->need[0])
        g->gin[0] = is_transposed(a) ? turned(kiln_matmul(b, turned(gy))) : kiln_matmul(gy, turned(b));
    if (g->need[1] && is_broadcast(b, gy))
        g->gin[1] = summed_grad(a, gy, b);
    else if (g->need[1])
        g->gin[1] = is_transposed(b) ? turned(kiln_matmul(turned(gy), a)) : kiln_matmul(turned(a), gy);
    return (!g->need[0] || g->gin[0]) && (!g->need[1] || g->gin[1]);
}

/* [..., m, k] as [batch, m, k], with as many in the batch as `shape`, the result's, has. */
static kiln_tensor *in_one_batch(kiln_tensor *t, int ndim, const int64_t *shape)
{
    int64_t whole[KILN_MAX_DIMS], batch = kiln_count(ndim - 2, shape), m = t->shape[t->ndim - 2];
    int64_t k = t->shape[t->ndim - 1];
    for (int d = 0; d < ndim - 2; d++)
        whole[d] = shape[d];
    whole[ndim - 2] = m;
    whole[ndim - 1] = k;
    return kiln_reshape(kiln_expand(t, ndim, whole), 3, (int64_t[]){batch, m, k});
}

/* For types that no device has a kernel for, integers: every product, and their sums. They wrap as the type does. */
static bool matmul_compose(kiln_call *c, kiln_tensor **out)
{
    const kiln_desc *d = &c->out[0];
    kiln_tensor *a = kiln_unsqueeze(in_one_batch(c->in[0], d->ndim, d->shape), 3);
    kiln_tensor *b = kiln_unsqueeze(in_one_batch(c->in[1], d->ndim, d->shape), 1);
    kiln_tensor *sums = kiln_sum(kiln_mul(a, b), KILN_DIMS(2), false); /* [batch, m, k, n] */
    out[0] = kiln_reshape(kiln_cast(sums, d->dtype), d->ndim, d->shape);
    return out[0] != NULL;
}

static int64_t matmul_flops(const kiln_work *w)
{
    const kiln_work_shape *a = &w->in[0];
    return kiln_times(kiln_times(2, w->results), a->shape[a->ndim - 1]);
}

const kiln_op kiln_op_matmul = {
    .name = "matmul",
    .attrs = "",
    .cls = KILN_CLASS_MATMUL,
    .autocast = KILN_CAST_LOWER,
    .dtypes = KILN_T_NUMBERS,
    .min_in = 2,
    .max_in = 2,
    .grad_skips = KILN_SKIPS_RESULTS,
    .infer = matmul_infer,
    .compose = matmul_compose,
    .flops = matmul_flops,
    .grad_reads = {KILN_READS_Y, KILN_READS_X},
    .grad = matmul_grad,
    .cases = KILN_CASES{"x[3,4] x[4,5]", "x[1,1] x[1,1]", "x[2,3,4] x[2,4,5]", "x[2,1,3,4] x[3,4,2]", "x[3,4] x[2,4,3]",
                        "x[17,33] x[33,18]", "x[0,3] x[3,2]", "x[2,0] x[0,3]", NULL},
};

static bool is_number(const char *op, const char *name, const kiln_tensor *t)
{
    if (t->dtype != KILN_BOOL)
        return true;
    kiln_fail(KILN_E_DTYPE, op, "%s %s is bool; products take numbers", kiln_tensor_label(t, name),
              kiln_shape_text(t->ndim, t->shape));
    kiln_hint("convert it first: kiln_cast(%s, KILN_F32)", name);
    return false;
}

/* [..., k] as [rows, k], so that a product with a 2-d operand, and its gradient, is one product. */
static kiln_tensor *as_rows(kiln_tensor *x)
{
    if (!x || x->ndim == 2)
        return x;
    return kiln_reshape(x, 2, (int64_t[]){kiln_count(x->ndim - 1, x->shape), x->shape[x->ndim - 1]});
}

static kiln_tensor *product_of_rows(kiln_tensor *a, kiln_tensor *b)
{
    int64_t shape[KILN_MAX_DIMS];
    for (int d = 0; d + 1 < a->ndim; d++)
        shape[d] = a->shape[d];
    shape[a->ndim - 1] = b->shape[1];
    return kiln_reshape(KILN_OP(matmul, KILN_IN(as_rows(a), b), KILN_NO_ATTRS), a->ndim, shape);
}

kiln_tensor *kiln_matmul(kiln_tensor *a, kiln_tensor *b)
{
    KILN_TIDY;
    if (!kiln_tensor_given(a, "matmul", 1) || !kiln_tensor_given(b, "matmul", 2))
        return NULL;
    if (!is_number("matmul", "a", a) || !is_number("matmul", "b", b) || !inner_sizes_fit("matmul", a, b))
        return NULL;
    if (a->ndim == 1)
        return KILN_KEPT(kiln_squeeze(kiln_matmul(kiln_unsqueeze(a, 0), b), b->ndim == 1 ? 0 : -2));
    if (b->ndim == 1)
        return KILN_KEPT(kiln_squeeze(kiln_matmul(a, kiln_unsqueeze(b, 1)), -1));
    if (a->ndim > 2 && b->ndim == 2)
        return KILN_KEPT(product_of_rows(a, b));
    return KILN_KEPT(KILN_OP(matmul, KILN_IN(a, b), KILN_NO_ATTRS));
}

/* ---- linear ---- */

static bool linear_infer(kiln_call *c)
{
    const kiln_tensor *x = c->in[0], *w = c->in[1], *bias = c->in[2];
    if (!kiln_check_ndim(c, 0, 1, KILN_MAX_DIMS) || !kiln_check_ndim(c, 1, 2, 2) || !kiln_check_same_dtype(c, 0, 1))
        return false;
    if (x->shape[x->ndim - 1] != w->shape[1]) {
        kiln_fail(KILN_E_SHAPE, c->op->name, "x %s has %lld features in its last dim, weight %s takes %lld",
                  kiln_shape_text(x->ndim, x->shape), (long long)x->shape[x->ndim - 1],
                  kiln_shape_text(w->ndim, w->shape), (long long)w->shape[1]);
        kiln_hint("weight is [out features, in features]");
        return false;
    }
    if (bias &&
        (!kiln_check_same_dtype(c, 0, 2) || !kiln_check_ndim(c, 2, 1, 1) || !kiln_check_size(c, 2, 0, w->shape[0])))
        return false;
    kiln_desc_set(&c->out[0], x->dtype, x->ndim, x->shape);
    c->out[0].shape[x->ndim - 1] = w->shape[0];
    kiln_desc_set(&c->out[0], x->dtype, x->ndim, c->out[0].shape);
    return true;
}

static bool linear_compose(kiln_call *c, kiln_tensor **out)
{
    kiln_tensor *y = kiln_matmul(as_rows(c->in[0]), kiln_transpose(c->in[1], 0, 1));
    if (c->in[2])
        y = kiln_add(y, c->in[2]);
    out[0] = c->out[0].ndim == 2 ? y : kiln_reshape(y, c->out[0].ndim, c->out[0].shape);
    return out[0] != NULL;
}

const kiln_op kiln_op_linear = {
    .name = "linear",
    .attrs = "",
    .cls = KILN_CLASS_COMPOSITE,
    .autocast = KILN_CAST_LOWER,
    .dtypes = KILN_T_NUMBERS,
    .min_in = 2,
    .max_in = 3,
    .keeps_half = true,
    .heart = &kiln_op_matmul,
    .infer = linear_infer,
    .compose = linear_compose,
    .cases = KILN_CASES{"x[2,3] x[4,3] x[4]", "x[2,3] x[4,3] -", "x[3] x[4,3] x[4]", "x[2,3,4] x[5,4] x[5]",
                        "x[0,3] x[4,3] x[4]", NULL},
};

kiln_tensor *kiln_linear(kiln_tensor *x, kiln_tensor *weight, kiln_tensor *bias)
{
    return KILN_OP(linear, KILN_IN(x, weight, bias), KILN_NO_ATTRS);
}

/* ---- outer, dot ---- */

static bool outer_infer(kiln_call *c)
{
    if (!kiln_check_ndim(c, 0, 1, 1) || !kiln_check_ndim(c, 1, 1, 1))
        return false;
    kiln_desc_set(&c->out[0], kiln_dtype_promote(c->in[0]->dtype, c->in[1]->dtype), 2,
                  (int64_t[]){c->in[0]->shape[0], c->in[1]->shape[0]});
    return true;
}

static bool outer_compose(kiln_call *c, kiln_tensor **out)
{
    out[0] = kiln_mul(kiln_unsqueeze(c->in[0], 1), kiln_unsqueeze(c->in[1], 0));
    return out[0] != NULL;
}

const kiln_op kiln_op_outer = {
    .name = "outer",
    .attrs = "",
    .cls = KILN_CLASS_COMPOSITE,
    .dtypes = KILN_T_ALL,
    .min_in = 2,
    .max_in = 2,
    .keeps_half = true,
    .infer = outer_infer,
    .compose = outer_compose,
    .cases = KILN_CASES{"x[3] x[4]", "x[1] x[5]", "x[0] x[2]", NULL},
};

kiln_tensor *kiln_outer(kiln_tensor *a, kiln_tensor *b)
{
    return KILN_OP(outer, KILN_IN(a, b), KILN_NO_ATTRS);
}

static bool dot_infer(kiln_call *c)
{
    if (!kiln_check_ndim(c, 0, 1, 1) || !kiln_check_ndim(c, 1, 1, 1) || !kiln_check_same_dtype(c, 0, 1) ||
        !kiln_check_size(c, 1, 0, c->in[0]->shape[0]))
        return false;
    kiln_desc_set(&c->out[0], c->in[0]->dtype, 0, c->out[0].shape);
    return true;
}

static bool dot_compose(kiln_call *c, kiln_tensor **out)
{
    out[0] = kiln_matmul(c->in[0], c->in[1]);
    return out[0] != NULL;
}

const kiln_op kiln_op_dot = {
    .name = "dot",
    .attrs = "",
    .cls = KILN_CLASS_COMPOSITE,
    .autocast = KILN_CAST_PROMOTE,
    .dtypes = KILN_T_NUMBERS,
    .min_in = 2,
    .max_in = 2,
    .keeps_half = true,
    .infer = dot_infer,
    .compose = dot_compose,
    .cases = KILN_CASES{"x[5] x[5]", "x[1] x[1]", "x[0] x[0]", NULL},
};

kiln_tensor *kiln_dot(kiln_tensor *a, kiln_tensor *b)
{
    return KILN_OP(dot, KILN_IN(a, b), KILN_NO_ATTRS);
}

extern const kiln_op kiln_op_einsum;

const kiln_op *const kiln_ops_matmul[] = {
    &kiln_op_matmul, &kiln_op_linear, &kiln_op_outer, &kiln_op_dot, &kiln_op_einsum, NULL,
};
