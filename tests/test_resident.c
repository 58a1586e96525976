/* Data sets that lie on the device whole: batches with the bits of the CPU's loader, for every kind of set, in every
 * order; one copy for all loaders, one plan for all batches; and what happens when there is no room. On the CPU, where
 * nothing is put anywhere, the same tests hold trivially or are left out.
 */
#include <pthread.h>
#include <stdatomic.h>
#include "support/files.h"
#include "support/train.h"
#include "ops/op.h"
#include "trace/thunk.h"

/* ctest: name=eager env=KILN_EAGER=1 */

extern const kiln_op kiln_op_take_samples;

#define HERE kiln_default_device()
#define skip_on_cpu()                                                                                                  \
    do {                                                                                                               \
        if (HERE == KILN_CPU)                                                                                          \
            skip_because("about data sets that lie on a device other than the CPU");                                   \
    } while (0)

static bool is_thunk(const kiln_tensor *t)
{
    return t->storage->thunk != NULL;
}

/* ---- Sets of every kind ---- */

enum { SAMPLES = 103 };

static kiln_dataset *tensor_set(kiln_dtype x_dtype, kiln_dtype y_dtype)
{
    kiln_dataset *d = NULL;
    kiln_scope
        kiln_on_device (KILN_CPU) {
            kiln_tensor *x = kiln_reshape(kiln_arange(0, SAMPLES * 15, 1, KILN_I64), KILN_SHAPE(SAMPLES, 3, 5));
            kiln_tensor *y = kiln_arange(0, SAMPLES, 1, KILN_I64);
            d = kiln_data_tensors(kiln_cast(x, x_dtype), y_dtype == KILN_DTYPES ? NULL : kiln_cast(y, y_dtype));
        }
    assert_non_null(d);
    return d;
}

static kiln_dataset *idx_set(bool labels)
{
    enum { HEIGHT = 5, WIDTH = 7 };
    static uint8_t images[16 + SAMPLES * HEIGHT * WIDTH] = {0, 0, 8, 3, 0, 0, 0, SAMPLES, 0, 0, 0, 5, 0, 0, 0, 7};
    static uint8_t numbers[8 + SAMPLES] = {0, 0, 8, 1, 0, 0, 0, SAMPLES};
    for (int i = 0; i < SAMPLES * HEIGHT * WIDTH; i++)
        images[16 + i] = (uint8_t)(i * 37 + i / 7);
    for (int i = 0; i < SAMPLES; i++)
        numbers[8 + i] = (uint8_t)(i * 3 % 8);
    files_put(files_path("images"), images, sizeof images);
    files_put(files_path("labels"), numbers, sizeof numbers);
    kiln_dataset *d =
        kiln_data_idx(files_path("images"), labels ? files_path("labels") : NULL, .mean = 0.3, .std = 0.2);
    assert_non_null(d);
    return d;
}

static kiln_dataset *text_set(int64_t length, int64_t stride)
{
    char text[2000];
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (char)(i * 7 + i / 13);
    files_put(files_path("text"), text, sizeof text);
    kiln_dataset *d = kiln_data_text(files_path("text"), .length = length, .stride = stride);
    assert_non_null(d);
    return d;
}

typedef struct made {
    atomic_int reads;
    _Atomic int64_t bad; /* a sample that cannot be read */
} made;

static bool read_made(void *context, int64_t index, void *x, void *y)
{
    made *m = context;
    atomic_fetch_add(&m->reads, 1);
    for (int i = 0; i < 3; i++)
        ((float *)x)[i] = (float)(index * 10 + i);
    *(int32_t *)y = (int32_t)index;
    return index != m->bad;
}

static kiln_dataset *made_set(made *m, bool repeatable)
{
    return kiln_data_generator((kiln_data_info){.name = "made",
                                                .count = SAMPLES,
                                                .classes = SAMPLES,
                                                .x = {.dtype = KILN_F32, .ndim = 1, .shape = {3}},
                                                .y.dtype = KILN_I32,
                                                .repeatable = repeatable},
                               read_made, m);
}

/* ---- The same bits as on the CPU ---- */

