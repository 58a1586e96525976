/* Walks back that are written again (trace/memo.h): gradients of steps that are alike, of steps that differ from the
 * last one in a single thing that a walk depends on, and that both kinds are told apart. What is right comes from the
 * same steps with a hook that does nothing: with hooks every walk is written anew. */
#include "support/core.h"
#include "trace/memo.h"

/* ctest: name=eager env=KILN_EAGER=1 */

enum { STEPS = 8, WEIGHTS = 3, IN = 5, HIDDEN = 4, MOST = IN * HIDDEN };

/* What step i has that the others have not; i counts from 0. */
typedef enum variation {
    ALIKE,
    LOSS_SCALE,    /* a number that a rule sees */
    DROPOUT,       /* numbers that none sees */
    BATCH,         /* another shape */
    FROZEN,        /* a weight that needs no gradient */
    ADDED,         /* the gradient of the step before is still there */
    OTHER_WEIGHTS, /* the same shapes */
    TIED,          /* one tensor in the places of two */
    OTHER_LOSS,    /* the same nodes, from another one of them */
    TWICE,         /* two walks a step */
    ASSIGNED,      /* a weight is changed before it is used */
    PEEK,          /* a flush between forward and backward */
    FAILED,        /* an error: the step is discarded */
    VARIATIONS
} variation;

typedef struct net {
    kiln_tensor *w[WEIGHTS];
} net;

static net net_new(int seed)
{
    net n = {{core_data(seed, KILN_SHAPE(IN, HIDDEN)), core_data(seed + 1, KILN_SHAPE(HIDDEN, HIDDEN)),
              core_data(seed + 2, KILN_SHAPE(HIDDEN, HIDDEN))}};
    for (int i = 0; i < WEIGHTS; i++)
        kiln_requires_grad(kiln_keep(n.w[i]), true);
    return n;
}

static void net_free(net *n)
{
    for (int i = 0; i < WEIGHTS; i++)
        kiln_release(n->w[i]);
}

static kiln_tensor *do_nothing(kiln_tensor *grad, void *context)
{
    (void)grad;
    (void)context;
    return NULL;
}

static bool odd(int step)
{
    return step % 3 == 2; /* two alike, then one that is not */
}

/* Would the walk from `loss` be the last one once more? */
static bool fits(kiln_tensor *loss)
{
    kiln_trace *tr = kiln_trace_current();
    return kiln_memo_fits(tr, kiln_trace_value(tr, loss));
}

static void record(variation v, int step, const net *n, kiln_tensor *x, bool *again)
{
    bool now = odd(step);
    if (v == ASSIGNED && now)
        kiln_no_grad
            kiln_assign(n->w[1], kiln_mul_scalar(n->w[1], 0.5));
    kiln_tensor *h = kiln_relu(kiln_matmul(x, n->w[0]));
    if (v == DROPOUT)
        h = kiln_dropout(h, 0.5, true);
    kiln_tensor *k = kiln_mul_scalar(kiln_matmul(h, n->w[1]), v == LOSS_SCALE && now ? 3 : 1.5);
    kiln_tensor *y = kiln_sigmoid(kiln_matmul(k, n->w[v == TIED && now ? 1 : 2]));
    kiln_tensor *first = kiln_mean_all(kiln_square(k)), *second = kiln_mean_all(kiln_square(y));
    if (v == PEEK && now)
        assert_true(isfinite(kiln_item(second)));
    kiln_tensor *loss = v == OTHER_LOSS && now ? first : second;
    *again = fits(loss);
    assert_true(kiln_backward(loss));
    if (v == TWICE)
        assert_true(kiln_backward(first));
    if (v == FAILED && now)
        kiln_matmul(x, x);
}

/* Runs the steps; what the gradients were after each of them, and which walks were written again. */
static void run(variation v, bool hooked, float (*grads)[WEIGHTS][MOST], bool *again)
{
    net one = net_new(1), other = net_new(11);
    kiln_manual_seed(7);
    for (int step = 0; step < STEPS; step++)
        kiln_scope {
            const net *n = v == OTHER_WEIGHTS && odd(step) ? &other : &one;
            kiln_tensor *x = core_data(20 + step, KILN_SHAPE(v == BATCH && odd(step) ? 3 : 2, IN));
            if (hooked)
                kiln_set_grad_hook(x, do_nothing, NULL);
            for (int i = 0; i < WEIGHTS && !(v == ADDED && odd(step)); i++)
                kiln_zero_grad_of(n->w[i]);
            if (v == FROZEN)
                kiln_requires_grad(n->w[1], !odd(step));
            kiln_step
                record(v, step, n, x, &again[step]);
            kiln_error_clear();
            for (int i = 0; i < WEIGHTS; i++) {
                kiln_tensor *g = kiln_grad_of(n->w[i]);
                memset(grads[step][i], 0, sizeof grads[step][i]);
                if (g)
                    memcpy(grads[step][i], core_f32(g), (size_t)kiln_numel(g) * sizeof(float));
            }
        }
    net_free(&one);
    net_free(&other);
}

static bool changes_the_walk(variation v)
{
    return v != ALIKE && v != DROPOUT && v != OTHER_WEIGHTS && v != TWICE && v != FAILED;
}

static void check(variation v)
{
    static float got[STEPS][WEIGHTS][MOST], want[STEPS][WEIGHTS][MOST];
    bool again[STEPS], never[STEPS];
    run(v, true, want, never);
    run(v, false, got, again);
    for (int step = 0; step < STEPS; step++) {
        for (int i = 0; i < WEIGHTS; i++)
            for (int k = 0; k < MOST; k++)
                if (fabsf(got[step][i][k] - want[step][i][k]) > 1e-6f)
                    fail_msg("variation %d, step %d: gradient %d[%d] is %g instead of %g", (int)v, step, i, k,
                             (double)got[step][i][k], (double)want[step][i][k]);
        if (!core_eager() && odd(step) && changes_the_walk(v) && again[step])
            fail_msg("variation %d, step %d: the walk was taken for the last one", (int)v, step);
        if (!core_eager() && step == 1 && v != TWICE && !again[step])
            fail_msg("variation %d, step %d: the walk was not recognised", (int)v, step);
    }
}

static void test_variations(void **state)
{
    (void)state;
    for (variation v = ALIKE; v < VARIATIONS; v++)
        check(v);
}

/* Gradients that were written again are those of their own step: older ones stay as they are. */
static void test_kept_gradients(void **state)
{
    (void)state;
    net n = net_new(1);
    kiln_tensor *kept[4] = {NULL};
    float want[4][HIDDEN * HIDDEN];
    for (int step = 0; step < 4; step++)
        kiln_scope {
            bool again;
            kiln_tensor *x = core_data(step, KILN_SHAPE(2, IN));
            for (int i = 0; i < WEIGHTS; i++)
                kiln_zero_grad_of(n.w[i]);
            kiln_step
                record(ALIKE, step, &n, x, &again);
            kept[step] = kiln_keep(kiln_clone(kiln_grad_of(n.w[1])));
            memcpy(want[step], core_f32(kiln_grad_of(n.w[1])), sizeof want[step]);
        }
    for (int step = 0; step < 4; step++) {
        assert_memory_equal(core_f32(kept[step]), want[step], sizeof want[step]);
        assert_true(step == 0 || memcmp(want[step], want[step - 1], sizeof want[step]) != 0);
        kiln_release(kept[step]);
    }
    net_free(&n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {core_test(test_variations), core_test(test_kept_gradients)};
    return CORE_MAIN(tests);
}
