/* Results that are too large to be whole (plan/chunk.c): heads of networks and what follows them, a few rows at a time.
 * A program that holds on to the logits has them whole, so each step is compared with one that does. */
#include "support/core.h"

enum {
    ROWS = 384,
    WIDTH = 24,
    MANY = 2749,
    FEW = 1111,
    SEQUENCES = 12
}; /* logits of 4, 2 and 1.6 MiB; 1 MiB is allowed */
static int64_t classes = MANY;

typedef struct outcome {
    float loss, correct, best;
    float x_grad[ROWS * WIDTH], w_grad[MANY * WIDTH], b_grad[MANY];
    kiln_plan_info plan;
    int products; /* in the plan */
} outcome;

typedef enum head {
    PLAIN,       /* rows and class indices */
    SEQUENCE,    /* [N, T, classes], the loss of all but the last position of each */
    CLASSES_MID, /* [N, classes, T], as PyTorch has it */
    SMOOTHED,    /* label smoothing: through log_softmax */
    PROBABILITIES,
    BINARY, /* every class by itself */
    TWICE,  /* written twice, so that merging finds one of each */
    HEADS
} head;
static const char *const names[HEADS] = {"plain",  "sequence", "classes in the middle", "smoothed", "probabilities",
                                         "binary", "twice"};

static kiln_tensor *labels(int64_t rows)
{
    static int64_t y[ROWS];
    for (int i = 0; i < rows; i++)
        y[i] = i % 17 == 3 ? -100 : (int64_t)i * 7919 % classes;
    return kiln_tensor_new(y, KILN_I64, 1, &rows, kiln_default_device());
}

/* What each class has of each row. */
static kiln_tensor *shares_of_classes(void)
{
    kiln_manual_seed(5);
    return kiln_softmax(kiln_randn(KILN_SHAPE(ROWS, classes), KILN_F32), 1);
}

static kiln_tensor *loss_of(head h, kiln_tensor *logits, kiln_tensor *shares)
{
    enum { T = ROWS / SEQUENCES };
    kiln_tensor *y = labels(ROWS), *sequences = kiln_reshape(logits, KILN_SHAPE(SEQUENCES, T, classes));
    kiln_tensor *by_sequence = kiln_reshape(y, KILN_SHAPE(SEQUENCES, T));
    switch (h) {
    case SEQUENCE: {
        kiln_tensor *most = kiln_slice(sequences, 1, 0, T - 1, 1), *next = kiln_slice(by_sequence, 1, 1, T, 1);
        return kiln_cross_entropy(kiln_reshape(most, KILN_SHAPE(-1, classes)), kiln_reshape(next, KILN_SHAPE(-1)));
    }
    case CLASSES_MID: return kiln_cross_entropy(kiln_transpose(sequences, 1, 2), by_sequence);
    case SMOOTHED: return kiln_cross_entropy(logits, y, .label_smoothing = 0.1);
    case PROBABILITIES: return kiln_cross_entropy(logits, shares);
    case TWICE: return kiln_add(kiln_cross_entropy(logits, y), kiln_mul_scalar(kiln_cross_entropy(logits, y), 0.5));
    case BINARY: return kiln_binary_cross_entropy_with_logits(logits, shares, NULL, NULL, KILN_MEAN);
    default: return kiln_cross_entropy(logits, y);
    }
}

static int count(const char *text, const char *word)
{
    int n = 0;
    while (text && (text = strstr(text, word)))
        text++, n++;
    return n;
}

