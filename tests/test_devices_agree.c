/* Training comes out the same wherever it runs: whole steps of small networks, of every optimizer, fed by the loader
 * and by kiln_fit, on the devices after the first and on the first; then steps that fail in the middle, and steps whose
 * sizes lead to kernels that small networks do not need. Rounding may differ, so losses and weights are near each
 * other; where the CPU's kernels run they are the same to the bit.
 *
 * It is small enough for checkers under which kernels take a hundred times as long. KILN_TEST_DEVICES and
 * KILN_TEST_SHARD: see support/devices.h and support/suite.h. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "models.h"
#include "support/optim_with.h"
#include "support/devices.h"
#include "support/skip.h"
#include "support/suite.h"

enum { STEPS = 3, BATCH = 6, SIDE = 28, LENGTH = 9, VOCABULARY = 64, MOST_STEPS = 16 };

static kiln_device devices[TEST_DEVICES];
static int ndevices;

/* ---- What a run leaves ---- */

typedef struct trained {
    double loss[MOST_STEPS];
    int nlosses;
    float *before, *after; /* all parameters, one after the other */
    int64_t count;
} trained;

static void trained_free(trained *t)
{
    free(t->before);
    free(t->after);
    memset(t, 0, sizeof *t);
}

static float *read_parameters(kiln_module *m, int64_t *count)
{
    kiln_params p = kiln_parameters(m);
    int64_t n = 0, at = 0;
    for (int64_t i = 0; i < p.count; i++)
        n += kiln_numel(p.tensors[i]);
    float *all = calloc((size_t)n + 1, sizeof *all);
    for (int64_t i = 0; i < p.count; i++) {
        int64_t size = kiln_numel(p.tensors[i]);
        if (!kiln_read(p.tensors[i], all + at, (size_t)size * sizeof *all))
            fail_msg("%s cannot be read: %s", p.names[i], kiln_last_error()->message);
        at += size;
    }
    *count = n;
    return all;
}

/* How far b's change of the weights is from a's, as a share of a's. */
static double difference(const trained *a, const trained *b)
{
    double apart = 0, change = 0;
    for (int64_t i = 0; i < a->count; i++) {
        apart += pow((double)b->after[i] - a->after[i], 2);
        change += pow((double)a->after[i] - a->before[i], 2);
    }
    return change > 0 ? sqrt(apart / change) : apart > 0;
}

static void assert_agree(const char *what, const trained *first, const trained *other, kiln_device device)
{
    bool same = has_cpu_bits(device);
    assert_int_equal(first->count, other->count);
    assert_int_equal(first->nlosses, other->nlosses);
    for (int i = 0; i < first->nlosses; i++) {
        double off = fabs(other->loss[i] - first->loss[i]) / (1 + fabs(first->loss[i]));
        if (!(off <= (same ? 0 : 1e-4)))
            fail_msg("%s on %s: loss %.7g after %d steps, on the first device %.7g", what, kiln_device_name(device),
                     other->loss[i], i, first->loss[i]);
    }
    double off = difference(first, other);
    if (!(off <= (same ? 0 : 0.02)))
        fail_msg("%s on %s: the weights' change is off by %.2g of it", what, kiln_device_name(device), off);
    print_message("%s on %s: weights' change within %.1e of it\n", what, kiln_device_name(device), off);
}

/* ---- Steps ---- */

typedef struct work {
    const char *name, *model, *optimizer;
    kiln_optim_options options;
    double clip;
    bool scaled; /* by a gradient scaler; a step in the middle is left out */
} work;

static kiln_module *build(const char *text, kiln_device device, bool *tokens)
{
    char why[200];
    model_options options = {0};
    const model_entry *entry = model_find(text, &options, why, sizeof why);
    if (!entry)
        fail_msg("%s: %s", text, why);
    kiln_module *m = NULL;
    kiln_manual_seed(7);
    kiln_on_device (KILN_CPU) /* the same weights everywhere */
        m = entry->build(options);
    if (!m || !kiln_module_to(m, device))
        fail_msg("%s: %s", text, kiln_last_error()->message);
    *tokens = entry->tokens;
    return m;
}

