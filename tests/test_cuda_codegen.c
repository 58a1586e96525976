/* How generated kernels are compiled: by several threads, in which order, and when it is said that some are ready. The
 * plugin keeps its symbols to itself, so the file is compiled in, with a compiler that only takes notes. Skipped where
 * CUDA's headers are not there. */
#define _GNU_SOURCE
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>
#include "support/devices.h"
#ifdef KILN_TEST_CUDA
#include "device/cuda/compile/codegen.c"

enum { TEXTS = 120 };

/* ---- What stands for the rest of the plugin, and for the runtime ---- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static char compiled[TEXTS][16]; /* in the order they were begun */
static int begun, at_once, most_at_once, mode;
static bool held; /* nothing is finished */
static atomic_bool in_driver, slow_driver;

int kiln_cuda_compiles(void)
{
    return mode;
}

void kiln_cuda_compiler_prepare(const char *text, int capability, void (*at_exit)(void))
{
    (void)text, (void)capability, (void)at_exit;
}

bool kiln_cuda_compile(const char *text, int capability, bool (*take)(void *context, const void *cubin, size_t bytes),
                       void *context)
{
    (void)capability;
    pthread_mutex_lock(&lock);
    snprintf(compiled[begun++ % TEXTS], sizeof compiled[0], "%.15s", text);
    most_at_once = ++at_once > most_at_once ? at_once : most_at_once;
    pthread_cond_broadcast(&changed);
    while (held)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    pthread_mutex_lock(&lock);
    at_once--;
    pthread_mutex_unlock(&lock);
    return strncmp(text, "bad", 3) != 0 ? take(context, text, strlen(text))
                                        : kiln_fail(KILN_E_UNSUPPORTED, "a fused group", "that is no text") != NULL;
}

cudaError_t cudaSetDevice(int device)
{
    (void)device;
    return cudaSuccess;
}

cudaError_t cudaLibraryLoadData(cudaLibrary_t *library, const void *code, enum cudaJitOption *options, void **values,
                                unsigned n, enum cudaLibraryOption *more, void **more_values, unsigned m)
{
    (void)code, (void)options, (void)values, (void)n, (void)more, (void)more_values, (void)m;
    in_driver = slow_driver;
    if (slow_driver)
        nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
    in_driver = false;
    *library = (cudaLibrary_t)(uintptr_t)64;
    return cudaSuccess;
}

cudaError_t cudaLibraryGetKernel(cudaKernel_t *kernel, cudaLibrary_t library, const char *name)
{
    (void)library, (void)name;
    *kernel = (cudaKernel_t)(uintptr_t)128;
    return cudaSuccess;
}

cudaError_t cudaLibraryUnload(cudaLibrary_t library)
{
    (void)library;
    return cudaSuccess;
}

cudaError_t cudaGetLastError(void)
{
    return cudaSuccess;
}

/* ---- Asking ---- */

static kiln_cuda_device device = {.capability = 90, .lock = PTHREAD_MUTEX_INITIALIZER};
static cpu_set_t all_cores;

static void begin(int how, bool one_core)
{
    cpu_set_t one;
    CPU_ZERO(&one);
    for (int c = 0; c < CPU_SETSIZE && !CPU_COUNT(&one); c++)
        if (CPU_ISSET(c, &all_cores))
            CPU_SET(c, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, one_core ? &one : &all_cores), 0);
    begun = at_once = most_at_once = 0;
    mode = how;
}

static bool ask(const char *text, bool urgent, double work)
{
    const void *kernel;
    pthread_mutex_lock(&device.lock);
    assert_true(kiln_cuda_codegen_find(&device, text, urgent, work, &kernel));
    pthread_mutex_unlock(&device.lock);
    return kernel != NULL;
}

