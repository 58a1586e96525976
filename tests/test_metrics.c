/* evaluate and predict: losses and metrics against numbers computed here one by one, outputs in order, modes and random
 * state left as they were, and what does not fit found before anything runs. */
#include "core/alloc.h"
#include "support/core.h"

static double random_number(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return (double)(int32_t)*state / 2147483648.0;
}

enum { ROWS = 460, CLASSES = 7 };

typedef struct scores {
    float x[ROWS * CLASSES];
    int64_t y[ROWS];
} scores;

static void make_scores(scores *s)
{
    uint32_t state = 5;
    for (int i = 0; i < ROWS * CLASSES; i++)
        s->x[i] = (float)(3 * random_number(&state));
    for (int i = 0; i < ROWS; i++)
        s->y[i] = (int64_t)((random_number(&state) + 1) / 2 * CLASSES) % CLASSES;
}

/* A set whose inputs are `dims` with the rows spread over them, and labels to match. */
static kiln_dataset *scores_set(const scores *s, int ndim, const int64_t *shape)
{
    kiln_dataset *d = NULL;
    kiln_scope
        d = kiln_data_tensors(kiln_tensor_new(s->x, KILN_F32, ndim, shape, KILN_CPU),
                              kiln_tensor_new(s->y, KILN_I64, ndim - 1, shape, KILN_CPU));
    assert_non_null(d);
    return d;
}

typedef struct expected {
    double loss, accuracy, top5;
    int64_t confusion[CLASSES * CLASSES];
} expected;

/* Labels of -100 do not count. */
static expected by_hand(const scores *s, int rows)
{
    expected e = {0};
    int counted = 0;
    for (int i = 0; i < rows; i++) {
        if (s->y[i] == -100)
            continue;
        counted++;
        const float *x = s->x + i * CLASSES;
        double sum = 0;
        int better = 0, best = 0;
        for (int c = 0; c < CLASSES; c++) {
            sum += exp((double)x[c]);
            better += x[c] > x[s->y[i]];
            best = x[c] > x[best] ? c : best;
        }
        e.loss += log(sum) - (double)x[s->y[i]];
        e.accuracy += best == s->y[i];
        e.top5 += better < 5;
        e.confusion[s->y[i] * CLASSES + best]++;
    }
    e.loss /= counted;
    e.accuracy /= counted;
    e.top5 /= counted;
    return e;
}

static void check(kiln_result r, const expected *e, int64_t samples)
{
    assert_true(kiln_ok());
    assert_int_equal(r.samples, samples);
    assert_near(r.loss, e->loss, 1e-6);
    assert_near(r.accuracy, e->accuracy, 1e-12);
    assert_near(r.top5, e->top5, 1e-12);
    assert_near(r.perplexity, exp(r.loss), 1e-12);
    assert_true(isnan(r.mae));
    assert_int_equal(r.classes, CLASSES);
    assert_memory_equal(r.confusion, e->confusion, sizeof e->confusion);
    assert_true(r.seconds > 0);
    kiln_result_free(&r);
    assert_null(r.confusion);
}

enum { ALL = KILN_ACCURACY | KILN_TOP5 | KILN_CONFUSION | KILN_PERPLEXITY };

static void test_labels(void **state)
{
    (void)state;
    static scores s;
    make_scores(&s);
    kiln_module *same = kiln_nn_identity();
    kiln_dataset *d = scores_set(&s, KILN_SHAPE(ROWS, CLASSES));
    expected all = by_hand(&s, ROWS), some = by_hand(&s, 33);
    check(kiln_evaluate(same, d, .metrics = ALL), &all, ROWS);
    check(kiln_evaluate(same, d, .metrics = ALL, .batch = 3), &all, ROWS); /* many batches, the last one short */
    check(kiln_evaluate(same, d, .metrics = ALL, .batch = 7, .workers = 2), &all, ROWS);
    check(kiln_evaluate(same, d, .metrics = ALL, .batch = 8, .limit = 33), &some, 33);
    kiln_result r = kiln_evaluate(same, d);
    assert_near(r.loss, all.loss, 1e-6);
    assert_true(isnan(r.accuracy) && isnan(r.top5) && isnan(r.perplexity) && !r.confusion && r.classes == 0);
    kiln_data_free(d);
    kiln_module_free(same);
}