/* One step. `whole`: somebody holds the logits. */
static void run(head h, kiln_dtype dtype, bool bias, bool whole, outcome *o)
{
    kiln_scope {
        kiln_tensor *x = kiln_requires_grad(core_data(1, KILN_SHAPE(ROWS, WIDTH)), true);
        kiln_tensor *w = kiln_requires_grad(core_data(2, KILN_SHAPE(classes, WIDTH)), true);
        kiln_tensor *b = kiln_requires_grad(core_data(3, KILN_SHAPE(classes)), true);
        kiln_tensor *shares = shares_of_classes();
        assert_true(shares && kiln_eval());
        kiln_tensor *logits = NULL, *loss = NULL, *correct = NULL, *best = NULL;
        kiln_step {
            kiln_scope {
                kiln_tensor *out = kiln_linear(kiln_cast(kiln_mul_scalar(x, 2), dtype), kiln_cast(w, dtype),
                                               bias ? kiln_cast(b, dtype) : NULL);
                kiln_tensor *wide = kiln_cast(out, KILN_F32), *y = labels(ROWS), *five;
                loss = kiln_keep(loss_of(h, wide, shares));
                correct = kiln_keep(kiln_sum_all(kiln_cast(kiln_eq(kiln_argmax(out, 1, false), y), KILN_F32)));
                assert_non_null(kiln_topk(out, 5, 1, true, &five));
                best = kiln_keep(kiln_sum_all(kiln_cast(kiln_eq(five, kiln_unsqueeze(y, 1)), KILN_F32)));
                if (whole)
                    logits = kiln_keep(out);
                assert_true(kiln_backward(kiln_mul_scalar(loss, 3)));
            }
            char *text = core_eager() ? NULL : kiln_plan_describe();
            o->products = count(text, "matmul");
            kiln_string_free(text);
        }
        assert_true(kiln_plan_last(&o->plan));
        o->loss = core_f32(loss)[0];
        o->correct = core_f32(correct)[0];
        o->best = core_f32(best)[0];
        assert_true(kiln_read(kiln_grad_of(x), o->x_grad, sizeof o->x_grad));
        assert_true(kiln_read(kiln_grad_of(w), o->w_grad, (size_t)classes * WIDTH * sizeof *o->w_grad));
        assert_true(!bias || kiln_read(kiln_grad_of(b), o->b_grad, (size_t)classes * sizeof *o->b_grad));
        kiln_release(logits), kiln_release(loss), kiln_release(correct), kiln_release(best);
    }
}

static void check_near(const char *what, const float *got, const float *want, int n, double share)
{
    double largest = 0;
    for (int i = 0; i < n; i++)
        largest = fmax(largest, fabs(want[i]));
    for (int i = 0; i < n; i++)
        if (!(fabs(got[i] - want[i]) <= share * largest))
            fail_msg("%s: element %d is %g instead of %g, the largest is %g", what, i, got[i], want[i], largest);
}

static void check(head h, kiln_dtype dtype, bool bias)
{
    static outcome cut, whole;
    run(h, dtype, bias, false, &cut);
    run(h, dtype, bias, true, &whole);
    char what[80];
    snprintf(what, sizeof what, "%s, %s%s", names[h], kiln_dtype_name(dtype), bias ? ", bias" : "");
    if (getenv("KILN_TEST_SAY"))
        print_message("%s: %d products, peak %lld; whole %d, %lld\n", what, cut.products,
                      (long long)cut.plan.activation_peak_bytes, whole.products,
                      (long long)whole.plan.activation_peak_bytes);
    /* Only sums over rows are of another order. Where products of a device depend on how many rows they have, the rest
     * is equal to rounding, too. */
    double eps = dtype == KILN_F32 ? 1e-5 : 8e-3;
    check_near(what, &cut.loss, &whole.loss, 1, eps);
    check_near(what, cut.x_grad, whole.x_grad, ROWS * WIDTH, eps);
    check_near(what, cut.w_grad, whole.w_grad, (int)classes * WIDTH, eps);
    check_near(what, cut.b_grad, whole.b_grad, bias ? (int)classes : 0, eps);
    assert_true(cut.correct == whole.correct && cut.best == whole.best);
    if (core_eager())
        return;
    assert_int_equal(whole.products, 3);
    if (cut.products <= 3)
        fail_msg("%s: the logits are whole", what);
    assert_int_equal(cut.products % 3, 0);
    assert_true(cut.plan.activation_peak_bytes < whole.plan.activation_peak_bytes);
}

static void test_heads(void **state)
{
    (void)state;
    for (head h = 0; h < HEADS; h++)
        for (int few = 0; few < 2; few++) {
            classes = few ? FEW : MANY;
            check(h, KILN_F32, true);
            check(h, KILN_F32, false);
        }
}

static void test_halves(void **state)
{
    (void)state;
    classes = MANY;
    for (head h = 0; h < HEADS; h++)
        check(h, KILN_BF16, h % 2);
}

int main(void)
{
    setenv("KILN_CHUNK_MIB", "1", 1);
    const struct CMUnitTest tests[] = {
        core_test(test_heads),
        core_test(test_halves),
    };
    return CORE_MAIN(tests);
}
