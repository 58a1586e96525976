/* The path of the module that each kernel comes from: through recording, gradients, updates, the trail and every pass
 * of the planner, of the step that runs and not of another that has its plan. */
#include <pthread.h>
#include "core/intern.h"
#include "plan/plan.h"
#include "support/times.h"
#include "trace/trace.h"

/* ctest: name=eager env=KILN_EAGER=1 */
/* ctest: name=threads env=KILN_NUM_THREADS=2 */

enum { BLOCKS = 3, WIDTH = 8, HIDDEN = 16, CLASSES = 4, BATCH = 6 };

/* ---- A network of repeated layers ---- */

static kiln_tensor *block_forward(kiln_module *m, kiln_tensor *x, void *context)
{
    (void)context;
    kiln_tensor *h = kiln_forward(kiln_module_child(m, "fc"), kiln_forward(kiln_module_child(m, "ln"), x));
    return kiln_add(x, kiln_forward(kiln_module_child(m, "proj"), kiln_gelu(h)));
}

static kiln_module *block(void)
{
    kiln_module *m = kiln_module_new("Block", block_forward, NULL, NULL);
    kiln_module_add(m, "ln", kiln_nn_layer_norm(WIDTH));
    kiln_module_add(m, "fc", kiln_nn_linear(WIDTH, HIDDEN));
    kiln_module_add(m, "proj", kiln_nn_linear(HIDDEN, WIDTH));
    return m;
}

static kiln_tensor *net_forward(kiln_module *m, kiln_tensor *x, void *context)
{
    (void)context;
    x = kiln_forward(kiln_module_child(m, kiln_module_child(m, "h") ? "h" : "layers"), kiln_cumsum(x, 1));
    return kiln_forward(kiln_module_child(m, "head"), x);
}

typedef struct net {
    kiln_module *module;
    kiln_optim *adam;
    kiln_tensor *x, *y;
} net;

/* The blocks are called h.0, h.1, …, or as `blocks` says. */
static net make(const char *blocks)
{
    kiln_module *all[BLOCKS];
    net n = {.module = kiln_module_new("Net", net_forward, NULL, NULL)};
    for (int i = 0; i < BLOCKS; i++)
        all[i] = block();
    kiln_module_add(n.module, blocks, kiln_nn_sequence(BLOCKS, all));
    kiln_module_add(n.module, "head", kiln_nn_linear(WIDTH, CLASSES));
    n.adam = kiln_optim_adam(kiln_parameters(n.module), .lr = 1e-3);
    const int64_t labels[BATCH] = {0, 1, 2, 3, 2, 1};
    n.x = kiln_keep(core_data(1, KILN_SHAPE(BATCH, WIDTH)));
    n.y = kiln_keep(kiln_tensor_new(labels, KILN_I64, KILN_SHAPE(BATCH), kiln_default_device()));
    assert_true(kiln_ok());
    return n;
}

static void drop(net *n)
{
    kiln_optim_free(n->adam);
    kiln_module_free(n->module);
    kiln_release(n->x);
    kiln_release(n->y);
}

static const times *step(net *n)
{
    assert_true(kiln_time_next_step());
    kiln_step {
        kiln_zero_grad(n->adam);
        kiln_backward(kiln_cross_entropy(kiln_forward(n->module, n->x), n->y));
        kiln_optim_step(n->adam);
    }
    assert_true(kiln_ok());
    return times_read();
}

static void check_step(const times *t, const char *blocks)
{
    char fc[40], ln[40], bias[40];
    for (int i = 0; i < BLOCKS; i++) {
        snprintf(fc, sizeof fc, "%s.%d.fc", blocks, i);
        snprintf(ln, sizeof ln, "%s.%d.ln", blocks, i);
        snprintf(bias, sizeof bias, "%s.%d.ln.bias", blocks, i);
        assert_timed(t, "linear", fc, false);
        assert_timed(t, "linear", fc, true);
        assert_timed(t, "layer_norm", ln, false);
        assert_timed(t, "layer_norm", ln, true);
        assert_timed(t, "adam", bias, false);
    }
    assert_timed(t, "linear", "head", false);
    assert_timed(t, "linear", "head", true);
    assert_timed(t, "cumsum", "", false); /* the root's own */
    assert_timed(t, "cross_entropy", NULL, false);
    assert_timed(t, "cross_entropy", NULL, true);
    assert_int_equal(times_of(t, "linear", NULL, false), 0);
    assert_int_equal(times_of(t, "linear", NULL, true), 0);
}

