/* Accumulation in kiln_fit equals the large batch, by the labels that count: those of -100 are left out of the loss,
 * its gradient and the metrics, however they are spread over the batches of a window. */
#include "support/fit.h"
#include "support/files.h"
#include "support/golden.h"
#include "support/where.h"

/* ctest: name=eager env=KILN_EAGER=1 */

enum { EPOCHS = 3, METRICS = KILN_ACCURACY | KILN_TOP5 | KILN_PERPLEXITY };

typedef struct trained {
    kiln_module *net;
    kiln_history history;
} trained;

static trained train(fit_kind kind, kiln_dataset *data, int64_t batch, int64_t accumulate, double clip)
{
    trained t = {.net = fit_net(kind, 0)};
    kiln_optim *sgd = kiln_optim_sgd(kiln_parameters(t.net), .lr = 0.2, .momentum = 0.9);
    t.history = kiln_fit(t.net, data, .epochs = EPOCHS, .batch = batch, .accumulate = accumulate, .optim = sgd,
                         .metrics = METRICS, .validate = data, .seed = 4, .clip_norm = clip);
    if (!kiln_ok())
        fail_msg("%s", kiln_last_error()->message);
    assert_null(kiln_next_notice());
    kiln_optim_free(sgd);
    return t;
}

static void end(trained *t)
{
    kiln_history_free(&t->history);
    kiln_module_free(t->net);
}

/* 44 samples: windows of 16, 16 and 12, the last one of 4 + 4 + 4. */
static void test_equals_large_batch(void **state)
{
    (void)state;
    for (fit_kind kind = 0; kind < FIT_KINDS; kind++)
        for (int ignored = 0; ignored <= 6; ignored += 3)
            for (int clip = 0; clip < 2; clip++) {
                kiln_dataset *data = fit_data(kind, ignored);
                trained large = train(kind, data, 16, 1, clip * 0.1), small = train(kind, data, 4, 4, clip * 0.1);
                assert_int_equal(large.history.steps, EPOCHS * 3);
                fit_assert_same_weights(large.net, small.net, 1e-5);
                fit_assert_same_history(&large.history, &small.history, 1e-5);
                end(&large);
                end(&small);
                kiln_data_free(data);
            }
}

/* ---- PyTorch's cross_entropy(ignore_index=-100) ---- */

static kiln_tensor *tensor_of(const golden_tensor *g)
{
    kiln_tensor *t = kiln_tensor_new(g->data, KILN_F64, g->ndim, g->shape, KILN_CPU);
    return kiln_cast(t, g->dtype);
}

static void set(kiln_tensor *t, const golden_tensor *g)
{
    assert_true(kiln_assign(t, kiln_to(tensor_of(g), kiln_default_device())));
}

static void assert_is(kiln_tensor *t, const golden_tensor *want)
{
    const float *got = core_f32(t);
    assert_int_equal(kiln_numel(t), want->count);
    for (int64_t i = 0; i < want->count; i++)
        assert_near(got[i], want->data[i], 1e-5);
}

static void check_golden(const golden_case *c, int64_t parts)
{
    kiln_dataset *data = NULL;
    kiln_module *net = kiln_nn_linear(6, 9);
    assert_true(kiln_module_to(net, kiln_default_device()));
    kiln_scope {
        data = kiln_data_tensors(tensor_of(&c->in[0]), tensor_of(&c->in[1]));
        kiln_no_grad {
            set(kiln_module_tensor(net, "weight"), &c->in[2]);
            set(kiln_module_tensor(net, "bias"), &c->in[3]);
        }
    }
    kiln_optim *sgd = kiln_optim_sgd(kiln_parameters(net), .lr = c->floats[0]);
    kiln_history h = kiln_fit(net, data, .epochs = c->ints[0], .batch = c->ints[1] / parts, .accumulate = parts,
                              .optim = sgd, .metrics = METRICS, .no_shuffle = true);
    assert_true(kiln_ok());
    assert_is(kiln_module_tensor(net, "weight"), &c->out[0]);
    assert_is(kiln_module_tensor(net, "bias"), &c->out[1]);
    for (int64_t e = 0; e < c->ints[0]; e++) {
        const double *want = c->out[2].data + 3 * e;
        assert_near(h.epochs[e].train.loss, want[0], 1e-5);
        assert_near(h.epochs[e].train.accuracy, want[1], 1e-6);
        assert_near(h.epochs[e].train.top5, want[2], 1e-6);
        assert_near(h.epochs[e].train.perplexity, exp(want[0]), 1e-4);
    }
    kiln_history_free(&h);
    kiln_optim_free(sgd);
    kiln_module_free(net);
    kiln_data_free(data);
}

