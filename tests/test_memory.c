/* Memory of devices: limits that hold, steps that are refused before they begin and say what would fit, and figures
 * that are exact. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "support/train.h"
#include "tensor/memory.h"

enum { IN = 64, HIDDEN = 96, CLASSES = 10, BATCH = 512 };

/* Sanitizers stop a program that asks for absurd sizes, unless told that it knows how to take a refusal. */
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "allocator_may_return_null=1";
}
const char *__tsan_default_options(void);
const char *__tsan_default_options(void)
{
    return "allocator_may_return_null=1";
}

static kiln_device sim0;
static kiln_sim_control_fn control;

static int find_devices(void **state)
{
    (void)state;
    setenv("KILN_RECOMPUTE", "0", 1); /* what does not fit as it is is refused; test_fit_memory.c has the rest */
    sim0 = kiln_device_parse("sim");
    control = sim_switch();
    return sim0 < 0 || !control;
}

/* Devices as the next test wants to find them. */
static int restore(void **state)
{
    (void)state;
    kiln_error_clear();
    control(0, KILN_SIM_MEMORY, 0);
    control(0, KILN_SIM_FAIL_ALLOC, -1);
    control(0, KILN_SIM_OVERHEAD, 0);
    kiln_memory_set_limit(sim0, 0);
    kiln_memory_set_limit(KILN_CPU, 0);
    kiln_memory_trim(sim0);
    kiln_memory_trim(KILN_CPU);
    return kiln_ok() ? 0 : -1;
}

static kiln_memory_stats stats_of(kiln_device device)
{
    kiln_memory_stats stats;
    assert_true(kiln_memory_get_stats(device, &stats));
    return stats;
}

/* ---- Figures ---- */

static void check_figures(kiln_device device)
{
    kiln_memory_trim(device);
    kiln_memory_reset_peak(device);
    kiln_memory_stats before = stats_of(device);
    assert_int_equal(before.cached, 0);
    assert_int_equal(before.peak, before.in_use);

    kiln_tensor *a = kiln_tensor_new(NULL, KILN_F32, KILN_SHAPE(1000), device); /* 4000 bytes: 4032 in lines of 64 */
    kiln_tensor *b = kiln_tensor_new(NULL, KILN_U8, KILN_SHAPE(1), device);
    kiln_memory_stats now = stats_of(device);
    assert_int_equal(now.in_use - before.in_use, 4032 + 64);
    assert_int_equal(now.allocations - before.allocations, 2);
    kiln_release(a);
    now = stats_of(device);
    assert_int_equal(now.in_use - before.in_use, 64);
    assert_int_equal(now.cached, 4032);
    assert_int_equal(now.peak - before.in_use, 4032 + 64);

    a = kiln_tensor_new(NULL, KILN_F32, KILN_SHAPE(1000), device); /* from the cache */
    now = stats_of(device);
    assert_int_equal(now.cached, 0);
    assert_int_equal(now.allocations - before.allocations, 2);
    kiln_release(a);
    kiln_release(b);
    assert_true(kiln_memory_reset_peak(device));
    assert_int_equal(stats_of(device).peak, before.in_use);
    assert_int_equal(stats_of(device).cached, 4032 + 64);
    assert_true(kiln_memory_trim(device));
    now = stats_of(device);
    assert_int_equal(now.cached, 0);
    assert_int_equal(now.in_use, before.in_use);
    assert_true(kiln_ok());
}

static void test_figures(void **state)
{
    (void)state;
    check_figures(KILN_CPU);
    int64_t used = control(0, KILN_SIM_FAIL_ALLOC, -1);
    check_figures(sim0);
    assert_int_equal(control(0, KILN_SIM_FAIL_ALLOC, -1), used); /* the device agrees */
    kiln_memory_stats stats;
    assert_false(kiln_memory_get_stats(KILN_NO_DEVICE, &stats));
    assert_int_equal(kiln_last_error()->code, KILN_E_DEVICE);
}

