/* Windows at places that change from step to step: the rows of a data set, positions of a cache, a time step. From the
 * second plan on, offsets come with each run: one plan serves all places, with the same bits as a plan of their own. */
#include "support/core.h"
#include "trace/trace.h"

/* ctest: name=eager env=KILN_EAGER=1 */

enum { ROWS = 20, WIDTH = 6, BATCH = 3 };

static int64_t misses(void)
{
    return kiln_plan_cache_stats().misses;
}

typedef kiln_tensor *(*function)(kiln_tensor *data, kiln_tensor *w, int64_t at);

static kiln_tensor *rows_of_data(kiln_tensor *data, kiln_tensor *w, int64_t at)
{
    return kiln_matmul(kiln_slice(data, 0, at, at + BATCH, 1), w);
}

static kiln_tensor *columns_of_data(kiln_tensor *data, kiln_tensor *w, int64_t at)
{
    kiln_tensor *columns = kiln_slice(data, 1, at % 4, at % 4 + 2, 1); /* [ROWS, 2] with gaps */
    return kiln_matmul(kiln_transpose(columns, 0, 1), kiln_matmul(data, w));
}

static kiln_tensor *one_row(kiln_tensor *data, kiln_tensor *w, int64_t at)
{
    return kiln_mul(kiln_select(data, 0, at), kiln_select(w, 1, at % 5));
}

static kiln_tensor *of_something_computed(kiln_tensor *data, kiln_tensor *w, int64_t at)
{
    kiln_tensor *h = kiln_tanh(kiln_matmul(data, w));
    kiln_tensor *here = kiln_slice(h, 0, at, at + BATCH, 1), *there = kiln_select(h, 0, ROWS - 1 - at);
    return kiln_add(kiln_exp(here), kiln_expand(there, KILN_SHAPE(BATCH, 5)));
}

static kiln_tensor *view_of_a_view(kiln_tensor *data, kiln_tensor *w, int64_t at)
{
    kiln_tensor *block = kiln_slice(data, 0, at, at + 4, 1), *turned = kiln_transpose(block, 0, 1);
    kiln_tensor *part = kiln_slice(kiln_reshape(kiln_slice(turned, 0, 1, 5, 1), KILN_SHAPE(2, 8)), 1, 2, 6, 1);
    return kiln_add(kiln_sum_all(part), kiln_sum(kiln_mul(w, w), KILN_DIMS(0), false));
}

static kiln_tensor *repeated(kiln_tensor *data, kiln_tensor *w, int64_t at)
{
    kiln_tensor *row = kiln_slice(data, 0, at, at + 1, 1);
    return kiln_matmul(kiln_expand(row, KILN_SHAPE(4, WIDTH)), w);
}

static kiln_tensor *with_fixed_ones(kiln_tensor *data, kiln_tensor *w, int64_t at)
{
    kiln_tensor *parts[3];
    kiln_chunk(kiln_slice(data, 0, at, at + BATCH, 1), 3, 1, parts, 3);
    return kiln_matmul(kiln_cat(3, (kiln_tensor *[]){parts[2], parts[0], parts[1]}, 1), w);
}

static const function functions[] = {rows_of_data,   columns_of_data, one_row,        of_something_computed,
                                     view_of_a_view, repeated,        with_fixed_ones};
enum { FUNCTIONS = sizeof functions / sizeof *functions };

typedef struct outcome {
    float y[CORE_MAX], data[ROWS * WIDTH], w[WIDTH * 5];
    int64_t count;
} outcome;

/* The function at a place, and its gradients. */
static void compute(function f, int64_t at, outcome *out)
{
    static kiln_tensor *data, *w;
    data = kiln_keep(kiln_requires_grad(core_data(1, KILN_SHAPE(ROWS, WIDTH)), true));
    w = kiln_keep(kiln_requires_grad(core_data(2, KILN_SHAPE(WIDTH, 5)), true));
    kiln_tensor *y = NULL;
    kiln_step {
        y = kiln_keep(f(data, w, at));
        assert_true(kiln_backward(kiln_sum_all(kiln_square(y))));
    }
    memset(out, 0, sizeof *out);
    out->count = kiln_numel(y);
    memcpy(out->y, core_f32(y), (size_t)out->count * sizeof *out->y);
    memcpy(out->data, core_f32(kiln_grad_of(data)), sizeof out->data);
    if (kiln_grad_of(w))
        memcpy(out->w, core_f32(kiln_grad_of(w)), sizeof out->w);
    kiln_release(y);
    kiln_release(data);
    kiln_release(w);
}

