/* Results, dtypes and gradients against PyTorch's, recorded in golden/ by make_golden.py. Each case names a call of the
 * table below; the calls go through the public functions only. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "kiln.h"
#include "support/golden.h"
#include "support/numbers.h"
#include "support/suite.h"
#include "support/where.h"

/* ctest: name=eager env=KILN_EAGER=1 */

typedef struct call {
    const golden_case *g;
    kiln_tensor *in[GOLDEN_TENSORS], *out[GOLDEN_TENSORS];
} call;

#define X(k)       (c->in[k])
#define I(k)       (c->g->ints[k])
#define F(k)       (c->g->floats[k])
#define REST(k)    (c->g->nints - (k)), (c->g->ints + (k)) /* the integers from k on, as "count, array" */
#define SIZE(t, d) kiln_size(t, d)
#define TAIL(x, n) (int)(n), kiln_shape(x) + kiln_ndim(x) - (n)
#define PAIR(k)                                                                                                        \
    {                                                                                                                  \
        I(k), I((k) + 1)                                                                                               \
    }
#define REDUCTION(k) ((kiln_reduction)I(k))

/* Unary calls without attributes, binary ones, unary ones with one or two floats. */
/* clang-format off */
#define UNARY(M)                                                                                                       \
    M(round) M(floor) M(ceil) M(trunc) M(frac) M(sign) M(relu) M(relu6) M(selu) M(gelu) M(gelu_tanh) M(silu)           \
    M(sigmoid) M(logsigmoid) M(hardswish) M(hardsigmoid) M(mish) M(softsign) M(tanh) M(abs) M(neg) M(erf) M(erfc)      \
    M(exp) M(expm1) M(square) M(atan) M(asinh) M(log) M(log2) M(log10) M(log1p) M(sqrt) M(rsqrt) M(reciprocal)         \
    M(asin) M(acos) M(acosh) M(atanh) M(isnan) M(isinf) M(isfinite) M(sin) M(cos) M(tan) M(sinh) M(cosh) M(exp2)       \
    M(bitwise_not) M(logical_not) M(clone) M(mean_all) M(zeros_like) M(ones_like)
#define BINARY(M)                                                                                                      \
    M(remainder) M(fmod) M(floor_divide) M(pow) M(maximum) M(minimum) M(atan2) M(hypot) M(bitwise_and) M(bitwise_or)   \
    M(bitwise_xor) M(logical_and) M(add) M(mul) M(div) M(eq) M(matmul) M(outer) M(dot) M(sub) M(ne) M(lt) M(le)        \
    M(gt) M(ge) M(logical_or) M(logical_xor)
#define ONE_FLOAT(M)                                                                                                   \
    M(remainder_scalar) M(leaky_relu) M(elu) M(celu) M(pow_scalar) M(add_scalar) M(mul_scalar) M(div_scalar)           \
    M(rsub_scalar) M(rdiv_scalar) M(eq_scalar) M(ne_scalar) M(lt_scalar) M(le_scalar) M(gt_scalar) M(ge_scalar)        \
    M(full_like)
#define TWO_FLOATS(M)                                                                                                  \
    M(softplus) M(hardtanh) M(clamp)
#define REDUCE(M)                                                                                                      \
    M(sum) M(mean) M(amax) M(amin) M(logsumexp) M(prod) M(any) M(all)
#define ONE_INT(M)                                                                                                     \
    M(softmax) M(log_softmax) M(cumsum) M(cumprod) M(adaptive_avg_pool1d) M(adaptive_max_pool1d) M(one_hot) M(tril)    \
    M(triu) M(squeeze) M(unsqueeze)
#define TWO_INTS(M)                                                                                                    \
    M(adaptive_avg_pool2d) M(adaptive_max_pool2d) M(roll) M(movedim) M(select) M(flatten) M(argmax) M(argmin)          \
    M(argsort)
/* clang-format on */

