/* Formulas (trace/formula.h): rows of one, two and three operands, operands that broadcast, numbers and flags that lie
 * on the device, and that a formula which cannot be one node means the same. */
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
    const struct CMUnitTest tests[] = {core_test(test_operands), core_test(test_counts), core_test(test_bad_shapes)};
    return CORE_MAIN(tests);
}
