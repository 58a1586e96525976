/* Generated kernels of whole steps compile: plans of small networks are lowered by the CUDA plugin's own files on a
 * device that runs nothing (fake/lowering.c), and every text goes through the compiler. Skipped where that is not
 * there. */
#include <dlfcn.h>
#include <sys/stat.h>
#include <unistd.h>
#include "models.h"
#include "support/core.h"
#include "support/devices.h"
#include "support/fake.h"

static char cache[] = "/tmp/kiln-text-XXXXXX";

static int counted(const char *name)
{
    int (*f)(void) = (int (*)(void))fake_cuda_function(name);
    return f ? f() : 0; /* it is opened with the first device */
}

static kiln_dtype amp = KILN_F32; /* what autocast converts to */
static bool scaled;               /* with a gradient scaler */

/* A training step; its values are whatever the memory held. length: of a text, or 0; images: where a batch of them is
 * taken from, augmented, or NULL. */
static void step(const char *name, int64_t batch, int64_t length, kiln_dataset *images)
{
    char why[200];
    model_options options = {0};
    const model_entry *entry = model_find(name, &options, why, sizeof why);
    assert_non_null(entry);
    kiln_device device = kiln_device_parse("cuda:0");
    assert_true(device >= 0);
    kiln_on_device (device) {
        kiln_module *m = entry->build(options);
        kiln_optim *adam = kiln_optim_adam(kiln_parameters(m), .lr = 1e-3);
        kiln_scaler *scaler = kiln_scaler_new(.disabled = !scaled);
        kiln_loader *l =
            images ? kiln_loader_new(images, .device = device, .augment = {.flip = true, .crop = 2}) : NULL;
        kiln_batch b = {0};
        assert_true(!images || kiln_loader_next(l, &b));
        kiln_step {
            kiln_tensor *x = b.x      ? b.x
                             : length ? kiln_zeros(KILN_SHAPE(batch, length), KILN_I64)
                                      : kiln_zeros(KILN_SHAPE(batch, 1, 28, 28), KILN_F32);
            kiln_tensor *y = b.y ? b.y : kiln_zeros(KILN_SHAPE(length ? batch * length : batch), KILN_I64);
            kiln_tensor *loss = NULL;
            kiln_autocast (amp) {
                kiln_tensor *z = kiln_forward(m, x);
                loss = kiln_cross_entropy(length ? kiln_flatten(z, 0, 1) : z, y);
            }
            kiln_backward(kiln_scaler_scale(scaler, loss));
            assert_true(kiln_scaler_step(scaler, adam) && kiln_scaler_update(scaler));
        }
        kiln_report(stderr);
        assert_true(kiln_ok());
        kiln_loader_free(l);
        kiln_scaler_free(scaler);
        kiln_optim_free(adam);
        kiln_module_free(m);
    }
}

static void test_mlp(void **state)
{
    (void)state;
    int before = counted("fake_whole_steps");
    step("mlp", 32, 0, NULL);
    assert_int_equal(counted("fake_whole_steps"), before + 1);
}

/* A batch that the step gathers itself, and gathers ahead where several runs share a launch. */
static void test_samples(void **state)
{
    (void)state;
    int before = counted("fake_whole_steps");
    kiln_device device = kiln_device_parse("cuda:0");
    assert_true(device >= 0);
    kiln_on_device (device) {
        kiln_module *m = kiln_nn_linear(28 * 28, 10);
        kiln_optim *adam = kiln_optim_adam(kiln_parameters(m), .lr = 1e-3);
        kiln_dataset *d = kiln_data_digits(.count = 64);
        kiln_loader *l = kiln_loader_new(d, .batch = 16, .device = device, .shuffle = true);
        kiln_batch b;
        assert_true(kiln_loader_next(l, &b));
        kiln_step {
            kiln_backward(kiln_cross_entropy(kiln_forward(m, kiln_flatten(b.x, 1, -1)), b.y));
            kiln_optim_step(adam);
        }
        kiln_report(stderr);
        assert_true(kiln_ok());
        kiln_loader_free(l);
        kiln_data_free(d);
        kiln_optim_free(adam);
        kiln_module_free(m);
    }
    assert_true(counted("fake_whole_steps") > before);
}

/* With more rows than a block takes, what follows the products is done in slabs, and sums in two halves. */
static void test_slabs(void **state)
{
    (void)state;
    int before = counted("fake_chains"), slabs = counted("fake_slabs");
    step("mlp", 1024, 0, NULL);
    assert_true(counted("fake_chains") > before);
    assert_true(counted("fake_slabs") > slabs);
}

/* In TF32 larger batches are one chain as well, with products in splits; of the largest, cuBLASLt makes some products.
 */
static void test_tf32(void **state)
{
    (void)state;
    kiln_set_tf32(true);
    static const int64_t batches[] = {1024, 8192, 20480};
    for (int i = 0; i < 3; i++) {
        int chains = counted("fake_chains"), whole = counted("fake_whole_steps");
        step("mlp", batches[i], 0, NULL);
        assert_true(counted("fake_chains") > chains);
        assert_int_equal(counted("fake_whole_steps"), whole + (batches[i] <= 8192));
    }
    kiln_set_tf32(false);
}

