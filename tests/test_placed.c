/* Gradients of parts (ops/placed.h): slices and selections of one tensor, drawn at random, that lie side by side, leave
 * gaps, overlap, repeat, run along different dims and through several windows, beside uses of the whole. All numbers
 * are small integers, so that every sum is exact in any order and any dtype. */
#include "support/core.h"

/* ctest: name=eager env=KILN_EAGER=1 */

enum { A = 3, B = 4, C = 5, COUNT = A * B * C, PARTS = 9, ROUNDS = 60 };

static uint32_t state_of_draws;
static int draw(int n) /* one of 0 … n - 1 */
{
    state_of_draws = state_of_draws * 1664525u + 1013904223u;
    return (int)((state_of_draws >> 16) % (uint32_t)n);
}

/* A part of x, [start, end) along each dim. */
typedef struct part {
    int start[3], end[3];
    int weight;
} part;

static part draw_part(void)
{
    static const int size[3] = {A, B, C};
    part p = {.end = {A, B, C}, .weight = 1 + draw(3)};
    int cuts = 1 + draw(2);
    for (int i = 0; i < cuts; i++) {
        int d = draw(3);
        p.start[d] = draw(size[d] + 1);
        p.end[d] = p.start[d] + draw(size[d] + 1 - p.start[d]);
    }
    return p;
}

/* By slices in turn; along a dim of one element sometimes by kiln_select. */
static kiln_tensor *cut(kiln_tensor *x, const part *p)
{
    static const int size[3] = {A, B, C};
    for (int d = 2; d >= 0; d--) {
        if (p->end[d] - p->start[d] == size[d] && draw(2))
            continue;
        bool one = p->end[d] == p->start[d] + 1 && draw(2);
        x = one ? kiln_select(x, d, p->start[d]) : kiln_slice(x, d, p->start[d], p->end[d], 1);
    }
    return x;
}

static void add_expected(const part *p, double *want)
{
    for (int a = p->start[0]; a < p->end[0]; a++)
        for (int b = p->start[1]; b < p->end[1]; b++)
            for (int c = p->start[2]; c < p->end[2]; c++)
                want[(a * B + b) * C + c] += p->weight;
}

static void expect(kiln_tensor *g, const double *want, double factor, int round)
{
    float got[COUNT];
    assert_non_null(g);
    assert_true(kiln_read(kiln_cast(g, KILN_F32), got, sizeof got));
    for (int i = 0; i < COUNT; i++)
        if (got[i] != (float)(factor * want[i]))
            fail_msg("round %d: element %d is %g instead of %g", round, i, got[i], factor * want[i]);
}

/* Σ weight · Σ part², whose gradient is 2 · weight · x at each element of a part: with x = 1 twice what is expected. */
static void check_round(kiln_dtype dtype, int round)
{
    double want[COUNT] = {0};
    kiln_tensor *x = kiln_requires_grad(kiln_ones(KILN_SHAPE(A, B, C), dtype), true), *g = NULL, *gg = NULL;
    kiln_step {
        kiln_tensor *y = kiln_mul_scalar(x, 1), *loss = kiln_sum_all(kiln_mul_scalar(y, 0));
        int n = 1 + draw(PARTS);
        for (int i = 0; i < n; i++) {
            part p = draw_part();
            add_expected(&p, want);
            loss = kiln_add(loss, kiln_mul_scalar(kiln_sum_all(kiln_square(cut(y, &p))), p.weight));
        }
        assert_true(kiln_grad(loss, NULL, &y, 1, &g));
        assert_true(kiln_grad(kiln_sum_all(g), NULL, &x, 1, &gg));
        kiln_keep(g);
        kiln_keep(gg);
        assert_true(kiln_backward(loss));
    }
    expect(g, want, 2, round);
    expect(gg, want, 2, round);
    expect(kiln_grad_of(x), want, 2, round);
    kiln_release(g);
    kiln_release(gg);
}

static void test_random_parts(void **state)
{
    (void)state;
    state_of_draws = 7;
    for (int round = 0; round < ROUNDS; round++)
        kiln_scope
            check_round(round % 3 ? KILN_F32 : KILN_BF16, round);
}

/* The gradients of three thirds are joined in one kernel, nothing is added to zeros. */
static void test_thirds(void **state)
{
    (void)state;
    kiln_scope {
        kiln_tensor *x = kiln_requires_grad(kiln_ones(KILN_SHAPE(4, 6), KILN_F32), true), *thirds[3];
        kiln_step {
            assert_int_equal(kiln_chunk(x, 3, 1, thirds, 3), 3);
            kiln_tensor *product = kiln_mul(kiln_mul_scalar(thirds[0], 2), kiln_mul(thirds[1], thirds[2]));
            assert_true(kiln_backward(kiln_sum_all(product)));
            char *plan = core_eager() ? NULL : kiln_plan_describe();
            assert_true(core_eager() || (strstr(plan, "cat") && !strstr(plan, "as_strided_add")));
            kiln_string_free(plan);
        }
        float got[24];
        assert_true(kiln_read(kiln_grad_of(x), got, sizeof got));
        for (int i = 0; i < 24; i++)
            assert_true(got[i] == 2);
    }
}

/* A loop over positions: as many parts as there are, and a start that differs from step to step. */
static void test_positions(void **state)
{
    (void)state;
    enum { STEPS = 300 };
    static float got[STEPS];
    kiln_scope {
        kiln_tensor *x = kiln_requires_grad(kiln_ones(KILN_SHAPE(STEPS, 1), KILN_F32), true);
        kiln_step {
            kiln_tensor *sum = kiln_zeros(KILN_SHAPE(1), KILN_F32);
            for (int i = 0; i < STEPS; i++)
                sum = kiln_add(sum, kiln_mul_scalar(kiln_select(x, 0, i), i));
            assert_true(kiln_backward(kiln_sum_all(sum)));
        }
        assert_true(kiln_read(kiln_grad_of(x), got, sizeof got));
        for (int i = 0; i < STEPS; i++)
            assert_true(got[i] == (float)i);
        for (int i = 0; i < 5; i++) {
            kiln_zero_grad_of(x);
            kiln_step
                assert_true(kiln_backward(kiln_sum_all(kiln_slice(x, 0, 7 * i, 7 * i + 7, 1))));
            assert_true(kiln_read(kiln_grad_of(x), got, sizeof got));
            for (int j = 0; j < STEPS; j++)
                assert_true(got[j] == (j >= 7 * i && j < 7 * i + 7 ? 1 : 0));
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        core_test(test_random_parts),
        core_test(test_thirds),
        core_test(test_positions),
    };
    return CORE_MAIN(tests);
}
