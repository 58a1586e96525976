/* Several savers in one folder of checkpoints, processes and threads: whoever has just saved finds a checkpoint, and
 * what is found is whole and of one saver. And what a save may touch: temporaries of the living, files of others and
 * the mode of a file that it replaces are left alone. */
#include <pthread.h>
#include <sys/file.h>
#include <sys/wait.h>

#include "support/files.h"

enum { SAVERS = 4, ROUNDS = 60 };

/* ---- A saver: its model and its average hold one number, its own ---- */

typedef struct saver {
    kiln_module *model;
    kiln_ema *ema;
    kiln_tensor *weight;
    int number, rounds;
    const char *folder;
    int none, mixed, failed; /* loads that found nothing; that found parts of several; saves that failed */
} saver;

static void saver_begin(saver *s)
{
    s->model = kiln_nn_linear(8, 8, .no_bias = true);
    s->ema = kiln_ema_new(s->model, 0.5);
    s->weight = kiln_module_tensor(s->model, "weight");
}

static void saver_end(saver *s)
{
    kiln_ema_free(s->ema);
    kiln_module_free(s->model);
}

static bool fill(kiln_tensor *t, float value)
{
    bool ok = false;
    kiln_scope
        kiln_no_grad
            ok = kiln_assign(t, kiln_full(KILN_SHAPE(8, 8), value, KILN_F32));
    return ok;
}

static bool all_are(kiln_tensor *t, float value)
{
    float got[64];
    if (!kiln_read(t, got, sizeof got))
        return false;
    for (int i = 0; i < 64; i++)
        if (got[i] != value)
            return false;
    return true;
}

static bool save(saver *s, int64_t step, float value)
{
    kiln_checkpoint c = {.model = s->model, .ema = s->ema, .step = step, .epoch = (int64_t)value};
    return fill(s->weight, value) && fill(kiln_ema_state(s->ema).tensors[0], value) &&
           kiln_checkpoint_save(s->folder, &c, 1);
}

/* Saves and loads in turn; steps of one saver are now before, now behind and now those of the others. */
static void *saver_run(void *context)
{
    saver *s = context;
    saver_begin(s);
    for (int i = 0; i < s->rounds; i++) {
        float value = (float)(1 + i * SAVERS + s->number);
        int64_t step = i % 3 == 0 ? i : i * SAVERS + (i % 2 ? s->number : SAVERS - s->number);
        s->failed += !save(s, step, value);
        kiln_checkpoint c = {.model = s->model, .ema = s->ema};
        if (!kiln_checkpoint_load(s->folder, &c))
            s->none++;
        else if (!all_are(s->weight, (float)c.epoch) || !all_are(kiln_ema_state(s->ema).tensors[0], (float)c.epoch))
            s->mixed++;
        if (!kiln_ok() || kiln_next_notice())
            s->failed++; /* one was found damaged, or could not be removed */
        kiln_error_clear();
    }
    saver_end(s);
    return NULL;
}

static void expect_good(const saver *all, const char *what)
{
    int none = 0, mixed = 0, failed = 0;
    for (int i = 0; i < SAVERS; i++) {
        none += all[i].none;
        mixed += all[i].mixed;
        failed += all[i].failed;
    }
    print_message("%s: %d saves, %d loads found none, %d a mixture, %d failed\n", what, SAVERS * ROUNDS, none, mixed,
                  failed);
    assert_int_equal(none + mixed + failed, 0);
}

/* ---- Tests ---- */

static void test_processes(void **state)
{
    (void)state;
    if (kiln_default_device() != KILN_CPU)
        skip_because("a device with threads of its own does not survive fork");
    kiln_set_num_threads(1);
    saver all[SAVERS];
    int said[2];
    assert_int_equal(pipe(said), 0);
    for (int i = 0; i < SAVERS; i++) {
        all[i] = (saver){.number = i, .rounds = ROUNDS, .folder = files_folder};
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            saver_run(&all[i]);
            _exit(write(said[1], &all[i], sizeof all[i]) != sizeof all[i]);
        }
    }
    close(said[1]);
    for (int i = 0; i < SAVERS; i++)
        assert_int_equal(read(said[0], &all[i], sizeof all[i]), sizeof all[i]);
    close(said[0]);
    for (int i = 0; i < SAVERS; i++) {
        int status;
        wait(&status);
        assert_int_equal(status, 0);
    }
    expect_good(all, "processes");
    assert_int_equal(files_count(files_folder), 1);
}

