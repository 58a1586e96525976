/* Each layer against PyTorch's: names, shapes and order of its state, results, what training does to its buffers, and
 * the gradients of its input and parameters. golden/make_nn.py made the files. */
#include "support/core.h"
#include "support/golden.h"
#include "support/where.h"

/* ctest: name=eager env=KILN_EAGER=1 */

enum { NUMBERS = 4096, OUTS = 4 };

typedef struct row {
    const char *name;
    kiln_module *(*make)(void);
} row;

/* clang-format off */
#define LAYERS(M)                                                                                                      \
    M(linear, kiln_nn_linear(3, 4))                                                                                    \
    M(linear_no_bias, kiln_nn_linear(3, 4, .no_bias = true))                                                           \
    M(conv1d, kiln_nn_conv1d(2, 4, 3, .stride = 2, .padding = 1, .dilation = 2, .groups = 2))                          \
    M(conv2d, kiln_nn_conv2d(2, 3, 3, .stride = 2, .padding = 1))                                                      \
    M(conv2d_uneven, kiln_nn_conv2d(2, 4, 3, .kernel_w = 2, .stride_w = 2, .padding = 1, .padding_w = -1,              \
                                    .dilation_w = 2, .groups = 2, .no_bias = true))                                    \
    M(conv_transpose1d, kiln_nn_conv_transpose1d(2, 4, 3, .stride = 2, .padding = 1, .output_padding = 1, .groups = 2)) \
    M(conv_transpose2d, kiln_nn_conv_transpose2d(2, 3, 3, .stride = 2, .stride_w = 1, .padding = 1,                    \
                                                 .output_padding = 1, .output_padding_w = -1))                         \
    M(embedding, kiln_nn_embedding(5, 3))                                                                              \
    M(embedding_padding, kiln_nn_embedding(5, 3, .has_padding = true, .padding_idx = -1))                              \
    M(batch_norm, kiln_nn_batch_norm(3))                                                                               \
    M(batch_norm_2d, kiln_nn_batch_norm(2, .eps = 1e-3, .momentum = 0.3))                                              \
    M(batch_norm_eval, kiln_nn_batch_norm(3))                                                                          \
    M(batch_norm_plain, kiln_nn_batch_norm(3, .no_affine = true))                                                      \
    M(batch_norm_untracked, kiln_nn_batch_norm(2, .no_tracking = true))                                                \
    M(layer_norm, kiln_nn_layer_norm(5))                                                                               \
    M(layer_norm_no_bias, kiln_nn_layer_norm(4, .eps = 1e-3, .no_bias = true))                                         \
    M(rms_norm, kiln_nn_rms_norm(5))                                                                                   \
    M(group_norm, kiln_nn_group_norm(2, 4))                                                                            \
    M(max_pool1d, kiln_nn_max_pool1d(3, .stride = 2, .padding = 1))                                                    \
    M(max_pool2d, kiln_nn_max_pool2d(2, .stride = 1, .dilation = 2, .ceil_mode = true))                                \
    M(avg_pool1d, kiln_nn_avg_pool1d(2, .ceil_mode = true))                                                            \
    M(avg_pool2d, kiln_nn_avg_pool2d(3, .stride = 2, .padding = 1, .exclude_pad = true))                               \
    M(adaptive_avg_pool1d, kiln_nn_adaptive_avg_pool1d(3))                                                             \
    M(adaptive_max_pool1d, kiln_nn_adaptive_max_pool1d(3))                                                             \
    M(adaptive_avg_pool2d, kiln_nn_adaptive_avg_pool2d(2, 3))                                                          \
    M(adaptive_max_pool2d, kiln_nn_adaptive_max_pool2d(1, 2))                                                          \
    M(relu, kiln_nn_relu()) M(relu6, kiln_nn_relu6()) M(leaky_relu, kiln_nn_leaky_relu(0.1))                           \
    M(elu, kiln_nn_elu(0.7)) M(selu, kiln_nn_selu()) M(celu, kiln_nn_celu(1.5)) M(gelu, kiln_nn_gelu())                \
    M(gelu_tanh, kiln_nn_gelu_tanh()) M(silu, kiln_nn_silu()) M(sigmoid, kiln_nn_sigmoid())                            \
    M(logsigmoid, kiln_nn_logsigmoid()) M(softplus, kiln_nn_softplus(2, 3)) M(hardswish, kiln_nn_hardswish())          \
    M(hardsigmoid, kiln_nn_hardsigmoid()) M(hardtanh, kiln_nn_hardtanh(-0.5, 1.5)) M(mish, kiln_nn_mish())             \
    M(softsign, kiln_nn_softsign()) M(tanh, kiln_nn_tanh()) M(softmax, kiln_nn_softmax(1))                             \
    M(log_softmax, kiln_nn_log_softmax(-1)) M(flatten, kiln_nn_flatten()) M(identity, kiln_nn_identity())              \
    M(dropout_none, kiln_nn_dropout(0)) M(dropout_eval, kiln_nn_dropout(0.5))                                          \
    M(unflatten, kiln_nn_unflatten(KILN_SHAPE(2, 3)))                                                                  \
    M(upsample_nearest, kiln_nn_upsample(2, KILN_NEAREST))                                                             \
    M(upsample_linear, kiln_nn_upsample(3, KILN_LINEAR))                                                               \
    M(upsample_bilinear, kiln_nn_upsample(2, KILN_LINEAR))                                                             \
    M(attention, kiln_nn_multihead_attention(4, 2))                                                                    \
    M(attention_causal, kiln_nn_multihead_attention(4, 2, .causal = true, .no_bias = true))                            \
    M(attention_cross, kiln_nn_multihead_attention(4, 1))                                                              \
    M(rnn, kiln_nn_rnn(3, 4))                                                                                          \
    M(rnn_relu, kiln_nn_rnn(3, 2, .layers = 2, .relu = true, .no_bias = true, .batch_first = true))                    \
    M(gru, kiln_nn_gru(3, 2, .batch_first = true))                                                                     \
    M(gru_both, kiln_nn_gru(2, 2, .layers = 2, .bidirectional = true))                                                 \
    M(lstm, kiln_nn_lstm(3, 2))                                                                                        \
    M(lstm_both, kiln_nn_lstm(2, 2, .layers = 2, .bidirectional = true, .batch_first = true))                          \
    M(lstm_start, kiln_nn_lstm(3, 2, .layers = 2))                                                                     \
    M(sequential, kiln_nn_sequential(kiln_nn_linear(3, 4), kiln_nn_tanh(),                                             \
                                     kiln_nn_sequential(kiln_nn_linear(4, 2), kiln_nn_batch_norm(2))))                 \
    M(residual, kiln_nn_residual(kiln_nn_linear(3, 3), NULL))                                                          \
    M(residual_shortcut, kiln_nn_residual(kiln_nn_sequential(kiln_nn_linear(3, 2), kiln_nn_relu()),                    \
                                          kiln_nn_linear(3, 2, .no_bias = true)))
