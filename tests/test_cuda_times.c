/* Timed steps through the CUDA plugin's own files, on a device that computes nothing (fake/launches.c): there each
 * kernel that is launched by itself takes a millisecond. What is timed, what is launched before it, and that steps go
 * on as before. */
#include "support/core.h"
#include "support/fake.h"
#include "support/times.h"

enum { IN = 12, HIDDEN = 16, CLASSES = 10, BATCH = 8 };

static kiln_device device;

typedef struct net {
    kiln_module *model;
    kiln_optim *adam;
    kiln_tensor *x, *y;
} net;

static int ask(const char *name)
{
    int (*f)(void) = (int (*)(void))fake_cuda_function(name);
    assert_non_null(f);
    return f();
}

static int tell(const char *name, int n)
{
    int (*f)(int) = (int (*)(int))fake_cuda_function(name);
    assert_non_null(f);
    return f(n);
}

static bool step(net *n)
{
    kiln_step {
        kiln_zero_grad(n->adam);
        kiln_backward(kiln_cross_entropy(kiln_forward(n->model, n->x), n->y));
        kiln_optim_step(n->adam);
    }
    return kiln_ok();
}

/* A network whose step is one chain that has been lowered, on a device that has nothing to do. */
static net ready(void)
{
    net n = {.model = kiln_nn_sequential(kiln_nn_linear(IN, HIDDEN), kiln_nn_relu(), kiln_nn_linear(HIDDEN, CLASSES))};
    n.adam = kiln_optim_adam(kiln_parameters(n.model), .lr = 1e-3);
    kiln_scope {
        n.x = kiln_keep(kiln_zeros(KILN_SHAPE(BATCH, IN), KILN_F32));
        n.y = kiln_keep(kiln_zeros(KILN_SHAPE(BATCH), KILN_I64));
        kiln_eval();
    }
    for (int i = 0; i < 3; i++)
        assert_true(step(&n));
    assert_true(kiln_device_wait(device));
    return n;
}

static void drop(net *n)
{
    kiln_optim_free(n->adam);
    kiln_module_free(n->model);
    kiln_release(n->x);
    kiln_release(n->y);
}

/* Every kernel once, in order, each with its own launches and nothing else. */
static void check_times(int launched)
{
    kiln_plan_info info;
    const times *t = times_read();
    double total = 0;
    assert_true(kiln_plan_last(&info));
    assert_int_equal(t->n, info.kernels);
    for (int64_t i = 0; i < t->n; i++) {
        double us = t->at[i].microseconds;
        assert_int_equal(t->at[i].kernels, 1);
        assert_true(us == 1000);
        total += us;
    }
    assert_true(total == 1000.0 * launched);
    assert_timed(t, "linear", "0", false);
    assert_timed(t, "linear", "2", true);
}

static void test_kernels_one_by_one(void **state)
{
    (void)state;
    net n = ready();
    for (int i = 0; i < 4; i++) { /* timed ones and others, which are one launch, in turn */
        int single = ask("fake_single_launches"), delays = ask("fake_delays"), chains = ask("fake_launches");
        kiln_time_next_step();
        assert_true(step(&n));
        check_times(ask("fake_single_launches") - single);
        assert_int_equal(ask("fake_delays") - delays, 1);
        assert_int_equal(ask("fake_launches"), chains);
        single = ask("fake_single_launches");
        assert_true(step(&n) && kiln_device_wait(device));
        assert_int_equal(ask("fake_single_launches"), single);
        assert_int_equal(ask("fake_launches"), chains + 1);
    }
    assert_int_equal(ask("fake_wrong"), 0);
    drop(&n);
}

/* Runs that wait to be launched together are launched before it. */
static void test_pending_runs_come_first(void **state)
{
    (void)state;
    net n = ready();
    int runs = ask("fake_runs");
    for (int i = 0; i < 4; i++)
        assert_true(step(&n));
    kiln_time_next_step();
    assert_true(step(&n));
    assert_int_equal(ask("fake_runs") - runs, 4);
    assert_true(kiln_device_wait(device));
    assert_int_equal(ask("fake_wrong"), 0);
    drop(&n);
}

/* A bad index is told when somebody waits, as of any run. */
static void test_a_fault(void **state)
{
    (void)state;
    net n = ready();
    kiln_time_next_step();
    assert_true(step(&n));
    tell("fake_fault", ask("fake_runs_given"));
    assert_false(kiln_device_wait(device));
    expect_error(KILN_E_INDEX, NULL, "index 99");
    assert_true(step(&n) && kiln_device_wait(device));
    assert_int_equal(ask("fake_wrong"), 0);
    drop(&n);
}

/* A launch that fails: the step's error, and it was never given. */
static void test_a_launch_fails(void **state)
{
    (void)state;
    net n = ready();
    int given = ask("fake_runs_given");
    tell("fake_fail_launches", 1);
    kiln_time_next_step();
    assert_false(step(&n));
    tell("fake_fail_launches", 0);
    assert_int_equal(kiln_last_error()->code, KILN_E_DEVICE);
    kiln_error_clear();
    assert_int_equal(kiln_step_times(NULL, 0), 0);
    assert_int_equal(ask("fake_runs_given"), given);
    assert_true(step(&n) && kiln_device_wait(device));
    assert_int_equal(ask("fake_wrong"), 0);
    drop(&n);
}

int main(void)
{
    if (!fake_cuda_wanted()) {
        printf("skipped: the CUDA plugin was not built\n");
        return TEST_SKIPPED;
    }
    setenv("KILN_CUDA_JIT", "0", 1); /* nothing that is compiled would run */
    unsetenv("KILN_CUDA_RUNS");
    device = kiln_device_parse("cuda:0");
    if (device < 0 || !kiln_set_default_device(device)) {
        kiln_report(stderr);
        return 1;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_kernels_one_by_one),
                                       cmocka_unit_test(test_pending_runs_come_first), cmocka_unit_test(test_a_fault),
                                       cmocka_unit_test(test_a_launch_fails)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
