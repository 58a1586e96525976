/* The rules that all pointwise operations share: shapes broadcast, types promote as PyTorch's. The records themselves
 * are in pointwise_arithmetic.c, pointwise_functions.c, pointwise_compare.c and activation.c. */
#include "ops/pointwise.h"
#include "tensor/scope.h"

#include <math.h>

/* ---- The rows and the records ---- */

enum {
    F = 1 << KILN_PW_F32 | 1 << KILN_PW_F64,
    I = 1 << KILN_PW_I64,
    N = F | I,
    IB = I | 1 << KILN_PW_BOOL,
    NB = N | 1 << KILN_PW_BOOL,
};

#define ROW(row, is, n, nscalars, in, expression)                                                                      \
    {.name = #row, .text = expression, .kind = KILN_PW_IS_##is, .arity = n, .scalars = nscalars, .classes = in},
#define KILN_PW(name, arity, nscalars, in, ...)      ROW(name, SAME, arity, nscalars, in, #__VA_ARGS__)
#define KILN_PW_RING(name, arity, nscalars, ...)     ROW(name, RING, arity, nscalars, N, #__VA_ARGS__)
#define KILN_PW_TEST(name, arity, nscalars, in, ...) ROW(name, TEST, arity, nscalars, in, #__VA_ARGS__)
#define KILN_PW_PICK(name, arity, nscalars, ...)     ROW(name, PICK, arity, nscalars, NB, #__VA_ARGS__)
#define KILN_PW_MAKE(name, nscalars, in, ...)        ROW(name, MAKE, 0, nscalars, in, #__VA_ARGS__)
#define KILN_PW_CAST(name)                           ROW(name, CAST, 1, 0, NB, NULL)
#define KILN_PW_COPY(name, ...)                      ROW(name, SAME, 1, 0, NB, #__VA_ARGS__)
const kiln_pw_row kiln_pw_rows[KILN_PW_ROWS] = {
#include "ops/pointwise.def"
};
#undef KILN_PW
#undef KILN_PW_RING
#undef KILN_PW_TEST
#undef KILN_PW_PICK
#undef KILN_PW_MAKE
#undef KILN_PW_CAST
#undef KILN_PW_COPY

#define KILN_PW(name, ...)      RECORD(name)
#define KILN_PW_RING(name, ...) RECORD(name)
#define KILN_PW_TEST(name, ...) RECORD(name)
#define KILN_PW_PICK(name, ...) RECORD(name)
#define KILN_PW_MAKE(name, ...)
#define KILN_PW_COPY(name, ...)
#define KILN_PW_CAST(name) RECORD(name)
#define RECORD(name)       &kiln_op_##name,
const kiln_op *const kiln_ops_pointwise[] = {
#include "ops/pointwise.def"
    NULL};

#undef RECORD
#define RECORD(name) [KILN_PW_##name] = &kiln_op_##name,
static const kiln_op *const by_row[KILN_PW_ROWS] = {
#include "ops/pointwise.def"
};

const kiln_op *kiln_pw_op(kiln_pw_id row)
{
    return by_row[row];
}

/* ---- Shapes ---- */

/* Two shapes that do not broadcast: says where, counted from the last dim as broadcasting does. */
static bool fail_broadcast(const kiln_call *c, int an, const int64_t *a, const kiln_tensor *b)
{
    int k = 1;
    while (a[an - k] == b->shape[b->ndim - k] || a[an - k] == 1 || b->shape[b->ndim - k] == 1)
        k++;
    kiln_fail(KILN_E_SHAPE, c->op->name, "shapes %s and %s do not broadcast: dim -%d is %lld against %lld",
              kiln_shape_text(an, a), kiln_shape_text(b->ndim, b->shape), k, (long long)a[an - k],
              (long long)b->shape[b->ndim - k]);
    kiln_hint("counted from the last dim, two sizes must be equal, or one of them 1 or absent");
    return false;
}

bool kiln_pw_infer(kiln_call *c)
{
    const kiln_pw_row *row = &kiln_pw_rows[c->op->pointwise];
    int values = row->kind == KILN_PW_IS_PICK; /* the first operand that holds values and not a condition */
    if (values && !kiln_check_dtype(c, 0, KILN_T_BOOL))
        return false;
    kiln_desc *out = &c->out[0];
    kiln_dtype dtype = c->in[values]->dtype;
    kiln_desc_like(out, c->in[0]);
    for (int i = 1; i < c->nin; i++) {
        const kiln_tensor *x = c->in[i];
        if (i > values && !kiln_check_same_dtype(c, values, i))
            return false;
        if (!kiln_broadcast(out->ndim, out->shape, x->ndim, x->shape, &out->ndim, out->shape))
            return fail_broadcast(c, out->ndim, out->shape, x);
    }
    if (row->kind == KILN_PW_IS_TEST)
        dtype = KILN_BOOL;
    else if (row->kind == KILN_PW_IS_CAST)
        dtype = (kiln_dtype)c->attrs.i[0];
    out->dtype = dtype;
    return true;
}

/* ---- Types ---- */

static int category(kiln_dtype dtype)
{
    return dtype == KILN_BOOL ? 0 : dtype <= KILN_I64 ? 1 : 2;
}

kiln_dtype kiln_pw_promote(int n, kiln_tensor *const *in)
{
    kiln_dtype with_dims = KILN_DTYPES, without = KILN_DTYPES;
    for (int i = 0; i < n; i++) {
        kiln_dtype *seen = in[i]->ndim > 0 ? &with_dims : &without;
        *seen = *seen == KILN_DTYPES ? (kiln_dtype)in[i]->dtype : kiln_dtype_promote(*seen, in[i]->dtype);
    }
    if (with_dims == KILN_DTYPES)
        return without;
    return without != KILN_DTYPES && category(without) > category(with_dims) ? without : with_dims;
}

kiln_dtype kiln_pw_promote_scalar(const kiln_tensor *x, double s)
{
    bool whole = floor(s) == s && fabs(s) < 0x1p63;
    if (category(x->dtype) == 2)
        return x->dtype;
    return !whole ? KILN_F32 : x->dtype == KILN_BOOL ? KILN_I64 : (kiln_dtype)x->dtype;
}

/* What an operation computes in when its operands are of type `dtype`: f32 where it takes floats only. */
static kiln_dtype computed_in(const kiln_op *op, kiln_dtype dtype)
{
    return op->dtypes == KILN_T_FLOATS && category(dtype) < 2 ? KILN_F32 : dtype;
}

kiln_tensor *kiln_pw_call_as(const kiln_op *op, kiln_dtype dtype, kiln_tensor *const *in, int n,
                             const kiln_attrs *attrs)
{
    kiln_tensor *same[3] = {NULL};
    for (int i = 0; i < n; i++) {
        same[i] = !in[i] || in[i]->dtype == dtype ? in[i] : kiln_cast(in[i], dtype);
        if (in[i] && !same[i])
            return NULL;
    }
    kiln_tensor *out = kiln_op_one(op, same, n, attrs);
    for (int i = 0; i < n; i++)
        if (same[i] != in[i] && !same[i]->scope) /* made here, and no scope is open to release it */
            kiln_scope_drop(same[i]);
    return out;
}

kiln_tensor *kiln_pw_call(const kiln_op *op, kiln_tensor *const *in, int n, const kiln_attrs *attrs)
{
    for (int i = 0; i < n; i++)
        if (!in[i])
            return kiln_op_one(op, in, n, attrs); /* which says what is missing */
    return kiln_pw_call_as(op, computed_in(op, kiln_pw_promote(n, in)), in, n, attrs);
}

kiln_tensor *kiln_pw_call_scalar(const kiln_op *op, kiln_tensor *x, double s)
{
    if (!x)
        return kiln_op_one(op, KILN_IN(x), KILN_F(s));
    return kiln_pw_call_as(op, computed_in(op, kiln_pw_promote_scalar(x, s)), KILN_IN(x), KILN_F(s));
}

/* ---- Gradients ---- */

/* What the gradients that are wanted read. */
static unsigned wanted_reads(const kiln_grad_call *g)
{
    unsigned reads = 0;
    for (int k = 0; k < g->nin; k++)
        reads |= g->need[k] ? kiln_op_reads(g->op, k) : 0;
    return reads;
}

kiln_tensor *kiln_pw_result(const kiln_grad_call *g)
{
    kiln_tensor *in[3] = {NULL};
    if (!kiln_is_half((kiln_dtype)g->out[0]->dtype) || !(wanted_reads(g) & KILN_READS_RESULT))
        return g->out[0];
    for (int i = 0; i < g->nin; i++)
        in[i] = kiln_widen(g->in[i]);
    return kiln_op_one(g->op, in, g->nin, g->attrs);
}

kiln_tensor *kiln_pw_wide(const kiln_grad_call *g, int operand)
{
    return wanted_reads(g) >> operand & 1 ? kiln_widen(g->in[operand]) : g->in[operand];
}

bool kiln_pw_zero_grad(kiln_grad_call *g)
{
    for (int i = 0; i < g->nin; i++)
        g->gin[i] = NULL;
    return true;
}

bool kiln_pw_gate_grad(kiln_grad_call *g)
{
    kiln_tensor *gy = kiln_pw_spread(g->gout[0], g->in[1]);
    g->gin[0] = NULL;
    KILN_GIN(1, kiln_pw_call(g->op, KILN_IN(g->in[0], gy), g->attrs));
    return true;
}
