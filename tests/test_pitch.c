/* Rows of matrices that are made longer for large products (plan/pitch.c). Here small ones count as large, on devices
 * that want longer rows; the same programs run on the CPU, which does not. All numbers are small integers, so that
 * every order of additions gives the same bits, in every type. */
#include "support/core.h"

enum { MOST = 64 * 64, RESULTS = 6 };

static uint64_t state;

static int below(int n)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (int)((state >> 33) % (uint64_t)n);
}

static kiln_tensor *numbers(const char *name, int64_t rows, int64_t cols, kiln_dtype dtype, kiln_device device)
{
    static double x[MOST];
    for (int64_t i = 0; i < rows * cols; i++)
        x[i] = below(3) - 1;
    kiln_tensor *t = kiln_tensor_new(x, KILN_F64, 2, (const int64_t[]){rows, cols}, KILN_CPU);
    kiln_tensor *on = kiln_to(kiln_cast(t, dtype), device);
    assert_true(kiln_ok());
    return kiln_requires_grad(kiln_set_name(on, name), true);
}

/* Sums of products of these are exact in all types. */
static kiln_tensor *tame(kiln_tensor *x)
{
    return kiln_clamp(x, -2, 2);
}

typedef struct outcome {
    int n;
    int64_t count[RESULTS];
    double x[RESULTS][MOST];
    int joins; /* in the plan */
} outcome;

static int count(const char *text, const char *word)
{
    int n = 0;
    while (text && (text = strstr(text, word)))
        text++, n++;
    return n;
}

static void look(outcome *o, kiln_tensor *t)
{
    assert_non_null(t);
    assert_true(o->n < RESULTS && kiln_numel(t) <= MOST);
    o->count[o->n] = kiln_numel(t);
    assert_true(
        kiln_read(kiln_to(kiln_cast(t, KILN_F64), KILN_CPU), o->x[o->n], (size_t)kiln_numel(t) * sizeof(double)));
    o->n++;
}

/* A row of products with all kinds of things between them, of sizes that suit no row. */
static void run(uint64_t seed, kiln_dtype dtype, kiln_device device, outcome *o)
{
    *o = (outcome){0};
    state = seed;
    kiln_scope {
        int64_t rows = 9 + below(30), in = 9 + below(30), mid = 9 + below(30), out = 9 + below(30);
        kiln_tensor *x = numbers("x", rows, in, dtype, device), *v = numbers("v", mid, in, dtype, device);
        kiln_tensor *w = below(2) ? numbers("w", out, mid, dtype, device)
                                  : kiln_transpose(numbers("w", mid, out, dtype, device), 0, 1);
        kiln_tensor *b = numbers("b", 1, mid, dtype, device), *c = numbers("c", rows, 1, dtype, device);
        int kinds = below(1 << 9);
        kiln_tensor *y = NULL, *z = NULL, *sums = NULL, *extra = NULL;
        kiln_step {
            y = kiln_matmul(x, kiln_transpose(v, 0, 1));
            if (kinds & 1)
                y = kiln_add(y, b);
            y = kinds & 2 ? tame(kiln_relu(y)) : tame(y);
            if (kinds & 4)
                y = kiln_mul(y, c);
            if (kinds & 8 && dtype != KILN_BF16) /* its gradient would be rounded, and where depends on what is fused */
                y = kiln_add(y, kiln_cumsum(y, 0)); /* of no pointwise operation: what it makes is copied */
            if (kinds & 16)
                y = kiln_contiguous(kiln_slice(y, 1, 1, -1, 1));
            if (kinds & 32) {
                y = kiln_where(kiln_gt_scalar(y, 0), y, kiln_cast(kiln_arange(0, kiln_size(y, 1), 1, KILN_F32), dtype));
                y = tame(y);
            }
            y = tame(y);
            kiln_tensor *to = kinds & 16 ? kiln_slice(w, 1, 1, -1, 1) : w;
            z = kiln_matmul(y, kiln_transpose(to, 0, 1));
            if (kinds & 64)
                z = kiln_reshape(kiln_reshape(z, KILN_SHAPE(-1)), KILN_SHAPE(rows, out)); /* no rows for a while */
            sums = kiln_keep(kiln_sum(tame(z), 1, (const int64_t[]){0}, false));
            extra = kiln_keep(kinds & 128 ? z : kiln_slice(kiln_transpose(z, 0, 1), 0, 1, 4, 1));
            kiln_tensor *loss = kiln_sum_all(kiln_mul(z, kiln_detach(tame(z))));
            assert_true(kiln_backward(kiln_cast(loss, KILN_F32)));
            char *text = kiln_plan_describe();
            o->joins = count(text, " cat ");
            kiln_string_free(text);
        }
        look(o, sums);
        look(o, extra);
        look(o, kiln_grad_of(x));
        look(o, kiln_grad_of(v));
        if (kinds & 1)
            look(o, kiln_grad_of(b));
        if (kinds & 4)
            look(o, kiln_grad_of(c));
        kiln_release(sums), kiln_release(extra);
    }
}

