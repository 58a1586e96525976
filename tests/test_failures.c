/* Runs that fail on a device that several threads use: each thread learns what has become of its own, and no step goes
 * missing in silence. */
#include <pthread.h>
#include <string.h>
#include "device/failures.h"
#include "support/core.h"
#include "support/other.h"
#include "support/train.h"

/* ---- Who is told what ---- */

static const kiln_error cause = {.code = KILN_E_INDEX, .operation = "gather", .message = "index 9", .hint = "look"};

static void expect_own(kiln_failures *f, kiln_witness *w)
{
    assert_false(kiln_failures_tell(f, w, UINT64_MAX));
    assert_string_equal(kiln_last_error()->message, "index 9");
    assert_string_equal(kiln_last_error()->hint, "look");
    expect_error(KILN_E_INDEX, "gather", "index 9");
}

static void expect_told(kiln_failures *f, kiln_witness *w, const char *words)
{
    assert_false(kiln_failures_tell(f, w, UINT64_MAX));
    assert_non_null(strstr(kiln_last_error()->message, "index 9"));
    expect_error(KILN_E_INDEX, "gather", words);
}

static void expect_silence(kiln_failures *f, kiln_witness *w)
{
    assert_true(kiln_failures_tell(f, w, UINT64_MAX));
    assert_true(kiln_ok());
}

static void test_words(void **state)
{
    (void)state;
    static kiln_failures f;
    kiln_witness failed = {0}, skipped = {0}, before = {0}, late = {0};
    f = (kiln_failures){0};
    expect_silence(&f, &failed);
    expect_silence(&f, &skipped);
    expect_silence(&f, &before);
    before.given = 3;
    failed.given = 4;
    skipped.given = 6;
    kiln_failures_add(&f, 4, 6, kiln_witness_thread(&f, &failed), &cause);
    expect_told(&f, &skipped, "was skipped, because one that another thread gave");
    expect_told(&f, &before, "a step that another thread gave to this device failed");
    expect_own(&f, &failed); /* though others know */
    expect_silence(&f, &skipped);
    expect_silence(&f, &before);
    expect_silence(&f, &failed);
    expect_silence(&f, &late); /* it comes when all is told */
    assert_true(!kiln_failures_hit(&f, 3) && kiln_failures_hit(&f, 4) && kiln_failures_hit(&f, 6));
    assert_false(kiln_failures_hit(&f, 7));
}

/* What nobody was told of is told to a thread that is new: the one that it concerned may have ended. */
static void test_nobody_was_told(void **state)
{
    (void)state;
    static kiln_failures f;
    kiln_witness ended = {0}, late = {0}, later = {0};
    f = (kiln_failures){0};
    kiln_failures_add(&f, 1, 1, kiln_witness_thread(&f, &ended), &cause);
    expect_told(&f, &late, "another thread");
    expect_silence(&f, &later);
}

/* Its own failure is told to a thread also if others came after it; what lies behind a copy is left to later. */
static void test_several(void **state)
{
    (void)state;
    static kiln_failures f;
    kiln_witness a = {0}, b = {0};
    f = (kiln_failures){0};
    kiln_error second = cause;
    strcpy(second.message, "index 11");
    kiln_failures_add(&f, 5, 7, kiln_witness_thread(&f, &a), &cause);
    kiln_failures_add(&f, 9, 9, kiln_witness_thread(&f, &b), &second);
    a.given = 5;
    b.given = 9;
    expect_own(&f, &a);
    expect_silence(&f, &a);
    assert_true(kiln_failures_tell(&f, &b, 4));
    assert_false(kiln_failures_tell(&f, &b, 8));
    expect_error(KILN_E_INDEX, "gather", "index 9");
    assert_false(kiln_failures_tell(&f, &b, UINT64_MAX));
    expect_error(KILN_E_INDEX, "gather", "index 11");
    expect_silence(&f, &b);
}

/* Of very many the last are known by their words; what was given before them counts as lost. */
static void test_very_many(void **state)
{
    (void)state;
    static kiln_failures f;
    kiln_witness a = {0}, b = {0};
    f = (kiln_failures){0};
    kiln_witness_thread(&f, &a);
    kiln_witness_thread(&f, &b);
    a.given = 2;
    for (uint64_t i = 1; i <= 3 * KILN_FAILURES; i++)
        kiln_failures_add(&f, 10 * i, 10 * i + 1, b.thread, &cause);
    expect_told(&f, &a, "was skipped");
    expect_silence(&f, &a);
    expect_own(&f, &b);
    assert_true(kiln_failures_hit(&f, 15));
    assert_false(kiln_failures_hit(&f, 10 * 3 * KILN_FAILURES - 1));
    kiln_failures_add(&f, 1000, 1000, a.thread, &cause);
    kiln_failures_told(&f, &a);
    expect_silence(&f, &a);
}

/* ---- Two threads on a device ---- */