static void test_golden(void **state)
{
    (void)state;
    golden_file f;
    golden_case c;
    int cases = 0;
    assert_true(golden_open(&f, test_file("golden/accumulate.txt")));
    for (int more; (more = golden_next(&f, &c)) != 0; golden_case_free(&c), cases++) {
        assert_int_equal(more, 1);
        for (int64_t parts = 1; parts <= 4; parts *= 2)
            check_golden(&c, parts);
    }
    golden_close(&f);
    assert_int_equal(cases, 2);
}

/* ---- The loops of docs/from-pytorch.md ---- */

static void accumulate_by_samples(kiln_loader *loader, kiln_module *model, kiln_optim *sgd)
{
    kiln_batch b;
    int64_t samples = 0, batches = kiln_loader_batches(loader);
    while (kiln_loader_next(loader, &b)) {
        if (b.index % 4 == 0) {
            samples = 0;
            for (int64_t i = b.index; i < b.index + 4 && i < batches; i++)
                samples += kiln_loader_batch_size(loader, i);
        }
        kiln_step {
            kiln_tensor *loss = kiln_cross_entropy(kiln_forward(model, b.x), b.y);
            kiln_backward(kiln_mul_scalar(loss, (double)b.size / (double)samples));
            if (b.index % 4 == 3 || b.index + 1 == batches) {
                kiln_optim_step(sgd);
                kiln_zero_grad(sgd);
            }
        }
    }
}

static void accumulate_by_labels(kiln_loader *loader, kiln_module *model, kiln_optim *sgd)
{
    kiln_batch b;
    while (kiln_loader_next(loader, &b)) {
        kiln_tensor *count = NULL;
        kiln_step
            count = kiln_keep(kiln_sum_all(kiln_cast(kiln_ne_scalar(b.y, -100), KILN_F32)));
        for (int64_t i = 0; i < b.size; i += 8)
            kiln_step {
                kiln_tensor *x = kiln_slice(b.x, 0, i, i + 8, 1), *y = kiln_slice(b.y, 0, i, i + 8, 1);
                kiln_tensor *sum = kiln_cross_entropy(kiln_forward(model, x), y, .reduction = KILN_SUM);
                kiln_backward(kiln_div(sum, count));
                if (i + 8 >= b.size) {
                    kiln_optim_step(sgd);
                    kiln_zero_grad(sgd);
                }
            }
        kiln_release(count);
    }
}

static void test_explicit_loops(void **state)
{
    (void)state;
    for (int by_labels = 0; by_labels < 2; by_labels++) {
        kiln_dataset *data = fit_data(FIT_CNN, by_labels ? 3 : 0);
        trained large = train(FIT_CNN, data, 16, 1, 0);
        kiln_module *net = fit_net(FIT_CNN, 0);
        kiln_optim *sgd = kiln_optim_sgd(kiln_parameters(net), .lr = 0.2, .momentum = 0.9);
        kiln_loader *loader = kiln_loader_new(data, .batch = by_labels ? 16 : 4, .shuffle = true, .seed = 4,
                                              .device = kiln_default_device());
        for (int i = 0; i < EPOCHS; i++)
            (by_labels ? accumulate_by_labels : accumulate_by_samples)(loader, net, sgd);
        assert_true(kiln_ok());
        fit_assert_same_weights(large.net, net, 1e-5);
        kiln_loader_free(loader);
        kiln_optim_free(sgd);
        kiln_module_free(net);
        end(&large);
        kiln_data_free(data);
    }
}