/* A step's peak is what its plan said, and afterwards nothing but the gradients is left. */
static void check_step_figures(kiln_device device)
{
    test_net net;
    uint64_t before = memory_in_use(device);
    assert_true(net_make(&net, device, IN, HIDDEN, CLASSES, 1));
    uint64_t made = memory_in_use(device);
    assert_true(net_step(&net, 32, 0));
    uint64_t with_grads = memory_in_use(device);
    assert_true(with_grads > made);
    for (int i = 0; i < 5; i++) {
        kiln_memory_reset_peak(device);
        assert_true(net_step(&net, 32, (uint32_t)i));
        assert_int_equal(memory_in_use(device), with_grads);
        kiln_plan_info info;
        assert_true(kiln_plan_last(&info));
        uint64_t data = 32 * IN * sizeof(float) + 32 * sizeof(int64_t);
        assert_int_equal(stats_of(device).peak, made + data + (uint64_t)info.peak_bytes);
    }
    net_free(&net);
    assert_int_equal(memory_in_use(device), before);
    assert_true(kiln_ok());
}

static void test_step_figures(void **state)
{
    (void)state;
    check_step_figures(KILN_CPU);
    check_step_figures(sim0);
}

/* Whoever asks for the same gets it at the same addresses, in whatever order it was given back. */
static void test_same_addresses(void **state)
{
    (void)state;
    enum { N = 6 };
    static const size_t bytes[N] = {4096, 4096, 5000, 4096, 5000, 4096};
    static const int orders[][N] = {{0, 1, 2, 3, 4, 5}, {5, 4, 3, 2, 1, 0}, {3, 0, 4, 5, 2, 1}, {1, 2, 0, 4, 5, 3}};
    kiln_address first[N] = {0};
    for (int round = 0; round < 4; round++) {
        kiln_block blocks[N];
        for (int i = 0; i < N; i++) {
            assert_true(kiln_memory_take(sim0, bytes[i], &blocks[i]));
            first[i] = round > 1 ? first[i] : blocks[i].address; /* of the second: the first has found none */
            assert_true(blocks[i].address == first[i]);
        }
        for (int i = 0; i < N; i++)
            kiln_memory_give(sim0, blocks[orders[round][i]]);
    }
}

/* ---- What is kept ---- */

enum { LITTLE = 16 << 20 }; /* that a pool may hold beside twice the most that was in use */

static void take_and_give(kiln_device device, size_t bytes, int n)
{
    kiln_block blocks[64];
    assert_true(n <= 64);
    for (int i = 0; i < n; i++)
        assert_true(kiln_memory_take(device, bytes, &blocks[i]));
    for (int i = 0; i < n; i++)
        kiln_memory_give(device, blocks[i]);
}

static void assert_bounded(kiln_device device, uint64_t most)
{
    kiln_memory_stats now = stats_of(device);
    if (now.in_use + now.cached > 2 * most + LITTLE)
        fail_msg("%llu bytes are held, though at most %llu were in use", (unsigned long long)(now.in_use + now.cached),
                 (unsigned long long)most);
}

/* The same bytes in ever other pieces: blocks of one turn serve no other, and would pile up. */
static void check_bound(kiln_device device)
{
    enum { ALL = 32 << 20 };
    kiln_memory_trim(device);
    kiln_memory_reset_peak(device);
    uint64_t before = memory_in_use(device);
    for (int turn = 0; turn < 3; turn++)
        for (int n = 1; n <= 64; n *= 2) {
            take_and_give(device, ALL / (size_t)n, n);
            assert_int_equal(memory_in_use(device), before);
            assert_bounded(device, before + ALL);
        }
    assert_int_equal(stats_of(device).peak, before + ALL);
    assert_true(stats_of(device).cached > ALL); /* and yet much is kept */

    kiln_memory_trim(device); /* from here on it is about what is in use now */
    take_and_give(device, LITTLE, 1);
    take_and_give(device, 2 * LITTLE, 1);
    assert_int_equal(stats_of(device).cached, 3 * LITTLE);
    take_and_give(device, LITTLE / 4, 8);
    assert_int_equal(stats_of(device).cached, 5 * LITTLE);
    take_and_give(device, LITTLE / 8, 16); /* pushes the first one out, and the second */
    assert_int_equal(stats_of(device).cached, 4 * LITTLE);
    kiln_memory_trim(device);
    assert_int_equal(stats_of(device).cached, 0);
}

