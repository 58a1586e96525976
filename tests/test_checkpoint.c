/* Checkpoints: a run that was saved goes on to the bit; what does not fit is refused and nothing changes; whatever
 * interrupts a save, there is a complete one. */
#include <errno.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "support/files.h"
#include "core/alloc.h"
#include "io/checkpoint.h"

/* ---- renameat2 of the C library, which can be told that the file system has no exchange ---- */

static bool no_exchange;
int renameat2(int from_folder, const char *from, int to_folder, const char *to, unsigned int flags);

#include <sys/syscall.h>
int renameat2(int from_folder, const char *from, int to_folder, const char *to, unsigned int flags)
{
    if (no_exchange) {
        errno = EINVAL;
        return -1;
    }
    return (int)syscall(SYS_renameat2, from_folder, from, to_folder, to, flags);
}

/* ---- A small run with everything in it that can be saved ---- */

typedef struct run {
    kiln_module *model;
    kiln_optim *optim;
    kiln_schedule *schedule;
    kiln_ema *ema;
    int64_t step;
} run;

static void run_begin(run *r, uint64_t seed)
{
    kiln_manual_seed(seed);
    r->model = kiln_nn_sequential(kiln_nn_linear(4, 6), kiln_nn_batch_norm(6), kiln_nn_relu(), kiln_nn_dropout(0.3),
                                  kiln_nn_linear(6, 3));
    assert_true(kiln_module_to(r->model, kiln_default_device()));
    r->optim = kiln_optim_adam(kiln_parameters_matching(r->model, "*.weight", false), .lr = 1e-2);
    assert_true(kiln_optim_group(r->optim, kiln_parameters_matching(r->model, "*.weight", true), .lr = 0.1 / 3));
    r->schedule = kiln_schedule_warmup(r->optim, 3, 0, kiln_schedule_cosine(r->optim, 20, 0.1));
    r->ema = kiln_ema_new(r->model, 0.9);
    r->step = 0;
    assert_non_null(r->schedule);
    assert_non_null(r->ema);
}

static void run_end(run *r)
{
    kiln_ema_free(r->ema);
    kiln_schedule_free(r->schedule);
    kiln_optim_free(r->optim);
    kiln_module_free(r->model);
}

static void run_step(run *r)
{
    kiln_step {
        kiln_tensor *x = core_data((int)r->step, KILN_SHAPE(8, 4)), *y = core_data((int)r->step + 99, KILN_SHAPE(8, 3));
        kiln_zero_grad(r->optim);
        assert_true(kiln_backward(kiln_mse_loss(kiln_forward(r->model, x), y, KILN_MEAN)));
        assert_true(kiln_optim_step(r->optim));
        assert_true(kiln_ema_update(r->ema));
    }
    assert_true(kiln_schedule_advance(r->schedule));
    r->step++;
}

static kiln_checkpoint parts(const run *r)
{
    return (kiln_checkpoint){.model = r->model, .optim = r->optim, .schedule = r->schedule, .ema = r->ema};
}

static bool run_save_as(const run *r, const char *folder, int keep, int64_t step)
{
    kiln_checkpoint c = parts(r);
    c.step = step;
    c.epoch = 3;
    c.batch = r->step;
    c.seed = UINT64_MAX - 1;
    c.extra = "{\"best\": 0.1, \"list\":[1,2 ]}";
    c.nmeta = 1;
    c.meta = &(kiln_meta){"model", "small"};
    return kiln_checkpoint_save(folder, &c, keep);
}

static bool run_save(const run *r, const char *folder, int keep)
{
    return run_save_as(r, folder, keep, r->step);
}

static size_t add_bits(uint8_t *out, size_t used, kiln_params p)
{
    for (int64_t i = 0; i < p.count; i++) {
        size_t bytes = (size_t)kiln_numel(p.tensors[i]) * kiln_dtype_size(kiln_dtype_of(p.tensors[i]));
        assert_true(kiln_read(p.tensors[i], out + used, bytes));
        used += bytes;
    }
    return used;
}

