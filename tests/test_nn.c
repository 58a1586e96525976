/* Module trees: names and ownership, lists, modes, freezing, modules of one's own, errors that name a layer. */
#include "support/nn.h"

/* ctest: name=eager env=KILN_EAGER=1 */

/* ---- The tree ---- */

static void test_paths(void **state)
{
    (void)state;
    kiln_module *net = small_net();
    const char *name = "?";
    assert_int_equal(kiln_module_children(net), 3);
    assert_ptr_equal(kiln_module_child_at(net, 1, &name), kiln_module_child(net, "1"));
    assert_string_equal(name, "1");
    assert_null(kiln_module_child_at(net, 3, &name));
    assert_null(name);
    assert_string_equal(kiln_module_kind(net), "Sequential");
    assert_string_equal(kiln_module_kind(kiln_module_child(net, "2.1")), "Linear");
    assert_ptr_equal(kiln_module_tensor(net, "2.1.weight"),
                     kiln_module_tensor(kiln_module_child(net, "2"), "1.weight"));
    assert_string_equal(kiln_get_name(of(net, "2.0.running_mean")), "2.0.running_mean");
    const char *const absent[] = {"3", "2.1.2", "2.", "0.weight.", "weight", "2..1", "0.weigh", ".0"};
    for (size_t i = 0; i < sizeof absent / sizeof *absent; i++) {
        assert_null(kiln_module_tensor(net, absent[i]));
        if (strcmp(absent[i], "2."))
            assert_null(kiln_module_child(net, absent[i]));
    }
    kiln_module_free(kiln_module_child(net, "0")); /* goes with its parent, not before */
    assert_non_null(of(net, "0.bias"));
    assert_int_equal(kiln_parameter_count(net), 12 + 4 + 8 + 8 + 2);
    assert_true(kiln_ok());
    kiln_module_free(net);
    kiln_module_free(NULL);
}

static void test_adding(void **state)
{
    (void)state;
    kiln_module *top = kiln_module_new("Top", NULL, NULL, NULL), *other = kiln_module_new("Other", NULL, NULL, NULL);
    kiln_module *inner = kiln_module_add(top, "inner", kiln_module_new("Inner", NULL, NULL, NULL));
    kiln_module *fc = kiln_module_add(inner, "fc", kiln_nn_linear(2, 2));
    assert_string_equal(kiln_get_name(of(fc, "weight")), "inner.fc.weight");
    assert_null(kiln_module_add(inner, "fc", kiln_nn_relu()));
    expect_error(KILN_E_ARGUMENT, "module_add", "\"fc\"");
    assert_null(kiln_module_add(inner, "a.b", kiln_nn_relu()));
    expect_error(KILN_E_ARGUMENT, "module_add", "a.b");
    assert_null(kiln_module_add(inner, "", kiln_nn_relu()));
    expect_error(KILN_E_ARGUMENT, "module_add", NULL);
    assert_null(kiln_module_add(inner, NULL, kiln_nn_relu()));
    expect_error(KILN_E_ARGUMENT, "module_add", NULL);
    assert_null(kiln_module_add(other, "fc", fc));
    expect_error(KILN_E_ARGUMENT, "module_add", "parent");
    assert_null(kiln_module_add(inner, "loop", top));
    expect_error(KILN_E_ARGUMENT, "module_add", "contains");
    assert_null(kiln_module_add(NULL, "x", kiln_nn_linear(1, 1)));
    expect_error(KILN_E_ARGUMENT, "module_add", "parent");
    assert_null(kiln_module_add(top, "x", NULL));
    expect_error(KILN_E_ARGUMENT, "module_add", "child");
    assert_null(kiln_module_add_parameter(inner, "again", of(fc, "weight")));
    expect_error(KILN_E_ARGUMENT, "module_add", "inner.fc.weight");
    assert_null(kiln_module_add_parameter(fc, "weight", kiln_ones(KILN_SHAPE(1000), KILN_F32)));
    expect_error(KILN_E_ARGUMENT, "module_add", "weight");
    assert_null(kiln_module_add_parameter(fc, "counts", kiln_ones(KILN_SHAPE(3), KILN_I64)));
    expect_error(KILN_E_DTYPE, NULL, "counts");
    assert_null(kiln_module_add_buffer(fc, "none", NULL));
    expect_error(KILN_E_ARGUMENT, "module_add", "NULL");
    assert_non_null(kiln_module_add_buffer(fc, "counts", kiln_ones(KILN_SHAPE(3), KILN_I64)));
    assert_non_null(kiln_module_add(other, "top", top));
    assert_string_equal(kiln_get_name(of(fc, "weight")), "top.inner.fc.weight");
    kiln_module_free(other);
}

