/* Devices: how they are named and found, moving tensors between them, and that nothing is ever done on another device
 * than the one that was asked for. The simulated devices stand for all that are not the host. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <cmocka.h>
#include "support/skip.h"
#include "support/train.h"
#include "tensor/tensor.h"

/* ctest: name=eager env=KILN_EAGER=1 */

static kiln_device sim0, sim1;

static int find_devices(void **state)
{
    (void)state;
    sim0 = kiln_device_parse("sim");
    sim1 = kiln_device_parse("sim:1");
    return sim0 < 0 || sim1 < 0 || sim0 == sim1;
}

static int clear(void **state)
{
    (void)state;
    kiln_error_clear();
    return 0;
}

static void expect_error(kiln_code code, const char *const *words)
{
    const kiln_error *e = kiln_last_error();
    assert_int_equal(e->code, code);
    for (; *words; words++)
        if (!strstr(e->message, *words) && !strstr(e->hint, *words) && !strstr(e->operation, *words))
            fail_msg("\"%s\" is not in: %s: %s (%s)", *words, e->operation, e->message, e->hint);
    kiln_error_clear();
}
#define EXPECT_ERROR(code, ...) expect_error(code, (const char *const[]){__VA_ARGS__, NULL})

/* ---- Names ---- */

static void test_names(void **state)
{
    (void)state;
    assert_int_equal(kiln_device_parse("cpu"), KILN_CPU);
    assert_int_equal(kiln_device_parse("cpu:0"), KILN_CPU);
    assert_int_equal(kiln_device_parse("sim"), kiln_device_parse("sim:0"));
    assert_string_equal(kiln_device_name(KILN_CPU), "cpu");
    assert_string_equal(kiln_device_name(sim0), "sim:0");
    assert_string_equal(kiln_device_name(sim1), "sim:1");
    assert_string_equal(kiln_device_name(KILN_NO_DEVICE), "none");
    assert_string_equal(kiln_device_name(12345), "none");
    assert_true(kiln_device_parse("auto") >= 0);
    assert_int_equal(kiln_device_parse("auto"), kiln_device_auto());
    assert_int_not_equal(kiln_device_auto(), sim0); /* a simulated device is never the best one */
    assert_true(kiln_ok());
}

static void test_bad_names(void **state)
{
    (void)state;
    static const char *const nonsense[] = {"gpu",    "cuda1", "sim:",      "sim:x", "sim:1x",
                                           "sim:-1", ":0",    "simulator", "CPU"};
    for (size_t i = 0; i < sizeof nonsense / sizeof *nonsense; i++) {
        assert_int_equal(kiln_device_parse(nonsense[i]), KILN_NO_DEVICE);
        EXPECT_ERROR(KILN_E_ARGUMENT, nonsense[i], "cuda:1");
    }
    assert_int_equal(kiln_device_parse(""), KILN_NO_DEVICE);
    EXPECT_ERROR(KILN_E_ARGUMENT, "device");
    assert_int_equal(kiln_device_parse(NULL), KILN_NO_DEVICE);
    EXPECT_ERROR(KILN_E_ARGUMENT, "device");
    assert_int_equal(kiln_device_parse("cpu:1"), KILN_NO_DEVICE);
    EXPECT_ERROR(KILN_E_DEVICE, "cpu:1", "auto");
    assert_int_equal(kiln_device_parse("sim:99"), KILN_NO_DEVICE);
    EXPECT_ERROR(KILN_E_DEVICE, "sim:99", "2 sim devices", "auto");
    assert_int_equal(kiln_device_parse("sim:99999999999999999999"), KILN_NO_DEVICE);
    EXPECT_ERROR(KILN_E_DEVICE, "sim:9999");
}

