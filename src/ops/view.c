/* Views that show every element: other dims on the same storage. Their gradients are views again. */
#include "ops/helpers.h"
#include "ops/view.h"

extern const kiln_op kiln_op_slice, kiln_op_select, kiln_op_unfold, kiln_op_diagonal, kiln_op_as_strided,
    kiln_op_strided_copy; /* window.c */

/* The gradient of a view that only renames dims. */
static bool grad_by_reshape(kiln_grad_call *g)
{
    if (!g->need[0] || !g->gout[0])
        return true;
    g->gin[0] = kiln_reshape(g->gout[0], g->in[0]->ndim, g->in[0]->shape);
    return g->gin[0] != NULL;
}

/* ---- view, reshape, flatten ---- */

/* Fills in the size given as -1; false with an error when the sizes do not hold x's elements. */
static bool resolve_shape(const kiln_tensor *x, const char *op, int n, const int64_t *wanted, int64_t *shape)
{
    int64_t known = 1, count = kiln_count(x->ndim, x->shape);
    int open = -1;
    if (n < 0 || n > KILN_MAX_DIMS)
        return kiln_fail(KILN_E_SHAPE, op, "%d sizes are given; a tensor has at most %d dims", n, KILN_MAX_DIMS);
    for (int d = 0; d < n; d++) {
        shape[d] = wanted[d];
        if (wanted[d] < -1 || (wanted[d] == -1 && open >= 0))
            return kiln_fail(KILN_E_SHAPE, op, "shape %s: one size may be -1, no other may be negative",
                             kiln_shape_text(n, wanted));
        if (wanted[d] == -1)
            open = d;
        else if (__builtin_mul_overflow(known, wanted[d], &known))
            known = INT64_MAX / 2;
    }
    if (open >= 0 && known == 0)
        return kiln_fail(KILN_E_SHAPE, op, "the size -1 of %s can be anything, since another one is 0",
                         kiln_shape_text(n, wanted));
    if (open >= 0 && count % known == 0)
        shape[open] = count / known;
    else if (open >= 0 || known != count)
        return kiln_fail(KILN_E_SHAPE, op, "%s has %lld elements and does not fit the shape %s", kiln_shape_of(x),
                         (long long)count, kiln_shape_text(n, wanted));
    return true;
}

/* Strides that show x in another shape (of as many elements); false when its memory order has none. */
bool kiln_view_strides(const kiln_tensor *x, int n, const int64_t *shape, int64_t *stride)
{
    if (kiln_count(x->ndim, x->shape) == 0) {
        kiln_dense_strides(n, shape, stride);
        return true;
    }
    /* Dims that follow one another in memory are one run; runs and new dims are met from the last to the first. */
    int64_t size[KILN_MAX_DIMS], step[KILN_MAX_DIMS];
    int runs = 0, run = 0;
    for (int d = x->ndim; d-- > 0;) {
        if (x->shape[d] == 1)
            continue;
        if (runs && x->stride[d] == step[runs - 1] * size[runs - 1]) {
            size[runs - 1] *= x->shape[d];
            continue;
        }
        size[runs] = x->shape[d];
        step[runs++] = x->stride[d];
    }
    for (int d = n; d-- > 0;) {
        if (shape[d] == 1) {
            stride[d] = d + 1 < n ? stride[d + 1] * shape[d + 1] : 1;
            continue;
        }
        if (run < runs && size[run] == 1)
            run++;
        if (run == runs || size[run] % shape[d] != 0)
            return false;
        stride[d] = step[run];
        step[run] *= shape[d];
        size[run] /= shape[d];
    }
    return true;
}

static bool infer_view(kiln_call *c)
{
    const kiln_tensor *x = c->in[0];
    kiln_desc *d = kiln_view_start(c);
    int n = c->attrs.nints;
    if (!resolve_shape(x, c->op->name, n, c->attrs.i, d->shape))
        return false;
    d->ndim = n;
    memcpy(c->attrs.i, d->shape, (size_t)n * sizeof *d->shape);
    if (kiln_view_strides(x, n, d->shape, d->stride))
        return true;
    kiln_fail(KILN_E_SHAPE, c->op->name, "%s with strides %s cannot be seen as %s without moving elements",
              kiln_shape_of(x), kiln_shape_text(x->ndim, x->stride), kiln_shape_text(n, d->shape));
    return kiln_hint("reshape copies where it must");
}

