/* Comparison, logic, choosing between tensors, and casts. */
#include "core/half.h"
#include "ops/pointwise.h"

/* ---- Comparison ---- */

/* A number as a tensor of `dtype` would hold it: 0.1 equals the f16 nearest to it. */
static double as_held(double s, kiln_dtype dtype)
{
    if (dtype == KILN_F16)
        return kiln_f16_to_f32(kiln_f32_to_f16((float)s));
    return dtype == KILN_BF16 ? kiln_bf16_to_f32(kiln_f32_to_bf16((float)s)) : s;
}

#define COMPARE(row)                                                                                                   \
    KILN_PW_FUNCTION2(row)                                                                                             \
    const kiln_op kiln_op_##row = {KILN_PW_OP(row, 2), .autocast = KILN_CAST_PROMOTE, .dtypes = KILN_T_ALL,            \
                                   .cases = KILN_PW_CASES2("x", "x")};                                                 \
    kiln_tensor *kiln_##row##_scalar(kiln_tensor *a, double s)                                                         \
    {                                                                                                                  \
        return kiln_pw_call_scalar(&kiln_op_##row##_scalar, a, a ? as_held(s, a->dtype) : s);                          \
    }                                                                                                                  \
    const kiln_op kiln_op_##row##_scalar = {KILN_PW_OP(row##_scalar, 1), .attrs = "| s", .dtypes = KILN_T_NUMBERS,     \
                                            .cases = KILN_PW_CASES1S("1")};
COMPARE(eq)
COMPARE(ne)
COMPARE(lt)
COMPARE(le)
COMPARE(gt)
COMPARE(ge)

/* Integers and bools are always finite: x != x says so for all of them at once, and x == x. */
#define PROPERTY(row, for_others)                                                                                      \
    kiln_tensor *kiln_##row(kiln_tensor *x)                                                                            \
    {                                                                                                                  \
        if (x && !kiln_dtype_is_float(x->dtype))                                                                       \
            return for_others(x, x);                                                                                   \
        return KILN_OP(row, KILN_IN(x), KILN_NO_ATTRS);                                                                \
    }                                                                                                                  \
    const kiln_op kiln_op_##row = {KILN_PW_OP(row, 1), .dtypes = KILN_T_FLOATS, .cases = KILN_PW_CASES1};
PROPERTY(isnan, kiln_ne)
PROPERTY(isinf, kiln_ne)
PROPERTY(isfinite, kiln_eq)

/* ---- Logic ---- */

#define LOGIC(row, takes)                                                                                              \
    KILN_PW_FUNCTION2(row)                                                                                             \
    const kiln_op kiln_op_##row = {KILN_PW_OP(row, 2), .autocast = KILN_CAST_PROMOTE, .dtypes = takes,                 \
                                   .cases = KILN_PW_CASES2("x", "x")};
LOGIC(logical_and, KILN_T_ALL)
LOGIC(logical_or, KILN_T_ALL)
LOGIC(logical_xor, KILN_T_ALL)
LOGIC(bitwise_and, KILN_T_INTS | KILN_T_BOOL)
LOGIC(bitwise_or, KILN_T_INTS | KILN_T_BOOL)
LOGIC(bitwise_xor, KILN_T_INTS | KILN_T_BOOL)

KILN_PW_FUNCTION1(logical_not)
const kiln_op kiln_op_logical_not = {KILN_PW_OP(logical_not, 1), .dtypes = KILN_T_ALL, .cases = KILN_PW_CASES1};

kiln_tensor *kiln_bitwise_not(kiln_tensor *x)
{
    bool is_bool = x && x->dtype == KILN_BOOL;
    return kiln_op_one(is_bool ? &kiln_op_logical_not : &kiln_op_bitwise_not, KILN_IN(x), KILN_NO_ATTRS);
}
const kiln_op kiln_op_bitwise_not = {KILN_PW_OP(bitwise_not, 1), .dtypes = KILN_T_INTS, .cases = KILN_PW_CASES1};

/* ---- Choosing ---- */

/* A condition as bool. PyTorch still takes u8, from before it had bool; other types are left to the shape rule. */
static kiln_tensor *condition_of(kiln_tensor *t)
{
    return t && t->dtype == KILN_U8 ? kiln_ne_scalar(t, 0) : t;
}