static void skip_unless_it_runs_on(void)
{
    if (core_eager())
        skip_because("eager: a step is many runs");
    if (core_on("cpu"))
        skip_because("about devices that run beside the host");
}

static void slow_down(int64_t microseconds)
{
    if (core_on("sim"))
        sim_switch()(0, KILN_SIM_SLOW_RUNS, microseconds);
}

typedef struct actor {
    kiln_device device;
    kiln_tensor *t, *table, *bad;
    bool ok;
    float value;
    kiln_error error;
} actor;

static void note(actor *a, bool ok)
{
    a->ok = ok;
    a->error = *kiln_last_error();
    kiln_error_clear();
}

static void begin(void *p)
{
    actor *a = p;
    kiln_set_default_device(a->device);
    kiln_scope {
        a->t = kiln_keep(kiln_of_f32(((float[]){4}), 1));
        a->table = kiln_keep(kiln_of_f32(((float[]){1, 2, 3}), 3));
        a->bad = kiln_keep(kiln_of_i64(((int64_t[]){7}), 1));
    }
    note(a, kiln_device_wait(a->device));
}

static void end(void *p)
{
    actor *a = p;
    kiln_release(a->t);
    kiln_release(a->table);
    kiln_release(a->bad);
    kiln_device_wait(a->device);
    kiln_error_clear();
}

static void good_step(void *p)
{
    actor *a = p;
    kiln_step
        kiln_assign(a->t, kiln_add_scalar(a->t, 1));
    note(a, kiln_ok());
}

static void bad_step(void *p)
{
    actor *a = p;
    kiln_step
        kiln_assign(a->t, kiln_index_select(a->table, 0, a->bad));
    note(a, kiln_ok());
}

static void wait_for_it(void *p)
{
    actor *a = p;
    note(a, kiln_device_wait(a->device));
}

static void read_it(void *p)
{
    actor *a = p;
    note(a, kiln_read(a->t, &a->value, sizeof a->value));
}

static void expect_of(actor *a, const char *words)
{
    if (a->ok || a->error.code != KILN_E_INDEX || !strstr(a->error.message, words) || !strstr(a->error.message, "7"))
        fail_msg("expected \"%s\", got: %s", words, a->ok ? "nothing" : a->error.message);
}

/* Plans are there before it begins, so that steps are given one after the other while the device is busy. */
static other_thread *warm_up(actor *a, actor *b)
{
    other_thread *o = other_start();
    assert_non_null(o);
    *a = *b = (actor){.device = kiln_default_device()};
    begin(a);
    other_do(o, begin, b);
    good_step(a);
    assert_true(a->ok);
    other_do(o, good_step, b);
    assert_true(b->ok);
    other_do(o, wait_for_it, b);
    wait_for_it(a);
    assert_true(a->ok && b->ok);
    bad_step(a);
    wait_for_it(a);
    expect_of(a, "index 7");
    other_do(o, wait_for_it, b);
    expect_of(b, "another thread gave to this device failed");
    return o;
}

static void finish(other_thread *o, actor *a, actor *b, float of_b)
{
    read_it(a);
    assert_true(a->ok && a->value == 5);
    other_do(o, read_it, b);
    assert_true(b->ok && b->value == of_b);
    good_step(a); /* all is as it was */
    other_do(o, good_step, b);
    read_it(a);
    other_do(o, read_it, b);
    assert_true(a->ok && b->ok && a->value == 6 && b->value == of_b + 1);
    other_do(o, end, b);
    end(a);
    other_end(o);
}

/* Both steps are given before the device has done the first. */
static void give_both(other_thread *o, actor *a, actor *b, bool bad_first)
{
    slow_down(200000);
    if (bad_first)
        bad_step(a);
    other_do(o, good_step, b);
    if (!bad_first)
        bad_step(a);
    slow_down(0);
    assert_true(a->ok && b->ok);
}

/* The one whose step fails asks first, or the other. */
static void check_skipped(bool other_first, void (*ask)(void *p))
{
    actor a, b;
    other_thread *o = warm_up(&a, &b);
    give_both(o, &a, &b, true);
    if (!other_first) {
        ask(&a);
        expect_of(&a, "index 7");
    }
    other_do(o, ask, &b);
    expect_of(&b, "a step of this thread was skipped");
    if (other_first) {
        ask(&a);
        expect_of(&a, "index 7");
        assert_null(strstr(a.error.message, "another"));
    }
    finish(o, &a, &b, 5);
}

static void test_skipped_step_is_told(void **state)
{
    (void)state;
    skip_unless_it_runs_on();
    check_skipped(false, wait_for_it);
    check_skipped(true, wait_for_it);
    check_skipped(false, read_it);
    check_skipped(true, read_it);
}

/* A thread that does not ask is told when it gives its next step, which does not take place. */
static void test_told_at_the_next_step(void **state)
{
    (void)state;
    skip_unless_it_runs_on();
    actor a, b;
    other_thread *o = warm_up(&a, &b);
    give_both(o, &a, &b, true);
    wait_for_it(&a);
    expect_of(&a, "index 7");
    other_do(o, good_step, &b);
    expect_of(&b, "a step of this thread was skipped");
    finish(o, &a, &b, 5);
}

