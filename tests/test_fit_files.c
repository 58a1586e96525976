/* The files that kiln_fit leaves beside weights: a history that does not make checkpoints grow, and logs. What is there
 * and is not a run's own is never overwritten, cut or replaced; what a checkpoint says is not believed blindly. */
#include "core/clock.h"
#include "support/files.h"
#include "train/progress.h"

/* ---- A small run ---- */

typedef struct run {
    kiln_dataset *data;
    kiln_module *net;
    kiln_history history;
} run;

static void begin(run *r)
{
    int64_t labels[12];
    for (int i = 0; i < 12; i++)
        labels[i] = i % 3;
    kiln_scope
        r->data = kiln_data_tensors(core_data(1, KILN_SHAPE(12, 4)), kiln_of_i64(labels, 12));
    kiln_manual_seed(1);
    r->net = kiln_nn_linear(4, 3);
    assert_true(kiln_module_to(r->net, kiln_default_device()));
}

static void end(run *r)
{
    kiln_history_free(&r->history);
    kiln_module_free(r->net);
    kiln_data_free(r->data);
}

/* Batches of 3: four steps an epoch. */
#define fit(r, ...)                                                                                                    \
    fit_with(r, (kiln_fit_options){.size = sizeof(kiln_fit_options),                                                   \
                                   .batch = 3,                                                                         \
                                   .validate = (r)->data,                                                              \
                                   .metrics = KILN_ACCURACY,                                                           \
                                   __VA_ARGS__})
static bool fit_with(run *r, kiln_fit_options o)
{
    kiln_history_free(&r->history);
    r->history = kiln_fit_with(r->net, r->data, &o);
    return kiln_ok();
}

static int64_t size_of_file(const char *path)
{
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    return st.st_size;
}

static void assert_text(const char *path, const char *want)
{
    size_t bytes;
    char *got = files_get(path, &bytes);
    assert_int_equal(bytes, strlen(want));
    assert_memory_equal(got, want, bytes);
    free(got);
}

/* The checkpoint's text about fit itself, changed by replacing `old`, and saved again. */
static void change_state(run *r, const char *folder, const char *old, const char *new)
{
    kiln_optim *o = kiln_optim_adam(kiln_parameters(r->net));
    kiln_checkpoint c = {.model = r->net, .optim = o};
    assert_true(kiln_checkpoint_load(folder, &c));
    char *extra = (char *)c.extra, *at = strstr(extra, old), *changed = malloc(strlen(extra) + strlen(new) + 1);
    if (!at)
        fail_msg("%s is not in %s", old, extra);
    sprintf(changed, "%.*s%s%s", (int)(at - extra), extra, new, at + strlen(old));
    c.extra = changed;
    assert_true(kiln_checkpoint_save(folder, &c, 1));
    kiln_string_free(extra);
    free(changed);
    kiln_optim_free(o);
}

/* ---- The history ---- */

/* Thousands of epochs: the checkpoint stays as small as it was, and a run that goes on has all of them. */
static void test_many_epochs(void **state)
{
    (void)state;
    enum { FEW = 10, MANY = 2600 };
    run r = {0};
    begin(&r);
    const char *folder = files_path("run");
    assert_true(fit(&r, .epochs = FEW, .checkpoint = folder));
    int64_t small = size_of_file(files_path("run/step-00000040/state.json"));
    assert_true(fit(&r, .epochs = MANY, .checkpoint = folder, .resume = true));
    assert_int_equal(r.history.count, MANY);
    assert_int_equal(r.history.steps, 4 * MANY);
    assert_true(size_of_file(files_path("run/step-00010400/state.json")) < small + 100);
    kiln_history before = r.history;
    r.history = (kiln_history){0};
    assert_true(fit(&r, .epochs = MANY + 1, .checkpoint = folder, .resume = true));
    assert_int_equal(r.history.count, MANY + 1);
    for (int64_t i = 0; i < MANY; i++)
        assert_memory_equal(&r.history.epochs[i], &before.epochs[i], sizeof before.epochs[i]);
    kiln_history_free(&before);
    end(&r);
}