/* Where there is no plugin or no such hardware, the error says why, and where the plugin was looked for. */
static void test_absent_kind(void **state)
{
    (void)state;
    static const char *const kinds[] = {"cuda", "opencl"};
    int checked = 0;
    for (int i = 0; i < 2; i++) {
        char why[512] = "", path[64];
        if (kiln_device_count(kinds[i], why, sizeof why) > 0)
            continue;
        checked++;
        assert_true(strlen(why) > 10);
        assert_int_equal(kiln_device_parse(kinds[i]), KILN_NO_DEVICE);
        snprintf(path, sizeof path, "libkiln-%s.so", kinds[i]);
        if (strstr(why, "not installed"))
            EXPECT_ERROR(KILN_E_DEVICE, kinds[i], path, "/");
        else
            EXPECT_ERROR(KILN_E_DEVICE, kinds[i]);
    }
    if (!checked)
        skip_because("every kind of device is there");
}

static void test_counts(void **state)
{
    (void)state;
    char why[128] = "unchanged";
    assert_int_equal(kiln_device_count("cpu", NULL, 0), 1);
    assert_int_equal(kiln_device_count("sim", why, sizeof why), 2);
    assert_string_equal(why, "");
    assert_int_equal(kiln_device_count("abacus", why, sizeof why), 0);
    assert_non_null(strstr(why, "abacus"));
    assert_int_equal(kiln_device_count(NULL, why, sizeof why), 0);
    assert_int_equal(kiln_device_count("cuda", why, 4),
                     kiln_device_count("cuda", NULL, 0)); /* a short buffer is fine */
    assert_true(strlen(why) < 4);
    assert_true(kiln_ok());
}

static void test_describe(void **state)
{
    (void)state;
    kiln_device_info info;
    assert_true(kiln_device_describe(KILN_CPU, &info));
    assert_true(strlen(info.name) > 0 && info.memory_total > 0 && info.threads >= 1 && strlen(info.features) > 0);
    assert_true(kiln_device_describe(sim1, &info));
    assert_non_null(strstr(info.name, "1"));
    assert_int_equal(info.memory_total, (uint64_t)1 << 30);
    assert_true(info.memory_free <= info.memory_total);
    assert_true(kiln_device_describe(sim0, NULL));
    assert_true(kiln_ok());
    assert_false(kiln_device_describe(KILN_NO_DEVICE, &info));
    EXPECT_ERROR(KILN_E_DEVICE, "none");
    assert_false(kiln_device_describe(sim0 + 77, &info));
    EXPECT_ERROR(KILN_E_DEVICE, "sim:77");
    assert_false(kiln_device_wait(99 << 8));
    EXPECT_ERROR(KILN_E_DEVICE, "not there");
}

/* ---- The default device ---- */

static kiln_device device_of_fresh(void)
{
    kiln_device device = KILN_NO_DEVICE;
    kiln_scope
        device = kiln_device_of(kiln_zeros(KILN_SHAPE(2), KILN_F32));
    return device;
}

static void leave_by_return(void)
{
    kiln_on_device (sim1)
        return;
}

static void inner_scope(void)
{
    kiln_on_device (sim1)
        assert_int_equal(device_of_fresh(), sim1);
}

static void test_default_device(void **state)
{
    (void)state;
    assert_int_equal(kiln_default_device(), KILN_CPU);
    kiln_on_device (sim0) {
        assert_int_equal(device_of_fresh(), sim0);
        inner_scope();
        assert_int_equal(device_of_fresh(), sim0);
        leave_by_return();
        assert_int_equal(kiln_default_device(), sim0);
    }
    assert_int_equal(device_of_fresh(), KILN_CPU);
    int rounds = 0;
    while (kiln_next_notice())
        ;
    for (int i = 0; i < 3; i++, rounds++)
        kiln_on_device (sim1)
            break; /* leaves the braces of kiln_on_device, not the loop */
    assert_int_equal(rounds, 3);
    assert_non_null(strstr(kiln_next_notice(), "kiln_on_device")); /* which is said, once */
    assert_null(kiln_next_notice());
    assert_int_equal(kiln_default_device(), KILN_CPU);
    assert_true(kiln_set_default_device(sim0));
    assert_int_equal(device_of_fresh(), sim0);
    assert_true(kiln_set_default_device(KILN_CPU));
    assert_true(kiln_ok());
    assert_false(kiln_set_default_device(KILN_NO_DEVICE));
    EXPECT_ERROR(KILN_E_DEVICE, "none");
    assert_int_equal(kiln_default_device(), KILN_CPU);
}

