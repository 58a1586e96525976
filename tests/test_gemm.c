/* The CPU's matrix products in every type, size and layout, exactly: operands are small integers, whose sums no type of
 * computing rounds. Workspaces have bytes behind them that nobody may touch. Results must not depend on the number of
 * threads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "core/half.h"
#include "core/parallel.h"
#include "device/cpu/gemm/gemm.h"
#include "kiln.h"

/* ctest: name=plain env=KILN_ISA=plain */
/* ctest: name=avx2 env=KILN_ISA=avx2 */
/* ctest: name=avx512 env=KILN_ISA=avx512 */
/* ctest: name=avx512bf16 env=KILN_ISA=avx512bf16 */

enum { GUARD = 64 };

typedef struct shape {
    int64_t m, n, k, batch;
    bool a_turned, b_turned;
    int64_t gap; /* elements behind each row or column */
} shape;

static uint32_t state;

static int small(void)
{
    state = state * 1664525u + 1013904223u;
    return (int)(state >> 24) % 9 - 4;
}

static void put(void *to, int64_t at, kiln_dtype dtype, double x)
{
    switch (dtype) {
    case KILN_F64: ((double *)to)[at] = x; break;
    case KILN_F32: ((float *)to)[at] = (float)x; break;
    case KILN_F16: ((uint16_t *)to)[at] = kiln_f32_to_f16((float)x); break;
    default: ((uint16_t *)to)[at] = kiln_f32_to_bf16((float)x);
    }
}

static double get(const void *from, int64_t at, kiln_dtype dtype)
{
    switch (dtype) {
    case KILN_F64: return ((const double *)from)[at];
    case KILN_F32: return (double)((const float *)from)[at];
    case KILN_F16: return (double)kiln_f16_to_f32(((const uint16_t *)from)[at]);
    default: return (double)kiln_bf16_to_f32(((const uint16_t *)from)[at]);
    }
}

static double rounded(double x, kiln_dtype dtype)
{
    char one[8];
    put(one, 0, dtype, x);
    return get(one, 0, dtype);
}

/* What an epilogue saw; for halves it sees sums. */
typedef struct seen {
    double *c;
    int64_t m, n;
    bool f64;
} seen;

static void look(void *context, int64_t batch, int64_t row, int64_t col, int64_t rows, int64_t cols, void *block,
                 int64_t stride, int worker)
{
    (void)worker;
    seen *s = context;
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++)
            s->c[(batch * s->m + row + i) * s->n + col + j] =
                s->f64 ? ((double *)block)[i * stride + j] : (double)((float *)block)[i * stride + j];
}

static void *filled(int64_t count, kiln_dtype dtype)
{
    void *data = malloc((size_t)(count + 1) * kiln_dtype_size(dtype));
    assert_non_null(data);
    for (int64_t i = 0; i < count; i++)
        put(data, i, dtype, small());
    return data;
}

static void run_guarded(const kiln_gemm *g)
{
    size_t bytes = kiln_gemm_workspace(g, kiln_threads());
    char *space = aligned_alloc(64, (bytes + GUARD + 63) / 64 * 64 + 64);
    assert_non_null(space);
    memset(space, 0xff, bytes + GUARD); /* NaNs, if anybody reads what nobody wrote */
    kiln_gemm_run(g, space);
    for (size_t i = 0; i < GUARD; i++)
        assert_int_equal((unsigned char)space[bytes + i], 0xff);
    free(space);
}

