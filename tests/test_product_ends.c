/* Products large enough for a library, and what it may be asked to do beside: a bias, a relu, both, to a new tensor and
 * to one that is there already; the sum of an operand; sums so long that they are split. Compared with the same numbers
 * multiplied in f32 on the CPU. */
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

/* ---- Gradients of a layer: a bias's is the sum of what its weight's is a product with ---- */

enum { ROWS = 512, INNER = 256, OUTER = 768, WIDTH = 1024, GRADS = WIDTH * OUTER };

typedef struct layer {
    bool inputs_first; /* the weight is [in, out], else [out, in] */
    bool sum_last;
    int64_t images; /* rows are of two dims, so many of them */
    bool used;      /* the sum is needed before the product */
} layer;

static void differentiate(const layer *l, kiln_dtype dtype, bool reference, float *gw, float *gb)
{
    kiln_tensor *x = operand(4, dtype, KILN_SHAPE(ROWS, OUTER)), *g = operand(5, dtype, KILN_SHAPE(ROWS, INNER));
    kiln_tensor *w = operand(6, dtype, KILN_SHAPE(INNER, WIDTH)), *kept[3] = {0};
    if (reference) {
        x = kiln_cast(x, KILN_F32);
        g = kiln_cast(g, KILN_F32);
        w = kiln_cast(w, KILN_F32);
    }
    kiln_step {
        kiln_tensor *gy = kiln_matmul(g, w), *sum = NULL, *product;
        kiln_tensor *y = l->images ? kiln_reshape(gy, KILN_SHAPE(l->images, ROWS / l->images, WIDTH)) : gy;
        if (!l->sum_last)
            sum = l->images ? kiln_sum(y, KILN_SHAPE(0, 1), false) : kiln_sum(y, KILN_SHAPE(0), false);
        if (l->used)
            kept[2] = kiln_keep(kiln_matmul(kiln_add(gy, sum), kiln_transpose(w, 0, 1)));
        product = l->inputs_first ? kiln_matmul(kiln_transpose(x, 0, 1), gy) : kiln_matmul(kiln_transpose(gy, 0, 1), x);
        if (l->sum_last)
            sum = l->images ? kiln_sum(y, KILN_SHAPE(0, 1), false) : kiln_sum(y, KILN_SHAPE(0), false);
        kept[0] = kiln_keep(product);
        kept[1] = kiln_keep(sum);
    }
    assert_true(kiln_read(kiln_cast(kept[0], KILN_F32), gw, GRADS * sizeof *gw));
    assert_true(kiln_read(kiln_cast(kept[1], KILN_F32), gb, WIDTH * sizeof *gb));
    for (int i = 0; i < 3; i++)
        kiln_release(kept[i]);
}

/* Within `part` of the largest. */
static void assert_gradients(const char *what, const layer *l, kiln_dtype dtype, const float *got, const float *want,
                             int64_t n, float part)
{
    float most = 0;
    for (int64_t i = 0; i < n; i++)
        most = fmaxf(most, fabsf(want[i]));
    for (int64_t i = 0; i < n; i++)
        if (!(fabsf(got[i] - want[i]) <= part * most))
            fail_msg("%s, inputs first %d, sum last %d, images %lld, used %d: %s [%lld] is %.9g instead of %.9g",
                     kiln_dtype_name(dtype), l->inputs_first, l->sum_last, (long long)l->images, l->used, what,
                     (long long)i, got[i], want[i]);
}

static void compare_gradients(const layer *l, kiln_dtype dtype)
{
    static float got[GRADS + WIDTH], want[GRADS + WIDTH], again[GRADS + WIDTH];
    kiln_scope
        differentiate(l, dtype, false, got, got + GRADS);
    kiln_scope
        differentiate(l, dtype, false, again, again + GRADS);
    kiln_on_device (KILN_CPU)
        kiln_scope
            differentiate(l, dtype, true, want, want + GRADS);
    assert_memory_equal(got, again, sizeof got);
    float part = dtype == KILN_BF16 ? 1 / 128.0f : dtype == KILN_F16 || kiln_get_tf32() ? 1 / 1024.0f : 1e-5f;
    assert_gradients("the weight's", l, dtype, got, want, GRADS, part);
    assert_gradients("the bias's", l, dtype, got + GRADS, want + GRADS, WIDTH, part);
}

