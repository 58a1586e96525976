/* Loss scaling: a scaled step is the plain one to the bit, one that is left out never happened, the scale goes
 * PyTorch's way, and all of it holds for every optimizer, several at once, with clipping and accumulation, in a step
 * and outside one, where steps are discarded and memory runs out. */
#include "core/alloc.h"
#include "support/optim.h"

/* ctest: name=eager env=KILN_EAGER=1 */

static const struct {
    const char *name;
    kiln_optim_options options;
} all_kinds[] = {{"adam", {.lr = 0.1, .amsgrad = true, .weight_decay = 0.01}},
                 {"adamw", {.lr = 0.1, .weight_decay = 0.1}},
                 {"nadam", {.lr = 0.1}},
                 {"radam", {.lr = 0.1, .beta2 = 0.9}},
                 {"rmsprop", {.lr = 0.1, .momentum = 0.5, .centered = true}},
                 {"adagrad", {.lr = 0.1, .lr_decay = 0.1, .initial_accumulator = 0.1}},
                 {"adadelta", {.lr = 1}},
                 {"adafactor", {.lr = 0.1}},
                 {"lamb", {.lr = 0.1}},
                 {"lion", {.lr = 0.01}},
                 {"muon", {.lr = 0.1}},
                 {"sgd", {.lr = 0.1, .momentum = 0.9, .dampening = 0.5}},
                 {"sgd", {.lr = 0.1, .momentum = 0.9, .nesterov = true}},
                 {"sgd", {.lr = 0.1}}};
enum { ALL_KINDS = sizeof all_kinds / sizeof *all_kinds };

/* The loss of batch `seed` times `factor`, which is infinite where gradients are to be. */
static kiln_tensor *loss_of(trainer *t, int seed, double factor)
{
    int64_t labels[BATCH];
    for (int i = 0; i < BATCH; i++)
        labels[i] = (i + seed) % CLASSES;
    kiln_device device = kiln_device_of(t->p[0]);
    kiln_tensor *x = kiln_to(core_data(seed + 10, KILN_SHAPE(BATCH, FEATURES)), device);
    kiln_tensor *y = kiln_tensor_new(labels, KILN_I64, KILN_SHAPE(BATCH), device);
    return kiln_mul_scalar(kiln_cross_entropy(kiln_linear(x, t->p[0], t->p[1]), y), factor);
}

static void write_scaled(trainer *t, kiln_scaler *s, int seed, double factor)
{
    kiln_zero_grad(t->o);
    assert_true(kiln_backward(kiln_scaler_scale(s, loss_of(t, seed, factor))));
    assert_true(kiln_scaler_step(s, t->o));
    assert_true(kiln_scaler_update(s));
}

static void train_scaled(trainer *t, kiln_scaler *s, int seed, double factor)
{
    kiln_step
        write_scaled(t, s, seed, factor);
    assert_true(kiln_ok());
}

/* What the host computes with pow and a device with its own may differ in the last place. */
static void assert_close(trainer *t, const float *want)
{
    float got[VALUES];
    read_values(t, got);
    for (int i = 0; i < VALUES; i++)
        if (!(fabsf(got[i] - want[i]) <= 2e-6f * (1 + fabsf(want[i]))))
            fail_msg("%s: element %d is %.9g instead of %.9g", kiln_optim_name(t->o), i, got[i], want[i]);
}

static void test_equals_plain(void **state)
{
    (void)state;
    for (int kind = 0; kind < ALL_KINDS; kind++) {
        float want[STEPS + 1][VALUES];
        undisturbed(all_kinds[kind].name, all_kinds[kind].options, want);
        trainer t = make_trainer(all_kinds[kind].name, all_kinds[kind].options);
        kiln_scaler *s = kiln_scaler_new();
        for (int i = 0; i < STEPS; i++) {
            train_scaled(&t, s, i, 1);
            assert_close(&t, want[i + 1]);
        }
        assert_int_equal(kiln_optim_steps(t.o), STEPS);
        assert_null(kiln_scaler_blame(s, t.o).parameter);
        kiln_scaler_free(s);
        free_trainer(&t);
    }
}

