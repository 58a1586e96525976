/* The table that describes a network, and what looking at a network must not do. */
#include "support/nn.h"

/* ctest: name=eager env=KILN_EAGER=1 */

/* ---- The table ---- */

static void test_summary(void **state)
{
    (void)state;
    kiln_module *net = kiln_nn_sequential(
        kiln_nn_conv2d(1, 6, 5, .padding = 2), kiln_nn_relu(), kiln_nn_max_pool2d(2),
        kiln_nn_residual(kiln_nn_sequential(kiln_nn_batch_norm(6), kiln_nn_conv2d(6, 6, 3, .padding = 1)), NULL),
        kiln_nn_flatten(), kiln_nn_dropout(0.5), kiln_nn_linear(6 * 14 * 14, 10));
    assert_true(kiln_module_freeze(kiln_module_child(net, "0"), true));
    kiln_plan_cache plans = kiln_plan_cache_stats();
    kiln_random_state random = kiln_random_get();
    char *text = kiln_summary(net, KILN_SHAPE(32, 1, 28, 28), KILN_F32);
    assert_non_null(text);
    assert_string_equal(text,
                        "Layer     Kind        Output shape     Parameters     Memory\n"
                        "------------------------------------------------------------\n"
                        "(model)   Sequential  [32, 10]                  -          -\n"
                        "0         Conv2d      [32, 6, 28, 28]         156  588.0 KiB\n"
                        "1         ReLU        [32, 6, 28, 28]           -  588.0 KiB\n"
                        "2         MaxPool2d   [32, 6, 14, 14]           -  147.0 KiB\n"
                        "3         Residual    [32, 6, 14, 14]           -  147.0 KiB\n"
                        "3.body    Sequential  [32, 6, 14, 14]           -          -\n"
                        "3.body.0  BatchNorm   [32, 6, 14, 14]          12  147.0 KiB\n"
                        "3.body.1  Conv2d      [32, 6, 14, 14]         330  147.0 KiB\n"
                        "4         Flatten     [32, 1176]                -          -\n"
                        "5         Dropout     [32, 1176]                -          -\n"
                        "6         Linear      [32, 10]             11,770    1.2 KiB\n"
                        "------------------------------------------------------------\n"
                        "Parameters   12,268 (trainable 12,112, frozen 156)\n"
                        "Memory       parameters 47.9 KiB, gradients 47.3 KiB, activations 1.7 MiB, buffers 56 B\n");
    kiln_string_free(text);
    kiln_random_state now = kiln_random_get();
    assert_true(now.seed == random.seed && now.offset == random.offset);
    kiln_plan_cache after = kiln_plan_cache_stats();
    assert_true(after.misses == plans.misses && after.hits == plans.hits); /* nothing ran */
    assert_true(kiln_module_training(net));
    assert_int_equal(kiln_item_i64(of(net, "3.body.0.num_batches_tracked")), 0);
    assert_null(kiln_summary(net, KILN_SHAPE(32, 3, 28, 28), KILN_F32));
    expect_error(KILN_E_SHAPE, "conv2d", "0 (Conv2d): ");
    assert_null(kiln_summary(NULL, KILN_SHAPE(1), KILN_F32));
    expect_error(KILN_E_ARGUMENT, "summary", "NULL");
    int ndim;
    int64_t shape[KILN_MAX_DIMS];
    assert_false(kiln_module_shape(net, KILN_SHAPE(2, 2), KILN_F32, &ndim, shape));
    expect_error(KILN_E_SHAPE, NULL, "0 (Conv2d): ");
    assert_false(kiln_module_shape(net, KILN_SHAPE(2, 2), KILN_F32, NULL, NULL));
    expect_error(KILN_E_ARGUMENT, "module_shape", "NULL");
    kiln_module_free(net);
}

/* Deep names and large numbers: never wider than a terminal, ends of names kept. An input no memory could hold is fine.
 */
static void test_summary_width(void **state)
{
    (void)state;
    kiln_module *m = kiln_nn_sequential(kiln_nn_linear(1000, 1000), kiln_nn_identity());
    for (int i = 0; i < 12; i++) {
        kiln_module *outer = kiln_nn_sequence(0, NULL);
        kiln_module_add(outer, "a_rather_long_name_for_a_layer", m);
        m = outer;
    }
    char *text = kiln_summary(m, KILN_SHAPE(1000000, 10, 100, 1000), KILN_F32);
    assert_non_null(text);
    int lines = 0;
    for (char *rest = text, *line; (line = strtok_r(rest, "\n", &rest)); lines++)
        if (strlen(line) > 100)
            fail_msg("%zu columns: %s", strlen(line), line);
    assert_int_equal(lines, 13 + 2 + 3 + 2);
    kiln_string_free(text);
    text = kiln_summary(m, KILN_SHAPE(1000000, 10, 100, 1000), KILN_F32);
    assert_non_null(strstr(text, "layer.0 "));
    assert_non_null(strstr(text, "[1000000, 10, 100, 1000]"));
    assert_non_null(strstr(text, "1,001,000"));
    assert_non_null(strstr(text, "3.6 TiB"));
    kiln_string_free(text);
    kiln_module_free(m);
}