/* Every bit that decides how a run goes on. */
static size_t run_bits(const run *r, uint8_t out[8192])
{
    memset(out, 0, 8192);
    size_t used = add_bits(out, 0, kiln_state(r->model));
    used = add_bits(out, used, kiln_optim_state(r->optim));
    used = add_bits(out, used, kiln_ema_state(r->ema));
    kiln_random_state random = kiln_random_get();
    kiln_schedule_state schedule = kiln_schedule_get(r->schedule);
    double numbers[] = {kiln_optim_lr(r->optim, 0), kiln_optim_lr(r->optim, 1), schedule.best, schedule.factor};
    int64_t counts[] = {kiln_optim_steps(r->optim), schedule.unit, schedule.bad, schedule.observed};
    memcpy(out + used, &random, sizeof random);
    memcpy(out + used + 16, numbers, sizeof numbers);
    memcpy(out + used + 16 + sizeof numbers, counts, sizeof counts);
    used += 16 + sizeof numbers + sizeof counts;
    assert_true(used < 8192);
    return used;
}

static uint8_t one[8192], other[8192];

static void assert_same_bits(const run *a, const uint8_t *want)
{
    run_bits(a, one);
    assert_memory_equal(one, want, sizeof one);
}

/* The newest step in a folder, -1 for none. */
static int64_t newest(const char *folder)
{
    kiln_checkpoint c = {0};
    bool loaded = kiln_checkpoint_load(folder, &c);
    kiln_string_free((char *)c.extra);
    return loaded ? c.step : -1;
}

/* ---- Going on ---- */

static void test_goes_on_to_the_bit(void **state)
{
    (void)state;
    run a, b;
    run_begin(&a, 7);
    for (int i = 0; i < 5; i++)
        run_step(&a);
    assert_true(run_save(&a, files_folder, 1));
    for (int i = 0; i < 4; i++)
        run_step(&a);
    run_bits(&a, other);
    run_end(&a);

    run_begin(&b, 1234);
    run_step(&b);
    kiln_checkpoint c = parts(&b);
    assert_true(kiln_checkpoint_load(files_folder, &c));
    assert_int_equal(c.step, 5);
    assert_int_equal(c.epoch, 3);
    assert_int_equal(c.batch, 5);
    assert_true(c.seed == UINT64_MAX - 1);
    assert_string_equal(c.extra, "{\"best\": 0.1, \"list\":[1,2 ]}");
    kiln_string_free((char *)c.extra);
    b.step = c.step;
    for (int i = 0; i < 4; i++)
        run_step(&b);
    assert_same_bits(&b, other);
    run_end(&b);
}

/* Numbers that JSON does not have, and parts that are not there. */
static void test_odd_states(void **state)
{
    (void)state;
    kiln_module *m = kiln_nn_linear(2, 2);
    assert_true(kiln_module_to(m, kiln_default_device()));
    kiln_optim *sgd = kiln_optim_sgd(kiln_parameters(m), .lr = 0.1);
    kiln_schedule *plateau = kiln_schedule_plateau(sgd, 0.1, 2, false);
    kiln_checkpoint c = {.model = m, .optim = sgd, .schedule = plateau};
    kiln_random_set((kiln_random_state){(UINT64_C(1) << 53) - 1, (UINT64_C(1) << 53) - 2});
    kiln_schedule_state before = kiln_schedule_get(plateau); /* best is infinite at first */
    assert_true(kiln_checkpoint_save(files_folder, &c, 0));
    kiln_random_set((kiln_random_state){1, 2});
    assert_true(kiln_schedule_observe(plateau, 1));
    assert_true(kiln_checkpoint_load(files_folder, &c));
    kiln_schedule_state after = kiln_schedule_get(plateau);
    assert_memory_equal(&before, &after, sizeof before);
    assert_true(kiln_random_get().seed == (UINT64_C(1) << 53) - 1 &&
                kiln_random_get().offset == (UINT64_C(1) << 53) - 2);
    assert_null(c.extra);
    kiln_ema *ema = kiln_ema_new(m, 0.5);
    c.ema = ema;
    assert_false(kiln_checkpoint_load(files_folder, &c));
    expect_error(KILN_E_FORMAT, "checkpoint", "there is no ema.safetensors");
    kiln_ema_free(ema);
    kiln_schedule_free(plateau);
    kiln_optim_free(sgd);
    kiln_module_free(m);
    kiln_random_set((kiln_random_state){0, 0});
}

/* ---- What is there ---- */

