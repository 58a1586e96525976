/* Products large enough for a library, and what it may be asked to do at their end: a bias, a relu, both, to a new
 * tensor and to one that is there already. Compared with the same numbers multiplied in f32 on the CPU. */
#include "support/core.h"

/* ctest: name=tf32 env=KILN_TF32=1 */

enum { M = 512, K = 530, MOST_N = 272 };

typedef struct ending {
    bool bias, relu;
    int64_t offset; /* of the bias in its storage */
    bool assigned;
} ending;

/* Numbers of dtype, in memory of their own. */
static kiln_tensor *operand(int seed, kiln_dtype dtype, int ndim, const int64_t *shape)
{
    return kiln_cast(core_data(seed, ndim, shape), dtype);
}

static void compute(const ending *e, kiln_dtype dtype, int64_t n, bool reference, float *to)
{
    kiln_tensor *a = operand(1, dtype, KILN_SHAPE(M, K)), *b = operand(2, dtype, KILN_SHAPE(n, K));
    kiln_tensor *biases = operand(3, dtype, KILN_SHAPE(n + e->offset)), *y = kiln_zeros(KILN_SHAPE(M, n), dtype);
    kiln_assign(kiln_slice(kiln_slice(a, 0, 1, 2, 1), 1, 7, 8, 1), kiln_full(KILN_SHAPE(1, 1), NAN, dtype));
    kiln_tensor *bias = kiln_slice(biases, 0, e->offset, n + e->offset, 1);
    if (reference) {
        a = kiln_cast(a, KILN_F32);
        b = kiln_cast(b, KILN_F32);
        bias = kiln_cast(bias, KILN_F32);
    }
    kiln_step { /* a product and its end, and nothing else that anybody wants */
        kiln_tensor *x = kiln_matmul(a, kiln_transpose(b, 0, 1));
        x = e->bias ? kiln_add(x, bias) : x;
        x = e->relu ? kiln_relu(x) : x;
        if (e->assigned && !reference)
            kiln_assign(y, x);
        else
            y = kiln_keep(x);
    }
    assert_true(kiln_read(kiln_cast(y, KILN_F32), to, (size_t)(M * n) * sizeof *to));
    if (!e->assigned || reference)
        kiln_release(y);
}

/* Products of numbers below 1 in absolute value whose sums are below 64: `step` is the distance between two numbers
 * there, and the product may have been rounded once more than the result. */
static void compare(const ending *e, kiln_dtype dtype, int64_t n)
{
    static float got[M * MOST_N], want[M * MOST_N], again[M * MOST_N];
    kiln_scope
        compute(e, dtype, n, false, got);
    kiln_scope
        compute(e, dtype, n, false, again);
    kiln_on_device (KILN_CPU)
        kiln_scope
            compute(e, dtype, n, true, want);
    assert_memory_equal(got, again, (size_t)(M * n) * sizeof *got);
    float step = dtype == KILN_BF16 ? 0.25f : dtype == KILN_F16 || kiln_get_tf32() ? 0.03125f : 1e-4f;
    for (int64_t i = 0; i < M * n; i++)
        if (!(isnan(want[i]) ? isnan(got[i]) : fabsf(got[i] - want[i]) <= 1.5f * step))
            fail_msg("%s, n %lld, bias %d, relu %d, offset %lld, assigned %d: [%lld, %lld] is %.9g instead of %.9g",
                     kiln_dtype_name(dtype), (long long)n, e->bias, e->relu, (long long)e->offset, e->assigned,
                     (long long)(i / n), (long long)(i % n), got[i], want[i]);
}

static void test_ends(void **state)
{
    (void)state;
    static const kiln_dtype dtypes[] = {KILN_F32, KILN_F16, KILN_BF16};
    static const ending endings[] = {
        {.relu = true},
        {.bias = true},
        {.bias = true, .relu = true},
        {.bias = true, .relu = true, .offset = 8},      /* aligned as a library wants it … */
        {.bias = true, .relu = true, .offset = 1},      /* … and not */
        {.bias = true, .relu = true, .assigned = true}, /* must not be written if the step fails */
    };
    for (size_t t = 0; t < sizeof dtypes / sizeof *dtypes; t++)
        for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
            compare(&endings[i], dtypes[t], MOST_N);
            compare(&endings[i], dtypes[t], 247); /* rows that begin anywhere */
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {core_test(test_ends)};
    return CORE_MAIN(tests);
}
