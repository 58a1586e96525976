/* Every allocation of host memory fails once in turn. Each time the call or step that met it fails with an error,
 * nothing leaks, no parameter has changed, and the same step tried again gives the same bits as one that was never
 * disturbed.
 *
 * The step below has something of everything: convolution, embedding, dropout, a loss, assignment to a view, a detour
 * through another device, printing, kiln_grad, updates. It runs in several states of warmth: what is cached is not
 * allocated, so each state allocates elsewhere. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "core/alloc.h"
#include "support/train.h"

enum { PARAMETERS = 6, MOST = 400, TRIES = 20000 };

typedef struct model {
    kiln_tensor *p[PARAMETERS]; /* convolution, its bias, table, linear, its bias, and a matrix on the other device */
    kiln_tensor *buffer;        /* [4, 6], written anew by each step */
    float before[PARAMETERS][MOST], after[PARAMETERS][MOST];
} model;

static model m;
static kiln_device sim0;

static size_t bytes_of(int i)
{
    return (size_t)kiln_numel(m.p[i]) * sizeof(float);
}

static kiln_tensor *parameter(int i, int ndim, const int64_t *shape, kiln_device device)
{
    uint32_t seed = (uint32_t)i + 1;
    for (int k = 0; k < MOST; k++)
        m.before[i][k] = test_number(&seed) * 0.5f;
    return kiln_requires_grad(kiln_keep(kiln_tensor_new(m.before[i], KILN_F32, ndim, shape, device)), true);
}

static void zero_grads(void)
{
    for (int i = 0; i < PARAMETERS; i++)
        kiln_zero_grad_of(m.p[i]);
}

/* ---- The step ---- */

static kiln_tensor *features(void)
{
    float pixels[2 * 64];
    uint32_t seed = 77;
    for (int i = 0; i < 128; i++)
        pixels[i] = test_number(&seed);
    kiln_tensor *x = kiln_tensor_new(pixels, KILN_F32, KILN_SHAPE(2, 1, 8, 8), KILN_CPU);
    kiln_tensor *words = kiln_of_i64(((int64_t[]){3, 7}), 2);
    x = kiln_relu(kiln_conv2d(x, m.p[0], m.p[1], .padding = {1, 1}));
    x = kiln_flatten(kiln_max_pool2d(x, 4, 4), 1, -1); /* [2, 12] */
    kiln_tensor *both[2] = {x, kiln_embedding(m.p[2], words, -1)};
    return kiln_dropout(kiln_cat(2, both, 1), 0.3, true); /* [2, 16] */
}

/* A window of the buffer is filled, and the whole is used. */
static kiln_tensor *through_buffer(kiln_tensor *x)
{
    bool ok = kiln_write(m.buffer, (float[24]){1}, 24 * sizeof(float));
    kiln_no_grad
        ok = ok && kiln_assign(kiln_slice(m.buffer, 1, 2, 4, 1),
                               kiln_reshape(kiln_slice(x, 1, 0, 4, 1), 2, (int64_t[]){4, 2}));
    return ok ? kiln_mean_all(m.buffer) : NULL;
}

static kiln_tensor *through_other_device(kiln_tensor *x)
{
    return kiln_to(kiln_tanh(kiln_matmul(kiln_to(x, sim0), m.p[5])), KILN_CPU); /* [2, 5] */
}

static void print(kiln_tensor *t)
{
    char *text = kiln_to_string(t);
    if (text && !strstr(text, "tensor"))
        fail_msg("printed as %s", text);
    kiln_string_free(text);
}

/* The matrix on the other device only passes gradients on: a step is all or nothing on each device, not across two. */
static bool update(void)
{
    bool ok = true;
    kiln_no_grad
        for (int i = 0; i < PARAMETERS - 1; i++)
            ok = ok && kiln_assign(m.p[i], kiln_sub(m.p[i], kiln_mul_scalar(kiln_grad_of(m.p[i]), 0.1)));
    return ok;
}

/* One step; its error is that of the thread. */
static void step(void)
{
    kiln_manual_seed(9);
    kiln_step {
        kiln_tensor *x = features(), *grad = NULL;
        kiln_tensor *logits = kiln_add(kiln_linear(x, m.p[3], m.p[4]), through_other_device(x));
        kiln_tensor *loss = kiln_cross_entropy(logits, kiln_of_i64(((int64_t[]){1, 4}), 2));
        loss = kiln_add(loss, through_buffer(x));
        print(loss);
        if (loss && kiln_grad(loss, NULL, &m.p[4], 1, &grad)) /* a penalty on the size of a gradient */
            loss = kiln_add(loss, kiln_sum_all(kiln_square(grad)));
        zero_grads();
        if (kiln_ok() && kiln_backward(loss))
            update();
    }
}

