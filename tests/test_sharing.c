/* Threads that use the same tensors: while one trains, others read. A step of a reader sees all of a step of the
 * trainer or nothing of it; two that change the same tensor are told. */
#include <pthread.h>
#include <stdatomic.h>
#include "support/core.h"

enum { TENSORS = 8, ELEMENTS = 20000, ROUNDS = 300, READERS = 2 };

static struct {
    kiln_device device;
    kiln_tensor *weights[TENSORS];
    atomic_int done, looks, mixtures, failures, steps;
} shared;

/* All weights get the number of the step, each from the one before it, so that it takes a while. */
static void *train(void *context)
{
    (void)context;
    kiln_set_default_device(shared.device);
    for (int i = 1; i <= ROUNDS; i++) {
        kiln_step
            for (int k = 0; k < TENSORS; k++)
                kiln_assign(shared.weights[k], kiln_add_scalar(shared.weights[k], 1));
        if (!kiln_ok()) {
            kiln_report(stderr);
            atomic_fetch_add(&shared.failures, 1);
            break;
        }
        atomic_store(&shared.steps, i);
    }
    kiln_device_wait(shared.device);
    atomic_store(&shared.done, 1);
    return NULL;
}

static kiln_tensor *spread(void) /* how far the smallest and the largest element of all weights are apart */
{
    kiln_tensor *low[TENSORS], *high[TENSORS];
    for (int k = 0; k < TENSORS; k++) {
        low[k] = kiln_amin(shared.weights[k], 0, NULL, false);
        high[k] = kiln_amax(shared.weights[k], 0, NULL, false);
    }
    return kiln_sub(kiln_amax(kiln_stack(TENSORS, high, 0), 0, NULL, false),
                    kiln_amin(kiln_stack(TENSORS, low, 0), 0, NULL, false));
}

static void *read(void *context)
{
    bool grads = context != NULL;
    kiln_set_default_device(shared.device);
    while (!atomic_load(&shared.done) || atomic_load(&shared.looks) < 20) {
        kiln_tensor *apart = NULL;
        kiln_step {
            if (grads)
                apart = kiln_keep(spread());
            else
                kiln_no_grad
                    apart = kiln_keep(spread());
        }
        double value = kiln_item(apart);
        kiln_release(apart);
        atomic_fetch_add(&shared.looks, 1);
        if (!kiln_ok()) {
            kiln_report(stderr);
            atomic_fetch_add(&shared.failures, 1);
            break;
        }
        if (value != 0)
            atomic_fetch_add(&shared.mixtures, 1);
    }
    return NULL;
}

static void set_up(void)
{
    memset(&shared, 0, sizeof shared);
    shared.device = kiln_default_device();
    for (int k = 0; k < TENSORS; k++)
        shared.weights[k] = kiln_keep(kiln_zeros(KILN_SHAPE(ELEMENTS), KILN_F32));
    assert_true(kiln_eval() && kiln_device_wait(shared.device));
}

static void tear_down(void)
{
    for (int k = 0; k < TENSORS; k++)
        kiln_release(shared.weights[k]);
}

static void test_train_and_read(void **state)
{
    (void)state;
    set_up();
    pthread_t threads[1 + READERS];
    assert_int_equal(pthread_create(&threads[0], NULL, train, NULL), 0);
    for (int i = 0; i < READERS; i++)
        assert_int_equal(pthread_create(&threads[1 + i], NULL, read, i ? &shared : NULL), 0);
    for (int i = 0; i <= READERS; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(shared.failures, 0);
    assert_int_equal(shared.mixtures, 0);
    assert_int_equal(shared.steps, ROUNDS);
    assert_true(shared.looks >= 20);
    for (int k = 0; k < TENSORS; k++)
        kiln_scope
            assert_near(kiln_item(kiln_select(shared.weights[k], 0, ELEMENTS - 1)), ROUNDS, 0);
    tear_down();
}

/* ---- Two that write ---- */

static void *write_too(void *error)
{
    kiln_set_default_device(shared.device);
    kiln_step
        kiln_assign(shared.weights[1], kiln_mul_scalar(shared.weights[1], 2));
    *(kiln_error *)error = *kiln_last_error();
    return NULL;
}

static kiln_error in_a_thread(void)
{
    kiln_error e;
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, write_too, &e), 0);
    pthread_join(thread, NULL);
    return e;
}

static void test_two_writers(void **state)
{
    (void)state;
    set_up();
    kiln_set_name(shared.weights[1], "net.weight");
    kiln_step {
        assert_true(kiln_assign(shared.weights[1], kiln_add_scalar(shared.weights[1], 3)));
        if (!core_eager()) {
            kiln_error e = in_a_thread(); /* while this step has not run */
            assert_int_equal(e.code, KILN_E_STATE);
            assert_non_null(strstr(e.message, "net.weight"));
            assert_non_null(strstr(e.message, "another thread"));
        }
    }
    assert_int_equal(in_a_thread().code, KILN_OK); /* one after the other */
    kiln_scope
        assert_near(kiln_item(kiln_select(shared.weights[1], 0, 7)), 6, 0);
    tear_down();
}

/* ---- A thread that ends ---- */

static void *write_and_go(void *context)
{
    (void)context;
    kiln_set_default_device(shared.device);
    kiln_step_begin();
    kiln_assign(shared.weights[1], kiln_mul_scalar(shared.weights[1], 2));
    return NULL; /* nobody ends the step, and nothing of it has run */
}

static void test_writer_gone(void **state)
{
    (void)state;
    skip_if_eager();
    set_up();
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, write_and_go, NULL), 0);
    pthread_join(thread, NULL);
    kiln_step
        kiln_assign(shared.weights[1], kiln_add_scalar(shared.weights[1], 5));
    kiln_scope
        assert_near(kiln_item(kiln_select(shared.weights[1], 0, 7)), 5, 0);
    tear_down();
}

int main(void)
{
    const struct CMUnitTest tests[] = {core_test(test_train_and_read), core_test(test_two_writers),
                                       core_test(test_writer_gone)};
    return CORE_MAIN(tests);
}
