/* Convolutions in bf16 and f16 on the CPU, and their gradients: of shapes that reach each way of computing them
 * (src/device/cpu/conv/conv.c). They must be what f64 makes of the same operands, rounded once, but for the error of
 * summing in f32; and the same to the bit for any number of threads. */
#include "support/core.h"

/* ctest: name=plain env=KILN_ISA=plain */
/* ctest: name=avx2 env=KILN_ISA=avx2 */
/* ctest: name=avx512 env=KILN_ISA=avx512 */
/* ctest: name=avx512bf16 env=KILN_ISA=avx512bf16 */
/* ctest: name=eager env=KILN_EAGER=1 */

/* Pairs are height, width; 0 stands for 1 in strides, dilations and groups. */
typedef struct layer {
    int64_t batch, channels, outputs;
    int64_t size[2], kernel[2], stride[2], padding[2], dilation[2], groups;
} layer;

static const layer layers[] = {
    /* 16 channels and more on both sides: pairs, where the processor multiplies them; else oneDNN or columns */
    {2, 16, 16, {9, 9}, {3, 3}, .padding = {1, 1}},
    {3, 17, 19, {13, 11}, {3, 3}, .padding = {1, 1}},
    {1, 33, 65, {7, 10}, {2, 4}, .padding = {1, 0}},
    {5, 64, 48, {3, 3}, {3, 3}, .groups = 1}, /* one pixel */
    {3, 20, 35, {15, 12}, {3, 3}, .stride = {2, 2}, .padding = {1, 1}},
    {2, 16, 40, {17, 19}, {5, 3}, .stride = {3, 3}, .padding = {2, 1}},
    {2, 18, 34, {14, 9}, {3, 3}, .stride = {1, 2}, .padding = {0, 1}},
    {2, 34, 18, {14, 9}, {3, 5}, .stride = {3, 1}, .padding = {1, 2}},
    {4, 32, 64, {10, 11}, {1, 1}, .stride = {2, 2}},
    {2, 16, 16, {14, 16}, {2, 2}, .stride = {3, 3}}, /* not all is read */
    {2, 16, 64, {32, 24}, {8, 8}, .stride = {8, 8}}, /* patches */
    {1, 16, 24, {5, 6}, {2, 3}, .padding = {3, 2}},  /* more padding than kernel */
    {2, 24, 16, {20, 21}, {3, 2}, .padding = {2, 3}, .dilation = {2, 3}},
    {2, 16, 20, {17, 18}, {3, 3}, .stride = {2, 2}, .padding = {2, 2}, .dilation = {2, 2}}, /* phases nobody reads */
    {2, 20, 16, {18, 17}, {3, 3}, .stride = {2, 3}, .padding = {3, 2}, .dilation = {3, 2}},
    {70, 16, 33, {4, 5}, {3, 3}, .padding = {1, 1}},    /* several images in a strip */
    {1, 16, 16, {150, 130}, {3, 3}, .padding = {1, 1}}, /* an image that is more than strips are to take */
    {40, 16, 16, {46, 48}, {3, 1}, .padding = {1, 0}},  /* the weight's gradient in several rounds */
    {2, 160, 130, {8, 8}, {3, 3}, .padding = {1, 1}},   /* several blocks and panels */
    /* 1×1 kernels, and few channels on one side: columns */
    {3, 40, 24, {9, 7}, {1, 1}, .groups = 1},
    {2, 24, 40, {17, 19}, {1, 1}, .groups = 1},
    {2, 3, 64, {20, 21}, {7, 7}, .stride = {2, 2}, .padding = {3, 3}},
    {2, 5, 33, {12, 13}, {3, 3}, .padding = {1, 1}},
    {2, 3, 32, {16, 16}, {4, 4}, .stride = {4, 4}},
    {2, 48, 2, {11, 12}, {3, 3}, .padding = {1, 1}},
    /* few channels on both: direct */
    {3, 1, 6, {28, 28}, {5, 5}, .padding = {2, 2}},
    {3, 6, 16, {14, 13}, {5, 5}, .groups = 1},
    {2, 8, 5, {9, 11}, {3, 3}, .padding = {1, 1}},
    {2, 4, 7, {12, 21}, {3, 3}, .stride = {2, 1}, .padding = {1, 1}},
    {9, 3, 3, {6, 40}, {1, 7}, .padding = {0, 3}},
    /* groups */
    {2, 24, 24, {13, 12}, {3, 3}, .padding = {1, 1}, .groups = 24},
    {2, 8, 16, {11, 11}, {5, 5}, .stride = {2, 2}, .padding = {2, 2}, .groups = 8},
    {2, 32, 48, {11, 9}, {3, 3}, .padding = {1, 1}, .groups = 4},
    {1, 64, 64, {6, 6}, {1, 1}, .groups = 2},
    /* no images */
    {0, 16, 16, {9, 9}, {3, 3}, .padding = {1, 1}},
    {0, 3, 8, {9, 9}, {3, 3}, .padding = {1, 1}},
    {0, 40, 40, {9, 9}, {1, 1}, .groups = 1},
    {0, 8, 8, {9, 9}, {3, 3}, .groups = 8},
};
enum { LAYERS = sizeof layers / sizeof *layers };