/* In the braces of a device that is not there nothing is made elsewhere. */
static void test_absent_default(void **state)
{
    (void)state;
    kiln_on_device (kiln_device_parse("sim:99")) {
        EXPECT_ERROR(KILN_E_DEVICE, "sim:99");
        assert_null(kiln_zeros(KILN_SHAPE(2), KILN_F32));
        EXPECT_ERROR(KILN_E_DEVICE, "no device");
        assert_null(kiln_of_f32(((float[]){1, 2}), 2));
        EXPECT_ERROR(KILN_E_DEVICE, "none");
    }
    assert_int_equal(device_of_fresh(), KILN_CPU);
    assert_true(kiln_ok());
}

/* ---- Moving ---- */

static void expect_bytes(kiln_tensor *t, const void *expected, size_t bytes)
{
    char *out = malloc(bytes + 1);
    assert_true(kiln_read(t, out, bytes));
    assert_memory_equal(out, expected, bytes);
    free(out);
}

static void test_to_all_dtypes(void **state)
{
    (void)state;
    kiln_device devices[] = {KILN_CPU, sim0, sim1};
    for (int dtype = 0; dtype < KILN_DTYPES; dtype++)
        for (int from = 0; from < 3; from++)
            for (int to = 0; to < 3; to++)
                kiln_scope {
                    unsigned char data[6 * 8];
                    size_t bytes = 6 * kiln_dtype_size((kiln_dtype)dtype);
                    for (size_t i = 0; i < bytes; i++) /* any bits, but bools are 0 or 1 */
                        data[i] = dtype == KILN_BOOL ? i % 2 : (unsigned char)(i * 37 + 11);
                    kiln_tensor *t = kiln_tensor_new(data, (kiln_dtype)dtype, KILN_SHAPE(2, 3), devices[from]);
                    kiln_tensor *moved = kiln_to(t, devices[to]);
                    assert_non_null(moved);
                    assert_int_equal(kiln_device_of(moved), devices[to]);
                    assert_int_equal(kiln_dtype_of(moved), dtype);
                    assert_true(from != to || moved == t);
                    expect_bytes(moved, data, bytes);
                    expect_bytes(t, data, bytes);
                }
    assert_true(kiln_ok());
}

static void test_to_views(void **state)
{
    (void)state;
    kiln_device devices[] = {KILN_CPU, sim0, sim1};
    float data[24], column[4] = {2, 8, 14, 20}, swapped[24];
    for (int i = 0; i < 24; i++)
        data[i] = (float)i;
    for (int i = 0; i < 24; i++)
        swapped[i] = data[i % 4 * 6 + i / 4];
    for (int from = 0; from < 3; from++)
        for (int to = 0; to < 3; to++)
            kiln_scope {
                kiln_tensor *t = kiln_tensor_new(data, KILN_F32, KILN_SHAPE(4, 6), devices[from]);
                expect_bytes(kiln_to(kiln_select(t, 1, 2), devices[to]), column, sizeof column);
                expect_bytes(kiln_to(kiln_transpose(t, 0, 1), devices[to]), swapped, sizeof swapped);
                expect_bytes(kiln_to(kiln_slice(t, 0, 1, 3, 1), devices[to]), data + 6, 12 * sizeof *data);
                expect_bytes(
                    kiln_to(kiln_select(kiln_expand(kiln_unsqueeze(t, 0), KILN_SHAPE(2, -1, -1)), 0, 1), devices[to]),
                    data, sizeof data);
                kiln_tensor *empty = kiln_to(kiln_slice(t, 0, 2, 2, 1), devices[to]);
                assert_int_equal(kiln_numel(empty), 0);
                assert_int_equal(kiln_device_of(empty), devices[to]);
                kiln_tensor *scalar =
                    kiln_to(kiln_sum_all(kiln_mul_scalar(t, 2)), devices[to]); /* pending when moved */
                assert_int_equal(kiln_ndim(scalar), 0);
                assert_true(kiln_item(scalar) == 552);
            }
    assert_true(kiln_ok());
    kiln_scope {
        kiln_tensor *t = kiln_zeros(KILN_SHAPE(2), KILN_F32);
        assert_null(kiln_to(t, KILN_NO_DEVICE));
        EXPECT_ERROR(KILN_E_DEVICE, "none");
        assert_null(kiln_to(NULL, sim0));
        EXPECT_ERROR(KILN_E_ARGUMENT, "NULL");
    }
}

