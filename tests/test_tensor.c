/* Tensors: making, reading, writing, moving them, views, and the errors of everything that cannot be: each names the
 * operation and what was wrong, the first one stays, and the next right call works. */
#include "support/core.h"

/* ctest: name=eager env=KILN_EAGER=1 */

#define F32(...) kiln_of_f32(((float[]){__VA_ARGS__}), sizeof((float[]){__VA_ARGS__}) / sizeof(float))

/* ---- Making and asking ---- */

static void test_new(void **state)
{
    (void)state;
    kiln_device device = kiln_default_device();
    kiln_scope {
        const int64_t shape[3] = {2, 3, 4};
        float data[24], out[24];
        for (int i = 0; i < 24; i++)
            data[i] = (float)i;
        kiln_tensor *t = kiln_tensor_new(data, KILN_F32, 3, shape, device);
        memset(data, 0, sizeof data); /* it was copied */
        assert_int_equal(kiln_dtype_of(t), KILN_F32);
        assert_int_equal(kiln_device_of(t), device);
        assert_int_equal(kiln_ndim(t), 3);
        assert_int_equal(kiln_numel(t), 24);
        assert_memory_equal(kiln_shape(t), shape, sizeof shape);
        assert_memory_equal(kiln_strides(t), ((int64_t[]){12, 4, 1}), 3 * sizeof(int64_t));
        assert_int_equal(kiln_size(t, 1), 3);
        assert_int_equal(kiln_size(t, -1), 4);
        assert_true(kiln_is_contiguous(t));
        assert_false(kiln_is_contiguous(kiln_transpose(t, 0, 1)));
        assert_true(kiln_read(t, out, sizeof out));
        for (int i = 0; i < 24; i++)
            assert_true(out[i] == (float)i);
        assert_string_equal(kiln_get_name(t), "");
        assert_ptr_equal(kiln_set_name(t, "layer.weight"), t);
        assert_string_equal(kiln_get_name(t), "layer.weight");
        assert_f32(kiln_tensor_new(NULL, KILN_F32, KILN_SHAPE(3), device), 0, 0, 0);
    }
}

static void test_every_dtype(void **state)
{
    (void)state;
    for (int k = 0; k < KILN_DTYPES; k++)
        kiln_scope {
            uint8_t data[4 * 8], out[4 * 8];
            size_t bytes = 4 * kiln_dtype_size((kiln_dtype)k);
            for (size_t i = 0; i < sizeof data; i++)
                data[i] = k == KILN_BOOL ? (uint8_t)(i & 1) : (uint8_t)(37 * i + 11);
            kiln_tensor *t = kiln_tensor_new(data, (kiln_dtype)k, KILN_SHAPE(2, 2), kiln_default_device());
            assert_true(kiln_read(t, out, bytes));
            assert_memory_equal(data, out, bytes);
            assert_true(kiln_read(kiln_transpose(kiln_transpose(t, 0, 1), 0, 1), out, bytes));
            assert_memory_equal(data, out, bytes);
            assert_true(kiln_write(t, data + sizeof data - bytes, bytes) && kiln_read(t, out, bytes));
            assert_memory_equal(data + sizeof data - bytes, out, bytes);
        }
}

static void test_item(void **state)
{
    (void)state;
    kiln_scope {
        for (int k = KILN_U8; k < KILN_DTYPES; k++) {
            assert_near(kiln_item(kiln_scalar(3, (kiln_dtype)k)), 3, 0);
            assert_int_equal(kiln_item_i64(kiln_full(KILN_SHAPE(1, 1), 7, (kiln_dtype)k)), 7);
        }
        assert_int_equal(kiln_item_i64(kiln_scalar(1, KILN_BOOL)), 1);
        int64_t large = INT64_MAX - 1;
        assert_int_equal(kiln_item_i64(kiln_tensor_new(&large, KILN_I64, 0, NULL, kiln_default_device())), large);
        assert_near(kiln_item(kiln_select(F32(1, 2, 3), 0, 1)), 2, 0);
        assert_true(isnan(kiln_item(F32(1, 2))));
        expect_error(KILN_E_SHAPE, "item", "[2]");
        assert_int_equal(kiln_item_i64(kiln_zeros(KILN_SHAPE(0), KILN_F32)), 0);
        expect_error(KILN_E_SHAPE, "item", "[0]");
        assert_true(isnan(kiln_item(NULL)));
        kiln_error_clear();
    }
}

