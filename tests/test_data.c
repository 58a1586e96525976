/* Data sets without files: tensors, functions, ranges, drawn digits. Those that read files are in test_data_files.c. */
#include "support/core.h"
#include "core/alloc.h"
#include "data/dataset.h"
#include "data/digits.h"

enum { PIXELS = KILN_DIGIT_PIXELS };

/* ---- Tensors ---- */

static void test_tensors(void **state)
{
    (void)state;
    kiln_dataset *d = NULL;
    kiln_scope {
        kiln_tensor *x = kiln_reshape(kiln_of_f32(((float[]){1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}), 12),
                                      KILN_SHAPE(2, 3, 2)); /* pending when it is given */
        kiln_tensor *y = kiln_of_i64(((int64_t[]){4, 1, -100}), 3);
        d = kiln_data_tensors(kiln_transpose(x, 0, 1), y);
    }
    assert_non_null(d);
    kiln_data_info info = kiln_data_describe(d);
    assert_int_equal(info.count, 3);
    assert_int_equal(kiln_data_count(d), 3);
    assert_int_equal(info.classes, 5);
    assert_int_equal(info.x.dtype, KILN_F32);
    assert_int_equal(info.x.ndim, 2);
    assert_int_equal(info.x.shape[0], 2);
    assert_int_equal(info.x.shape[1], 2);
    assert_int_equal(info.y.dtype, KILN_I64);
    assert_int_equal(info.y.ndim, 0);
    assert_false(info.text);
    float x[4];
    int64_t y;
    assert_true(kiln_dataset_read(d, 1, x, &y));
    assert_memory_equal(x, ((float[]){3, 4, 9, 10}), sizeof x);
    assert_int_equal(y, 1);
    kiln_data_free(d);
}

static void test_tensors_without_targets(void **state)
{
    (void)state;
    kiln_scope {
        kiln_dataset *d = kiln_data_tensors(kiln_ones(KILN_SHAPE(5), KILN_I64), NULL);
        kiln_data_info info = kiln_data_describe(d);
        assert_int_equal(info.count, 5);
        assert_int_equal(info.x.ndim, 0);
        assert_int_equal(info.y.dtype, KILN_DTYPES);
        assert_int_equal(info.classes, 0);
        kiln_data_free(d);
        d = kiln_data_tensors(kiln_ones(KILN_SHAPE(4, 2), KILN_F32), kiln_ones(KILN_SHAPE(4, 3), KILN_F64));
        assert_int_equal(kiln_data_describe(d).classes, 0);
        kiln_data_free(d);
    }
}

static void test_tensors_refused(void **state)
{
    (void)state;
    kiln_scope {
        kiln_tensor *good = kiln_ones(KILN_SHAPE(3, 2), KILN_F32);
        assert_null(kiln_data_tensors(NULL, NULL));
        expect_error(KILN_E_ARGUMENT, "data_tensors", "NULL");
        assert_null(kiln_data_tensors(kiln_full(0, NULL, 1, KILN_F32), NULL));
        expect_error(KILN_E_SHAPE, "data_tensors", "scalar");
        assert_null(kiln_data_tensors(kiln_ones(KILN_SHAPE(0, 2), KILN_F32), NULL));
        expect_error(KILN_E_SHAPE, "data_tensors", "no samples");
        assert_null(kiln_data_tensors(good, kiln_ones(KILN_SHAPE(4), KILN_I64)));
        expect_error(KILN_E_SHAPE, "data_tensors", "3 samples in x, but 4 in y");
        assert_null(kiln_data_tensors(good, kiln_of_i64(((int64_t[]){0, 1, -1}), 3)));
        expect_error(KILN_E_INDEX, "data_tensors", "label -1 of sample 2");
        assert_null(kiln_data_tensors(kiln_of_f32(((float[]){1, 2, 3, NAN, 5, 6}), 3, 2), NULL));
        expect_error(KILN_E_ARGUMENT, "data_tensors", "x of sample 1 has NaN at place 1");
        assert_null(kiln_data_tensors(good, kiln_of_f64(((double[]){0, 0, INFINITY}), 3)));
        expect_error(KILN_E_ARGUMENT, "data_tensors", "y of sample 2 has infinity");
        assert_null(kiln_data_tensors(kiln_cast(kiln_of_f32(((float[]){1, NAN}), 2), KILN_BF16), NULL));
        expect_error(KILN_E_ARGUMENT, "data_tensors", "sample 1");
        assert_null(kiln_data_tensors(kiln_cast(kiln_of_f32(((float[]){-INFINITY, 1}), 2), KILN_F16), NULL));
        expect_error(KILN_E_ARGUMENT, "data_tensors", "sample 0");
    }
}

