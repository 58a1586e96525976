/* A plan must never serve a step it was not made for. Each test here runs a step until its plan is cached, changes one
 * thing about it (a shape, a stride, a dtype, an attribute, which operand, who keeps what, …), runs it again, and
 * compares with a plain computation. test_programs.c does the same with random steps. */
#include "support/core.h"

/* ctest: name=eager env=KILN_EAGER=1 */
/* ctest: name=threads env=KILN_NUM_THREADS=3 */

#define F32(...) kiln_of_f32(((float[]){__VA_ARGS__}), sizeof((float[]){__VA_ARGS__}) / sizeof(float))

static int64_t misses(void)
{
    return kiln_plan_cache_stats().misses;
}

/* ---- Geometry ---- */

static void test_shapes(void **state)
{
    (void)state;
    for (int round = 0; round < 3; round++)
        for (int64_t n = 1; n < 40; n++)
            kiln_scope {
                kiln_tensor *x = core_data(1, KILN_SHAPE(n));
                const float *in = core_f32(x), *out = core_f32(kiln_add_scalar(kiln_mul(x, x), 1));
                for (int64_t i = 0; i < n; i++)
                    assert_true(out[i] == in[i] * in[i] + 1);
            }
}

/* The same number of elements in other shapes: a sum over dim 0 means something else in each. */
static void test_same_count(void **state)
{
    (void)state;
    const int64_t shapes[][2] = {{2, 6}, {6, 2}, {3, 4}, {4, 3}, {12, 1}, {1, 12}};
    for (int round = 0; round < 3; round++)
        for (int k = 0; k < 6; k++)
            kiln_scope {
                int64_t rows = shapes[k][0], columns = shapes[k][1];
                kiln_tensor *x = kiln_reshape(kiln_arange(0, 12, 1, KILN_F32), 2, shapes[k]);
                const float *out = core_f32(kiln_sum(kiln_relu(x), KILN_DIMS(0), false));
                for (int64_t j = 0; j < columns; j++) {
                    float want = 0;
                    for (int64_t i = 0; i < rows; i++)
                        want += (float)(i * columns + j);
                    assert_true(out[j] == want);
                }
            }
}

static void test_strides(void **state)
{
    (void)state;
    for (int round = 0; round < 3; round++)
        kiln_scope {
            kiln_tensor *x = kiln_of_f32(((float[]){0, 1, 2, 3, 4, 5, 6, 7, 8}), 3, 3);
            assert_f32(kiln_add_scalar(x, 1), 1, 2, 3, 4, 5, 6, 7, 8, 9);
            assert_f32(kiln_add_scalar(kiln_transpose(x, 0, 1), 1), 1, 4, 7, 2, 5, 8, 3, 6, 9);
            assert_f32(kiln_add_scalar(kiln_select(x, 0, 1), 1), 4, 5, 6);
            assert_f32(kiln_add_scalar(kiln_select(x, 1, 1), 1), 2, 5, 8);
            assert_f32(kiln_add_scalar(kiln_slice(x, 0, 0, 3, 2), 1), 1, 2, 3, 7, 8, 9);
            assert_f32(kiln_add_scalar(kiln_slice(x, 0, 1, 3, 1), 1), 4, 5, 6, 7, 8, 9);
            assert_f32(kiln_add_scalar(kiln_slice(x, 1, 1, 3, 1), 1), 2, 3, 5, 6, 8, 9);
            assert_f32(kiln_add_scalar(kiln_diagonal(x, 0, 0, 1), 1), 1, 5, 9);
            assert_f32(kiln_add_scalar(kiln_expand(kiln_slice(x, 0, 2, 3, 1), KILN_SHAPE(2, 3)), 1), 7, 8, 9, 7, 8, 9);
        }
}

/* Views that were computed before: the same recorded code, another offset each time. */
static void test_offsets_of_leaves(void **state)
{
    (void)state;
    for (int i = 0; i < 12; i++)
        kiln_scope {
            kiln_tensor *x = kiln_arange(0, 12, 1, KILN_F32);
            assert_true(kiln_eval());
            kiln_tensor *part = kiln_slice(x, 0, i, i + 1, 1);
            assert_near(kiln_item(kiln_mul_scalar(part, 2)), 2 * i, 0);
        }
}

