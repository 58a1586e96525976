/* Groups that begin with a convolution or one of its gradients, on the CPU: a bias, an activation, a residual or an
 * optimizer's update that is computed on the convolution's result while that is in cache. In f32 they have the bits of
 * the same operations run one by one; of 16 bits the result of the convolution is not rounded before the group ends, so
 * that they are as near to f64 as f32 is. Each element is finished once, also where oneDNN fails in the middle. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>

#include "support/core.h"

/* ctest: name=plain env=KILN_ISA=plain */
/* ctest: name=avx512 env=KILN_ISA=avx512 */
/* ctest: name=avx512bf16 env=KILN_ISA=avx512bf16 */
/* ctest: name=eager env=KILN_EAGER=1 */

/* ---- A oneDNN that fails ---- */

/* Stands before oneDNN's function, where status 1 is "out of memory", and fails in one call; -1: in none. */
int dnnl_primitive_execute(const void *primitive, void *stream, int nargs, const void *args);
static atomic_int dnnl_calls, dnnl_fails_at = -1;

int dnnl_primitive_execute(const void *primitive, void *stream, int nargs, const void *args)
{
    if (atomic_fetch_add(&dnnl_calls, 1) == atomic_load(&dnnl_fails_at))
        return 1;
    int (*real)(const void *, void *, int, const void *) = NULL;
    *(void **)&real = dlsym(RTLD_NEXT, "dnnl_primitive_execute");
    return real ? real(primitive, stream, nargs, args) : 1;
}

/* ---- Layers whose results have the size of their input, for residuals ---- */

typedef struct layer {
    int64_t batch, channels, size, kernel, groups;
} layer;

static const layer layers[] = {
    {3, 6, 14, 5, 1},   /* direct */
    {2, 40, 17, 1, 1},  /* columns */
    {5, 48, 13, 3, 1},  /* oneDNN; pairs */
    {2, 64, 9, 3, 2},   /* oneDNN */
    {2, 24, 11, 3, 24}, /* depthwise */
    {1, 16, 70, 3, 1},  /* more than a tile of a group in a plane */
};
enum { LAYERS = sizeof layers / sizeof *layers, BY_DNNL = 2 };

enum { X, W, BIAS, OTHER, OPERANDS };

static kiln_tensor *draw(int seed, int ndim, const int64_t *shape, kiln_dtype dtype)
{
    kiln_tensor *t = NULL;
    kiln_step
        t = kiln_keep(kiln_cast(core_data(seed, ndim, shape), dtype));
    assert_non_null(t);
    return t;
}

static void draw_operands(const layer *l, kiln_dtype dtype, kiln_tensor **o)
{
    o[X] = draw(1, KILN_SHAPE(l->batch, l->channels, l->size, l->size), dtype);
    o[W] = draw(2, KILN_SHAPE(l->channels, l->channels / l->groups, l->kernel, l->kernel), dtype);
    o[BIAS] = draw(3, KILN_SHAPE(l->channels, 1, 1), dtype);
    o[OTHER] = draw(4, KILN_SHAPE(l->batch, l->channels, l->size, l->size), dtype);
}

static void release_operands(kiln_tensor **o)
{
    for (int i = 0; i < OPERANDS; i++)
        kiln_release(o[i]);
}

static kiln_tensor *convolve(const layer *l, kiln_tensor *x, kiln_tensor *w)
{
    return kiln_conv2d(x, w, NULL, .padding = {l->kernel / 2, l->kernel / 2}, .groups = l->groups);
}

static void requires_gradients(kiln_tensor *const *o)
{
    kiln_requires_grad(o[X], true);
    kiln_requires_grad(o[W], true);
}

/* ---- Chains: what is computed on a result ---- */

/* Ends a group where operations are to be run one by one. */
static void end_group(bool one_by_one)
{
    if (one_by_one)
        assert_true(kiln_eval());
}

typedef kiln_tensor *chain(const layer *l, kiln_tensor *const *o, kiln_dtype to, bool one_by_one);

static kiln_tensor *bias_relu(const layer *l, kiln_tensor *const *o, kiln_dtype to, bool one_by_one)
{
    kiln_tensor *y = convolve(l, o[X], o[W]);
    end_group(one_by_one);
    y = kiln_add(y, o[BIAS]);
    end_group(one_by_one);
    return kiln_cast(kiln_relu(y), to);
}

static kiln_tensor *bias_gelu(const layer *l, kiln_tensor *const *o, kiln_dtype to, bool one_by_one)
{
    kiln_tensor *y = convolve(l, o[X], o[W]);
    end_group(one_by_one);
    return kiln_cast(kiln_gelu(kiln_add(y, o[BIAS])), to);
}

