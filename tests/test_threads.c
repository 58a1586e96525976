/* Several threads at once: each with its own model, all with one model, on the CPU and on one simulated device, while
 * plans are dropped from the cache under them. The results are those of one thread, to the bit. Clean under
 * ThreadSanitizer. */
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include "support/skip.h"
#include "support/train.h"

/* ctest: name=split env=KILN_NUM_THREADS=2 */

enum { MANY = 4, IN = 12, HIDDEN = 17, CLASSES = 5, BATCH = 8, STEPS = 8 };

/* Threads cannot use cmocka's asserts: they note where they failed, and the test asserts after joining them. */
typedef struct worker {
    pthread_t thread;
    pthread_barrier_t *start;
    kiln_device device;
    int number;
    int64_t hidden, batch;
    int steps;
    uint32_t seed;
    test_net *shared;
    kiln_tensor *tensor;
    const float *expected;
    int failed; /* line; 0: all well */
    kiln_error error;
} worker;

static void run_workers(worker *workers, int n, void *(*body)(void *))
{
    pthread_barrier_t start;
    pthread_barrier_init(&start, NULL, (unsigned)n);
    for (int i = 0; i < n; i++) {
        workers[i].number = i;
        workers[i].start = &start;
        assert_int_equal(pthread_create(&workers[i].thread, NULL, body, &workers[i]), 0);
    }
    for (int i = 0; i < n; i++)
        pthread_join(workers[i].thread, NULL);
    pthread_barrier_destroy(&start);
    for (int i = 0; i < n; i++)
        if (workers[i].failed)
            fail_msg("thread %d failed at line %d: %s", i, workers[i].failed, workers[i].error.message);
}

static kiln_device sim0(void)
{
    return kiln_device_parse("sim:0");
}

/* ---- Finding devices ---- */

static void *look_around(void *p)
{
    worker *w = p;
    char why[64];
    kiln_device_info info;
    pthread_barrier_wait(w->start);
    CHECK(w, kiln_device_count("sim", why, sizeof why) == 2);
    kiln_device_count("cuda", why, sizeof why);
    kiln_device device = kiln_device_parse(w->number % 2 ? "sim:1" : "sim:0");
    CHECK(w, device > 0 && kiln_device_describe(device, &info));
    CHECK(w, strcmp(kiln_device_name(device), w->number % 2 ? "sim:1" : "sim:0") == 0);
    kiln_tensor *t = kiln_tensor_new(((float[]){1, 2}), KILN_F32, KILN_SHAPE(2), device); /* opens it */
    float out[2];
    CHECK(w, t && kiln_read(t, out, sizeof out) && out[1] == 2);
    kiln_release(t);
    CHECK(w, kiln_device_wait(device) && kiln_memory_trim(device));
    return NULL;
}

/* The first thing this process does with devices. */
static void test_first_use(void **state)
{
    (void)state;
    worker w[MANY] = {0};
    run_workers(w, MANY, look_around);
}

/* ---- A model each ---- */

static void *train(void *p)
{
    worker *w = p;
    test_net net;
    pthread_barrier_wait(w->start);
    CHECK(w, net_make(&net, w->device, IN, w->hidden, CLASSES, w->seed));
    for (int i = 0; i < w->steps && !w->failed; i++)
        CHECK(w, net_step(&net, w->batch, (uint32_t)i));
    CHECK(w, net_equals(&net, w->expected));
    net_free(&net);
    CHECK(w, kiln_ok());
    return NULL;
}

static void check_training(int threads, bool same, int64_t capacity, bool large)
{
    kiln_device devices[] = {KILN_CPU, sim0()};
    for (int d = 0; d < 3; d++) { /* all on the CPU, all on the other, some here and some there */
        worker w[MANY] = {0};
        float *expected[MANY];
        kiln_device_wait(devices[1]);
        uint64_t before[2] = {memory_in_use(devices[0]), memory_in_use(devices[1])};
        for (int i = 0; i < threads; i++) {
            w[i].device = devices[d < 2 ? d : i % 2];
            w[i].hidden = (large ? 400 : HIDDEN) + (same ? 0 : i);
            w[i].batch = large ? 256 : BATCH;
            w[i].steps = large ? 2 : STEPS;
            w[i].seed = same ? 1 : (uint32_t)i;
            w[i].expected = expected[i] =
                net_trained(KILN_CPU, IN, w[i].hidden, CLASSES, w[i].seed, w[i].batch, w[i].steps);
            assert_non_null(expected[i]);
        }
        kiln_plan_cache_set_capacity(capacity);
        run_workers(w, threads, train);
        kiln_plan_cache_set_capacity(256);
        for (int i = 0; i < threads; i++)
            free(expected[i]);
        for (int i = 0; i < 2; i++)
            assert_int_equal(memory_in_use(devices[i]), before[i]);
    }
    assert_true(kiln_ok());
}

