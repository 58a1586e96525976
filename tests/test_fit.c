/* kiln_fit: it learns, its history says so, callbacks and flags end it, accumulated gradients equal those of large
 * batches, and what goes wrong is said with its place. Saving and resuming: test_fit_resume.c. */
#include <stdlib.h>
#include <unistd.h>
#include "core/alloc.h"
#include "support/core.h"

/* ctest: name=eager env=KILN_EAGER=1 */

/* ---- Data: three clouds in the plane that lines can tell apart ---- */

enum { CLOUDS = 3 };

static kiln_dataset *clouds(int count, int seed)
{
    float x[2 * 1024];
    int64_t y[1024];
    uint32_t state = (uint32_t)seed;
    assert_true(count <= 1024);
    for (int i = 0; i < count; i++) {
        y[i] = i % CLOUDS;
        for (int k = 0; k < 2; k++) {
            state = state * 1664525u + 1013904223u;
            float noise = (float)(int32_t)state / 2147483648.0f;
            x[2 * i + k] = 3 * (k ? sinf(2.1f * (float)y[i]) : cosf(2.1f * (float)y[i])) + noise;
        }
    }
    kiln_dataset *d = NULL;
    kiln_scope
        d = kiln_data_tensors(kiln_tensor_new(x, KILN_F32, KILN_SHAPE(count, 2), KILN_CPU),
                              kiln_tensor_new(y, KILN_I64, KILN_SHAPE(count), KILN_CPU));
    assert_non_null(d);
    return d;
}

static kiln_module *small_net(void)
{
    kiln_manual_seed(3);
    kiln_module *m = kiln_nn_sequential(kiln_nn_linear(2, 8), kiln_nn_tanh(), kiln_nn_linear(8, CLOUDS));
    assert_true(kiln_module_to(m, kiln_default_device()));
    return m;
}

static void assert_same_weights(kiln_module *a, kiln_module *b, double tolerance)
{
    kiln_params pa = kiln_state(a), pb = kiln_state(b);
    assert_int_equal(pa.count, pb.count);
    for (int64_t i = 0; i < pa.count; i++) {
        const float *x = core_f32(pa.tensors[i]), *y = core_f32(pb.tensors[i]);
        for (int64_t k = 0; k < kiln_numel(pa.tensors[i]); k++)
            assert_near(x[k], y[k], tolerance);
    }
}

/* ---- Learning ---- */

static void test_learns(void **state)
{
    (void)state;
    kiln_module *net = small_net();
    kiln_dataset *train = clouds(300, 1), *test = clouds(90, 2);
    kiln_history h = kiln_fit(net, train, .epochs = 12, .batch = 16, .validate = test, .metrics = KILN_ACCURACY);
    assert_true(kiln_ok());
    assert_int_equal(h.count, 12);
    assert_int_equal(h.stop, KILN_STOP_DONE);
    assert_int_equal(h.steps, 12 * 19);
    assert_true(h.first_step > 0);
    assert_true(h.epochs[11].train.loss < h.epochs[0].train.loss / 2);
    assert_true(h.epochs[11].test.accuracy > 0.97);
    int64_t best = 0;
    for (int64_t i = 0; i < h.count; i++) {
        const kiln_epoch *e = &h.epochs[i];
        assert_int_equal(e->epoch, i);
        assert_int_equal(e->train.samples, 300);
        assert_int_equal(e->test.samples, 90);
        assert_true(e->seconds > 0 && e->samples_per_second > 0 && e->data_wait >= 0 && e->data_wait <= 1);
        assert_near(e->lr, 1e-3, 1e-12);
        best = e->test.loss < h.epochs[best].test.loss ? i : best;
    }
    assert_int_equal(h.best, best);
    kiln_result r = kiln_evaluate(net, test, .metrics = KILN_ACCURACY);
    assert_near(r.loss, h.epochs[11].test.loss, 1e-6);
    assert_true(r.accuracy == h.epochs[11].test.accuracy);
    kiln_history_free(&h);
    kiln_data_free(train);
    kiln_data_free(test);
    kiln_module_free(net);
}

/* Under autocast it learns as well, fit's option is the scope, to the bit, and results are those of evaluate under it.
 */