static int64_t or_one(int64_t n)
{
    return n ? n : 1;
}

static int64_t out_size(const layer *l, int axis)
{
    int64_t reach = or_one(l->dilation[axis]) * (l->kernel[axis] - 1);
    return (l->size[axis] + 2 * l->padding[axis] - reach - 1) / or_one(l->stride[axis]) + 1;
}

/* ---- Operands and results: both are three arrays ---- */

enum { X, W, GY, OPERANDS };
enum { Y, GX, GW, RESULTS };
static const char *const result_names[RESULTS] = {"result", "gradient of x", "gradient of w"};

typedef struct results {
    int64_t count[RESULTS];
    double *values[RESULTS];
} results;

static kiln_tensor *draw(int seed, const int64_t *shape, kiln_dtype dtype)
{
    int64_t n = shape[0] * shape[1] * shape[2] * shape[3];
    float *x = malloc((size_t)(n + 1) * sizeof *x);
    assert_non_null(x);
    uint32_t r = 2654435761u * (uint32_t)(seed + 1);
    for (int64_t i = 0; i < n; i++) {
        r = r * 1664525u + 1013904223u;
        x[i] = (float)(int32_t)r / 2147483648.0f;
    }
    kiln_tensor *t = NULL;
    kiln_scope
        t = kiln_keep(kiln_cast(kiln_tensor_new(x, KILN_F32, 4, shape, KILN_CPU), dtype));
    free(x);
    assert_true(kiln_eval());
    return t;
}

static void draw_operands(const layer *l, kiln_dtype dtype, kiln_tensor **o)
{
    o[X] = draw(1, (int64_t[]){l->batch, l->channels, l->size[0], l->size[1]}, dtype);
    o[W] = draw(2, (int64_t[]){l->outputs, l->channels / or_one(l->groups), l->kernel[0], l->kernel[1]}, dtype);
    o[GY] = draw(3, (int64_t[]){l->batch, l->outputs, out_size(l, 0), out_size(l, 1)}, dtype);
}

static results compute(const layer *l, kiln_tensor *const *operands)
{
    results r = {0};
    kiln_tensor *made[RESULTS] = {NULL};
    kiln_scope {
        kiln_requires_grad(operands[X], true);
        kiln_requires_grad(operands[W], true);
        made[Y] = kiln_conv2d(operands[X], operands[W], NULL, .stride = {l->stride[0], l->stride[1]},
                              .padding = {l->padding[0], l->padding[1]}, .dilation = {l->dilation[0], l->dilation[1]},
                              .groups = l->groups);
        assert_true(kiln_grad(made[Y], operands[GY], operands, 2, made + GX));
        for (int i = 0; i < RESULTS; i++)
            made[i] = kiln_keep(made[i]);
        assert_true(kiln_eval()); /* before they are cast, so that they are rounded */
        for (int i = 0; i < RESULTS; i++) {
            r.count[i] = kiln_numel(made[i]);
            r.values[i] = malloc((size_t)(r.count[i] + 1) * sizeof(double));
            assert_non_null(r.values[i]);
            assert_true(kiln_read(kiln_cast(made[i], KILN_F64), r.values[i], (size_t)r.count[i] * sizeof(double)));
            kiln_release(made[i]);
        }
    }
    return r;
}

