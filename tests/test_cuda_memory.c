/* Memory of a CUDA device: it grows as needed and goes back, limits count the context, and running out of it is an
 * error like any other. Where there is no such device nothing can be tried, and the reason is said. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "support/devices.h"
#include "support/skip.h"
#include "support/train.h"
#include "tensor/memory.h"

enum { IN = 256, HIDDEN = 512, CLASSES = 10 };
static const uint64_t mib = 1 << 20;
static const uint64_t rounding = 32 << 20; /* more than what is lost to rounding up, and less than what is tried */

static kiln_device cuda = KILN_NO_DEVICE;
static bool guarded; /* KILN_CUDA_MEMCHECK: nothing is kept for reuse */

/* The device as a test wants to find it. */
static int before_test(void **state)
{
    (void)state;
    if (cuda != KILN_NO_DEVICE)
        kiln_memory_trim(cuda);
    return 0;
}

static int after_test(void **state)
{
    (void)state;
    kiln_report(stderr);
    bool ok = kiln_ok();
    kiln_error_clear();
    if (cuda != KILN_NO_DEVICE)
        ok = kiln_memory_set_limit(cuda, 0) && kiln_memory_trim(cuda) && ok;
    return ok ? 0 : -1;
}

static kiln_memory_stats stats(void)
{
    kiln_memory_stats s;
    assert_true(kiln_memory_get_stats(cuda, &s));
    return s;
}

static uint64_t free_memory(void)
{
    kiln_device_info info;
    assert_true(kiln_device_describe(cuda, &info));
    assert_true(info.memory_free <= info.memory_total);
    return info.memory_free;
}

/* A block as tensors have them; its address is 0 when it was refused. */
static kiln_block bytes(uint64_t n)
{
    kiln_block block = {0};
    return kiln_memory_take(cuda, (size_t)n, &block) ? block : (kiln_block){0};
}

static void give(kiln_block *block)
{
    kiln_memory_give(cuda, *block);
    *block = (kiln_block){0};
}

static void expect_refusal(const char *word)
{
    assert_int_equal(kiln_last_error()->code, KILN_E_MEMORY);
    if (!strstr(kiln_last_error()->message, word))
        fail_msg("\"%s\" says nothing of \"%s\"", kiln_last_error()->message, word);
    kiln_error_clear();
}

/* The device computes, and what it computes is right. */
static void check_alive(void)
{
    kiln_scope {
        kiln_tensor *x = kiln_full(KILN_SHAPE(1000), 2, KILN_F32);
        assert_true(kiln_item(kiln_sum_all(kiln_mul(x, x))) == 4000);
    }
    assert_true(kiln_ok());
}

/* ---- Blocks ---- */

static void test_grows_and_goes_back(void **state)
{
    (void)state;
    enum { N = 16 };
    kiln_block held[N];
    check_alive();
    kiln_memory_trim(cuda);
    kiln_memory_stats before = stats();
    uint64_t all = free_memory();
    for (int i = 0; i < N; i++) {
        held[i] = bytes((uint64_t)(i + 1) * 3 * mib + 1);
        assert_true(held[i].address != 0);
        uint64_t in_use = stats().in_use - before.in_use, gone = all - free_memory();
        assert_true(gone + 2 * mib >= in_use && gone <= in_use + rounding); /* as needed, nothing ahead */
    }
    uint64_t in_use = stats().in_use;
    for (int i = 0; i < N; i += 2)
        give(&held[i]);
    assert_true(stats().in_use < in_use);
    assert_int_equal(stats().in_use + stats().cached, guarded ? stats().in_use : in_use);
    assert_true(kiln_memory_trim(cuda)); /* also while others are in use */
    assert_int_equal(stats().cached, 0);
    assert_true(all - free_memory() <= stats().in_use - before.in_use + 2 * rounding);
    for (int i = 1; i < N; i += 2)
        give(&held[i]);
    assert_true(kiln_memory_trim(cuda));
    assert_true(free_memory() + 2 * mib >= all);
    assert_int_equal(stats().in_use, before.in_use);
    assert_true(stats().overhead <= before.overhead + 2 * mib);
    check_alive();
}

static void test_small_tensors_share(void **state)
{
    (void)state;
    enum { N = 4096 };
    static kiln_block held[N];
    uint64_t all = free_memory(), before = stats().in_use;
    for (int i = 0; i < N; i++) {
        held[i] = bytes(1000);
        assert_true(held[i].address != 0);
    }
    assert_true(guarded || all - free_memory() <= 8 * mib); /* 4 MiB of tensors, in whole granules */
    for (int i = 0; i < N; i++)
        give(&held[i]);
    assert_true(kiln_memory_trim(cuda));
    assert_true(free_memory() + 2 * mib >= all);
    assert_int_equal(stats().in_use, before);
}

