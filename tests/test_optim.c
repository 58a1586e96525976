/* Optimizers around the formulas (test_optim_golden has those) and around failing steps (test_optim_steps): options and
 * groups, state that is saved, restored and moved, clipping, averages, and what is said about mistakes. */
#include "core/alloc.h"
#include "core/counts.h"
#include "support/optim.h"

/* ctest: name=eager env=KILN_EAGER=1 */

/* ---- Options and groups ---- */

static void test_groups(void **state)
{
    (void)state;
    trainer t = make_params();
    kiln_tensor *twice[2] = {t.p[0], t.p[0]};
    t.o = kiln_optim_adam(((kiln_params){2, twice, NULL}), .lr = 0.5, .beta1 = KILN_ZERO);
    assert_non_null(t.o);
    assert_string_equal(kiln_optim_name(t.o), "adam");
    assert_int_equal(kiln_optim_state(t.o).count, 3); /* a tensor named twice is one parameter */

    assert_false(kiln_optim_group(t.o, params_of(&t), .lr = 0.25));
    expect_error(KILN_E_ARGUMENT, "adam", "another group");
    assert_false(kiln_optim_group(t.o, ((kiln_params){1, t.p + 1, NULL}), .momentum = 0.9));
    expect_error(KILN_E_ARGUMENT, "adam", "adam has no momentum");
    assert_int_equal(kiln_optim_groups(t.o), 1);
    assert_true(kiln_optim_group(t.o, ((kiln_params){1, t.p + 1, NULL}), .lr = 0.25));
    assert_int_equal(kiln_optim_groups(t.o), 2);
    assert_int_equal(kiln_optim_state(t.o).count, 5);

    assert_true(kiln_optim_lr(t.o, 0) == 0.5 && kiln_optim_lr(t.o, 1) == 0.25);
    assert_true(kiln_optim_set_lr(t.o, 1, 2));
    assert_true(kiln_optim_lr(t.o, 0) == 0.5 && kiln_optim_lr(t.o, 1) == 2);
    assert_true(kiln_optim_set_lr(t.o, -1, 3));
    assert_true(kiln_optim_lr(t.o, 0) == 3 && kiln_optim_lr(t.o, 1) == 3);
    assert_true(isnan(kiln_optim_lr(t.o, 2)));
    expect_error(KILN_E_ARGUMENT, "adam", "no group 2");
    assert_false(kiln_optim_set_lr(t.o, -2, 1));
    expect_error(KILN_E_ARGUMENT, "adam", "no group -2");
    assert_false(kiln_optim_set_lr(t.o, 0, NAN));
    expect_error(KILN_E_ARGUMENT, "adam", "nan");
    free_trainer(&t);
}