/* name, the call */
#define CALLS(M)                                                                                                       \
    M(conv1d, kiln_conv1d(X(0), X(1), X(2), I(0), I(1), I(2), I(3)))                                                   \
    M(conv2d,                                                                                                          \
      kiln_conv2d(X(0), X(1), X(2), .stride = PAIR(0), .padding = PAIR(2), .dilation = PAIR(4), .groups = I(6)))       \
    M(conv_transpose1d, kiln_conv_transpose1d(X(0), X(1), X(2), I(0), I(1), I(2), I(3), I(4)))                         \
    M(conv_transpose2d, kiln_conv_transpose2d(X(0), X(1), X(2), .stride = PAIR(0), .padding = PAIR(2),                 \
                                              .output_padding = PAIR(4), .dilation = PAIR(6), .groups = I(8)))         \
    M(max_pool1d, kiln_max_pool1d(X(0), I(0), I(1), I(2), I(3), I(4)))                                                 \
    M(avg_pool1d, kiln_avg_pool1d(X(0), I(0), I(1), I(2), I(3), I(4)))                                                 \
    M(max_pool2d, kiln_max_pool2d(X(0), I(0), I(1), .stride = PAIR(2), .padding = PAIR(4), .dilation = PAIR(6),        \
                                  .ceil_mode = I(8)))                                                                  \
    M(avg_pool2d, kiln_avg_pool2d(X(0), I(0), I(1), .stride = PAIR(2), .padding = PAIR(4), .ceil_mode = I(6),          \
                                  .exclude_pad = I(7)))                                                                \
    M(interpolate1d, kiln_interpolate(X(0), 1, &I(0), (kiln_resize)I(1), I(2)))                                        \
    M(interpolate2d, kiln_interpolate(X(0), 2, &I(0), (kiln_resize)I(2), I(3)))                                        \
    M(cross_entropy, kiln_cross_entropy(X(0), X(1), .weight = X(2), .ignore_index = I(0), .ignore_zero = I(0) == 0,    \
                                        .reduction = REDUCTION(1), .label_smoothing = F(0)))                           \
    M(nll_loss, kiln_nll_loss(X(0), X(1), X(2), I(0), REDUCTION(1)))                                                   \
    M(mse_loss, kiln_mse_loss(X(0), X(1), REDUCTION(0)))                                                               \
    M(l1_loss, kiln_l1_loss(X(0), X(1), REDUCTION(0)))                                                                 \
    M(huber_loss, kiln_huber_loss(X(0), X(1), F(0), REDUCTION(0)))                                                     \
    M(smooth_l1_loss, kiln_smooth_l1_loss(X(0), X(1), F(0), REDUCTION(0)))                                             \
    M(binary_cross_entropy, kiln_binary_cross_entropy(X(0), X(1), X(2), REDUCTION(0)))                                 \
    M(binary_cross_entropy_with_logits, kiln_binary_cross_entropy_with_logits(X(0), X(1), X(2), X(3), REDUCTION(0)))   \
    M(kl_div, kiln_kl_div(X(0), X(1), I(0), REDUCTION(1)))                                                             \
    M(ctc_loss, kiln_ctc_loss(kiln_log_softmax(X(0), 2), X(1), X(2), X(3), I(0), REDUCTION(1), I(2)))                  \
    M(layer_norm, kiln_layer_norm(X(0), TAIL(X(0), I(0)), X(1), X(2), F(0)))                                           \
    M(rms_norm, kiln_rms_norm(X(0), TAIL(X(0), I(0)), X(1), F(0)))                                                     \
    M(group_norm, kiln_group_norm(X(0), I(0), X(1), X(2), F(0)))                                                       \
    M(batch_norm,                                                                                                      \
      (c->out[1] = X(1), c->out[2] = X(2), kiln_batch_norm(X(0), X(1), X(2), X(3), X(4), I(0), F(0), F(1))))           \
    M(embedding, kiln_embedding(X(0), X(1), I(0)))                                                                     \
    M(attention, kiln_scaled_dot_product_attention(X(0), X(1), X(2), X(3), 0, I(0), F(0)))                             \
    M(lstm, kiln_lstm(X(0), X(1), X(2), X(3), X(4), X(5), X(6), &c->out[1], &c->out[2]))                               \
    M(var, kiln_var(X(0), REST(2), I(0), I(1)))                                                                        \
    M(std, kiln_std(X(0), REST(2), I(0), I(1)))                                                                        \
    M(norm, kiln_norm(X(0), F(0), REST(1), I(0)))                                                                      \
    M(max, kiln_max(X(0), (int)I(0), I(1), &c->out[1]))                                                                \
    M(min, kiln_min(X(0), (int)I(0), I(1), &c->out[1]))                                                                \
    M(argmax_flat, kiln_argmax(X(0), KILN_FLAT, false))                                                                \
    M(argmin_flat, kiln_argmin(X(0), KILN_FLAT, false))                                                                \
    M(sort, kiln_sort(X(0), (int)I(0), I(1), &c->out[1]))                                                              \
    M(topk, kiln_topk(X(0), I(0), (int)I(1), I(2), &c->out[1]))                                                        \
    M(gather, kiln_gather(X(0), (int)I(0), X(1)))                                                                      \
    M(scatter, kiln_scatter(X(0), (int)I(0), X(1), X(2)))                                                              \
    M(scatter_add, kiln_scatter_add(X(0), (int)I(0), X(1), X(2)))                                                      \
    M(index_select, kiln_index_select(X(0), (int)I(0), X(1)))                                                          \
    M(index_add, kiln_index_add(X(0), (int)I(0), X(1), X(2)))                                                          \
    M(where, kiln_where(X(0), X(1), X(2)))                                                                             \
    M(masked_fill, kiln_masked_fill(X(0), X(1), F(0)))                                                                 \
    M(pad, kiln_pad(X(0), REST(1), (kiln_pad_mode)I(0), F(0)))                                                         \
    M(unfold, kiln_unfold(X(0), (int)I(0), I(1), I(2)))                                                                \
    M(diagonal, kiln_diagonal(X(0), I(0), (int)I(1), (int)I(2)))                                                       \
    M(flip, kiln_flip(X(0), REST(0)))                                                                                  \
    M(repeat, kiln_repeat(X(0), REST(0)))                                                                              \
    M(expand, kiln_expand(X(0), REST(0)))                                                                              \
    M(slice, kiln_slice(X(0), (int)I(0), I(1), I(2), I(3)))                                                            \
    M(squeeze_all, kiln_squeeze(X(0), KILN_FLAT))                                                                      \
    M(cat, kiln_cat(c->g->nin, c->in, (int)I(0)))                                                                      \
    M(stack, kiln_stack(c->g->nin, c->in, (int)I(0)))                                                                  \
    M(split, kiln_split(X(0), I(0), (int)I(1), c->out, GOLDEN_TENSORS) > 0 ? c->out[0] : NULL)                         \
    M(chunk, kiln_chunk(X(0), I(0), (int)I(1), c->out, GOLDEN_TENSORS) > 0 ? c->out[0] : NULL)                         \
    M(einsum, kiln_einsum(c->g->text, c->g->nin, c->in))                                                               \
    M(linear, kiln_linear(X(0), X(1), X(2)))                                                                           \
    M(lerp, kiln_lerp(X(0), X(1), F(0)))                                                                               \
    M(addcmul, kiln_addcmul(X(0), X(1), X(2), F(0)))                                                                   \
    M(addcdiv, kiln_addcdiv(X(0), X(1), X(2), F(0)))                                                                   \
    M(cast, kiln_cast(X(0), (kiln_dtype)I(0)))                                                                         \
    M(permute, kiln_permute(X(0), REST(0)))                                                                            \
    M(contiguous, kiln_contiguous(kiln_transpose(X(0), 0, 2)))                                                         \
    M(arange, kiln_arange(F(0), F(1), F(2), (kiln_dtype)I(0)))                                                         \
    M(linspace, kiln_linspace(F(0), F(1), I(0), (kiln_dtype)I(1)))                                                     \
    M(eye, kiln_eye(I(0), I(1), (kiln_dtype)I(2)))                                                                     \
    M(zeros, kiln_zeros(REST(1), (kiln_dtype)I(0)))                                                                    \
    M(ones, kiln_ones(REST(1), (kiln_dtype)I(0)))                                                                      \
    M(scalar, kiln_scalar(F(0), (kiln_dtype)I(0)))