static void test_reuse(void **state)
{
    (void)state;
    kiln_block block = bytes(40 * mib);
    assert_true(block.address != 0);
    give(&block);
    if (guarded)
        skip_because("with guards nothing is kept for reuse");
    uint64_t allocations = stats().allocations, left = free_memory();
    for (int i = 0; i < 10; i++) {
        block = bytes(40 * mib);
        give(&block);
    }
    assert_int_equal(stats().allocations, allocations);
    assert_int_equal(stats().cached, 40 * mib);
    assert_true(free_memory() + 2 * mib >= left);
}

/* What is in memory stays there, whatever is taken and given around it. */
static void test_contents(void **state)
{
    (void)state;
    enum { N = 24, ROUNDS = 200 };
    kiln_tensor *held[N] = {0};
    int32_t *data = malloc(4 * mib), value[N] = {0};
    uint32_t seed = 1;
    assert_non_null(data);
    for (int round = 0; round < ROUNDS; round++) {
        int at = (int)((test_number(&seed) + 1) / 2 * (N - 1));
        if (held[at]) {
            int64_t n = kiln_numel(held[at]);
            assert_true(kiln_read(held[at], data, (size_t)n * sizeof *data));
            for (int64_t i = 0; i < n; i++)
                assert_int_equal(data[i], value[at] + (int32_t)i);
            kiln_release(held[at]);
            held[at] = NULL;
        } else {
            int64_t n = 1 + (int64_t)((test_number(&seed) + 1) / 2 * (float)((round % 3 ? 4000 : mib) - 1));
            value[at] = round * 1000;
            for (int64_t i = 0; i < n; i++)
                data[i] = value[at] + (int32_t)i;
            assert_non_null(held[at] = kiln_tensor_new(data, KILN_I32, KILN_SHAPE(n), cuda));
        }
        if (round % 20 == 0)
            kiln_memory_trim(cuda);
    }
    for (int i = 0; i < N; i++)
        kiln_release(held[i]);
    free(data);
}

/* ---- The arena ---- */

static void test_arena_grows(void **state)
{
    (void)state;
    static const int64_t batches[] = {64, 4096, 512, 8192, 64, 8192};
    test_net net;
    kiln_plan_info info = {0};
    int64_t largest = 0;
    assert_true(net_make(&net, cuda, IN, HIDDEN, CLASSES, 1));
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < 6; i++) {
            assert_true(net_step(&net, batches[i], (uint32_t)i));
            assert_true(kiln_plan_last(&info));
            largest = info.arena_bytes > largest ? info.arena_bytes : largest;
        }
    assert_true(kiln_device_wait(cuda));
    uint64_t batch = 8192 * (IN * sizeof(float) + sizeof(int64_t)); /* the largest that is cached, and smaller ones */
    assert_true(guarded || stats().cached >= (uint64_t)largest);
    assert_true(stats().cached <= (uint64_t)largest + 3 * batch);
    kiln_memory_stats now = stats();
    uint64_t left = free_memory();
    for (int i = 0; i < 6; i++)
        assert_true(net_step(&net, batches[i], (uint32_t)i));
    assert_true(kiln_device_wait(cuda));
    assert_true(guarded || stats().allocations == now.allocations); /* nothing new is needed any more */
    assert_int_equal(stats().in_use, now.in_use);
    assert_true(free_memory() + 2 * mib >= left);
    assert_true(kiln_memory_trim(cuda));
    assert_int_equal(stats().cached, 0);
    assert_true(guarded || free_memory() >= left + (uint64_t)largest - rounding);
    assert_true(net_step(&net, 512, 0)); /* and again from nothing */
    net_free(&net);
    check_alive();
}

static void test_step_figures(void **state)
{
    (void)state;
    test_net net;
    uint64_t before = memory_in_use(cuda);
    assert_true(net_make(&net, cuda, IN, HIDDEN, CLASSES, 1));
    uint64_t made = memory_in_use(cuda);
    assert_true(net_step(&net, 64, 0));
    uint64_t with_grads = memory_in_use(cuda);
    for (uint32_t i = 0; i < 5; i++) {
        kiln_memory_reset_peak(cuda);
        assert_true(net_step(&net, 64, i));
        kiln_plan_info info;
        assert_true(kiln_plan_last(&info));
        assert_int_equal(memory_in_use(cuda), with_grads);
        assert_int_equal(stats().peak, made + 64 * (IN * sizeof(float) + sizeof(int64_t)) + (uint64_t)info.peak_bytes);
    }
    net_free(&net);
    assert_int_equal(memory_in_use(cuda), before);
}

/* ---- Limits ---- */

static void test_limit_below_the_context(void **state)
{
    (void)state;
    check_alive();
    kiln_memory_stats now = stats();
    print_message("context and libraries take %.1f MiB\n", (double)now.overhead / (double)mib);
    assert_true(now.overhead > 0);
    char text[32];
    snprintf(text, sizeof text, "%llu", (unsigned long long)now.overhead);
    assert_false(kiln_memory_set_limit(cuda, now.overhead - 1));
    expect_refusal(text);
    assert_int_equal(stats().limit, 0);
    check_alive();
}

