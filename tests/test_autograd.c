/* Gradients as training uses them: accumulated over several passes, through assignment and views, of parameters that
 * are updated and used again, with values looked at on the way, with and without scopes, for many steps. What
 * test_grad.c checks of the engine alone is not repeated here. */
#include <unistd.h>
#include "core/alloc.h"
#include "support/core.h"

/* ctest: name=eager env=KILN_EAGER=1 */

#define F32(...)   kiln_of_f32(((float[]){__VA_ARGS__}), sizeof((float[]){__VA_ARGS__}) / sizeof(float))
#define PARAM(...) kiln_requires_grad(F32(__VA_ARGS__), true)

/* ---- Accumulation ---- */

static void test_accumulation(void **state)
{
    (void)state;
    for (int looking = 0; looking < 2; looking++)
        kiln_scope {
            kiln_tensor *w = PARAM(2, 3);
            for (int i = 1; i <= 4; i++) {
                kiln_step
                    assert_true(kiln_backward(kiln_sum_all(kiln_mul_scalar(kiln_square(w), i))));
                if (looking)
                    assert_f32(kiln_grad_of(w), (float)(2 * i * (i + 1)), (float)(3 * i * (i + 1)));
            }
            assert_f32(kiln_grad_of(w), 40, 60);
            kiln_zero_grad_of(w);
            assert_null(kiln_grad_of(w));
            kiln_zero_grad_of(w);
            kiln_step
                assert_true(kiln_backward(kiln_sum_all(w)));
            assert_f32(kiln_grad_of(w), 1, 1);
        }
}

/* Several passes in one step, through shared and separate parts of the graph, and the same loss twice. */
static void test_passes_in_one_step(void **state)
{
    (void)state;
    for (int look = 0; look < 4; look++)
        kiln_scope {
            kiln_tensor *w = PARAM(2);
            kiln_step {
                kiln_tensor *h = kiln_square(w), *a = kiln_mul_scalar(h, 3), *b = kiln_mul(h, w);
                assert_true(kiln_backward(a));
                if (look & 1)
                    assert_f32(kiln_grad_of(w), 12);
                assert_true(kiln_backward(b));
                if (look & 2)
                    assert_f32(kiln_grad_of(w), 24);
                assert_true(kiln_backward(a));
            }
            assert_f32(kiln_grad_of(w), 36);
        }
}

static void test_large_batch(void **state)
{
    (void)state;
    enum { PARTS = 4, EACH = 3, N = PARTS * EACH, IN = 5, OUT = 2 };
    float whole[OUT * IN], parts[OUT * IN];
    for (int split = 0; split < 2; split++)
        kiln_scope {
            kiln_tensor *w = kiln_requires_grad(core_data(1, KILN_SHAPE(OUT, IN)), true);
            kiln_tensor *x = core_data(2, KILN_SHAPE(N, IN)), *y = core_data(3, KILN_SHAPE(N, OUT));
            for (int p = 0; p < (split ? PARTS : 1); p++)
                kiln_step {
                    kiln_tensor *xs = split ? kiln_slice(x, 0, p * EACH, (p + 1) * EACH, 1) : x;
                    kiln_tensor *ys = split ? kiln_slice(y, 0, p * EACH, (p + 1) * EACH, 1) : y;
                    kiln_tensor *loss = kiln_mse_loss(kiln_tanh(kiln_linear(xs, w, NULL)), ys, KILN_MEAN);
                    assert_true(kiln_backward(split ? kiln_div_scalar(loss, PARTS) : loss));
                }
            memcpy(split ? parts : whole, core_f32(kiln_grad_of(w)), sizeof whole);
        }
    for (int i = 0; i < OUT * IN; i++)
        assert_near(parts[i], whole[i], 1e-6);
}

