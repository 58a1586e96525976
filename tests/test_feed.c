/* Batches that are copied to the device one by one, beside the steps: right values whatever is slow, few addresses,
 * batches that are held on to, and little memory. On the CPU, which needs no copies, the same tests hold. */
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>
#include "support/core.h"
#include "support/devices.h"
#include "support/train.h"
#include "data/feed.h"

enum { COUNT = 103, WIDTH = 5, BATCH = 10, BATCHES = 11 };

static bool read_number(void *context, int64_t index, void *x, void *y)
{
    const int *slow = context;
    if (slow && *slow)
        usleep((unsigned)((index * 7919) % *slow));
    for (int i = 0; i < WIDTH; i++)
        ((float *)x)[i] = (float)(index * 10 + i);
    if (y)
        *(int64_t *)y = index;
    return true;
}

static kiln_dataset *number_set(int *slow, bool targets)
{
    return kiln_data_generator((kiln_data_info){.name = "numbers",
                                                .count = COUNT,
                                                .x = {.dtype = KILN_F32, .ndim = 1, .shape = {WIDTH}},
                                                .y.dtype = targets ? KILN_I64 : KILN_DTYPES},
                               read_number, slow);
}

#define LOADER(...) kiln_loader_new(__VA_ARGS__, .batch = BATCH, .device = kiln_default_device())

/* What a batch of the epoch adds up to. */
static double sum_of(const kiln_loader *l, int64_t epoch, int64_t index)
{
    double sum = 0;
    for (int64_t i = 0; i < kiln_loader_batch_size(l, index); i++)
        sum += 50.0 * (double)kiln_loader_sample(l, epoch, index * BATCH + i) + 10;
    return sum;
}

/* A total over epochs, each step in place: any batch that comes too early or too late shows. */
static void check_total(kiln_loader *l, bool targets)
{
    kiln_tensor *total = kiln_keep(kiln_tensor_new(NULL, KILN_F32, 0, NULL, kiln_default_device()));
    double expected = 0;
    kiln_batch b;
    for (int64_t epoch = 0; epoch < 2; epoch++)
        while (kiln_loader_next(l, &b)) {
            assert_true(!b.y == !targets);
            kiln_step {
                kiln_tensor *sum = kiln_sum_all(b.x);
                if (b.y)
                    sum = kiln_add(sum, kiln_sum_all(kiln_cast(b.y, KILN_F32)));
                kiln_assign(total, kiln_add(kiln_mul_scalar(total, 0.5), sum));
            }
            double now = sum_of(l, epoch, b.index);
            if (targets)
                now += (now - 10 * (double)b.size) / 50;
            expected = (float)(0.5 * expected + now);
        }
    assert_true(kiln_ok());
    assert_near(kiln_item(total), expected, 1e-6);
    kiln_release(total);
}

/* Samples, copies and steps that take their time, in all combinations. */
static void test_slow_parts(void **state)
{
    (void)state;
    kiln_sim_control_fn control = sim_switch();
    for (int kind = 0; kind < 16; kind++) {
        int slow = kind & 1 ? 300 : 0;
        kiln_dataset *d = number_set(&slow, kind != 5);
        kiln_loader *l = LOADER(d, .shuffle = true, .seed = 3, .workers = kind >> 3 ? 2 : 0, .prefetch = kind & 3);
        if (control) {
            control(0, KILN_SIM_SLOW_COPIES, kind & 2 ? 700 : 0);
            control(0, KILN_SIM_SLOW_RUNS, kind & 4 ? 700 : 0);
        }
        check_total(l, kind != 5);
        if (control) {
            control(0, KILN_SIM_SLOW_COPIES, 0);
            control(0, KILN_SIM_SLOW_RUNS, 0);
        }
        kiln_loader_free(l);
        kiln_data_free(d);
    }
}

/* A step that is captured for the addresses it sees meets few of them. */
static void test_few_addresses(void **state)
{
    (void)state;
    if (kiln_default_device() == KILN_CPU)
        skip_because("about devices that copies go to");
    kiln_dataset *d = number_set(NULL, true);
    for (int workers = 0; workers <= 2; workers++) {
        kiln_loader *l = LOADER(d, .workers = workers);
        kiln_address seen[64];
        int n = 0;
        kiln_batch b;
        for (int epoch = 0; epoch < 4; epoch++)
            while (kiln_loader_next(l, &b)) {
                int i = 0;
                while (i < n && seen[i] != b.x->storage->address)
                    i++;
                if (i == n)
                    seen[n++] = b.x->storage->address;
                kiln_step
                    assert_non_null(kiln_sum_all(b.x));
            }
        assert_true(n <= KILN_FEED_BUFFERS);
        kiln_loader_free(l);
    }
    kiln_data_free(d);
}