static void test_broadcast(void **state)
{
    (void)state;
    for (int round = 0; round < 3; round++)
        kiln_scope {
            kiln_tensor *x = kiln_of_f32(((float[]){0, 1, 2, 3}), 2, 2), *row = F32(10, 20);
            assert_f32(kiln_add(x, row), 10, 21, 12, 23);
            assert_f32(kiln_add(x, kiln_unsqueeze(row, 1)), 10, 11, 22, 23);
            assert_f32(kiln_add(x, kiln_select(row, 0, 0)), 10, 11, 12, 13);
            assert_f32(kiln_add(x, kiln_select(row, 0, 1)), 20, 21, 22, 23);
            assert_f32(kiln_add(kiln_transpose(x, 0, 1), row), 10, 22, 11, 23);
        }
}

/* ---- Dtypes and devices ---- */

static void test_dtypes(void **state)
{
    (void)state;
    for (int round = 0; round < 3; round++)
        for (int k = KILN_U8; k < KILN_DTYPES; k++)
            kiln_scope {
                kiln_dtype dtype = (kiln_dtype)k;
                kiln_tensor *x = kiln_cast(F32(1, 2, 3.75f), dtype);
                kiln_tensor *y = kiln_mul_scalar(kiln_add(x, x), 3);
                assert_int_equal(kiln_dtype_of(y), dtype);
                bool whole = !kiln_dtype_is_float(dtype);
                assert_f32(kiln_cast(y, KILN_F32), 6, 12, whole ? 18 : 22.5f);
            }
}

/* Tensors with the same bytes but of another type: bool and u8, f16 and bf16, i64 and f64. */
static void test_same_size_dtypes(void **state)
{
    (void)state;
    uint16_t half[2] = {0x3c00, 0x4000}; /* 1 and 2 in f16; 0.0078125 and 2 in bf16 */
    for (int round = 0; round < 3; round++)
        kiln_scope {
            kiln_device device = kiln_default_device();
            kiln_tensor *a = kiln_tensor_new(half, KILN_F16, KILN_SHAPE(2), device);
            kiln_tensor *b = kiln_tensor_new(half, KILN_BF16, KILN_SHAPE(2), device);
            assert_f32(kiln_cast(kiln_add(a, a), KILN_F32), 2, 4);
            assert_f32(kiln_cast(kiln_add(b, b), KILN_F32), 0.015625f, 4);
            kiln_tensor *i = kiln_tensor_new((int64_t[]){3, -4}, KILN_I64, KILN_SHAPE(2), device);
            kiln_tensor *f = kiln_tensor_new((double[]){3, -4}, KILN_F64, KILN_SHAPE(2), device);
            assert_f32(kiln_cast(kiln_abs(i), KILN_F32), 3, 4);
            assert_f32(kiln_cast(kiln_abs(f), KILN_F32), 3, 4);
            kiln_tensor *u = kiln_tensor_new((uint8_t[]){200, 100}, KILN_U8, KILN_SHAPE(2), device);
            kiln_tensor *t = kiln_tensor_new((uint8_t[]){1, 0}, KILN_BOOL, KILN_SHAPE(2), device);
            assert_f32(kiln_cast(kiln_sum(u, KILN_DIMS(0), false), KILN_F32), 300);
            assert_f32(kiln_cast(kiln_sum(t, KILN_DIMS(0), false), KILN_F32), 1);
        }
}

static kiln_device other_device(void)
{
    if (kiln_default_device() != KILN_CPU)
        return KILN_CPU;
    return kiln_device_count("sim", NULL, 0) > 0 ? kiln_device_parse("sim:0") : KILN_NO_DEVICE;
}

static void test_devices(void **state)
{
    (void)state;
    kiln_device other = other_device();
    if (other == KILN_NO_DEVICE)
        skip_because("needs a second device");
    for (int round = 0; round < 3; round++)
        kiln_scope {
            kiln_tensor *x = F32(1, 2, 3), *y = kiln_to(x, other);
            kiln_tensor *a = kiln_mul(x, x), *b = kiln_mul(y, y);
            assert_int_equal(kiln_device_of(a), kiln_default_device());
            assert_int_equal(kiln_device_of(b), other);
            assert_f32(a, 1, 4, 9);
            assert_f32(b, 1, 4, 9);
            assert_f32(kiln_add(a, kiln_to(b, kiln_default_device())), 2, 8, 18);
        }
}

/* ---- Attributes ---- */