static void same_tensor(kiln_tensor *a, kiln_tensor *b)
{
    static char bits[2][1 << 17];
    assert_true(!a == !b);
    if (!a)
        return;
    size_t bytes = (size_t)kiln_numel(a) * kiln_dtype_size(kiln_dtype_of(a));
    assert_true(bytes <= sizeof bits[0]);
    assert_int_equal(kiln_dtype_of(a), kiln_dtype_of(b));
    assert_int_equal(kiln_ndim(a), kiln_ndim(b));
    assert_memory_equal(kiln_shape(a), kiln_shape(b), (size_t)kiln_ndim(a) * sizeof(int64_t));
    assert_true(kiln_read(a, bits[0], bytes));
    assert_true(kiln_read(b, bits[1], bytes));
    assert_memory_equal(bits[0], bits[1], bytes);
}

static void same_next(kiln_loader *a, kiln_loader *b, bool here)
{
    kiln_batch p, q;
    bool more = kiln_loader_next(a, &p);
    assert_true(kiln_ok());
    assert_int_equal(kiln_loader_next(b, &q), more);
    assert_int_equal(p.size, q.size);
    assert_int_equal(p.epoch, q.epoch);
    assert_int_equal(p.index, q.index);
    if (more && here && HERE != KILN_CPU)
        assert_true(is_thunk(p.x) && (!p.y || is_thunk(p.y)));
    same_tensor(p.x, q.x);
    same_tensor(p.y, q.y);
}

/* Epochs, seeking, all with the loader that copies nothing and the CPU's. */
static void same_as_cpu(kiln_dataset *d, bool here)
{
    static const int64_t places[][2] = {{7, 1}, {0, 0}, {1000000000000, 1}, {3, 2}};
    for (int kind = 0; kind < 4; kind++) {
        kiln_loader_options o = {.size = sizeof o,
                                 .batch = 30,
                                 .shuffle = kind % 2,
                                 .seed = kind < 2 ? 9 : 0xFEDCBA9876543210u,
                                 .drop_last = kind == 3,
                                 .device = HERE};
        kiln_loader *a = kiln_loader_new_(d, &o);
        o.device = KILN_CPU;
        kiln_loader *b = kiln_loader_new_(d, &o);
        assert_true(a && b);
        assert_int_equal(kiln_loader_batches(a), kiln_loader_batches(b));
        for (int i = 0; i < 11; i++)
            same_next(a, b, here);
        for (int i = 0; i < 4; i++) {
            assert_true(kiln_loader_seek(a, places[i][0], places[i][1]) &&
                        kiln_loader_seek(b, places[i][0], places[i][1]));
            same_next(a, b, here);
            same_next(a, b, here);
        }
        kiln_loader_free(a);
        kiln_loader_free(b);
    }
    assert_null(kiln_next_notice());
}

static void same_and_free(kiln_dataset *d, bool here)
{
    kiln_dataset *part = kiln_data_range(d, 11, 70), *inner = kiln_data_range(part, 5, 61);
    same_as_cpu(d, here);
    same_as_cpu(inner, here);
    kiln_data_free(inner);
    kiln_data_free(part);
    kiln_data_free(d);
}

static void test_tensors(void **state)
{
    (void)state;
    for (int dtype = 0; dtype < KILN_DTYPES; dtype++) {
        kiln_dtype y = dtype == KILN_U8     ? KILN_U8
                       : dtype == KILN_BF16 ? KILN_DTYPES
                       : dtype == KILN_F32  ? KILN_I32
                       : dtype == KILN_F16  ? KILN_F64
                                            : KILN_I64;
        same_and_free(tensor_set((kiln_dtype)dtype, y), true);
    }
}

static void test_idx(void **state)
{
    (void)state;
    same_and_free(idx_set(true), true);
    same_and_free(idx_set(false), true);
}

static void test_text(void **state)
{
    (void)state;
    same_and_free(text_set(16, 16), true);
    same_and_free(text_set(33, 5), true);
    same_and_free(text_set(1, 19), true);
}