/* Gradients are tensors of their own: changing one changes no other, and clipping in place works. */
static void test_gradients_are_apart(void **state)
{
    (void)state;
    kiln_scope {
        kiln_tensor *a = PARAM(1, 2), *b = PARAM(3, 4);
        kiln_step {
            assert_true(kiln_backward(kiln_sum_all(kiln_add(a, b))));
            kiln_no_grad
                assert_true(kiln_assign(kiln_grad_of(a), kiln_mul_scalar(kiln_grad_of(a), 7)));
        }
        assert_f32(kiln_grad_of(a), 7, 7);
        assert_f32(kiln_grad_of(b), 1, 1);
        kiln_step
            assert_true(kiln_backward(kiln_sum_all(kiln_add(a, b))));
        assert_f32(kiln_grad_of(a), 8, 8);
        assert_f32(kiln_grad_of(b), 2, 2);
    }
}

/* ---- Hooks ---- */

typedef struct seen {
    int calls;
    double value;
    bool read, replace;
} seen;

static kiln_tensor *watch(kiln_tensor *grad, void *context)
{
    seen *s = context;
    s->calls++;
    if (s->read)
        s->value = kiln_item(kiln_sum_all(grad));
    return s->replace ? kiln_mul_scalar(grad, 10) : NULL;
}

static void test_hooks(void **state)
{
    (void)state;
    for (int mode = 0; mode < 4; mode++)
        kiln_scope {
            seen leaf = {.read = mode & 1, .replace = mode & 2}, middle = leaf;
            kiln_tensor *w = PARAM(3), *h = kiln_square(w);
            assert_true(kiln_set_grad_hook(w, watch, &leaf) && kiln_set_grad_hook(h, watch, &middle));
            assert_true(kiln_backward(kiln_add(h, kiln_mul_scalar(h, 4)))); /* both ways into h before its hook */
            assert_int_equal(leaf.calls, 1);
            assert_int_equal(middle.calls, 1);
            if (mode & 1) {
                assert_near(middle.value, 5, 0);
                assert_near(leaf.value, mode & 2 ? 300 : 30, 0);
            }
            assert_f32(kiln_grad_of(w), mode & 2 ? 3000 : 30);
            assert_true(kiln_set_grad_hook(w, NULL, NULL));
            kiln_zero_grad_of(w);
            assert_true(kiln_backward(kiln_mul_scalar(w, 2)));
            assert_f32(kiln_grad_of(w), 2);
            assert_int_equal(leaf.calls, 1);
        }
}

/* A hook that reads while nothing but the parameter itself is in the graph. */
static void test_hook_on_a_leaf_alone(void **state)
{
    (void)state;
    seen s = {.read = true};
    kiln_tensor *w = PARAM(3);
    assert_true(kiln_set_grad_hook(w, watch, &s));
    assert_true(kiln_backward(w));
    assert_int_equal(s.calls, 1);
    assert_f32(kiln_grad_of(w), 1);
    kiln_release(w);
}

static kiln_tensor *spoil(kiln_tensor *grad, void *context)
{
    (void)context;
    return kiln_matmul(grad, grad);
}

static void test_failing_hook(void **state)
{
    (void)state;
    kiln_scope {
        kiln_tensor *w = PARAM(1, 2), *y = kiln_sum_all(kiln_expand(kiln_unsqueeze(w, 0), KILN_SHAPE(3, 2)));
        kiln_tensor *v = kiln_requires_grad(core_data(1, KILN_SHAPE(2, 3)), true);
        assert_true(kiln_set_grad_hook(v, spoil, NULL));
        assert_false(kiln_backward(kiln_sum_all(v)));
        expect_error(KILN_E_SHAPE, "matmul", NULL);
        assert_null(kiln_grad_of(v));
        assert_true(kiln_backward(y));
        assert_f32(kiln_grad_of(w), 3, 3);
    }
}

/* ---- Higher derivatives ---- */

