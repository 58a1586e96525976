/* The loader: the order of samples, the same batches for any number of workers, seeking, errors met by workers, batches
 * that are still needed when the next one comes, and workers that are stopped at any moment. */
#include <unistd.h>
#include "support/train.h"
#include "support/core.h"
#include "core/alloc.h"
#include "core/order.h"

/* ---- The order ---- */

static int64_t sample_at(int64_t n, uint64_t seed, int64_t epoch, int64_t position)
{
    kiln_order order;
    kiln_order_init(&order, n, true, seed, epoch);
    return kiln_order_at(&order, position);
}

static void test_order_is_a_permutation(void **state)
{
    (void)state;
    static bool seen[70000];
    for (int64_t n = 1; n <= 66000; n = n < 300 ? n + 1 : n * 2 - n % 3)
        for (int64_t epoch = 0; epoch < (n < 300 ? 20 : 3); epoch++) {
            kiln_order order;
            kiln_order_init(&order, n, true, (uint64_t)n * 77, epoch);
            memset(seen, 0, sizeof seen);
            for (int64_t i = 0; i < n; i++) {
                int64_t s = kiln_order_at(&order, i);
                if (s < 0 || s >= n || seen[s])
                    fail_msg("n %lld, epoch %lld: %lld comes twice", (long long)n, (long long)epoch, (long long)s);
                seen[s] = true;
            }
        }
    for (int64_t i = 0; i < 100; i++) { /* the largest sets have an order, too */
        int64_t n = INT64_MAX - i, s = sample_at(n, 1, i, n - 1 - i);
        assert_true(s >= 0 && s < n);
    }
}

/* How far counts are from being equal, in deviations of what chance gives. */
static double unevenness(const int *counts, int cells, double expected, double freedom)
{
    double chi = 0;
    for (int i = 0; i < cells; i++)
        chi += (counts[i] - expected) * (counts[i] - expected) / expected;
    return (chi - freedom) / sqrt(2 * freedom);
}

/* Each sample stands at each place equally often, over epochs and over seeds. */
static void test_order_is_even(void **state)
{
    (void)state;
    enum { N = 50, TIMES = 4000 };
    static int counts[2][N * N];
    memset(counts, 0, sizeof counts);
    for (int t = 0; t < TIMES; t++)
        for (int i = 0; i < N; i++) {
            counts[0][i * N + (int)sample_at(N, 5, t, i)]++;
            counts[1][i * N + (int)sample_at(N, (uint64_t)t << (t % 40), 0, i)]++;
        }
    for (int k = 0; k < 2; k++)
        assert_true(fabs(unevenness(counts[k], N * N, (double)TIMES / N, (N - 1) * (N - 1))) < 4);
}

/* All 24 orders of four samples (a power of two, where nothing is sent through again), all 120 of five. */
static void test_all_orders_occur(void **state)
{
    (void)state;
    enum { TIMES = 24000 };
    for (int n = 4; n <= 5; n++) {
        int counts[3125] = {0}, orders = n == 4 ? 24 : 120, found[120], next = 0;
        for (int t = 0; t < TIMES; t++) {
            int code = 0;
            for (int i = 0; i < n; i++)
                code = code * n + (int)sample_at(n, 3, t, i);
            counts[code]++;
        }
        for (int i = 0; i < 3125; i++)
            if (counts[i]) {
                assert_true(next < orders);
                found[next++] = counts[i];
            }
        assert_int_equal(next, orders);
        assert_true(fabs(unevenness(found, orders, (double)TIMES / orders, orders - 1)) < 4);
    }
}

