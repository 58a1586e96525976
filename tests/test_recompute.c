/* Values that are computed again for the backward pass instead of being kept, because the program wants it: the same
 * bits as without, less memory, and running statistics that are updated once. */
#include "support/core.h"

/* ctest: name=eager env=KILN_EAGER=1 */
/* ctest: name=threads env=KILN_NUM_THREADS=2 */

enum { WIDTH = 32, ROWS = 64, STEPS = 3 };
static int depth = 6; /* blocks of the mlp */

/* ---- Networks ---- */

/* Blocks that are computed again, if wanted. */
static kiln_module *block_of(kiln_module *m, bool again)
{
    assert_true(kiln_module_set_recompute(m, again));
    assert_int_equal(kiln_module_recomputes(m), again);
    return m;
}

static kiln_module *deep_mlp(bool again)
{
    kiln_module *net = kiln_nn_sequential(kiln_nn_identity());
    for (int i = 0; i < depth; i++) {
        char name[16];
        snprintf(name, sizeof name, "b%d", i);
        kiln_module *block =
            kiln_nn_sequential(kiln_nn_linear(WIDTH, 4 * WIDTH), kiln_nn_gelu(), kiln_nn_dropout(0.25),
                               kiln_nn_linear(4 * WIDTH, 4 * WIDTH), kiln_nn_relu(), kiln_nn_linear(4 * WIDTH, WIDTH));
        assert_true(kiln_module_add(net, name, block_of(kiln_nn_residual(block, NULL), again)) != NULL);
    }
    return net;
}

static kiln_module *cnn(bool again)
{
    return kiln_nn_sequential(
        block_of(kiln_nn_sequential(kiln_nn_conv2d(2, 8, 3, .padding = 1), kiln_nn_batch_norm(8), kiln_nn_relu(),
                                    kiln_nn_conv2d(8, 8, 3, .padding = 1), kiln_nn_batch_norm(8), kiln_nn_relu()),
                 again),
        kiln_nn_max_pool2d(2),
        block_of(kiln_nn_sequential(kiln_nn_conv2d(8, 8, 3, .padding = 1), kiln_nn_batch_norm(8), kiln_nn_silu(),
                                    kiln_nn_dropout(0.1)),
                 again),
        kiln_nn_flatten(), kiln_nn_linear(8 * 4 * 4, 10));
}

static kiln_module *attention_block(bool again)
{
    return block_of(kiln_nn_sequential(kiln_nn_residual(kiln_nn_sequential(
                                           kiln_nn_layer_norm(WIDTH),
                                           kiln_nn_multihead_attention(WIDTH, 4, .causal = true, .dropout = 0.1)), NULL),
                                       kiln_nn_residual(kiln_nn_sequential(
                                           kiln_nn_layer_norm(WIDTH), kiln_nn_linear(WIDTH, 4 * WIDTH), kiln_nn_gelu(),
                                           kiln_nn_linear(4 * WIDTH, WIDTH), kiln_nn_dropout(0.1)), NULL)),
                    again);
}

static kiln_module *transformer(bool again)
{
    return kiln_nn_sequential(kiln_nn_embedding(50, WIDTH), attention_block(again), attention_block(again),
                              attention_block(again), kiln_nn_layer_norm(WIDTH), kiln_nn_linear(WIDTH, 50));
}

static kiln_module *lstm(bool again)
{
    return kiln_nn_sequential(kiln_nn_embedding(50, WIDTH),
                              block_of(kiln_nn_lstm(WIDTH, WIDTH, .batch_first = true), again),
                              block_of(kiln_nn_sequential(kiln_nn_lstm(WIDTH, WIDTH, .batch_first = true),
                                                          kiln_nn_dropout(0.2), kiln_nn_linear(WIDTH, 50)),
                                       again));
}

typedef struct network {
    const char *name;
    kiln_module *(*make)(bool again);
    int ndim;
    int64_t shape[4];
    bool tokens;
} network;

static const network networks[] = {
    {"mlp", deep_mlp, 2, {ROWS, WIDTH}, false},
    {"cnn", cnn, 4, {6, 2, 8, 8}, false},
    {"transformer", transformer, 2, {4, 16}, true},
    {"lstm", lstm, 2, {4, 12}, true},
};
enum { NETWORKS = sizeof networks / sizeof *networks };

/* ---- Training ---- */

typedef enum how { IN_STEP, READ_BETWEEN, NO_STEP } how;

static kiln_tensor *input_of(const network *n, int seed)
{
    kiln_tensor *x = core_data(seed, n->ndim, n->shape);
    return n->tokens ? kiln_cast(kiln_mul_scalar(kiln_abs(x), 50), KILN_I64) : x;
}

