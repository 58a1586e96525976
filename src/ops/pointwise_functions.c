/* Functions of one operand. A record's lo and hi keep the test operands where the function is smooth. */
#include "ops/pointwise.h"

#include <math.h>

#define RECORD(row, takes, cast, low, high, ...)                                                                       \
    KILN_PW_FUNCTION1(row)                                                                                             \
    RECORD_ONLY(row, takes, cast, low, high, __VA_ARGS__)
#define RECORD_ONLY(row, takes, cast, low, high, ...)                                                                  \
    const kiln_op kiln_op_##row = {                                                                                    \
        KILN_PW_OP(row, 1), .autocast = KILN_CAST_##cast, .dtypes = KILN_T_##takes, .lo = low,                         \
        .hi = high,         .grad = row##_rule,           .cases = KILN_PW_CASES1,  __VA_ARGS__};
/* Where the gradient is not told from the operand. */
#define FROM_RESULT  .grad_reads = {KILN_READS_RESULT}
#define FROM_NOTHING .grad_reads = {KILN_READS_NOTHING}

/* ---- Signs and powers ---- */

KILN_PW_ROW1(neg, kiln_neg(gy))
RECORD(neg, NUMBERS, NONE, 0, 0, FROM_NOTHING)

KILN_PW_GRAD1(abs, kiln_mul(gy, kiln_sign(x)))
RECORD(abs, NUMBERS, NONE, 0, 0)

#define sign_rule kiln_pw_zero_grad
RECORD_ONLY(sign, NUMBERS, NONE, 0, 0, FROM_NOTHING)

kiln_tensor *kiln_sign(kiln_tensor *x)
{
    bool is_bool = x && x->dtype == KILN_BOOL; /* its own sign */
    return is_bool ? kiln_clone(x) : kiln_pw_call(&kiln_op_sign, KILN_IN(x), KILN_NO_ATTRS);
}

KILN_PW_GRAD1(square, kiln_mul_scalar(kiln_mul(gy, x), 2))
RECORD_ONLY(square, NUMBERS, FLOAT, 0, 0)

kiln_tensor *kiln_square(kiln_tensor *x)
{
    KILN_TIDY;
    bool is_bool = x && x->dtype == KILN_BOOL; /* as of all powers, that is an i64 */
    return KILN_KEPT(kiln_pw_call(&kiln_op_square, KILN_IN(is_bool ? kiln_cast(x, KILN_I64) : x), KILN_NO_ATTRS));
}

KILN_PW_GRAD1Y(sqrt, kiln_div(gy, kiln_mul_scalar(y, 2)))
RECORD(sqrt, FLOATS, NONE, 0.1, 3, FROM_RESULT)

KILN_PW_GRAD1Y(rsqrt, kiln_mul_scalar(kiln_mul(gy, kiln_mul(y, kiln_square(y))), -0.5))
RECORD(rsqrt, FLOATS, FLOAT, 0.1, 3, FROM_RESULT)

KILN_PW_GRAD1Y(reciprocal, kiln_neg(kiln_mul(gy, kiln_square(y))))
RECORD(reciprocal, FLOATS, FLOAT, 0.5, 2, FROM_RESULT)

/* ---- Exponentials and logarithms ---- */

KILN_PW_GRAD1Y(exp, kiln_mul(gy, y))
RECORD(exp, FLOATS, FLOAT, 0, 0, FROM_RESULT)

KILN_PW_GRAD1Y(exp2, kiln_mul_scalar(kiln_mul(gy, y), M_LN2))
RECORD(exp2, FLOATS, NONE, 0, 0, FROM_RESULT)

KILN_PW_GRAD1Y(expm1, kiln_mul(gy, kiln_add_scalar(y, 1)))
RECORD(expm1, FLOATS, FLOAT, 0, 0, FROM_RESULT)

KILN_PW_ROW1(log, kiln_div(gy, x))
RECORD(log, FLOATS, FLOAT, 0.1, 3)

KILN_PW_GRAD1(log2, kiln_div(gy, kiln_mul_scalar(x, M_LN2)))
RECORD(log2, FLOATS, FLOAT, 0.1, 3)

KILN_PW_GRAD1(log10, kiln_div(gy, kiln_mul_scalar(x, M_LN10)))
RECORD(log10, FLOATS, FLOAT, 0.1, 3)

KILN_PW_GRAD1(log1p, kiln_div(gy, kiln_add_scalar(x, 1)))
RECORD(log1p, FLOATS, FLOAT, -0.5, 3)

/* ---- Circular and hyperbolic functions ---- */

KILN_PW_GRAD1(sin, kiln_mul(gy, kiln_cos(x)))
RECORD(sin, FLOATS, NONE, 0, 0)

KILN_PW_GRAD1(cos, kiln_neg(kiln_mul(gy, kiln_sin(x))))
RECORD(cos, FLOATS, NONE, 0, 0)

KILN_PW_GRAD1Y(tan, kiln_mul(gy, kiln_add_scalar(kiln_square(y), 1)))
RECORD(tan, FLOATS, FLOAT, -1.2, 1.2, FROM_RESULT)

KILN_PW_GRAD1(asin, kiln_mul(gy, kiln_rsqrt(kiln_rsub_scalar(kiln_square(x), 1))))
RECORD(asin, FLOATS, FLOAT, -0.9, 0.9)