/* Labels of -100 are left out of everything, whole batches of them included. */
static void test_ignored_labels(void **state)
{
    (void)state;
    static scores s;
    make_scores(&s);
    for (int i = 0; i < ROWS; i++)
        s.y[i] = i < 40 || i % 3 == 1 ? -100 : s.y[i];
    kiln_module *same = kiln_nn_identity();
    expected all = by_hand(&s, ROWS), some = by_hand(&s, 50);
    kiln_dataset *d = scores_set(&s, KILN_SHAPE(ROWS, CLASSES));
    check(kiln_evaluate(same, d, .metrics = ALL), &all, ROWS);
    check(kiln_evaluate(same, d, .metrics = ALL, .batch = 7, .workers = 2), &all, ROWS);
    check(kiln_evaluate(same, d, .metrics = ALL, .batch = 8, .limit = 50), &some, 50);
    kiln_data_free(d);
    d = scores_set(&s, KILN_SHAPE(ROWS / 10, 5, 2, CLASSES));
    check(kiln_evaluate(same, d, .metrics = ALL, .batch = 3), &all, ROWS / 10);
    kiln_data_free(d);
    kiln_module_free(same);
}

/* [N, length, classes]: every place counts as one. */
static void test_sequences(void **state)
{
    (void)state;
    static scores s;
    make_scores(&s);
    kiln_module *same = kiln_nn_identity();
    kiln_dataset *d = scores_set(&s, KILN_SHAPE(ROWS / 10, 5, 2, CLASSES));
    expected all = by_hand(&s, ROWS);
    check(kiln_evaluate(same, d, .metrics = ALL, .batch = 4), &all, ROWS / 10);
    kiln_data_free(d);
    kiln_module_free(same);
}

static void test_few_classes(void **state)
{
    (void)state;
    kiln_module *same = kiln_nn_identity();
    kiln_dataset *d = NULL;
    kiln_scope
        d = kiln_data_tensors(kiln_of_f32(((float[]){1, 2, 3, 3, 2, 1}), 2, 3), kiln_of_i64(((int64_t[]){0, 2}), 2));
    kiln_result r = kiln_evaluate(same, d, .metrics = KILN_ACCURACY | KILN_TOP5);
    assert_true(r.accuracy == 0);
    assert_true(r.top5 == 1);
    kiln_data_free(d);
    kiln_module_free(same);
}

static kiln_tensor *twice_mae(kiln_tensor *output, kiln_tensor *x, kiln_tensor *y, void *context)
{
    (void)x;
    return kiln_mul_scalar(kiln_mean_all(kiln_abs(kiln_sub(output, y))), *(double *)context);
}

static void test_regression(void **state)
{
    (void)state;
    enum { N = 11, WIDTH = 3 };
    float x[N * WIDTH], y[N * WIDTH];
    uint32_t seed = 9;
    double mse = 0, mae = 0, huber = 0, square = 0;
    for (int i = 0; i < N * WIDTH; i++) {
        x[i] = (float)(2 * random_number(&seed));
        y[i] = (float)(2 * random_number(&seed));
        double d = fabs((double)x[i] - (double)y[i]);
        mse += d * d / (N * WIDTH);
        mae += d / (N * WIDTH);
        huber += (d < 1 ? d * d / 2 : d - 0.5) / (N * WIDTH);
        square += ((double)x[i] - (double)x[i]) * (double)x[i];
    }
    kiln_module *same = kiln_nn_identity();
    kiln_dataset *d = NULL, *unlabelled = NULL;
    kiln_scope {
        d = kiln_data_tensors(kiln_of_f32(x, N, WIDTH), kiln_of_f32(y, N, WIDTH));
        unlabelled = kiln_data_tensors(kiln_of_f32(x, N, WIDTH), NULL);
    }
    kiln_result r = kiln_evaluate(same, d, .loss = KILN_MSE, .metrics = KILN_MAE, .batch = 4);
    assert_near(r.loss, mse, 1e-6);
    assert_near(r.mae, mae, 1e-6);
    assert_near(kiln_evaluate(same, d, .loss = KILN_L1, .batch = 4).loss, mae, 1e-6);
    assert_near(kiln_evaluate(same, d, .loss = KILN_HUBER, .batch = 4).loss, huber, 1e-6);
    r = kiln_evaluate(same, d, .loss_fn = twice_mae, .loss_context = &(double){2}, .batch = 4);
    assert_near(r.loss, 2 * mae, 1e-6);
    r = kiln_evaluate(same, unlabelled, .loss = KILN_RECONSTRUCTION, .metrics = KILN_MAE);
    assert_near(r.loss, square, 0); /* the identity reconstructs */
    assert_near(r.mae, 0, 0);
    assert_true(kiln_ok());

    kiln_evaluate(same, unlabelled, .loss = KILN_MSE);
    expect_error(KILN_E_ARGUMENT, "evaluate", "no targets");
    kiln_evaluate(same, d, .loss = KILN_MSE, .metrics = KILN_ACCURACY);
    expect_error(KILN_E_ARGUMENT, "evaluate", "accuracy");
    kiln_data_free(d);
    kiln_data_free(unlabelled);
    kiln_module_free(same);
}

