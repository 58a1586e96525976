/* Processes that end while other threads use Kiln, and threads that end when the library was closed: neither crashes
 * nor hangs. Each case is a process of its own, which is this program with the name of a case, many times over. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <semaphore.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "support/core.h"
#include "support/train.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { TURNS = 6 }; /* a process takes long to start, and hardly needs chance to be found out */
#else
enum { TURNS = 25 };
#endif
enum { IN = 12, HIDDEN = 17, CLASSES = 5, BATCH = 64, WORKERS = 3, IN_TIME = 60 /* seconds */ };

extern char **environ;

/* What threads use when the process ends is no leak; those on simulated devices have addresses that no checker knows.
 */
static bool is_case;
int __lsan_is_turned_off(void);
int __lsan_is_turned_off(void)
{
    return is_case;
}

/* ---- The cases ---- */

static sem_t at_work; /* each thread has done something */

static void *train(void *device)
{
    test_net net;
    for (uint32_t i = 0;; i++) {
        if (!net_make(&net, *(kiln_device *)device, IN, HIDDEN + i % 5, CLASSES, 1))
            abort(); /* nobody has told it to stop: there is no reason to fail */
        for (uint32_t k = 0; k < 4; k++)
            if (!net_step(&net, BATCH, k))
                abort();
        net_free(&net);
        kiln_memory_trim(*(kiln_device *)device);
        if (i == 0)
            sem_post(&at_work);
    }
    return NULL;
}

static void *convolve(void *nothing)
{
    for (int i = 0;; i++) {
        kiln_scope {
            kiln_tensor *x = kiln_ones(KILN_SHAPE(8, 16, 12, 12), KILN_F32);
            kiln_tensor *y = kiln_sum_all(kiln_conv2d(x, kiln_ones(KILN_SHAPE(16, 16, 3, 3), KILN_F32), NULL));
            if (!(kiln_item(y) > 0))
                abort();
        }
        if (i == 0)
            sem_post(&at_work);
    }
    return nothing;
}

static void start(void *(*body)(void *), void *context)
{
    pthread_t thread;
    for (int i = 0; i < WORKERS; i++)
        if (pthread_create(&thread, NULL, body, context) != 0)
            abort();
    for (int i = 0; i < WORKERS; i++)
        sem_wait(&at_work);
}

static kiln_device device;

static void *end_soon(void *us)
{
    usleep(*(useconds_t *)us);
    exit(0);
}

/* The main thread has an open scope, tensors in it that others use, and something recorded. */
static void *use_tensor(void *t)
{
    float x[3];
    for (int i = 0;; i++) {
        if (!kiln_read(t, x, sizeof x) || x[1] != 2)
            abort();
        if (i == 0)
            sem_post(&at_work);
    }
    return NULL;
}

static void leave_everything_open(void)
{
    kiln_scope {
        kiln_tensor *t = kiln_of_f32(((float[]){1, 2, 3}), 3);
        kiln_add(t, t);
        start(use_tensor, t);
        exit(0);
    }
}

static void leave_a_loader(void)
{
    kiln_dataset *d = NULL;
    kiln_scope
        d = kiln_data_tensors(kiln_zeros(KILN_SHAPE(1000, 40), KILN_F32), kiln_zeros(KILN_SHAPE(1000), KILN_I64));
    kiln_batch b;
    if (!kiln_loader_next(kiln_loader_new(d, .batch = 10, .workers = 3), &b))
        abort();
}

static int be(const char *name, useconds_t us)
{
    is_case = true;
    alarm(IN_TIME);
    sem_init(&at_work, 0, 0);
    device = strcmp(name, "sim") && strcmp(name, "sim by another") ? KILN_CPU : kiln_device_parse("sim:0");
    if (!strcmp(name, "scope"))
        leave_everything_open();
    else if (!strcmp(name, "convolutions"))
        start(convolve, NULL);
    else if (!strcmp(name, "loader"))
        leave_a_loader();
    else
        start(train, &device);
    if (strstr(name, "by another")) { /* ends it, while this thread is at work, too */
        pthread_t thread;
        pthread_create(&thread, NULL, end_soon, &us);
        train(&device);
    }
    usleep(us);
    return 0;
}

/* ---- Running them ---- */

static char self[PATH_MAX];

static void expect_good_end(char *const *arguments)
{
    pid_t child;
    int status = 0;
    assert_int_equal(posix_spawn(&child, arguments[0], NULL, NULL, arguments, environ), 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFSIGNALED(status))
        fail_msg("%s: ended by signal %d", arguments[1], WTERMSIG(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void check(const char *name)
{
    char us[16], copy[32];
    snprintf(copy, sizeof copy, "%s", name);
    for (int i = 0; i < TURNS; i++) {
        snprintf(us, sizeof us, "%d", i * 211 % 3000);
        expect_good_end((char *[]){self, copy, us, NULL});
    }
}

static void test_cpu(void **state)
{
    (void)state;
    check("cpu");
    check("cpu by another");
}

static void test_sim(void **state)
{
    (void)state;
    check("sim");
    check("sim by another");
}

static void test_convolutions(void **state)
{
    (void)state;
    check("convolutions");
}

static void test_scope(void **state)
{
    (void)state;
    check("scope");
}

static void test_loader(void **state)
{
    (void)state;
    check("loader");
}

/* fake/unload.c */
static void test_unload(void **state)
{
    (void)state;
    Dl_info info;
    char program[PATH_MAX + 32], library[PATH_MAX];
    assert_true(dladdr((void *)(uintptr_t)&kiln_device_parse, &info) != 0);
    assert_non_null(realpath(info.dli_fname, library));
    snprintf(program, sizeof program, "%s", self);
    strcpy(strrchr(program, '/'), "/fake/unload");
    if (access(program, X_OK) != 0)
        skip_because("fake/unload is not beside this program");
    expect_good_end((char *[]){program, library, NULL});
}

int main(int argc, char **argv)
{
    if (argc == 3)
        return be(argv[1], (useconds_t)atol(argv[2]));
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n < 0)
        return 1;
    self[n] = '\0';
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_cpu),          cmocka_unit_test(test_sim),
                                       cmocka_unit_test(test_convolutions), cmocka_unit_test(test_scope),
                                       cmocka_unit_test(test_loader),       cmocka_unit_test(test_unload)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