static void test_polynomial(void **state)
{
    (void)state;
    for (int flush = 0; flush < 2; flush++)
        kiln_scope {
            kiln_tensor *x = PARAM(2, -1), *d[4];
            d[0] = kiln_mul(kiln_square(kiln_square(x)), x); /* x^5 */
            for (int k = 1; k <= 3; k++) {
                assert_true(kiln_grad(d[k - 1], NULL, &x, 1, &d[k]));
                if (flush)
                    assert_true(kiln_eval());
            }
            assert_f32(d[0], 32, -1);
            assert_f32(d[1], 80, 5);
            assert_f32(d[2], 160, -20);
            assert_f32(d[3], 240, 60);
            assert_null(kiln_grad_of(x));
        }
}

/* The penalty of a gradient's norm: a gradient inside a loss. */
static void test_gradient_penalty(void **state)
{
    (void)state;
    for (int round = 0; round < 3; round++)
        kiln_scope {
            kiln_tensor *x = PARAM(2), *w = PARAM(3), *g;
            kiln_step {
                kiln_tensor *y = kiln_mul(kiln_square(w), kiln_square(x)); /* w²x² */
                assert_true(kiln_grad(y, NULL, &x, 1, &g));                /* 2w²x = 36 */
                assert_true(kiln_backward(kiln_square(g))); /* 4w⁴x²: d/dw 16w³x² = 1728, d/dx 8w⁴x = 1296 */
            }
            assert_f32(kiln_grad_of(w), 1728);
            assert_f32(kiln_grad_of(x), 1296);
        }
}

static void test_unused_inputs(void **state)
{
    (void)state;
    kiln_scope {
        kiln_tensor *x = PARAM(2), *unused = kiln_requires_grad(core_data(1, KILN_SHAPE(2, 3)), true);
        kiln_tensor *in[2] = {unused, x}, *g[2];
        assert_true(kiln_grad(kiln_square(x), NULL, in, 2, g));
        assert_f32(g[0], 0, 0, 0, 0, 0, 0);
        assert_f32(g[1], 4);
        assert_true(kiln_backward(kiln_square(x)));
        assert_null(kiln_grad_of(unused));
        kiln_tensor *late = PARAM(5); /* made after the output */
        kiln_tensor *y = kiln_square(x), *later = kiln_mul(late, x);
        assert_true(kiln_grad(y, NULL, (kiln_tensor *[]){later}, 1, g));
        assert_f32(g[0], 0);
    }
}

/* ---- Assignment and views ---- */

/* The destination is a fresh buffer, a computed tensor, or a tensor that was read before. `look` is what is read
 * between writing and differentiating. */
static void test_through_assignment(void **state)
{
    (void)state;
    for (int kind = 0; kind < 3; kind++)
        for (int look = 0; look < 4; look++)
            kiln_scope {
                kiln_tensor *w = PARAM(2, 3), *buffer = F32(1, 1);
                if (kind)
                    buffer = kiln_mul_scalar(buffer, 2);
                if (kind == 2)
                    assert_f32(buffer, 2, 2);
                assert_true(kiln_assign(buffer, kiln_square(w)));
                assert_true(kiln_needs_grad(buffer));
                if (look & 1)
                    assert_f32(buffer, 4, 9);
                kiln_tensor *y = kiln_sum_all(kiln_mul(buffer, buffer)); /* w⁴ */
                if (look & 2)
                    assert_near(kiln_item(y), 97, 0);
                assert_true(kiln_backward(y));
                assert_f32(kiln_grad_of(w), 32, 108);
            }
}

