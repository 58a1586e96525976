/* Picking and placing elements by indices that are known only when the step runs. A bad index stops the step before it
 * changes anything: these records say so with a demand. */
#include "ops/helpers.h"
#include "ops/view.h"

/* Nodes take i64 indices; i32 ones are converted. */
static kiln_tensor *as_index(kiln_tensor *index)
{
    return index && index->dtype == KILN_I32 ? kiln_cast(index, KILN_I64) : index;
}

static bool check_index(const kiln_call *c, int operand)
{
    return kiln_check_dtype(c, operand, 1 << KILN_I64);
}

/* index may be smaller than x in all dims but `dim`, as PyTorch allows. */
static bool check_fits(const kiln_call *c, int64_t *dim)
{
    const kiln_tensor *x = c->in[0], *index = c->in[1];
    if (!check_index(c, 1) || !kiln_check_dim(c, dim, x->ndim))
        return false;
    if (index->ndim != x->ndim)
        return kiln_fail(KILN_E_SHAPE, c->op->name, "the indices %s need as many dims as the operand %s",
                         kiln_shape_of(index), kiln_shape_of(x));
    for (int d = 0; d < x->ndim; d++)
        if (d != *dim && index->shape[d] > x->shape[d])
            return kiln_fail(KILN_E_SHAPE, c->op->name, "the indices %s are longer than the operand %s in dim %d",
                             kiln_shape_of(index), kiln_shape_of(x), d);
    return true;
}

kiln_demand kiln_demand_below_dim(int ndim, const int64_t *shape, const int64_t *ints)
{
    return (kiln_demand){ndim ? shape[ints[0]] : 1, INT64_MIN};
}

/* ---- gather ---- */

static bool infer_gather(kiln_call *c)
{
    if (!check_fits(c, &c->attrs.i[0]))
        return false;
    kiln_desc_set(&c->out[0], (kiln_dtype)c->in[0]->dtype, c->in[1]->ndim, c->in[1]->shape);
    return true;
}

static bool grad_gather(kiln_grad_call *g)
{
    if (!g->need[0] || !g->gout[0])
        return true;
    g->gin[0] = kiln_scatter_add(kiln_zeros_like(g->in[0]), (int)g->attrs->i[0], g->in[1], g->gout[0]);
    return g->gin[0] != NULL;
}

const kiln_op kiln_op_gather = {
    .name = "gather",
    .attrs = "dim",
    .cls = KILN_CLASS_INDEX,
    .picks = 1 << 0,
    .dtypes = KILN_T_ALL,
    .min_in = 2,
    .max_in = 2,
    .demand = kiln_demand_below_dim,
    .infer = infer_gather,
    .grad_reads = {KILN_READS_Y},
    .grad = grad_gather,
    .cases = KILN_CASES{"x[5] i5[3] | 0", "x[3,4] i3[2,4] | 0", "x[3,4] i4[3,6] | 1", "x[3,4] i4[2,2] | -1",
                        "x[2,3,4] i3[2,5,4] | 1", "x[4,3,5] i4[2,2,3] | 0", "x[] i1[] | 0", "x[3,4] i3[0,4] | 0",
                        "x[0,3] i1[0,2] | 1", "x[64,100] i100[64,1] | 1", "x[33,40,7] i40[33,50,7] | 1", NULL},
};

/* A number without dims stands for a list of one. */
static kiln_tensor *as_list(kiln_tensor *t)
{
    return t && t->ndim == 0 ? kiln_unsqueeze(t, 0) : t;
}

/* Whether one operand is a list and another a number without dims: as lists they fit. */
static bool are_mixed(const kiln_tensor *a, const kiln_tensor *b, const kiln_tensor *c)
{
    return a && b && c && a->ndim <= 1 && b->ndim <= 1 && c->ndim <= 1 && (a->ndim != b->ndim || a->ndim != c->ndim);
}

kiln_tensor *kiln_gather(kiln_tensor *x, int dim, kiln_tensor *index)
{
    KILN_TIDY;
    if (are_mixed(x, index, index)) {
        kiln_tensor *y = kiln_gather(as_list(x), dim, as_list(index));
        return KILN_KEPT(index->ndim ? y : kiln_squeeze(y, 0));
    }
    return KILN_KEPT(KILN_OP(gather, KILN_IN(x, as_index(index)), KILN_I(dim)));
}

/* ---- scatter, scatter_add ---- */