static void test_which_are_kept(void **state)
{
    (void)state;
    run r;
    char *path;
    const char *folder = files_path("a/b/run"); /* made where missing */
    run_begin(&r, 1);
    assert_null(kiln_checkpoint_find(folder));
    assert_false(kiln_checkpoint_load(folder, &(kiln_checkpoint){0}));
    assert_true(kiln_ok());
    for (int64_t step = 1; step < 5; step++)
        assert_true(run_save_as(&r, folder, 2, step));
    assert_int_equal(files_count(folder), 2);
    assert_int_equal(newest(folder), 4);
    assert_non_null(path = kiln_checkpoint_find(folder));
    assert_non_null(strstr(path, "/a/b/run/step-00000004"));
    char *same = kiln_checkpoint_find(path);
    assert_string_equal(same, path); /* a checkpoint's own folder is one */
    kiln_string_free(same);
    kiln_string_free(path);
    assert_true(run_save_as(&r, folder, 2, 4)); /* once more */
    assert_int_equal(files_count(folder), 2);
    assert_int_equal(newest(folder), 4);
    assert_true(run_save_as(&r, folder, 2, 2)); /* a run that began anew: later steps are stale */
    assert_int_equal(newest(folder), 2);
    assert_int_equal(files_count(folder), 1);
    assert_true(run_save_as(&r, folder, 1, 123456789012));
    assert_int_equal(newest(folder), 123456789012);
    run_end(&r);
}

/* Where folders cannot change places in one go, the same step gets another name; nothing is ever missing. */
static void test_same_step_without_exchange(void **state)
{
    (void)state;
    run r;
    run_begin(&r, 1);
    no_exchange = true;
    for (int i = 0; i < 4; i++) {
        run_step(&r);
        run_bits(&r, other);
        assert_true(run_save_as(&r, files_folder, 1, 9));
        assert_int_equal(files_count(files_folder), 1);
        run_step(&r);
        kiln_checkpoint c = parts(&r);
        assert_true(kiln_checkpoint_load(files_folder, &c));
        kiln_string_free((char *)c.extra);
        assert_same_bits(&r, other);
        no_exchange = i != 2; /* and with it again */
    }
    no_exchange = false;
    run_end(&r);
}

static void damage(const char *path, const char *name, const char *text)
{
    char file[512];
    snprintf(file, sizeof file, "%s/%s", path, name);
    if (text)
        files_put(file, text, strlen(text));
    else
        assert_int_equal(unlink(file), 0);
}

static void test_damaged_ones_are_passed_over(void **state)
{
    (void)state;
    static const struct {
        const char *file, *text;
    } damages[] = {{"state.json", NULL},           {"state.json", ""},          {"state.json", "{\"version\": 1"},
                   {"state.json", "[]"},           {"model.safetensors", NULL}, {"model.safetensors", "short"},
                   {"optim.safetensors", "short"}, {"ema.safetensors", NULL}};
    run r;
    run_begin(&r, 1);
    for (size_t i = 0; i < sizeof damages / sizeof *damages; i++) {
        char name[32];
        snprintf(name, sizeof name, "run%zu", i);
        const char *folder = files_path(name);
        assert_true(run_save_as(&r, folder, 2, 1));
        assert_true(run_save_as(&r, folder, 2, 2));
        char *path = kiln_checkpoint_find(folder);
        damage(path, damages[i].file, damages[i].text);
        kiln_string_free(path);
        assert_int_equal(newest(folder), 1);
        const char *notice = kiln_next_notice();
        assert_non_null(notice);
        assert_non_null(strstr(notice, "step-00000002"));
        path = kiln_checkpoint_find(folder);
        damage(path, "state.json", "?");
        kiln_string_free(path);
        while (kiln_next_notice())
            ;
        assert_int_equal(newest(folder), -1);
        expect_error(KILN_E_FORMAT, "checkpoint", "holds no complete checkpoint");
    }
    run_end(&r);
}

