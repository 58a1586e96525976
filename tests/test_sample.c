/* The choice of tokens: how often each comes in many draws, what top-k and top-p leave, ties, and logits that are no
 * numbers. */
#include "models.h"
#include "support/core.h"

enum { DRAWS = 20000, MOST = 16 };

/* How often each of n tokens comes in DRAWS draws. */
static void count(int n, const float *logits, model_sampling how, int64_t *counts)
{
    static int64_t tokens[DRAWS];
    memset(counts, 0, (size_t)n * sizeof *counts);
    kiln_scope {
        kiln_tensor *row = kiln_tensor_new(logits, KILN_F32, KILN_SHAPE(1, n), kiln_default_device());
        kiln_tensor *drawn = model_sample(kiln_expand(row, KILN_SHAPE(DRAWS, n)), how);
        assert_int_equal(kiln_ndim(drawn), 1);
        assert_true(kiln_read(drawn, tokens, sizeof tokens));
    }
    for (int i = 0; i < DRAWS; i++) {
        assert_true(tokens[i] >= 0 && tokens[i] < n);
        counts[tokens[i]]++;
    }
}

/* Counts of tokens of these probabilities (which need not add up to 1), within five standard deviations: fewer than one
 * test in 100,000 would be off by chance, and the seed makes it always the same. */
static void expect_shares(int n, const float *logits, model_sampling how, const double *p)
{
    int64_t counts[MOST];
    double sum = 0;
    kiln_manual_seed(5);
    count(n, logits, how, counts);
    for (int i = 0; i < n; i++)
        sum += p[i];
    for (int i = 0; i < n; i++) {
        double share = p[i] / sum, want = DRAWS * share, deviation = sqrt(want * (1 - share));
        if (!(fabs((double)counts[i] - want) <= 5 * deviation))
            fail_msg("temperature %g, top_k %lld, top_p %g: token %d came %lld times, %.0f were expected",
                     how.temperature, (long long)how.top_k, how.top_p, i, (long long)counts[i], want);
    }
}

static const double shares[] = {0.05, 0.4, 0.02, 0.3, 0.13, 0.1};
enum { TOKENS = sizeof shares / sizeof *shares };

static const float *logits_of(const double *p, int n, double added)
{
    static float logits[MOST];
    for (int i = 0; i < n; i++)
        logits[i] = (float)(log(p[i]) + added);
    return logits;
}

static void test_temperature(void **state)
{
    (void)state;
    double powers[TOKENS];
    for (int k = 0; k < 3; k++) {
        double t = (const double[]){1, 0.5, 2}[k];
        for (int i = 0; i < TOKENS; i++)
            powers[i] = pow(shares[i], 1 / t);
        expect_shares(TOKENS, logits_of(shares, TOKENS, 0), (model_sampling){.temperature = t}, powers);
        expect_shares(TOKENS, logits_of(shares, TOKENS, 300), (model_sampling){.temperature = t}, powers);
    }
    const double likeliest[TOKENS] = {0, 1, 0, 0, 0, 0};
    expect_shares(TOKENS, logits_of(shares, TOKENS, 0), (model_sampling){.temperature = 0}, likeliest);
    expect_shares(TOKENS, logits_of(shares, TOKENS, 300), (model_sampling){.temperature = 1e-30}, likeliest);
}

static void test_top_k(void **state)
{
    (void)state;
    const double one[TOKENS] = {0, 1, 0, 0, 0, 0}, three[TOKENS] = {0, 0.4, 0, 0.3, 0.13, 0};
    const float *logits = logits_of(shares, TOKENS, 0);
    expect_shares(TOKENS, logits, (model_sampling){.temperature = 1, .top_k = 1}, one);
    expect_shares(TOKENS, logits, (model_sampling){.temperature = 1, .top_k = 3}, three);
    expect_shares(TOKENS, logits, (model_sampling){.temperature = 1, .top_k = TOKENS}, shares);
    expect_shares(TOKENS, logits, (model_sampling){.temperature = 1, .top_k = 1000}, shares);
}