/* Neighbours do not stay neighbours: a pair (i, i+1) is followed by ±1 as often as chance has it, twice an epoch. */
static void test_order_scatters_neighbours(void **state)
{
    (void)state;
    enum { N = 1000, TIMES = 500 };
    int neighbours = 0, same = 0;
    for (int t = 0; t < TIMES; t++) {
        kiln_order now, next;
        kiln_order_init(&now, N, true, 11, t);
        kiln_order_init(&next, N, true, 11, t + 1);
        for (int i = 0; i + 1 < N; i++) {
            neighbours += llabs(kiln_order_at(&now, i) - kiln_order_at(&now, i + 1)) == 1;
            same += kiln_order_at(&now, i) == kiln_order_at(&next, i);
        }
    }
    assert_true(fabs(neighbours - 2.0 * TIMES) < 5 * sqrt(2.0 * TIMES));
    assert_true(fabs(same - 1.0 * TIMES) < 5 * sqrt(1.0 * TIMES));
}

/* ---- A set whose samples tell their number ---- */

typedef struct numbers {
    _Atomic int64_t bad; /* a sample that cannot be read; -1: none */
    int64_t bad_label;
    int slow; /* microseconds a sample takes at most */
} numbers;

enum { COUNT = 103, WIDTH = 3 };

static bool read_number(void *context, int64_t index, void *x, void *y)
{
    const numbers *n = context;
    if (n->slow)
        usleep((unsigned)((index * 7919) % n->slow));
    for (int i = 0; i < WIDTH; i++)
        ((float *)x)[i] = (float)(index * 10 + i);
    *(int64_t *)y = index == n->bad_label ? COUNT : index;
    return index != n->bad;
}

static kiln_dataset *number_set(numbers *n)
{
    return kiln_data_generator((kiln_data_info){.name = "numbers",
                                                .count = COUNT,
                                                .classes = COUNT,
                                                .x = {.dtype = KILN_F32, .ndim = 1, .shape = {WIDTH}},
                                                .y.dtype = KILN_I64},
                               read_number, n);
}

static numbers fine = {.bad = -1, .bad_label = -1};

/* The batch holds exactly the samples that kiln_loader_sample names, in their order. */
static void check_batch(const kiln_loader *l, const kiln_batch *b, int64_t epoch, int64_t index, int64_t batch)
{
    float x[COUNT * WIDTH];
    int64_t y[COUNT];
    assert_int_equal(b->epoch, epoch);
    assert_int_equal(b->index, index);
    assert_int_equal(b->size, kiln_loader_batch_size(l, index));
    assert_int_equal(kiln_size(b->x, 0), b->size);
    assert_int_equal(kiln_size(b->x, 1), WIDTH);
    assert_int_equal(kiln_ndim(b->y), 1);
    assert_int_equal(kiln_device_of(b->x), kiln_default_device());
    assert_true(kiln_read(b->x, x, (size_t)b->size * WIDTH * sizeof *x));
    assert_true(kiln_read(b->y, y, (size_t)b->size * sizeof *y));
    for (int64_t i = 0; i < b->size; i++) {
        int64_t sample = kiln_loader_sample(l, epoch, index * batch + i);
        assert_int_equal(y[i], sample);
        for (int k = 0; k < WIDTH; k++)
            assert_true(x[i * WIDTH + k] == (float)(sample * 10 + k));
    }
}

static const int worker_counts[] = {0, 1, 2, 5};
#define EACH_WORKERS(w) for (int i_##w = 0, w; i_##w < 4 && (w = worker_counts[i_##w], true); i_##w++)

#define LOADER(...) kiln_loader_new(__VA_ARGS__, .device = kiln_default_device())

static void test_same_batches_for_any_workers(void **state)
{
    (void)state;
    kiln_dataset *d = number_set(&fine);
    EACH_WORKERS(w)
    for (int prefetch = 0; prefetch <= 3; prefetch++) {
        kiln_loader *l = LOADER(d, .batch = 10, .shuffle = true, .seed = 9, .workers = w, .prefetch = prefetch);
        kiln_batch b;
        assert_int_equal(kiln_loader_batches(l), 11);
        for (int64_t epoch = 0; epoch < 3; epoch++) {
            for (int64_t i = 0; i < 11; i++) {
                assert_true(kiln_loader_next(l, &b));
                check_batch(l, &b, epoch, i, 10);
            }
            assert_false(kiln_loader_next(l, &b));
            assert_true(kiln_ok());
            assert_null(b.x);
        }
        kiln_loader_free(l);
    }
    kiln_data_free(d);
}

