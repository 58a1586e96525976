/* Autocast: every operation has the type that it has under PyTorch's on a GPU; what it computes is what the same
 * operation gives with operands that were converted by hand, to the bit; weights are converted once a step and get
 * gradients of their own type; gradients, updates and averages take no notice of it; scopes nest and end. */
#include "models.h"
#include "support/core.h"
#include "support/where.h"

/* ctest: name=eager env=KILN_EAGER=1 */

static const kiln_dtype floats[] = {KILN_F32, KILN_BF16, KILN_F16, KILN_F64};

static kiln_dtype dtype_named(const char *name)
{
    for (size_t i = 0; i < sizeof floats / sizeof *floats; i++)
        if (!strcmp(kiln_dtype_name(floats[i]), name))
            return floats[i];
    return KILN_DTYPES;
}

/* ---- Types, beside PyTorch's ---- */

typedef kiln_tensor *T;

static T image(T x)
{
    return kiln_reshape(x, KILN_SHAPE(1, 1, 4, 4));
}

static T row(T x)
{
    return kiln_select(x, 0, 0);
}

static T labels(void)
{
    return kiln_zeros(KILN_SHAPE(4), KILN_I64);
}

static T all(T (*reduce)(T, int, const int64_t *, bool), T x)
{
    return reduce(x, KILN_SHAPE(0, 1), false);
}