/* A graph that is being written is not disturbed by looking at a network. */
static void test_summary_within_a_step(void **state)
{
    (void)state;
    kiln_module *net = kiln_nn_sequential(kiln_nn_linear(3, 2), kiln_nn_batch_norm(2));
    float first[6], second[6];
    for (int look = 0; look < 2; look++) {
        kiln_zero_grad_of(of(net, "0.weight"));
        kiln_step {
            kiln_tensor *y = kiln_forward(kiln_module_child(net, "0"), core_data(1, KILN_SHAPE(4, 3)));
            if (look) {
                char *text = kiln_summary(net, KILN_SHAPE(7, 3), KILN_F32);
                assert_non_null(text);
                kiln_string_free(text);
            }
            assert_true(kiln_backward(kiln_sum_all(kiln_square(y))));
        }
        assert_true(kiln_read(kiln_grad_of(of(net, "0.weight")), look ? second : first, sizeof first));
    }
    assert_memory_equal(first, second, sizeof first);
    kiln_module_free(net);
}

/* Parameters that nobody's forward shows, and a layer used twice. */
static kiln_tensor *twice_forward(kiln_module *self, kiln_tensor *x, void *context)
{
    (void)context;
    kiln_module *fc = kiln_module_child(self, "fc");
    x = kiln_add(x, kiln_rand(KILN_SHAPE(2, 4), KILN_F32));
    x = kiln_forward(fc, kiln_forward(fc, x));
    return kiln_linear(x, kiln_module_tensor(self, "hidden.weight"), NULL);
}

static void test_summary_of_shared_layers(void **state)
{
    (void)state;
    kiln_module *m = kiln_module_new("Twice", twice_forward, NULL, NULL);
    kiln_module_add(m, "fc", kiln_nn_linear(4, 4));
    kiln_module_add(m, "hidden", kiln_nn_embedding(9, 4));
    kiln_random_state random = kiln_random_get();
    char *text = kiln_summary(m, KILN_SHAPE(2, 4), KILN_F32);
    assert_non_null(text);
    assert_string_equal(text, "Layer    Kind       Output shape  Parameters  Memory\n"
                              "----------------------------------------------------\n"
                              "(model)  Twice      [2, 9]                 -    72 B\n"
                              "fc       Linear     [2, 4]                20    32 B\n"
                              "fc       Linear     [2, 4]           (again)    32 B\n"
                              "hidden   Embedding  -                     36       -\n"
                              "----------------------------------------------------\n"
                              "Parameters   56 (trainable 56, frozen 0)\n"
                              "Memory       parameters 224 B, gradients 224 B, activations 136 B\n");
    kiln_string_free(text);
    kiln_module_free(m);
    assert_int_equal(kiln_random_get().offset, random.offset); /* although its forward draws */
}

static kiln_tensor *reading_forward(kiln_module *self, kiln_tensor *x, void *context)
{
    (void)self;
    *(double *)context = kiln_item(kiln_sum_all(x));
    return x;
}

/* A forward that looks at values: there are none, and none are computed for it. */
static void test_summary_computes_nothing(void **state)
{
    (void)state;
    double sum = 0;
    kiln_module *m = kiln_nn_sequential(kiln_module_new("Reader", reading_forward, &sum, NULL));
    kiln_plan_cache before = kiln_plan_cache_stats();
    assert_null(kiln_summary(m, KILN_SHAPE(2, 4), KILN_F32));
    expect_error(KILN_E_STATE, "read", "no value");
    kiln_plan_cache after = kiln_plan_cache_stats();
    assert_true(after.misses == before.misses && after.hits == before.hits);
    kiln_scope
        assert_non_null(kiln_forward(m, kiln_ones(KILN_SHAPE(2, 4), KILN_F32)));
    assert_near(sum, 8, 0);
    kiln_module_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        core_test(test_summary),
        core_test(test_summary_width),
        core_test(test_summary_within_a_step),
        core_test(test_summary_of_shared_layers),
        core_test(test_summary_computes_nothing),
    };
    return CORE_MAIN(tests);
}