static void test_same_models(void **state)
{
    (void)state;
    check_training(2, true, 256, false);
    check_training(MANY, true, 1, false);
}

static void test_different_models(void **state)
{
    (void)state;
    check_training(2, false, 256, false);
    check_training(MANY, false, 2, false); /* fewer than there are models: dropped and made anew all the time */
    check_training(MANY, false, 0, false);
}

/* Kernels that are themselves split over worker threads. */
static void test_large_models(void **state)
{
    (void)state;
    check_training(MANY, false, 256, true);
}

/* ---- One model for all ---- */

enum { ROUNDS = 6, OUTPUTS = BATCH * CLASSES };

static bool infer(test_net *net, uint32_t number, bool with_grad, float *out)
{
    bool ok = false;
    kiln_scope {
        kiln_tensor *x, *labels, *y = NULL;
        if (net_batch(net, BATCH, number, &x, &labels)) {
            if (with_grad)
                y = net_forward(net, x);
            else
                kiln_no_grad
                    y = net_forward(net, x);
        }
        ok = kiln_read(y, out, OUTPUTS * sizeof *out);
    }
    return ok;
}

static void *infer_shared(void *p)
{
    worker *w = p;
    float out[OUTPUTS];
    pthread_barrier_wait(w->start);
    for (uint32_t i = 0; i < ROUNDS && !w->failed; i++) {
        uint32_t number = (uint32_t)w->number * ROUNDS + i;
        CHECK(w, infer(w->shared, number, (number & 1) != 0, out));
        CHECK(w, memcmp(out, w->expected + number * OUTPUTS, sizeof out) == 0);
    }
    return NULL;
}

static void check_shared(kiln_device device, int64_t capacity)
{
    test_net net;
    worker w[MANY] = {0};
    float *expected = malloc(MANY * ROUNDS * OUTPUTS * sizeof *expected);
    assert_true(net_make(&net, device, IN, HIDDEN, CLASSES, 3));
    for (uint32_t i = 0; i < MANY * ROUNDS; i++)
        assert_true(infer(&net, i, (i & 1) != 0, expected + i * OUTPUTS));
    for (int i = 0; i < MANY; i++) {
        w[i].shared = &net;
        w[i].expected = expected;
    }
    kiln_plan_cache_set_capacity(capacity);
    run_workers(w, MANY, infer_shared);
    kiln_plan_cache_set_capacity(256);
    net_free(&net);
    free(expected);
    assert_true(kiln_ok());
}

static void test_shared_model(void **state)
{
    (void)state;
    check_shared(KILN_CPU, 256);
    check_shared(KILN_CPU, 1);
    check_shared(sim0(), 256);
    check_shared(sim0(), 0);
}

/* ---- Handing tensors over ---- */

static void *make_for_others(void *p)
{
    worker *w = p;
    pthread_barrier_wait(w->start);
    kiln_scope {
        kiln_tensor *x = kiln_tensor_new(((float[]){1, 2, 3}), KILN_F32, KILN_SHAPE(3), w->device);
        w->tensor = kiln_keep(kiln_add(kiln_mul_scalar(x, w->number + 2), w->shared->p[1]));
        CHECK(w, w->tensor && kiln_eval());
    }
    return NULL;
}

