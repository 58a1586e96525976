/* Devices that fail: memory that runs out anywhere in a step, a device that is lost, one that is slow, and indices that
 * turn out wrong only when the step runs. Whatever happens, a step took place in full or not at all, and the program
 * goes on as if it had not been tried. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "support/skip.h"
#include "support/train.h"

/* ctest: name=eager env=KILN_EAGER=1 */

enum { IN = 12, HIDDEN = 17, CLASSES = 5, BATCH = 8, STEPS = 6 };

static kiln_device sim0, sim1;
static kiln_sim_control_fn control;
static float *expected[STEPS + 1]; /* parameters after so many undisturbed steps */
static bool eager;                 /* every operation runs at once: there are no whole steps to be refused */

static int find_devices(void **state)
{
    (void)state;
    const char *text = getenv("KILN_EAGER");
    eager = text && *text && strcmp(text, "0") != 0;
    sim0 = kiln_device_parse("sim:0");
    sim1 = kiln_device_parse("sim:1");
    control = sim_switch();
    for (int i = 0; i <= STEPS; i++)
        if (!(expected[i] = net_trained(KILN_CPU, IN, HIDDEN, CLASSES, 1, BATCH, i)))
            return -1;
    return sim0 < 0 || sim1 < 0 || !control;
}

static int forget(void **state)
{
    (void)state;
    for (int i = 0; i <= STEPS; i++)
        free(expected[i]);
    return 0;
}

static int restore(void **state)
{
    (void)state;
    control(0, KILN_SIM_REVIVE, 0);
    control(0, KILN_SIM_FAIL_ALLOC, -1);
    control(0, KILN_SIM_LOSE_AFTER, -1);
    control(0, KILN_SIM_SLOW_COPIES, 0);
    control(0, KILN_SIM_SLOW_RUNS, 0);
    kiln_device_wait(sim0);
    kiln_error_clear();
    kiln_memory_trim(sim0);
    return kiln_ok() ? 0 : -1;
}

static void make(test_net *net, kiln_device device)
{
    assert_true(net_make(net, device, IN, HIDDEN, CLASSES, 1));
}

static void zero_grads(test_net *net)
{
    for (int i = 0; i < NET_TENSORS; i++)
        kiln_zero_grad_of(net->p[i]);
}

static void expect_code(kiln_code code)
{
    if (kiln_last_error()->code != code)
        fail_msg("expected \"%s\", got \"%s\": %s", kiln_code_name(code), kiln_code_name(kiln_last_error()->code),
                 kiln_last_error()->message);
    kiln_error_clear();
}

/* ---- Memory that runs out ---- */

/* Allocations the device is asked for by a step that finds nothing cached. */
static int64_t allocations_of_a_step(void)
{
    test_net net;
    kiln_memory_stats before, after;
    make(&net, sim0);
    kiln_memory_trim(sim0);
    assert_true(kiln_memory_get_stats(sim0, &before));
    assert_true(net_step(&net, BATCH, 0));
    assert_true(kiln_memory_get_stats(sim0, &after));
    net_free(&net);
    return (int64_t)(after.allocations - before.allocations);
}

static void test_allocation_fails(void **state)
{
    (void)state;
    if (eager)
        skip_because("eager: updates of the first parameters have run when a later one fails");
    int64_t count = allocations_of_a_step(), failed = 0;
    assert_true(count >= 4);
    for (int64_t n = 0; n <= count; n++) {
        test_net net;
        kiln_memory_trim(sim0);
        uint64_t before = memory_in_use(sim0);
        int64_t used = control(0, KILN_SIM_FAIL_ALLOC, -1);
        make(&net, sim0);
        for (uint32_t step = 0; step < 3; step++) {
            zero_grads(&net);
            kiln_memory_trim(sim0);
            uint64_t in_use = memory_in_use(sim0);
            control(0, KILN_SIM_FAIL_ALLOC, n);
            if (!net_step(&net, BATCH, step)) {
                failed++;
                expect_code(KILN_E_MEMORY);
                zero_grads(&net);
                assert_int_equal(memory_in_use(sim0), in_use); /* nothing is held */
                assert_true(net_equals(&net, expected[step]));
                control(0, KILN_SIM_FAIL_ALLOC, -1);
                assert_true(net_step(&net, BATCH, step));
            }
            control(0, KILN_SIM_FAIL_ALLOC, -1);
        }
        assert_true(net_equals(&net, expected[3]));
        net_free(&net);
        assert_int_equal(memory_in_use(sim0), before);
        kiln_memory_trim(sim0);
        assert_int_equal(control(0, KILN_SIM_FAIL_ALLOC, -1), used);
    }
    assert_true(failed > 0);
    assert_true(kiln_ok());
}