/* The operations of golden/autocast.txt, with operands a and b of shape [4, 4]. */
static T apply(const char *name, T a, T b)
{
#define IS(text, ...)                                                                                                  \
    if (!strcmp(name, text))                                                                                           \
        return __VA_ARGS__;
    IS("neg", kiln_neg(a))
    IS("abs", kiln_abs(a))
    IS("sqrt", kiln_sqrt(a))
    IS("rsqrt", kiln_rsqrt(a))
    IS("reciprocal", kiln_reciprocal(a))
    IS("exp", kiln_exp(a))
    IS("expm1", kiln_expm1(a))
    IS("log", kiln_log(a))
    IS("log2", kiln_log2(a))
    IS("log10", kiln_log10(a))
    IS("log1p", kiln_log1p(a))
    IS("sin", kiln_sin(a))
    IS("cos", kiln_cos(a))
    IS("tan", kiln_tan(a))
    IS("asin", kiln_asin(a))
    IS("acos", kiln_acos(a))
    IS("atan", kiln_atan(a))
    IS("sinh", kiln_sinh(a))
    IS("cosh", kiln_cosh(a))
    IS("tanh", kiln_tanh(a))
    IS("erf", kiln_erf(a))
    IS("floor", kiln_floor(a))
    IS("relu", kiln_relu(a))
    IS("leaky_relu", kiln_leaky_relu(a, 0.01))
    IS("elu", kiln_elu(a, 1))
    IS("gelu", kiln_gelu(a))
    IS("silu", kiln_silu(a))
    IS("sigmoid", kiln_sigmoid(a))
    IS("logsigmoid", kiln_logsigmoid(a))
    IS("softplus", kiln_softplus(a, 1, 20))
    IS("hardswish", kiln_hardswish(a))
    IS("mish", kiln_mish(a))
    IS("softmax", kiln_softmax(a, -1))
    IS("log_softmax", kiln_log_softmax(a, -1))
    IS("dropout", kiln_dropout(a, 0.5, true))
    IS("sum", kiln_sum_all(a))
    IS("mean", kiln_mean_all(a))
    IS("prod", all(kiln_prod, a))
    IS("amax", all(kiln_amax, a))
    IS("var", kiln_var(a, KILN_SHAPE(0, 1), 1, false))
    IS("std", kiln_std(a, KILN_SHAPE(0, 1), 1, false))
    IS("logsumexp", kiln_logsumexp(a, KILN_SHAPE(-1), false))
    IS("norm", kiln_norm(a, 2, KILN_SHAPE(0, 1), false))
    IS("cumsum", kiln_cumsum(a, 0))
    IS("cumprod", kiln_cumprod(a, 0))
    IS("pow_scalar", kiln_pow_scalar(a, 3))
    IS("square", kiln_square(a))
    IS("add_scalar", kiln_add_scalar(a, 1))
    IS("clamp", kiln_clamp(a, -1, 1))
    IS("max_pool2d", kiln_max_pool2d(image(a), 2, 2))
    IS("avg_pool2d", kiln_avg_pool2d(image(a), 2, 2))
    IS("adaptive_avg_pool2d", kiln_adaptive_avg_pool2d(image(a), 2, 2))
    IS("interpolate", kiln_interpolate(image(a), KILN_SHAPE(8, 8), KILN_LINEAR, false))
    IS("transpose", kiln_transpose(a, 0, 1))
    IS("flip", kiln_flip(a, KILN_SHAPE(0)))
    IS("pad", kiln_pad(a, KILN_SHAPE(1, 1), KILN_PAD_CONSTANT, 0))
    IS("tril", kiln_tril(a, 0))
    IS("sort", kiln_sort(a, -1, false, NULL))
    IS("max", kiln_max(a, 0, false, NULL))
    IS("erfc", kiln_erfc(a))
    IS("exp2", kiln_exp2(a))
    IS("selu", kiln_selu(a))
    IS("celu", kiln_celu(a, 1))
    IS("hardsigmoid", kiln_hardsigmoid(a))
    IS("softsign", kiln_softsign(a))
    IS("asinh", kiln_asinh(a))
    IS("acosh", kiln_acosh(a))
    IS("atanh", kiln_atanh(a))
    IS("round", kiln_round(a))
    IS("frac", kiln_frac(a))
    IS("rdiv_scalar", kiln_rdiv_scalar(a, 1))
    IS("rsub_scalar", kiln_rsub_scalar(a, 1))
    IS("remainder_scalar", kiln_remainder_scalar(a, 2))
    IS("relu6", kiln_relu6(a))
    IS("gelu_tanh", kiln_gelu_tanh(a))
    IS("hardtanh", kiln_hardtanh(a, -1, 1))
    IS("nearest", kiln_interpolate(image(a), KILN_SHAPE(8, 8), KILN_NEAREST, false))
    IS("bicubic", kiln_interpolate(image(a), KILN_SHAPE(8, 8), KILN_BICUBIC, false))
    IS("embedding", kiln_embedding(a, labels(), -1))
    IS("index_select", kiln_index_select(a, 0, labels()))
    IS("adaptive_max_pool2d", kiln_adaptive_max_pool2d(image(a), 2, 2))
    IS("topk", kiln_topk(a, 2, -1, true, NULL))
    IS("outer", kiln_outer(row(a), row(b)))
    IS("hypot", kiln_hypot(a, b))
    IS("fmod", kiln_fmod(a, b))
    IS("cross_entropy", kiln_cross_entropy(a, labels()))
    IS("nll_loss", kiln_nll_loss(a, labels(), NULL, -100, KILN_MEAN))
    IS("matmul", kiln_matmul(a, b))
    IS("linear", kiln_linear(a, b, NULL))
    IS("conv2d", kiln_conv2d(image(a), image(b), NULL))
    IS("conv_transpose2d", kiln_conv_transpose2d(image(a), image(b), NULL))
    IS("einsum", kiln_einsum("ij,jk->ik", 2, (T[]){a, b}))
    IS("dot", kiln_dot(row(a), row(b)))
    IS("add", kiln_add(a, b))
    IS("sub", kiln_sub(a, b))
    IS("mul", kiln_mul(a, b))
    IS("div", kiln_div(a, b))
    IS("pow", kiln_pow(a, b))
    IS("atan2", kiln_atan2(a, b))
    IS("maximum", kiln_maximum(a, b))
    IS("where", kiln_where(kiln_gt_scalar(a, 0), a, b))
    IS("lerp", kiln_lerp(a, b, 0.5))
    IS("addcmul", kiln_addcmul(a, b, b, 0.5))
    IS("addcdiv", kiln_addcdiv(a, b, b, 0.5))
    IS("cat", kiln_cat(2, (T[]){a, b}, 0))
    IS("stack", kiln_stack(2, (T[]){a, b}, 0))
    IS("mse_loss", kiln_mse_loss(a, b, KILN_MEAN))
    IS("l1_loss", kiln_l1_loss(a, b, KILN_MEAN))
    IS("huber_loss", kiln_huber_loss(a, b, 1, KILN_MEAN))
    IS("smooth_l1_loss", kiln_smooth_l1_loss(a, b, 1, KILN_MEAN))
    IS("bce_with_logits", kiln_binary_cross_entropy_with_logits(a, b, NULL, NULL, KILN_MEAN))
    IS("kl_div", kiln_kl_div(a, b, false, KILN_MEAN))
    IS("layer_norm", kiln_layer_norm(a, KILN_SHAPE(4), row(b), NULL, 1e-5))
    IS("rms_norm", kiln_rms_norm(a, KILN_SHAPE(4), row(b), 1e-5))
    IS("group_norm", kiln_group_norm(a, 2, row(b), NULL, 1e-5))
    IS("batch_norm", kiln_batch_norm(a, NULL, NULL, row(b), row(b), true, 0.1, 1e-5))
    IS("attention", kiln_scaled_dot_product_attention(image(a), image(b), image(b), NULL, 0, false, 0))
    IS("scatter_add", kiln_scatter_add(a, 0, kiln_zeros(KILN_SHAPE(4, 4), KILN_I64), b))
#undef IS
    fail_msg("no operation %s", name);
    return NULL;
}