static void test_attributes(void **state)
{
    (void)state;
    for (int round = 0; round < 3; round++)
        kiln_scope {
            kiln_tensor *x = kiln_of_f32(((float[]){4, 1, 3, 2, 6, 5}), 2, 3);
            assert_f32(kiln_sum(x, KILN_DIMS(0), false), 6, 7, 8);
            assert_f32(kiln_sum(x, KILN_DIMS(1), false), 8, 13);
            assert_f32(kiln_sum(x, KILN_DIMS(0, 1), false), 21);
            assert_int_equal(kiln_ndim(kiln_sum(x, KILN_DIMS(1), true)), 2);
            assert_f32(kiln_amax(x, KILN_DIMS(1), false), 4, 6);
            assert_f32(kiln_amin(x, KILN_DIMS(1), false), 1, 2);
            assert_f32(kiln_topk(x, 1, 1, true, NULL), 4, 6);
            assert_f32(kiln_topk(x, 2, 1, true, NULL), 4, 3, 6, 5);
            assert_f32(kiln_topk(x, 2, 1, false, NULL), 1, 3, 2, 5);
            assert_f32(kiln_sort(x, 1, false, NULL), 1, 3, 4, 2, 5, 6);
            assert_f32(kiln_sort(x, 1, true, NULL), 4, 3, 1, 6, 5, 2);
            assert_f32(kiln_sort(x, 0, true, NULL), 4, 6, 5, 2, 1, 3);
            assert_f32(kiln_cumsum(x, 0), 4, 1, 3, 6, 7, 8);
            assert_f32(kiln_cumsum(x, 1), 4, 5, 8, 2, 8, 13);
            assert_f32(kiln_roll(x, 1, 1), 3, 4, 1, 5, 2, 6);
            assert_f32(kiln_roll(x, 2, 1), 1, 3, 4, 6, 5, 2);
            assert_f32(kiln_tril(x, 0), 4, 0, 0, 2, 6, 0);
            assert_f32(kiln_tril(x, 1), 4, 1, 0, 2, 6, 5);
            assert_f32(kiln_pad(x, 2, (int64_t[]){1, 0}, KILN_PAD_CONSTANT, 9), 9, 4, 1, 3, 9, 2, 6, 5);
            assert_f32(kiln_pad(x, 2, (int64_t[]){0, 1}, KILN_PAD_CONSTANT, 9), 4, 1, 3, 9, 2, 6, 5, 9);
            assert_f32(kiln_pad(x, 2, (int64_t[]){0, 1}, KILN_PAD_CONSTANT, 8), 4, 1, 3, 8, 2, 6, 5, 8);
        }
}

static void test_convolution_options(void **state)
{
    (void)state;
    for (int round = 0; round < 3; round++)
        kiln_scope {
            kiln_tensor *x = kiln_of_f32(((float[]){1, 2, 3, 4, 5, 6, 7, 8, 9}), 1, 1, 3, 3);
            kiln_tensor *w = kiln_of_f32(((float[]){1, 0, 0, 1}), 1, 1, 2, 2);
            assert_f32(kiln_conv2d(x, w, NULL, .groups = 1), 6, 8, 12, 14);
            assert_f32(kiln_conv2d(x, w, NULL, .stride = {2, 2}), 6);
            assert_f32(kiln_conv2d(x, w, NULL, .dilation = {2, 2}), 10);
            assert_f32(kiln_conv2d(x, w, NULL, .padding = {1, 1}, .stride = {3, 3}), 1, 0, 0, 9);
            assert_f32(kiln_max_pool2d(x, 2, 2, .stride = {1, 1}), 5, 6, 8, 9);
            assert_f32(kiln_max_pool2d(x, 2, 2, .stride = {2, 2}), 5);
            assert_f32(kiln_max_pool2d(x, 2, 2, .ceil_mode = true), 5, 6, 8, 9);
            assert_f32(kiln_avg_pool2d(x, 2, 2, .padding = {1, 1}), 0.25f, 1.25f, 2.75f, 7);
            assert_f32(kiln_avg_pool2d(x, 2, 2, .padding = {1, 1}, .exclude_pad = true), 1, 2.5f, 5.5f, 7);
        }
}

/* ---- Operands ---- */

