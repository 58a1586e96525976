/* What a step has again from the last one (trace/trail.h): gradients of steps that are alike, of steps that differ from
 * the last one in a single thing that a walk depends on, and that both kinds are told apart. What is right comes from
 * the same steps with a hook that does nothing: with hooks every walk is written anew. Then whole training steps, each
 * of which may differ from the last one in anything that a phrase follows from: bit by bit those that have no trail. */
#include "support/core.h"
#include "trace/trace.h"

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

/* Walks back; whether the walk was the last one once more. */
static bool walk_back(kiln_tensor *loss)
{
    const kiln_trail *t = &kiln_trace_current()->trail;
    uint64_t before = t->appended;
    assert_true(kiln_backward(loss));
    return t->appended > before;
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
    *again = walk_back(loss);
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

/* ---- Whole steps ---- */

enum { ROUNDS = 14, WIDTH = 6, CLASSES = 4, ROWS = 5, TENSORS = 12 };

/* What some steps have that the others have not; which, and when, is drawn. */
typedef enum quirk {
    SCALAR,     /* another number */
    SLICE,      /* another window */
    GELU,       /* another operation of the same shape */
    NO_GRAD,    /* a part without gradients */
    DETACH,     /* the same by kiln_detach */
    AUTOCAST,   /* a part in 16 bits */
    SWAP,       /* operands in another order */
    EXTRA,      /* one operation more, that nobody reads */
    FEWER,      /* one less */
    READ,       /* a value is read in mid step */
    CHANGED,    /* a parameter is assigned to before the step */
    REPLACED,   /* another tensor in the place of a parameter */
    FREEZE,     /* a parameter needs no gradient */
    LONGER,     /* another batch */
    TRANSPOSED, /* the same batch, lying otherwise */
    KEPT,       /* a result is kept beyond the step */
    ERROR,      /* a wrong call, whose error is cleared */
    DISCARD,    /* the step is discarded */
    NO_STEP,    /* no update */
    ZEROED,     /* gradients are not zeroed */
    RATE,       /* another learning rate */
    RECOMPUTE,  /* a part is computed twice */
    NESTED,     /* a step within the step */
    AFTER,      /* a parameter is used after its update */
    SMOOTHED,   /* an option of the loss */
    QUIRKS
} quirk;

typedef struct world {
    kiln_tensor *weight, *bias, *scale, *shift, *mean, *variance, *table, *other, *sum, *average;
    kiln_optim *optim;
    kiln_scaler *scaler;
    kiln_tensor *kept;
} world;

static kiln_tensor *parameter(int seed, int ndim, const int64_t *shape)
{
    return kiln_requires_grad(kiln_keep(core_data(seed, ndim, shape)), true);
}

static world world_new(bool scaled)
{
    world w = {.weight = parameter(1, KILN_SHAPE(WIDTH, WIDTH)),
               .bias = parameter(2, KILN_SHAPE(WIDTH)),
               .scale = parameter(3, KILN_SHAPE(WIDTH)),
               .shift = parameter(4, KILN_SHAPE(WIDTH)),
               .mean = kiln_keep(core_data(5, KILN_SHAPE(WIDTH))),
               .variance = kiln_keep(core_data(6, KILN_SHAPE(WIDTH))),
               .table = parameter(7, KILN_SHAPE(CLASSES, WIDTH)),
               .other = parameter(8, KILN_SHAPE(WIDTH)),
               .sum = kiln_keep(core_data(9, KILN_SHAPE(1))),
               .average = kiln_keep(core_data(10, KILN_SHAPE(WIDTH)))};
    kiln_tensor *all[] = {w.weight, w.bias, w.scale, w.shift, w.table, w.other};
    const char *names[] = {"weight", "bias", "scale", "shift", "table", "other"};
    kiln_params params = {.count = 6, .tensors = all, .names = names};
    w.optim = kiln_optim_adam(params, .lr = 1e-2);
    w.scaler = kiln_scaler_new(.init_scale = 8, .disabled = !scaled);
    assert_true(kiln_ok());
    return w;
}

static void world_free(world *w)
{
    kiln_scaler_free(w->scaler);
    kiln_optim_free(w->optim);
    kiln_tensor *all[] = {w->weight, w->bias,  w->scale, w->shift,   w->mean, w->variance,
                          w->table,  w->other, w->sum,   w->average, w->kept};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        kiln_release(all[i]);
}

static kiln_tensor *forward(world *w, kiln_tensor *x, kiln_tensor *y, unsigned has)
{
#define HAS(q) (has >> (q)&1)
    kiln_tensor *bias = HAS(REPLACED) ? w->other : w->bias, *h = NULL, *k = NULL;
    kiln_autocast (HAS(AUTOCAST) ? KILN_BF16 : KILN_F32)
        h = kiln_linear(x, w->weight, bias);
    h = HAS(GELU) ? kiln_gelu(h) : kiln_relu(h);
    if (HAS(RECOMPUTE))
        kiln_recomputed h = kiln_tanh(kiln_mul(h, w->scale));
    h = kiln_batch_norm(h, w->mean, w->variance, w->scale, w->shift, true, 0.1, 1e-5);
    if (!HAS(FEWER))
        h = kiln_mul_scalar(h, HAS(SCALAR) ? 0.75 : 1.25);
    if (HAS(NO_GRAD))
        kiln_no_grad
            k = kiln_sigmoid(h);
    else
        k = kiln_sigmoid(HAS(DETACH) ? kiln_detach(h) : h);
    h = HAS(SWAP) ? kiln_sub(k, h) : kiln_sub(h, k);
    h = kiln_dropout(h, 0.2, true);
    if (HAS(EXTRA))
        kiln_exp(h);
    h = kiln_add(h, kiln_embedding(w->table, y, -1));
    kiln_tensor *part = kiln_slice(h, 1, HAS(SLICE) ? 1 : 0, HAS(SLICE) ? 5 : 4, 1);
    if (HAS(ERROR)) {
        assert_null(kiln_matmul(h, w->table));
        kiln_error_clear();
    }
    if (HAS(READ))
        assert_true(isfinite(kiln_item(kiln_sum_all(kiln_cast(part, KILN_F32)))));
    if (HAS(NESTED))
        kiln_step
            kiln_no_grad
                kiln_assign(w->sum, kiln_add_scalar(w->sum, 1));
    return kiln_cross_entropy(part, y, .label_smoothing = HAS(SMOOTHED) ? 0.1 : 0);
}

static void write(world *w, kiln_tensor *x, kiln_tensor *y, unsigned has)
{
    if (!HAS(ZEROED))
        kiln_zero_grad(w->optim);
    kiln_tensor *loss = forward(w, x, y, has);
    kiln_backward(kiln_scaler_scale(w->scaler, loss));
    kiln_no_grad
        kiln_assign(w->sum, kiln_add(w->sum, kiln_cast(loss, KILN_F32)));
    if (HAS(KEPT) && !HAS(DISCARD)) {
        kiln_release(w->kept);
        w->kept = kiln_keep(kiln_mul_scalar(loss, 2));
    }
    if (!HAS(NO_STEP)) {
        kiln_scaler_step(w->scaler, w->optim);
        kiln_scaler_update(w->scaler);
    }
    if (HAS(AFTER))
        kiln_no_grad
            kiln_assign(w->average, kiln_lerp(w->average, w->bias, 0.5));
    if (HAS(DISCARD))
        kiln_discard();
}

/* One step; without a trail it has no phrases. */
static void train(world *w, int i, unsigned has, bool trail)
{
    kiln_scope {
        int64_t rows = HAS(LONGER) ? ROWS + 2 : ROWS;
        kiln_tensor *x = core_data(40 + i, KILN_SHAPE(rows, WIDTH)), *y = NULL;
        if (HAS(TRANSPOSED))
            x = kiln_transpose(kiln_clone(kiln_transpose(x, 0, 1)), 0, 1);
        int64_t classes[ROWS + 2];
        for (int k = 0; k < rows; k++)
            classes[k] = (k * 3 + i) % CLASSES;
        y = kiln_tensor_new(classes, KILN_I64, KILN_SHAPE(rows), kiln_default_device());
        if (HAS(CHANGED))
            kiln_no_grad
                kiln_assign(w->bias, kiln_mul_scalar(w->bias, 0.5));
        kiln_eval();
        kiln_requires_grad(w->shift, !HAS(FREEZE));
        kiln_optim_set_lr(w->optim, 0, HAS(RATE) ? 2e-2 : 1e-2);
        kiln_step {
            if (!trail)
                kiln_trace_current()->trail.segment = 0;
            write(w, x, y, has);
        }
        assert_true(kiln_ok());
    }
}

static int read_all(world *w, float *to)
{
    kiln_tensor *all[] = {w->weight,   w->bias,  w->scale, w->shift, w->mean,
                          w->variance, w->table, w->other, w->sum,   w->average};
    int n = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        int64_t count = kiln_numel(all[i]);
        memcpy(to + n, core_f32(all[i]), (size_t)count * sizeof *to);
        n += (int)count;
    }
    if (w->kept)
        to[n++] = (float)kiln_item(w->kept);
    return n;
}

