/* Handles that were released: every call that is given one says so, instead of showing another tensor that has come to
 * lie in its place. And what is said of tensors that nobody releases. */
#include <pthread.h>
#include "support/core.h"
#include "tensor/thread.h"

/* ctest: name=eager env=KILN_EAGER=1 */

#define F32(...) kiln_of_f32(((float[]){__VA_ARGS__}), sizeof((float[]){__VA_ARGS__}) / sizeof(float))

static kiln_tensor *ended_in_scope(void)
{
    kiln_tensor *t = NULL;
    kiln_scope
        t = kiln_add_scalar(F32(1, 2, 3), 1);
    return t;
}

static kiln_tensor *ended_in_step(void)
{
    kiln_tensor *t = NULL;
    kiln_step
        t = kiln_mean_all(F32(1, 2, 3));
    return t;
}

static kiln_tensor *ended_by_release(void)
{
    kiln_tensor *t = kiln_keep(F32(1, 2, 3));
    kiln_release(t);
    return t;
}

static void expect_released(const char *operation)
{
    kiln_error e = *kiln_last_error();
    assert_non_null(strstr(e.hint, "kiln_keep"));
    expect_error(KILN_E_STATE, operation, "released");
}

static void test_every_call(void **state)
{
    (void)state;
    kiln_tensor *(*const ends[])(void) = {ended_in_scope, ended_in_step, ended_by_release};
    kiln_module *identity = kiln_nn_identity();
    for (int i = 0; i < 3; i++) {
        float out[3];
        kiln_tensor *t = ends[i](), *fresh = kiln_keep(F32(42, 42, 42)), *grad = NULL;
        assert_false(kiln_read(t, out, sizeof out));
        expect_released("read");
        assert_false(kiln_write(t, out, sizeof out));
        expect_released("write");
        assert_true(isnan(kiln_item(t)));
        expect_released("item");
        assert_null(kiln_add(t, fresh));
        expect_released("add");
        assert_null(kiln_add(fresh, t));
        expect_released("add");
        assert_null(kiln_where(NULL, t, t));
        kiln_error_clear();
        assert_false(kiln_assign(t, fresh));
        expect_released("assign");
        assert_false(kiln_assign(fresh, t));
        expect_released("assign");
        assert_null(kiln_detach(t));
        expect_released("detach");
        assert_null(kiln_keep(t));
        expect_released("keep");
        kiln_release(t);
        expect_released("release");
        assert_false(kiln_backward(t));
        expect_released("backward");
        assert_false(kiln_backward_with(fresh, t));
        expect_released("backward");
        assert_false(kiln_grad(t, NULL, &fresh, 1, &grad));
        expect_released("grad");
        assert_null(kiln_requires_grad(t, true));
        expect_released("requires_grad");
        assert_false(kiln_needs_grad(t));
        expect_released("needs_grad");
        assert_null(kiln_grad_of(t));
        expect_released("grad_of");
        kiln_zero_grad_of(t);
        expect_released("zero_grad_of");
        assert_null(kiln_to(t, KILN_CPU));
        expect_released("to");
        assert_int_equal(kiln_ndim(t), -1);
        expect_released("ndim");
        assert_int_equal(kiln_numel(t), -1);
        expect_released("numel");
        assert_null(kiln_shape(t));
        expect_released("shape");
        assert_int_equal(kiln_dtype_of(t), KILN_DTYPES);
        expect_released("dtype_of");
        assert_int_equal(kiln_device_of(t), KILN_NO_DEVICE);
        expect_released("device_of");
        assert_null(kiln_set_name(t, "t"));
        expect_released("set_name");
        assert_string_equal(kiln_get_name(t), "");
        expect_released("get_name");
        assert_null(kiln_to_string(t));
        expect_released("to_string");
        assert_null(kiln_cast(t, KILN_F32)); /* these give back what they were given */
        expect_released("cast");
        assert_null(kiln_contiguous(t));
        expect_released("contiguous");
        assert_null(kiln_dropout(t, 0, true));
        expect_released("dropout");
        assert_null(kiln_forward(identity, t));
        expect_released("forward");
        assert_null(kiln_ones_like(t)); /* and these only look at its shape */
        expect_released("ones_like");
        assert_int_equal(kiln_size(t, 0), -1);
        expect_released("size");
        assert_f32(fresh, 42, 42, 42);
        kiln_release(fresh);
    }
    kiln_module_free(identity);
}

/* As long as fewer than a thousand handles were made since, whatever became of them. */
static void test_for_how_long(void **state)
{
    (void)state;
    for (int round = 0; round < 3; round++) {
        kiln_tensor *loss = ended_in_step();
        for (int i = 0; i < 1000; i++)
            kiln_scope
                F32(42);
        assert_true(isnan(kiln_item(loss)));
        expect_released("item");
    }
}

static void *make_and_end(void *result)
{
    *(kiln_tensor **)result = ended_in_scope();
    return NULL;
}

/* Also when the thread that it belonged to is gone. */
static void test_of_other_threads(void **state)
{
    (void)state;
    for (int round = 0; round < 10; round++) {
        kiln_tensor *t = NULL;
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, make_and_end, &t), 0);
        pthread_join(thread, NULL);
        float out[3];
        assert_false(kiln_read(t, out, sizeof out));
        expect_released("read");
    }
}

/* A handle that the library still needs is as gone for the program as any other. */
static void test_held_by_a_graph(void **state)
{
    (void)state;
    kiln_scope {
        kiln_tensor *w = kiln_keep(kiln_requires_grad(F32(3), true)), *y = kiln_square(w);
        kiln_release(w);
        kiln_release(w);
        expect_released("release");
        assert_true(kiln_backward(y)); /* into a gradient that nobody can ask for */
        assert_null(kiln_grad_of(w));
        expect_released("grad_of");
    }
}

/* What is kept lives on, and is recycled in order. */
static void test_kept(void **state)
{
    (void)state;
    kiln_tensor *kept[3];
    for (int i = 0; i < 3; i++)
        kiln_step
            kept[i] = kiln_keep(kiln_add_scalar(F32(0), i));
    for (int i = 0; i < 5000; i++)
        kiln_scope
            F32(42);
    for (int i = 0; i < 3; i++) {
        assert_f32(kept[i], (float)i);
        kiln_release(kept[i]);
    }
}

/* Tensors that are made outside any scope and never released are memory that is gone: that is said once. */
static void test_bare(void **state)
{
    (void)state;
    enum { MANY = 4200 };
    static kiln_tensor *made[MANY];
    while (kiln_next_notice())
        ;
    kiln_thread_current->told_bare = false;
    kiln_tensor *x = F32(1);
    for (int i = 0; i < MANY; i++)
        made[i] = kiln_add_scalar(x, i);
    assert_non_null(strstr(kiln_next_notice(), "kiln_scope"));
    assert_null(kiln_next_notice());
    for (int i = 0; i < MANY; i++)
        kiln_release(made[i]);
    kiln_thread_current->told_bare = false;
    for (int i = 0; i < 2 * MANY; i++)
        kiln_release(kiln_add_scalar(x, i)); /* these are */
    kiln_release(x);
    assert_null(kiln_next_notice());
    kiln_thread_current->told_bare = false;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        core_test(test_every_call),      core_test(test_for_how_long), core_test(test_of_other_threads),
        core_test(test_held_by_a_graph), core_test(test_kept),         core_test(test_bare)};
    return CORE_MAIN(tests);
}
