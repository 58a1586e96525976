/* Children of a process that uses Kiln: the CPU and loaders work there, whatever other threads were doing at the moment
 * of the fork; a GPU, or a simulated one, that the parent has open is refused with the reason; and a child ends without
 * waiting for threads that it does not have. */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "core/parallel.h"
#include "support/core.h"
#include "support/last_words.h"
#include "support/train.h"
#include "tensor/memory.h"

/* ctest: name=threads env=KILN_NUM_THREADS=4 */

enum { IN = 12, HIDDEN = 17, CLASSES = 5, BATCH = 8, STEPS = 4, LARGE = 256, IN_TIME = 60 /* seconds */ };

/* What other threads of the parent held is nobody's in the child: that is no leak. */
static bool is_child;
int __lsan_is_turned_off(void);
int __lsan_is_turned_off(void)
{
    return is_child;
}

/* The child does `body`, and ends as programs do; it has to return 0. */
static void in_child(int (*body)(void *context), void *context)
{
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        is_child = true;
        last_words(IN_TIME);
        exit(body(context));
    }
    int status = 0;
    assert_true(child > 0 && waitpid(child, &status, 0) == child);
    if (!WIFEXITED(status))
        fail_msg("the child was ended by signal %d%s", WTERMSIG(status),
                 WTERMSIG(status) == SIGALRM ? ": it hung" : "");
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* In the child, which has no tests to fail. */
#define MUST(condition)                                                                                                \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "child: line %d: %s\n", __LINE__, kiln_last_error()->message);                             \
            return 1;                                                                                                  \
        }                                                                                                              \
    } while (0)

/* ---- The CPU ---- */

static float *expected[2]; /* after STEPS, of a small and of a large batch, which all threads share */

static int train(void *batch)
{
    int64_t n = *(int64_t *)batch;
    float *values = net_trained(KILN_CPU, IN, HIDDEN, CLASSES, 1, n, STEPS);
    MUST(values && memcmp(values, expected[n == LARGE], sizeof(float) * (HIDDEN * (IN + 1 + CLASSES) + CLASSES)) == 0);
    free(values);
    MUST(kiln_memory_trim(KILN_CPU));
    return 0;
}

static int make_expected(void **state)
{
    if (core_before(state))
        return -1;
    expected[0] = net_trained(KILN_CPU, IN, HIDDEN, CLASSES, 1, BATCH, STEPS);
    expected[1] = net_trained(KILN_CPU, IN, HIDDEN, CLASSES, 1, LARGE, STEPS);
    return !expected[0] || !expected[1];
}

static int free_expected(void **state)
{
    free(expected[0]);
    free(expected[1]);
    return core_after(state);
}

static void skip_unless_cpu(void)
{
    if (!core_on("cpu"))
        skip_because("about the CPU");
}

static int child_and_grandchild(void *batch)
{
    if (train(batch))
        return 1;
    is_child = true;
    in_child(train, batch);
    return train(batch);
}

static void test_cpu(void **state)
{
    (void)state;
    skip_unless_cpu();
    for (int64_t *n = (int64_t[]){BATCH, LARGE, 0}; *n; n++) {
        in_child(train, n);
        in_child(child_and_grandchild, n);
        assert_int_equal(train(n), 0); /* the parent does not notice */
    }
}

/* Threads of the pool that are asleep when it forks, and again and again in the child. */
static void count(void *context, int64_t task, int worker)
{
    (void)task;
    (void)worker;
    atomic_fetch_add((atomic_int *)context, 1);
}

static int wake_often(void *nothing)
{
    (void)nothing;
    for (int i = 0; i < 30; i++) {
        atomic_int tasks = 0;
        usleep(2000);
        kiln_parallel(100, count, &tasks);
        MUST(tasks == 100);
    }
    return 0;
}