static T operand(kiln_dtype dtype)
{
    return kiln_cast(kiln_full(KILN_SHAPE(4, 4), 0.5, KILN_F32), dtype);
}

static void test_types(void **state)
{
    (void)state;
    FILE *f = fopen(test_file("golden/autocast.txt"), "r");
    assert_non_null(f);
    char line[160], name[32], lower[8], a[8], b[8], result[8];
    int count = 0, wrong = 0;
    while (fgets(line, sizeof line, f)) {
        bool two = sscanf(line, "%31s %7s : %7s %7s -> %7s", name, lower, a, b, result) == 5 && strcmp(b, "->") != 0;
        if (!two)
            assert_int_equal(sscanf(line, "%31s %7s : %7s -> %7s", name, lower, a, result), 4);
        kiln_scope {
            T x = operand(dtype_named(a)), y = two ? operand(dtype_named(b)) : NULL, z = NULL;
            kiln_autocast (dtype_named(lower))
                z = apply(name, x, y);
            if (!z || kiln_dtype_of(z) != dtype_named(result) || !kiln_eval()) {
                print_error("%s here: %s\n", line, z ? kiln_dtype_name(kiln_dtype_of(z)) : kiln_last_error()->message);
                wrong++;
                kiln_error_clear();
            }
        }
        count++;
    }
    fclose(f);
    assert_true(count > 600);
    assert_int_equal(wrong, 0);
}

/* ---- Values ---- */

enum { IN = 12, HIDDEN = 16, CLASSES = 5, BATCH = 6 };

typedef struct net {
    T w1, b1, w2, b2, x, y;
} net;

static net make_net(void)
{
    kiln_manual_seed(3);
    net n = {.w1 = kiln_keep(kiln_randn(KILN_SHAPE(HIDDEN, IN), KILN_F32)),
             .b1 = kiln_keep(kiln_randn(KILN_SHAPE(HIDDEN), KILN_F32)),
             .w2 = kiln_keep(kiln_randn(KILN_SHAPE(CLASSES, HIDDEN), KILN_F32)),
             .b2 = kiln_keep(kiln_randn(KILN_SHAPE(CLASSES), KILN_F32)),
             .x = kiln_keep(kiln_randn(KILN_SHAPE(BATCH, IN), KILN_F32)),
             .y = kiln_keep(kiln_randint(0, CLASSES, KILN_SHAPE(BATCH), KILN_I64))};
    for (T *p = &n.w1; p <= &n.b2; p++)
        kiln_requires_grad(*p, true);
    return n;
}

static void free_net(net *n)
{
    for (T *p = &n->w1; p <= &n->y; p++)
        kiln_release(*p);
}

static T loss_of(const net *n)
{
    T h = kiln_gelu(kiln_linear(n->x, n->w1, n->b1));
    return kiln_cross_entropy(kiln_linear(h, n->w2, n->b2), n->y);
}

