/* Steps: transactions, looking at values in the middle of a step, what replays cost, and what plans say about
 * themselves. */
#include "core/alloc.h"
#include "support/core.h"

/* ctest: name=eager env=KILN_EAGER=1 */

#define F32(...) kiln_of_f32(((float[]){__VA_ARGS__}), sizeof((float[]){__VA_ARGS__}) / sizeof(float))

static kiln_plan_info last_plan(void)
{
    kiln_plan_info info = {0};
    assert_true(kiln_plan_last(&info));
    return info;
}

/* ---- Transactions ---- */

enum { BATCH = 6, FEATURES = 5, CLASSES = 3 };

typedef struct trainer {
    kiln_tensor *w, *b, *mw, *mb; /* parameters and momenta */
} trainer;

static trainer trainer_new(void)
{
    trainer t = {kiln_keep(core_data(1, KILN_SHAPE(CLASSES, FEATURES))), kiln_keep(core_data(2, KILN_SHAPE(CLASSES))),
                 kiln_keep(kiln_zeros(KILN_SHAPE(CLASSES, FEATURES), KILN_F32)),
                 kiln_keep(kiln_zeros(KILN_SHAPE(CLASSES), KILN_F32))};
    kiln_requires_grad(t.w, true);
    kiln_requires_grad(t.b, true);
    return t;
}

static void trainer_free(trainer *t)
{
    kiln_release(t->w);
    kiln_release(t->b);
    kiln_release(t->mw);
    kiln_release(t->mb);
}

typedef struct snapshot {
    float w[CLASSES * FEATURES], b[CLASSES], mw[CLASSES * FEATURES], mb[CLASSES];
} snapshot;

static snapshot trainer_state(const trainer *t)
{
    snapshot s;
    memcpy(s.w, core_f32(t->w), sizeof s.w);
    memcpy(s.b, core_f32(t->b), sizeof s.b);
    memcpy(s.mw, core_f32(t->mw), sizeof s.mw);
    memcpy(s.mb, core_f32(t->mb), sizeof s.mb);
    return s;
}

static void update(kiln_tensor *p, kiln_tensor *m)
{
    kiln_no_grad {
        kiln_assign(m, kiln_add(kiln_mul_scalar(m, 0.9), kiln_grad_of(p)));
        kiln_assign(p, kiln_sub(p, kiln_mul_scalar(m, 0.1)));
    }
}

enum { LOOK_LOSS = 1, LOOK_GRAD = 2, LOOK_PARAMETER = 4, LOOK_HIDDEN = 8, LOOK_AGAIN = 16, LOOKS = 32 };

/* One step of training with momentum; `look` says which values are read on the way. False if it failed. */
static void look_at(kiln_tensor *t)
{
    float out[CLASSES * BATCH + CLASSES * FEATURES];
    if (t)
        kiln_read(t, out, (size_t)kiln_numel(t) * sizeof *out);
}

static bool train(trainer *t, int seed, int64_t bad_label, int look)
{
    bool ok = kiln_ok();
    kiln_step {
        int64_t labels[BATCH];
        for (int i = 0; i < BATCH; i++)
            labels[i] = (seed + i) % CLASSES;
        labels[2] = bad_label ? bad_label : labels[2];
        kiln_zero_grad_of(t->w);
        kiln_zero_grad_of(t->b);
        kiln_tensor *x = core_data(seed, KILN_SHAPE(BATCH, FEATURES));
        kiln_tensor *y = kiln_tensor_new(labels, KILN_I64, KILN_SHAPE(BATCH), kiln_default_device());
        kiln_tensor *h = kiln_linear(kiln_tanh(x), t->w, t->b);
        if (look & LOOK_HIDDEN)
            look_at(h);
        kiln_tensor *loss = kiln_cross_entropy(h, y);
        if (look & LOOK_LOSS && kiln_item(loss) > 100)
            loss = kiln_mul_scalar(loss, 0); /* never */
        kiln_backward(loss);
        if (look & LOOK_GRAD)
            look_at(kiln_grad_of(t->w));
        update(t->w, t->mw);
        if (look & LOOK_PARAMETER)
            look_at(t->w);
        update(t->b, t->mb);
        if (look & LOOK_AGAIN)
            look_at(loss);
    }
    kiln_device_wait(kiln_default_device()); /* an asynchronous device finds a bad index when it gets there */
    return ok && kiln_ok();
}