static void test_bound(void **state)
{
    (void)state;
    int64_t used = control(0, KILN_SIM_FAIL_ALLOC, -1);
    check_bound(KILN_CPU);
    check_bound(sim0);
    assert_int_equal(control(0, KILN_SIM_FAIL_ALLOC, -1), used); /* the device agrees */
    assert_true(kiln_ok());
}

/* What was given back longest ago goes first. */
static void test_oldest_goes_first(void **state)
{
    (void)state;
    enum { EACH = 1 << 20 };
    kiln_block a, b, large, small;
    kiln_memory_trim(sim0);
    assert_true(kiln_memory_take(sim0, EACH, &a) && kiln_memory_take(sim0, 2 * EACH, &b));
    kiln_memory_give(sim0, b);
    kiln_memory_give(sim0, a);
    int64_t used = control(0, KILN_SIM_FAIL_ALLOC, -1);
    assert_true(kiln_memory_take(sim0, 13 * EACH, &large));
    kiln_memory_give(sim0, large);
    assert_int_equal(control(0, KILN_SIM_FAIL_ALLOC, -1), used + 13 * EACH);
    take_and_give(sim0, EACH / 4, 64);
    take_and_give(sim0, EACH / 2, 32);
    assert_int_equal(stats_of(sim0).cached, 48 * EACH); /* 16 were in use at most: as much as may be */
    take_and_give(sim0, EACH / 8, 16);
    assert_int_equal(stats_of(sim0).cached, 48 * EACH); /* b is gone */
    assert_true(kiln_memory_take(sim0, EACH, &small));
    assert_true(small.address == a.address);
    kiln_memory_give(sim0, small);
    kiln_memory_trim(sim0);
    assert_true(kiln_ok());
}

/* A loop that needs the same each time asks the device no more, though it holds more than it ever uses at once. */
static void check_steady(kiln_device device)
{
    uint64_t asked = 0;
    kiln_memory_trim(device);
    for (int turn = 0; turn < 20; turn++) {
        take_and_give(device, 40 << 20, 1);
        take_and_give(device, 3 << 20, 13);
        take_and_give(device, 1000, 64);
        if (turn == 0)
            asked = stats_of(device).allocations;
    }
    assert_int_equal(stats_of(device).allocations, asked);
    test_net net;
    assert_true(net_make(&net, device, IN, HIDDEN, CLASSES, 1));
    for (uint32_t i = 0; i < 40; i++) {
        assert_true(net_step(&net, i % 2 ? BATCH : BATCH / 4, i));
        if (i == 9)
            asked = stats_of(device).allocations;
    }
    assert_int_equal(stats_of(device).allocations, asked);
    net_free(&net);
    kiln_memory_trim(device);
}

static void test_steady(void **state)
{
    (void)state;
    check_steady(KILN_CPU);
    check_steady(sim0);
    assert_true(kiln_ok());
}

/* Steps of all sizes share one arena: what is kept for them is what the largest one needs. */
static void test_arena_is_shared(void **state)
{
    (void)state;
    static const int64_t batches[] = {16, 64, 32, 128, 16, 128};
    test_net net;
    int64_t largest = 0, all = 0;
    assert_true(net_make(&net, sim0, IN, HIDDEN, CLASSES, 1));
    kiln_memory_trim(sim0);
    for (int i = 0; i < 6; i++) {
        assert_true(net_step(&net, batches[i], (uint32_t)i));
        kiln_plan_info info;
        assert_true(kiln_plan_last(&info));
        all += info.arena_bytes;
        largest = info.arena_bytes > largest ? info.arena_bytes : largest;
    }
    uint64_t cached = stats_of(sim0).cached; /* the arena, and batches that are gone */
    int64_t used = control(0, KILN_SIM_FAIL_ALLOC, -1);
    assert_true(largest > 0 && cached >= (uint64_t)largest && cached < (uint64_t)all);
    assert_true(kiln_memory_trim(sim0));
    assert_int_equal(stats_of(sim0).cached, 0);
    assert_int_equal(used - control(0, KILN_SIM_FAIL_ALLOC, -1), cached); /* the device has it back */

    kiln_memory_stats before = stats_of(sim0);
    assert_true(net_step(&net, 128, 0)); /* and it grows again */
    assert_true(stats_of(sim0).allocations > before.allocations);
    assert_int_equal(stats_of(sim0).in_use, before.in_use);
    net_free(&net);
    assert_true(kiln_ok());
}