/* Batch number `step`: images, or tokens that are their own targets. */
static void make_batch(bool tokens, int step, kiln_device device, kiln_tensor **x, kiln_tensor **y)
{
    *x = *y = NULL;
    kiln_on_device (KILN_CPU) {
        kiln_manual_seed(100 + (uint64_t)step);
        if (tokens) {
            *x = kiln_randint(0, VOCABULARY, KILN_SHAPE(BATCH, LENGTH), KILN_I64);
            *y = kiln_reshape(*x, KILN_SHAPE(BATCH * LENGTH));
        } else {
            *x = kiln_randn(KILN_SHAPE(BATCH, 1, SIDE, SIDE), KILN_F32);
            *y = kiln_randint(0, 10, KILN_SHAPE(BATCH), KILN_I64);
        }
    }
    *x = kiln_to(*x, device);
    *y = kiln_to(*y, device);
}

/* `scaler`: NULL where there is none; `factor`: of the loss, for gradients. */
static double train_step_by(kiln_module *m, kiln_optim *o, const work *w, kiln_tensor *x, kiln_tensor *y,
                            kiln_scaler *scaler, double factor)
{
    kiln_tensor *loss = NULL;
    kiln_step {
        kiln_zero_grad(o);
        kiln_tensor *z = kiln_forward(m, x);
        if (kiln_ndim(z) == 3)
            z = kiln_flatten(z, 0, 1);
        loss = kiln_keep(kiln_cross_entropy(z, y));
        kiln_backward(scaler ? kiln_scaler_scale(scaler, kiln_mul_scalar(loss, factor)) : loss);
        if (scaler && w->clip > 0)
            kiln_scaler_unscale(scaler, o);
        if (w->clip > 0)
            kiln_clip_grad_norm(kiln_parameters(m), w->clip);
        if (!scaler)
            kiln_optim_step(o);
        else if (kiln_scaler_step(scaler, o))
            kiln_scaler_update(scaler);
    }
    double value = kiln_item(loss);
    kiln_release(loss);
    return value;
}

static double train_step(kiln_module *m, kiln_optim *o, const work *w, kiln_tensor *x, kiln_tensor *y)
{
    return train_step_by(m, o, w, x, y, NULL, 1);
}

static trained run(const work *w, kiln_device device)
{
    trained t = {0};
    bool tokens;
    kiln_module *m = build(w->model, device, &tokens);
    kiln_optim *o = optim_with(w->optimizer, kiln_parameters(m), w->options);
    kiln_scaler *scaler = w->scaled ? kiln_scaler_new() : NULL;
    t.before = read_parameters(m, &t.count);
    for (; t.nlosses < STEPS; t.nlosses++)
        kiln_scope {
            kiln_tensor *x, *y;
            make_batch(tokens, t.nlosses, device, &x, &y);
            t.loss[t.nlosses] = train_step_by(m, o, w, x, y, scaler, t.nlosses == 1 ? INFINITY : 1);
        }
    t.after = read_parameters(m, &t.count);
    if (w->scaled)
        assert_int_equal(kiln_scaler_get(scaler).skipped, 1);
    if (!kiln_ok())
        fail_msg("%s on %s: %s", w->name, kiln_device_name(device), kiln_last_error()->message);
    kiln_scaler_free(scaler);
    kiln_optim_free(o);
    kiln_module_free(m);
    return t;
}