/* The same with conversions written by hand. */
static T loss_by_hand(const net *n, kiln_dtype d)
{
    T h = kiln_gelu(kiln_linear(kiln_cast(n->x, d), kiln_cast(n->w1, d), kiln_cast(n->b1, d)));
    T out = kiln_linear(h, kiln_cast(n->w2, d), kiln_cast(n->b2, d));
    return kiln_cross_entropy(kiln_cast(out, KILN_F32), n->y);
}

static void read_grads(const net *n, float *to)
{
    const T params[] = {n->w1, n->b1, n->w2, n->b2};
    for (int i = 0; i < 4; i++) {
        T g = kiln_grad_of(params[i]);
        assert_non_null(g);
        assert_int_equal(kiln_dtype_of(g), KILN_F32);
        int64_t count = kiln_numel(g);
        assert_true(kiln_read(g, to, (size_t)count * sizeof *to));
        to += count;
        kiln_zero_grad_of(params[i]);
    }
}

enum { PARAMETERS = HIDDEN * IN + HIDDEN + CLASSES * HIDDEN + CLASSES };

/* Also when kiln_backward stands inside the braces. */
static void test_as_by_hand(void **state)
{
    (void)state;
    net n = make_net();
    for (int half = 1; half <= 2; half++)
        for (int inside = 0; inside < 2; inside++) {
            float cast[PARAMETERS], by_hand[PARAMETERS], loss[2];
            kiln_step {
                T l = NULL;
                kiln_autocast (floats[half]) {
                    l = loss_of(&n);
                    if (inside)
                        kiln_backward(l);
                }
                if (!inside)
                    kiln_backward(l);
                kiln_read(l, &loss[0], sizeof *loss);
            }
            read_grads(&n, cast);
            kiln_step {
                T l = loss_by_hand(&n, floats[half]);
                kiln_backward(l);
                kiln_read(l, &loss[1], sizeof *loss);
            }
            read_grads(&n, by_hand);
            assert_true(kiln_ok());
            assert_memory_equal(&loss[0], &loss[1], sizeof *loss);
            assert_memory_equal(cast, by_hand, sizeof cast);
        }
    free_net(&n);
}

/* A weight that is used three times is converted once: planning makes one of equal conversions. */
static void test_converted_once(void **state)
{
    (void)state;
    skip_if_eager();
    kiln_plan_info one = {0}, three = {0};
    T w = kiln_keep(kiln_randn(KILN_SHAPE(64, 64), KILN_F32)), x = kiln_keep(kiln_randn(KILN_SHAPE(8, 64), KILN_F32));
    for (int times = 1; times <= 3; times += 2)
        kiln_step {
            T y = x;
            kiln_autocast (KILN_BF16)
                for (int i = 0; i < times; i++)
                    y = kiln_linear(y, w, NULL);
            kiln_keep(y);
            assert_true(kiln_plan_pending(times == 1 ? &one : &three));
            kiln_discard();
            kiln_release(y);
        }
    assert_int_equal(three.kernels - one.kernels, 2); /* two products more, and nothing else */
    kiln_release(w);
    kiln_release(x);
}

/* ---- Scopes ---- */

static kiln_dtype type_of_product(T x)
{
    T y = kiln_matmul(x, x);
    return y ? kiln_dtype_of(y) : KILN_DTYPES;
}

static void leave_by_return(void)
{
    kiln_autocast (KILN_F16)
        return;
}

static void test_scopes(void **state)
{
    (void)state;
    kiln_scope {
        T x = operand(KILN_F32);
        assert_int_equal(kiln_autocast_dtype(), KILN_F32);
        kiln_autocast (KILN_BF16) {
            assert_int_equal(type_of_product(x), KILN_BF16);
            kiln_autocast (KILN_F16)
                assert_int_equal(type_of_product(x), KILN_F16);
            kiln_autocast (KILN_F32) {
                assert_int_equal(type_of_product(x), KILN_F32);
                assert_int_equal(kiln_autocast_dtype(), KILN_F32);
            }
            assert_int_equal(kiln_autocast_dtype(), KILN_BF16);
        }
        leave_by_return();
        assert_int_equal(kiln_autocast_dtype(), KILN_F32);
        assert_int_equal(type_of_product(x), KILN_F32);
        kiln_autocast (KILN_F64)
            assert_int_equal(type_of_product(x), KILN_F32); /* as if it were not there */
        expect_error(KILN_E_DTYPE, "autocast", "f64");
        kiln_autocast ((kiln_dtype)99) {
        }
        expect_error(KILN_E_DTYPE, "autocast", "no dtype");
        kiln_autocast (KILN_BF16)
            for (int i = 0; i < 2; i++)
                kiln_autocast (KILN_F16)
                    break;
        static bool told; /* it is said once */
        const char *notice = kiln_next_notice();
        assert_true(told || (notice && strstr(notice, "kiln_autocast")));
        told = true;
        assert_int_equal(kiln_autocast_dtype(), KILN_F32);
    }
}