static bool list_attrs(const char *op, kiln_attrs *a, int n, const int64_t *list)
{
    if (!kiln_check_list(op, n, list, KILN_MAX_DIMS))
        return false;
    a->nfloats = 0;
    a->nints = n;
    for (int d = 0; d < n; d++)
        a->i[d] = list[d];
    return true;
}

const kiln_op kiln_op_view = {
    KILN_VIEW_OP(view),
    .attrs = "shape...",
    .grad_skips = KILN_SKIPS_RESULTS,
    .infer = infer_view,
    .grad = grad_by_reshape,
    .cases = KILN_CASES{"x[6] | 2 3", "x[4,6] | 2 2 3 2", "x[4,6] | 4 1 -1", "x[] | 1 1", "x[1] |", "x[0,3] | 0 5",
                        "x[2,0] | 0", "x[24,3] | 2 3 4 3", NULL},
};

static bool infer_reshape(kiln_call *c)
{
    int64_t shape[KILN_MAX_DIMS];
    if (!resolve_shape(c->in[0], c->op->name, c->attrs.nints, c->attrs.i, shape))
        return false;
    memcpy(c->attrs.i, shape, (size_t)c->attrs.nints * sizeof *shape);
    kiln_desc_set(&c->out[0], (kiln_dtype)c->in[0]->dtype, c->attrs.nints, shape);
    return true;
}

static bool compose_reshape(kiln_call *c, kiln_tensor **out)
{
    int64_t stride[KILN_MAX_DIMS];
    kiln_tensor *x = c->in[0];
    if (!kiln_view_strides(x, c->attrs.nints, c->attrs.i, stride))
        x = kiln_contiguous(x);
    out[0] = KILN_OP(view, KILN_IN(x), &c->attrs);
    return out[0] != NULL;
}

const kiln_op kiln_op_reshape = {
    .name = "reshape",
    .attrs = "shape...",
    .cls = KILN_CLASS_COMPOSITE,
    .dtypes = KILN_T_ALL,
    .min_in = 1,
    .max_in = 1,
    .keeps_half = true,
    .infer = infer_reshape,
    .compose = compose_reshape,
    .cases = KILN_CASES{"x[2,3] | 6", "x[2,3] | 3 2", "x[2,3,4] | -1 4", "x[2,3,4] | 4 -1 2", "x[] | 1", "x[1,1] |",
                        "x[0,3] | 3 0 2", "x[0,3] | -1 3", "x[5] | 5", "x[32,16,9] | 48 96", NULL},
};

kiln_tensor *kiln_reshape(kiln_tensor *x, int n, const int64_t *shape)
{
    KILN_TIDY;
    int64_t sizes[KILN_MAX_DIMS], stride[KILN_MAX_DIMS];
    kiln_attrs a;
    if (!kiln_tensor_given(x, "reshape", 1))
        return NULL;
    if (!list_attrs("reshape", &a, n, shape) || !resolve_shape(x, "reshape", n, shape, sizes))
        return NULL;
    memcpy(a.i, sizes, (size_t)n * sizeof *sizes);
    if (!kiln_view_strides(x, n, sizes, stride))
        x = kiln_contiguous(x);
    return KILN_KEPT(KILN_OP(view, KILN_IN(x), &a));
}

static bool infer_flatten(kiln_call *c)
{
    const kiln_tensor *x = c->in[0];
    int64_t *first = &c->attrs.i[0], *last = &c->attrs.i[1], shape[KILN_MAX_DIMS] = {1};
    if (!kiln_check_dim(c, first, x->ndim) || !kiln_check_dim(c, last, x->ndim))
        return false;
    if (*first > *last)
        return kiln_fail(KILN_E_ARGUMENT, c->op->name, "start_dim %lld of %s comes after end_dim %lld",
                         (long long)*first, kiln_shape_of(x), (long long)*last);
    int n = 0;
    for (int d = 0; d < x->ndim; d++) {
        if (d > *first && d <= *last)
            shape[n - 1] *= x->shape[d];
        else
            shape[n++] = x->shape[d];
    }
    kiln_desc_set(&c->out[0], (kiln_dtype)x->dtype, n ? n : 1, shape);
    return true;
}