static void test_operand_order(void **state)
{
    (void)state;
    for (int round = 0; round < 3; round++)
        kiln_scope {
            kiln_tensor *x = F32(1, 2, 3), *y = F32(10, 20, 30);
            assert_f32(kiln_sub(x, y), -9, -18, -27);
            assert_f32(kiln_sub(y, x), 9, 18, 27);
            assert_f32(kiln_sub(x, x), 0, 0, 0);
            assert_f32(kiln_sub(kiln_mul(x, y), x), 9, 38, 87);
            assert_f32(kiln_sub(kiln_mul(x, y), y), 0, 20, 60);
            assert_f32(kiln_sub(kiln_mul(x, x), y), -9, -16, -21);
            assert_f32(kiln_where(kiln_gt(x, y), x, y), 10, 20, 30);
            assert_f32(kiln_where(kiln_gt(y, x), x, y), 1, 2, 3);
        }
}

static float apply_twice(kiln_tensor *a, kiln_tensor *b)
{
    return core_f32(kiln_add(kiln_mul(a, b), b))[0];
}

static void test_aliases(void **state)
{
    (void)state;
    for (int round = 0; round < 3; round++)
        kiln_scope {
            kiln_tensor *x = F32(3, 4), *y = F32(5, 6), *z = kiln_detach(x);
            assert_true(apply_twice(x, y) == 20);
            assert_true(apply_twice(x, x) == 12);
            assert_true(apply_twice(y, x) == 18);
            assert_true(apply_twice(x, z) == 12); /* two windows of one storage */
            assert_true(apply_twice(kiln_slice(x, 0, 0, 1, 1), kiln_slice(x, 0, 1, 2, 1)) == 16);
            assert_true(apply_twice(kiln_slice(x, 0, 1, 2, 1), kiln_slice(x, 0, 0, 1, 1)) == 15);
        }
}

/* Whether two windows share a storage decides what an assignment does. */
static void test_aliased_assignment(void **state)
{
    (void)state;
    for (int round = 0; round < 4; round++)
        for (int shared = 0; shared < 2; shared++)
            kiln_scope {
                kiln_tensor *x = F32(1, 2, 3, 4);
                kiln_tensor *y = shared ? kiln_slice(x, 0, 1, 3, 1) : kiln_clone(kiln_slice(x, 0, 1, 3, 1));
                assert_true(kiln_eval());
                assert_true(kiln_assign(y, kiln_mul_scalar(y, 10)));
                assert_f32(y, 20, 30);
                assert_f32(kiln_add_scalar(x, 0), 1, shared ? 20 : 2, shared ? 30 : 3, 4);
            }
}

/* Two steps that read alike word for word: only which of two earlier results is used differs, and what the trace had
 * seen of the operands before. */
static void test_operands_known_before(void **state)
{
    (void)state;
    for (int round = 0; round < 4; round++)
        for (int variant = 0; variant < 2; variant++)
            kiln_scope {
                kiln_tensor *x = F32(2), *y = F32(5);
                kiln_tensor *seen = kiln_add_scalar(variant ? x : y, 1);
                assert_true(kiln_eval());
                kiln_tensor *a = kiln_exp2(x), *b = kiln_neg(x), *c = kiln_mul(variant ? b : a, y);
                kiln_release(a);
                kiln_release(b);
                assert_f32(c, variant ? -10 : 20);
                assert_f32(seen, variant ? 3 : 6);
            }
}

/* ---- What is kept ---- */

static void test_kept_handles(void **state)
{
    (void)state;
    for (int round = 0; round < 24; round++) {
        kiln_tensor *kept[3] = {NULL};
        kiln_step {
            kiln_tensor *x = F32(1, 2), *a = kiln_mul_scalar(x, 2), *b = kiln_add_scalar(a, 3), *c = kiln_mul(a, b);
            kiln_tensor *made[3] = {a, b, c};
            for (int k = 0; k < 3; k++)
                if (round >> k & 1)
                    kept[k] = kiln_keep(made[k]);
        }
        const float want[3][2] = {{2, 4}, {5, 7}, {10, 28}};
        for (int k = 0; k < 3; k++) {
            if (kept[k])
                assert_f32(kept[k], want[k][0], want[k][1]);
            kiln_release(kept[k]);
        }
    }
}