/* ---- Functions and ranges ---- */

static bool square(void *context, int64_t index, void *x, void *y)
{
    *(double *)x = (double)(index * index);
    *(int32_t *)y = *(int *)context == index ? 7 : (int32_t)(index % 7);
    return true;
}

static bool refuse(void *context, int64_t index, void *x, void *y)
{
    (void)x;
    (void)y;
    if (*(bool *)context)
        kiln_scope
            kiln_matmul(kiln_ones(KILN_SHAPE(2, 3), KILN_F32), kiln_ones(KILN_SHAPE(index, 3), KILN_F32));
    return false;
}

static kiln_data_info squares_info(void)
{
    return (kiln_data_info){.name = "squares", .count = 100, .x.dtype = KILN_F64, .y.dtype = KILN_I32, .classes = 7};
}

static void test_generator(void **state)
{
    (void)state;
    int bad = 12;
    double x;
    int32_t y;
    kiln_dataset *d = kiln_data_generator(squares_info(), square, &bad);
    assert_true(kiln_dataset_read(d, 11, &x, &y));
    assert_true(x == 121);
    assert_int_equal(y, 4);
    assert_false(kiln_dataset_read(d, 12, &x, &y));
    expect_error(KILN_E_INDEX, "data", "sample 12 of squares: its label 7 is none of the 7 classes 0 … 6");
    kiln_data_free(d);
    kiln_data_info info = squares_info();
    info.classes = 0;
    d = kiln_data_generator(info, square, &bad);
    assert_true(kiln_dataset_read(d, 12, &x, &y));
    assert_int_equal(y, 7);
    kiln_data_free(d);
}

static void test_generator_fails(void **state)
{
    (void)state;
    bool explains = false;
    double x;
    int32_t y;
    kiln_dataset *d = kiln_data_generator(squares_info(), refuse, &explains);
    assert_false(kiln_dataset_read(d, 3, &x, &y));
    expect_error(KILN_E_IO, "data", "sample 3 of squares could not be read");
    explains = true;
    assert_false(kiln_dataset_read(d, 4, &x, &y));
    assert_non_null(strstr(kiln_last_error()->message, "sample 4 of squares: "));
    expect_error(KILN_E_SHAPE, "matmul", "[2, 3]");
    kiln_data_free(d);
}

static void test_generator_refused(void **state)
{
    (void)state;
    int bad = -1;
    assert_null(kiln_data_generator(squares_info(), NULL, NULL));
    expect_error(KILN_E_ARGUMENT, "data_generator", "function");
    kiln_data_info info = squares_info();
    info.count = 0;
    assert_null(kiln_data_generator(info, square, &bad));
    expect_error(KILN_E_ARGUMENT, "data_generator", "at least one sample, not 0");
    info = squares_info();
    info.x.dtype = KILN_DTYPES;
    assert_null(kiln_data_generator(info, square, &bad));
    expect_error(KILN_E_DTYPE, "data_generator", "x of a sample");
    info = squares_info();
    info.y.ndim = KILN_MAX_DIMS;
    assert_null(kiln_data_generator(info, square, &bad));
    expect_error(KILN_E_SHAPE, "data_generator", "y of a sample has 0 to 7 dimensions");
    info = squares_info();
    info.x.ndim = 2;
    info.x.shape[0] = info.x.shape[1] = INT64_C(1) << 40;
    assert_null(kiln_data_generator(info, square, &bad));
    expect_error(KILN_E_SHAPE, "data_generator", "cannot have the shape");
    info.x.shape[1] = 0;
    assert_null(kiln_data_generator(info, square, &bad));
    expect_error(KILN_E_SHAPE, "data_generator", "cannot have the shape");
    info = squares_info();
    info.classes = -1;
    assert_null(kiln_data_generator(info, square, &bad));
    expect_error(KILN_E_ARGUMENT, "data_generator", "classes");
}