/* Optimizers that multiply matrices, clipping and averages are what they are outside. */
static void test_updates_take_no_notice(void **state)
{
    (void)state;
    float after[2][HIDDEN * IN], average[2][HIDDEN * IN];
    for (int inside = 0; inside < 2; inside++) {
        kiln_manual_seed(5);
        kiln_module *m = kiln_nn_linear(IN, HIDDEN);
        kiln_optim *o = kiln_optim_muon(kiln_parameters(m), .lr = 0.1);
        kiln_ema *ema = kiln_ema_new(m, 0.5);
        T x = kiln_keep(kiln_randn(KILN_SHAPE(BATCH, IN), KILN_F32)), w = kiln_module_tensor(m, "weight");
        for (int step = 0; step < 3; step++)
            kiln_step {
                kiln_zero_grad(o);
                T loss = kiln_mean_all(kiln_square(kiln_forward(m, x)));
                kiln_autocast (inside ? KILN_BF16 : KILN_F32) {
                    kiln_backward(loss);
                    kiln_clip_grad_norm(kiln_parameters(m), 0.5);
                    kiln_optim_step(o);
                    kiln_ema_update(ema);
                }
            }
        assert_true(kiln_read(w, after[inside], sizeof after[inside]));
        assert_true(kiln_read(kiln_ema_state(ema).tensors[0], average[inside], sizeof average[inside]));
        kiln_release(x);
        kiln_ema_free(ema);
        kiln_optim_free(o);
        kiln_module_free(m);
    }
    assert_memory_equal(after[0], after[1], sizeof after[0]);
    assert_memory_equal(average[0], average[1], sizeof average[0]);
}

/* ---- Gradients of gradients, modules and losses of one's own ---- */

/* A critic: two linear layers by hand around a child, as a program writes its own modules. */
static T criticise(kiln_module *self, T x, void *context)
{
    (void)context;
    T h = kiln_forward(kiln_module_child(self, "body"), x);
    return kiln_linear(kiln_leaky_relu(h, 0.2), kiln_module_tensor(self, "head"), NULL);
}

static kiln_module *make_critic(void)
{
    kiln_manual_seed(6);
    kiln_module *m = kiln_module_new("Critic", criticise, NULL, NULL);
    assert_true(kiln_module_add(m, "body", kiln_nn_linear(IN, HIDDEN)));
    T head = NULL;
    kiln_scope
        head = kiln_keep(kiln_mul_scalar(kiln_randn(KILN_SHAPE(1, HIDDEN), KILN_F32), 0.3));
    assert_non_null(kiln_module_add_parameter(m, "head", head));
    return m;
}

/* WGAN-GP: (|d critic / d x| - 1)². Its gradient is one of a gradient. */
static T penalty(kiln_module *critic, T x)
{
    T y = kiln_forward(critic, x), g = NULL;
    if (!kiln_grad(y, NULL, &x, 1, &g))
        return NULL;
    T norm = kiln_norm(kiln_cast(g, KILN_F32), 2, KILN_DIMS(1), false);
    return kiln_add(kiln_mul_scalar(kiln_mean_all(kiln_square(kiln_add_scalar(norm, -1))), 10), kiln_mean_all(y));
}

