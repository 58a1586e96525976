/* Tensors of more than 2^31 elements: the last ones are found, moved and computed like the first. Takes 7 GiB, of a
 * device with a memory of its own 20, and a minute or two, so it runs with KILN_TEST_LARGE=1 only. */
#include "support/core.h"

static const int64_t N = ((int64_t)1 << 31) + 100;

/* Zeros, but for a few at both ends. */
static kiln_tensor *make(void)
{
    unsigned char *data = calloc((size_t)N, 1);
    assert_non_null(data);
    data[5] = 1;
    data[N - 50] = 3;
    data[N - 1] = 7;
    kiln_tensor *x = kiln_tensor_new(data, KILN_U8, 1, &N, kiln_default_device());
    free(data);
    assert_non_null(x);
    return x;
}

static void assert_bytes(kiln_tensor *t, unsigned char first, unsigned char second)
{
    unsigned char got[2] = {0};
    assert_true(kiln_read(t, got, sizeof got));
    assert_int_equal(got[0], first);
    assert_int_equal(got[1], second);
}

static kiln_tensor *last_two(kiln_tensor *t)
{
    return kiln_slice(t, 0, kiln_size(t, 0) - 2, kiln_size(t, 0), 1);
}

static void test_reductions(void **state)
{
    (void)state;
    kiln_scope {
        kiln_tensor *x = make();
        assert_int_equal(kiln_item_i64(kiln_sum_all(x)), 11);
        assert_int_equal(kiln_item_i64(kiln_argmax(x, 0, false)), N - 1);
    }
}

static void test_indices(void **state)
{
    (void)state;
    kiln_scope {
        kiln_tensor *x = make(), *at = kiln_of_i64(((int64_t[]){N - 1, N - 50}), 2);
        assert_bytes(kiln_index_select(x, 0, at), 7, 3);
        assert_bytes(kiln_gather(x, 0, at), 7, 3);
    }
}

static void test_pointwise(void **state)
{
    (void)state;
    kiln_scope {
        kiln_tensor *x = make();
        kiln_scope
            assert_bytes(last_two(kiln_add_scalar(x, 1)), 1, 8);
        kiln_scope { /* through strides */
            kiln_tensor *rows = kiln_reshape(x, KILN_SHAPE(2, N / 2));
            kiln_tensor *turned = kiln_reshape(kiln_contiguous(kiln_transpose(rows, 0, 1)), KILN_SHAPE(N));
            assert_bytes(last_two(turned), 0, 7);
        }
    }
}

static void test_moves(void **state)
{
    (void)state;
    kiln_scope {
        kiln_tensor *x = make(), *end = kiln_slice(x, 0, N - 1, N, 1);
        assert_bytes(last_two(kiln_cat(2, (kiln_tensor *[]){x, end}, 0)), 7, 7);
    }
}

static void test_floats(void **state)
{
    (void)state;
    if (core_on("cpu") || core_on("sim"))
        skip_because("takes more memory than many a machine has");
    kiln_scope {
        kiln_tensor *x = kiln_cast(make(), KILN_F16);
        assert_true(kiln_item(kiln_sum_all(kiln_relu(x))) == 11);
        kiln_tensor *pairs = kiln_softmax(kiln_reshape(x, KILN_SHAPE(N / 2, 2)), 1);
        assert_true(kiln_item(kiln_sum_all(kiln_slice(pairs, 0, N / 2 - 1, N / 2, 1))) == 1);
    }
}

/* Images of which a few have so many elements, all alike: so are their results, and the weight's gradient is that of
 * one as many times. */
static void test_convolutions(void **state)
{
    (void)state;
    kiln_device_info info = {0};
    kiln_device_describe(kiln_default_device(), &info);
    if (core_on("cpu") || core_on("sim") || info.memory_free < UINT64_C(64) << 30)
        skip_because("takes more memory than many a machine has");
    enum { IMAGES = 5, CHANNELS = 8, SIDE = 8192 };
    assert_true((int64_t)IMAGES * CHANNELS * SIDE * SIDE > N);
    kiln_scope {
        kiln_tensor *w =
            kiln_requires_grad(kiln_cast(core_data(1, KILN_SHAPE(CHANNELS, CHANNELS, 3, 3)), KILN_BF16), true);
        kiln_tensor *one = kiln_cast(kiln_randint(-1, 2, KILN_SHAPE(1, CHANNELS, SIDE, SIDE), KILN_I32), KILN_BF16);
        kiln_tensor *x = kiln_contiguous(kiln_expand(one, KILN_SHAPE(IMAGES, CHANNELS, SIDE, SIDE)));
        kiln_tensor *y = kiln_conv2d(x, w, NULL, .padding = {1, 1});
        kiln_tensor *first = kiln_slice(y, 0, 0, 1, 1), *last = kiln_slice(y, 0, IMAGES - 1, IMAGES, 1);
        assert_true(kiln_item(kiln_sum_all(kiln_ne(first, last))) == 0);
        assert_true(kiln_item(kiln_amax(kiln_abs(last), 0, NULL, false)) > 1);
        kiln_tensor *gy = kiln_mul_scalar(kiln_ones_like(y), 0x1p-12), *all = NULL, *single = NULL;
        assert_true(kiln_grad(y, gy, &w, 1, &all));
        kiln_tensor *z = kiln_conv2d(one, w, NULL, .padding = {1, 1});
        assert_true(kiln_grad(z, kiln_slice(gy, 0, 0, 1, 1), &w, 1, &single));
        kiln_tensor *off = kiln_sub(kiln_cast(all, KILN_F32), kiln_mul_scalar(kiln_cast(single, KILN_F32), IMAGES));
        double most = kiln_item(kiln_amax(kiln_abs(off), 0, NULL, false));
        double size = kiln_item(kiln_amax(kiln_abs(kiln_cast(all, KILN_F32)), 0, NULL, false));
        assert_true(most <= size / 64); /* a few roundings to bf16 */
    }
}

int main(void)
{
    const char *wanted = getenv("KILN_TEST_LARGE");
    if (!wanted || strcmp(wanted, "1") != 0) {
        printf("skipped: takes 7 GiB and more; KILN_TEST_LARGE=1 runs it\n");
        return TEST_SKIPPED;
    }
    setenv("KILN_SIM_MEMORY", "68719476736", 0);
    const struct CMUnitTest tests[] = {core_test(test_reductions), core_test(test_indices),
                                       core_test(test_pointwise),  core_test(test_moves),
                                       core_test(test_floats),     core_test(test_convolutions)};
    return CORE_MAIN(tests);
}