static void check(shape s, kiln_dtype dtype)
{
    int64_t a_line = (s.a_turned ? s.m : s.k) + s.gap, b_line = (s.b_turned ? s.k : s.n) + s.gap;
    int64_t a_size = a_line * (s.a_turned ? s.k : s.m), b_size = b_line * (s.b_turned ? s.n : s.k);
    void *a = filled(a_size * s.batch, dtype), *b = filled(b_size * s.batch, dtype);
    int64_t a_at[3] = {0, a_size, 2 * a_size}, b_at[3] = {0, b_size, 2 * b_size}, cells = s.m * s.n * s.batch;
    char *c = malloc((size_t)(cells + 1) * kiln_dtype_size(dtype));
    double *sums = calloc((size_t)cells + 1, sizeof *sums);
    seen there = {sums, s.m, s.n, dtype == KILN_F64};
    kiln_gemm g = {.m = s.m, .n = s.n, .k = s.k, .batch = s.batch, .dtype = dtype, .a = a, .b = b, .c = c};
    g.a_row = s.a_turned ? 1 : a_line;
    g.a_col = s.a_turned ? a_line : 1;
    g.b_row = s.b_turned ? 1 : b_line;
    g.b_col = s.b_turned ? b_line : 1;
    g.c_row = s.n;
    g.c_batch = s.m * s.n;
    g.a_batch = a_at;
    g.b_batch = b_at;
    g.store = 1;
    run_guarded(&g);
    g.store = 0;
    g.c = NULL;
    g.epilogue = look;
    g.epilogue_context = &there;
    run_guarded(&g);
    for (int64_t i = 0; i < cells; i++) {
        int64_t q = i / (s.m * s.n), row = i / s.n % s.m, col = i % s.n;
        double sum = 0;
        for (int64_t p = 0; p < s.k; p++)
            sum += get(a, a_at[q] + row * g.a_row + p * g.a_col, dtype) *
                   get(b, b_at[q] + p * g.b_row + col * g.b_col, dtype);
        if (get(c, i, dtype) != rounded(sum, dtype) || sums[i] != sum)
            fail_msg("%s [%lld, %lld] · [%lld, %lld]%s%s, gap %lld: element %lld is %g and %g instead of %g",
                     kiln_dtype_name(dtype), (long long)s.m, (long long)s.k, (long long)s.k, (long long)s.n,
                     s.a_turned ? ", a turned" : "", s.b_turned ? ", b turned" : "", (long long)s.gap, (long long)i,
                     get(c, i, dtype), sums[i], sum);
    }
    free(a);
    free(b);
    free(c);
    free(sums);
}

static const kiln_dtype dtypes[] = {KILN_BF16, KILN_F16, KILN_F32, KILN_F64};

/* Sizes around those of tiles, blocks and steps. */
static void test_sizes(void **state_)
{
    (void)state_;
    static const int64_t sides[] = {1, 5, 12, 16, 17, 31, 33, 70, 170}, depths[] = {0, 1, 2, 3, 31, 33, 100, 1100};
    enum { SIDES = sizeof sides / sizeof *sides, DEPTHS = sizeof depths / sizeof *depths };
    int number = 0;
    for (int i = 0; i < SIDES; i++)
        for (int j = 0; j < SIDES; j++)
            for (int l = 0; l < DEPTHS; l++)
                for (int t = 0; t < 4; t++, number++) {
                    if (sides[i] * sides[j] * depths[l] > 1000000 && number % 7)
                        continue;
                    shape s = {sides[i], sides[j], depths[l], 1 + number % 3 / 2, t & 1, t >> 1, number % 5 / 3 * 3};
                    check(s, dtypes[number % 4]);
                    check(s, KILN_BF16);
                }
}

/* Large enough to be packed for all tasks, and with few tiles and a long k, which is split. */
static void test_large(void **state_)
{
    (void)state_;
    static const shape shapes[] = {{300, 520, 300, 1, false, true, 0}, {520, 300, 257, 1, true, false, 1},
                                   {17, 20, 9000, 1, false, false, 0}, {40, 1300, 1030, 1, false, true, 0},
                                   {33, 200, 64, 3, false, false, 0},  {1, 3000, 800, 1, false, false, 0},
                                   {3000, 1, 800, 1, false, true, 0},  {600, 64, 2200, 1, true, true, 0}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (size_t t = 0; t < sizeof dtypes / sizeof *dtypes; t++)
            check(shapes[i], dtypes[t]);
}

/* Sums that do round come out the same for any number of threads. */
static void test_threads(void **state_)
{
    (void)state_;
    enum { M = 150, N = 230, K = 1500 };
    static uint16_t a[M * K], b[K * N], c[2][M * N];
    for (int i = 0; i < M * K; i++)
        a[i] = kiln_f32_to_bf16((float)small() / 3);
    for (int i = 0; i < K * N; i++)
        b[i] = kiln_f32_to_bf16((float)small() / 7);
    int before = kiln_get_num_threads();
    for (int t = 0; t < 2; t++) {
        kiln_gemm g = {.m = M, .n = N, .k = K, .batch = 1, .dtype = KILN_BF16, .a = a, .b = b, .c = c[t]};
        g.a_row = K;
        g.a_col = g.b_col = g.store = 1;
        g.b_row = g.c_row = N;
        kiln_set_num_threads(t ? 3 : 1);
        run_guarded(&g);
    }
    kiln_set_num_threads(before);
    assert_memory_equal(c[0], c[1], sizeof c[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_sizes), cmocka_unit_test(test_large),
                                       cmocka_unit_test(test_threads)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