static void test_gradients(void **state)
{
    (void)state;
    static const kiln_dtype dtypes[] = {KILN_F32, KILN_F16, KILN_BF16};
    static const layer layers[] = {{0},
                                   {.inputs_first = true},
                                   {.sum_last = true},
                                   {.inputs_first = true, .sum_last = true, .images = 4},
                                   {.used = true}};
    for (size_t t = 0; t < sizeof dtypes / sizeof *dtypes; t++)
        for (size_t i = 0; i < sizeof layers / sizeof *layers; i++)
            compare_gradients(&layers[i], dtypes[t]);
}

/* A step as it is trained: gradients are clipped, so that they are all there before anything is updated. With tanh: a
 * relu whose input is rounded to the other side of 0 would change the gradients of its whole unit. */
static void train(float *weights)
{
    kiln_tensor *x = operand(7, KILN_F32, KILN_SHAPE(ROWS, OUTER)), *y = operand(8, KILN_F32, KILN_SHAPE(ROWS, INNER));
    kiln_manual_seed(9);
    kiln_module *m = kiln_nn_sequential(kiln_nn_linear(OUTER, WIDTH), kiln_nn_tanh(), kiln_nn_linear(WIDTH, INNER));
    kiln_params p = kiln_parameters(m);
    kiln_optim *sgd = kiln_optim_sgd(p, .lr = 1);
    for (int i = 0; i < 2; i++)
        kiln_step {
            kiln_zero_grad(sgd);
            kiln_backward(kiln_mse_loss(kiln_forward(m, x), y, KILN_MEAN));
            kiln_clip_grad_norm(p, 1);
            kiln_optim_step(sgd);
        }
    for (int64_t i = 0; i < p.count; weights += kiln_numel(p.tensors[i++]))
        assert_true(kiln_read(p.tensors[i], weights, (size_t)kiln_numel(p.tensors[i]) * sizeof *weights));
    kiln_optim_free(sgd);
    kiln_module_free(m);
}

static void test_training(void **state)
{
    (void)state;
    enum { WEIGHTS = OUTER * WIDTH + WIDTH + WIDTH * INNER + INNER };
    static float got[WEIGHTS], want[WEIGHTS];
    kiln_scope
        train(got);
    kiln_on_device (KILN_CPU)
        kiln_scope
            train(want);
    for (int64_t i = 0; i < WEIGHTS; i++)
        if (!(fabsf(got[i] - want[i]) <= (kiln_get_tf32() ? 1e-4f : 1e-6f)))
            fail_msg("weight %lld is %.9g instead of %.9g", (long long)i, got[i], want[i]);
}

/* ---- Long sums: parts that are made side by side are added in the same order every time ---- */

enum { LONG = 8192, LINES = 128, COLUMNS = 64 };

static void sum_products(float *to)
{
    kiln_tensor *a = operand(10, KILN_F32, KILN_SHAPE(LONG, LINES)),
                *b = operand(11, KILN_F32, KILN_SHAPE(LONG, COLUMNS));
    assert_true(kiln_read(kiln_matmul(kiln_transpose(a, 0, 1), b), to, LINES * COLUMNS * sizeof *to));
}

static void test_long_sums(void **state)
{
    (void)state;
    enum { TIMES = 5 };
    static float got[TIMES][LINES * COLUMNS], want[LINES * COLUMNS];
    for (int i = 0; i < TIMES; i++)
        kiln_scope
            sum_products(got[i]);
    for (int i = 1; i < TIMES; i++)
        assert_memory_equal(got[0], got[i], sizeof got[i]);
    kiln_on_device (KILN_CPU)
        kiln_scope
            sum_products(want);
    float most = kiln_get_tf32() ? 1.0f : 0.01f; /* of LONG products of numbers below 1, which mostly cancel out */
    for (int64_t i = 0; i < LINES * COLUMNS; i++)
        if (!(fabsf(got[0][i] - want[i]) <= most))
            fail_msg("[%lld] is %.9g instead of %.9g", (long long)i, got[0][i], want[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {core_test(test_ends), core_test(test_gradients), core_test(test_training),
                                       core_test(test_long_sums)};
    return CORE_MAIN(tests);
}
