/* What the tests of the core share: small tensors in and out, errors that are expected, and a main that runs a file's
 * tests on every device of support/devices.h. The device under test is the default device while a test runs; after each
 * test all device memory must have been given back. */
#ifndef KILN_TEST_CORE_H
#define KILN_TEST_CORE_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "kiln.h"
#include "plan/draft.h"
#include "support/devices.h"
#include "support/skip.h"

/* Scopes nested in one function each declare a variable of the same name. */
#pragma GCC diagnostic ignored "-Wshadow"

enum { CORE_MAX = 4096 }; /* elements core_f32 and core_f64 can read */

/* Handles are used again only after so many others that new ones are allocated until then: has that behind it. */
static inline void core_use_up_handles(void)
{
    for (int i = 0; i < 2048; i++)
        kiln_release(kiln_tensor_new(NULL, KILN_F32, 0, NULL, KILN_CPU));
}

/* KILN_EAGER=1: what is about kernels, plans and replays does not apply. */
static inline bool core_eager(void)
{
    const char *eager = getenv("KILN_EAGER");
    return eager && *eager && strcmp(eager, "0") != 0;
}

#define skip_if_eager()                                                                                                \
    do {                                                                                                               \
        if (core_eager())                                                                                              \
            skip_because("eager: about kernels, plans or replays");                                                    \
    } while (0)

/* A tensor of the default device filled with a fixed sequence of numbers between -1 and 1 that `seed` chooses. */
static inline kiln_tensor *core_data(int seed, int ndim, const int64_t *shape)
{
    static float data[1 << 20];
    int64_t n = 1;
    for (int d = 0; d < ndim; d++)
        n *= shape[d];
    assert_true(n <= (int64_t)(sizeof data / sizeof *data));
    uint32_t x = 2654435761u * (uint32_t)(seed + 1);
    for (int64_t i = 0; i < n; i++) {
        x = x * 1664525u + 1013904223u;
        data[i] = (float)(int32_t)x / 2147483648.0f;
    }
    return kiln_tensor_new(data, KILN_F32, ndim, shape, kiln_default_device());
}

/* All elements of an f32 tensor in one of a few rotating buffers. */
static inline const float *core_f32(kiln_tensor *t)
{
    static float buffers[8][CORE_MAX];
    static int turn;
    float *out = buffers[turn++ % 8];
    if (!t || kiln_numel(t) > CORE_MAX || !kiln_read(t, out, (size_t)kiln_numel(t) * sizeof *out))
        fail_msg("cannot be read: %s", kiln_last_error()->message);
    return out;
}

/* Compares an f32 tensor with numbers, to the bit. */
#define assert_f32(t, ...)                                                                                             \
    core_assert_f32(t, (const float[]){__VA_ARGS__}, sizeof((const float[]){__VA_ARGS__}) / sizeof(float), #t,         \
                    __FILE__, __LINE__)
static inline void core_assert_f32(kiln_tensor *t, const float *want, size_t n, const char *what, const char *file,
                                   int line)
{
    const float *got = core_f32(t);
    if (kiln_numel(t) != (int64_t)n) {
        print_error("%s has %lld elements instead of %zu\n", what, (long long)kiln_numel(t), n);
        _fail(file, line);
    }
    for (size_t i = 0; i < n; i++)
        if (!(got[i] == want[i] || (isnan(got[i]) && isnan(want[i])))) {
            print_error("%s[%zu] is %.9g instead of %.9g\n", what, i, got[i], want[i]);
            _fail(file, line);
        }
}