static void test_digits(void **state)
{
    (void)state;
    same_and_free(kiln_data_digits(.count = 90), true);
    same_and_free(kiln_data_digits(.count = 90, .test = true), true);
}

static void test_generators(void **state)
{
    (void)state;
    made once = {.bad = -1}, often = {.bad = -1};
    same_and_free(made_set(&once, true), true);
    same_and_free(made_set(&often, false), false);
    if (HERE != KILN_CPU) /* two copies, of the set and of a range of it; the rest is what the CPU has read */
        assert_true(once.reads < often.reads);
}

/* ---- One copy, one plan ---- */

static void test_one_copy(void **state)
{
    (void)state;
    skip_on_cpu();
    kiln_dataset *d = tensor_set(KILN_F64, KILN_I64), *part = kiln_data_range(d, 50, 20);
    uint64_t before = core_memory();
    kiln_loader *a = kiln_loader_new(d, .device = HERE);
    uint64_t with = core_memory();
    assert_true(with - before >= SAMPLES * (15 * 8 + 8) && with - before < SAMPLES * (15 * 8 + 8) + 256);
    kiln_loader *b = kiln_loader_new(d, .device = HERE, .shuffle = true), *c = kiln_loader_new(part, .device = HERE);
    kiln_batch batch;
    assert_true(kiln_loader_next(b, &batch) && kiln_loader_next(c, &batch));
    assert_int_equal(core_memory(), with);
    kiln_loader_free(a);
    kiln_loader_free(b);
    kiln_loader_free(c);
    assert_int_equal(core_memory(), with);
    kiln_data_free(part);
    kiln_data_free(d);
    assert_int_equal(core_memory(), before);
    d = text_set(16, 4); /* x and y are windows of the same bytes */
    a = kiln_loader_new(d, .device = HERE);
    assert_true(core_memory() - before <= 2048);
    kiln_loader_free(a);
    kiln_data_free(d);
}

/* A sum over a batch that gathers the batch, x and y, in the same run. */
static bool add_up(kiln_tensor *total, const kiln_batch *b)
{
    kiln_step {
        kiln_tensor *weighted = kiln_mul(kiln_cast(b->y, KILN_F32), kiln_sum(b->x, KILN_DIMS(1), false));
        kiln_assign(total, kiln_add(total, kiln_sum_all(weighted)));
    }
    return kiln_ok();
}

static void test_one_plan(void **state)
{
    (void)state;
    skip_on_cpu();
    skip_if_eager();
    made m = {.bad = -1};
    kiln_dataset *d = made_set(&m, true);
    kiln_loader *l = kiln_loader_new(d, .batch = 10, .shuffle = true, .seed = 5, .device = HERE);
    kiln_tensor *total = kiln_keep(kiln_tensor_new(NULL, KILN_F32, 0, NULL, HERE));
    kiln_plan_cache start = kiln_plan_cache_stats();
    double expected = 0;
    uint64_t memory = 0;
    kiln_batch b;
    for (int epoch = 0; epoch < 3; epoch++)
        while (kiln_loader_next(l, &b)) {
            assert_true(add_up(total, &b));
            if (epoch + b.index == 0)
                memory = core_memory();
            assert_int_equal(core_memory(), memory); /* a batch has no memory after its step */
        }
    for (int i = 0; i < SAMPLES; i++)
        expected += 3.0 * i * (30 * i + 3);
    assert_near(kiln_item(total), expected, 1e-6);
    kiln_plan_cache end = kiln_plan_cache_stats();
    assert_int_equal(end.misses - start.misses, 2); /* full batches, and the last one */
    assert_int_equal(end.hits - start.hits, 3 * 11 - 2);
    assert_int_equal(m.reads, SAMPLES);
    kiln_release(total);
    kiln_loader_free(l);
    kiln_data_free(d);
}

