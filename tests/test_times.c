/* Steps that are timed kernel by kernel: every kernel has a time, the step is the step it would have been, to the bit,
 * and a transaction; what is told, and where it cannot be. */
#include <pthread.h>
#include "device/device.h"
#include "support/fit.h"
#include "support/times.h"

/* ctest: name=eager env=KILN_EAGER=1 */
/* ctest: name=threads env=KILN_NUM_THREADS=2 */

enum { BATCH = 8 };

typedef struct net {
    kiln_module *module;
    kiln_optim *adam;
    kiln_tensor *x, *y;
} net;

static net make(fit_kind kind)
{
    net n = {.module = fit_net(kind, 0.3)};
    n.adam = kiln_optim_adam(kiln_parameters(n.module), .lr = 1e-2);
    int64_t tokens[BATCH * FIT_LENGTH], labels[BATCH * FIT_LENGTH];
    for (int i = 0; i < BATCH * FIT_LENGTH; i++) {
        tokens[i] = 3 * i % FIT_CLASSES;
        labels[i] = 5 * i % FIT_CLASSES;
    }
    kiln_device device = kiln_default_device();
    bool text = fit_is_text(kind);
    n.x = kiln_keep(text ? kiln_tensor_new(tokens, KILN_I64, KILN_SHAPE(BATCH, FIT_LENGTH), device)
                         : core_data(1, KILN_SHAPE(BATCH, 1, 5, 5)));
    n.y = kiln_keep(kiln_tensor_new(labels, KILN_I64, KILN_SHAPE(text ? BATCH * FIT_LENGTH : BATCH), device));
    assert_true(kiln_ok());
    return n;
}

static void drop(net *n)
{
    kiln_optim_free(n->adam);
    kiln_module_free(n->module);
    kiln_release(n->x);
    kiln_release(n->y);
}

static bool step(net *n)
{
    kiln_step {
        kiln_zero_grad(n->adam);
        kiln_tensor *out = kiln_reshape(kiln_forward(n->module, n->x), KILN_SHAPE(-1, FIT_CLASSES));
        kiln_backward(kiln_cross_entropy(out, n->y));
        kiln_optim_step(n->adam);
    }
    return kiln_ok();
}

/* ---- Every kernel ---- */

static void check_all(const times *t)
{
    kiln_plan_info info = {0};
    int64_t kernels = 0, flops = 0, bytes = 0;
    double total = 0;
    for (int64_t i = 0; i < t->n; i++) {
        const kiln_kernel_time *k = &t->at[i];
        assert_true(k->microseconds >= 0 && k->microseconds < 1e9 && k->kernels >= 1);
        assert_true(k->operation && *k->operation && *k->kernel && strlen(k->kernel) < sizeof k->kernel);
        kernels += k->kernels;
        flops += k->flops;
        bytes += k->bytes;
        total += k->microseconds;
    }
    assert_true(total > 0);
    assert_true(kiln_plan_last(&info));
    if (core_eager())
        return; /* the last plan is that of the last operation */
    if (!has_cpu_bits(kiln_default_device())) {
        assert_true(kernels <= info.kernels); /* a product may make sums along with its own result */
        return;
    }
    assert_int_equal(t->n, info.kernels);
    assert_int_equal(kernels, info.kernels);
    assert_int_equal(flops, info.flops);
    assert_int_equal(bytes, info.bytes);
}

static void test_every_kernel_has_a_time(void **state)
{
    (void)state;
    for (fit_kind kind = 0; kind < FIT_KINDS; kind++) {
        net n = make(kind);
        for (int i = 0; i < 3; i++) {
            assert_true(kiln_time_next_step());
            assert_true(step(&n));
            check_all(times_read());
        }
        drop(&n);
    }
}

/* ---- The same step ---- */

