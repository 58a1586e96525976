/* Operations that lay elements out anew: cat, stack, flip, roll, repeat, triangles, copies. */
#include "ops/helpers.h"
#include "ops/pointwise.h"
#include "ops/view.h"
#include "ops/widen.h"

extern const kiln_op kiln_op_iota;                      /* ops/create.c */
extern const kiln_op kiln_op_constant_pad, kiln_op_pad; /* ops/pad.c */

/* start, start + step, …: n i64 numbers on x's device. */
static kiln_tensor *count_like(const kiln_tensor *x, int64_t n, double start, double step)
{
    const kiln_attrs a = {.nints = 2, .i = {KILN_I64, n}, .nfloats = 2, .f = {start, step}};
    return kiln_op_create(&kiln_op_iota, &a, x->device);
}

/* A composition with x's shape, or one that its compose function checks. */
static bool infer_like(kiln_call *c)
{
    kiln_desc_like(&c->out[0], c->in[0]);
    return true;
}

/* ---- clone, contiguous ---- */

static bool grad_clone(kiln_grad_call *g)
{
    g->gin[0] = g->gout[0];
    return true;
}

const kiln_op kiln_op_clone = {
    .name = "clone",
    .cls = KILN_CLASS_POINTWISE,
    .dtypes = KILN_T_ALL,
    .min_in = 1,
    .max_in = 1,
    .pointwise = KILN_PW_copy,
    .grad_skips = KILN_SKIPS_BOTH,
    .infer = infer_like,
    .grad = grad_clone,
    .cases = KILN_CASES{"x[2,3]", "x[]", "x[0,3]", "x[2,3,4,5]", "x[70,33]", NULL},
};

kiln_tensor *kiln_clone(kiln_tensor *x)
{
    return KILN_OP(clone, KILN_IN(x), KILN_NO_ATTRS);
}

kiln_tensor *kiln_contiguous(kiln_tensor *x)
{
    if (x && kiln_is_dense(x->ndim, x->shape, x->stride))
        return kiln_tensor_usable(x, "contiguous") ? x : NULL;
    return kiln_clone(x);
}

/* ---- cat, stack, split, chunk ---- */

static bool infer_cat(kiln_call *c)
{
    const kiln_tensor *x = c->in[0];
    int64_t *dim = &c->attrs.i[0];
    if (!kiln_check_ndim(c, 0, 1, KILN_MAX_DIMS) || !kiln_check_dim(c, dim, x->ndim))
        return false;
    kiln_desc *d = &c->out[0];
    kiln_desc_like(d, x);
    for (int i = 1; i < c->nin; i++) {
        const kiln_tensor *t = c->in[i];
        if (!kiln_check_attr(c, t != NULL, "operand %d is NULL", i + 1) || !kiln_check_same_dtype(c, 0, i))
            return false;
        for (int k = 0; k < x->ndim; k++)
            if (t->ndim != x->ndim || (k != *dim && t->shape[k] != x->shape[k]))
                return kiln_fail(KILN_E_SHAPE, c->op->name,
                                 "operand 1 is %s and operand %d is %s: all but dim %lld must agree", kiln_shape_of(x),
                                 i + 1, kiln_shape_of(t), (long long)*dim);
        if (__builtin_add_overflow(d->shape[*dim], t->shape[*dim], &d->shape[*dim]))
            return kiln_fail(KILN_E_SHAPE, c->op->name, "dim %lld would be too long", (long long)*dim);
    }
    kiln_desc_set(d, d->dtype, d->ndim, d->shape);
    return true;
}

static bool grad_cat(kiln_grad_call *g)
{
    int dim = (int)g->attrs->i[0];
    int64_t start = 0;
    for (int i = 0; i < g->nin; i++) {
        int64_t end = start + g->in[i]->shape[dim];
        if (g->need[i] && g->gout[0] && !(g->gin[i] = kiln_slice(g->gout[0], dim, start, end, 1)))
            return false;
        start = end;
    }
    return true;
}