static void use_some(kiln_device device, kiln_tensor *counter, int count)
{
    kiln_scope {
        kiln_tensor *x = kiln_tensor_new(NULL, KILN_F32, KILN_SHAPE(100, 100), device);
        assert_true(kiln_item(kiln_sum_all(kiln_add_scalar(kiln_matmul(x, x), 2))) == 20000);
        assert_true(kiln_assign(counter, kiln_add_scalar(counter, 1)));
        assert_true(kiln_item(kiln_sum_all(counter)) == 10 * count);
    }
}

/* What a scope owned is gone when it ends, also within another scope that stays open; the same goes for kiln_release.
 */
static void check_scopes(kiln_device device)
{
    kiln_scope {
        kiln_tensor *outer = kiln_tensor_new(NULL, KILN_F32, KILN_SHAPE(10), device);
        uint64_t before = memory_in_use(device);
        for (int i = 0; i < 20; i++) {
            use_some(device, outer, i + 1);
            assert_int_equal(memory_in_use(device), before);
        }
    }
    uint64_t before = memory_in_use(device);
    for (int i = 0; i < 20; i++) {
        kiln_tensor *x = kiln_tensor_new(NULL, KILN_F32, KILN_SHAPE(100), device), *y = kiln_add_scalar(x, 1);
        assert_true(kiln_eval());
        kiln_release(x);
        kiln_release(y);
        assert_true(kiln_eval());
        assert_int_equal(memory_in_use(device), before);
    }
    assert_true(kiln_ok());
}

static void test_scopes(void **state)
{
    (void)state;
    check_scopes(KILN_CPU);
    check_scopes(sim0);
}

/* ---- Limits ---- */

static void test_limit_on_tensors(void **state)
{
    (void)state;
    kiln_device devices[] = {KILN_CPU, sim0};
    for (int i = 0; i < 2; i++) {
        kiln_memory_trim(devices[i]);
        uint64_t before = memory_in_use(devices[i]);
        assert_true(kiln_memory_set_limit(devices[i], before + 10000));
        assert_int_equal(stats_of(devices[i]).limit, before + 10000);
        kiln_tensor *a = kiln_tensor_new(NULL, KILN_F32, KILN_SHAPE(1500), devices[i]);
        assert_non_null(a);
        assert_null(kiln_tensor_new(NULL, KILN_F32, KILN_SHAPE(1500), devices[i]));
        assert_int_equal(kiln_last_error()->code, KILN_E_MEMORY);
        assert_non_null(strstr(kiln_last_error()->message, "6016")); /* asked for */
        assert_non_null(strstr(kiln_last_error()->message, kiln_device_name(devices[i])));
        kiln_error_clear();
        assert_int_equal(memory_in_use(devices[i]), before + 6016);
        kiln_release(a); /* cached: a block of another size must push it out, not fail */
        a = kiln_tensor_new(NULL, KILN_F32, KILN_SHAPE(2000), devices[i]);
        assert_non_null(a);
        assert_int_equal(stats_of(devices[i]).cached, 0);
        kiln_release(a);
        assert_true(kiln_memory_set_limit(devices[i], 0));
        assert_int_equal(memory_in_use(devices[i]), before);
    }
    assert_true(kiln_ok());
}