static void test_bits(void **state)
{
    (void)state;
    for (fit_kind kind = 0; kind < FIT_KINDS; kind++) {
        net plain = make(kind), timed = make(kind);
        kiln_manual_seed(11);
        for (int i = 0; i < 6; i++)
            assert_true(step(&plain));
        kiln_manual_seed(11);
        for (int i = 0; i < 6; i++) {
            if (i != 3) /* timed ones and others take turns */
                kiln_time_next_step();
            assert_true(step(&timed));
        }
        core_same_tensors(kiln_state(plain.module), kiln_state(timed.module));
        core_same_tensors(kiln_optim_state(plain.adam), kiln_optim_state(timed.adam));
        drop(&plain);
        drop(&timed);
    }
}

/* A label that is no class: nothing was changed, and there are no times of what did not take place. */
static void test_a_step_that_fails(void **state)
{
    (void)state;
    net n = make(FIT_MLP), same = make(FIT_MLP);
    int64_t bad[BATCH] = {0, 1, 2, 99};
    kiln_tensor *wrong = kiln_keep(kiln_tensor_new(bad, KILN_I64, KILN_SHAPE(BATCH), kiln_default_device())), *y = n.y;
    n.y = wrong;
    kiln_time_next_step();
    bool ok = step(&n) && kiln_device_wait(kiln_default_device());
    assert_false(ok);
    expect_error(KILN_E_INDEX, "cross_entropy", "99");
    core_same_tensors(kiln_state(n.module), kiln_state(same.module));
    n.y = y;
    assert_true(step(&n)); /* not timed any more */
    if (core_on("cpu"))
        assert_int_equal(kiln_step_times(NULL, 0), 0);
    kiln_release(wrong);
    drop(&n);
    drop(&same);
}

/* An error of the program's after something has run. */
static void test_a_step_that_is_discarded(void **state)
{
    (void)state;
    net n = make(FIT_MLP);
    kiln_time_next_step();
    kiln_step {
        kiln_tensor *y = kiln_forward(n.module, n.x);
        assert_true(isfinite(kiln_item(kiln_sum_all(y))));
        assert_true(kiln_step_times(NULL, 0) > 0);
        kiln_matmul(y, y);
    }
    expect_error(KILN_E_SHAPE, "matmul", NULL);
    assert_int_equal(kiln_step_times(NULL, 0), 0);
    drop(&n);
}

/* ---- What is told ---- */

static void test_the_next_step_alone(void **state)
{
    (void)state;
    net n = make(FIT_MLP);
    kiln_time_next_step();
    kiln_time_next_step(); /* asking twice is asking once */
    assert_true(step(&n));
    int64_t count = kiln_step_times(NULL, 0);
    kiln_kernel_time before[TIMES_MOST], after[TIMES_MOST];
    memset(before, 0, sizeof before);
    memset(after, 0, sizeof after);
    kiln_step_times(before, TIMES_MOST);
    assert_true(step(&n));
    kiln_scope
        assert_true(isfinite(kiln_item(kiln_sum_all(kiln_forward(n.module, n.x)))));
    assert_int_equal(kiln_step_times(after, TIMES_MOST), count);
    assert_memory_equal(before, after, sizeof before);
    drop(&n);
}

/* What was written before the step is none of it; what is read in it, and steps within it, are. */
static void test_segments(void **state)
{
    (void)state;
    skip_if_eager();
    kiln_scope {
        kiln_tensor *x = core_data(2, KILN_SHAPE(4, 4)), *before = kiln_exp(x);
        kiln_time_next_step();
        kiln_step {
            kiln_tensor *a = kiln_matmul(before, x);
            assert_true(isfinite(kiln_item(kiln_sum_all(a))));
            kiln_step
                assert_true(isfinite(kiln_item(kiln_sum_all(kiln_cumsum(a, 0)))));
        }
        const times *t = times_read();
        assert_timed(t, "matmul", NULL, false);
        assert_timed(t, "cumsum", NULL, false);
        assert_int_equal(times_of(t, "exp", NULL, false), 0);
    }
}

