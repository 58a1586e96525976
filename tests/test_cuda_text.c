/* Generated kernels of whole steps compile: plans of small networks are lowered by the CUDA plugin's own files on a
 * device that runs nothing (fake/lowering.c), and every text goes through the compiler. Skipped where that is not
 * there. */
#include <dlfcn.h>
#include <limits.h>
#include <unistd.h>
#include "models.h"
#include "support/core.h"
#include "support/devices.h"

static char folder[PATH_MAX]; /* of the plugin that lowers */

static int counted(const char *name)
{
    char path[PATH_MAX + 32];
    snprintf(path, sizeof path, "%s/libkiln-cuda.so", folder);
    void *plugin = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    int (*f)(void) = plugin ? (int (*)(void))(uintptr_t)dlsym(plugin, name) : NULL;
    int n = f ? f() : 0; /* it is opened with the first device */
    if (plugin)
        dlclose(plugin);
    return n;
}

/* A training step; its values are whatever the memory held. */
static void step(const char *name, int64_t batch, int64_t length)
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
        kiln_step {
            kiln_tensor *x = length ? kiln_zeros(KILN_SHAPE(batch, length), KILN_I64)
                                    : kiln_zeros(KILN_SHAPE(batch, 1, 28, 28), KILN_F32);
            kiln_tensor *y = kiln_zeros(KILN_SHAPE(length ? batch * length : batch), KILN_I64);
            kiln_tensor *z = kiln_forward(m, x);
            kiln_backward(kiln_cross_entropy(length ? kiln_flatten(z, 0, 1) : z, y));
            kiln_optim_step(adam);
        }
        kiln_report(stderr);
        assert_true(kiln_ok());
        kiln_optim_free(adam);
        kiln_module_free(m);
    }
}

static void test_mlp(void **state)
{
    (void)state;
    int before = counted("fake_whole_steps");
    step("mlp", 32, 0);
    assert_int_equal(counted("fake_whole_steps"), before + 1);
}

/* With more rows than a block takes, what follows the products is done in slabs, and sums in two halves. */
static void test_slabs(void **state)
{
    (void)state;
    int before = counted("fake_chains"), slabs = counted("fake_slabs");
    step("mlp", 1024, 0);
    assert_true(counted("fake_chains") > before);
    assert_true(counted("fake_slabs") > slabs);
}

static void test_parts(void **state)
{
    (void)state;
    int before = counted("fake_chains");
    step("lenet", 32, 0);
    assert_true(counted("fake_chains") > before);
    before = counted("fake_chains");
    step("gpt2:layers=1,embed=32,heads=2,context=16,vocabulary=64", 4, 16);
    assert_true(counted("fake_chains") > before);
}

/* The plugin's folder goes before all others, so that the real one is not opened. */
static bool find_plugin(void)
{
    char self[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n < 0)
        return false;
    self[n] = '\0';
    *strrchr(self, '/') = '\0';
    if ((size_t)snprintf(folder, sizeof folder, "%s/fake/lowering", self) >= sizeof folder)
        return false;
    char path[PATH_MAX + 32];
    snprintf(path, sizeof path, "%s/libkiln-cuda.so", folder);
    return access(path, R_OK) == 0 && setenv("KILN_PLUGIN_PATH", folder, 1) == 0;
}

int main(void)
{
    if (!find_plugin()) {
        printf("the CUDA plugin was not built: skipped\n");
        return TEST_SKIPPED;
    }
    void *compiler = dlopen("libnvrtc.so.13", RTLD_NOW);
    if (!compiler) {
        printf("NVRTC is not there (libnvrtc.so.13): skipped\n");
        return TEST_SKIPPED;
    }
    char cache[] = "/tmp/kiln-text-XXXXXX"; /* every text is compiled, whatever was before */
    if (!mkdtemp(cache) || setenv("XDG_CACHE_HOME", cache, 1))
        return 1;
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_mlp), cmocka_unit_test(test_slabs),
                                       cmocka_unit_test(test_parts)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    char command[64];
    snprintf(command, sizeof command, "rm -r %s", cache);
    return system(command) != 0 || failed;
}
