/* Formulas (trace/formula.h): rows of one, two and three operands, operands that broadcast, numbers and flags that lie
 * on the device, types that change on the way, what formulas end in, and that one which cannot be one node means the
 * same. */
#include "trace/formula.h"
#include "support/core.h"
#include "trace/trace.h"

/* ctest: name=eager env=KILN_EAGER=1 */
/* ctest: name=apart env=KILN_SIM_APART=1 */

enum { ROWS = 3, COLUMNS = 5, MANY = ROWS * COLUMNS };

static kiln_tensor *on_device(kiln_tensor *t)
{
    return kiln_to(t, kiln_default_device());
}

static kiln_tensor *number(double value, kiln_dtype dtype)
{
    return on_device(kiln_full(0, NULL, value, dtype));
}

/* The state that the formulas below change, made from a number. */
typedef struct inputs {
    kiln_tensor *p, *g, *row, *rate, *flag;
} inputs;

static inputs make(kiln_dtype dtype, bool flag)
{
    inputs in = {.p = kiln_keep(kiln_cast(on_device(core_data(1, KILN_SHAPE(ROWS, COLUMNS))), dtype)),
                 .g = kiln_cast(on_device(core_data(2, KILN_SHAPE(ROWS, COLUMNS))), dtype),
                 .row = kiln_cast(on_device(core_data(3, KILN_SHAPE(COLUMNS))), dtype),
                 .rate = number(0.25, dtype)};
    in.flag = kiln_gt_scalar(number(flag, KILN_F32), 0.5);
    assert_true(in.p && in.flag && kiln_eval());
    return in;
}

/* p becomes where(flag, p + 0.5·g·row, p)·rate, and where(p > row, p, -p) after that. */
static bool record(inputs in)
{
    kiln_formula f;
    kiln_tensor *const all[] = {in.p, in.g, in.row, in.rate, in.flag};
    bool ok = false;
    kiln_formula_begin(&f, all, 5);
    kiln_register moved = kiln_formula_put3(&f, KILN_PW_addcmul, 0, 1, 2, 0.5);
    kiln_register chosen = kiln_formula_put3(&f, KILN_PW_where, 4, moved, 0, 0);
    kiln_register scaled = kiln_formula_put(&f, KILN_PW_mul, chosen, 3, 0);
    kiln_register larger = kiln_formula_put(&f, KILN_PW_gt, scaled, 2, 0);
    kiln_formula_assign(
        &f, 0,
        kiln_formula_put3(&f, KILN_PW_where, larger, scaled, kiln_formula_put(&f, KILN_PW_neg, scaled, 0, 0), 0));
    kiln_no_grad
        ok = kiln_formula_record(&f);
    return ok;
}

static kiln_tensor *composed(inputs in)
{
    kiln_tensor *moved = kiln_addcmul(in.p, in.g, in.row, 0.5);
    kiln_tensor *scaled = kiln_mul(kiln_where(in.flag, moved, in.p), in.rate);
    return kiln_where(kiln_gt(scaled, in.row), scaled, kiln_neg(scaled));
}

static void check(kiln_dtype dtype, bool flag)
{
    double want[MANY], got[MANY];
    kiln_scope {
        inputs in = make(dtype, flag);
        assert_true(kiln_read(kiln_cast(composed(in), KILN_F64), want, sizeof want));
        kiln_trace *tr = kiln_trace_current();
        int64_t nodes = tr->nnodes;
        assert_true(record(in));
        if (!tr->eager)
            assert_int_equal(tr->nnodes - nodes, 1);
        assert_true(kiln_read(kiln_cast(in.p, KILN_F64), got, sizeof got));
        kiln_release(in.p);
    }
    assert_memory_equal(got, want, sizeof got);
}

static void test_operands(void **state)
{
    (void)state;
    for (int flag = 0; flag < 2; flag++) {
        check(KILN_F32, flag);
        check(KILN_F64, flag);
    }
}