static const work works[] = {
    {"mlp, adam", "mlp", "adam", {.lr = 1e-3}, 0, false},
    {"lenet, adam", "lenet", "adam", {.lr = 1e-3}, 0, false},
    {"gpt2, adamw and clipping",
     "gpt2:layers=1,embed=32,heads=2,context=16,vocabulary=64",
     "adamw",
     {.lr = 1e-3},
     1,
     false},
    {"char-lstm, adam", "char-lstm:embed=16,hidden=32,vocabulary=64", "adam", {.lr = 1e-3}, 0, false},
    {"lenet, sgd", "lenet", "sgd", {.lr = 0.05, .momentum = 0.9, .nesterov = true, .weight_decay = 1e-3}, 0, false},
    {"mlp, amsgrad", "mlp", "adam", {.lr = 1e-3, .amsgrad = true}, 0, false},
    {"mlp, rmsprop", "mlp", "rmsprop", {.lr = 1e-3, .momentum = 0.5, .centered = true}, 0, false},
    {"mlp, adagrad", "mlp", "adagrad", {.lr = 1e-2, .lr_decay = 0.1}, 0, false},
    {"mlp, lion", "mlp", "lion", {.lr = 1e-4}, 0, false},
    {"mlp, adadelta", "mlp", "adadelta", {.lr = 0.5}, 0, false},
    {"mlp, nadam", "mlp", "nadam", {.lr = 1e-3}, 0, false},
    {"mlp, radam", "mlp", "radam", {.lr = 1e-3}, 0, false},
    {"lenet, adafactor", "lenet", "adafactor", {.lr = 1e-2}, 0, false},
    {"mlp, lamb", "mlp", "lamb", {.lr = 1e-3}, 0, false},
    {"lenet, muon", "lenet", "muon", {.lr = 1e-3, .match_rms = true}, 0, false},
    {"mlp, scaled", "mlp", "adam", {.lr = 1e-3}, 0, true},
    {"lenet, scaled", "lenet", "adam", {.lr = 1e-3}, 0, true},
    {"mlp, scaled and clipped", "mlp", "nadam", {.lr = 1e-3}, 1, true},
};

static void test_steps(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof works / sizeof *works; i++) {
        if (!suite_wants_named(works[i].name, (int64_t)i))
            continue;
        trained first = run(&works[i], devices[0]);
        for (int d = 1; d < ndevices; d++) {
            trained other = run(&works[i], devices[d]);
            assert_agree(works[i].name, &first, &other, devices[d]);
            trained_free(&other);
        }
        trained_free(&first);
    }
}

/* ---- Batches of the loader ---- */

/* The loop as people write it: batches come from workers, each to an address of its own; the last is smaller. */
static trained run_loader(kiln_device device)
{
    static const work w = {"mlp from the loader", "mlp", "adam", {.lr = 1e-3}, 0, false};
    trained t = {0};
    bool tokens;
    kiln_module *m = build(w.model, device, &tokens);
    kiln_optim *o = optim_with(w.optimizer, kiln_parameters(m), w.options);
    kiln_dataset *d = kiln_data_digits(.count = 4 * BATCH + 3);
    kiln_loader *l = kiln_loader_new(d, .batch = BATCH, .shuffle = true, .seed = 3, .workers = 2, .device = device);
    kiln_batch b;
    t.before = read_parameters(m, &t.count);
    for (int epoch = 0; epoch < 2; epoch++)
        while (t.nlosses < MOST_STEPS && kiln_loader_next(l, &b))
            t.loss[t.nlosses++] = train_step(m, o, &w, b.x, b.y);
    t.after = read_parameters(m, &t.count);
    if (!kiln_ok())
        fail_msg("the loader on %s: %s", kiln_device_name(device), kiln_last_error()->message);
    assert_int_equal(t.nlosses, 10);
    kiln_loader_free(l);
    kiln_data_free(d);
    kiln_optim_free(o);
    kiln_module_free(m);
    return t;
}

/* kiln_fit: sums on the device, validation in eval mode. */
static trained run_fit(kiln_device device)
{
    trained t = {0};
    bool tokens;
    kiln_module *m = build("lenet", device, &tokens);
    kiln_dataset *d = kiln_data_digits(.count = 40), *test = kiln_data_digits(.test = true, .count = 20);
    t.before = read_parameters(m, &t.count);
    kiln_history h = kiln_fit(m, d, .epochs = 2, .batch = 8, .validate = test, .workers = 1, .metrics = KILN_ACCURACY);
    for (int64_t i = 0; i < h.count; i++) {
        t.loss[t.nlosses++] = h.epochs[i].train.loss;
        t.loss[t.nlosses++] = h.epochs[i].test.loss;
    }
    t.after = read_parameters(m, &t.count);
    if (!kiln_ok())
        fail_msg("kiln_fit on %s: %s", kiln_device_name(device), kiln_last_error()->message);
    kiln_history_free(&h);
    kiln_data_free(d);
    kiln_data_free(test);
    kiln_module_free(m);
    return t;
}