static void test_bad_options(void **state)
{
    (void)state;
    trainer t = make_params();
    kiln_params p = params_of(&t);
    assert_null(kiln_optim_sgd(p, .beta1 = 0.9));
    assert_non_null(strstr(kiln_last_error()->hint, "lr, weight_decay, momentum"));
    expect_error(KILN_E_ARGUMENT, "sgd", "sgd has no beta1");
    assert_null(kiln_optim_lion(p, .amsgrad = true));
    expect_error(KILN_E_ARGUMENT, "lion", "lion has no amsgrad");
    assert_null(optim_with("adan", p, (kiln_optim_options){0}));
    assert_non_null(strstr(kiln_last_error()->hint, "did you mean \"adam\""));
    expect_error(KILN_E_ARGUMENT, "optim", "adan");
    assert_null(optim_with("AdmaW", p, (kiln_optim_options){0}));
    assert_non_null(strstr(kiln_last_error()->hint, "did you mean \"adamw\""));
    expect_error(KILN_E_ARGUMENT, "optim", "AdmaW");
    assert_null(optim_with("gradient descent by hand, and a long name at that", p, (kiln_optim_options){0}));
    assert_non_null(
        strstr(kiln_last_error()->hint, "there are: adadelta, adafactor, adagrad, adam, adamw, lamb, lion, muon"));
    expect_error(KILN_E_ARGUMENT, "optim", "gradient descent");
    assert_null(optim_with(NULL, p, (kiln_optim_options){0}));
    expect_error(KILN_E_ARGUMENT, "optim", "NULL");
    assert_null(kiln_optim_adam(p, .lr = -0.5));
    expect_error(KILN_E_ARGUMENT, "adam", "lr is -0.5");
    assert_null(kiln_optim_adam(p, .eps = NAN));
    expect_error(KILN_E_ARGUMENT, "adam", "eps");
    assert_null(kiln_optim_adamw(p, .beta2 = 1));
    expect_error(KILN_E_ARGUMENT, "adamw", "beta2 is 1");
    assert_null(kiln_optim_sgd(p, .nesterov = true));
    expect_error(KILN_E_ARGUMENT, "sgd", "nesterov");
    assert_null(kiln_optim_sgd(((kiln_params){0})));
    expect_error(KILN_E_ARGUMENT, "sgd", "no parameters");
    assert_null(kiln_optim_sgd(((kiln_params){1, NULL, NULL})));
    expect_error(KILN_E_ARGUMENT, "sgd", "list");
    assert_null(kiln_optim_sgd(((kiln_params){1, (kiln_tensor *[]){NULL}, names})));
    expect_error(KILN_E_ARGUMENT, "sgd", "0.weight is NULL");
    kiln_scope {
        kiln_tensor *whole = kiln_zeros(KILN_SHAPE(3), KILN_I64);
        assert_null(kiln_optim_sgd(((kiln_params){1, &whole, names})));
        expect_error(KILN_E_DTYPE, "sgd", "0.weight is i64");
    }
    assert_false(kiln_optim_step(NULL));
    expect_error(KILN_E_ARGUMENT, "optimizer", "NULL");
    assert_false(kiln_optim_set_steps(NULL, 1));
    expect_error(KILN_E_ARGUMENT, "optimizer", "NULL");
    assert_true(isnan(kiln_optim_lr(NULL, 0)));
    expect_error(KILN_E_ARGUMENT, "optimizer", "NULL");
    kiln_zero_grad(NULL);
    expect_error(KILN_E_ARGUMENT, "zero_grad", "NULL");
    kiln_optim_free(NULL);
    assert_true(kiln_ok());
    free_trainer(&t);
}

/* Every name makes an optimizer, and its defaults are what it has when nothing is given. */
static void test_names(void **state)
{
    (void)state;
    int n = 0;
    for (const char *const *name = kiln_optim_names(); *name; name++, n++) {
        kiln_optim_options o = kiln_optim_defaults(*name);
        assert_true(o.exact && o.size == sizeof o);
        trainer filled = make_params(), given = make_trainer(*name, (kiln_optim_options){0});
        filled.o = kiln_optim_new(*name, params_of(&filled), &o);
        assert_non_null(filled.o);
        assert_string_equal(kiln_optim_name(filled.o), *name);
        assert_true(kiln_optim_lr(filled.o, 0) == o.lr && kiln_optim_lr(given.o, 0) == o.lr);
        for (int i = 0; i < 3; i++)
            assert_true(train(&filled, i, 0) && train(&given, i, 0));
        float want[VALUES];
        read_values(&given, want);
        assert_same_values(&filled, want);
        free_trainer(&filled);
        free_trainer(&given);
    }
    assert_true(n >= 12);
    assert_true(kiln_optim_defaults("adan").lr == 0);
    expect_error(KILN_E_ARGUMENT, "optim", "adan");
}

