/* What the tests of optimizers share: a small classifier of two parameters, trained by an optimizer on fixed batches.
 */
#ifndef KILN_TEST_OPTIM_H
#define KILN_TEST_OPTIM_H

#include "support/optim_with.h"
#include "support/core.h"

enum { BATCH = 6, FEATURES = 5, CLASSES = 3, STEPS = 6, VALUES = CLASSES * FEATURES + CLASSES };

typedef struct trainer {
    kiln_tensor *p[2]; /* weight and bias of a classifier */
    kiln_optim *o;
} trainer;

static const char *const names[2] = {"0.weight", "0.bias"};

static inline kiln_params params_of(trainer *t)
{
    return (kiln_params){2, t->p, names};
}

static inline trainer make_params(void)
{
    trainer t = {{kiln_keep(core_data(1, KILN_SHAPE(CLASSES, FEATURES))), kiln_keep(core_data(2, KILN_SHAPE(CLASSES)))},
                 NULL};
    kiln_requires_grad(t.p[0], true);
    kiln_requires_grad(t.p[1], true);
    return t;
}

static inline trainer make_trainer(const char *kind, kiln_optim_options options)
{
    trainer t = make_params();
    t.o = optim_with(kind, params_of(&t), options);
    assert_non_null(t.o);
    return t;
}

static inline void free_trainer(trainer *t)
{
    kiln_optim_free(t->o);
    kiln_release(t->p[0]);
    kiln_release(t->p[1]);
}

/* Gradients of batch `seed`; a bad label is one beyond the classes. */
static inline bool gradients(trainer *t, int seed, int64_t bad)
{
    int64_t labels[BATCH];
    for (int i = 0; i < BATCH; i++)
        labels[i] = (i + seed) % CLASSES;
    labels[2] += bad;
    kiln_device device = kiln_device_of(t->p[0]);
    kiln_tensor *x = kiln_to(core_data(seed + 10, KILN_SHAPE(BATCH, FEATURES)), device);
    kiln_tensor *y = kiln_tensor_new(labels, KILN_I64, KILN_SHAPE(BATCH), device);
    return kiln_backward(kiln_cross_entropy(kiln_linear(x, t->p[0], t->p[1]), y));
}

static inline bool train(trainer *t, int seed, int64_t bad)
{
    kiln_step {
        kiln_zero_grad(t->o);
        if (gradients(t, seed, bad))
            kiln_optim_step(t->o);
    }
    return kiln_ok();
}

static inline void read_values(trainer *t, float *out)
{
    assert_true(kiln_read(t->p[0], out, CLASSES * FEATURES * sizeof *out));
    assert_true(kiln_read(t->p[1], out + CLASSES * FEATURES, CLASSES * sizeof *out));
}

static inline void assert_same_values(trainer *t, const float *want)
{
    float got[VALUES];
    read_values(t, got);
    assert_memory_equal(got, want, sizeof got);
}

/* Values after 0 … STEPS undisturbed steps. */
static inline void undisturbed(const char *kind, kiln_optim_options options, float want[STEPS + 1][VALUES])
{
    trainer t = make_trainer(kind, options);
    for (int i = 0; i <= STEPS; i++) {
        read_values(&t, want[i]);
        assert_true(train(&t, i, 0));
    }
    free_trainer(&t);
}

/* Optimizers of every sort of state. */
static const struct {
    const char *name;
    kiln_optim_options options;
} kinds[] = {{"adam", {.lr = 0.1, .amsgrad = true}},
             {"sgd", {.lr = 0.1, .momentum = 0.9, .dampening = 0.5}},
             {"adagrad", {.lr = 0.1, .lr_decay = 0.1, .initial_accumulator = 0.1}},
             {"sgd", {.lr = 0.1}}};
enum { KINDS = sizeof kinds / sizeof *kinds };

#endif