/* Steps that are left out change nothing, whatever comes before and after them: neither values nor states nor counts.
 */
static void test_left_out(void **state)
{
    (void)state;
    for (int kind = 0; kind < ALL_KINDS; kind++)
        for (int in_step = 0; in_step < 2; in_step++) {
            trainer calm = make_trainer(all_kinds[kind].name, all_kinds[kind].options);
            trainer t = make_trainer(all_kinds[kind].name, all_kinds[kind].options);
            kiln_scaler *a = kiln_scaler_new(), *b = kiln_scaler_new(.growth_interval = 2);
            for (int i = 0; i < STEPS; i++) {
                float want[VALUES];
                for (int bad = 0; bad < (i % 3 == 0 ? 2 : i % 2); bad++) {
                    if (in_step)
                        train_scaled(&t, b, i + bad, bad ? NAN : INFINITY);
                    else
                        kiln_scope
                            write_scaled(&t, b, i + bad, bad ? NAN : INFINITY);
                }
                train_scaled(&calm, a, i, 1);
                if (in_step)
                    train_scaled(&t, b, i, 1);
                else
                    kiln_scope
                        write_scaled(&t, b, i, 1);
                read_values(&calm, want);
                assert_same_values(&t, want);
            }
            assert_int_equal(kiln_optim_steps(t.o), STEPS);
            core_same_tensors(kiln_optim_state(t.o), kiln_optim_state(calm.o));
            kiln_scaler_free(a);
            kiln_scaler_free(b);
            free_trainer(&calm);
            free_trainer(&t);
        }
}

/* A plain step behind scaled ones goes on counting where they stopped. */
static void test_plain_between(void **state)
{
    (void)state;
    float want[STEPS + 1][VALUES];
    undisturbed("adam", (kiln_optim_options){.lr = 0.1}, want);
    trainer t = make_trainer("adam", (kiln_optim_options){.lr = 0.1});
    kiln_scaler *s = kiln_scaler_new();
    for (int i = 0; i < STEPS; i++) {
        train_scaled(&t, s, i, INFINITY);
        if (i % 2)
            assert_true(train(&t, i, 0));
        else
            train_scaled(&t, s, i, 1);
        assert_close(&t, want[i + 1]);
        if (i % 3 == 2)
            assert_int_equal(kiln_optim_steps(t.o), i + 1);
    }
    kiln_scaler_free(s);
    free_trainer(&t);
}

/* ---- The scale ---- */

/* torch._amp_update_scale_ */
static void torch_update(kiln_scaler_state *s, const kiln_scaler_options *o, bool found)
{
    if (found) {
        s->scale *= o->backoff_factor;
        s->growth_tracker = 0;
        s->skipped++;
        return;
    }
    if (++s->growth_tracker == o->growth_interval) {
        if (isfinite((float)(s->scale * o->growth_factor)))
            s->scale *= o->growth_factor;
        s->growth_tracker = 0;
    }
}

static void check_scale(kiln_scaler_options o, uint32_t bad)
{
    kiln_scaler *s = kiln_scaler_new(.init_scale = o.init_scale, .growth_factor = o.growth_factor,
                                     .backoff_factor = o.backoff_factor, .growth_interval = o.growth_interval);
    trainer t = make_trainer("sgd", (kiln_optim_options){.lr = 0.1});
    kiln_scaler_state want = {.scale = o.init_scale};
    for (int i = 0; i < 20; i++) {
        bool found = bad >> i & 1;
        train_scaled(&t, s, i, found ? NAN : 1);
        torch_update(&want, &o, found);
        kiln_scaler_state got = kiln_scaler_get(s);
        assert_true(got.scale == want.scale && got.growth_tracker == want.growth_tracker);
        assert_int_equal(got.skipped, want.skipped);
    }
    kiln_scaler_free(s);
    free_trainer(&t);
}

