/* Steps that do not fit into memory as they are: values are computed a second time until they do. Whatever the limit,
 * the bits are those of a step without one, what is planned keeps the limit, and a smaller limit never takes more. */
#include "support/again.h"

/* ctest: name=threads env=KILN_NUM_THREADS=2 */

static uint64_t in_use(void)
{
    kiln_memory_stats stats;
    assert_true(kiln_memory_get_stats(kiln_default_device(), &stats));
    return stats.in_use;
}

static void limit(uint64_t bytes)
{
    assert_true(kiln_memory_set_limit(kiln_default_device(), bytes));
}

/* ---- Planning ---- */

/* The step as it is, and within a share of what that takes; false if that cannot be. */
static bool plan_within(const network *n, kiln_module *net, kiln_optim *opt, kiln_dtype dtype, uint64_t bytes,
                        kiln_plan_info *info)
{
    bool ok = false;
    kiln_step {
        write_step(n, net, opt, dtype, 0, IN_STEP);
        ok = bytes ? kiln_plan_pending_within(bytes, info) : kiln_plan_pending(info);
        if (!ok)
            expect_error(KILN_E_MEMORY, "plan_pending_within", "cannot be made to fit");
        kiln_discard();
    }
    assert_true(kiln_ok());
    return ok;
}

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
                limit(in_use() + room);
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

int main(void)
{
    const struct CMUnitTest tests[] = {core_test(test_sweep), core_test(test_runs)};
    return CORE_MAIN(tests);
}
