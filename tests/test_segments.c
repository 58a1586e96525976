/* What is kept when a step runs in parts, and outside steps: what gradients can still need and nothing else, so that
 * reading a value costs the wait for it, and loops without kiln_step neither grow nor slow down. */
#include "support/core.h"
#include "trace/trace.h"

/* ctest: name=eager env=KILN_EAGER=1 */

enum { ROWS = 64, WIDTH = 256, LAYERS = 6 };

static kiln_module *tower(void)
{
    kiln_module *m = kiln_nn_sequential(kiln_nn_linear(WIDTH, WIDTH), kiln_nn_gelu());
    for (int i = 1; m && i < LAYERS; i++)
        m = kiln_nn_sequential(m, kiln_nn_linear(WIDTH, WIDTH), kiln_nn_gelu());
    kiln_module_to(m, kiln_default_device());
    return m;
}

static uint64_t peak(void)
{
    kiln_memory_stats stats = {0};
    assert_true(kiln_memory_get_stats(kiln_default_device(), &stats));
    return stats.peak;
}

typedef enum moment { NEVER, BEFORE, BETWEEN, AFTER } moment; /* backward, update */

/* The most memory that a step takes, and what is in use when it has been written, with the loss read at that moment. */
static uint64_t step_peak(kiln_module *m, kiln_optim *o, kiln_tensor *x, moment read, uint64_t *left)
{
    assert_true(kiln_device_wait(kiln_default_device()));
    kiln_memory_trim(kiln_default_device());
    kiln_memory_reset_peak(kiln_default_device());
    kiln_step {
        kiln_zero_grad(o);
        kiln_tensor *loss = kiln_mean_all(kiln_square(kiln_forward(m, x)));
        if (read == BEFORE)
            assert_true(kiln_item(loss) > 0);
        assert_true(kiln_backward(loss));
        if (read == BETWEEN)
            assert_true(kiln_item(loss) > 0);
        assert_true(kiln_optim_step(o));
        if (read == AFTER)
            assert_true(kiln_item(loss) > 0);
        *left = core_memory();
    }
    return peak();
}

static void at_most(const char *what, uint64_t bytes, uint64_t limit)
{
    if (bytes > limit)
        fail_msg("%s: %llu bytes, not more than %llu were expected", what, (unsigned long long)bytes,
                 (unsigned long long)limit);
}

/* Reading the loss when the gradients are there keeps no activation. Before that it keeps what they need. */
static void test_read_in_a_step(void **state)
{
    (void)state;
    skip_if_eager();
    const uint64_t layer = ROWS * WIDTH * 4;
    const uint64_t handles =
        3 * layer + 1024; /* what the step has handles of: output, squares, loss; each rounded up */
    kiln_module *m = tower();
    kiln_optim *o = kiln_optim_sgd(kiln_parameters(m), .lr = 0.01);
    kiln_tensor *x = kiln_keep(core_data(1, KILN_SHAPE(ROWS, WIDTH)));
    uint64_t left, none = step_peak(m, o, x, NEVER, &left);
    none = step_peak(m, o, x, NEVER, &left); /* with all that a first step makes */
    uint64_t after = step_peak(m, o, x, AFTER, &left), before = core_memory();
    at_most("peak, after", after, none + handles);
    at_most("left, after", left, before + handles);
    at_most("peak, between", step_peak(m, o, x, BETWEEN, &left), none + handles);
    at_most("left, between", left, before + handles);
    at_most("peak, before", step_peak(m, o, x, BEFORE, &left), none + handles); /* activations wait in any case */
    at_most("left, before", left, before + handles);
    kiln_release(x);
    kiln_optim_free(o);
    kiln_module_free(m);
}