static void test_scale(void **state)
{
    (void)state;
    check_scale((kiln_scaler_options){0, 65536, 2, 0.5, 3, false}, 0x8E01);
    check_scale((kiln_scaler_options){0, 4, 4, 0.25, 1, false}, 0x00F1);
    check_scale((kiln_scaler_options){0, 1, 1.5, 0.75, 2, false}, 0xAAAA);
    check_scale((kiln_scaler_options){0, 0x1p126, 2, 0.5, 1, false}, 0); /* stops below f32's end */
}

static void test_small_scale_is_told(void **state)
{
    (void)state;
    trainer t = make_trainer("sgd", (kiln_optim_options){.lr = 0.1});
    kiln_scaler *s = kiln_scaler_new(.init_scale = 4);
    while (kiln_next_notice())
        ;
    int told = 0;
    for (int i = 0; i < 400; i++) {
        train_scaled(&t, s, 0, NAN);
        for (const char *notice; (notice = kiln_next_notice());)
            told += strstr(notice, "scale") != NULL;
    }
    assert_int_equal(told, 1);
    kiln_scaler_culprit c = kiln_scaler_blame(s, t.o);
    assert_string_equal(c.parameter, "0.weight");
    assert_int_equal(c.values, CLASSES * FEATURES);
    assert_int_equal(c.skipped, 400);
    kiln_scaler_free(s);
    free_trainer(&t);
}

static void test_state(void **state)
{
    (void)state;
    trainer t = make_trainer("adam", (kiln_optim_options){.lr = 0.1});
    kiln_scaler *s = kiln_scaler_new(.growth_interval = 5);
    for (int i = 0; i < 4; i++)
        train_scaled(&t, s, i, i == 1 ? INFINITY : 1);
    kiln_scaler_state saved = kiln_scaler_get(s);
    assert_true(saved.scale == 32768 && saved.growth_tracker == 2 && saved.skipped == 1);
    kiln_scaler *other = kiln_scaler_new(.growth_interval = 5);
    assert_true(kiln_scaler_set(other, saved));
    assert_true(kiln_scaler_get(other).scale == 32768);
    for (int i = 0; i < 3; i++)
        train_scaled(&t, other, i, 1);
    saved = kiln_scaler_get(other);
    assert_true(saved.scale == 65536 && saved.growth_tracker == 0 && saved.skipped == 1);
    assert_false(kiln_scaler_set(other, (kiln_scaler_state){.scale = -1}));
    expect_error(KILN_E_ARGUMENT, "scaler", "-1");
    kiln_scaler_free(s);
    kiln_scaler_free(other);
    free_trainer(&t);
}

/* ---- Several optimizers, clipping, accumulation ---- */

static void test_two_optimizers(void **state)
{
    (void)state;
    trainer a = make_trainer("adam", (kiln_optim_options){.lr = 0.1}),
            b = make_trainer("sgd", (kiln_optim_options){.lr = 0.1});
    kiln_scaler *s = kiln_scaler_new();
    float before[VALUES], after[VALUES];
    read_values(&b, before);
    kiln_step {
        assert_true(kiln_backward(kiln_scaler_scale(s, loss_of(&a, 0, 1))));
        assert_true(kiln_backward(kiln_scaler_scale(s, loss_of(&b, 0, INFINITY))));
        assert_true(kiln_scaler_step(s, a.o));
        assert_true(kiln_scaler_step(s, b.o));
        assert_true(kiln_scaler_update(s));
    }
    assert_same_values(&b, before);
    read_values(&a, after);
    assert_true(memcmp(before, after, sizeof before) != 0);
    assert_true(kiln_scaler_get(s).scale == 32768); /* one of them suffices */
    assert_int_equal(kiln_scaler_get(s).skipped, 1);
    assert_int_equal(kiln_optim_steps(a.o), 1);
    assert_int_equal(kiln_optim_steps(b.o), 0);
    assert_null(kiln_scaler_blame(s, a.o).parameter);
    assert_string_equal(kiln_scaler_blame(s, b.o).parameter, "0.weight");
    kiln_scaler_free(s);
    free_trainer(&a);
    free_trainer(&b);
}

