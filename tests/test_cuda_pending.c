/* Several runs in one launch, through the CUDA plugin's own files on a device that computes nothing (fake/launches.c):
 * what is held back and until when, that each run gets what it was given, and what becomes of runs that fail. */
#include <malloc.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>
#include "support/core.h"
#include "support/devices.h"
#include "support/fake.h"
#include "support/other.h"

enum { IN = 12, HIDDEN = 16, CLASSES = 10, BATCH = 8 };

typedef struct net {
    kiln_module *model;
    kiln_optim *adam;
    kiln_tensor *x, *y;
} net;

static kiln_device device;
static int steps; /* so far: no two have the same scalars */

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

static net make(int64_t hidden)
{
    net n = {.model = kiln_nn_sequential(kiln_nn_linear(IN, hidden), kiln_nn_relu(), kiln_nn_linear(hidden, CLASSES))};
    n.adam = kiln_optim_adam(kiln_parameters(n.model), .lr = 1e-3);
    kiln_scope {
        n.x = kiln_keep(kiln_zeros(KILN_SHAPE(BATCH, IN), KILN_F32));
        n.y = kiln_keep(kiln_zeros(KILN_SHAPE(BATCH), KILN_I64));
        kiln_eval();
    }
    assert_true(kiln_ok());
    return n;
}

static void drop(net *n)
{
    kiln_optim_free(n->adam);
    kiln_module_free(n->model);
    kiln_release(n->x);
    kiln_release(n->y);
}

/* Gradients outlive it and are released in the next one, so addresses change places. */
static bool step(net *n)
{
    kiln_optim_set_lr(n->adam, -1, 1e-6 * ++steps);
    kiln_step {
        kiln_zero_grad(n->adam);
        kiln_backward(kiln_cross_entropy(kiln_forward(n->model, n->x), n->y));
        kiln_optim_step(n->adam);
    }
    return kiln_ok();
}

static void do_steps(net *n, int count)
{
    for (int i = 0; i < count; i++)
        assert_true(step(n));
}

/* Launches, and runs in them, since the last call. */
static void expect_launched(int launches, int runs)
{
    static int launches_before, runs_before;
    if (launches >= 0) {
        assert_int_equal(ask("fake_launches") - launches_before, launches);
        assert_int_equal(ask("fake_runs") - runs_before, runs);
    }
    launches_before = ask("fake_launches");
    runs_before = ask("fake_runs");
    assert_int_equal(ask("fake_wrong"), 0);
}

/* A network whose step has been lowered, on a device that has nothing to do. */
static net ready(int64_t hidden)
{
    net n = make(hidden);
    do_steps(&n, 3);
    assert_true(kiln_device_wait(device));
    expect_launched(-1, 0);
    return n;
}

/* ---- When runs are launched ---- */

static void test_an_idle_device_starts_at_once(void **state)
{
    (void)state;
    net n = ready(HIDDEN);
    for (int i = 0; i < 5; i++) {
        do_steps(&n, 1);
        expect_launched(1, 1);
        assert_true(kiln_device_wait(device));
    }
    for (int i = 0; i < 4; i++) { /* each has begun when the next one comes */
        do_steps(&n, 1);
        expect_launched(1, 1);
        tell("fake_begin", 1);
    }
    drop(&n);
}

/* Single runs, quickly one after the other, and each has begun when the next one comes: the host would never be ahead.
 * How quickly is a matter of the machine, so that is tried until it was quick enough. */
static void test_single_runs_wait_for_others(void **state)
{
    (void)state;
    net n = ready(HIDDEN);
    int before = ask("fake_launches"), given = ask("fake_runs_given");
    for (int i = 0; i < 10000 && ask("fake_launches") - before == ask("fake_runs_given") - given; i++) {
        do_steps(&n, 1);
        tell("fake_begin", 1);
    }
    assert_true(ask("fake_launches") - before < ask("fake_runs_given") - given);
    assert_true(kiln_device_wait(device)); /* whatever was held back is launched now */
    assert_int_equal(ask("fake_runs") - given, ask("fake_runs_given") - given);
    assert_int_equal(ask("fake_wrong"), 0);
    expect_launched(-1, 0);
    drop(&n);
}