static void test_through_assigned_view(void **state)
{
    (void)state;
    for (int early = 0; early < 2; early++)
        for (int look = 0; look < 2; look++)
            kiln_scope {
                kiln_tensor *w = PARAM(2, 3), *v = PARAM(5, 6, 7), *x = kiln_mul_scalar(v, 1);
                kiln_tensor *part = kiln_slice(x, 0, 1, 3, 1), *other = early ? kiln_slice(x, 0, 0, 2, 1) : NULL;
                assert_true(kiln_assign(part, kiln_square(w))); /* x = (v0, w0², w1²) */
                if (look)
                    assert_true(kiln_eval());
                if (!other)
                    other = kiln_slice(x, 0, 0, 2, 1);
                assert_f32(other, 5, 4);
                assert_true(kiln_backward(kiln_add(kiln_sum_all(kiln_square(other)), kiln_sum_all(x))));
                assert_f32(kiln_grad_of(v), 11, 0, 0);     /* v0² + v0 */
                assert_f32(kiln_grad_of(w), 4 * 8 + 4, 6); /* w0⁴ + w0², w1² */
            }
}

/* What no longer depends on a parameter after an assignment has no gradient. */
static void test_overwritten_by_constant(void **state)
{
    (void)state;
    kiln_scope {
        kiln_tensor *w = PARAM(2), *h = kiln_square(w), *y = kiln_mul_scalar(h, 3);
        assert_true(kiln_assign(h, F32(7)));
        assert_false(kiln_needs_grad(h));
        assert_false(kiln_backward(kiln_mul(h, h)));
        expect_error(KILN_E_GRADIENT, "backward", NULL);
        assert_true(kiln_backward(y));
        assert_f32(kiln_grad_of(w), 12);
    }
}

/* A tensor kept from an earlier step is a constant in the next, and may be overwritten there. */
static void test_kept_across_steps(void **state)
{
    (void)state;
    kiln_scope {
        kiln_tensor *w = PARAM(2), *kept = NULL;
        kiln_step
            kept = kiln_keep(kiln_square(w));
        assert_false(kiln_needs_grad(kept));
        for (int i = 0; i < 3; i++) {
            kiln_step {
                kiln_no_grad
                    assert_true(kiln_assign(kept, F32(4)));
                kiln_tensor *y = kiln_mul(kiln_mul(kept, w), w);
                assert_near(kiln_item(y), 16, 0);
                kiln_zero_grad_of(w);
                assert_true(kiln_backward(y));
            }
            assert_f32(kiln_grad_of(w), 16);
            kiln_step
                assert_true(kiln_assign(kept, kiln_mul_scalar(w, i)));
        }
        kiln_release(kept);
    }
}

static void test_views_and_reuse(void **state)
{
    (void)state;
    for (int look = 0; look < 2; look++)
        kiln_scope {
            kiln_tensor *w = kiln_requires_grad(kiln_of_f32(((float[]){1, 2, 3, 4}), 2, 2), true);
            kiln_tensor *t = kiln_transpose(w, 0, 1), *row = kiln_select(t, 0, 1), *wide;
            wide = kiln_expand(kiln_unsqueeze(row, 0), KILN_SHAPE(3, 2)); /* (2, 4) three times */
            if (look)
                assert_true(kiln_eval());
            kiln_tensor *y = kiln_sum_all(kiln_mul(wide, wide));
            for (int i = 0; i < 20; i++)
                y = kiln_add(y, kiln_sum_all(kiln_diagonal(w, 0, 0, 1)));
            assert_true(kiln_backward(y));
            assert_f32(kiln_grad_of(w), 20, 12, 0, 44);
        }
}

/* ---- Updates ---- */

/* A parameter is updated and used again before anything has run: both gradients are right. */
static void test_updated_and_used_again(void **state)
{
    (void)state;
    for (int look = 0; look < 4; look++)
        kiln_scope {
            kiln_tensor *w = PARAM(3);
            float want = 3;
            kiln_step {
                for (int i = 0; i < 4; i++) {
                    kiln_zero_grad_of(w);
                    assert_true(kiln_backward(kiln_square(w)));
                    if (look & 1)
                        assert_f32(kiln_grad_of(w), 2 * want);
                    kiln_no_grad
                        assert_true(kiln_assign(w, kiln_sub(w, kiln_mul_scalar(kiln_grad_of(w), 0.25))));
                    want = want - 0.25f * 2 * want;
                    if (look & 2)
                        assert_f32(w, want);
                    assert_true(kiln_needs_grad(w));
                }
            }
            assert_f32(w, want);
            assert_f32(kiln_grad_of(w), 4 * want);
        }
}