/* In a struct that began as the defaults, 0 means 0 and false means false. */
static void test_exact_options(void **state)
{
    (void)state;
    float want[VALUES], got[VALUES];
    kiln_optim_options o = kiln_optim_defaults("adamw");
    o.weight_decay = 0;
    o.beta1 = 0;
    trainer a = make_params(),
            b = make_trainer("adamw", (kiln_optim_options){.weight_decay = KILN_ZERO, .beta1 = KILN_ZERO});
    a.o = kiln_optim_new("adamw", params_of(&a), &o);
    assert_true(a.o && train(&a, 0, 0) && train(&a, 1, 0) && train(&b, 0, 0) && train(&b, 1, 0));
    read_values(&b, want);
    assert_same_values(&a, want);
    free_trainer(&a);
    free_trainer(&b);

    o = kiln_optim_defaults("muon"); /* a flag that is set by default */
    o.nesterov = false;
    a = make_params();
    a.o = kiln_optim_new("muon", params_of(&a), &o);
    b = make_trainer("muon", (kiln_optim_options){0});
    assert_true(a.o && train(&a, 0, 0) && train(&a, 1, 0) && train(&b, 0, 0) && train(&b, 1, 0));
    read_values(&a, got);
    read_values(&b, want);
    assert_memory_not_equal(got, want, CLASSES * FEATURES * sizeof *got);
    free_trainer(&a);
    free_trainer(&b);

    a = make_params();
    o = kiln_optim_defaults("sgd");
    o.beta1 = 0.5;
    assert_null(kiln_optim_new("sgd", params_of(&a), &o));
    expect_error(KILN_E_ARGUMENT, "sgd", "sgd has no beta1");
    o = kiln_optim_defaults("adafactor");
    o.max_rms = 0;
    assert_null(kiln_optim_new("adafactor", params_of(&a), &o));
    expect_error(KILN_E_ARGUMENT, "adafactor", "max_rms is 0, but must be a number of at least 1");
    assert_null(kiln_optim_muon(params_of(&a), .iterations = 2.5));
    expect_error(KILN_E_ARGUMENT, "muon", "whole");
    free_trainer(&a);
}

/* What formulas keep from one parameter to the next is not another group's: two groups are as two optimizers. */
static void test_groups_apart(void **state)
{
    (void)state;
    float want[VALUES], got[VALUES];
    trainer both = make_params(), first = make_params(), second = make_params();
    both.o = kiln_optim_nadam(((kiln_params){1, both.p, NULL}), .lr = 0.1, .momentum_decay = 0.5);
    assert_true(kiln_optim_group(both.o, ((kiln_params){1, both.p + 1, NULL}), .momentum_decay = 2));
    first.o = kiln_optim_nadam(params_of(&first), .lr = 0.1, .momentum_decay = 0.5);
    second.o = kiln_optim_nadam(params_of(&second), .lr = 0.1, .momentum_decay = 2);
    assert_true(train(&both, 0, 0) && train(&first, 0, 0) && train(&second, 0, 0)); /* the same gradients in all */
    read_values(&both, got);
    read_values(&first, want);
    assert_memory_equal(got, want, CLASSES * FEATURES * sizeof *got);
    read_values(&second, want);
    assert_memory_equal(got + CLASSES * FEATURES, want + CLASSES * FEATURES, CLASSES * sizeof *got);
    free_trainer(&both);
    free_trainer(&first);
    free_trainer(&second);
}

