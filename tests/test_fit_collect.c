/* Sums that are moved to the host while the device works on leave nothing to be seen in a run: the lines of its log are
 * those of a run that reads at once, in the same order, also where it is stopped, resumed, or fails. */
#include <unistd.h>
#include "support/core.h"
#include "support/skip.h"
#include "support/train.h"
#include "train/metrics.h"

/* A simulated device that takes so many microseconds for a run; other devices stay as they are. */
static void slow_down(int64_t microseconds)
{
    kiln_sim_control_fn control = sim_switch();
    if (control)
        control(0, KILN_SIM_SLOW_RUNS, microseconds);
}

enum { STEPS = 230, SAMPLES = 2 * STEPS, CLASSES = 3 }; /* an epoch's; batches of two */

static char folder[64];

static int before(void **state)
{
    snprintf(folder, sizeof folder, "%s/kiln-collect-XXXXXX", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    return !mkdtemp(folder) || core_before(state);
}

static int after(void **state)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    slow_down(0);
    return system(command) || core_after(state);
}

static const char *in_folder(const char *name)
{
    static char paths[4][128];
    static int turn;
    char *path = paths[turn++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

/* What is wrong with the data, at which step (from 1). */
typedef struct trouble {
    int64_t bad_label, bad_number, unreadable;
} trouble;

static bool read_sample(void *context, int64_t index, void *x, void *y)
{
    const trouble *t = context;
    int64_t step = index / 2 + 1;
    float *in = x;
    in[0] = (float)(index % 7) + 1;
    in[1] = step == t->bad_number ? -1 : (float)(index % 11) + 1;
    *(int64_t *)y = step == t->bad_label ? 77 : index % CLASSES;
    return step != t->unreadable;
}

static kiln_dataset *make_set(trouble *t)
{
    kiln_data_info info = {.name = "troubled",
                           .count = SAMPLES,
                           .x = {.dtype = KILN_F32, .ndim = 1, .shape = {2}},
                           .y = {.dtype = KILN_I64},
                           .repeatable = true};
    kiln_dataset *d = kiln_data_generator(info, read_sample, t);
    assert_non_null(d);
    return d;
}

static kiln_module *make_net(void)
{
    kiln_manual_seed(3);
    kiln_module *m = kiln_nn_linear(2, CLASSES);
    assert_true(kiln_module_to(m, kiln_default_device()));
    return m;
}

/* Cross-entropy, with nothing added to it where x is positive, and NaN where it is not. */
static kiln_tensor *brittle(kiln_tensor *output, kiln_tensor *x, kiln_tensor *y, void *context)
{
    (void)context;
    return kiln_add(kiln_cross_entropy(output, y), kiln_mul_scalar(kiln_mean_all(kiln_log(x)), 0));
}

/* The steps that have a line in a log, and their losses. Returns how many. */
static int read_log(const char *path, int64_t steps[], double losses[])
{
    FILE *file = fopen(path, "r");
    char line[1024];
    int n = 0;
    assert_non_null(file);
    while (fgets(line, sizeof line, file)) {
        long long step;
        double loss;
        if (sscanf(line, "{\"step\": %lld, \"loss\": %lf", &step, &loss) == 2) {
            steps[n] = step;
            losses[n++] = loss;
        }
    }
    fclose(file);
    return n;
}

static void assert_steps(const char *path, int count, const int64_t *want)
{
    int64_t steps[32];
    double losses[32];
    assert_int_equal(read_log(path, steps, losses), count);
    for (int i = 0; i < count; i++)
        assert_int_equal(steps[i], want[i]);
}

#define assert_lines(path, ...)                                                                                        \
    assert_steps(path, sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), (int64_t[]){__VA_ARGS__})

/* Two epochs beside the loop that a user would write, which reads the loss of every step. */
static void test_lines(void **state)
{
    (void)state;
    trouble none = {0};
    kiln_dataset *d = make_set(&none);
    kiln_module *a = make_net(), *b = make_net();
    slow_down(100);
    kiln_history h = kiln_fit(a, d, .epochs = 2, .batch = 2, .no_shuffle = true, .log = in_folder("log.jsonl"));
    assert_true(kiln_ok());
    slow_down(0);
    double loss[2 * STEPS];
    kiln_optim *o = kiln_optim_adam(kiln_parameters(b));
    kiln_loader *loader = kiln_loader_new(d, .batch = 2, .device = kiln_default_device());
    kiln_batch batch;
    for (int step = 0; step < 2 * STEPS;)
        while (kiln_loader_next(loader, &batch))
            kiln_step {
                kiln_zero_grad(o);
                kiln_tensor *l = kiln_cross_entropy(kiln_forward(b, batch.x), batch.y);
                kiln_backward(l);
                kiln_optim_step(o);
                loss[step++] = kiln_item(l);
            }
    assert_lines(in_folder("log.jsonl"), 50, 100, 150, 200, 280, 330, 380, 430);
    int64_t steps[32];
    double logged[32];
    int n = read_log(in_folder("log.jsonl"), steps, logged);
    for (int i = 0; i < n; i++) {
        double sum = 0;
        for (int64_t k = steps[i] - KILN_COLLECT_EVERY; k < steps[i]; k++)
            sum += loss[k];
        assert_near(logged[i], sum / KILN_COLLECT_EVERY, 1e-5);
    }
    kiln_history_free(&h);
    kiln_loader_free(loader);
    kiln_optim_free(o);
    kiln_module_free(a);
    kiln_module_free(b);
    kiln_data_free(d);
}

static bool stop_at(void *context, int64_t epoch, int64_t step)
{
    (void)epoch;
    return step != *(int64_t *)context;
}

/* Without a checkpoint, too, what was summed before a stop is in the log; resumed, the log is that of a whole run. */
static void test_stops(void **state)
{
    (void)state;
    trouble none = {0};
    kiln_dataset *d = make_set(&none);
    kiln_module *net = make_net();
    int64_t at = 120;
    kiln_callback callback = {.step = stop_at, .context = &at};
    slow_down(200);
    kiln_history h =
        kiln_fit(net, d, .batch = 2, .log = in_folder("log.jsonl"), .callbacks = &callback, .ncallbacks = 1);
    assert_int_equal(h.stop, KILN_STOP_ASKED);
    assert_lines(in_folder("log.jsonl"), 50, 100);
    kiln_history_free(&h);
    kiln_module_free(net);

    net = make_net();
    h = kiln_fit(net, d, .batch = 2, .log = in_folder("whole.jsonl"));
    kiln_history_free(&h);
    kiln_module_free(net);
    static const int64_t stops[] = {100, 155, 203};
    for (int part = 0; part < 4; part++) {
        net = make_net();
        at = part < 3 ? stops[part] : 0;
        h = kiln_fit(net, d, .batch = 2, .log = in_folder("parts.jsonl"), .checkpoint = in_folder("run"),
                     .save_steps = 35, .resume = true, .callbacks = &callback, .ncallbacks = 1);
        assert_true(kiln_ok());
        assert_int_equal(h.steps, at ? at : STEPS);
        kiln_history_free(&h);
        kiln_module_free(net);
    }
    int64_t steps[2][32];
    double losses[2][32];
    int n = read_log(in_folder("whole.jsonl"), steps[0], losses[0]);
    assert_int_equal(n, 4);
    assert_int_equal(read_log(in_folder("parts.jsonl"), steps[1], losses[1]), n);
    assert_memory_equal(steps[0], steps[1], (size_t)n * sizeof **steps);
    assert_memory_equal(losses[0], losses[1], (size_t)n * sizeof **losses);
    kiln_data_free(d);
}

/* A device that runs on finds a bad label late: nothing was changed since, and the log is as if it had been found at
 * once. */
static void test_bad_label(void **state)
{
    (void)state;
    static const int64_t slow[] = {0, 2000};
    for (int i = 0; i < 2; i++) {
        trouble bad = {.bad_label = 70}, none = {0};
        kiln_dataset *d = make_set(&bad), *good = make_set(&none);
        kiln_module *a = make_net(), *b = make_net();
        slow_down(slow[i]);
        kiln_history h = kiln_fit(a, d, .batch = 2, .no_shuffle = true, .log = in_folder("log.jsonl"));
        slow_down(0);
        assert_int_equal(h.stop, KILN_STOP_ERROR);
        assert_non_null(strstr(kiln_last_error()->message, "found in epoch 1 at batch "));
        expect_error(KILN_E_INDEX, "cross_entropy", "77");
        assert_true(h.steps >= 69 && h.steps <= 150);
        assert_lines(in_folder("log.jsonl"), 50);
        kiln_history_free(&h);
        h = kiln_fit(b, good, .batch = 2, .no_shuffle = true, .limit = 69);
        assert_true(kiln_ok());
        kiln_history_free(&h);
        for (int p = 0; p < 2; p++) {
            kiln_tensor *x = kiln_parameters(a).tensors[p], *y = kiln_parameters(b).tensors[p];
            assert_memory_equal(core_f32(x), core_f32(y), (size_t)kiln_numel(x) * sizeof(float));
        }
        kiln_module_free(a);
        kiln_module_free(b);
        kiln_data_free(d);
        kiln_data_free(good);
    }
}

static void expect_nan(trouble *bad, const char *message, int64_t most_steps)
{
    kiln_dataset *d = make_set(bad);
    kiln_module *net = make_net();
    slow_down(100);
    kiln_history h = kiln_fit(net, d, .batch = 2, .no_shuffle = true, .loss_fn = brittle, .log = in_folder("log.jsonl"),
                              .checkpoint = in_folder("nan"), .save_steps = 1000);
    assert_int_equal(h.stop, KILN_STOP_ERROR);
    assert_true(h.steps <= most_steps);
    expect_error(KILN_E_STATE, "fit", message);
    assert_int_not_equal(access(in_folder("nan/last"), F_OK), 0);
    kiln_history_free(&h);
    kiln_module_free(net);
    kiln_data_free(d);
}

/* The steps between which it happened are named, not those at which it was found. */
static void test_nan(void **state)
{
    (void)state;
    expect_nan(&(trouble){.bad_number = 60}, "became NaN in epoch 1, between steps 51 and 100", 150);
    assert_lines(in_folder("log.jsonl"), 50);
    expect_nan(&(trouble){.bad_number = 160}, "became NaN in epoch 1, between steps 151 and 200", STEPS);
    assert_lines(in_folder("log.jsonl"), 50, 100, 150);
    expect_nan(&(trouble){.bad_number = 220}, "became NaN in epoch 1, between steps 201 and 230", STEPS);
    assert_lines(in_folder("log.jsonl"), 50, 100, 150, 200);
}

/* An error that the host meets: the lines of the steps before it are written. */
static void test_unreadable(void **state)
{
    (void)state;
    trouble bad = {.unreadable = 130};
    kiln_dataset *d = make_set(&bad);
    kiln_module *net = make_net();
    slow_down(200);
    kiln_history h = kiln_fit(net, d, .batch = 2, .no_shuffle = true, .log = in_folder("log.jsonl"));
    assert_int_equal(h.stop, KILN_STOP_ERROR);
    assert_int_equal(h.steps, 129);
    assert_false(kiln_ok());
    kiln_error_clear();
    assert_lines(in_folder("log.jsonl"), 50, 100);
    kiln_history_free(&h);
    kiln_module_free(net);
    kiln_data_free(d);
}

/* A device that is lost with sums on their way gives them up. */
static void test_lost(void **state)
{
    (void)state;
    kiln_sim_control_fn control = sim_switch();
    if (!core_on("sim") || !control)
        skip_because("about faults of simulated devices");
    trouble none = {0};
    kiln_dataset *d = make_set(&none);
    kiln_module *net = make_net();
    static const int64_t jobs[] = {60, 110, 170};
    for (int i = 0; i < 3; i++) {
        control(0, KILN_SIM_LOSE_AFTER, jobs[i]);
        slow_down(i * 200);
        kiln_history h = kiln_fit(net, d, .batch = 2, .log = in_folder("log.jsonl"));
        control(0, KILN_SIM_LOSE_AFTER, -1);
        control(0, KILN_SIM_REVIVE, 0);
        assert_int_equal(h.stop, KILN_STOP_ERROR);
        expect_error(KILN_E_LOST, NULL, "sim:0");
        kiln_history_free(&h);
    }
    kiln_module_free(net);
    kiln_data_free(d);
}

#define run_on(f) cmocka_unit_test_setup_teardown(f, before, after)

int main(void)
{
    const struct CMUnitTest tests[] = {
        run_on(test_lines), run_on(test_stops),      run_on(test_bad_label),
        run_on(test_nan),   run_on(test_unreadable), run_on(test_lost),
    };
    return CORE_MAIN(tests);
}
