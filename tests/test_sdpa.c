/* Attention as users write it, beside the same written out with softmax and products: heads that share keys and values,
 * masks, lengths, dropout by one seed, and all of them together, with gradients. */
#include <math.h>
#include "support/core.h"

/* ctest: name=eager env=KILN_EAGER=1 */

enum { N = 2, H = 4, SHARED = 2, L = 37, S = 70, E = 24 };

typedef struct kind {
    bool shares, masks, adds, lengths, causal;
    double dropout;
} kind;

/* Numbers that are the same on every device. */
static kiln_tensor *numbers(uint64_t seed, int ndim, const int64_t *shape, kiln_dtype dtype)
{
    kiln_manual_seed(seed);
    return kiln_keep(kiln_requires_grad(kiln_cast(kiln_randn(ndim, shape, KILN_F32), dtype), true));
}

/* softmax(scale·q·kᵀ + …)·v, in f32; rows that see nothing are zeros. */
static kiln_tensor *written_out(const kind *c, kiln_tensor *q, kiln_tensor *k, kiln_tensor *v, kiln_tensor *mask,
                                kiln_tensor *lengths)
{
    q = kiln_cast(q, KILN_F32);
    k = kiln_cast(k, KILN_F32);
    v = kiln_cast(v, KILN_F32);
    if (c->shares) {
        k = kiln_reshape(kiln_expand(kiln_unsqueeze(k, 2), KILN_SHAPE(N, SHARED, H / SHARED, S, E)),
                         KILN_SHAPE(N, H, S, E));
        v = kiln_reshape(kiln_expand(kiln_unsqueeze(v, 2), KILN_SHAPE(N, SHARED, H / SHARED, S, E)),
                         KILN_SHAPE(N, H, S, E));
    }
    kiln_tensor *scores = kiln_mul_scalar(kiln_matmul(q, kiln_transpose(k, -1, -2)), 1 / sqrt(E));
    kiln_tensor *keys = kiln_arange(0, S, 1, KILN_I64);
    if (c->masks)
        scores = kiln_masked_fill(scores, kiln_logical_not(mask), -INFINITY);
    if (c->adds)
        scores = kiln_add(scores, kiln_cast(mask, KILN_F32));
    if (c->lengths)
        scores = kiln_masked_fill(scores, kiln_ge(keys, kiln_reshape(lengths, KILN_SHAPE(N, 1, 1, 1))), -INFINITY);
    if (c->causal)
        scores = kiln_masked_fill(scores, kiln_gt(keys, kiln_unsqueeze(kiln_arange(0, L, 1, KILN_I64), 1)), -INFINITY);
    kiln_tensor *blind = kiln_eq_scalar(kiln_amax(scores, KILN_DIMS(-1), true), -INFINITY);
    kiln_tensor *w = kiln_masked_fill(kiln_softmax(kiln_masked_fill(scores, blind, 0), -1), blind, 0);
    if (c->dropout > 0)
        w = kiln_dropout(w, c->dropout, true);
    return kiln_matmul(w, v);
}

/* Of results and gradients: the norm of the difference by that of what it should be. */
static double distance(kiln_tensor *got, kiln_tensor *want)
{
    static float a[N * H * S * E], b[N * H * S * E];
    double difference = 0, size = 0;
    int64_t n = kiln_numel(want);
    assert_int_equal(kiln_numel(got), n);
    assert_true(kiln_read(kiln_cast(got, KILN_F32), a, (size_t)n * sizeof *a));
    assert_true(kiln_read(kiln_cast(want, KILN_F32), b, (size_t)n * sizeof *b));
    for (int64_t i = 0; i < n; i++) {
        difference += (double)(a[i] - b[i]) * (a[i] - b[i]);
        size += (double)b[i] * b[i];
    }
    return sqrt(difference / (size > 0 ? size : 1));
}

static void compare(const kind *c, kiln_dtype dtype, int number)
{
    int64_t heads = c->shares ? SHARED : H;
    kiln_tensor *x[3] = {numbers(1, KILN_SHAPE(N, H, L, E), dtype), numbers(2, KILN_SHAPE(N, heads, S, E), dtype),
                         numbers(3, KILN_SHAPE(N, heads, S, E), dtype)};
    kiln_tensor *up = numbers(4, KILN_SHAPE(N, H, L, E), KILN_F32), *mask = NULL, *results[2][4];
    kiln_tensor *lengths = kiln_tensor_new((int64_t[]){S - 5, 0}, KILN_I64, KILN_SHAPE(N), kiln_default_device());
    kiln_manual_seed(5);
    if (c->masks)
        mask = kiln_keep(kiln_ge_scalar(kiln_rand(KILN_SHAPE(N, 1, 1, S), KILN_F32), 0.3));
    if (c->adds)
        mask = kiln_keep(kiln_cast(kiln_randn(KILN_SHAPE(H, L, S), KILN_F32), dtype));
    for (int way = 0; way < 2; way++) {
        kiln_manual_seed(6);
        kiln_step {
            kiln_tensor *y = way ? written_out(c, x[0], x[1], x[2], mask, lengths)
                                 : kiln_sdpa(x[0], x[1], x[2], .mask = mask, .lengths = c->lengths ? lengths : NULL,
                                             .causal = c->causal, .dropout = c->dropout);
            assert_non_null(y);
            results[way][0] = kiln_keep(y);
            assert_true(kiln_grad(kiln_sum_all(kiln_mul(kiln_cast(y, KILN_F32), up)), NULL, x, 3, &results[way][1]));
            for (int i = 1; i < 4; i++)
                kiln_keep(results[way][i]);
        }
    }
    static const char *const names[] = {"result", "gradient of q", "gradient of k", "gradient of v"};
    double most = dtype == KILN_F32 ? 2e-6 : dtype == KILN_F16 ? 2e-3 : 1.5e-2;
    for (int i = 0; i < 4; i++) {
        double d = distance(results[0][i], results[1][i]);
        if (!(d < most))
            fail_msg("kind %d, %s: the %s is off by %g", number, kiln_dtype_name(dtype), names[i], d);
        kiln_release(results[0][i]);
        kiln_release(results[1][i]);
    }
    for (int i = 0; i < 3; i++)
        kiln_release(x[i]);
    kiln_release(up);
    kiln_release(mask);
    kiln_release(lengths);
}