/* Checkpoints of earlier versions have all epochs in them: they are read, and go on as others do. */
static void test_old_checkpoint(void **state)
{
    (void)state;
    run r = {0};
    begin(&r);
    const char *folder = files_path("run");
    assert_true(fit(&r, .epochs = 2, .checkpoint = folder, .log = files_path("log.jsonl")));
    kiln_optim *o = kiln_optim_adam(kiln_parameters(r.net));
    kiln_checkpoint c = {.model = r.net, .optim = o};
    assert_true(kiln_checkpoint_load(folder, &c));
    char mark[200] = "", hash[64] = "", *at = strstr(c.extra, "\"history\":{");
    assert_non_null(at);
    snprintf(mark, sizeof mark, "%.*s", (int)(strchr(at, '}') + 1 - at), at);
    at = strstr(c.extra, ",\"log_hash\":\"");
    assert_non_null(at);
    snprintf(hash, sizeof hash, "%.*s", (int)strlen(",\"log_hash\":\"0123456789abcdef\""), at);
    kiln_string_free((char *)c.extra);
    kiln_optim_free(o);
    change_state(&r, folder, hash, "");
    change_state(
        &r, folder, mark,
        "\"history\":[{\"epoch\":0,\"train\":{\"loss\":1.25,\"accuracy\":0.5,\"top5\":null,\"perplexity\":null,"
        "\"mae\":null,\"samples\":12,\"seconds\":0.5},\"test\":{\"loss\":1.125,\"accuracy\":0.25,\"top5\":null,"
        "\"perplexity\":null,\"mae\":null,\"samples\":12,\"seconds\":0.25},\"lr\":0.001,\"seconds\":0.75,"
        "\"samples_per_second\":24,\"data_wait\":0},{\"epoch\":1,\"train\":{\"loss\":1},\"test\":{}}]");
    files_remove(files_path("run/history.jsonl"));
    for (int64_t epochs = 3; epochs < 5; epochs++) { /* from the list, then from the file */
        assert_true(fit(&r, .epochs = epochs, .checkpoint = folder, .log = files_path("log.jsonl"), .resume = true));
        assert_int_equal(r.history.count, epochs);
        assert_true(r.history.epochs[0].train.loss == 1.25 && r.history.epochs[0].test.accuracy == 0.25);
        assert_true(r.history.epochs[0].train.samples == 12 && r.history.epochs[1].train.loss == 1);
        assert_true(isnan(r.history.epochs[0].train.mae));
    }
    end(&r);
}

static void test_history_that_is_gone_or_not_ours(void **state)
{
    (void)state;
    run r = {0};
    begin(&r);
    const char *folder = files_path("run");
    assert_int_equal(mkdir(folder, 0777), 0);
    files_put(files_path("run/history.jsonl"), "{\"mine\": 1}\n", 12);
    assert_false(fit(&r, .epochs = 1, .checkpoint = folder));
    expect_error(KILN_E_ARGUMENT, "fit", "is no history of a run");
    assert_text(files_path("run/history.jsonl"), "{\"mine\": 1}\n");
    files_remove(folder);
    assert_true(fit(&r, .epochs = 2, .checkpoint = folder));
    files_remove(files_path("run/history.jsonl"));
    assert_true(fit(&r, .epochs = 3, .checkpoint = folder, .resume = true));
    assert_int_equal(r.history.count, 1);
    assert_non_null(strstr(kiln_next_notice(), "only 0 of the 2 epochs"));
    size_t bytes;
    char *history = files_get(files_path("run/history.jsonl"), &bytes);
    memcpy(history + 20, "99999", 5); /* not what the checkpoint has seen */
    files_put(files_path("run/history.jsonl"), history, bytes);
    free(history);
    assert_false(fit(&r, .epochs = 4, .checkpoint = folder, .resume = true));
    expect_error(KILN_E_STATE, "fit", "is not the one that the checkpoint goes on with");
    end(&r);
}

/* ---- Counts that cannot be so ---- */

