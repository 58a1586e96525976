/* Scopes: who owns what, the ways out of them, steps inside each other, and what is said of break. */
#include "support/core.h"
#include "tensor/thread.h"

/* ctest: name=eager env=KILN_EAGER=1 */

#define F32(...) kiln_of_f32(((float[]){__VA_ARGS__}), sizeof((float[]){__VA_ARGS__}) / sizeof(float))

static float leave_by_return(kiln_tensor *x)
{
    kiln_scope {
        kiln_scope {
            return (float)kiln_item(kiln_mul_scalar(x, 2));
        }
    }
    return 0;
}

static void test_ways_out(void **state)
{
    (void)state;
    kiln_tensor *x = kiln_keep(F32(3));
    uint64_t before = core_memory();
    int rounds = 0;
    for (int i = 0; i < 5; i++)
        kiln_scope {
            assert_near(kiln_item(kiln_add_scalar(x, i)), 3 + i, 0);
            if (i == 2)
                break; /* leaves the scope: the loop around it goes on */
            rounds++;
        }
    assert_int_equal(rounds, 4);
    assert_true(leave_by_return(x) == 6);
    kiln_scope {
        kiln_scope {
            assert_near(kiln_item(kiln_square(x)), 9, 0);
            goto out;
        }
    }
out:
    kiln_scope {
        kiln_step {
            kiln_scope
                assert_near(kiln_item(kiln_square(x)), 9, 0);
            continue;
        }
    }
    assert_int_equal(core_memory(), before);
    kiln_release(x);
}

static void forget_notices(void)
{
    while (kiln_next_notice())
        ;
    kiln_thread_current->told_broken_step = kiln_thread_current->told_broken_scope = false;
}

/* break means the braces. In a step that is taken for a mistake: it is discarded, and that is said once. */
static void test_break(void **state)
{
    (void)state;
    skip_if_eager(); /* what was assigned has happened */
    kiln_tensor *x = kiln_keep(F32(1));
    forget_notices();
    for (int i = 0; i < 6; i++)
        kiln_step {
            assert_true(kiln_assign(x, kiln_mul_scalar(x, 2)));
            if (i % 3 == 1)
                break;
        }
    assert_f32(x, 16);
    assert_non_null(strstr(kiln_next_notice(), "kiln_step_begin"));
    assert_null(kiln_next_notice());
    for (int i = 0; i < 6; i++)
        kiln_step {
            assert_true(kiln_assign(x, kiln_mul_scalar(x, 0.5)));
            if (i < 2)
                continue; /* as the closing brace */
            assert_true(kiln_assign(x, kiln_add_scalar(x, 1)));
        }
    assert_f32(x, 2.125f);
    kiln_no_grad
        for (int i = 0; i < 3; i++)
            if (i == 1)
                break; /* of a loop inside the braces: nobody's business */
    assert_null(kiln_next_notice());
    assert_true(kiln_ok());
    kiln_release(x);
}

static int leave_early(kiln_tensor *x, int at)
{
    int steps = 0;
    for (int i = 0; i < 10; i++) {
        assert_true(kiln_step_begin());
        kiln_tensor *y = kiln_add_scalar(x, 1);
        if (i == at) {
            kiln_discard();
            assert_true(kiln_step_end());
            break;
        }
        assert_true(kiln_assign(x, y));
        assert_true(kiln_step_end());
        steps++;
    }
    return steps;
}

/* The same as calls: loops can be left and continued. */
static void test_begin_and_end(void **state)
{
    (void)state;
    uint64_t before = core_memory();
    kiln_tensor *x = kiln_keep(F32(0));
    assert_int_equal(leave_early(x, 3), 3);
    assert_f32(x, 3);
    assert_false(kiln_step_end());
    expect_error(KILN_E_STATE, "step_end", "begun");
    assert_true(kiln_step_begin());
    kiln_assign(x, F32(5));
    assert_null(kiln_reshape(x, KILN_SHAPE(7)));
    assert_false(kiln_step_end()); /* an error discards it */
    kiln_error_clear();
    assert_f32(x, core_eager() ? 5 : 3);
    assert_true(kiln_step_begin());
    kiln_scope {
        kiln_assign(x, F32(6));
        assert_true(kiln_step_end()); /* with a scope inside that was left open */
    }
    assert_f32(x, 6);
    kiln_release(x);
    assert_int_equal(core_memory(), before);
}

static void test_keep_and_release(void **state)
{
    (void)state;
    uint64_t before = core_memory();
    kiln_tensor *kept = NULL, *released = NULL;
    kiln_scope {
        kiln_tensor *x = core_data(1, KILN_SHAPE(1000));
        released = kiln_add_scalar(x, 1);
        assert_true(kiln_eval());
        uint64_t both = core_memory();
        kiln_release(released);
        kiln_step
            kept = kiln_keep(kiln_add_scalar(x, 2));
        assert_true(core_memory() <= both);
        assert_ptr_equal(kiln_keep(kept), kept);
    }
    assert_int_equal(core_memory(), before + 4032); /* 1000 floats, in blocks of 64 bytes */
    for (int i = 0; i < 4; i++)
        kiln_step {
            assert_true(core_f32(kept)[0] == core_f32(kiln_add_scalar(kept, 0))[0]);
        }
    kiln_release(kept);
    kiln_release(NULL);
    assert_null(kiln_keep(NULL));
    assert_int_equal(core_memory(), before);
}

static void test_kept_pending(void **state)
{
    (void)state;
    kiln_tensor *y = NULL;
    kiln_scope
        y = kiln_keep(kiln_add_scalar(F32(1, 2), 1)); /* a scope ends, nothing has run yet */
    assert_f32(y, 2, 3);
    kiln_release(y);
}

static void test_nested_steps(void **state)
{
    (void)state;
    kiln_scope {
        kiln_tensor *w = kiln_requires_grad(F32(2), true);
        kiln_step {
            kiln_tensor *y = kiln_square(w);
            kiln_step {
                assert_near(kiln_item(kiln_add_scalar(y, 1)), 5, 0);
            }
            assert_true(kiln_backward(kiln_mul(y, y)));
        }
        assert_f32(kiln_grad_of(w), 32);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        core_test(test_ways_out),         core_test(test_break),        core_test(test_begin_and_end),
        core_test(test_keep_and_release), core_test(test_kept_pending), core_test(test_nested_steps),
    };
    return CORE_MAIN(tests);
}