static void hold(bool on)
{
    pthread_mutex_lock(&lock);
    held = on;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

static void wait_until_begun(int n)
{
    pthread_mutex_lock(&lock);
    while (begun < n)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
}

static void wait_until_there(const char *text)
{
    while (!ask(text, false, 0))
        nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
}

static void end(void)
{
    kiln_cuda_codegen_close(&device);
    assert_int_equal(at_once, 0);
    sched_setaffinity(0, sizeof all_cores, &all_cores);
}

static const char *name_of(int i)
{
    static char name[16];
    snprintf(name, sizeof name, "text %d", i);
    return name;
}

/* ---- Tests ---- */

static void test_each_once(void **state)
{
    (void)state;
    begin(1, false);
    for (int turn = 0; turn < 3; turn++)
        for (int i = 0; i < TEXTS; i++)
            ask(name_of(i), i % 7 == 0, i);
    for (int i = 0; i < TEXTS; i++)
        wait_until_there(name_of(i));
    assert_int_equal(begun, TEXTS);
    assert_in_range(most_at_once, 1, MOST_THREADS);
    end();
}

static void test_side_by_side(void **state)
{
    (void)state;
    begin(1, false);
    hold(true);
    ask("first", false, 1);
    assert_in_range(device.gen->most_threads, 1, MOST_THREADS);
    device.gen->most_threads = 5; /* however many cores there are here */
    for (int i = 0; i < TEXTS - 1; i++)
        ask(name_of(i), false, 1);
    wait_until_begun(5);
    hold(false);
    for (int i = 0; i < TEXTS - 1; i++)
        wait_until_there(name_of(i));
    assert_int_equal(most_at_once, 5);
    assert_int_equal(begun, TEXTS);
    end();
}

static void test_order(void **state)
{
    (void)state;
    begin(1, true);
    hold(true);
    ask("first", false, 1000);
    wait_until_begun(1);
    ask("little", false, 10);
    ask("step", true, 0);
    ask("more", false, 30);
    for (int layer = 0; layer < 5; layer++) /* one for many layers has the work of all of them */
        ask("layers", false, 20);
    ask("other step", true, 0);
    hold(false);
    wait_until_there("little");
    const char *const order[] = {"first", "step", "other step", "layers", "more", "little"};
    for (int i = 0; i < 6; i++)
        assert_string_equal(compiled[i], order[i]);
    assert_int_equal(most_at_once, 1);
    end();
}

/* Said at once of whole steps, and else whenever as much work is done as still waits. */
static void test_generations(void **state)
{
    (void)state;
    begin(1, true);
    hold(true);
    ask("first", false, 0);
    wait_until_begun(1);
    for (int i = 0; i < 64; i++)
        ask(name_of(i), false, 1);
    uint64_t before = kiln_cuda_codegen_generation(&device);
    hold(false);
    for (int i = 0; i < 64; i++)
        wait_until_there(name_of(i));
    assert_in_range(kiln_cuda_codegen_generation(&device) - before, 6, 8); /* 32, 16, 8, 4, 2, 1, and the last */
    before = kiln_cuda_codegen_generation(&device);
    ask("a step", true, 0);
    wait_until_there("a step");
    assert_int_equal(kiln_cuda_codegen_generation(&device), before + 1);
    ask("bad", false, 5);
    wait_until_begun(67);
    end();
    while (kiln_next_notice())
        continue;
}

static void test_waiting(void **state)
{
    (void)state;
    begin(2, false);
    for (int i = 0; i < 5; i++)
        assert_true(ask(name_of(i), false, 1));
    assert_false(ask("bad text", false, 1));
    end();
}

/* What is being compiled is waited for, and nothing else is begun. */
static void test_closed_in_the_middle(void **state)
{
    (void)state;
    begin(1, true);
    hold(true);
    for (int i = 0; i < 20; i++)
        ask(name_of(i), false, 1);
    wait_until_begun(1);
    device.gen->ending = true; /* as stop_threads begins */
    hold(false);
    end();
    assert_int_equal(begun, 1);
}

/* A child of fork finds no thread of its parent inside the driver, which has locks of its own. */
static void test_fork(void **state)
{
    (void)state;
    begin(1, false);
    slow_driver = true;
    ask(name_of(0), false, 1);
    while (!in_driver)
        nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
    pid_t child = fork();
    if (child == 0)
        _exit(in_driver);
    int status = 0;
    assert_true(child > 0 && waitpid(child, &status, 0) == child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    slow_driver = false;
    wait_until_there(name_of(0));
    end();
}

int main(void)
{
    sched_getaffinity(0, sizeof all_cores, &all_cores);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_once), cmocka_unit_test(test_side_by_side),
        cmocka_unit_test(test_order),     cmocka_unit_test(test_generations),
        cmocka_unit_test(test_waiting),   cmocka_unit_test(test_closed_in_the_middle),
        cmocka_unit_test(test_fork),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
int main(void)
{
    printf("skipped: the CUDA plugin was not built\n");
    return TEST_SKIPPED;
}
#endif