static void test_autocast(void **state)
{
    (void)state;
    kiln_dataset *train = clouds(300, 1), *test = clouds(90, 2);
    kiln_history h[3];
    double loss[2] = {0};
    for (int i = 0; i < 3; i++) { /* none, as an option, as a scope */
        kiln_module *net = small_net();
        kiln_autocast (i == 2 ? KILN_BF16 : KILN_F32)
            h[i] = kiln_fit(net, train, .epochs = 12, .batch = 16, .validate = test, .metrics = KILN_ACCURACY,
                            .autocast = i == 1 ? KILN_BF16 : 0);
        assert_true(kiln_ok());
        assert_int_equal(kiln_autocast_dtype(), KILN_F32);
        assert_true(h[i].epochs[11].test.accuracy > 0.97);
        if (i == 2) {
            kiln_result r = kiln_evaluate(net, test, .autocast = KILN_BF16), plain = kiln_evaluate(net, test);
            assert_near(r.loss, h[i].epochs[11].test.loss, 1e-6);
            loss[0] = r.loss;
            loss[1] = plain.loss;
        }
        kiln_module_free(net);
    }
    assert_true(loss[0] != loss[1]);
    assert_near(loss[0], loss[1], 0.02);
    for (int e = 0; e < 12; e++) {
        assert_true(h[1].epochs[e].train.loss == h[2].epochs[e].train.loss);
        assert_true(h[0].epochs[e].train.loss != h[1].epochs[e].train.loss);
        assert_near(h[0].epochs[e].train.loss, h[1].epochs[e].train.loss, 0.02);
    }
    kiln_module *net = small_net();
    kiln_history refused = kiln_fit(net, train, .autocast = KILN_I64);
    expect_error(KILN_E_DTYPE, "autocast", "i64");
    assert_int_equal(refused.count, 0);
    kiln_module_free(net);
    for (int i = 0; i < 3; i++)
        kiln_history_free(&h[i]);
    kiln_data_free(train);
    kiln_data_free(test);
}

/* Gradients that f16 cannot hold: the loss is small, and adam makes up for that, but not for zeros. */
static kiln_tensor *small_loss(kiln_tensor *output, kiln_tensor *x, kiln_tensor *y, void *context)
{
    (void)x, (void)context;
    return kiln_mul_scalar(kiln_cross_entropy(output, y), 0x1p-30);
}

static void test_scaling_makes_up_for_f16(void **state)
{
    (void)state;
    static const struct {
        kiln_dtype autocast;
        bool scaled, learns;
    } cases[] = {{KILN_F32, false, true}, {KILN_F16, false, false}, {KILN_F16, true, true}, {KILN_BF16, false, true}};
    kiln_dataset *train = clouds(300, 1), *test = clouds(90, 2);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kiln_module *net = small_net();
        kiln_optim *o = kiln_optim_adam(kiln_parameters(net), .lr = 0.01, .eps = 1e-20);
        kiln_scaler *s = kiln_scaler_new(.init_scale = 0x1p30, .disabled = !cases[i].scaled);
        kiln_history h = kiln_fit(net, train, .epochs = 12, .batch = 16, .optim = o, .loss_fn = small_loss,
                                  .autocast = cases[i].autocast, .scaler = s);
        assert_true(kiln_ok());
        kiln_result r = kiln_evaluate(net, test, .metrics = KILN_ACCURACY);
        if (cases[i].learns ? r.accuracy < 0.97 : r.accuracy > 0.7)
            fail_msg("case %zu: accuracy %g", i, r.accuracy);
        assert_true(h.epochs[11].scale > 0);
        kiln_history_free(&h);
        kiln_scaler_free(s);
        kiln_optim_free(o);
        kiln_module_free(net);
    }
    kiln_data_free(train);
    kiln_data_free(test);
}