/* Autocast costs a small step nothing: it is one chain of as many links and waves as in f32, since products and groups
 * read weights, biases and the batch through their conversions. Larger ones have as many waves as in TF32. */
static void test_autocast(void **state)
{
    (void)state;
    static const int64_t batches[] = {33, 1024};
    kiln_plan_cache_set_capacity(0); /* every step is lowered, also one that was before */
    for (int i = 0; i < 2; i++) {
        kiln_set_tf32(true);
        step("mlp", batches[i], 0, NULL);
        kiln_set_tf32(false);
        int whole = counted("fake_whole_steps"), waves = counted("fake_waves"), links = counted("fake_links");
        for (amp = KILN_F16; amp <= KILN_BF16; amp++) {
            step("mlp", batches[i], 0, NULL);
            assert_int_equal(counted("fake_whole_steps"), ++whole);
            assert_int_equal(counted("fake_waves"), waves);
            assert_int_equal(counted("fake_links"), links);
        }
        amp = KILN_F32;
    }
    int before = counted("fake_chains");
    amp = KILN_BF16;
    step("lenet", 32, 0, NULL);
    step("gpt2:layers=1,embed=32,heads=2,context=16,vocabulary=64", 4, 16, NULL);
    amp = KILN_F32;
    kiln_plan_cache_set_capacity(INT64_MAX);
    assert_true(counted("fake_chains") > before);
}

/* With a gradient scaler: products that count, and groups that read the counts; in one chain and in parts of a graph.
 */
static void test_scaled(void **state)
{
    (void)state;
    int whole = counted("fake_whole_steps"), before = counted("fake_chains");
    amp = KILN_F16;
    scaled = true;
    step("mlp", 34, 0, NULL);
    assert_int_equal(counted("fake_whole_steps"), whole + 1);
    step("lenet", 33, 0, NULL);
    assert_true(counted("fake_chains") > before + 1);
    scaled = false;
    amp = KILN_F32;
}

static void test_parts(void **state)
{
    (void)state;
    int before = counted("fake_chains");
    step("lenet", 32, 0, NULL);
    assert_true(counted("fake_chains") > before);
    before = counted("fake_chains");
    step("gpt2:layers=1,embed=32,heads=2,context=16,vocabulary=64", 4, 16, NULL);
    assert_true(counted("fake_chains") > before);
    before = counted("fake_chains");
    step("llama:layers=1,embed=32,heads=4,kv_heads=2,hidden=48,vocabulary=64", 4, 16, NULL);
    assert_true(counted("fake_chains") > before);
}

/* A group that is too large for a chain has a kernel of its own. */
static void test_groups(void **state)
{
    (void)state;
    int before = counted("fake_groups");
    kiln_device device = kiln_device_parse("cuda:0");
    assert_true(device >= 0);
    kiln_on_device (device) {
        kiln_step {
            kiln_tensor *x = kiln_zeros(KILN_SHAPE(4096, 4096), KILN_F32);
            kiln_keep(kiln_gelu(x));
            kiln_keep(kiln_sum(kiln_mul(x, x), KILN_DIMS(0), false));
            kiln_keep(kiln_amax(kiln_cast(x, KILN_BF16), KILN_DIMS(1), false));
        }
        kiln_report(stderr);
        assert_true(kiln_ok());
    }
    assert_true(counted("fake_groups") >= before + 3);
}

/* Operations of rows with groups on both sides: each is one kernel, of halves too, of rows that warps share and that
 * are not made of whole vectors. Rows too long to be held have none: what stands around them is done by itself. */
static void test_around(void **state)
{
    (void)state;
    static const struct {
        kiln_dtype dtype;
        int64_t n;
        int kernels;
    } all[] = {{KILN_F32, 64, 2}, {KILN_F32, 33, 2}, {KILN_BF16, 1536, 2}, {KILN_F16, 200, 2}, {KILN_F32, 40000, 0}};
    kiln_device device = kiln_device_parse("cuda:0");
    assert_true(device >= 0);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        int before = counted("fake_around");
        kiln_on_device (device) {
            kiln_tensor *x = NULL, *grad = NULL;
            kiln_step
                x = kiln_keep(kiln_cast(kiln_zeros(KILN_SHAPE(50, all[i].n), KILN_F32), all[i].dtype));
            kiln_requires_grad(x, true);
            kiln_step {
                kiln_tensor *y = kiln_layer_norm(kiln_mul(x, x), KILN_SHAPE(all[i].n), NULL, NULL, 1e-5);
                assert_true(kiln_grad(kiln_sum_all(kiln_cast(kiln_keep(kiln_tanh(y)), KILN_F32)), NULL, &x, 1, &grad));
                kiln_keep(grad);
            }
            kiln_report(stderr);
            assert_true(kiln_ok());
            kiln_release(x);
        }
        if (counted("fake_around") - before != all[i].kernels)
            fail_msg("rows of %lld %s: %d kernels", (long long)all[i].n, kiln_dtype_name(all[i].dtype),
                     counted("fake_around") - before);
    }
}

