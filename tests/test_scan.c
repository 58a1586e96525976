/* Gradients of running products: right with zeros along the dim, also the second derivatives, and linear in its length.
 * And that a linear recurrence written with other operations is the one that kernels compute. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "kiln.h"
#include "ops/op.h"
#include "support/skip.h"
#include "support/suite.h"

/* ctest: name=eager env=KILN_EAGER=1 */

extern const kiln_op kiln_op_linear_recurrence;

static void read_into(kiln_tensor *t, double *values, int64_t n)
{
    if (!t || kiln_numel(t) != n || !kiln_read(t, values, (size_t)n * sizeof *values))
        fail_msg("cannot be read: %s", kiln_last_error()->message);
}

static void assert_values(const char *what, kiln_tensor *t, const double *want, int n)
{
    double got[64];
    read_into(t, got, n);
    for (int i = 0; i < n; i++)
        if (!(fabs(got[i] - want[i]) <= 1e-12 * (1 + fabs(want[i]))))
            fail_msg("%s: element %d is %.17g instead of %.17g", what, i, got[i], want[i]);
}

static kiln_tensor *of(const double *values, int n)
{
    return kiln_tensor_new(values, KILN_F64, 1, (int64_t[]){n}, kiln_default_device());
}

enum { N = 6 };
typedef struct row {
    double x[N], first[N], second[N];
} row;

/* From PyTorch 2.11, weighted as below. */
static const row rows[] = {
    {{2, 3, -1, 4, 0.5, 2}, {-44, -30, 84, -18, -120, -12}, {39, -9, 220, -6, 386, -7}},
    {{2, 0, -1, 4, 0.5, 2}, {1, -30, 0, 0, 0, 0}, {30, -9, -56, 12, 80, 8}},
    {{2, 0, -1, 0, 0.5, 2}, {1, -6, 0, 0, 0, 0}, {6, 15, -8, 12, 0, 0}},
    {{0, 0, 0, 4, 0.5, 2}, {1, 0, 0, 0, 0, 0}, {2, -1, 0, 0, 0, 0}},
};

static void test_zeros(void **state)
{
    (void)state;
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
        kiln_scope {
            kiln_tensor *x = kiln_requires_grad(of(rows[r].x, N), true), *first, *second;
            kiln_tensor *weights = of((double[]){1, -1, 2, 0.5, 3, 1}, N),
                        *again = of((double[]){1, -2, 3, -1, 2, 1}, N);
            assert_true(kiln_grad(kiln_cumprod(x, 0), weights, &x, 1, &first));
            assert_true(kiln_grad(first, again, &x, 1, &second));
            assert_values("the gradient", first, rows[r].first, N);
            assert_values("the second derivative", second, rows[r].second, N);
        }
}

/* The square of this length would be 80 GB. */
static void test_a_long_row(void **state)
{
    (void)state;
    enum { LONG = 100000 };
    kiln_scope {
        kiln_tensor *x = kiln_requires_grad(kiln_ones(KILN_SHAPE(LONG), KILN_F64), true), *first, *second;
        assert_true(kiln_grad(kiln_cumprod(x, 0), NULL, &x, 1, &first));
        assert_true(kiln_grad(kiln_sum_all(first), NULL, &x, 1, &second));
        double *values = malloc(LONG * sizeof *values);
        assert_non_null(values);
        read_into(first, values, LONG); /* LONG - k results have x[k] in them */
        for (int64_t k = 0; k < LONG; k++)
            if (values[k] != (double)(LONG - k))
                fail_msg("element %d is %g", (int)k, values[k]);
        read_into(kiln_slice(second, 0, 0, 1, 1), values, 1); /* each pair with x[0] is in what follows its second */
        assert_true(values[0] == (double)LONG * (LONG - 1) / 2);
        free(values);
    }
}

/* The recurrence step by step. */
static void recur(const double *a, const double *b, int rows_, int n, int columns, bool backward, double *s)
{
    for (int r = 0; r < rows_; r++)
        for (int c = 0; c < columns; c++) {
            double carry = 0;
            for (int k = 0; k < n; k++) {
                int i = backward ? n - 1 - k : k, at = (r * n + i) * columns + c;
                double factor = k ? a[backward ? at + columns : at] : 0;
                s[at] = carry = b[at] + factor * carry;
            }
        }
}

static void test_composition(void **state)
{
    (void)state;
    enum { ROWS = 3, LENGTH = 11, COLUMNS = 2, COUNT = ROWS * LENGTH * COLUMNS };
    double a[COUNT], b[COUNT], want[COUNT], got[COUNT];
    for (int i = 0; i < COUNT; i++)
        a[i] = i % 7 == 3 ? 0 : sin(i + 1), b[i] = cos(3 * i);
    for (int backward = 0; backward < 2; backward++)
        kiln_scope {
            const int64_t shape[] = {ROWS, LENGTH, COLUMNS};
            kiln_tensor *in[] = {kiln_tensor_new(a, KILN_F64, 3, shape, kiln_default_device()),
                                 kiln_tensor_new(b, KILN_F64, 3, shape, kiln_default_device())};
            kiln_tensor *by_kernel = kiln_op_one(&kiln_op_linear_recurrence, in, 2, KILN_I(1, backward)), *composed;
            kiln_call c = {
                .op = &kiln_op_linear_recurrence, .nin = 2, .nout = 1, .in = in, .attrs = *KILN_I(1, backward)};
            assert_true(c.op->infer(&c) && c.op->compose(&c, &composed));
            recur(a, b, ROWS, LENGTH, COLUMNS, backward, want);
            read_into(by_kernel, got, COUNT);
            for (int i = 0; i < COUNT; i++)
                assert_true(fabs(got[i] - want[i]) <= 1e-14 * (1 + fabs(want[i])));
            read_into(composed, got, COUNT);
            for (int i = 0; i < COUNT; i++)
                assert_true(fabs(got[i] - want[i]) <= 1e-14 * (1 + fabs(want[i])));
        }
}

/* Rows are scanned side by side, some at a time; what is left over, too. */
static void test_many_rows(void **state)
{
    (void)state;
    enum { ROWS = 21, LENGTH = 50, COUNT = ROWS * LENGTH };
    double x[COUNT], got[COUNT];
    for (int i = 0; i < COUNT; i++)
        x[i] = cos(i);
    kiln_scope {
        kiln_tensor *t = kiln_tensor_new(x, KILN_F64, 2, (int64_t[]){ROWS, LENGTH}, kiln_default_device());
        read_into(kiln_cumsum(t, 1), got, COUNT);
    }
    for (int r = 0; r < ROWS; r++) {
        double sum = 0;
        for (int i = 0; i < LENGTH; i++) {
            sum += x[r * LENGTH + i];
            assert_true(fabs(got[r * LENGTH + i] - sum) <= 1e-13);
        }
    }
}

int main(void)
{
#define UNIT(name) cmocka_unit_test_setup_teardown(name, memory_before, memory_after)
    const struct CMUnitTest tests[] = {
        UNIT(test_zeros),
        UNIT(test_a_long_row),
        UNIT(test_composition),
        UNIT(test_many_rows),
    };
    kiln_device devices[TEST_DEVICES];
    int n = devices_under_test(devices), failed = 0;
    for (int d = 0; d < n; d++) {
        kiln_set_default_device(devices[d]);
        failed += cmocka_run_group_tests_name(kiln_device_name(devices[d]), tests, NULL, NULL);
    }
    return test_exit(failed || complaints());
}