static void test_kept_view(void **state)
{
    (void)state;
    for (int round = 0; round < 6; round++) {
        kiln_tensor *kept = NULL;
        kiln_step {
            kiln_tensor *a = kiln_mul_scalar(F32(1, 2, 3), 2), *b = kiln_slice(a, 0, 1, 3, 1);
            kept = kiln_keep(round % 3 == 0 ? a : round % 3 == 1 ? b : kiln_clone(b));
        }
        if (round % 3 == 0)
            assert_f32(kept, 2, 4, 6);
        else
            assert_f32(kept, 4, 6);
        kiln_release(kept);
    }
}

/* ---- Gradients ---- */

static void test_requires_grad(void **state)
{
    (void)state;
    kiln_tensor *w = kiln_keep(F32(2)), *v = kiln_keep(F32(3));
    for (int round = 0; round < 12; round++) {
        bool gw = round & 1, gv = round & 2, off = round == 7 || round == 11;
        kiln_step {
            kiln_requires_grad(w, gw);
            kiln_requires_grad(v, gv);
            kiln_zero_grad_of(w);
            kiln_zero_grad_of(v);
            kiln_tensor *loss = NULL;
            if (off)
                kiln_no_grad
                    loss = kiln_mul(kiln_square(w), v);
            else
                loss = kiln_mul(kiln_square(w), v);
            assert_int_equal(kiln_needs_grad(loss), (gw || gv) && !off);
            if (kiln_needs_grad(loss))
                assert_true(kiln_backward(kiln_sum_all(loss)));
            assert_near(kiln_item(loss), 12, 0);
        }
        assert_int_equal(kiln_grad_of(w) != NULL, gw && !off);
        assert_int_equal(kiln_grad_of(v) != NULL, gv && !off);
        if (kiln_grad_of(w))
            assert_f32(kiln_grad_of(w), 12);
        if (kiln_grad_of(v))
            assert_f32(kiln_grad_of(v), 4);
    }
    kiln_release(w);
    kiln_release(v);
}

/* ---- Assignment ---- */

static void test_assignment_order(void **state)
{
    (void)state;
    for (int round = 0; round < 8; round++)
        kiln_scope {
            kiln_tensor *a = F32(1, 2), *b = F32(10, 20);
            kiln_step {
                if (round & 1) {
                    kiln_assign(a, b);
                    kiln_assign(b, a);
                } else {
                    kiln_assign(b, a);
                    kiln_assign(a, b);
                }
            }
            assert_f32(a, round & 1 ? 10 : 1, round & 1 ? 20 : 2);
            assert_f32(b, round & 1 ? 10 : 1, round & 1 ? 20 : 2);
        }
}

static void test_assigned_twice(void **state)
{
    (void)state;
    for (int round = 0; round < 6; round++)
        kiln_scope {
            kiln_tensor *a = F32(1, 2), *first = NULL;
            kiln_step {
                kiln_assign(a, kiln_add_scalar(a, 1));
                if (round & 1)
                    first = kiln_keep(kiln_mul_scalar(a, 100));
                kiln_assign(a, kiln_mul_scalar(a, 2));
            }
            assert_f32(a, 4, 6);
            if (first)
                assert_f32(first, 200, 300);
            kiln_release(first);
        }
}

static void test_swap(void **state)
{
    (void)state;
    for (int round = 0; round < 4; round++)
        for (int clone = 0; clone < 3; clone++)
            kiln_scope {
                kiln_tensor *a = F32(1, 2, 3), *b = F32(4, 5, 6);
                kiln_step {
                    kiln_tensor *t = clone == 0 ? kiln_clone(a) : clone == 1 ? kiln_add_scalar(a, 1) : kiln_mul(a, b);
                    kiln_assign(a, b);
                    kiln_assign(b, t);
                }
                assert_f32(a, 4, 5, 6);
                if (clone == 0)
                    assert_f32(b, 1, 2, 3);
                else if (clone == 1)
                    assert_f32(b, 2, 3, 4);
                else
                    assert_f32(b, 4, 10, 18);
            }
}

/* Three tensors handed round, in either direction. */
static void test_rotate(void **state)
{
    (void)state;
    for (int round = 0; round < 6; round++)
        kiln_scope {
            kiln_tensor *x[3] = {F32(1, 10), F32(2, 20), F32(3, 30)};
            kiln_step {
                kiln_tensor *t[3];
                for (int i = 0; i < 3; i++)
                    t[i] = kiln_clone(x[i]);
                for (int i = 0; i < 3; i++)
                    kiln_assign(x[i], t[(i + (round & 1 ? 1 : 2)) % 3]);
            }
            for (int i = 0; i < 3; i++) {
                float want = (float)((i + (round & 1 ? 1 : 2)) % 3 + 1);
                assert_f32(x[i], want, 10 * want);
            }
        }
}

