/* A step that is refused names the largest batch that fits: it runs, and one a tenth larger is refused, for networks of
 * every kind in a loop of one's own. */
#include <stdlib.h>
#include <string.h>
#include "core/alloc.h"
#include "models.h"
#include "support/core.h"

typedef struct sample { /* one network, and the batch that is too large for it */
    const char *model;
    int64_t batch;
    int ndim;
    int64_t item[3];
    int64_t classes;
    bool time_first; /* the batch is the second dim: [T, N, F] */
} sample;

typedef struct loop {
    const sample *s;
    kiln_device device;
    kiln_module *net;
    kiln_optim *optim;
    bool drawn; /* the batch is made inside the step */
} loop;

static void make_batch(const loop *l, int64_t n, kiln_tensor **x, kiln_tensor **y)
{
    const sample *s = l->s;
    int64_t shape[4] = {n};
    bool tokens = s->ndim == 1 && strcmp(s->model, "sequence") != 0;
    memcpy(shape + 1, s->item, sizeof s->item);
    if (s->time_first) {
        shape[0] = s->item[0];
        shape[1] = n;
        shape[2] = s->item[1];
    }
    *x = tokens ? kiln_randint(0, s->classes, 2, shape, KILN_I64)
                : kiln_randn(s->time_first ? 3 : s->ndim + 1, shape, KILN_F32);
    *y = kiln_randint(0, s->classes, tokens ? 2 : 1, tokens ? shape : &n, KILN_I64);
}

static kiln_tensor *forward(const loop *l, kiln_tensor *x)
{
    kiln_tensor *out = kiln_forward(l->net, x);
    if (l->s->time_first) /* the last moment's output */
        out = kiln_select(out, 0, -1);
    return out;
}

static void write_step(const loop *l, kiln_tensor *x, kiln_tensor *y)
{
    kiln_tensor *out = forward(l, x);
    kiln_zero_grad(l->optim);
    kiln_backward(
        kiln_cross_entropy(kiln_reshape(out, KILN_SHAPE(-1, l->s->classes)), kiln_reshape(y, KILN_SHAPE(-1))));
    kiln_optim_step(l->optim);
    kiln_zero_grad(l->optim);
}

/* One step; *info what its plan says. False if it was refused: the error is kept. */
static bool step(const loop *l, int64_t batch, kiln_plan_info *info)
{
    kiln_tensor *x = NULL, *y = NULL;
    kiln_scope {
        kiln_on_device (l->device) {
            if (!l->drawn) {
                make_batch(l, batch, &x, &y);
                kiln_eval();
            }
            kiln_step {
                if (l->drawn)
                    make_batch(l, batch, &x, &y);
                write_step(l, x, y);
            }
        }
    }
    bool ran = kiln_ok() && kiln_device_wait(l->device);
    return ran && (!info || kiln_plan_last(info));
}

static bool fits(const loop *l, int64_t batch)
{
    kiln_memory_trim(l->device);
    bool ok = step(l, batch, NULL);
    if (!ok)
        assert_int_equal(kiln_last_error()->code, KILN_E_MEMORY);
    kiln_error_clear();
    return ok;
}

static kiln_module *build(const char *name, int64_t context)
{
    model_options o = {.context = context};
    char why[200];
    if (!strcmp(name, "sequence"))
        return kiln_nn_sequential(kiln_nn_lstm(24, 40, .layers = 2), kiln_nn_linear(40, 7));
    const model_entry *e = model_find(name, &o, why, sizeof why);
    assert_non_null(e);
    return e->build(o);
}

static int64_t batch_bytes(const loop *l)
{
    const sample *s = l->s;
    int64_t n = s->batch;
    for (int d = 0; d < s->ndim; d++)
        n *= s->item[d];
    return l->drawn ? 0 : s->ndim == 1 ? 16 * n : 4 * n + 8 * s->batch;
}

static void check(const sample *s, kiln_device device, bool drawn, double share)
{
    loop l = {.s = s, .device = device, .drawn = drawn};
    kiln_plan_info info;
    kiln_memory_stats stats;
    kiln_manual_seed(1);
    kiln_on_device (device)
        l.net = build(s->model, s->ndim == 1 ? s->item[0] : 0);
    assert_non_null(l.net);
    l.optim = kiln_optim_adam(kiln_parameters(l.net));
    assert_true(step(&l, 2, NULL)); /* the optimizer's state is there */
    assert_true(step(&l, s->batch, &info));
    assert_true(kiln_memory_trim(device) && kiln_memory_get_stats(device, &stats));
    assert_true(kiln_memory_set_limit(device, stats.in_use + stats.overhead +
                                                  (uint64_t)(share * (double)(info.peak_bytes + batch_bytes(&l)))));
    long long named = 0, instead = 0;
    assert_false(step(&l, s->batch, NULL));
    const kiln_error *e = kiln_last_error();
    const char *at = strstr(e->hint, "A batch of about ");
    if (at)
        assert_int_equal(sscanf(at, "A batch of about %lld instead of %lld", &named, &instead), 2);
    kiln_error_clear();
    if (at)
        assert_int_equal(instead, s->batch);
    if (!at && fits(&l, 1))
        fail_msg("%s on %s: no batch was named, but 1 fits", s->model, kiln_device_name(device));
    if (getenv("KILN_TEST_TELL"))
        print_message("%s on %s, %.2f: %lld of %lld\n", s->model, kiln_device_name(device), share, named, instead);
    int64_t more = named + named / 10 + 2; /* "about": a tenth, or one sample */
    if (at && !fits(&l, named))
        fail_msg("%s on %s: a batch of %lld was named and does not fit", s->model, kiln_device_name(device), named);
    if (at && more < s->batch && fits(&l, more))
        fail_msg("%s on %s: a batch of %lld was named, but %lld fits", s->model, kiln_device_name(device), named,
                 (long long)more);
    assert_true(kiln_memory_set_limit(device, 0));
    kiln_optim_free(l.optim);
    kiln_module_free(l.net);
    assert_true(kiln_ok());
}