/* Whatever is taken, used and cached, the device never gives more than the limit. */
static void test_limit_holds(void **state)
{
    (void)state;
    uint32_t seed = 1;
    kiln_tensor *held[32] = {0};
    kiln_memory_trim(sim0);
    int64_t used = control(0, KILN_SIM_FAIL_ALLOC, -1), refused = 0;
    int64_t limit = (int64_t)memory_in_use(sim0) + 100000;
    for (int i = 0; i < 2000; i++) {
        int at = (int)((test_number(&seed) + 1) * 15.99f);
        int64_t n = (int64_t)((test_number(&seed) + 1) * 6000);
        if (i == 200) /* what was taken before was not bound by it; from here on it is */
            kiln_memory_set_limit(sim0, (uint64_t)limit);
        kiln_release(held[at]);
        held[at] = kiln_tensor_new(NULL, KILN_U8, KILN_SHAPE(n), sim0);
        refused += !held[at];
        kiln_error_clear();
        int64_t taken = control(0, KILN_SIM_FAIL_ALLOC, -1) - used;
        if (i >= 400)
            assert_true(taken <= limit);
    }
    assert_true(refused > 0);
    for (int i = 0; i < 32; i++)
        kiln_release(held[i]);
    kiln_memory_trim(sim0);
    assert_int_equal(control(0, KILN_SIM_FAIL_ALLOC, -1), used);
}

/* What the device takes for itself counts towards the limit, and a limit below it is none. */
static void test_overhead(void **state)
{
    (void)state;
    kiln_memory_trim(sim0);
    uint64_t before = memory_in_use(sim0);
    control(0, KILN_SIM_OVERHEAD, 50000);
    assert_int_equal(stats_of(sim0).overhead, 50000);
    assert_int_equal(stats_of(KILN_CPU).overhead, 0);
    assert_false(kiln_memory_set_limit(sim0, 49999));
    assert_int_equal(kiln_last_error()->code, KILN_E_MEMORY);
    assert_non_null(strstr(kiln_last_error()->message, "50000"));
    kiln_error_clear();
    assert_int_equal(stats_of(sim0).limit, 0);

    assert_true(kiln_memory_set_limit(sim0, before + 50000 + 6400));
    assert_null(kiln_tensor_new(NULL, KILN_U8, KILN_SHAPE(6401), sim0));
    assert_int_equal(kiln_last_error()->code, KILN_E_MEMORY);
    assert_non_null(strstr(kiln_last_error()->message, "0.05 MiB by the device itself"));
    kiln_error_clear();
    kiln_tensor *t = kiln_tensor_new(NULL, KILN_U8, KILN_SHAPE(6400), sim0);
    assert_non_null(t);
    kiln_release(t);
    assert_true(kiln_memory_set_limit(sim0, 0));
    assert_true(kiln_ok());
}

/* Does a step with this batch fit? From the same state each time: no gradients, nothing cached. */
static bool fits(test_net *net, int64_t batch)
{
    for (int i = 0; i < NET_TENSORS; i++)
        kiln_zero_grad_of(net->p[i]);
    kiln_memory_trim(net->device);
    bool ok = net_step(net, batch, 3);
    kiln_error_clear();
    return ok;
}

/* `by_size`: it is the device that is small, not a limit. */
static void check_refused_step(kiln_device device, double share, bool by_size)
{
    test_net net;
    assert_true(net_make(&net, device, IN, HIDDEN, CLASSES, 1));
    uint64_t own = memory_in_use(device), data = BATCH * (IN * sizeof(float) + sizeof(int64_t));
    assert_true(fits(&net, BATCH)); /* and now its needs are known */
    kiln_plan_info info;
    assert_true(kiln_plan_last(&info));
    for (int i = 0; i < NET_TENSORS; i++)
        kiln_zero_grad_of(net.p[i]);
    size_t bytes;
    float *values = net_values(&net, &bytes);
    uint64_t limit = own + data + (uint64_t)((double)info.peak_bytes * share);
    kiln_memory_trim(device);
    if (by_size)
        control(0, KILN_SIM_MEMORY, (int64_t)limit);
    else
        kiln_memory_set_limit(device, limit);

    assert_false(net_step(&net, BATCH, 3));
    const kiln_error *e = kiln_last_error();
    assert_int_equal(e->code, KILN_E_MEMORY);
    static const char *const words[] = {
        "step", "MiB", "activations", "Largest: ", "net.0.weight [", "the batch [512, "};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        assert_true(strstr(e->message, words[i]) || strstr(e->operation, words[i]));
    assert_non_null(strstr(e->message, kiln_device_name(device)));
    long long suggested = 0, instead = 0;
    const char *at = strstr(e->hint, "A batch of about ");
    assert_non_null(at);
    assert_int_equal(sscanf(at, "A batch of about %lld instead of %lld", &suggested, &instead), 2);
    kiln_error_clear();
    assert_int_equal(instead, BATCH);
    assert_true(net_equals(&net, values));

    int64_t most = BATCH - 1; /* that fits; one between may not, where a product wants more scratch memory */
    while (most > 0 && !fits(&net, most))
        most--;
    if (suggested < 1 || suggested > most || suggested + suggested / 10 + 2 < most)
        fail_msg("with %g of the memory a batch of %lld was suggested, but %lld fit", share, suggested,
                 (long long)most);
    assert_true(fits(&net, suggested));
    kiln_memory_set_limit(device, 0);
    control(0, KILN_SIM_MEMORY, 0);
    assert_true(fits(&net, BATCH)); /* the program goes on */
    net_free(&net);
    free(values);
    assert_true(kiln_ok());
}