static void test_pool(void **state)
{
    (void)state;
    skip_unless_cpu();
    for (int i = 0; i < 5; i++) {
        assert_int_equal(wake_often(NULL), 0);
        usleep(2000);
        in_child(wake_often, NULL);
    }
}

/* What was recorded, and tensors of the parent, are there in the child. */
static int go_on(void *p)
{
    float out[3];
    MUST(kiln_read(p, out, sizeof out) && out[0] == 3 && out[2] == 7);
    return 0;
}

static void test_pending(void **state)
{
    (void)state;
    skip_unless_cpu();
    kiln_scope {
        kiln_tensor *x = kiln_of_f32(((float[]){1, 2, 3}), 3);
        kiln_tensor *y = kiln_add_scalar(kiln_mul_scalar(x, 2), 1);
        in_child(go_on, y);
        assert_f32(y, 3, 5, 7);
    }
}

/* ---- While others are at work ---- */

static void skip_if_allocator_cannot(void)
{
#ifdef __SANITIZE_ADDRESS__
    skip_because("AddressSanitizer's allocator hangs in a child if other threads use it at the moment of the fork");
#endif
}

enum { OTHERS = 4, FORKS = 40 };

typedef struct busy {
    pthread_t thread;
    int64_t batch;
    kiln_device device;
    atomic_bool *stop;
} busy;

/* Plans are made and dropped, memory is taken and given, kernels run, all the time. */
static void *keep_busy(void *p)
{
    const busy *b = p;
    for (int i = 0; !atomic_load(b->stop); i++) {
        free(net_trained(b->device, IN, HIDDEN + i % 7, CLASSES, 1, b->batch, 2));
        if (i % 5 == 0) {
            kiln_plan_cache_set_capacity(i % 3);
            kiln_plan_cache_set_capacity(256);
        }
        kiln_memory_trim(b->device);
        kiln_error_clear();
    }
    return NULL;
}

static void *take_and_give(void *p)
{
    const busy *b = p;
    kiln_block held[64] = {{0}};
    for (uint32_t i = 0; !atomic_load(b->stop); i++) {
        uint32_t at = i * 2654435761u >> 26, size = i * 40503u % 5000;
        kiln_memory_give(b->device, held[at]);
        kiln_memory_take(b->device, 64 * size, &held[at]);
    }
    for (int i = 0; i < 64; i++)
        kiln_memory_give(b->device, held[i]);
    kiln_error_clear();
    return NULL;
}

static void check_beside(kiln_device device, int (*body)(void *context), void *context)
{
    busy others[OTHERS];
    atomic_bool stop = false;
    for (int i = 0; i < OTHERS; i++) {
        others[i] = (busy){.batch = i % 2 ? LARGE : BATCH, .device = device, .stop = &stop};
        assert_int_equal(pthread_create(&others[i].thread, NULL, i ? keep_busy : take_and_give, &others[i]), 0);
    }
    for (int i = 0; i < FORKS; i++) {
        usleep((useconds_t)(i * 37 % 1000));
        in_child(body, context);
    }
    atomic_store(&stop, true);
    for (int i = 0; i < OTHERS; i++)
        pthread_join(others[i].thread, NULL);
}

static void test_cpu_beside_others(void **state)
{
    (void)state;
    skip_if_allocator_cannot();
    skip_unless_cpu();
    check_beside(KILN_CPU, train, &(int64_t){LARGE});
}

/* A convolution's plan has locks of its own, which a thread of the parent may hold. */
static bool convolve(float *sum)
{
    bool ok = false;
    kiln_scope {
        kiln_tensor *x = kiln_ones(KILN_SHAPE(8, 16, 12, 12), KILN_F32),
                    *w = kiln_ones(KILN_SHAPE(16, 16, 3, 3), KILN_F32);
        kiln_tensor *y = kiln_sum_all(kiln_conv2d(x, w, NULL));
        ok = kiln_read(y, sum, sizeof *sum);
    }
    return ok;
}