static void check(uint64_t seed, kiln_dtype dtype, int *joins)
{
    static outcome here, there;
    kiln_device device = kiln_default_device();
    run(seed, dtype, device, &there);
    assert_true(kiln_set_default_device(KILN_CPU));
    run(seed, dtype, KILN_CPU, &here);
    assert_true(kiln_set_default_device(device));
    assert_int_equal(here.n, there.n);
    for (int r = 0; r < here.n; r++) {
        assert_int_equal(here.count[r], there.count[r]);
        for (int i = 0; i < here.count[r]; i++)
            if (here.x[r][i] != there.x[r][i])
                fail_msg("program %llu, %s: result %d, element %d is %g instead of %g", (unsigned long long)seed,
                         kiln_dtype_name(dtype), r, i, there.x[r][i], here.x[r][i]);
    }
    *joins += there.joins;
    assert_int_equal(here.joins, 0);
}

static void test_programs(void **unused)
{
    (void)unused;
    int joins = 0, programs = 400;
    kiln_pitch_from(1);
    for (int k = 0; k < programs; k++)
        check((uint64_t)k, k % 3 == 0 ? KILN_F64 : k % 3 == 1 ? KILN_F32 : KILN_BF16, &joins);
    kiln_pitch_from(0);
    if (getenv("KILN_TEST_SAY"))
        print_message("%d matrices were copied to longer rows\n", joins);
    if (!core_eager() && kiln_default_device() != KILN_CPU)
        assert_true(joins >= programs);
}

/* ---- A head and its loss ---- */

enum { ROWS = 96, WIDTH = 40, CLASSES = 61 };

typedef struct head {
    float loss, correct, best, x_grad[ROWS * WIDTH], w_grad[CLASSES * WIDTH], b_grad[CLASSES];
} head;

