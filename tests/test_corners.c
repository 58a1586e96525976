/* The edges of operations: what they refuse and what they take, values that are found bad while a step runs, which
 * results are views of their operand, NULL. PyTorch decides, as its OpInfo samples and error inputs have it; its values
 * at such edges are in golden/corners.txt, integers.txt and casts.txt. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>
#include "kiln.h"
#include "support/devices.h"

static kiln_device devices[TEST_DEVICES];
static int ndevices;

static kiln_tensor *f32(int64_t n, float first, float step)
{
    return kiln_arange(first, first + step * (float)n, step, KILN_F32);
}

static kiln_tensor *i64s(int64_t a, int64_t b)
{
    return kiln_tensor_new((int64_t[]){a, b}, KILN_I64, KILN_SHAPE(2), kiln_default_device());
}

static kiln_tensor *f32s(float a, float b)
{
    return kiln_tensor_new((float[]){a, b}, KILN_F32, KILN_SHAPE(2), kiln_default_device());
}

static kiln_tensor *empty(int n, const int64_t *shape)
{
    return kiln_zeros(n, shape, KILN_F32);
}

/* ---- Refusals at the call ---- */

#define REFUSES(wanted, call)                                                                                          \
    do {                                                                                                               \
        kiln_error_clear();                                                                                            \
        if (call)                                                                                                      \
            fail_msg("%s is taken", #call);                                                                            \
        if (kiln_last_error()->code != (wanted))                                                                       \
            fail_msg("%s: \"%s\"", #call, kiln_last_error()->message);                                                 \
        kiln_error_clear();                                                                                            \
    } while (0)

static void test_refusals(void **state)
{
    (void)state;
    kiln_scope {
        kiln_tensor *x = f32(6, 0, 1), *row = kiln_reshape(x, KILN_SHAPE(1, 6)), *flags = kiln_gt_scalar(x, 2);
        kiln_tensor *whole = kiln_cast(x, KILN_I64), *bytes = kiln_cast(x, KILN_U8), *number = kiln_scalar(3, KILN_F32);
        kiln_tensor *plane = kiln_reshape(x, KILN_SHAPE(1, 2, 3)), *kernel = kiln_ones(KILN_SHAPE(2, 2, 1), KILN_F32);
        kiln_tensor *transposed = kiln_ones(KILN_SHAPE(2, 1, 1), KILN_F32), *index = i64s(0, 1);

        REFUSES(KILN_E_ARGUMENT, kiln_max_pool1d(plane, 2, 0, 0, 1, false));
        REFUSES(KILN_E_ARGUMENT, kiln_max_pool1d(plane, 2, 1, 0, 0, false));
        REFUSES(KILN_E_ARGUMENT, kiln_avg_pool1d(plane, 2, 0, 0, false, true));
        REFUSES(KILN_E_SHAPE, kiln_max_pool1d(empty(KILN_SHAPE(0, 6)), 2, 1, 0, 1, false));
        REFUSES(KILN_E_SHAPE, kiln_avg_pool2d(empty(KILN_SHAPE(2, 0, 4, 4)), 2, 2));
        REFUSES(KILN_E_ARGUMENT, kiln_conv1d(plane, kernel, NULL, 0, 0, 1, 1));
        REFUSES(KILN_E_ARGUMENT, kiln_conv1d(plane, kernel, NULL, 1, 0, 0, 1));
        REFUSES(KILN_E_ARGUMENT, kiln_conv1d(plane, kernel, NULL, 1, 0, 1, 0));
        REFUSES(KILN_E_ARGUMENT, kiln_conv_transpose1d(plane, transposed, NULL, 0, 0, 0, 1, 1));
        REFUSES(KILN_E_ARGUMENT, kiln_hardtanh(x, 2, 1));
        REFUSES(KILN_E_ARGUMENT, kiln_hardtanh(bytes, -1, 1));
        REFUSES(KILN_E_ARGUMENT, kiln_celu(x, 0));
        REFUSES(KILN_E_SHAPE, kiln_embedding(plane, index, -1));
        REFUSES(KILN_E_SHAPE, kiln_embedding(x, index, -1));
        REFUSES(KILN_E_DTYPE, kiln_rsub_scalar(flags, 1));
        REFUSES(KILN_E_DTYPE, kiln_sub(flags, whole));
        REFUSES(KILN_E_DTYPE, kiln_sub(whole, flags));
        REFUSES(KILN_E_DTYPE, kiln_addcdiv(x, whole, whole, 1));
        REFUSES(KILN_E_DTYPE, kiln_argmax(flags, 0, false));
        REFUSES(KILN_E_DTYPE, kiln_argmin(flags, KILN_FLAT, false));
        REFUSES(KILN_E_DTYPE, kiln_topk(flags, 1, 0, true, NULL));
        REFUSES(KILN_E_DTYPE, kiln_matmul(flags, flags));
        REFUSES(KILN_E_SHAPE, kiln_roll(number, 1, 0));
        REFUSES(KILN_E_SHAPE, kiln_unfold(number, 0, 2, 1));
        REFUSES(KILN_E_SHAPE, kiln_index_select(number, 0, index));
        REFUSES(KILN_E_SHAPE, kiln_gather(x, 0, kiln_reshape(index, KILN_SHAPE(1, 2))));
        REFUSES(KILN_E_SHAPE, kiln_batch_norm(row, NULL, NULL, NULL, NULL, true, 0.1, 1e-5));
        REFUSES(KILN_E_ARGUMENT, kiln_batch_norm(kiln_transpose(row, 0, 1), kiln_zeros(KILN_SHAPE(1), KILN_F32), NULL,
                                                 NULL, NULL, true, 0.1, 1e-5));
        REFUSES(KILN_E_DTYPE, kiln_l1_loss(whole, whole, KILN_MEAN));
        REFUSES(KILN_E_ARGUMENT, kiln_norm(empty(KILN_SHAPE(0)), -1, 0, NULL, false));

        REFUSES(KILN_E_ARGUMENT, kiln_full(KILN_SHAPE(2), 300, KILN_U8));
        REFUSES(KILN_E_ARGUMENT, kiln_full(KILN_SHAPE(2), NAN, KILN_I64));
        REFUSES(KILN_E_ARGUMENT, kiln_full(KILN_SHAPE(2), 1e10, KILN_I32));
        REFUSES(KILN_E_ARGUMENT, kiln_full(KILN_SHAPE(2), 70000, KILN_F16));
        REFUSES(KILN_E_ARGUMENT, kiln_full(KILN_SHAPE(2), -1e300, KILN_F32));
        REFUSES(KILN_E_ARGUMENT, kiln_full_like(bytes, 256));
        REFUSES(KILN_E_ARGUMENT, kiln_scalar(-256, KILN_U8));
        REFUSES(KILN_E_ARGUMENT, kiln_masked_fill(whole, flags, 1e30));
        REFUSES(KILN_E_ARGUMENT, kiln_masked_fill(bytes, flags, 300));
        REFUSES(KILN_E_ARGUMENT, kiln_clamp(bytes, 0, 300));
        REFUSES(KILN_E_ARGUMENT, kiln_pad(bytes, 2, (int64_t[]){1, 1}, KILN_PAD_CONSTANT, 300));
    }
}

/* What a neighbouring rule must not refuse along with it. */
static void test_taken(void **state)
{
    (void)state;
    kiln_scope {
        kiln_tensor *bytes = kiln_full(KILN_SHAPE(2), -1, KILN_U8), *wide = kiln_eye(0, INT64_C(2147483648), KILN_F32);
        uint8_t got[2] = {0};
        assert_true(kiln_read(bytes, got, sizeof got) && got[0] == 255);
        assert_true(kiln_eval() && kiln_size(wide, 1) == INT64_C(2147483648));
        kiln_tensor *triangle = kiln_tril(wide, 0);
        assert_true(kiln_eval() && kiln_size(triangle, 0) == 0);
        assert_non_null(kiln_full(KILN_SHAPE(2), -INFINITY, KILN_F16));
        assert_non_null(kiln_full(KILN_SHAPE(2), NAN, KILN_BF16));
        assert_non_null(kiln_full(KILN_SHAPE(2), 2, KILN_BOOL));
        assert_non_null(kiln_clamp(bytes, -INFINITY, 255));
        assert_non_null(kiln_max_pool2d(kiln_zeros(KILN_SHAPE(0, 2, 4, 4), KILN_F32), 2, 2)); /* 0: the default */
        assert_true(kiln_ok());
    }
}

/* ---- Values that are found bad while a step runs ---- */

/* The step fails for that reason, in the operation's name, and leaves everything as it was. */
#define FAILS(name, call)                                                                                              \
    do {                                                                                                               \
        kiln_step {                                                                                                    \
            kiln_assign(kept, kiln_add_scalar(kept, 1));                                                               \
            kiln_tensor *bad = call;                                                                                   \
            assert_non_null(bad);                                                                                      \
            kiln_assign(result, kiln_cast(bad, KILN_F32));                                                             \
        }                                                                                                              \
        kiln_device_wait(kiln_default_device());                                                                       \
        if (kiln_last_error()->code != KILN_E_ARGUMENT || strcmp(kiln_last_error()->operation, name))                  \
            fail_msg("%s on %s: %s: \"%s\"", #call, kiln_device_name(kiln_default_device()),                           \
                     kiln_last_error()->operation, kiln_last_error()->message);                                        \
        assert_non_null(strstr(kiln_last_error()->message, "element 1 "));                                             \
        kiln_error_clear();                                                                                            \
        assert_true(kiln_item(kept) == 5);                                                                             \
        assert_true(kiln_item(kiln_select(result, 0, 0)) == 7);                                                        \
    } while (0)

static void test_found_when_run(void **state)
{
    (void)state;
    for (int d = 0; d < ndevices; d++) {
        if (!has_cpu_bits(devices[d]))
            continue; /* the kernel that looks at values is the CPU's */
        kiln_on_device (devices[d])
            kiln_scope {
                kiln_tensor *kept = kiln_scalar(5, KILN_F32), *result = kiln_full(KILN_SHAPE(2), 7, KILN_F32);
                kiln_tensor *x = i64s(7, -7), *by = i64s(2, 0), *small = kiln_cast(by, KILN_U8);
                kiln_tensor *p = f32s(0.5f, 2), *good = f32s(0.5f, 1), *none = f32s(0.5f, NAN);
                assert_true(kiln_eval());
                FAILS("floor_divide", kiln_floor_divide(x, by));
                FAILS("floor_divide", kiln_floor_divide(x, small));
                FAILS("remainder", kiln_remainder(x, kiln_cast(by, KILN_I32)));
                FAILS("fmod", kiln_fmod(x, by));
                FAILS("fmod", kiln_select(kiln_fmod(kiln_unsqueeze(x, 1), by), 0, 0)); /* broadcast */
                FAILS("bernoulli", kiln_bernoulli(p));
                FAILS("bernoulli", kiln_bernoulli(none));
                FAILS("bernoulli", kiln_bernoulli(kiln_cast(p, KILN_BF16)));
                FAILS("binary_cross_entropy", kiln_binary_cross_entropy(p, good, NULL, KILN_NONE));
                FAILS("binary_cross_entropy", kiln_binary_cross_entropy(none, good, NULL, KILN_NONE));
                FAILS("binary_cross_entropy", kiln_binary_cross_entropy(good, p, NULL, KILN_NONE));
            }
    }
}

/* Floats are divided by 0, and the lowest integer by -1. */
static void test_divisions_that_are_fine(void **state)
{
    (void)state;
    kiln_scope {
        int64_t got[2] = {0};
        kiln_tensor *lowest = i64s(INT64_MIN, 7), *by = i64s(-1, -2);
        assert_true(kiln_read(kiln_floor_divide(lowest, by), got, sizeof got));
        assert_true(got[0] == INT64_MIN && got[1] == -4);
        assert_true(kiln_read(kiln_remainder(lowest, by), got, sizeof got));
        assert_true(got[0] == 0 && got[1] == -1);
        assert_true(isnan(kiln_item(kiln_remainder(kiln_scalar(1, KILN_F32), kiln_scalar(0, KILN_F32)))));
        REFUSES(KILN_E_ARGUMENT, kiln_remainder_scalar(lowest, 0));
        assert_non_null(kiln_remainder_scalar(kiln_scalar(1, KILN_F64), 0));
    }
}

/* ---- Views and copies ---- */

/* Whether writing to the result changes the operand, which holds no zeros. */
static bool is_view(kiln_tensor *x, kiln_tensor *y)
{
    double before = kiln_item(kiln_sum_all(x));
    assert_true(kiln_assign(y, kiln_zeros_like(y)));
    return kiln_item(kiln_sum_all(x)) != before;
}

#define VIEW(call)                                                                                                     \
    do {                                                                                                               \
        kiln_tensor *x = kiln_ones(KILN_SHAPE(2, 3), KILN_F32), *y = call;                                             \
        if (!y || !is_view(x, y))                                                                                      \
            fail_msg("%s is a copy: %s", #call, kiln_last_error()->message);                                           \
    } while (0)
#define COPY(call)                                                                                                     \
    do {                                                                                                               \
        kiln_tensor *x = kiln_ones(KILN_SHAPE(2, 3), KILN_F32), *y = call;                                             \
        if (!y || is_view(x, y))                                                                                       \
            fail_msg("%s is a view: %s", #call, kiln_last_error()->message);                                           \
    } while (0)

static kiln_tensor *first_part(kiln_tensor *x)
{
    kiln_tensor *parts[2];
    return kiln_chunk(x, 2, 0, parts, 2) == 2 ? parts[0] : NULL;
}

static void test_views_and_copies(void **state)
{
    (void)state;
    kiln_scope {
        VIEW(kiln_reshape(x, KILN_SHAPE(3, 2)));
        VIEW(kiln_reshape(x, KILN_SHAPE(2, 3)));
        VIEW(kiln_flatten(x, 0, -1));
        VIEW(kiln_permute(x, KILN_DIMS(1, 0)));
        VIEW(kiln_transpose(x, 0, 1));
        VIEW(kiln_movedim(x, 0, 1));
        VIEW(kiln_squeeze(x, 0));
        VIEW(kiln_unsqueeze(x, 0));
        VIEW(kiln_expand(x, KILN_SHAPE(2, 3)));
        VIEW(kiln_slice(x, 0, 0, 2, 1));
        VIEW(kiln_select(x, 0, 1));
        VIEW(kiln_unfold(x, 1, 2, 2));
        VIEW(kiln_diagonal(x, 0, 0, 1));
        VIEW(kiln_contiguous(x));
        VIEW(kiln_cast(x, KILN_F32));
        VIEW(kiln_detach(x));
        VIEW(kiln_dropout(x, 0.5, false));
        VIEW(first_part(x));
        VIEW(kiln_einsum("ij->ji", 1, &x));
        VIEW(kiln_to(x, KILN_CPU));
        COPY(kiln_clone(x));
        COPY(kiln_reshape(kiln_transpose(x, 0, 1), KILN_SHAPE(6)));
        COPY(kiln_contiguous(kiln_transpose(x, 0, 1)));
        COPY(kiln_repeat(x, KILN_DIMS(1, 1)));
        COPY(kiln_repeat(x, KILN_DIMS(1, 1, 1)));
        COPY(kiln_repeat(x, KILN_DIMS(2, 1)));
        COPY(kiln_pad(x, KILN_DIMS(0, 0), KILN_PAD_CONSTANT, 0));
        COPY(kiln_pad(x, KILN_DIMS(0, -1), KILN_PAD_CONSTANT, 0));
        COPY(kiln_pad(x, KILN_DIMS(0, -1), KILN_PAD_REPLICATE, 0));
        COPY(kiln_pad(x, KILN_DIMS(0, -1), KILN_PAD_REFLECT, 0));
        COPY(kiln_pad(x, KILN_DIMS(0, 0), KILN_PAD_CIRCULAR, 0));
        COPY(kiln_flip(x, 0, NULL));
        COPY(kiln_roll(x, 0, 0));
        COPY(kiln_tril(x, 5));
        COPY(kiln_cat(1, &x, 0));
        COPY(kiln_stack(1, &x, 0));
        COPY(kiln_add_scalar(x, 0));
        COPY(kiln_mul_scalar(x, 1));
        COPY(kiln_clamp(x, -INFINITY, INFINITY));
        COPY(kiln_pow_scalar(x, 1));
        COPY(kiln_relu(x));
        COPY(kiln_dropout(x, 1, true));
        COPY(kiln_index_select(x, 0, i64s(0, 1)));
        COPY(kiln_where(kiln_eq(x, x), x, x));
        COPY(kiln_masked_fill(x, kiln_ne(x, x), 0));
        COPY(kiln_max(kiln_unsqueeze(x, 0), 0, false, NULL));
        COPY(kiln_sum(kiln_unsqueeze(x, 0), KILN_DIMS(0), false));
        COPY(kiln_interpolate(kiln_unsqueeze(x, 0), 1, (int64_t[]){3}, KILN_NEAREST, false));
        COPY(kiln_sign(kiln_ne(x, x)));
    }
}

/* ---- NULL, and what is left in out-parameters ---- */

static kiln_tensor *const filled = (kiln_tensor *)(uintptr_t)0xdeadbeef;

/* NULL gives NULL: with an error of its own, or with the one that is there already. */
#define NULL_IN(call)                                                                                                  \
    do {                                                                                                               \
        kiln_error_clear();                                                                                            \
        if (call)                                                                                                      \
            fail_msg("%s gives something", #call);                                                                     \
        if (kiln_last_error()->code != KILN_E_ARGUMENT || !strstr(kiln_last_error()->message, "NULL"))                 \
            fail_msg("%s: \"%s\"", #call, kiln_last_error()->message);                                                 \
        kiln_error_clear();                                                                                            \
        kiln_device_parse("no such device");                                                                           \
        kiln_code before = kiln_last_error()->code;                                                                    \
        if ((call) || kiln_last_error()->code != before)                                                               \
            fail_msg("%s hides the first error", #call);                                                               \
        kiln_error_clear();                                                                                            \
    } while (0)

static void test_null(void **state)
{
    (void)state;
    kiln_scope {
        kiln_tensor *x = kiln_ones(KILN_SHAPE(2, 3), KILN_F32), *list[2] = {x, NULL}, *parts[2];
        NULL_IN(kiln_matmul(NULL, x));
        NULL_IN(kiln_matmul(x, NULL));
        NULL_IN(kiln_reshape(NULL, KILN_SHAPE(6)));
        NULL_IN(kiln_interpolate(NULL, 1, (int64_t[]){3}, KILN_NEAREST, false));
        NULL_IN(kiln_dropout(NULL, 0.5, false));
        NULL_IN(kiln_dropout(NULL, 0.5, true));
        NULL_IN(kiln_bernoulli(NULL));
        NULL_IN(kiln_full_like(NULL, 1));
        NULL_IN(kiln_zeros_like(NULL));
        NULL_IN(kiln_ones_like(NULL));
        NULL_IN(kiln_cat(2, list, 0));
        NULL_IN(kiln_stack(2, list, 0));
        NULL_IN(kiln_einsum("ij,ij->", 2, list));
        NULL_IN(kiln_masked_fill(NULL, x, 0));
        NULL_IN(kiln_masked_fill(x, NULL, 0));
        NULL_IN(kiln_cast(NULL, KILN_F64));
        NULL_IN(kiln_amax(NULL, 0, NULL, false));
        NULL_IN(kiln_any(NULL, 0, NULL, false));
        NULL_IN(kiln_argmax(NULL, KILN_FLAT, false));
        NULL_IN(kiln_split(NULL, 1, 0, parts, 2) >= 0);
        NULL_IN(kiln_chunk(NULL, 2, 0, parts, 2) >= 0);
        NULL_IN(kiln_assign(NULL, x));
        NULL_IN(kiln_assign(x, NULL));
        NULL_IN(kiln_backward(NULL));
        NULL_IN(kiln_backward_with(NULL, x));
        NULL_IN(kiln_requires_grad(NULL, true));
        NULL_IN(kiln_detach(NULL));
        /* lists that are not there */
        NULL_IN(kiln_reshape(x, 2, NULL));
        NULL_IN(kiln_permute(x, 2, NULL));
        NULL_IN(kiln_expand(x, 2, NULL));
        NULL_IN(kiln_flip(x, 1, NULL));
        NULL_IN(kiln_repeat(x, 2, NULL));
        NULL_IN(kiln_pad(x, 2, NULL, KILN_PAD_CONSTANT, 0));
        NULL_IN(kiln_sum(x, 1, NULL, false));
        NULL_IN(kiln_full(2, NULL, 1, KILN_F32));
        NULL_IN(kiln_rand(2, NULL, KILN_F32));
        NULL_IN(kiln_interpolate(kiln_unsqueeze(x, 0), 1, NULL, KILN_NEAREST, false));
        NULL_IN(kiln_chunk(x, 2, 0, NULL, 2) >= 0);
    }
}

static void test_out_parameters(void **state)
{
    (void)state;
    kiln_scope {
        kiln_tensor *x = kiln_ones(KILN_SHAPE(2, 3), KILN_F32), *out[3] = {filled, filled, filled};
        assert_null(kiln_max(x, 7, false, &out[0]));
        assert_null(out[0]);
        out[0] = filled;
        assert_null(kiln_sort(NULL, 0, false, &out[0]));
        assert_null(out[0]);
        out[0] = filled;
        assert_null(kiln_topk(kiln_ne(x, x), 1, 0, true, &out[0]));
        assert_null(out[0]);
        out[0] = filled;
        assert_int_equal(kiln_split(x, 0, 0, out, 3), -1);
        assert_true(!out[0] && !out[1] && !out[2]);
        out[0] = out[1] = out[2] = filled;
        assert_int_equal(kiln_chunk(x, 4, 1, out, 2), -1); /* no room */
        assert_true(!out[0] && !out[1] && out[2] == filled);
        out[0] = out[1] = filled;
        assert_null(kiln_lstm(x, x, x, x, x, NULL, NULL, &out[0], &out[1]));
        assert_true(!out[0] && !out[1]);
        out[0] = out[1] = filled;
        assert_false(kiln_grad(x, NULL, (kiln_tensor *[]){x, x}, 2, out));
        assert_true(!out[0] && !out[1]);
        out[0] = out[1] = filled;
        assert_false(kiln_grad(NULL, NULL, (kiln_tensor *[]){x, x}, 2, out));
        assert_true(!out[0] && !out[1]);
        kiln_error_clear();
    }
}

/* ---- Without scopes ---- */

/* Where no scope is open, the result is all that is left of a call. */
#define LEAVES_NOTHING(call)                                                                                           \
    do {                                                                                                               \
        kiln_memory_stats before, after;                                                                               \
        kiln_memory_get_stats(KILN_CPU, &before);                                                                      \
        kiln_tensor *y = call;                                                                                         \
        if (!y || !kiln_eval())                                                                                        \
            fail_msg("%s: %s", #call, kiln_last_error()->message);                                                     \
        kiln_release(y);                                                                                               \
        kiln_memory_get_stats(KILN_CPU, &after);                                                                       \
        if (after.in_use != before.in_use)                                                                             \
            fail_msg("%s leaves %lld bytes behind", #call, (long long)(after.in_use - before.in_use));                 \
    } while (0)

static void test_without_scopes(void **state)
{
    (void)state;
    kiln_tensor *x = kiln_ones(KILN_SHAPE(2, 3), KILN_F32), *row = kiln_ones(KILN_SHAPE(3), KILN_F32);
    kiln_tensor *whole = kiln_ones(KILN_SHAPE(2, 3), KILN_I32), *flags = kiln_ones(KILN_SHAPE(2, 3), KILN_BOOL);
    kiln_tensor *bytes = kiln_ones(KILN_SHAPE(2, 3), KILN_U8), *index = kiln_zeros(KILN_SHAPE(2), KILN_I32);
    kiln_tensor *half = kiln_ones(KILN_SHAPE(2, 3), KILN_BF16), *number = kiln_ones(0, NULL, KILN_F32);
    kiln_tensor *planes = kiln_ones(KILN_SHAPE(1, 2, 3), KILN_U8), *turned = kiln_transpose(x, 0, 1);
    kiln_tensor *cube = kiln_ones(KILN_SHAPE(2, 2, 3), KILN_F32), *place = kiln_zeros(0, NULL, KILN_I32);
    assert_true(kiln_eval());
    LEAVES_NOTHING(kiln_add(x, half));
    LEAVES_NOTHING(kiln_where(bytes, x, half));
    LEAVES_NOTHING(kiln_masked_fill(x, bytes, 1));
    LEAVES_NOTHING(kiln_pow_scalar(whole, 0.5));
    LEAVES_NOTHING(kiln_pow_scalar(x, 3));
    LEAVES_NOTHING(kiln_square(flags));
    LEAVES_NOTHING(kiln_floor_divide(whole, bytes));
    LEAVES_NOTHING(kiln_sum(whole, 0, NULL, false));
    LEAVES_NOTHING(kiln_prod(flags, 0, NULL, false));
    LEAVES_NOTHING(kiln_amax(whole, 0, NULL, false));
    LEAVES_NOTHING(kiln_any(bytes, 0, NULL, false));
    LEAVES_NOTHING(kiln_logsumexp(whole, 0, NULL, false));
    LEAVES_NOTHING(kiln_mean_all(half));
    LEAVES_NOTHING(kiln_cumsum(flags, 0));
    LEAVES_NOTHING(kiln_cumprod(whole, 0));
    LEAVES_NOTHING(kiln_matmul(x, row));
    LEAVES_NOTHING(kiln_matmul(row, row));
    LEAVES_NOTHING(kiln_matmul(x, turned));
    LEAVES_NOTHING(kiln_matmul(cube, turned));
    LEAVES_NOTHING(kiln_linear(half, half, NULL));
    LEAVES_NOTHING(kiln_cat(2, (kiln_tensor *[]){x, half}, 0));
    LEAVES_NOTHING(kiln_stack(2, (kiln_tensor *[]){x, half}, 0));
    LEAVES_NOTHING(kiln_index_select(x, 0, index));
    LEAVES_NOTHING(kiln_index_select(row, 0, place));
    LEAVES_NOTHING(kiln_gather(number, 0, place));
    LEAVES_NOTHING(kiln_index_add(number, 0, place, number));
    LEAVES_NOTHING(kiln_argmax(x, KILN_FLAT, true));
    LEAVES_NOTHING(kiln_interpolate(planes, 1, (int64_t[]){5}, KILN_NEAREST, false));
    LEAVES_NOTHING(kiln_reshape(turned, KILN_SHAPE(6)));
    LEAVES_NOTHING(kiln_randint(1, 9, KILN_SHAPE(3), KILN_I32));
    LEAVES_NOTHING(kiln_randperm(5, KILN_I32));
    LEAVES_NOTHING(kiln_l1_loss(whole, whole, KILN_SUM));
    LEAVES_NOTHING(kiln_mse_loss(whole, x, KILN_SUM));
    LEAVES_NOTHING(kiln_softmax(half, 0));
    kiln_tensor *all[] = {x, row, whole, flags, bytes, index, half, number, planes, turned, cube, place};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        kiln_release(all[i]);
}

int main(void)
{
    ndevices = devices_under_test(devices);
#define UNIT(name) cmocka_unit_test_setup_teardown(name, memory_before, memory_after)
    const struct CMUnitTest tests[] = {
        UNIT(test_refusals),         UNIT(test_taken), UNIT(test_found_when_run), UNIT(test_divisions_that_are_fine),
        UNIT(test_views_and_copies), UNIT(test_null),  UNIT(test_out_parameters), UNIT(test_without_scopes),
    };
    return test_exit(cmocka_run_group_tests(tests, NULL, NULL));
}