static void *convolve_always(void *p)
{
    float sum;
    while (!atomic_load((atomic_bool *)p))
        convolve(&sum);
    return NULL;
}

static int convolve_in_child(void *expected_sum)
{
    float sum = 0;
    MUST(convolve(&sum) && sum == *(float *)expected_sum);
    return 0;
}

static void test_convolutions(void **state)
{
    (void)state;
    skip_if_allocator_cannot();
    skip_unless_cpu();
    float sum;
    atomic_bool stop = false;
    pthread_t thread;
    assert_true(convolve(&sum));
    assert_int_equal(pthread_create(&thread, NULL, convolve_always, &stop), 0);
    for (int i = 0; i < FORKS / 2; i++)
        in_child(convolve_in_child, &sum);
    atomic_store(&stop, true);
    pthread_join(thread, NULL);
}

/* ---- Loaders ---- */

enum { SAMPLES = 40, EACH = 4 };

static kiln_dataset *numbers(void)
{
    static float x[SAMPLES];
    static int64_t y[SAMPLES];
    kiln_dataset *d = NULL;
    for (int i = 0; i < SAMPLES; i++)
        x[i] = (float)(y[i] = i);
    kiln_scope
        d = kiln_data_tensors(kiln_tensor_new(x, KILN_F32, KILN_SHAPE(SAMPLES, 1), KILN_CPU),
                              kiln_tensor_new(y, KILN_I64, KILN_SHAPE(SAMPLES), KILN_CPU));
    return d;
}

/* The rest of an epoch, as the child of a loader sees it: the same batches as the parent's. */
static int rest_of_epoch(void *p)
{
    kiln_loader *l = p;
    kiln_batch b;
    int n = 0;
    float x[EACH];
    while (kiln_loader_next(l, &b)) {
        MUST(kiln_read(b.x, x, sizeof x));
        for (int i = 0; i < EACH; i++)
            MUST((int64_t)x[i] == kiln_loader_sample(l, b.epoch, b.index * EACH + i));
        n++;
    }
    MUST(kiln_ok() && n == SAMPLES / EACH - 3);
    kiln_loader_free(l);
    return 0;
}

static int free_loader(void *p)
{
    kiln_loader_free(p);
    MUST(kiln_ok());
    return 0;
}

static int leave_loader(void *p)
{
    (void)p;
    return 0;
}

static void check_loader(int workers)
{
    kiln_dataset *d = numbers();
    kiln_batch b;
    for (int i = 0; i < 10; i++) {
        kiln_loader *l = kiln_loader_new(d, .batch = EACH, .workers = workers, .shuffle = true);
        assert_non_null(l);
        for (int k = 0; k < 3; k++)
            assert_true(kiln_loader_next(l, &b));
        in_child(rest_of_epoch, l);
        in_child(free_loader, l);
        in_child(leave_loader, l);
        assert_int_equal(rest_of_epoch(l), 0); /* the parent's own */
    }
    kiln_data_free(d);
}

static void test_loaders(void **state)
{
    (void)state;
    skip_unless_cpu();
    check_loader(0);
    skip_if_allocator_cannot(); /* workers are at work when the loader is there */
    check_loader(3);
}

/* ---- Devices that the parent has open ---- */

typedef struct owned { /* by the parent, on the device */
    test_net net;
    kiln_loader *loader;
    kiln_module *model;
} owned;

static bool is_refused(void)
{
    const kiln_error *e = kiln_last_error();
    bool told = e->code == KILN_E_DEVICE && strstr(e->message, "forked") && strstr(e->hint, "fork");
    if (told)
        kiln_error_clear();
    return told;
}

