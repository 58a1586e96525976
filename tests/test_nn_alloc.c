/* Every allocation that building and using modules makes fails once: an error about memory comes back, nothing leaks,
 * and the module is as it was. */
#include "core/alloc.h"
#include "support/core.h"

static kiln_device sim0;

static uint64_t in_use(kiln_device device)
{
    kiln_memory_stats stats = {0};
    assert_true(kiln_memory_get_stats(device, &stats));
    return stats.in_use;
}

/* ---- What is done ---- */

static int contexts; /* that live */

static kiln_tensor *own_forward(kiln_module *self, kiln_tensor *x, void *context)
{
    (void)context;
    return kiln_mul(kiln_forward(kiln_module_child(self, "inner"), x), kiln_module_tensor(self, "factor"));
}

static void own_free(void *context)
{
    (void)context;
    contexts--;
}

static kiln_module *own(void)
{
    contexts++;
    kiln_module *m = kiln_module_new("Own", own_forward, &contexts, own_free);
    kiln_module_add(m, "inner", kiln_nn_relu());
    kiln_module_add_parameter(m, "factor", kiln_add_scalar(kiln_ones(KILN_SHAPE(6), KILN_F32), 1));
    kiln_module_add_buffer(m, "count", kiln_zeros(KILN_SHAPE(2), KILN_I64));
    if (kiln_ok())
        return m;
    kiln_module_free(m);
    return NULL;
}

static kiln_module *build(void)
{
    return kiln_nn_sequential(kiln_nn_embedding(9, 4, .has_padding = true), kiln_nn_lstm(4, 3, .bidirectional = true),
                              kiln_nn_multihead_attention(6, 2),
                              kiln_nn_residual(kiln_nn_sequential(kiln_nn_layer_norm(6), kiln_nn_linear(6, 6)), NULL),
                              own());
}

static kiln_tensor *indices(kiln_module *m)
{
    return kiln_tensor_new((int64_t[]){1, 2, 3, 8, 0, 5}, KILN_I64, KILN_SHAPE(2, 3), kiln_module_device(m));
}

static bool call_build(kiln_module *m)
{
    (void)m;
    kiln_module *other = build();
    kiln_module_free(other);
    return other != NULL;
}

static bool call_images(kiln_module *m)
{
    (void)m;
    kiln_module *net =
        kiln_nn_sequential(kiln_nn_conv2d(1, 2, 3), kiln_nn_batch_norm(2), kiln_nn_max_pool2d(2), kiln_nn_dropout(0.5),
                           kiln_nn_flatten(), kiln_nn_rnn(2, 2), kiln_nn_gru(1, 1));
    kiln_module_free(net);
    return net != NULL;
}

static bool call_lists(kiln_module *m)
{
    return kiln_parameters(m).count == 18 && kiln_state(m).count == 19 &&
           kiln_parameters_matching(m, "*bias*", false).count == 8 &&
           kiln_parameters_matching(kiln_module_child(m, "3"), "*bias*", true).count == 2;
}

static bool call_forward(kiln_module *m)
{
    kiln_tensor *y = kiln_forward(m, indices(m));
    return kiln_backward(kiln_sum_all(y)) && kiln_eval();
}

static bool call_recur(kiln_module *m)
{
    kiln_tensor *h, *c, *x = kiln_ones(KILN_SHAPE(3, 2, 4), KILN_F32);
    return kiln_recur(kiln_module_child(m, "1"), x, NULL, NULL, &h, &c) && h && c && kiln_eval();
}

static bool call_summary(kiln_module *m)
{
    int ndim;
    int64_t shape[KILN_MAX_DIMS];
    char *text = kiln_summary(m, KILN_SHAPE(2, 3), KILN_I64);
    bool ok = text != NULL;
    kiln_string_free(text);
    return ok && kiln_module_shape(m, KILN_SHAPE(2, 3), KILN_I64, &ndim, shape) && ndim == 3;
}