static void test_no_dims_and_no_elements(void **state)
{
    (void)state;
    kiln_scope {
        kiln_tensor *s = kiln_scalar(2, KILN_F32), *e = kiln_zeros(KILN_SHAPE(0, 3), KILN_F32);
        assert_int_equal(kiln_ndim(s), 0);
        assert_int_equal(kiln_numel(s), 1);
        assert_f32(kiln_add(s, s), 4);
        assert_f32(kiln_sum_all(s), 2);
        assert_f32(kiln_reshape(s, KILN_SHAPE(1, 1)), 2);
        assert_int_equal(kiln_numel(e), 0);
        assert_true(kiln_is_contiguous(e));
        char nothing;
        assert_true(kiln_read(e, &nothing, 0));
        assert_true(kiln_write(e, &nothing, 0));
        assert_int_equal(kiln_numel(kiln_exp(kiln_add(e, s))), 0);
        assert_f32(kiln_sum(e, KILN_DIMS(0), false), 0, 0, 0);
        assert_f32(kiln_sum_all(e), 0);
        assert_f32(kiln_matmul(kiln_zeros(KILN_SHAPE(2, 0), KILN_F32), e), 0, 0, 0, 0, 0, 0);
        assert_int_equal(kiln_numel(kiln_slice(F32(1, 2), 0, 1, 1, 1)), 0);
        assert_true(kiln_assign(e, kiln_add_scalar(e, 1)));
        assert_true(kiln_assign(kiln_slice(F32(1, 2), 0, 1, 1, 1), kiln_zeros(KILN_SHAPE(0), KILN_F32)));
        kiln_tensor *w = kiln_requires_grad(kiln_zeros(KILN_SHAPE(0), KILN_F32), true);
        assert_true(kiln_backward(kiln_sum_all(kiln_square(w))));
        assert_int_equal(kiln_numel(kiln_grad_of(w)), 0);
        assert_true(kiln_eval());
    }
}

/* ---- Reading, writing, views ---- */

static void test_sizes(void **state)
{
    (void)state;
    kiln_scope {
        kiln_tensor *t = F32(1, 2, 3);
        float out[4] = {9, 9, 9, 9};
        assert_false(kiln_read(t, out, 8));
        expect_error(KILN_E_ARGUMENT, "read", "12");
        assert_false(kiln_read(t, out, 16));
        expect_error(KILN_E_ARGUMENT, "read", "16");
        assert_false(kiln_read(t, NULL, 12));
        expect_error(KILN_E_ARGUMENT, "read", NULL);
        assert_false(kiln_write(t, out, 8));
        expect_error(KILN_E_ARGUMENT, "write", "8");
        assert_false(kiln_write(t, NULL, 12));
        expect_error(KILN_E_ARGUMENT, "write", NULL);
        assert_true(out[0] == 9);
        assert_f32(t, 1, 2, 3);
    }
}

static void test_writes_are_seen(void **state)
{
    (void)state;
    kiln_scope {
        kiln_tensor *x = kiln_of_f32(((float[]){1, 2, 3, 4}), 2, 2), *row = kiln_select(x, 0, 1);
        kiln_tensor *turned = kiln_transpose(x, 0, 1), *flat = kiln_reshape(x, KILN_SHAPE(4)),
                    *before = kiln_add_scalar(x, 0);
        assert_true(kiln_write(row, (float[]){30, 40}, 8));
        assert_f32(x, 1, 2, 30, 40);
        assert_f32(turned, 1, 30, 2, 40);
        assert_f32(before, 1, 2, 3, 4);
        assert_true(kiln_write(turned, (float[]){5, 6, 7, 8}, 16));
        assert_f32(flat, 5, 7, 6, 8);
        kiln_tensor *w = kiln_requires_grad(F32(1), true);
        assert_true(kiln_write(w, (float[]){2}, 4)); /* data put into a parameter is no step of a computation */
        assert_true(kiln_backward(kiln_square(w)));
        assert_f32(kiln_grad_of(w), 4);
    }
}

