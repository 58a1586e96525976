/* Tensors made from numbers. Two of these are pointwise rows without operands (full, iota); the others are written with
 * them. Their first integer is the dtype. */
#include <float.h>
#include <math.h>
#include "ops/helpers.h"
#include "ops/pointwise.h"

/* The integers of a creation: dtype, then the sizes. False with an error when they make no tensor. */
static bool check_creation(const kiln_call *c, uint32_t dtypes, int ndim)
{
    int64_t dtype = c->attrs.nints ? c->attrs.i[0] : -1;
    if (dtype < 0 || dtype >= KILN_DTYPES)
        return kiln_fail(KILN_E_DTYPE, c->op->name, "%lld is no dtype", (long long)dtype);
    if (!(dtypes >> dtype & 1))
        return kiln_fail(KILN_E_DTYPE, c->op->name, "it makes no %s", kiln_dtype_name((kiln_dtype)dtype));
    if (ndim > KILN_MAX_DIMS || kiln_count(ndim, c->attrs.i + 1) < 0)
        return kiln_fail(KILN_E_SHAPE, c->op->name, "%s is no shape a tensor can have",
                         ndim > KILN_MAX_DIMS ? "a list of more than 8 sizes" : kiln_shape_text(ndim, c->attrs.i + 1));
    return true;
}

static bool make_attrs(const char *op, kiln_attrs *a, kiln_dtype dtype, int ndim, const int64_t *shape)
{
    if (!kiln_check_list(op, ndim, shape, KILN_MAX_DIMS))
        return false;
    a->i[a->nints++] = dtype;
    for (int d = 0; d < ndim; d++)
        a->i[a->nints++] = shape[d];
    return true;
}

/* ---- full ---- */

static bool infer_full(kiln_call *c)
{
    int ndim = c->attrs.nints - 1;
    if (!check_creation(c, KILN_T_ALL, ndim))
        return false;
    kiln_desc_set(&c->out[0], (kiln_dtype)c->attrs.i[0], ndim, c->attrs.i + 1);
    return true;
}

const kiln_op kiln_op_full = {
    .name = "full",
    .attrs = "dtype shape... | value",
    .cls = KILN_CLASS_POINTWISE,
    .dtypes = KILN_T_ALL,
    .pointwise = KILN_PW_full,
    .infer = infer_full,
    .cases = KILN_CASES{"| 6 2 3 | 1.5", "| 7 5 | -0.1", "| 4 3 | 0.1", "| 5 3 | 0.1", "| 3 2 2 | -7", "| 2 4 | 3",
                        "| 1 4 | 200", "| 0 3 | 1", "| 6 | 2.5", "| 6 0 3 | 1", "| 6 70 90 | 3", NULL},
};

static kiln_tensor *make_full(const char *op, int ndim, const int64_t *shape, double value, kiln_dtype dtype,
                              kiln_device device)
{
    kiln_attrs a = {.nfloats = 1, .f = {value}};
    if ((int)dtype >= 0 && dtype < KILN_DTYPES && !kiln_check_number(op, value, dtype))
        return NULL;
    return make_attrs(op, &a, dtype, ndim, shape) ? kiln_op_create(&kiln_op_full, &a, device) : NULL;
}

kiln_tensor *kiln_full(int ndim, const int64_t *shape, double value, kiln_dtype dtype)
{
    return make_full("full", ndim, shape, value, dtype, kiln_default_device());
}

kiln_tensor *kiln_zeros(int ndim, const int64_t *shape, kiln_dtype dtype)
{
    return make_full("zeros", ndim, shape, 0, dtype, kiln_default_device());
}

kiln_tensor *kiln_ones(int ndim, const int64_t *shape, kiln_dtype dtype)
{
    return make_full("ones", ndim, shape, 1, dtype, kiln_default_device());
}

kiln_tensor *kiln_scalar(double value, kiln_dtype dtype)
{
    return make_full("scalar", 0, NULL, value, dtype, kiln_default_device());
}

static kiln_tensor *make_like(const char *op, const kiln_tensor *x, double value)
{
    bool given = kiln_tensor_given(x, op, 1);
    return given ? make_full(op, x->ndim, x->shape, value, (kiln_dtype)x->dtype, x->device) : NULL;
}