static bool call_move(kiln_module *m)
{
    bool ok = kiln_module_to(m, sim0);
    assert_int_equal(kiln_module_device(m), ok ? sim0 : KILN_CPU);
    for (int64_t i = 0; ok && i < kiln_state(m).count; i++)
        assert_int_equal(kiln_device_of(kiln_state(m).tensors[i]), sim0);
    return ok;
}

static bool call_init(kiln_module *m)
{
    kiln_tensor *t = kiln_tensor_new(NULL, KILN_F32, KILN_SHAPE(4, 3), sim0);
    (void)m;
    return t && kiln_init_orthogonal(t, 1) && kiln_init_trunc_normal(t, 0, 1, -2, 2) && kiln_eval();
}

/* ---- Each allocation in turn ---- */

enum { TRIES = 100000 };

static uint64_t hash_state(kiln_module *m)
{
    uint64_t hash = 0;
    kiln_params p = kiln_state(m);
    assert_true(p.count > 0);
    for (int64_t i = 0; i < p.count; i++) {
        unsigned char bytes[4096];
        size_t n = (size_t)kiln_numel(p.tensors[i]) * kiln_dtype_size(kiln_dtype_of(p.tensors[i]));
        assert_true(n <= sizeof bytes && kiln_read(p.tensors[i], bytes, n));
        for (size_t k = 0; k < n; k++)
            hash = (hash ^ bytes[k]) * UINT64_C(0x100000001b3);
    }
    return hash;
}

/* One try on a fresh module; true if the n-th allocation was reached. */
static bool attempt(int c, bool (*call)(kiln_module *m), int64_t n)
{
    kiln_manual_seed(7);
    kiln_module *m = NULL;
    kiln_scope
        m = build();
    assert_non_null(m);
    uint64_t before = hash_state(m), count = kiln_alloc_count();
    bool ok = false;
    if (n % 3 == 0) /* sometimes without what is kept for reuse */
        kiln_memory_trim(KILN_CPU);
    kiln_alloc_fail_after(n);
    kiln_scope
        ok = call(m);
    kiln_alloc_fail_after(-1);
    bool reached = kiln_alloc_count() - count > (uint64_t)n;
    if (!ok && kiln_last_error()->code != KILN_E_MEMORY)
        fail_msg("call %d, allocation %lld: %s", c, (long long)n, kiln_last_error()->message);
    if (ok && !kiln_ok())
        fail_msg("call %d, allocation %lld: no failure, but %s", c, (long long)n, kiln_last_error()->message);
    kiln_error_clear();
    assert_true(hash_state(m) == before);
    kiln_module_free(m);
    assert_true(kiln_eval());
    assert_int_equal(contexts, 0);
    return reached || !ok;
}

static void each_allocation(bool cold)
{
    static bool (*const calls[])(kiln_module * m) = {call_build, call_images, call_lists,   call_forward,
                                                     call_recur, call_move,   call_summary, call_init};
    sim0 = kiln_device_parse("sim:0");
    assert_int_not_equal(sim0, KILN_NO_DEVICE);
    uint64_t host = in_use(KILN_CPU), device = in_use(sim0);
    for (int c = 0; c < (int)(sizeof calls / sizeof *calls); c++) {
        int64_t n = 0;
        kiln_plan_cache_set_capacity(cold ? 0 : 256);
        for (; attempt(c, calls[c], n); n++) {
            assert_true(n < TRIES);
            assert_int_equal(in_use(KILN_CPU), host);
            assert_int_equal(in_use(sim0), device);
        }
        print_message("call %d: %lld allocations\n", c, (long long)n);
    }
    kiln_plan_cache_set_capacity(256);
}

static void test_cold_plans(void **state)
{
    (void)state;
    each_allocation(true);
}

static void test_known_plans(void **state)
{
    (void)state;
    each_allocation(false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_cold_plans), cmocka_unit_test(test_known_plans)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