static void test_range(void **state)
{
    (void)state;
    int bad = -1;
    double x;
    int32_t y;
    kiln_dataset *d = kiln_data_generator(squares_info(), square, &bad), *half = kiln_data_range(d, 50, 50);
    kiln_dataset *inner = kiln_data_range(half, 10, 5);
    assert_int_equal(kiln_data_count(inner), 5);
    assert_int_equal(kiln_data_describe(inner).classes, 7);
    assert_true(kiln_dataset_read(inner, 2, &x, &y));
    assert_true(x == 62 * 62);
    static const int64_t wrong[][2] = {{-1, 5}, {50, 1}, {0, 51}, {0, 0}, {INT64_MAX, 1}, {1, INT64_MAX}, {51, 0}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_null(kiln_data_range(half, wrong[i][0], wrong[i][1]));
        expect_error(KILN_E_ARGUMENT, "data_range", "squares has samples 0 … 49");
    }
    assert_null(kiln_data_range(NULL, 0, 1));
    expect_error(KILN_E_ARGUMENT, "data_range", "NULL");
    kiln_data_free(inner);
    kiln_data_free(half);
    kiln_data_free(d);
}

static void test_nothing(void **state)
{
    (void)state;
    kiln_data_free(NULL);
    assert_int_equal(kiln_data_count(NULL), 0);
    expect_error(KILN_E_ARGUMENT, "data_count", "NULL");
    assert_int_equal(kiln_data_describe(NULL).count, 0);
    assert_string_equal(kiln_data_describe(NULL).name, "");
    expect_error(KILN_E_ARGUMENT, "data_describe", "NULL");
}

/* ---- Digits ---- */

static void test_digits_are_a_function_of_the_index(void **state)
{
    (void)state;
    static float a[PIXELS], b[PIXELS];
    int64_t label, same;
    kiln_dataset *few = kiln_data_digits(.count = 50), *many = kiln_data_digits(),
                 *test = kiln_data_digits(.test = true);
    assert_int_equal(kiln_data_count(few), 50);
    assert_int_equal(kiln_data_count(many), 60000);
    assert_int_equal(kiln_data_count(test), 10000);
    assert_int_equal(kiln_data_describe(test).classes, 10);
    for (int64_t i = 49; i >= 0; i--) {
        assert_true(kiln_dataset_read(few, i, a, &label));
        assert_true(kiln_dataset_read(many, i, b, &same));
        assert_int_equal(label, same);
        assert_memory_equal(a, b, sizeof a);
        assert_true(kiln_dataset_read(test, i, b, &same));
        assert_memory_not_equal(a, b, sizeof a);
        assert_true(kiln_dataset_read(many, i + 1, b, &same));
        assert_memory_not_equal(a, b, sizeof a);
    }
    kiln_data_free(few);
    kiln_data_free(many);
    kiln_data_free(test);
    assert_null(kiln_data_digits(.count = -3));
    expect_error(KILN_E_ARGUMENT, "data_digits", "-3");
    assert_null(kiln_data_digits(.count = INT64_MAX));
    expect_error(KILN_E_ARGUMENT, "data_digits", "told apart");
}

/* Every machine and compiler draws the same: runs can be compared, and resumed elsewhere. */
static void test_digits_bits(void **state)
{
    (void)state;
    static float pixels[PIXELS];
    uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a over the bits */
    for (uint64_t i = 0; i < 200; i++) {
        uint32_t label = (uint32_t)kiln_digit_draw(i * 0x100000001u, pixels), bits;
        for (int p = -1; p < PIXELS; p++) {
            memcpy(&bits, p < 0 ? (void *)&label : (void *)&pixels[p], sizeof bits);
            for (int byte = 0; byte < 4; byte++)
                hash = (hash ^ (bits >> (8 * byte) & 255)) * 0x100000001b3u;
        }
    }
    if (hash != UINT64_C(0x71c918db0cb1e36c))
        fail_msg("drawings have changed: 0x%016llx", (unsigned long long)hash);
}