/* Outside of steps: each call that fails leaves what it was given as it was. */
static void test_moves_fail(void **state)
{
    (void)state;
    for (int64_t n = 0; n < 4; n++) {
        float data[6] = {1, 2, 3, 4, 5, 6}, out[6];
        kiln_memory_trim(sim0);
        uint64_t before = memory_in_use(sim0);
        kiln_scope {
            kiln_tensor *here = kiln_tensor_new(data, KILN_F32, KILN_SHAPE(2, 3), KILN_CPU);
            control(0, KILN_SIM_FAIL_ALLOC, n);
            kiln_tensor *there = kiln_to(here, sim0), *doubled = kiln_add(there, there);
            bool ok = doubled && kiln_read(doubled, out, sizeof out);
            control(0, KILN_SIM_FAIL_ALLOC, -1);
            assert_true(ok == kiln_ok());
            if (!ok)
                expect_code(KILN_E_MEMORY);
            assert_true(kiln_read(kiln_to(kiln_to(here, sim0), KILN_CPU), out, sizeof out));
            assert_memory_equal(out, data, sizeof out);
        }
        assert_int_equal(memory_in_use(sim0), before);
    }
    assert_true(kiln_ok());
}

/* ---- A lost device ---- */

static void lose_after(int64_t jobs)
{
    test_net net, other, host;
    make(&net, sim0);
    make(&other, sim1);
    make(&host, KILN_CPU);
    assert_true(kiln_device_wait(sim0));
    control(0, KILN_SIM_LOSE_AFTER, jobs);
    uint32_t step = 0;
    while (net_step(&net, BATCH, step) && kiln_device_wait(sim0))
        assert_true(++step < 100);
    expect_code(KILN_E_LOST);
    size_t bytes;
    assert_null(net_values(&net, &bytes));
    assert_non_null(strstr(kiln_last_error()->message, "sim:0"));
    expect_code(KILN_E_LOST);
    assert_null(kiln_tensor_new(NULL, KILN_F32, KILN_SHAPE(3), sim0));
    expect_code(KILN_E_LOST);
    assert_null(kiln_to(host.p[0], sim0));
    expect_code(KILN_E_LOST);
    assert_null(kiln_to(net.p[0], sim1));
    expect_code(KILN_E_LOST);
    assert_false(net_step(&net, BATCH, step));
    expect_code(KILN_E_LOST);

    for (uint32_t i = 0; i < 3; i++) /* the others do not mind */
        assert_true(net_step(&other, BATCH, i) && net_step(&host, BATCH, i));
    assert_true(net_equals(&other, expected[3]) && net_equals(&host, expected[3]));

    control(0, KILN_SIM_LOSE_AFTER, -1);
    control(0, KILN_SIM_REVIVE, 0);
    assert_true(kiln_device_wait(sim0));
    assert_true(net_equals(&net, expected[step])); /* the step during which it was lost did not happen */
    for (; step < STEPS; step++)
        assert_true(net_step(&net, BATCH, step));
    assert_true(net_equals(&net, expected[STEPS]));
    net_free(&net);
    net_free(&other);
    net_free(&host);
}

static void test_lost(void **state)
{
    (void)state;
    if (eager)
        skip_because("eager: a step is many runs");
    kiln_memory_trim(sim0);
    uint64_t before = memory_in_use(sim0);
    int64_t used = control(0, KILN_SIM_FAIL_ALLOC, -1);
    for (int64_t jobs = 0; jobs < 9; jobs++)
        lose_after(jobs);
    assert_int_equal(memory_in_use(sim0), before);
    kiln_memory_trim(sim0);
    assert_int_equal(control(0, KILN_SIM_FAIL_ALLOC, -1), used);
    assert_true(kiln_ok());
}

/* Everything on a lost device can still be released. */
static void test_release_when_lost(void **state)
{
    (void)state;
    kiln_memory_trim(sim0);
    uint64_t before = memory_in_use(sim0);
    test_net net;
    make(&net, sim0);
    assert_true(net_step(&net, BATCH, 0));
    assert_true(kiln_device_wait(sim0));
    control(0, KILN_SIM_LOSE_AFTER, 0);
    assert_false(net_step(&net, BATCH, 0) && kiln_device_wait(sim0));
    expect_code(KILN_E_LOST);
    net_free(&net);
    assert_int_equal(memory_in_use(sim0), before);
    assert_true(kiln_memory_trim(sim0));
    kiln_plan_cache_set_capacity(0); /* plans that were lowered for it */
    kiln_plan_cache_set_capacity(256);
    assert_true(kiln_ok());
}

/* ---- A slow device ---- */