static kiln_tensor *residual(const layer *l, kiln_tensor *const *o, kiln_dtype to, bool one_by_one)
{
    kiln_tensor *y = convolve(l, o[X], o[W]);
    end_group(one_by_one);
    y = kiln_add(y, o[OTHER]);
    end_group(one_by_one);
    return kiln_cast(kiln_relu(y), to);
}

/* The input itself is what is added: it must not be overwritten before all of it was read. */
static kiln_tensor *residual_of_input(const layer *l, kiln_tensor *const *o, kiln_dtype to, bool one_by_one)
{
    kiln_tensor *y = convolve(l, o[X], o[W]);
    end_group(one_by_one);
    return kiln_cast(kiln_add(y, o[X]), to);
}

static kiln_tensor *input_gradient(const layer *l, kiln_tensor *const *o, kiln_dtype to, bool one_by_one)
{
    kiln_tensor *grads[2];
    requires_gradients(o);
    assert_true(kiln_grad(convolve(l, o[X], o[W]), o[OTHER], o, 2, grads));
    end_group(one_by_one);
    return kiln_cast(kiln_add(grads[0], o[OTHER]), to);
}

static kiln_tensor *weight_gradient(const layer *l, kiln_tensor *const *o, kiln_dtype to, bool one_by_one)
{
    kiln_tensor *grads[2];
    requires_gradients(o);
    assert_true(kiln_grad(convolve(l, o[X], o[W]), o[OTHER], o, 2, grads));
    end_group(one_by_one);
    return kiln_cast(kiln_sub(o[W], grads[1]), to);
}

static const struct {
    const char *name;
    chain *run;
} chains[] = {{"bias and relu", bias_relu},
              {"bias and gelu", bias_gelu},
              {"residual", residual},
              {"residual of the input", residual_of_input},
              {"gradient of x", input_gradient},
              {"gradient of w", weight_gradient}};
enum { CHAINS = sizeof chains / sizeof *chains };

/* What a chain gives, in f64, and how many kernels its plan has. */
static double *run_chain(int number, const layer *l, kiln_tensor *const *o, kiln_dtype to, bool one_by_one,
                         int64_t *kernels, int64_t *count)
{
    kiln_tensor *y = NULL;
    kiln_plan_info info = {0};
    kiln_step
        y = kiln_keep(chains[number].run(l, o, to, one_by_one));
    assert_true(y && kiln_plan_last(&info));
    *kernels = info.kernels;
    *count = kiln_numel(y);
    double *values = malloc((size_t)*count * sizeof *values);
    assert_non_null(values);
    kiln_scope
        assert_true(kiln_read(kiln_cast(y, KILN_F64), values, (size_t)*count * sizeof *values));
    kiln_release(y);
    return values;
}

static void check_bits(int number, const layer *l, kiln_dtype to)
{
    kiln_tensor *o[OPERANDS];
    int64_t kernels, n;
    draw_operands(l, KILN_F32, o);
    double *want = run_chain(number, l, o, to, true, &kernels, &n);
    double *got = run_chain(number, l, o, to, false, &kernels, &n);
    if (memcmp(got, want, (size_t)n * sizeof *got) != 0)
        fail_msg("%s, layer %d: other bits than one by one", chains[number].name, (int)(l - layers));
    if (!core_eager() && kernels != 1)
        fail_msg("%s, layer %d: %d kernels", chains[number].name, (int)(l - layers), (int)kernels);
    free(got);
    free(want);
    release_operands(o);
}

static void test_f32_has_the_same_bits(void **state)
{
    (void)state;
    for (int c = 0; c < CHAINS; c++)
        for (int i = 0; i < LAYERS; i++) {
            check_bits(c, &layers[i], KILN_F32);
            check_bits(c, &layers[i], KILN_BF16);
        }
}

/* Sums are of up to `terms` products of numbers up to 1. Where operations run one by one, each rounds to 16 bits. */
static void assert_near_exact(int number, const layer *l, kiln_dtype dtype, kiln_dtype to, const double *got,
                              const double *want, int64_t n)
{
    double unit = dtype == KILN_BF16 ? 0x1p-8 : 0x1p-11, rounding = to == dtype ? unit : 0x1p-22;
    int64_t terms = l->channels / l->groups * l->kernel * l->kernel;
    if (chains[number].run == weight_gradient)
        terms = l->batch * l->size * l->size;
    double slack = 0x1p-20 * sqrt((double)terms) + 1e-6;
    for (int64_t i = 0; i < n; i++) {
        double size = fabs(want[i]), rounded = core_eager() ? 3 * unit * (size + 2 * sqrt((double)terms)) : 0;
        if (!(fabs(got[i] - want[i]) <= 1.01 * rounding * size + slack * (1 + size) + rounded))
            fail_msg("%s of %s to %s, layer %d, element %d: %.9g, not %.9g", chains[number].name,
                     kiln_dtype_name(dtype), kiln_dtype_name(to), (int)(l - layers), (int)i, got[i], want[i]);
    }
}