/* The quirks of all steps follow from the seed. */
static uint64_t run_steps(int seed, bool trail, float (*values)[CORE_MAX], int *count)
{
    uint32_t draw = (uint32_t)seed * 2654435761u + 12345;
    world w = world_new(seed % 2);
    kiln_manual_seed((uint64_t)seed);
    uint64_t before = kiln_trace_current()->trail.appended;
    for (int i = 0; i < ROUNDS; i++) {
        unsigned has = 0;
        for (int k = 0; k < 2; k++) {
            draw = draw * 1664525 + 1013904223;
            has |= draw >> 28 < 5 ? 1u << (draw >> 16) % QUIRKS : 0;
        }
        train(&w, i, has, trail);
        count[i] = read_all(&w, values[i]);
    }
    uint64_t appended = kiln_trace_current()->trail.appended - before;
    world_free(&w);
    return appended;
}

static void test_whole_steps(void **state)
{
    (void)state;
    static float got[ROUNDS][CORE_MAX], want[ROUNDS][CORE_MAX];
    int got_count[ROUNDS], want_count[ROUNDS],
        seeds = getenv("KILN_TEST_SEEDS") ? atoi(getenv("KILN_TEST_SEEDS")) : 120;
    uint64_t all = 0;
    for (int seed = 0; seed < seeds; seed++) {
        assert_int_equal(run_steps(seed, false, want, want_count), 0);
        all += run_steps(seed, true, got, got_count);
        for (int i = 0; i < ROUNDS; i++)
            if (got_count[i] != want_count[i] || memcmp(got[i], want[i], (size_t)got_count[i] * sizeof **got) != 0)
                fail_msg("seed %d: step %d has other values than without a trail", seed, i);
    }
    if (!core_eager()) /* most steps are like the one before, or differ late */
        assert_true(all > (uint64_t)seeds * ROUNDS * 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {core_test(test_variations), core_test(test_kept_gradients),
                                       core_test(test_whole_steps)};
    return CORE_MAIN(tests);
}