static void test_bad_schedules(void **state)
{
    (void)state;
    trainer t = make_trainer("sgd", (kiln_optim_options){.lr = 1}),
            other = make_trainer("sgd", (kiln_optim_options){0});
    assert_null(kiln_schedule_step(t.o, 0, 0.5));
    expect_error(KILN_E_ARGUMENT, "schedule_step", "at least 1 unit");
    assert_null(kiln_schedule_exponential(t.o, -1));
    expect_error(KILN_E_ARGUMENT, "schedule_exponential", "factor");
    assert_null(kiln_schedule_multistep(t.o, 2, (int64_t[]){5, 3}, 0.5));
    expect_error(KILN_E_ARGUMENT, "schedule_multistep", "3 comes after 5");
    assert_null(kiln_schedule_plateau(t.o, 1.5, 2, false));
    expect_error(KILN_E_ARGUMENT, "schedule_plateau", "factor");
    assert_null(kiln_schedule_one_cycle(t.o, NAN, 5, 0));
    expect_error(KILN_E_ARGUMENT, "schedule_one_cycle", "highest");
    assert_null(kiln_schedule_constant(NULL));
    expect_error(KILN_E_ARGUMENT, "schedule_constant", "NULL");
    assert_null(kiln_schedule_warmup(t.o, 0, 0, kiln_schedule_step(t.o, 3, 0.5)));
    expect_error(KILN_E_ARGUMENT, "schedule_warmup", "unit");
    assert_null(kiln_schedule_warmup(t.o, 5, 0, kiln_schedule_constant(other.o)));
    expect_error(KILN_E_ARGUMENT, "schedule_warmup", "same optimizer");
    kiln_schedule *s = kiln_schedule_warmup(t.o, 4, 0, NULL);
    assert_true(kiln_optim_lr(t.o, 0) == 0.25);
    assert_false(kiln_schedule_set(s, (kiln_schedule_state){.unit = -1, .factor = 1}));
    expect_error(KILN_E_ARGUMENT, "schedule_warmup", "state");
    for (int i = 0; i < 6; i++)
        assert_true(kiln_schedule_advance(s));
    assert_true(kiln_optim_lr(t.o, 0) == 1);
    kiln_schedule_free(s);

    s = kiln_schedule_exponential(t.o, 1e200); /* a rate that is no number is said, not set */
    assert_true(kiln_schedule_advance(s));
    assert_false(kiln_schedule_advance(s));
    expect_error(KILN_E_ARGUMENT, "sgd", "learning rate");
    assert_false(kiln_schedule_set(s, (kiln_schedule_state){.unit = KILN_COUNT_MAX, .factor = 1}));
    kiln_error_clear();
    assert_false(kiln_schedule_advance(s));
    expect_error(KILN_E_STATE, "schedule_exponential", "end");
    kiln_schedule_free(s);
    kiln_optim_set_lr(t.o, 0, 1);

    s = kiln_schedule_cosine(t.o, 3, 0.5); /* when it is over it stays where it is */
    for (int i = 0; i < 6; i++)
        assert_true(kiln_schedule_advance(s));
    assert_near(kiln_optim_lr(t.o, 0), 0.5, 1e-15);
    kiln_schedule_free(s);
    kiln_optim_set_lr(t.o, 0, 1);

    s = kiln_schedule_plateau(t.o, 0.5, 1, false);
    for (int i = 0; i < 2; i++) /* no number is as bad as no progress, and never the best */
        assert_true(kiln_schedule_observe(s, NAN));
    assert_true(kiln_optim_lr(t.o, 0) == 0.5);
    assert_true(kiln_schedule_observe(s, 3) && kiln_schedule_observe(s, 2) && kiln_schedule_observe(s, 1));
    assert_true(kiln_optim_lr(t.o, 0) == 0.5 && kiln_schedule_get(s).best == 1);
    kiln_schedule_free(s);
    assert_false(kiln_schedule_advance(NULL));
    expect_error(KILN_E_ARGUMENT, "schedule", "NULL");
    free_trainer(&t);
    free_trainer(&other);
}

/* ---- Which parameters ---- */

static void test_forgotten_zero_grad(void **state)
{
    (void)state;
    trainer t = make_trainer("sgd", (kiln_optim_options){.lr = 0.1});
    for (int i = 0; i < 3; i++) /* several backwards make one step: that is no mistake */
        kiln_step {
            kiln_zero_grad(t.o);
            assert_true(gradients(&t, i, 0) && gradients(&t, i + 1, 0) && kiln_optim_step(t.o));
        }
    for (int i = 0; i < 4; i++) { /* nor when they are steps of their own */
        if (i % 2 == 0)
            kiln_zero_grad(t.o);
        kiln_step
            assert_true(gradients(&t, i, 0));
        if (i % 2)
            kiln_step {
                assert_non_null(kiln_clip_grad_norm(params_of(&t), 0.5));
                assert_true(kiln_optim_step(t.o));
            }
    }
    assert_null(kiln_next_notice());
    for (int i = 0; i < 3; i++)
        kiln_step {
            assert_true(gradients(&t, i, 0));
            assert_true(kiln_clip_grad_value(params_of(&t), 10));
            assert_true(kiln_optim_step(t.o));
        }
    const char *notice = kiln_next_notice();
    assert_non_null(notice);
    assert_non_null(strstr(notice, "0.weight"));
    assert_non_null(strstr(notice, "kiln_zero_grad"));
    assert_null(kiln_next_notice()); /* once */
    free_trainer(&t);
}