/* Compares a number with another to a relative tolerance. */
#define assert_near(a, b, tolerance)                                                                                   \
    do {                                                                                                               \
        double near_a_ = (a), near_b_ = (b);                                                                           \
        if (!(fabs(near_a_ - near_b_) <= (tolerance) * (1 + fabs(near_b_))))                                           \
            fail_msg("%s is %.17g instead of %.17g", #a, near_a_, near_b_);                                            \
    } while (0)

/* The pending error must have this code and mention the words; it is cleared. */
static inline void core_expect(kiln_code code, const char *operation, const char *word, const char *file, int line)
{
    kiln_error e = *kiln_last_error();
    kiln_error_clear();
    if (e.code == code && (!operation || !strcmp(e.operation, operation)) && e.message[0] &&
        (!word || strstr(e.message, word)))
        return;
    print_error("expected: %s in %s (%s); got: %s in %s: %s\n", kiln_code_name(code), operation ? operation : "*",
                word ? word : "", kiln_code_name(e.code), e.operation, e.message);
    _fail(file, line);
}
#define expect_error(code, operation, word) core_expect(code, operation, word, __FILE__, __LINE__)

/* ---- Devices ---- */

static inline bool core_on(const char *kind)
{
    return !strncmp(kiln_device_name(kiln_default_device()), kind, strlen(kind));
}

/* Limits that bound small networks: a GPU's memory comes in larger pieces, and its context takes some of it. */
#define skip_if_cuda()                                                                                                 \
    do {                                                                                                               \
        if (core_on("cuda"))                                                                                           \
            skip_because("a GPU's memory comes in pieces larger than these networks need");                            \
    } while (0)

/* What the device under test and another one have computed: the same bits where both use the CPU's kernels, else the
 * same up to rounding. */
static inline void core_assert_alike(const float *got, const float *want, size_t n)
{
    bool exact = has_cpu_bits(kiln_default_device());
    for (size_t i = 0; i < n; i++)
        if (!(exact ? got[i] == want[i] : fabsf(got[i] - want[i]) <= 1e-5f * (1 + fabsf(want[i]))))
            fail_msg("element %zu is %.9g instead of %.9g", i, got[i], want[i]);
}

/* ---- Running ---- */

static inline uint64_t core_memory(void)
{
    kiln_memory_stats stats = {0};
    assert_true(kiln_memory_get_stats(kiln_default_device(), &stats));
    return stats.in_use;
}

static inline int core_before(void **state)
{
    kiln_error_clear();
    return memory_before(state);
}

static inline int core_after(void **state)
{
    kiln_scope_leave(&(kiln_scope_mark){.depth = 1}); /* a test that failed has jumped out of its scopes */
    int bad = !kiln_ok();
    kiln_step {
    }                                        /* what a scope has left unread is run off */
    kiln_device_wait(kiln_default_device()); /* what went wrong there is this test's, not the next one's */
    kiln_report(stderr);
    kiln_error_clear();
    return memory_after(state) || bad;
}

#define core_test(f) cmocka_unit_test_setup_teardown(f, core_before, core_after)

/* Passes for what is large take what is small, too, where the environment says so; true then. */
static inline bool core_passes(void)
{
    const char *chunk = getenv("KILN_TEST_CHUNK"), *pitch = getenv("KILN_TEST_PITCH");
    if (chunk)
        kiln_chunk_above(atoll(chunk));
    if (pitch)
        kiln_pitch_from(atoll(pitch));
    return chunk || pitch;
}

#define CORE_MAIN(tests) core_main(tests, sizeof(tests) / sizeof *(tests))
static inline int core_main(const struct CMUnitTest *tests, size_t n)
{
    kiln_device devices[TEST_DEVICES];
    int ndevices = devices_under_test(devices), failed = 0;
    core_passes();
    for (int i = 0; i < ndevices; i++) {
        if (!kiln_set_default_device(devices[i]))
            return kiln_report(stderr);
        failed += _cmocka_run_group_tests(kiln_device_name(devices[i]), tests, n, NULL, NULL);
    }
    return test_exit(failed);
}

/* That two lists hold the same tensors, to the bit. */
static inline void core_same_tensors(kiln_params a, kiln_params b)
{
    assert_int_equal(a.count, b.count);
    for (int64_t i = 0; i < a.count; i++) {
        char x[CORE_MAX], y[CORE_MAX];
        size_t bytes = (size_t)kiln_numel(a.tensors[i]) * kiln_dtype_size(kiln_dtype_of(a.tensors[i]));
        assert_true(bytes <= sizeof x);
        assert_true(kiln_read(a.tensors[i], x, bytes) && kiln_read(b.tensors[i], y, bytes));
        if (memcmp(x, y, bytes) != 0)
            fail_msg("%s differs", a.names[i]);
    }
}

#endif