/* Both new values are made in one kernel that reads both old ones. */
static void test_entangled(void **state)
{
    (void)state;
    for (int round = 0; round < 3; round++)
        kiln_scope {
            kiln_tensor *a = F32(1, 2, 3), *b = F32(10, 20, 30), *c = NULL;
            kiln_step {
                kiln_tensor *old = kiln_clone(b);
                kiln_assign(b, kiln_add(a, b));
                kiln_assign(a, old);
                c = kiln_keep(kiln_add(a, b));
            }
            assert_f32(a, 10, 20, 30);
            assert_f32(b, 11, 22, 33);
            assert_f32(c, 21, 42, 63);
            kiln_release(c);
        }
}

/* A new value that is reduced in the kernel that writes it over the old one. */
static void test_assigned_and_reduced(void **state)
{
    (void)state;
    for (int dim = -1; dim < 2; dim++)
        for (int round = 0; round < 3; round++)
            kiln_scope {
                enum { N = 70, M = 50 };
                kiln_tensor *x = core_data(dim + 7, KILN_SHAPE(N, M)), *sum = NULL;
                float old[N * M];
                memcpy(old, core_f32(x), sizeof old);
                kiln_step {
                    kiln_assign(x, kiln_add_scalar(kiln_mul_scalar(x, 2), 1));
                    sum = kiln_keep(dim < 0 ? kiln_sum_all(x) : kiln_sum(x, KILN_DIMS(dim), false));
                }
                const float *now = core_f32(x), *s = core_f32(sum);
                double want[N] = {0};
                for (int i = 0; i < N * M; i++) {
                    assert_true(now[i] == old[i] * 2 + 1);
                    want[dim < 0 ? 0 : dim ? i / M : i % M] += now[i];
                }
                for (int64_t i = 0; i < kiln_numel(sum); i++)
                    assert_near(s[i], want[i], 1e-4);
                kiln_release(sum);
            }
}

static void test_view_or_copy(void **state)
{
    (void)state;
    for (int round = 0; round < 6; round++)
        kiln_scope {
            kiln_tensor *x = kiln_of_f32(((float[]){1, 2, 3, 4}), 2, 2);
            kiln_tensor *row = kiln_select(x, 0, 0), *target = round & 1 ? kiln_clone(row) : row;
            kiln_step
                kiln_assign(target, kiln_add_scalar(kiln_select(x, 0, 1), 1));
            assert_f32(target, 4, 5);
            assert_f32(x, round & 1 ? 1 : 4, round & 1 ? 2 : 5, 3, 4);
        }
}

/* ---- Branches, numbers, random numbers ---- */

static void test_branches(void **state)
{
    (void)state;
    float x = 1, want = 1;
    for (int round = 0; round < 30; round++)
        kiln_step {
            kiln_tensor *t = kiln_scalar(x, KILN_F32);
            t = round % 3 == 0 ? kiln_add_scalar(t, 2) : kiln_mul_scalar(t, 2);
            want = round % 3 == 0 ? want + 2 : want * 2;
            if (kiln_item(t) > 20) {
                t = kiln_sub(t, kiln_scalar(18, KILN_F32));
                want -= 18;
            }
            x = (float)kiln_item(t);
            assert_true(x == want);
        }
}

/* Numbers that change with every step are no reason for a new plan. */
static void test_scalars(void **state)
{
    (void)state;
    int64_t before = 0;
    for (int i = 0; i < 20; i++) {
        kiln_tensor *y = NULL;
        float s = 0.5f * (float)i;
        kiln_step {
            kiln_tensor *x = F32(1, -2);
            kiln_tensor *z = kiln_add(kiln_mul_scalar(x, s), kiln_full(KILN_SHAPE(2), i, KILN_F32));
            y = kiln_keep(kiln_leaky_relu(kiln_clamp(z, -i, 3 * i), s));
        }
        for (int k = 0; k < 2; k++) {
            float v = (k ? -2 : 1) * s + (float)i;
            v = v < -(float)i ? -(float)i : v > 3 * (float)i ? 3 * (float)i : v;
            assert_true(core_f32(y)[k] == (v > 0 ? v : v * s));
        }
        kiln_release(y);
        if (i == 1)
            before = misses();
    }
    assert_int_equal(misses(), before);
}