static void test_frozen(void **state)
{
    (void)state;
    trainer t = make_trainer("adamw", (kiln_optim_options){.lr = 0.1});
    float before[VALUES], after[VALUES];
    read_values(&t, before);
    assert_true(kiln_optim_step(t.o)); /* no gradients: nothing happens */
    assert_int_equal(kiln_optim_steps(t.o), 0);
    kiln_requires_grad(t.p[0], false);
    assert_true(train(&t, 0, 0) && train(&t, 1, 0));
    read_values(&t, after);
    assert_memory_equal(before, after, CLASSES * FEATURES * sizeof(float));
    assert_memory_not_equal(before + CLASSES * FEATURES, after + CLASSES * FEATURES, CLASSES * sizeof(float));
    assert_int_equal(kiln_optim_steps(t.o), 2);

    /* A gradient that was there when it was frozen is not used, either. */
    kiln_requires_grad(t.p[0], true);
    kiln_zero_grad(t.o);
    kiln_scope
        assert_true(gradients(&t, 2, 0));
    kiln_requires_grad(t.p[0], false);
    assert_true(kiln_optim_step(t.o));
    read_values(&t, after);
    assert_memory_equal(before, after, CLASSES * FEATURES * sizeof(float));
    free_trainer(&t);
}

/* ---- State ---- */

enum { SAVED = 8 };

typedef struct saved {
    int64_t count, steps;
    char names[SAVED][64];
    char data[SAVED][256];
    size_t bytes[SAVED];
} saved;

static void save(trainer *t, saved *s)
{
    kiln_params list = kiln_optim_state(t->o);
    assert_true(list.count <= SAVED);
    *s = (saved){.count = list.count, .steps = kiln_optim_steps(t->o)};
    for (int64_t i = 0; i < list.count; i++) {
        s->bytes[i] = (size_t)kiln_numel(list.tensors[i]) * kiln_dtype_size(kiln_dtype_of(list.tensors[i]));
        snprintf(s->names[i], sizeof s->names[i], "%s", list.names[i]);
        assert_true(kiln_read(list.tensors[i], s->data[i], s->bytes[i]));
    }
}

static void restore(trainer *t, const saved *s)
{
    kiln_params list = kiln_optim_state(t->o);
    assert_int_equal(list.count, s->count);
    for (int64_t i = 0; i < list.count; i++) {
        assert_string_equal(list.names[i], s->names[i]);
        assert_true(kiln_write(list.tensors[i], s->data[i], s->bytes[i]));
    }
    assert_int_equal(kiln_optim_state(t->o).count, s->count); /* asked again, it does not spoil what was written */
    assert_true(kiln_optim_set_steps(t->o, s->steps));
}

/* The bias starts late: it has a count of its own. */
static bool train_late(trainer *t, int i)
{
    kiln_requires_grad(t->p[1], i >= 2);
    return train(t, i, 0);
}

static void check_restored(const char *kind, kiln_optim_options options)
{
    trainer a = make_trainer(kind, options), b = make_trainer(kind, options);
    float want[VALUES];
    saved s;
    for (int i = 0; i < 4; i++)
        assert_true(train_late(&a, i));
    save(&a, &s);
    for (int k = 0; k < 2; k++)
        kiln_no_grad
            assert_true(kiln_assign(b.p[k], a.p[k]));
    assert_true(kiln_eval());
    restore(&b, &s);
    assert_int_equal(kiln_optim_steps(b.o), 4);
    for (int i = 4; i < 8; i++)
        assert_true(train_late(&a, i) && train_late(&b, i));
    read_values(&a, want);
    assert_same_values(&b, want);
    free_trainer(&a);
    free_trainer(&b);
}

static void test_restored(void **state)
{
    (void)state;
    for (int k = 0; k < KINDS; k++)
        check_restored(kinds[k].name, kinds[k].options);
    check_restored("rmsprop", (kiln_optim_options){.momentum = 0.5, .centered = true});
    for (const char *const *name = kiln_optim_names(); *name; name++)
        check_restored(*name, (kiln_optim_options){.weight_decay = 0.1});
}