/* Steps that were left out are told with whose gradient it was. */
static void test_left_out_steps_are_told(void **state)
{
    (void)state;
    kiln_dataset *train = clouds(64, 1);
    for (int large = 0; large < 2; large++) {
        kiln_module *net = small_net();
        kiln_scaler *s = kiln_scaler_new(.init_scale = large ? 0x1p40 : 1, .backoff_factor = 0x1p-20);
        kiln_history h = kiln_fit(net, train, .epochs = 2, .batch = 16, .autocast = KILN_F16, .scaler = s);
        assert_true(kiln_ok());
        kiln_params p = kiln_parameters(net);
        for (int64_t e = 0; e < h.count; e++) {
            const char *culprit = h.epochs[e].culprit;
            bool named = false;
            for (int64_t i = 0; culprit && i < p.count; i++)
                named |= strcmp(p.names[i], culprit) == 0 && h.epochs[e].bad_values <= kiln_numel(p.tensors[i]);
            assert_int_equal(named, large);
            assert_int_equal(h.epochs[e].skipped > 0, large);
            assert_int_equal(h.epochs[e].bad_values > 0, large);
        }
        kiln_history_free(&h);
        kiln_scaler_free(s);
        kiln_module_free(net);
    }
    kiln_data_free(train);
}

/* The same as the loop a user would write, to the bit. */
static void test_equals_explicit_loop(void **state)
{
    (void)state;
    kiln_dataset *train = clouds(70, 1);
    kiln_module *a = small_net();
    kiln_optim *oa = kiln_optim_sgd(kiln_parameters(a), .lr = 0.1, .momentum = 0.9);
    kiln_history h = kiln_fit(a, train, .epochs = 2, .batch = 16, .optim = oa, .seed = 7, .clip_norm = 0.5,
                              .metrics = KILN_ACCURACY | KILN_TOP5);
    kiln_module *b = small_net();
    kiln_optim *ob = kiln_optim_sgd(kiln_parameters(b), .lr = 0.1, .momentum = 0.9);
    kiln_loader *loader =
        kiln_loader_new(train, .batch = 16, .shuffle = true, .seed = 7, .device = kiln_default_device());
    double losses[2] = {0};
    for (int epoch = 0; epoch < 2; epoch++) {
        kiln_batch batch;
        while (kiln_loader_next(loader, &batch))
            kiln_step {
                kiln_zero_grad(ob);
                kiln_tensor *loss = kiln_cross_entropy(kiln_forward(b, batch.x), batch.y);
                kiln_backward(loss);
                kiln_clip_grad_norm(kiln_parameters(b), 0.5);
                kiln_optim_step(ob);
                losses[epoch] += kiln_item(loss) * (double)batch.size / 70;
            }
    }
    assert_same_weights(a, b, 0);
    for (int i = 0; i < 2; i++)
        assert_near(h.epochs[i].train.loss, losses[i], 1e-6);
    assert_int_equal(h.best, 1);
    assert_int_equal(h.epochs[1].test.samples, 0);
    for (int64_t i = 0; i < kiln_parameters(a).count; i++)
        assert_null(kiln_grad_of(kiln_parameters(a).tensors[i]));
    kiln_history_free(&h);
    kiln_loader_free(loader);
    kiln_optim_free(oa);
    kiln_optim_free(ob);
    kiln_module_free(a);
    kiln_module_free(b);
    kiln_data_free(train);
}

/* Steps of one shape share a plan: a long run makes no more plans than a short one. */
static void test_replays(void **state)
{
    (void)state;
    skip_if_eager();
    kiln_module *net = small_net();
    kiln_dataset *train = clouds(256, 1);
    kiln_optim *o = kiln_optim_adam(kiln_parameters(net));
    kiln_history h = kiln_fit(net, train, .batch = 2, .metrics = KILN_ACCURACY, .optim = o);
    kiln_history_free(&h);
    int64_t before = kiln_plan_cache_stats().misses;
    h = kiln_fit(net, train, .batch = 2, .epochs = 2, .metrics = KILN_ACCURACY, .optim = o);
    assert_int_equal(kiln_plan_cache_stats().misses, before);
    kiln_history_free(&h);
    kiln_optim_free(o);
    kiln_data_free(train);
    kiln_module_free(net);
}

/* ---- Accumulation ---- */

