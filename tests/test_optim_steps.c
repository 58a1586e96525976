/* Optimizer steps as transactions: one that is discarded, whatever stopped it and whenever that is found out, never
 * happened. */
#include <unistd.h>
#include "core/alloc.h"
#include "support/optim.h"
#include "support/train.h"

/* ctest: name=eager env=KILN_EAGER=1 */

/* A bad label is found when the step runs: on the host at its end, on a device later; then none of what was given to it
 * meanwhile counts. */
static void check_bad_label(int kind, int meanwhile)
{
    float want[STEPS + 1][VALUES];
    undisturbed(kinds[kind].name, kinds[kind].options, want);
    trainer t = make_trainer(kinds[kind].name, kinds[kind].options);
    for (int i = 0; i < STEPS; i++) {
        bool told = !train(&t, i, CLASSES);
        for (int k = 0; k < meanwhile && !told; k++)
            told = !train(&t, i, 0);
        if (!told)
            assert_false(kiln_device_wait(kiln_default_device()));
        expect_error(KILN_E_INDEX, "cross_entropy", NULL);
        assert_int_equal(kiln_optim_steps(t.o), i);
        assert_same_values(&t, want[i]);
        assert_true(train(&t, i, 0));
        assert_same_values(&t, want[i + 1]);
        assert_int_equal(kiln_optim_steps(t.o), i + 1);
    }
    free_trainer(&t);
}

static void test_bad_label(void **state)
{
    (void)state;
    skip_if_eager(); /* there operations before the bad one have run already */
    kiln_sim_control_fn control = sim_switch();
    for (int kind = 0; kind < KINDS; kind++)
        for (int meanwhile = 0; meanwhile < 3; meanwhile++) {
            check_bad_label(kind, meanwhile);
            if (!control || !core_on("sim"))
                continue;
            control(0, KILN_SIM_SLOW_RUNS, 1000);
            check_bad_label(kind, meanwhile);
            control(0, KILN_SIM_SLOW_RUNS, 0);
        }
}

/* The same when nobody looks between the failure and the next attempt but the step that learns of it. */
static void test_late_news(void **state)
{
    (void)state;
    skip_if_eager();
    float want[STEPS + 1][VALUES];
    undisturbed("adam", (kiln_optim_options){.lr = 0.1}, want);
    trainer t = make_trainer("adam", (kiln_optim_options){.lr = 0.1});
    int taken = 0;
    for (int attempt = 0; taken < STEPS; attempt++) {
        assert_true(attempt < 1000);
        if (attempt % 3 == 0)
            train(&t, taken, CLASSES);
        kiln_error_clear();
        train(&t, taken, 0);
        kiln_device_wait(kiln_default_device());
        kiln_error_clear();
        taken = (int)kiln_optim_steps(t.o);
        assert_same_values(&t, want[taken]);
    }
    free_trainer(&t);
}

/* The thread is told while steps that will be skipped still wait in the queue, behind slow copies. Other devices than
 * the simulated ones tell it when it waits. */
static void test_early_news(void **state)
{
    (void)state;
    kiln_sim_control_fn control = sim_switch();
    if (!control || !core_on("sim") || core_eager())
        skip_because("about the queue of simulated devices, not eagerly");
    float want[STEPS + 1][VALUES];
    undisturbed("adam", (kiln_optim_options){.lr = 0.1}, want);
    trainer t = make_trainer("adam", (kiln_optim_options){.lr = 0.1});
    for (int i = 0; i < 3; i++) {
        control(0, KILN_SIM_SLOW_COPIES, 3000);
        bool told = !train(&t, i, CLASSES);
        for (int k = 0; k < 1000 && !told; k++) {
            usleep(1000);
            told = !train(&t, i, 0);
        }
        assert_true(told);
        expect_error(KILN_E_INDEX, "cross_entropy", NULL);
        assert_int_equal(kiln_optim_steps(t.o), i);
        control(0, KILN_SIM_SLOW_COPIES, 0);
        assert_true(train(&t, i, 0));
        assert_same_values(&t, want[i + 1]);
    }
    free_trainer(&t);
}