const kiln_op kiln_op_cat = {
    .name = "cat",
    .attrs = "dim",
    .cls = KILN_CLASS_INDEX,
    .autocast = KILN_CAST_PROMOTE,
    .dtypes = KILN_T_ALL,
    .min_in = 1,
    .max_in = KILN_MAX_INPUTS,
    .infer = infer_cat,
    .grad_reads = {KILN_READS_NOTHING},
    .grad = grad_cat,
    .cases = KILN_CASES{"x[2] x[3] | 0", "x[2,3] x[4,3] | 0", "x[2,3] x[2,1] x[2,2] | 1", "x[2,3,4] x[2,3,1] | -1",
                        "x[2,2,3] x[2,0,3] x[2,1,3] | 1", "x[3] | 0", "x[0] x[0] | 0", "x[0,3] x[0,2] | 1",
                        "x[33,17] x[33,40] x[33,1] | 1", "x[300,70] x[41,70] | 0", NULL},
};

static bool is_skipped(const kiln_tensor *t)
{
    return t->ndim == 1 && t->shape[0] == 0; /* PyTorch joins the empty list with anything */
}

/* Joins up to KILN_MAX_INPUTS tensors a time. */
static kiln_tensor *cat_some(int n, kiln_tensor *const *tensors, int64_t dim)
{
    if (n <= KILN_MAX_INPUTS)
        return kiln_op_one(&kiln_op_cat, tensors, n, KILN_I(dim));
    kiln_tensor *parts[KILN_MAX_INPUTS];
    int count = 0;
    int64_t each = ((int64_t)n + KILN_MAX_INPUTS - 1) / KILN_MAX_INPUTS;
    for (int64_t i = 0; i < n; i += each) {
        int64_t m = n - i < each ? n - i : each;
        if (!(parts[count++] = cat_some((int)m, tensors + i, dim)))
            return NULL;
    }
    return kiln_op_one(&kiln_op_cat, parts, count, KILN_I(dim));
}

/* Casts to one dtype, leaves out what is skipped, joins; long lists in blocks. */
kiln_tensor *kiln_cat(int n, kiln_tensor *const *tensors, int dim)
{
    KILN_TIDY;
    enum { BLOCK = 256 };
    if (n < 1 || !tensors)
        return kiln_fail(KILN_E_ARGUMENT, "cat", "there is nothing to join: %d tensors", n);
    kiln_dtype dtype = KILN_BOOL;
    bool any = false;
    for (int i = 0; i < n; i++) {
        if (!kiln_tensor_given(tensors[i], "cat", i + 1))
            return NULL;
        dtype = kiln_dtype_promote(dtype, (kiln_dtype)tensors[i]->dtype);
        any |= !is_skipped(tensors[i]);
    }
    kiln_tensor *block[BLOCK];
    int count = 0;
    for (int i = 0; i < n; i++) {
        if (any && is_skipped(tensors[i]))
            continue;
        if (count == BLOCK) {
            block[0] = cat_some(count, block, dim);
            count = 1;
        }
        if (!(block[count++] = kiln_cast(tensors[i], dtype)))
            return NULL;
    }
    return KILN_KEPT(cat_some(count, block, dim));
}

static bool infer_stack(kiln_call *c)
{
    const kiln_tensor *x = c->in[0];
    int64_t *dim = &c->attrs.i[0], shape[KILN_MAX_DIMS];
    if (!kiln_check_ndim(c, 0, 0, KILN_MAX_DIMS - 1) || !kiln_check_dim(c, dim, x->ndim + 1))
        return false;
    for (int i = 1; i < c->nin; i++) {
        const kiln_tensor *t = c->in[i];
        if (!kiln_check_attr(c, t != NULL, "operand %d is NULL", i + 1) || !kiln_check_same_dtype(c, 0, i))
            return false;
        if (t->ndim != x->ndim || memcmp(t->shape, x->shape, (size_t)x->ndim * sizeof *x->shape) != 0)
            return kiln_fail(KILN_E_SHAPE, c->op->name,
                             "operand 1 is %s and operand %d is %s: all shapes must be equal", kiln_shape_of(x), i + 1,
                             kiln_shape_of(t));
    }
    for (int d = 0; d <= x->ndim; d++)
        shape[d] = d < *dim ? x->shape[d] : d == *dim ? c->nin : x->shape[d - 1];
    kiln_desc_set(&c->out[0], (kiln_dtype)x->dtype, x->ndim + 1, shape);
    return true;
}

static bool compose_stack(kiln_call *c, kiln_tensor **out)
{
    kiln_tensor *rows[KILN_MAX_INPUTS];
    int dim = (int)c->attrs.i[0];
    for (int i = 0; i < c->nin; i++)
        if (!(rows[i] = kiln_unsqueeze(c->in[i], dim)))
            return false;
    return (out[0] = kiln_cat(c->nin, rows, dim)) != NULL;
}