KILN_PW_GRAD1(acos, kiln_neg(kiln_mul(gy, kiln_rsqrt(kiln_rsub_scalar(kiln_square(x), 1)))))
RECORD(acos, FLOATS, FLOAT, -0.9, 0.9)

KILN_PW_GRAD1(atan, kiln_div(gy, kiln_add_scalar(kiln_square(x), 1)))
RECORD(atan, FLOATS, NONE, 0, 0)

KILN_PW_GRAD1(sinh, kiln_mul(gy, kiln_cosh(x)))
RECORD(sinh, FLOATS, FLOAT, 0, 0)

KILN_PW_GRAD1(cosh, kiln_mul(gy, kiln_sinh(x)))
RECORD(cosh, FLOATS, FLOAT, 0, 0)

KILN_PW_GRAD1Y(tanh, KILN_OP(tanh_grad, KILN_IN(y, gy), KILN_NO_ATTRS))
RECORD(tanh, FLOATS, NONE, 0, 0, FROM_RESULT)

/* f(y, g) = g·(1 - y²), y the hyperbolic tangent */
KILN_PW_GRAD_OF_GRAD(tanh_grad, kiln_mul_scalar(a, -2))
const kiln_op kiln_op_tanh_grad = {KILN_PW_OP(tanh_grad, 2),
                                   .dtypes = KILN_T_FLOATS,
                                   .lo = -0.9,
                                   .hi = 0.9,
                                   .grad_reads = {KILN_READS_X | KILN_READS_Y, KILN_READS_X},
                                   .grad = tanh_grad_rule,
                                   .cases = KILN_PW_CASES2("x", "x")};

KILN_PW_GRAD1(asinh, kiln_mul(gy, kiln_rsqrt(kiln_add_scalar(kiln_square(x), 1))))
RECORD(asinh, FLOATS, NONE, 0, 0)

KILN_PW_GRAD1(acosh, kiln_mul(gy, kiln_rsqrt(kiln_add_scalar(kiln_square(x), -1))))
RECORD(acosh, FLOATS, NONE, 1.1, 4)

KILN_PW_GRAD1(atanh, kiln_div(gy, kiln_rsub_scalar(kiln_square(x), 1)))
RECORD(atanh, FLOATS, NONE, -0.9, 0.9)

/* 2/sqrt(pi)·exp(-x²), times gy and a sign */
static kiln_tensor *erf_slope(kiln_tensor *x, kiln_tensor *gy, double sign)
{
    return kiln_mul_scalar(kiln_mul(gy, kiln_exp(kiln_neg(kiln_square(x)))), sign * M_2_SQRTPI);
}
KILN_PW_GRAD1(erf, erf_slope(x, gy, 1))
RECORD(erf, FLOATS, NONE, 0, 0)

KILN_PW_GRAD1(erfc, erf_slope(x, gy, -1))
RECORD(erfc, FLOATS, NONE, 0, 0)

/* ---- Rounding ---- */

#define floor_rule kiln_pw_zero_grad
RECORD(floor, NUMBERS, NONE, 0, 0, FROM_NOTHING)

#define ceil_rule kiln_pw_zero_grad
RECORD(ceil, NUMBERS, NONE, 0, 0, FROM_NOTHING)

#define round_rule kiln_pw_zero_grad
RECORD(round, NUMBERS, NONE, 0, 0, FROM_NOTHING)

#define trunc_rule kiln_pw_zero_grad
RECORD(trunc, NUMBERS, NONE, 0, 0, FROM_NOTHING)

KILN_PW_ROW1(frac, gy)
RECORD(frac, FLOATS, NONE, 0, 0, FROM_NOTHING)

/* ---- Bounds ---- */

/* Integers stay so between whole or infinite bounds, which they must be able to hold. */
kiln_tensor *kiln_clamp(kiln_tensor *x, double min, double max)
{
    const kiln_attrs *bounds = KILN_F(min, max);
    bool whole = floor(min) == min && floor(max) == max;
    if (!x || kiln_dtype_is_float(x->dtype))
        return kiln_op_one(&kiln_op_clamp, KILN_IN(x), bounds);
    if (!whole)
        return kiln_pw_call_as(&kiln_op_clamp, KILN_F32, KILN_IN(x), bounds);
    if ((!isinf(min) && !kiln_check_number("clamp", min, (kiln_dtype)x->dtype)) ||
        (!isinf(max) && !kiln_check_number("clamp", max, (kiln_dtype)x->dtype)))
        return NULL;
    return kiln_op_one(&kiln_op_clamp, KILN_IN(x), bounds);
}
KILN_PW_ROW1(clamp, kiln_op_one(&kiln_op_clamp_grad, KILN_IN(x, gy), g->attrs))
const kiln_op kiln_op_clamp = {KILN_PW_OP(clamp, 1), .attrs = "| min max", .dtypes = KILN_T_NUMBERS, .grad = clamp_rule,
                               .cases = KILN_CASES{"x[2,3] | | -1 1", "x[] | | 0 1", "x[0,3] | | -1 1",
                                                   "x[7,33] | | -inf 1", "x[5] | | 1 inf", NULL}};

/* f(x, g) = g where x is within the bounds, else 0 */
const kiln_op kiln_op_clamp_grad = {KILN_PW_OP(clamp_grad, 2), .attrs = "| min max",
                                    .dtypes = KILN_T_FLOATS,   .grad_reads = {KILN_READS_NOTHING, KILN_READS_X},
                                    .grad = kiln_pw_gate_grad, .cases = KILN_PW_CASES2S("x", "x", " | | -1 1")};
