/* The gradient engine: accumulation, shared operands, scopes without gradients, hooks, second derivatives, and what it
 * refuses. The gradients of the operations themselves are checked by test_ops. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>
#include "kiln.h"
#include "support/skip.h"
#include "support/suite.h"

/* ctest: name=eager env=KILN_EAGER=1 */

#define assert_near(a, b)                                                                                              \
    do {                                                                                                               \
        double near_a_ = (a), near_b_ = (b);                                                                           \
        if (!(fabs(near_a_ - near_b_) <= 1e-10 * (1 + fabs(near_b_))))                                                 \
            fail_msg("%s is %.17g instead of %.17g", #a, near_a_, near_b_);                                            \
    } while (0)

static kiln_tensor *leaf(int n, const double *values)
{
    return kiln_requires_grad(kiln_tensor_new(values, KILN_F64, 1, (int64_t[]){n}, kiln_default_device()), true);
}

/* Element i of a tensor. */
static double at(kiln_tensor *t, int64_t i)
{
    double v[64] = {0};
    if (!t || kiln_numel(t) > 64 || !kiln_read(t, v, (size_t)kiln_numel(t) * sizeof *v))
        fail_msg("cannot be read: %s", kiln_last_error()->message);
    return v[i];
}

static int no_error(void **state)
{
    bool ok = kiln_ok();
    if (!ok)
        kiln_report(stderr);
    kiln_step {
    } /* what a scope has left unread is run off */
    kiln_error_clear();
    return memory_after(state) || !ok;
}

static void expect_error(kiln_code code)
{
    assert_int_equal(kiln_last_error()->code, code);
    assert_true(kiln_last_error()->message[0] != 0);
    kiln_error_clear();
}

/* ---- kiln_backward ---- */

static void test_accumulates(void **state)
{
    (void)state;
    kiln_scope {
        kiln_tensor *x = leaf(2, (double[]){3, -4});
        assert_null(kiln_grad_of(x));
        assert_true(kiln_backward(kiln_sum_all(kiln_mul(x, x))));
        assert_near(at(kiln_grad_of(x), 0), 6);
        assert_true(kiln_backward(kiln_sum_all(kiln_mul_scalar(x, 10))));
        assert_near(at(kiln_grad_of(x), 0), 16);
        assert_near(at(kiln_grad_of(x), 1), 2);
        kiln_zero_grad_of(x);
        assert_null(kiln_grad_of(x));
        assert_true(kiln_backward(kiln_sum_all(x)));
        assert_near(at(kiln_grad_of(x), 1), 1);
    }
}

static void step_of_squares(kiln_tensor *x)
{
    kiln_step {
        assert_true(kiln_backward(kiln_sum_all(kiln_square(x))));
    }
}

static void test_gradient_outlives_its_scope(void **state)
{
    (void)state;
    kiln_scope {
        kiln_tensor *x = leaf(1, (double[]){5});
        for (int step = 0; step < 3; step++)
            step_of_squares(x);
        assert_near(at(kiln_grad_of(x), 0), 30);
    }
}

static void test_after_reading(void **state)
{
    (void)state;
    kiln_scope {
        kiln_tensor *x = leaf(2, (double[]){3, 4});
        kiln_tensor *loss = kiln_sum_all(kiln_mul(kiln_exp(kiln_mul_scalar(x, 0.5)), x));
        double value = kiln_item(loss);
        assert_near(value, 3 * exp(1.5) + 4 * exp(2));
        assert_true(kiln_backward(loss));
        assert_near(at(kiln_grad_of(x), 0), exp(1.5) * 2.5);
        assert_near(at(kiln_grad_of(x), 1), exp(2) * 3);
    }
}

static void test_diamond(void **state)
{
    (void)state;
    kiln_scope {
        kiln_tensor *x = leaf(1, (double[]){0.7});
        kiln_tensor *a = kiln_sin(x), *b = kiln_mul(a, x), *c = kiln_add(a, b);
        kiln_tensor *y = kiln_mul(kiln_mul(c, b), kiln_add(a, a));
        assert_true(kiln_backward(y));
        double h = 1e-6, v[2];
        for (int k = 0; k < 2; k++) {
            double t = 0.7 + (k ? h : -h), s = sin(t);
            v[k] = (s + s * t) * (s * t) * 2 * s;
        }
        assert_true(fabs(at(kiln_grad_of(x), 0) - (v[1] - v[0]) / (2 * h)) < 1e-7);
    }
}

static void test_long_chain(void **state)
{
    (void)state;
    kiln_scope {
        kiln_tensor *x = leaf(1, (double[]){1}), *y = x;
        for (int k = 0; k < 2000; k++)
            y = kiln_add_scalar(kiln_mul_scalar(y, 1.001), 0.5);
        assert_true(kiln_backward(y));
        assert_near(at(kiln_grad_of(x), 0), pow(1.001, 2000));
    }
}

static void test_broadcast_is_summed_back(void **state)
{
    (void)state;
    kiln_scope {
        kiln_tensor *row = leaf(3, (double[]){1, 2, 3}),
                    *column = kiln_reshape(leaf(2, (double[]){4, 5}), 2, (int64_t[]){2, 1});
        kiln_tensor *grads[2], *inputs[2] = {row, column};
        assert_true(kiln_grad(kiln_mul(row, column), NULL, inputs, 2, grads));
        assert_near(at(grads[0], 1), 9);
        assert_near(at(grads[1], 0), 6);
        assert_int_equal(kiln_ndim(grads[1]), 2);
    }
}

static void test_views(void **state)
{
    (void)state;
    kiln_scope {
        kiln_tensor *x = leaf(6, (double[]){1, 2, 3, 4, 5, 6});
        kiln_tensor *m = kiln_transpose(kiln_reshape(x, 2, (int64_t[]){2, 3}), 0, 1); /* [3, 2] */
        kiln_tensor *part = kiln_slice(m, 0, 1, 3, 1), *corner = kiln_select(kiln_select(part, 0, 1), 0, 0);
        assert_true(kiln_backward(kiln_add(kiln_sum_all(kiln_square(part)), corner)));
        assert_near(at(kiln_grad_of(x), 0), 0);
        assert_near(at(kiln_grad_of(x), 1), 4);
        assert_near(at(kiln_grad_of(x), 2), 7); /* the corner, once more */
        assert_near(at(kiln_grad_of(x), 5), 12);
    }
}

static void test_weighted(void **state)
{
    (void)state;
    kiln_scope {
        kiln_tensor *x = leaf(2, (double[]){1, 2});
        kiln_tensor *w = kiln_tensor_new((double[]){10, 100}, KILN_F64, 1, (int64_t[]){2}, kiln_default_device());
        assert_true(kiln_backward_with(kiln_square(x), w));
        assert_near(at(kiln_grad_of(x), 0), 20);
        assert_near(at(kiln_grad_of(x), 1), 400);
    }
}

static void test_through_types(void **state)
{
    (void)state;
    kiln_scope {
        kiln_tensor *x = leaf(2, (double[]){1.5, -2});
        kiln_tensor *y = kiln_cast(kiln_mul_scalar(kiln_cast(x, KILN_F16), 3), KILN_F32);
        assert_true(kiln_backward(kiln_sum_all(y)));
        assert_int_equal(kiln_dtype_of(kiln_grad_of(x)), KILN_F64);
        assert_near(at(kiln_grad_of(x), 1), 3);
    }
}

/* ---- kiln_grad ---- */

static void test_grad_leaves_accumulated_alone(void **state)
{
    (void)state;
    kiln_scope {
        kiln_tensor *x = leaf(1, (double[]){2}), *unused = leaf(3, (double[]){1, 2, 3});
        kiln_tensor *inputs[2] = {x, unused}, *grads[2];
        assert_true(kiln_grad(kiln_square(x), NULL, inputs, 2, grads));
        assert_null(kiln_grad_of(x));
        assert_near(at(grads[0], 0), 4);
        assert_near(at(grads[1], 2), 0);
        assert_int_equal(kiln_numel(grads[1]), 3);
    }
}

static void test_higher_derivatives(void **state)
{
    (void)state;
    kiln_scope {
        kiln_tensor *x = leaf(1, (double[]){0.5}), *y = kiln_exp(kiln_square(x));
        /* y' = 2x·y, y'' = (2 + 4x²)·y, y''' = (12x + 8x³)·y, y'''' = (12 + 48x² + 16x⁴)·y at x = ½ */
        const double e = exp(0.25), truth[] = {e, 3 * e, 7 * e, 25 * e};
        for (int k = 0; k < 4; k++) {
            kiln_tensor *next;
            assert_true(kiln_grad(y, NULL, &x, 1, &next));
            y = next;
            assert_near(at(y, 0), truth[k]);
        }
    }
}

static void test_of_an_intermediate(void **state)
{
    (void)state;
    kiln_scope {
        kiln_tensor *x = leaf(1, (double[]){3}), *mid = kiln_square(x), *y = kiln_mul(mid, mid), *grad;
        assert_true(kiln_grad(y, NULL, &mid, 1, &grad));
        assert_near(at(grad, 0), 18);
    }
}

/* ---- Switching off, cutting, hooking ---- */

static void test_no_grad(void **state)
{
    (void)state;
    kiln_scope {
        kiln_tensor *x = leaf(1, (double[]){2}), *y = NULL;
        kiln_no_grad {
            y = kiln_square(x);
            assert_false(kiln_needs_grad(y));
        }
        assert_true(kiln_needs_grad(kiln_square(x)));
        assert_true(kiln_backward(kiln_mul(x, y)));
        assert_near(at(kiln_grad_of(x), 0), 4);
    }
}

static void leave_early(kiln_tensor *x)
{
    kiln_no_grad {
        if (kiln_numel(x))
            return;
    }
}

static void test_no_grad_ends_with_its_block(void **state)
{
    (void)state;
    kiln_scope {
        kiln_tensor *x = leaf(1, (double[]){2});
        leave_early(x);
        assert_true(kiln_needs_grad(kiln_square(x)));
    }
}

/* What was computed without gradients can be marked, and is then a leaf like any other. */
static void test_computed_leaf(void **state)
{
    (void)state;
    kiln_scope {
        kiln_tensor *x = leaf(1, (double[]){3}), *start = NULL;
        kiln_no_grad
            start = kiln_mul_scalar(x, 2);
        assert_ptr_equal(kiln_requires_grad(start, true), start);
        assert_true(kiln_backward(kiln_mul(kiln_square(start), x)));
        assert_near(at(kiln_grad_of(start), 0), 36);
        assert_near(at(kiln_grad_of(x), 0), 36);
    }
}

static void test_detach(void **state)
{
    (void)state;
    kiln_scope {
        kiln_tensor *x = leaf(1, (double[]){3});
        assert_false(kiln_needs_grad(kiln_detach(x)));
        assert_true(kiln_backward(kiln_mul(x, kiln_detach(kiln_square(x)))));
        assert_near(at(kiln_grad_of(x), 0), 9);
    }
}

static kiln_tensor *tenfold(kiln_tensor *grad, void *context)
{
    ++*(int *)context;
    return kiln_mul_scalar(grad, 10);
}

static void test_hook(void **state)
{
    (void)state;
    kiln_scope {
        int calls = 0;
        kiln_tensor *x = leaf(1, (double[]){3}), *mid = kiln_square(x);
        assert_true(kiln_set_grad_hook(mid, tenfold, &calls));
        assert_true(kiln_backward(kiln_add(kiln_mul(mid, mid), mid)));
        assert_int_equal(calls, 1); /* once, with the whole gradient */
        assert_near(at(kiln_grad_of(x), 0), (2 * 9 + 1) * 10 * 6);
    }
}

static void test_across_devices(void **state)
{
    (void)state;
    if (kiln_device_count("sim", NULL, 0) == 0)
        skip_because("needs a simulated device");
    kiln_scope {
        kiln_device there = kiln_default_device() == KILN_CPU ? kiln_device_parse("sim:0") : KILN_CPU;
        kiln_tensor *x = leaf(2, (double[]){3, 4}), *y = kiln_square(kiln_to(x, there));
        assert_int_equal(kiln_device_of(y), there);
        assert_true(kiln_backward(kiln_sum_all(y)));
        assert_int_equal(kiln_device_of(kiln_grad_of(x)), kiln_default_device());
        assert_near(at(kiln_grad_of(x), 1), 8);
    }
}

/* ---- Assignment: a small optimizer ---- */

static void descend(kiln_tensor *x)
{
    kiln_step {
        kiln_zero_grad_of(x);
        assert_true(kiln_backward(kiln_sum_all(kiln_square(kiln_add_scalar(x, -1)))));
        kiln_no_grad {
            assert_true(kiln_assign(x, kiln_sub(x, kiln_mul_scalar(kiln_grad_of(x), 0.25))));
        }
    }
}

static void test_descent(void **state)
{
    (void)state;
    kiln_scope {
        kiln_tensor *x = leaf(2, (double[]){5, -3});
        for (int k = 0; k < 50; k++)
            descend(x);
        assert_near(at(x, 0), 1 + 4 * pow(0.5, 50));
        assert_near(at(x, 1), 1 - 4 * pow(0.5, 50));
    }
}

/* ---- What is refused ---- */

static void test_refusals(void **state)
{
    (void)state;
    kiln_scope {
        kiln_tensor *x = leaf(2, (double[]){1, 2});
        kiln_tensor *plain = kiln_tensor_new((double[]){1}, KILN_F64, 0, NULL, kiln_default_device());
        assert_false(kiln_backward(kiln_square(x))); /* two elements, no weights */
        assert_false(kiln_ok());
        kiln_error_clear();
        assert_false(kiln_backward(plain));
        expect_error(KILN_E_GRADIENT);
        kiln_tensor *whole = kiln_tensor_new((int64_t[]){1}, KILN_I64, 1, (int64_t[]){1}, kiln_default_device());
        assert_null(kiln_requires_grad(whole, true));
        assert_false(kiln_ok());
        kiln_error_clear();
        assert_null(kiln_requires_grad(kiln_square(x), false)); /* it was computed from x, which needs one */
        expect_error(KILN_E_GRADIENT);
        kiln_tensor *w = kiln_tensor_new((double[]){1, 2, 3}, KILN_F64, 1, (int64_t[]){3}, kiln_default_device());
        assert_false(kiln_backward_with(kiln_square(x), w));
        expect_error(KILN_E_SHAPE);
        assert_null(kiln_grad_of(x)); /* nothing was added on the way */
        assert_false(kiln_backward(NULL));
        kiln_error_clear();
    }
}

/* ---- kiln_gradcheck must find what is wrong ---- */

static kiln_tensor *right(kiln_tensor **in, void *context)
{
    (void)context;
    return kiln_mul(kiln_tanh(in[0]), in[1]);
}

static kiln_tensor *wrong_first(kiln_tensor **in, void *context)
{
    (void)context;
    return kiln_mul(kiln_detach(kiln_tanh(in[0])), in[1]);
}

/* The value is x² everywhere and its gradient 2x, but the gradient's own gradient is lost. */
static kiln_tensor *wrong_second(kiln_tensor **in, void *context)
{
    (void)context;
    kiln_tensor *x = in[0], *frozen = kiln_detach(x);
    return kiln_sub(kiln_mul_scalar(kiln_mul(frozen, x), 2), kiln_square(frozen));
}

static void test_gradcheck(void **state)
{
    (void)state;
    kiln_scope {
        kiln_tensor *in[2] = {leaf(3, (double[]){0.3, -0.4, 0.9}), leaf(3, (double[]){1, 2, -1})};
        assert_true(kiln_gradcheck(right, NULL, in, 2, false, 0, 0));
        assert_true(kiln_gradcheck(right, NULL, in, 2, true, 0, 0));
        assert_false(kiln_gradcheck(wrong_first, NULL, in, 2, false, 0, 0));
        assert_true(kiln_last_error()->message[0] != 0);
        kiln_error_clear();
        assert_true(kiln_gradcheck(wrong_second, NULL, in, 1, false, 0, 0));
        assert_false(kiln_gradcheck(wrong_second, NULL, in, 1, true, 0, 0));
        kiln_error_clear();
    }
}

int main(void)
{
#define UNIT(name) cmocka_unit_test_setup_teardown(name, memory_before, no_error)
    const struct CMUnitTest tests[] = {
        UNIT(test_accumulates),
        UNIT(test_gradient_outlives_its_scope),
        UNIT(test_after_reading),
        UNIT(test_diamond),
        UNIT(test_long_chain),
        UNIT(test_broadcast_is_summed_back),
        UNIT(test_views),
        UNIT(test_weighted),
        UNIT(test_through_types),
        UNIT(test_grad_leaves_accumulated_alone),
        UNIT(test_higher_derivatives),
        UNIT(test_of_an_intermediate),
        UNIT(test_no_grad),
        UNIT(test_no_grad_ends_with_its_block),
        UNIT(test_computed_leaf),
        UNIT(test_detach),
        UNIT(test_hook),
        UNIT(test_across_devices),
        UNIT(test_descent),
        UNIT(test_refusals),
        UNIT(test_gradcheck),
    };
    kiln_device devices[TEST_DEVICES];
    int n = devices_under_test(devices), failed = 0;
    for (int d = 0; d < n; d++) {
        kiln_set_default_device(devices[d]);
        failed += cmocka_run_group_tests_name(kiln_device_name(devices[d]), tests, NULL, NULL);
    }
    return test_exit(failed || complaints());
}