/* Small batches put together equal large ones; 108 samples leave a short last window of 8 + 4. */
static void test_accumulation(void **state)
{
    (void)state;
    kiln_dataset *train = clouds(108, 4);
    kiln_module *large = small_net(), *small = small_net();
    kiln_optim *a = kiln_optim_sgd(kiln_parameters(large), .lr = 0.1, .momentum = 0.9);
    kiln_optim *b = kiln_optim_sgd(kiln_parameters(small), .lr = 0.1, .momentum = 0.9);
    kiln_history ha = kiln_fit(large, train, .epochs = 3, .batch = 32, .optim = a, .metrics = KILN_ACCURACY);
    kiln_history hb =
        kiln_fit(small, train, .epochs = 3, .batch = 8, .accumulate = 4, .optim = b, .metrics = KILN_ACCURACY);
    assert_int_equal(ha.steps, 3 * 4);
    assert_int_equal(hb.steps, 3 * 4);
    assert_int_equal(kiln_optim_steps(b), 3 * 4);
    assert_same_weights(large, small, 1e-5);
    for (int i = 0; i < 3; i++)
        assert_near(hb.epochs[i].train.loss, ha.epochs[i].train.loss, 1e-5);
    assert_null(kiln_next_notice()); /* nothing was forgotten */
    kiln_history_free(&ha);
    kiln_history_free(&hb);
    kiln_optim_free(a);
    kiln_optim_free(b);
    kiln_module_free(large);
    kiln_module_free(small);
    kiln_data_free(train);
}

/* ---- Ends ---- */

typedef struct calls {
    int64_t steps, epochs, last_step;
    int64_t stop_at_step, stop_at_epoch;
    volatile sig_atomic_t *flag;
} calls;

static bool on_step(void *context, int64_t epoch, int64_t step)
{
    calls *c = context;
    c->steps++;
    assert_int_equal(step, c->last_step + 1);
    assert_int_equal(epoch, (step - 1) / 10);
    c->last_step = step;
    if (c->flag && step == c->stop_at_step)
        *c->flag = 1;
    return c->flag || step != c->stop_at_step;
}

static bool on_epoch(void *context, const kiln_epoch *e)
{
    calls *c = context;
    assert_int_equal(e->epoch, c->epochs);
    assert_true(e->train.samples == 100);
    return ++c->epochs != c->stop_at_epoch;
}

static kiln_history fit_with(calls *c, int64_t limit)
{
    kiln_module *net = small_net();
    kiln_dataset *train = clouds(100, 1);
    kiln_callback callback = {.step = on_step, .epoch = on_epoch, .context = c};
    kiln_history h = kiln_fit(net, train, .epochs = 3, .batch = 10, .callbacks = &callback, .ncallbacks = 1,
                              .stop = c->flag, .limit = limit);
    assert_true(kiln_ok());
    kiln_data_free(train);
    kiln_module_free(net);
    return h;
}

static void test_callbacks(void **state)
{
    (void)state;
    calls c = {0};
    kiln_history h = fit_with(&c, 0);
    assert_int_equal(c.steps, 30);
    assert_int_equal(c.epochs, 3);
    assert_int_equal(h.stop, KILN_STOP_DONE);
    kiln_history_free(&h);

    c = (calls){.stop_at_step = 13};
    h = fit_with(&c, 0);
    assert_int_equal(h.stop, KILN_STOP_ASKED);
    assert_int_equal(h.steps, 13);
    assert_int_equal(h.count, 1);
    kiln_history_free(&h);

    c = (calls){.stop_at_epoch = 2};
    h = fit_with(&c, 0);
    assert_int_equal(h.stop, KILN_STOP_ASKED);
    assert_int_equal(h.steps, 20);
    assert_int_equal(h.count, 2);
    kiln_history_free(&h);

    volatile sig_atomic_t flag = 0;
    c = (calls){.stop_at_step = 4, .flag = &flag};
    h = fit_with(&c, 0);
    assert_int_equal(h.stop, KILN_STOP_ASKED);
    assert_int_equal(h.steps, 4);
    assert_int_equal(h.count, 0);
    kiln_history_free(&h);
}

static bool no_epoch_check(void *context, const kiln_epoch *e)
{
    *(int64_t *)context = e->train.samples;
    return true;
}