static void test_handed_over(void **state)
{
    (void)state;
    for (int d = 0; d < 2; d++) {
        test_net net;
        worker w[MANY] = {0};
        kiln_device device = d ? sim0() : KILN_CPU;
        uint64_t before = memory_in_use(device);
        assert_true(net_make(&net, device, IN, 3, CLASSES, 3)); /* a bias of three */
        for (int i = 0; i < MANY; i++) {
            w[i].device = device;
            w[i].shared = &net;
        }
        run_workers(w, MANY, make_for_others); /* their threads have ended */
        float bias[3], out[3];
        assert_true(kiln_read(net.p[1], bias, sizeof bias));
        for (int i = 0; i < MANY; i++) {
            assert_true(kiln_read(w[i].tensor, out, sizeof out));
            for (int k = 0; k < 3; k++)
                assert_true(out[k] == (float)((k + 1) * (i + 2)) + bias[k]);
            kiln_scope {
                assert_true(kiln_read(kiln_sub(w[i].tensor, net.p[1]), out, sizeof out));
                assert_true(kiln_assign(w[i].tensor, kiln_zeros_like(w[i].tensor)));
                assert_true(kiln_item(kiln_sum_all(w[i].tensor)) == 0);
            }
            kiln_release(w[i].tensor);
        }
        net_free(&net);
        assert_int_equal(memory_in_use(device), before);
    }
    assert_true(kiln_ok());
}

/* ---- What is pending elsewhere ---- */

typedef struct meeting {
    pthread_barrier_t written, tried;
    kiln_tensor *pending;
    bool computed;
} meeting;

static void *write_only(void *p)
{
    meeting *m = p;
    kiln_scope
        m->pending = kiln_keep(kiln_add_scalar(kiln_ones(KILN_SHAPE(2, 3), KILN_F32), 1));
    pthread_barrier_wait(&m->written);
    pthread_barrier_wait(&m->tried);
    m->computed = kiln_eval() && kiln_ok();
    return NULL;
}

static void expect_state_at(int line, bool refused)
{
    if (!refused || kiln_last_error()->code != KILN_E_STATE)
        fail_msg("line %d: %s: %s", line, refused ? "refused" : "not refused", kiln_last_error()->message);
    assert_non_null(strstr(kiln_last_error()->message, "another thread"));
    kiln_error_clear();
}

#define expect_state(refused) expect_state_at(__LINE__, refused)

static void try_everything(kiln_tensor *t)
{
    float out[6];
    kiln_scope {
        expect_state(!kiln_read(t, out, sizeof out));
        expect_state(!kiln_add(t, t));
        expect_state(!kiln_transpose(t, 0, 1));
        expect_state(!kiln_to(t, sim0()));
        expect_state(!kiln_assign(t, kiln_zeros(KILN_SHAPE(2, 3), KILN_F32)));
        expect_state(!kiln_assign(kiln_zeros(KILN_SHAPE(2, 3), KILN_F32), t));
        expect_state(!kiln_write(t, out, sizeof out));
        expect_state(!kiln_to_string(t));
        expect_state(!kiln_detach(t));
        assert_int_equal(kiln_size(t, 1), 3); /* its shape is known */
    }
}

static void test_pending_elsewhere(void **state)
{
    (void)state;
    const char *eager = getenv("KILN_EAGER");
    if (eager && *eager && strcmp(eager, "0") != 0)
        skip_because("eager: nothing is ever pending");
    meeting m = {0};
    pthread_t thread;
    uint64_t before = memory_in_use(KILN_CPU);
    pthread_barrier_init(&m.written, NULL, 2);
    pthread_barrier_init(&m.tried, NULL, 2);
    assert_int_equal(pthread_create(&thread, NULL, write_only, &m), 0);
    pthread_barrier_wait(&m.written);
    try_everything(m.pending);
    pthread_barrier_wait(&m.tried);
    pthread_join(thread, NULL);
    assert_true(m.computed);
    float out[6];
    assert_true(kiln_read(m.pending, out, sizeof out));
    assert_true(out[0] == 2 && out[5] == 2);
    kiln_release(m.pending);
    pthread_barrier_destroy(&m.written);
    pthread_barrier_destroy(&m.tried);
    assert_int_equal(memory_in_use(KILN_CPU), before);
    assert_true(kiln_ok());
}

/* A tensor whose thread ended before it was computed has no value, and can be released. */
static void *write_and_leave(void *p)
{
    kiln_scope
        *(kiln_tensor **)p = kiln_keep(kiln_add_scalar(kiln_ones(KILN_SHAPE(3), KILN_F32), 1));
    return NULL;
}

