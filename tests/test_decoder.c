/* Decoders: texts token by token have the logits and the tokens of the forward pass over the whole text, in pieces of
 * any length, also where the text outgrows the context; and after the first few tokens no plan is made. */
#include "models.h"
#include "support/core.h"

/* ctest: name=eager env=KILN_EAGER=1 */

enum { VOCABULARY = 11, CONTEXT = 12, BATCH = 2, MOST = 160 };

/* Weights large enough that each token before matters. */
static kiln_module *make(const char *spec)
{
    char why[200];
    model_options options = {0};
    const model_entry *e = model_find(spec, &options, why, sizeof why);
    assert_non_null(e);
    kiln_module *m = e->build(options);
    assert_non_null(m);
    kiln_params p = kiln_parameters(m);
    for (int64_t i = 0; i < p.count; i++)
        kiln_scope {
            kiln_tensor *x = core_data((int)i, kiln_ndim(p.tensors[i]), kiln_shape(p.tensors[i]));
            kiln_no_grad
                assert_true(kiln_assign(p.tensors[i], kiln_mul_scalar(x, 0.5)));
        }
    assert_true(kiln_eval());
    kiln_module_train(m, false);
    return m;
}

/* One of each kind of decoder: caches, a state, nothing. */
static kiln_module *make_gpt2(void)
{
    return make("gpt2:vocabulary=11,context=12,layers=2,heads=2,embed=8");
}

static kiln_module *make_lstm(void)
{
    return make("char-lstm:vocabulary=11,layers=2,embed=4,hidden=6");
}

static kiln_module *make_other(void)
{
    kiln_module *m =
        kiln_nn_sequential(kiln_nn_embedding(VOCABULARY, 8), kiln_nn_multihead_attention(8, 2, .causal = true),
                           kiln_nn_linear(8, VOCABULARY));
    kiln_module_train(m, false);
    return m;
}

/* Looks like char-lstm, but takes time first: [N, T] tokens are N moments of T texts, which is no use and allowed. */
static kiln_module *make_turned(void)
{
    kiln_module *m =
        kiln_nn_sequential(kiln_nn_embedding(VOCABULARY, 8), kiln_nn_lstm(8, 8), kiln_nn_linear(8, VOCABULARY));
    kiln_module_train(m, false);
    return m;
}

static kiln_module *(*const makers[])(void) = {make_gpt2, make_lstm, make_other, make_turned};
enum { MAKERS = sizeof makers / sizeof *makers };

static int64_t token_at(int row, int64_t i)
{
    return (i * 7 + i * i % 5 + 3 * row) % VOCABULARY;
}

static kiln_tensor *tokens_of(int64_t from, int64_t to)
{
    int64_t data[BATCH * MOST];
    for (int row = 0; row < BATCH; row++)
        for (int64_t i = from; i < to; i++)
            data[row * (to - from) + i - from] = token_at(row, i);
    return kiln_tensor_new(data, KILN_I64, KILN_SHAPE(BATCH, to - from), kiln_default_device());
}

/* The logits behind the tokens from … to, by the forward pass. */
static void expect_forward(kiln_module *m, int64_t from, int64_t to, const float *got, double tolerance)
{
    kiln_no_grad
        kiln_scope {
            const float *want =
                core_f32(kiln_cast(kiln_select(kiln_forward(m, tokens_of(from, to)), 1, to - from - 1), KILN_F32));
            for (int i = 0; i < BATCH * VOCABULARY; i++)
                if (!(fabs(got[i] - want[i]) <= tolerance))
                    fail_msg("%s, tokens %lld … %lld: logit %d is %.8g instead of %.8g", kiln_module_kind(m),
                             (long long)from, (long long)to, i, got[i], want[i]);
        }
}