static void test_bad_label(void **state)
{
    (void)state;
    if (core_eager() && kiln_default_device() != KILN_CPU)
        skip_because("eager, behind a queue: part of the step has run before the error is known");
    snapshot want[6];
    for (int bad = 0; bad < 4;
         bad++) { /* no bad step; one that sees the error at its end; two that see it on the way */
        trainer t = trainer_new();
        for (int step = 0; step < 6; step++) {
            if (bad && (step == 0 || step == 3)) {
                snapshot before = trainer_state(&t);
                assert_false(train(&t, step, step ? 7 : -2, bad == 1 ? 0 : bad == 2 ? LOOK_LOSS : LOOKS - 1));
                kiln_error e = *kiln_last_error();
                assert_int_equal(e.code, KILN_E_INDEX);
                assert_non_null(strstr(e.message, step ? "7" : "-2"));
                assert_non_null(strstr(e.message, "3"));
                assert_true(e.operation[0] != 0);
                kiln_error_clear();
                snapshot after = trainer_state(&t);
                assert_memory_equal(&before, &after, sizeof before);
            }
            assert_true(train(&t, step, 0, 0));
            snapshot now = trainer_state(&t);
            if (bad)
                assert_memory_equal(&want[step], &now, sizeof now);
            else
                want[step] = now;
        }
        trainer_free(&t);
    }
}

/* A bad index in the middle of a step that accumulates: the gradients of the good steps before it are still there. */
static void test_bad_label_keeps_gradients(void **state)
{
    (void)state;
    if (core_eager() || kiln_default_device() != KILN_CPU)
        skip_because("about an error that is known at once: the CPU, not eagerly");
    kiln_scope {
        kiln_tensor *table = kiln_requires_grad(core_data(3, KILN_SHAPE(4, 2)), true);
        const int64_t good[2] = {1, 3}, bad[2] = {1, 4};
        kiln_device device = kiln_default_device();
        kiln_step
            assert_true(kiln_backward(
                kiln_sum_all(kiln_embedding(table, kiln_tensor_new(good, KILN_I64, KILN_SHAPE(2), device), -1))));
        assert_f32(kiln_grad_of(table), 0, 0, 1, 1, 0, 0, 1, 1);
        kiln_step
            kiln_backward(
                kiln_sum_all(kiln_embedding(table, kiln_tensor_new(bad, KILN_I64, KILN_SHAPE(2), device), -1)));
        expect_error(KILN_E_INDEX, NULL, "4");
        assert_f32(kiln_grad_of(table), 0, 0, 1, 1, 0, 0, 1, 1);
        kiln_step
            assert_true(kiln_backward(
                kiln_sum_all(kiln_embedding(table, kiln_tensor_new(good, KILN_I64, KILN_SHAPE(2), device), -1))));
        assert_f32(kiln_grad_of(table), 0, 0, 2, 2, 0, 0, 2, 2);
    }
}

/* A value that is read in a step runs what was written so far. If that fails, the rest of the step does not happen. */
static void test_rest_of_failed_step(void **state)
{
    (void)state;
    skip_if_eager();
    kiln_scope {
        kiln_tensor *x = F32(1, 2, 3);
        kiln_step {
            kiln_tensor *i = kiln_tensor_new((int64_t[]){5}, KILN_I64, KILN_SHAPE(1), kiln_default_device());
            assert_true(isnan(kiln_item(kiln_index_select(x, 0, i))));
            kiln_assign(x, kiln_add_scalar(x, 1));
        }
        expect_error(KILN_E_INDEX, "index_select", "5");
        assert_f32(x, 1, 2, 3);
        kiln_step
            assert_true(kiln_assign(x, kiln_add_scalar(x, 1)));
        assert_f32(x, 2, 3, 4);
    }
}