static void test_gradient_penalty(void **state)
{
    (void)state;
    float loss[3], grads[3][HIDDEN * IN];
    for (int d = 0; d < 3; d++) {
        kiln_module *m = make_critic();
        kiln_optim *o = kiln_optim_adam(kiln_parameters(m), .lr = 1e-3);
        kiln_ema *ema = kiln_ema_new(m, 0.9);
        T x = kiln_keep(kiln_randn(KILN_SHAPE(BATCH, IN), KILN_F32));
        kiln_requires_grad(x, true);
        kiln_step {
            T l = NULL;
            kiln_autocast (floats[d])
                l = penalty(m, x);
            assert_true(kiln_backward(l) && kiln_optim_step(o) && kiln_ema_update(ema));
            assert_true(kiln_read(l, &loss[d], sizeof *loss));
        }
        T w = kiln_module_tensor(m, "body.weight");
        assert_int_equal(kiln_dtype_of(kiln_grad_of(w)), KILN_F32);
        assert_true(kiln_read(kiln_grad_of(w), grads[d], sizeof grads[d]));
        assert_int_equal(kiln_dtype_of(kiln_ema_state(ema).tensors[0]), KILN_F32);
        double precision = d == 0 ? 0 : d == 1 ? 0.03 : 0.004, most = 0;
        for (int i = 0; i < HIDDEN * IN; i++)
            most = fmax(most, fabs(grads[0][i]));
        assert_near(loss[d], loss[0], precision);
        for (int i = 0; i < HIDDEN * IN; i++)
            if (fabs(grads[d][i] - grads[0][i]) > precision * most)
                fail_msg("%s, element %d: %g instead of %g", kiln_dtype_name(floats[d]), i, grads[d][i], grads[0][i]);
        assert_true(most > 0.01);
        kiln_release(x);
        kiln_ema_free(ema);
        kiln_optim_free(o);
        kiln_module_free(m);
    }
}

/* A loss of one's own: inside fit it sees what autocast made of the output, and may switch it off. */
static T own_loss(T output, T x, T y, void *context)
{
    (void)x;
    bool *seen = context;
    *seen |= kiln_autocast_dtype() == KILN_BF16 && kiln_dtype_of(output) == KILN_BF16;
    T l = NULL;
    kiln_autocast (KILN_F32)
        l = kiln_mean_all(kiln_square(kiln_sub(kiln_cast(output, KILN_F32), y)));
    return l;
}

static void test_fit_with_own_loss(void **state)
{
    (void)state;
    kiln_manual_seed(2);
    kiln_module *m = make_critic();
    T x = kiln_keep(kiln_randn(KILN_SHAPE(64, IN), KILN_F32)), y = kiln_keep(kiln_zeros(KILN_SHAPE(64, 1), KILN_F32));
    assert_true(kiln_eval());
    kiln_dataset *d = kiln_data_tensors(x, y);
    assert_non_null(d);
    bool seen = false;
    kiln_history h =
        kiln_fit(m, d, .epochs = 3, .batch = 16, .loss_fn = own_loss, .loss_context = &seen, .autocast = KILN_BF16);
    assert_true(kiln_ok() && seen && h.count == 3);
    kiln_history_free(&h);
    assert_int_equal(kiln_dtype_of(kiln_module_tensor(m, "body.weight")), KILN_F32);
    kiln_result e = kiln_evaluate(m, d, .batch = 16, .loss_fn = own_loss, .loss_context = &seen, .autocast = KILN_BF16);
    assert_true(kiln_ok() && isfinite(e.loss));
    kiln_data_free(d);
    kiln_release(x);
    kiln_release(y);
    kiln_module_free(m);
}

/* ---- Memory ---- */

typedef enum kind { PLAIN, AUTOCAST, CAST } kind;