static bool infer_scatter(kiln_call *c)
{
    const kiln_tensor *index = c->in[1], *src = c->in[2];
    if (!check_fits(c, &c->attrs.i[0]) || !kiln_check_same_dtype(c, 0, 2))
        return false;
    if (src->ndim != index->ndim)
        return kiln_fail(KILN_E_SHAPE, c->op->name, "the source %s needs as many dims as the indices %s",
                         kiln_shape_of(src), kiln_shape_of(index));
    for (int d = 0; d < index->ndim; d++)
        if (index->shape[d] > src->shape[d])
            return kiln_fail(KILN_E_SHAPE, c->op->name, "the indices %s are longer than the source %s in dim %d",
                             kiln_shape_of(index), kiln_shape_of(src), d);
    kiln_desc_like(&c->out[0], c->in[0]);
    return true;
}

/* g, which has the indices' shape, with zeros up to the source's. */
static kiln_tensor *grow_to(kiln_tensor *g, const kiln_tensor *src)
{
    int64_t pad[2 * KILN_MAX_DIMS];
    bool same = true;
    if (!g)
        return NULL;
    for (int d = 0; d < src->ndim; d++) {
        int k = 2 * (src->ndim - 1 - d);
        pad[k] = 0;
        pad[k + 1] = src->shape[d] - g->shape[d];
        same &= pad[k + 1] == 0;
    }
    return same ? g : kiln_pad(g, 2 * src->ndim, pad, KILN_PAD_CONSTANT, 0);
}

/* Of several sources with one target only the last one counts: true where a source is the one that stayed. */
static kiln_tensor *who_stayed(kiln_tensor *x, int dim, kiln_tensor *index)
{
    extern const kiln_op kiln_op_iota;
    const kiln_attrs a = {.nints = 2, .i = {KILN_I64, kiln_numel(index)}, .nfloats = 2, .f = {0, 1}};
    kiln_tensor *place = kiln_reshape(kiln_op_create(&kiln_op_iota, &a, x->device), index->ndim, index->shape);
    kiln_tensor *nobody = kiln_cast(kiln_zeros_like(x), KILN_I64);
    return kiln_eq(kiln_gather(kiln_scatter(nobody, dim, index, place), dim, index), place);
}

static bool grad_scatter(kiln_grad_call *g)
{
    int dim = (int)g->attrs->i[0];
    kiln_tensor *x = g->in[0], *index = g->in[1], *src = g->in[2], *gy = g->gout[0];
    if (!gy)
        return true;
    if (g->need[0] && !(g->gin[0] = kiln_scatter(gy, dim, index, kiln_fill_like(gy, index->ndim, index->shape, 0))))
        return false;
    if (!g->need[2])
        return true;
    kiln_tensor *taken =
        kiln_where(who_stayed(x, dim, index), kiln_gather(gy, dim, index), kiln_fill_like(gy, 0, NULL, 0));
    return (g->gin[2] = grow_to(taken, src)) != NULL;
}

static bool grad_scatter_add(kiln_grad_call *g)
{
    kiln_tensor *gy = g->gout[0];
    if (!gy)
        return true;
    g->gin[0] = gy;
    if (g->need[2])
        g->gin[2] = grow_to(kiln_gather(gy, (int)g->attrs->i[0], g->in[1]), g->in[2]);
    return !g->need[2] || g->gin[2];
}

#define SCATTER_CASES                                                                                                  \
    KILN_CASES                                                                                                         \
    {                                                                                                                  \
        "x[5] i5[3] x[3] | 0", "x[3,4] i3[2,4] x[2,4] | 0", "x[3,4] i4[3,6] x[3,6] | 1", "x[3,4] i4[2,2] x[3,5] | -1", \
            "x[2,3,4] i3[2,5,4] x[2,5,4] | 1", "x[4,3,5] i4[2,2,3] x[3,3,3] | 0", "x[] i1[] x[] | 0",                  \
            "x[3,4] i3[0,4] x[2,4] | 0", "x[0,3] i1[0,2] x[0,2] | 1", "x[64,100] i100[64,1] x[64,1] | 1",              \
            "x[9,40,70] i9[20,40,70] x[20,40,70] | 0", NULL                                                            \
    }

const kiln_op kiln_op_scatter = {
    .name = "scatter",
    .attrs = "dim",
    .cls = KILN_CLASS_INDEX,
    .dtypes = KILN_T_ALL,
    .min_in = 3,
    .max_in = 3,
    .demand = kiln_demand_below_dim,
    .infer = infer_scatter,
    .grad_reads = {KILN_READS_Y},
    .grad = grad_scatter,
    .cases = SCATTER_CASES,
};

