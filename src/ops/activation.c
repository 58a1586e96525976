/* Activations: functions of one operand that networks put between their layers. Where a gradient can be told from the
 * result, the rule uses that and not the operand: the result is kept anyway, for the layer that follows. */
#include "ops/pointwise.h"

#include <math.h>

#define RECORD(row, cast, ...)                                                                                         \
    KILN_PW_FUNCTION1(row)                                                                                             \
    const kiln_op kiln_op_##row = {KILN_PW_OP(row, 1), .autocast = KILN_CAST_##cast, .dtypes = KILN_T_FLOATS,          \
                                   .grad = row##_rule, .cases = KILN_PW_CASES1,      __VA_ARGS__};

/* op(x, g): g times the activation's slope at x. */
#define SLOPE_RECORD(row, ...)                                                                                         \
    const kiln_op kiln_op_##row = {KILN_PW_OP(row, 2), .dtypes = KILN_T_FLOATS, .grad_reads = {__VA_ARGS__},           \
                                   .grad = row##_rule, .cases = KILN_PW_CASES2("x", "x")};

/* ---- Made of straight lines ---- */

KILN_PW_FUNCTION1(relu)
KILN_PW_ROW1(relu, KILN_OP(relu_grad, KILN_IN(y, gy), KILN_NO_ATTRS))
const kiln_op kiln_op_relu = {KILN_PW_OP(relu, 1), .dtypes = KILN_T_NUMBERS, .grad_skips = KILN_SKIPS_OPERANDS,
                              .grad = relu_rule, .cases = KILN_PW_CASES1};
#define relu_grad_rule kiln_pw_gate_grad
SLOPE_RECORD(relu_grad, KILN_READS_NOTHING, KILN_READS_X)

kiln_tensor *kiln_leaky_relu(kiln_tensor *x, double negative_slope)
{
    return kiln_pw_call(&kiln_op_leaky_relu, KILN_IN(x), KILN_F(negative_slope));
}
KILN_PW_ROW1(leaky_relu, kiln_op_one(&kiln_op_leaky_relu_grad, KILN_IN(x, gy), g->attrs))
const kiln_op kiln_op_leaky_relu = {KILN_PW_OP(leaky_relu, 1), .attrs = "| negative_slope", .dtypes = KILN_T_FLOATS,
                                    .grad = leaky_relu_rule, .cases = KILN_PW_CASES1S("0.01")};
const kiln_op kiln_op_leaky_relu_grad = {
    KILN_PW_OP(leaky_relu_grad, 2), .attrs = "| negative_slope",
    .dtypes = KILN_T_FLOATS,        .grad_reads = {KILN_READS_NOTHING, KILN_READS_X},
    .grad = kiln_pw_gate_grad,      .cases = KILN_PW_CASES2S("x", "x", " | | 0.01")};

kiln_tensor *kiln_hardtanh(kiln_tensor *x, double min, double max)
{
    if (min > max)
        return kiln_fail(KILN_E_ARGUMENT, "hardtanh", "min %g is greater than max %g", min, max);
    if (x && !kiln_dtype_is_float((kiln_dtype)x->dtype)) { /* the bounds become what the tensor is */
        min = trunc(min);
        max = trunc(max);
        if (x->dtype == KILN_U8 && (min < 0 || max < 0))
            return kiln_fail(KILN_E_ARGUMENT, "hardtanh", "a u8 tensor takes no bounds below 0: min %g, max %g", min,
                             max);
    }
    return KILN_OP(hardtanh, KILN_IN(x), KILN_F(min, max));
}
kiln_tensor *kiln_relu6(kiln_tensor *x)
{
    return kiln_hardtanh(x, 0, 6);
}
KILN_PW_ROW1(hardtanh, kiln_op_one(&kiln_op_hardtanh_grad, KILN_IN(x, gy), g->attrs))
const kiln_op kiln_op_hardtanh = {KILN_PW_OP(hardtanh, 1), .attrs = "| min max", .dtypes = KILN_T_NUMBERS,
                                  .grad = hardtanh_rule, .cases = KILN_PW_CASES1S("-1 1")};
const kiln_op kiln_op_hardtanh_grad = {KILN_PW_OP(hardtanh_grad, 2), .attrs = "| min max",
                                       .dtypes = KILN_T_FLOATS,      .grad_reads = {KILN_READS_NOTHING, KILN_READS_X},
                                       .grad = kiln_pw_gate_grad,    .cases = KILN_PW_CASES2S("x", "x", " | | -1 1")};