static void test_room(void **state)
{
    (void)state;
    net n = make(FIT_MLP);
    kiln_time_next_step();
    assert_true(step(&n));
    const times *all = times_read();
    kiln_kernel_time few[3] = {{0}};
    few[2].kernels = -7;
    assert_int_equal(kiln_step_times(few, 2), all->n);
    assert_int_equal(few[1].kernels, 1);
    assert_int_equal(few[2].kernels, -7);
    assert_string_equal(few[1].kernel, all->at[1].kernel);
    assert_int_equal(kiln_step_times(NULL, 5), all->n);
    assert_int_equal(kiln_step_times(few, -1), all->n);

    /* A program that knows the first two members only. */
    struct {
        const char *operation, *module;
    } old[2] = {{0}};
    assert_int_equal(kiln_step_times_((kiln_kernel_time *)(void *)old, 2, sizeof *old), all->n);
    assert_string_equal(old[1].operation, all->at[1].operation);
    drop(&n);
}

static void *count_times(void *context)
{
    *(int64_t *)context = kiln_step_times(NULL, 0);
    return NULL;
}

static void test_another_thread_has_its_own(void **state)
{
    (void)state;
    net n = make(FIT_MLP);
    kiln_time_next_step();
    assert_true(step(&n) && kiln_step_times(NULL, 0) > 0);
    int64_t there = -1;
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, count_times, &there), 0);
    pthread_join(thread, NULL);
    assert_int_equal(there, 0);
    drop(&n);
}

/* In the middle of training: asks, and one step later looks. */
static bool ask_or_look(void *context, int64_t epoch, int64_t at)
{
    enum { ASKS = 9 };
    (void)epoch;
    if (at == ASKS)
        kiln_time_next_step();
    if (at == ASKS + 1)
        *(int64_t *)context = kiln_step_times(NULL, 0);
    return true;
}

/* Where steps are run again without being recorded, one that is to be timed is recorded; weights are those of a
 * training that is not timed. */
static void test_fit(void **state)
{
    (void)state;
    kiln_module *m[2];
    int64_t count = 0;
    for (int timed = 0; timed < 2; timed++) {
        const kiln_callback callback = {.step = ask_or_look, .context = &count};
        kiln_dataset *data = fit_data(FIT_MLP, 0);
        m[timed] = fit_net(FIT_MLP, 0);
        kiln_history h = kiln_fit(m[timed], data, .epochs = 3, .batch = 8, .callbacks = &callback, .ncallbacks = timed);
        assert_true(kiln_ok());
        kiln_history_free(&h);
        kiln_data_free(data);
    }
    assert_true(count > 0);
    const times *t = times_read();
    assert_timed(t, "linear", "1", false);
    assert_timed(t, "linear", "4", true);
    core_same_tensors(kiln_state(m[0]), kiln_state(m[1]));
    kiln_module_free(m[0]);
    kiln_module_free(m[1]);
}

/* ---- Devices that cannot ---- */

static void test_a_device_without(void **state)
{
    (void)state;
    if (!core_on("sim"))
        skip_because("the table of a simulated device can be changed");
    void *dev;
    kiln_device_table *table = (kiln_device_table *)kiln_device_open(kiln_default_device(), &dev);
    bool (*time)(void *, void *, const kiln_binding *, kiln_timing *) = table->time;
    net n = make(FIT_MLP), same = make(FIT_MLP);
    table->time = NULL;
    kiln_time_next_step();
    bool ok = step(&n);
    table->time = time;
    assert_false(ok);
    expect_error(KILN_E_UNSUPPORTED, "time_next_step", "sim:0 does not measure");
    core_same_tensors(kiln_state(n.module), kiln_state(same.module));
    assert_true(step(&n)); /* as any other */
    drop(&n);
    drop(&same);
}

int main(void)
{
    const struct CMUnitTest tests[] = {core_test(test_every_kernel_has_a_time),
                                       core_test(test_bits),
                                       core_test(test_a_step_that_fails),
                                       core_test(test_a_step_that_is_discarded),
                                       core_test(test_the_next_step_alone),
                                       core_test(test_segments),
                                       core_test(test_room),
                                       core_test(test_another_thread_has_its_own),
                                       core_test(test_fit),
                                       core_test(test_a_device_without)};
    return CORE_MAIN(tests);
}
