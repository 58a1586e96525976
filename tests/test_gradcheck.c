/* kiln_gradcheck: accepts right gradients, finds wrong ones of either order and says where, and refuses what it cannot
 * check. A wrong gradient is made by cutting part of a function off with kiln_detach: its value is still the same. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>
#include "kiln.h"

/* ctest: name=eager env=KILN_EAGER=1 */

static kiln_tensor *leaf(kiln_tensor *t)
{
    return kiln_requires_grad(t, true);
}

static kiln_tensor *matrix(void)
{
    return leaf(kiln_of_f64(((double[]){0.5, -1.25, 2, 0.75, -0.3, 1.1}), 2, 3));
}

static kiln_tensor *vector(void)
{
    return leaf(kiln_of_f64(((double[]){1.5, -0.4, 0.9}), 3));
}

static bool check(kiln_function f, kiln_tensor **inputs, int n, bool second)
{
    return kiln_gradcheck(f, NULL, inputs, n, second, 0, 0);
}

static void expect_right(kiln_function f, kiln_tensor **inputs, int n)
{
    bool right = check(f, inputs, n, true);
    if (!right)
        print_error("%s\n", kiln_last_error()->message);
    assert_true(right);
    assert_true(kiln_ok());
}

static void expect_error(kiln_code code, const char *part)
{
    const kiln_error *e = kiln_last_error();
    if (e->code != code || !strstr(e->message, part))
        print_error("%s: %s\n", e->operation, e->message);
    assert_int_equal(e->code, code);
    assert_non_null(strstr(e->message, part));
    kiln_error_clear();
}

static void expect_wrong(kiln_function f, kiln_tensor **inputs, int n, bool second, const char *part)
{
    assert_false(check(f, inputs, n, second));
    assert_string_equal(kiln_last_error()->operation, "gradcheck");
    expect_error(KILN_E_GRADIENT, part);
}

/* ---- Right gradients ---- */

static kiln_tensor *mixed(kiln_tensor **in, void *context)
{
    (void)context;
    return kiln_add(kiln_mul(kiln_exp(in[0]), in[1]), kiln_sin(in[0])); /* [2, 3] with [3] broadcast */
}

static kiln_tensor *product(kiln_tensor **in, void *context)
{
    (void)context;
    return kiln_tanh(kiln_matmul(in[0], kiln_transpose(in[1], 0, 1)));
}

static kiln_tensor *linear(kiln_tensor **in, void *context)
{
    (void)context;
    return kiln_add_scalar(kiln_mul_scalar(in[0], 3), 1); /* the gradient does not depend on the input */
}

static kiln_tensor *square(kiln_tensor **in, void *context)
{
    (void)context;
    return kiln_square(in[0]);
}

static kiln_tensor *times(kiln_tensor **in, void *context)
{
    (void)context;
    return kiln_mul(in[0], in[1]);
}

static kiln_tensor *constant(kiln_tensor **in, void *context)
{
    (void)in;
    (void)context;
    return kiln_of_f64(((double[]){1, 2}), 2);
}

static kiln_tensor *picked(kiln_tensor **in, void *context)
{
    (void)context;
    return kiln_square(kiln_index_select(in[0], 1, in[1]));
}

static kiln_tensor *nothing_left(kiln_tensor **in, void *context)
{
    (void)context;
    return kiln_slice(kiln_square(in[0]), 1, 1, 1, 1); /* [2, 0] */
}

static void accepts_right_ones(void **state)
{
    (void)state;
    kiln_scope {
        expect_right(mixed, (kiln_tensor *[]){matrix(), vector()}, 2);
        expect_right(product, (kiln_tensor *[]){matrix(), matrix()}, 2);
        expect_right(linear, (kiln_tensor *[]){matrix()}, 1);
        expect_right(constant, (kiln_tensor *[]){matrix()}, 1);
        expect_right(square, (kiln_tensor *[]){matrix(), vector()}, 2); /* the second is not used */
    }
}

static void takes_any_shape(void **state)
{
    (void)state;
    kiln_scope {
        expect_right(square, (kiln_tensor *[]){leaf(kiln_tensor_new(&(double){1.5}, KILN_F64, 0, NULL, KILN_CPU))}, 1);
        expect_right(square, (kiln_tensor *[]){leaf(kiln_tensor_new(NULL, KILN_F64, KILN_SHAPE(0, 3), KILN_CPU))}, 1);
        expect_right(nothing_left, (kiln_tensor *[]){matrix()}, 1);
        kiln_tensor *turned = NULL;
        kiln_no_grad
            turned = kiln_transpose(matrix(), 0, 1);
        assert_false(kiln_is_contiguous(turned));
        expect_right(square, (kiln_tensor *[]){leaf(turned)}, 1);
    }
}

static void passes_others_through(void **state)
{
    (void)state;
    kiln_scope {
        kiln_tensor *indices = kiln_of_i64(((int64_t[]){2, 0, 2}), 3);
        kiln_tensor *fixed = kiln_of_f64(((double[]){2, 3, 4}), 3);
        expect_right(picked, (kiln_tensor *[]){matrix(), indices}, 2);
        expect_right(times, (kiln_tensor *[]){fixed, vector()}, 2);
        kiln_tensor *twice = vector();
        expect_right(times, (kiln_tensor *[]){twice, twice}, 2);
    }
}

