/* Values that are computed a second time on CUDA are computed as they were the first time: by the same tiles, whatever
 * else is in the chain. Plans are lowered by the plugin's own files on a device that runs nothing (fake/lowering.c), so
 * this says nothing of the kernels; tests/test_recompute.c and test_fit_memory.c compare bits on a GPU. */
#include "support/again.h"
#include "support/fake.h"

static int counted(const char *name)
{
    int (*f)(void) = (int (*)(void))fake_cuda_function(name);
    return f ? f() : 0; /* it is opened with the first device */
}

/* Waves of it have more tiles than a GPU has blocks, so that products share them. */
enum { WIDE = 256 };
static kiln_module *wide_mlp(bool again)
{
    kiln_module *net = kiln_nn_sequential(kiln_nn_identity());
    for (int i = 0; i < 4; i++) {
        char name[16];
        snprintf(name, sizeof name, "b%d", i);
        kiln_module *block = kiln_nn_sequential(kiln_nn_linear(WIDE, WIDE), kiln_nn_gelu(), kiln_nn_linear(WIDE, WIDE));
        assert_true(kiln_module_add(net, name, block_of(kiln_nn_residual(block, NULL), again)) != NULL);
    }
    return net;
}
static const network wide = {"wide mlp", wide_mlp, 2, {ROWS, WIDE}, false};

static void train_all(bool again)
{
    static const kiln_dtype dtypes[] = {KILN_F32, KILN_BF16, KILN_F16};
    kiln_device device = kiln_device_parse("cuda:0");
    assert_true(device >= 0);
    for (int way = 0; way < 4; way++) {
        kiln_set_tf32(way & 1);
        batches = way & 2 ? 16 : 1; /* with more tiles than there are blocks */
        for (int i = 0; i <= NETWORKS; i++)
            for (size_t t = 0; t < sizeof dtypes / sizeof *dtypes; t++)
                kiln_on_device (device)
                    train(i < NETWORKS ? &networks[i] : &wide, again, dtypes[t], IN_STEP);
    }
    kiln_set_tf32(false);
    batches = 1;
}

static void test_plain(void **state)
{
    (void)state;
    train_all(false);
    assert_int_equal(counted("fake_chosen"), 0);
}

static void test_by_hand(void **state)
{
    (void)state;
    int before = counted("fake_chosen");
    train_all(true);
    assert_true(counted("fake_chosen") > before + 100);
    assert_int_equal(counted("fake_unlike"), 0);
}

/* The same for the sake of memory: in half of what a step takes as it is. */
static void test_by_limit(void **state)
{
    (void)state;
    kiln_device device = kiln_device_parse("cuda:0");
    for (int i = 0; i < NETWORKS; i++) {
        int before = counted("fake_chosen"), fitted = 0;
        kiln_on_device (device) {
            kiln_plan_info plain, info;
            kiln_module *net = networks[i].make(false);
            kiln_optim *opt = kiln_optim_adamw(kiln_parameters(net), .lr = 1e-2);
            plan_within(&networks[i], net, opt, KILN_F32, 0, &plain);
            for (int percent = 90; percent > 10; percent -= 20)
                fitted += plan_within(&networks[i], net, opt, KILN_F32,
                                      (uint64_t)plain.peak_bytes * (uint64_t)percent / 100, &info);
            kiln_optim_free(opt);
            kiln_module_free(net);
        }
        assert_true(fitted > 0);
        assert_true(counted("fake_chosen") > before);
    }
    assert_int_equal(counted("fake_unlike"), 0);
}

int main(void)
{
    if (!fake_cuda_wanted()) {
        printf("skipped: the CUDA plugin was not built\n");
        return TEST_SKIPPED;
    }
    setenv("KILN_CUDA_JIT", "0", 1);       /* nothing is compiled */
    setenv("KILN_CUDA_LIBRARIES", "0", 1); /* they want a GPU */
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_plain), cmocka_unit_test(test_by_hand),
                                       cmocka_unit_test(test_by_limit)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