kiln_tensor *kiln_full_like(kiln_tensor *x, double value)
{
    return make_like("full_like", x, value);
}

kiln_tensor *kiln_zeros_like(kiln_tensor *x)
{
    return make_like("zeros_like", x, 0);
}

kiln_tensor *kiln_ones_like(kiln_tensor *x)
{
    return make_like("ones_like", x, 1);
}

/* ---- iota, arange ---- */

static bool infer_iota(kiln_call *c)
{
    if (!kiln_check_attr(c, c->attrs.nints == 2, "%d integers: they must be dtype and length", c->attrs.nints) ||
        !check_creation(c, KILN_T_NUMBERS, 1))
        return false;
    kiln_desc_set(&c->out[0], (kiln_dtype)c->attrs.i[0], 1, c->attrs.i + 1);
    return true;
}

const kiln_op kiln_op_iota = {
    .name = "iota",
    .attrs = "dtype n | start step",
    .cls = KILN_CLASS_POINTWISE,
    .dtypes = KILN_T_NUMBERS,
    .pointwise = KILN_PW_iota,
    .infer = infer_iota,
    .cases = KILN_CASES{"| 3 5 | 0 1", "| 3 4 | 7 -2", "| 2 6 | -3 2", "| 1 5 | 1 3", "| 6 5 | 0.5 0.25",
                        "| 7 9 | 1 -0.1", "| 4 5 | 0 0.5", "| 5 5 | 3 1", "| 3 0 | 0 1", "| 6 3000 | -1 0.001", NULL},
};

static kiln_tensor *make_iota(kiln_dtype dtype, int64_t n, double start, double step)
{
    const kiln_attrs a = {.nints = 2, .i = {dtype, n}, .nfloats = 2, .f = {start, step}};
    return kiln_op_create(&kiln_op_iota, &a, kiln_default_device());
}

/* How many steps from start reach end; -1 with an error where there is no such number. i64 counts whole steps between
 * whole bounds, as PyTorch does; all other types count with the numbers as they were given. */
static int64_t arange_count(double start, double end, double step, kiln_dtype dtype)
{
    double n = ceil((end - start) / step);
    if (dtype == KILN_I64 && fabs(start) < 0x1p62 && fabs(end) < 0x1p62 && fabs(step) < 0x1p62) {
        int64_t distance = (int64_t)end - (int64_t)start, whole = (int64_t)step;
        n = (double)(distance / whole + (distance % whole != 0));
    }
    if (n < 0x1p53)
        return (int64_t)n;
    kiln_fail(KILN_E_SHAPE, "arange", "%g numbers from %g to %g by %g are too many", n, start, end, step);
    return -1;
}

kiln_tensor *kiln_arange(double start, double end, double step, kiln_dtype dtype)
{
    if (dtype >= KILN_DTYPES || dtype == KILN_BOOL)
        return kiln_fail(KILN_E_DTYPE, "arange", "it makes no %s", kiln_dtype_name(dtype));
    if (!isfinite(start) || !isfinite(end) || !isfinite(step))
        return kiln_fail(KILN_E_ARGUMENT, "arange", "start %g, end %g and step %g must be finite", start, end, step);
    bool whole = !kiln_dtype_is_float(dtype);
    if (step == 0 || (whole && trunc(step) == 0))
        return kiln_fail(KILN_E_ARGUMENT, "arange", "step %g is zero in %s", step, kiln_dtype_name(dtype));
    if (step > 0 ? end < start : end > start)
        return kiln_fail(KILN_E_ARGUMENT, "arange", "steps of %g lead away from %g when starting at %g", step, end,
                         start);
    int64_t n = arange_count(start, end, step, dtype);
    if (n < 0)
        return NULL;
    return whole ? make_iota(dtype, n, trunc(start), trunc(step)) : make_iota(dtype, n, start, step);
}

/* ---- linspace, eye ---- */

static bool infer_linspace(kiln_call *c)
{
    if (!kiln_check_attr(c, c->attrs.nints == 2 && c->attrs.i[1] >= 0, "%lld steps: there must be at least 0",
                         (long long)c->attrs.i[1]) ||
        !check_creation(c, KILN_T_NUMBERS, 1))
        return false;
    kiln_desc_set(&c->out[0], (kiln_dtype)c->attrs.i[0], 1, c->attrs.i + 1);
    return true;
}