/* requires_grad switched off and on around an update. */
static void test_toggled_after_update(void **state)
{
    (void)state;
    kiln_scope {
        kiln_tensor *w = PARAM(3), *v = PARAM(2);
        kiln_step {
            kiln_no_grad
                assert_true(kiln_assign(w, F32(5)));
            kiln_tensor *first = kiln_mul(w, v);
            assert_ptr_equal(kiln_requires_grad(w, false), w);
            assert_true(kiln_backward(kiln_mul(kiln_square(w), v)));
            assert_null(kiln_grad_of(w));
            assert_f32(kiln_grad_of(v), 25);
            assert_ptr_equal(kiln_requires_grad(w, true), w);
            assert_true(kiln_backward(kiln_mul(w, v)));
            assert_f32(kiln_grad_of(w), 2);
            assert_f32(kiln_grad_of(v), 30);
            assert_near(kiln_item(first), 10, 0);
        }
    }
}

/* A frozen copy of a parameter (a target network) is not moved by its updates. */
static void test_frozen_copy(void **state)
{
    (void)state;
    kiln_scope {
        kiln_tensor *w = PARAM(1, 2), *frozen = kiln_clone(kiln_detach(w)), *shown = kiln_detach(w);
        for (int i = 0; i < 3; i++)
            kiln_step {
                kiln_zero_grad_of(w);
                assert_true(kiln_backward(kiln_sum_all(kiln_mul(kiln_square(w), frozen))));
                kiln_no_grad
                    assert_true(kiln_assign(w, kiln_sub(w, kiln_mul_scalar(kiln_grad_of(w), 0.25))));
            }
        assert_f32(frozen, 1, 2);
        assert_f32(w, 0.125f, 0);
        assert_f32(shown, 0.125f, 0);
    }
}

/* ---- Without scopes ---- */