static void test_same_handle(void **state)
{
    (void)state;
    kiln_scope {
        kiln_tensor *x = F32(1, 2);
        assert_ptr_equal(kiln_to(x, kiln_device_of(x)), x);
        assert_ptr_equal(kiln_cast(x, KILN_F32), x);
        assert_ptr_equal(kiln_contiguous(x), x);
        assert_ptr_not_equal(kiln_clone(x), x);
        assert_ptr_not_equal(kiln_detach(x), x);
    }
}

static void test_moving(void **state)
{
    (void)state;
    kiln_device here = kiln_default_device(), there = KILN_CPU;
    if (here == KILN_CPU)
        there = kiln_device_count("sim", NULL, 0) > 0 ? kiln_device_parse("sim:0") : KILN_NO_DEVICE;
    if (there == KILN_NO_DEVICE)
        skip_because("needs a second device");
    kiln_scope {
        kiln_tensor *w = kiln_requires_grad(kiln_of_f32(((float[]){1, 2, 3, 4}), 2, 2), true);
        kiln_tensor *y = kiln_to(kiln_transpose(kiln_square(w), 0, 1), there);
        assert_int_equal(kiln_device_of(y), there);
        assert_f32(y, 1, 9, 4, 16);
        kiln_tensor *loss = kiln_to(kiln_sum_all(kiln_mul_scalar(y, 3)), here);
        assert_true(kiln_backward(loss));
        assert_f32(kiln_grad_of(w), 6, 12, 18, 24);
        assert_null(kiln_add(w, y));
        expect_error(KILN_E_DEVICE, "add", kiln_device_name(there));
        assert_false(kiln_assign(w, y));
        expect_error(KILN_E_DEVICE, "assign", kiln_device_name(here));
        kiln_on_device (there)
            assert_int_equal(kiln_device_of(kiln_zeros(KILN_SHAPE(1), KILN_F32)), there);
        assert_int_equal(kiln_default_device(), here);
    }
    assert_null(kiln_to(NULL, there));
    kiln_error_clear();
}

/* ---- What cannot be ---- */