const kiln_op kiln_op_stack = {
    .name = "stack",
    .attrs = "dim",
    .cls = KILN_CLASS_COMPOSITE,
    .autocast = KILN_CAST_PROMOTE,
    .dtypes = KILN_T_ALL,
    .min_in = 1,
    .max_in = KILN_MAX_INPUTS,
    .keeps_half = true,
    .infer = infer_stack,
    .compose = compose_stack,
    .cases = KILN_CASES{"x[] x[] | 0", "x[3] x[3] | 0", "x[3] x[3] | 1", "x[2,3] x[2,3] x[2,3] | -1",
                        "x[2,3] x[2,3] | -3", "x[0,2] x[0,2] | 1", "x[2] | 0", "x[40,30] x[40,30] | 1", NULL},
};

kiln_tensor *kiln_stack(int n, kiln_tensor *const *tensors, int dim)
{
    KILN_TIDY;
    if (n < 1 || !tensors)
        return kiln_fail(KILN_E_ARGUMENT, "stack", "there is nothing to join: %d tensors", n);
    kiln_tensor *block[KILN_MAX_INPUTS], *done = NULL;
    kiln_dtype dtype = KILN_BOOL;
    for (int i = 0; i < n; i++) {
        if (!kiln_tensor_given(tensors[i], "stack", i + 1))
            return NULL;
        dtype = kiln_dtype_promote(dtype, (kiln_dtype)tensors[i]->dtype);
    }
    for (int i = 0; i < n; i += KILN_MAX_INPUTS) {
        int m = n - i < KILN_MAX_INPUTS ? n - i : KILN_MAX_INPUTS;
        for (int k = 0; k < m; k++)
            if (!(block[k] = kiln_cast(tensors[i + k], dtype)))
                return NULL;
        kiln_tensor *part = kiln_op_one(&kiln_op_stack, block, m, KILN_I(dim));
        done = done ? kiln_cat(2, (kiln_tensor *const[]){done, part}, dim) : part;
        if (!done)
            return NULL;
    }
    return KILN_KEPT(done);
}

/* Not all parts could be made: none stays. */
static int give_up(kiln_tensor **parts, int64_t made)
{
    for (int64_t i = 0; i < made; i++) {
        kiln_release(parts[i]);
        parts[i] = NULL;
    }
    return -1;
}

/* Slices of `size` along dim; how many, or -1. */
static int cut(kiln_tensor *x, const char *op, int64_t size, int dim, kiln_tensor **parts, int max_parts)
{
    int64_t length = x->shape[dim], count = length ? (length - 1) / size + 1 : 1;
    if (count > max_parts) {
        kiln_fail(KILN_E_ARGUMENT, op, "dim %d of %s gives %lld parts of %lld; there is room for %d", dim,
                  kiln_shape_of(x), (long long)count, (long long)size, max_parts);
        return -1;
    }
    for (int64_t i = 0; i < count; i++) {
        parts[i] = kiln_slice(x, dim, i * size, i + 1 == count ? length : (i + 1) * size, 1);
        if (!parts[i])
            return give_up(parts, i);
    }
    return (int)count;
}

/* True, with dim wrapped, when x can be cut along it. The parts are NULL from here on. */
static bool can_cut(const kiln_tensor *x, const char *op, int *dim, kiln_tensor **parts, int max_parts)
{
    for (int i = 0; parts && i < max_parts; i++)
        parts[i] = NULL;
    if (!kiln_tensor_given(x, op, 1))
        return NULL;
    if (!parts || max_parts < 1)
        return kiln_fail(KILN_E_ARGUMENT, op, "there is no room for the parts: %d at %s", max_parts,
                         parts ? "most" : "NULL");
    int wrapped = *dim < 0 ? *dim + x->ndim : *dim;
    if (wrapped < 0 || wrapped >= x->ndim)
        return kiln_fail(KILN_E_ARGUMENT, op, "dim %d is not in %s", *dim, kiln_shape_of(x));
    *dim = wrapped;
    return true;
}