/* clang-format on */

#define MAKE(name, call)                                                                                               \
    static kiln_module *make_##name(void)                                                                              \
    {                                                                                                                  \
        return call;                                                                                                   \
    }
LAYERS(MAKE)
#define ROW(name, call) {#name, make_##name},
static const row rows[] = {LAYERS(ROW)};
enum { ROWS = sizeof rows / sizeof *rows };

static kiln_module *make_layer(const char *name)
{
    for (int i = 0; i < ROWS; i++)
        if (!strcmp(rows[i].name, name)) {
            kiln_module *m = rows[i].make();
            if (!m)
                fail_msg("%s: %s", name, kiln_last_error()->message);
            kiln_module_train(m, !strstr(name, "eval") && !strstr(name, "untracked"));
            return m;
        }
    fail_msg("%s is in no row of this file", name);
    return NULL;
}

/* ---- Numbers in and out ---- */

static kiln_tensor *tensor_of(const golden_tensor *g)
{
    static float f32[NUMBERS];
    static int64_t i64[NUMBERS];
    assert_true(g->count <= NUMBERS);
    for (int64_t i = 0; i < g->count; i++) {
        f32[i] = (float)g->data[i];
        i64[i] = (int64_t)g->data[i];
    }
    bool whole = g->dtype == KILN_I64;
    return kiln_tensor_new(whole ? (void *)i64 : f32, whole ? KILN_I64 : KILN_F32, g->ndim, g->shape,
                           kiln_default_device());
}

/* Reads tensors of f32 or i64, one after the other; a NULL one reads as zeros. */
static int64_t read_all(kiln_params p, kiln_tensor *(*pick)(const kiln_tensor *t), double *out)
{
    int64_t at = 0;
    for (int64_t i = 0; i < p.count; i++) {
        kiln_tensor *t = pick ? pick(p.tensors[i]) : p.tensors[i];
        int64_t n = kiln_numel(p.tensors[i]), whole = 0;
        assert_true(at + n <= NUMBERS);
        const float *values = t && kiln_dtype_of(t) == KILN_F32 ? core_f32(t) : NULL;
        if (t && !values)
            whole = kiln_item_i64(t);
        for (int64_t k = 0; k < n; k++)
            out[at++] = values ? values[k] : (double)whole;
    }
    return at;
}