/* A batch that nobody else knows becomes the next one. */
static void test_batches_are_reused(void **state)
{
    (void)state;
    skip_on_cpu();
    kiln_dataset *d = tensor_set(KILN_F32, KILN_I64);
    kiln_loader *l = kiln_loader_new(d, .batch = 10, .device = HERE);
    kiln_batch b;
    assert_true(kiln_loader_next(l, &b));
    const kiln_tensor *x = b.x, *y = b.y;
    for (int i = 1; i < 10; i++) {
        assert_true(kiln_loader_next(l, &b));
        assert_true(b.x == x && b.y == y);
    }
    kiln_loader_free(l);
    kiln_data_free(d);
}

/* ---- No room ---- */

/* Streams, says so once, and gives the same bits. */
static void expect_streaming(kiln_dataset *d, double share)
{
    for (int i = 0; i < 2; i++) {
        kiln_loader *a = kiln_loader_new(d, .batch = 30, .shuffle = true, .device = HERE, .resident = share);
        kiln_loader *b = kiln_loader_new(d, .batch = 30, .shuffle = true, .device = KILN_CPU);
        assert_true(kiln_ok() && a && b);
        const char *notice = kiln_next_notice();
        assert_int_equal(notice != NULL, i == 0);
        if (notice)
            assert_non_null(strstr(notice, "one by one"));
        for (int k = 0; k < 5; k++)
            same_next(a, b, false);
        kiln_loader_free(a);
        kiln_loader_free(b);
    }
    kiln_data_free(d);
}

/* Limits to the byte: a GPU's memory comes in larger pieces. */
static void skip_unless_exact(void)
{
    skip_on_cpu();
    if (!has_cpu_bits(HERE))
        skip_because("about limits to the byte: a GPU's memory comes in larger pieces");
}

static void test_no_room(void **state)
{
    (void)state;
    skip_unless_exact();
    made m = {.bad = -1};
    expect_streaming(tensor_set(KILN_F64, KILN_I64), 1e-12);
    expect_streaming(made_set(&m, true), 1e-12);
    uint64_t used = core_memory();
    assert_true(kiln_memory_trim(HERE) && kiln_memory_set_limit(HERE, used + 9000));
    expect_streaming(tensor_set(KILN_F64, KILN_I64), 1);
    expect_streaming(tensor_set(KILN_F32, KILN_I64), 6000.0 / (double)(used + 9000)); /* of the limit */
    kiln_memory_set_limit(HERE, 0);
    kiln_dataset *d = kiln_data_digits(.count = INT64_MAX / 4);
    kiln_loader *l = kiln_loader_new(d, .device = HERE);
    kiln_batch b;
    assert_true(kiln_loader_next(l, &b) && !is_thunk(b.x));
    assert_non_null(kiln_next_notice());
    kiln_loader_free(l);
    kiln_data_free(d);
    d = tensor_set(KILN_F32, KILN_I64); /* not wanted: nothing to be said */
    l = kiln_loader_new(d, .device = HERE, .resident = -1);
    assert_true(kiln_loader_next(l, &b) && !is_thunk(b.x));
    assert_null(kiln_next_notice());
    kiln_loader_free(l);
    assert_null(kiln_loader_new(d, .device = HERE, .resident = 1.5));
    expect_error(KILN_E_ARGUMENT, "loader_new", "1.5");
    kiln_data_free(d);
}

/* The range fits where the whole does not. */
static void test_range_alone(void **state)
{
    (void)state;
    skip_unless_exact();
    kiln_dataset *d = tensor_set(KILN_F64, KILN_I64), *part = kiln_data_range(d, 60, 10);
    assert_true(kiln_memory_set_limit(HERE, core_memory() + 3000));
    kiln_memory_trim(HERE);
    kiln_loader *l = kiln_loader_new(part, .device = HERE, .resident = 1, .batch = 10);
    kiln_batch b;
    kiln_memory_set_limit(HERE, 0);
    assert_true(kiln_loader_next(l, &b));
    assert_true(is_thunk(b.x));
    double x[150];
    assert_true(kiln_read(b.x, x, sizeof x));
    assert_true(x[0] == 900 && x[149] == 1049);
    kiln_loader_free(l);
    kiln_data_free(part);
    kiln_data_free(d);
}