/* A tensor that was assigned to but not computed yet moves with its new values; the original can be changed after. */
static void test_to_after_assign(void **state)
{
    (void)state;
    kiln_scope {
        kiln_tensor *t = kiln_tensor_new(NULL, KILN_F32, KILN_SHAPE(3), sim0);
        assert_true(kiln_assign(kiln_slice(t, 0, 1, 3, 1), kiln_to(kiln_scalar(4, KILN_F32), sim0)));
        kiln_tensor *there = kiln_to(t, sim1);
        assert_true(kiln_write(t, ((float[]){7, 8, 9}), 12));
        expect_bytes(there, ((float[]){0, 4, 4}), 12);
        expect_bytes(t, ((float[]){7, 8, 9}), 12);
    }
    assert_true(kiln_ok());
}

static kiln_tensor *square_more(kiln_tensor *t, int i, int round)
{
    return kiln_add_scalar(kiln_mul(t, t), -1 - i * 0.5 * (round % 2));
}

static void on_cpu_alone(int i, float *out)
{
    kiln_scope {
        kiln_tensor *c = kiln_tensor_new(((float[]){1, 2, 3}), KILN_F32, KILN_SHAPE(3), KILN_CPU);
        for (int round = 0; round < 10; round++)
            c = square_more(c, i, round);
        assert_true(kiln_read(c, out, 3 * sizeof *out));
    }
}

static void test_two_at_once(void **state)
{
    (void)state;
    kiln_scope {
        kiln_device devices[] = {sim0, sim1, KILN_CPU};
        kiln_tensor *t[3];
        for (int i = 0; i < 3; i++)
            t[i] = kiln_tensor_new(((float[]){1, 2, 3}), KILN_F32, KILN_SHAPE(3), devices[i]);
        for (int round = 0; round < 10; round++) /* interleaved: each operation is on another device than the last */
            for (int i = 0; i < 3; i++)
                t[i] = square_more(t[i], i, round);
        float here[3], there[3];
        for (int i = 0; i < 3; i++) {
            on_cpu_alone(i, here);
            assert_true(kiln_read(t[i], there, sizeof there));
            assert_memory_equal(here, there, sizeof here);
        }
    }
    assert_true(kiln_ok());
}

/* ---- Gradients across devices ---- */

/* Two layers on two devices; the gradients of all four parameters and of the input, one after the other. */
static void two_layers(kiln_device first, kiln_device second, float *grads)
{
    kiln_scope {
        uint32_t seed = 3;
        float w[2][20], b[2][5], x[12];
        for (int i = 0; i < 20; i++)
            w[0][i] = test_number(&seed), w[1][i] = test_number(&seed);
        for (int i = 0; i < 5; i++)
            b[0][i] = test_number(&seed), b[1][i] = test_number(&seed);
        for (int i = 0; i < 12; i++)
            x[i] = test_number(&seed);
        kiln_tensor *leaves[5] = {kiln_tensor_new(w[0], KILN_F32, KILN_SHAPE(5, 4), first),
                                  kiln_tensor_new(b[0], KILN_F32, KILN_SHAPE(5), first),
                                  kiln_tensor_new(w[1], KILN_F32, KILN_SHAPE(4, 5), second),
                                  kiln_tensor_new(b[1], KILN_F32, KILN_SHAPE(4), second),
                                  kiln_tensor_new(x, KILN_F32, KILN_SHAPE(3, 4), KILN_CPU)};
        for (int i = 0; i < 5; i++)
            assert_non_null(kiln_requires_grad(leaves[i], true));
        kiln_tensor *h = kiln_tanh(kiln_linear(kiln_to(leaves[4], first), leaves[0], leaves[1]));
        kiln_tensor *y = kiln_linear(kiln_to(h, second), leaves[2], leaves[3]);
        y = kiln_to(kiln_add(y, kiln_to(kiln_to(leaves[4], first), second)), KILN_CPU); /* a second way for x */
        assert_true(kiln_backward(kiln_sum_all(kiln_square(y))));
        for (int i = 0; i < 5; i++) {
            kiln_tensor *g = kiln_grad_of(leaves[i]);
            size_t bytes = (size_t)kiln_numel(leaves[i]) * sizeof(float);
            assert_int_equal(kiln_device_of(g), kiln_device_of(leaves[i]));
            assert_true(kiln_read(g, grads, bytes));
            grads += bytes / sizeof *grads;
        }
    }
    assert_true(kiln_ok());
}

