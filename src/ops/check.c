/* Checks and small helpers that the shape rules share. */
#include <float.h>
#include <math.h>
#include <stdarg.h>
#include <string.h>
#include "ops/op.h"

const kiln_attrs kiln_no_attrs = {0};

bool kiln_check_dim(const kiln_call *c, int64_t *dim, int ndim)
{
    int64_t range = ndim ? ndim : 1; /* a number without dimensions accepts 0 and -1 */
    if (*dim < -range || *dim >= range)
        return kiln_fail(KILN_E_SHAPE, c->op->name, "dim %lld is not in a tensor of %d dimensions (%lld to %lld)",
                         (long long)*dim, ndim, (long long)-range, (long long)range - 1);
    if (*dim < 0)
        *dim += range;
    return true;
}

bool kiln_check_ndim(const kiln_call *c, int operand, int ndim_min, int ndim_max)
{
    const kiln_tensor *t = c->in[operand];
    if (t->ndim >= ndim_min && t->ndim <= ndim_max)
        return true;
    if (ndim_min == ndim_max)
        return kiln_fail(KILN_E_SHAPE, c->op->name, "operand %d has shape %s, but %d dimensions are needed",
                         operand + 1, kiln_shape_text(t->ndim, t->shape), ndim_min);
    return kiln_fail(KILN_E_SHAPE, c->op->name, "operand %d has shape %s, but %d to %d dimensions are needed",
                     operand + 1, kiln_shape_text(t->ndim, t->shape), ndim_min, ndim_max);
}

bool kiln_check_dtype(const kiln_call *c, int operand, uint32_t allowed)
{
    const kiln_tensor *t = c->in[operand];
    if (allowed >> t->dtype & 1)
        return true;
    char list[64] = "";
    for (int d = 0; d < KILN_DTYPES; d++)
        if (allowed >> d & 1)
            snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", *list ? ", " : "", kiln_dtype_name(d));
    kiln_fail(KILN_E_DTYPE, c->op->name, "operand %d is %s, but must be one of %s", operand + 1,
              kiln_dtype_name((kiln_dtype)t->dtype), list);
    return kiln_hint("convert it with kiln_cast");
}

/* What to do about operands of different types: beside a model's parameters it is the input that one looks at. */
static void *hint_dtypes(const kiln_call *c)
{
    const kiln_tensor *parameter = NULL;
    for (int i = 0; i < c->nin; i++)
        if (c->in[i] && c->in[i]->storage->role == KILN_ROLE_PARAMETER)
            parameter = c->in[i];
    if (!parameter)
        return kiln_hint("convert one of them with kiln_cast");
    return kiln_hint("the model is %s: kiln_cast its input to that; or cast the model with kiln_module_cast; or leave "
                     "it in f32 and use kiln_autocast",
                     kiln_dtype_name((kiln_dtype)parameter->dtype));
}

bool kiln_check_same_dtype(const kiln_call *c, int a, int b)
{
    if (c->in[a]->dtype == c->in[b]->dtype)
        return true;
    kiln_fail(KILN_E_DTYPE, c->op->name, "operand %d is %s and operand %d is %s, but they must be the same", a + 1,
              kiln_dtype_name((kiln_dtype)c->in[a]->dtype), b + 1, kiln_dtype_name((kiln_dtype)c->in[b]->dtype));
    return hint_dtypes(c);
}

bool kiln_check_size(const kiln_call *c, int operand, int dim, int64_t size)
{
    const kiln_tensor *t = c->in[operand];
    if (dim < t->ndim && t->shape[dim] == size)
        return true;
    return kiln_fail(KILN_E_SHAPE, c->op->name, "operand %d has shape %s, but dim %d must be %lld", operand + 1,
                     kiln_shape_text(t->ndim, t->shape), dim, (long long)size);
}

bool kiln_fail_attr(const kiln_call *c, const char *format, ...)
{
    char text[320];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return kiln_fail(KILN_E_ARGUMENT, c->op->name, "%s", text);
}

bool kiln_check_list(const char *operation, int n, const int64_t *list, int most)
{
    if (n >= 0 && n <= most && (n == 0 || list))
        return true;
    if (n > 0 && !list)
        return kiln_fail(KILN_E_ARGUMENT, operation, "a list of %d numbers is NULL", n);
    return kiln_fail(KILN_E_SHAPE, operation, "a list of %d numbers: it takes 0 to %d", n, most);
}

bool kiln_check_number(const char *operation, double value, kiln_dtype dtype)
{
    static const double most[KILN_DTYPES] = {INFINITY, UINT8_MAX,  INT32_MAX, 0x1p63,
                                             65504,    0x1.fep127, FLT_MAX,   DBL_MAX};
    static const double least[KILN_DTYPES] = {-INFINITY, -UINT8_MAX, INT32_MIN, -0x1p63};
    if (kiln_dtype_is_float(dtype)
            ? !(fabs(value) > most[dtype]) || isinf(value)
            : dtype == KILN_BOOL || (trunc(value) >= least[dtype] && trunc(value) <= most[dtype]))
        return true;
    return kiln_fail(KILN_E_ARGUMENT, operation, "%g is no number that %s holds", value, kiln_dtype_name(dtype));
}

bool kiln_broadcast(int an, const int64_t *a, int bn, const int64_t *b, int *outn, int64_t *out)
{
    int n = an > bn ? an : bn;
    int same = 0;
    while (an == bn && same < n && a[same] == b[same])
        same++;
    if (an == bn && same == n) { /* the usual case */
        *outn = n;
        for (int d = 0; d < n; d++)
            out[d] = a[d];
        return true;
    }
    int64_t result[KILN_MAX_DIMS]; /* `out` may be one of the operands */
    for (int d = 0; d < n; d++) {
        int64_t x = d < n - an ? 1 : a[d - (n - an)];
        int64_t y = d < n - bn ? 1 : b[d - (n - bn)];
        if (x != y && x != 1 && y != 1)
            return false;
        result[d] = x == 1 ? y : x;
    }
    *outn = n;
    memcpy(out, result, (size_t)n * sizeof *out);
    return true;
}

int64_t kiln_count(int ndim, const int64_t *shape)
{
    int64_t n = 1;
    bool empty = false;
    for (int d = 0; d < ndim; d++) {
        if (shape[d] < 0)
            return -1;
        if (shape[d] == 0)
            empty = true;
        else if (__builtin_mul_overflow(n, shape[d], &n))
            return -1;
    }
    return empty ? 0 : n;
}

void kiln_desc_set(kiln_desc *d, kiln_dtype dtype, int ndim, const int64_t *shape)
{
    d->dtype = dtype;
    d->ndim = ndim;
    for (int i = 0; i < ndim; i++) /* `shape` may be d->shape, or lie behind it */
        d->shape[i] = shape[i];
}

void kiln_desc_like(kiln_desc *d, const kiln_tensor *t)
{
    kiln_desc_set(d, (kiln_dtype)t->dtype, t->ndim, t->shape);
}

const char *kiln_shape_text(int ndim, const int64_t *shape)
{
    char *text = kiln_text();
    int n = snprintf(text, KILN_TEXT, "[");
    for (int d = 0; d < ndim; d++)
        n += snprintf(text + n, KILN_TEXT - (size_t)n, "%s%lld", d ? ", " : "", (long long)shape[d]);
    snprintf(text + n, KILN_TEXT - (size_t)n, "]");
    return text;
}