/* ---- Where labels come from ---- */

typedef struct row {
    float x[4];
    int32_t y;
} row;

static bool read_row(void *context, int64_t index, void *x, void *y)
{
    const row *r = (const row *)context + index;
    memcpy(x, r->x, sizeof r->x);
    memcpy(y, &r->y, sizeof r->y);
    return true;
}

/* A function's samples, where nobody can look before, and a range of a set: the same as the tensors. */
static void test_sources(void **state)
{
    (void)state;
    enum { ROWS = 24 };
    row rows[ROWS];
    float x[ROWS * 4];
    int64_t y[ROWS];
    for (int i = 0; i < ROWS; i++) {
        rows[i].y = (int32_t)(y[i] = i % 3 == 1 || i < 4 ? -100 : i % 5);
        for (int k = 0; k < 4; k++)
            x[4 * i + k] = rows[i].x[k] = sinf((float)(4 * i + k));
    }
    kiln_data_info info = {.count = ROWS, .x = {KILN_F32, 1, {4}}, .y = {KILN_I32, 0, {0}}, .classes = 5};
    kiln_dataset *sets[4] = {NULL, kiln_data_generator(info, read_row, rows)};
    info.classes = 0; /* not checked, so not known either */
    sets[2] = kiln_data_generator(info, read_row, rows);
    kiln_scope
        sets[0] = kiln_data_tensors(kiln_of_f32(x, ROWS, 4), kiln_of_i64(y, ROWS));
    sets[3] = kiln_data_range(sets[0], 0, ROWS);
    double loss[4], accuracy[4];
    for (int i = 0; i < 4; i++) {
        kiln_manual_seed(2);
        kiln_module *net = kiln_nn_linear(4, 5);
        kiln_module_to(net, kiln_default_device());
        kiln_history h = kiln_fit(net, sets[i], .epochs = 2, .batch = 4, .accumulate = 2, .metrics = KILN_ACCURACY);
        kiln_result r = kiln_evaluate(net, sets[i], .metrics = KILN_ACCURACY);
        assert_true(kiln_ok());
        loss[i] = h.epochs[1].train.loss + r.loss;
        accuracy[i] = h.epochs[1].train.accuracy + r.accuracy;
        assert_true(loss[i] == loss[0] && accuracy[i] == accuracy[0]);
        kiln_history_free(&h);
        kiln_module_free(net);
    }
    for (int i = 3; i >= 0; i--)
        kiln_data_free(sets[i]);
}

/* ---- Nothing that counts ---- */

/* A window without a label that counts has gradients of 0, and the average of nothing is none. */
static void test_nothing_counts(void **state)
{
    (void)state;
    for (int64_t accumulate = 1; accumulate <= 2; accumulate++) {
        int64_t y[12];
        for (int i = 0; i < 12; i++)
            y[i] = -100;
        y[11] = 1; /* the last window counts one */
        kiln_dataset *data = NULL;
        kiln_scope
            data = kiln_data_tensors(core_data(1, KILN_SHAPE(12, 4)), kiln_of_i64(y, 12));
        kiln_manual_seed(1);
        kiln_module *net = kiln_nn_linear(4, 2);
        kiln_manual_seed(1);
        kiln_module *before = kiln_nn_linear(4, 2);
        kiln_module_to(net, kiln_default_device());
        kiln_module_to(before, kiln_default_device());
        kiln_optim *sgd = kiln_optim_sgd(kiln_parameters(net), .lr = 1);
        kiln_history h = kiln_fit(net, data, .batch = 4 / accumulate, .accumulate = accumulate, .optim = sgd,
                                  .no_shuffle = true, .limit = 2, .metrics = KILN_ACCURACY);
        assert_true(kiln_ok());
        fit_assert_same_weights(net, before, 0);
        assert_true(isnan(h.epochs[0].train.loss) && isnan(h.epochs[0].train.accuracy));
        kiln_history_free(&h);
        h = kiln_fit(net, data, .batch = 4 / accumulate, .accumulate = accumulate, .optim = sgd, .no_shuffle = true);
        assert_true(kiln_ok());
        assert_true(isfinite(h.epochs[0].train.loss));
        assert_true(core_f32(kiln_module_tensor(net, "bias"))[0] != core_f32(kiln_module_tensor(before, "bias"))[0]);
        kiln_history_free(&h);
        kiln_optim_free(sgd);
        kiln_module_free(net);
        kiln_module_free(before);
        kiln_data_free(data);
    }
}

