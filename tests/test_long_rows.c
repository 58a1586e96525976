/* Long rows: what has one element a row is repeated along it, over as many tiles of the CPU's as the row takes, and the
 * loss of a large choice has rows of as many logits as there are words. Where not said otherwise all numbers are small
 * integers, so that every result is exact in any dtype and order. */
#include "support/core.h"

/* ctest: name=eager env=KILN_EAGER=1 */
/* ctest: name=threads env=KILN_NUM_THREADS=3 */

enum { MOST_ROWS = 7, MOST_COLUMNS = 5000 };

static int x_at(int64_t row, int64_t column)
{
    return (int)((row * 5 + column * 3 + column / 7) % 7) - 3;
}

static int per_row(int64_t row, int which)
{
    return (int)((row * 3 + which) % 5) + 1;
}

static kiln_tensor *of(const float *values, int64_t rows, int64_t columns, kiln_dtype dtype)
{
    return kiln_cast(kiln_tensor_new(values, KILN_F32, KILN_SHAPE(rows, columns), kiln_default_device()), dtype);
}

/* Whether elements of row `row`, `n` of them, are x·a + b, and the row's sum of x·a is `sum`. */
static void check_row(const float *got, int64_t row, int64_t n, float sum, const char *dtype)
{
    int64_t all = 0;
    for (int64_t i = 0; i < n; i++) {
        int product = x_at(row, i) * per_row(row, 0);
        all += product;
        if (got[i] != (float)(product + per_row(row, 1)))
            fail_msg("%s, rows of %d: element %d of row %d is %g", dtype, (int)n, (int)i, (int)row, (double)got[i]);
    }
    if (sum != (float)all)
        fail_msg("%s, rows of %d: the sum of row %d is %g, not %d", dtype, (int)n, (int)row, (double)sum, (int)all);
}

static void check(int64_t rows, int64_t n, kiln_dtype dtype)
{
    static float x[MOST_ROWS * MOST_COLUMNS], got[MOST_ROWS * MOST_COLUMNS];
    float a[MOST_ROWS], b[MOST_ROWS], sums[MOST_ROWS];
    kiln_tensor *y = NULL, *sum = NULL;
    for (int64_t r = 0; r < rows; r++) {
        a[r] = (float)per_row(r, 0);
        b[r] = (float)per_row(r, 1);
        for (int64_t i = 0; i < n; i++)
            x[r * n + i] = (float)x_at(r, i);
    }
    kiln_step {
        kiln_tensor *product = kiln_mul(of(x, rows, n, dtype), of(a, rows, 1, dtype));
        y = kiln_keep(kiln_cast(kiln_add(product, of(b, rows, 1, dtype)), KILN_F32));
        sum = kiln_keep(kiln_sum(kiln_cast(product, KILN_F32), KILN_DIMS(1), false));
    }
    assert_true(kiln_read(y, got, (size_t)(rows * n) * sizeof *got));
    assert_true(kiln_read(sum, sums, (size_t)rows * sizeof *sums));
    for (int64_t r = 0; r < rows; r++)
        check_row(got + r * n, r, n, sums[r], kiln_dtype_name(dtype));
    kiln_release(y);
    kiln_release(sum);
}

static void test_one_element_a_row(void **state)
{
    static const int64_t lengths[] = {1, 1000, 1023, 1024, 1025, 1500, 2047, 2048, 2049, 3000, MOST_COLUMNS};
    static const kiln_dtype dtypes[] = {KILN_F32, KILN_F64, KILN_BF16, KILN_F16, KILN_I64};
    (void)state;
    kiln_scope
        for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++)
            for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
                for (int64_t rows = 1; rows <= MOST_ROWS; rows += 3)
                    check(rows, lengths[i], dtypes[d]);
}

/* ---- The loss of a large choice ---- */

enum { TEXTS = 24, WORDS = 50257 };
static const int64_t ignored = -100;

static float logit(int64_t row, int64_t word)
{
    return 0.25f * (float)((row * 11 + word * 7 + word / 13) % 17);
}

/* Its gradient, in f64: (softmax - 1 at the target) / targets that count; a row that is ignored has none. */
static void check_gradient(const float *got, int64_t row, int64_t target, int64_t counted)
{
    double sum = 0;
    for (int64_t w = 0; w < WORDS; w++)
        sum += exp((double)logit(row, w));
    for (int64_t w = 0; w < WORDS; w++) {
        double share = exp((double)logit(row, w)) / sum - (w == target ? 1 : 0);
        double want = target == ignored ? 0 : share / (double)counted;
        if (!(fabs((double)got[w] - want) <= 1e-5 * fabs(want) + 1e-10))
            fail_msg("row %d, word %d: %g, not %g", (int)row, (int)w, (double)got[w], want);
    }
}

static void test_large_choice(void **state)
{
    static float x[TEXTS * WORDS], got[TEXTS * WORDS];
    int64_t targets[TEXTS] = {0, WORDS - 1, 24577, 32769, ignored, 50001, WORDS - 2}, counted = TEXTS - 1;
    (void)state;
    for (int64_t r = 7; r < TEXTS; r++)
        targets[r] = r * 2111 % WORDS;
    for (int64_t i = 0; i < (int64_t)TEXTS * WORDS; i++)
        x[i] = logit(i / WORDS, i % WORDS);
    kiln_scope {
        kiln_device here = kiln_default_device();
        kiln_tensor *leaf = kiln_requires_grad(kiln_tensor_new(x, KILN_F32, KILN_SHAPE(TEXTS, WORDS), here), true);
        kiln_tensor *target = kiln_tensor_new(targets, KILN_I64, KILN_SHAPE(TEXTS), here);
        kiln_step
            assert_true(kiln_backward(kiln_cross_entropy(leaf, target, .ignore_index = ignored)));
        assert_true(kiln_read(kiln_grad_of(leaf), got, sizeof got));
    }
    for (int64_t r = 0; r < TEXTS; r++)
        check_gradient(got + r * WORDS, r, targets[r], counted);
}

int main(void)
{
    const struct CMUnitTest tests[] = {core_test(test_one_element_a_row), core_test(test_large_choice)};
    return CORE_MAIN(tests);
}