static void run_head(kiln_dtype dtype, kiln_device device, head *h)
{
    assert_true(kiln_set_default_device(device));
    kiln_scope {
        int64_t labels[ROWS];
        for (int i = 0; i < ROWS; i++)
            labels[i] = i % 17 == 3 ? -100 : i * 7 % CLASSES;
        kiln_tensor *x = kiln_requires_grad(core_data(1, KILN_SHAPE(ROWS, WIDTH)), true);
        kiln_tensor *w = kiln_requires_grad(core_data(2, KILN_SHAPE(CLASSES, WIDTH)), true);
        kiln_tensor *b = kiln_requires_grad(core_data(3, KILN_SHAPE(CLASSES)), true);
        kiln_tensor *y = kiln_tensor_new(labels, KILN_I64, KILN_SHAPE(ROWS), device);
        kiln_tensor *loss = NULL, *correct = NULL, *best = NULL, *five;
        kiln_step {
            kiln_tensor *out = kiln_linear(kiln_cast(x, dtype), kiln_cast(w, dtype), kiln_cast(b, dtype));
            loss = kiln_keep(kiln_cross_entropy(kiln_cast(out, KILN_F32), y, .label_smoothing = 0.1));
            kiln_tensor *plain = kiln_cross_entropy(kiln_cast(out, KILN_F32), y);
            correct = kiln_keep(kiln_sum_all(kiln_cast(kiln_eq(kiln_argmax(out, 1, false), y), KILN_F32)));
            assert_non_null(kiln_topk(out, 5, 1, true, &five));
            best = kiln_keep(kiln_sum_all(kiln_cast(kiln_eq(five, kiln_unsqueeze(y, 1)), KILN_F32)));
            assert_true(kiln_backward(kiln_add(loss, kiln_mul_scalar(plain, 3))));
        }
        h->loss = core_f32(loss)[0];
        h->correct = core_f32(correct)[0];
        h->best = core_f32(best)[0];
        assert_true(kiln_read(kiln_grad_of(x), h->x_grad, sizeof h->x_grad));
        assert_true(kiln_read(kiln_grad_of(w), h->w_grad, sizeof h->w_grad));
        assert_true(kiln_read(kiln_grad_of(b), h->b_grad, sizeof h->b_grad));
        kiln_release(loss), kiln_release(correct), kiln_release(best);
    }
}

static void check_near(const float *got, const float *want, int n, double share)
{
    double largest = 0;
    for (int i = 0; i < n; i++)
        largest = fmax(largest, fabs(want[i]));
    for (int i = 0; i < n; i++)
        if (!(fabs(got[i] - want[i]) <= share * largest))
            fail_msg("element %d is %g instead of %g, the largest is %g", i, got[i], want[i], largest);
}

static void test_heads(void **unused)
{
    (void)unused;
    static const kiln_dtype dtypes[] = {KILN_F32, KILN_BF16, KILN_F16};
    kiln_device device = kiln_default_device();
    kiln_pitch_from(1);
    for (int i = 0; i < 3; i++) {
        static head here, there;
        double eps = dtypes[i] == KILN_F32 ? 1e-5 : dtypes[i] == KILN_BF16 ? 1.6e-2 : 2e-3; /* two roundings */
        run_head(dtypes[i], device, &there);
        run_head(dtypes[i], KILN_CPU, &here);
        assert_true(kiln_set_default_device(device));
        check_near(&there.loss, &here.loss, 1, eps);
        check_near(there.x_grad, here.x_grad, ROWS * WIDTH, eps);
        check_near(there.w_grad, here.w_grad, CLASSES * WIDTH, eps);
        check_near(there.b_grad, here.b_grad, CLASSES, eps);
        /* In 16 bits what is rounded once more may change places with what is as large. */
        check_near(&there.correct, &here.correct, 1, dtypes[i] == KILN_F32 ? 0 : 0.05);
        check_near(&there.best, &here.best, 1, dtypes[i] == KILN_F32 ? 0 : 0.2);
    }
    kiln_pitch_from(0);
}

/* A class that only the longer rows have is a bad one all the same. */
static void test_bad_class(void **unused)
{
    (void)unused;
    kiln_pitch_from(1);
    kiln_scope {
        int64_t labels[ROWS] = {[5] = CLASSES};
        kiln_tensor *x = core_data(1, KILN_SHAPE(ROWS, WIDTH)), *w = core_data(2, KILN_SHAPE(CLASSES, WIDTH));
        kiln_tensor *y = kiln_tensor_new(labels, KILN_I64, KILN_SHAPE(ROWS), kiln_default_device()), *loss = NULL;
        kiln_step
            loss = kiln_keep(kiln_cross_entropy(kiln_linear(x, w, NULL), y));
        float value;
        assert_false(kiln_read(loss, &value, sizeof value));
        assert_int_equal(kiln_last_error()->code, KILN_E_INDEX);
        kiln_error_clear();
        kiln_release(loss);
    }
    kiln_pitch_from(0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {core_test(test_programs), core_test(test_heads), core_test(test_bad_class)};
    return CORE_MAIN(tests);
}