KILN_PW_GRAD1(hardsigmoid, KILN_OP(hardtanh_grad, KILN_IN(x, kiln_div_scalar(gy, 6)), KILN_F(-3, 3)))
RECORD(hardsigmoid, NONE)

KILN_PW_ROW1(hardswish, KILN_OP(hardswish_grad, KILN_IN(x, gy), KILN_NO_ATTRS))
RECORD(hardswish, NONE)

/* The slope is 0 up to -3, x/3 + 1/2 up to 3, 1 above; a NaN stays one. */
KILN_PW_GRAD_OF_GRAD(hardswish_grad, KILN_OP(hardtanh_grad, KILN_IN(a, kiln_full_like(a, 1. / 3)), KILN_F(-3, 3)))
SLOPE_RECORD(hardswish_grad, KILN_READS_X | KILN_READS_Y, KILN_READS_X)

KILN_PW_GRAD1(softsign, kiln_div(gy, kiln_square(kiln_add_scalar(kiln_abs(x), 1))))
RECORD(softsign, NONE)

/* ---- The exponential family. The slope below 0 is taken from the operand: the result plus a constant would tell it
 * too, but has lost all of it far below 0. ---- */

/* x below 0, and 0 above, where an exponential must not overflow. */
static kiln_tensor *below_zero(kiln_tensor *x)
{
    return kiln_clamp(x, -INFINITY, 0);
}

kiln_tensor *kiln_elu(kiln_tensor *x, double alpha)
{
    return kiln_pw_call(&kiln_op_elu, KILN_IN(x), KILN_F(alpha));
}
KILN_PW_GRAD1(elu, kiln_where(kiln_gt_scalar(x, 0), gy, kiln_mul(gy, kiln_mul_scalar(kiln_exp(below_zero(x)), f[0]))))
const kiln_op kiln_op_elu = {KILN_PW_OP(elu, 1), .attrs = "| alpha", .dtypes = KILN_T_FLOATS, .grad = elu_rule,
                             .cases = KILN_PW_CASES1S("1.3")};

KILN_PW_GRAD1(selu, kiln_where(kiln_gt_scalar(x, 0), kiln_mul_scalar(gy, 1.0507009873554805),
                               kiln_mul(gy, kiln_mul_scalar(kiln_exp(below_zero(x)), 1.7580993408473766))))
RECORD(selu, NONE)

kiln_tensor *kiln_celu(kiln_tensor *x, double alpha)
{
    if (alpha == 0)
        return kiln_fail(KILN_E_ARGUMENT, "celu", "alpha is 0, and x is divided by it");
    return kiln_pw_call(&kiln_op_celu, KILN_IN(x), KILN_F(alpha));
}
KILN_PW_GRAD1(celu, kiln_where(kiln_gt_scalar(x, 0), gy, kiln_mul(gy, kiln_exp(kiln_div_scalar(below_zero(x), f[0])))))
const kiln_op kiln_op_celu = {KILN_PW_OP(celu, 1), .attrs = "| alpha", .dtypes = KILN_T_FLOATS, .grad = celu_rule,
                              .cases = KILN_PW_CASES1S("1.3")};

/* ---- Sigmoid and what is made of it ---- */

KILN_PW_GRAD1Y(sigmoid, KILN_OP(sigmoid_grad, KILN_IN(y, gy), KILN_NO_ATTRS))
RECORD(sigmoid, NONE, .grad_reads = {KILN_READS_RESULT})

/* f(y, g) = g·y·(1 - y), y the sigmoid */
KILN_PW_GRAD_OF_GRAD(sigmoid_grad, kiln_rsub_scalar(kiln_mul_scalar(a, 2), 1))
SLOPE_RECORD(sigmoid_grad, KILN_READS_X | KILN_READS_Y, KILN_READS_X)

KILN_PW_GRAD1(logsigmoid, kiln_mul(gy, kiln_sigmoid(kiln_neg(x))))
RECORD(logsigmoid, NONE)

