/* Products in f16 and bf16 as parts of a step: of all layouts and of sizes that suit nothing, with operands that lie in
 * memory as they are and operands that the step converts first, as autocast does. All numbers are small integers, so
 * every sum is exact and the result is the same to the bit whoever multiplies, in whichever order; also where there are
 * NaNs and infinities among them. On a GPU steps are chains, whose kernels are waited for. */
#include "support/core.h"
#include "support/suite.h"

/* ctest: name=pitch env=KILN_TEST_PITCH=8 */

typedef struct sizes {
    int64_t m, n, k;
} sizes;

/* Among them: operands with strides that are no multiples of 2, 4 or 8, a k that is cut between blocks, tiles of all
 * kinds. */
static const sizes shapes[] = {{32, 256, 784},  {37, 77, 301},    {5, 3, 1},      {64, 10, 131},   {130, 70, 33},
                               {10, 128, 1030}, {128, 256, 4096}, {300, 200, 52}, {1024, 256, 128}};
enum { SHAPES = sizeof shapes / sizeof *shapes, LAYOUTS = 4, MOST = 1024 * 256 };

/* [rows, cols] of integers from -2 to 2, in memory as it is or turned. */
static kiln_tensor *integers(int seed, int64_t rows, int64_t cols, bool turned, bool strange)
{
    int64_t count = rows * cols;
    float *x = malloc((size_t)count * sizeof *x);
    assert_non_null(x);
    for (int64_t i = 0; i < count; i++)
        x[i] = (float)((i * 7 + i / 11 + seed * 3) % 5 - 2);
    if (strange) {
        x[count / 2] = NAN;
        x[count / 3] = INFINITY;
        x[count - 1] = -INFINITY;
    }
    int64_t height = turned ? cols : rows, width = turned ? rows : cols;
    kiln_tensor *t = kiln_keep(kiln_tensor_new(x, KILN_F32, KILN_SHAPE(height, width), kiln_default_device()));
    free(x);
    assert_non_null(t);
    return t;
}

/* relu of the product plus a row, and the sums of its rows; `reference`: in f32, rounded where a value of that dtype
 * would be. */
static void compute(kiln_tensor *const *x, bool ta, bool tb, kiln_dtype dtype, bool reference, kiln_tensor **out)
{
    kiln_tensor *a = kiln_cast(x[0], dtype), *b = kiln_cast(x[1], dtype);
    if (reference) {
        a = kiln_cast(a, KILN_F32);
        b = kiln_cast(b, KILN_F32);
    }
    a = ta ? kiln_transpose(a, 0, 1) : a;
    b = tb ? kiln_transpose(b, 0, 1) : b;
    kiln_tensor *y = kiln_matmul(a, b);
    y = kiln_relu(kiln_cast(kiln_cast(y, dtype), KILN_F32));
    out[0] = kiln_keep(y);
    out[1] = kiln_keep(kiln_amax(y, KILN_DIMS(1), false));
}

/* All four layouts in one step, several times. */
static void run(const sizes *s, kiln_dtype dtype, bool reference, bool strange, bool converted, float *to)
{
    kiln_tensor *x[LAYOUTS][2], *out[LAYOUTS][2];
    for (int l = 0; l < LAYOUTS; l++)
        for (int i = 0; i < 2; i++) {
            bool turned = l >> i & 1;
            x[l][i] = integers(l * 2 + i, i ? s->k : s->m, i ? s->n : s->k, turned, strange && !i);
            if (!converted) {
                kiln_tensor *half = kiln_keep(kiln_cast(x[l][i], dtype));
                kiln_eval();
                kiln_release(x[l][i]);
                x[l][i] = half;
            }
        }
    for (int again = 0; again < (reference ? 1 : 3); again++) {
        kiln_step
            for (int l = 0; l < LAYOUTS; l++)
                compute(x[l], l & 1, l & 2, dtype, reference, out[l]);
        int64_t at = 0;
        for (int l = 0; l < LAYOUTS; l++)
            for (int i = 0; i < 2; i++) {
                int64_t n = kiln_numel(out[l][i]);
                assert_true(kiln_read(out[l][i], to + at, (size_t)n * sizeof *to));
                at += n;
                kiln_release(out[l][i]);
            }
    }
    for (int l = 0; l < LAYOUTS; l++)
        for (int i = 0; i < 2; i++)
            kiln_release(x[l][i]);
}

static void compare(const sizes *s, kiln_dtype dtype, bool strange)
{
    static float want[LAYOUTS * (MOST + 1024)], got[LAYOUTS * (MOST + 1024)];
    kiln_on_device (KILN_CPU)
        run(s, dtype, true, strange, true, want);
    for (int converted = 0; converted < 2; converted++) {
        run(s, dtype, false, strange, converted, got);
        for (int64_t i = 0; i < LAYOUTS * (s->m * s->n + s->m); i++)
            if (!(got[i] == want[i] || (isnan(got[i]) && isnan(want[i]))))
                fail_msg("%s %d x %d x %d, %s, element %d: %g, not %g", kiln_dtype_name(dtype), (int)s->m, (int)s->n,
                         (int)s->k, converted ? "converted" : "as it is", (int)i, (double)got[i], (double)want[i]);
    }
}

static void test_shapes(kiln_dtype dtype)
{
    for (int i = 0; i < SHAPES; i += suite_small() ? 3 : 1) /* compute-sanitizer makes them slow */
        compare(&shapes[i], dtype, false);
    compare(&shapes[1], dtype, true);
    compare(&shapes[7], dtype, true);
}

static void test_f16(void **state)
{
    (void)state;
    test_shapes(KILN_F16);
}

static void test_bf16(void **state)
{
    (void)state;
    test_shapes(KILN_BF16);
}

int main(void)
{
    setenv("KILN_CUDA_JIT", "wait", 0);
    const struct CMUnitTest tests[] = {core_test(test_f16), core_test(test_bf16)};
    return CORE_MAIN(tests);
}