static void test_gradient_across(void **state)
{
    (void)state;
    float one[61], other[61];
    two_layers(KILN_CPU, KILN_CPU, one);
    two_layers(sim0, sim1, other);
    assert_memory_equal(one, other, sizeof one);
    two_layers(sim1, KILN_CPU, other);
    assert_memory_equal(one, other, sizeof one);
}

/* Second derivatives go through a move too. */
static void test_second_gradient_across(void **state)
{
    (void)state;
    kiln_scope {
        kiln_tensor *x = kiln_requires_grad(kiln_tensor_new(((double[]){0.5, 2}), KILN_F64, KILN_SHAPE(2), sim0), true);
        kiln_tensor *there = kiln_to(x, sim1), *g, *gg;
        assert_true(kiln_grad(kiln_sum_all(kiln_mul(kiln_square(there), there)), NULL, &x, 1, &g)); /* 3 x² */
        assert_int_equal(kiln_device_of(g), sim0);
        assert_true(kiln_grad(kiln_sum_all(g), NULL, &x, 1, &gg)); /* 6 x */
        expect_bytes(gg, ((double[]){3, 12}), 16);
    }
    assert_true(kiln_ok());
}

/* ---- Mismatches ---- */

static void test_mismatch(void **state)
{
    (void)state;
    kiln_scope {
        kiln_tensor *x = kiln_zeros(KILN_SHAPE(4, 7), KILN_F32);
        kiln_tensor *w = kiln_set_name(kiln_tensor_new(NULL, KILN_F32, KILN_SHAPE(5, 7), sim1), "net.0.weight");
        kiln_tensor *y = kiln_linear(x, w, NULL);
        assert_null(y);
        EXPECT_ERROR(KILN_E_DEVICE, "linear", "net.0.weight", "operand 1", "cpu", "sim:1", "[4, 7]", "[5, 7]",
                     "move net.0.weight to cpu with kiln_to");
        assert_null(kiln_add(w, x));
        EXPECT_ERROR(KILN_E_DEVICE, "add", "net.0.weight", "operand 2", "cpu", "sim:1",
                     "move operand 2 to sim:1 with kiln_to");
        kiln_tensor *z = kiln_to(x, sim0);
        assert_null(kiln_cat(2, (kiln_tensor *[]){z, kiln_to(x, sim1)}, 0));
        EXPECT_ERROR(KILN_E_DEVICE, "cat", "sim:0", "sim:1", "with kiln_to");
        assert_false(kiln_assign(w, kiln_zeros(KILN_SHAPE(5, 7), KILN_F32)));
        EXPECT_ERROR(KILN_E_DEVICE, "assign", "net.0.weight", "cpu", "sim:1", "kiln_to(");
        assert_null(kiln_cross_entropy(z, kiln_zeros(KILN_SHAPE(4), KILN_I64)));
        EXPECT_ERROR(KILN_E_DEVICE, "sim:0", "cpu", "with kiln_to");
        assert_null(kiln_where(kiln_gt_scalar(x, 0), z, z));
        EXPECT_ERROR(KILN_E_DEVICE, "where", "sim:0", "cpu");
        kiln_tensor *table = kiln_set_name(kiln_tensor_new(NULL, KILN_F32, KILN_SHAPE(9, 2), sim0), "table");
        assert_null(kiln_embedding(table, kiln_zeros(KILN_SHAPE(3), KILN_I64), -1));
        EXPECT_ERROR(KILN_E_DEVICE, "table", "sim:0", "cpu");
        assert_null(kiln_linear(x, kiln_requires_grad(w, true), NULL)); /* data goes to where the parameters are */
        EXPECT_ERROR(KILN_E_DEVICE, "linear", "move operand 1 to sim:1 with kiln_to");
        /* What was right before goes on working. */
        assert_true(kiln_item(kiln_sum_all(kiln_linear(kiln_to(x, sim1), w, NULL))) == 0);
    }
    assert_true(kiln_ok());
}

