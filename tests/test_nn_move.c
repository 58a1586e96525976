/* Modules that move between devices. */
#include "support/nn.h"

/* ctest: name=eager env=KILN_EAGER=1 */

/* ---- Moving ---- */

static kiln_device elsewhere(void)
{
    if (kiln_default_device() != KILN_CPU)
        return KILN_CPU;
    return kiln_device_count("sim", NULL, 0) > 0 ? kiln_device_parse("sim:0") : KILN_NO_DEVICE;
}

static uint64_t in_use(kiln_device device)
{
    kiln_memory_stats stats = {0};
    assert_true(kiln_memory_get_stats(device, &stats));
    return stats.in_use;
}

static void assert_alike(kiln_tensor *moved, kiln_tensor *stayed)
{
    assert_int_equal(kiln_dtype_of(moved), kiln_dtype_of(stayed));
    kiln_scope { /* counters are whole numbers, and small */
        kiln_tensor *a = kiln_cast(moved, KILN_F32), *b = kiln_cast(stayed, KILN_F32);
        core_assert_alike(core_f32(a), core_f32(b), (size_t)kiln_numel(b));
    }
}

static void test_move(void **state)
{
    (void)state;
    kiln_device here = kiln_default_device(), there = elsewhere();
    if (there == KILN_NO_DEVICE)
        skip_because("needs a second device");
    uint64_t before_here = in_use(here), before_there = in_use(there);
    kiln_manual_seed(5);
    kiln_module *moved = small_net();
    kiln_manual_seed(5);
    kiln_module *stayed = small_net();
    kiln_params p = kiln_state(moved);
    assert_int_equal(kiln_module_device(moved), here);
    for (int i = 0; i < 6; i++) { /* trained on the way, each time on the other device */
        train_step(moved, i);
        train_step(stayed, i);
        assert_true(kiln_module_to(moved, i % 2 ? here : there));
        assert_int_equal(kiln_module_device(moved), i % 2 ? here : there);
        assert_ptr_equal(kiln_state(moved).tensors, p.tensors);
        for (int64_t k = 0; k < p.count; k++) {
            assert_int_equal(kiln_device_of(p.tensors[k]), i % 2 ? here : there);
            kiln_tensor *g = kiln_grad_of(p.tensors[k]);
            assert_true(!g || kiln_device_of(g) == (i % 2 ? here : there));
        }
        for (int64_t k = 0; k < p.count; k++)
            assert_alike(p.tensors[k], kiln_state(stayed).tensors[k]);
    }
    for (int64_t k = 0; k < p.count; k++) { /* gradients were summed up over all steps, wherever they were */
        kiln_tensor *g = kiln_grad_of(p.tensors[k]), *h = kiln_grad_of(kiln_state(stayed).tensors[k]);
        if (g)
            assert_alike(g, h);
    }
    kiln_module_free(moved);
    kiln_module_free(stayed);
    kiln_step {
    }
    assert_int_equal(in_use(here), before_here);
    assert_int_equal(in_use(there), before_there);
}

/* In the middle of a step, with values of the old place in the trace. */
static void test_move_within_a_step(void **state)
{
    (void)state;
    kiln_device here = kiln_default_device(), there = elsewhere();
    if (there == KILN_NO_DEVICE)
        skip_because("needs a second device");
    kiln_module *fc = kiln_nn_linear(2, 2, .no_bias = true);
    kiln_tensor *w = of(fc, "weight");
    float first[2], second[2], third[2], fourth[2];
    kiln_step {
        kiln_tensor *x = kiln_of_f32(((float[]){1, 2}), 1, 2);
        kiln_init_constant(w, 3);
        assert_true(kiln_read(kiln_forward(fc, x), first, sizeof first));
        assert_true(kiln_module_to(fc, there));
        assert_null(kiln_forward(fc, x));
        expect_error(KILN_E_DEVICE, "linear", "weight");
        assert_true(kiln_read(kiln_forward(fc, kiln_to(x, there)), second, sizeof second));
        kiln_init_constant(w, 4);
        assert_true(kiln_module_to(fc, here));
        assert_true(kiln_read(kiln_forward(fc, x), third, sizeof third));
        /* From there and back with nothing assigned in between: the trace knows both uses of the weight. */
        assert_true(kiln_module_to(fc, there));
        assert_true(kiln_read(kiln_forward(fc, kiln_to(x, there)), fourth, sizeof fourth));
        assert_true(kiln_module_to(fc, here));
        assert_true(kiln_read(kiln_forward(fc, x), fourth, sizeof fourth));
    }
    assert_true(fourth[0] == 12 && fourth[1] == 12);
    assert_true(first[0] == 9 && second[0] == 9 && third[0] == 12 && third[1] == 12);
    assert_f32(w, 4, 4, 4, 4);
    kiln_module_free(fc);
}

/* A device without room: nothing has moved. */
static void test_move_fails(void **state)
{
    (void)state;
    kiln_device here = kiln_default_device(), there = elsewhere();
    kiln_module *net = kiln_nn_sequential(kiln_nn_linear(4, 4), kiln_nn_linear(200, 200));
    assert_false(kiln_module_to(net, (kiln_device)999));
    assert_false(kiln_ok());
    kiln_error_clear();
    if (there != KILN_NO_DEVICE) {
        snapshot before = state_of(kiln_module_child(net, "0"));
        uint64_t used = in_use(there);
        assert_true(kiln_memory_trim(there));
        assert_true(kiln_memory_set_limit(there, used + 100000));
        assert_false(kiln_module_to(net, there));
        expect_error(KILN_E_MEMORY, NULL, NULL);
        assert_true(kiln_memory_set_limit(there, 0));
        assert_int_equal(in_use(there), used);
        for (int64_t i = 0; i < kiln_state(net).count; i++)
            assert_int_equal(kiln_device_of(kiln_state(net).tensors[i]), here);
        snapshot after = state_of(kiln_module_child(net, "0"));
        assert_memory_equal(&before, &after, sizeof before);
        assert_true(kiln_module_to(net, there));
        assert_int_equal(kiln_module_device(net), there);
    }
    kiln_module_free(net);
    assert_false(kiln_module_to(NULL, here));
    expect_error(KILN_E_ARGUMENT, "module_to", NULL);
    assert_int_equal(kiln_module_device(NULL), here);
    expect_error(KILN_E_ARGUMENT, "module_device", "NULL");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        core_test(test_move),
        core_test(test_move_within_a_step),
        core_test(test_move_fails),
    };
    return CORE_MAIN(tests);
}
