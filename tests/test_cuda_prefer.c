/* Which of the ways that cuBLASLt offers is taken: offers made by hand, in orders as it gave them on an H200; no
 * device. The plugin keeps its symbols to itself, so the file is compiled in. */
#ifdef KILN_TEST_CUDA
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "device/cuda/gemm/prefer.c"

enum {
    T192 = CUBLASLT_MATMUL_TILE_192x192,
    T256 = CUBLASLT_MATMUL_TILE_256x128,
    T160 = CUBLASLT_MATMUL_TILE_128x160,
    T128 = CUBLASLT_MATMUL_TILE_128x128,
    OTHER = CUBLASLT_MATMUL_TILE_192x128,
    MOST = 4
};

static kiln_cuda_product product(int64_t m, int64_t n, int64_t k, bool bias)
{
    return (kiln_cuda_product){.dtype = KILN_BF16, .m = m, .n = n, .k = k, .batch = 1, .bias = bias};
}

/* The tile that is taken of those up to the first 0, none of which sums in parts. */
static uint32_t taken(const kiln_cuda_product *p, const uint32_t *tiles)
{
    kiln_cuda_offer offers[MOST] = {{0}};
    int n = 0;
    for (; n < MOST && tiles[n]; n++)
        offers[n] = (kiln_cuda_offer){tiles[n], 1};
    return offers[kiln_cuda_prefer(p, 90, offers, n)].tile;
}

static void test_what_was_measured(void **state)
{
    (void)state;
    static const struct {
        int64_t m, n, k;
        bool bias;
        uint32_t offered[MOST], taken;
    } all[] = {
        {32768, 2304, 768, true, {T192, T256, T160, T128}, T128},
        {32768, 768, 3072, true, {T256, OTHER, T128}, T128},
        {32768, 3072, 768, false, {T192, T256, T160}, T160},
        {16384, 1152, 384, false, {T192, OTHER, T128}, T128},
        {32768, 768, 768, false, {T256, T128, T160}, T160},
        {16384, 1536, 384, false, {T256, OTHER, T128}, T128},
        {32768, 768, 2304, false, {T256, T160, T128}, T256},
        {16384, 384, 1536, false, {OTHER, T128}, OTHER},
        {32768, 2304, 768, true, {T192, T256}, T192},
        {16640, 768, 192, false, {T192}, T192},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        kiln_cuda_product p = product(all[i].m, all[i].n, all[i].k, all[i].bias);
        if (taken(&p, all[i].offered) != all[i].taken)
            fail_msg("product %zu: tile %u instead of %u", i, (unsigned)taken(&p, all[i].offered),
                     (unsigned)all[i].taken);
    }
}

/* What was not measured takes what comes first. */
static void test_what_was_not(void **state)
{
    (void)state;
    static const uint32_t tiles[MOST] = {T192, T128};
    const kiln_cuda_product large = product(32768, 2304, 768, true);
    assert_int_equal(taken(&large, tiles), T128);
    kiln_cuda_product p = large;
    p.dtype = KILN_F32;
    assert_int_equal(taken(&p, tiles), T192);
    p.dtype = KILN_F16;
    assert_int_equal(taken(&p, tiles), T192);
    p = large;
    p.batch = 2;
    assert_int_equal(taken(&p, tiles), T192);
    p = large;
    p.bias = 0;
    p.sum = 1;
    assert_int_equal(taken(&p, tiles), T192);
    p = product(1024, 768, 768, true); /* fewer tiles than multiprocessors */
    assert_int_equal(taken(&p, tiles), T192);
    const kiln_cuda_offer in_parts[] = {{T192, 1}, {T128, 4}}, first_in_parts[] = {{T192, 4}, {T128, 1}},
                          plain[] = {{T192, 1}, {T128, 1}};
    assert_int_equal(kiln_cuda_prefer(&large, 90, in_parts, 2), 0);
    assert_int_equal(kiln_cuda_prefer(&large, 90, first_in_parts, 2), 0);
    assert_int_equal(kiln_cuda_prefer(&large, 80, plain, 2), 0);
    assert_int_equal(kiln_cuda_prefer(&large, 90, plain, 2), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_what_was_measured), cmocka_unit_test(test_what_was_not)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
#include <stdio.h>

int main(void)
{
    printf("skipped: the CUDA plugin was not built\n");
    return 77;
}
#endif