/* Equal calls with different numbers must not be taken for one. */
static void test_scalars_apart(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++)
        kiln_scope {
            kiln_tensor *x = F32(1, 2);
            double a = i % 2 ? 3 : 5, b = i < 2 ? 3 : 5;
            assert_f32(kiln_sub(kiln_mul_scalar(x, a), kiln_mul_scalar(x, b)), (float)(a - b), 2 * (float)(a - b));
        }
}

static void test_random(void **state)
{
    (void)state;
    float first[4][4], again[4][4];
    int64_t before = 0;
    for (int pass = 0; pass < 2; pass++) {
        kiln_manual_seed(42);
        for (int i = 0; i < 4; i++) {
            kiln_scope
                memcpy(pass ? again[i] : first[i],
                       core_f32(kiln_add(kiln_randn(KILN_SHAPE(4), KILN_F32), kiln_rand(KILN_SHAPE(4), KILN_F32))),
                       sizeof first[i]);
            for (int k = 0; k < i; k++)
                assert_memory_not_equal(first[i], first[k], sizeof first[i]);
            if (pass == 0 && i == 0)
                before = misses();
        }
    }
    assert_memory_equal(first, again, sizeof first);
    assert_int_equal(misses(), before);
    kiln_manual_seed(43);
    kiln_scope
        assert_memory_not_equal(core_f32(kiln_rand(KILN_SHAPE(4), KILN_F32)), first[0], sizeof first[0]);
}

static void test_dropout(void **state)
{
    (void)state;
    float out[3][64];
    for (int pass = 0; pass < 3; pass++) {
        kiln_manual_seed(7);
        for (int i = 0; i < 3; i++)
            kiln_scope {
                kiln_tensor *x = kiln_ones(KILN_SHAPE(64), KILN_F32);
                const float *y = core_f32(kiln_dropout(x, 0.5, true));
                if (pass == 0)
                    memcpy(out[i], y, sizeof out[i]);
                else
                    assert_memory_equal(out[i], y, sizeof out[i]);
                assert_f32(kiln_sum_all(kiln_dropout(x, 0.5, false)), 64);
            }
    }
    assert_memory_not_equal(out[0], out[1], sizeof out[0]);
}

/* Two draws in one step are two draws, though they are recorded alike. */
static void test_random_twice(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++)
        kiln_scope {
            kiln_tensor *a = kiln_rand(KILN_SHAPE(16), KILN_F32), *b = kiln_rand(KILN_SHAPE(16), KILN_F32);
            assert_memory_not_equal(core_f32(a), core_f32(b), 16 * sizeof(float));
        }
}

/* ---- The cache ---- */

static void test_capacity(void **state)
{
    (void)state;
    const int64_t capacities[] = {0, 1, 2, 256};
    for (int c = 0; c < 4; c++) {
        kiln_plan_cache_set_capacity(capacities[c]);
        for (int round = 0; round < 12; round++)
            kiln_scope {
                kiln_tensor *x = F32(1, 2, 3);
                int kind = round % 3;
                kiln_tensor *y = kind == 0   ? kiln_add(x, x)
                                 : kind == 1 ? kiln_mul(x, x)
                                             : kiln_sum(x, KILN_DIMS(0), false);
                if (kind == 0)
                    assert_f32(y, 2, 4, 6);
                else if (kind == 1)
                    assert_f32(y, 1, 4, 9);
                else
                    assert_f32(y, 6);
                assert_true(kiln_plan_cache_stats().plans <= capacities[c]);
            }
    }
    assert_int_equal(kiln_plan_cache_stats().capacity, 256);
}

/* Plans are kept by what they take. */
static void test_bytes(void **state)
{
    (void)state;
    kiln_plan_cache_set_capacity(0);
    kiln_plan_cache_set_capacity(1000000);
    int64_t limits[] = {1, 200000, 128 << 20}, most = 0;
    for (int k = 0; k < 3; k++) {
        kiln_plan_cache_set_bytes(limits[k]);
        for (int length = 1; length < 100; length++) {
            kiln_scope {
                kiln_tensor *x = kiln_zeros(KILN_SHAPE(length), KILN_F32);
                assert_near(kiln_item(kiln_sum_all(kiln_exp(x))), length, 1e-6);
            }
            kiln_plan_cache stats = kiln_plan_cache_stats();
            assert_true(stats.plans == 1 || stats.bytes <= limits[k]);
            assert_true(core_eager() || stats.bytes > 1000 * stats.plans); /* it is what they take, not a count */
            most = stats.plans > most ? stats.plans : most;
        }
        assert_true(k == 0 ? most == 1 : most > 5);
        assert_true(k != 2 || kiln_plan_cache_stats().plans >= 99);
    }
    assert_int_equal(kiln_plan_cache_stats().byte_capacity, 128 << 20);
    kiln_plan_cache_set_capacity(256);
}