static void test_bad_making(void **state)
{
    (void)state;
    kiln_device device = kiln_default_device();
    const int64_t nine[9] = {1, 1, 1, 1, 1, 1, 1, 1, 1}, huge = INT64_MAX, negative = -1;
    const int64_t overflow[3] = {INT64_MAX / 2, 3, 2}, two[2] = {(int64_t)1 << 32, (int64_t)1 << 32};
    assert_null(kiln_tensor_new(NULL, KILN_F32, 9, nine, device));
    expect_error(KILN_E_SHAPE, "tensor_new", "9");
    assert_null(kiln_tensor_new(NULL, KILN_F32, -1, nine, device));
    expect_error(KILN_E_SHAPE, "tensor_new", "-1");
    assert_null(kiln_tensor_new(NULL, KILN_F32, 1, NULL, device));
    kiln_error_clear();
    assert_null(kiln_tensor_new(NULL, KILN_F32, 1, &huge, device));
    expect_error(KILN_E_SHAPE, "tensor_new", "9223372036854775807");
    assert_null(kiln_tensor_new(NULL, KILN_F32, 3, overflow, device));
    expect_error(KILN_E_SHAPE, "tensor_new", NULL);
    assert_null(kiln_tensor_new(NULL, KILN_U8, 2, two, device));
    expect_error(KILN_E_SHAPE, "tensor_new", "4294967296");
    assert_null(kiln_tensor_new(NULL, KILN_F32, 1, &negative, device));
    expect_error(KILN_E_SHAPE, "tensor_new", "-1");
    assert_null(kiln_tensor_new(NULL, KILN_DTYPES, 1, nine, device));
    expect_error(KILN_E_DTYPE, "tensor_new", NULL);
    assert_null(kiln_tensor_new(NULL, (kiln_dtype)-3, 1, nine, device));
    expect_error(KILN_E_DTYPE, "tensor_new", NULL);
    assert_null(kiln_tensor_new(NULL, KILN_F32, 1, nine, KILN_NO_DEVICE));
    expect_error(KILN_E_DEVICE, NULL, NULL);
    assert_null(kiln_tensor_new(NULL, KILN_F32, 1, nine, 12345));
    expect_error(KILN_E_DEVICE, NULL, NULL);
    assert_null(kiln_of_f32(((float[]){1, 2, 3}), 2, 2));
    expect_error(KILN_E_SHAPE, NULL, "[2, 2]");
    assert_null(kiln_zeros(9, nine, KILN_F32));
    expect_error(KILN_E_SHAPE, "zeros", NULL);
    assert_null(kiln_full(1, &negative, 1, KILN_F32));
    expect_error(KILN_E_SHAPE, "full", NULL);
    assert_null(kiln_full(1, &huge, 1, KILN_F64));
    expect_error(KILN_E_SHAPE, "full", NULL);
    assert_null(kiln_zeros(1, nine, KILN_DTYPES));
    expect_error(KILN_E_DTYPE, NULL, NULL);
    assert_null(kiln_arange(0, 10, 0, KILN_F32));
    expect_error(KILN_E_ARGUMENT, "arange", NULL);
    assert_null(kiln_rand(1, &negative, KILN_F32));
    expect_error(KILN_E_SHAPE, NULL, NULL);
    kiln_scope
        assert_f32(kiln_ones(KILN_SHAPE(2), KILN_F32), 1, 1);
}

/* More memory than there is: an error when it is asked for or when it is needed, and nothing is lost. */
static void test_too_large(void **state)
{
    (void)state;
    assert_true(kiln_memory_set_limit(kiln_default_device(), (uint64_t)1 << 40));
    kiln_scope {
        const int64_t large = (int64_t)1 << 50;
        kiln_tensor *t = kiln_tensor_new(NULL, KILN_U8, 1, &large, kiln_default_device());
        assert_null(t);
        expect_error(KILN_E_MEMORY, NULL, NULL);
        kiln_tensor *z = kiln_ones(1, &large, KILN_U8);
        float out;
        assert_true(z == NULL || !kiln_read(kiln_cast(kiln_add_scalar(z, 1), KILN_F32), &out, 4 * (size_t)large));
        expect_error(KILN_E_MEMORY, NULL, NULL);
        assert_f32(kiln_add_scalar(F32(1), 1), 2);
    }
    assert_true(kiln_memory_set_limit(kiln_default_device(), 0));
}

#define refuses(code, operation, word, ...)                                                                            \
    do {                                                                                                               \
        assert_null(__VA_ARGS__);                                                                                      \
        expect_error(code, operation, word);                                                                           \
    } while (0)