/* A constructor that fails in the middle: the others are freed (the run checks memory), its error is the one that
 * stays.
 */
static void test_failing_parts(void **state)
{
    (void)state;
    assert_null(kiln_nn_sequential(kiln_nn_linear(30, 40), kiln_nn_conv2d(3, 4, 3, .groups = 2), kiln_nn_linear(5, 6),
                                   kiln_nn_linear(0, 6)));
    kiln_error e = *kiln_last_error();
    assert_true(!strcmp(e.operation, "Conv2d") || !strcmp(e.operation, "Linear")); /* the order of arguments is open */
    kiln_error_clear();
    assert_null(kiln_nn_residual(kiln_nn_linear(30, 40), kiln_nn_linear(-1, 40)));
    expect_error(KILN_E_ARGUMENT, "Linear", "-1");
    assert_null(kiln_nn_residual(NULL, kiln_nn_linear(30, 40)));
    expect_error(KILN_E_ARGUMENT, "Residual", "NULL");
    assert_null(kiln_nn_sequential(kiln_nn_linear(3, 4), NULL));
    expect_error(KILN_E_ARGUMENT, "Sequential", "child 1");
    kiln_module *twice = kiln_nn_linear(3, 3);
    assert_null(kiln_nn_sequential(kiln_nn_linear(3, 3), twice, twice, kiln_nn_linear(3, 3)));
    expect_error(KILN_E_ARGUMENT, NULL, "parent");
    kiln_module *empty = kiln_nn_sequence(0, NULL);
    kiln_tensor *x = kiln_ones(KILN_SHAPE(2), KILN_F32);
    assert_ptr_equal(kiln_forward(empty, x), x);
    kiln_release(x);
    kiln_module_free(empty);
}

