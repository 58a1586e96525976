/* Element by element: the mathematics of each operation as one C expression over libm. */
#include <math.h>
#include <string.h>
#include "support/ref.h"

#define PI 3.14159265358979323846

/* x, y, z: the operands' elements; s, t: the first float attributes. */
typedef double (*formula)(double x, double y, double z, double s, double t);

static double sigmoid(double x)
{
    return x >= 0 ? 1 / (1 + exp(-x)) : exp(x) / (1 + exp(x));
}

static double softplus(double x)
{
    return x > 0 ? x + log1p(exp(-x)) : log1p(exp(x));
}

static double clip(double x, double lo, double hi)
{
    return isnan(x) ? x : x < lo ? lo : x > hi ? hi : x;
}

static double sign_of(double x)
{
    return (x > 0) - (x < 0);
}

static double python_remainder(double a, double b)
{
    double r = fmod(a, b);
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

static double python_floor_divide(double a, double b)
{
    return b == 0 ? a / b : floor((a - python_remainder(a, b)) / b + 0.5);
}

static double larger(double a, double b)
{
    return isnan(a) || isnan(b) ? NAN : a > b ? a : b;
}

static double smaller(double a, double b)
{
    return isnan(a) || isnan(b) ? NAN : a < b ? a : b;
}

/* A derivative by differences of four orders: exact to about 1e-12. */
static double slope(formula f, double x)
{
    double sum = 0, h = 1.0 / 64;
    static const double weight[] = {4.0 / 5, -1.0 / 5, 4.0 / 105, -1.0 / 280};
    for (int k = 1; k <= 4; k++)
        sum += weight[k - 1] * (f(x + k * h, 0, 0, 0, 0) - f(x - k * h, 0, 0, 0, 0)) / h;
    return sum;
}

#define ALPHA 1.6732632423543772848170429916717
#define SCALE 1.0507009873554804934193349852946

/* name, result ('=': the dtype of the first number, 'b': bool), expression */
#define FORMULAS(F)                                                                                                    \
    F(add, '=', x + y)                                                                                                 \
    F(sub, '=', x - y)                                                                                                 \
    F(mul, '=', x *y)                                                                                                  \
    F(div, '=', x / y)                                                                                                 \
    F(floor_divide, '=', python_floor_divide(x, y))                                                                    \
    F(remainder, '=', python_remainder(x, y))                                                                          \
    F(fmod, '=', fmod(x, y))                                                                                           \
    F(pow, '=', pow(x, y))                                                                                             \
    F(atan2, '=', atan2(x, y))                                                                                         \
    F(hypot, '=', sqrt(x *x + y * y))                                                                                  \
    F(maximum, '=', larger(x, y))                                                                                      \
    F(minimum, '=', smaller(x, y))                                                                                     \
    F(add_scalar, '=', x + s)                                                                                          \
    F(sub_scalar, '=', x - s)                                                                                          \
    F(mul_scalar, '=', x *s)                                                                                           \
    F(div_scalar, '=', x / s)                                                                                          \
    F(rsub_scalar, '=', s - x)                                                                                         \
    F(rdiv_scalar, '=', s / x)                                                                                         \
    F(pow_scalar, '=', pow(x, s))                                                                                      \
    F(rpow_scalar, '=', pow(s, x))                                                                                     \
    F(remainder_scalar, '=', python_remainder(x, s))                                                                   \
    F(lerp, '=', x + s * (y - x))                                                                                      \
    F(addcmul, '=', x + s * y * z)                                                                                     \
    F(addcdiv, '=', x + s * y / z)                                                                                     \
    F(neg, '=', -x)                                                                                                    \
    F(abs, '=', fabs(x))                                                                                               \
    F(sign, '=', sign_of(x))                                                                                           \
    F(square, '=', x *x)                                                                                               \
    F(sqrt, '=', sqrt(x))                                                                                              \
    F(rsqrt, '=', 1 / sqrt(x))                                                                                         \
    F(reciprocal, '=', 1 / x)                                                                                          \
    F(exp, '=', exp(x))                                                                                                \
    F(exp2, '=', pow(2, x))                                                                                            \
    F(expm1, '=', expm1(x))                                                                                            \
    F(log, '=', log(x))                                                                                                \
    F(log2, '=', log2(x))                                                                                              \
    F(log10, '=', log10(x))                                                                                            \
    F(log1p, '=', log1p(x))                                                                                            \
    F(sin, '=', sin(x))                                                                                                \
    F(cos, '=', cos(x))                                                                                                \
    F(tan, '=', tan(x))                                                                                                \
    F(asin, '=', asin(x))                                                                                              \
    F(acos, '=', acos(x))                                                                                              \
    F(atan, '=', atan(x))                                                                                              \
    F(sinh, '=', sinh(x))                                                                                              \
    F(cosh, '=', cosh(x))                                                                                              \
    F(tanh, '=', tanh(x))                                                                                              \
    F(asinh, '=', asinh(x))                                                                                            \
    F(acosh, '=', acosh(x))                                                                                            \
    F(atanh, '=', atanh(x))                                                                                            \
    F(erf, '=', erf(x))                                                                                                \
    F(erfc, '=', erfc(x))                                                                                              \
    F(floor, '=', floor(x))                                                                                            \
    F(ceil, '=', ceil(x))                                                                                              \
    F(round, '=', nearbyint(x))                                                                                        \
    F(trunc, '=', trunc(x))                                                                                            \
    F(frac, '=', x - trunc(x))                                                                                         \
    F(clamp, '=', clip(x, s, t))                                                                                       \
    F(eq, 'b', x == y)                                                                                                 \
    F(ne, 'b', x != y)                                                                                                 \
    F(lt, 'b', x < y)                                                                                                  \
    F(le, 'b', x <= y)                                                                                                 \
    F(gt, 'b', x > y)                                                                                                  \
    F(ge, 'b', x >= y)                                                                                                 \
    F(eq_scalar, 'b', x == s)                                                                                          \
    F(ne_scalar, 'b', x != s)                                                                                          \
    F(lt_scalar, 'b', x < s)                                                                                           \
    F(le_scalar, 'b', x <= s)                                                                                          \
    F(gt_scalar, 'b', x > s)                                                                                           \
    F(ge_scalar, 'b', x >= s)                                                                                          \
    F(logical_and, 'b', x != 0 && y != 0)                                                                              \
    F(logical_or, 'b', x != 0 || y != 0)                                                                               \
    F(logical_xor, 'b', (x != 0) != (y != 0))                                                                          \
    F(logical_not, 'b', x == 0)                                                                                        \
    F(bitwise_and, '=', (double)((int64_t)x & (int64_t)y))                                                             \
    F(bitwise_or, '=', (double)((int64_t)x | (int64_t)y))                                                              \
    F(bitwise_xor, '=', (double)((int64_t)x ^ (int64_t)y))                                                             \
    F(isnan, 'b', x != x)                                                                                              \
    F(isinf, 'b', fabs(x) == INFINITY)                                                                                 \
    F(isfinite, 'b', fabs(x) < INFINITY)                                                                               \
    F(where, '=', x != 0 ? y : z)                                                                                      \
    F(masked_fill, '=', x != 0 ? s : y)                                                                                \
    F(relu, '=', isnan(x) || x > 0 ? x : 0)                                                                            \
    F(relu6, '=', clip(x, 0, 6))                                                                                       \
    F(leaky_relu, '=', x > 0 ? x : s * x)                                                                              \
    F(elu, '=', x > 0 ? x : s * (exp(x) - 1))                                                                          \
    F(selu, '=', SCALE *(x > 0 ? x : ALPHA * (exp(x) - 1)))                                                            \
    F(celu, '=', larger(0, x) + smaller(0, s * (exp(x / s) - 1)))                                                      \
    F(gelu, '=', x / 2 * (1 + erf(x / sqrt(2))))                                                                       \
    F(gelu_tanh, '=', x / 2 * (1 + tanh(sqrt(2 / PI) * (x + 0.044715 * x * x * x))))                                   \
    F(silu, '=', x *sigmoid(x))                                                                                        \
    F(sigmoid, '=', sigmoid(x))                                                                                        \
    F(logsigmoid, '=', -softplus(-x))                                                                                  \
    F(softplus, '=', x *s > t ? x : softplus(x * s) / s)                                                               \
    F(hardswish, '=', x *clip(x + 3, 0, 6) / 6)                                                                        \
    F(hardswish_grad, '=', x <= -3 ? 0 : x >= 3 ? y : y * (x / 3 + 0.5))                                               \
    F(hardsigmoid, '=', clip(x + 3, 0, 6) / 6)                                                                         \
    F(hardtanh, '=', clip(x, s, t))                                                                                    \
    F(mish, '=', x *tanh(softplus(x)))                                                                                 \
    F(softsign, '=', x / (1 + fabs(x)))                                                                                \
    F(scaled_pow, '=', t == 0 ? 0 : t * pow(x, s))                                                                     \
    F(clamp_grad, '=', x >= s && x <= t ? y : 0)                                                                       \
    F(hardtanh_grad, '=', x > s && x < t ? y : 0)                                                                      \
    F(tanh_grad, '=', y - y * x * x)                                                                                   \
    F(sigmoid_grad, '=', y *x - y * x * x)                                                                             \
    F(relu_grad, '=', x > 0 ? y : 0)                                                                                   \
    F(leaky_relu_grad, '=', x > 0 ? y : s * y)                                                                         \
    F(gelu_grad, '=', y *slope(formula_gelu, x))                                                                       \
    F(gelu_tanh_grad, '=', y *slope(formula_gelu_tanh, x))                                                             \
    F(silu_grad, '=', y *slope(formula_silu, x))                                                                       \
    F(bce, '=', -y *larger(log(x), -100) - (1 - y) * larger(log(1 - x), -100))                                         \
    F(clone, '=', x)                                                                                                   \
    F(assign, '=', x)

#define DEFINE(name, result, expression)                                                                               \
    static double formula_##name(double x, double y, double z, double s, double t)                                     \
    {                                                                                                                  \
        (void)x, (void)y, (void)z, (void)s, (void)t;                                                                   \
        return (expression);                                                                                           \
    }
FORMULAS(DEFINE)

/* Applies the formula to the broadcast operands. A result is as exact as its operands are large: results that cancel
 * (1 - tanh² and the like) are compared on that scale. */
static void apply(ref_call *c, formula f, kiln_dtype dtype)
{
    int ndim = 0;
    int64_t shape[KILN_MAX_DIMS], index[KILN_MAX_DIMS];
    for (int k = 0; k < c->nin; k++)
        ref_broadcast_shape(&ndim, shape, c->in[k]);
    ref_tensor *out = ref_out(c, 0, dtype, ndim, shape);
    for (int64_t i = 0; i < out->count; i++) {
        double v[3] = {0}, size = 0;
        ref_unravel(ndim, shape, i, index);
        for (int k = 0; k < c->nin && k < 3; k++) {
            v[k] = ref_broadcast_at(c->in[k], ndim, index);
            size = fmax(size, fabs(v[k]));
        }
        out->data[i] = f(v[0], v[1], v[2], c->attrs.f[0], c->attrs.f[1]);
        out->size[i] = fmax(fabs(out->data[i]), fmin(size, 1) / 4);
    }
}

static kiln_dtype number_dtype(const ref_call *c)
{
    bool picks = !strcmp(c->op->name, "where") || !strcmp(c->op->name, "masked_fill");
    return c->in[picks]->dtype;
}

#define RUN(name, result, expression)                                                                                  \
    static void run_##name(ref_call *c)                                                                                \
    {                                                                                                                  \
        apply(c, formula_##name, result == 'b' ? KILN_BOOL : number_dtype(c));                                         \
    }
FORMULAS(RUN)

static void run_bitwise_not(ref_call *c)
{
    ref_tensor *out = ref_out_like(c, 0, c->in[0]);
    for (int64_t i = 0; i < out->count; i++)
        out->data[i] = out->dtype == KILN_BOOL ? c->in[0]->data[i] == 0 : (double)~(int64_t)c->in[0]->data[i];
}

/* x; the operand that is checked is fine in all cases. */
static void run_require(ref_call *c)
{
    ref_tensor *out = ref_out_like(c, 0, c->in[0]);
    for (int64_t i = 0; i < out->count; i++)
        out->data[i] = c->in[0]->data[i];
}

static void run_divide_integers(ref_call *c)
{
    ref_tensor *out = ref_out_like(c, 0, c->in[0]);
    for (int64_t i = 0; i < out->count; i++) {
        double a = c->in[0]->data[i], b = c->in[1]->data[i], floored = floor(a / b);
        out->data[i] = REF_INT(c, 0) == 0 ? floored : REF_INT(c, 0) == 1 ? a - floored * b : fmod(a, b);
    }
}

static void run_cast(ref_call *c)
{
    apply(c, formula_clone, (kiln_dtype)REF_INT(c, 0));
}

#define ENTRY(name, result, expression) {#name, run_##name, 0},
const ref_entry ref_entries_pointwise[] = {FORMULAS(ENTRY){"bitwise_not", run_bitwise_not, 0},
                                           {"cast", run_cast, 0},
                                           {"require", run_require, 0},
                                           {"divide_integers", run_divide_integers, 0},
                                           {NULL, NULL, 0}};