static void test_bad_operands(void **state)
{
    (void)state;
    kiln_scope {
        kiln_tensor *a = kiln_zeros(KILN_SHAPE(2, 3), KILN_F32), *b = kiln_zeros(KILN_SHAPE(4, 5), KILN_F32);
        kiln_tensor *i = kiln_zeros(KILN_SHAPE(2, 3), KILN_I64),
                    *deep = kiln_zeros(KILN_SHAPE(1, 1, 1, 1, 1, 1, 1, 1), KILN_F32);
        refuses(KILN_E_SHAPE, "add", "[4, 5]", kiln_add(a, b));
        refuses(KILN_E_SHAPE, "matmul", "[2, 3]", kiln_matmul(a, b));
        refuses(KILN_E_SHAPE, NULL, "[2, 3]", kiln_linear(a, b, NULL));
        refuses(KILN_E_SHAPE, "reshape", "[2, 3]", kiln_reshape(a, KILN_SHAPE(4, 2)));
        refuses(KILN_E_SHAPE, "reshape", NULL, kiln_reshape(a, KILN_SHAPE(-1, -1)));
        refuses(KILN_E_SHAPE, "reshape", NULL, kiln_reshape(a, KILN_SHAPE(-2, 3)));
        refuses(KILN_E_SHAPE, "reshape", NULL, kiln_reshape(a, KILN_SHAPE(INT64_MAX, INT64_MAX, 6)));
        refuses(KILN_E_SHAPE, "expand", NULL, kiln_expand(a, KILN_SHAPE(2, 4)));
        refuses(KILN_E_SHAPE, "expand", NULL, kiln_expand(kiln_slice(a, 0, 0, 1, 1), KILN_SHAPE(INT64_MAX, 3)));
        refuses(KILN_E_SHAPE, "softmax", "2", kiln_softmax(a, 2));
        refuses(KILN_E_SHAPE, "softmax", "-3", kiln_softmax(a, -3));
        refuses(KILN_E_SHAPE, "sum", "5", kiln_sum(a, KILN_DIMS(5), false));
        refuses(KILN_E_ARGUMENT, "sum", "twice", kiln_sum(a, KILN_DIMS(0, 0), false));
        refuses(KILN_E_SHAPE, "transpose", NULL, kiln_transpose(a, 0, 7));
        refuses(KILN_E_ARGUMENT, "permute", NULL, kiln_permute(a, KILN_DIMS(0, 0)));
        refuses(KILN_E_INDEX, "select", "2", kiln_select(a, 0, 2));
        refuses(KILN_E_ARGUMENT, "slice", NULL, kiln_slice(a, 0, 0, 2, 0));
        refuses(KILN_E_SHAPE, "unsqueeze", NULL, kiln_unsqueeze(deep, 0));
        refuses(KILN_E_SHAPE, "cat", "[4, 5]", kiln_cat(2, (kiln_tensor *[]){a, b}, 0));
        refuses(KILN_E_DTYPE, "softmax", "i64", kiln_softmax(i, 0));
        refuses(KILN_E_DTYPE, "bitwise_and", "f32", kiln_bitwise_and(a, a));
        refuses(KILN_E_DTYPE, "index_select", NULL, kiln_index_select(a, 0, F32(1)));
        refuses(KILN_E_ARGUMENT, "cast", NULL, kiln_cast(a, KILN_DTYPES));
        refuses(KILN_E_SHAPE, NULL, NULL, kiln_conv2d(a, b, NULL, .groups = 1));
        refuses(KILN_E_SHAPE, "topk", NULL, kiln_topk(a, 4, 1, true, NULL));
        assert_int_equal(kiln_size(a, 2), -1);
        expect_error(KILN_E_ARGUMENT, "size", "2");
        kiln_set_name(b, "encoder.weight");
        refuses(KILN_E_SHAPE, "matmul", "[4, 5]", kiln_matmul(a, b));
        assert_f32(kiln_sum_all(kiln_add_scalar(a, 1)), 6);
    }
}