static void check_state(const char *kind, int n, const char *const *names_of_it, const int64_t *elements)
{
    trainer t = make_trainer(kind, (kiln_optim_options){0});
    kiln_params list = kiln_optim_state(t.o);
    assert_int_equal(list.count, n + 1);
    for (int i = 0; i < n; i++) {
        assert_string_equal(list.names[i], names_of_it[i]);
        assert_int_equal(kiln_numel(list.tensors[i]), elements[i]);
    }
    assert_string_equal(list.names[n], "skipped");
    free_trainer(&t);
}

/* States of other shapes than the parameter's, and of another rule. */
static void test_state_shapes(void **state)
{
    (void)state;
    check_state("adafactor", 3, (const char *const[]){"0.weight.row_var", "0.weight.col_var", "0.bias.variance"},
                (const int64_t[]){CLASSES, FEATURES, CLASSES});
    check_state("muon", 3, (const char *const[]){"0.weight.momentum_buffer", "0.bias.exp_avg", "0.bias.exp_avg_sq"},
                (const int64_t[]){CLASSES * FEATURES, CLASSES, CLASSES});
}

static void test_state(void **state)
{
    (void)state;
    trainer t = make_trainer("rmsprop", (kiln_optim_options){.centered = true, .momentum = 0.9});
    kiln_params list = kiln_optim_state(t.o); /* before the first step */
    const char *want[] = {"0.weight.square_avg",
                          "0.weight.momentum_buffer",
                          "0.weight.grad_avg",
                          "0.bias.square_avg",
                          "0.bias.momentum_buffer",
                          "0.bias.grad_avg",
                          "skipped"};
    assert_int_equal(list.count, 7);
    for (int i = 0; i < 7; i++)
        assert_string_equal(list.names[i], want[i]);
    assert_int_equal(kiln_device_of(list.tensors[0]), kiln_default_device());
    kiln_tensor *first = list.tensors[0];
    assert_true(train(&t, 0, 0));
    assert_ptr_equal(kiln_optim_state(t.o).tensors[0], first);
    assert_false(kiln_optim_set_steps(t.o, -1));
    expect_error(KILN_E_ARGUMENT, "rmsprop", "-1");
    free_trainer(&t);

    t = make_trainer("sgd", (kiln_optim_options){.lr = 0.1}); /* has nothing to save */
    assert_int_equal(kiln_optim_state(t.o).count, 0);
    assert_true(kiln_optim_set_steps(t.o, 7));
    assert_true(train(&t, 0, 0));
    assert_int_equal(kiln_optim_steps(t.o), 8);
    assert_true(kiln_ok());
    free_trainer(&t);
}

/* ---- Plans ---- */

/* Rates and corrections that change do not make new plans; the updates are the optimizer's. */
static void check_replayed(const char *kind)
{
    trainer t = make_trainer(kind, (kiln_optim_options){.lr = 0.1});
    uint64_t allocations = 0;
    core_use_up_handles();
    kiln_plan_cache_set_capacity(0);
    kiln_plan_cache_set_capacity(256);
    for (int i = 0; i < 8; i++) {
        kiln_optim_set_lr(t.o, -1, 0.1 / (i + 1));
        if (i == 4)
            allocations = kiln_alloc_count();
        assert_true(train(&t, i, 0));
        kiln_plan_info info;
        assert_true(kiln_plan_last(&info) && info.replayed == (i > 0));
    }
    if (kiln_default_device() == KILN_CPU)
        assert_int_equal(kiln_alloc_count() - allocations, 0);
    kiln_step {
        kiln_zero_grad(t.o);
        assert_true(gradients(&t, 0, 0) && kiln_optim_step(t.o));
        char *text = kiln_plan_describe();
        assert_non_null(text);
        assert_null(strstr(text, "optimizer 0 B"));
        kiln_string_free(text);
    }
    free_trainer(&t);
}

static void test_replayed(void **state)
{
    (void)state;
    skip_if_eager();
    check_replayed("adam"); /* a formula */
    check_replayed("lamb"); /* compositions */
    check_replayed("muon");
}

/* ---- Modules that move, and averages ---- */

