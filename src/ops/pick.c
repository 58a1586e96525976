/* The elements of x [N, C, …] that class indices [N, …] name: a pair of nodes, each the other's gradient. They are the
 * only part of the class losses that can meet a bad index. */
#include <string.h>
#include "ops/helpers.h"
#include "ops/pick.h"

int kiln_shape_without(const kiln_tensor *x, int dim, int64_t *shape)
{
    int n = 0;
    for (int d = 0; d < x->ndim; d++)
        if (d != dim)
            shape[n++] = x->shape[d];
    return n;
}

bool kiln_targets_fit(const kiln_call *c, const kiln_tensor *x, const kiln_tensor *target, int dim)
{
    int64_t shape[KILN_MAX_DIMS];
    int n = kiln_shape_without(x, dim, shape);
    if (target->ndim == n && !memcmp(target->shape, shape, (size_t)n * sizeof *shape))
        return true;
    return kiln_fail(KILN_E_SHAPE, c->op->name,
                     "target %s does not fit x %s, whose classes lie in dim %d: it must be %s",
                     kiln_shape_text(target->ndim, target->shape), kiln_shape_text(x->ndim, x->shape), dim,
                     kiln_shape_text(n, shape));
}

/* y[…] = -x[…, target[…], …], or 0 where target is ignore_index */
static bool pick_infer(kiln_call *c)
{
    const kiln_tensor *x = c->in[0], *target = c->in[1];
    if (!kiln_check_dtype(c, 1, 1 << KILN_I64) || !kiln_check_ndim(c, 0, 1, KILN_MAX_DIMS) ||
        !kiln_check_dim(c, &c->attrs.i[0], x->ndim) || !kiln_targets_fit(c, x, target, (int)c->attrs.i[0]))
        return false;
    kiln_desc_set(&c->out[0], (kiln_dtype)x->dtype, target->ndim, target->shape);
    return true;
}

kiln_tensor *kiln_ignored_targets(kiln_tensor *target, int64_t ignore)
{
    return kiln_eq_scalar(target, (double)ignore);
}

/* For devices that have no kernel. */
static bool pick_compose(kiln_call *c, kiln_tensor **out)
{
    int dim = (int)c->attrs.i[0];
    kiln_tensor *ignored = kiln_ignored_targets(c->in[1], c->attrs.i[1]);
    kiln_tensor *index = kiln_unsqueeze(kiln_masked_fill(c->in[1], ignored, 0), dim);
    kiln_tensor *picked = kiln_squeeze(kiln_gather(c->in[0], dim, index), dim);
    out[0] = kiln_masked_fill(kiln_neg(picked), ignored, 0);
    return out[0] != NULL;
}

/* The gradient of large ones, as pointwise work that fusion puts into whatever reads it: -g where the class is the
 * target, else 0. The target was checked when elements were picked. Classes are numbered in f32 where that can tell
 * them apart: there are as many comparisons as elements. */
static kiln_tensor *place_pointwise(kiln_grad_call *g)
{
    kiln_tensor *x = g->in[0], *target = g->in[1], *classes = NULL;
    int64_t dim = g->attrs->i[0], most = INT64_C(1) << 24;
    kiln_dtype number = x->shape[dim] <= most ? KILN_F32 : KILN_I64;
    kiln_on_device (x->device)
        classes = kiln_arange(0, (double)x->shape[dim], 1, number);
    kiln_tensor *gy = kiln_masked_fill(kiln_neg(g->gout[0]), kiln_ignored_targets(target, g->attrs->i[1]), 0);
    kiln_tensor *others = kiln_ne(kiln_unsqueeze(kiln_cast(target, number), (int)dim), classes);
    return kiln_masked_fill(kiln_expand(kiln_unsqueeze(gy, (int)dim), x->ndim, x->shape), others, 0);
}

static bool pick_grad(kiln_grad_call *g)
{
    const int64_t *i = g->attrs->i;
    if (kiln_is_large_choice(g->in[0], i[0])) {
        g->gin[0] = place_pointwise(g);
        return g->gin[0] != NULL;
    }
    g->gin[0] = KILN_OP(nll_loss_place, KILN_IN(g->gout[0], g->in[1]), KILN_I(i[0], i[1], g->in[0]->shape[i[0]]));
    return g->gin[0] != NULL;
}