static void test_null(void **state)
{
    (void)state;
    kiln_scope {
        kiln_tensor *x = F32(1, 2), *out[2];
        refuses(KILN_E_ARGUMENT, "exp", NULL, kiln_exp(NULL)); /* NULL without an error is the mistake itself */
        refuses(KILN_E_ARGUMENT, "add", NULL, kiln_add(x, NULL));
        assert_null(kiln_matmul(x, F32(1, 2, 3)));
        kiln_error first = *kiln_last_error();
        assert_null(kiln_add(kiln_exp(kiln_matmul(x, NULL)), x));
        assert_null(kiln_sum_all(NULL));
        assert_null(kiln_mean_all(NULL));
        assert_null(kiln_cat(2, (kiln_tensor *[]){x, NULL}, 0));
        assert_null(kiln_cross_entropy(NULL, x));
        assert_null(kiln_softmax(NULL, 0));
        assert_null(kiln_zeros_like(NULL));
        assert_null(kiln_reshape(NULL, KILN_SHAPE(1)));
        assert_null(kiln_clone(NULL));
        assert_null(kiln_detach(NULL));
        assert_null(kiln_requires_grad(NULL, true));
        assert_null(kiln_set_name(NULL, "x"));
        assert_null(kiln_grad_of(NULL));
        assert_null(kiln_to_string(NULL));
        assert_false(kiln_read(NULL, &first, 4));
        assert_false(kiln_write(NULL, &first, 4));
        assert_false(kiln_backward(NULL));
        assert_false(kiln_grad(NULL, NULL, &x, 1, out));
        assert_false(kiln_assign(NULL, NULL));
        assert_false(kiln_set_grad_hook(NULL, NULL, NULL));
        assert_int_equal(kiln_split(NULL, 1, 0, out, 2), -1);
        assert_int_equal(kiln_dtype_of(NULL), KILN_DTYPES);
        assert_int_equal(kiln_device_of(NULL), KILN_NO_DEVICE);
        assert_int_equal(kiln_ndim(NULL), -1);
        assert_int_equal(kiln_numel(NULL), -1);
        assert_int_equal(kiln_size(NULL, 0), -1);
        assert_null(kiln_shape(NULL));
        assert_false(kiln_needs_grad(NULL));
        assert_false(kiln_is_contiguous(NULL));
        assert_string_equal(kiln_get_name(NULL), "");
        kiln_zero_grad_of(NULL);
        kiln_release(NULL);
        assert_memory_equal(&first, kiln_last_error(), sizeof first);
        kiln_error_clear();
        assert_f32(kiln_add(x, x), 2, 4);
    }
}

static void test_first_error_stays(void **state)
{
    (void)state;
    assert_true(kiln_ok());
    assert_int_equal(kiln_last_error()->code, KILN_OK);
    assert_int_equal(kiln_report(stderr), 0);
    kiln_scope {
        kiln_tensor *x = F32(1, 2);
        assert_null(kiln_softmax(x, 9));
        assert_null(kiln_add(x, F32(1, 2, 3)));
        assert_false(kiln_ok());
        assert_string_equal(kiln_last_error()->operation, "softmax");
        assert_int_equal(kiln_last_error()->code, KILN_E_SHAPE);
        assert_f32(kiln_add(x, x), 2, 4); /* right calls work meanwhile */
        FILE *f = tmpfile();
        assert_int_equal(kiln_report(f), 1);
        char text[1200] = {0};
        rewind(f);
        assert_true(fread(text, 1, sizeof text - 1, f) > 0);
        fclose(f);
        assert_non_null(strstr(text, "softmax"));
        kiln_error_clear();
        assert_true(kiln_ok());
    }
    for (int code = KILN_OK; code <= KILN_E_STATE; code++)
        assert_true(kiln_code_name((kiln_code)code)[0] != 0);
}

/* ---- Nothing is leaked ---- */

