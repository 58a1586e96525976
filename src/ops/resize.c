/* Resizing of planes by interpolation: nearest, (bi)linear, bicubic; `resize` over [batch, channels, height, width] and
 * its adjoint `resize_grad`, each the other's gradient, and the public kiln_interpolate. */
#include "ops/op.h"

extern const kiln_op kiln_op_resize, kiln_op_resize_grad, kiln_op_interpolate;

enum { MODE, ALIGN, SIZE };

static bool check_mode(kiln_call *c, int sizes)
{
    int64_t *i = c->attrs.i;
    if (!kiln_check_attr(c, c->attrs.nints == SIZE + sizes, "takes %d integers, not %d", SIZE + sizes,
                         c->attrs.nints) ||
        !kiln_check_attr(c, i[MODE] >= KILN_NEAREST && i[MODE] <= KILN_BICUBIC,
                         "mode is %lld; it must be KILN_NEAREST, KILN_LINEAR or KILN_BICUBIC", (long long)i[MODE]))
        return false;
    i[ALIGN] = i[ALIGN] != 0 && i[MODE] != KILN_NEAREST; /* nearest has no corners to align */
    for (int a = 0; a < sizes; a++)
        if (!kiln_check_attr(c, i[SIZE + a] >= 1 && i[SIZE + a] <= INT32_MAX,
                             "cannot make a result of size %lld along an axis", (long long)i[SIZE + a]))
            return false;
    const kiln_tensor *x = c->in[0];
    for (int d = 2; d < x->ndim; d++)
        if (x->shape[d] < 1 || x->shape[d] > INT32_MAX)
            return kiln_fail(KILN_E_SHAPE, c->op->name, "cannot resize an input of shape %s",
                             kiln_shape_text(x->ndim, x->shape));
    return true;
}

static bool resize_infer(kiln_call *c)
{
    if (!kiln_check_ndim(c, 0, 4, 4) || !check_mode(c, 2))
        return false;
    const int64_t *x = c->in[0]->shape, *size = c->attrs.i + SIZE;
    kiln_desc_set(&c->out[0], c->in[0]->dtype, 4, (int64_t[]){x[0], x[1], size[0], size[1]});
    return true;
}

/* The gradient of either is the other, to the size the operand had. */
static bool other(kiln_grad_call *g, const kiln_op *op)
{
    if (!g->need[0])
        return true;
    const int64_t *i = g->attrs->i, *size = g->in[0]->shape + 2;
    g->gin[0] = kiln_op_one(op, KILN_IN(g->gout[0]), KILN_I(i[MODE], i[ALIGN], size[0], size[1]));
    return g->gin[0] != NULL;
}

static bool resize_gradient(kiln_grad_call *g)
{
    return other(g, &kiln_op_resize_grad);
}

static bool resize_grad_gradient(kiln_grad_call *g)
{
    return other(g, &kiln_op_resize);
}

static bool interpolate_infer(kiln_call *c)
{
    if (!kiln_check_ndim(c, 0, 3, 4) || !check_mode(c, c->in[0]->ndim - 2))
        return false;
    const kiln_tensor *x = c->in[0];
    const int64_t *i = c->attrs.i;
    if (!kiln_check_attr(c, i[MODE] != KILN_BICUBIC || x->ndim == 4,
                         "bicubic needs an input [batch, channels, height, width], not %s",
                         kiln_shape_text(x->ndim, x->shape)))
        return false;
    int64_t shape[4] = {x->shape[0], x->shape[1], i[SIZE], x->ndim == 4 ? i[SIZE + 1] : 0};
    kiln_desc_set(&c->out[0], x->dtype, x->ndim, shape);
    return true;
}

static bool interpolate_compose(kiln_call *c, kiln_tensor **out)
{
    kiln_tensor *x = c->in[0];
    const int64_t *i = c->attrs.i;
    if (x->ndim == 4)
        out[0] = KILN_OP(resize, KILN_IN(x), KILN_I(i[MODE], i[ALIGN], i[SIZE], i[SIZE + 1]));
    else
        out[0] = kiln_squeeze(KILN_OP(resize, KILN_IN(kiln_unsqueeze(x, 2)), KILN_I(i[MODE], i[ALIGN], 1, i[SIZE])), 2);
    return out[0] != NULL;
}

kiln_tensor *kiln_interpolate(kiln_tensor *x, int n, const int64_t *size, kiln_resize mode, bool align_corners)
{
    KILN_TIDY;
    if (!kiln_tensor_given(x, "interpolate", 1))
        return NULL;
    if (!kiln_check_list("interpolate", n, size, 2))
        return NULL;
    if (n != x->ndim - 2 || n < 1 || n > 2)
        return kiln_fail(KILN_E_ARGUMENT, "interpolate", "%d sizes given for an input of shape %s", n,
                         kiln_shape_text(x->ndim, x->shape));
    if (x->dtype == KILN_U8 && mode == KILN_NEAREST) /* pixels are copied, which floats do as well */
        return KILN_KEPT(kiln_cast(kiln_interpolate(kiln_cast(x, KILN_F32), n, size, mode, align_corners), KILN_U8));
    return KILN_KEPT(
        KILN_OP(interpolate, KILN_IN(x),
                (&(const kiln_attrs){.nints = SIZE + n, .i = {mode, align_corners, size[0], n > 1 ? size[1] : 0}})));
}

/* ---- Records ---- */

const kiln_op kiln_op_resize = {
    .name = "resize",
    .attrs = "mode align_corners height width",
    .cls = KILN_CLASS_POOL,
    .dtypes = KILN_T_FLOATS,
    .min_in = 1,
    .max_in = 1,
    .infer = resize_infer,
    .grad_reads = {KILN_READS_NOTHING},
    .grad = resize_gradient,
    .cases = KILN_CASES{"x[2,2,4,5] | 0 0 7 3", "x[2,2,4,5] | 1 0 7 3", "x[2,2,4,5] | 1 1 6 9", "x[1,2,4,5] | 2 0 6 3",
                        "x[1,2,5,4] | 2 1 3 7", "x[1,1,3,4] | 1 1 1 1", NULL},
};

const kiln_op kiln_op_resize_grad = {
    .name = "resize_grad",
    .attrs = "mode align_corners height width",
    .cls = KILN_CLASS_POOL,
    .dtypes = KILN_T_FLOATS,
    .min_in = 1,
    .max_in = 1,
    .infer = resize_infer,
    .grad_reads = {KILN_READS_NOTHING},
    .grad = resize_grad_gradient,
    .cases = KILN_CASES{"x[2,2,7,3] | 0 0 4 5", "x[2,2,7,3] | 1 0 4 5", "x[2,2,6,9] | 1 1 4 5", "x[1,2,6,3] | 2 0 4 5",
                        "x[1,2,3,7] | 2 1 5 4", NULL},
};

const kiln_op kiln_op_interpolate = {
    .name = "interpolate",
    .attrs = "mode align_corners size...",
    .cls = KILN_CLASS_COMPOSITE,
    .autocast = KILN_CAST_FLOAT,
    .dtypes = KILN_T_FLOATS,
    .min_in = 1,
    .max_in = 1,
    .keeps_half = true,
    .infer = interpolate_infer,
    .compose = interpolate_compose,
    .cases = KILN_CASES{"x[2,3,5] | 0 0 8", "x[2,3,5] | 1 0 3", "x[2,3,4,4] | 1 1 8 8", "x[1,2,5,5] | 2 0 3 8", NULL},
};

const kiln_op *const kiln_ops_resize[] = {&kiln_op_resize, &kiln_op_resize_grad, &kiln_op_interpolate, NULL};