static void check_values(int number, const layer *l, kiln_dtype dtype, kiln_dtype to)
{
    kiln_tensor *o[OPERANDS], *exact[OPERANDS];
    int64_t kernels, n;
    draw_operands(l, dtype, o);
    kiln_step
        for (int i = 0; i < OPERANDS; i++)
            exact[i] = kiln_keep(kiln_cast(o[i], KILN_F64));
    double *want = run_chain(number, l, exact, KILN_F64, true, &kernels, &n);
    double *got = run_chain(number, l, o, to, false, &kernels, &n);
    assert_near_exact(number, l, dtype, to, got, want, n);
    if (!core_eager())
        assert_int_equal(kernels, 1);
    int before = kiln_get_num_threads();
    kiln_set_num_threads(before == 3 ? 2 : 3);
    double *again = run_chain(number, l, o, to, false, &kernels, &n);
    kiln_set_num_threads(before);
    if (memcmp(got, again, (size_t)n * sizeof *got) != 0)
        fail_msg("%s of %s, layer %d: other bits on other threads", chains[number].name, kiln_dtype_name(dtype),
                 (int)(l - layers));
    free(again);
    free(got);
    free(want);
    release_operands(exact);
    release_operands(o);
}

static void test_halves_are_rounded_once(void **state)
{
    (void)state;
    for (int c = 0; c < CHAINS; c++)
        for (int i = 0; i < LAYERS; i++) {
            check_values(c, &layers[i], KILN_BF16, KILN_BF16);
            check_values(c, &layers[i], KILN_BF16, KILN_F32);
            check_values(c, &layers[i], KILN_F16, KILN_F16);
            check_values(c, &layers[i], KILN_F16, KILN_F32);
        }
}

/* ---- Updates in place ---- */

static const char *const names[] = {"weight"};
enum { STEPS = 3, ARRAYS = 3 /* the weight, Adam's two moments */ };
#define LR 0.01

/* The weight is f32; what is convolved is of `dtype`, as under autocast. */
static bool backward(const layer *l, kiln_tensor *const *o, kiln_dtype dtype)
{
    kiln_tensor *y = convolve(l, kiln_cast(o[X], dtype), kiln_cast(o[W], dtype));
    return kiln_backward(kiln_mean(kiln_square(kiln_cast(y, KILN_F32)), 0, NULL, false));
}

/* The weight after some steps of Adam, and its moments behind it; with `twice`, gradients are accumulated over two
 * batches. */
static float *train(const layer *l, kiln_dtype dtype, bool twice, bool one_by_one, int64_t *count)
{
    kiln_tensor *o[OPERANDS];
    draw_operands(l, KILN_F32, o);
    kiln_requires_grad(o[W], true);
    kiln_optim *adam = kiln_optim_adam(((kiln_params){1, &o[W], names}), .lr = LR);
    assert_non_null(adam);
    for (int i = 0; i < STEPS; i++)
        kiln_step {
            kiln_zero_grad(adam);
            assert_true(backward(l, o, dtype));
            end_group(one_by_one);
            if (twice) {
                kiln_tensor *others[] = {o[OTHER], o[W]};
                assert_true(backward(l, others, dtype));
                end_group(one_by_one);
            }
            assert_true(kiln_optim_step(adam));
        }
    int64_t n = kiln_numel(o[W]);
    float *values = malloc((size_t)(ARRAYS * n) * sizeof *values);
    assert_non_null(values);
    assert_true(kiln_read(o[W], values, (size_t)n * sizeof *values));
    kiln_params moments = kiln_optim_state(adam);
    int found = 1;
    for (int64_t i = 0; i < moments.count; i++)
        if (kiln_numel(moments.tensors[i]) == n && found < ARRAYS)
            assert_true(kiln_read(moments.tensors[i], values + n * found++, (size_t)n * sizeof *values));
    assert_int_equal(found, ARRAYS);
    kiln_optim_free(adam);
    release_operands(o);
    *count = n;
    return values;
}

/* The mean distance, as part of the mean magnitude of `b`. */
static double distance(const float *a, const float *b, int64_t n)
{
    double apart = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        apart += fabs((double)a[i] - (double)b[i]);
        size += fabs((double)b[i]);
    }
    return apart / size;
}