kiln_tensor *kiln_where(kiln_tensor *condition, kiln_tensor *a, kiln_tensor *b)
{
    KILN_TIDY;
    kiln_tensor *in[3] = {condition_of(condition), a, b};
    if (a && b) {
        kiln_dtype dtype = kiln_pw_promote(2, in + 1);
        in[1] = kiln_cast(a, dtype);
        in[2] = kiln_cast(b, dtype);
    }
    return KILN_KEPT(kiln_op_one(&kiln_op_where, in, 3, KILN_NO_ATTRS));
}
static bool where_rule(kiln_grad_call *g)
{
    kiln_tensor *condition = g->in[0], *gy = g->gout[0];
    KILN_GIN(1, kiln_masked_fill(gy, kiln_logical_not(condition), 0));
    KILN_GIN(2, kiln_masked_fill(gy, condition, 0));
    return true;
}
const kiln_op kiln_op_where = {KILN_PW_OP(where, 3),
                               .autocast = KILN_CAST_PROMOTE,
                               .dtypes = KILN_T_ALL,
                               .grad_reads = {KILN_READS_X},
                               .grad = where_rule,
                               .cases = KILN_CASES{"b[2,3] x[2,3] x[2,3]", "b[3] x[2,3] x[2,1]", "b[2,1] x[] x[3]",
                                                   "b[] x[4] x[4]", "b[] x[] x[]", "b[0,3] x[3] x[0,1]",
                                                   "b[7,33] x[7,33] x[33]", NULL}};

/* The record's operands are (mask, x): a condition comes first in all rows. */
kiln_tensor *kiln_masked_fill(kiln_tensor *x, kiln_tensor *mask, double value)
{
    KILN_TIDY;
    if (!kiln_tensor_given(x, "masked_fill", 1) || !kiln_tensor_given(mask, "masked_fill", 2))
        return NULL;
    if (!kiln_check_number("masked_fill", value, (kiln_dtype)x->dtype))
        return NULL;
    return KILN_KEPT(KILN_OP(masked_fill, KILN_IN(condition_of(mask), x), KILN_F(value)));
}
static bool masked_fill_rule(kiln_grad_call *g)
{
    KILN_GIN(1, kiln_masked_fill(g->gout[0], g->in[0], 0));
    return true;
}
const kiln_op kiln_op_masked_fill = {KILN_PW_OP(masked_fill, 2),
                                     .attrs = "| value",
                                     .dtypes = KILN_T_ALL,
                                     .grad_reads = {KILN_READS_X},
                                     .grad = masked_fill_rule,
                                     .cases = KILN_CASES{"b[2,3] x[2,3] | | 7", "b[3] x[2,3] | | 0", "b[2,3] x[] | | 1",
                                                         "b[] x[4] | | 3", "b[0,3] x[3] | | 1",
                                                         "b[7,33] x[7,33] | | -1", NULL}};

/* ---- Casts ---- */

kiln_tensor *kiln_cast(kiln_tensor *x, kiln_dtype dtype)
{
    if ((int)dtype < 0 || dtype >= KILN_DTYPES)
        return kiln_fail(KILN_E_ARGUMENT, "cast", "%d is no dtype", (int)dtype);
    if (x && x->dtype == dtype)
        return kiln_tensor_usable(x, "cast") ? x : NULL;
    return KILN_OP(cast, KILN_IN(x), KILN_I(dtype));
}
KILN_PW_ROW1(cast, kiln_cast(gy, x->dtype))
const kiln_op kiln_op_cast = {KILN_PW_OP(cast, 1),
                              .attrs = "dtype",
                              .dtypes = KILN_T_ALL,
                              .grad_reads = {KILN_READS_NOTHING},
                              .grad = cast_rule,
                              .cases = KILN_CASES{"x[2,3] | 0", "x[2,3] | 1", "x[2,3] | 2", "x[2,3] | 3", "x[2,3] | 4",
                                                  "x[2,3] | 5", "x[2,3] | 6", "x[2,3] | 7", "x[] | 6", "x[0,3] | 6",
                                                  "x[7,33] | 7", NULL}};