static void write_step(const network *n, kiln_module *net, kiln_optim *opt, kiln_dtype dtype, int seed, how way)
{
    kiln_tensor *loss = NULL;
    kiln_autocast (dtype) {
        kiln_tensor *y = kiln_forward(net, input_of(n, seed));
        loss = kiln_mean_all(kiln_square(kiln_cast(y, KILN_F32)));
    }
    if (way == READ_BETWEEN)
        assert_true(isfinite(kiln_item(loss)));
    assert_true(kiln_backward(loss));
    assert_true(kiln_optim_step(opt));
    kiln_zero_grad(opt);
}

typedef struct outcome {
    uint64_t bits; /* of all parameters and buffers */
    int64_t peak, flops, kernels;
} outcome;

static uint64_t digest(kiln_module *net)
{
    uint64_t h = 1469598103934665603u;
    kiln_params p = kiln_state(net);
    for (int64_t i = 0; i < p.count; i++) {
        size_t bytes = (size_t)kiln_numel(p.tensors[i]) * kiln_dtype_size(kiln_dtype_of(p.tensors[i]));
        unsigned char *data = malloc(bytes ? bytes : 1);
        assert_true(kiln_read(p.tensors[i], data, bytes));
        for (size_t k = 0; k < bytes; k++)
            h = (h ^ data[k]) * 1099511628211u;
        free(data);
    }
    return h;
}

static outcome train(const network *n, bool again, kiln_dtype dtype, how way)
{
    kiln_manual_seed(7);
    outcome o = {0};
    kiln_module *net = n->make(again);
    if (!net)
        fail_msg("%s: %s", n->name, kiln_last_error()->message);
    kiln_optim *opt = kiln_optim_adamw(kiln_parameters(net), .lr = 1e-2);
    for (int i = 0; i < STEPS; i++) {
        if (way == NO_STEP)
            kiln_scope
                write_step(n, net, opt, dtype, i, way);
        else
            kiln_step
                write_step(n, net, opt, dtype, i, way);
        if (!kiln_ok())
            fail_msg("%s: %s", n->name, kiln_last_error()->message);
        kiln_plan_info info;
        assert_true(kiln_plan_last(&info));
        o.peak = info.peak_bytes > o.peak ? info.peak_bytes : o.peak;
        o.flops = info.flops;
        o.kernels = info.kernels;
    }
    o.bits = digest(net);
    kiln_optim_free(opt);
    kiln_module_free(net);
    return o;
}

/* ---- The same bits ---- */

static void check_bits(how way, kiln_dtype dtype)
{
    for (int i = 0; i < NETWORKS; i++) {
        outcome plain = train(&networks[i], false, dtype, way), again = train(&networks[i], true, dtype, way);
        if (plain.bits != again.bits)
            fail_msg("%s in %s has other bits when parts of it are computed again", networks[i].name,
                     kiln_dtype_name(dtype));
        if (getenv("KILN_TEST_SAY"))
            print_message("%-12s %-5s %d: peak %8lld -> %8lld, %10lld -> %10lld FLOP\n", networks[i].name,
                          kiln_dtype_name(dtype), way, (long long)plain.peak, (long long)again.peak,
                          (long long)plain.flops, (long long)again.flops);
        if (way == IN_STEP && !core_eager()) {
            assert_true(again.flops > plain.flops);
            assert_true(again.kernels > plain.kernels);
        }
    }
}

static void test_bits(void **state)
{
    (void)state;
    check_bits(IN_STEP, KILN_F32);
    check_bits(IN_STEP, KILN_BF16);
    check_bits(IN_STEP, KILN_F16);
}

static void test_bits_read_between(void **state)
{
    (void)state;
    check_bits(READ_BETWEEN, KILN_F32);
    check_bits(READ_BETWEEN, KILN_BF16);
}

static void test_bits_without_step(void **state)
{
    (void)state;
    check_bits(NO_STEP, KILN_F32);
    check_bits(NO_STEP, KILN_BF16);
}

/* ---- Memory ---- */

/* Of a block that is computed again nothing is kept but what comes in. */
static void test_peak(void **state)
{
    (void)state;
    skip_if_eager();
    int64_t plain[2], again[2];
    for (int i = 0; i < 2; i++) {
        depth = i ? 16 : 10;
        plain[i] = train(&networks[0], false, KILN_F32, IN_STEP).peak;
        again[i] = train(&networks[0], true, KILN_F32, IN_STEP).peak;
    }
    depth = 6;
    int64_t in = ROWS * WIDTH * 4, hidden = 4 * in;
    if (has_cpu_bits(kiln_default_device())) /* others leave room unused, as long as it is little */
        assert_int_equal(again[1] - again[0], 6 * in);
    assert_true(plain[1] - plain[0] >= 6 * (in + 4 * hidden)); /* before and behind gelu and dropout, relu */
}

