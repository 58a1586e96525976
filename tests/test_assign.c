/* Assignment in place: whole tensors, views, broadcast and cast sources, windows that overlap, who sees the new
 * elements, what is refused, and gradients that need what was overwritten. */
#include "support/core.h"

/* ctest: name=eager env=KILN_EAGER=1 */

#define F32(...) kiln_of_f32(((float[]){__VA_ARGS__}), sizeof((float[]){__VA_ARGS__}) / sizeof(float))

static void test_assign_forms(void **state)
{
    (void)state;
    for (int round = 0; round < 3; round++)
        kiln_scope {
            kiln_tensor *x = kiln_of_f32(((float[]){1, 2, 3, 4, 5, 6}), 2, 3);
            assert_true(kiln_assign(x, kiln_mul_scalar(x, 2)));
            assert_f32(x, 2, 4, 6, 8, 10, 12);
            assert_true(kiln_assign(x, F32(7, 8, 9))); /* broadcast */
            assert_f32(x, 7, 8, 9, 7, 8, 9);
            assert_true(kiln_assign(kiln_select(x, 0, 1), kiln_scalar(0, KILN_F32)));
            assert_f32(x, 7, 8, 9, 0, 0, 0);
            assert_true(kiln_assign(kiln_slice(x, 1, 0, 3, 2), kiln_of_f32(((float[]){1, 2}), 2, 1)));
            assert_f32(x, 1, 8, 1, 2, 0, 2);
            assert_true(kiln_assign(kiln_transpose(x, 0, 1), kiln_of_f32(((float[]){1, 2, 3, 4, 5, 6}), 3, 2)));
            assert_f32(x, 1, 3, 5, 2, 4, 6);
            assert_true(
                kiln_assign(x, kiln_tensor_new((int64_t[]){-3}, KILN_I64, KILN_SHAPE(1), kiln_default_device())));
            assert_f32(x, -3, -3, -3, -3, -3, -3);
            kiln_tensor *i = kiln_zeros(KILN_SHAPE(3), KILN_I64);
            assert_true(kiln_assign(i, F32(1.5f, -2.5f, 3)));
            assert_f32(kiln_cast(i, KILN_F32), 1, -2, 3);
            assert_true(kiln_assign(x, x));
            assert_true(kiln_assign(kiln_select(x, 1, 0), kiln_select(x, 1, 0)));
            assert_f32(x, -3, -3, -3, -3, -3, -3);
        }
}

/* Handles made before an assignment show the new elements, whether they were computed or not. */
static void test_assign_is_seen(void **state)
{
    (void)state;
    for (int early = 0; early < 2; early++)
        for (int made = 0; made < 2; made++)
            kiln_scope {
                kiln_tensor *x = kiln_of_f32(((float[]){1, 2, 3, 4}), 2, 2);
                if (made)
                    x = kiln_add_scalar(x, 0);
                kiln_tensor *row = kiln_select(x, 0, 1), *turned = kiln_transpose(x, 0, 1), *copy = kiln_clone(x);
                if (early)
                    assert_true(kiln_eval());
                assert_true(kiln_assign(kiln_select(x, 1, 0), F32(10, 30)));
                assert_f32(row, 30, 4);
                assert_f32(turned, 10, 30, 2, 4);
                assert_f32(copy, 1, 2, 3, 4);
                assert_true(kiln_assign(row, kiln_add(row, row)));
                assert_f32(x, 10, 2, 60, 8);
                assert_f32(kiln_add_scalar(turned, 1), 11, 61, 3, 9);
            }
}