/* A limit of steps in the middle of an epoch: what was trained is looked at. */
static void test_limit(void **state)
{
    (void)state;
    kiln_module *net = small_net();
    kiln_dataset *train = clouds(100, 1);
    int64_t samples = 0;
    kiln_callback callback = {.epoch = no_epoch_check, .context = &samples};
    kiln_history h = kiln_fit(net, train, .epochs = 3, .batch = 10, .limit = 13, .callbacks = &callback,
                              .ncallbacks = 1, .validate = train);
    assert_int_equal(h.stop, KILN_STOP_DONE);
    assert_int_equal(h.steps, 13);
    assert_int_equal(h.count, 2);
    assert_int_equal(samples, 30);
    assert_int_equal(h.epochs[1].test.samples, 100);
    kiln_history_free(&h);
    h = kiln_fit(net, train, .epochs = 3, .batch = 10, .limit = 20);
    assert_int_equal(h.count, 2);
    assert_int_equal(h.steps, 20);
    kiln_history_free(&h);
    kiln_data_free(train);
    kiln_module_free(net);
}

/* A learning rate that makes things worse: the best epoch is the first, and three bad ones are enough. */
static void test_early_stop(void **state)
{
    (void)state;
    kiln_module *net = small_net();
    kiln_dataset *train = clouds(100, 1), *test = clouds(60, 1);
    kiln_optim *o = kiln_optim_sgd(kiln_parameters(net), .lr = 1e-12);
    kiln_history h = kiln_fit(net, train, .epochs = 50, .batch = 10, .optim = o, .validate = test, .early_stop = 3);
    assert_int_equal(h.stop, KILN_STOP_EARLY);
    assert_int_equal(h.count, h.best + 1 + 3);
    assert_true(h.count < 50);
    kiln_history_free(&h);
    kiln_optim_free(o);
    kiln_data_free(train);
    kiln_data_free(test);
    kiln_module_free(net);
}

/* ---- Schedules and averages ---- */

static void test_schedule(void **state)
{
    (void)state;
    kiln_module *net = small_net();
    kiln_dataset *train = clouds(100, 1);
    kiln_optim *o = kiln_optim_sgd(kiln_parameters(net), .lr = 0.8);
    kiln_schedule *s = kiln_schedule_exponential(o, 0.5);
    kiln_history h = kiln_fit(net, train, .epochs = 3, .batch = 50, .optim = o, .schedule = s);
    assert_near(h.epochs[0].lr, 0.4, 1e-12); /* of the epoch's last step */
    assert_near(h.epochs[2].lr, 0.8 / 32, 1e-12);
    kiln_history_free(&h);
    kiln_schedule_free(s);
    kiln_optim_set_lr(o, -1, 0.8);
    s = kiln_schedule_exponential(o, 0.5);
    h = kiln_fit(net, train, .epochs = 3, .batch = 50, .optim = o, .schedule = s, .schedule_epochs = true);
    assert_near(h.epochs[0].lr, 0.8, 1e-12);
    assert_near(h.epochs[2].lr, 0.2, 1e-12);
    kiln_history_free(&h);
    kiln_fit(net, train, .schedule = s);
    expect_error(KILN_E_ARGUMENT, "fit", "schedule");
    kiln_schedule_free(s);
    kiln_optim_free(o);
    kiln_data_free(train);
    kiln_module_free(net);
}

/* Validation looks at the averages, training goes on with the weights. */
static void test_averages(void **state)
{
    (void)state;
    kiln_module *net = small_net();
    kiln_dataset *train = clouds(100, 1);
    kiln_optim *o = kiln_optim_sgd(kiln_parameters(net), .lr = 0.5);
    kiln_ema *e = kiln_ema_new(net, 0.9);
    kiln_history h = kiln_fit(net, train, .epochs = 2, .batch = 50, .optim = o, .ema = e, .validate = train);
    double weights = kiln_evaluate(net, train, .batch = 50).loss;
    assert_true(kiln_ema_swap(e));
    double averages = kiln_evaluate(net, train, .batch = 50).loss;
    assert_near(h.epochs[1].test.loss, averages, 0);
    assert_true(weights < averages); /* which lag behind */
    kiln_history_free(&h);
    kiln_ema_free(e);
    kiln_optim_free(o);
    kiln_data_free(train);
    kiln_module_free(net);
}

/* ---- What goes wrong ---- */

/* Cross-entropy, with something added that is a number only for positive inputs. */
static kiln_tensor *brittle(kiln_tensor *output, kiln_tensor *x, kiln_tensor *y, void *context)
{
    (void)context;
    return kiln_add(kiln_cross_entropy(output, y), kiln_mean_all(kiln_log(x)));
}