static void check_slow(int64_t copies, int64_t runs)
{
    test_net net;
    control(0, KILN_SIM_SLOW_COPIES, copies);
    control(0, KILN_SIM_SLOW_RUNS, runs);
    make(&net, sim0);
    for (uint32_t i = 0; i < STEPS; i++) /* queued; batches are overwritten on the host as soon as they are given */
        assert_true(net_step(&net, BATCH, i));
    assert_true(net_equals(&net, expected[STEPS]));
    net_free(&net);
}

static void test_slow(void **state)
{
    (void)state;
    int64_t slow = eager ? 100 : 3000;
    check_slow(slow, 0);
    check_slow(0, slow);
    check_slow(slow / 2, slow);
    assert_true(kiln_ok());
}

/* Writing over a tensor, and over the host's buffer, while runs that read the old contents are waiting. */
static void test_slow_writes(void **state)
{
    (void)state;
    control(0, KILN_SIM_SLOW_RUNS, 2000);
    control(0, KILN_SIM_SLOW_COPIES, 500);
    kiln_scope {
        float buffer[256], out[256];
        kiln_tensor *t = kiln_tensor_new(NULL, KILN_F32, KILN_SHAPE(256), sim0), *results[8];
        for (int round = 0; round < 8; round++) {
            for (int i = 0; i < 256; i++)
                buffer[i] = (float)(round * 1000 + i);
            assert_true(kiln_write(t, buffer, sizeof buffer));
            memset(buffer, 0xff, sizeof buffer);
            results[round] = kiln_mul_scalar(t, 2);
            assert_true(kiln_eval());
        }
        for (int round = 0; round < 8; round++) {
            assert_true(kiln_read(results[round], out, sizeof out));
            for (int i = 0; i < 256; i++)
                assert_true(out[i] == (float)(2 * (round * 1000 + i)));
        }
    }
    assert_true(kiln_ok());
}

/* Many steps wait in the queue while their scratch memory, batches and results are released and taken again. */
static void test_long_queue(void **state)
{
    (void)state;
    enum { MANY = 40 };
    float *values = net_trained(KILN_CPU, IN, HIDDEN, CLASSES, 2, BATCH, MANY);
    test_net net;
    control(0, KILN_SIM_SLOW_RUNS, eager ? 20 : 1000);
    assert_true(net_make(&net, sim0, IN, HIDDEN, CLASSES, 2));
    for (uint32_t i = 0; i < MANY; i++) {
        if (i % 7 == 3)
            assert_true(kiln_memory_trim(sim0));
        if (i % 11 == 5) { /* plans are dropped while runs of them wait */
            kiln_plan_cache_set_capacity(0);
            kiln_plan_cache_set_capacity(256);
        }
        assert_true(net_step(&net, BATCH, i));
    }
    assert_true(net_equals(&net, values));
    net_free(&net);
    free(values);
    assert_true(kiln_ok());
}

/* ---- Indices that turn out wrong ---- */

static kiln_tensor *bad_labels(kiln_device device)
{
    int64_t labels[BATCH] = {0, 1, 2, CLASSES, 3, 4, 0, 1};
    return kiln_tensor_new(labels, KILN_I64, KILN_SHAPE(BATCH), device);
}

static bool bad_step(test_net *net)
{
    kiln_step {
        kiln_tensor *x, *labels;
        if (net_batch(net, BATCH, 0, &x, &labels))
            net_step_on(net, x, bad_labels(net->device));
    }
    return kiln_ok();
}

static void expect_bad_index(void)
{
    const kiln_error *e = kiln_last_error();
    assert_non_null(strstr(e->message, "5"));
    assert_string_equal(e->operation, "cross_entropy");
    assert_non_null(strstr(e->hint, "discarded"));
    expect_code(KILN_E_INDEX);
}

static void check_bad_index(kiln_device device, int64_t slow)
{
    test_net net;
    make(&net, device);
    assert_true(net_step(&net, BATCH, 0));
    control(0, KILN_SIM_SLOW_RUNS, slow);

    if (bad_step(&net)) /* told at the next read */
        assert_false(net_equals(&net, expected[1]));
    expect_bad_index();
    assert_true(net_equals(&net, expected[1]));

    bool told = !bad_step(&net); /* or at one of the next steps; none of them counts */
    for (int i = 0; i < 3 && !told; i++)
        told = !net_step(&net, BATCH, 1);
    if (!told)
        assert_false(kiln_device_wait(device));
    expect_bad_index();
    assert_true(net_equals(&net, expected[1]));
    control(0, KILN_SIM_SLOW_RUNS, 0);

    for (uint32_t i = 1; i < STEPS; i++)
        assert_true(net_step(&net, BATCH, i));
    assert_true(net_equals(&net, expected[STEPS]));
    net_free(&net);
}

