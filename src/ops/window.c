/* Views that leave elements out or show them several times: windows onto the same storage. What flows back to a slice
 * is the gradient of a part, which the walk puts in its place together with others (placed.h). The gradient of all
 * others is as_strided_add, which adds what came back into zeros of the operand's shape. */
#include "ops/helpers.h"
#include "ops/placed.h"
#include "ops/view.h"

extern const kiln_op kiln_op_as_strided_add; /* index.c */

/* Zeros of the given shape, with x added to the elements `offset + Σ index·stride` of them. */
static kiln_tensor *add_into_zeros(kiln_tensor *x, const int64_t *stride, int64_t offset, int ndim,
                                   const int64_t *shape)
{
    kiln_attrs a = {0};
    a.i[a.nints++] = ndim;
    for (int d = 0; d < ndim; d++)
        a.i[a.nints++] = shape[d];
    for (int d = 0; d < x->ndim; d++)
        a.i[a.nints++] = stride[d];
    a.i[a.nints++] = offset;
    return KILN_OP(as_strided_add, KILN_IN(x), &a);
}

kiln_tensor *kiln_place(const kiln_placed *p, int ndim, const int64_t *shape)
{
    int64_t stride[KILN_MAX_DIMS];
    kiln_dense_strides(ndim, shape, stride);
    int64_t offset = kiln_numel(p->grad) ? p->start * stride[p->dim] : 0;
    return add_into_zeros(p->grad, stride, offset, ndim, shape);
}

/* The gradient of a view that reads element `offset + Σ index·stride` of its dense operand. */
static bool grad_by_adding(kiln_grad_call *g, const int64_t *stride, int64_t offset)
{
    const kiln_tensor *x = g->in[0];
    if (!g->need[0] || !g->gout[0])
        return true;
    g->gin[0] = add_into_zeros(g->gout[0], stride, offset, x->ndim, x->shape);
    return g->gin[0] != NULL;
}

/* The same, with strides and offset found by running the view's own rule on a dense operand of the same shape. */
static bool grad_of_dense_view(kiln_grad_call *g)
{
    kiln_tensor dense = {.dtype = g->in[0]->dtype, .ndim = g->in[0]->ndim};
    memcpy(dense.shape, g->in[0]->shape, sizeof dense.shape);
    kiln_dense_strides(dense.ndim, dense.shape, dense.stride);
    kiln_tensor *in[] = {&dense};
    kiln_call c = {.op = g->op, .nin = 1, .nout = 1, .in = in, .attrs = *g->attrs};
    return g->op->infer(&c) && grad_by_adding(g, c.out[0].stride, c.out[0].offset);
}

/* ---- slice, select, unfold, diagonal ---- */

static int64_t clamp(int64_t v, int64_t lo, int64_t hi)
{
    return v < lo ? lo : v > hi ? hi : v;
}

static bool infer_slice(kiln_call *c)
{
    const kiln_tensor *x = c->in[0];
    int64_t *dim = &c->attrs.i[0], *start = &c->attrs.i[1], *end = &c->attrs.i[2], step = c->attrs.i[3];
    if (!kiln_check_ndim(c, 0, 1, KILN_MAX_DIMS) || !kiln_check_dim(c, dim, x->ndim) ||
        !kiln_check_attr(c, step >= 1, "step %lld: it must be at least 1", (long long)step))
        return false;
    int64_t size = x->shape[*dim];
    *start = clamp(*start < 0 ? *start + size : *start, 0, size);
    *end = clamp(*end < 0 ? *end + size : *end, *start, size);
    kiln_desc *d = kiln_view_start(c);
    int64_t length = (*end - *start) / step + ((*end - *start) % step != 0);
    d->shape[*dim] = length;
    d->offset += length ? *start * x->stride[*dim] : 0;
    if (length > 1) /* with one element the step is never taken, and could overflow */
        d->stride[*dim] = step * x->stride[*dim];
    return true;
}

/* gy is the gradient of that part of the operand which begins at `start`; of all of it, if that is as long. */
static bool grad_of_part(kiln_grad_call *g, int dim, int64_t start, kiln_tensor *gy)
{
    if (gy && gy->shape[dim] != g->in[0]->shape[dim]) {
        g->part_dim = dim;
        g->part_start = start;
    }
    g->gin[0] = gy;
    return gy != NULL;
}

static bool grad_slice(kiln_grad_call *g)
{
    int dim = (int)g->attrs->i[0];
    if (!g->need[0] || !g->gout[0])
        return true;
    if (g->attrs->i[3] == 1 || g->gout[0]->shape[dim] <= 1)
        return grad_of_part(g, dim, g->attrs->i[1], g->gout[0]);
    return grad_of_dense_view(g);
}