/* IDX files of 40 black images. */
static kiln_dataset *idx_set(void)
{
    static const uint8_t heads[2][16] = {{0, 0, 8, 3, 0, 0, 0, 40, 0, 0, 0, 28, 0, 0, 0, 28},
                                         {0, 0, 8, 1, 0, 0, 0, 40}};
    static const uint8_t black[40 * 28 * 28] = {0};
    char paths[2][64];
    for (int i = 0; i < 2; i++) {
        snprintf(paths[i], sizeof paths[i], "%s/%s", cache, i ? "labels" : "images");
        FILE *f = fopen(paths[i], "wb");
        assert_true(f && fwrite(heads[i], i ? 8 : 16, 1, f) == 1 && fwrite(black, i ? 40 : sizeof black, 1, f) == 1);
        assert_int_equal(fclose(f), 0);
    }
    kiln_dataset *d = kiln_data_idx(paths[0], paths[1]);
    assert_non_null(d);
    return d;
}

/* Batches that are augmented where they are used, as they are stored and by a table. */
static void test_augmented(void **state)
{
    (void)state;
    kiln_dataset *sets[] = {kiln_data_digits(.count = 40), idx_set()};
    for (int i = 0; i < 2; i++) {
        int before = counted("fake_whole_steps");
        step("mlp", 32, 0, sets[i]);
        assert_int_equal(counted("fake_whole_steps"), before + 1);
        kiln_data_free(sets[i]);
    }
}

/* A folder for compiled kernels that others can write to is not used, which is said once. Texts compile all the same.
 */
static void test_not_kept(void **state)
{
    (void)state;
    char folder[64];
    snprintf(folder, sizeof folder, "%s/kiln", cache);
    assert_int_equal(chmod(folder, 0777), 0);
    while (kiln_next_notice())
        ;
    assert_true(counted("fake_compiles"));
    const char *notice = kiln_next_notice();
    assert_non_null(notice);
    assert_non_null(strstr(notice, "can be written to by others"));
    assert_true(counted("fake_compiles"));
    assert_null(kiln_next_notice());
    assert_int_equal(chmod(folder, 0700), 0);
}

/* Of all steps before. */
static void test_waves_are_in_order(void **state)
{
    (void)state;
    assert_true(counted("fake_chains") > 0);
    assert_int_equal(counted("fake_wrong_waves"), 0);
}

/* A network has kernels for each kind of layer, however many layers there are. */
static void test_layers_share(void **state)
{
    (void)state;
    static const char *const networks[] = {"gpt2:layers=12,embed=64,heads=2,vocabulary=97,context=40",
                                           "llama:layers=12,embed=64,heads=4,kv_heads=2,vocabulary=97,context=40",
                                           "bert:layers=12,embed=64,heads=2,vocabulary=97,context=40"};
    assert_int_equal(setenv("KILN_CUDA_JIT", "0", 1), 0); /* counted, not compiled */
    for (size_t i = 0; i < sizeof networks / sizeof *networks; i++)
        for (int half = 0; half < 2; half++) {
            amp = half ? KILN_BF16 : KILN_F32;
            int texts = counted("fake_texts"), all = counted("fake_chains") + counted("fake_groups");
            step(networks[i], 64, 40, NULL);
            texts = counted("fake_texts") - texts;
            all = counted("fake_chains") + counted("fake_groups") - all;
            if (getenv("KILN_TEST_SAY"))
                print_message("%s, %s: %d texts for %d kernels\n", networks[i], kiln_dtype_name(amp), texts, all);
            assert_in_range(texts, 1, all / 2);
        }
    amp = KILN_F32;
    unsetenv("KILN_CUDA_JIT");
}

int main(void)
{
    if (!fake_cuda_wanted()) {
        printf("skipped: the CUDA plugin was not built\n");
        return TEST_SKIPPED;
    }
    void *compiler = dlopen("libnvrtc.so.13", RTLD_NOW);
    if (!compiler) {
        printf("skipped: NVRTC is not there (libnvrtc.so.13)\n");
        return TEST_SKIPPED;
    }
    if (!mkdtemp(cache) || setenv("XDG_CACHE_HOME", cache, 1)) /* every text is compiled, whatever was before */
        return 1;
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_mlp),
                                       cmocka_unit_test(test_layers_share),
                                       cmocka_unit_test(test_samples),
                                       cmocka_unit_test(test_slabs),
                                       cmocka_unit_test(test_tf32),
                                       cmocka_unit_test(test_autocast),
                                       cmocka_unit_test(test_scaled),
                                       cmocka_unit_test(test_parts),
                                       cmocka_unit_test(test_groups),
                                       cmocka_unit_test(test_around),
                                       cmocka_unit_test(test_augmented),
                                       cmocka_unit_test(test_not_kept),
                                       cmocka_unit_test(test_waves_are_in_order)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    char command[64];
    snprintf(command, sizeof command, "rm -r %s", cache);
    return system(command) != 0 || failed;
}