static void test_bad_options(void **state)
{
    (void)state;
#define BAD(call, kind, word)                                                                                          \
    do {                                                                                                               \
        if (call)                                                                                                      \
            fail_msg("%s was accepted", #call);                                                                        \
        expect_error(KILN_E_ARGUMENT, kind, word);                                                                     \
    } while (0)
    BAD(kiln_nn_linear(3, INT64_MAX), "Linear", "out");
    BAD(kiln_nn_conv2d(3, 4, 0), "Conv2d", "kernel");
    BAD(kiln_nn_conv2d(3, 4, 3, .padding = -1), "Conv2d", "padding");
    BAD(kiln_nn_conv2d(3, 4, 3, .output_padding = 1), "Conv2d", "output_padding");
    BAD(kiln_nn_conv1d(3, 4, 3, .stride_w = 1), "Conv1d", "_w");
    BAD(kiln_nn_conv_transpose2d(3, 4, 3, .groups = -1), "ConvTranspose2d", "groups");
    BAD(kiln_nn_embedding(3, 4, .padding_idx = 1), "Embedding", "has_padding");
    BAD(kiln_nn_embedding(3, 4, .has_padding = true, .padding_idx = 3), "Embedding", "3");
    BAD(kiln_nn_batch_norm(4, .momentum = 2), "BatchNorm", "momentum");
    BAD(kiln_nn_layer_norm(4, .eps = -1), "LayerNorm", "eps");
    BAD(kiln_nn_layer_norm(4, .momentum = 0.1), "LayerNorm", "momentum");
    BAD(kiln_nn_group_norm(3, 4), "GroupNorm", "groups");
    BAD(kiln_nn_group_norm(0, 4), "GroupNorm", "groups");
    BAD(kiln_nn_max_pool2d(0), "MaxPool2d", "kernel");
    BAD(kiln_nn_max_pool2d(2, .padding = 2), "MaxPool2d", "padding");
    BAD(kiln_nn_max_pool2d(2, .exclude_pad = true), "MaxPool2d", "exclude_pad");
    BAD(kiln_nn_avg_pool1d(2, .dilation = 2), "AvgPool1d", "dilation");
    BAD(kiln_nn_adaptive_avg_pool2d(0, 1), "AdaptiveAvgPool2d", "size");
    BAD(kiln_nn_dropout(1.5), "Dropout", "1.5");
    BAD(kiln_nn_hardtanh(1, -1), "Hardtanh", "max");
    BAD(kiln_nn_softplus(0, 20), "Softplus", "beta");
    BAD(kiln_nn_unflatten(0, NULL), "Unflatten", "dims");
    BAD(kiln_nn_upsample(0, KILN_NEAREST), "Upsample", "scale");
    BAD(kiln_nn_multihead_attention(10, 3), "MultiheadAttention", "heads");
    BAD(kiln_nn_lstm(3, 0), "LSTM", "hidden");
    BAD(kiln_nn_gru(3, 4, .relu = true), "GRU", "relu");
    BAD(kiln_nn_rnn(3, 4, .dropout = -1), "RNN", "dropout");
#undef BAD
}

/* ---- Errors on the way ---- */

static kiln_tensor *give_nothing(kiln_module *self, kiln_tensor *x, void *context)
{
    (void)self, (void)x, (void)context;
    return NULL;
}

static void test_errors_name_the_layer(void **state)
{
    (void)state;
    kiln_module *net = small_net();
    kiln_module *group = kiln_module_new("Group", NULL, NULL, NULL);
    kiln_module *silent = kiln_nn_sequential(kiln_module_new("Silent", give_nothing, NULL, NULL));
    kiln_scope {
        kiln_tensor *x = kiln_ones(KILN_SHAPE(2, 5), KILN_F32);
        assert_null(kiln_forward(net, x));
        expect_error(KILN_E_SHAPE, "linear", "0 (Linear): ");
        assert_null(kiln_forward(kiln_module_child(net, "2"), x));
        expect_error(KILN_E_SHAPE, "batch_norm", "2.0 (BatchNorm): ");
        assert_null(kiln_forward(net, kiln_ones(KILN_SHAPE(1, 3), KILN_F32)));
        kiln_error e = *kiln_last_error();
        assert_true(e.hint[0] != 0);                                         /* kept */
        assert_ptr_equal(strstr(e.message, "2.0 (BatchNorm): "), e.message); /* the innermost one, once */
        expect_error(KILN_E_SHAPE, "batch_norm", NULL);
        assert_null(kiln_forward(group, x));
        expect_error(KILN_E_STATE, "forward", "Group: ");
        assert_null(kiln_forward(silent, x));
        expect_error(KILN_E_STATE, "forward", "0 (Silent): ");
        assert_null(kiln_forward(NULL, x));
        expect_error(KILN_E_ARGUMENT, "forward", "module");
        assert_null(kiln_forward(net, NULL));
        expect_error(KILN_E_ARGUMENT, "forward", "operand 2 is NULL");
        assert_null(kiln_attend(net, x, x, x, NULL));
        expect_error(KILN_E_ARGUMENT, "attend", "Sequential");
        assert_null(kiln_recur(net, x, NULL, NULL, NULL, NULL));
        expect_error(KILN_E_ARGUMENT, "recur", "Sequential");
        /* An error from before stays as it is. */
        assert_null(kiln_matmul(x, x));
        kiln_error first = *kiln_last_error();
        assert_null(kiln_forward(net, x));
        assert_memory_equal(&first, kiln_last_error(), sizeof first);
        kiln_error_clear();
    }
    kiln_module_free(silent);
    kiln_module_free(group);
    kiln_module_free(net);
}

static void test_recurrent_errors(void **state)
{
    (void)state;
    kiln_module *gru = kiln_nn_gru(3, 2, .layers = 2);
    kiln_scope {
        kiln_tensor *x = kiln_ones(KILN_SHAPE(4, 5, 3), KILN_F32), *h = NULL, *c = NULL;
        assert_null(kiln_recur(gru, x, kiln_ones(KILN_SHAPE(2, 4, 2), KILN_F32), NULL, &h, NULL));
        assert_null(h);
        expect_error(KILN_E_SHAPE, "recur", "[2, 5, 2]");
        assert_null(kiln_recur(gru, x, NULL, kiln_ones(KILN_SHAPE(2, 5, 2), KILN_F32), &h, &c));
        expect_error(KILN_E_ARGUMENT, "recur", "LSTM");
        assert_null(kiln_forward(gru, kiln_ones(KILN_SHAPE(4, 3), KILN_F32)));
        expect_error(KILN_E_SHAPE, "recur", "T, N");
        assert_null(kiln_forward(gru, kiln_ones(KILN_SHAPE(0, 5, 3), KILN_F32)));
        expect_error(KILN_E_SHAPE, "recur", "at least one");
    }
    kiln_module_free(gru);
}

/* ---- Lists ---- */

static void test_lists(void **state)
{
    (void)state;
    kiln_module *net = small_net();
    kiln_params p = kiln_parameters(net), s = kiln_state(net), again = kiln_parameters(net);
    assert_int_equal(p.count, 6);
    assert_int_equal(s.count, 9);
    assert_ptr_equal(p.tensors, again.tensors);
    assert_string_equal(s.names[6], "2.0.num_batches_tracked");
    for (int64_t i = 0; i < s.count; i++)
        assert_ptr_equal(s.tensors[i], of(net, s.names[i]));
    kiln_params bias = kiln_parameters_matching(net, "*.bias", false);
    kiln_params rest = kiln_parameters_matching(net, "*.bias", true);
    assert_int_equal(bias.count, 3);
    assert_int_equal(rest.count, 3);
    assert_string_equal(bias.names[1], "2.0.bias");
    assert_string_equal(rest.names[2], "2.1.weight");
    assert_int_equal(kiln_parameters_matching(net, "*[!0].weight", false).count, 1);
    assert_int_equal(kiln_parameters_matching(net, "nothing", false).count, 0);
    assert_ptr_equal(kiln_parameters_matching(net, "*.bias", false).names, bias.names);
    assert_string_equal(kiln_parameters(kiln_module_child(net, "2")).names[0], "0.weight");
    /* After an addition deep inside a new list is made; the old one stays as it was. */
    assert_non_null(kiln_module_add(kiln_module_child(net, "2"), "more", kiln_nn_linear(2, 2, .no_bias = true)));
    kiln_params more = kiln_parameters(net);
    assert_int_equal(more.count, 7);
    assert_string_equal(more.names[6], "2.more.weight");
    assert_int_equal(p.count, 6);
    assert_string_equal(p.names[5], "2.1.bias");
    assert_true(kiln_ok());
    assert_int_equal(kiln_parameters(NULL).count, 0);
    expect_error(KILN_E_ARGUMENT, "parameters", "NULL");
    assert_int_equal(kiln_parameters_matching(net, NULL, false).count, 0);
    expect_error(KILN_E_ARGUMENT, "parameters_matching", "NULL");
    kiln_module_free(net);
}

/* ---- Modes ---- */

static void test_train_and_eval(void **state)
{
    (void)state;
    kiln_module *net = kiln_nn_sequential(kiln_nn_dropout(0.5), kiln_nn_sequential(kiln_nn_batch_norm(2)));
    kiln_module *drop = kiln_module_child(net, "0");
    assert_true(kiln_module_training(net));
    kiln_module_train(net, false);
    assert_false(kiln_module_training(kiln_module_child(net, "1.0")));
    kiln_scope {
        kiln_tensor *x = core_data(1, KILN_SHAPE(50, 2));
        assert_ptr_equal(kiln_forward(drop, x), x);
        kiln_tensor *y = kiln_forward(net, x); /* by running figures 0 and 1: nearly x itself */
        for (int i = 0; i < 100; i++)
            assert_near(core_f32(y)[i], core_f32(x)[i], 1e-5);
        assert_int_equal(kiln_item_i64(of(net, "1.0.num_batches_tracked")), 0);
        kiln_module_train(net, true);
        const float *dropped = core_f32(kiln_forward(drop, x)), *given = core_f32(x);
        int zeros = 0;
        for (int i = 0; i < 100; i++) {
            assert_true(dropped[i] == 0 || dropped[i] == 2 * given[i]);
            zeros += dropped[i] == 0;
        }
        assert_in_range(zeros, 25, 75);
    }
    kiln_module_free(net);
}

/* Batches are counted by an assignment in the step: a step that fails does not count, and neither does eval. */
static void test_batches_counted(void **state)
{
    (void)state;
    kiln_module *net = small_net();
    for (int i = 0; i < 3; i++)
        train_step(net, i);
    assert_int_equal(kiln_item_i64(of(net, "2.0.num_batches_tracked")), 3);
    if (!core_eager()) {
        snapshot before = state_of(net);
        kiln_step {
            kiln_forward(net, core_data(9, KILN_SHAPE(5, 3)));
            kiln_forward(net, core_data(9, KILN_SHAPE(5, 4)));
        }
        expect_error(KILN_E_SHAPE, "linear", "0 (Linear)");
        snapshot after = state_of(net);
        assert_memory_equal(&before, &after, sizeof before);
    }
    kiln_module_free(net);
}

static void test_freeze(void **state)
{
    (void)state;
    kiln_module *net = small_net(), *body = kiln_module_child(net, "0");
    kiln_scope {
        kiln_tensor *x = core_data(1, KILN_SHAPE(5, 3));
        kiln_step
            assert_true(kiln_backward(kiln_sum_all(kiln_forward(net, x))));
        assert_non_null(kiln_grad_of(of(net, "0.weight")));
        assert_true(kiln_module_freeze(body, true));
        assert_null(kiln_grad_of(of(net, "0.weight"))); /* no optimizer steps along it */
        kiln_step
            assert_true(kiln_backward(kiln_sum_all(kiln_forward(net, x))));
        assert_null(kiln_grad_of(of(net, "0.bias")));
        assert_non_null(kiln_grad_of(of(net, "2.1.bias")));
        assert_int_equal(kiln_parameters(net).count, 6);
        assert_true(kiln_module_freeze(net, false));
        kiln_step
            assert_true(kiln_backward(kiln_sum_all(kiln_forward(net, x))));
        assert_non_null(kiln_grad_of(of(net, "0.bias")));
        assert_false(kiln_needs_grad(of(net, "2.0.running_mean")));
        assert_false(kiln_module_freeze(NULL, true));
        expect_error(KILN_E_ARGUMENT, "module_freeze", NULL);
    }
    kiln_module_free(net);
}

/* ---- Modules of one's own ---- */

typedef struct scale {
    kiln_tensor *factor, *calls;
    kiln_module *inner;
    int *freed;
} scale;

static kiln_tensor *scale_forward(kiln_module *self, kiln_tensor *x, void *context)
{
    const scale *s = context;
    assert_ptr_equal(kiln_module_context(self), context);
    if (kiln_module_training(self))
        kiln_no_grad
            kiln_assign(s->calls, kiln_add_scalar(s->calls, 1));
    return kiln_mul(kiln_forward(s->inner, x), s->factor);
}

static void scale_free(void *context)
{
    ++*((scale *)context)->freed;
    free(context);
}

static kiln_module *make_scale(int *freed)
{
    scale *s = calloc(1, sizeof *s);
    s->freed = freed;
    kiln_module *m = kiln_module_new("Scale", scale_forward, s, scale_free);
    s->inner = kiln_module_add(m, "inner", kiln_nn_identity());
    s->factor = kiln_module_add_parameter(m, "factor", kiln_add_scalar(kiln_ones(KILN_SHAPE(2), KILN_F32), 2));
    s->calls = kiln_module_add_buffer(m, "calls", kiln_zeros(0, NULL, KILN_I64));
    return m;
}

static void test_own_module(void **state)
{
    (void)state;
    int freed = 0;
    kiln_module *m = NULL;
    kiln_scope
        m = kiln_nn_sequential(make_scale(&freed)); /* its tensors leave the scope */
    assert_string_equal(kiln_module_kind(kiln_module_child(m, "0")), "Scale");
    kiln_step {
        kiln_tensor *x = kiln_of_f32(((float[]){1, -2}), 2);
        assert_true(kiln_backward(kiln_sum_all(kiln_forward(m, x))));
    }
    assert_f32(kiln_grad_of(of(m, "0.factor")), 1, -2);
    assert_f32(of(m, "0.factor"), 3, 3);
    kiln_tensor *x = kiln_ones(KILN_SHAPE(2), KILN_F32), *y = kiln_forward(m, x); /* outside any scope */
    assert_f32(y, 3, 3);
    assert_int_equal(kiln_item_i64(of(m, "0.calls")), 2);
    char *text = kiln_summary(m, KILN_SHAPE(2), KILN_F32);
    assert_non_null(text);
    kiln_string_free(text);
    assert_int_equal(kiln_item_i64(of(m, "0.calls")), 2);
    kiln_release(x);
    kiln_release(y);
    assert_null(kiln_module_context(m));
    assert_int_equal(freed, 0);
    kiln_module_free(m);
    assert_int_equal(freed, 1);
}

/* Made in a step that fails, a module has its values all the same, also those assigned before they were added. */
static void test_made_in_a_step(void **state)
{
    (void)state;
    kiln_module *m = NULL;
    kiln_step {
        m = small_net();
        kiln_tensor *t = kiln_tensor_new(NULL, KILN_F32, KILN_SHAPE(2), kiln_default_device());
        kiln_module_add_parameter(m, "own", kiln_init_constant(t, 5));
        kiln_matmul(kiln_ones(KILN_SHAPE(2, 3), KILN_F32), kiln_ones(KILN_SHAPE(2, 3), KILN_F32));
    }
    assert_false(kiln_ok());
    kiln_error_clear();
    assert_non_null(m);
    assert_f32(of(m, "2.0.weight"), 1, 1, 1, 1);
    assert_f32(of(m, "own"), 5, 5);
    train_step(m, 1);
    kiln_module_free(m);
}

/* ---- Plans ---- */

/* A training step of layers is the same code each time: after the first ones it is replayed. */
static void test_steps_are_replayed(void **state)
{
    (void)state;
    skip_if_eager();
    kiln_module *net = kiln_nn_sequential(
        kiln_nn_linear(3, 4), kiln_nn_batch_norm(4), kiln_nn_dropout(0.3), kiln_nn_unflatten(KILN_SHAPE(2, 2)),
        kiln_nn_lstm(2, 3, .layers = 2, .dropout = 0.1), kiln_nn_flatten(), kiln_nn_linear(6, 2));
    kiln_plan_info info;
    for (int i = 0; i < 5; i++) {
        kiln_zero_grad_of(of(net, "0.weight"));
        for (int64_t k = 0; k < kiln_parameters(net).count; k++)
            kiln_zero_grad_of(kiln_parameters(net).tensors[k]);
        train_step(net, i);
        assert_true(kiln_plan_last(&info));
        assert_true(i < 2 || info.replayed);
    }
    kiln_module_free(net);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        core_test(test_paths),
        core_test(test_adding),
        core_test(test_failing_parts),
        core_test(test_bad_options),
        core_test(test_errors_name_the_layer),
        core_test(test_recurrent_errors),
        core_test(test_lists),
        core_test(test_train_and_eval),
        core_test(test_batches_counted),
        core_test(test_freeze),
        core_test(test_own_module),
        core_test(test_made_in_a_step),
        core_test(test_steps_are_replayed),
    };
    return CORE_MAIN(tests);
}