/* A number of the device that is a destination itself beside a tensor: written operation by operation. */
static void test_counts(void **state)
{
    (void)state;
    kiln_scope {
        inputs in = make(KILN_F32, true);
        kiln_tensor *count = kiln_keep(number(1, KILN_F32));
        float before[MANY], after[MANY], steps;
        assert_true(kiln_read(in.p, before, sizeof before));
        for (int i = 0; i < 2; i++) {
            kiln_formula f;
            kiln_tensor *const all[] = {in.p, count};
            kiln_formula_begin(&f, all, 2);
            kiln_register next = kiln_formula_put(&f, KILN_PW_add_scalar, 1, 0, 1);
            kiln_formula_assign(&f, 0, kiln_formula_put(&f, KILN_PW_mul, 0, next, 0));
            kiln_formula_assign(&f, 1, next);
            kiln_no_grad
                assert_true(kiln_formula_record(&f));
        }
        assert_true(kiln_read(in.p, after, sizeof after) && kiln_read(count, &steps, sizeof steps));
        assert_true(steps == 3);
        for (int i = 0; i < MANY; i++)
            assert_true(after[i] == before[i] * 2 * 3);
        kiln_release(count);
        kiln_release(in.p);
    }
}

/* ---- Results ---- */

/* p·row, and how many of its elements are above `rate`; beside it the same in half precision. */
static bool compute(inputs in, kiln_tensor **out)
{
    kiln_formula f;
    kiln_tensor *const all[] = {in.p, in.row, in.rate};
    bool ok = false;
    kiln_formula_begin(&f, all, 3);
    kiln_register product = kiln_formula_put(&f, KILN_PW_mul, 0, 1, 0);
    kiln_formula_result(&f, product);
    kiln_formula_count(&f, kiln_formula_put(&f, KILN_PW_gt, product, 2, 0));
    kiln_formula_result(&f, kiln_formula_cast(&f, product, KILN_F16));
    kiln_no_grad
        ok = kiln_formula_compute(&f, out);
    return ok;
}

static void check_results(inputs in, bool one_node)
{
    kiln_tensor *product = kiln_mul(in.p, in.row), *out[3];
    double want[MANY], got[MANY], want_half[MANY], got_half[MANY];
    int64_t above = kiln_item_i64(kiln_sum_all(kiln_gt(product, in.rate)));
    assert_true(kiln_read(kiln_cast(product, KILN_F64), want, sizeof want));
    assert_true(kiln_read(kiln_cast(kiln_cast(product, KILN_F16), KILN_F64), want_half, sizeof want_half));
    kiln_trace *tr = kiln_trace_current();
    int64_t nodes = tr->nnodes;
    assert_true(compute(in, out));
    if (one_node && !tr->eager)
        assert_int_equal(tr->nnodes - nodes, 1);
    assert_int_equal(kiln_ndim(out[1]), 0);
    assert_int_equal(kiln_dtype_of(out[1]), KILN_I64);
    assert_int_equal(kiln_dtype_of(out[2]), KILN_F16);
    assert_int_equal(kiln_item_i64(out[1]), above);
    assert_true(above > 0 && above < MANY);
    assert_true(kiln_read(kiln_cast(out[0], KILN_F64), got, sizeof got));
    assert_true(kiln_read(kiln_cast(out[2], KILN_F64), got_half, sizeof got_half));
    assert_memory_equal(got, want, sizeof got);
    assert_memory_equal(got_half, want_half, sizeof got_half);
}

/* As one node; and operation by operation, where an operand is of another type than the rest. */
static void test_results(void **state)
{
    (void)state;
    static const kiln_dtype dtypes[] = {KILN_F32, KILN_F64};
    for (int d = 0; d < 2; d++)
        kiln_scope {
            inputs in = make(dtypes[d], true);
            in.rate = number(0.01, dtypes[d]);
            check_results(in, true);
            in.row = kiln_cast(in.row, dtypes[1 - d]);
            assert_true(kiln_eval());
            if (dtypes[d] == KILN_F64) /* else the result would be of another type than the first input */
                check_results(in, false);
            kiln_release(in.p);
        }
}