/* A pass that has been gone through can be gone through again, unless a value was read in between. */
static void test_backward_twice(void **state)
{
    (void)state;
    for (int kind = 0; kind < 3; kind++)
        kiln_scope {
            kiln_tensor *w = kiln_requires_grad(core_data(3, KILN_SHAPE(3)), true);
            kiln_tensor *loss = kiln_sum_all(kiln_exp(kiln_mul(w, w)));
            assert_true(kind == 1 ? kiln_backward_retain(loss) : kiln_backward(loss));
            if (kind)
                kiln_item(loss);
            bool again = kiln_backward(loss);
            if (kind == 2) {
                assert_false(again);
                expect_error(KILN_E_GRADIENT, "backward", "gone through");
            } else if (!again)
                fail_msg("%d: %s", kind, kiln_last_error()->message);
        }
    kiln_step {
        kiln_tensor *w = kiln_requires_grad(core_data(3, KILN_SHAPE(3)), true);
        kiln_tensor *loss = NULL;
        kiln_scope
            loss = kiln_keep(kiln_sum_all(kiln_exp(kiln_mul(w, w))));
        assert_true(kiln_backward(loss));
        kiln_item(loss);
        assert_false(kiln_backward(loss)); /* the step still knows what it was made of, but no handle shows it */
        expect_error(KILN_E_STATE, "exp", "given up");
        kiln_release(loss);
    }
}

/* What one loss has gone through is kept as long as another one, that was not differentiated, needs it. */
static void test_shared_trunk(void **state)
{
    (void)state;
    for (int reads = 0; reads < 2; reads++)
        kiln_scope {
            kiln_tensor *w = kiln_requires_grad(core_data(3, KILN_SHAPE(4)), true), *trunk = kiln_exp(kiln_square(w));
            kiln_tensor *a = kiln_sum_all(kiln_mul_scalar(trunk, 2)), *b = kiln_sum_all(kiln_square(trunk));
            assert_true(kiln_backward(a));
            if (reads)
                assert_true(kiln_item(a) > 0);
            assert_true(kiln_backward(b));
            const float *x = core_f32(w), *g = core_f32(kiln_grad_of(w));
            for (int i = 0; i < 4; i++) {
                double e = exp((double)x[i] * x[i]);
                assert_near(g[i], (2 + 2 * e) * 2 * x[i] * e, 1e-5);
            }
        }
}

/* Memory that a gradient was assigned to keeps it, also when no handle of the assigned value is left. */
static void test_kept_by_memory(void **state)
{
    (void)state;
    kiln_tensor *w = kiln_keep(kiln_requires_grad(core_data(3, KILN_SHAPE(4)), true));
    kiln_tensor *y = kiln_keep(kiln_zeros(KILN_SHAPE(2, 4), KILN_F32));
    assert_true(kiln_eval());
    kiln_scope
        assert_true(kiln_assign(kiln_select(y, 0, 1), kiln_mul_scalar(w, 3)));
    assert_true(kiln_eval());
    kiln_scope
        assert_true(kiln_backward(kiln_sum_all(kiln_mul_scalar(y, 2))));
    assert_f32(kiln_grad_of(w), 6, 6, 6, 6);
    kiln_release(y);
    kiln_release(w);
}

/* ---- Loops without kiln_step ---- */

typedef struct net {
    kiln_module *m;
    kiln_optim *o;
    kiln_tensor *x, *y;
} net;

static kiln_tensor *write_loss(const net *n)
{
    return kiln_cross_entropy(kiln_forward(n->m, n->x), n->y);
}

static void loop_in_scope(const net *n)
{
    kiln_scope {
        kiln_zero_grad(n->o);
        kiln_backward(write_loss(n));
        kiln_optim_step(n->o);
    }
}

static void loop_released(const net *n)
{
    kiln_tensor *output = kiln_forward(n->m, n->x), *loss = kiln_cross_entropy(output, n->y);
    kiln_zero_grad(n->o);
    kiln_backward(loss);
    kiln_optim_step(n->o);
    kiln_release(loss);
    kiln_release(output);
}

static void loop_read(const net *n)
{
    kiln_scope {
        kiln_zero_grad(n->o);
        kiln_tensor *loss = write_loss(n);
        kiln_backward(loss);
        kiln_optim_step(n->o);
        assert_true(kiln_item(loss) > 0);
    }
}

static void loop_by_hand(const net *n)
{
    kiln_params p = kiln_parameters(n->m);
    kiln_scope {
        kiln_backward(write_loss(n));
        kiln_no_grad
            for (int64_t i = 0; i < p.count; i++)
                kiln_assign(p.tensors[i], kiln_sub(p.tensors[i], kiln_mul_scalar(kiln_grad_of(p.tensors[i]), 0.01)));
    }
    for (int64_t i = 0; i < p.count; i++)
        kiln_zero_grad_of(p.tensors[i]);
}

