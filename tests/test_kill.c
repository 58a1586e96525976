/* A run that saves often is killed (SIGKILL) at random moments and resumed, over and over, with other numbers of
 * workers and threads each time. Whenever it dies there is a complete checkpoint once there has been one, and the run
 * that reaches the end has the weights, the optimizer's state and the log of one that was never interrupted, to the
 * bit. KILN_KILLS=1000   how many times to kill (200 by default) */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "support/core.h"

static char folder[64];

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static const char *path_of(const char *name)
{
    static char paths[8][128];
    static int turn;
    char *path = paths[turn++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static void write_file(const char *name, const void *bytes, size_t n)
{
    FILE *f = fopen(path_of(name), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

/* 100 samples of 4x4 pixels in ten classes, and a model with dropout, so that the random state matters. */
static void write_inputs(void)
{
    enum { COUNT = 100, PIXELS = 16 };
    unsigned char images[16 + COUNT * PIXELS] = {0, 0, 8, 3, 0, 0, 0, COUNT, 0, 0, 0, 4, 0, 0, 0, 4};
    unsigned char labels[8 + COUNT] = {0, 0, 8, 1, 0, 0, 0, COUNT};
    for (int i = 0; i < COUNT * PIXELS; i++)
        images[16 + i] = (unsigned char)((unsigned)i * 2654435761u >> 13);
    for (int i = 0; i < COUNT; i++)
        labels[8 + i] = (unsigned char)(i % 10);
    write_file("train-images-idx3-ubyte", images, sizeof images);
    write_file("train-labels-idx1-ubyte", labels, sizeof labels);
    const char *model = "input: [1, 4, 4]\n"
                        "layers:\n"
                        "  - flatten\n"
                        "  - linear: 24\n"
                        "  - batch_norm\n"
                        "  - relu\n"
                        "  - dropout: 0.3\n"
                        "  - linear: 10\n";
    write_file("model.yaml", model, strlen(model));
}

/* The command, in a process of its own; its output goes to a file. */
static pid_t start(const char *save, int workers, int threads)
{
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid)
        return pid;
    char exe[512], command[600], numbers[2][8];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    exe[n > 0 ? n : 0] = '\0';
    *strrchr(exe, '/') = '\0';
    snprintf(command, sizeof command, "%s/../bin/kiln", exe);
    snprintf(numbers[0], sizeof numbers[0], "%d", workers);
    snprintf(numbers[1], sizeof numbers[1], "%d", threads);
    int out = open(path_of("output"), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (out < 0 || dup2(out, 1) < 0 || dup2(out, 2) < 0)
        _exit(126);
    execl(command, command, "train", "--model", path_of("model.yaml"), "--data", folder, "--epochs", "3", "--batch",
          "4", "--optim", "adam", "--schedule", "cosine", "--ema", "0.9", "--save", path_of(save), "--save-every", "2",
          "--device", "cpu", "--resume", "--workers", numbers[0], "--threads", numbers[1], "--quiet", (char *)NULL);
    _exit(127);
}

/* Waits until it ends or `seconds` have passed, then kills it. True if it reached its end. */
static bool run_for(pid_t pid, double seconds)
{
    int status = 0;
    for (double end = now() + seconds; now() < end;) {
        if (waitpid(pid, &status, WNOHANG) == pid)
            goto over;
        usleep(200);
    }
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
        return false;
over:
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        char text[2000];
        FILE *f = fopen(path_of("output"), "r");
        size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
        text[n] = '\0';
        if (f)
            fclose(f);
        fail_msg("kiln ended with status %d: %s", status, text);
    }
    return true;
}

static char *read_file(const char *path, size_t *bytes)
{
    FILE *f = fopen(path, "rb");
    if (!f)
        fail_msg("%s: %s", path, strerror(errno));
    fseek(f, 0, SEEK_END);
    *bytes = (size_t)ftell(f);
    rewind(f);
    char *data = malloc(*bytes + 1);
    assert_int_equal(fread(data, 1, *bytes, f), *bytes);
    fclose(f);
    return data;
}

static void assert_same_file(const char *a, const char *b, const char *name)
{
    char first[256], second[256];
    size_t n, m;
    snprintf(first, sizeof first, "%s/%s", a, name);
    snprintf(second, sizeof second, "%s/%s", b, name);
    char *x = read_file(first, &n), *y = read_file(second, &m);
    if (n != m || memcmp(x, y, n) != 0)
        fail_msg("%s differs between the interrupted and the uninterrupted run", name);
    free(x);
    free(y);
}

/* The numbers of a log that do not depend on time: text up to "lr" in each line holds them in order. */
static void assert_same_log(const char *a, const char *b)
{
    char x[4096], y[4096];
    FILE *f = fopen(a, "r"), *g = fopen(b, "r");
    assert_non_null(f);
    assert_non_null(g);
    static const char *const keys[] = {"\"epoch\"",    "\"step\"",         "\"loss\"", "\"accuracy\"",
                                       "\"val_loss\"", "\"val_accuracy\"", "\"lr\""};
    int lines = 0;
    for (; fgets(x, sizeof x, f); lines++) {
        assert_non_null(fgets(y, sizeof y, g));
        for (size_t k = 0; k < sizeof keys / sizeof *keys; k++) {
            const char *p = strstr(x, keys[k]), *q = strstr(y, keys[k]);
            assert_int_equal(!p, !q);
            if (p && strncmp(p, q, strcspn(p, ",}")) != 0)
                fail_msg("log line %d: %.60s instead of %.60s", lines + 1, q, p);
        }
    }
    assert_null(fgets(y, sizeof y, g));
    assert_true(lines >= 3);
    fclose(f);
    fclose(g);
}

static void killed_and_resumed(void **state)
{
    (void)state;
    const char *wanted = getenv("KILN_KILLS");
    int kills = wanted ? atoi(wanted) : 200, done = 0, runs = 0;
    unsigned seed = 12345;
    snprintf(folder, sizeof folder, "/tmp/kiln-kill-XXXXXX");
    assert_non_null(mkdtemp(folder));
    write_inputs();

    double began = now();
    assert_true(run_for(start("whole", 0, 1), 600));
    double whole = now() - began;
    char *reference = kiln_checkpoint_find(path_of("whole"));
    assert_non_null(reference);

    while (done < kills) {
        bool had_one = false, finished = false;
        char cut[64], command[200];
        snprintf(cut, sizeof cut, "cut-%d", runs);
        while (!finished) {
            seed = seed * 1103515245u + 12345u;
            double seconds = whole * 0.8 * (double)(seed >> 8 & 0xffff) / 65536.0;
            if (done >= kills)
                seconds = 600;
            finished = run_for(start(cut, (int)(seed >> 3 & 3), 1 + (int)(seed >> 5 & 1)), seconds);
            done += !finished;
            char *found = kiln_checkpoint_find(path_of(cut));
            if (had_one && !found)
                fail_msg("after kill %d there is no complete checkpoint any more", done);
            had_one |= found != NULL;
            kiln_string_free(found);
            assert_true(kiln_ok());
        }
        char *last = kiln_checkpoint_find(path_of(cut));
        assert_non_null(last);
        assert_same_file(reference, last, "model.safetensors");
        assert_same_file(reference, last, "optim.safetensors");
        assert_same_file(reference, last, "ema.safetensors");
        assert_same_log(path_of("whole/log.jsonl"), path_of(strcat(cut, "/log.jsonl")));
        kiln_string_free(last);
        *strchr(cut, '/') = '\0';
        snprintf(command, sizeof command, "rm -r %s", path_of(cut));
        assert_int_equal(system(command), 0);
        runs++;
    }
    print_message("%d kills in %d runs; each run ended like the uninterrupted one (%.2f s)\n", done, runs, whole);
    kiln_string_free(reference);
    char command[200];
    snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(killed_and_resumed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