static void test_refused_step(void **state)
{
    (void)state;
    static const double shares[] = {0.95, 0.8, 0.6, 0.45};
    for (int i = 0; i < 4; i++) {
        check_refused_step(sim0, shares[i], false);
        check_refused_step(sim0, shares[i], true);
        check_refused_step(KILN_CPU, shares[i], false);
    }
}

/* A step that fits no batch at all is refused without a number, and changes nothing either. */
static void test_hopeless_step(void **state)
{
    (void)state;
    test_net net;
    size_t bytes;
    assert_true(net_make(&net, sim0, IN, HIDDEN, CLASSES, 1));
    float *values = net_values(&net, &bytes);
    kiln_memory_set_limit(sim0, memory_in_use(sim0) + 4096);
    assert_false(net_step(&net, 2, 0));
    assert_int_equal(kiln_last_error()->code, KILN_E_MEMORY);
    assert_null(strstr(kiln_last_error()->hint, "A batch of"));
    assert_non_null(strstr(kiln_last_error()->hint, "raise the limit"));
    kiln_error_clear();
    assert_true(net_equals(&net, values));
    kiln_memory_set_limit(sim0, 0);
    assert_true(net_step(&net, 2, 0));
    assert_false(net_equals(&net, values));
    net_free(&net);
    free(values);
}

/* The whole run under a limit that just suffices gives the same bits as without one. */
static void test_tight_limit(void **state)
{
    (void)state;
    float *expected = net_trained(sim0, IN, HIDDEN, CLASSES, 1, 64, 6);
    test_net net;
    assert_true(net_make(&net, sim0, IN, HIDDEN, CLASSES, 1));
    uint64_t own = memory_in_use(sim0), data = 64 * (IN * sizeof(float) + sizeof(int64_t));
    kiln_plan_info info;
    assert_true(kiln_plan_last(&info));
    kiln_memory_trim(sim0);
    kiln_memory_set_limit(sim0, own + data + (uint64_t)info.peak_bytes);
    for (uint32_t i = 0; i < 6; i++)
        assert_true(net_step(&net, 64, i));
    kiln_memory_set_limit(sim0, 0);
    assert_true(net_equals(&net, expected));
    net_free(&net);
    free(expected);
    assert_true(kiln_ok());
}

/* ---- The device's own size ---- */