/* What was made in a discarded step has no value, says so, and does no harm. */
static void test_discarded_values(void **state)
{
    (void)state;
    kiln_scope {
        kiln_tensor *x = F32(1, 2, 3), *lost = NULL, *counter = F32(0);
        kiln_step {
            kiln_tensor *i = kiln_tensor_new((int64_t[]){5}, KILN_I64, KILN_SHAPE(1), kiln_default_device());
            lost = kiln_keep(kiln_index_select(x, 0, i));
            kiln_assign(counter, kiln_add_scalar(counter, 1));
            kiln_assign(x, kiln_add_scalar(x, 1));
        }
        kiln_device_wait(kiln_default_device());
        expect_error(KILN_E_INDEX, "index_select", "5");
        if (!core_eager() || kiln_default_device() != KILN_CPU) {
            assert_f32(counter, 0);
            assert_f32(x, 1, 2, 3);
        }
        if (lost) {
            float out;
            assert_false(kiln_read(lost, &out, sizeof out));
            expect_error(KILN_E_STATE, NULL, NULL);
            assert_null(kiln_add(lost, lost));
            expect_error(KILN_E_STATE, NULL, NULL);
            assert_true(isnan(kiln_item(lost)));
            expect_error(KILN_E_STATE, NULL, NULL);
        }
        kiln_release(lost);
        kiln_step
            assert_true(kiln_assign(counter, kiln_add_scalar(counter, 1)));
        assert_true(kiln_item(counter) >= 1);
    }
}

/* ---- Looking at values on the way ---- */

/* A step that fails takes nothing with it that was written before it, computed or not. */
static void test_pending_before_failed_step(void **state)
{
    (void)state;
    kiln_tensor *w = NULL;
    kiln_scope
        w = kiln_keep(kiln_add_scalar(kiln_zeros(KILN_SHAPE(2), KILN_F32), 3));
    kiln_step {
        kiln_assign(w, kiln_mul_scalar(w, 2));
        assert_null(kiln_reshape(w, KILN_SHAPE(5)));
    }
    expect_error(KILN_E_SHAPE, "reshape", "5");
    if (!core_eager())
        assert_f32(w, 3, 3);
    kiln_release(w);
}

static void test_looking(void **state)
{
    (void)state;
    snapshot want;
    memset(&want, 0, sizeof want);
    for (int look = 0; look < LOOKS; look++) {
        trainer t = trainer_new();
        for (int step = 0; step < 3; step++)
            assert_true(train(&t, step, 0, look));
        snapshot now = trainer_state(&t);
        if (look)
            assert_memory_equal(&want, &now, sizeof now);
        else
            want = now;
        trainer_free(&t);
    }
}

static void test_eval_anywhere(void **state)
{
    (void)state;
    float want[9] = {0};
    for (int at = 0; at < 8; at++)
        kiln_scope {
            int k = 0;
            kiln_tensor *w = kiln_requires_grad(core_data(3, KILN_SHAPE(3, 3)), true), *y = NULL;
#define HERE (k++ == at ? (void)kiln_eval() : (void)0)
            kiln_step {
                kiln_tensor *a = kiln_matmul(w, w);
                HERE;
                kiln_tensor *b = kiln_relu(kiln_transpose(a, 0, 1));
                HERE;
                kiln_tensor *c = kiln_softmax(kiln_mul(b, w), 1);
                HERE;
                y = kiln_sum_all(kiln_mul(c, kiln_select(a, 0, 1)));
                HERE;
                assert_true(kiln_backward(y));
                HERE;
                kiln_no_grad
                    kiln_assign(w, kiln_sub(w, kiln_grad_of(w)));
                HERE;
                kiln_no_grad
                    kiln_assign(w, kiln_mul(w, w));
                HERE;
            }
            if (at == 0)
                memcpy(want, core_f32(w), sizeof want);
            else
                assert_memory_equal(want, core_f32(w), sizeof want);
        }
}

/* ---- Replays ---- */