static void test_order_of_a_loader(void **state)
{
    (void)state;
    kiln_dataset *d = number_set(&fine);
    kiln_loader *plain = LOADER(d, .batch = 8), *a = LOADER(d, .batch = 8, .shuffle = true, .seed = 1),
                *b = LOADER(d, .batch = 50, .shuffle = true, .seed = 1, .workers = 1),
                *c = LOADER(d, .batch = 8, .shuffle = true, .seed = 2);
    int by_epoch = 0, by_seed = 0;
    for (int64_t i = 0; i < COUNT; i++) {
        assert_int_equal(kiln_loader_sample(plain, 3, i), i);
        assert_int_equal(kiln_loader_sample(a, 3, i), kiln_loader_sample(b, 3, i));
        by_epoch += kiln_loader_sample(a, 3, i) != kiln_loader_sample(a, 4, i);
        by_seed += kiln_loader_sample(a, 3, i) != kiln_loader_sample(c, 3, i);
    }
    assert_true(by_epoch > COUNT / 2 && by_seed > COUNT / 2);
    static const int64_t nowhere[][2] = {{0, -1}, {0, COUNT}, {-1, 0}};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(kiln_loader_sample(a, nowhere[i][0], nowhere[i][1]), -1);
        expect_error(KILN_E_ARGUMENT, "loader_sample", "there is no place");
    }
    kiln_loader_free(plain);
    kiln_loader_free(a);
    kiln_loader_free(b);
    kiln_loader_free(c);
    kiln_data_free(d);
}

static void test_last_batch(void **state)
{
    (void)state;
    kiln_dataset *d = number_set(&fine);
    kiln_batch b;
    EACH_WORKERS(w)
    {
        kiln_loader *l = LOADER(d, .batch = 40, .workers = w);
        assert_int_equal(kiln_loader_batches(l), 3);
        assert_int_equal(kiln_loader_batch_size(l, 1), 40);
        assert_int_equal(kiln_loader_batch_size(l, 2), 23);
        assert_int_equal(kiln_loader_batch_size(l, 3), 0);
        assert_int_equal(kiln_loader_batch_size(l, -1), 0);
        while (kiln_loader_next(l, &b))
            check_batch(l, &b, 0, b.index, 40);
        kiln_loader_free(l);
        l = LOADER(d, .batch = 40, .workers = w, .drop_last = true);
        assert_int_equal(kiln_loader_batches(l), 2);
        int batches = 0;
        while (kiln_loader_next(l, &b))
            batches += b.size == 40;
        assert_int_equal(batches, 2);
        kiln_loader_free(l);
        l = LOADER(d, .batch = COUNT, .workers = w);
        assert_true(kiln_loader_next(l, &b));
        check_batch(l, &b, 0, 0, COUNT);
        assert_false(kiln_loader_next(l, &b));
        kiln_loader_free(l);
    }
    kiln_data_free(d);
}