/* An error while a step is being written: before the update, after it, and outside a kiln_step. */
static void test_error_while_written(void **state)
{
    (void)state;
    skip_if_eager();
    float want[STEPS + 1][VALUES];
    undisturbed("adam", (kiln_optim_options){.lr = 0.1}, want);
    trainer t = make_trainer("adam", (kiln_optim_options){.lr = 0.1});
    for (int i = 0; i < STEPS; i++) {
        for (int after = 0; after < 2; after++) {
            kiln_step {
                kiln_zero_grad(t.o);
                assert_true(gradients(&t, i, 0));
                if (!after)
                    assert_null(kiln_matmul(t.p[0], t.p[0]));
                kiln_optim_step(t.o);
                if (after)
                    assert_null(kiln_matmul(t.p[0], t.p[0]));
            }
            expect_error(KILN_E_SHAPE, "matmul", NULL);
            assert_int_equal(kiln_optim_steps(t.o), i);
            assert_same_values(&t, want[i]);
        }
        kiln_step {
            kiln_zero_grad(t.o);
            assert_true(gradients(&t, i, 0) && kiln_optim_step(t.o));
            assert_same_values(&t, want[i + 1]); /* a look in the middle: what has run stays */
            assert_null(kiln_matmul(t.p[0], t.p[0]));
        }
        expect_error(KILN_E_SHAPE, "matmul", NULL);
        assert_int_equal(kiln_optim_steps(t.o), i + 1);
        assert_same_values(&t, want[i + 1]);
    }
    free_trainer(&t);
}

/* Every allocation of a step fails once, from the making of the optimizer on. */
static void test_allocation_fails(void **state)
{
    (void)state;
    skip_if_eager();
    enum { TRIES = 3000 };
    kiln_optim_options options = {.lr = 0.1};
    float want[STEPS + 1][VALUES];
    undisturbed("adam", options, want);
    int failed = 0, n = 0;
    for (bool met = true; met; n++) {
        assert_true(n < TRIES);
        trainer t = make_params();
        kiln_plan_cache_set_capacity(0); /* planning allocates, too */
        kiln_plan_cache_set_capacity(256);
        kiln_alloc_fail_after(n);
        t.o = optim_with("adam", params_of(&t), options);
        bool ok = t.o && train(&t, 0, 0) && kiln_optim_state(t.o).count == 5 && kiln_optim_set_steps(t.o, 1);
        kiln_scope
            ok = ok && kiln_clip_grad_norm(params_of(&t), 1) && kiln_clip_grad_value(params_of(&t), 1) && kiln_eval();
        kiln_schedule *s = ok ? kiln_schedule_multistep(t.o, 2, (int64_t[]){3, 6}, 1) : NULL;
        kiln_schedule *w = s ? kiln_schedule_warmup(t.o, 2, 1, s) : NULL;
        ok = ok && w && kiln_device_wait(kiln_default_device());
        kiln_alloc_fail_after(-1);
        assert_true(ok == kiln_ok());
        met = !ok;
        if (!ok) {
            failed++;
            expect_error(KILN_E_MEMORY, NULL, NULL);
            if (!t.o)
                assert_non_null(t.o = optim_with("adam", params_of(&t), options));
            if (kiln_optim_steps(t.o) == 0)
                assert_same_values(&t, want[0]);
            else
                assert_int_equal(kiln_optim_steps(t.o), 1);
        }
        kiln_schedule_free(w);
        for (int64_t i = kiln_optim_steps(t.o); i < 3; i++)
            assert_true(train(&t, (int)i, 0));
        assert_same_values(&t, want[3]);
        free_trainer(&t);
    }
    assert_true(failed > 20);
}

/* More steps than an optimizer remembers, while somebody holds on to a result of each. */
static void test_many_unsettled(void **state)
{
    (void)state;
    enum { MANY = 1500 };
    static kiln_tensor *norms[MANY];
    trainer t = make_trainer("adam", (kiln_optim_options){.lr = 0.01});
    for (int i = 0; i < MANY; i++) {
        kiln_step {
            kiln_zero_grad(t.o);
            assert_true(gradients(&t, i, 0));
            norms[i] = kiln_keep(kiln_clip_grad_norm(params_of(&t), 1));
            assert_true(kiln_optim_step(t.o));
        }
        if (i % 500 == 7 && !core_eager())
            train(&t, i, CLASSES);
        kiln_device_wait(i % 500 == 7 ? kiln_default_device() : KILN_CPU);
        kiln_error_clear();
    }
    assert_int_equal(kiln_optim_steps(t.o), MANY);
    for (int i = 0; i < MANY; i++)
        kiln_release(norms[i]);
    free_trainer(&t);
}