/* Each value of state.json replaced by nonsense: refused, and nothing changes. */
static void test_lying_state(void **state)
{
    (void)state;
    static const char *const keys[] = {
        "\"version\"", "\"step\"",   "\"epoch\"",    "\"batch\"", "\"seed\"",
        "\"offset\"",  "\"name\"",   "\"steps\"",    "\"lr\"",    "\"unit\"",
        "\"best\"",    "\"factor\"", "\"observed\"", "\"files\"", "\"model.safetensors\"",
        "\"extra\""};
    static const char *const values[] = {
        "-1", "{}", "\"x\"", "[true]", "null", "1e400", "99999999999999999999999", "9223372036854775807"};
    run r;
    size_t bytes;
    run_begin(&r, 1);
    assert_true(run_save(&r, files_folder, 1));
    char *path = kiln_checkpoint_find(files_folder), file[512];
    snprintf(file, sizeof file, "%s/state.json", path);
    kiln_string_free(path);
    char *good = files_get(file, &bytes), *bad = malloc(bytes + 100);
    good[bytes] = '\0';
    run_step(&r);
    run_bits(&r, other);
    int refused = 0;
    for (size_t k = 0; k < sizeof keys / sizeof *keys; k++)
        for (size_t v = 0; v < sizeof values / sizeof *values; v++) {
            char *at = strstr(good, keys[k]);
            if (!at)
                fail_msg("%s is not in state.json", keys[k]);
            if (!strcmp(keys[k], "\"extra\"") && *values[v] == '"')
                continue; /* any text is fine */
            bool number = *values[v] == '-' || v + 1 == sizeof values / sizeof *values;
            if (number && (!strcmp(keys[k], "\"best\"") || (!strcmp(keys[k], "\"factor\"") && *values[v] != '-')))
                continue; /* and any number here, or one from 0 up */
            int before = (int)(at - good + (int)strlen(keys[k]));
            sprintf(bad, "%.*s: %s, \"rest\"%s", before, good, values[v], good + before);
            files_put(file, bad, strlen(bad));
            kiln_checkpoint c = parts(&r);
            if (kiln_checkpoint_load(files_folder, &c))
                fail_msg("accepted: %s: %s", keys[k], values[v]);
            bool text = !strcmp(keys[k], "\"name\"") && *values[v] == '"'; /* the name of another optimizer */
            expect_error(KILN_E_FORMAT, "checkpoint", text ? "the optimizer x" : "state.json");
            refused++;
        }
    assert_same_bits(&r, other);
    assert_int_equal(refused, 16 * 8 - 4);
    free(good);
    free(bad);
    run_end(&r);
}

static void test_others_are_refused(void **state)
{
    (void)state;
    run a, b;
    run_begin(&a, 1);
    run_begin(&b, 2);
    assert_true(run_save(&a, files_folder, 1));

    kiln_checkpoint c = parts(&b);
    kiln_module *model = kiln_nn_sequential(kiln_nn_linear(4, 5), kiln_nn_linear(5, 3));
    c.model = model;
    run_bits(&b, other);
    assert_false(kiln_checkpoint_load(files_folder, &c));
    assert_non_null(strstr(kiln_last_error()->message, "0.weight is [6, 4] in the file, [5, 4] in the model"));
    expect_error(KILN_E_FORMAT, "checkpoint", "model.safetensors: ");
    assert_same_bits(&b, other);

    c = parts(&b);
    kiln_optim *sgd = kiln_optim_sgd(kiln_parameters(b.model), .lr = 1);
    c.schedule = NULL;
    c.optim = sgd;
    assert_false(kiln_checkpoint_load(files_folder, &c));
    expect_error(KILN_E_FORMAT, "checkpoint", "saved with the optimizer adam; this one is sgd");
    kiln_optim *adam = kiln_optim_adam(kiln_parameters(b.model));
    c.optim = adam;
    assert_false(kiln_checkpoint_load(files_folder, &c));
    expect_error(KILN_E_FORMAT, "checkpoint", "saved with 2 groups of parameters; this optimizer has 1");
    kiln_optim *amsgrad = kiln_optim_adam(kiln_parameters_matching(b.model, "*.weight", false), .amsgrad = true);
    assert_true(kiln_optim_group(amsgrad, kiln_parameters_matching(b.model, "*.weight", true)));
    c.optim = amsgrad;
    assert_false(kiln_checkpoint_load(files_folder, &c));
    expect_error(KILN_E_FORMAT, "checkpoint", "optim.safetensors: ");
    assert_same_bits(&b, other);

    c = (kiln_checkpoint){.model = b.model}; /* the weights alone */
    assert_true(kiln_checkpoint_load(files_folder, &c));
    kiln_string_free((char *)c.extra);
    c.extra = NULL;
    assert_memory_equal(core_f32(kiln_module_tensor(a.model, "0.weight")),
                        core_f32(kiln_module_tensor(b.model, "0.weight")), 96);
    assert_true(kiln_checkpoint_save(files_path("bare"), &c, 0));
    c = parts(&b);
    assert_false(kiln_checkpoint_load(files_path("bare"), &c));
    expect_error(KILN_E_FORMAT, "checkpoint", "without");
    kiln_optim_free(amsgrad);
    kiln_optim_free(adam);
    kiln_optim_free(sgd);
    kiln_module_free(model);
    run_end(&a);
    run_end(&b);
}