/* ---- Steps ---- */

/* From the third step on everything is had again from the last one, but in eager mode. */
static void test_every_step(void **state)
{
    (void)state;
    net n = make("h");
    for (int i = 0; i < 4; i++) {
        uint64_t before = kiln_trace_current()->trail.appended;
        check_step(step(&n), "h");
        assert_true(core_eager() || i < 2 || kiln_trace_current()->trail.appended > before + 20);
    }
    drop(&n);
}

/* Nothing but names differs: the plan is the same, the labels are not. */
static void test_names_share_a_plan(void **state)
{
    (void)state;
    net one = make("h"), other = make("layers");
    check_step(step(&one), "h");
    int64_t misses = kiln_plan_cache_stats().misses;
    for (int i = 0; i < 3; i++) {
        check_step(step(&other), "layers");
        check_step(step(&one), "h");
        check_step(step(&one), "h");
    }
    assert_int_equal(kiln_plan_cache_stats().misses, misses);
    drop(&one);
    drop(&other);
}

static void zero_grads(kiln_module *m)
{
    kiln_params p = kiln_parameters(m);
    for (int64_t i = 0; i < p.count; i++)
        kiln_zero_grad_of(p.tensors[i]);
}

/* Names change in the middle of a step that is else the last one: what follows is not had again with the old ones. */
static void test_names_change_in_the_middle(void **state)
{
    (void)state;
    kiln_module *one = kiln_nn_linear(WIDTH, WIDTH), *outer = kiln_module_new("Outer", NULL, NULL, NULL);
    kiln_module *two = kiln_module_add(outer, "two", kiln_nn_linear(WIDTH, WIDTH));
    for (int i = 0; i < 6; i++) {
        kiln_time_next_step();
        kiln_step {
            kiln_tensor *x = core_data(2, KILN_SHAPE(BATCH, WIDTH)), *h = kiln_tanh(kiln_forward(two, x));
            kiln_backward(kiln_mean_all(kiln_square(kiln_forward(i % 2 ? one : two, h))));
        }
        assert_true(kiln_ok());
        int each = core_eager() ? 2 : 1; /* product and bias */
        assert_int_equal(times_of(times_read(), "linear", "", false), each * (i % 2));
        assert_int_equal(times_of(times_read(), "linear", "two", false), each * (2 - i % 2));
        zero_grads(one);
        zero_grads(two);
    }
    kiln_module_free(one);
    kiln_module_free(outer);
}

/* ---- Passes ---- */

static const times *forward_once(kiln_module *m, kiln_tensor *x)
{
    kiln_tensor *y = NULL;
    kiln_time_next_step();
    kiln_step
        y = kiln_keep(kiln_forward(m, x));
    assert_true(y && kiln_ok());
    kiln_release(y);
    return times_read();
}

static void test_recompute(void **state)
{
    (void)state;
    net n = make("h");
    int64_t without = times_of(step(&n), "linear", "h.1.fc", true);
    for (int i = 0; i < BLOCKS; i++) {
        char path[16];
        snprintf(path, sizeof path, "h.%d", i);
        kiln_module_set_recompute(kiln_module_child(n.module, path), true);
    }
    for (int i = 0; i < 3; i++) {
        const times *t = step(&n);
        check_step(t, "h");
        assert_int_equal(times_of(t, "linear", "h.1.fc", true), without + !core_eager());
    }
    drop(&n);
}

/* With casts around products, some of them made again. */
static void test_autocast(void **state)
{
    (void)state;
    net n = make("h");
    for (int i = 0; i < 3; i++)
        kiln_autocast (KILN_BF16)
            check_step(step(&n), "h");
    drop(&n);
}

static int64_t at;

static kiln_tensor *window_forward(kiln_module *m, kiln_tensor *x, void *context)
{
    (void)context;
    return kiln_forward(kiln_module_child(m, "in"), kiln_slice(x, 0, at, at + 2, 1));
}