static void test_overlapping_assign(void **state)
{
    (void)state;
    for (int round = 0; round < 3; round++)
        kiln_scope {
            kiln_tensor *x = F32(1, 2, 3, 4, 5);
            assert_true(kiln_assign(kiln_slice(x, 0, 1, 5, 1), kiln_slice(x, 0, 0, 4, 1)));
            assert_f32(x, 1, 1, 2, 3, 4);
            assert_true(kiln_assign(kiln_slice(x, 0, 0, 4, 1), kiln_slice(x, 0, 1, 5, 1)));
            assert_f32(x, 1, 2, 3, 4, 4);
            assert_true(kiln_assign(x, kiln_flip(x, KILN_DIMS(0))));
            assert_f32(x, 4, 4, 3, 2, 1);
            kiln_tensor *m = kiln_of_f32(((float[]){1, 2, 3, 4}), 2, 2);
            assert_true(kiln_assign(m, kiln_transpose(m, 0, 1)));
            assert_f32(m, 1, 3, 2, 4);
            assert_true(kiln_assign(m, kiln_matmul(m, m)));
            assert_f32(m, 7, 15, 10, 22);
        }
}

static void test_assign_errors(void **state)
{
    (void)state;
    kiln_scope {
        kiln_tensor *x = F32(1, 2, 3), *w = kiln_set_name(kiln_requires_grad(F32(1, 2, 3), true), "net.weight");
        assert_false(kiln_assign(kiln_expand(kiln_slice(x, 0, 0, 1, 1), KILN_SHAPE(3)), x));
        expect_error(KILN_E_SHAPE, "assign", "expanded");
        assert_false(kiln_assign(x, F32(1, 2)));
        expect_error(KILN_E_SHAPE, "assign", "[2]");
        assert_false(kiln_assign(kiln_select(x, 0, 0), x));
        expect_error(KILN_E_SHAPE, "assign", "[3]");
        assert_false(kiln_assign(w, x));
        expect_error(KILN_E_GRADIENT, "assign", "net.weight");
        assert_false(kiln_assign(NULL, x));
        assert_false(kiln_assign(x, NULL));
        kiln_error_clear();
        assert_f32(x, 1, 2, 3);
        assert_f32(w, 1, 2, 3);
        kiln_no_grad
            assert_true(kiln_assign(w, kiln_neg(x)));
        assert_f32(w, -1, -2, -3);
        assert_true(kiln_needs_grad(w));
    }
}

/* A view of a parameter is a way around the check above. */
static void test_assign_view_of_parameter(void **state)
{
    (void)state;
    kiln_scope {
        kiln_tensor *w = kiln_requires_grad(F32(1, 2, 3), true), *part = kiln_slice(w, 0, 0, 2, 1);
        if (kiln_assign(part, F32(10, 20))) { /* then it must be differentiated rightly: d w[0] and d w[1] are 0 */
            assert_true(kiln_backward(kiln_sum_all(kiln_square(w))));
            assert_f32(kiln_grad_of(w), 0, 0, 6);
        } else
            expect_error(KILN_E_GRADIENT, "assign", NULL);
        kiln_no_grad
            assert_true(kiln_assign(kiln_slice(w, 0, 0, 2, 1), F32(5, 6)));
        assert_f32(w, 5, 6, 3);
    }
}

/* A value that a gradient needs is overwritten before it: the gradient is that of the old value, whenever things run.
 */
static void test_overwritten(void **state)
{
    (void)state;
    for (int when = 0; when < 4; when++) /* runs before and after the assignment */
        kiln_scope {
            kiln_tensor *w = kiln_requires_grad(F32(2), true), *x = F32(3);
            kiln_tensor *h = kiln_mul(w, x), *y = kiln_square(h);
            if (when & 1)
                assert_true(kiln_eval());
            assert_true(kiln_assign(x, F32(100)));
            if (when & 2)
                assert_true(kiln_eval());
            assert_true(kiln_backward(kiln_sum_all(y)));
            assert_f32(kiln_grad_of(w), 36);
            assert_f32(x, 100);
        }
    for (int when = 0; when < 4; when++)
        kiln_scope {
            kiln_tensor *w = kiln_requires_grad(F32(2), true);
            kiln_tensor *h = kiln_mul_scalar(w, 3), *y = kiln_square(h);
            if (when & 1)
                assert_true(kiln_eval());
            assert_true(kiln_assign(h, F32(100)));
            if (when & 2)
                assert_true(kiln_eval());
            assert_true(kiln_backward(kiln_sum_all(y)));
            assert_f32(kiln_grad_of(w), 36);
            assert_f32(h, 100);
        }
}