static void test_a_busy_one_gets_several(void **state)
{
    (void)state;
    net n = ready(HIDDEN);
    const int most = ask("fake_most_runs");
    do_steps(&n, 2);
    expect_launched(2, 2); /* the first one on an idle device counts as begun */
    do_steps(&n, 4);
    expect_launched(0, 0);
    tell("fake_begin", 1);
    do_steps(&n, 1);
    expect_launched(0, 0);
    tell("fake_begin", 1);
    do_steps(&n, 1);
    expect_launched(1, 6);
    tell("fake_begin", 5); /* of six */
    do_steps(&n, most - 1);
    expect_launched(0, 0);
    do_steps(&n, 1);
    expect_launched(1, most); /* full */
    do_steps(&n, 3 * most + 2);
    expect_launched(3, 3 * most);
    assert_true(kiln_device_wait(device));
    expect_launched(1, 2);
    drop(&n);
}

/* Two steps that the device has not begun, and so many that are held back. */
static void hold_back(net *n, int count)
{
    assert_true(kiln_device_wait(device));
    do_steps(n, 2);
    expect_launched(-1, 0);
    do_steps(n, count);
    expect_launched(0, 0);
}

static void test_whatever_comes_next_launches_them(void **state)
{
    (void)state;
    net n = ready(HIDDEN), other = ready(HIDDEN + 4);
    static float values[BATCH * IN];
    hold_back(&n, 3);
    do_steps(&other, 2); /* another plan, held back itself */
    expect_launched(1, 3);
    do_steps(&n, 1);
    expect_launched(1, 2);
    hold_back(&n, 2);
    kiln_scope
        assert_true(kiln_read(n.x, values, sizeof values));
    expect_launched(1, 2);
    hold_back(&n, 2);
    kiln_scope
        assert_non_null(kiln_tensor_new(values, KILN_F32, KILN_SHAPE(IN), device)); /* a copy to it */
    expect_launched(1, 2);
    hold_back(&n, 2);
    kiln_scope {
        kiln_tensor *y = kiln_exp(n.x); /* a plan that is no chain */
        kiln_eval();
        assert_non_null(y);
    }
    expect_launched(1, 2);
    hold_back(&n, 2);
    kiln_plan_cache_set_capacity(0); /* the plan goes */
    expect_launched(1, 2);
    kiln_plan_cache_set_capacity(256);
    drop(&n);
    drop(&other);
}

/* ---- Batches that lie on the device ---- */

static void test_batches_are_gathered_ahead(void **state)
{
    (void)state;
    enum { SAMPLES = 64 };
    net n = make(HIDDEN);
    kiln_batch b;
    kiln_dataset *d = NULL;
    kiln_scope
        kiln_on_device (KILN_CPU) /* which computes them */
            d = kiln_data_tensors(kiln_zeros(KILN_SHAPE(SAMPLES, IN), KILN_F32),
                                  kiln_zeros(KILN_SHAPE(SAMPLES), KILN_I64));
    kiln_loader *l = kiln_loader_new(d, .batch = BATCH, .device = device, .shuffle = true);
    assert_non_null(l);
    int before = ask("fake_gathered_ahead");
    for (int epoch = 0; epoch < 5; epoch++)
        while (kiln_loader_next(l, &b)) {
            kiln_step {
                kiln_backward(kiln_cross_entropy(kiln_forward(n.model, b.x), b.y));
                kiln_optim_step(n.adam);
                kiln_zero_grad(n.adam);
            }
            assert_true(kiln_ok());
        }
    assert_true(kiln_device_wait(device));
    assert_true(ask("fake_gathered_ahead") > before);
    expect_launched(-1, 0);
    kiln_loader_free(l);
    kiln_data_free(d);
    drop(&n);
}

/* ---- Runs that fail ---- */

/* A result of a run that is a chain of its own. */
static kiln_tensor *look(net *n)
{
    kiln_tensor *y = NULL;
    kiln_step
        y = kiln_keep(kiln_softmax(kiln_softmax(n->x, 1), 1));
    assert_true(kiln_ok());
    return y;
}

static void test_a_fault_among_several(void **state)
{
    (void)state;
    net n = ready(HIDDEN);
    static float values[BATCH * IN];
    hold_back(&n, 3);
    kiln_tensor *before = look(&n);
    do_steps(&n, 2);
    int bad = ask("fake_runs_given");
    do_steps(&n, 2);
    kiln_tensor *after = look(&n);
    tell("fake_fault", bad);
    assert_false(kiln_device_wait(device));
    assert_int_equal(kiln_last_error()->code, KILN_E_INDEX);
    assert_non_null(strstr(kiln_last_error()->message, "99"));
    kiln_error_clear();
    assert_true(kiln_read(before, values, sizeof values));
    assert_false(kiln_read(after, values, sizeof values));
    kiln_error_clear();
    kiln_release(before);
    kiln_release(after);
    expect_launched(-1, 0);
    do_steps(&n, 1); /* starts at once, with its barrier set anew */
    expect_launched(1, 1);
    hold_back(&n, 2);
    assert_true(kiln_device_wait(device));
    expect_launched(1, 2);
    drop(&n);
}