kiln_tensor *kiln_softplus(kiln_tensor *x, double beta, double threshold)
{
    return kiln_pw_call(&kiln_op_softplus, KILN_IN(x), KILN_F(beta, threshold));
}
static bool softplus_rule(kiln_grad_call *g)
{
    kiln_tensor *gy = kiln_widen(g->gout[0]), *scaled = kiln_mul_scalar(kiln_widen(g->in[0]), g->attrs->f[0]);
    KILN_GIN(0, kiln_where(kiln_gt_scalar(scaled, g->attrs->f[1]), gy, kiln_mul(gy, kiln_sigmoid(scaled))));
    return true;
}
const kiln_op kiln_op_softplus = {
    KILN_PW_OP(softplus, 1),
    .attrs = "| beta threshold",
    .autocast = KILN_CAST_FLOAT,
    .dtypes = KILN_T_FLOATS,
    .grad = softplus_rule,
    .cases = KILN_CASES{"x[2,3] | | 1 20", "x[] | | 2 20", "x[0,3] | | 1 20", "x[7,33] | | 1.5 1", NULL}};

KILN_PW_ROW1(silu, KILN_OP(silu_grad, KILN_IN(x, gy), KILN_NO_ATTRS))
RECORD(silu, NONE)

/* The second derivative of a·s(a): s·(1 - s)·(2 + a·(1 - 2s)). */
static kiln_tensor *silu_second(kiln_tensor *a)
{
    kiln_tensor *s = kiln_sigmoid(a);
    kiln_tensor *bend = kiln_add_scalar(kiln_mul(a, kiln_rsub_scalar(kiln_mul_scalar(s, 2), 1)), 2);
    return kiln_mul(kiln_mul(s, kiln_rsub_scalar(s, 1)), bend);
}
KILN_PW_GRAD_OF_GRAD(silu_grad, silu_second(a))
SLOPE_RECORD(silu_grad, KILN_READS_X | KILN_READS_Y, KILN_READS_X)

/* With w = tanh(softplus(x)): w + x·sigmoid(x)·(1 - w²). */
static bool mish_rule(kiln_grad_call *g)
{
    kiln_tensor *x = kiln_widen(g->in[0]), *w = kiln_tanh(kiln_softplus(x, 1, 20));
    kiln_tensor *rest = kiln_mul(kiln_silu(x), kiln_rsub_scalar(kiln_square(w), 1));
    KILN_GIN(0, kiln_mul(g->gout[0], kiln_add(w, rest)));
    return true;
}
RECORD(mish, NONE)

/* ---- gelu ---- */

KILN_PW_ROW1(gelu, KILN_OP(gelu_grad, KILN_IN(x, gy), KILN_NO_ATTRS))
RECORD(gelu, NONE)

/* With the normal distribution's density p, the second derivative is p(a)·(2 - a²). */
static kiln_tensor *gelu_second(kiln_tensor *a)
{
    kiln_tensor *square = kiln_square(a), *density = kiln_exp(kiln_mul_scalar(square, -0.5));
    return kiln_mul(kiln_mul_scalar(density, 0.39894228040143268), kiln_rsub_scalar(square, 2));
}
KILN_PW_GRAD_OF_GRAD(gelu_grad, gelu_second(a))
SLOPE_RECORD(gelu_grad, KILN_READS_X | KILN_READS_Y, KILN_READS_X)

KILN_PW_ROW1(gelu_tanh, KILN_OP(gelu_tanh_grad, KILN_IN(x, gy), KILN_NO_ATTRS))
RECORD(gelu_tanh, NONE)

/* y = a·s(v) with v = c·(a + 0.044715 a³): y'' = s'·(2v' + a·v'' + a·v'²·(1 - 2s)), s' = s·(1 - s). */
static kiln_tensor *gelu_tanh_second(kiln_tensor *a)
{
    const double c = 1.5957691216057308;
    kiln_tensor *square = kiln_square(a);
    kiln_tensor *v = kiln_mul(a, kiln_add_scalar(kiln_mul_scalar(square, 0.044715 * c), c));
    kiln_tensor *v1 = kiln_add_scalar(kiln_mul_scalar(square, 0.134145 * c), c);
    kiln_tensor *s = kiln_sigmoid(v);
    kiln_tensor *slope = kiln_mul(s, kiln_rsub_scalar(s, 1));
    kiln_tensor *bend = kiln_mul(kiln_mul(a, kiln_square(v1)), kiln_rsub_scalar(kiln_mul_scalar(s, 2), 1));
    kiln_tensor *twice = kiln_add(kiln_mul_scalar(v1, 2), kiln_mul_scalar(square, 0.26829 * c));
    return kiln_mul(slope, kiln_add(twice, bend));
}
KILN_PW_GRAD_OF_GRAD(gelu_tanh_grad, gelu_tanh_second(a))
SLOPE_RECORD(gelu_tanh_grad, KILN_READS_X | KILN_READS_Y, KILN_READS_X)
