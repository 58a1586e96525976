/* What is on its way to the host while the device works on: copies that are begun and waited for later, and the moves
 * of a meter's sums. What becomes of them in a run: test_fit_collect.c. */
#include "core/alloc.h"
#include "core/clock.h"
#include "support/core.h"
#include "support/skip.h"
#include "support/train.h"
#include "train/metrics.h"

/* ctest: name=eager env=KILN_EAGER=1 */

/* A simulated device that takes so many microseconds for a run; other devices stay as they are. */
static void slow_down(int64_t microseconds)
{
    kiln_sim_control_fn control = sim_switch();
    if (control)
        control(0, KILN_SIM_SLOW_RUNS, microseconds);
}

static int after(void **state)
{
    slow_down(0);
    return core_after(state);
}

/* ---- Copies ---- */

static void add_one(kiln_tensor *t)
{
    kiln_step
        assert_true(kiln_assign(t, kiln_add_scalar(t, 1)));
}

/* What is copied is what was there when the copy was begun. */
static void test_copies(void **state)
{
    (void)state;
    enum { COPIES = 20 };
    kiln_device device = kiln_default_device();
    kiln_staging staging;
    uint64_t tickets[COPIES];
    slow_down(300);
    assert_true(kiln_staging_take(device, COPIES * 2 * sizeof(float), &staging));
    float *got = staging.memory;
    kiln_scope {
        kiln_tensor *t = kiln_of_f32(((float[]){0, 100}), 2);
        for (int i = 0; i < COPIES; i++) {
            add_one(t);
            assert_true(kiln_copy_out_later(device, got + 2 * i, t->storage->address, 2 * sizeof(float), &tickets[i]));
        }
        add_one(t);
        for (int i = COPIES - 1; i >= 0; i--) { /* the order does not matter, nor asking twice */
            assert_true(kiln_copied_out(device, tickets[i]) && kiln_copied_out(device, tickets[i]));
            assert_true(got[2 * i] == (float)i + 1 && got[2 * i + 1] == (float)i + 101);
        }
        assert_f32(t, COPIES + 1, COPIES + 101);
    }
    kiln_staging_give(device, &staging);
}

/* The host does not wait for what was given after the copy. */
static void test_waits_for_no_more(void **state)
{
    (void)state;
    if (!core_on("sim"))
        skip_because("about the pace of simulated devices");
    float got = 0;
    uint64_t ticket;
    kiln_scope {
        kiln_tensor *t = kiln_of_f32(((float[]){4}), 1);
        add_one(t);
        assert_true(kiln_device_wait(t->device));
        slow_down(50000);
        assert_true(kiln_copy_out_later(t->device, &got, t->storage->address, sizeof got, &ticket));
        double begun = kiln_seconds();
        for (int i = 0; i < 10; i++)
            add_one(t);
        assert_true(kiln_copied_out(t->device, ticket));
        assert_true(kiln_seconds() - begun < 0.4);
        assert_true(got == 5);
        assert_true(kiln_device_wait(t->device));
        assert_true(kiln_seconds() - begun >= 0.5);
    }
}

/* A bad index in a run before the copy is told with the copy, one behind it is not. */
static void test_faults(void **state)
{
    (void)state;
    float got[2] = {0};
    uint64_t tickets[2] = {0};
    if (!core_on("sim") && !core_on("cuda"))
        skip_because("about devices that run beside the host: on others a run has failed when it returns");
    kiln_scope {
        kiln_device device = kiln_default_device();
        kiln_tensor *table = kiln_of_f32(((float[]){1, 2, 3}), 3), *bad = kiln_of_i64(((int64_t[]){7}), 1);
        kiln_tensor *t = kiln_of_f32(((float[]){4}), 1);
        assert_true(kiln_device_wait(device));
        slow_down(20000);
        assert_true(kiln_copy_out_later(device, &got[0], t->storage->address, sizeof *got, &tickets[0]));
        kiln_step
            kiln_assign(t, kiln_index_select(table, 0, bad));
        assert_true(kiln_ok());
        assert_true(kiln_copy_out_later(device, &got[1], t->storage->address, sizeof *got, &tickets[1]));
        assert_true(kiln_copied_out(device, tickets[0]));
        assert_true(got[0] == 4);
        assert_false(kiln_copied_out(device, tickets[1]));
        expect_error(KILN_E_INDEX, "index_select", "7");
        assert_f32(t, 4);
        assert_false(kiln_copied_out(device, tickets[1])); /* still not what it should be, though it was told */
        expect_error(KILN_E_STATE, NULL, "failed before");
        assert_true(kiln_copied_out(device, tickets[0]));
        assert_true(kiln_copy_out_later(device, &got[1], t->storage->address, sizeof *got, &tickets[1]));
        assert_true(kiln_copied_out(device, tickets[1]) && got[1] == 4);
    }
}