const kiln_op kiln_op_scatter_add = {
    .name = "scatter_add",
    .attrs = "dim",
    .cls = KILN_CLASS_INDEX,
    .autocast = KILN_CAST_PROMOTE,
    .dtypes = KILN_T_NUMBERS,
    .min_in = 3,
    .max_in = 3,
    .demand = kiln_demand_below_dim,
    .infer = infer_scatter,
    .grad_reads = {KILN_READS_NOTHING, KILN_READS_NOTHING, KILN_READS_Y},
    .grad = grad_scatter_add,
    .cases = SCATTER_CASES,
};

static kiln_tensor *scatter(const kiln_op *op, kiln_tensor *x, int dim, kiln_tensor *index, kiln_tensor *src)
{
    KILN_TIDY;
    if (are_mixed(x, index, src)) {
        kiln_tensor *y = scatter(op, as_list(x), dim, as_list(index), as_list(src));
        return KILN_KEPT(x->ndim ? y : kiln_squeeze(y, 0));
    }
    return KILN_KEPT(kiln_op_one(op, KILN_IN(x, as_index(index), src), KILN_I(dim)));
}

kiln_tensor *kiln_scatter(kiln_tensor *x, int dim, kiln_tensor *index, kiln_tensor *src)
{
    return scatter(&kiln_op_scatter, x, dim, index, src);
}

static bool are_bools(const kiln_tensor *a, const kiln_tensor *b)
{
    return a && b && a->dtype == KILN_BOOL && b->dtype == KILN_BOOL;
}

/* Bools are counted: a sum is true when one of its terms is. */
kiln_tensor *kiln_scatter_add(kiln_tensor *x, int dim, kiln_tensor *index, kiln_tensor *src)
{
    KILN_TIDY;
    if (are_bools(x, src))
        return KILN_KEPT(
            kiln_cast(kiln_scatter_add(kiln_cast(x, KILN_I64), dim, index, kiln_cast(src, KILN_I64)), KILN_BOOL));
    return KILN_KEPT(scatter(&kiln_op_scatter_add, x, dim, index, src));
}

/* ---- index_select, index_add ---- */

static bool check_list(const kiln_call *c)
{
    return kiln_check_ndim(c, 0, 1, KILN_MAX_DIMS) && kiln_check_ndim(c, 1, 1, 1) && check_index(c, 1);
}

static bool infer_index_select(kiln_call *c)
{
    const kiln_tensor *x = c->in[0];
    int64_t *dim = &c->attrs.i[0];
    if (!check_list(c) || !kiln_check_dim(c, dim, x->ndim))
        return false;
    kiln_desc_like(&c->out[0], x);
    c->out[0].shape[*dim] = c->in[1]->shape[0];
    kiln_desc_set(&c->out[0], c->out[0].dtype, x->ndim, c->out[0].shape);
    return true;
}

static bool grad_index_select(kiln_grad_call *g)
{
    if (!g->need[0] || !g->gout[0])
        return true;
    g->gin[0] = kiln_index_add(kiln_zeros_like(g->in[0]), (int)g->attrs->i[0], g->in[1], g->gout[0]);
    return g->gin[0] != NULL;
}

const kiln_op kiln_op_index_select = {
    .name = "index_select",
    .attrs = "dim",
    .cls = KILN_CLASS_INDEX,
    .picks = 1 << 0,
    .dtypes = KILN_T_ALL,
    .min_in = 2,
    .max_in = 2,
    .demand = kiln_demand_below_dim,
    .infer = infer_index_select,
    .grad_reads = {KILN_READS_Y},
    .grad = grad_index_select,
    .cases =
        KILN_CASES{"x[5] i5[3] | 0", "x[3,4] i3[5] | 0", "x[3,4] i4[2] | -1", "x[2,3,4] i3[4] | 1", "x[3,4] i3[0] | 0",
                   "x[0,3] i3[4] | 1", "x[4,0] i4[2] | 0", "x[50,33] i50[200] | 0", "x[9,40,3] i40[17] | 1", NULL},
};