/* More parameters than are looked at at once: the first one with a bad gradient is named, whoever else has one. */
static void test_many_parameters(void **state)
{
    (void)state;
    enum { MANY = 40, FEW = 3 };
    static const struct {
        int first, second; /* whose gradients are infinite; -1: none */
    } tries[] = {{0, -1}, {MANY - 1, -1}, {13, 27}, {26, 30}, {2, MANY - 1}};
    kiln_tensor *p[MANY];
    for (int i = 0; i < MANY; i++)
        p[i] = kiln_keep(kiln_requires_grad(core_data(i, KILN_SHAPE(FEW)), true));
    kiln_optim *o = kiln_optim_sgd(((kiln_params){MANY, p, NULL}), .lr = 0.1);
    kiln_scaler *s = kiln_scaler_new();
    assert_non_null(o);
    for (int t = 0; t < 5; t++) {
        kiln_step {
            kiln_tensor *loss = NULL;
            for (int i = 0; i < MANY; i++) {
                bool bad = i == tries[t].first || i == tries[t].second;
                kiln_tensor *part = kiln_mul_scalar(kiln_sum_all(p[i]), bad ? INFINITY : 1);
                loss = loss ? kiln_add(loss, part) : part;
            }
            kiln_zero_grad(o);
            assert_true(kiln_backward(kiln_scaler_scale(s, loss)));
            assert_true(kiln_scaler_step(s, o));
            assert_true(kiln_scaler_update(s));
        }
        char name[8];
        snprintf(name, sizeof name, "%d", tries[t].first);
        kiln_scaler_culprit culprit = kiln_scaler_blame(s, o);
        assert_string_equal(culprit.parameter, name);
        assert_int_equal(culprit.values, FEW);
        assert_int_equal(culprit.skipped, t + 1);
    }
    kiln_scaler_free(s);
    kiln_optim_free(o);
    for (int i = 0; i < MANY; i++)
        kiln_release(p[i]);
}

static void clipped(trainer *t, kiln_scaler *s, int seed, double norm)
{
    kiln_step {
        kiln_zero_grad(t->o);
        for (int k = 0; k < 2; k++) /* two batches make a step */
            kiln_backward(kiln_scaler_scale(s, kiln_mul_scalar(loss_of(t, 2 * seed + k, 1), 0.5)));
        kiln_scaler_unscale(s, t->o);
        if (norm > 0)
            kiln_clip_grad_norm(params_of(t), norm);
        else
            kiln_clip_grad_value(params_of(t), -norm);
        kiln_scaler_step(s, t->o);
        kiln_scaler_update(s);
    }
    assert_true(kiln_ok());
}

/* Clipped gradients are the plain ones: the scale is out of them by then. */
static void test_clipping(void **state)
{
    (void)state;
    for (int by_value = 0; by_value < 2; by_value++) {
        double norm = by_value ? -0.01 : 0.1;
        trainer a = make_trainer("sgd", (kiln_optim_options){.lr = 1}),
                b = make_trainer("sgd", (kiln_optim_options){.lr = 1});
        kiln_scaler *off = kiln_scaler_new(.disabled = true), *on = kiln_scaler_new(.init_scale = 1024);
        for (int i = 0; i < 4; i++) {
            float want[VALUES];
            clipped(&a, off, i, norm);
            clipped(&b, on, i, norm);
            read_values(&a, want);
            assert_close(&b, want);
        }
        assert_true(kiln_scaler_get(off).scale == 1);
        kiln_scaler_free(off);
        kiln_scaler_free(on);
        free_trainer(&a);
        free_trainer(&b);
    }
}