static void test_lying_counts(void **state)
{
    (void)state;
    static const char *const keys[] = {"\"best_epoch\":", "\"bad_epochs\":", "\"log_bytes\":", "\"samples\":"};
    static const char *const lies[] = {"9223372036854775807", "-9223372036854775807"};
    for (size_t k = 0; k < sizeof keys / sizeof *keys; k++)
        for (size_t i = 0; i < 2; i++) {
            run r = {0};
            char old[80], new[80];
            begin(&r);
            files_remove(files_path("run"));
            bool middle = k == 3;
            assert_true(fit(&r, .epochs = 3, .checkpoint = files_path("run"), .limit = middle ? 2 : 4));
            snprintf(old, sizeof old, "%s", keys[k]);
            snprintf(new, sizeof new, "%s%s,\"rest\":", keys[k], lies[i]);
            change_state(&r, files_path("run"), old, new);
            assert_false(fit(&r, .epochs = 3, .checkpoint = files_path("run"), .resume = true));
            expect_error(KILN_E_FORMAT, "fit", "cannot be so");
            end(&r);
        }
}

/* ---- Logs ---- */

static void test_log_of_others(void **state)
{
    (void)state;
    static const struct {
        const char *name, *text;
    } others[] = {{"notes.txt", "buy milk\n"},
                  {"data.jsonl", "{\"id\": 1}\n"},
                  {"array.jsonl", "[1, 2]\n"},
                  {"table.csv", "name,age\nann,3\n"},
                  {"log.csv", "{\"run\": {}}\n"}};
    run r = {0};
    begin(&r);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        const char *path = files_path(others[i].name);
        files_put(path, others[i].text, strlen(others[i].text));
        assert_false(fit(&r, .epochs = 1, .log = path));
        expect_error(KILN_E_ARGUMENT, "fit", "is no log of a run");
        assert_text(path, others[i].text);
    }
    files_put(files_path("empty.jsonl"), "", 0);
    assert_true(fit(&r, .epochs = 1, .log = files_path("empty.jsonl")));
    int64_t bytes = size_of_file(files_path("empty.jsonl"));
    assert_true(fit(&r, .epochs = 1, .log = files_path("empty.jsonl"))); /* one of its own is begun anew */
    assert_true(size_of_file(files_path("empty.jsonl")) < bytes + 100);
    files_put(files_path("cut.jsonl"), "{\"ru", 4); /* killed while it wrote its first line */
    assert_true(fit(&r, .epochs = 1, .log = files_path("cut.jsonl")));
    end(&r);
}

/* A run goes on with the log that it has written, and cuts no other. */
static void test_resumed_log(void **state)
{
    (void)state;
    run r = {0};
    begin(&r);
    const char *folder = files_path("run"), *log = files_path("log.jsonl"), *other = files_path("other.jsonl");
    assert_true(fit(&r, .epochs = 2, .checkpoint = folder, .log = log));
    assert_true(fit(&r, .epochs = 5, .log = other));
    size_t bytes, more;
    char *theirs = files_get(other, &bytes), *ours = files_get(log, &more);
    theirs[bytes] = ours[more] = '\0';
    files_remove(log);
    assert_int_equal(symlink("other.jsonl", log), 0);
    assert_false(fit(&r, .epochs = 3, .checkpoint = folder, .log = log, .resume = true));
    expect_error(KILN_E_STATE, "fit", "is not the one that the checkpoint goes on with");
    assert_text(other, theirs);
    files_put(other, "once upon a time there was a file that had nothing to do with it", 64);
    assert_false(fit(&r, .epochs = 3, .checkpoint = folder, .log = log, .resume = true));
    expect_error(KILN_E_ARGUMENT, "fit", "is no log of a run");
    assert_int_equal(size_of_file(other), 64);

    /* its own: also through a link, and with lines that the checkpoint does not know of */
    files_put(other, ours, more);
    FILE *f = fopen(other, "a");
    fputs("{\"step\": 99, \"loss\": 1}\n", f);
    fclose(f);
    assert_true(fit(&r, .epochs = 3, .checkpoint = folder, .log = log, .resume = true));
    char *now = files_get(other, &bytes);
    now[bytes] = '\0';
    assert_memory_equal(now, ours, more);
    assert_null(strstr(now, "\"step\": 99,"));
    assert_non_null(strstr(now, "\"epoch\": 3"));
    free(now);
    free(ours);
    free(theirs);
    end(&r);
}