static void test_seek(void **state)
{
    (void)state;
    kiln_dataset *d = number_set(&fine);
    static const int64_t places[][2] = {{0, 4}, {0, 0}, {7, 10}, {7, 3}, {7, 4}, {2, 0}, {1000000000000, 5}, {0, 1}};
    EACH_WORKERS(w)
    {
        kiln_loader *l = LOADER(d, .batch = 10, .shuffle = true, .seed = 4, .workers = w);
        kiln_batch b;
        for (size_t p = 0; p < sizeof places / sizeof *places; p++) {
            int64_t epoch = places[p][0], index = places[p][1];
            assert_true(kiln_loader_seek(l, epoch, index));
            for (int64_t i = 0; i < 3 && index + i < 11; i++) {
                assert_true(kiln_loader_next(l, &b));
                check_batch(l, &b, epoch, index + i, 10);
            }
            assert_true(kiln_loader_seek(l, b.epoch, b.index + 1)); /* where it stands */
        }
        assert_true(kiln_loader_seek(l, 3, 11)); /* the end of an epoch */
        assert_false(kiln_loader_next(l, &b));
        assert_true(kiln_loader_next(l, &b));
        check_batch(l, &b, 4, 0, 10);
        assert_false(kiln_loader_seek(l, 0, 12));
        expect_error(KILN_E_ARGUMENT, "loader_seek", "no batch 12 of epoch 0: an epoch has 11");
        assert_false(kiln_loader_seek(l, -1, 0));
        expect_error(KILN_E_ARGUMENT, "loader_seek", NULL);
        assert_true(kiln_loader_next(l, &b)); /* not disturbed */
        check_batch(l, &b, 4, 1, 10);
        kiln_loader_free(l);
    }
    kiln_data_free(d);
}

/* ---- Errors ---- */

static void test_bad_sample(void **state)
{
    (void)state;
    EACH_WORKERS(w)
    {
        numbers n = {.bad = 25, .bad_label = 61};
        kiln_dataset *d = number_set(&n);
        kiln_loader *l = LOADER(d, .batch = 10, .workers = w);
        kiln_batch b;
        for (int64_t i = 0; i < 2; i++) {
            assert_true(kiln_loader_next(l, &b));
            check_batch(l, &b, 0, i, 10);
        }
        for (int again = 0; again < 2; again++) {
            assert_false(kiln_loader_next(l, &b));
            expect_error(KILN_E_IO, "data", "sample 25 of numbers could not be read");
        }
        assert_true(kiln_loader_seek(l, 0, 3));
        for (int64_t i = 3; i < 6; i++) {
            assert_true(kiln_loader_next(l, &b));
            check_batch(l, &b, 0, i, 10);
        }
        assert_false(kiln_loader_next(l, &b));
        expect_error(KILN_E_INDEX, "data", "sample 61 of numbers: its label 103 is none of the 103 classes");
        kiln_loader_free(l); /* with a batch that failed */
        kiln_data_free(d);
    }
}

/* What could not be read at one time is read at another. */
static void test_sample_recovers(void **state)
{
    (void)state;
    EACH_WORKERS(w)
    {
        numbers n = {.bad = 3, .bad_label = -1};
        kiln_dataset *d = number_set(&n);
        kiln_loader *l = LOADER(d, .batch = 10, .workers = w);
        kiln_batch b;
        assert_false(kiln_loader_next(l, &b));
        expect_error(KILN_E_IO, "data", "sample 3");
        n.bad = -1;
        for (int64_t i = 0; i < 11; i++) {
            assert_true(kiln_loader_next(l, &b));
            check_batch(l, &b, 0, i, 10);
        }
        kiln_loader_free(l);
        kiln_data_free(d);
    }
}