static void loop_forward_only(const net *n)
{
    kiln_scope
        kiln_argmax(kiln_forward(n->m, n->x), 1, false); /* nobody asks for it */
}

/* Memory, the trace and the number of plans are the same after two hundred rounds as after ten. */
static void test_loops(void **state)
{
    (void)state;
    void (*const loops[])(const net *n) = {loop_in_scope, loop_released, loop_read, loop_by_hand, loop_forward_only};
    for (size_t k = 0; k < sizeof loops / sizeof *loops; k++) {
        net n = {.m = kiln_nn_sequential(kiln_nn_linear(16, 32), kiln_nn_relu(), kiln_nn_linear(32, 10))};
        kiln_module_to(n.m, kiln_default_device());
        n.o = kiln_optim_adam(kiln_parameters(n.m));
        n.x = kiln_keep(core_data(1, KILN_SHAPE(8, 16)));
        n.y = kiln_keep(kiln_zeros(KILN_SHAPE(8), KILN_I64));
        assert_true(kiln_eval());
        uint64_t memory = 0;
        int64_t misses = 0, values = 0;
        for (int i = 0; i < 200; i++) {
            loops[k](&n);
            assert_true(i % 10 || kiln_device_wait(kiln_default_device()));
            kiln_optim_steps(n.o); /* finds out that they took place */
            if (i == 10) {
                memory = core_memory();
                misses = kiln_plan_cache_stats().misses;
                values = kiln_thread_current->trace->nvalues;
            }
        }
        assert_true(kiln_ok() && kiln_device_wait(kiln_default_device()));
        kiln_optim_steps(n.o);
        if (core_memory() != memory)
            fail_msg("loop %zu: %llu bytes, then %llu", k, (unsigned long long)memory,
                     (unsigned long long)core_memory());
        assert_int_equal(kiln_plan_cache_stats().misses, misses);
        assert_int_equal(kiln_thread_current->trace->nvalues, values);
        kiln_release(n.x);
        kiln_release(n.y);
        kiln_optim_free(n.o);
        kiln_module_free(n.m);
    }
}

/* Something that is kept and never asked for does not let what nobody can see pile up behind it. */
static void test_pending_for_ever(void **state)
{
    (void)state;
    kiln_tensor *x = kiln_keep(core_data(1, KILN_SHAPE(16))), *kept = kiln_keep(kiln_exp(x));
    for (int i = 0; i < 3000; i++)
        kiln_scope
            kiln_sin(kiln_cos(x));
    assert_true(kiln_thread_current->trace->nvalues < 1000);
    kiln_release(kept);
    kiln_release(x);
}

/* A program's module puts a tensor aside: it lives as long as the step, also if a layer has called the module. */
static kiln_tensor *put_aside(kiln_module *self, kiln_tensor *x, void *context)
{
    (void)self;
    return *(kiln_tensor **)context = kiln_mul_scalar(x, 2);
}

static void test_put_aside(void **state)
{
    (void)state;
    kiln_tensor *aside = NULL;
    kiln_module *m = kiln_nn_sequential(kiln_nn_sequential(kiln_module_new("Aside", put_aside, &aside, NULL)),
                                        kiln_nn_residual(kiln_nn_identity(), NULL));
    kiln_tensor *x = kiln_keep(core_data(1, KILN_SHAPE(2)));
    kiln_step {
        kiln_tensor *y = kiln_forward(m, x);
        assert_f32(kiln_sub(y, kiln_mul_scalar(aside, 2)), 0, 0);
    }
    assert_true(isnan(kiln_item(aside)));
    expect_error(KILN_E_STATE, "item", "released");
    kiln_release(x);
    kiln_module_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {core_test(test_read_in_a_step), core_test(test_backward_twice),
                                       core_test(test_shared_trunk),   core_test(test_kept_by_memory),
                                       core_test(test_loops),          core_test(test_pending_for_ever),
                                       core_test(test_put_aside)};
    return CORE_MAIN(tests);
}