/* Two optimizers in one step, one of which goes two steps in it. */
static void test_several_in_a_step(void **state)
{
    (void)state;
    kiln_optim_options options = {.lr = 0.1};
    trainer a = make_trainer("adam", options), b = make_trainer("adam", options), c = make_trainer("adam", options);
    float want[VALUES];
    for (int i = 0; i < 3; i++) {
        kiln_step {
            kiln_zero_grad(a.o);
            kiln_zero_grad(b.o);
            assert_true(gradients(&a, i, 0) && gradients(&b, i, 0));
            assert_true(kiln_optim_step(a.o) && kiln_optim_step(b.o) && kiln_optim_step(b.o));
            assert_int_equal(kiln_optim_steps(b.o), 2 * i + 2);
        }
        assert_int_equal(kiln_optim_steps(a.o), i + 1);
        assert_int_equal(kiln_optim_steps(b.o), 2 * i + 2);
        kiln_step {
            kiln_zero_grad(c.o);
            assert_true(gradients(&c, i, 0) && kiln_optim_step(c.o));
        }
        kiln_step
            assert_true(kiln_optim_step(c.o));
    }
    read_values(&c, want);
    assert_same_values(&b, want);
    free_trainer(&a);
    free_trainer(&b);
    free_trainer(&c);
}

/* Parameters on two devices: each device's updates are a transaction of their own, and both are done. */
static void test_two_devices(void **state)
{
    (void)state;
    kiln_device there = kiln_device_parse("sim:1");
    if (there == KILN_NO_DEVICE) {
        kiln_error_clear();
        skip_because("needs a second simulated device");
    }
    float want[2][VALUES];
    for (int apart = 0; apart < 2; apart++) {
        trainer t = make_params();
        if (apart) {
            kiln_tensor *here = t.p[1];
            kiln_scope
                t.p[1] = kiln_requires_grad(kiln_keep(kiln_to(kiln_detach(here), there)), true);
            kiln_release(here);
        }
        t.o = kiln_optim_adam(params_of(&t), .lr = 0.1);
        for (int i = 0; i < 4; i++)
            kiln_step {
                kiln_zero_grad(t.o);
                for (int k = 0; k < 2; k++)
                    assert_true(kiln_backward(kiln_sum_all(kiln_square(t.p[k]))));
                assert_non_null(kiln_clip_grad_norm(params_of(&t), 0.5));
                assert_true(kiln_optim_step(t.o));
            }
        assert_int_equal(kiln_optim_steps(t.o), 4);
        read_values(&t, want[apart]);
        free_trainer(&t);
    }
    core_assert_alike(want[1], want[0], VALUES);
}

/* A parameter that shares its storage with others is updated operation by operation, one that has it to itself by one
 * node: the bits are the same. */
static void test_windows(void **state)
{
    (void)state;
    for (int kind = 0; kind < KINDS; kind++) {
        float want[STEPS + 1][VALUES];
        undisturbed(kinds[kind].name, kinds[kind].options, want);
        trainer t = make_params();
        kiln_scope
            kiln_no_grad {
                kiln_tensor *both = kiln_cat(2, (kiln_tensor *[]){kiln_reshape(t.p[0], KILN_SHAPE(-1)), t.p[1]}, 0);
                assert_true(kiln_eval());
                kiln_release(t.p[0]);
                kiln_release(t.p[1]);
                kiln_tensor *first = kiln_slice(both, 0, 0, CLASSES * FEATURES, 1);
                t.p[0] = kiln_keep(kiln_reshape(first, KILN_SHAPE(CLASSES, FEATURES)));
                t.p[1] = kiln_keep(kiln_slice(both, 0, CLASSES * FEATURES, VALUES, 1));
                assert_true(kiln_eval());
            }
        for (int k = 0; k < 2; k++)
            assert_non_null(kiln_requires_grad(t.p[k], true));
        t.o = optim_with(kinds[kind].name, params_of(&t), kinds[kind].options);
        for (int i = 0; i < STEPS; i++) {
            assert_true(train(&t, i, 0));
            assert_same_values(&t, want[i + 1]);
        }
        free_trainer(&t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        core_test(test_bad_label),           core_test(test_late_news),        core_test(test_early_news),
        core_test(test_error_while_written), core_test(test_allocation_fails), core_test(test_many_unsettled),
        core_test(test_several_in_a_step),   core_test(test_two_devices),      core_test(test_windows),
    };
    return CORE_MAIN(tests);
}