static const sample samples[] = {
    {"mlp", 1000, 3, {1, 28, 28}, 10, false},
    {"mlp", 256, 3, {1, 28, 28}, 10, false}, /* as many as the first layer has outputs */
    {"lenet", 120, 3, {1, 28, 28}, 10, false},
    {"resnet18", 24, 3, {3, 32, 32}, 10, false},
    {"vit-tiny:layers=3", 64, 3, {3, 32, 32}, 10, false},
    {"gpt2:layers=3,embed=64,heads=4,vocabulary=96", 32, 1, {48}, 96, false},
    {"char-lstm:layers=3,hidden=64", 64, 1, {40}, 256, false},
    {"sequence", 200, 2, {30, 24}, 7, true},
    {"sequence", 30, 2, {50, 24}, 7, true},
};

static void test_named_batch(void **state)
{
    (void)state;
    kiln_device devices[] = {KILN_CPU, kiln_device_parse("sim")};
    for (size_t i = 0; i < sizeof samples / sizeof *samples; i++)
        for (int d = 0; d < 2; d++) {
            check(&samples[i], devices[d], false, 0.8);
            check(&samples[i], devices[d], true, 0.6);
            check(&samples[i], devices[d], false, 0.35);
        }
}

/* Weights that do not fit while they are drawn: there is no batch that could be smaller. */
static void test_weights(void **state)
{
    (void)state;
    kiln_memory_stats stats;
    assert_true(kiln_memory_trim(KILN_CPU) && kiln_memory_get_stats(KILN_CPU, &stats));
    assert_true(kiln_memory_set_limit(KILN_CPU, stats.in_use + (1 << 20)));
    assert_null(build("mlp", 0));
    assert_int_equal(kiln_last_error()->code, KILN_E_MEMORY);
    assert_null(strstr(kiln_last_error()->hint, "batch"));
    kiln_error_clear();
    assert_true(kiln_memory_set_limit(KILN_CPU, 0));
}

/* ---- When memory of the host runs out, too ---- */

static void read_weights(const loop *l, float *to)
{
    kiln_params p = kiln_parameters(l->net);
    for (int64_t i = 0, at = 0; i < p.count; at += kiln_numel(p.tensors[i++]))
        assert_true(kiln_read(p.tensors[i], to + at, (size_t)kiln_numel(p.tensors[i]) * sizeof *to));
}

/* Every allocation of a step that is refused fails once in turn: it is refused all the same, with as much as can be
 * said, nothing leaks, and the step that fits gives the bits it would have given. */
static void test_failing_allocations(void **state)
{
    (void)state;
    enum { WEIGHTS = 1 << 18 };
    static float before[WEIGHTS], after[WEIGHTS];
    loop l = {.s = &samples[2], .device = KILN_CPU};
    kiln_manual_seed(1);
    l.net = build("lenet", 0);
    l.optim = kiln_optim_adam(kiln_parameters(l.net));
    assert_true(step(&l, 2, NULL) && kiln_memory_trim(KILN_CPU));
    kiln_memory_stats stats;
    assert_true(kiln_memory_get_stats(KILN_CPU, &stats));
    uint64_t in_use = stats.in_use;
    kiln_memory_set_limit(KILN_CPU, in_use + (1 << 20));
    assert_false(step(&l, 60, NULL));
    kiln_error whole = *kiln_last_error();
    kiln_error_clear();
    assert_non_null(strstr(whole.hint, "A batch of about "));
    read_weights(&l, before);
    bool same = false;
    for (int64_t n = 0; !same; n += 1 + n / 30) {
        core_use_up_handles();
        kiln_alloc_fail_after(n);
        bool ran = step(&l, 60, NULL);
        kiln_alloc_fail_after(-1);
        assert_false(ran);
        assert_int_equal(kiln_last_error()->code, KILN_E_MEMORY);
        same = !strcmp(kiln_last_error()->hint, whole.hint) && n > 1000;
        kiln_error_clear();
        assert_true(kiln_memory_trim(KILN_CPU) && kiln_memory_get_stats(KILN_CPU, &stats));
        assert_true(stats.in_use <= in_use);
        assert_true(n < 1000000);
    }
    read_weights(&l, after);
    assert_memory_equal(before, after, sizeof before);
    kiln_memory_set_limit(KILN_CPU, 0);
    assert_true(step(&l, 60, NULL));
    kiln_optim_free(l.optim);
    kiln_module_free(l.net);
}

int main(void)
{
    setenv("KILN_RECOMPUTE", "0", 1); /* otherwise more than what fits fits, more slowly */
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_named_batch), cmocka_unit_test(test_weights),
                                       cmocka_unit_test(test_failing_allocations)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