static bool compose_flatten(kiln_call *c, kiln_tensor **out)
{
    out[0] = kiln_reshape(c->in[0], c->out[0].ndim, c->out[0].shape);
    return out[0] != NULL;
}

const kiln_op kiln_op_flatten = {
    .name = "flatten",
    .attrs = "start_dim end_dim",
    .cls = KILN_CLASS_COMPOSITE,
    .dtypes = KILN_T_ALL,
    .min_in = 1,
    .max_in = 1,
    .keeps_half = true,
    .infer = infer_flatten,
    .compose = compose_flatten,
    .cases = KILN_CASES{"x[2,3,4] | 0 -1", "x[2,3,4] | 1 2", "x[2,3,4,5] | 1 2", "x[2,3,4] | 1 1", "x[] | 0 -1",
                        "x[2,0,3] | 1 -1", "x[7] | 0 0", "x[8,16,5,5] | 1 -1", NULL},
};

kiln_tensor *kiln_flatten(kiln_tensor *x, int start_dim, int end_dim)
{
    return KILN_OP(flatten, KILN_IN(x), KILN_I(start_dim, end_dim));
}

/* ---- permute, transpose, movedim ---- */

static bool infer_permute(kiln_call *c)
{
    const kiln_tensor *x = c->in[0];
    kiln_desc *d = kiln_view_start(c);
    bool seen[KILN_MAX_DIMS] = {false};
    if (c->attrs.nints != x->ndim)
        return kiln_fail(KILN_E_SHAPE, c->op->name, "%d dims are given for %s, which has %d", c->attrs.nints,
                         kiln_shape_of(x), x->ndim);
    for (int i = 0; i < x->ndim; i++) {
        int64_t *dim = &c->attrs.i[i];
        if (!kiln_check_dim(c, dim, x->ndim))
            return false;
        if (seen[*dim])
            return kiln_fail(KILN_E_ARGUMENT, c->op->name, "dim %lld of %s is given twice", (long long)*dim,
                             kiln_shape_of(x));
        seen[*dim] = true;
        d->shape[i] = x->shape[*dim];
        d->stride[i] = x->stride[*dim];
    }
    return true;
}

static bool grad_permute(kiln_grad_call *g)
{
    if (!g->need[0] || !g->gout[0])
        return true;
    int64_t inverse[KILN_MAX_DIMS] = {0};
    for (int i = 0; i < g->attrs->nints; i++)
        inverse[g->attrs->i[i]] = i;
    g->gin[0] = kiln_permute(g->gout[0], g->attrs->nints, inverse);
    return g->gin[0] != NULL;
}

const kiln_op kiln_op_permute = {
    KILN_VIEW_OP(permute),
    .attrs = "dims...",
    .grad_skips = KILN_SKIPS_BOTH,
    .infer = infer_permute,
    .grad = grad_permute,
    .cases = KILN_CASES{"x[2,3] | 1 0", "x[2,3,4] | 2 0 1", "x[2,3,4] | -1 1 0", "x[2,3,4,5] | 0 2 3 1", "x[] |",
                        "x[5] | 0", "x[0,3] | 1 0", "x[3,17,9,5] | 3 1 0 2", NULL},
};

kiln_tensor *kiln_permute(kiln_tensor *x, int n, const int64_t *dims)
{
    kiln_attrs a;
    return list_attrs("permute", &a, n, dims) ? KILN_OP(permute, KILN_IN(x), &a) : NULL;
}