static void test_replay_allocates_nothing(void **state)
{
    /* A device that runs beside the host keeps something of each run until that is over; how many there are at once
     * depends on the machine's load. None is made each step. */
    enum { WARM = 50, UNDER_WAY = 8 };
    (void)state;
    core_use_up_handles();
    trainer t = trainer_new();
    uint64_t host = 0;
    kiln_memory_stats device = {0}, now = {0};
    for (int step = 0; step < 2 * WARM; step++) {
        if (step == WARM) {
            host = kiln_alloc_count();
            kiln_memory_get_stats(kiln_default_device(), &device);
        }
        assert_true(train(&t, 1, 0, 0));
    }
    kiln_memory_get_stats(kiln_default_device(), &now);
    if (!core_eager())
        assert_in_range(kiln_alloc_count() - host, 0, kiln_default_device() == KILN_CPU ? 0 : UNDER_WAY);
    assert_int_equal(now.allocations, device.allocations);
    assert_int_equal(now.in_use, device.in_use);
    trainer_free(&t);
}

static void test_replay_equals_first_run(void **state)
{
    (void)state;
    skip_if_eager();
    snapshot first;
    memset(&first, 0, sizeof first);
    kiln_plan_cache_set_capacity(0);
    kiln_plan_cache_set_capacity(256);
    for (int run = 0; run < 4; run++) {
        if (run == 3)
            kiln_plan_cache_set_capacity(0);
        trainer t = trainer_new();
        assert_true(train(&t, 1, 0, 0));
        assert_int_equal(last_plan().replayed, run != 0 && run != 3);
        snapshot now = trainer_state(&t);
        if (run)
            assert_memory_equal(&first, &now, sizeof now);
        else
            first = now;
        trainer_free(&t);
        if (run == 3)
            kiln_plan_cache_set_capacity(256);
        else if (run == 0)
            assert_true(kiln_plan_cache_stats().plans > 0);
    }
}

static void test_peak(void **state)
{
    (void)state;
    skip_if_eager();
    trainer t = trainer_new();
    kiln_device device = kiln_default_device();
    kiln_memory_stats before, after;
    for (int step = 0; step < 3; step++) {
        kiln_tensor *x = core_data(9, KILN_SHAPE(100, FEATURES)), *y = kiln_zeros(KILN_SHAPE(100), KILN_I64);
        assert_true(kiln_eval());
        kiln_zero_grad_of(t.w);
        kiln_zero_grad_of(t.b);
        assert_true(kiln_memory_reset_peak(device) && kiln_memory_get_stats(device, &before));
        kiln_step {
            assert_true(kiln_backward(kiln_cross_entropy(kiln_linear(x, t.w, t.b), y)));
            update(t.w, t.mw);
            update(t.b, t.mb);
        }
        assert_true(kiln_memory_get_stats(device, &after));
        assert_int_equal(after.peak - before.in_use, last_plan().peak_bytes);
        assert_int_equal(last_plan().peak_bytes, last_plan().arena_bytes + last_plan().output_bytes);
        assert_int_equal(after.in_use - before.in_use, last_plan().output_bytes);
        kiln_release(x);
        kiln_release(y);
    }
    trainer_free(&t);
}

/* ---- Plans ---- */

static void test_describe(void **state)
{
    (void)state;
    skip_if_eager();
    snapshot want;
    memset(&want, 0, sizeof want);
    for (int described = 0; described < 2; described++) {
        trainer t = trainer_new();
        assert_true(kiln_eval());
        kiln_step {
            kiln_tensor *x = core_data(9, KILN_SHAPE(4, FEATURES)), *y = kiln_zeros(KILN_SHAPE(4), KILN_I64);
            assert_true(kiln_backward(kiln_cross_entropy(kiln_linear(x, t.w, t.b), y)));
            for (int again = 0; described && again < 2; again++) {
                char *text = kiln_plan_describe();
                assert_non_null(text);
                const char *const words[] = {"kernels",   "fused", "memory by role", "parameters",
                                             "gradients", "peak",  "FLOP",           "matmul"};
                for (size_t i = 0; i < sizeof words / sizeof *words; i++)
                    if (!strstr(text, words[i]))
                        fail_msg("\"%s\" is not in the description:\n%s", words[i], text);
                char gradients[64]; /* each parameter's, and nothing else */
                snprintf(gradients, sizeof gradients, "gradients %lld B,",
                         (long long)(kiln_numel(t.w) + kiln_numel(t.b)) * 4);
                if (!strstr(text, gradients))
                    fail_msg("\"%s\" is not in the description:\n%s", gradients, text);
                kiln_string_free(text);
            }
            update(t.w, t.mw);
            if (described)
                kiln_string_free(kiln_plan_describe());
            update(t.b, t.mb);
        }
        snapshot now = trainer_state(&t);
        if (described)
            assert_memory_equal(&want, &now, sizeof now);
        else
            want = now;
        trainer_free(&t);
    }
    assert_null(kiln_plan_describe());
    expect_error(KILN_E_STATE, "plan_describe", "nothing is pending");
}