/* A parameter without a gradient in some steps, among them one that is left out, counts only its own. */
static void test_late_starter(void **state)
{
    (void)state;
    trainer t = make_trainer("adam", (kiln_optim_options){.lr = 0.1}),
            calm = make_trainer("adam", (kiln_optim_options){.lr = 0.1});
    kiln_scaler *s = kiln_scaler_new(), *other = kiln_scaler_new();
    static const struct {
        bool bias;
        double factor;
    } steps[] = {{false, 1}, {false, INFINITY}, {true, 1}, {true, INFINITY}, {false, 1}, {true, 1}};
    for (int i = 0; i < 6; i++)
        for (int which = 0; which < 2; which++) {
            trainer *x = which ? &calm : &t;
            if (which && steps[i].factor != 1)
                continue;
            kiln_requires_grad(x->p[1], steps[i].bias);
            train_scaled(x, which ? other : s, i, steps[i].factor);
        }
    float want[VALUES];
    read_values(&calm, want);
    assert_same_values(&t, want);
    kiln_requires_grad(t.p[1], true);
    kiln_requires_grad(calm.p[1], true);
    core_same_tensors(kiln_optim_state(t.o), kiln_optim_state(calm.o));
    assert_int_equal(kiln_optim_steps(t.o), 4);
    kiln_scaler_free(s);
    kiln_scaler_free(other);
    free_trainer(&t);
    free_trainer(&calm);
}

/* ---- What goes wrong ---- */

static void test_order_of_calls(void **state)
{
    (void)state;
    trainer t = make_trainer("adam", (kiln_optim_options){.lr = 0.1});
    kiln_scaler *s = kiln_scaler_new();
    assert_false(kiln_scaler_update(s));
    expect_error(KILN_E_STATE, "scaler", "nothing to go by");
    kiln_scope
        assert_true(kiln_backward(kiln_scaler_scale(s, loss_of(&t, 0, 1))));
    assert_true(kiln_scaler_unscale(s, t.o));
    assert_false(kiln_scaler_unscale(s, t.o));
    expect_error(KILN_E_STATE, "scaler", "already");
    assert_true(kiln_scaler_step(s, t.o));
    assert_false(kiln_scaler_step(s, t.o));
    expect_error(KILN_E_STATE, "scaler", "since the last update");
    assert_false(kiln_scaler_unscale(s, t.o));
    expect_error(KILN_E_STATE, "scaler", "before");
    assert_true(kiln_scaler_update(s));
    assert_null(kiln_scaler_scale(s, NULL));
    expect_error(KILN_E_ARGUMENT, NULL, NULL);
    assert_null(kiln_scaler_new(.backoff_factor = 1));
    expect_error(KILN_E_ARGUMENT, "scaler", "backoff_factor");
    assert_null(kiln_scaler_new(.growth_factor = 0.5));
    expect_error(KILN_E_ARGUMENT, "scaler", "growth_factor");
    assert_null(kiln_scaler_new(.init_scale = INFINITY));
    expect_error(KILN_E_ARGUMENT, "scaler", "init_scale");
    assert_null(kiln_scaler_new(.growth_interval = -1));
    expect_error(KILN_E_ARGUMENT, "scaler", "growth_interval");
    kiln_scaler_free(s);
    free_trainer(&t);
}

static void test_half_parameters(void **state)
{
    (void)state;
    kiln_tensor *p = NULL;
    kiln_scope
        p = kiln_keep(kiln_cast(core_data(1, KILN_SHAPE(4)), KILN_F16));
    assert_non_null(kiln_requires_grad(p, true));
    kiln_optim *o = kiln_optim_sgd(((kiln_params){1, &p, NULL}), .lr = 0.1);
    kiln_scaler *s = kiln_scaler_new();
    kiln_step {
        kiln_backward(kiln_scaler_scale(s, kiln_sum_all(kiln_cast(p, KILN_F32))));
        assert_false(kiln_scaler_step(s, o));
    }
    expect_error(KILN_E_DTYPE, "scaler", "f16");
    kiln_scaler_free(s);
    kiln_optim_free(o);
    kiln_release(p);
}