/* A line every so many steps, in the log and where progress is no terminal. */
static void test_log_steps(void **state)
{
    (void)state;
    run r = {0};
    begin(&r);
    FILE *progress = tmpfile();
    assert_true(fit(&r, .epochs = 2, .log = files_path("log.jsonl"), .log_steps = 3, .progress = progress));
    size_t bytes;
    char *log = files_get(files_path("log.jsonl"), &bytes), line[512];
    log[bytes] = '\0';
    assert_non_null(strstr(log, "{\"step\": 3, "));
    assert_non_null(strstr(log, "{\"step\": 6, "));
    assert_null(strstr(log, "{\"step\": 4, "));
    free(log);
    rewind(progress);
    static const char *const want[] = {"Epoch 1/2  3/4", "Epoch 1/2  4/4", "Epoch 2/2  2/4", "Epoch 2/2  4/4"};
    for (int i = 0; i < 4; i++) {
        assert_non_null(fgets(line, sizeof line, progress));
        assert_memory_equal(line, want[i], strlen(want[i]));
    }
    assert_null(fgets(line, sizeof line, progress));
    fclose(progress);
    end(&r);
}

static void test_plain_progress_by_time(void **state)
{
    (void)state;
    kiln_progress p;
    FILE *f = tmpfile();
    kiln_progress_init(&p, f);
    assert_true(kiln_progress_plain(&p));
    assert_false(kiln_progress_due(&p, false));
    p.drawn = kiln_seconds() - 31;
    assert_true(kiln_progress_due(&p, false));
    assert_false(kiln_progress_due(&p, true)); /* its lines are counted */
    p.begun = kiln_seconds() - 3600;           /* after an hour every three minutes */
    assert_false(kiln_progress_due(&p, false));
    p.drawn = kiln_seconds() - 181;
    assert_true(kiln_progress_due(&p, false));
    kiln_progress_note(&p, "in %s",
                       "a\033[31m\xc2\x9b"
                       "b\x9b\xc3\xa9");
    char line[100];
    rewind(f);
    assert_non_null(fgets(line, sizeof line, f));
    assert_string_equal(line, "in a?[31m??b?\xc3\xa9\n");
    fclose(f);
}

static void test_first_line(void **state)
{
    (void)state;
    run r = {0};
    begin(&r);
    kiln_optim *o = kiln_optim_sgd(kiln_parameters(r.net), .lr = 0.5);
    kiln_schedule *s = kiln_schedule_warmup(o, 2, 0.5, kiln_schedule_cosine(o, 4, 0));
    assert_true(fit(&r, .optim = o, .schedule = s, .log = files_path("log.jsonl"),
                    .about = "{\"model\": \"mine\", \"command\": \"x y\"}"));
    size_t bytes;
    char *log = files_get(files_path("log.jsonl"), &bytes);
    log[bytes] = '\0';
    assert_memory_equal(log, "{\"run\": {\"version\": \"", 21);
    assert_non_null(strstr(log, "\"model\": \"mine\""));
    assert_non_null(strstr(log, "\"command\": \"x y\""));
    assert_non_null(strstr(log, "\"optimizer\": \"sgd\", \"lr\": 0.25, \"schedule\": \"cosine\""));
    free(log);
    kiln_schedule_free(s);
    kiln_optim_free(o);
    end(&r);
}

/* ---- Weights ---- */