static bool infer_transpose(kiln_call *c)
{
    const kiln_tensor *x = c->in[0];
    kiln_desc *d = kiln_view_start(c);
    int64_t *a = &c->attrs.i[0], *b = &c->attrs.i[1];
    if (!kiln_check_dim(c, a, x->ndim) || !kiln_check_dim(c, b, x->ndim))
        return false;
    if (*a > *b) { /* the same view, so the same integers */
        int64_t t = *a;
        *a = *b;
        *b = t;
    }
    if (x->ndim == 0)
        return true;
    d->shape[*a] = x->shape[*b];
    d->stride[*a] = x->stride[*b];
    d->shape[*b] = x->shape[*a];
    d->stride[*b] = x->stride[*a];
    return true;
}

static bool grad_transpose(kiln_grad_call *g)
{
    if (!g->need[0] || !g->gout[0])
        return true;
    g->gin[0] = kiln_transpose(g->gout[0], (int)g->attrs->i[0], (int)g->attrs->i[1]);
    return g->gin[0] != NULL;
}

const kiln_op kiln_op_transpose = {
    KILN_VIEW_OP(transpose),
    .attrs = "dim0 dim1",
    .grad_skips = KILN_SKIPS_BOTH,
    .infer = infer_transpose,
    .grad = grad_transpose,
    .cases = KILN_CASES{"x[2,3] | 0 1", "x[2,3,4] | 0 -1", "x[2,3,4] | 2 1", "x[2,3] | 1 1", "x[] | 0 -1",
                        "x[0,2] | 0 1", "x[33,65] | -1 -2", NULL},
};

kiln_tensor *kiln_transpose(kiln_tensor *x, int dim0, int dim1)
{
    return KILN_OP(transpose, KILN_IN(x), KILN_I(dim0, dim1));
}

static bool infer_movedim(kiln_call *c)
{
    const kiln_tensor *x = c->in[0];
    int64_t *from = &c->attrs.i[0], *to = &c->attrs.i[1];
    if (!kiln_check_dim(c, from, x->ndim) || !kiln_check_dim(c, to, x->ndim))
        return false;
    kiln_desc *d = kiln_view_start(c);
    if (x->ndim == 0)
        return true;
    kiln_view_remove(d, (int)*from);
    kiln_view_insert(d, (int)*to, x->shape[*from], x->stride[*from]);
    return true;
}

static bool grad_movedim(kiln_grad_call *g)
{
    if (!g->need[0] || !g->gout[0])
        return true;
    g->gin[0] = kiln_movedim(g->gout[0], (int)g->attrs->i[1], (int)g->attrs->i[0]);
    return g->gin[0] != NULL;
}

const kiln_op kiln_op_movedim = {
    KILN_VIEW_OP(movedim),
    .attrs = "source destination",
    .infer = infer_movedim,
    .grad = grad_movedim,
    .cases = KILN_CASES{"x[2,3,4] | 0 2", "x[2,3,4] | -1 0", "x[2,3,4,5] | 1 2", "x[2,3] | 1 1", "x[] | 0 0",
                        "x[0,2,3] | 0 -1", "x[17,3,9] | 0 1", NULL},
};

kiln_tensor *kiln_movedim(kiln_tensor *x, int source, int destination)
{
    return KILN_OP(movedim, KILN_IN(x), KILN_I(source, destination));
}

/* ---- squeeze, unsqueeze, expand ---- */

static bool infer_squeeze(kiln_call *c)
{
    const kiln_tensor *x = c->in[0];
    int64_t *dim = &c->attrs.i[0];
    bool all = *dim == KILN_FLAT;
    if (!all && !kiln_check_dim(c, dim, x->ndim))
        return false;
    kiln_desc *d = kiln_view_start(c);
    for (int i = x->ndim; i-- > 0;)
        if (x->shape[i] == 1 && (all || i == *dim))
            kiln_view_remove(d, i);
    return true;
}

const kiln_op kiln_op_squeeze = {
    KILN_VIEW_OP(squeeze),
    .attrs = "dim",
    .infer = infer_squeeze,
    .grad = grad_by_reshape,
    .cases = KILN_CASES{"x[2,1,3] | 1", "x[2,1,3] | -2", "x[2,1,3] | 0", "x[1,2,1] | -2147483648", "x[1] | 0",
                        "x[] | 0", "x[0,1] | 1", "x[1,64,1,33] | -2147483648", NULL},
};