static void test_abandoned(void **state)
{
    (void)state;
    pthread_t thread;
    kiln_tensor *t = NULL;
    assert_int_equal(pthread_create(&thread, NULL, write_and_leave, &t), 0);
    pthread_join(thread, NULL);
    const char *eager = getenv("KILN_EAGER");
    if (!eager || !*eager || strcmp(eager, "0") == 0) {
        float out[3];
        expect_state(!kiln_read(t, out, sizeof out));
        expect_state(!kiln_mul(t, t));
    }
    kiln_release(t);
    assert_true(kiln_ok());
}

/* ---- Ending a thread ---- */

static void *leave_a_mess(void *p)
{
    worker *w = p;
    pthread_barrier_wait(w->start);
    kiln_scope_enter(KILN_SCOPE_PLAIN); /* never left */
    kiln_scope_enter(KILN_SCOPE_STEP);
    kiln_set_default_device(w->device);
    test_net net;
    CHECK(w, net_make(&net, w->device, IN, HIDDEN, CLASSES, 1));
    kiln_tensor *x, *labels;
    CHECK(w, net_batch(&net, BATCH, 0, &x, &labels) && net_step_on(&net, x, labels)); /* recorded, not run */
    kiln_set_name(kiln_zeros(KILN_SHAPE(100), KILN_F32), "never computed");
    if (w->number % 2)
        CHECK(w, kiln_eval());
    net_free(&net);
    kiln_device_parse("nonsense"); /* and an error nobody looks at */
    return NULL;
}

static void test_end_of_thread(void **state)
{
    (void)state;
    for (int d = 0; d < 2; d++) {
        worker w[MANY] = {0};
        kiln_device device = d ? sim0() : KILN_CPU;
        uint64_t before = memory_in_use(device);
        for (int i = 0; i < MANY; i++)
            w[i].device = device;
        run_workers(w, MANY, leave_a_mess);
        assert_int_equal(memory_in_use(device), before);
    }
    assert_int_equal(kiln_default_device(), KILN_CPU); /* each thread has its own */
    assert_true(kiln_ok());
}

/* ---- A device that never rests ---- */

typedef struct busy_thread {
    kiln_device device;
    atomic_int given;
    atomic_bool stop;
} busy_thread;

enum { ENOUGH = 30000 };

/* More than the device gets done meanwhile. */
static void *keep_busy(void *p)
{
    busy_thread *b = p;
    kiln_tensor *t = kiln_tensor_new(NULL, KILN_F32, KILN_SHAPE(4), b->device);
    while (!atomic_load(&b->stop) && atomic_load(&b->given) < ENOUGH) {
        kiln_step
            kiln_assign(t, kiln_add_scalar(t, 1));
        atomic_fetch_add(&b->given, 1);
        usleep(100);
    }
    kiln_release(t);
    return NULL;
}

/* Whoever waits, or disposes of plans, waits for what was given before, not for what another thread keeps giving. */
static void test_busy_device(void **state)
{
    (void)state;
    busy_thread b = {.device = sim0()};
    pthread_t thread;
    sim_switch()(0, KILN_SIM_SLOW_RUNS, 500);
    assert_int_equal(pthread_create(&thread, NULL, keep_busy, &b), 0);
    while (atomic_load(&b.given) < 20)
        sched_yield();
    kiln_tensor *t = kiln_tensor_new(NULL, KILN_F32, KILN_SHAPE(4), b.device);
    kiln_step
        kiln_assign(t, kiln_mul_scalar(t, 2));
    bool waited = kiln_device_wait(b.device);
    kiln_plan_cache_set_capacity(1); /* the other one's stays: it was used last */
    kiln_plan_cache_set_capacity(256);
    int given = atomic_load(&b.given);
    atomic_store(&b.stop, true);
    sim_switch()(0, KILN_SIM_SLOW_RUNS, 0);
    pthread_join(thread, NULL);
    kiln_release(t);
    assert_true(waited && kiln_device_wait(b.device));
    assert_true(given < ENOUGH); /* it was still at it */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_first_use),         cmocka_unit_test(test_same_models),
        cmocka_unit_test(test_different_models),  cmocka_unit_test(test_large_models),
        cmocka_unit_test(test_shared_model),      cmocka_unit_test(test_handed_over),
        cmocka_unit_test(test_pending_elsewhere), cmocka_unit_test(test_abandoned),
        cmocka_unit_test(test_end_of_thread),     cmocka_unit_test(test_busy_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