static void test_yes_or_no(void **state)
{
    (void)state;
    kiln_module *same = kiln_nn_identity();
    kiln_dataset *d = NULL;
    float x[] = {2, -1, 0.5f, -3, 1, 1}, y[] = {1, 0, 0, 1, 1, 1};
    double loss = 0;
    for (int i = 0; i < 6; i++)
        loss += log1p(exp(y[i] > 0 ? -(double)x[i] : (double)x[i])) / 6;
    kiln_scope
        d = kiln_data_tensors(kiln_of_f32(x, 3, 2), kiln_of_f32(y, 3, 2));
    kiln_result r = kiln_evaluate(same, d, .loss = KILN_BCE_LOGITS, .metrics = KILN_ACCURACY, .batch = 2);
    assert_near(r.loss, loss, 1e-6);
    assert_near(r.accuracy, 4.0 / 6, 1e-12);
    kiln_data_free(d);
    kiln_module_free(same);
}

/* ---- What stays as it was ---- */

static void test_modes(void **state)
{
    (void)state;
    kiln_module *net = kiln_nn_sequential(kiln_nn_linear(CLASSES, 8), kiln_nn_batch_norm(8), kiln_nn_dropout(0.5),
                                          kiln_nn_linear(8, CLASSES));
    static scores s;
    make_scores(&s);
    kiln_dataset *d = scores_set(&s, KILN_SHAPE(ROWS, CLASSES));
    kiln_module_to(net, kiln_default_device());
    kiln_module_train(kiln_module_child(net, "1"), false);
    kiln_random_state before = kiln_random_get();
    double first = kiln_evaluate(net, d).loss;
    assert_true(kiln_evaluate(net, d, .batch = 32).loss > 0);
    assert_near(kiln_evaluate(net, d).loss, first, 0); /* no dropout, nothing learnt */
    kiln_scope
        assert_non_null(kiln_predict(net, d, 0));
    assert_true(kiln_module_training(net));
    assert_false(kiln_module_training(kiln_module_child(net, "1")));
    assert_true(kiln_module_training(kiln_module_child(net, "2")));
    kiln_random_state after = kiln_random_get();
    assert_true(after.seed == before.seed && after.offset == before.offset);
    kiln_module_train(net, false);
    kiln_evaluate(net, d);
    assert_false(kiln_module_training(net));
    assert_true(kiln_ok());
    kiln_data_free(d);
    kiln_module_free(net);
}

static void test_predict(void **state)
{
    (void)state;
    static scores s;
    make_scores(&s);
    kiln_module *net = kiln_nn_sequential(kiln_nn_linear(CLASSES, 3), kiln_nn_dropout(0.9));
    kiln_module_to(net, kiln_default_device());
    kiln_dataset *d = scores_set(&s, KILN_SHAPE(ROWS, CLASSES));
    kiln_scope {
        kiln_tensor *all = kiln_predict(net, d, 64);
        assert_non_null(all);
        assert_int_equal(kiln_device_of(all), KILN_CPU);
        assert_int_equal(kiln_ndim(all), 2);
        assert_int_equal(kiln_size(all, 0), ROWS);
        assert_int_equal(kiln_size(all, 1), 3);
        kiln_module_train(net, false);
        kiln_tensor *x = kiln_tensor_new(s.x, KILN_F32, KILN_SHAPE(ROWS, CLASSES), kiln_default_device());
        kiln_tensor *want = kiln_forward(net, x);
        const float *a = core_f32(all), *b = core_f32(want);
        for (int i = 0; i < ROWS * 3; i++)
            assert_near(a[i], b[i], 1e-6);
    }
    kiln_data_free(d);
    kiln_module_free(net);
}