static bool train_module(kiln_module *m, kiln_optim *o, int seed)
{
    kiln_device device = kiln_module_device(m);
    int64_t labels[BATCH];
    for (int i = 0; i < BATCH; i++)
        labels[i] = (i + seed) % CLASSES;
    kiln_step {
        kiln_tensor *x = kiln_to(core_data(seed + 10, KILN_SHAPE(BATCH, FEATURES)), device);
        kiln_tensor *y = kiln_tensor_new(labels, KILN_I64, KILN_SHAPE(BATCH), device);
        kiln_zero_grad(o);
        kiln_backward(kiln_cross_entropy(kiln_forward(m, x), y));
        kiln_optim_step(o);
    }
    return kiln_ok();
}

static void test_moved(void **state)
{
    (void)state;
    kiln_device there = kiln_device_parse("sim:1");
    if (there == KILN_NO_DEVICE) {
        kiln_error_clear();
        skip_because("needs a second simulated device");
    }
    float values[2][CLASSES * FEATURES];
    for (int moves = 0; moves < 2; moves++) {
        kiln_manual_seed(1);
        kiln_module *m = kiln_nn_linear(FEATURES, CLASSES);
        kiln_optim *o = kiln_optim_adam(kiln_parameters(m), .lr = 0.1);
        kiln_ema *e = kiln_ema_new(m, 0.5);
        assert_true(o && e);
        for (int i = 0; i < 9; i++) {
            if (moves && i % 3 == 0 && i)
                assert_true(kiln_module_to(m, i % 2 ? there : kiln_default_device()));
            assert_true(train_module(m, o, i) && kiln_ema_update(e));
        }
        assert_int_equal(kiln_device_of(kiln_optim_state(o).tensors[0]), kiln_module_device(m));
        assert_true(kiln_read(kiln_module_tensor(m, "weight"), values[moves], sizeof values[moves]));
        for (int k = 0; k < (int)kiln_ema_state(e).count; k++)
            assert_int_equal(kiln_device_of(kiln_ema_state(e).tensors[k]), kiln_module_device(m));
        kiln_ema_free(e);
        kiln_optim_free(o);
        kiln_module_free(m);
    }
    core_assert_alike(values[1], values[0], CLASSES * FEATURES);
}

static void test_ema(void **state)
{
    (void)state;
    kiln_module *m = kiln_module_new("Counted", NULL, NULL, NULL);
    kiln_tensor *w = kiln_module_add_parameter(m, "w", kiln_keep(core_data(1, KILN_SHAPE(4))));
    kiln_tensor *count = kiln_module_add_buffer(m, "count", kiln_keep(kiln_zeros(KILN_SHAPE(1), KILN_I64)));
    float weight[4], average[4], got[4];
    int64_t counted;
    assert_true(w && count && kiln_eval());
    memcpy(average, core_f32(w), sizeof average);
    kiln_ema *e = kiln_ema_new(m, 0.75);
    assert_non_null(e);
    for (int i = 1; i < 5; i++) {
        kiln_step
            kiln_no_grad {
                kiln_assign(w, core_data(i, KILN_SHAPE(4)));
                kiln_assign(count, kiln_add_scalar(count, 1));
                assert_true(kiln_ema_update(e));
            }
        memcpy(weight, core_f32(w), sizeof weight);
        for (int k = 0; k < 4; k++)
            average[k] = average[k] + 0.25f * (weight[k] - average[k]);
        kiln_step { /* a discarded update is none */
            kiln_ema_update(e);
            assert_null(core_eager() ? NULL : kiln_matmul(w, count));
        }
        if (!core_eager())
            kiln_error_clear();
        else
            for (int k = 0; k < 4; k++)
                average[k] = average[k] + 0.25f * (weight[k] - average[k]);
    }
    kiln_params list = kiln_ema_state(e);
    assert_int_equal(list.count, 2);
    assert_string_equal(list.names[0], "w");
    assert_string_equal(list.names[1], "count");
    for (int swaps = 0; swaps < 4; swaps++) {
        assert_true(kiln_read(swaps % 2 ? w : list.tensors[0], got, sizeof got));
        assert_memory_equal(got, average, sizeof got);
        assert_true(kiln_read(swaps % 2 ? list.tensors[0] : w, got, sizeof got));
        assert_memory_equal(got, weight, sizeof got);
        assert_true(kiln_read(list.tensors[1], &counted, sizeof counted) && counted == 4);
        assert_true(kiln_ema_swap(e));
    }
    kiln_ema_free(e);
    bool met = true;
    for (int n = 0; met; n++) { /* each allocation fails once */
        assert_true(n < 1000);
        kiln_alloc_fail_after(n);
        e = kiln_ema_new(m, 0.5);
        met = !e || !kiln_ema_update(e) || !kiln_ema_swap(e) || !kiln_eval();
        kiln_alloc_fail_after(-1);
        if (met)
            expect_error(KILN_E_MEMORY, NULL, NULL);
        kiln_ema_free(e);
    }
    assert_null(kiln_ema_new(m, 1.5));
    expect_error(KILN_E_ARGUMENT, "ema", "1.5");
    assert_null(kiln_ema_new(NULL, 0.5));
    expect_error(KILN_E_ARGUMENT, "ema", "NULL");
    assert_false(kiln_ema_update(NULL));
    expect_error(KILN_E_ARGUMENT, "average", "NULL");
    kiln_ema_free(NULL);
    kiln_module_free(m);
}