static void write_all(kiln_params p, const golden_tensor *g)
{
    int64_t at = 0;
    for (int64_t i = 0; i < p.count; i++) {
        float f32[NUMBERS];
        int64_t n = kiln_numel(p.tensors[i]), whole;
        bool floats = kiln_dtype_of(p.tensors[i]) == KILN_F32;
        assert_true(at + n <= g->count);
        for (int64_t k = 0; k < n; k++)
            f32[k] = (float)g->data[at + k];
        whole = (int64_t)g->data[at];
        assert_true(kiln_write(p.tensors[i], floats ? (void *)f32 : &whole, (size_t)n * (floats ? 4 : 8)));
        at += n;
    }
    assert_int_equal(at, g->count);
}

static void compare(const char *name, const char *what, const double *got, int64_t count, const golden_tensor *want)
{
    if (count != want->count)
        fail_msg("%s: %s has %lld numbers instead of %lld", name, what, (long long)count, (long long)want->count);
    for (int64_t i = 0; i < count; i++)
        if (!(fabs(got[i] - want->data[i]) <= 5e-6 * (1 + fabs(want->data[i]))))
            fail_msg("%s: %s[%lld] is %.9g instead of %.9g", name, what, (long long)i, got[i], want->data[i]);
}

static void compare_tensor(const char *name, const char *what, kiln_tensor *t, const golden_tensor *want)
{
    double got[NUMBERS];
    if (!t)
        fail_msg("%s: no %s: %s", name, what, kiln_last_error()->message);
    int64_t n = read_all((kiln_params){1, &t, NULL}, NULL, got);
    if (kiln_ndim(t) != want->ndim || memcmp(kiln_shape(t), want->shape, (size_t)want->ndim * 8))
        fail_msg("%s: %s has another shape", name, what);
    compare(name, what, got, n, want);
}

/* ---- The cases ---- */

static void run_layer(const golden_case *g, kiln_module *m, kiln_tensor *x, kiln_tensor **outs)
{
    bool recurrent = !strcmp(kiln_module_kind(m), "RNN") || !strcmp(kiln_module_kind(m), "GRU") ||
                     !strcmp(kiln_module_kind(m), "LSTM");
    if (!strcmp(g->op, "attention_cross")) {
        kiln_tensor *rest = kiln_slice(x, 1, 2, kiln_size(x, 1), 1);
        outs[0] = kiln_attend(m, kiln_slice(x, 1, 0, 2, 1), rest, kiln_mul_scalar(rest, 0.5), NULL);
    } else if (!strcmp(g->op, "lstm_start")) {
        float ramp[8], less[8];
        for (int i = 0; i < 8; i++) {
            ramp[i] = (float)i / 8;
            less[i] = ramp[i] - 0.5f;
        }
        outs[0] = kiln_recur(m, x, kiln_of_f32(less, 2, 2, 2), kiln_of_f32(ramp, 2, 2, 2), &outs[1], &outs[2]);
    } else if (recurrent) {
        outs[0] = kiln_recur(m, x, NULL, NULL, &outs[1], g->nout == 4 ? &outs[2] : NULL);
    } else
        outs[0] = kiln_forward(m, x);
}

/* The tensor that make_golden.py weighs the first result with. */
static kiln_tensor *weights_like(kiln_tensor *y)
{
    float w[NUMBERS];
    int64_t n = kiln_numel(y);
    for (int64_t i = 0; i < n; i++)
        w[i] = (float)(i * 37 % 19 - 9) / 8;
    return kiln_tensor_new(w, KILN_F32, kiln_ndim(y), kiln_shape(y), kiln_default_device());
}