/* The device gives nothing, at any allocation: the loader works all the same, and nothing is lost. */
static void test_device_refuses(void **state)
{
    (void)state;
    kiln_sim_control_fn control = sim_switch();
    if (HERE == KILN_CPU || !control)
        skip_because("about faults of simulated devices");
    for (int64_t n = 0; n < 6; n++) {
        kiln_dataset *d = idx_set(true);
        kiln_memory_trim(HERE);
        control(0, KILN_SIM_FAIL_ALLOC, n);
        kiln_loader *a = kiln_loader_new(d, .batch = 30, .device = HERE);
        control(0, KILN_SIM_FAIL_ALLOC, -1);
        kiln_loader *b = kiln_loader_new(d, .batch = 30);
        assert_true(kiln_ok() && a && b);
        same_next(a, b, false);
        kiln_loader_free(a);
        kiln_loader_free(b);
        kiln_data_free(d);
    }
}

/* A sample that cannot be read is an error of its own batch, as always. */
static void test_bad_sample(void **state)
{
    (void)state;
    made m = {.bad = 25};
    kiln_dataset *d = made_set(&m, true);
    kiln_loader *l = kiln_loader_new(d, .batch = 10, .device = HERE);
    kiln_batch b;
    assert_true(kiln_ok() && l);
    for (int i = 0; i < 2; i++)
        assert_true(kiln_loader_next(l, &b));
    assert_false(kiln_loader_next(l, &b));
    expect_error(KILN_E_IO, "data", "sample 25 of made could not be read");
    kiln_loader_free(l);
    kiln_data_free(d);
}

/* ---- What can be done with a batch ---- */

static void test_as_any_tensor(void **state)
{
    (void)state;
    made m = {.bad = -1};
    kiln_dataset *d = made_set(&m, true);
    kiln_loader *l = kiln_loader_new(d, .batch = 2, .device = HERE);
    kiln_batch b;
    kiln_scope {
        assert_true(kiln_loader_next(l, &b)); /* 0 1 2 | 10 11 12 */
        assert_f32(b.x, 0, 1, 2, 10, 11, 12);
        assert_f32(kiln_slice(b.x, 1, 1, 2, 1), 1, 11);
        assert_f32(kiln_to(b.x, KILN_CPU), 0, 1, 2, 10, 11, 12);
        assert_f32(kiln_detach(b.x), 0, 1, 2, 10, 11, 12);
        kiln_tensor *before = kiln_add_scalar(b.x, 1);
        assert_true(kiln_assign(b.x, kiln_mul_scalar(b.x, 2)));
        assert_f32(b.x, 0, 2, 4, 20, 22, 24);
        assert_f32(before, 1, 2, 3, 11, 12, 13);

        assert_true(kiln_loader_next(l, &b)); /* 20 21 22 | 30 31 32 */
        kiln_tensor *sum = kiln_sum_all(b.x); /* recorded before a gradient was wanted */
        assert_non_null(kiln_requires_grad(b.x, true));
        assert_true(kiln_backward(kiln_sum_all(kiln_mul(b.x, b.x))));
        assert_f32(kiln_grad_of(b.x), 40, 42, 44, 60, 62, 64);
        assert_true(kiln_item(sum) == 156);

        assert_true(kiln_loader_next(l, &b)); /* 40 41 42 | 50 51 52: as if nothing had been */
        assert_false(kiln_needs_grad(b.x));
        assert_true(kiln_write(b.x, (float[]){1, 2, 3, 4, 5, 6}, 24));
        assert_f32(b.x, 1, 2, 3, 4, 5, 6);
        kiln_set_name(b.y, "labels");
        assert_true(kiln_loader_next(l, &b));
        assert_string_equal(kiln_get_name(b.y), "");
    }
    kiln_loader_free(l);
    kiln_data_free(d);
}

