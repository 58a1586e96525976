/* Steps that do not fit into memory as they are: values are computed a second time until they do. Whatever the limit,
 * the bits are those of a step without one, what is planned keeps the limit, and a smaller limit never takes more. */
#include <pthread.h>
#include "support/again.h"
#include "core/alloc.h"
#include "support/train.h"

/* ctest: name=threads env=KILN_NUM_THREADS=2 */

static uint64_t taken(void)
{
    kiln_memory_stats stats;
    assert_true(kiln_memory_get_stats(kiln_default_device(), &stats));
    return stats.in_use + stats.overhead;
}

/* A GPU's memory comes in pieces larger than the networks need with a few samples. */
static int large_if_cuda(void **state)
{
    batches = core_on("cuda") ? 256 : 1;
    return core_before(state);
}
#define memory_test(f) cmocka_unit_test_setup_teardown(f, large_if_cuda, core_after)

static void limit(uint64_t bytes)
{
    assert_true(kiln_memory_set_limit(kiln_default_device(), bytes));
}

/* ---- Planning ---- */

static void sweep(const network *n, kiln_dtype dtype)
{
    kiln_manual_seed(7);
    kiln_module *net = n->make(false);
    kiln_optim *opt = kiln_optim_adamw(kiln_parameters(net), .lr = 1e-2);
    kiln_plan_info plain, info, before;
    plan_within(n, net, opt, dtype, 0, &plain);
    assert_int_equal(plain.recomputed, 0);
    before = plain;
    int fitted = 0;
    for (int percent = 99; percent > 2; percent -= 3) {
        uint64_t bytes = (uint64_t)plain.peak_bytes * (uint64_t)percent / 100;
        if (!plan_within(n, net, opt, dtype, bytes, &info))
            break;
        if (getenv("KILN_TEST_SAY"))
            print_message("%-12s %-5s %3d %%: %8lld of %8lld bytes, %4lld operations again, %.3f of the time\n",
                          n->name, kiln_dtype_name(dtype), percent, (long long)info.peak_bytes,
                          (long long)plain.peak_bytes, (long long)info.recomputed, info.seconds / plain.seconds);
        assert_true((uint64_t)info.peak_bytes <= bytes);
        assert_true(info.peak_bytes <= before.peak_bytes);
        before = info;
        fitted++;
    }
    assert_true(fitted >= 3);
    kiln_optim_free(opt);
    kiln_module_free(net);
}

static void test_sweep(void **state)
{
    (void)state;
    for (int i = 0; i < NETWORKS; i++) {
        sweep(&networks[i], KILN_F32);
        sweep(&networks[i], KILN_BF16);
    }
}

/* ---- Running ---- */

static void check_runs(const network *n, kiln_dtype dtype)
{
    outcome plain = train(n, false, dtype, IN_STEP);
    int fitted = 0;
    for (int percent = 95; percent > 10; percent -= 10) {
        kiln_manual_seed(7);
        kiln_module *net = n->make(false);
        kiln_optim *opt = kiln_optim_adamw(kiln_parameters(net), .lr = 1e-2);
        uint64_t room = (uint64_t)plain.peak * (uint64_t)percent / 100;
        bool ok = true;
        for (int i = 0; i < STEPS && ok; i++) {
            kiln_step {
                write_step(n, net, opt, dtype, i, IN_STEP);
                limit(taken() + room);
            }
            ok = kiln_ok();
            limit(0);
        }
        if (ok) {
            if (digest(net) != plain.bits)
                fail_msg("%s in %s has other bits within %d %% of its memory", n->name, kiln_dtype_name(dtype),
                         percent);
            fitted++;
        } else
            expect_error(KILN_E_MEMORY, "step", "the step needs");
        kiln_optim_free(opt);
        kiln_module_free(net);
    }
    assert_true(fitted >= 1);
}

static void test_runs(void **state)
{
    (void)state;
    for (int i = 0; i < NETWORKS; i++) {
        check_runs(&networks[i], KILN_F32);
        check_runs(&networks[i], KILN_BF16);
    }
}

/* ---- How it shows ---- */

/* One step of a fresh network, which has `percent` of the memory that it needs. */
static bool step_within(const network *n, int percent, uint64_t *bits, kiln_plan_info *info)
{
    kiln_manual_seed(7);
    kiln_module *net = n->make(false);
    kiln_optim *opt = kiln_optim_adamw(kiln_parameters(net), .lr = 1e-2);
    kiln_plan_info plain;
    kiln_step {
        write_step(n, net, opt, KILN_F32, 0, IN_STEP);
        assert_true(kiln_plan_pending(&plain));
        limit(taken() + (uint64_t)plain.peak_bytes * (uint64_t)percent / 100);
    }
    limit(0);
    bool ok = kiln_ok() && kiln_plan_last(info);
    kiln_error error = *kiln_last_error();
    kiln_error_clear();
    *bits = digest(net);
    kiln_optim_free(opt);
    kiln_module_free(net);
    if (!ok)
        assert_int_equal(error.code, KILN_E_MEMORY);
    return ok;
}