static void test_top_p(void **state)
{
    (void)state;
    const double one[TOKENS] = {0, 1, 0, 0, 0, 0}, two[TOKENS] = {0, 0.4, 0, 0.3, 0, 0},
                 three[TOKENS] = {0, 0.4, 0, 0.3, 0.13, 0}, five[TOKENS] = {0.05, 0.4, 0, 0.3, 0.13, 0.1};
    const struct {
        double p;
        const double *want;
    } cases[] = {{1e-9, one}, {0.39, one}, {0.41, two}, {0.69, two}, {0.71, three}, {0.97, five}, {1, shares}};
    const float *logits = logits_of(shares, TOKENS, 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect_shares(TOKENS, logits, (model_sampling){.temperature = 1, .top_p = cases[i].p}, cases[i].want);
    expect_shares(TOKENS, logits, (model_sampling){.temperature = 1, .top_k = 4, .top_p = 0.44}, two);
    /* top_p is a share of what top_k leaves: 0.4/0.93 = 0.43, and 0.4/0.83 = 0.48 */
    expect_shares(TOKENS, logits, (model_sampling){.temperature = 1, .top_k = 3, .top_p = 0.48}, one);
}

/* Of equal ones the first are taken, as far as there is room for them. */
static void test_ties(void **state)
{
    (void)state;
    const float equal[4] = {2, 2, 2, 2};
    const double first[4] = {1, 0, 0, 0}, two[4] = {1, 1, 0, 0}, all[4] = {1, 1, 1, 1};
    expect_shares(4, equal, (model_sampling){.temperature = 0}, first);
    expect_shares(4, equal, (model_sampling){.temperature = 1, .top_k = 1}, first);
    expect_shares(4, equal, (model_sampling){.temperature = 1, .top_k = 2}, two);
    expect_shares(4, equal, (model_sampling){.temperature = 1, .top_p = 0.01}, first);
    expect_shares(4, equal, (model_sampling){.temperature = 1, .top_p = 0.5}, two);
    expect_shares(4, equal, (model_sampling){.temperature = 1}, all);
}

/* What has no probability never comes, wherever it stands. */
static void test_impossible(void **state)
{
    (void)state;
    const float logits[5] = {-INFINITY, 0, -INFINITY, 0, -INFINITY};
    const double want[5] = {0, 1, 0, 1, 0};
    expect_shares(5, logits, (model_sampling){.temperature = 1}, want);
    expect_shares(5, logits, (model_sampling){.temperature = 1, .top_k = 3}, want);
    expect_shares(5, logits, (model_sampling){.temperature = 1, .top_p = 0.99}, want);
}

/* One bad row does not harm the others. */
static void test_no_numbers(void **state)
{
    (void)state;
    const float rows[4][3] = {{0, NAN, 0}, {0, 50, 0}, {0, INFINITY, 0}, {-INFINITY, -INFINITY, -INFINITY}};
    static const model_sampling ways[] = {
        {0}, {.temperature = 1}, {.temperature = 1, .top_k = 2}, {.temperature = 1, .top_p = 0.9}};
    for (int k = 0; k < 4; k++)
        kiln_scope {
            int64_t tokens[4];
            kiln_tensor *x = kiln_tensor_new(rows, KILN_F32, KILN_SHAPE(4, 3), kiln_default_device());
            assert_true(kiln_read(model_sample(x, ways[k]), tokens, sizeof tokens));
            assert_int_equal(tokens[0], -1);
            assert_int_equal(tokens[1], 1);
            assert_int_equal(tokens[2], -1);
            assert_int_equal(tokens[3], -1);
        }
}

static void test_seed(void **state)
{
    (void)state;
    int64_t first[TOKENS], again[TOKENS], other[TOKENS];
    const float *logits = logits_of(shares, TOKENS, 0);
    const model_sampling how = {.temperature = 1, .top_k = 5, .top_p = 0.95};
    kiln_manual_seed(1);
    count(TOKENS, logits, how, first);
    kiln_manual_seed(1);
    count(TOKENS, logits, how, again);
    count(TOKENS, logits, how, other);
    assert_memory_equal(first, again, sizeof first);
    assert_memory_not_equal(first, other, sizeof first);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        core_test(test_temperature), core_test(test_top_k),      core_test(test_top_p), core_test(test_ties),
        core_test(test_impossible),  core_test(test_no_numbers), core_test(test_seed)};
    return CORE_MAIN(tests);
}
