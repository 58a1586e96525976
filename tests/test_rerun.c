/* Steps of kiln_fit that are run again without being recorded leave nothing to be seen: weights, averages, the
 * optimizer's state, history and log are those of a run that records every step (KILN_RERUN=0), to the bit, whatever
 * comes in between. How many steps were recorded shows in the plan cache, which is asked for each of them. */
#include <unistd.h>
#include "core/alloc.h"
#include "support/optim_with.h"
#include "support/core.h"
#include "support/train.h"

/* ctest: name=eager env=KILN_EAGER=1 */
/* ctest: name=apart env=KILN_SIM_APART=1 */

enum { SAMPLES = 250, BATCH = 4, BATCHES = 63, EPOCHS = 3, CLASSES = 5 }; /* the last batch has 2 samples */

static char folder[64];

static int before(void **state)
{
    snprintf(folder, sizeof folder, "%s/kiln-rerun-XXXXXX", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    return !mkdtemp(folder) || core_before(state);
}

static int after(void **state)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    unsetenv("KILN_RERUN");
    return system(command) || core_after(state);
}

static const char *in_folder(const char *name, bool repeats)
{
    static char paths[8][128];
    static int turn;
    char *path = paths[turn++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s-%d", folder, name, repeats);
    return path;
}

/* ---- A run ---- */

typedef struct set {
    int64_t seed, bad_label; /* the sample that has one; 0: none */
} set;

typedef struct run {
    set samples[2];
    kiln_dataset *train, *test;
    kiln_module *net;
    kiln_optim *optim;
    kiln_schedule *schedule;
    kiln_ema *ema;
    kiln_scaler *scaler;
    kiln_history history;
    int64_t recorded; /* steps, and batches of validation */
    kiln_error error;
} run;

typedef struct plan {
    const char *optimizer;
    kiln_optim_options options;
    int64_t bad_label; /* the sample that has it; 0: none */
    double dropout;
    bool own_module, own_loss, norm, validate;
    int64_t accumulate, save_steps, limit;
    bool checkpoint, resume, no_shuffle;
    bool half;                          /* f16 with a scale that is too large every now and then */
    bool (*step)(run *r, int64_t step); /* called after each */
} plan;

static bool read_sample(void *context, int64_t index, void *x, void *y)
{
    const set *s = context;
    uint32_t state = (uint32_t)(index * 64 + s->seed);
    for (int i = 0; i < 6; i++)
        ((float *)x)[i] = test_number(&state);
    *(int64_t *)y = s->bad_label && s->bad_label == index ? 77 : index * (index + s->seed) % CLASSES;
    return true;
}

static kiln_dataset *make_set(set *s)
{
    kiln_data_info info = {.name = "numbers",
                           .count = SAMPLES,
                           .x = {.dtype = KILN_F32, .ndim = 1, .shape = {6}},
                           .y = {.dtype = KILN_I64},
                           .repeatable = true};
    kiln_dataset *d = kiln_data_generator(info, read_sample, s);
    assert_non_null(d);
    return d;
}

static kiln_tensor *twice(kiln_module *m, kiln_tensor *x, void *context)
{
    (void)m;
    (void)context;
    return kiln_mul_scalar(x, 2);
}

static kiln_tensor *own_loss(kiln_tensor *output, kiln_tensor *x, kiln_tensor *y, void *context)
{
    (void)x;
    (void)context;
    return kiln_cross_entropy(output, y);
}

static void begin(run *r, const plan *p)
{
    *r = (run){.samples = {{1, p->bad_label}, {2, 0}}};
    r->train = make_set(&r->samples[0]);
    r->test = make_set(&r->samples[1]);
    kiln_manual_seed(7);
    kiln_module *middle = p->dropout > 0  ? kiln_nn_dropout(p->dropout)
                          : p->own_module ? kiln_module_new("Twice", twice, NULL, NULL)
                          : p->norm       ? kiln_nn_batch_norm(12)
                                          : kiln_nn_relu();
    r->net = kiln_nn_sequential(kiln_nn_linear(6, 12), middle, kiln_nn_linear(12, CLASSES));
    assert_true(kiln_module_to(r->net, kiln_default_device()));
    r->optim = optim_with(p->optimizer ? p->optimizer : "adam", kiln_parameters(r->net), p->options);
    r->schedule = kiln_schedule_warmup(r->optim, 20, 0, kiln_schedule_cosine(r->optim, 150, 0.1));
    r->ema = kiln_ema_new(r->net, 0.9);
    r->scaler = p->half ? kiln_scaler_new(.init_scale = 0x1p24, .growth_interval = 8) : NULL;
    assert_true(kiln_ok());
}

typedef struct caller {
    run *r;
    bool (*step)(run *r, int64_t step);
} caller;

static bool after_step(void *context, int64_t epoch, int64_t step)
{
    caller *c = context;
    (void)epoch;
    return c->step(c->r, step);
}

static void go(run *r, const plan *p, bool repeats)
{
    if (repeats)
        unsetenv("KILN_RERUN");
    else
        setenv("KILN_RERUN", "0", 1);
    caller c = {r, p->step};
    kiln_callback callback = {.step = p->step ? after_step : NULL, .context = &c};
    kiln_plan_cache plans = kiln_plan_cache_stats();
    r->history = kiln_fit(r->net, r->train, .epochs = EPOCHS, .batch = BATCH, .accumulate = p->accumulate,
                          .optim = r->optim, .validate = p->validate ? r->test : NULL, .schedule = r->schedule,
                          .ema = r->ema, .clip_norm = 2, .seed = 11, .loss_fn = p->own_loss ? own_loss : NULL,
                          .metrics = KILN_ACCURACY | KILN_TOP5, .limit = p->limit, .no_shuffle = p->no_shuffle,
                          .checkpoint = p->checkpoint ? in_folder("run", repeats) : NULL, .save_steps = p->save_steps,
                          .resume = p->resume, .log = in_folder("log", repeats), .callbacks = &callback,
                          .ncallbacks = 1, .autocast = p->half ? KILN_F16 : 0, .scaler = r->scaler);
    r->recorded = kiln_plan_cache_stats().hits + kiln_plan_cache_stats().misses - plans.hits - plans.misses;
    r->error = *kiln_last_error();
    kiln_error_clear();
}

static void end(run *r)
{
    kiln_history_free(&r->history);
    kiln_ema_free(r->ema);
    kiln_scaler_free(r->scaler);
    kiln_schedule_free(r->schedule);
    kiln_optim_free(r->optim);
    kiln_module_free(r->net);
    kiln_data_free(r->train);
    kiln_data_free(r->test);
    *r = (run){0};
}

/* ---- Equal to the bit ---- */

/* Lines of a log without the times at their ends. */
static void cut_times(char *line)
{
    char *end = strstr(line, strstr(line, "\"run\"") ? ", \"threads\"" : ", \"seconds\"");
    line[end ? (size_t)(end - line) : strcspn(line, "\n")] = '\0';
}

static void assert_same_logs(const char *a, const char *b)
{
    FILE *fa = fopen(a, "r"), *fb = fopen(b, "r");
    char la[1024], lb[1024];
    assert_true(fa && fb);
    while (fgets(la, sizeof la, fa)) {
        assert_non_null(fgets(lb, sizeof lb, fb));
        cut_times(la);
        cut_times(lb);
        assert_string_equal(la, lb);
    }
    assert_null(fgets(lb, sizeof lb, fb));
    fclose(fa);
    fclose(fb);
}

static void assert_same_runs(run *a, run *b)
{
    assert_int_equal(a->error.code, b->error.code);
    assert_string_equal(a->error.operation, b->error.operation);
    assert_int_equal(kiln_optim_steps(a->optim), kiln_optim_steps(b->optim));
    core_same_tensors(kiln_state(a->net), kiln_state(b->net));
    core_same_tensors(kiln_ema_state(a->ema), kiln_ema_state(b->ema));
    core_same_tensors(kiln_optim_state(a->optim), kiln_optim_state(b->optim));
    assert_int_equal(a->history.count, b->history.count);
    assert_int_equal(a->history.stop, b->history.stop);
    for (int64_t i = 0; i < a->history.count; i++) {
        assert_memory_equal(&a->history.epochs[i].train, &b->history.epochs[i].train, offsetof(kiln_result, seconds));
        assert_memory_equal(&a->history.epochs[i].test.loss, &b->history.epochs[i].test.loss, sizeof(double));
        assert_true(a->history.epochs[i].lr == b->history.epochs[i].lr);
        assert_true(a->history.epochs[i].scale == b->history.epochs[i].scale);
        assert_int_equal(a->history.epochs[i].skipped, b->history.epochs[i].skipped);
    }
    assert_same_logs(in_folder("log", false), in_folder("log", true));
}

/* Batches lie on the device, and steps are not run operation by operation. */
static bool can_repeat(void)
{
    return kiln_default_device() != KILN_CPU && !core_eager() && !getenv("KILN_SIM_APART");
}

/* Both ways; how many steps fewer were recorded. */
static int64_t compare(const plan *p)
{
    run a, b;
    begin(&a, p);
    go(&a, p, false);
    begin(&b, p);
    go(&b, p, true);
    assert_same_runs(&a, &b);
    int64_t saved = a.recorded - b.recorded;
    end(&a);
    end(&b);
    return saved;
}

static void assert_saves(const plan *p, int64_t least)
{
    int64_t saved = compare(p);
    if (can_repeat() && saved < least)
        fail_msg("only %lld steps were not recorded", (long long)saved);
}

static void assert_records_all(const plan *p)
{
    assert_int_equal(compare(p), 0);
}

/* ---- Undisturbed ---- */

/* Of each epoch the first two steps and the last, shorter one are recorded. */
static void test_all_optimizers(void **state)
{
    (void)state;
    static const char *const names[] = {"sgd", "adam", "adamw", "rmsprop", "adagrad", "lion", "nadam", "adadelta"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        plan p = {.optimizer = names[i], .norm = i % 2, .validate = i < 2};
        p.options.momentum = i == 0 ? 0.9 : 0;
        p.options.lr_decay = i == 4 ? 0.01 : 0;
        p.options.weight_decay = 0.01;
        assert_saves(&p, EPOCHS * (BATCHES - 4));
    }
}

/* The same where the device leaves steps out. */
static void test_scaled(void **state)
{
    (void)state;
    static const char *const names[] = {"sgd",  "adam",  "adamw",    "rmsprop", "adagrad",
                                        "lion", "nadam", "adadelta", "radam"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        plan p = {.optimizer = names[i], .norm = i % 2, .validate = i < 2, .half = true};
        p.options.momentum = i == 0 ? 0.9 : 0;
        p.options.lr_decay = i == 4 ? 0.01 : 0;
        assert_saves(&p, EPOCHS * (BATCHES - 4));
    }
    run r;
    plan p = {.half = true};
    begin(&r, &p);
    go(&r, &p, true);
    int64_t skipped = r.history.epochs[EPOCHS - 1].skipped;
    assert_true(skipped > 9 && skipped < EPOCHS * BATCHES / 2);
    assert_int_equal(kiln_optim_steps(r.optim), EPOCHS * BATCHES - skipped);
    assert_int_equal(r.history.steps, EPOCHS * BATCHES);
    end(&r);
}

static void test_what_always_records(void **state)
{
    (void)state;
    assert_records_all(&(plan){.dropout = 0.3});
    assert_records_all(&(plan){.own_module = true});
    assert_records_all(&(plan){.own_loss = true});
    assert_records_all(&(plan){.accumulate = 3});
    assert_records_all(&(plan){.optimizer = "lamb"}); /* compositions: their numbers are nobody's to foretell */
    assert_records_all(&(plan){.optimizer = "adafactor"});
    assert_records_all(&(plan){.optimizer = "muon"});
}

static void test_resumes(void **state)
{
    (void)state;
    run parts[2], whole;
    plan p = {.checkpoint = true, .resume = true, .save_steps = 17, .validate = true}, all = {.validate = true};
    begin(&whole, &all);
    go(&whole, &all, true);
    for (int repeats = 0; repeats < 2; repeats++)
        for (p.limit = 40; p.limit <= 4 * BATCHES; p.limit += 50) {
            if (p.limit > 40)
                end(&parts[repeats]);
            begin(&parts[repeats], &p);
            go(&parts[repeats], &p, repeats);
            assert_int_equal(parts[repeats].error.code, KILN_OK);
        }
    assert_same_runs(&parts[0], &parts[1]);
    core_same_tensors(kiln_state(parts[1].net), kiln_state(whole.net));
    core_same_tensors(kiln_optim_state(parts[1].optim), kiln_optim_state(whole.optim));
    end(&parts[0]);
    end(&parts[1]);
    end(&whole);
}

/* ---- Disturbed from outside ---- */

static kiln_tensor *weight(run *r)
{
    return kiln_module_tensor(r->net, "0.weight");
}

static bool set_rate(run *r, int64_t step)
{
    return step % 10 || kiln_optim_set_lr(r->optim, 0, 1e-3 * (double)step);
}

static bool write_weight(run *r, int64_t step)
{
    float values[72];
    for (int i = 0; i < 72; i++)
        values[i] = (float)(i - 36) / 72;
    return step % 30 != 7 || kiln_write(weight(r), values, sizeof values);
}

static bool assign_weight(run *r, int64_t step)
{
    bool ok = true;
    if (step % 30 == 7)
        kiln_step
            kiln_no_grad
                ok = kiln_assign(weight(r), kiln_mul_scalar(weight(r), 0.5));
    return ok;
}

static bool freeze(run *r, int64_t step)
{
    return step % 20 || kiln_module_freeze(kiln_module_child(r->net, "0"), step % 40 == 20);
}

static bool change_mode(run *r, int64_t step)
{
    if (step % 20 == 0)
        kiln_module_train(kiln_module_child(r->net, "1"), step % 40 != 20);
    return true;
}

static kiln_tensor *halve(kiln_tensor *g, void *context)
{
    (void)context;
    return kiln_mul_scalar(g, 0.5);
}

static bool hook(run *r, int64_t step)
{
    return step % 20 || kiln_set_grad_hook(weight(r), step % 40 == 20 ? halve : NULL, NULL);
}

static bool leave_gradient(run *r, int64_t step)
{
    bool ok = true;
    if (step % 20 == 0)
        kiln_step
            ok = kiln_backward(kiln_sum_all(kiln_mul(weight(r), weight(r))));
    return ok;
}

static bool move_there_and_back(run *r, int64_t step)
{
    return step % 20 || (kiln_module_to(r->net, KILN_CPU) && kiln_module_to(r->net, kiln_default_device()));
}

static bool step_too(run *r, int64_t step)
{
    if (step % 20 == 0)
        kiln_step {
            kiln_backward(kiln_sum_all(kiln_mul(weight(r), weight(r))));
            kiln_optim_step(r->optim);
            kiln_zero_grad(r->optim);
        }
    return kiln_ok();
}

static bool swap_averages(run *r, int64_t step)
{
    return step % 20 || (kiln_ema_swap(r->ema) && kiln_eval());
}

static bool look_elsewhere(run *r, int64_t step)
{
    if (step % 20 == 0) {
        kiln_set_num_threads(step % 40 == 0 ? 1 : 2);
        kiln_set_tf32(step % 40 == 0);
        kiln_result e = kiln_evaluate(r->net, r->test);
        kiln_result_free(&e);
    }
    return kiln_ok();
}

static void test_callbacks(void **state)
{
    (void)state;
    int threads = kiln_get_num_threads();
    bool tf32 = kiln_get_tf32();
    static bool (*const all[])(run *, int64_t) = {
        set_rate,       write_weight,        assign_weight, freeze,        change_mode,    hook,
        leave_gradient, move_there_and_back, step_too,      swap_averages, look_elsewhere,
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        /* With a hook nothing is tried again before the next epoch. */
        assert_saves(&(plan){.step = all[i], .norm = true}, all[i] == hook ? 20 : EPOCHS * (BATCHES - 20));
        kiln_set_num_threads(threads);
        kiln_set_tf32(tf32);
    }
}

/* ---- Errors ---- */

static void test_bad_label(void **state)
{
    (void)state;
    kiln_sim_control_fn control = sim_switch();
    for (int slow = 0; slow < 2; slow++) {
        if (control)
            control(0, KILN_SIM_SLOW_RUNS, slow * 500);
        compare(&(plan){.bad_label = 101});
        compare(&(plan){.bad_label = 130, .no_shuffle = true});
        if (control)
            control(0, KILN_SIM_SLOW_RUNS, 0);
    }
}

static bool tighten(run *r, int64_t step)
{
    kiln_memory_stats stats;
    (void)r;
    if (step == 30 && kiln_memory_get_stats(kiln_default_device(), &stats))
        kiln_memory_set_limit(kiln_default_device(), stats.in_use + stats.overhead + 64);
    return true;
}

static void test_memory_limit(void **state)
{
    (void)state;
    run r[2];
    plan p = {.step = tighten};
    for (int repeats = 0; repeats < 2; repeats++) {
        begin(&r[repeats], &p);
        go(&r[repeats], &p, repeats);
        kiln_memory_set_limit(kiln_default_device(), 0);
        assert_int_equal(r[repeats].error.code, KILN_E_MEMORY);
        assert_string_equal(r[repeats].error.operation, "step");
        assert_int_equal(kiln_optim_steps(r[repeats].optim), 30);
    }
    assert_same_runs(&r[0], &r[1]);
    end(&r[0]);
    end(&r[1]);
}

/* Host memory that is not there, wherever it is asked for, is an error of the step or none at all. */
static void test_no_host_memory(void **state)
{
    (void)state;
    plan p = {.limit = 12};
    run whole;
    begin(&whole, &p);
    go(&whole, &p, true);
    for (int64_t n = 0, failed = 1; failed; n += 1 + n / 40) {
        run r;
        begin(&r, &p);
        kiln_alloc_fail_after(n);
        go(&r, &p, true);
        kiln_alloc_fail_after(-1);
        failed = r.error.code != KILN_OK;
        assert_true(!failed || r.error.code == KILN_E_MEMORY);
        if (!failed && r.history.steps == 12)
            core_same_tensors(kiln_state(r.net), kiln_state(whole.net));
        end(&r);
    }
    end(&whole);
}

#define run_on(f) cmocka_unit_test_setup_teardown(f, before, after)

int main(void)
{
    const struct CMUnitTest tests[] = {
        run_on(test_all_optimizers), run_on(test_scaled),         run_on(test_what_always_records),
        run_on(test_resumes),        run_on(test_callbacks),      run_on(test_bad_label),
        run_on(test_memory_limit),   run_on(test_no_host_memory),
    };
    return CORE_MAIN(tests);
}