static void test_bad_index(void **state)
{
    (void)state;
    if (eager)
        skip_because("eager: operations before the bad one have run already");
    check_bad_index(KILN_CPU, 0);
    check_bad_index(sim0, 0);
    check_bad_index(sim0, 3000);
    assert_true(kiln_ok());
}

/* A batch that was copied to the device after the step that failed, and before anyone knew, is there for the next try.
 */
static void test_batch_survives(void **state)
{
    (void)state;
    if (eager)
        skip_because("eager: a step is many runs");
    test_net net;
    make(&net, sim0);
    control(0, KILN_SIM_SLOW_RUNS, 20000);
    assert_true(bad_step(&net));
    kiln_scope {
        kiln_tensor *x, *labels;
        assert_true(net_batch(&net, BATCH, 0, &x, &labels));
        control(0, KILN_SIM_SLOW_RUNS, 0);
        assert_false(kiln_device_wait(sim0));
        expect_bad_index();
        assert_true(net_step_on(&net, x, labels));
        assert_true(net_equals(&net, expected[1]));
    }
    net_free(&net);
    assert_true(kiln_ok());
}

/* Other operations that take indices, and a result that was computed before the bad one in the same program. */
static void test_bad_lookup(void **state)
{
    (void)state;
    kiln_scope {
        float table[8] = {1, 2, 3, 4, 5, 6, 7, 8}, out[8];
        kiln_tensor *t = kiln_set_name(kiln_tensor_new(table, KILN_F32, KILN_SHAPE(4, 2), sim0), "table");
        kiln_tensor *bad = kiln_tensor_new(((int64_t[]){0, -1}), KILN_I64, KILN_SHAPE(2), sim0);
        kiln_tensor *doubled = kiln_mul_scalar(t, 2);
        assert_true(kiln_eval());
        for (int i = 0; i < 2; i++) {
            kiln_tensor *rows = i ? kiln_embedding(t, bad, -1) : kiln_index_select(t, 0, bad);
            assert_true(eager || rows);
            assert_false(rows && kiln_read(rows, out, 16));
            assert_non_null(strstr(kiln_last_error()->message, "-1"));
            expect_code(KILN_E_INDEX);
        }
        assert_true(kiln_read(doubled, out, sizeof out));
        for (int i = 0; i < 8; i++)
            assert_true(out[i] == 2 * table[i]);
    }
    assert_true(kiln_ok());
}

/* What a failed step was to compute has memory, but must never be read as if it had a value. */
static void test_results_of_failed_run(void **state)
{
    (void)state;
    if (eager)
        skip_because("eager: the call itself fails and returns nothing");
    kiln_tensor *x = kiln_tensor_new((float[]){1, 2, 3}, KILN_F32, KILN_SHAPE(3), sim0);
    kiln_tensor *bad = kiln_tensor_new((int64_t[]){0, 5}, KILN_I64, KILN_SHAPE(2), sim0);
    kiln_tensor *fresh = kiln_tensor_new((float[]){7, 8}, KILN_F32, KILN_SHAPE(2), sim0);
    kiln_tensor *picked = NULL;
    float out[2] = {-1, -1};
    kiln_step
        picked = kiln_keep(kiln_mul_scalar(kiln_index_select(x, 0, bad), 2));
    assert_non_null(picked);
    assert_false(kiln_device_wait(sim0));
    expect_code(KILN_E_INDEX);
    assert_false(kiln_read(picked, out, sizeof out));
    expect_code(KILN_E_STATE);
    assert_null(kiln_relu(picked));
    expect_code(KILN_E_STATE);
    assert_true(kiln_assign(picked, fresh)); /* written again, it has one */
    assert_true(kiln_read(picked, out, sizeof out));
    assert_true(out[0] == 7 && out[1] == 8);
    kiln_release(picked);
    kiln_release(fresh);
    kiln_release(bad);
    kiln_release(x);
    assert_true(kiln_ok());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_allocation_fails, restore),
        cmocka_unit_test_teardown(test_moves_fail, restore),
        cmocka_unit_test_teardown(test_lost, restore),
        cmocka_unit_test_teardown(test_release_when_lost, restore),
        cmocka_unit_test_teardown(test_slow, restore),
        cmocka_unit_test_teardown(test_slow_writes, restore),
        cmocka_unit_test_teardown(test_long_queue, restore),
        cmocka_unit_test_teardown(test_bad_index, restore),
        cmocka_unit_test_teardown(test_batch_survives, restore),
        cmocka_unit_test_teardown(test_bad_lookup, restore),
        cmocka_unit_test_teardown(test_results_of_failed_run, restore),
    };
    return cmocka_run_group_tests(tests, find_devices, forget);
}