const kiln_op kiln_op_slice = {
    KILN_VIEW_OP(slice),
    .attrs = "dim start end step",
    .start = KILN_START_SLICE,
    .infer = infer_slice,
    .grad = grad_slice,
    .cases =
        KILN_CASES{"x[5] | 0 1 4 1", "x[7] | 0 0 7 3", "x[4,5] | 1 -3 -1 1", "x[4,5] | 0 1 100 2", "x[4,5] | -1 0 5 4",
                   "x[4,5] | 0 3 1 1", "x[0,3] | 0 0 5 1", "x[2,3,4] | 1 -100 2 1", "x[65,40] | 0 3 60 2", NULL},
};

kiln_tensor *kiln_slice(kiln_tensor *x, int dim, int64_t start, int64_t end, int64_t step)
{
    return KILN_OP(slice, KILN_IN(x), KILN_I(dim, start, end, step));
}

static bool infer_select(kiln_call *c)
{
    const kiln_tensor *x = c->in[0];
    int64_t *dim = &c->attrs.i[0], *index = &c->attrs.i[1];
    if (!kiln_check_ndim(c, 0, 1, KILN_MAX_DIMS) || !kiln_check_dim(c, dim, x->ndim))
        return false;
    int64_t size = x->shape[*dim];
    if (*index < -size || *index >= size)
        return kiln_fail(KILN_E_INDEX, c->op->name, "index %lld is outside dim %lld of %s, which has size %lld",
                         (long long)*index, (long long)*dim, kiln_shape_of(x), (long long)size);
    *index += *index < 0 ? size : 0;
    kiln_desc *d = kiln_view_start(c);
    d->offset += *index * x->stride[*dim];
    kiln_view_remove(d, (int)*dim);
    return true;
}

static bool grad_select(kiln_grad_call *g)
{
    int dim = (int)g->attrs->i[0];
    if (!g->need[0] || !g->gout[0])
        return true;
    return grad_of_part(g, dim, g->attrs->i[1], kiln_unsqueeze(g->gout[0], dim));
}

const kiln_op kiln_op_select = {
    KILN_VIEW_OP(select),
    .attrs = "dim index",
    .start = KILN_START_SECOND,
    .infer = infer_select,
    .grad = grad_select,
    .cases = KILN_CASES{"x[5] | 0 2", "x[3,4] | 0 -1", "x[3,4] | 1 0", "x[2,3,4] | 1 2", "x[2,0] | 0 1", "x[1] | -1 -1",
                        "x[9,33,17] | 1 32", NULL},
};

kiln_tensor *kiln_select(kiln_tensor *x, int dim, int64_t index)
{
    return KILN_OP(select, KILN_IN(x), KILN_I(dim, index));
}

static bool infer_unfold(kiln_call *c)
{
    const kiln_tensor *x = c->in[0];
    int64_t *dim = &c->attrs.i[0], size = c->attrs.i[1], step = c->attrs.i[2];
    if (!kiln_view_check_room(c) || !kiln_check_dim(c, dim, x->ndim) ||
        !kiln_check_attr(c, step >= 1, "step %lld: it must be at least 1", (long long)step))
        return false;
    int64_t length = x->ndim ? x->shape[*dim] : 1; /* a number without dims is one window */
    if (size < 0 || size > length)
        return kiln_fail(KILN_E_SHAPE, c->op->name, "windows of %lld do not fit into dim %lld of %s", (long long)size,
                         (long long)*dim, kiln_shape_of(x));
    kiln_desc *d = kiln_view_start(c);
    if (x->ndim) {
        d->shape[*dim] = (length - size) / step + 1;
        if (d->shape[*dim] > 1)
            d->stride[*dim] = step * x->stride[*dim];
    }
    kiln_view_insert(d, x->ndim, size, x->ndim ? x->stride[*dim] : 1);
    return true;
}

const kiln_op kiln_op_unfold = {
    KILN_VIEW_OP(unfold),
    .attrs = "dim size step",
    .infer = infer_unfold,
    .grad = grad_of_dense_view,
    .cases = KILN_CASES{"x[7] | 0 3 1", "x[7] | 0 3 2", "x[7] | 0 2 5", "x[3,6] | 1 2 2", "x[3,6] | 0 2 1",
                        "x[2,5,3] | -2 5 1", "x[4] | 0 0 1", "x[] | 0 1 3", "x[] | -1 0 1", "x[0,4] | 1 2 1",
                        "x[8,40] | 1 9 3", NULL},
};

kiln_tensor *kiln_unfold(kiln_tensor *x, int dim, int64_t size, int64_t step)
{
    return KILN_OP(unfold, KILN_IN(x), KILN_I(dim, size, step));
}