static void test_bad_arguments(void **state)
{
    (void)state;
    run r;
    run_begin(&r, 1);
    kiln_checkpoint c = parts(&r);
    c.extra = "[1]";
    assert_false(kiln_checkpoint_save(files_folder, &c, 1));
    expect_error(KILN_E_ARGUMENT, "checkpoint", "extra is not a JSON object");
    c.extra = "{";
    assert_false(kiln_checkpoint_save(files_folder, &c, 1));
    expect_error(KILN_E_ARGUMENT, "checkpoint", "extra is not a JSON object");
    c.extra = NULL;
    c.step = -1;
    assert_false(kiln_checkpoint_save(files_folder, &c, 1));
    expect_error(KILN_E_ARGUMENT, "checkpoint", "from 0 up");
    c.step = INT64_MAX; /* the next one would be none */
    assert_false(kiln_checkpoint_save(files_folder, &c, 1));
    expect_error(KILN_E_ARGUMENT, "checkpoint", "to 2^53");
    c.step = -1;
    assert_false(kiln_checkpoint_save(NULL, &c, 1));
    expect_error(KILN_E_ARGUMENT, "checkpoint", "a folder");
    assert_int_equal(files_count(files_folder), 0); /* nothing is left lying around */
    files_put(files_path("file"), "x", 1);
    c.step = 1;
    assert_false(kiln_checkpoint_save(files_path("file"), &c, 1));
    expect_error(KILN_E_IO, "checkpoint", "is a file");
    assert_false(kiln_checkpoint_save(files_path("file/below"), &c, 1));
    expect_error(KILN_E_IO, "checkpoint", "Not a directory");
    assert_null(kiln_checkpoint_find(files_path("file")));
    assert_true(kiln_ok());
    if (geteuid() != 0) {
        assert_int_equal(chmod(files_folder, 0500), 0);
        assert_false(kiln_checkpoint_save(files_folder, &c, 1));
        assert_int_equal(chmod(files_folder, 0700), 0);
        expect_error(KILN_E_IO, "checkpoint", "Permission denied");
    }
    run_end(&r);
}

/* ---- Interruptions ---- */

static void test_leftovers_are_removed(void **state)
{
    (void)state;
    run r;
    run_begin(&r, 1);
    assert_int_equal(mkdir(files_path(".step-00000003.tmp-1-0"), 0700), 0);
    files_put(files_path(".step-00000003.tmp-1-0/model.safetensors"), "half", 4);
    assert_int_equal(mkdir(files_path(".step-00000002.old-1-0"), 0700), 0);
    assert_int_equal(mkdir(files_path(".step-00000004.tmp-2-0"), 0700), 0);
    int fd = open(files_path(".step-00000004.tmp-2-0"), O_RDONLY);
    assert_int_equal(flock(fd, LOCK_EX), 0); /* somebody writes this one */
    assert_null(kiln_checkpoint_find(files_folder));
    assert_true(run_save_as(&r, files_folder, 1, 5));
    assert_int_equal(files_count(files_folder), 2);
    assert_int_equal(access(files_path(".step-00000004.tmp-2-0"), F_OK), 0);
    close(fd);
    run_end(&r);
}

/* A disk that is full after so many bytes: the save fails, the one before can be loaded, nothing is left behind. */
static void test_full_disk(void **state)
{
    (void)state;
    if (kiln_default_device() != KILN_CPU)
        skip_because("a device with threads of its own does not survive fork");
    run r;
    run_begin(&r, 1);
    kiln_set_num_threads(1);
    run_step(&r);
    run_bits(&r, other);
    assert_true(run_save(&r, files_folder, 1));
    run_step(&r);
    struct stat largest;
    assert_int_equal(stat(files_path("step-00000001/optim.safetensors"), &largest), 0);
    for (rlim_t most = 0; most < (rlim_t)largest.st_size; most += 150) {
        pid_t child = fork();
        if (child == 0) {
            signal(SIGXFSZ, SIG_IGN);
            setrlimit(RLIMIT_FSIZE, &(struct rlimit){most, most});
            bool saved = run_save(&r, files_folder, 1);
            _exit(saved ? 1 : kiln_last_error()->code != KILN_E_IO ? 2 : 0);
        }
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(status, 0);
        assert_int_equal(files_count(files_folder), 1);
    }
    kiln_checkpoint c = parts(&r);
    assert_true(kiln_checkpoint_load(files_folder, &c));
    kiln_string_free((char *)c.extra);
    assert_same_bits(&r, other);
    run_end(&r);
}