static void test_refused(void **state)
{
    (void)state;
    kiln_dataset *d = number_set(&fine);
    kiln_batch b;
    assert_null(kiln_loader_new(NULL));
    expect_error(KILN_E_ARGUMENT, "loader_new", "NULL");
    assert_null(kiln_loader_new(d, .batch = COUNT + 1));
    expect_error(KILN_E_ARGUMENT, "loader_new", "a batch of 104 samples is more than numbers has: 103");
    assert_null(kiln_loader_new(d, .batch = -1));
    expect_error(KILN_E_ARGUMENT, "loader_new", "-1");
    assert_null(kiln_loader_new(d, .workers = -1));
    expect_error(KILN_E_ARGUMENT, "loader_new", "workers");
    assert_null(kiln_loader_new(d, .workers = 1000));
    expect_error(KILN_E_ARGUMENT, "loader_new", "workers");
    assert_null(kiln_loader_new(d, .workers = 1, .prefetch = -1));
    expect_error(KILN_E_ARGUMENT, "loader_new", "ahead");
    assert_null(kiln_loader_new(d, .device = KILN_NO_DEVICE));
    expect_error(KILN_E_DEVICE, NULL, NULL);
    assert_false(kiln_loader_next(NULL, &b));
    expect_error(KILN_E_ARGUMENT, "loader_next", "operand 1");
    assert_false(kiln_loader_seek(NULL, 0, 0));
    expect_error(KILN_E_ARGUMENT, "loader_seek", "NULL");
    kiln_loader *l = LOADER(d);
    assert_int_equal(kiln_loader_batch_size(l, 0), 32);
    assert_false(kiln_loader_next(l, NULL));
    expect_error(KILN_E_ARGUMENT, "loader_next", "operand 2");
    kiln_loader_free(l);
    kiln_loader_free(NULL);
    assert_int_equal(kiln_loader_batches(NULL), 0);
    expect_error(KILN_E_ARGUMENT, "loader_batches", "NULL");
    kiln_dataset *few = kiln_data_range(d, 0, 7);
    l = LOADER(few); /* the default gives way */
    assert_int_equal(kiln_loader_batch_size(l, 0), 7);
    kiln_loader_free(l);
    kiln_data_free(few);
    kiln_data_free(d);
}

/* A batch larger than any memory is refused before memory is taken. */
static void test_huge_batches(void **state)
{
    (void)state;
    kiln_dataset *d = kiln_data_generator((kiln_data_info){.count = INT64_MAX,
                                                           .x = {.dtype = KILN_F32, .ndim = 1, .shape = {1 << 30}},
                                                           .y.dtype = KILN_DTYPES},
                                          read_number, &fine);
    assert_null(LOADER(d, .batch = INT64_MAX));
    expect_error(KILN_E_MEMORY, "loader_new", "does not fit into memory");
    kiln_data_free(d);
}

/* ---- Memory ---- */

static bool run_epoch(int workers, double resident)
{
    kiln_batch b;
    bool ok = true;
    kiln_dataset *d = kiln_data_digits(.count = 30); /* it may keep a copy on the device */
    kiln_loader *l = d ? LOADER(d, .batch = 8, .workers = workers, .resident = resident) : NULL;
    while (l && kiln_loader_next(l, &b))
        ok &= b.size > 0;
    kiln_loader_free(l);
    kiln_data_free(d);
    return ok && kiln_ok();
}

static void test_allocations_fail(void **state)
{
    (void)state;
    for (int round = 0; round < 4; round++) {
        uint64_t used = core_memory();
        bool ok = false;
        for (int64_t n = 0; !ok || n < 30; n++) { /* a set that does not get onto the device is no error */
            assert_true(n < 1000);
            kiln_memory_trim(kiln_default_device());
            kiln_alloc_fail_after(n);
            ok = run_epoch(round / 2 * 2, round % 2 ? -1 : 0);
            kiln_alloc_fail_after(-1);
            if (!ok)
                expect_error(KILN_E_MEMORY, NULL, NULL);
            assert_int_equal(core_memory(), used);
        }
    }
}

/* After the first batches nothing is allocated any more, on the host or on the device. */
static void test_steady_memory(void **state)
{
    (void)state;
    kiln_dataset *d = kiln_data_digits(.count = 512);
    for (int round = 0; round < 6; round++) {
        kiln_loader *l = LOADER(d, .batch = 16, .shuffle = true, .workers = round / 2, .resident = round % 2 ? -1 : 0);
        kiln_batch b;
        kiln_memory_stats before, after;
        for (int i = 0; i < 6; i++)
            assert_true(kiln_loader_next(l, &b));
        uint64_t allocations = kiln_alloc_count();
        assert_true(kiln_memory_get_stats(kiln_default_device(), &before));
        while (kiln_loader_next(l, &b))
            assert_int_equal(b.size, 16);
        assert_true(kiln_loader_next(l, &b));
        assert_true(kiln_memory_get_stats(kiln_default_device(), &after));
        assert_int_equal(after.in_use, before.in_use);
        assert_int_equal(after.allocations, before.allocations);
        if (kiln_default_device() == KILN_CPU) /* a queue of copies may grow */
            assert_int_equal(kiln_alloc_count(), allocations);
        kiln_loader_free(l);
    }
    kiln_data_free(d);
}