/* However many copies are under way, each knows what became of what it was to copy. */
static void test_many_copies(void **state)
{
    (void)state;
    enum { MANY = 200, BEFORE = 10 };
    static float got[MANY];
    uint64_t tickets[MANY];
    if (!core_on("sim") && !core_on("cuda"))
        skip_because("about devices that run beside the host: on others a run has failed when it returns");
    kiln_scope {
        kiln_device device = kiln_default_device();
        kiln_tensor *table = kiln_of_f32(((float[]){1, 2, 3}), 3), *bad = kiln_of_i64(((int64_t[]){7}), 1);
        kiln_tensor *t = kiln_of_f32(((float[]){4}), 1);
        assert_true(kiln_device_wait(device));
        slow_down(100000); /* so that the step is given as a whole, also eagerly */
        for (int i = 0; i < MANY; i++) {
            if (i == BEFORE)
                kiln_step
                    kiln_assign(t, kiln_index_select(table, 0, bad));
            got[i] = 0;
            assert_true(kiln_copy_out_later(device, &got[i], t->storage->address, sizeof *got, &tickets[i]));
        }
        for (int i = 0; i < BEFORE; i++)
            assert_true(kiln_copied_out(device, tickets[i]) && got[i] == 4);
        assert_false(kiln_copied_out(device, tickets[MANY - 1]));
        expect_error(KILN_E_INDEX, "index_select", "7");
        for (int i = MANY - 1; i >= BEFORE; i--) {
            assert_false(kiln_copied_out(device, tickets[i]));
            expect_error(KILN_E_STATE, NULL, "failed before");
        }
        assert_true(kiln_copied_out(device, tickets[0]));
    }
}

/* ---- The meter ---- */

static const kiln_task task = {.metrics = KILN_ACCURACY, .labels = true, .classes = 2, .places = 1, .elements = 2};

/* A batch of two samples with this loss, of which the first is told right. */
static bool add_batch(kiln_meter *m, float loss)
{
    bool done = false;
    kiln_step {
        kiln_tensor *output = kiln_of_f32(((float[]){1, 0, 1, 0}), 2, 2), *y = kiln_of_i64(((int64_t[]){0, 1}), 2);
        kiln_batch_loss mean = {.value = kiln_tensor_new(&loss, KILN_F32, 0, NULL, kiln_default_device())};
        done = kiln_meter_add(m, &mean, output, NULL, y, 2);
    }
    return done && kiln_ok();
}

static void assert_totals(const kiln_totals *t, double loss, int64_t samples)
{
    assert_true(t->sum[KILN_SUM_LOSS] == loss);
    assert_true(t->sum[KILN_SUM_CORRECT] == (double)samples / 2);
    assert_true(t->sum[KILN_SUM_TOP5] == 0 && t->sum[KILN_SUM_ABSOLUTE] == 0);
    assert_int_equal(t->samples, samples);
}

static void test_meter(void **state)
{
    (void)state;
    kiln_meter m;
    kiln_totals t;
    slow_down(500);
    assert_true(kiln_meter_init(&m, &task, kiln_default_device(), false));
    assert_true(kiln_meter_read(&m, &t));
    assert_totals(&t, 0, 0);
    assert_true(add_batch(&m, 1) && add_batch(&m, 2) && kiln_meter_move(&m));
    assert_true(add_batch(&m, 3) && kiln_meter_move(&m));
    assert_true(kiln_meter_read(&m, &t)); /* both are under way */
    assert_totals(&t, 12, 6);
    assert_true(add_batch(&m, 4));
    assert_true(kiln_meter_read(&m, &t));
    assert_totals(&t, 20, 8);
    assert_true(kiln_meter_moved(&m, &t));
    assert_totals(&t, 6, 4);
    assert_true(kiln_meter_move(&m) && add_batch(&m, 5));
    assert_true(kiln_meter_moved(&m, &t));
    assert_totals(&t, 12, 6);
    assert_true(kiln_meter_moved(&m, &t));
    assert_totals(&t, 20, 8);
    assert_true(kiln_meter_read(&m, &t));
    assert_totals(&t, 30, 10);
    assert_true(kiln_meter_collect(&m) && add_batch(&m, 1) && kiln_meter_collect(&m) && add_batch(&m, 2));
    assert_true(kiln_meter_read(&m, &t));
    assert_totals(&t, 36, 14);
    kiln_meter_reset(&m); /* with a move under way */
    assert_true(add_batch(&m, 7) && kiln_meter_move(&m) && add_batch(&m, 8) && kiln_meter_moved(&m, &t));
    assert_totals(&t, 14, 2);
    assert_true(kiln_meter_move(&m));
    kiln_meter_free(&m);
}

static void test_memory_runs_out(void **state)
{
    (void)state;
    for (int n = 0, done = 0; !done; n++) {
        kiln_meter m;
        kiln_totals t;
        kiln_alloc_fail_after(n);
        done = kiln_meter_init(&m, &task, kiln_default_device(), false) && add_batch(&m, 1) && kiln_meter_move(&m) &&
               add_batch(&m, 2) && kiln_meter_collect(&m) && kiln_meter_read(&m, &t);
        kiln_alloc_fail_after(-1);
        assert_true(done == kiln_ok());
        if (done)
            assert_totals(&t, 6, 4);
        kiln_meter_free(&m);
        kiln_error_clear();
        assert_true(n < 20000);
    }
}

#define slow_test(f) cmocka_unit_test_setup_teardown(f, core_before, after)

int main(void)
{
    const struct CMUnitTest tests[] = {
        slow_test(test_copies), slow_test(test_waits_for_no_more), slow_test(test_faults), slow_test(test_many_copies),
        slow_test(test_meter),  slow_test(test_memory_runs_out),
    };
    return CORE_MAIN(tests);
}