int kiln_split(kiln_tensor *x, int64_t size, int dim, kiln_tensor **parts, int max_parts)
{
    if (!can_cut(x, "split", &dim, parts, max_parts))
        return -1;
    if (size < 0 || (size == 0 && x->shape[dim] > 0)) {
        kiln_fail(KILN_E_ARGUMENT, "split", "parts of %lld: dim %d of %s needs at least 1", (long long)size, dim,
                  kiln_shape_of(x));
        return -1;
    }
    return cut(x, "split", size, dim, parts, max_parts);
}

int kiln_chunk(kiln_tensor *x, int64_t chunks, int dim, kiln_tensor **parts, int max_parts)
{
    if (!can_cut(x, "chunk", &dim, parts, max_parts))
        return -1;
    if (chunks < 1) {
        kiln_fail(KILN_E_ARGUMENT, "chunk", "%lld chunks: there must be at least 1", (long long)chunks);
        return -1;
    }
    int64_t length = x->shape[dim], size = length / chunks + (length % chunks != 0);
    if (length > 0)
        return cut(x, "chunk", size, dim, parts, max_parts);
    if (chunks > max_parts) {
        kiln_fail(KILN_E_ARGUMENT, "chunk", "%lld chunks; there is room for %d", (long long)chunks, max_parts);
        return -1;
    }
    for (int64_t i = 0; i < chunks; i++) /* an empty dim gives that many empty chunks */
        if (!(parts[i] = kiln_slice(x, dim, 0, 0, 1)))
            return give_up(parts, i);
    return (int)chunks;
}

/* ---- flip, roll, repeat ---- */

static bool infer_flip(kiln_call *c)
{
    bool seen[KILN_MAX_DIMS] = {false};
    for (int i = 0; i < c->attrs.nints; i++) {
        int64_t *dim = &c->attrs.i[i];
        if (!kiln_check_dim(c, dim, c->in[0]->ndim))
            return false;
        if (seen[*dim])
            return kiln_fail(KILN_E_ARGUMENT, c->op->name, "dim %lld of %s is given twice", (long long)*dim,
                             kiln_shape_of(c->in[0]));
        seen[*dim] = true;
    }
    return infer_like(c);
}

static bool compose_flip(kiln_call *c, kiln_tensor **out)
{
    kiln_tensor *x = c->in[0];
    for (int i = 0; x && i < c->attrs.nints; i++) {
        int dim = (int)c->attrs.i[i];
        if (x->ndim > 0 && x->shape[dim] > 1)
            x = kiln_index_select(x, dim, count_like(x, x->shape[dim], (double)(x->shape[dim] - 1), -1));
    }
    if (x && x == c->in[0])
        x = kiln_clone(x);
    return (out[0] = x) != NULL;
}

const kiln_op kiln_op_flip = {
    .name = "flip",
    .attrs = "dims...",
    .cls = KILN_CLASS_COMPOSITE,
    .dtypes = KILN_T_ALL,
    .min_in = 1,
    .max_in = 1,
    .keeps_half = true,
    .infer = infer_flip,
    .compose = compose_flip,
    .cases = KILN_CASES{"x[5] | 0", "x[2,3] | 0", "x[2,3] | -1", "x[2,3] | 0 1", "x[2,3,4] | 0 2", "x[2,3] |",
                        "x[] | 0", "x[0,3] | 0", "x[33,17] | 1", NULL},
};

kiln_tensor *kiln_flip(kiln_tensor *x, int n, const int64_t *dims)
{
    if (!kiln_check_list("flip", n, dims, KILN_MAX_DIMS))
        return NULL;
    kiln_attrs a = {.nints = n};
    for (int i = 0; i < n; i++)
        a.i[i] = dims[i];
    return KILN_OP(flip, KILN_IN(x), &a);
}

static bool infer_roll(kiln_call *c)
{
    const kiln_tensor *x = c->in[0];
    int64_t *shift = &c->attrs.i[0], *dim = &c->attrs.i[1], size;
    if (*dim != KILN_FLAT && (!kiln_check_ndim(c, 0, 1, KILN_MAX_DIMS) || !kiln_check_dim(c, dim, x->ndim)))
        return false;
    size = *dim == KILN_FLAT ? kiln_count(x->ndim, x->shape) : x->ndim ? x->shape[*dim] : 1;
    *shift = size ? *shift % size : 0;
    *shift += *shift < 0 ? size : 0;
    return infer_like(c);
}

