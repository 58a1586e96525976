/* Checkpoints of kiln_fit: a run that is stopped and resumed, in the middle of an epoch, with other threads and
 * workers, equals the one that was not, to the bit: weights, averages, history, log. */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <unistd.h>
#include "core/alloc.h"
#include "support/core.h"

/* ctest: name=threads env=KILN_NUM_THREADS=3 */

static char folder[64];

static const char *in_folder(const char *name)
{
    static char paths[8][128];
    static int turn;
    char *path = paths[turn++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

__attribute__((format(printf, 1, 2))) static void shell(const char *format, ...)
{
    char command[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(command, sizeof command, format, arguments);
    va_end(arguments);
    assert_int_equal(system(command), 0);
}

static int before(void **state)
{
    const char *where = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp"; /* where saving costs little */
    snprintf(folder, sizeof folder, "%s/kiln-fit-XXXXXX", where);
    return !mkdtemp(folder) || core_before(state);
}

static int after(void **state)
{
    shell("rm -rf '%s'", folder);
    return core_after(state);
}

/* ---- A run with everything in it that has a state ---- */

enum { SAMPLES = 250, BATCH = 4, EPOCHS = 3 }; /* 63 batches an epoch, the last one of 2 samples */

typedef struct run {
    kiln_dataset *train, *test;
    kiln_module *net;
    kiln_optim *optim;
    kiln_schedule *schedule;
    kiln_ema *ema;
    kiln_scaler *scaler;
    kiln_history history;
} run;

typedef struct plan {
    const char *folder, *log;
    int64_t epochs, accumulate, save_steps, limit;
    int workers, threads;
    bool resume, csv;
    bool half; /* f16 with a scale that is too large every now and then */
    kiln_callback callback;
    volatile sig_atomic_t *stop;
    FILE *progress;
} plan;

static void begin(run *r, uint64_t seed)
{
    int64_t labels[SAMPLES];
    for (int i = 0; i < SAMPLES; i++)
        labels[i] = i * i % 5;
    kiln_scope {
        r->train = kiln_data_tensors(core_data(1, KILN_SHAPE(SAMPLES, 2, 3)), kiln_of_i64(labels, SAMPLES));
        r->test = kiln_data_tensors(core_data(2, KILN_SHAPE(SAMPLES, 2, 3)), kiln_of_i64(labels, SAMPLES));
    }
    kiln_manual_seed(seed);
    r->net = kiln_nn_sequential(kiln_nn_flatten(), kiln_nn_linear(6, 12), kiln_nn_batch_norm(12), kiln_nn_relu(),
                                kiln_nn_dropout(0.3), kiln_nn_linear(12, 5));
    assert_true(kiln_module_to(r->net, kiln_default_device()));
    r->optim = kiln_optim_sgd(kiln_parameters(r->net), .lr = 0.05, .momentum = 0.9);
    r->schedule = kiln_schedule_warmup(r->optim, 20, 0, kiln_schedule_cosine(r->optim, 200, 0.1));
    r->ema = kiln_ema_new(r->net, 0.9);
    r->scaler = kiln_scaler_new(.init_scale = 0x1p24, .growth_interval = 8);
    assert_true(kiln_ok());
}

static void go(run *r, plan p)
{
    int threads = kiln_get_num_threads();
    if (p.threads)
        kiln_set_num_threads(p.threads);
    r->history =
        kiln_fit(r->net, r->train, .epochs = p.epochs ? p.epochs : EPOCHS, .batch = BATCH, .accumulate = p.accumulate,
                 .validate = r->test, .optim = r->optim, .schedule = r->schedule, .ema = r->ema, .clip_norm = 2,
                 .seed = 11, .augment = {.flip = true, .crop = 1}, .metrics = KILN_ACCURACY | KILN_TOP5,
                 .checkpoint = p.folder, .log = p.log, .save_steps = p.save_steps, .workers = p.workers,
                 .resume = p.resume, .callbacks = &p.callback, .ncallbacks = 1, .stop = p.stop, .limit = p.limit,
                 .progress = p.progress, .autocast = p.half ? KILN_F16 : 0, .scaler = p.half ? r->scaler : NULL);
    kiln_set_num_threads(threads);
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

static void assert_same_result(const kiln_result *a, const kiln_result *b)
{
    assert_memory_equal(&a->loss, &b->loss, sizeof a->loss);
    assert_memory_equal(&a->accuracy, &b->accuracy, sizeof a->accuracy);
    assert_memory_equal(&a->top5, &b->top5, sizeof a->top5);
    assert_int_equal(a->samples, b->samples);
}

/* Lines of a log without their ends, where everything stands that depends on time and threads. */
static void cut_times(char *line)
{
    char *end = strstr(line, strstr(line, "\"run\"") ? ", \"threads\"" : ", \"seconds\"");
    assert_true(end || !strstr(line, "\"epoch\""));
    line[end ? (size_t)(end - line) : strcspn(line, "\n")] = '\0';
}

static void assert_same_logs(const char *a, const char *b)
{
    FILE *fa = fopen(a, "r"), *fb = fopen(b, "r");
    char la[1024], lb[1024];
    int epochs = 0;
    assert_true(fa && fb);
    while (fgets(la, sizeof la, fa)) {
        assert_non_null(fgets(lb, sizeof lb, fb));
        epochs += strstr(la, "\"epoch\"") != NULL;
        cut_times(la);
        cut_times(lb);
        assert_string_equal(la, lb);
    }
    assert_null(fgets(lb, sizeof lb, fb));
    assert_true(epochs > 0);
    fclose(fa);
    fclose(fb);
}

static void assert_same_runs(run *a, run *b)
{
    core_same_tensors(kiln_state(a->net), kiln_state(b->net));
    core_same_tensors(kiln_ema_state(a->ema), kiln_ema_state(b->ema));
    core_same_tensors(kiln_optim_state(a->optim), kiln_optim_state(b->optim));
    assert_int_equal(a->history.count, b->history.count);
    assert_int_equal(a->history.steps, b->history.steps);
    assert_int_equal(a->history.best, b->history.best);
    for (int64_t i = 0; i < a->history.count; i++) {
        assert_same_result(&a->history.epochs[i].train, &b->history.epochs[i].train);
        assert_same_result(&a->history.epochs[i].test, &b->history.epochs[i].test);
        assert_true(a->history.epochs[i].lr == b->history.epochs[i].lr);
    }
}

static void assert_same_files(const char *a, const char *b)
{
    shell("cmp '%s' '%s'", a, b);
}

/* ---- Stopping and going on ---- */

static bool stop_here(void *context, int64_t epoch, int64_t step)
{
    (void)epoch;
    return step != *(int64_t *)context;
}

static void test_resumes_to_the_bit(void **state)
{
    (void)state;
    static const int64_t stops[] = {7, 50, 57, 63, 64, 120}; /* before, at and after a drain, around an epoch's end */
    run whole, parts;
    begin(&whole, 1);
    go(&whole, (plan){.folder = in_folder("whole"), .log = in_folder("whole.jsonl")});
    assert_int_equal(whole.history.stop, KILN_STOP_DONE);
    assert_int_equal(whole.history.steps, 63 * EPOCHS);
    for (size_t i = 0; i < sizeof stops / sizeof *stops; i++) {
        int64_t stop = stops[i];
        shell("rm -rf '%s' '%s'", in_folder("parts"), in_folder("parts.jsonl"));
        begin(&parts, 1);
        plan p = {.folder = in_folder("parts"),
                  .log = in_folder("parts.jsonl"),
                  .resume = true, /* nothing there yet: just starts */
                  .workers = 2,
                  .threads = 1,
                  .callback = {.step = stop_here, .context = &stop}};
        go(&parts, p);
        assert_int_equal(parts.history.stop, KILN_STOP_ASKED);
        assert_int_equal(parts.history.steps, stop);
        end(&parts);
        begin(&parts, 99); /* other weights: all comes from the checkpoint */
        p.callback = (kiln_callback){0};
        p.workers = 0;
        p.threads = 2;
        go(&parts, p);
        assert_true(kiln_ok());
        assert_int_equal(parts.history.stop, KILN_STOP_DONE);
        assert_same_runs(&whole, &parts);
        assert_same_logs(in_folder("whole.jsonl"), in_folder("parts.jsonl"));
        assert_same_files(in_folder("whole/best.safetensors"), in_folder("parts/best.safetensors"));
        end(&parts);
    }
    end(&whole);
}

/* Many small calls: each goes a few steps on. */
static void resume_often(bool half)
{
    run whole, part;
    begin(&whole, 1);
    go(&whole, (plan){.log = in_folder("whole.jsonl"), .accumulate = 3, .epochs = 2, .half = half});
    assert_int_equal(whole.history.steps, 21 * 2);
    for (int64_t next = 5;; next += 5) {
        begin(&part, next == 5 ? 1 : (uint64_t)next);
        go(&part, (plan){.folder = in_folder("part"),
                         .log = in_folder("part.jsonl"),
                         .accumulate = 3,
                         .epochs = 2,
                         .resume = true,
                         .half = half,
                         .workers = (int)(next % 3),
                         .callback = {.step = stop_here, .context = &next}});
        assert_true(kiln_ok());
        if (part.history.stop == KILN_STOP_DONE)
            break;
        end(&part);
    }
    if (half) {
        kiln_scaler_state a = kiln_scaler_get(whole.scaler), b = kiln_scaler_get(part.scaler);
        assert_true(a.skipped > 5 && a.scale == b.scale && a.growth_tracker == b.growth_tracker &&
                    a.skipped == b.skipped);
    }
    assert_same_runs(&whole, &part);
    assert_same_logs(in_folder("whole.jsonl"), in_folder("part.jsonl"));
    end(&part);
    end(&whole);
}

static void test_resumes_often(void **state)
{
    (void)state;
    resume_often(false);
}

static void test_resumes_scaled(void **state)
{
    (void)state;
    resume_often(true);
}

static bool copy_here(void *context, int64_t epoch, int64_t step)
{
    (void)epoch;
    if (step != *(int64_t *)context)
        return true;
    shell("cp -r '%s' '%s' && cp '%s' '%s'", in_folder("run"), in_folder("killed"), in_folder("run.jsonl"),
          in_folder("killed.jsonl"));
    return false;
}

/* As if it had been killed: the log holds more than the last checkpoint knows of. */
static void test_killed(void **state)
{
    (void)state;
    run whole, killed;
    begin(&whole, 1);
    go(&whole, (plan){.log = in_folder("whole.jsonl"), .epochs = 2});
    for (int64_t step = 52; step <= 64; step += 12) {
        shell("rm -rf '%s'/*run* '%s'/killed*", folder, folder);
        begin(&killed, 1);
        go(&killed, (plan){.folder = in_folder("run"),
                           .log = in_folder("run.jsonl"),
                           .epochs = 2,
                           .save_steps = 9,
                           .callback = {.step = copy_here, .context = &step}});
        end(&killed);
        begin(&killed, 5);
        go(&killed, (plan){.folder = in_folder("killed"),
                           .log = in_folder("killed.jsonl"),
                           .epochs = 2,
                           .save_steps = 9,
                           .resume = true});
        assert_true(kiln_ok());
        assert_same_runs(&whole, &killed);
        assert_same_logs(in_folder("whole.jsonl"), in_folder("killed.jsonl"));
        end(&killed);
    }
    end(&whole);
}

/* More epochs, or a further limit of steps, later: the same as at once. */
static void test_goes_on_later(void **state)
{
    (void)state;
    run whole, parts;
    begin(&whole, 1);
    go(&whole, (plan){.log = in_folder("whole.jsonl")});
    begin(&parts, 1);
    plan p = {.folder = in_folder("parts"), .log = in_folder("parts.jsonl"), .resume = true, .limit = 40};
    go(&parts, p);
    assert_int_equal(parts.history.stop, KILN_STOP_DONE);
    assert_int_equal(parts.history.steps, 40);
    assert_int_equal(parts.history.count, 1);
    assert_int_equal(parts.history.epochs[0].train.samples, 160);
    end(&parts);
    begin(&parts, 2);
    p.limit = 0;
    p.epochs = 1;
    go(&parts, p);
    assert_int_equal(parts.history.count, 1);
    assert_int_equal(parts.history.epochs[0].train.samples, SAMPLES);
    end(&parts);
    begin(&parts, 3);
    p.epochs = EPOCHS;
    go(&parts, p);
    assert_same_runs(&whole, &parts);
    end(&parts);

    /* And once more: nothing is left to do. */
    begin(&parts, 4);
    p.progress = tmpfile();
    go(&parts, p);
    assert_same_runs(&whole, &parts);
    char line[256] = "";
    rewind(p.progress);
    assert_non_null(fgets(line, sizeof line, p.progress));
    assert_non_null(strstr(line, "Nothing to do"));
    assert_int_equal(parts.history.stop, KILN_STOP_DONE);
    fclose(p.progress);
    end(&parts);
    end(&whole);
}

/* The flag that a signal handler sets. */
static bool raise_flag(void *context, int64_t epoch, int64_t step)
{
    (void)epoch;
    if (step == 30)
        *(volatile sig_atomic_t *)context = 1;
    return true;
}

static void test_flag_saves(void **state)
{
    (void)state;
    run r;
    volatile sig_atomic_t flag = 0;
    begin(&r, 1);
    go(&r,
       (plan){.folder = in_folder("run"), .callback = {.step = raise_flag, .context = (void *)&flag}, .stop = &flag});
    assert_int_equal(r.history.stop, KILN_STOP_ASKED);
    char *found = kiln_checkpoint_find(in_folder("run"));
    assert_non_null(found);
    assert_non_null(strstr(found, "step-00000030"));
    kiln_string_free(found);
    end(&r);
}

/* ---- CSV ---- */

static int columns(const char *line)
{
    int n = 1;
    for (; *line; line++)
        n += *line == ',';
    return n;
}

static void test_csv(void **state)
{
    (void)state;
    run r;
    char line[1024];
    begin(&r, 1);
    int64_t stop = 70;
    plan p = {.folder = in_folder("run"),
              .log = in_folder("log.csv"),
              .resume = true,
              .epochs = 2,
              .callback = {.step = stop_here, .context = &stop}};
    go(&r, p);
    end(&r);
    begin(&r, 1);
    p.callback = (kiln_callback){0};
    go(&r, p);
    FILE *f = fopen(p.log, "r");
    assert_non_null(fgets(line, sizeof line, f));
    assert_string_equal(line, "epoch,step,loss,accuracy,top5,val_loss,val_accuracy,val_top5,lr,seconds,"
                              "samples_per_second,data_wait\n");
    for (int i = 0; i < 2; i++) {
        double loss;
        int epoch, step;
        assert_non_null(fgets(line, sizeof line, f));
        assert_int_equal(columns(line), 12);
        assert_int_equal(sscanf(line, "%d,%d,%lf,", &epoch, &step, &loss), 3);
        assert_int_equal(epoch, i + 1);
        assert_int_equal(step, 63 * (i + 1));
        assert_near(loss, r.history.epochs[i].train.loss, 1e-8);
    }
    assert_null(fgets(line, sizeof line, f));
    fclose(f);
    end(&r);
}

/* ---- What is refused ---- */

static kiln_tensor *breaks_at_minus_one(kiln_tensor *output, kiln_tensor *x, kiln_tensor *y, void *context)
{
    (void)context;
    return kiln_add(kiln_cross_entropy(output, y), kiln_mean_all(kiln_log(x)));
}

/* Weights that are no numbers never replace a checkpoint. */
static void test_nan_keeps_checkpoint(void **state)
{
    (void)state;
    float x[12];
    int64_t y[12] = {0};
    for (int i = 0; i < 12; i++)
        x[i] = i == 7 ? -1 : 1;
    kiln_dataset *train = NULL;
    kiln_scope
        train = kiln_data_tensors(kiln_of_f32(x, 12, 1), kiln_of_i64(y, 12));
    kiln_module *net = kiln_nn_linear(1, 2);
    kiln_module_to(net, kiln_default_device());
    kiln_history h = kiln_fit(net, train, .batch = 2, .no_shuffle = true, .loss_fn = breaks_at_minus_one,
                              .checkpoint = in_folder("run"), .save_steps = 1);
    assert_int_equal(h.stop, KILN_STOP_ERROR);
    expect_error(KILN_E_STATE, "fit", "NaN in epoch 1, between steps 4 and 4");
    char *found = kiln_checkpoint_find(in_folder("run"));
    assert_non_null(strstr(found, "step-00000003"));
    kiln_string_free(found);
    kiln_history_free(&h);
    kiln_data_free(train);
    kiln_module_free(net);
}

static void test_refused(void **state)
{
    (void)state;
    run r;
    int64_t stop = 10;
    plan p = {.folder = in_folder("a/b/run"), .callback = {.step = stop_here, .context = &stop}};
    begin(&r, 1);
    go(&r, p); /* folders are made where missing */
    assert_true(kiln_ok());
    kiln_history_free(&r.history);
    go(&r, p); /* a fresh run does not mix with the one that is there */
    assert_int_equal(r.history.stop, KILN_STOP_ERROR);
    expect_error(KILN_E_STATE, "fit", "holds a run already");
    p.resume = true;
    p.accumulate = 2;
    go(&r, p);
    expect_error(KILN_E_STATE, "fit", "accumulate was 1");
    int other = open(p.folder, O_RDONLY | O_DIRECTORY); /* another run, as far as locks can tell */
    assert_int_equal(flock(other, LOCK_EX | LOCK_NB), 0);
    p.accumulate = 1;
    go(&r, p);
    expect_error(KILN_E_IO, "fit", "another run is at work");
    close(other);
    end(&r);
    begin(&r, 1);
    p.folder = "/proc/no/such";
    go(&r, p);
    expect_error(KILN_E_IO, "fit", "/proc/no/such");
    p.folder = NULL;
    p.resume = false;
    p.log = in_folder("no/log.jsonl");
    go(&r, p);
    expect_error(KILN_E_MISSING, "fit", "no/log.jsonl cannot be opened: No such file");
    end(&r);
}

/* Each allocation of a call that resumes, trains and saves fails once. Whatever was saved until then is whole. */
static void test_memory_runs_out(void **state)
{
    (void)state;
    run whole, part;
    plan p = {.folder = in_folder("run"), .log = in_folder("run.jsonl"), .epochs = 2, .resume = true};
    begin(&whole, 1);
    go(&whole, (plan){.log = in_folder("whole.jsonl"), .epochs = 2});
    begin(&part, 1);
    p.limit = 3;
    go(&part, p);
    assert_true(kiln_ok());
    kiln_history_free(&part.history);
    bool done = false;
    int failed = 0;
    for (int n = 0; !done; n++) {
        p.limit = 5 + n / 10; /* further and further, over the end of an epoch */
        kiln_alloc_fail_after(n);
        go(&part, p);
        kiln_alloc_fail_after(-1);
        done = kiln_ok();
        failed += !done;
        assert_true(done || kiln_last_error()->code == KILN_E_MEMORY);
        kiln_error_clear();
        kiln_history_free(&part.history);
    }
    assert_true(failed > 20);
    end(&part);
    begin(&part, 1);
    p.limit = 0;
    go(&part, p);
    assert_true(kiln_ok());
    assert_same_runs(&whole, &part);
    assert_same_logs(in_folder("whole.jsonl"), in_folder("run.jsonl"));
    end(&part);
    end(&whole);
}

#define in_folder_test(f) cmocka_unit_test_setup_teardown(f, before, after)

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_folder_test(test_resumes_to_the_bit),
        in_folder_test(test_resumes_often),
        in_folder_test(test_resumes_scaled),
        in_folder_test(test_killed),
        in_folder_test(test_goes_on_later),
        in_folder_test(test_flag_saves),
        in_folder_test(test_csv),
        in_folder_test(test_nan_keeps_checkpoint),
        in_folder_test(test_refused),
        in_folder_test(test_memory_runs_out),
    };
    return CORE_MAIN(tests);
}