#define DEFINE(name, expression)                                                                                       \
    static kiln_tensor *call_##name(call *c)                                                                           \
    {                                                                                                                  \
        return expression;                                                                                             \
    }
#define DEFINE_UNARY(name)  DEFINE(name, kiln_##name(X(0)))
#define DEFINE_BINARY(name) DEFINE(name, kiln_##name(X(0), X(1)))
#define DEFINE_F(name)      DEFINE(name, kiln_##name(X(0), F(0)))
#define DEFINE_FF(name)     DEFINE(name, kiln_##name(X(0), F(0), F(1)))
#define DEFINE_REDUCE(name) DEFINE(name, kiln_##name(X(0), REST(1), I(0)))
#define DEFINE_I(name)      DEFINE(name, kiln_##name(X(0), (int)I(0)))
#define DEFINE_II(name)     DEFINE(name, kiln_##name(X(0), (int)I(0), (int)I(1)))
CALLS(DEFINE)
UNARY(DEFINE_UNARY)
BINARY(DEFINE_BINARY)
ONE_FLOAT(DEFINE_F)
TWO_FLOATS(DEFINE_FF)
REDUCE(DEFINE_REDUCE)
ONE_INT(DEFINE_I)
TWO_INTS(DEFINE_II)

#define ROW(name)              {#name, call_##name},
#define ROW2(name, expression) ROW(name)
static const struct {
    const char *name;
    kiln_tensor *(*run)(call *c);
} calls[] = {CALLS(ROW2) UNARY(ROW) BINARY(ROW) ONE_FLOAT(ROW) TWO_FLOATS(ROW) REDUCE(ROW) ONE_INT(ROW) TWO_INTS(ROW)};