kiln_tensor *kiln_squeeze(kiln_tensor *x, int dim)
{
    return KILN_OP(squeeze, KILN_IN(x), KILN_I(dim));
}

static bool infer_unsqueeze(kiln_call *c)
{
    const kiln_tensor *x = c->in[0];
    int64_t *dim = &c->attrs.i[0];
    if (!kiln_view_check_room(c) || !kiln_check_dim(c, dim, x->ndim + 1))
        return false;
    kiln_desc *d = kiln_view_start(c);
    kiln_view_insert(d, (int)*dim, 1, *dim < x->ndim ? x->shape[*dim] * x->stride[*dim] : 1);
    return true;
}

const kiln_op kiln_op_unsqueeze = {
    KILN_VIEW_OP(unsqueeze),
    .attrs = "dim",
    .infer = infer_unsqueeze,
    .grad = grad_by_reshape,
    .cases = KILN_CASES{"x[2,3] | 0", "x[2,3] | 1", "x[2,3] | 2", "x[2,3] | -1", "x[2,3] | -3", "x[] | 0", "x[0,2] | 1",
                        "x[63,17] | 1", NULL},
};

kiln_tensor *kiln_unsqueeze(kiln_tensor *x, int dim)
{
    return KILN_OP(unsqueeze, KILN_IN(x), KILN_I(dim));
}

static bool infer_expand(kiln_call *c)
{
    const kiln_tensor *x = c->in[0];
    kiln_desc *d = kiln_view_start(c);
    int n = c->attrs.nints, lead = n - x->ndim;
    if (lead < 0 || n > KILN_MAX_DIMS)
        return kiln_fail(KILN_E_SHAPE, c->op->name, "%s has %d dims and cannot be expanded to %d sizes",
                         kiln_shape_of(x), x->ndim, n);
    d->ndim = n;
    for (int i = n; i-- > 0;) {
        int64_t *size = &c->attrs.i[i], had = i < lead ? 1 : x->shape[i - lead];
        if (*size == -1 && i >= lead)
            *size = had;
        if (*size < 0 || (had != 1 && *size != had))
            return kiln_fail(KILN_E_SHAPE, c->op->name,
                             "%s does not fit the shape %s at dim %d: %lld cannot become %lld", kiln_shape_of(x),
                             kiln_shape_text(n, c->attrs.i), i, (long long)had, (long long)*size);
        d->shape[i] = *size;
        d->stride[i] = i >= lead && had == *size ? x->stride[i - lead] : 0;
    }
    return true;
}

static bool grad_expand(kiln_grad_call *g)
{
    g->gin[0] = g->gout[0]; /* the caller sums it back */
    return true;
}

const kiln_op kiln_op_expand = {
    KILN_VIEW_OP(expand),
    .attrs = "shape...",
    .grad_skips = KILN_SKIPS_BOTH,
    .infer = infer_expand,
    .grad = grad_expand,
    .cases = KILN_CASES{"x[3,1] | 3 4", "x[3,1] | 2 -1 4", "x[3] | 2 3", "x[] | 2 3", "x[] |", "x[2,3] | 2 3",
                        "x[1,3] | 0 3", "x[0,1] | 0 4", "x[1,16,1] | 33 16 9", NULL},
};

kiln_tensor *kiln_expand(kiln_tensor *x, int n, const int64_t *shape)
{
    kiln_attrs a;
    return list_attrs("expand", &a, n, shape) ? KILN_OP(expand, KILN_IN(x), &a) : NULL;
}

const kiln_op *const kiln_ops_view[] = {
    &kiln_op_view,      &kiln_op_reshape,    &kiln_op_flatten,      &kiln_op_permute,
    &kiln_op_transpose, &kiln_op_movedim,    &kiln_op_squeeze,      &kiln_op_unsqueeze,
    &kiln_op_expand,    &kiln_op_slice,      &kiln_op_select,       &kiln_op_unfold,
    &kiln_op_diagonal,  &kiln_op_as_strided, &kiln_op_strided_copy, NULL,
};