static void test_threads(void **state)
{
    (void)state;
    saver all[SAVERS];
    pthread_t threads[SAVERS];
    for (int i = 0; i < SAVERS; i++) {
        all[i] = (saver){.number = i, .rounds = ROUNDS, .folder = files_folder};
        assert_int_equal(pthread_create(&threads[i], NULL, saver_run, &all[i]), 0);
    }
    for (int i = 0; i < SAVERS; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    expect_good(all, "threads");
    assert_int_equal(files_count(files_folder), 1);
}

/* Savers of one file, not of a folder: it is always there and whole, and every save goes well. */
static void *file_saver(void *context)
{
    saver *s = context;
    saver_begin(s);
    for (int i = 0; i < s->rounds; i++) {
        s->failed += !fill(s->weight, (float)(s->number + 1)) || !kiln_module_save(s->model, s->folder);
        if (!kiln_module_load(s->model, s->folder, false))
            s->none++;
        else
            kiln_scope {
                float mean = (float)kiln_item(kiln_sum_all(s->weight)) / 64;
                s->mixed += !all_are(s->weight, mean);
            }
        kiln_error_clear();
    }
    saver_end(s);
    return NULL;
}

static void test_one_file(void **state)
{
    (void)state;
    saver all[SAVERS];
    pthread_t threads[SAVERS];
    char path[512];
    snprintf(path, sizeof path, "%s", files_path("weights.safetensors"));
    for (int i = 0; i < SAVERS; i++) {
        all[i] = (saver){.number = i, .rounds = ROUNDS, .folder = path};
        assert_int_equal(pthread_create(&threads[i], NULL, file_saver, &all[i]), 0);
    }
    for (int i = 0; i < SAVERS; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    expect_good(all, "one file");
    assert_int_equal(files_count(files_folder), 1);
}

/* The name that a checkpoint would be written under is another writer's, who holds its lock. */
static void test_living_temporaries_stay(void **state)
{
    (void)state;
    saver s = {.folder = files_folder};
    saver_begin(&s);
    char name[64];
    int held[3];
    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof name, ".step-00000007.tmp-%ld-%d", (long)getpid(), i);
        assert_int_equal(mkdir(files_path(name), 0700), 0);
        held[i] = open(files_path(name), O_RDONLY | O_DIRECTORY);
        assert_int_equal(flock(held[i], LOCK_EX), 0);
    }
    assert_true(save(&s, 7, 1));
    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof name, ".step-00000007.tmp-%ld-%d", (long)getpid(), i);
        assert_int_equal(access(files_path(name), F_OK), 0);
        close(held[i]);
    }
    assert_true(save(&s, 8, 1)); /* now they are nobody's */
    assert_int_equal(files_count(files_folder), 1);
    saver_end(&s);
}

/* Somebody publishes or looks: the lock is waited for, not passed by. */
static void *save_later(void *context)
{
    saver *s = context;
    saver_begin(s);
    s->failed += !save(s, 2, 1);
    saver_end(s);
    return NULL;
}

static void test_the_lock_is_waited_for(void **state)
{
    (void)state;
    saver s = {.folder = files_folder};
    saver_begin(&s);
    assert_true(save(&s, 1, 1));
    int lock = open(files_path(".lock"), O_RDWR);
    assert_true(lock >= 0);
    assert_int_equal(flock(lock, LOCK_EX), 0);
    saver later = {.folder = files_folder};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, save_later, &later), 0);
    usleep(50000);
    assert_int_equal(access(files_path("step-00000001"), F_OK), 0);
    assert_int_not_equal(access(files_path("step-00000002"), F_OK), 0);
    close(lock);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(later.failed, 0);
    assert_int_equal(access(files_path("step-00000002"), F_OK), 0);
    saver_end(&s);
}

/* What somebody has put into the folder of a checkpoint stays when the checkpoint goes. */
static void test_files_of_others_stay(void **state)
{
    (void)state;
    saver s = {.folder = files_folder};
    saver_begin(&s);
    assert_true(save(&s, 1, 1));
    files_put(files_path("step-00000001/notes.txt"), "good", 4);
    assert_true(save(&s, 2, 1));
    assert_int_equal(access(files_path("step-00000001.kept/notes.txt"), F_OK), 0);
    assert_int_not_equal(access(files_path("step-00000001.kept/model.safetensors"), F_OK), 0);
    assert_non_null(strstr(kiln_next_notice(), "step-00000001.kept"));
    kiln_checkpoint c = {.model = s.model};
    assert_true(kiln_checkpoint_load(files_folder, &c));
    assert_int_equal(c.step, 2);
    saver_end(&s);
}

static int mode_of(const char *path)
{
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    return (int)(st.st_mode & 07777);
}

static void test_mode_is_kept(void **state)
{
    (void)state;
    saver s = {.folder = files_folder};
    const char *path = files_path("private.safetensors");
    saver_begin(&s);
    mode_t before = umask(022);
    assert_true(kiln_module_save(s.model, path));
    assert_int_equal(mode_of(path), 0644);
    assert_int_equal(chmod(path, 0600), 0);
    assert_true(kiln_module_save(s.model, path));
    assert_int_equal(mode_of(path), 0600);
    assert_int_equal(chmod(path, 0660), 0);
    assert_true(kiln_module_save(s.model, path));
    assert_int_equal(mode_of(path), 0660);
    umask(before);
    saver_end(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        files_test(test_processes),
        files_test(test_threads),
        files_test(test_one_file),
        files_test(test_living_temporaries_stay),
        files_test(test_the_lock_is_waited_for),
        files_test(test_files_of_others_stay),
        files_test(test_mode_is_kept),
    };
    return CORE_MAIN(tests);
}