/* A step that is discarded leaves the scaler, too, as it was. */
static void test_discarded(void **state)
{
    (void)state;
    skip_if_eager();
    trainer t = make_trainer("adam", (kiln_optim_options){.lr = 0.1}),
            calm = make_trainer("adam", (kiln_optim_options){.lr = 0.1});
    kiln_scaler *s = kiln_scaler_new(.growth_interval = 2), *other = kiln_scaler_new(.growth_interval = 2);
    for (int i = 0; i < 4; i++) {
        for (int place = 0; place < 4; place++) {
            kiln_step {
                kiln_zero_grad(t.o);
                kiln_backward(kiln_scaler_scale(s, loss_of(&t, i, place % 2 ? INFINITY : 1)));
                if (place == 0)
                    assert_null(kiln_matmul(t.p[0], t.p[0]));
                kiln_scaler_unscale(s, t.o);
                if (place == 1)
                    assert_null(kiln_matmul(t.p[0], t.p[0]));
                kiln_scaler_step(s, t.o);
                if (place == 2)
                    assert_null(kiln_matmul(t.p[0], t.p[0]));
                kiln_scaler_update(s);
                if (place == 3)
                    assert_null(kiln_matmul(t.p[0], t.p[0]));
            }
            expect_error(KILN_E_SHAPE, "matmul", NULL);
        }
        train_scaled(&t, s, i, 1);
        train_scaled(&calm, other, i, 1);
        float want[VALUES];
        read_values(&calm, want);
        assert_same_values(&t, want);
        kiln_scaler_state a = kiln_scaler_get(s), b = kiln_scaler_get(other);
        assert_true(a.scale == b.scale && a.growth_tracker == b.growth_tracker && a.skipped == 0);
    }
    kiln_scaler_free(s);
    kiln_scaler_free(other);
    free_trainer(&t);
    free_trainer(&calm);
}

/* Every allocation of a step fails once: an error, and the next step is to the bit what it would have been. */
static void test_failing_allocations(void **state)
{
    (void)state;
    skip_if_eager();
    trainer calm = make_trainer("nadam", (kiln_optim_options){.lr = 0.1});
    kiln_scaler *s = kiln_scaler_new();
    float want[2][VALUES];
    train_scaled(&calm, s, 0, 1);
    read_values(&calm, want[0]);
    train_scaled(&calm, s, 1, 1);
    read_values(&calm, want[1]);
    kiln_scaler_free(s);
    free_trainer(&calm);
    bool failed = true;
    for (int64_t n = 0; failed; n++) {
        trainer t = make_trainer("nadam", (kiln_optim_options){.lr = 0.1});
        s = kiln_scaler_new();
        if (n % 2) /* the first step makes more than the next ones */
            train_scaled(&t, s, 0, 1);
        kiln_alloc_fail_after(n / 2);
        kiln_step {
            kiln_zero_grad(t.o);
            kiln_tensor *loss = loss_of(&t, (int)(n % 2), 1);
            if (kiln_backward(kiln_scaler_scale(s, loss)) && kiln_scaler_step(s, t.o))
                kiln_scaler_update(s);
        }
        kiln_alloc_fail_after(-1);
        failed = !kiln_ok() || n % 2 == 0;
        bool again = !kiln_ok();
        if (again)
            expect_error(KILN_E_MEMORY, NULL, NULL);
        if (again)
            train_scaled(&t, s, (int)(n % 2), 1);
        assert_same_values(&t, want[n % 2]);
        kiln_scaler_free(s);
        free_trainer(&t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        core_test(test_equals_plain),
        core_test(test_left_out),
        core_test(test_plain_between),
        core_test(test_scale),
        core_test(test_small_scale_is_told),
        core_test(test_state),
        core_test(test_two_optimizers),
        core_test(test_many_parameters),
        core_test(test_clipping),
        core_test(test_late_starter),
        core_test(test_order_of_calls),
        core_test(test_half_parameters),
        core_test(test_discarded),
        core_test(test_failing_allocations),
    };
    return CORE_MAIN(tests);
}