static void test_small_device(void **state)
{
    (void)state;
    test_net net;
    size_t bytes;
    assert_true(net_make(&net, sim0, IN, HIDDEN, CLASSES, 1));
    float *values = net_values(&net, &bytes);
    kiln_memory_trim(sim0);
    control(0, KILN_SIM_MEMORY, control(0, KILN_SIM_FAIL_ALLOC, -1) + 100000);
    kiln_device_info info;
    assert_true(kiln_device_describe(sim0, &info));
    assert_true(info.memory_free <= 100000);

    assert_null(kiln_tensor_new(NULL, KILN_U8, KILN_SHAPE(200000), sim0));
    assert_int_equal(kiln_last_error()->code, KILN_E_MEMORY);
    assert_non_null(strstr(kiln_last_error()->message, "sim:0"));
    kiln_error_clear();
    uint64_t before = memory_in_use(sim0);
    assert_false(net_step(&net, BATCH, 0));
    assert_int_equal(kiln_last_error()->code, KILN_E_MEMORY);
    kiln_error_clear();
    assert_int_equal(memory_in_use(sim0), before);
    assert_true(net_equals(&net, values));

    /* What is cached makes room for what is asked for. */
    kiln_release(kiln_tensor_new(NULL, KILN_U8, KILN_SHAPE(90000), sim0));
    kiln_tensor *t = kiln_tensor_new(NULL, KILN_U8, KILN_SHAPE(50000), sim0);
    assert_non_null(t);
    kiln_release(t);
    control(0, KILN_SIM_MEMORY, 0);
    assert_true(net_step(&net, BATCH, 0));
    net_free(&net);
    free(values);
    assert_true(kiln_ok());
}

/* A failed allocation is tried again without the cache, and an error only if that fails too. */
static void test_failed_allocation(void **state)
{
    (void)state;
    kiln_memory_trim(sim0);
    control(0, KILN_SIM_FAIL_ALLOC, 0);
    assert_null(kiln_tensor_new(NULL, KILN_U8, KILN_SHAPE(100), sim0));
    assert_int_equal(kiln_last_error()->code, KILN_E_MEMORY);
    kiln_error_clear();
    kiln_release(kiln_tensor_new(NULL, KILN_U8, KILN_SHAPE(100), sim0));
    control(0, KILN_SIM_FAIL_ALLOC, 0);
    kiln_tensor *t = kiln_tensor_new(NULL, KILN_U8, KILN_SHAPE(1000), sim0);
    assert_non_null(t);
    assert_int_equal(stats_of(sim0).cached, 0);
    kiln_release(t);
    assert_true(kiln_ok());
}

/* Shapes beyond any memory are refused as such, on every device. */
static void test_absurd_sizes(void **state)
{
    (void)state;
    kiln_device devices[] = {KILN_CPU, sim0};
    for (int i = 0; i < 2; i++) {
        uint64_t before = memory_in_use(devices[i]);
        assert_null(kiln_tensor_new(NULL, KILN_F64, KILN_SHAPE((int64_t)1 << 40, (int64_t)1 << 40), devices[i]));
        assert_int_equal(kiln_last_error()->code, KILN_E_SHAPE);
        kiln_error_clear();
        assert_null(kiln_tensor_new(NULL, KILN_U8, KILN_SHAPE((int64_t)1 << 58), devices[i]));
        assert_int_equal(kiln_last_error()->code, KILN_E_MEMORY);
        kiln_error_clear();
        assert_int_equal(memory_in_use(devices[i]), before);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_figures, restore),
        cmocka_unit_test_teardown(test_step_figures, restore),
        cmocka_unit_test_teardown(test_same_addresses, restore),
        cmocka_unit_test_teardown(test_bound, restore),
        cmocka_unit_test_teardown(test_oldest_goes_first, restore),
        cmocka_unit_test_teardown(test_steady, restore),
        cmocka_unit_test_teardown(test_arena_is_shared, restore),
        cmocka_unit_test_teardown(test_scopes, restore),
        cmocka_unit_test_teardown(test_limit_on_tensors, restore),
        cmocka_unit_test_teardown(test_limit_holds, restore),
        cmocka_unit_test_teardown(test_overhead, restore),
        cmocka_unit_test_teardown(test_refused_step, restore),
        cmocka_unit_test_teardown(test_hopeless_step, restore),
        cmocka_unit_test_teardown(test_tight_limit, restore),
        cmocka_unit_test_teardown(test_small_device, restore),
        cmocka_unit_test_teardown(test_failed_allocation, restore),
        cmocka_unit_test_teardown(test_absurd_sizes, restore),
    };
    return cmocka_run_group_tests(tests, find_devices, NULL);
}