/* What was given before the step that failed has taken place. */
static void test_before_it(void **state)
{
    (void)state;
    skip_unless_it_runs_on();
    actor a, b;
    other_thread *o = warm_up(&a, &b);
    give_both(o, &a, &b, false);
    other_do(o, wait_for_it, &b);
    expect_of(&b, "another thread gave to this device failed");
    wait_for_it(&a);
    expect_of(&a, "index 7");
    finish(o, &a, &b, 6);
}

/* ---- Many threads at once ---- */

enum { IN = 12, HIDDEN = 17, CLASSES = 5, BATCH = 8, STEPS = 8, OFTEN = 20 };

/* Threads cannot use cmocka's asserts: they note where they failed. */
typedef struct worker {
    pthread_t thread;
    pthread_barrier_t *start;
    kiln_device device;
    bool bad;
    float *expected[STEPS + 1];
    int failed; /* line; 0: all well */
    kiln_error error;
} worker;

/* Each of its failures is told to it, whoever was told before. */
static void fail_often(worker *w)
{
    test_net net = {.p = {NULL}};
    int64_t bad[BATCH] = {0, 1, 2, 3, CLASSES + 2, 0, 0, 0};
    CHECK(w, net_make(&net, w->device, IN, HIDDEN, CLASSES, 1));
    for (int i = 0; i < OFTEN && !w->failed; i++) {
        kiln_step {
            kiln_tensor *x, *labels;
            if (net_batch(&net, BATCH, 0, &x, &labels))
                net_step_on(&net, x, kiln_tensor_new(bad, KILN_I64, KILN_SHAPE(BATCH), w->device));
        }
        CHECK(w, !kiln_ok() || !kiln_device_wait(w->device));
        CHECK(w, kiln_last_error()->code == KILN_E_INDEX);
        kiln_error_clear();
    }
    net_free(&net);
    kiln_error_clear();
}

/* Threads with steps of their own are told of what was called off, and may try again: a step took place or not. */
static void train_beside(worker *w)
{
    test_net net;
    CHECK(w, net_make(&net, w->device, IN, HIDDEN, CLASSES, 7));
    uint32_t step = 0;
    for (int tries = 0; step < STEPS && tries < 10000 && !w->failed; tries++) {
        bool told = !net_step(&net, BATCH, step) || !kiln_device_wait(w->device);
        CHECK(w, !told || kiln_last_error()->code == KILN_E_INDEX);
        size_t bytes;
        float *now = NULL;
        do
            kiln_error_clear();
        while (!(now = net_values(&net, &bytes)));
        bool done = memcmp(now, w->expected[step + 1], bytes) == 0;
        CHECK(w, done || (told && memcmp(now, w->expected[step], bytes) == 0));
        step += done;
        free(now);
    }
    CHECK(w, step == STEPS);
    net_free(&net);
}

static void *good_or_bad(void *p)
{
    worker *w = p;
    pthread_barrier_wait(w->start);
    if (w->bad)
        fail_often(w);
    else
        train_beside(w);
    return NULL;
}

static void run_workers(worker *w, int n)
{
    pthread_barrier_t start;
    pthread_barrier_init(&start, NULL, (unsigned)n);
    for (int i = 0; i < n; i++) {
        w[i].start = &start;
        assert_int_equal(pthread_create(&w[i].thread, NULL, good_or_bad, &w[i]), 0);
    }
    for (int i = 0; i < n; i++)
        pthread_join(w[i].thread, NULL);
    pthread_barrier_destroy(&start);
    for (int i = 0; i < n; i++)
        if (w[i].failed)
            fail_msg("thread %d failed at line %d: %s", i, w[i].failed, w[i].error.message);
}

static void test_failure_beside(void **state)
{
    (void)state;
    skip_unless_it_runs_on();
    kiln_device device = kiln_default_device();
    worker w[3] = {{.device = device, .bad = true}, {.device = device}, {.device = device}};
    float *expected[STEPS + 1];
    for (int i = 0; i <= STEPS; i++) {
        expected[i] = net_trained(device, IN, HIDDEN, CLASSES, 7, BATCH, i);
        assert_non_null(expected[i]);
        w[1].expected[i] = w[2].expected[i] = expected[i];
    }
    run_workers(w, 3);
    kiln_device_wait(device);
    kiln_error_clear();
    for (int i = 0; i <= STEPS; i++)
        free(expected[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        core_test(test_words),     core_test(test_nobody_was_told),      core_test(test_several),
        core_test(test_very_many), core_test(test_skipped_step_is_told), core_test(test_told_at_the_next_step),
        core_test(test_before_it), core_test(test_failure_beside),
    };
    return CORE_MAIN(tests);
}