/* KiB of this process in memory; 0 where a sanitizer holds on to what was freed. */
static long resident(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return 0;
#endif
    long pages = 0, all;
    FILE *f = fopen("/proc/self/statm", "r");
    if (f && fscanf(f, "%ld %ld", &all, &pages) != 2)
        pages = 0;
    if (f)
        fclose(f);
    return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

/* One step of training by hand in no scope at all, every handle released. */
static void bare_step(kiln_tensor *w, kiln_tensor *x, bool look)
{
    kiln_tensor *h = kiln_mul(w, x), *s = kiln_square(h), *y = kiln_sum_all(s);
    kiln_zero_grad_of(w);
    assert_true(kiln_backward(y));
    if (look)
        assert_false(isnan(kiln_item(y)));
    kiln_no_grad {
        kiln_tensor *g = kiln_mul_scalar(kiln_grad_of(w), 0.001), *next = kiln_sub(w, g);
        assert_true(kiln_assign(w, next));
        kiln_release(g);
        kiln_release(next);
    }
    kiln_release(h);
    kiln_release(s);
    kiln_release(y);
}

static void test_bare_steps(void **state)
{
    (void)state;
    int steps = core_eager() || kiln_default_device() != KILN_CPU ? 2000 : 20000;
    float want[2] = {1, 2};
    for (int look = 0; look < 2; look++) {
        kiln_tensor *w = PARAM(1, 2), *x = F32(1, 2);
        long before = 0;
        uint64_t in_use = 0;
        for (int i = 0; i < steps; i++) {
            if (i == steps / 2) {
                kiln_step {
                }
                before = resident();
                in_use = core_memory();
            }
            bare_step(w, x, look);
        }
        kiln_step {
        }
        assert_true(resident() - before < 8000); /* KiB */
        assert_int_equal(core_memory(), in_use);
        const float *got = core_f32(w);
        if (look == 0)
            memcpy(want, got, sizeof want);
        else
            assert_memory_equal(want, got, sizeof want);
        kiln_release(w);
        kiln_release(x);
    }
}

/* Nothing is ever read: what piles up is run off at some point. */
static void test_bare_forward(void **state)
{
    (void)state;
    if (core_eager() || kiln_default_device() != KILN_CPU)
        skip_because("about what the CPU keeps, not run eagerly");
    kiln_tensor *x = F32(1, 2, 3);
    long before = 0;
    for (int i = 0; i < 400000; i++) {
        if (i == 100000)
            before = resident();
        kiln_release(kiln_add_scalar(x, i));
    }
    assert_true(resident() - before < 8000);
    kiln_release(x);
}

/* Scopes inside a scope that stays open: each gives back what it used. */
static void test_scopes_in_a_scope(void **state)
{
    (void)state;
    kiln_scope {
        kiln_tensor *w = PARAM(1, 2), *x = F32(1, 2);
        uint64_t in_use = 0;
        for (int i = 0; i < 200; i++) {
            kiln_scope {
                kiln_tensor *y = kiln_sum_all(kiln_mul(w, x));
                assert_near(kiln_item(y), 5, 0);
                if (i % 2) {
                    kiln_zero_grad_of(w);
                    assert_true(kiln_backward(y));
                    assert_f32(kiln_grad_of(w), 1, 2);
                }
            }
            if (i == 9)
                in_use = core_memory();
            if (i % 10 == 9)
                assert_int_equal(core_memory(), in_use);
        }
    }
}

/* ---- Refusals ---- */

static void test_refusals(void **state)
{
    (void)state;
    kiln_scope {
        kiln_tensor *w = PARAM(1, 2), *x = F32(1, 2), *g;
        assert_false(kiln_backward(kiln_mul(w, x)));
        expect_error(KILN_E_GRADIENT, "backward", "[2]");
        assert_false(kiln_backward(kiln_sum_all(x)));
        expect_error(KILN_E_GRADIENT, "backward", NULL);
        assert_false(kiln_backward(kiln_argmax(w, 0, false)));
        expect_error(KILN_E_GRADIENT, "backward", NULL);
        assert_false(kiln_backward_with(kiln_mul(w, x), F32(1, 2, 3)));
        expect_error(KILN_E_SHAPE, "backward", "[3]");
        assert_false(kiln_grad(kiln_sum_all(w), NULL, &x, 1, &g));
        expect_error(KILN_E_GRADIENT, "grad", "input 1");
        assert_null(kiln_requires_grad(kiln_zeros(KILN_SHAPE(2), KILN_I64), true));
        expect_error(KILN_E_DTYPE, "requires_grad", "i64");
        assert_null(kiln_requires_grad(kiln_mul(w, x), false));
        expect_error(KILN_E_GRADIENT, "requires_grad", NULL);
        assert_false(kiln_backward(NULL));
        kiln_error_clear();
        assert_true(kiln_backward(kiln_sum_all(kiln_mul(w, x))));
        assert_f32(kiln_grad_of(w), 1, 2);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        core_test(test_accumulation),
        core_test(test_passes_in_one_step),
        core_test(test_large_batch),
        core_test(test_gradients_are_apart),
        core_test(test_hooks),
        core_test(test_hook_on_a_leaf_alone),
        core_test(test_failing_hook),
        core_test(test_polynomial),
        core_test(test_gradient_penalty),
        core_test(test_unused_inputs),
        core_test(test_through_assignment),
        core_test(test_through_assigned_view),
        core_test(test_overwritten_by_constant),
        core_test(test_kept_across_steps),
        core_test(test_views_and_reuse),
        core_test(test_updated_and_used_again),
        core_test(test_toggled_after_update),
        core_test(test_frozen_copy),
        core_test(test_bare_steps),
        core_test(test_bare_forward),
        core_test(test_scopes_in_a_scope),
        core_test(test_refusals),
    };
    return CORE_MAIN(tests);
}