static void break_at(float value, const char *message)
{
    enum { N = 12 };
    float x[2 * N];
    int64_t y[N];
    for (int i = 0; i < N; i++) {
        x[2 * i] = x[2 * i + 1] = (float)(i + 1) / N;
        y[i] = i % CLOUDS;
    }
    x[2 * 7] = value;
    kiln_dataset *train = NULL;
    kiln_scope
        train = kiln_data_tensors(kiln_of_f32(x, N, 2), kiln_of_i64(y, N));
    kiln_module *net = small_net();
    kiln_history h = kiln_fit(net, train, .epochs = 3, .batch = 2, .no_shuffle = true, .loss_fn = brittle);
    assert_int_equal(h.stop, KILN_STOP_ERROR);
    assert_int_equal(h.count, 0);
    assert_non_null(strstr(kiln_last_error()->hint, "learning rate"));
    expect_error(KILN_E_STATE, "fit", message);
    kiln_history_free(&h);
    kiln_data_free(train);
    kiln_module_free(net);
}

static void test_nan(void **state)
{
    (void)state;
    break_at(-1, "NaN in epoch 1, between steps 1 and 6");
    break_at(0, "infinite in epoch 1, between steps 1 and 6");
}

static bool read_label(void *context, int64_t index, void *x, void *y)
{
    ((float *)x)[0] = ((float *)x)[1] = (float)index;
    *(int64_t *)y = index == 5 ? 3 : 0;
    if (context && index == 5)
        return false;
    return true;
}

/* A set that lies about its labels, and one that fails to read. */
static void test_bad_samples(void **state)
{
    (void)state;
    kiln_module *net = small_net();
    kiln_data_info info = {
        .name = "liar", .count = 12, .x = {.dtype = KILN_F32, .ndim = 1, .shape = {2}}, .y = {.dtype = KILN_I64}};
    kiln_dataset *liar = kiln_data_generator(info, read_label, NULL);
    kiln_history h = kiln_fit(net, liar, .batch = 2, .no_shuffle = true);
    assert_int_equal(h.stop, KILN_STOP_ERROR);
    assert_non_null(strstr(kiln_last_error()->message, "found in epoch 1 at batch "));
    assert_non_null(strstr(kiln_last_error()->message, "liar"));
    expect_error(KILN_E_INDEX, "cross_entropy", NULL);
    kiln_history_free(&h);
    kiln_data_free(liar);
    kiln_dataset *failing = kiln_data_generator(info, read_label, net);
    h = kiln_fit(net, failing, .batch = 2, .no_shuffle = true);
    assert_int_equal(h.stop, KILN_STOP_ERROR);
    assert_false(kiln_ok());
    kiln_error_clear();
    kiln_history_free(&h);
    kiln_data_free(failing);
    kiln_module_free(net);
}

static void test_errors(void **state)
{
    (void)state;
    kiln_module *net = small_net(), *narrow = kiln_nn_linear(2, 2), *deep = kiln_nn_sequential(kiln_nn_linear(5, 3));
    kiln_dataset *train = clouds(30, 1), *other = NULL;
    kiln_module_to(narrow, kiln_default_device());
    kiln_module_to(deep, kiln_default_device());
    kiln_scope
        other = kiln_data_tensors(core_data(1, KILN_SHAPE(4, 3)), kiln_of_i64(((int64_t[]){0, 1, 2, 0}), 4));
    kiln_history h = kiln_fit(NULL, train);
    assert_int_equal(h.stop, KILN_STOP_ERROR);
    expect_error(KILN_E_ARGUMENT, "fit", "no model");
    kiln_fit(net, NULL);
    expect_error(KILN_E_ARGUMENT, "fit", "no data set");
    kiln_fit(net, train, .epochs = -1);
    expect_error(KILN_E_ARGUMENT, "fit", "epochs");
    kiln_fit(net, train, .clip_norm = NAN);
    expect_error(KILN_E_ARGUMENT, "fit", "clip_norm");
    kiln_fit(net, train, .ncallbacks = 1);
    expect_error(KILN_E_ARGUMENT, "fit", "callbacks");
    kiln_fit(net, train, .resume = true);
    expect_error(KILN_E_ARGUMENT, "fit", "checkpoint");
    kiln_fit(narrow, train);
    expect_error(KILN_E_SHAPE, "fit", "3 classes");
    kiln_fit(net, train, .validate = other);
    expect_error(KILN_E_SHAPE, "fit", "to validate with has inputs f32 [3]");
    kiln_fit(deep, train);
    expect_error(KILN_E_SHAPE, NULL, "f32 [30, 2]");
    kiln_fit(net, train, .batch = 31);
    expect_error(KILN_E_ARGUMENT, NULL, "31");
    kiln_fit(net, train, .log = "/no/such/folder/log.jsonl");
    expect_error(KILN_E_MISSING, "fit", "/no/such/folder/log.jsonl");
    if (access("/dev/full", W_OK) == 0) {
        h = kiln_fit(net, train, .log = "/dev/full");
        assert_int_equal(h.stop, KILN_STOP_ERROR);
        expect_error(KILN_E_IO, "fit", "/dev/full");
    }
    kiln_module_free(net);
    kiln_module_free(narrow);
    kiln_module_free(deep);
    kiln_data_free(train);
    kiln_data_free(other);
}