static void test_digits_are_normalised(void **state)
{
    (void)state;
    static float pixels[PIXELS];
    enum { SAMPLES = 5000 };
    int counts[10] = {0};
    double sum = 0, squares = 0, chi = 0;
    for (int i = 0; i < SAMPLES; i++) {
        counts[kiln_digit_draw((uint64_t)i, pixels)]++;
        for (int p = 0; p < PIXELS; p++) {
            sum += pixels[p];
            squares += pixels[p] * pixels[p];
        }
    }
    double mean = sum / SAMPLES / PIXELS, deviation = sqrt(squares / SAMPLES / PIXELS - mean * mean);
    assert_true(fabs(mean) < 0.02);
    assert_true(fabs(deviation - 1) < 0.02);
    for (int d = 0; d < 10; d++)
        chi += (counts[d] - SAMPLES / 10.0) * (counts[d] - SAMPLES / 10.0) / (SAMPLES / 10.0);
    assert_true(chi < 27.9); /* one in a thousand */
}

/* The mean image of each digit says something about it, but by far not enough. */
static void test_digits_take_learning(void **state)
{
    (void)state;
    static float mean[10][PIXELS], pixels[PIXELS];
    int counts[10] = {0}, right = 0;
    enum { TRAIN = 3000, TEST = 1000 };
    memset(mean, 0, sizeof mean);
    for (int i = 0; i < TRAIN; i++) {
        int digit = kiln_digit_draw((uint64_t)i, pixels);
        counts[digit]++;
        for (int p = 0; p < PIXELS; p++)
            mean[digit][p] += pixels[p];
    }
    for (int i = 0; i < TEST; i++) {
        int digit = kiln_digit_draw((UINT64_C(1) << 62) + (uint64_t)i, pixels), guess = 0;
        double nearest = INFINITY;
        for (int d = 0; d < 10; d++) {
            double distance = 0;
            for (int p = 0; p < PIXELS; p++) {
                double difference = pixels[p] - mean[d][p] / (float)counts[d];
                distance += difference * difference;
            }
            guess = distance < nearest ? d : guess;
            nearest = distance < nearest ? distance : nearest;
        }
        right += guess == digit;
    }
    print_message("%.1f %% right by the nearest mean\n", 100.0 * right / TEST);
    assert_in_range(right, TEST * 50 / 100, TEST * 85 / 100);
}

/* ---- Memory ---- */

static kiln_tensor *some_x, *some_y;

static kiln_dataset *make(int which)
{
    static int bad = -1;
    switch (which) {
    case 0: return kiln_data_tensors(some_x, some_y);
    case 1: return kiln_data_generator(squares_info(), square, &bad);
    default: return kiln_data_digits(.count = 3);
    }
}

static void test_allocations_fail(void **state)
{
    (void)state;
    some_x = kiln_keep(kiln_ones(KILN_SHAPE(6, 4), KILN_F32));
    some_y = kiln_keep(kiln_ones(KILN_SHAPE(6), KILN_I64));
    assert_true(kiln_eval());
    for (int which = 0; which < 3; which++) {
        kiln_dataset *d = NULL;
        for (int64_t n = 0; !d; n++) {
            assert_true(n < 100);
            kiln_alloc_fail_after(n);
            d = make(which);
            kiln_alloc_fail_after(-1);
            if (!d)
                expect_error(KILN_E_MEMORY, NULL, NULL);
        }
        kiln_data_free(d);
    }
    kiln_release(some_x);
    kiln_release(some_y);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        core_test(test_tensors),
        core_test(test_tensors_without_targets),
        core_test(test_tensors_refused),
        core_test(test_generator),
        core_test(test_generator_fails),
        core_test(test_generator_refused),
        core_test(test_range),
        core_test(test_nothing),
        core_test(test_digits_are_a_function_of_the_index),
        core_test(test_digits_bits),
        core_test(test_digits_are_normalised),
        core_test(test_digits_take_learning),
        core_test(test_allocations_fail),
    };
    return CORE_MAIN(tests);
}