/* The least recently used plan goes first. */
static void test_eviction(void **state)
{
    (void)state;
    kiln_tensor *x = kiln_keep(F32(1, 2));
    assert_true(kiln_eval());
    kiln_plan_cache_set_capacity(0);
    kiln_plan_cache_set_capacity(2);
    kiln_scope
        assert_f32(kiln_exp2(x), 2, 4); /* kept: exp2 */
    kiln_scope
        assert_f32(kiln_square(x), 1, 4); /* kept: exp2, square */
    kiln_scope
        assert_f32(kiln_exp2(x), 2, 4);
    int64_t before = misses();
    kiln_scope
        assert_f32(kiln_neg(x), -1, -2); /* drops square */
    kiln_scope
        assert_f32(kiln_exp2(x), 2, 4);
    assert_int_equal(misses(), before + 1);
    kiln_scope
        assert_f32(kiln_square(x), 1, 4);
    assert_int_equal(misses(), before + 2);
    assert_int_equal(kiln_plan_cache_stats().plans, 2);
    kiln_plan_cache_set_capacity(256);
    kiln_release(x);
}

/* Many plans in one bucket and out of it again: every answer is still the right one. */
static void test_many_plans(void **state)
{
    (void)state;
    for (int round = 0; round < 2; round++)
        for (int length = 1; length < 300; length++)
            kiln_scope {
                kiln_tensor *x = kiln_scalar(1, KILN_F32);
                for (int bit = 0; bit < 9; bit++)
                    x = length >> bit & 1 ? kiln_add_scalar(x, 1) : kiln_mul_scalar(x, 2);
                double want = 1;
                for (int bit = 0; bit < 9; bit++)
                    want = length >> bit & 1 ? want + 1 : want * 2;
                assert_near(kiln_item(x), want, 0);
            }
    assert_true(kiln_plan_cache_stats().plans <= 256);
}

static void test_threads(void **state)
{
    (void)state;
    int threads = kiln_get_num_threads();
    float want[300];
    for (int round = 0; round < 6; round++) {
        kiln_set_num_threads(1 + round % 3);
        kiln_scope {
            kiln_tensor *x = core_data(5, KILN_SHAPE(300, 300));
            kiln_tensor *y = kiln_sum(kiln_gelu(kiln_matmul(x, x)), KILN_DIMS(1), false);
            if (round == 0)
                memcpy(want, core_f32(y), sizeof want);
            else
                assert_memory_equal(want, core_f32(y), sizeof want);
        }
    }
    kiln_set_num_threads(threads);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        core_test(test_shapes),
        core_test(test_same_count),
        core_test(test_strides),
        core_test(test_offsets_of_leaves),
        core_test(test_broadcast),
        core_test(test_dtypes),
        core_test(test_same_size_dtypes),
        core_test(test_devices),
        core_test(test_attributes),
        core_test(test_convolution_options),
        core_test(test_operand_order),
        core_test(test_aliases),
        core_test(test_aliased_assignment),
        core_test(test_operands_known_before),
        core_test(test_kept_handles),
        core_test(test_kept_view),
        core_test(test_requires_grad),
        core_test(test_assignment_order),
        core_test(test_assigned_twice),
        core_test(test_swap),
        core_test(test_rotate),
        core_test(test_entangled),
        core_test(test_assigned_and_reduced),
        core_test(test_view_or_copy),
        core_test(test_branches),
        core_test(test_scalars),
        core_test(test_scalars_apart),
        core_test(test_random),
        core_test(test_dropout),
        core_test(test_random_twice),
        core_test(test_capacity),
        core_test(test_bytes),
        core_test(test_eviction),
        core_test(test_many_plans),
        core_test(test_threads),
    };
    return CORE_MAIN(tests);
}