/* A softmax before cross-entropy, which takes one itself, trains badly and is told of; a log-softmax does no harm. */
static void test_normalised_twice(void **state)
{
    (void)state;
    kiln_dataset *train = clouds(30, 1);
    kiln_module *nets[] = {
        kiln_nn_sequential(kiln_nn_linear(2, 3), kiln_nn_sequential(kiln_nn_softmax(1))),
        kiln_nn_sequential(kiln_nn_linear(2, 3), kiln_nn_log_softmax(1)),
        kiln_nn_sequential(kiln_nn_softmax(1), kiln_nn_linear(2, 3)),
    };
    for (int i = 0; i < 3; i++) {
        kiln_module_to(nets[i], kiln_default_device());
        kiln_history h = kiln_fit(nets[i], train);
        const char *notice = kiln_next_notice();
        assert_true(kiln_ok());
        assert_int_equal(notice && strstr(notice, "ends in a softmax"), i == 0);
        assert_null(kiln_next_notice());
        kiln_history_free(&h);
        kiln_module_free(nets[i]);
    }
    kiln_data_free(train);
}

/* The model is left in the mode it was in; training happens in train mode. */
static void test_modes(void **state)
{
    (void)state;
    kiln_module *net = small_net();
    kiln_dataset *train = clouds(30, 1);
    kiln_module_train(net, false);
    kiln_history h = kiln_fit(net, train, .validate = train);
    assert_false(kiln_module_training(net));
    kiln_history_free(&h);
    kiln_module_train(net, true);
    h = kiln_fit(net, train, .validate = train);
    assert_true(kiln_module_training(net));
    kiln_history_free(&h);
    kiln_data_free(train);
    kiln_module_free(net);
}

static void test_memory_runs_out(void **state)
{
    (void)state;
    kiln_module *net = small_net();
    kiln_dataset *train = clouds(30, 1);
    for (int n = 0, done = 0; !done; n++) {
        kiln_alloc_fail_after(n);
        kiln_history h = kiln_fit(net, train, .batch = 16, .accumulate = 2, .validate = train, .clip_norm = 1,
                                  .metrics = KILN_ACCURACY);
        kiln_alloc_fail_after(-1);
        done = kiln_ok();
        assert_int_equal(h.stop, done ? KILN_STOP_DONE : KILN_STOP_ERROR);
        assert_int_equal(h.count, done ? 1 : h.count);
        kiln_history_free(&h);
        kiln_error_clear();
        assert_true(n < 20000);
    }
    kiln_data_free(train);
    kiln_module_free(net);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        core_test(test_learns),
        core_test(test_equals_explicit_loop),
        core_test(test_replays),
        core_test(test_accumulation),
        core_test(test_callbacks),
        core_test(test_autocast),
        core_test(test_scaling_makes_up_for_f16),
        core_test(test_left_out_steps_are_told),
        core_test(test_limit),
        core_test(test_early_stop),
        core_test(test_schedule),
        core_test(test_averages),
        core_test(test_nan),
        core_test(test_bad_samples),
        core_test(test_errors),
        core_test(test_normalised_twice),
        core_test(test_modes),
        core_test(test_memory_runs_out),
    };
    return CORE_MAIN(tests);
}