/* A view as the first input: results are dense all the same. */
static void test_results_of_views(void **state)
{
    (void)state;
    kiln_scope {
        kiln_tensor *x = on_device(core_data(1, KILN_SHAPE(COLUMNS, ROWS))), *out[1];
        kiln_tensor *turned = kiln_transpose(x, 0, 1), *want = kiln_contiguous(kiln_neg(turned));
        kiln_formula f;
        assert_true(kiln_eval());
        kiln_formula_begin(&f, &turned, 1);
        kiln_formula_result(&f, kiln_formula_put(&f, KILN_PW_neg, 0, 0, 0));
        kiln_no_grad
            assert_true(kiln_formula_compute(&f, out));
        assert_memory_equal(core_f32(out[0]), core_f32(want), MANY * sizeof(float));
    }
}

/* Numbers of several types, each assigned to: the step counts, the scale halves where the flag says so. */
static void test_types(void **state)
{
    (void)state;
    for (int flag = 0; flag < 2; flag++)
        kiln_scope {
            kiln_tensor *scale = kiln_keep(number(8, KILN_F32)), *count = kiln_keep(number(41, KILN_I64));
            kiln_tensor *found = kiln_gt_scalar(number(flag, KILN_F32), 0.5);
            kiln_formula f;
            assert_true(kiln_eval());
            kiln_formula_begin(&f, KILN_IN(scale, count, found));
            kiln_register half = kiln_formula_put(&f, KILN_PW_mul_scalar, 0, 0, 0.5);
            kiln_formula_assign(&f, 0, kiln_formula_put3(&f, KILN_PW_where, 2, half, 0, 0));
            kiln_formula_assign(&f, 1, kiln_formula_put(&f, KILN_PW_add, 1, kiln_formula_cast(&f, 2, KILN_I64), 0));
            kiln_trace *tr = kiln_trace_current();
            int64_t nodes = tr->nnodes;
            kiln_no_grad
                assert_true(kiln_formula_record(&f));
            if (!tr->eager)
                assert_int_equal(tr->nnodes - nodes, 1);
            assert_true(kiln_item(scale) == (flag ? 4 : 8));
            assert_int_equal(kiln_item_i64(count), 41 + flag);
            kiln_release(scale);
            kiln_release(count);
        }
}

/* More rows, numbers or results than there is room for: an error, and nothing is written. */
static void test_too_much(void **state)
{
    (void)state;
    kiln_scope {
        inputs in = make(KILN_F32, true);
        kiln_tensor *out[KILN_MAX_OUTPUTS + 1];
        for (int what = 0; what < 3; what++) {
            kiln_formula f;
            kiln_register last = 0;
            kiln_formula_begin(&f, &in.p, 1);
            for (int i = 0; what == 0 && i < KILN_FORMULA_ROWS; i++)
                last = kiln_formula_put(&f, KILN_PW_neg, last, 0, 0);
            for (int i = 0; what == 1 && i <= KILN_MAX_FLOATS; i++)
                last = kiln_formula_put(&f, KILN_PW_add_scalar, last, 0, 1);
            for (int i = 0; i < (what == 2 ? KILN_MAX_OUTPUTS + 1 : 1); i++)
                kiln_formula_result(&f, last);
            kiln_no_grad
                assert_false(kiln_formula_compute(&f, out));
            expect_error(KILN_E_STATE, "formula", "more rows than there is room for");
        }
        kiln_release(in.p);
    }
}

/* Shapes that do not broadcast are refused as anywhere, and nothing changes. */
static void test_bad_shapes(void **state)
{
    (void)state;
    kiln_scope {
        inputs in = make(KILN_F32, true);
        float before[MANY], after[MANY];
        assert_true(kiln_read(in.p, before, sizeof before));
        in.row = on_device(core_data(3, KILN_SHAPE(COLUMNS + 1)));
        assert_false(record(in));
        expect_error(KILN_E_SHAPE, "addcmul", "do not broadcast");
        assert_true(kiln_read(in.p, after, sizeof after));
        assert_memory_equal(after, before, sizeof after);
        kiln_release(in.p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        core_test(test_operands), core_test(test_counts),   core_test(test_results),   core_test(test_results_of_views),
        core_test(test_types),    core_test(test_too_much), core_test(test_bad_shapes)};
    return CORE_MAIN(tests);
}