/* The plan of a training step, without memory. */
static kiln_plan_info plan_of(const char *model, kind how, int64_t batch, int64_t length)
{
    char why[200];
    model_options o = {0};
    const model_entry *e = model_find(model, &o, why, sizeof why);
    assert_non_null(e);
    kiln_plan_info info = {0};
    kiln_shapes_only {
        kiln_module *m = e->build(o);
        assert_true(m && (how != CAST || kiln_module_cast(m, KILN_BF16)));
        kiln_optim *optim = kiln_optim_adamw(kiln_parameters(m));
        kiln_step {
            T x = e->tokens ? kiln_zeros(KILN_SHAPE(batch, length), KILN_I64)
                            : kiln_zeros(KILN_SHAPE(batch, 3, length, length), how == CAST ? KILN_BF16 : KILN_F32);
            T labels = kiln_zeros(KILN_SHAPE(e->tokens ? batch * length : batch), KILN_I64);
            kiln_autocast (how == AUTOCAST ? KILN_BF16 : KILN_F32) {
                T y = kiln_forward(m, x);
                if (e->tokens && y)
                    y = kiln_reshape(y, KILN_SHAPE(batch * length, -1));
                kiln_backward(kiln_cross_entropy(y, labels));
            }
            kiln_optim_step(optim);
            assert_true(kiln_ok() && kiln_plan_pending(&info));
            kiln_discard();
        }
        kiln_optim_free(optim);
        kiln_module_free(m);
    }
    return info;
}

/* What a step keeps under autocast, and of a model that is cast, beside what it keeps in f32. */
static void test_activations(void **state)
{
    (void)state;
    skip_if_eager();
    static const struct {
        const char *model;
        int64_t batch, length;
        double autocast, cast;
    } all[] = {{"gpt2", 8, 1024, 0.65, 0.5},
               {"gpt2", 4, 512, 0.65, 0.5},
               {"gpt2:layers=6,embed=384,heads=6,context=256,vocabulary=5000", 8, 256, 0.65, 0.5},
               {"vit-tiny", 64, 32, 0.75, 0.6},
               {"resnet50", 8, 224, 0.7, 0.7}};
    kiln_chunk_above(INT64_MAX); /* what is cut into chunks of so many bytes takes these in any type */
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        double peak[3];
        for (int how = PLAIN; how <= CAST; how++)
            peak[how] = (double)plan_of(all[i].model, (kind)how, all[i].batch, all[i].length).activation_peak_bytes;
        if (peak[AUTOCAST] > all[i].autocast * peak[PLAIN] || peak[CAST] > all[i].cast * peak[PLAIN])
            fail_msg("%s: autocast keeps %.3f of what f32 keeps, a cast model %.3f", all[i].model,
                     peak[AUTOCAST] / peak[PLAIN], peak[CAST] / peak[PLAIN]);
    }
    kiln_chunk_above(0);
}

enum { ROWS = 160, COLUMNS = 256 };

/* Two readers far apart, of a value that is a cast and of one that follows from it. */
static T far_apart(T x)
{
    T centred = kiln_sub(x, kiln_mean(x, KILN_DIMS(0), true)), y = kiln_cumsum(centred, 1);
    for (int i = 0; i < 40; i++)
        y = kiln_tanh(kiln_cumprod(y, 1));
    return kiln_sum_all(kiln_mul(kiln_mul(y, centred), kiln_cumsum(x, 0)));
}

/* What is made again has the bits it had: beside the same step in f32, whose operand holds the rounded numbers. */
static void test_made_again(void **state)
{
    (void)state;
    static float gradient[2][ROWS * COLUMNS];
    float loss[2];
    for (int half = 0; half < 2; half++) {
        kiln_manual_seed(7);
        T x = NULL;
        kiln_scope {
            T start = kiln_cast(kiln_randn(KILN_SHAPE(ROWS, COLUMNS), KILN_F32), KILN_BF16);
            x = kiln_keep(half ? start : kiln_cast(start, KILN_F32));
        }
        assert_true(kiln_eval() && kiln_requires_grad(x, true));
        kiln_step {
            T l = far_apart(half ? kiln_cast(x, KILN_F32) : x);
            assert_true(kiln_backward(l));
            assert_true(kiln_read(l, &loss[half], sizeof *loss));
        }
        kiln_scope {
            T g = kiln_cast(kiln_cast(kiln_grad_of(x), KILN_BF16), KILN_F32);
            assert_true(kiln_read(g, gradient[half], sizeof gradient[half]));
        }
        kiln_release(x);
    }
    assert_memory_equal(&loss[0], &loss[1], sizeof *loss);
    assert_memory_equal(gradient[0], gradient[1], sizeof gradient[0]);
}

/* ---- Large losses ---- */

enum { TARGETS = 60, CHOICES = 20000, PART = 15 };

static T rows_of(T x, int64_t from, int64_t count)
{
    return kiln_slice(x, 0, from, from + count, 1);
}