/* ---- Batches that are still needed ---- */

/* Sums of all batches are recorded and computed at the very end: each must have seen its own batch. */
static void test_recorded_but_not_run(void **state)
{
    (void)state;
    kiln_dataset *d = number_set(&fine);
    for (int workers = 0; workers <= 2; workers += 2)
        kiln_scope {
            kiln_loader *l = LOADER(d, .batch = 10, .shuffle = true, .workers = workers);
            kiln_tensor *sums[11], *first_rows[11];
            double expected[11] = {0};
            kiln_batch b;
            for (int i = 0; kiln_loader_next(l, &b); i++) {
                sums[i] = kiln_sum_all(b.x);
                first_rows[i] = kiln_slice(b.x, 0, 0, 1, 1);
                for (int64_t k = 0; k < b.size; k++)
                    expected[i] += 30.0 * (double)kiln_loader_sample(l, 0, i * 10 + k) + 3;
            }
            for (int i = 0; i < 11; i++) {
                assert_true(kiln_item(sums[i]) == expected[i]);
                assert_true(core_f32(first_rows[i])[0] == (float)(10 * kiln_loader_sample(l, 0, i * 10)));
            }
            kiln_loader_free(l);
        }
    kiln_data_free(d);
}

/* Steps that the device has not run yet when the loader goes on: the simulator is made slow. */
static void test_steps_run_behind(void **state)
{
    (void)state;
    kiln_sim_control_fn control = sim_switch();
    kiln_dataset *d = number_set(&fine);
    for (int workers = 0; workers <= 2; workers += 2) {
        kiln_loader *l = LOADER(d, .batch = 10, .shuffle = true, .seed = 3, .workers = workers);
        kiln_tensor *total = kiln_keep(kiln_tensor_new(NULL, KILN_F32, KILN_SHAPE(WIDTH), kiln_default_device()));
        kiln_tensor *trail = kiln_keep(kiln_tensor_new(NULL, KILN_F32, KILN_SHAPE(WIDTH), kiln_default_device()));
        float sum[WIDTH] = {0}, chain[WIDTH] = {0};
        kiln_batch b;
        if (control)
            control(0, KILN_SIM_SLOW_RUNS, 2000);
        for (int epoch = 0; epoch < 2; epoch++)
            while (kiln_loader_next(l, &b)) {
                kiln_step {
                    kiln_tensor *s = kiln_sum(b.x, KILN_DIMS(0), false);
                    assert_true(kiln_assign(total, kiln_add(total, s)));
                    assert_true(kiln_assign(trail, kiln_add(kiln_mul_scalar(trail, 0.5), s))); /* in this order */
                }
                for (int k = 0; k < WIDTH; k++) {
                    float batch = 0;
                    for (int64_t i = 0; i < b.size; i++)
                        batch += (float)(10 * kiln_loader_sample(l, epoch, b.index * 10 + i) + k);
                    sum[k] += batch;
                    chain[k] = chain[k] * 0.5f + batch;
                }
            }
        assert_memory_equal(core_f32(total), sum, sizeof sum); /* whole numbers: exact */
        for (int k = 0; k < WIDTH; k++)
            assert_near(core_f32(trail)[k], chain[k], 1e-6);
        if (control)
            control(0, KILN_SIM_SLOW_RUNS, 0);
        kiln_loader_free(l);
        kiln_release(total);
        kiln_release(trail);
    }
    kiln_data_free(d);
}