/* Never more than the limit, with the context and whatever is lost to rounding. */
static void test_limit_holds(void **state)
{
    (void)state;
    enum { N = 24 };
    kiln_block held[N] = {{0}};
    uint32_t seed = 1;
    int refused = 0;
    check_alive();
    kiln_memory_trim(cuda);
    uint64_t limit = stats().in_use + stats().overhead + 256 * mib;
    assert_true(kiln_memory_set_limit(cuda, limit));
    for (int i = 0; i < 400; i++) {
        int at = (int)((test_number(&seed) + 1) / 2 * (N - 1));
        give(&held[at]);
        held[at] = bytes(1 + (uint64_t)((test_number(&seed) + 1) / 2 * 40 * (float)mib));
        if (!held[at].address) {
            refused++;
            expect_refusal("by the device itself");
        }
        kiln_memory_stats now = stats();
        assert_true(now.in_use + now.cached + now.overhead <= limit);
    }
    assert_true(refused > 0);
    for (int i = 0; i < N; i++)
        give(&held[i]);
}

static void test_limit_refuses_a_step(void **state)
{
    (void)state;
    test_net net;
    kiln_plan_info info;
    size_t n;
    assert_true(net_make(&net, cuda, IN, HIDDEN, CLASSES, 1));
    assert_true(net_step(&net, 16384, 0));
    assert_true(kiln_plan_last(&info));
    float *values = net_values(&net, &n);
    assert_non_null(values);
    kiln_memory_trim(cuda);
    assert_true((uint64_t)info.peak_bytes > rounding);
    uint64_t data = 16384 * (IN * sizeof(float) + sizeof(int64_t));
    assert_true(kiln_memory_set_limit(cuda, stats().in_use + stats().overhead + data + (uint64_t)info.peak_bytes / 2));
    assert_false(net_step(&net, 16384, 0));
    assert_string_equal(kiln_last_error()->operation, "step");
    expect_refusal("activations");
    assert_true(net_equals(&net, values));
    assert_true(
        kiln_memory_set_limit(cuda, stats().in_use + stats().overhead + data + (uint64_t)info.peak_bytes + rounding));
    assert_true(net_step(&net, 16384, 0));
    free(values);
    net_free(&net);
}

/* ---- Running out of it ---- */

static void test_out_of_memory(void **state)
{
    (void)state;
    enum { N = 4096 };
    static kiln_block held[N];
    int n = 0;
    kiln_device_info info;
    check_alive();
    assert_true(kiln_device_describe(cuda, &info));
    assert_true(bytes(info.memory_total + 1).address == 0);
    expect_refusal(kiln_device_name(cuda));
    check_alive();

    uint64_t before = memory_in_use(cuda), all = free_memory(), step = all / 64;
    for (int part = 0; part < 4; part++, step /= 4) /* full to the brim */
        while (n < N && step > 4 * mib && (held[n] = bytes(step)).address)
            n++;
    kiln_error_clear();
    print_message("%d blocks, %.1f of %.1f MiB left\n", n, (double)free_memory() / (double)mib,
                  (double)all / (double)mib);
    assert_true(n > 32 && n < N);
    assert_true(bytes(all / 8).address == 0);
    expect_refusal("could not give");
    give(&held[--n]);
    check_alive(); /* small things fit */
    for (int i = 0; i < n; i++)
        give(&held[i]);
    assert_int_equal(memory_in_use(cuda), before);
    kiln_block half = bytes(all / 2); /* what is cached makes room */
    assert_true(half.address != 0);
    give(&half);
    assert_true(kiln_memory_trim(cuda));
    assert_true(free_memory() + rounding >= all);
    check_alive();
}

int main(void)
{
    char why[300];
    if (kiln_device_count("cuda", why, sizeof why) < 1) {
        printf("skipped: there is no CUDA device: %s\n", why);
        return TEST_SKIPPED;
    }
    const char *check = getenv("KILN_CUDA_MEMCHECK");
    guarded = check && (strcmp(check, "1") == 0 || strcmp(check, "exact") == 0);
    cuda = kiln_device_parse("cuda");
    if (cuda == KILN_NO_DEVICE || !kiln_set_default_device(cuda))
        return kiln_report(stderr);
#define TEST(f) cmocka_unit_test_setup_teardown(f, before_test, after_test)
    const struct CMUnitTest tests[] = {TEST(test_grows_and_goes_back),
                                       TEST(test_small_tensors_share),
                                       TEST(test_reuse),
                                       TEST(test_contents),
                                       TEST(test_arena_grows),
                                       TEST(test_step_figures),
                                       TEST(test_limit_holds),
                                       TEST(test_limit_below_the_context),
                                       TEST(test_limit_refuses_a_step),
                                       TEST(test_out_of_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