/* ---- Regions of one's own ---- */

static kiln_tensor *two_layers(kiln_tensor **in, void *context)
{
    kiln_tensor *h = kiln_tanh(kiln_matmul(in[0], in[1]));
    ++*(int *)context;
    return kiln_matmul(kiln_dropout(kiln_sigmoid(h), 0.3, true), in[2]);
}

/* Gradients of gradients go through a region, too. */
static void gradients(bool again, float *out, int64_t *flops)
{
    int calls = 0;
    kiln_manual_seed(3);
    kiln_tensor *a = kiln_requires_grad(core_data(1, 2, (const int64_t[]){8, 16}), true);
    kiln_tensor *b = kiln_requires_grad(core_data(2, 2, (const int64_t[]){16, 16}), true);
    kiln_tensor *c = kiln_requires_grad(core_data(3, 2, (const int64_t[]){16, 4}), true);
    kiln_tensor *loss = NULL;
    kiln_step {
        kiln_tensor *in[] = {a, b, c}, *g = NULL;
        kiln_tensor *y = again ? kiln_recompute(two_layers, &calls, in, 3) : two_layers(in, &calls);
        loss = kiln_keep(kiln_sum_all(kiln_square(kiln_exp(y)))); /* so that the forward pass has to take place */
        assert_true(kiln_grad(loss, NULL, &a, 1, &g));
        assert_true(kiln_backward(kiln_mean_all(kiln_square(g))));
    }
    assert_int_equal(calls, 1);
    kiln_plan_info info;
    assert_true(kiln_plan_last(&info));
    *flops = info.flops;
    memcpy(out, core_f32(kiln_grad_of(a)), 128 * sizeof *out);
    memcpy(out + 128, core_f32(kiln_grad_of(b)), 256 * sizeof *out);
    memcpy(out + 384, core_f32(kiln_grad_of(c)), 64 * sizeof *out);
    kiln_release(a);
    kiln_release(b);
    kiln_release(c);
    kiln_release(loss);
}

static void test_second_gradients(void **state)
{
    (void)state;
    float plain[448], again[448];
    int64_t flops[2];
    gradients(false, plain, &flops[0]);
    gradients(true, again, &flops[1]);
    assert_memory_equal(plain, again, sizeof plain);
    assert_true(core_eager() || flops[1] > flops[0]);
}

/* Inside the braces of a loop, region by region, and the mark is gone behind them. */
static void braces(bool again, kiln_plan_info *info, float *out)
{
    kiln_tensor *w = kiln_requires_grad(core_data(4, 2, (const int64_t[]){16, 16}), true);
    kiln_step {
        kiln_tensor *x = core_data(5, 2, (const int64_t[]){512, 16});
        for (int i = 0; i < 6; i++) {
            if (again)
                kiln_recomputed
                    x = kiln_matmul(kiln_gelu(kiln_exp(kiln_tanh(kiln_matmul(x, w)))), w);
            else
                x = kiln_matmul(kiln_gelu(kiln_exp(kiln_tanh(kiln_matmul(x, w)))), w);
        }
        assert_true(kiln_backward(kiln_mean_all(x)));
    }
    assert_true(kiln_plan_last(info));
    memcpy(out, core_f32(kiln_grad_of(w)), 256 * sizeof *out);
    kiln_release(w);
}

static void test_braces(void **state)
{
    (void)state;
    kiln_plan_info plain, again;
    float a[256], b[256];
    braces(false, &plain, a);
    braces(true, &again, b);
    assert_memory_equal(a, b, sizeof a);
    if (!core_eager()) {
        assert_true(again.flops > plain.flops);
        assert_true(!has_cpu_bits(kiln_default_device()) || again.peak_bytes < plain.peak_bytes);
    }
}

static void test_errors(void **state)
{
    (void)state;
    kiln_tensor *none = NULL;
    assert_null(kiln_recompute(NULL, NULL, NULL, 0));
    expect_error(KILN_E_ARGUMENT, "recompute", "the function is NULL");
    assert_null(kiln_recompute(two_layers, NULL, NULL, 1));
    expect_error(KILN_E_ARGUMENT, "recompute", "list of inputs");
    assert_null(kiln_recompute(two_layers, NULL, &none, 1));
    assert_false(kiln_ok());
    kiln_error_clear();
    assert_false(kiln_module_set_recompute(NULL, true));
    expect_error(KILN_E_ARGUMENT, "module_set_recompute", NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {core_test(test_bits), core_test(test_bits_read_between),
                                       core_test(test_bits_without_step), core_test(test_peak),
                                       core_test(test_second_gradients), core_test(test_braces),
                                       core_test(test_errors)};
    return CORE_MAIN(tests);
}