/* Appends the text piece by piece and compares after each. `begins`: where in the text the window begins then. */
static void check_pieces(kiln_module *m, int64_t context, int n, const int64_t *pieces, const int64_t *begins,
                         double tolerance)
{
    model_decoder *d = model_decoder_new(m, BATCH, context);
    assert_non_null(d);
    kiln_scope { /* another text leaves nothing behind */
        kiln_tensor *other = kiln_full_like(tokens_of(0, 7), VOCABULARY - 1);
        assert_non_null(model_decode(d, other));
        assert_non_null(model_decode(d, kiln_slice(other, 1, 0, 1, 1)));
    }
    model_decoder_reset(d);
    int64_t at = 0;
    for (int i = 0; i < n; i++) {
        float got[BATCH * VOCABULARY];
        kiln_scope {
            kiln_tensor *logits = model_decode(d, tokens_of(at, at + pieces[i]));
            assert_non_null(logits);
            assert_true(kiln_size(logits, 0) == BATCH && kiln_size(logits, 1) == VOCABULARY && kiln_ndim(logits) == 2);
            memcpy(got, core_f32(kiln_cast(logits, KILN_F32)), sizeof got);
        }
        at += pieces[i];
        expect_forward(m, begins[i], at, got, tolerance);
    }
    model_decoder_free(d);
}

static void test_pieces(void **state)
{
    (void)state;
    static const int64_t one[12] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, mixed[] = {5, 1, 1, 3, 1, 1},
                         from_zero[12] = {0};
    for (int k = 0; k < MAKERS; k++) {
        kiln_module *m = makers[k]();
        check_pieces(m, CONTEXT, 12, one, from_zero, 2e-6);
        check_pieces(m, CONTEXT, 6, mixed, from_zero, 2e-6);
        kiln_module_free(m);
    }
}

/* The older half goes when there is no room; a piece that is longer stays as far as it fits. */
static void test_full(void **state)
{
    (void)state;
    static const int64_t ones[] = {11, 1, 1, 1, 5, 1, 1}, begins[] = {0, 0, 7, 7, 7, 14, 14};
    static const int64_t longer[] = {15, 1, 9, 1, 40, 1}, begin_longer[] = {3, 10, 16, 16, 54, 61};
    for (int k = 0; k < MAKERS; k++) {
        kiln_module *m = makers[k]();
        check_pieces(m, CONTEXT, 7, ones, begins, 2e-6);
        check_pieces(m, CONTEXT, 6, longer, begin_longer, 2e-6);
        kiln_module_free(m);
    }
}

/* A recurrent state has no end: it knows more than any window that a decoder would choose. */
static void test_no_end(void **state)
{
    (void)state;
    int64_t ones[150], begins[150] = {0};
    for (int i = 0; i < 150; i++)
        ones[i] = 1;
    kiln_module *m = make_lstm();
    check_pieces(m, 0, 150, ones, begins, 2e-6);
    kiln_module_free(m);
}

/* In half precision: what is kept was rounded where the forward pass rounds, and once more on the way. */
static void test_half(void **state)
{
    (void)state;
    static const int64_t pieces[] = {4, 1, 1, 1}, from_zero[4] = {0};
    for (int k = 0; k < MAKERS; k++) {
        kiln_module *m = makers[k]();
        kiln_autocast (KILN_BF16)
            check_pieces(m, CONTEXT, 4, pieces, from_zero, 0.03);
        assert_true(kiln_module_cast(m, KILN_BF16));
        check_pieces(m, CONTEXT, 4, pieces, from_zero, 0.03);
        kiln_module_free(m);
    }
}

/* ---- Tokens that are chosen ---- */

/* The text that comes of always taking the likeliest token, of `length` tokens, by a decoder … */
static void write_text(kiln_module *m, int64_t length, int64_t *text)
{
    model_decoder *d = model_decoder_new(m, BATCH, CONTEXT);
    kiln_tensor *token = kiln_keep(tokens_of(0, 1));
    for (int64_t i = 0; i < length; i++)
        kiln_scope {
            kiln_tensor *next = model_sample(model_decode(d, token), (model_sampling){0});
            assert_true(kiln_assign(token, kiln_unsqueeze(next, 1)));
            assert_true(kiln_read(token, text + BATCH * i, BATCH * sizeof *text));
        }
    kiln_release(token);
    model_decoder_free(d);
}

/* … and by the forward pass over all of it. */
static void write_slowly(kiln_module *m, int64_t length, int64_t *text)
{
    kiln_no_grad
        kiln_scope {
            kiln_tensor *all = tokens_of(0, 1);
            for (int64_t i = 0; i < length; i++) {
                kiln_tensor *next = kiln_argmax(kiln_select(kiln_forward(m, all), 1, i), 1, true);
                assert_true(kiln_read(next, text + BATCH * i, BATCH * sizeof *text));
                all = kiln_cat(2, (kiln_tensor *[]){all, next}, 1);
            }
        }
}