/* The adjoint: zeros with -g[…] at [… , target[…], …], and nothing for ignored targets. */
static bool place_infer(kiln_call *c)
{
    const kiln_tensor *g = c->in[0], *target = c->in[1];
    int64_t classes = c->attrs.i[2], shape[KILN_MAX_DIMS + 1];
    if (!kiln_check_dtype(c, 1, 1 << KILN_I64) || !kiln_check_ndim(c, 0, 0, KILN_MAX_DIMS - 1) ||
        !kiln_check_dim(c, &c->attrs.i[0], g->ndim + 1) ||
        !kiln_check_attr(c, classes >= 0, "%lld classes", (long long)classes))
        return false;
    if (g->ndim != target->ndim || memcmp(g->shape, target->shape, (size_t)g->ndim * sizeof *g->shape))
        return kiln_fail(KILN_E_SHAPE, c->op->name, "g %s and target %s must have the same shape",
                         kiln_shape_text(g->ndim, g->shape), kiln_shape_text(target->ndim, target->shape));
    int n = 0, dim = (int)c->attrs.i[0];
    for (int d = 0; d <= g->ndim; d++)
        shape[n++] = d < dim ? g->shape[d] : d == dim ? classes : g->shape[d - 1];
    kiln_desc_set(&c->out[0], (kiln_dtype)g->dtype, n, shape);
    return true;
}

static bool place_compose(kiln_call *c, kiln_tensor **out)
{
    int dim = (int)c->attrs.i[0];
    kiln_tensor *g = c->in[0], *ignored = kiln_ignored_targets(c->in[1], c->attrs.i[1]);
    kiln_tensor *index = kiln_unsqueeze(kiln_masked_fill(c->in[1], ignored, 0), dim);
    kiln_tensor *src = kiln_unsqueeze(kiln_masked_fill(kiln_neg(g), ignored, 0), dim);
    kiln_tensor *zeros = kiln_fill_like(g, c->out[0].ndim, c->out[0].shape, 0);
    out[0] = kiln_scatter_add(zeros, dim, index, src);
    return out[0] != NULL;
}

static bool place_grad(kiln_grad_call *g)
{
    const int64_t *i = g->attrs->i;
    g->gin[0] = KILN_OP(nll_loss_pick, KILN_IN(g->gout[0], g->in[1]), KILN_I(i[0], i[1]));
    return g->gin[0] != NULL;
}

/* Classes below the number of them, or the one to ignore. */
static kiln_demand pick_demand(int ndim, const int64_t *shape, const int64_t *ints)
{
    (void)ndim;
    return (kiln_demand){shape[ints[0]], ints[1]};
}

static kiln_demand place_demand(int ndim, const int64_t *shape, const int64_t *ints)
{
    (void)ndim, (void)shape;
    return (kiln_demand){ints[2], ints[1]};
}

const kiln_op kiln_op_nll_loss_pick = {
    .name = "nll_loss_pick",
    .attrs = "dim ignore_index",
    .cls = KILN_CLASS_INDEX,
    .picks = 1 << 0,
    .along = 1,
    .pitched = true,
    .dtypes = KILN_T_FLOATS,
    .min_in = 2,
    .max_in = 2,
    .demand = pick_demand,
    .infer = pick_infer,
    .compose = pick_compose,
    .grad_reads = {KILN_READS_Y},
    .grad = pick_grad,
    .cases = KILN_CASES{"x[3,4] i4[3] | 1 -100", "x[4] i4[] | 0 -100", "x[2,3,5] i3[2,5] | 1 -100",
                        "x[3,4] n1,-1,3[3] | 1 -1", "x[0,4] i4[0] | 1 -100", NULL},
};

const kiln_op kiln_op_nll_loss_place = {
    .name = "nll_loss_place",
    .attrs = "dim ignore_index classes",
    .cls = KILN_CLASS_INDEX,
    .along = 1,
    .dtypes = KILN_T_FLOATS,
    .min_in = 2,
    .max_in = 2,
    .demand = place_demand,
    .infer = place_infer,
    .compose = place_compose,
    .grad_reads = {KILN_READS_Y},
    .grad = place_grad,
    .cases = KILN_CASES{"x[3] i4[3] | 1 -100 4", "x[] i4[] | 0 -100 4", "x[2,5] i3[2,5] | 1 -100 3",
                        "x[3] n1,-1,3[3] | 1 -1 4", NULL},
};
