/* Values that are computed again for the backward pass instead of being kept, because the program wants it: the same
 * bits as without, less memory, and running statistics that are updated once. */
#include "support/again.h"

/* ctest: name=eager env=KILN_EAGER=1 */
/* ctest: name=threads env=KILN_NUM_THREADS=2 */

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
                kiln_recomputed x = kiln_matmul(kiln_gelu(kiln_exp(kiln_tanh(kiln_matmul(x, w)))), w);
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
    const struct CMUnitTest tests[] = {
        core_test(test_bits),  core_test(test_bits_read_between), core_test(test_bits_without_step),
        core_test(test_peak),  core_test(test_second_gradients),  core_test(test_braces),
        core_test(test_errors)};
    return CORE_MAIN(tests);
}