static void test_kinds(void **state)
{
    (void)state;
    static const kind kinds[] = {
        {0},
        {.causal = true},
        {.shares = true},
        {.masks = true},
        {.adds = true},
        {.lengths = true},
        {.dropout = 0.3},
        {.shares = true, .masks = true, .lengths = true},
        {.adds = true, .causal = true, .dropout = 0.1},
        {.shares = true, .lengths = true, .causal = true, .dropout = 0.5},
    };
    static const kiln_dtype dtypes[] = {KILN_F32, KILN_BF16, KILN_F16};
    for (int i = 0; i < (int)(sizeof kinds / sizeof *kinds); i++)
        for (int d = 0; d < 3; d++)
            kiln_scope
                compare(&kinds[i], dtypes[d], i);
}

/* Each step of a loop drops other weights, forward and back, and the same ones in both. */
static void test_steps_draw_anew(void **state)
{
    (void)state;
    enum { STEPS = 4, COUNT = 2 * 8 * 4 };
    static float y[STEPS][COUNT], g[STEPS][COUNT];
    kiln_tensor *q = numbers(1, KILN_SHAPE(1, 2, 8, 4), KILN_F32);
    kiln_manual_seed(9);
    for (int i = 0; i < STEPS; i++) {
        kiln_step {
            kiln_tensor *out = kiln_sdpa(q, q, kiln_ones_like(q), .dropout = 0.5), *grad = NULL;
            assert_true(kiln_grad(kiln_sum_all(kiln_square(out)), NULL, &q, 1, &grad));
            assert_true(kiln_read(out, y[i], sizeof y[i]) && kiln_read(grad, g[i], sizeof g[i]));
        }
        for (int j = 0; j < i; j++)
            assert_true(memcmp(y[i], y[j], sizeof y[i]) != 0 && memcmp(g[i], g[j], sizeof g[i]) != 0);
    }
    for (int i = 0; i < STEPS; i++) { /* read after the whole step, which is then had again as it is */
        kiln_tensor *out = NULL;
        kiln_step
            out = kiln_keep(kiln_sdpa(q, q, kiln_ones_like(q), .dropout = 0.5));
        assert_true(kiln_read(out, y[i], sizeof y[i]));
        kiln_release(out);
        for (int j = 0; j < i; j++)
            assert_true(memcmp(y[i], y[j], sizeof y[i]) != 0);
    }
    kiln_release(q);
}

/* A mask that learns has its own gradient. */
static void test_learned_mask(void **state)
{
    (void)state;
    kiln_scope {
        kiln_tensor *q = numbers(1, KILN_SHAPE(1, 2, 3, 4), KILN_F32),
                    *bias = numbers(2, KILN_SHAPE(2, 3, 3), KILN_F32);
        kiln_step
            assert_true(kiln_backward(kiln_sum_all(kiln_square(kiln_sdpa(q, q, q, .mask = bias)))));
        float g[18], sum = 0;
        assert_true(kiln_read(kiln_grad_of(bias), g, sizeof g));
        for (int i = 0; i < 18; i++)
            sum += fabsf(g[i]);
        assert_true(sum > 0.01f);
        kiln_release(q);
        kiln_release(bias);
    }
}

static void refused(kiln_tensor *y, const char *word)
{
    assert_null(y);
    assert_non_null(strstr(kiln_last_error()->message, word));
    kiln_error_clear();
}

static void test_errors(void **state)
{
    (void)state;
    kiln_scope {
        kiln_tensor *q = kiln_zeros(KILN_SHAPE(2, 6, 3, 4), KILN_F32),
                    *k = kiln_zeros(KILN_SHAPE(2, 4, 5, 4), KILN_F32);
        kiln_tensor *good = kiln_zeros(KILN_SHAPE(2, 3, 5, 4), KILN_F32);
        refused(kiln_sdpa(q, k, k), "broadcast");
        refused(kiln_sdpa(q, good, good, .lengths = kiln_zeros(KILN_SHAPE(3), KILN_I64)), "lengths");
        refused(kiln_sdpa(q, good, good, .lengths = kiln_zeros(KILN_SHAPE(2), KILN_F32)), "i64");
        refused(kiln_sdpa(q, good, good, .mask = kiln_zeros(KILN_SHAPE(7, 5), KILN_F32)), "mask");
        refused(kiln_sdpa(q, good, good, .dropout = 1), "dropout");
        assert_non_null(kiln_sdpa(q, good, good));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        core_test(test_kinds),
        core_test(test_steps_draw_anew),
        core_test(test_learned_mask),
        core_test(test_errors),
    };
    return CORE_MAIN(tests);
}
