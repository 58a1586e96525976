/* Arithmetic of two and three operands, and of an operand and a number. */
#include "ops/pointwise.h"

#include <math.h>
#include <string.h>
#include "ops/require.h"

/* ---- Two operands ---- */

static bool both_bool(const kiln_tensor *a, const kiln_tensor *b)
{
    return a && b && a->dtype == KILN_BOOL && b->dtype == KILN_BOOL;
}

kiln_tensor *kiln_add(kiln_tensor *a, kiln_tensor *b)
{
    return kiln_pw_call(both_bool(a, b) ? &kiln_op_logical_or : &kiln_op_add, KILN_IN(a, b), KILN_NO_ATTRS);
}
KILN_PW_ROW2(add, gy, gy)
const kiln_op kiln_op_add = {KILN_PW_OP(add, 2),       .autocast = KILN_CAST_PROMOTE,
                             .dtypes = KILN_T_NUMBERS, .grad_skips = KILN_SKIPS_BOTH,
                             .grad = add_rule,         .cases = KILN_PW_CASES2("x", "x")};

static void *refuse_bool(const char *op)
{
    kiln_fail(KILN_E_DTYPE, op, "bool tensors cannot be subtracted");
    return kiln_hint("use kiln_logical_xor or kiln_logical_not, or kiln_cast it to an integer type");
}

kiln_tensor *kiln_sub(kiln_tensor *a, kiln_tensor *b)
{
    if (a && b && (a->dtype == KILN_BOOL || b->dtype == KILN_BOOL))
        return refuse_bool("sub");
    return kiln_pw_call(&kiln_op_sub, KILN_IN(a, b), KILN_NO_ATTRS);
}
KILN_PW_ROW2(sub, gy, kiln_neg(gy))
const kiln_op kiln_op_sub = {KILN_PW_OP(sub, 2),       .autocast = KILN_CAST_PROMOTE,
                             .dtypes = KILN_T_NUMBERS, .grad_skips = KILN_SKIPS_BOTH,
                             .grad = sub_rule,         .cases = KILN_PW_CASES2("x", "x")};

kiln_tensor *kiln_mul(kiln_tensor *a, kiln_tensor *b)
{
    return kiln_pw_call(both_bool(a, b) ? &kiln_op_logical_and : &kiln_op_mul, KILN_IN(a, b), KILN_NO_ATTRS);
}
KILN_PW_ROW2(mul, kiln_mul(kiln_pw_spread(gy, a), b), kiln_mul(kiln_pw_spread(gy, b), a))
const kiln_op kiln_op_mul = {KILN_PW_OP(mul, 2),
                             .autocast = KILN_CAST_PROMOTE,
                             .dtypes = KILN_T_NUMBERS,
                             .grad_skips = KILN_SKIPS_RESULTS,
                             .grad_reads = {KILN_READS_Y, KILN_READS_X},
                             .grad = mul_rule,
                             .cases = KILN_PW_CASES2("x", "x")};

KILN_PW_FUNCTION2(div)
KILN_PW_GRAD2Y(div, kiln_div(gy, b), kiln_neg(kiln_mul(gy, kiln_div(y, b))))
const kiln_op kiln_op_div = {KILN_PW_OP(div, 2),      .autocast = KILN_CAST_PROMOTE,
                             .dtypes = KILN_T_FLOATS, .grad_reads = {KILN_READS_Y, KILN_READS_Y | KILN_READS_RESULT},
                             .grad = div_rule,        .cases = KILN_PW_CASES2("x", "p")};

/* Integers cannot be divided by 0, which is found out when the step runs; floats can. */
static bool are_dense_alike(const kiln_tensor *a, const kiln_tensor *b)
{
    return a->ndim == b->ndim && !memcmp(a->shape, b->shape, a->ndim * sizeof *a->shape) &&
           kiln_is_dense(a->ndim, a->shape, a->stride) && kiln_is_dense(b->ndim, b->shape, b->stride);
}