static void leaves_no_trace(void **state)
{
    (void)state;
    kiln_scope {
        kiln_tensor *x = matrix();
        double before[6], after[6];
        assert_true(kiln_read(x, before, sizeof before));
        kiln_no_grad
            expect_right(square, &x, 1); /* it records gradients also here */
        assert_true(kiln_read(x, after, sizeof after));
        assert_memory_equal(before, after, sizeof before);
        assert_null(kiln_grad_of(x));
        assert_true(kiln_needs_grad(kiln_square(x)));
    }
}

/* ---- Wrong gradients ---- */

static kiln_tensor *half_cut(kiln_tensor **in, void *context) /* x², but only one x counts */
{
    (void)context;
    return kiln_mul(in[0], kiln_detach(in[0]));
}

static kiln_tensor *all_cut(kiln_tensor **in, void *context)
{
    (void)context;
    return kiln_detach(kiln_square(in[0]));
}

static kiln_tensor *second_cut(kiln_tensor **in, void *context) /* x²; the gradient 2x is right, but a constant */
{
    (void)context;
    kiln_tensor *x = kiln_detach(in[0]);
    return kiln_sub(kiln_mul_scalar(kiln_mul(x, in[0]), 2), kiln_square(x));
}

static kiln_tensor *second_input_cut(kiln_tensor **in, void *context)
{
    (void)context;
    return kiln_mul(in[0], kiln_mul(in[1], kiln_detach(in[1])));
}

static kiln_tensor *one_element_cut(kiln_tensor **in, void *context)
{
    return kiln_where(context, half_cut(in, NULL), square(in, NULL));
}

static kiln_tensor *infinite(kiln_tensor **in, void *context)
{
    (void)context;
    return kiln_sqrt(kiln_sub(in[0], kiln_detach(in[0]))); /* the gradient of a root at zero */
}

static void finds_wrong_ones(void **state)
{
    (void)state;
    kiln_scope {
        kiln_tensor *both[] = {matrix(), vector()};
        expect_wrong(half_cut, both, 1, false, "first-order gradient of input 1 of shape [2, 3] at element [0, 0]");
        expect_wrong(all_cut, both, 1, false, "first-order gradient of input 1");
        expect_wrong(second_input_cut, both, 2, false, "first-order gradient of input 2");
        expect_wrong(infinite, both, 1, false, "analytic");
    }
}

static void finds_wrong_second_order(void **state)
{
    (void)state;
    kiln_scope {
        kiln_tensor *x = matrix();
        assert_true(check(second_cut, &x, 1, false));
        expect_wrong(second_cut, &x, 1, true, "second-order gradient of input 1");
    }
}

static void names_the_element(void **state)
{
    (void)state;
    kiln_scope {
        kiln_tensor *x = kiln_set_name(matrix(), "net.weight");
        kiln_tensor *cut = kiln_eq_scalar(kiln_detach(x), -0.3);
        assert_false(kiln_gradcheck(one_element_cut, cut, &x, 1, true, 0, 0));
        expect_error(KILN_E_GRADIENT, "input 1 net.weight of shape [2, 3] at element [1, 1]: analytic ");
    }
}

/* ---- What cannot be checked ---- */

static kiln_tensor *no_tensor(kiln_tensor **in, void *context)
{
    (void)in;
    (void)context;
    return NULL;
}

static kiln_tensor *failing(kiln_tensor **in, void *context)
{
    (void)context;
    return kiln_matmul(in[0], in[0]); /* [2, 3] by [2, 3] */
}

static kiln_tensor *narrowed(kiln_tensor **in, void *context)
{
    (void)context;
    return kiln_cast(in[0], KILN_F32);
}

static void refuses(void **state)
{
    (void)state;
    kiln_scope {
        kiln_tensor *x = matrix(), *single = leaf(kiln_of_f32(((float[]){1, 2}), 2));
        kiln_tensor *unmarked = kiln_of_f64(((double[]){1, 2}), 2);
        assert_false(check(no_tensor, &x, 1, false));
        expect_error(KILN_E_ARGUMENT, "returned no tensor");
        assert_false(check(failing, &x, 1, false));
        assert_string_equal(kiln_last_error()->operation, "matmul");
        expect_error(KILN_E_SHAPE, "");
        assert_false(check(narrowed, &x, 1, false));
        expect_error(KILN_E_DTYPE, "returned f32");
        assert_false(check(square, &single, 1, false));
        expect_error(KILN_E_DTYPE, "input 1 is f32");
        assert_false(check(square, &unmarked, 1, false));
        expect_error(KILN_E_GRADIENT, "none of the 1 inputs needs a gradient");
        assert_false(check(NULL, &x, 1, false));
        expect_error(KILN_E_ARGUMENT, "a function and its inputs are needed");
        assert_false(kiln_gradcheck(square, NULL, &x, 1, false, -1, 0));
        expect_error(KILN_E_ARGUMENT, "must not be negative");
        assert_false(check(square, (kiln_tensor *[]){NULL}, 1, false));
        expect_error(KILN_E_ARGUMENT, "operand 1 is NULL");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(accepts_right_ones),    cmocka_unit_test(takes_any_shape),
        cmocka_unit_test(passes_others_through), cmocka_unit_test(leaves_no_trace),
        cmocka_unit_test(finds_wrong_ones),      cmocka_unit_test(finds_wrong_second_order),
        cmocka_unit_test(names_the_element),     cmocka_unit_test(refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
