/* What layers start with, and the initialisers. */
#include "support/nn.h"

/* ctest: name=eager env=KILN_EAGER=1 */

/* ---- Initial values ---- */

typedef struct moments {
    double mean, std, low, high;
} moments;

static moments moments_of(kiln_tensor *t)
{
    static float data[1 << 20];
    int64_t n = kiln_numel(t);
    moments m = {0, 0, INFINITY, -INFINITY};
    assert_true(n > 0 && n <= 1 << 20 && kiln_read(t, data, (size_t)n * sizeof *data));
    for (int64_t i = 0; i < n; i++) {
        m.mean += data[i] / (double)n;
        m.low = fmin(m.low, data[i]);
        m.high = fmax(m.high, data[i]);
    }
    for (int64_t i = 0; i < n; i++)
        m.std += (data[i] - m.mean) * (data[i] - m.mean) / (double)n;
    m.std = sqrt(m.std);
    return m;
}

/* Uniform in ±bound: nearly all of the range is used, and no more. */
static void expect_uniform(kiln_tensor *t, double bound)
{
    moments m = moments_of(t);
    assert_true(m.high <= bound * (1 + 1e-6) && m.low >= -bound * (1 + 1e-6));
    assert_true(m.high > 0.9 * bound && m.low < -0.9 * bound);
    assert_near(m.std / (bound / sqrt(3)), 1, 0.1);
}

static void expect_normal(kiln_tensor *t, double mean, double std)
{
    moments m = moments_of(t);
    assert_true(fabs(m.mean - mean) < 0.1 * std);
    assert_near(m.std / std, 1, 0.1);
}

static void test_default_values(void **state)
{
    (void)state;
    kiln_manual_seed(1);
    kiln_module *net = kiln_nn_sequential(
        kiln_nn_linear(100, 300), kiln_nn_conv2d(20, 30, 3, .groups = 2), kiln_nn_conv_transpose2d(20, 30, 5),
        kiln_nn_embedding(100, 50, .has_padding = true, .padding_idx = 7), kiln_nn_batch_norm(3),
        kiln_nn_multihead_attention(60, 3), kiln_nn_gru(10, 25, .layers = 2));
    expect_uniform(of(net, "0.weight"), 0.1);
    expect_uniform(of(net, "0.bias"), 0.1);
    expect_uniform(of(net, "1.weight"), 1 / sqrt(10 * 9));
    assert_true(moments_of(of(net, "1.bias")).high <= 1 / sqrt(10 * 9));
    expect_uniform(of(net, "2.weight"), 1 / sqrt(30 * 25)); /* PyTorch takes the second dim for the inputs here too */
    expect_normal(of(net, "3.weight"), 0, 1);
    kiln_scope {
        moments row = moments_of(kiln_select(of(net, "3.weight"), 0, 7));
        assert_true(row.low == 0 && row.high == 0);
        assert_true(moments_of(kiln_select(of(net, "3.weight"), 0, 8)).std > 0.5);
    }
    assert_f32(of(net, "4.running_var"), 1, 1, 1);
    assert_f32(of(net, "4.bias"), 0, 0, 0);
    expect_uniform(of(net, "5.in_proj_weight"), sqrt(6.0 / (180 + 60)));
    assert_true(moments_of(of(net, "5.in_proj_bias")).std == 0);
    assert_true(moments_of(of(net, "5.out_proj.bias")).std == 0);
    expect_uniform(of(net, "5.out_proj.weight"), 1 / sqrt(60));
    expect_uniform(of(net, "6.weight_ih_l1"), 0.2);
    expect_uniform(of(net, "6.bias_hh_l0"), 0.2);
    kiln_module_free(net);
}

