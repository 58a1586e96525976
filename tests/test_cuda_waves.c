/* How many waves the chains of whole training steps have, without a GPU: plans are lowered by the plugin's own files on
 * a device that runs nothing (fake/lowering.c), and nothing is compiled. */
#include <stdlib.h>
#include "support/core.h"
#include "support/fake.h"

enum { IN = 784, CLASSES = 10 };

static int counted(const char *name)
{
    int (*f)(void) = (int (*)(void))fake_cuda_function(name);
    return f ? f() : 0; /* it is opened with the first device */
}

typedef struct net {
    int64_t hidden[3]; /* 0: no such layer */
    int64_t batch;
} net;

static kiln_module *build(const net *n)
{
    kiln_module *m = kiln_nn_sequential(kiln_nn_identity());
    int64_t in = IN;
    char name[16];
    for (int i = 0; i < 3 && n->hidden[i]; in = n->hidden[i++]) {
        snprintf(name, sizeof name, "l%d", i);
        assert_non_null(kiln_module_add(m, name, kiln_nn_sequential(kiln_nn_linear(in, n->hidden[i]), kiln_nn_relu())));
    }
    assert_non_null(kiln_module_add(m, "out", kiln_nn_linear(in, CLASSES)));
    return m;
}

/* Waves of a step that is one chain; its values are whatever the memory held. */
static int waves_of(const net *n, kiln_dtype amp, bool scaled)
{
    int whole = counted("fake_whole_steps");
    kiln_device device = kiln_device_parse("cuda:0");
    assert_true(device >= 0);
    kiln_on_device (device) {
        kiln_module *m = build(n);
        kiln_optim *adam = kiln_optim_adam(kiln_parameters(m), .lr = 1e-3);
        kiln_scaler *scaler = kiln_scaler_new(.disabled = !scaled);
        kiln_step {
            kiln_tensor *loss = NULL, *x = kiln_zeros(KILN_SHAPE(n->batch, IN), KILN_F32);
            kiln_autocast (amp)
                loss = kiln_cross_entropy(kiln_forward(m, x), kiln_zeros(KILN_SHAPE(n->batch), KILN_I64));
            kiln_backward(kiln_scaler_scale(scaler, loss));
            assert_true(kiln_scaler_step(scaler, adam) && kiln_scaler_update(scaler));
        }
        kiln_report(stderr);
        assert_true(kiln_ok());
        kiln_scaler_free(scaler);
        kiln_optim_free(adam);
        kiln_module_free(m);
    }
    assert_int_equal(counted("fake_whole_steps"), whole + 1);
    return counted("fake_waves");
}

/* A gradient scaler costs a step one wave: products count what is not finite on their way, other gradients where they
 * are summed, and all updates look at the counts themselves. */
static void test_scaled(void **state)
{
    (void)state;
    static const net nets[] = {{{256, 128}, 32},    {{256, 128}, 37}, {{256, 128}, 128}, {{256, 128}, 1024},
                               {{300, 77, 50}, 37}, {{64}, 16},       {{512, 512}, 256}, {{0}, 64}};
    static const kiln_dtype dtypes[] = {KILN_F32, KILN_F16};
    kiln_plan_cache_set_capacity(0); /* every step is lowered, also one that was before */
    for (size_t i = 0; i < sizeof nets / sizeof *nets; i++)
        for (int d = 0; d < 2; d++) {
            kiln_set_tf32(true); /* large batches are one chain, too */
            int plain = waves_of(&nets[i], dtypes[d], false), with = waves_of(&nets[i], dtypes[d], true);
            kiln_set_tf32(false);
            if (with > plain + 1)
                fail_msg("network %zu, %s: %d waves instead of %d", i, kiln_dtype_name(dtypes[d]), with, plain + 1);
        }
    kiln_plan_cache_set_capacity(INT64_MAX);
}

/* Lowers a step that clips and updates so many equal parameters, beside something that takes more memory than is laid
 * out without using any twice; the waves of all its chains. The longest text of one of them goes to *longest. */
static int waves_of_parameters(int count, int *longest)
{
    enum { WIDTH = 256, LARGE = 1 << 26 };
    int before = counted("fake_all_waves");
    counted("fake_longest");
    kiln_device device = kiln_device_parse("cuda:0");
    assert_true(device >= 0);
    kiln_on_device (device) {
        kiln_module *m = kiln_nn_sequential(kiln_nn_identity());
        for (int i = 0; i < count; i++) {
            char name[16];
            snprintf(name, sizeof name, "l%d", i);
            assert_non_null(kiln_module_add(m, name, kiln_nn_linear(WIDTH, WIDTH, .no_bias = true)));
        }
        kiln_params all = kiln_parameters(m);
        kiln_optim *adam = kiln_optim_adam(all, .lr = 1e-3);
        kiln_step {
            kiln_tensor *loss = kiln_sum_all(kiln_cumsum(kiln_zeros(KILN_SHAPE(LARGE), KILN_F32), 0));
            for (int i = 0; i < count; i++)
                loss = kiln_add(loss, kiln_sum_all(kiln_mul(all.tensors[i], all.tensors[i])));
            assert_non_null(kiln_keep(loss));
            kiln_backward(loss);
            assert_true(kiln_clip_grad_norm(all, 1) && kiln_optim_step(adam));
        }
        kiln_report(stderr);
        assert_true(kiln_ok());
        kiln_optim_free(adam);
        kiln_module_free(m);
    }
    *longest = counted("fake_longest");
    return counted("fake_all_waves") - before;
}

/* The norm of all gradients takes no more waves for many parameters than for few: their sums share no room, so that
 * none waits for another. And what is done for each of them is written once: a text grows by a few lines a parameter.
 */
static void test_many_parameters(void **state)
{
    (void)state;
    enum { FEW = 6, MANY = 24, LINES = 1000 };
    int shorter, longer, few = waves_of_parameters(FEW, &shorter), many = waves_of_parameters(MANY, &longer);
    if (getenv("KILN_TEST_SAY"))
        print_message("%d and %d waves, %d and %d bytes\n", few, many, shorter, longer);
    assert_in_range(many, 1, few + 2);
    assert_true(shorter > 0 && longer < shorter + (MANY - FEW) * LINES);
}

static void test_waves_are_in_order(void **state)
{
    (void)state;
    assert_int_equal(counted("fake_wrong_waves"), 0);
}

int main(void)
{
    if (!fake_cuda_wanted()) {
        printf("skipped: the CUDA plugin was not built\n");
        return TEST_SKIPPED;
    }
    if (setenv("KILN_CUDA_JIT", "0", 1))
        return 1;
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_scaled), cmocka_unit_test(test_many_parameters),
                                       cmocka_unit_test(test_waves_are_in_order)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