/* ---- Clipping ---- */

static void test_clip(void **state)
{
    (void)state;
    trainer t = make_trainer("sgd", (kiln_optim_options){.lr = 0.1});
    kiln_tensor *none = kiln_clip_grad_norm(params_of(&t), 1); /* outside a scope it is the caller's */
    assert_near(kiln_item(none), 0, 0);
    kiln_release(none);
    kiln_step
        assert_true(gradients(&t, 0, 0));
    float before[CLASSES * FEATURES], after[CLASSES * FEATURES];
    memcpy(before, core_f32(kiln_grad_of(t.p[0])), sizeof before);
    kiln_step {
        assert_true(kiln_clip_grad_value(params_of(&t), 0.05));
        assert_true(core_eager() || !kiln_matmul(t.p[0], t.p[0])); /* discards the step, and the gradients come back */
    }
    if (!core_eager()) {
        expect_error(KILN_E_SHAPE, "matmul", NULL);
        assert_memory_equal(core_f32(kiln_grad_of(t.p[0])), before, sizeof before);
        assert_true(kiln_clip_grad_value(params_of(&t), 0.05));
    }
    memcpy(after, core_f32(kiln_grad_of(t.p[0])), sizeof after);
    for (int i = 0; i < CLASSES * FEATURES; i++)
        assert_true(after[i] == fminf(fmaxf(before[i], -0.05f), 0.05f));
    assert_null(kiln_clip_grad_norm(params_of(&t), -1));
    expect_error(KILN_E_ARGUMENT, "clip_grad_norm", "-1");
    assert_false(kiln_clip_grad_value(params_of(&t), NAN));
    expect_error(KILN_E_ARGUMENT, "clip_grad_value", "nan");
    assert_null(kiln_clip_grad_norm((kiln_params){1, NULL, NULL}, 1));
    expect_error(KILN_E_ARGUMENT, "clip_grad_norm", "list");
    free_trainer(&t);

    /* 300² is more than f16 can hold; the norm is not. */
    kiln_tensor *h = kiln_keep(kiln_ones(KILN_SHAPE(4), KILN_F16));
    assert_true(kiln_eval() && kiln_requires_grad(h, true));
    kiln_scope {
        assert_true(kiln_backward(kiln_sum_all(kiln_mul_scalar(h, 300))));
        assert_near(kiln_item(kiln_clip_grad_norm((kiln_params){1, &h, NULL}, 6)), 600, 1e-6);
        assert_f32(kiln_cast(kiln_grad_of(h), KILN_F32), 3, 3, 3, 3);
    }
    kiln_release(h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        core_test(test_groups),
        core_test(test_groups_apart),
        core_test(test_bad_options),
        core_test(test_bad_schedules),
        core_test(test_forgotten_zero_grad),
        core_test(test_frozen),
        core_test(test_restored),
        core_test(test_state),
        core_test(test_replayed),
        core_test(test_moved),
        core_test(test_ema),
        core_test(test_clip),
        core_test(test_names),
        core_test(test_exact_options),
        core_test(test_state_shapes),
    };
    return CORE_MAIN(tests);
}