/* Outside any scope a result is released by its caller; what an operation makes on its way is its own business. */
static void test_temporaries_without_scope(void **state)
{
    (void)state;
    kiln_tensor *x = core_data(1, KILN_SHAPE(4, 4)), *w = core_data(2, KILN_SHAPE(4, 4)),
                *b = core_data(3, KILN_SHAPE(4));
    kiln_tensor *labels = kiln_zeros(KILN_SHAPE(4), KILN_I64), *half = kiln_cast(x, KILN_F16);
    kiln_tensor *turned = kiln_transpose(x, 0, 1), *image = kiln_reshape(x, KILN_SHAPE(1, 1, 4, 4)), *indices = NULL;
    assert_true(kiln_eval());
    kiln_step {
    }
    int64_t eight[2] = {8, 8};
    uint64_t before = core_memory();
#define COSTS_NOTHING(...)                                                                                             \
    do {                                                                                                               \
        kiln_tensor *t_ = __VA_ARGS__;                                                                                 \
        if (!t_)                                                                                                       \
            fail_msg("%s: %s", #__VA_ARGS__, kiln_last_error()->message);                                              \
        assert_true(kiln_eval());                                                                                      \
        kiln_release(t_);                                                                                              \
        kiln_release(indices);                                                                                         \
        indices = NULL;                                                                                                \
        kiln_step {                                                                                                    \
        }                                                                                                              \
        if (core_memory() != before) {                                                                                 \
            print_error("%s leaves %lld bytes behind\n", #__VA_ARGS__, (long long)(core_memory() - before));           \
            leaks++;                                                                                                   \
            before = core_memory();                                                                                    \
        }                                                                                                              \
    } while (0)
    int leaks = 0;
    COSTS_NOTHING(kiln_add(x, w));
    COSTS_NOTHING(kiln_linear(x, w, b));
    COSTS_NOTHING(kiln_mean_all(x));
    COSTS_NOTHING(kiln_var(x, KILN_DIMS(0), 1, false));
    COSTS_NOTHING(kiln_softmax(turned, 0));
    COSTS_NOTHING(kiln_softmax(half, 1));
    COSTS_NOTHING(kiln_cross_entropy(x, labels));
    COSTS_NOTHING(kiln_layer_norm(x, KILN_SHAPE(4), b, b, 1e-5));
    COSTS_NOTHING(kiln_dropout(x, 0.5, true));
    COSTS_NOTHING(kiln_topk(turned, 2, 0, true, &indices));
    COSTS_NOTHING(kiln_max(x, 0, false, &indices));
    COSTS_NOTHING(kiln_norm(x, 2, KILN_DIMS(1), false));
    COSTS_NOTHING(kiln_interpolate(image, 2, eight, KILN_LINEAR, false));
    COSTS_NOTHING(kiln_scaled_dot_product_attention(x, w, x, NULL, 0, true, 0));
    COSTS_NOTHING(kiln_eye(5, 5, KILN_F32));
    if (leaks)
        print_message("%d operations leave memory behind outside scopes\n", leaks);
    kiln_release(x);
    kiln_release(w);
    kiln_release(b);
    kiln_release(labels);
    kiln_release(half);
    kiln_release(turned);
    kiln_release(image);
    assert_int_equal(leaks, 0);
}

static void test_errors_leak_nothing(void **state)
{
    (void)state;
    uint64_t before = core_memory();
    for (int i = 0; i < 50; i++)
        kiln_scope {
            kiln_tensor *x = core_data(1, KILN_SHAPE(10, 10));
            kiln_add(kiln_matmul(kiln_exp(x), F32(1, 2)), x);
            kiln_linear(x, x, F32(1, 2));
            kiln_cross_entropy(x, F32(1, 2));
            kiln_assign(x, F32(1, 2));
            kiln_error_clear();
        }
    kiln_step {
    }
    assert_int_equal(core_memory(), before);
}

/* Sizes whose product no number holds are none of a tensor's, also where another one is 0. */
static void test_huge_and_empty(void **state)
{
    (void)state;
    kiln_scope {
        kiln_tensor *x = kiln_zeros(KILN_SHAPE(0, 3), KILN_F32);
        assert_null(kiln_reshape(x, KILN_SHAPE(INT64_MAX, 0, INT64_MAX, 4)));
        expect_error(KILN_E_SHAPE, "view", "not one a tensor can have");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        core_test(test_huge_and_empty),
        core_test(test_new),
        core_test(test_every_dtype),
        core_test(test_item),
        core_test(test_no_dims_and_no_elements),
        core_test(test_sizes),
        core_test(test_writes_are_seen),
        core_test(test_same_handle),
        core_test(test_moving),
        core_test(test_bad_making),
        core_test(test_too_large),
        core_test(test_bad_operands),
        core_test(test_null),
        core_test(test_first_error_stays),
        core_test(test_temporaries_without_scope),
        core_test(test_errors_leak_nothing),
    };
    return CORE_MAIN(tests);
}