/* Killed at random moments while it saves over and over: there is always one, never older than what was said to be
 * safe, and it holds what belongs to its step. */
static void test_killed_while_saving(void **state)
{
    (void)state;
    if (kiln_default_device() != KILN_CPU)
        skip_because("a device with threads of its own does not survive fork");
    kiln_set_num_threads(1);
    run r;
    run_begin(&r, 1);
    kiln_tensor *weight = kiln_module_tensor(r.model, "0.weight");
    uint32_t random = 1;
    int64_t last = 0;
    for (int round = 0; round < 40; round++) {
        int said[2];
        assert_int_equal(pipe(said), 0);
        pid_t child = fork();
        if (child == 0) {
            no_exchange = round % 4 == 3;
            for (int64_t step = last + 1;; step++)
                for (int again = 0; again < 2; again++) {
                    float value = (float)step;
                    kiln_scope
                        kiln_no_grad
                            kiln_assign(weight, kiln_full(KILN_SHAPE(6, 4), value, KILN_F32));
                    if (!run_save_as(&r, files_folder, 1 + round % 2, step) || write(said[1], &step, sizeof step) < 0)
                        _exit(1);
                }
        }
        close(said[1]);
        for (int64_t step, n = 0; n < round % 3 && read(said[0], &step, sizeof step) == sizeof step; n++)
            last = step;
        random = random * 1664525u + 1013904223u;
        usleep((random >> 8) % 20000);
        kill(child, SIGKILL);
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status)); /* it did not end by itself: no save had failed */
        for (int64_t step; read(said[0], &step, sizeof step) == sizeof step;)
            last = step;
        close(said[0]);
        kiln_checkpoint c = parts(&r);
        if (kiln_checkpoint_load(files_folder, &c)) {
            assert_true(c.step == last || c.step == last + 1);
            last = c.step;
            assert_true(core_f32(weight)[23] == (float)c.step);
            kiln_string_free((char *)c.extra);
        } else {
            assert_int_equal(last, 0);
        }
        assert_true(kiln_ok());
        assert_null(kiln_next_notice()); /* none was found damaged */
    }
    assert_true(last >= 40 / 3);
    assert_true(run_save_as(&r, files_folder, 1, last + 1));
    assert_int_equal(files_count(files_folder), 1); /* all that the dead have left is gone */
    run_end(&r);
}

static void test_memory_runs_out(void **state)
{
    (void)state;
    run r;
    run_begin(&r, 1);
    run_step(&r);
    assert_true(run_save_as(&r, files_folder, 1, 1));
    for (int64_t n = 0, done = 0; !done; n++) {
        kiln_alloc_fail_after(n);
        done = run_save_as(&r, files_folder, 1, 2);
        kiln_alloc_fail_after(-1);
        if (!done)
            expect_error(KILN_E_MEMORY, NULL, NULL);
        assert_true(newest(files_folder) == 1 || newest(files_folder) == 2);
        assert_true(n < 5000);
    }
    assert_int_equal(files_count(files_folder), 1);
    for (int64_t n = 0, done = 0; !done; n++) {
        kiln_checkpoint c = parts(&r);
        kiln_alloc_fail_after(n);
        done = kiln_checkpoint_load(files_folder, &c);
        kiln_alloc_fail_after(-1);
        if (done)
            kiln_string_free((char *)c.extra);
        else
            expect_error(KILN_E_MEMORY, NULL, NULL);
        assert_true(n < 5000);
    }
    run_end(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        files_test(test_goes_on_to_the_bit),
        files_test(test_odd_states),
        files_test(test_which_are_kept),
        files_test(test_same_step_without_exchange),
        files_test(test_damaged_ones_are_passed_over),
        files_test(test_lying_state),
        files_test(test_others_are_refused),
        files_test(test_bad_arguments),
        files_test(test_leftovers_are_removed),
        files_test(test_full_disk),
        files_test(test_killed_while_saving),
        files_test(test_memory_runs_out),
    };
    return CORE_MAIN(tests);
}