static void check_training(const layer *l, kiln_dtype dtype, bool twice)
{
    int64_t n;
    float *want = train(l, dtype, twice, true, &n), *got = train(l, dtype, twice, false, &n);
    if (dtype == KILN_F32 && memcmp(got, want, (size_t)(ARRAYS * n) * sizeof *got) != 0)
        fail_msg("layer %d: other bits than one by one", (int)(l - layers));
    for (int i = 0; i < ARRAYS; i++) /* moments from gradients that were rounded to 16 bits in between, or not */
        if (!(distance(got + i * n, want + i * n, n) < 0.02))
            fail_msg("layer %d, %s, array %d: %g apart", (int)(l - layers), kiln_dtype_name(dtype), i,
                     distance(got + i * n, want + i * n, n));
    free(got);
    free(want);
}

static void test_updates(void **state)
{
    (void)state;
    static const kiln_dtype dtypes[] = {KILN_F32, KILN_BF16, KILN_F16};
    for (int d = 0; d < 3; d++)
        for (int i = 0; i < LAYERS; i++) {
            check_training(&layers[i], dtypes[d], false);
            check_training(&layers[i], dtypes[d], true);
        }
}

/* ---- When oneDNN fails ---- */

/* sum += conv(x, w) and w -= its gradient, in place; the sum, then the weight. Returns how often oneDNN was called. */
static int add_in_place(const layer *l, kiln_dtype dtype, int fails_at, float *values)
{
    kiln_tensor *o[OPERANDS];
    draw_operands(l, dtype, o);
    kiln_requires_grad(o[W], true);
    kiln_tensor *sum = draw(5, KILN_SHAPE(l->batch, l->channels, l->size, l->size), KILN_F32);
    atomic_store(&dnnl_calls, 0);
    atomic_store(&dnnl_fails_at, fails_at);
    kiln_step {
        kiln_tensor *y = convolve(l, o[X], o[W]), *grad;
        assert_true(kiln_grad(y, o[OTHER], &o[W], 1, &grad));
        kiln_no_grad {
            kiln_assign(sum, kiln_add(sum, y));
            kiln_assign(o[W], kiln_sub(o[W], grad));
        }
    }
    atomic_store(&dnnl_fails_at, -1);
    int calls = atomic_load(&dnnl_calls);
    int64_t n = kiln_numel(sum), weights = kiln_numel(o[W]);
    assert_true(kiln_read(sum, values, (size_t)n * sizeof *values));
    kiln_scope
        assert_true(kiln_read(kiln_cast(o[W], KILN_F32), values + n, (size_t)weights * sizeof *values));
    kiln_release(sum);
    release_operands(o);
    return calls;
}

static void check_failures(const layer *l, kiln_dtype dtype)
{
    int64_t pixels = l->size * l->size, taps = l->kernel * l->kernel;
    int64_t n = l->batch * l->channels * pixels + l->channels * (l->channels / l->groups) * taps;
    float *want = malloc((size_t)n * sizeof *want), *got = malloc((size_t)n * sizeof *got);
    assert_true(want && got);
    double rounding = dtype == KILN_F32 ? 0 : dtype == KILN_F16 ? 0x1p-10 : 0x1p-7;
    int calls = add_in_place(l, dtype, -1, want);
    assert_true(calls > 0);
    for (int at = 0; at < calls; at++) {
        add_in_place(l, dtype, at, got);
        for (int64_t i = 0; i < n; i++)
            if (!(fabs(got[i] - want[i]) <= (1e-5 + rounding) * (1 + fabs(want[i]))))
                fail_msg("layer %d, %s, failing at call %d of %d, element %d: %.9g, not %.9g", (int)(l - layers),
                         kiln_dtype_name(dtype), at, calls, (int)i, (double)got[i], (double)want[i]);
    }
    free(want);
    free(got);
}

static void test_onednn_fails(void **state)
{
    (void)state;
    if (!dlsym(RTLD_NEXT, "dnnl_primitive_execute"))
        skip_because("built without oneDNN");
    for (int i = BY_DNNL; i < LAYERS; i++) {
        check_failures(&layers[i], KILN_F32);
        check_failures(&layers[i], KILN_F16);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {core_test(test_f32_has_the_same_bits), core_test(test_halves_are_rounded_once),
                                       core_test(test_updates), core_test(test_onednn_fails)};
    return kiln_set_default_device(KILN_CPU) ? cmocka_run_group_tests(tests, NULL, NULL) : kiln_report(stderr);
}