/* The same limit is the same plan, however often it is made. */
static void test_same_plan(void **state)
{
    (void)state;
    kiln_plan_info info[3];
    uint64_t bits[3];
    for (int i = 0; i < 3; i++) {
        kiln_plan_cache_set_capacity(i == 1 ? 0 : INT64_MAX);
        assert_true(step_within(&networks[0], 60, &bits[i], &info[i]));
        assert_true(info[i].recomputed > 0);
        assert_int_equal(info[i].recomputed, info[0].recomputed);
        assert_int_equal(info[i].peak_bytes, info[0].peak_bytes);
        assert_int_equal(info[i].flops, info[0].flops);
        assert_int_equal(bits[i], bits[0]);
    }
    kiln_plan_cache_set_capacity(INT64_MAX);
}

static void test_switched_off(void **state)
{
    (void)state;
    kiln_plan_info info;
    uint64_t bits;
    setenv("KILN_RECOMPUTE", "0", 1);
    assert_false(step_within(&networks[0], 60, &bits, &info));
    unsetenv("KILN_RECOMPUTE");
    assert_true(step_within(&networks[0], 60, &bits, &info));
}

static void *say_once(void *context)
{
    kiln_plan_info info;
    uint64_t bits;
    int *said = context;
    kiln_set_default_device(said[1]);
    for (int i = 0; i < 2; i++)
        step_within(&networks[0], 60 - 5 * i, &bits, &info);
    for (const char *text; (text = kiln_next_notice());)
        *said += strstr(text, "are computed a second time for the backward pass") != NULL;
    return NULL;
}

static void test_notice(void **state)
{
    (void)state;
    int said[2] = {0, kiln_default_device()};
    pthread_t thread;
    while (kiln_next_notice()) {
    }
    assert_int_equal(pthread_create(&thread, NULL, say_once, said), 0);
    pthread_join(thread, NULL);
    assert_int_equal(said[0], 1);
}

/* Without a limit it is the device that has no more to give. */
static void test_small_device(void **state)
{
    (void)state;
    kiln_sim_control_fn control = core_on("sim") ? sim_switch() : NULL;
    if (!control)
        skip_because("about a simulated device");
    kiln_manual_seed(7);
    kiln_module *net = deep_mlp(false);
    kiln_optim *opt = kiln_optim_adamw(kiln_parameters(net), .lr = 1e-2);
    kiln_plan_info plain, info;
    kiln_step {
        write_step(&networks[0], net, opt, KILN_F32, 0, IN_STEP);
        assert_true(kiln_plan_pending(&plain));
        kiln_memory_trim(kiln_default_device());
        control(0, KILN_SIM_MEMORY, (int64_t)(taken() + (uint64_t)plain.peak_bytes * 7 / 10));
    }
    control(0, KILN_SIM_MEMORY, 0);
    if (!kiln_ok())
        fail_msg("%s", kiln_last_error()->message);
    assert_true(kiln_plan_last(&info));
    assert_true(info.recomputed > 0 && info.peak_bytes <= plain.peak_bytes * 7 / 10);
    kiln_optim_free(opt);
    kiln_module_free(net);
}

/* Each allocation fails in turn: an error, and the next step is as if nothing had happened. */
static void test_allocations(void **state)
{
    (void)state;
    uint64_t good, bits;
    depth = 2;
    good = 0;
    for (int64_t n = 0, reached = 1; reached; n += 1 + n / 16) {
        kiln_plan_cache_set_capacity(0);
        kiln_manual_seed(7);
        kiln_module *net = deep_mlp(false);
        kiln_optim *opt = kiln_optim_adamw(kiln_parameters(net), .lr = 1e-2);
        uint64_t before = digest(net);
        for (int turn = 0; turn < 2; turn++) {
            kiln_manual_seed(11); /* dropout draws the same again */
            kiln_step {
                kiln_plan_info plain;
                write_step(&networks[0], net, opt, KILN_F32, 0, IN_STEP);
                assert_true(kiln_plan_pending(&plain));
                limit(taken() + (uint64_t)plain.peak_bytes * 80 / 100);
                uint64_t count = kiln_alloc_count();
                if (!turn)
                    kiln_alloc_fail_after(n);
                kiln_eval();
                kiln_alloc_fail_after(-1);
                reached = turn ? reached : kiln_alloc_count() - count > (uint64_t)n;
            }
            limit(0);
            if (kiln_ok())
                break;
            expect_error(KILN_E_MEMORY, NULL, NULL);
            assert_int_equal(digest(net), before);
        }
        bits = digest(net);
        good = good ? good : bits;
        assert_int_equal(bits, good);
        kiln_optim_free(opt);
        kiln_module_free(net);
    }
    kiln_plan_cache_set_capacity(INT64_MAX);
    depth = 6;
}

int main(void)
{
    const struct CMUnitTest tests[] = {memory_test(test_sweep),      memory_test(test_runs),
                                       memory_test(test_same_plan),  memory_test(test_switched_off),
                                       memory_test(test_notice),     memory_test(test_small_device),
                                       memory_test(test_allocations)};
    return CORE_MAIN(tests);
}