kiln_tensor *kiln_index_select(kiln_tensor *x, int dim, kiln_tensor *index)
{
    KILN_TIDY;
    index = as_list(index);
    if (!x || !index || x->ndim)
        return KILN_KEPT(KILN_OP(index_select, KILN_IN(x, as_index(index)), KILN_I(dim)));
    if (kiln_numel(index) != 1)
        return kiln_fail(KILN_E_SHAPE, "index_select", "x has no dims, so that one index is needed, not %s",
                         kiln_shape_of(index));
    return KILN_KEPT(kiln_squeeze(kiln_index_select(as_list(x), dim, index), 0));
}

static bool infer_index_add(kiln_call *c)
{
    const kiln_tensor *x = c->in[0], *index = c->in[1], *src = c->in[2];
    int64_t *dim = &c->attrs.i[0];
    if (!check_list(c) || !kiln_check_dim(c, dim, x->ndim) || !kiln_check_same_dtype(c, 0, 2))
        return false;
    for (int d = 0; d < x->ndim; d++)
        if (src->ndim != x->ndim || src->shape[d] != (d == *dim ? index->shape[0] : x->shape[d]))
            return kiln_fail(KILN_E_SHAPE, c->op->name,
                             "the source %s must be the operand %s with dim %lld as long as the indices %s",
                             kiln_shape_of(src), kiln_shape_of(x), (long long)*dim, kiln_shape_of(index));
    kiln_desc_like(&c->out[0], x);
    return true;
}

static bool grad_index_add(kiln_grad_call *g)
{
    if (!g->gout[0])
        return true;
    g->gin[0] = g->gout[0];
    if (g->need[2])
        g->gin[2] = kiln_index_select(g->gout[0], (int)g->attrs->i[0], g->in[1]);
    return !g->need[2] || g->gin[2];
}

const kiln_op kiln_op_index_add = {
    .name = "index_add",
    .attrs = "dim",
    .cls = KILN_CLASS_INDEX,
    .autocast = KILN_CAST_PROMOTE,
    .dtypes = KILN_T_NUMBERS,
    .min_in = 3,
    .max_in = 3,
    .demand = kiln_demand_below_dim,
    .infer = infer_index_add,
    .grad_reads = {KILN_READS_NOTHING, KILN_READS_NOTHING, KILN_READS_Y},
    .grad = grad_index_add,
    .cases = KILN_CASES{"x[5] i5[3] x[3] | 0", "x[3,4] i3[5] x[5,4] | 0", "x[3,4] i4[6] x[3,6] | -1",
                        "x[2,3,4] i3[4] x[2,4,4] | 1", "x[3,4] i3[0] x[0,4] | 0", "x[4,0] i4[2] x[2,0] | 0",
                        "x[20,33] i20[300] x[300,33] | 0", "x[9,7,3] i7[17] x[9,17,3] | 1", NULL},
};

kiln_tensor *kiln_index_add(kiln_tensor *x, int dim, kiln_tensor *index, kiln_tensor *src)
{
    KILN_TIDY;
    if (are_bools(x, src))
        return KILN_KEPT(
            kiln_cast(kiln_index_add(kiln_cast(x, KILN_I64), dim, index, kiln_cast(src, KILN_I64)), KILN_BOOL));
    index = as_list(index);
    if (x && src && x->ndim == 0 && src->ndim == 0)
        return KILN_KEPT(kiln_squeeze(kiln_index_add(as_list(x), dim, index, as_list(src)), 0));
    return KILN_KEPT(KILN_OP(index_add, KILN_IN(x, as_index(index), src), KILN_I(dim)));
}

/* ---- as_strided_add ---- */

/* Zeros of the shape in the integers, with each element of g added at offset + Σ index·stride: what as_strided views
 * do, turned round. Integers: ndim, sizes, a stride for each dim of g, offset; or the offset is its only float. */
static bool infer_as_strided_add(kiln_call *c)
{
    const kiln_tensor *g = c->in[0];
    int64_t n = c->attrs.nints ? c->attrs.i[0] : -1;
    if (!kiln_check_attr(c, n >= 0 && n <= KILN_MAX_DIMS && c->attrs.nints + c->attrs.nfloats == n + g->ndim + 2,
                         "%d integers: they must be ndim, the sizes, a stride for each dim of %s, the offset",
                         c->attrs.nints, kiln_shape_of(g)))
        return false;
    const int64_t *shape = c->attrs.i + 1, *stride = shape + n;
    int64_t count = kiln_count((int)n, shape), offset = c->attrs.nfloats ? 0 : stride[g->ndim];
    if (count < 0 || !kiln_view_fits(g->ndim, g->shape, stride, offset, count))
        return kiln_fail(KILN_E_SHAPE, c->op->name,
                         "%s with strides %s from element %lld on reaches outside the shape %s", kiln_shape_of(g),
                         kiln_shape_text(g->ndim, stride), (long long)offset, kiln_shape_text((int)n, shape));
    kiln_desc_set(&c->out[0], (kiln_dtype)g->dtype, (int)n, shape);
    return true;
}