/* ---- Trying ---- */

static bool is_at(const float (*values)[MOST])
{
    float now[MOST];
    bool same = true;
    for (int i = 0; i < PARAMETERS; i++)
        same &= kiln_read(m.p[i], now, bytes_of(i)) && memcmp(now, values[i], bytes_of(i)) == 0;
    return same;
}

static void go_back(void)
{
    kiln_no_grad
        for (int i = 0; i < PARAMETERS; i++)
            assert_true(kiln_write(m.p[i], m.before[i], bytes_of(i)));
    zero_grads();
    assert_true(kiln_eval());
}

typedef struct attempt {
    int64_t n;    /* allocations that succeed first */
    bool reached; /* the one that fails was asked for */
    bool failed;
    kiln_error error;
} attempt;

static void *try_step(void *p)
{
    attempt *a = p;
    uint64_t count = kiln_alloc_count();
    kiln_alloc_fail_after(a->n);
    step();
    kiln_alloc_fail_after(-1);
    a->reached = kiln_alloc_count() - count > (uint64_t)a->n;
    a->failed = !kiln_ok();
    a->error = *kiln_last_error();
    kiln_error_clear();
    return NULL;
}

typedef struct warmth {
    bool plans, memory, thread; /* what is kept from one attempt to the next */
} warmth;

static void run_attempt(attempt *a, warmth w)
{
    if (!w.plans)
        kiln_plan_cache_set_capacity(0);
    if (!w.memory) {
        kiln_memory_trim(KILN_CPU);
        kiln_memory_trim(sim0);
    }
    if (w.thread)
        try_step(a);
    else {
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, try_step, a), 0);
        assert_int_equal(pthread_join(thread, NULL), 0);
    }
    kiln_plan_cache_set_capacity(256);
}

static void check(warmth w)
{
    go_back();
    uint64_t host = memory_in_use(KILN_CPU), device = memory_in_use(sim0);
    attempt a = {.reached = true};
    int64_t failures = 0;
    for (a.n = 0; a.reached; a.n++) {
        assert_true(a.n < TRIES);
        run_attempt(&a, w);
        if (a.failed && a.error.code != KILN_E_MEMORY)
            fail_msg("allocation %lld: %s: %s", (long long)a.n, a.error.operation, a.error.message);
        assert_true(kiln_ok());
        failures += a.failed;
        if (!is_at(a.failed ? m.before : m.after))
            fail_msg("allocation %lld %s, and parameters are not as %s", (long long)a.n,
                     a.failed ? "failed" : "did not matter", a.failed ? "before" : "after an undisturbed step");
        if (a.failed) {
            step();
            assert_true(kiln_ok());
            if (!is_at(m.after))
                fail_msg("after allocation %lld had failed, the next step went wrong", (long long)a.n);
        }
        go_back();
        assert_int_equal(memory_in_use(KILN_CPU), host);
        assert_int_equal(memory_in_use(sim0), device);
    }
    print_message("%lld allocations, %lld of them needed\n", (long long)a.n - 1, (long long)failures);
    assert_true(failures > 0 || (w.plans && w.memory && w.thread));
}

static void test_all_warm(void **state)
{
    (void)state;
    check((warmth){.plans = true, .memory = true, .thread = true});
}

static void test_cold_plans(void **state)
{
    (void)state;
    check((warmth){.memory = true, .thread = true});
}

static void test_cold_memory(void **state)
{
    (void)state;
    check((warmth){.plans = true, .thread = true});
}

static void test_cold_thread(void **state)
{
    (void)state;
    check((warmth){.plans = true, .memory = true});
}

static void test_all_cold(void **state)
{
    (void)state;
    check((warmth){0});
}

/* ---- Single calls ---- */

static kiln_tensor *cubes(kiln_tensor **inputs, void *context)
{
    (void)context;
    return kiln_sum_all(kiln_mul(kiln_square(inputs[0]), inputs[0]));
}

static bool call_gradcheck(void)
{
    kiln_tensor *x = kiln_requires_grad(kiln_of_f64(((double[]){0.5, 2, -1}), 3), true);
    return x && kiln_gradcheck(cubes, NULL, &x, 1, true, 0, 0);
}

static bool call_describe(void)
{
    kiln_tensor *x = kiln_rand(KILN_SHAPE(9, 4), KILN_F32);
    kiln_tensor *y = kiln_softmax(kiln_matmul(x, kiln_transpose(x, 0, 1)), 1);
    char *text = y ? kiln_plan_describe() : NULL;
    bool ok = text != NULL;
    kiln_string_free(text);
    return ok;
}

