/* TF32: a setting of the process that belongs to a plan's identity and that only devices with such kernels heed. */
#include "support/core.h"

/* ctest: name=on env=KILN_TF32=1 */

enum { N = 400 }; /* smaller products are made in f32 all the same */

/* A product and a convolution of numbers that TF32 cannot hold. */
static void compute(float *product, float *convolution, bool *replayed)
{
    kiln_plan_info info;
    kiln_scope {
        kiln_tensor *a = core_data(1, KILN_SHAPE(N, N)), *b = core_data(2, KILN_SHAPE(N, N));
        assert_true(kiln_read(kiln_matmul(a, b), product, N * N * sizeof *product));
        assert_true(kiln_plan_last(&info));
        *replayed = info.replayed;
        kiln_tensor *x = core_data(3, KILN_SHAPE(1, 16, 8, 8)), *w = core_data(4, KILN_SHAPE(16, 16, 1, 1));
        assert_true(kiln_read(kiln_conv2d(x, w, NULL, .groups = 1), convolution, 16 * 64 * sizeof *convolution));
    }
}

static double farthest(const float *a, const float *b, int n)
{
    double most = 0;
    for (int i = 0; i < n; i++)
        most = fmax(most, fabs((double)a[i] - b[i]));
    return most;
}

static bool gpu_with_tf32(void)
{
    kiln_device_info info;
    return kiln_device_describe(kiln_default_device(), &info) && info.capability[0] >= 8;
}

static void test_plans(void **state)
{
    (void)state;
    bool before = kiln_get_tf32(), replayed;
    static float product[2][N * N], again[N * N];
    float convolution[2][16 * 64], again_convolved[16 * 64];
    for (int allowed = 0; allowed < 2; allowed++) {
        kiln_plan_cache_set_capacity(0);
        kiln_plan_cache_set_capacity(256);
        kiln_set_tf32(allowed);
        compute(product[allowed], convolution[allowed], &replayed);
        assert_false(replayed);
        kiln_set_tf32(!allowed); /* what was planned otherwise is not found */
        compute(again, again_convolved, &replayed);
        assert_false(replayed);
        kiln_set_tf32(allowed);
        compute(again, again_convolved, &replayed);
        assert_true(replayed);
        assert_memory_equal(again, product[allowed], sizeof again);
        assert_memory_equal(again_convolved, convolution[allowed], sizeof again_convolved);
    }
    kiln_set_tf32(before);
    double apart = farthest(product[0], product[1], N * N);
    double convolved_apart = farthest(convolution[0], convolution[1], 16 * 64);
    if (gpu_with_tf32()) {
        assert_true(apart > 0 && apart < 0.05); /* sums of 400 products, each with an error of 2^-11 */
        assert_true(convolved_apart < 0.05);
    } else {
        assert_true(apart == 0 && convolved_apart == 0);
    }
}

/* Without it f32 is f32: compared with sums in f64. */
static void test_off(void **state)
{
    (void)state;
    bool before = kiln_get_tf32(), replayed;
    static float got[N * N], a[N * N], b[N * N];
    float convolution[16 * 64];
    kiln_set_tf32(false);
    compute(got, convolution, &replayed);
    kiln_set_tf32(before);
    kiln_scope {
        assert_true(kiln_read(core_data(1, KILN_SHAPE(N, N)), a, sizeof a));
        assert_true(kiln_read(core_data(2, KILN_SHAPE(N, N)), b, sizeof b));
    }
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++) {
            double want = 0;
            for (int k = 0; k < N; k++)
                want += (double)a[i * N + k] * b[k * N + j];
            assert_near(got[i * N + j], want, 5e-5); /* TF32 would be off by a hundredth */
        }
}

/* ---- A step with products so large that a library would be faster at them, were they not of a chain ---- */

enum { ROWS = 1024, WIDTH = 1024, CLASSES = 10, WEIGHTS = WIDTH * ROWS };

static void train(float *before, float *after)
{
    kiln_tensor *x = core_data(5, KILN_SHAPE(ROWS, WIDTH)), *y = kiln_zeros(KILN_SHAPE(ROWS), KILN_I64);
    kiln_manual_seed(6);
    kiln_module *m = kiln_nn_sequential(kiln_nn_linear(WIDTH, WIDTH), kiln_nn_tanh(), kiln_nn_linear(WIDTH, CLASSES));
    kiln_params p = kiln_parameters(m);
    kiln_optim *sgd = kiln_optim_sgd(p, .lr = 1);
    assert_true(kiln_read(p.tensors[0], before, WEIGHTS * sizeof *before));
    for (int i = 0; i < 3; i++)
        kiln_step {
            kiln_zero_grad(sgd);
            kiln_backward(kiln_cross_entropy(kiln_forward(m, x), y));
            kiln_optim_step(sgd);
        }
    assert_true(kiln_read(p.tensors[0], after, WEIGHTS * sizeof *after));
    kiln_optim_free(sgd);
    kiln_module_free(m);
}

static void test_large_step(void **state)
{
    (void)state;
    static float first[WEIGHTS], got[WEIGHTS], again[WEIGHTS], want[WEIGHTS];
    bool before = kiln_get_tf32();
    kiln_set_tf32(true);
    kiln_scope
        train(first, got);
    kiln_scope
        train(first, again);
    kiln_on_device (KILN_CPU)
        kiln_scope
            train(first, want);
    kiln_set_tf32(before);
    assert_memory_equal(got, again, sizeof got);
    double moved = farthest(want, first, WEIGHTS);
    assert_true(moved > 1e-3);
    assert_true(farthest(got, want, WEIGHTS) < 0.02 * moved);
}

static void test_environment(void **state)
{
    (void)state;
    const char *text = getenv("KILN_TF32");
    assert_true(kiln_get_tf32() == (text && !strcmp(text, "1")));
}

int main(void)
{
    const struct CMUnitTest tests[] = {core_test(test_environment), core_test(test_plans), core_test(test_off),
                                       core_test(test_large_step)};
    return CORE_MAIN(tests);
}