/* Best weights without a checkpoint are somebody's: nothing takes their place. */
static void test_weights_without_checkpoint(void **state)
{
    (void)state;
    run r = {0};
    begin(&r);
    const char *folder = files_path("run");
    assert_int_equal(mkdir(folder, 0777), 0);
    files_put(files_path("run/best.safetensors"), "precious", 8);
    assert_false(fit(&r, .epochs = 1, .checkpoint = folder, .resume = true));
    expect_error(KILN_E_STATE, "fit", "no checkpoint to resume from");
    assert_false(fit(&r, .epochs = 1, .checkpoint = folder));
    expect_error(KILN_E_STATE, "fit", "holds a run already");
    assert_text(files_path("run/best.safetensors"), "precious");
    end(&r);
}

static bool block_best(void *context, int64_t epoch, int64_t step)
{
    (void)epoch, (void)step;
    return mkdir(context, 0777) == 0 || step > 1;
}

/* Best weights are never there before a checkpoint is: killed in between, the run could not be resumed. */
static void test_checkpoint_comes_first(void **state)
{
    (void)state;
    run r = {0};
    char best[512];
    begin(&r);
    snprintf(best, sizeof best, "%s", files_path("run/best.safetensors"));
    kiln_callback block = {.step = block_best, .context = best};
    assert_false(fit(&r, .epochs = 1, .checkpoint = files_path("run"), .callbacks = &block, .ncallbacks = 1));
    expect_error(KILN_E_IO, "safetensors", "is a folder");
    char *found = kiln_checkpoint_find(files_path("run"));
    assert_non_null(found);
    kiln_string_free(found);
    assert_int_equal(rmdir(best), 0);
    assert_true(fit(&r, .epochs = 1, .checkpoint = files_path("run"), .resume = true));
    assert_int_equal(r.history.count, 1);
    assert_int_equal(access(best, F_OK), 0);
    end(&r);
}

/* ---- The flag that asks for a checkpoint ---- */

static volatile sig_atomic_t save;
static int64_t save_at, seen_at[16];
static int seen;

static bool raise_save(void *context, int64_t epoch, int64_t step)
{
    (void)epoch;
    char *found = kiln_checkpoint_find(context);
    if (found)
        seen_at[seen < 15 ? seen++ : 15] = strtoll(strrchr(found, '-') + 1, NULL, 10);
    kiln_string_free(found);
    if (step == save_at)
        save = 1;
    return true;
}

static void test_save_flag(void **state)
{
    (void)state;
    for (save_at = 2; save_at <= 4; save_at += 2) { /* in an epoch, and at its end */
        run r = {0};
        char folder[512], line[512];
        FILE *progress = tmpfile();
        begin(&r);
        seen = 0;
        snprintf(folder, sizeof folder, "%s", files_path(save_at == 2 ? "first" : "second"));
        kiln_callback callback = {.step = raise_save, .context = folder};
        assert_true(fit(&r, .epochs = 3, .checkpoint = folder, .save_steps = 1000, .callbacks = &callback,
                        .ncallbacks = 1, .save = &save, .progress = progress));
        assert_int_equal(r.history.stop, KILN_STOP_DONE); /* it went on */
        assert_int_equal(r.history.steps, 12);
        assert_int_equal(save, 0);
        assert_true(seen > 0 && seen_at[0] == save_at);
        bool told = false;
        rewind(progress);
        while (fgets(line, sizeof line, progress))
            told |= strstr(line, save_at == 2 ? "after 2 steps" : "after 4 steps") && !strncmp(line, "Saved ", 6);
        assert_true(told);
        fclose(progress);
        end(&r);
    }
}

int main(void)
{
    if (access("/dev/shm", W_OK) == 0) /* thousands of checkpoints: where saving costs little */
        setenv("TMPDIR", "/dev/shm", 0);
    const struct CMUnitTest tests[] = {
        files_test(test_many_epochs),
        files_test(test_old_checkpoint),
        files_test(test_history_that_is_gone_or_not_ours),
        files_test(test_lying_counts),
        files_test(test_log_of_others),
        files_test(test_resumed_log),
        files_test(test_log_steps),
        files_test(test_plain_progress_by_time),
        files_test(test_first_line),
        files_test(test_weights_without_checkpoint),
        files_test(test_checkpoint_comes_first),
        files_test(test_save_flag),
    };
    return CORE_MAIN(tests);
}