enum { CALLS_KNOWN = sizeof calls / sizeof *calls };
static kiln_device devices[TEST_DEVICES];
static int ndevices;
static bool seen[CALLS_KNOWN];
static int64_t cases, values, failures;
static const char *file_name;

static void disagree(const golden_case *g, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void disagree(const golden_case *g, const char *format, ...)
{
    if (failures++ >= 60)
        return;
    va_list args;
    va_start(args, format);
    fprintf(stderr, "%s.txt:%d: %s: ", file_name, g->line, g->op);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
}

static kiln_tensor *make(const golden_tensor *t)
{
    if (!t->present)
        return NULL;
    void *bytes = calloc((size_t)t->count + 1, 8);
    number_store(bytes, t->dtype, t->data, t->count);
    kiln_tensor *made = kiln_tensor_new(bytes, t->dtype, t->ndim, t->shape, kiln_default_device());
    free(bytes);
    return t->wants_grad ? kiln_requires_grad(made, true) : made;
}

/* Equal, both NaN, or within the dtype's rounding: PyTorch sums in another order. */
static bool agrees(double got, double want, kiln_dtype dtype, double largest)
{
    if (isnan(want) || isnan(got))
        return isnan(want) && isnan(got);
    if (got == want)
        return true;
    double relative = dtype == KILN_F64 ? 1e-11 : 4 * number_epsilon(dtype);
    double floor = 1e-2; /* of the largest operand: small results of large terms */
    return fabs(got - want) <= relative * (fabs(want) + floor * fmin(largest, 1)) + (dtype == KILN_F64 ? 1e-13 : 0);
}

static void compare(const golden_case *g, const char *what, int which, kiln_tensor *t, const golden_tensor *want)
{
    if (!t) {
        disagree(g, "%s %d is missing: %s", what, which, kiln_last_error()->message);
        return;
    }
    bool shaped = kiln_ndim(t) == want->ndim;
    for (int d = 0; shaped && d < want->ndim; d++)
        shaped = kiln_size(t, d) == want->shape[d];
    if (!shaped || kiln_dtype_of(t) != want->dtype) {
        disagree(g, "%s %d has another shape, or the dtype %s instead of %s", what, which,
                 kiln_dtype_name(kiln_dtype_of(t)), kiln_dtype_name(want->dtype));
        return;
    }
    void *bytes = calloc((size_t)want->count + 1, 8);
    double *got = calloc((size_t)want->count + 1, sizeof(double)), largest = 0;
    if (!kiln_read(t, bytes, (size_t)want->count * kiln_dtype_size(want->dtype)))
        disagree(g, "%s %d cannot be read: %s", what, which, kiln_last_error()->message);
    number_load(got, want->dtype, bytes, want->count);
    for (int64_t i = 0; i < want->count; i++)
        if (isfinite(want->data[i]))
            largest = fmax(largest, fabs(want->data[i]));
    for (int64_t i = 0; i < want->count; i++) {
        if (!agrees(got[i], want->data[i], want->dtype, largest)) {
            disagree(g, "%s %d, element %lld: %.17g instead of %.17g", what, which, (long long)i, got[i],
                     want->data[i]);
            break;
        }
        values++;
    }
    free(bytes);
    free(got);
}

/* The weights of make_golden.py: w[i] = (37 i mod 19 - 9) / 8. */
static kiln_tensor *weights(const kiln_tensor *like)
{
    int64_t n = kiln_numel(like);
    double *w = calloc((size_t)n + 1, sizeof(double));
    void *bytes = calloc((size_t)n + 1, 8);
    for (int64_t i = 0; i < n; i++)
        w[i] = (double)(i * 37 % 19 - 9) / 8;
    number_store(bytes, kiln_dtype_of(like), w, n);
    kiln_tensor *t =
        kiln_tensor_new(bytes, kiln_dtype_of(like), kiln_ndim(like), kiln_shape(like), kiln_device_of(like));
    free(w);
    free(bytes);
    return t;
}

static bool all_zero(const golden_tensor *t)
{
    for (int64_t k = 0; k < t->count; k++)
        if (t->data[k] != 0)
            return false;
    return true;
}

static void check_gradients(const golden_case *g, call *c)
{
    bool any = false;
    for (int i = 0; i < g->nin; i++)
        any |= g->in[i].wants_grad;
    if (!any || !c->out[0])
        return;
    if (!kiln_needs_grad(c->out[0])) { /* fine where PyTorch has a gradient of zeros */
        for (int i = 0; i < g->nin; i++)
            if (g->in[i].wants_grad && !all_zero(&g->grad[i]))
                disagree(g, "input %d has no gradient", i);
        return;
    }
    if (!kiln_backward_with(c->out[0], weights(c->out[0]))) {
        disagree(g, "no gradient: %s", kiln_last_error()->message);
        return;
    }
    for (int i = 0; i < g->nin; i++) {
        if (!g->in[i].wants_grad)
            continue;
        golden_tensor want = g->grad[i];
        want.dtype = g->in[i].dtype;
        kiln_tensor *grad = kiln_grad_of(c->in[i]);
        if (grad || !all_zero(&want)) /* where nothing flows back there may be no gradient at all */
            compare(g, "gradient", i, grad, &want);
    }
}

static void run_case(const golden_case *g)
{
    int k = 0;
    while (k < CALLS_KNOWN && strcmp(calls[k].name, g->op))
        k++;
    if (k == CALLS_KNOWN) {
        disagree(g, "no such call");
        return;
    }
    int64_t before = failures;
    call c = {.g = g};
    for (int i = 0; i < g->nin; i++)
        c.in[i] = make(&g->in[i]);
    c.out[0] = calls[k].run(&c);
    for (int j = 0; j < g->nout; j++)
        compare(g, "result", j, c.out[j], &g->out[j]);
    if (failures == before)
        check_gradients(g, &c);
    cases++;
    seen[k] |= failures == before;
    kiln_error_clear();
}

static void run_file(const char *name, kiln_device device)
{
    char path[64];
    snprintf(path, sizeof path, "golden/%s.txt", name);
    golden_file f;
    if (!golden_open(&f, test_file(path)))
        fail_msg("cannot read %s", test_file(path));
    file_name = name;
    int64_t before = failures;
    golden_case g;
    int state;
    for (int64_t number = 0; (state = golden_next(&f, &g)) == 1; number++) {
        kiln_on_device (device)
            kiln_scope {
                if (suite_wants_named(g.op, number))
                    run_case(&g);
            }
        golden_case_free(&g);
    }
    golden_case_free(&g);
    int line = f.line;
    golden_close(&f);
    if (state < 0)
        fail_msg("%s:%d: malformed", path, line);
    assert_int_equal(failures - before, 0);
}

/* What a float that does not fit becomes is the processor's business: PyTorch's devices differ there, too. */
static bool takes_part(const char *file, kiln_device device)
{
    return strcmp(file, "casts") != 0 || has_cpu_bits(device);
}

/* clang-format off */
#define FILES(M)                                                                                                       \
    M(conv) M(pool) M(resize) M(loss) M(norm) M(attention) M(reduce) M(pick) M(shape) M(product) M(pointwise)          \
    M(promote) M(create) M(recurrent) M(integers) M(corners) M(casts)
/* clang-format on */
#define TEST(name)                                                                                                     \
    static void test_##name(void **state)                                                                              \
    {                                                                                                                  \
        (void)state;                                                                                                   \
        for (int d = 0; d < ndevices; d++)                                                                             \
            if (takes_part(#name, devices[d]))                                                                         \
                run_file(#name, devices[d]);                                                                           \
    }
FILES(TEST)

int main(void)
{
    ndevices = devices_under_test(devices);
    if (!ndevices)
        return test_exit(0);
#define UNIT(name) cmocka_unit_test_setup_teardown(test_##name, memory_before, memory_after),
    const struct CMUnitTest tests[] = {FILES(UNIT)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL), operations = 0;
    for (int k = 0; k < CALLS_KNOWN; k++)
        operations += seen[k];
    printf("golden: %d operations, %lld cases, %lld values agree with PyTorch (%d devices)\n", operations,
           (long long)cases, (long long)values, ndevices);
    return test_exit(failed || complaints());
}