/* All batches are used before anything runs; each is its own. */
static void test_recorded_but_not_run(void **state)
{
    (void)state;
    made m = {.bad = -1};
    kiln_dataset *d = made_set(&m, true);
    kiln_loader *l = kiln_loader_new(d, .batch = 10, .shuffle = true, .device = HERE);
    kiln_scope {
        kiln_tensor *sums[11], *kept[11];
        kiln_batch b;
        for (int i = 0; kiln_loader_next(l, &b); i++) {
            sums[i] = kiln_sum_all(b.x);
            kept[i] = kiln_keep(kiln_slice(b.y, 0, 0, 1, 1));
        }
        for (int i = 0; i < 11; i++) {
            double expected = 0;
            for (int64_t k = 0; k < kiln_loader_batch_size(l, i); k++)
                expected += 30.0 * (double)kiln_loader_sample(l, 0, i * 10 + k) + 3;
            assert_true(kiln_item(sums[i]) == expected);
            assert_int_equal(kiln_item_i64(kept[i]), kiln_loader_sample(l, 0, i * 10));
            kiln_release(kept[i]);
        }
    }
    kiln_loader_free(l);
    kiln_data_free(d);
}

/* A step that fails takes nothing of the batch with it. */
static void test_failed_step(void **state)
{
    (void)state;
    skip_if_eager();
    made m = {.bad = -1};
    kiln_dataset *d = made_set(&m, true);
    kiln_loader *l = kiln_loader_new(d, .batch = 10, .device = HERE);
    kiln_tensor *total = kiln_keep(kiln_tensor_new(NULL, KILN_F32, 0, NULL, HERE));
    kiln_batch b;
    assert_true(kiln_loader_next(l, &b));
    kiln_step {
        kiln_assign(total, kiln_sum_all(b.x));
        kiln_fail(KILN_E_ARGUMENT, "test", "called off");
    }
    expect_error(KILN_E_ARGUMENT, "test", "called off");
    assert_true(kiln_item(total) == 0);
    assert_true(add_up(total, &b));
    double expected = 0;
    for (int i = 0; i < 10; i++)
        expected += (30.0 * i + 3) * i;
    assert_near(kiln_item(total), expected, 1e-6);
    kiln_release(total);
    kiln_loader_free(l);
    kiln_data_free(d);
}

/* What was kept of a batch outlives loader and data set. */
static void test_kept(void **state)
{
    (void)state;
    made m = {.bad = -1};
    kiln_dataset *d = made_set(&m, true);
    kiln_loader *l = kiln_loader_new(d, .batch = 2, .device = HERE);
    kiln_batch b;
    kiln_tensor *view = NULL, *again = NULL;
    assert_true(kiln_loader_next(l, &b));
    kiln_step
        view = kiln_keep(kiln_slice(b.x, 0, 1, 2, 1));
    assert_true(kiln_loader_next(l, &b));
    kiln_scope
        again = kiln_keep(kiln_reshape(b.x, KILN_SHAPE(6)));
    kiln_loader_free(l);
    kiln_data_free(d);
    assert_f32(view, 10, 11, 12);
    assert_f32(again, 20, 21, 22, 30, 31, 32);
    kiln_release(view);
    kiln_release(again);
}

/* ---- The operation ---- */

static kiln_tensor *take(kiln_tensor *data, kiln_tensor *table, kiln_dtype dtype, double position)
{
    const kiln_attrs a = {
        .nints = 10, .i = {dtype, 4, 1, 3, 0, 0, 0, 0, 2, 3}, .nfloats = 5, .f = {position}}; /* 2 of 4 samples of 3 */
    return kiln_op_one(&kiln_op_take_samples, KILN_IN(data, table), &a);
}