static void test_launches_that_fail(void **state)
{
    (void)state;
    net n = ready(HIDDEN);
    hold_back(&n, 2);
    tell("fake_fail_launches", 1);
    assert_false(kiln_device_wait(device));
    assert_int_equal(kiln_last_error()->code, KILN_E_DEVICE);
    kiln_error_clear();
    assert_true(kiln_device_wait(device)); /* these two will not be tried again */
    assert_false(step(&n));
    assert_int_equal(kiln_last_error()->code, KILN_E_DEVICE);
    kiln_error_clear();
    tell("fake_fail_launches", 0);
    expect_launched(0, 0);
    hold_back(&n, 3);
    assert_true(kiln_device_wait(device));
    expect_launched(1, 3);
    drop(&n);
}

/* A launch that lacks memory is tried again when the pool has given some back; unless there are runs in it that were
 * given before: they are lost, and that is told. */
static void test_launches_without_memory(void **state)
{
    (void)state;
    net n = ready(HIDDEN);
    tell("fake_fail_launches", 2);
    do_steps(&n, 1);
    expect_launched(1, 1);
    assert_true(kiln_device_wait(device));
    static float values[BATCH * IN];
    kiln_tensor *y = look(&n);
    assert_true(kiln_read(y, values, sizeof values)); /* what the second attempt made counts */
    kiln_release(y);

    hold_back(&n, 3);
    tell("fake_begin", 2);
    tell("fake_fail_launches", 2);
    assert_false(step(&n));
    assert_int_equal(kiln_last_error()->code, KILN_E_DEVICE);
    kiln_error_clear();
    expect_launched(0, 0);
    assert_true(kiln_device_wait(device)); /* it was told */
    do_steps(&n, 1);
    expect_launched(1, 1);
    drop(&n);
}

/* Blocks of a chain wait for each other. Where other processes run kernels beside them, that all of them run at the
 * same time is asked for. */
static void test_a_shared_device(void **state)
{
    (void)state;
    net n = ready(HIDDEN);
    tell("fake_share", 1);
    do_steps(&n, 3);
    assert_true(kiln_device_wait(device));
    expect_launched(3, 3);
    tell("fake_share", 0);
    do_steps(&n, 3);
    assert_true(kiln_device_wait(device));
    expect_launched(3, 3);
    drop(&n);
}

/* ---- Several threads ---- */

typedef struct asker { /* what another thread met */
    net *n;
    bool ok;
    kiln_error error;
} asker;

static void note(asker *a, bool ok)
{
    a->ok = ok;
    a->error = *kiln_last_error();
    kiln_error_clear();
}

static void step_there(void *p)
{
    asker *a = p;
    kiln_set_default_device(device);
    note(a, step(a->n));
}

static void wait_there(void *p)
{
    note(p, kiln_device_wait(device));
}

static void expect_words(const asker *a, const char *words)
{
    if (a->ok || a->error.code != KILN_E_INDEX || !strstr(a->error.message, words) || !strstr(a->error.message, "99"))
        fail_msg("expected \"%s\", got: %s", words, a->ok ? "nothing" : a->error.message);
}

/* This thread's step meets a bad index, the other's behind it is skipped: both are told, whoever asks first. */
static void check_two_threads(bool other_first)
{
    net mine = ready(HIDDEN), theirs = ready(HIDDEN + 4);
    asker me = {0}, them = {.n = &theirs};
    other_thread *o = other_start();
    assert_non_null(o);
    other_do(o, step_there, &them);
    assert_true(them.ok);
    other_do(o, wait_there, &them);
    assert_true(them.ok);
    hold_back(&mine, 1);
    do_steps(&mine, 1);
    int bad = ask("fake_runs_given");
    other_do(o, step_there, &them);
    assert_true(them.ok);
    tell("fake_fault", bad);
    if (other_first)
        other_do(o, wait_there, &them);
    wait_there(&me);
    if (!other_first)
        other_do(o, wait_there, &them);
    expect_words(&me, "index 99");
    assert_null(strstr(me.error.message, "another"));
    expect_words(&them, "a step of this thread was skipped");
    wait_there(&me); /* and each of them once */
    other_do(o, wait_there, &them);
    assert_true(me.ok && them.ok);
    other_do(o, step_there, &them);
    assert_true(them.ok);
    do_steps(&mine, 1);
    assert_true(kiln_device_wait(device));
    other_end(o);
    expect_launched(-1, 0);
    drop(&mine);
    drop(&theirs);
}