/* Whoever keeps a batch, or a part of it, keeps what it was. */
static void test_kept_batches(void **state)
{
    (void)state;
    kiln_dataset *d = number_set(NULL, true);
    for (int workers = 0; workers <= 2; workers += 2) {
        kiln_loader *l = LOADER(d, .shuffle = true, .workers = workers);
        kiln_tensor *kept[BATCHES];
        kiln_batch b;
        while (kiln_loader_next(l, &b))
            kiln_scope
                kept[b.index] = kiln_keep(b.index % 2 ? kiln_slice(b.x, 0, 0, 2, 1) : kiln_mul_scalar(b.x, 2));
        kiln_loader_free(l);
        l = LOADER(d, .shuffle = true);
        for (int64_t i = 0; i < BATCHES; i++) {
            assert_true(core_f32(kept[i])[0] == (float)(kiln_loader_sample(l, 0, i * BATCH) * (i % 2 ? 10 : 20)));
            kiln_release(kept[i]);
        }
        kiln_loader_free(l);
    }
    kiln_data_free(d);
}

/* A batch that was changed in place is gone with its turn. */
static void test_changed_batches(void **state)
{
    (void)state;
    kiln_dataset *d = number_set(NULL, true);
    kiln_loader *l = LOADER(d, .workers = 1);
    kiln_batch b;
    for (int epoch = 0; epoch < 2; epoch++)
        while (kiln_loader_next(l, &b)) {
            kiln_scope
                assert_true(kiln_item(kiln_sum_all(b.x)) == sum_of(l, epoch, b.index));
            kiln_step
                kiln_assign(b.x, kiln_zeros_like(b.x));
        }
    assert_true(kiln_ok());
    kiln_loader_free(l);
    kiln_data_free(d);
}

/* Room for fewer buffers than it likes to have: slower, and as right. */
static void test_little_memory(void **state)
{
    (void)state;
    if (kiln_default_device() == KILN_CPU || !has_cpu_bits(kiln_default_device()))
        skip_because("about limits to the byte: the CPU copies nothing, a GPU's memory comes in larger pieces");
    kiln_dataset *d = number_set(NULL, true);
    kiln_loader *l = LOADER(d, .workers = 2, .shuffle = true);
    kiln_memory_trim(kiln_default_device());
    assert_true(kiln_memory_set_limit(kiln_default_device(), core_memory() + 900));
    kiln_batch b;
    while (kiln_loader_next(l, &b)) {
        const float *x = core_f32(b.x);
        for (int64_t i = 0; i < b.size; i++)
            assert_true(x[i * WIDTH] == (float)(10 * kiln_loader_sample(l, 0, b.index * BATCH + i)));
    }
    assert_true(kiln_ok());
    kiln_loader_free(l);
    kiln_memory_set_limit(kiln_default_device(), 0);
    kiln_data_free(d);
}

/* Away in the middle, with copies on their way. */
static void test_left_early(void **state)
{
    (void)state;
    kiln_sim_control_fn control = sim_switch();
    kiln_dataset *d = number_set(NULL, true);
    for (int round = 0; round < 20; round++) {
        kiln_loader *l = LOADER(d, .workers = 1 + round % 2, .prefetch = round % 4);
        kiln_batch b;
        if (control)
            control(0, KILN_SIM_SLOW_COPIES, round % 3 * 400);
        for (int i = 0; i < round % 5; i++)
            assert_true(kiln_loader_next(l, &b));
        assert_true(kiln_loader_seek(l, 3, round % 7) && kiln_loader_next(l, &b));
        kiln_scope
            assert_true(kiln_item(kiln_sum_all(b.x)) == sum_of(l, 3, round % 7));
        kiln_loader_free(l);
    }
    if (control)
        control(0, KILN_SIM_SLOW_COPIES, 0);
    kiln_data_free(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        core_test(test_slow_parts),      core_test(test_few_addresses), core_test(test_kept_batches),
        core_test(test_changed_batches), core_test(test_little_memory), core_test(test_left_early),
    };
    return CORE_MAIN(tests);
}