static bool compose_roll(kiln_call *c, kiln_tensor **out)
{
    kiln_tensor *x = c->in[0];
    int64_t shift = c->attrs.i[0], all = -1;
    bool flat = c->attrs.i[1] == KILN_FLAT;
    if (shift == 0)
        return (out[0] = kiln_clone(x)) != NULL;
    kiln_tensor *row = flat ? kiln_reshape(x, 1, &all) : x;
    int dim = flat ? 0 : (int)c->attrs.i[1];
    int64_t size = row ? row->shape[dim] : 0;
    kiln_tensor *tail = kiln_slice(row, dim, size - shift, size, 1), *head = kiln_slice(row, dim, 0, size - shift, 1);
    out[0] = kiln_cat(2, (kiln_tensor *const[]){tail, head}, dim);
    if (flat)
        out[0] = kiln_reshape(out[0], x->ndim, x->shape);
    return out[0] != NULL;
}

const kiln_op kiln_op_roll = {
    .name = "roll",
    .attrs = "shift dim",
    .cls = KILN_CLASS_COMPOSITE,
    .dtypes = KILN_T_ALL,
    .min_in = 1,
    .max_in = 1,
    .keeps_half = true,
    .infer = infer_roll,
    .compose = compose_roll,
    .cases = KILN_CASES{"x[5] | 2 0", "x[5] | -1 0", "x[2,3] | 7 1", "x[2,3] | 1 -2", "x[2,3] | 2 -2147483648",
                        "x[4] | 4 0", "x[] | 1 -2147483648", "x[0,3] | 1 0", "x[40,33] | 13 0", NULL},
};

kiln_tensor *kiln_roll(kiln_tensor *x, int64_t shift, int dim)
{
    return KILN_OP(roll, KILN_IN(x), KILN_I(shift, dim));
}

static bool infer_repeat(kiln_call *c)
{
    const kiln_tensor *x = c->in[0];
    int n = c->attrs.nints, lead = n - x->ndim;
    int64_t shape[KILN_MAX_DIMS];
    if (lead < 0 || n > KILN_MAX_DIMS)
        return kiln_fail(KILN_E_SHAPE, c->op->name, "%d repeats for %s: there must be one a dim", n, kiln_shape_of(x));
    for (int d = 0; d < n; d++) {
        int64_t times = c->attrs.i[d];
        if (times < 0 || __builtin_mul_overflow(times, d < lead ? 1 : x->shape[d - lead], &shape[d]))
            return kiln_fail(KILN_E_SHAPE, c->op->name, "dim %d of %s cannot be repeated %lld times", d,
                             kiln_shape_of(x), (long long)times);
    }
    if (kiln_count(n, shape) < 0)
        return kiln_fail(KILN_E_SHAPE, c->op->name, "a result of shape %s is too large", kiln_shape_text(n, shape));
    kiln_desc_set(&c->out[0], (kiln_dtype)x->dtype, n, shape);
    return true;
}

/* One dim at a time, as [before, times, dim and after]: so it needs no more dims than there are. */
static bool compose_repeat(kiln_call *c, kiln_tensor **out)
{
    int n = c->attrs.nints;
    int64_t shape[KILN_MAX_DIMS] = {0};
    kiln_tensor *x = c->in[0];
    int repeated = 0;
    for (int d = 0; d < n; d++) {
        shape[d] = d < n - x->ndim ? 1 : x->shape[d - (n - x->ndim)];
        repeated += c->attrs.i[d] != 1;
    }
    x = kiln_reshape(repeated > 1 ? kiln_widen(x) : x, n, shape); /* gradients are summed dim by dim */
    for (int d = n; x && d-- > 0;) {
        int64_t times = c->attrs.i[d], before = kiln_count(d, shape), rest = kiln_count(n - d, shape + d);
        if (times == 1)
            continue;
        shape[d] *= times;
        x = kiln_reshape(x, 3, (const int64_t[]){before, 1, rest});
        x = kiln_expand(x, 3, (const int64_t[]){before, times, rest});
        x = kiln_reshape(x, n, shape);
    }
    x = x && x->dtype == c->out[0].dtype ? kiln_clone(x) : kiln_cast(x, c->out[0].dtype);
    return (out[0] = x) != NULL; /* a copy, also where nothing is repeated */
}