static void test_initialisers(void **state)
{
    (void)state;
    kiln_scope {
        kiln_tensor *t =
            kiln_requires_grad(kiln_tensor_new(NULL, KILN_F32, KILN_SHAPE(60, 50, 3), kiln_default_device()), true);
        kiln_manual_seed(3);
        assert_ptr_equal(kiln_init_uniform(t, 2, 4), t);
        moments m = moments_of(t);
        assert_true(m.low >= 2 && m.high <= 4 && m.low < 2.1 && m.high > 3.9);
        kiln_init_normal(t, 1, 0.5);
        expect_normal(t, 1, 0.5);
        expect_uniform(kiln_init_xavier_uniform(t, 2), 2 * sqrt(6.0 / (150 + 180)));
        expect_normal(kiln_init_xavier_normal(t, 1), 0, sqrt(2.0 / (150 + 180)));
        expect_uniform(kiln_init_kaiming_uniform(t, 0, false), sqrt(6.0 / 150));
        expect_uniform(kiln_init_kaiming_uniform(t, sqrt(5), true), sqrt(1.0 / 180));
        expect_normal(kiln_init_kaiming_normal(t, 0.2, false), 0, sqrt(2 / 1.04 / 150));
        m = moments_of(kiln_init_constant(t, -3));
        assert_true(m.low == -3 && m.high == -3);
        /* Cut at one and two standard deviations: the moments of that distribution. */
        m = moments_of(kiln_init_trunc_normal(t, 0.5, 2, -1.5, 4.5));
        assert_true(m.low >= -1.5 && m.high <= 4.5 && m.low < -1.45 && m.high > 4.3);
        double a = -1, b = 2, z = (erf(b * M_SQRT1_2) - erf(a * M_SQRT1_2)) / 2;
        double pa = exp(-a * a / 2) / sqrt(2 * M_PI), pb = exp(-b * b / 2) / sqrt(2 * M_PI);
        double mean = (pa - pb) / z, variance = 1 + (a * pa - b * pb) / z - mean * mean;
        assert_near(m.mean, 0.5 + 2 * mean, 0.05);
        assert_near(m.std, 2 * sqrt(variance), 0.05);
        expect_normal(kiln_init_trunc_normal(t, 0, 0.02, -2, 2), 0, 0.02); /* bounds a hundred deviations away */
        /* The same seed gives the same numbers. */
        float first[10];
        kiln_manual_seed(3);
        kiln_init_normal(t, 0, 1);
        memcpy(first, core_f32(kiln_slice(kiln_flatten(t, 0, -1), 0, 0, 10, 1)), sizeof first);
        kiln_manual_seed(3);
        kiln_init_normal(t, 0, 1);
        assert_memory_equal(first, core_f32(kiln_slice(kiln_flatten(t, 0, -1), 0, 0, 10, 1)), sizeof first);
        assert_null(kiln_init_xavier_uniform(kiln_select(kiln_select(t, 0, 0), 0, 0), 1));
        expect_error(KILN_E_SHAPE, "init_xavier_uniform", "[3]");
        assert_null(kiln_init_normal(NULL, 0, 1));
        expect_error(KILN_E_ARGUMENT, "init_normal", "NULL");
        assert_null(kiln_init_normal(t, 0, -1));
        expect_error(KILN_E_ARGUMENT, "init_normal", "std");
        assert_null(kiln_init_uniform(t, 1, 0));
        expect_error(KILN_E_ARGUMENT, "init_uniform", "low");
        assert_null(kiln_init_trunc_normal(t, 0, 1, 1, 1));
        expect_error(KILN_E_ARGUMENT, "init_trunc_normal", "low");
    }
}

static void expect_orthonormal(kiln_tensor *t, int64_t rows, int64_t columns, double gain)
{
    kiln_tensor *m = kiln_reshape(t, KILN_SHAPE(rows, columns)), *mt = kiln_transpose(m, 0, 1);
    const float *product = core_f32(rows <= columns ? kiln_matmul(m, mt) : kiln_matmul(mt, m));
    int64_t n = rows <= columns ? rows : columns;
    for (int64_t i = 0; i < n * n; i++)
        if (!(fabs(product[i] - (i % (n + 1) ? 0 : gain * gain)) < 1e-5))
            fail_msg("the product's element %lld is %g", (long long)i, product[i]);
}

static void test_orthogonal(void **state)
{
    (void)state;
    kiln_scope {
        static const int64_t shapes[][3] = {{20, 20, 1}, {12, 5, 6}, {40, 7, 2}};
        for (int i = 0; i < 3; i++) {
            kiln_tensor *t = kiln_tensor_new(NULL, KILN_F32, 3, shapes[i], kiln_default_device());
            assert_ptr_equal(kiln_init_orthogonal(t, 1.5), t);
            expect_orthonormal(t, shapes[i][0], shapes[i][1] * shapes[i][2], 1.5);
        }
        assert_null(kiln_init_orthogonal(kiln_zeros(KILN_SHAPE(3), KILN_F32), 1));
        expect_error(KILN_E_SHAPE, "init_orthogonal", "[3]");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        core_test(test_default_values),
        core_test(test_initialisers),
        core_test(test_orthogonal),
    };
    return CORE_MAIN(tests);
}