/* The description is of what the end of the step runs. */
static void test_describe_is_what_runs(void **state)
{
    (void)state;
    skip_if_eager();
    kiln_tensor *kept = NULL;
    int64_t before = 0;
    kiln_step {
        kiln_tensor *x = core_data(1, KILN_SHAPE(8)), *a = kiln_exp(x);
        kept = kiln_keep(kiln_neg(kiln_sin(a)));
        kiln_string_free(kiln_plan_describe());
        before = kiln_plan_cache_stats().misses;
    }
    assert_int_equal(kiln_plan_cache_stats().misses, before);
    assert_true(last_plan().replayed);
    assert_int_equal(last_plan().kernels, 1);
    kiln_release(kept);
}

/* How many kernels a step with one kept result takes. */
#define assert_kernels(n, ...)                                                                                         \
    do {                                                                                                               \
        kiln_tensor *kept_ = NULL;                                                                                     \
        kiln_step {                                                                                                    \
            kiln_tensor *x = core_data(1, KILN_SHAPE(6, 6));                                                           \
            kiln_tensor *w = core_data(2, KILN_SHAPE(6, 6)), *b = core_data(3, KILN_SHAPE(6));                         \
            (void)x, (void)w, (void)b;                                                                                 \
            kept_ = kiln_keep(__VA_ARGS__);                                                                            \
        }                                                                                                              \
        if (last_plan().kernels != (n))                                                                                \
            fail_msg("%lld kernels instead of %d for %s", (long long)last_plan().kernels, (n), #__VA_ARGS__);          \
        kiln_release(kept_);                                                                                           \
    } while (0)

static kiln_tensor *with_unused(kiln_tensor *x)
{
    kiln_matmul(x, x);
    kiln_softmax(x, 1);
    return kiln_exp(x);
}

static kiln_tensor *with_common(kiln_tensor *x)
{
    kiln_tensor *a = kiln_matmul(kiln_cast(x, KILN_F64), kiln_cast(x, KILN_F64));
    return kiln_add(a, kiln_matmul(kiln_cast(x, KILN_F64), kiln_cast(x, KILN_F64)));
}

/* A step can be looked at and forgotten: nothing of it ran. */
static void test_discard(void **state)
{
    (void)state;
    skip_if_eager();
    kiln_plan_info info;
    kiln_tensor *w = kiln_keep(kiln_of_f32(((float[]){1, 2, 3}), 3)), *kept = NULL;
    kiln_requires_grad(w, true);
    kiln_step {
        kiln_backward(kiln_sum_all(kept = kiln_keep(kiln_square(w))));
        kiln_no_grad
            kiln_assign(w, kiln_sub(w, kiln_grad_of(w)));
        assert_true(kiln_plan_pending(&info));
        assert_true(info.nodes > 0 && info.kernels > 0 && info.peak_bytes > 0);
        kiln_discard();
    }
    assert_f32(w, 1, 2, 3);
    assert_null(kiln_grad_of(w));
    assert_false(kiln_read(kept, (float[3]){0}, 12));
    expect_error(KILN_E_STATE, NULL, "discarded");
    assert_false(kiln_plan_pending(&info));
    expect_error(KILN_E_STATE, "plan_pending", "nothing is pending");
    kiln_release(kept);
    kiln_release(w);
}

static void test_fusion(void **state)
{
    (void)state;
    skip_if_eager();
    assert_kernels(1, kiln_neg(x));
    assert_kernels(1, kiln_neg(kiln_exp(kiln_sin(kiln_mul(kiln_add(x, w), x)))));
    assert_kernels(1, kiln_relu(kiln_linear(x, w, b)));
    assert_kernels(1, kiln_gelu(kiln_linear(x, w, b)));
    assert_kernels(1, kiln_sum_all(kiln_square(kiln_sub(x, w))));
    assert_kernels(1, kiln_sum(kiln_exp(kiln_add(x, b)), KILN_DIMS(1), false));
    assert_kernels(1, kiln_clone(kiln_exp(x)));
    assert_kernels(1, with_unused(x));
    assert_kernels(2, with_common(x)); /* one cast, one product with the sum behind it */
    assert_kernels(2, kiln_matmul(kiln_exp(x), w));
    assert_kernels(2, kiln_matmul(kiln_relu(kiln_matmul(x, w)), w));
}

/* A parameter that is used by two layers is cast once. */
static void test_one_cast(void **state)
{
    (void)state;
    skip_if_eager();
    kiln_tensor *y = NULL;
    kiln_step {
        kiln_tensor *w = core_data(1, KILN_SHAPE(8, 8)), *x = kiln_cast(core_data(2, KILN_SHAPE(8, 8)), KILN_BF16);
        y = kiln_keep(kiln_matmul(kiln_matmul(x, kiln_cast(w, KILN_BF16)), kiln_cast(w, KILN_BF16)));
    }
    assert_int_equal(last_plan().kernels, 4); /* x, w, and two products */
    kiln_release(y);
}

/* An update in place writes straight to the parameter. */
static void test_update_is_one_kernel(void **state)
{
    (void)state;
    skip_if_eager();
    kiln_scope {
        kiln_tensor *p = core_data(1, KILN_SHAPE(100)), *m = core_data(2, KILN_SHAPE(100)),
                    *g = core_data(3, KILN_SHAPE(100));
        for (int i = 0; i < 3; i++)
            kiln_step {
                kiln_assign(m, kiln_add(kiln_mul_scalar(m, 0.9), g));
                kiln_assign(p, kiln_sub(p, kiln_mul_scalar(m, 0.1)));
            }
        assert_int_equal(last_plan().kernels, 1);
        assert_int_equal(last_plan().output_bytes, 0);
    }
}

/* What has no elements gets its storage, but no kernel, and does not stand in the way of others. */
static void test_empty_results(void **state)
{
    (void)state;
    skip_if_eager();
    kiln_scope {
        kiln_tensor *p = core_data(1, KILN_SHAPE(100)), *e = kiln_zeros(KILN_SHAPE(0), KILN_F32), *receipt = NULL;
        assert_true(kiln_eval());
        for (int i = 0; i < 3; i++) {
            kiln_step {
                kiln_tensor *none = kiln_mul_scalar(kiln_zeros(KILN_SHAPE(3, 0), KILN_F32), 2);
                kiln_assign(e, kiln_add_scalar(e, 1));
                receipt = kiln_keep(kiln_exp(none));
                kiln_assign(p, kiln_sub(p, kiln_mul_scalar(p, 0.1)));
            }
            assert_int_equal(last_plan().kernels, 1); /* the update, which is still in place */
            assert_int_equal(kiln_numel(receipt), 0);
            assert_non_null(core_f32(receipt));
            kiln_release(receipt);
        }
    }
    assert_kernels(0, kiln_matmul(kiln_zeros(KILN_SHAPE(0, 6), KILN_F32), w));
    assert_kernels(1, kiln_sum_all(kiln_exp(kiln_zeros(KILN_SHAPE(0, 6), KILN_F32))));
    kiln_scope
        assert_f32(kiln_sum(kiln_cumsum(kiln_zeros(KILN_SHAPE(0, 2), KILN_F32), 1), KILN_DIMS(0), false), 0, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        core_test(test_bad_label),
        core_test(test_bad_label_keeps_gradients),
        core_test(test_rest_of_failed_step),
        core_test(test_discarded_values),
        core_test(test_pending_before_failed_step),
        core_test(test_looking),
        core_test(test_eval_anywhere),
        core_test(test_replay_allocates_nothing),
        core_test(test_replay_equals_first_run),
        core_test(test_peak),
        core_test(test_describe),
        core_test(test_describe_is_what_runs),
        core_test(test_discard),
        core_test(test_fusion),
        core_test(test_one_cast),
        core_test(test_update_is_one_kernel),
        core_test(test_empty_results),
    };
    return CORE_MAIN(tests);
}