/* Counted from the start in the first half and from the end in the second, so that both ends are exact. */
static bool compose_linspace(kiln_call *c, kiln_tensor **out)
{
    kiln_dtype dtype = (kiln_dtype)c->attrs.i[0], wide = dtype == KILN_F64 || dtype <= KILN_I64 ? KILN_F64 : KILN_F32;
    int64_t n = c->attrs.i[1];
    double start = c->attrs.f[0], end = c->attrs.f[1], step = n > 1 ? (end - start) / (double)(n - 1) : 0;
    kiln_tensor *up = make_iota(wide, n, start, step);
    kiln_tensor *left = make_iota(wide, n, (double)(n - 1), -1); /* steps to the end */
    kiln_tensor *down = kiln_rsub_scalar(kiln_mul_scalar(left, step), end);
    kiln_tensor *late = kiln_lt_scalar(left, (double)n / 2);
    out[0] = kiln_cast(n > 1 ? kiln_where(late, down, up) : up, dtype);
    return out[0] != NULL;
}

const kiln_op kiln_op_linspace = {
    .name = "linspace",
    .attrs = "dtype steps | start end",
    .cls = KILN_CLASS_COMPOSITE,
    .dtypes = KILN_T_NUMBERS,
    .infer = infer_linspace,
    .compose = compose_linspace,
    .cases = KILN_CASES{"| 6 5 | 0 1", "| 6 4 | 3 -3", "| 7 11 | -1 1", "| 3 4 | 0 9", "| 6 1 | 2 5", "| 6 0 | 0 1",
                        "| 7 2 | 1 2", "| 6 300 | -4 4", NULL},
};

kiln_tensor *kiln_linspace(double start, double end, int64_t steps, kiln_dtype dtype)
{
    bool whole = dtype < KILN_DTYPES && !kiln_dtype_is_float(dtype);
    const kiln_attrs a = {
        .nints = 2, .i = {dtype, steps}, .nfloats = 2, .f = {whole ? trunc(start) : start, whole ? trunc(end) : end}};
    return kiln_op_create(&kiln_op_linspace, &a, kiln_default_device());
}

static bool infer_eye(kiln_call *c)
{
    if (!kiln_check_attr(c, c->attrs.nints == 3, "%d integers: they must be dtype, rows, columns", c->attrs.nints) ||
        !check_creation(c, KILN_T_ALL, 2))
        return false;
    kiln_desc_set(&c->out[0], (kiln_dtype)c->attrs.i[0], 2, c->attrs.i + 1);
    return true;
}

static bool compose_eye(kiln_call *c, kiln_tensor **out)
{
    if (kiln_count(2, c->out[0].shape) == 0) /* the other side may be longer than any memory */
        return (out[0] = kiln_zeros(2, c->out[0].shape, c->out[0].dtype)) != NULL;
    kiln_tensor *rows = kiln_unsqueeze(make_iota(KILN_I64, c->attrs.i[1], 0, 1), 1);
    out[0] = kiln_cast(kiln_eq(rows, make_iota(KILN_I64, c->attrs.i[2], 0, 1)), (kiln_dtype)c->attrs.i[0]);
    return out[0] != NULL;
}

const kiln_op kiln_op_eye = {
    .name = "eye",
    .attrs = "dtype n m",
    .cls = KILN_CLASS_COMPOSITE,
    .dtypes = KILN_T_ALL,
    .infer = infer_eye,
    .compose = compose_eye,
    .cases = KILN_CASES{"| 6 3 3", "| 7 2 4", "| 3 4 2", "| 0 3 3", "| 4 2 2", "| 6 0 3", "| 6 33 40", NULL},
};

kiln_tensor *kiln_eye(int64_t n, int64_t m, kiln_dtype dtype)
{
    return kiln_op_create(&kiln_op_eye, KILN_I(dtype, n, m), kiln_default_device());
}

const kiln_op *const kiln_ops_create[] = {
    &kiln_op_full, &kiln_op_iota, &kiln_op_linspace, &kiln_op_eye, NULL,
};