/* ---- Steps of many sizes ---- */

/* What a run notes are results in the place of weights, which were 0 before. */
static void note_result(trained *t, kiln_tensor *x)
{
    kiln_scope {
        kiln_tensor *wide = kiln_cast(x, KILN_F32);
        int64_t n = kiln_numel(x);
        t->after = realloc(t->after, (size_t)(t->count + n) * sizeof *t->after);
        if (!kiln_read(wide, t->after + t->count, (size_t)n * sizeof *t->after))
            fail_msg("a result cannot be read: %s", kiln_last_error()->message);
        t->count += n;
    }
    kiln_release(x);
}

static kiln_tensor *random_on(kiln_device device, uint64_t seed, int ndim, const int64_t *shape, kiln_dtype dtype)
{
    kiln_tensor *x = NULL;
    kiln_on_device (KILN_CPU) {
        kiln_manual_seed(seed);
        x = kiln_cast(kiln_randn(ndim, shape, KILN_F32), dtype);
    }
    return kiln_to(x, device);
}

/* A product for each kind of tile that CUDA has, and sums of it. */
static void note_products(trained *t, kiln_device device)
{
    static const int64_t sizes[][3] = {{1, 37, 1},     {41, 37, 1},   {1, 37, 239},   {17, 37, 733},
                                       {17, 91, 1058}, {417, 3, 131}, {135, 37, 837}, {1058, 37, 200}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const int64_t *n = sizes[i];
        kiln_tensor *down = NULL, *across = NULL;
        kiln_scope {
            kiln_tensor *a = random_on(device, i, KILN_SHAPE(n[0], n[1]), KILN_F32);
            kiln_tensor *b = random_on(device, i + 50, KILN_SHAPE(n[1], n[2]), KILN_F32);
            kiln_step {
                kiln_tensor *c = kiln_matmul(a, b);
                down = kiln_keep(kiln_sum(c, KILN_DIMS(0), false));
                across = kiln_keep(kiln_sum(kiln_mul(c, c), KILN_DIMS(1), false));
            }
        }
        note_result(t, down);
        note_result(t, across);
    }
}

/* Reductions so long that they are cut into chunks, beside rows of a few elements. */
static void note_reductions(trained *t, kiln_device device)
{
    kiln_tensor *rows = NULL, *columns = NULL, *odd = NULL, *even = NULL, *places = NULL;
    kiln_scope {
        kiln_tensor *x = random_on(device, 1, KILN_SHAPE(3, 20000), KILN_F32);
        kiln_tensor *y = random_on(device, 2, KILN_SHAPE(20000, 3), KILN_F32);
        kiln_tensor *z = random_on(device, 3, KILN_SHAPE(5, 33), KILN_F32);
        kiln_tensor *w = random_on(device, 4, KILN_SHAPE(5, 64), KILN_F32);
        kiln_step {
            rows = kiln_keep(kiln_sum(kiln_mul(x, x), KILN_DIMS(1), false));
            columns = kiln_keep(kiln_sum(kiln_mul(y, y), KILN_DIMS(0), false));
            odd = kiln_keep(kiln_softmax(z, 1));
            even = kiln_keep(kiln_softmax(w, 1));
            places = kiln_keep(kiln_argmin(z, 1, false));
        }
    }
    note_result(t, rows);
    note_result(t, columns);
    note_result(t, odd);
    note_result(t, even);
    note_result(t, places);
}

/* Sums of columns: few rows, rows that narrow lanes take at once, and chunks of those; what follows goes on with them.
 */
static void note_columns(trained *t, kiln_device device)
{
    static const int64_t sizes[][2] = {{32, 256}, {300, 70}, {1000, 256}, {1024, 10}, {2048, 130}, {2100, 130}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        kiln_tensor *sum = NULL, *scaled = NULL;
        kiln_scope {
            kiln_tensor *x = random_on(device, 60 + i, KILN_SHAPE(sizes[i][0], sizes[i][1]), KILN_F32);
            kiln_step {
                sum = kiln_keep(kiln_sum(kiln_mul(x, x), KILN_DIMS(0), false));
                scaled = kiln_keep(kiln_mul(sum, sum));
            }
        }
        note_result(t, sum);
        note_result(t, scaled);
    }
}