/* ---- Simulated memory is elsewhere ---- */

static void test_addresses(void **state)
{
    (void)state;
    kiln_scope {
        kiln_tensor *t = kiln_tensor_new(NULL, KILN_F32, KILN_SHAPE(1000), sim0);
        uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
        void *at = (void *)(uintptr_t)(t->storage->address / page * page);
        assert_int_equal(msync(at, page, MS_ASYNC), -1); /* ENOMEM: not mapped */
        kiln_tensor *sum = kiln_add(t, t);
        assert_true(kiln_eval());
        at = (void *)(uintptr_t)(sum->storage->address / page * page);
        assert_int_equal(msync(at, page, MS_ASYNC), -1);
    }
    assert_true(kiln_ok());
}

/* ---- The same bits ---- */

static void test_same_bits(void **state)
{
    (void)state;
    test_net net[3];
    kiln_device devices[] = {KILN_CPU, sim0, sim1};
    for (int i = 0; i < 3; i++)
        assert_true(net_make(&net[i], devices[i], 20, 33, 7, 1));
    for (uint32_t step = 0; step < 20; step++)
        for (int i = 0; i < 3; i++)
            assert_true(net_step(&net[i], 16, step));
    size_t bytes;
    float *expected = net_values(&net[0], &bytes);
    assert_true(net_equals(&net[1], expected));
    assert_true(net_equals(&net[2], expected));
    free(expected);
    for (int i = 0; i < 3; i++)
        net_free(&net[i]);
    assert_true(kiln_ok());
}

/* Random numbers belong to the seed, not to the device, and a mask is made where its tensor is. */
static void test_random_anywhere(void **state)
{
    (void)state;
    static const kiln_dtype dtypes[] = {KILN_F32, KILN_F64, KILN_F16, KILN_BF16};
    for (int d = 0; d < 4; d++) {
        unsigned char here[800], there[800];
        size_t bytes = 100 * kiln_dtype_size(dtypes[d]);
        for (int i = 0; i < 2; i++)
            kiln_scope {
                kiln_manual_seed(5);
                kiln_tensor *x = kiln_to(kiln_ones(KILN_SHAPE(100), dtypes[d]), i ? sim1 : KILN_CPU);
                kiln_tensor *y = kiln_dropout(x, 0.4, true);
                assert_int_equal(kiln_device_of(y), i ? sim1 : KILN_CPU);
                assert_true(kiln_read(y, i ? there : here, bytes));
            }
        assert_memory_equal(here, there, bytes);
    }
    assert_true(kiln_ok());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_names, clear),
        cmocka_unit_test_teardown(test_bad_names, clear),
        cmocka_unit_test_teardown(test_absent_kind, clear),
        cmocka_unit_test_teardown(test_counts, clear),
        cmocka_unit_test_teardown(test_describe, clear),
        cmocka_unit_test_teardown(test_default_device, clear),
        cmocka_unit_test_teardown(test_absent_default, clear),
        cmocka_unit_test_teardown(test_to_all_dtypes, clear),
        cmocka_unit_test_teardown(test_to_views, clear),
        cmocka_unit_test_teardown(test_to_after_assign, clear),
        cmocka_unit_test_teardown(test_two_at_once, clear),
        cmocka_unit_test_teardown(test_gradient_across, clear),
        cmocka_unit_test_teardown(test_second_gradient_across, clear),
        cmocka_unit_test_teardown(test_mismatch, clear),
        cmocka_unit_test_teardown(test_addresses, clear),
        cmocka_unit_test_teardown(test_same_bits, clear),
        cmocka_unit_test_teardown(test_random_anywhere, clear),
    };
    return cmocka_run_group_tests(tests, find_devices, NULL);
}