/* In f64: of the operands, or of their magnitudes, which tells how large the terms of a sum are. */
static results compute_exactly(const layer *l, kiln_tensor *const *operands, bool magnitudes)
{
    kiln_tensor *exact[OPERANDS];
    kiln_step
        for (int i = 0; i < OPERANDS; i++) {
            kiln_tensor *x = kiln_cast(operands[i], KILN_F64);
            exact[i] = kiln_keep(magnitudes ? kiln_abs(x) : x);
        }
    results r = compute(l, exact);
    for (int i = 0; i < OPERANDS; i++)
        kiln_release(exact[i]);
    return r;
}

static void free_results(results *r)
{
    for (int i = 0; i < RESULTS; i++)
        free(r->values[i]);
}

/* ---- Comparing ---- */

static double terms(const layer *l, int result)
{
    int64_t taps = l->kernel[0] * l->kernel[1], groups = or_one(l->groups);
    return (double)(result == Y    ? l->channels / groups * taps
                    : result == GX ? l->outputs / groups * taps
                                   : l->batch * out_size(l, 0) * out_size(l, 1));
}

static void assert_rounded(const layer *l, kiln_dtype dtype, const results *got, const results *want,
                           const results *magnitudes)
{
    double rounding = dtype == KILN_BF16 ? 0x1p-8 : 0x1p-11, least = 0x1p-25; /* f16 has denormals */
    for (int i = 0; i < RESULTS; i++) {
        assert_int_equal(got->count[i], want->count[i]);
        double summing = 4 * sqrt(terms(l, i)) * 0x1p-24;
        for (int64_t k = 0; k < got->count[i]; k++) {
            double a = got->values[i][k], b = want->values[i][k];
            if (!(fabs(a - b) <= 1.01 * rounding * fabs(b) + summing * magnitudes->values[i][k] + least))
                fail_msg("%s, layer %d, %s, element %d of %d: %.9g, not %.9g", kiln_dtype_name(dtype),
                         (int)(l - layers), result_names[i], (int)k, (int)got->count[i], a, b);
        }
    }
}

static void assert_same(const layer *l, int threads, const results *got, const results *want)
{
    for (int i = 0; i < RESULTS; i++)
        if (memcmp(got->values[i], want->values[i], (size_t)want->count[i] * sizeof(double)) != 0)
            fail_msg("layer %d: other bits of the %s on %d threads", (int)(l - layers), result_names[i], threads);
}

static void check_layer(const layer *l, kiln_dtype dtype)
{
    static const int threads[] = {2, 5};
    kiln_tensor *operands[OPERANDS];
    draw_operands(l, dtype, operands);
    results want = compute_exactly(l, operands, false), magnitudes = compute_exactly(l, operands, true);
    kiln_set_num_threads(1);
    results got = compute(l, operands);
    assert_rounded(l, dtype, &got, &want, &magnitudes);
    for (int i = 0; i < 2; i++) {
        kiln_set_num_threads(threads[i]);
        results again = compute(l, operands);
        assert_same(l, threads[i], &again, &got);
        free_results(&again);
    }
    free_results(&got);
    free_results(&want);
    free_results(&magnitudes);
    for (int i = 0; i < OPERANDS; i++)
        kiln_release(operands[i]);
}

static void check(kiln_dtype dtype)
{
    int before = kiln_get_num_threads();
    for (int i = 0; i < LAYERS; i++)
        check_layer(&layers[i], dtype);
    kiln_set_num_threads(before);
}

static void test_bf16(void **state)
{
    (void)state;
    check(KILN_BF16);
}

static void test_f16(void **state)
{
    (void)state;
    check(KILN_F16);
}

int main(void)
{
    const struct CMUnitTest tests[] = {core_test(test_bf16), core_test(test_f16)};
    return kiln_set_default_device(KILN_CPU) ? cmocka_run_group_tests(tests, NULL, NULL) : kiln_report(stderr);
}