/* A model that hands its input back: the batches stay the loader's. */
static void test_predict_identity(void **state)
{
    (void)state;
    static scores s;
    make_scores(&s);
    kiln_module *net = kiln_nn_sequential(kiln_nn_identity(), kiln_nn_dropout(0.5));
    kiln_dataset *d = scores_set(&s, KILN_SHAPE(ROWS, CLASSES));
    kiln_scope {
        kiln_tensor *all = kiln_predict(net, d, 64);
        assert_non_null(all);
        assert_memory_equal(core_f32(all), s.x, ROWS * CLASSES * sizeof *s.x);
    }
    kiln_data_free(d);
    kiln_module_free(net);
}

/* ---- What does not fit ---- */

static void test_errors(void **state)
{
    (void)state;
    static scores s;
    make_scores(&s);
    kiln_dataset *d = scores_set(&s, KILN_SHAPE(ROWS, CLASSES));
    kiln_module *narrow = kiln_nn_linear(CLASSES, 5), *other = kiln_nn_linear(9, CLASSES);
    kiln_result r = kiln_evaluate(NULL, d);
    assert_true(isnan(r.loss));
    expect_error(KILN_E_ARGUMENT, "evaluate", "no model");
    kiln_evaluate(narrow, NULL);
    expect_error(KILN_E_ARGUMENT, "evaluate", "no data set");
    assert_null(kiln_predict(narrow, NULL, 0));
    expect_error(KILN_E_ARGUMENT, "predict", "no data set");
    kiln_evaluate(narrow, d);
    expect_error(KILN_E_SHAPE, "evaluate", "7 classes");
    kiln_evaluate(other, d);
    assert_int_equal(kiln_last_error()->code, KILN_E_SHAPE);
    assert_non_null(strstr(kiln_last_error()->message, "[256, 7]"));
    kiln_evaluate(narrow, d); /* the first error stays */
    assert_non_null(strstr(kiln_last_error()->message, "[256, 7]"));
    kiln_error_clear();
    kiln_evaluate(narrow, d, .batch = -1);
    expect_error(KILN_E_ARGUMENT, "evaluate", "negative");
    kiln_evaluate(narrow, d, .metrics = 1 << 12);
    expect_error(KILN_E_SHAPE, "evaluate", NULL);
    kiln_data_free(d);
    kiln_module_free(narrow);
    kiln_module_free(other);
}

/* Every allocation fails once; nothing is lost, and each failure is an error. */
static void test_memory_runs_out(void **state)
{
    (void)state;
    static scores s;
    make_scores(&s);
    kiln_dataset *d = scores_set(&s, KILN_SHAPE(ROWS, CLASSES));
    kiln_module *net = kiln_nn_linear(CLASSES, CLASSES);
    kiln_module_to(net, kiln_default_device());
    for (int n = 0, done = 0; !done; n++) {
        kiln_alloc_fail_after(n);
        kiln_result r = kiln_evaluate(net, d, .metrics = ALL, .batch = 200);
        kiln_alloc_fail_after(-1);
        done = kiln_ok();
        assert_true(done || (kiln_last_error()->code == KILN_E_MEMORY && isnan(r.loss)));
        kiln_result_free(&r);
        kiln_error_clear();
        assert_true(n < 10000);
    }
    for (int n = 0, done = 0; !done; n++) {
        kiln_scope {
            kiln_alloc_fail_after(n);
            kiln_tensor *all = kiln_predict(net, d, 200);
            kiln_alloc_fail_after(-1);
            done = all != NULL;
            assert_true(done == kiln_ok());
        }
        kiln_error_clear();
    }
    kiln_data_free(d);
    kiln_module_free(net);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        core_test(test_labels),      core_test(test_ignored_labels),  core_test(test_sequences),
        core_test(test_few_classes), core_test(test_regression),      core_test(test_yes_or_no),
        core_test(test_modes),       core_test(test_predict),         core_test(test_predict_identity),
        core_test(test_errors),      core_test(test_memory_runs_out),
    };
    return CORE_MAIN(tests);
}