/* A recurrence written into the rows of one tensor: each row is needed after the next ones were written. */
static void test_rows_of_one_tensor(void **state)
{
    (void)state;
    for (int reads = 0; reads < 2; reads++)
        kiln_scope {
            kiln_tensor *w = kiln_requires_grad(F32(0.5f), true), *y = kiln_ones(KILN_SHAPE(4, 1), KILN_F32);
            for (int t = 1; t < 4; t++) {
                assert_true(kiln_assign(kiln_select(y, 0, t), kiln_square(kiln_add(kiln_select(y, 0, t - 1), w))));
                if (reads)
                    assert_true(kiln_item(kiln_select(y, 0, t)) > 0);
            }
            assert_true(kiln_backward(kiln_sum_all(y)));
            double h = 1, d = 0, sum = 0;
            for (int t = 1; t < 4; t++) {
                d = 2 * (h + 0.5) * (d + 1);
                h = (h + 0.5) * (h + 0.5);
                sum += d;
            }
            assert_near(kiln_item(kiln_grad_of(w)), sum, 1e-6);
        }
}

/* Updated in the middle of a step, with a gradient through the old weights still to come. */
static void test_updated_too_early(void **state)
{
    (void)state;
    for (int reads = 0; reads < 2; reads++)
        kiln_step {
            kiln_tensor *w = kiln_requires_grad(F32(3), true), *loss = kiln_square(kiln_square(w));
            kiln_no_grad
                assert_true(kiln_assign(w, F32(10)));
            if (reads)
                assert_f32(w, 10);
            assert_true(kiln_backward(loss));
            assert_f32(kiln_grad_of(w), 4 * 27);
        }
}

/* ---- Uses without a gradient ---- */

enum { DETACH, NO_GRAD, ARGMAX, READ, ASK, LOOKS };

static void look(kiln_tensor *t, int how)
{
    float out[CORE_MAX];
    kiln_scope
        switch (how) {
        case DETACH: kiln_detach(t); break;
        case NO_GRAD:
            kiln_no_grad
                kiln_add(t, t);
            break;
        case ARGMAX: kiln_argmax(t, 0, false); break;
        case READ: kiln_read(kiln_transpose(t, 0, -1), out, (size_t)kiln_numel(t) * sizeof *out); break;
        default: kiln_needs_grad(t); break;
        }
    assert_true(kiln_ok());
}

/* Memory is overwritten through a view of another shape; whoever looks at it next changes no gradient. */
static void test_looks_change_nothing(void **state)
{
    (void)state;
    for (int how = 0; how < LOOKS; how++)
        kiln_scope {
            kiln_tensor *w = kiln_requires_grad(F32(1, 2, 3), true), *other = kiln_requires_grad(F32(1, 1, 1), true);
            kiln_tensor *y = kiln_zeros(KILN_SHAPE(1, 3), KILN_F32), *before = kiln_slice(y, 1, 1, 3, 1);
            assert_true(kiln_assign(kiln_select(y, 0, 0), w));
            assert_true(kiln_needs_grad(y) && kiln_needs_grad(before));
            look(y, how);
            look(before, how);
            kiln_tensor *loss = kiln_add(kiln_add(kiln_sum_all(y), kiln_sum_all(other)), kiln_sum_all(before));
            assert_true(kiln_backward(loss));
            assert_f32(kiln_grad_of(w), 1, 2, 2);
        }
}