/* A batch belongs to the loader, whatever scope it was asked for in, and outlives the loader where it is kept. */
static void test_scopes(void **state)
{
    (void)state;
    kiln_dataset *d = number_set(&fine);
    kiln_loader *l = LOADER(d, .batch = 10);
    kiln_batch b;
    kiln_tensor *kept = NULL;
    kiln_scope
        assert_true(kiln_loader_next(l, &b));
    check_batch(l, &b, 0, 0, 10);
    kiln_step {
        assert_true(kiln_loader_next(l, &b));
        kept = kiln_keep(kiln_slice(b.x, 0, 9, 10, 1));
    }
    kiln_loader_free(l);
    kiln_data_free(d);
    assert_f32(kept, 190, 191, 192);
    kiln_release(kept);
}

/* ---- Stopping ---- */

/* Seeks and ends at any moment, with samples that take their time: none hangs, none mixes up batches. */
static void test_stopped_at_any_moment(void **state)
{
    (void)state;
    uint32_t r = 12345;
    for (int round = 0; round < 60; round++) {
        numbers n = {.bad = round % 3 ? -1 : round, .bad_label = -1, .slow = round % 4 * 40 + 1};
        kiln_dataset *d = number_set(&n);
        kiln_loader *l = LOADER(d, .batch = 5, .shuffle = round % 2, .seed = (uint64_t)round, .workers = 1 + round % 4,
                                .prefetch = round % 5);
        for (int act = 0; act < 12; act++) {
            r = r * 1664525u + 1013904223u;
            if (r >> 28 < 5) {
                int64_t epoch = r >> 8 & 3, index = (r >> 12) % 21;
                assert_true(kiln_loader_seek(l, epoch, index));
            } else if (r >> 28 < 7)
                usleep(r >> 8 & 511);
            else {
                kiln_batch b;
                if (kiln_loader_next(l, &b))
                    check_batch(l, &b, b.epoch, b.index, 5);
                else if (!kiln_ok())
                    expect_error(KILN_E_IO, "data", "of numbers could not be read");
            }
        }
        kiln_loader_free(l);
        kiln_data_free(d);
    }
}

static void test_waited(void **state)
{
    (void)state;
    for (int workers = 0; workers <= 1; workers++) {
        numbers n = {.bad = -1, .bad_label = -1, .slow = 300};
        kiln_dataset *d = number_set(&n);
        kiln_loader *l = LOADER(d, .batch = 20, .workers = workers);
        kiln_batch b;
        assert_true(kiln_loader_waited(l) == 0);
        double last = 0;
        assert_true(kiln_loader_next(l, &b)); /* nothing was prepared ahead of it */
        assert_true(kiln_loader_waited(l) > last);
        last = kiln_loader_waited(l);
        while (kiln_loader_next(l, &b)) {
            assert_true(kiln_loader_waited(l) >= last);
            last = kiln_loader_waited(l);
        }
        kiln_loader_free(l);
        kiln_data_free(d);
    }
    assert_true(kiln_loader_waited(NULL) == 0);
    expect_error(KILN_E_ARGUMENT, "loader_waited", "NULL");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        core_test(test_order_is_a_permutation),
        core_test(test_order_is_even),
        core_test(test_all_orders_occur),
        core_test(test_order_scatters_neighbours),
        core_test(test_same_batches_for_any_workers),
        core_test(test_order_of_a_loader),
        core_test(test_last_batch),
        core_test(test_seek),
        core_test(test_bad_sample),
        core_test(test_sample_recovers),
        core_test(test_refused),
        core_test(test_huge_batches),
        core_test(test_allocations_fail),
        core_test(test_steady_memory),
        core_test(test_recorded_but_not_run),
        core_test(test_steps_run_behind),
        core_test(test_scopes),
        core_test(test_stopped_at_any_moment),
        core_test(test_waited),
    };
    return CORE_MAIN(tests);
}