const kiln_op kiln_op_repeat = {
    .name = "repeat",
    .attrs = "times...",
    .cls = KILN_CLASS_COMPOSITE,
    .dtypes = KILN_T_ALL,
    .min_in = 1,
    .max_in = 1,
    .keeps_half = true,
    .infer = infer_repeat,
    .compose = compose_repeat,
    .cases = KILN_CASES{"x[3] | 2", "x[2,3] | 2 2", "x[2,3] | 1 3", "x[2,3] | 2 1 1", "x[3] | 2 3", "x[] | 2", "x[] |",
                        "x[2,3] | 1 0", "x[0,3] | 2 2", "x[2,1,3] | 3 2 1", "x[9,17] | 3 4", NULL},
};

kiln_tensor *kiln_repeat(kiln_tensor *x, int n, const int64_t *times)
{
    if (!kiln_check_list("repeat", n, times, KILN_MAX_DIMS))
        return NULL;
    kiln_attrs a = {.nints = n};
    for (int i = 0; i < n; i++)
        a.i[i] = times[i];
    return KILN_OP(repeat, KILN_IN(x), &a);
}

/* ---- Triangles ---- */

static bool infer_triangle(kiln_call *c)
{
    return kiln_check_ndim(c, 0, 2, KILN_MAX_DIMS) && infer_like(c);
}

/* x where `column - row` is at most (tril) or at least (triu) the diagonal, else 0. */
static bool compose_triangle(kiln_call *c, kiln_tensor **out, bool upper)
{
    kiln_tensor *x = c->in[0];
    int64_t rows = x->shape[x->ndim - 2], columns = x->shape[x->ndim - 1], diagonal = c->attrs.i[0];
    int64_t far = rows > columns ? rows : columns;
    if (kiln_count(x->ndim, x->shape) == 0) /* one side may be longer than any memory */
        return (out[0] = kiln_clone(x)) != NULL;
    diagonal = diagonal < -far ? -far : diagonal > far ? far : diagonal; /* beyond that nothing changes */
    kiln_tensor *row = kiln_unsqueeze(count_like(x, rows, (double)diagonal, 1), 1),
                *column = count_like(x, columns, 0, 1);
    kiln_tensor *mask = upper ? kiln_ge(column, row) : kiln_le(column, row);
    out[0] = kiln_where(mask, x, kiln_fill_like(x, 0, NULL, 0));
    return out[0] != NULL;
}

static bool compose_tril(kiln_call *c, kiln_tensor **out)
{
    return compose_triangle(c, out, false);
}

static bool compose_triu(kiln_call *c, kiln_tensor **out)
{
    return compose_triangle(c, out, true);
}

#define TRIANGLE_CASES                                                                                                 \
    KILN_CASES                                                                                                         \
    {                                                                                                                  \
        "x[3,3] | 0", "x[3,5] | 1", "x[5,3] | -1", "x[2,3,4] | 0", "x[3,3] | 5", "x[3,3] | -5", "x[0,3] | 0",          \
            "x[2,33,40] | 3", NULL                                                                                     \
    }

const kiln_op kiln_op_tril = {
    .name = "tril",
    .attrs = "diagonal",
    .cls = KILN_CLASS_COMPOSITE,
    .dtypes = KILN_T_ALL,
    .min_in = 1,
    .max_in = 1,
    .keeps_half = true,
    .infer = infer_triangle,
    .compose = compose_tril,
    .cases = TRIANGLE_CASES,
};

const kiln_op kiln_op_triu = {
    .name = "triu",
    .attrs = "diagonal",
    .cls = KILN_CLASS_COMPOSITE,
    .dtypes = KILN_T_ALL,
    .min_in = 1,
    .max_in = 1,
    .keeps_half = true,
    .infer = infer_triangle,
    .compose = compose_triu,
    .cases = TRIANGLE_CASES,
};

kiln_tensor *kiln_tril(kiln_tensor *x, int64_t diagonal)
{
    return KILN_OP(tril, KILN_IN(x), KILN_I(diagonal));
}

kiln_tensor *kiln_triu(kiln_tensor *x, int64_t diagonal)
{
    return KILN_OP(triu, KILN_IN(x), KILN_I(diagonal));
}

const kiln_op *const kiln_ops_shape[] = {
    &kiln_op_clone, &kiln_op_cat,    &kiln_op_stack, &kiln_op_constant_pad, &kiln_op_pad, &kiln_op_flip,
    &kiln_op_roll,  &kiln_op_repeat, &kiln_op_tril,  &kiln_op_triu,         NULL,
};