static bool infer_diagonal(kiln_call *c)
{
    const kiln_tensor *x = c->in[0];
    int64_t offset = c->attrs.i[0], *a = &c->attrs.i[1], *b = &c->attrs.i[2];
    if (!kiln_check_ndim(c, 0, 2, KILN_MAX_DIMS) || !kiln_check_dim(c, a, x->ndim) || !kiln_check_dim(c, b, x->ndim))
        return false;
    if (*a == *b)
        return kiln_fail(KILN_E_ARGUMENT, c->op->name, "both dims are %lld: a diagonal of %s needs two", (long long)*a,
                         kiln_shape_of(x));
    int64_t row = offset < 0 ? clamp(-clamp(offset, -INT64_MAX, 0), 0, x->shape[*a]) : 0;
    int64_t column = offset > 0 ? clamp(offset, 0, x->shape[*b]) : 0;
    int64_t rows = x->shape[*a] - row, columns = x->shape[*b] - column, length = rows < columns ? rows : columns;
    kiln_desc *d = kiln_view_start(c);
    d->offset += length ? row * x->stride[*a] + column * x->stride[*b] : 0;
    kiln_view_remove(d, (int)(*a > *b ? *a : *b));
    kiln_view_remove(d, (int)(*a > *b ? *b : *a));
    kiln_view_insert(d, x->ndim - 2, length, length > 1 ? x->stride[*a] + x->stride[*b] : 1);
    return true;
}

const kiln_op kiln_op_diagonal = {
    KILN_VIEW_OP(diagonal),
    .attrs = "offset dim0 dim1",
    .infer = infer_diagonal,
    .grad = grad_of_dense_view,
    .cases = KILN_CASES{"x[3,3] | 0 0 1", "x[3,5] | 1 0 1", "x[5,3] | -2 0 1", "x[3,5] | 1 1 0", "x[2,3,4] | 0 0 2",
                        "x[2,3,4] | -1 -1 -2", "x[3,3] | 7 0 1", "x[0,3] | 0 0 1", "x[2,33,40] | 5 1 2", NULL},
};

kiln_tensor *kiln_diagonal(kiln_tensor *x, int64_t offset, int dim0, int dim1)
{
    return KILN_OP(diagonal, KILN_IN(x), KILN_I(offset, dim0, dim1));
}

/* ---- as_strided ---- */

bool kiln_view_fits(int n, const int64_t *shape, const int64_t *stride, int64_t offset, int64_t count)
{
    int64_t first = offset, last = offset, reach;
    int64_t size = kiln_count(n, shape);
    for (int d = 0; d < n && size > 0; d++)
        if (__builtin_mul_overflow(shape[d] - 1, stride[d], &reach) ||
            __builtin_add_overflow(*(reach < 0 ? &first : &last), reach, reach < 0 ? &first : &last))
            return false;
    return size == 0 || (size > 0 && first >= 0 && last < count);
}

/* Its integers are ndim, sizes, strides, offset, the latter in elements of the operand in row-major order: the operand
 * is seen as one long row, so its own memory must have one step between neighbours. */
static bool infer_as_strided(kiln_call *c)
{
    const kiln_tensor *x = c->in[0];
    int64_t n = c->attrs.nints ? c->attrs.i[0] : -1, count = kiln_count(x->ndim, x->shape), step = 1;
    if (!kiln_check_attr(c, n >= 0 && n <= KILN_MAX_DIMS && c->attrs.nints == 2 * n + 2,
                         "%d integers: they must be ndim, the sizes, the strides, the offset", c->attrs.nints))
        return false;
    const int64_t *shape = c->attrs.i + 1, *stride = shape + n, offset = stride[n];
    if (!kiln_view_fits((int)n, shape, stride, offset, count))
        return kiln_fail(KILN_E_SHAPE, c->op->name,
                         "sizes %s with strides %s from element %lld on reach outside the %lld elements of %s",
                         kiln_shape_text((int)n, shape), kiln_shape_text((int)n, stride), (long long)offset,
                         (long long)count, kiln_shape_of(x));
    if (!kiln_view_strides(x, 1, &count, &step)) {
        kiln_fail(KILN_E_SHAPE, c->op->name, "%s with strides %s does not lie evenly in memory", kiln_shape_of(x),
                  kiln_shape_text(x->ndim, x->stride));
        return kiln_hint("make it contiguous first");
    }
    kiln_desc *d = kiln_view_start(c);
    d->ndim = (int)n;
    d->offset += kiln_count((int)n, shape) ? offset * step : 0;
    for (int i = 0; i < n; i++) {
        d->shape[i] = shape[i];
        d->stride[i] = shape[i] > 1 ? stride[i] * step : stride[i];
    }
    return true;
}

static bool grad_as_strided(kiln_grad_call *g)
{
    int64_t n = g->attrs->i[0];
    return grad_by_adding(g, g->attrs->i + 1 + n, g->attrs->i[1 + 2 * n]);
}

