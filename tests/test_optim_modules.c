/* One optimizer over several modules, whose parameters have the same names: it trains, is saved, found again, and goes
 * on to the bit. And what cannot be saved is said before training begins. */
#include "support/files.h"

typedef struct pair {
    kiln_module *first, *second;
    kiln_optim *optim;
} pair;

/* As two groups, or as one list that somebody has put together. */
static void pair_begin(pair *p, uint64_t seed, bool one_list)
{
    kiln_manual_seed(seed);
    p->first = kiln_nn_linear(4, 4);
    p->second = kiln_nn_linear(4, 2);
    assert_true(kiln_module_to(p->first, kiln_default_device()) && kiln_module_to(p->second, kiln_default_device()));
    kiln_params a = kiln_parameters(p->first), b = kiln_parameters(p->second);
    if (!one_list) {
        p->optim = kiln_optim_adam(a, .lr = 1e-2);
        assert_true(kiln_optim_group(p->optim, b, .lr = 0.1));
        return;
    }
    kiln_tensor *all[4] = {a.tensors[0], a.tensors[1], b.tensors[0], b.tensors[1]};
    const char *names[4] = {a.names[0], a.names[1], b.names[0], b.names[1]};
    p->optim = kiln_optim_adam(((kiln_params){4, all, names}), .lr = 1e-2);
    assert_non_null(p->optim);
}

static void pair_end(pair *p)
{
    kiln_optim_free(p->optim);
    kiln_module_free(p->first);
    kiln_module_free(p->second);
}

static void pair_step(pair *p, int seed)
{
    kiln_step {
        kiln_tensor *x = core_data(seed, KILN_SHAPE(8, 4)), *y = core_data(seed + 99, KILN_SHAPE(8, 2));
        kiln_zero_grad(p->optim);
        kiln_tensor *out = kiln_forward(p->second, kiln_relu(kiln_forward(p->first, x)));
        assert_true(kiln_backward(kiln_mse_loss(out, y, KILN_MEAN)));
        assert_true(kiln_optim_step(p->optim));
    }
}

static void pair_values(const pair *p, float out[30])
{
    kiln_params lists[] = {kiln_parameters(p->first), kiln_parameters(p->second)};
    for (int k = 0; k < 2; k++)
        for (int64_t i = 0; i < lists[k].count; i++) {
            size_t n = (size_t)kiln_numel(lists[k].tensors[i]);
            assert_true(kiln_read(lists[k].tensors[i], out, n * sizeof *out));
            out += n;
        }
}

static void check_saved_and_resumed(bool one_list)
{
    pair p, q;
    float want[30], got[30];
    pair_begin(&p, 1, one_list);
    for (int i = 0; i < 3; i++)
        pair_step(&p, i);
    kiln_checkpoint c = {.model = p.first, .optim = p.optim, .step = 3};
    assert_true(kiln_checkpoint_save(files_folder, &c, 1));
    assert_true(kiln_module_save(p.second, files_path("second.safetensors")));
    for (int i = 3; i < 6; i++)
        pair_step(&p, i);
    pair_values(&p, want);

    pair_begin(&q, 2, one_list);
    pair_step(&q, 77); /* state that has to go */
    c = (kiln_checkpoint){.model = q.first, .optim = q.optim};
    assert_true(kiln_checkpoint_load(files_folder, &c));
    assert_true(kiln_module_load(q.second, files_path("second.safetensors"), false));
    for (int i = 3; i < 6; i++)
        pair_step(&q, i);
    pair_values(&q, got);
    assert_memory_equal(got, want, sizeof got);
    pair_end(&p);
    pair_end(&q);
}

static void test_two_groups(void **state)
{
    (void)state;
    check_saved_and_resumed(false);
}

static void test_one_list(void **state)
{
    (void)state;
    check_saved_and_resumed(true);
}

/* Names of one module are PyTorch's and stay so; others follow from the order alone. */
static void test_names(void **state)
{
    (void)state;
    pair p;
    pair_begin(&p, 1, false);
    kiln_module *third = kiln_nn_linear(2, 2);
    assert_true(kiln_module_to(third, kiln_default_device()));
    kiln_params list = kiln_parameters(third);
    const char *names[2] = {"weight.2", "bias"};
    assert_true(kiln_optim_group(p.optim, ((kiln_params){2, list.tensors, names})));
    kiln_params s = kiln_optim_state(p.optim);
    static const char *const want[] = {"weight.exp_avg",
                                       "weight.exp_avg_sq",
                                       "bias.exp_avg",
                                       "bias.exp_avg_sq",
                                       "weight.2.exp_avg",
                                       "weight.2.exp_avg_sq",
                                       "bias.2.exp_avg",
                                       "bias.2.exp_avg_sq",
                                       "weight.2.2.exp_avg",
                                       "weight.2.2.exp_avg_sq",
                                       "bias.3.exp_avg",
                                       "bias.3.exp_avg_sq",
                                       "skipped"};
    assert_int_equal(s.count, sizeof want / sizeof *want);
    for (int i = 0; i < (int)(sizeof want / sizeof *want); i++)
        assert_string_equal(s.names[i], want[i]);
    kiln_module_free(third);
    pair_end(&p);
}

/* What no checkpoint can hold is refused before the first step. */
static void test_said_before_training(void **state)
{
    (void)state;
    kiln_module *net = kiln_nn_linear(4, 2);
    assert_true(kiln_module_to(net, kiln_default_device()));
    kiln_dataset *data = NULL;
    kiln_scope
        data = kiln_data_tensors(core_data(1, KILN_SHAPE(8, 4)), core_data(2, KILN_SHAPE(8, 2)));
    assert_non_null(data);
    kiln_optim *o = kiln_optim_sgd(kiln_parameters(net), .momentum = 0.9);
    for (int i = 0; i < 70; i++)
        assert_true(kiln_optim_group(o, ((kiln_params){0})));
    kiln_history h = kiln_fit(net, data, .batch = 4, .loss = KILN_MSE, .optim = o, .checkpoint = files_path("many"));
    assert_int_equal(h.steps, 0);
    expect_error(KILN_E_ARGUMENT, "checkpoint", "more than 64 groups");
    kiln_history_free(&h);
    kiln_meta meta = {"model", "\xff"};
    h = kiln_fit(net, data, .batch = 4, .loss = KILN_MSE, .checkpoint = files_path("bytes"), .nmeta = 1, .meta = &meta);
    assert_int_equal(h.steps, 0);
    expect_error(KILN_E_ARGUMENT, "checkpoint", "not UTF-8");
    kiln_history_free(&h);
    assert_int_equal(files_count(files_folder), 0);
    kiln_optim_free(o);
    kiln_data_free(data);
    kiln_module_free(net);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        files_test(test_two_groups),
        files_test(test_one_list),
        files_test(test_names),
        files_test(test_said_before_training),
    };
    return CORE_MAIN(tests);
}