static void test_a_fault_and_two_threads(void **state)
{
    (void)state;
    check_two_threads(false);
    check_two_threads(true);
}

/* Told when it gives its next step, if it has not asked before. */
static void test_told_at_the_next_step(void **state)
{
    (void)state;
    net mine = ready(HIDDEN), theirs = ready(HIDDEN + 4);
    asker them = {.n = &theirs};
    other_thread *o = other_start();
    assert_non_null(o);
    do_steps(&mine, 1);
    int bad = ask("fake_runs_given");
    other_do(o, step_there, &them);
    assert_true(them.ok);
    tell("fake_fault", bad);
    assert_false(kiln_device_wait(device));
    kiln_error_clear();
    int given = ask("fake_runs_given");
    other_do(o, step_there, &them);
    expect_words(&them, "a step of this thread was skipped");
    assert_int_equal(ask("fake_runs_given"), given);
    other_do(o, step_there, &them);
    assert_true(them.ok);
    other_end(o);
    assert_true(kiln_device_wait(device));
    expect_launched(-1, 0);
    drop(&mine);
    drop(&theirs);
}

/* What another thread holds back is launched by whoever comes next; if that fails, both are told. */
static void test_launches_of_another_thread_fail(void **state)
{
    (void)state;
    net mine = ready(HIDDEN);
    asker me = {0}, them = {.n = &mine};
    other_thread *o = other_start();
    assert_non_null(o);
    do_steps(&mine, 2);
    other_do(o, step_there, &them);
    assert_true(them.ok);
    tell("fake_fail_launches", 1);
    wait_there(&me);
    assert_false(me.ok);
    assert_int_equal(me.error.code, KILN_E_DEVICE);
    tell("fake_fail_launches", 0);
    other_do(o, wait_there, &them);
    assert_false(them.ok);
    assert_int_equal(them.error.code, KILN_E_DEVICE);
    wait_there(&me);
    other_do(o, wait_there, &them);
    assert_true(me.ok && them.ok);
    other_end(o);
    expect_launched(-1, 0);
    drop(&mine);
}

static void *drop_plans_soon(void *nothing)
{
    usleep(1000);
    kiln_plan_cache_set_capacity(0);
    kiln_plan_cache_set_capacity(256);
    return nothing;
}

/* The operation is named from a plan that another thread disposes of as soon as it can. What is freed is overwritten
 * here, so that looking at it is not without consequences. */
static void test_a_fault_and_a_plan_that_goes(void **state)
{
    (void)state;
    net n = ready(HIDDEN);
    pthread_t thread;
    mallopt(M_PERTURB, 0xa5);
    for (int i = 0; i < 5; i++) {
        do_steps(&n, 1);
        tell("fake_fault", ask("fake_runs_given"));
        assert_int_equal(pthread_create(&thread, NULL, drop_plans_soon, NULL), 0);
        tell("fake_give_way", 50000);
        assert_false(kiln_device_wait(device));
        tell("fake_give_way", 0);
        pthread_join(thread, NULL);
        assert_string_equal(kiln_last_error()->operation, "linear");
        expect_error(KILN_E_INDEX, "linear", "99");
    }
    mallopt(M_PERTURB, 0);
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
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_an_idle_device_starts_at_once),
                                       cmocka_unit_test(test_single_runs_wait_for_others),
                                       cmocka_unit_test(test_a_busy_one_gets_several),
                                       cmocka_unit_test(test_whatever_comes_next_launches_them),
                                       cmocka_unit_test(test_batches_are_gathered_ahead),
                                       cmocka_unit_test(test_a_fault_among_several),
                                       cmocka_unit_test(test_launches_that_fail),
                                       cmocka_unit_test(test_launches_without_memory),
                                       cmocka_unit_test(test_a_shared_device),
                                       cmocka_unit_test(test_a_fault_and_two_threads),
                                       cmocka_unit_test(test_told_at_the_next_step),
                                       cmocka_unit_test(test_launches_of_another_thread_fail),
                                       cmocka_unit_test(test_a_fault_and_a_plan_that_goes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