const kiln_op kiln_op_as_strided = {
    KILN_VIEW_OP(as_strided),
    .attrs = "ndim shape... stride... offset",
    .start = KILN_START_LAST,
    .infer = infer_as_strided,
    .grad = grad_as_strided,
    .cases =
        KILN_CASES{"x[6] | 2 2 3 3 1 0", "x[8] | 2 3 2 1 2 1", "x[8] | 1 3 3 0", "x[8] | 2 2 3 0 1 4", "x[5] | 0 3",
                   "x[4] | 2 0 3 1 1 0", "x[0] | 1 0 1 0", "x[6] | 1 3 -2 5", "x[64] | 3 5 4 3 7 2 9 2", NULL},
};

kiln_tensor *kiln_as_strided(kiln_tensor *x, int ndim, const int64_t *shape, const int64_t *stride, int64_t offset)
{
    if (!kiln_tensor_given(x, "as_strided", 1))
        return NULL;
    if (ndim < 0 || ndim > KILN_MAX_DIMS)
        return kiln_fail(KILN_E_SHAPE, "as_strided", "%d sizes are given; a tensor has at most %d dims", ndim,
                         KILN_MAX_DIMS);
    kiln_attrs a = {0};
    a.i[a.nints++] = ndim;
    for (int d = 0; d < ndim; d++)
        a.i[a.nints++] = shape[d];
    for (int d = 0; d < ndim; d++)
        a.i[a.nints++] = stride[d];
    a.i[a.nints++] = offset;
    return KILN_OP(as_strided, KILN_IN(kiln_contiguous(x)), &a);
}

/* ---- strided_copy ---- */

/* A dense copy of what as_strided shows, with the offset as a run-time number: what a view becomes whose place changes
 * from step to step (plan/vary.c). Whoever writes it sees to it that the window lies inside the operand. */
static bool infer_strided_copy(kiln_call *c)
{
    int64_t n = c->attrs.nints ? c->attrs.i[0] : -1;
    if (!kiln_check_attr(c, n >= 0 && n <= KILN_MAX_DIMS && c->attrs.nints == 2 * n + 1,
                         "%d integers: they must be ndim, the sizes, the strides", c->attrs.nints) ||
        !kiln_check_attr(
            c,
            kiln_view_fits((int)n, c->attrs.i + 1, c->attrs.i + 1 + n, 0, kiln_count(c->in[0]->ndim, c->in[0]->shape)),
            "the window is larger than %s", kiln_shape_of(c->in[0])))
        return false;
    kiln_desc_set(&c->out[0], (kiln_dtype)c->in[0]->dtype, (int)n, c->attrs.i + 1);
    return true;
}

static bool grad_strided_copy(kiln_grad_call *g)
{
    const kiln_tensor *x = g->in[0], *gy = g->gout[0];
    if (!g->need[0] || !gy)
        return true;
    kiln_attrs a = {.nfloats = 1, .f = {g->attrs->f[0]}};
    a.i[a.nints++] = x->ndim;
    for (int d = 0; d < x->ndim; d++)
        a.i[a.nints++] = x->shape[d];
    for (int d = 0; d < gy->ndim; d++)
        a.i[a.nints++] = g->attrs->i[1 + gy->ndim + d];
    g->gin[0] = KILN_OP(as_strided_add, KILN_IN(g->gout[0]), &a);
    return g->gin[0] != NULL;
}

const kiln_op kiln_op_strided_copy = {
    .name = "strided_copy",
    .attrs = "ndim shape... stride... | offset",
    .cls = KILN_CLASS_INDEX,
    .dtypes = KILN_T_ALL,
    .min_in = 1,
    .max_in = 1,
    .infer = infer_strided_copy,
    .grad_reads = {KILN_READS_NOTHING},
    .grad = grad_strided_copy,
    .cases = KILN_CASES{"x[6] | 2 2 3 3 1 | 0", "x[9] | 2 3 2 1 2 | 1", "x[8] | 1 3 2 | 3", "x[2,4] | 2 2 3 0 1 | 4",
                        "x[5] | 0 | 3", "x[4] | 2 0 3 1 1 | 0", "x[0] | 1 0 1 | 0", "x[80] | 3 5 4 3 7 2 9 | 9",
                        "x[40,33] | 2 33 40 1 33 | 0", NULL},
};

kiln_tensor *kiln_strided_copy(kiln_tensor *x, int ndim, const int64_t *shape, const int64_t *stride, double offset)
{
    kiln_attrs a = {.nfloats = 1, .f = {offset}};
    a.i[a.nints++] = ndim;
    for (int d = 0; d < ndim; d++)
        a.i[a.nints++] = shape[d];
    for (int d = 0; d < ndim; d++)
        a.i[a.nints++] = stride[d];
    return KILN_OP(strided_copy, KILN_IN(x), &a);
}