/* Products whose elements are counted on their way, by every kind of tile, and who needs the count. Whole numbers, so
 * that devices round nothing. */
static void note_counts(trained *t, kiln_device device)
{
    static const int64_t sizes[][3] = {{5, 3, 1}, {17, 37, 733}, {33, 2000, 40}, {256, 32, 784}, {1058, 37, 200}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int dtype = KILN_F16; dtype <= KILN_F32; dtype += KILN_F32 - KILN_F16) {
            const int64_t *n = sizes[i];
            kiln_tensor *share = NULL, *half = NULL;
            kiln_scope {
                kiln_tensor *a = random_on(device, i, KILN_SHAPE(n[0], n[1]), KILN_F32);
                kiln_tensor *b = random_on(device, i + 50, KILN_SHAPE(n[1], n[2]), KILN_F32);
                a = kiln_cast(kiln_clamp(kiln_round(a), -1, 1), (kiln_dtype)dtype);
                b = kiln_cast(kiln_clamp(kiln_round(b), -1, 1), (kiln_dtype)dtype);
                kiln_eval();
                for (int step = 0; step < STEPS; step++)
                    kiln_step {
                        kiln_release(share);
                        kiln_release(half);
                        half = kiln_keep(kiln_mul_scalar(kiln_cast(kiln_matmul(a, b), KILN_F32), 0.5));
                        kiln_tensor *large = kiln_sum_all(kiln_gt_scalar(half, step));
                        share = kiln_keep(kiln_mul(half, kiln_cast(large, KILN_F32)));
                    }
            }
            note_result(t, half);
            note_result(t, share);
        }
}

/* A sum of so many operands, each lying in another order than the result, that an interpreter needs more than a little
 * room to describe it. */
static void note_expression(trained *t, kiln_device device, kiln_dtype dtype)
{
    enum { OPERANDS = 40 };
    kiln_tensor *sum = NULL;
    kiln_scope {
        kiln_tensor *x[OPERANDS];
        for (int i = 0; i < OPERANDS; i++)
            x[i] = random_on(device, 5 + (uint64_t)i, KILN_SHAPE(6, 4, 5), dtype);
        kiln_step {
            sum = kiln_permute(x[0], KILN_DIMS(2, 0, 1));
            for (int i = 1; i < OPERANDS; i++)
                sum = kiln_add(sum, kiln_permute(x[i], KILN_DIMS(2, 0, 1)));
            kiln_keep(sum);
        }
    }
    note_result(t, sum);
}

static trained run_sizes(kiln_device device)
{
    trained t = {0};
    note_products(&t, device);
    note_reductions(&t, device);
    note_columns(&t, device);
    note_counts(&t, device);
    note_expression(&t, device, KILN_F32);
    note_expression(&t, device, KILN_F64);
    t.before = calloc((size_t)t.count, sizeof *t.before);
    if (!kiln_ok())
        fail_msg("many sizes on %s: %s", kiln_device_name(device), kiln_last_error()->message);
    return t;
}

/* ---- Comparing ---- */

static void compare_runs(const char *what, int number, trained (*once)(kiln_device device))
{
    if (!suite_wants_named(what, number))
        skip_because("another shard's");
    trained first = once(devices[0]);
    for (int d = 1; d < ndevices; d++) {
        trained other = once(devices[d]);
        assert_agree(what, &first, &other, devices[d]);
        trained_free(&other);
    }
    trained_free(&first);
}

static void test_loader(void **state)
{
    (void)state;
    compare_runs("the loader", 1, run_loader);
}

static void test_fit(void **state)
{
    (void)state;
    compare_runs("kiln_fit", 2, run_fit);
}

/* ---- A step that fails ---- */

/* A round of steps, one of them bad; the loss of a good one. */
typedef double faulty_round(kiln_module *m, kiln_optim *o, const work *w, kiln_tensor *x, kiln_tensor *y);