/* From the second step on the offset comes with each run, and a node that planning adds copies the window. */
static void test_windows_that_move(void **state)
{
    (void)state;
    kiln_module *m = kiln_module_new("Window", window_forward, NULL, NULL);
    kiln_module_add(m, "in", kiln_nn_linear(WIDTH, WIDTH));
    kiln_scope {
        kiln_tensor *x = core_data(3, KILN_SHAPE(BATCH, WIDTH));
        kiln_eval();
        for (at = 0; at < BATCH - 2; at++) {
            const times *t = forward_once(m, x);
            for (int64_t i = 0; i < t->n; i++)
                assert_string_equal(t->at[i].module, "in");
        }
    }
    kiln_module_free(m);
}

/* ---- Paths ---- */

static void test_path_of_a_module_that_moves(void **state)
{
    (void)state;
    kiln_module *inner = kiln_nn_sequential(kiln_nn_linear(WIDTH, WIDTH), kiln_nn_relu());
    kiln_module *outer = kiln_module_new("Outer", NULL, NULL, NULL);
    kiln_scope {
        kiln_tensor *x = core_data(4, KILN_SHAPE(BATCH, WIDTH));
        assert_timed(forward_once(inner, x), "linear", "0", false);
        kiln_module_add(outer, "body", inner);
        assert_timed(forward_once(inner, x), "linear", "body.0", false);
    }
    kiln_module_free(outer);
}

/* Modules of the same names, made and freed for ever, leave nothing behind; a plan has its names after they are gone.
 */
static void test_names_outlive_modules(void **state)
{
    (void)state;
    net first = make("h");
    step(&first);
    drop(&first);
    uint32_t before = kiln_intern("a name that no module has");
    for (int i = 0; i < 50; i++) {
        net n = make("h");
        step(&n);
        drop(&n);
    }
    assert_int_equal(kiln_intern("another name that no module has"), before + 1);
    assert_int_equal(kiln_intern("a name that no module has"), before);
    assert_string_equal(kiln_interned(before), "a name that no module has");
    kiln_plan *p = kiln_plan_newest();
    bool found = false;
    for (int64_t i = 0; p && i < p->nkernels; i++)
        found |= p->kernels[i].module && !strcmp(p->kernels[i].module, "h.1.fc");
    kiln_plan_unref(p);
    assert_true(found || core_eager());
}

static void test_description(void **state)
{
    (void)state;
    skip_if_eager();
    net n = make("h");
    kiln_step {
        kiln_backward(kiln_cross_entropy(kiln_forward(n.module, n.x), n.y));
        char *text = kiln_plan_describe();
        assert_non_null(text);
        assert_non_null(strstr(text, "of linear in h.2.fc\n"));
        assert_non_null(strstr(text, "of linear in h.2.fc, backward\n"));
        assert_non_null(strstr(text, "of cumsum in the root\n"));
        kiln_string_free(text);
        kiln_discard();
    }
    drop(&n);
}

/* ---- Threads ---- */

typedef struct visitor {
    net *n;
    kiln_device device;
    int good;
} visitor;

static void *visit(void *context)
{
    visitor *v = context;
    kiln_set_default_device(v->device);
    for (int i = 0; i < 20; i++) {
        kiln_tensor *y = NULL;
        kiln_time_next_step();
        kiln_step
            kiln_no_grad
                y = kiln_keep(kiln_forward(v->n->module, v->n->x));
        kiln_release(y);
        static _Thread_local kiln_kernel_time all[TIMES_MOST];
        int64_t count = kiln_step_times(all, TIMES_MOST);
        for (int64_t k = 0; k < count; k++)
            v->good += all[k].module && !strcmp(all[k].module, "h.2.proj");
    }
    return NULL;
}

/* Several threads visit the same modules for the first time. */
static void test_threads(void **state)
{
    (void)state;
    enum { THREADS = 4 };
    net n = make("h");
    pthread_t threads[THREADS];
    visitor visitors[THREADS];
    for (int i = 0; i < THREADS; i++) {
        visitors[i] = (visitor){&n, kiln_default_device(), 0};
        assert_int_equal(pthread_create(&threads[i], NULL, visit, &visitors[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        assert_true(visitors[i].good >= 20);
    }
    drop(&n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {core_test(test_every_step),
                                       core_test(test_names_share_a_plan),
                                       core_test(test_names_change_in_the_middle),
                                       core_test(test_recompute),
                                       core_test(test_autocast),
                                       core_test(test_windows_that_move),
                                       core_test(test_path_of_a_module_that_moves),
                                       core_test(test_names_outlive_modules),
                                       core_test(test_description),
                                       core_test(test_threads)};
    return CORE_MAIN(tests);
}