/* The second place makes a second plan, all others use it; each has the bits of a plan of its own. */
static void test_one_plan(void **state)
{
    (void)state;
    for (int k = 0; k < FUNCTIONS; k++) {
        static outcome alone[ROWS - 4], got;
        for (int64_t at = 0; at < ROWS - 4; at++) {
            kiln_plan_cache_set_capacity(0); /* nothing to be alike with */
            kiln_plan_cache_set_capacity(256);
            compute(functions[k], at, &alone[at]);
        }
        kiln_plan_cache_set_capacity(0);
        kiln_plan_cache_set_capacity(256);
        int64_t before = 0;
        for (int64_t at = 0; at < ROWS - 4; at++) {
            compute(functions[k], at * 7 % (ROWS - 4), &got);
            if (memcmp(&got, &alone[at * 7 % (ROWS - 4)], sizeof got) != 0)
                fail_msg("function %d differs at %lld", k, (long long)(at * 7 % (ROWS - 4)));
            if (at == 2)
                before = misses();
        }
        if (!core_eager() && misses() > before + 1) /* one more where another offset is found to change later */
            fail_msg("function %d made %lld more plans", k, (long long)(misses() - before));
    }
}

/* Writing at a changing place. */
static void test_assignment(void **state)
{
    (void)state;
    kiln_tensor *cache = kiln_keep(kiln_zeros(KILN_SHAPE(2, 10, 3), KILN_F32));
    float want[2][10][3] = {{{0}}};
    int64_t before = 0;
    for (int at = 0; at < 10; at++) {
        kiln_step {
            kiln_tensor *row = kiln_full(KILN_SHAPE(2, 1, 3), at + 1, KILN_F32);
            assert_true(kiln_assign(kiln_slice(cache, 1, at, at + 1, 1), row));
        }
        for (int i = 0; i < 6; i++)
            want[i / 3][at][i % 3] = (float)(at + 1);
        assert_memory_equal(core_f32(cache), want, sizeof want);
        if (at == 2)
            before = misses();
    }
    assert_true(core_eager() || misses() == before);
    kiln_release(cache);
}

/* A window whose length changes is another step, also where its place has changed before. */
static void test_lengths(void **state)
{
    (void)state;
    kiln_tensor *x = kiln_keep(core_data(1, KILN_SHAPE(30)));
    const float *data = core_f32(x);
    float copy[30];
    memcpy(copy, data, sizeof copy);
    for (int round = 0; round < 60; round++) {
        int64_t start = round * 7 % 13, length = 1 + round * 5 % 11;
        float sum = 0, got = 0;
        kiln_tensor *y = NULL;
        kiln_step
            y = kiln_keep(kiln_sum_all(kiln_slice(x, 0, start, start + length, 1)));
        for (int64_t i = start; i < start + length; i++)
            sum += copy[i];
        got = (float)kiln_item(y);
        assert_near(got, sum, 1e-6);
        kiln_release(y);
    }
    kiln_release(x);
}

/* Tensors that are windows themselves, from before the step. */
static void test_windows_from_outside(void **state)
{
    (void)state;
    kiln_tensor *x = kiln_keep(core_data(1, KILN_SHAPE(16, 3)));
    float copy[48];
    memcpy(copy, core_f32(x), sizeof copy);
    int64_t before = 0;
    for (int at = 0; at < 16; at++) {
        kiln_tensor *row = kiln_select(x, 0, at), *y = NULL;
        assert_true(kiln_eval());
        kiln_step
            y = kiln_keep(kiln_mul_scalar(row, 2));
        assert_f32(y, 2 * copy[3 * at], 2 * copy[3 * at + 1], 2 * copy[3 * at + 2]);
        kiln_release(y);
        kiln_release(row);
        if (at == 1)
            before = misses();
    }
    assert_true(core_eager() || misses() == before);
    kiln_release(x);
}

/* Steps that are new every time are noticed, with what is new in them. */
static void test_notice(void **state)
{
    (void)state;
    skip_if_eager();
    while (kiln_next_notice())
        ;
    kiln_thread_current->trace->fresh_steps = 0;
    kiln_thread_current->trace->told_fresh = false;
    kiln_tensor *x = kiln_keep(core_data(1, KILN_SHAPE(100)));
    for (int length = 1; length < 80; length++) {
        kiln_tensor *y = NULL;
        kiln_step
            y = kiln_keep(kiln_sum_all(kiln_exp(kiln_slice(x, 0, 0, length, 1))));
        kiln_release(y);
    }
    const char *notice = kiln_next_notice();
    assert_non_null(notice);
    assert_non_null(strstr(notice, "new plan"));
    assert_non_null(strstr(notice, "slice(end)"));
    assert_null(kiln_next_notice()); /* once */
    kiln_release(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {core_test(test_one_plan), core_test(test_assignment), core_test(test_lengths),
                                       core_test(test_windows_from_outside), core_test(test_notice)};
    return CORE_MAIN(tests);
}