static trained run_rounds(kiln_device device, faulty_round *round, int64_t steps)
{
    static const work w = {"a bad label", "mlp", "adam", {.lr = 1e-3}, 0, false};
    trained t = {0};
    bool tokens;
    kiln_module *m = build(w.model, device, &tokens);
    kiln_optim *o = optim_with(w.optimizer, kiln_parameters(m), w.options);
    t.before = read_parameters(m, &t.count);
    for (int i = 0; i < STEPS; i++)
        kiln_scope {
            kiln_tensor *x, *y;
            make_batch(false, i, device, &x, &y);
            t.loss[t.nlosses++] = round(m, o, &w, x, y);
        }
    t.after = read_parameters(m, &t.count);
    assert_int_equal(kiln_optim_steps(o), STEPS * steps);
    kiln_optim_free(o);
    kiln_module_free(m);
    return t;
}

/* A bad label stops a step, which then has changed nothing; the steps behind it are skipped, later ones run. */
static double fault_round(kiln_module *m, kiln_optim *o, const work *w, kiln_tensor *x, kiln_tensor *y)
{
    double good = train_step(m, o, w, x, y), bad = train_step(m, o, w, x, kiln_add_scalar(y, 1000));
    if (!isnan(bad) || kiln_last_error()->code != KILN_E_INDEX)
        fail_msg("label 1000 on %s: loss %g, \"%s\"", kiln_device_name(kiln_device_of(x)), bad,
                 kiln_last_error()->message);
    kiln_error_clear();
    return good;
}

static trained run_fault(kiln_device device)
{
    return run_rounds(device, fault_round, 1);
}

static void test_fault(void **state)
{
    (void)state;
    compare_runs("a bad label", 3, run_fault);
}

/* With `shift` a label may become a bad one, in a step that is the same otherwise. */
static bool unread_step(kiln_module *m, kiln_optim *o, kiln_tensor *x, kiln_tensor *y, double shift)
{
    kiln_step {
        kiln_zero_grad(o);
        kiln_backward(kiln_cross_entropy(kiln_forward(m, x), kiln_add_scalar(y, shift)));
        kiln_optim_step(o);
    }
    return kiln_ok();
}

/* The same in the middle of steps that nobody reads, which a device may have taken on together: those before the bad
 * one have taken place. */
enum { BEFORE = 7, BEHIND = 5 };

static double unread_round(kiln_module *m, kiln_optim *o, const work *w, kiln_tensor *x, kiln_tensor *y)
{
    kiln_device device = kiln_device_of(x);
    for (int k = 0; k < BEFORE; k++)
        assert_true(unread_step(m, o, x, y, 0));
    bool told = !unread_step(m, o, x, y, 1000);
    for (int k = 0; !told && k < BEHIND; k++)
        told = !unread_step(m, o, x, y, 0);
    if ((!told && kiln_device_wait(device)) || kiln_last_error()->code != KILN_E_INDEX)
        fail_msg("label 1000 on %s: \"%s\"", kiln_device_name(device), kiln_last_error()->message);
    kiln_error_clear();
    return train_step(m, o, w, x, y);
}

static trained run_unread_fault(kiln_device device)
{
    return run_rounds(device, unread_round, BEFORE + 1);
}

static void test_unread_fault(void **state)
{
    (void)state;
    compare_runs("a bad label among unread steps", 3, run_unread_fault);
}

static void test_sizes(void **state)
{
    (void)state;
    compare_runs("many sizes", 4, run_sizes);
}

static int all_on_other_devices(void **state)
{
    (void)state;
    if (ndevices < 2)
        print_message("one device only: nothing to compare\n");
    return 0;
}

int main(void)
{
    ndevices = devices_under_test(devices);
    if (!ndevices)
        return test_exit(0);
#define UNIT(name) cmocka_unit_test_setup_teardown(name, memory_before, memory_after)
    const struct CMUnitTest tests[] = {UNIT(test_steps), UNIT(test_loader),       UNIT(test_fit),
                                       UNIT(test_fault), UNIT(test_unread_fault), UNIT(test_sizes)};
    return test_exit(cmocka_run_group_tests(tests, all_on_other_devices, NULL));
}