/* y = x - 0.84, seen as v; y = cos(x); u and r are made of v; y = cos(u). Gradients as if each had its own memory. */
static void test_views_across_assignments(void **state)
{
    (void)state;
    for (int how = 0; how < LOOKS; how++) {
        float got = 0, want = 0;
        for (int twin = 0; twin < 2; twin++)
            kiln_scope {
                kiln_tensor *x = kiln_requires_grad(kiln_of_f32(((float[]){0.3f}), 1, 1), true);
                kiln_tensor *y = kiln_add_scalar(x, -0.84), *v = kiln_reshape(y, KILN_SHAPE(-1));
                if (twin)
                    v = kiln_reshape(kiln_cos(x), KILN_SHAPE(-1));
                else
                    assert_true(kiln_assign(y, kiln_cos(x)));
                look(v, how);
                kiln_tensor *u = kiln_logsumexp(v, KILN_DIMS(0), false), *r = kiln_rsqrt(kiln_square(v));
                kiln_tensor *last = kiln_cos(u);
                if (twin)
                    y = kiln_reshape(last, KILN_SHAPE(1, 1));
                else
                    assert_true(kiln_assign(y, last));
                look(y, how);
                kiln_tensor *again = twin ? kiln_reshape(y, KILN_SHAPE(-1)) : v;
                kiln_tensor *loss = kiln_add(kiln_sum_all(kiln_mul(y, u)), kiln_sum_all(kiln_mul(r, again)));
                assert_true(kiln_backward(loss));
                *(twin ? &want : &got) = (float)kiln_item(kiln_grad_of(x));
            }
        assert_near(got, want, 1e-6);
        assert_true(fabsf(want) > 1e-3f);
    }
}

/* What is assigned in kiln_no_grad, or through a detached handle, changes elements and no gradient. */
static void test_unrecorded(void **state)
{
    (void)state;
    for (int through = 0; through < 3; through++)
        kiln_scope {
            kiln_tensor *w = kiln_requires_grad(F32(1, 2, 3), true), *y = kiln_mul_scalar(w, 5);
            kiln_tensor *part = kiln_slice(y, 0, 1, 3, 1), *cut = kiln_detach(y);
            if (through == 0)
                kiln_no_grad
                    assert_true(kiln_assign(part, F32(70, 80)));
            else
                assert_true(kiln_assign(through == 1 ? kiln_slice(cut, 0, 1, 3, 1) : cut,
                                        through == 1 ? F32(70, 80) : F32(5, 70, 80)));
            assert_f32(y, 5, 70, 80);
            assert_false(kiln_needs_grad(cut));
            assert_true(kiln_needs_grad(part));
            assert_true(kiln_backward(kiln_add(kiln_sum_all(kiln_square(y)), kiln_sum_all(part))));
            assert_f32(kiln_grad_of(w), 5 * 10, 5 * (140 + 1), 5 * (160 + 1)); /* as PyTorch's */
        }
}

/* A detached handle sees what is assigned, and gets a gradient by what is assigned through itself alone. */
static void test_detached(void **state)
{
    (void)state;
    kiln_scope {
        kiln_tensor *w = kiln_requires_grad(F32(1, 2), true), *y = kiln_mul_scalar(w, 2), *cut = kiln_detach(y);
        kiln_tensor *turned = kiln_reshape(cut, KILN_SHAPE(2, 1));
        assert_true(kiln_assign(y, kiln_square(w)));
        assert_f32(turned, 1, 4);
        assert_false(kiln_needs_grad(cut) || kiln_needs_grad(turned));
        assert_true(kiln_assign(cut, kiln_mul_scalar(w, 7)));
        assert_true(kiln_needs_grad(cut));
        assert_true(kiln_backward(kiln_sum_all(cut)));
        assert_f32(kiln_grad_of(w), 7, 7);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        core_test(test_assign_forms),
        core_test(test_assign_is_seen),
        core_test(test_overlapping_assign),
        core_test(test_assign_errors),
        core_test(test_assign_view_of_parameter),
        core_test(test_overwritten),
        core_test(test_rows_of_one_tensor),
        core_test(test_updated_too_early),
        core_test(test_looks_change_nothing),
        core_test(test_views_across_assignments),
        core_test(test_unrecorded),
        core_test(test_detached),
    };
    return CORE_MAIN(tests);
}