/* A loss of one's own is the mean over the samples, and counts by them; the metrics are those of the labels that count.
 */
static kiln_tensor *own_loss(kiln_tensor *output, kiln_tensor *x, kiln_tensor *y, void *context)
{
    (void)x, (void)y, (void)context;
    return kiln_mean_all(kiln_square(output));
}

static void test_own_loss(void **state)
{
    (void)state;
    kiln_dataset *data = fit_data(FIT_MLP, 3);
    kiln_module *net[2] = {fit_net(FIT_MLP, 0), fit_net(FIT_MLP, 0)};
    kiln_history h[2];
    for (int i = 0; i < 2; i++) {
        kiln_optim *sgd = kiln_optim_sgd(kiln_parameters(net[i]), .lr = 0.2);
        h[i] = kiln_fit(net[i], data, .epochs = 2, .batch = i ? 4 : 16, .accumulate = i ? 4 : 1, .optim = sgd,
                        .loss_fn = own_loss, .metrics = METRICS);
        assert_true(kiln_ok());
        kiln_optim_free(sgd);
    }
    fit_assert_same_weights(net[0], net[1], 1e-5);
    fit_assert_same_history(&h[0], &h[1], 1e-5);
    kiln_result mine = kiln_evaluate(net[0], data, .loss_fn = own_loss, .metrics = KILN_ACCURACY);
    kiln_result usual = kiln_evaluate(net[0], data, .metrics = KILN_ACCURACY);
    assert_true(mine.accuracy == usual.accuracy && mine.loss != usual.loss);
    for (int i = 0; i < 2; i++) {
        kiln_history_free(&h[i]);
        kiln_module_free(net[i]);
    }
    kiln_data_free(data);
}

/* ---- In the middle of an epoch ---- */

static kiln_history go_on(kiln_module *net, kiln_dataset *data, const char *folder, int64_t limit)
{
    kiln_optim *sgd = kiln_optim_sgd(kiln_parameters(net), .lr = 0.2, .momentum = 0.9);
    kiln_history h = kiln_fit(net, data, .epochs = 2, .batch = 4, .accumulate = 3, .optim = sgd, .metrics = METRICS,
                              .checkpoint = folder, .resume = true, .limit = limit);
    assert_true(kiln_ok());
    kiln_optim_free(sgd);
    return h;
}

static void test_resumes(void **state)
{
    (void)state;
    kiln_dataset *data = fit_data(FIT_LSTM, 3);
    kiln_module *whole = fit_net(FIT_LSTM, 0), *parts = fit_net(FIT_LSTM, 0);
    kiln_history a = go_on(whole, data, files_path("whole"), 0);
    for (int64_t limit = 1; limit < a.steps; limit++) {
        kiln_history some = go_on(parts, data, files_path("parts"), limit);
        kiln_history_free(&some);
    }
    kiln_history b = go_on(parts, data, files_path("parts"), 0);
    fit_assert_same_weights(whole, parts, 0);
    fit_assert_same_history(&a, &b, 0);
    for (int i = 0; i < 2; i++)
        assert_true(a.epochs[i].train.loss == b.epochs[i].train.loss);
    kiln_history_free(&a);
    kiln_history_free(&b);
    kiln_module_free(whole);
    kiln_module_free(parts);
    kiln_data_free(data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        core_test(test_equals_large_batch), core_test(test_golden),
        core_test(test_explicit_loops),     core_test(test_sources),
        core_test(test_nothing_counts),     core_test(test_own_loss),
        files_test(test_resumes),
    };
    return CORE_MAIN(tests);
}