static void test_same_text(void **state)
{
    (void)state;
    for (int k = 0; k < MAKERS; k++) {
        int64_t fast[BATCH * CONTEXT], slow[BATCH * CONTEXT];
        kiln_module *m = makers[k]();
        write_text(m, CONTEXT, fast);
        write_slowly(m, CONTEXT, slow);
        assert_memory_equal(fast, slow, sizeof fast);
        kiln_module_free(m);
    }
}

/* ---- Plans ---- */

static const model_sampling ways[] = {
    {0}, {.temperature = 1}, {.temperature = 1, .top_k = 3}, {.temperature = 0.7, .top_p = 0.9}};
enum { WAYS = sizeof ways / sizeof *ways };

/* The first tokens and the first change of windows make some; none of the following does. */
static void test_plans(void **state)
{
    (void)state;
    skip_if_eager();
    for (int k = 0; k < MAKERS * WAYS; k++) {
        kiln_module *m = makers[k / WAYS]();
        model_decoder *d = model_decoder_new(m, BATCH, CONTEXT);
        kiln_tensor *token = kiln_keep(tokens_of(0, 1));
        int64_t before = 0, later = 0;
        for (int i = 0; i < 5 * CONTEXT; i++) {
            kiln_scope {
                kiln_tensor *next = model_sample(model_decode(d, token), ways[k % WAYS]);
                assert_true(kiln_assign(token, kiln_unsqueeze(next, 1)) && kiln_eval());
            }
            if (i == 3)
                before = kiln_plan_cache_stats().misses;
            if (i == CONTEXT - 1)
                assert_int_equal(kiln_plan_cache_stats().misses, before);
            if (i == CONTEXT + 1)
                later = kiln_plan_cache_stats().misses;
        }
        assert_int_equal(kiln_plan_cache_stats().misses, later);
        kiln_release(token);
        model_decoder_free(d);
        kiln_module_free(m);
    }
}

/* A token more does not copy caches: what a step adds to memory in use is less than one of them. */
static void test_in_place(void **state)
{
    (void)state;
    skip_if_eager();
    kiln_module *m = make("gpt2:vocabulary=11,context=1024,layers=1,heads=1,embed=64");
    for (int k = 0; k < WAYS; k++) {
        model_decoder *d = model_decoder_new(m, BATCH, 0);
        kiln_plan_info info = {0};
        for (int i = 0; i < 6; i++)
            kiln_scope {
                assert_non_null(model_sample(model_decode(d, tokens_of(i, i + 1)), ways[k]));
                assert_true(kiln_eval() && kiln_plan_last(&info));
            }
        int64_t cache = BATCH * 1024 * 64 * (int64_t)sizeof(float);
        if (info.peak_bytes >= cache)
            fail_msg("way %d: %lld bytes, a cache has %lld", k, (long long)info.peak_bytes, (long long)cache);
        model_decoder_free(d);
    }
    kiln_module_free(m);
}

/* Tokens that do not exist, and pieces of another batch. */
static void test_refused(void **state)
{
    (void)state;
    kiln_module *m = make_gpt2();
    assert_null(model_decoder_new(NULL, 1, 0));
    assert_null(model_decode(NULL, NULL));
    model_decoder *d = model_decoder_new(m, BATCH, 0);
    kiln_scope
        assert_null(model_decode(d, kiln_tensor_new(NULL, KILN_I64, KILN_SHAPE(BATCH + 1, 1), kiln_default_device())));
    assert_int_equal(kiln_last_error()->code, KILN_E_SHAPE);
    kiln_error_clear();
    kiln_discard();
    kiln_scope
        assert_null(model_decode(d, kiln_tensor_new(NULL, KILN_I64, KILN_SHAPE(BATCH), kiln_default_device())));
    assert_false(kiln_ok());
    kiln_error_clear();
    model_decoder_free(d);
    kiln_module_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {core_test(test_pieces),   core_test(test_full),      core_test(test_no_end),
                                       core_test(test_half),     core_test(test_same_text), core_test(test_plans),
                                       core_test(test_in_place), core_test(test_refused)};
    return CORE_MAIN(tests);
}
