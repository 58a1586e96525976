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

/* A value that a gradient needs is overwritten before it: the right gradient or an error, never a wrong one. */
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
            if (kiln_backward(kiln_sum_all(y)))
                assert_f32(kiln_grad_of(w), 36);
            else
                expect_error(KILN_E_STATE, NULL, "overwritten");
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
            if (kiln_backward(kiln_sum_all(y)))
                assert_f32(kiln_grad_of(w), 36);
            else
                expect_error(KILN_E_STATE, NULL, "overwritten");
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        core_test(test_assign_forms),  core_test(test_assign_is_seen),           core_test(test_overlapping_assign),
        core_test(test_assign_errors), core_test(test_assign_view_of_parameter), core_test(test_overwritten),
    };
    return CORE_MAIN(tests);
}