static int use_device(void *p)
{
    owned *o = p;
    kiln_device device = o->net.device;
    float x;
    kiln_batch b;
    char name[32];
    snprintf(name, sizeof name, "%s", kiln_device_name(device));
    MUST(!kiln_tensor_new(&(float){1}, KILN_F32, KILN_SHAPE(1), device) && is_refused());
    MUST(!kiln_read(o->net.p[1], &x, 0) && !kiln_ok());
    kiln_error_clear();
    MUST(!net_step(&o->net, BATCH, 1) && is_refused());
    MUST(!kiln_device_wait(device) && is_refused());
    MUST(kiln_device_parse(name) == KILN_NO_DEVICE && is_refused());
    MUST(kiln_device_auto() == KILN_CPU && kiln_ok());
    kiln_device_info info;
    if (core_on("sim"))
        MUST(kiln_device_describe(device, &info) && strstr(info.refused, "forked"));
    if (o->loader) {
        MUST(!kiln_loader_next(o->loader, &b) || !kiln_read(b.x, &x, sizeof x));
        MUST(!kiln_ok());
        kiln_error_clear();
        kiln_loader_free(o->loader);
    }
    net_free(&o->net);
    MUST(kiln_ok()); /* giving up what is the parent's is no error */
    return train(&(int64_t){BATCH});
}

static int do_nothing(void *p)
{
    (void)p;
    return 0;
}

static void test_device(void **state)
{
    (void)state;
    if (core_on("cpu"))
        skip_because("about devices that run beside the host");
    owned o = {0};
    kiln_dataset *d = numbers();
    for (int workers = 0; workers < 3; workers += 2) {
        assert_true(net_make(&o.net, kiln_default_device(), IN, HIDDEN, CLASSES, 1));
        o.loader = kiln_loader_new(d, .batch = EACH, .workers = workers, .device = o.net.device, .resident = -1);
        kiln_batch b;
        assert_true(o.loader && kiln_loader_next(o.loader, &b));
        for (uint32_t i = 0; i < 40; i++) /* often enough that kernels are compiled for it */
            assert_true(net_step(&o.net, BATCH, i));
        assert_true(kiln_device_wait(o.net.device));
        in_child(do_nothing, &o);
        in_child(use_device, &o);
        assert_true(net_step(&o.net, BATCH, 0) && kiln_device_wait(o.net.device)); /* the parent's still works */
        kiln_loader_free(o.loader);
        net_free(&o.net);
    }
    kiln_data_free(d);
}

static int use_cpu_and_device(void *p)
{
    return train(&(int64_t){LARGE}) || use_device(p);
}

static void test_device_beside_others(void **state)
{
    (void)state;
    skip_if_allocator_cannot();
    if (core_on("cpu"))
        skip_because("about devices that run beside the host");
    owned o = {0};
    assert_true(net_make(&o.net, kiln_default_device(), IN, HIDDEN, CLASSES, 1));
    check_beside(kiln_default_device(), use_cpu_and_device, &o);
    net_free(&o.net);
}

/* One that the parent has not opened is the child's as any. */
static int use_another(void *name)
{
    kiln_device device = kiln_device_parse(name);
    MUST(device > 0);
    kiln_scope
        MUST(kiln_item(kiln_sum_all(kiln_tensor_new(((float[]){1, 2}), KILN_F32, KILN_SHAPE(2), device))) == 3);
    return 0;
}

static void test_another_device(void **state)
{
    (void)state;
    if (!core_on("sim"))
        skip_because("about simulated devices");
    in_child(use_another, "sim:1");
}

#define fork_test(f) cmocka_unit_test_setup_teardown(f, make_expected, free_expected)

int main(void)
{
#ifdef __SANITIZE_THREAD__
    printf("skipped: ThreadSanitizer does not let a forked child start threads\n");
    return TEST_SKIPPED;
#endif
    const struct CMUnitTest tests[] = {
        fork_test(test_cpu),
        fork_test(test_pool),
        fork_test(test_pending),
        fork_test(test_cpu_beside_others),
        fork_test(test_convolutions),
        fork_test(test_loaders),
        fork_test(test_device),
        fork_test(test_device_beside_others),
        fork_test(test_another_device),
    };
    return CORE_MAIN(tests);
}