static bool divide_integers(kiln_call *c, const kiln_op *row, kiln_division division, kiln_tensor **out)
{
    kiln_tensor *a = c->in[0], *b = c->in[1];
    if (are_dense_alike(a, b))
        out[0] = KILN_OP(divide_integers, KILN_IN(a, b), KILN_I(division));
    else
        out[0] = kiln_op_one(row, KILN_IN(a, kiln_require(b, KILN_REQUIRE_NOT_ZERO)), KILN_NO_ATTRS);
    return out[0] != NULL;
}

#define DIVISION(row, division)                                                                                        \
    static bool compose_##row(kiln_call *c, kiln_tensor **out)                                                         \
    {                                                                                                                  \
        return divide_integers(c, &kiln_op_##row, division, out);                                                      \
    }                                                                                                                  \
    static const kiln_op row##_of_integers = {                                                                         \
        .name = #row,                                                                                                  \
        .cls = KILN_CLASS_COMPOSITE,                                                                                   \
        .dtypes = KILN_T_INTS,                                                                                         \
        .min_in = 2,                                                                                                   \
        .max_in = 2,                                                                                                   \
        .compose = compose_##row,                                                                                      \
    };                                                                                                                 \
    kiln_tensor *kiln_##row(kiln_tensor *a, kiln_tensor *b)                                                            \
    {                                                                                                                  \
        bool integers = a && b && kiln_pw_class_of(kiln_pw_promote(2, (kiln_tensor *[]){a, b})) == KILN_PW_I64;        \
        return kiln_pw_call(integers ? &row##_of_integers : &kiln_op_##row, KILN_IN(a, b), KILN_NO_ATTRS);             \
    }

DIVISION(floor_divide, KILN_FLOOR_DIVIDE)
const kiln_op kiln_op_floor_divide = {KILN_PW_OP(floor_divide, 2), .autocast = KILN_CAST_PROMOTE,
                                      .dtypes = KILN_T_NUMBERS,    .grad_reads = {KILN_READS_NOTHING},
                                      .grad = kiln_pw_zero_grad,   .cases = KILN_PW_CASES2("x", "p")};

DIVISION(remainder, KILN_REMAINDER)
KILN_PW_GRAD2(remainder, gy, kiln_neg(kiln_mul(gy, kiln_floor_divide(a, b))))
const kiln_op kiln_op_remainder = {
    KILN_PW_OP(remainder, 2), .autocast = KILN_CAST_PROMOTE,
    .dtypes = KILN_T_NUMBERS, .grad_reads = {KILN_READS_NOTHING, KILN_READS_X | KILN_READS_Y},
    .grad = remainder_rule,   .cases = KILN_PW_CASES2("x", "p")};

DIVISION(fmod, KILN_FMOD)
KILN_PW_GRAD2(fmod, gy, kiln_neg(kiln_mul(gy, kiln_trunc(kiln_div(a, b)))))
const kiln_op kiln_op_fmod = {KILN_PW_OP(fmod, 2),      .autocast = KILN_CAST_PROMOTE,
                              .dtypes = KILN_T_NUMBERS, .grad_reads = {KILN_READS_NOTHING, KILN_READS_X | KILN_READS_Y},
                              .grad = fmod_rule,        .cases = KILN_PW_CASES2("x", "p")};

KILN_PW_FUNCTION2(pow)

/* b·a^(b-1); where both are 0 the power is taken as 1, so that it is 0 and not 0·inf. */
static kiln_tensor *pow_base(kiln_tensor *a, kiln_tensor *b)
{
    kiln_tensor *zeros = kiln_logical_and(kiln_eq_scalar(a, 0), kiln_eq_scalar(b, 0));
    return kiln_mul(b, kiln_pow(a, kiln_masked_fill(kiln_add_scalar(b, -1), zeros, 0)));
}

/* a^b·log(a), and 0 for 0^b with b ≥ 0: there the logarithm is taken of 1, so that its own gradient is finite too. */
static kiln_tensor *pow_exponent(kiln_tensor *a, kiln_tensor *b, kiln_tensor *y)
{
    kiln_tensor *flat = kiln_logical_and(kiln_eq_scalar(a, 0), kiln_ge_scalar(b, 0));
    return kiln_mul(y, kiln_log(kiln_masked_fill(a, flat, 1)));
}
KILN_PW_GRAD2Y(pow, kiln_mul(gy, pow_base(a, b)), kiln_mul(gy, pow_exponent(a, b, y)))
const kiln_op kiln_op_pow = {
    KILN_PW_OP(pow, 2),
    .autocast = KILN_CAST_FLOAT,
    .dtypes = KILN_T_NUMBERS,
    .grad_reads = {KILN_READS_X | KILN_READS_Y, KILN_READS_X | KILN_READS_Y | KILN_READS_RESULT},
    .grad = pow_rule,
    .cases = KILN_PW_CASES2("p", "p")};

KILN_PW_FUNCTION2(atan2)

/* 1 / (a² + b²), and 0 at the origin. */
static kiln_tensor *inverse_norm(kiln_tensor *a, kiln_tensor *b)
{
    kiln_tensor *norm = kiln_add(kiln_square(a), kiln_square(b));
    return kiln_masked_fill(kiln_reciprocal(norm), kiln_eq_scalar(norm, 0), 0);
}
KILN_PW_GRAD2(atan2, kiln_mul(gy, kiln_mul(b, inverse_norm(a, b))),
              kiln_neg(kiln_mul(gy, kiln_mul(a, inverse_norm(a, b)))))
const kiln_op kiln_op_atan2 = {KILN_PW_OP(atan2, 2), .autocast = KILN_CAST_PROMOTE, .dtypes = KILN_T_FLOATS,
                               .grad = atan2_rule, .cases = KILN_PW_CASES2("x", "p")};

KILN_PW_FUNCTION2(hypot)
KILN_PW_GRAD2Y(hypot, kiln_mul(gy, kiln_div(a, y)), kiln_mul(gy, kiln_div(b, y)))
const kiln_op kiln_op_hypot = {
    KILN_PW_OP(hypot, 2),    .autocast = KILN_CAST_PROMOTE,
    .dtypes = KILN_T_FLOATS, .grad_reads = {KILN_READS_X | KILN_READS_RESULT, KILN_READS_Y | KILN_READS_RESULT},
    .grad = hypot_rule,      .cases = KILN_PW_CASES2("x", "p")};

/* All of gy for the one that was taken, half of it where both are equal. */
static kiln_tensor *share(kiln_tensor *gy, kiln_tensor *equal, kiln_tensor *lost)
{
    return kiln_where(equal, kiln_mul_scalar(gy, 0.5), kiln_masked_fill(gy, lost, 0));
}

KILN_PW_FUNCTION2(maximum)
KILN_PW_GRAD2(maximum, share(gy, kiln_eq(a, b), kiln_lt(a, b)), share(gy, kiln_eq(a, b), kiln_gt(a, b)))
const kiln_op kiln_op_maximum = {KILN_PW_OP(maximum, 2), .autocast = KILN_CAST_PROMOTE, .dtypes = KILN_T_ALL,
                                 .grad = maximum_rule, .cases = KILN_PW_CASES2("x", "x")};

KILN_PW_FUNCTION2(minimum)
KILN_PW_GRAD2(minimum, share(gy, kiln_eq(a, b), kiln_gt(a, b)), share(gy, kiln_eq(a, b), kiln_lt(a, b)))
const kiln_op kiln_op_minimum = {KILN_PW_OP(minimum, 2), .autocast = KILN_CAST_PROMOTE, .dtypes = KILN_T_ALL,
                                 .grad = minimum_rule, .cases = KILN_PW_CASES2("x", "x")};

/* ---- An operand and a number ---- */

kiln_tensor *kiln_add_scalar(kiln_tensor *a, double s)
{
    return kiln_pw_call_scalar(&kiln_op_add_scalar, a, s);
}
KILN_PW_ROW1(add_scalar, gy)
const kiln_op kiln_op_add_scalar = {KILN_PW_OP(add_scalar, 1), .attrs = "| s",
                                    .dtypes = KILN_T_NUMBERS,  .grad_skips = KILN_SKIPS_BOTH,
                                    .grad = add_scalar_rule,   .cases = KILN_PW_CASES1S("2")};

kiln_tensor *kiln_mul_scalar(kiln_tensor *a, double s)
{
    return kiln_pw_call_scalar(&kiln_op_mul_scalar, a, s);
}
KILN_PW_ROW1(mul_scalar, kiln_mul_scalar(gy, f[0]))
const kiln_op kiln_op_mul_scalar = {KILN_PW_OP(mul_scalar, 1), .attrs = "| s",
                                    .dtypes = KILN_T_NUMBERS,  .grad_skips = KILN_SKIPS_BOTH,
                                    .grad = mul_scalar_rule,   .cases = KILN_PW_CASES1S("3")};

kiln_tensor *kiln_div_scalar(kiln_tensor *a, double s)
{
    return kiln_pw_call_scalar(&kiln_op_div_scalar, a, s);
}
KILN_PW_ROW1(div_scalar, kiln_div_scalar(gy, f[0]))
const kiln_op kiln_op_div_scalar = {KILN_PW_OP(div_scalar, 1), .attrs = "| s",
                                    .dtypes = KILN_T_FLOATS,   .grad_reads = {KILN_READS_NOTHING},
                                    .grad = div_scalar_rule,   .cases = KILN_PW_CASES1S("1.7")};

kiln_tensor *kiln_rsub_scalar(kiln_tensor *a, double s)
{
    if (a && a->dtype == KILN_BOOL)
        return refuse_bool("rsub");
    return kiln_pw_call_scalar(&kiln_op_rsub_scalar, a, s);
}
KILN_PW_ROW1(rsub_scalar, kiln_neg(gy))
const kiln_op kiln_op_rsub_scalar = {KILN_PW_OP(rsub_scalar, 1), .attrs = "| s",
                                     .dtypes = KILN_T_NUMBERS,   .grad_reads = {KILN_READS_NOTHING},
                                     .grad = rsub_scalar_rule,   .cases = KILN_PW_CASES1S("5")};

kiln_tensor *kiln_rdiv_scalar(kiln_tensor *a, double s)
{
    return kiln_pw_call_scalar(&kiln_op_rdiv_scalar, a, s);
}
KILN_PW_GRAD1Y(rdiv_scalar, kiln_neg(kiln_mul(gy, kiln_div(y, x))))
const kiln_op kiln_op_rdiv_scalar = {KILN_PW_OP(rdiv_scalar, 1),
                                     .attrs = "| s",
                                     .autocast = KILN_CAST_FLOAT,
                                     .dtypes = KILN_T_FLOATS,
                                     .lo = 0.5,
                                     .hi = 2,
                                     .grad_reads = {KILN_READS_X | KILN_READS_RESULT},
                                     .grad = rdiv_scalar_rule,
                                     .cases = KILN_PW_CASES1S("1.7")};

/* The frequent powers have cheaper operations of their own. */
kiln_tensor *kiln_pow_scalar(kiln_tensor *a, double s)
{
    KILN_TIDY;
    if (!a)
        return KILN_KEPT(KILN_OP(pow_scalar, KILN_IN(a), KILN_F(s)));
    kiln_dtype dtype = kiln_pw_promote_scalar(a, s);
    if (!kiln_dtype_is_float(dtype) && s < 0) {
        kiln_fail(KILN_E_ARGUMENT, "pow", "%s tensors cannot be raised to the negative power %g",
                  kiln_dtype_name(dtype), s);
        return kiln_hint("convert the tensor to a float type with kiln_cast");
    }
    kiln_tensor *x = kiln_cast(a, dtype);
    if (s == 2)
        return KILN_KEPT(kiln_square(x));
    if (s == 3 && !kiln_is_half(dtype))
        return KILN_KEPT(kiln_mul(kiln_square(x), x));
    if (s == 0.5)
        return KILN_KEPT(kiln_sqrt(x));
    if (s == -0.5)
        return KILN_KEPT(kiln_rsqrt(x));
    if (s == -1)
        return KILN_KEPT(kiln_reciprocal(x));
    return KILN_KEPT(KILN_OP(pow_scalar, KILN_IN(x), KILN_F(s)));
}
KILN_PW_GRAD1(pow_scalar, kiln_mul(gy, KILN_OP(scaled_pow, KILN_IN(x), KILN_F(f[0] - 1, f[0]))))
const kiln_op kiln_op_pow_scalar = {
    KILN_PW_OP(pow_scalar, 1),
    .attrs = "| s",
    .autocast = KILN_CAST_FLOAT,
    .dtypes = KILN_T_NUMBERS,
    .lo = 0.5,
    .hi = 2,
    .grad = pow_scalar_rule,
    .cases = KILN_CASES{"x[2,3] | | 3", "x[] | | 4", "x[2,3] | | 0", "x[0,3] | | 1", "x[7,33] | | 5", NULL}};

kiln_tensor *kiln_rpow_scalar(kiln_tensor *a, double s)
{
    return kiln_pw_call_scalar(&kiln_op_rpow_scalar, a, s);
}
KILN_PW_GRAD1Y(rpow_scalar, kiln_mul_scalar(kiln_mul(gy, y), f[0] == 0 ? 0 : log(f[0])))
const kiln_op kiln_op_rpow_scalar = {KILN_PW_OP(rpow_scalar, 1),        .attrs = "| s",
                                     .autocast = KILN_CAST_FLOAT,       .dtypes = KILN_T_FLOATS,
                                     .grad_reads = {KILN_READS_RESULT}, .grad = rpow_scalar_rule,
                                     .cases = KILN_PW_CASES1S("1.7")};

/* t·a^s, and 0 for t = 0 whatever the power is: closed under differentiation. */
KILN_PW_GRAD1(scaled_pow, kiln_mul(gy, KILN_OP(scaled_pow, KILN_IN(x), KILN_F(f[0] - 1, f[1] * f[0]))))
const kiln_op kiln_op_scaled_pow = {KILN_PW_OP(scaled_pow, 1),
                                    .attrs = "| s t",
                                    .autocast = KILN_CAST_FLOAT,
                                    .dtypes = KILN_T_FLOATS,
                                    .lo = 0.5,
                                    .hi = 2,
                                    .grad = scaled_pow_rule,
                                    .cases =
                                        KILN_CASES{"x[2,3] | | 2.5 1.5", "x[] | | -0.5 2", "x[2,3] | | -1 0", NULL}};

kiln_tensor *kiln_remainder_scalar(kiln_tensor *a, double s)
{
    if (a && s == 0 && !kiln_dtype_is_float((kiln_dtype)a->dtype))
        return kiln_fail(KILN_E_ARGUMENT, "remainder", "integers cannot be divided by 0");
    return kiln_pw_call_scalar(&kiln_op_remainder_scalar, a, s);
}
KILN_PW_ROW1(remainder_scalar, gy)
const kiln_op kiln_op_remainder_scalar = {KILN_PW_OP(remainder_scalar, 1), .attrs = "| s",
                                          .dtypes = KILN_T_NUMBERS,        .grad_reads = {KILN_READS_NOTHING},
                                          .grad = remainder_scalar_rule,   .cases = KILN_PW_CASES1S("3")};

/* ---- Two or three operands and a number ---- */

kiln_tensor *kiln_lerp(kiln_tensor *a, kiln_tensor *b, double weight)
{
    return kiln_pw_call(&kiln_op_lerp, KILN_IN(a, b), KILN_F(weight));
}
KILN_PW_GRAD2(lerp, kiln_mul_scalar(gy, 1 - g->attrs->f[0]), kiln_mul_scalar(gy, g->attrs->f[0]))
const kiln_op kiln_op_lerp = {KILN_PW_OP(lerp, 2),
                              .attrs = "| weight",
                              .autocast = KILN_CAST_PROMOTE,
                              .dtypes = KILN_T_FLOATS,
                              .grad_reads = {KILN_READS_NOTHING},
                              .grad = lerp_rule,
                              .cases =
                                  KILN_CASES{"x[2,3] x[2,3] | | 0.3", "x[2,1] x[1,3] | | 0.8", "x[] x[4] | | 0.5",
                                             "x[0,3] x[3] | | 0.3", "x[] x[] | | 1", "x[7,33] x[33] | | 0.1", NULL}};

kiln_tensor *kiln_addcmul(kiln_tensor *x, kiln_tensor *a, kiln_tensor *b, double value)
{
    kiln_tensor *in[3] = {x, a, b};
    if (!x || !a || !b)
        return KILN_OP(addcmul, KILN_IN(x, a, b), KILN_F(value));
    kiln_dtype dtype = kiln_pw_promote(3, in);
    if (!kiln_check_number("addcmul", value, dtype))
        return NULL;
    return kiln_pw_call_as(&kiln_op_addcmul, dtype, in, 3, KILN_F(value)); /* integers take what is whole of it */
}
static bool addcmul_rule(kiln_grad_call *g)
{
    kiln_tensor *gy = kiln_widen(g->gout[0]);
    double value = g->attrs->f[0];
    KILN_GIN(0, g->gout[0]);
    KILN_GIN(1, kiln_mul_scalar(kiln_mul(gy, g->in[2]), value));
    KILN_GIN(2, kiln_mul_scalar(kiln_mul(gy, g->in[1]), value));
    return true;
}
const kiln_op kiln_op_addcmul = {KILN_PW_OP(addcmul, 3),
                                 .attrs = "| value",
                                 .autocast = KILN_CAST_PROMOTE,
                                 .dtypes = KILN_T_NUMBERS,
                                 .grad_reads = {KILN_READS_NOTHING, KILN_READS_Z, KILN_READS_Y},
                                 .grad = addcmul_rule,
                                 .cases = KILN_CASES{"x[2,3] x[2,3] x[2,3] | | 2", "x[2,3] x[3] x[2,1] | | 3",
                                                     "x[] x[4] x[] | | 2", "x[0,3] x[3] x[3] | | 2",
                                                     "x[7,33] x[7,33] x[7,33] | | 1", NULL}};

kiln_tensor *kiln_addcdiv(kiln_tensor *x, kiln_tensor *a, kiln_tensor *b, double value)
{
    if (a && b && !kiln_dtype_is_float((kiln_dtype)a->dtype) && !kiln_dtype_is_float((kiln_dtype)b->dtype)) {
        kiln_fail(KILN_E_DTYPE, "addcdiv", "it does not divide integers (%s by %s)",
                  kiln_dtype_name((kiln_dtype)a->dtype), kiln_dtype_name((kiln_dtype)b->dtype));
        return kiln_hint("convert one of them to a float type with kiln_cast");
    }
    return kiln_pw_call(&kiln_op_addcdiv, KILN_IN(x, a, b), KILN_F(value));
}
static bool addcdiv_rule(kiln_grad_call *g)
{
    kiln_tensor *gy = kiln_widen(g->gout[0]), *a = kiln_pw_wide(g, 1), *b = kiln_pw_wide(g, 2);
    double value = g->attrs->f[0];
    KILN_GIN(0, g->gout[0]);
    KILN_GIN(1, kiln_div(kiln_mul_scalar(gy, value), b));
    KILN_GIN(2, kiln_mul(kiln_mul_scalar(gy, -value), kiln_div(a, kiln_square(b))));
    return true;
}
const kiln_op kiln_op_addcdiv = {KILN_PW_OP(addcdiv, 3),
                                 .attrs = "| value",
                                 .autocast = KILN_CAST_PROMOTE,
                                 .dtypes = KILN_T_FLOATS,
                                 .grad_reads = {KILN_READS_NOTHING, KILN_READS_Z, KILN_READS_Y | KILN_READS_Z},
                                 .grad = addcdiv_rule,
                                 .cases = KILN_CASES{"x[2,3] x[2,3] p[2,3] | | 0.7", "x[2,3] x[3] p[2,1] | | -1.5",
                                                     "x[] x[4] p[] | | 2", "x[0,3] x[3] p[3] | | 2",
                                                     "x[7,33] x[7,33] p[7,33] | | 0.1", NULL}};