static void check_case(const golden_case *g)
{
    kiln_module *m = make_layer(g->op);
    double got[NUMBERS];
    write_all(kiln_state(m), &g->in[1]);
    kiln_scope {
        kiln_tensor *x = tensor_of(&g->in[0]), *outs[OUTS] = {NULL};
        assert_non_null(kiln_requires_grad(x, g->in[0].wants_grad));
        kiln_step {
            run_layer(g, m, x, outs);
            if (kiln_needs_grad(outs[0]))
                kiln_backward_with(outs[0], weights_like(outs[0]));
            for (int i = 0; i < OUTS; i++)
                if (outs[i] != x) /* which the scope around this step owns */
                    kiln_keep(outs[i]);
        }
        for (int i = 0; i < g->nout - 1; i++)
            compare_tensor(g->op, i ? "a state" : "the result", outs[i], &g->out[i]);
        compare(g->op, "the state after it", got, read_all(kiln_state(m), NULL, got), &g->out[g->nout - 1]);
        if (g->in[0].wants_grad)
            compare_tensor(g->op, "the gradient of x", kiln_grad_of(x), &g->grad[0]);
        compare(g->op, "the gradient of the parameters", got, read_all(kiln_parameters(m), kiln_grad_of, got),
                &g->grad[1]);
        for (int i = 0; i < OUTS; i++)
            kiln_release(outs[i] == x ? NULL : outs[i]);
    }
    kiln_module_free(m);
}

/* The shape is known without running, and asking for it changes nothing; outside any scope nothing is left behind. */
static void check_shape(const golden_case *g)
{
    kiln_module *m = make_layer(g->op);
    int ndim = -1;
    int64_t shape[KILN_MAX_DIMS];
    double before[NUMBERS], after[NUMBERS];
    int64_t n = read_all(kiln_state(m), NULL, before);
    kiln_random_state random = kiln_random_get();
    assert_true(kiln_module_shape(m, g->in[0].ndim, g->in[0].shape, g->in[0].dtype == KILN_I64 ? KILN_I64 : KILN_F32,
                                  &ndim, shape));
    assert_int_equal(read_all(kiln_state(m), NULL, after), n);
    assert_memory_equal(before, after, (size_t)n * sizeof *before);
    kiln_random_state now = kiln_random_get();
    assert_true(now.seed == random.seed && now.offset == random.offset);
    kiln_tensor *x = tensor_of(&g->in[0]), *y = kiln_forward(m, x);
    if (!y)
        fail_msg("%s: %s", g->op, kiln_last_error()->message);
    assert_int_equal(ndim, kiln_ndim(y));
    assert_memory_equal(shape, kiln_shape(y), (size_t)ndim * sizeof *shape);
    if (y != x)
        kiln_release(y);
    kiln_release(x);
    kiln_module_free(m);
}

static void each_case(void (*check)(const golden_case *g))
{
    golden_file file;
    golden_case g;
    int got, cases = 0;
    assert_true(golden_open(&file, test_file("golden/nn.txt")));
    while ((got = golden_next(&file, &g)) == 1) {
        check(&g);
        golden_case_free(&g);
        cases++;
    }
    if (got < 0)
        fail_msg("nn.txt:%d is malformed", file.line);
    golden_close(&file);
    assert_int_equal(cases, ROWS);
}

static void test_values(void **state)
{
    (void)state;
    each_case(check_case);
}

static void test_shapes(void **state)
{
    (void)state;
    each_case(check_shape);
}

/* ---- Names ---- */

/* "linear weight[4,3] bias[4]" */
static void describe(const char *name, kiln_module *m, char *out, size_t size)
{
    kiln_params p = kiln_state(m);
    size_t at = (size_t)snprintf(out, size, "%s", name);
    for (int64_t i = 0; i < p.count; i++) {
        at += (size_t)snprintf(out + at, size - at, " %s[", p.names[i]);
        for (int d = 0; d < kiln_ndim(p.tensors[i]); d++)
            at += (size_t)snprintf(out + at, size - at, "%s%lld", d ? "," : "", (long long)kiln_size(p.tensors[i], d));
        at += (size_t)snprintf(out + at, size - at, "]");
    }
}

static void test_names(void **state)
{
    (void)state;
    FILE *file = fopen(test_file("golden/nn_names.txt"), "r");
    char line[2048], got[2048];
    int lines = 0;
    assert_non_null(file);
    for (; fgets(line, sizeof line, file); lines++) {
        line[strcspn(line, "\n")] = 0;
        char name[64];
        assert_int_equal(sscanf(line, "%63s", name), 1);
        kiln_module *m = make_layer(name);
        describe(name, m, got, sizeof got);
        assert_string_equal(got, line);
        kiln_module_free(m);
    }
    fclose(file);
    assert_int_equal(lines, ROWS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        core_test(test_values),
        core_test(test_shapes),
        core_test(test_names),
    };
    return CORE_MAIN(tests);
}