/* So many rows of the losses and their gradient. Parts are below the size from which on a loss is written another way;
 * all of them together are above it. */
static void losses_of(T x, T labels, int64_t from, int64_t count, bool autocast, float *losses, float *gradient)
{
    kiln_step {
        kiln_zero_grad_of(x);
        T l = NULL, rows = rows_of(x, from, count);
        kiln_autocast (autocast ? KILN_BF16 : KILN_F32)
            l = kiln_cross_entropy(rows, rows_of(labels, from, count), .ignore_index = 5, .reduction = KILN_NONE);
        assert_true(
            kiln_backward(kiln_sum_all(kiln_mul(l, rows_of(kiln_arange(1, TARGETS + 1, 1, KILN_F32), from, count)))));
        l = kiln_cast(l, KILN_F32);
        assert_true(kiln_read(l, losses + from, (size_t)count * sizeof *losses));
    }
    kiln_scope {
        T g = kiln_cast(rows_of(kiln_grad_of(x), from, count), KILN_F32);
        assert_true(kiln_read(g, gradient + from * CHOICES, (size_t)(count * CHOICES) * sizeof *gradient));
    }
}

static void test_large_losses(void **state)
{
    (void)state;
    float *whole = malloc(TARGETS * CHOICES * sizeof *whole), *parts = malloc(TARGETS * CHOICES * sizeof *parts);
    float whole_loss[TARGETS], parts_loss[TARGETS];
    for (int mode = 0; mode < 3; mode++) { /* f32, bf16, bf16 under autocast */
        kiln_dtype dtype = mode ? KILN_BF16 : KILN_F32;
        double loose = mode == 0 ? 2e-6 : mode == 1 ? 0.01 : 2e-6, rounding = mode ? 0x1p-7 : 2e-6; /* an ulp */
        kiln_manual_seed(4);
        T x = NULL, labels = kiln_keep(kiln_randint(0, CHOICES, KILN_SHAPE(TARGETS), KILN_I64));
        kiln_scope {
            x = kiln_keep(kiln_cast(kiln_mul_scalar(kiln_randn(KILN_SHAPE(TARGETS, CHOICES), KILN_F32), 4), dtype));
            kiln_no_grad
                kiln_assign(rows_of(labels, 2, 3), kiln_full(KILN_SHAPE(3), 5, KILN_I64));
        }
        assert_true(kiln_eval() && kiln_requires_grad(x, true));
        losses_of(x, labels, 0, TARGETS, mode == 2, whole_loss, whole);
        for (int64_t from = 0; from < TARGETS; from += PART)
            losses_of(x, labels, from, PART, mode == 2, parts_loss, parts);
        for (int i = 0; i < TARGETS; i++) {
            assert_near(whole_loss[i], parts_loss[i], loose);
            assert_true((i < 2 || i > 4) == (whole_loss[i] != 0));
        }
        for (int64_t i = 0; i < TARGETS * CHOICES; i++)
            if (!(fabsf(whole[i] - parts[i]) <= rounding * fabs(parts[i]) + 1e-9))
                fail_msg("mode %d, element %lld: %g instead of %g", mode, (long long)i, whole[i], parts[i]);
        kiln_release(x);
        kiln_release(labels);
    }
    free(whole);
    free(parts);
    kiln_step {
        T l = kiln_cross_entropy(kiln_zeros(KILN_SHAPE(TARGETS, CHOICES), KILN_F32),
                                 kiln_full(KILN_SHAPE(TARGETS), CHOICES, KILN_I64));
        assert_true(!l || isnan(kiln_item(l)));
    }
    expect_error(KILN_E_INDEX, NULL, "20000");
}

int main(void)
{
    const struct CMUnitTest tests[] = {core_test(test_types),
                                       core_test(test_as_by_hand),
                                       core_test(test_converted_once),
                                       core_test(test_scopes),
                                       core_test(test_updates_take_no_notice),
                                       core_test(test_gradient_penalty),
                                       core_test(test_fit_with_own_loss),
                                       core_test(test_activations),
                                       core_test(test_made_again),
                                       core_test(test_large_losses)};
    return CORE_MAIN(tests);
}