static bool call_sort(void)
{
    kiln_tensor *order = NULL, *sorted = kiln_sort(kiln_randn(KILN_SHAPE(5, 3), KILN_F64), 0, true, &order);
    return kiln_item(kiln_sum_all(kiln_gather(sorted, 0, order))) != 1e9 && kiln_ok();
}

static bool call_einsum(void)
{
    kiln_tensor *x[2] = {kiln_ones(KILN_SHAPE(2, 3), KILN_F32), kiln_ones(KILN_SHAPE(3, 4), KILN_F32)};
    return kiln_item(kiln_sum_all(kiln_einsum("ij,jk->ik", 2, x))) == 24;
}

static FILE *nowhere;

static bool call_name(void)
{
    kiln_tensor *x = kiln_tensor_new(NULL, KILN_F32, KILN_SHAPE(3), sim0);
    return x && kiln_set_name(x, "x") && kiln_set_grad_hook(x, NULL, NULL) && kiln_print(x, nowhere);
}

static bool call_attention(void)
{
    kiln_tensor *q = kiln_requires_grad(kiln_tensor_new(NULL, KILN_F32, KILN_SHAPE(1, 2, 4, 8), KILN_CPU), true);
    kiln_tensor *y = kiln_scaled_dot_product_attention(q, q, q, NULL, 0, true, 0);
    return kiln_backward(kiln_sum_all(kiln_layer_norm(y, KILN_SHAPE(8), NULL, NULL, 1e-5))) && kiln_eval();
}

static void test_single_calls(void **state)
{
    (void)state;
    static bool (*const calls[])(void) = {call_gradcheck, call_describe, call_sort,
                                          call_einsum,    call_name,     call_attention};
    for (size_t c = 0; c < sizeof calls / sizeof *calls; c++) {
        uint64_t host = memory_in_use(KILN_CPU), device = memory_in_use(sim0);
        bool reached = true;
        for (int64_t n = 0; reached; n++) {
            assert_true(n < TRIES);
            kiln_plan_cache_set_capacity(0);
            kiln_memory_trim(KILN_CPU);
            kiln_memory_trim(sim0);
            uint64_t count = kiln_alloc_count();
            bool ok = false;
            kiln_alloc_fail_after(n);
            kiln_scope
                ok = calls[c]();
            kiln_alloc_fail_after(-1);
            reached = kiln_alloc_count() - count > (uint64_t)n;
            if (!ok && kiln_last_error()->code != KILN_E_MEMORY)
                fail_msg("call %zu, allocation %lld: %s", c, (long long)n, kiln_last_error()->message);
            if (ok && !kiln_ok())
                fail_msg("call %zu, allocation %lld: no failure, but %s", c, (long long)n, kiln_last_error()->message);
            kiln_error_clear();
            assert_true(kiln_eval());
            assert_int_equal(memory_in_use(KILN_CPU), host);
            assert_int_equal(memory_in_use(sim0), device);
        }
    }
    kiln_plan_cache_set_capacity(256);
    assert_true(kiln_ok());
}

/* ---- The model ---- */

static int make_model(void **state)
{
    (void)state;
    sim0 = kiln_device_parse("sim");
    nowhere = fopen("/dev/null", "w");
    m.p[0] = parameter(0, KILN_SHAPE(3, 1, 3, 3), KILN_CPU);
    m.p[1] = parameter(1, KILN_SHAPE(3), KILN_CPU);
    m.p[2] = parameter(2, KILN_SHAPE(10, 4), KILN_CPU);
    m.p[3] = parameter(3, KILN_SHAPE(5, 16), KILN_CPU);
    m.p[4] = parameter(4, KILN_SHAPE(5), KILN_CPU);
    m.p[5] = parameter(5, KILN_SHAPE(16, 5), sim0);
    m.buffer = kiln_keep(kiln_tensor_new(NULL, KILN_F32, KILN_SHAPE(4, 6), KILN_CPU));
    step();
    for (int i = 0; i < PARAMETERS; i++)
        kiln_read(m.p[i], m.after[i], bytes_of(i));
    kiln_report(stderr);
    return kiln_ok() && !is_at(m.before) ? 0 : -1;
}

static int free_model(void **state)
{
    (void)state;
    for (int i = 0; i < PARAMETERS; i++)
        kiln_release(m.p[i]);
    kiln_release(m.buffer);
    fclose(nowhere);
    return memory_in_use(KILN_CPU) || memory_in_use(sim0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_warm),    cmocka_unit_test(test_cold_plans), cmocka_unit_test(test_cold_memory),
        cmocka_unit_test(test_cold_thread), cmocka_unit_test(test_all_cold),   cmocka_unit_test(test_single_calls),
    };
    return cmocka_run_group_tests(tests, make_model, free_model);
}