static void test_conversions(void **state)
{
    (void)state;
    kiln_scope {
        int32_t numbers[13];
        uint8_t bytes[13];
        float table[256];
        for (int i = 0; i < 13; i++) {
            numbers[i] = i % 2 ? -1000000 * i : INT32_MAX - i;
            bytes[i] = (uint8_t)(i * 21);
        }
        for (int i = 0; i < 256; i++)
            table[i] = (float)i / 255;
        kiln_tensor *ints = kiln_tensor_new(numbers, KILN_I32, KILN_SHAPE(13), HERE);
        kiln_tensor *small = kiln_tensor_new(bytes, KILN_U8, KILN_SHAPE(13), HERE);
        kiln_tensor *numbers_of = kiln_tensor_new(table, KILN_F32, KILN_SHAPE(256), HERE);
        int64_t got[6];
        assert_true(kiln_read(take(ints, NULL, KILN_I64, 1), got, sizeof got));
        for (int i = 0; i < 6; i++)
            assert_int_equal(got[i], numbers[4 + i]);
        assert_true(kiln_read(take(small, NULL, KILN_I64, 2), got, sizeof got));
        for (int i = 0; i < 6; i++)
            assert_int_equal(got[i], bytes[7 + i]);
        const float *floats = core_f32(take(small, numbers_of, KILN_F32, 0));
        for (int i = 0; i < 6; i++)
            assert_true(floats[i] == table[bytes[1 + i]]);
        assert_null(take(ints, NULL, KILN_F32, 0));
        expect_error(KILN_E_ARGUMENT, "take_samples", "stored in i32 cannot be taken in f32");
        assert_null(take(ints, numbers_of, KILN_F32, 0));
        expect_error(KILN_E_ARGUMENT, "take_samples", "a table turns u8 into f32");
        assert_null(take(small, ints, KILN_F32, 0));
        expect_error(KILN_E_DTYPE, "take_samples", NULL);
        assert_null(take(kiln_slice(small, 0, 0, 12, 1), NULL, KILN_I64, 0));
        expect_error(KILN_E_ARGUMENT, "take_samples", "outside the storage");
        assert_true(kiln_read(take(small, NULL, KILN_I64, 1e9), got, sizeof got)); /* the last sample, at worst */
        assert_int_equal(got[5], bytes[12]);
    }
}

/* ---- Threads ---- */

typedef struct visit {
    kiln_dataset *data;
    kiln_device device;
    const kiln_batch *batch;
    double sum;
} visit;

static void *sum_an_epoch(void *context)
{
    visit *v = context;
    kiln_batch b;
    kiln_loader *l = kiln_loader_new(v->data, .batch = 10, .shuffle = true, .device = v->device);
    while (l && kiln_loader_next(l, &b))
        kiln_scope
            v->sum += kiln_item(kiln_sum_all(b.x));
    kiln_loader_free(l);
    return NULL;
}

static void *sum_a_batch(void *context)
{
    visit *v = context;
    for (int i = 0; i < 20; i++)
        kiln_scope
            v->sum = kiln_item(kiln_sum_all(v->batch->x)) + (double)kiln_size(v->batch->y, 0);
    return NULL;
}

static void both_do(void *(*work)(void *), visit *v)
{
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, work, &v[i]), 0);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
}

/* The first loaders of a set, made at the same time, and one batch used in two threads. */
static void test_two_threads(void **state)
{
    (void)state;
    made m = {.bad = -1};
    kiln_dataset *d = made_set(&m, true);
    visit v[2] = {{.data = d, .device = HERE}, {.data = d, .device = HERE}};
    both_do(sum_an_epoch, v);
    double all = 0;
    for (int i = 0; i < SAMPLES; i++)
        all += 30.0 * i + 3;
    assert_true(v[0].sum == all && v[1].sum == all);
    if (HERE != KILN_CPU)
        assert_int_equal(m.reads, SAMPLES);
    kiln_loader *l = kiln_loader_new(d, .batch = 10, .device = HERE);
    kiln_batch b;
    assert_true(kiln_loader_next(l, &b));
    v[0].batch = v[1].batch = &b;
    both_do(sum_a_batch, v);
    assert_true(v[0].sum == 1390 && v[1].sum == 1390);
    kiln_loader_free(l);
    kiln_data_free(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        core_test(test_tensors),         files_test(test_idx),
        files_test(test_text),           core_test(test_digits),
        core_test(test_generators),      files_test(test_one_copy),
        core_test(test_one_plan),        core_test(test_batches_are_reused),
        core_test(test_no_room),         core_test(test_range_alone),
        files_test(test_device_refuses), core_test(test_bad_sample),
        core_test(test_as_any_tensor),   core_test(test_recorded_but_not_run),
        core_test(test_failed_step),     core_test(test_kept),
        core_test(test_conversions),     core_test(test_two_threads),
    };
    return CORE_MAIN(tests);
}