static bool grad_as_strided_add(kiln_grad_call *g)
{
    if (!g->need[0] || !g->gout[0])
        return true;
    const int64_t n = g->attrs->i[0], *stride = g->attrs->i + 1 + n;
    const kiln_tensor *x = g->in[0];
    g->gin[0] = g->attrs->nfloats ? kiln_strided_copy(g->gout[0], x->ndim, x->shape, stride, g->attrs->f[0])
                                  : kiln_as_strided(g->gout[0], x->ndim, x->shape, stride, stride[x->ndim]);
    return g->gin[0] != NULL;
}

const kiln_op kiln_op_as_strided_add = {
    .name = "as_strided_add",
    .attrs = "ndim shape... stride... offset",
    .start = KILN_START_LAST,
    .cls = KILN_CLASS_INDEX,
    .dtypes = KILN_T_NUMBERS,
    .min_in = 1,
    .max_in = 1,
    .infer = infer_as_strided_add,
    .grad_reads = {KILN_READS_NOTHING},
    .grad = grad_as_strided_add,
    .cases =
        KILN_CASES{"x[3] | 1 6 1 2", "x[2,3] | 1 8 1 2 1", "x[3] | 2 3 3 4 0", "x[2,3] | 2 4 5 5 1 6",
                   "x[4,3] | 1 6 1 1 0", "x[2,4,3] | 2 2 9 9 2 1 0", "x[] | 1 3 2", "x[] | 0 0", "x[0,2] | 1 4 1 1 0",
                   "x[0] | 2 0 3 1 0", "x[2,3] | 1 5 0 1 1", "x[3] | 1 6 -2 5", "x[40,30,5] | 2 40 40 40 1 2 2",
                   "x[3] | 1 6 1 | 2", "x[2,3] | 2 4 5 5 1 | 6", "x[] | 1 3 | 2", "x[30,4] | 2 40 40 40 2 | 71", NULL},
};

/* ---- one_hot ---- */

static bool infer_one_hot(kiln_call *c)
{
    const kiln_tensor *index = c->in[0];
    int64_t classes = c->attrs.i[0], shape[KILN_MAX_DIMS];
    if (!kiln_check_ndim(c, 0, 0, KILN_MAX_DIMS - 1) ||
        !kiln_check_attr(c, classes >= 1, "%lld classes: there must be at least 1", (long long)classes))
        return false;
    memcpy(shape, index->shape, sizeof shape);
    shape[index->ndim] = classes;
    kiln_desc_set(&c->out[0], KILN_I64, index->ndim + 1, shape);
    return true;
}

/* By scatter rather than by comparison, so that a class that does not exist is an error. */
static bool compose_one_hot(kiln_call *c, kiln_tensor **out)
{
    kiln_tensor *place = kiln_unsqueeze(as_index(c->in[0]), -1);
    if (!place)
        return false;
    kiln_tensor *zeros = kiln_fill_like(place, c->out[0].ndim, c->out[0].shape, 0);
    out[0] = kiln_scatter(zeros, -1, place, kiln_ones_like(place));
    return out[0] != NULL;
}

const kiln_op kiln_op_one_hot = {
    .name = "one_hot",
    .attrs = "classes",
    .cls = KILN_CLASS_COMPOSITE,
    .dtypes = 1 << KILN_I32 | 1 << KILN_I64,
    .min_in = 1,
    .max_in = 1,
    .keeps_half = true,
    .infer = infer_one_hot,
    .compose = compose_one_hot,
    .cases = KILN_CASES{"i4[3] | 4", "i4[2,3] | 7", "i3[] | 3", "i3[0] | 3", "i10[60] | 10", "i1[2,2] | 1", NULL},
};

kiln_tensor *kiln_one_hot(kiln_tensor *index, int64_t classes)
{
    return KILN_OP(one_hot, KILN_IN(index), KILN_I(classes));
}

const kiln_op *const kiln_ops_index[] = {
    &kiln_op_gather,    &kiln_op_scatter,        &kiln_op_scatter_add, &kiln_op_index_select,
    &kiln_op_index_add, &kiln_op_as_strided_add, &kiln_op_one_hot,     NULL,
};
