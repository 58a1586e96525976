/* How products of small matrices are cut into tiles on CUDA: arithmetic that needs no device. The plugin keeps its
 * symbols to itself, so the file is compiled in. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "device/cuda/tile.c"

enum { MOST_SHARED = 163 << 10 }; /* a block's, where devices have least (8.0) */

static const int64_t sizes[] = {1, 3, 8, 10, 31, 32, 37, 64, 128, 256, 300, 784, 1024};
enum { SIZES = sizeof sizes / sizeof *sizes };

static void test_tiles_cover_the_product(void **state)
{
    (void)state;
    for (int i = 0; i < SIZES * SIZES * SIZES; i++) {
        int64_t m = sizes[i % SIZES], n = sizes[i / SIZES % SIZES], k = sizes[i / SIZES / SIZES];
        kiln_cuda_tiling t, again;
        if (!kiln_cuda_tiling_of(m, n, k, 3, &t))
            continue;
        assert_true(t.down * t.rows >= m && (t.down - 1) * t.rows < m);
        assert_true(t.across * t.cols >= n && (t.across - 1) * t.cols < n);
        assert_int_equal(t.tiles, 3 * t.across * t.down);
        assert_true(t.slices * KILN_CUDA_TILE_SLICE(k, t.slices) >= k);
        assert_true(t.shared <= MOST_SHARED);
        assert_true(kiln_cuda_tiling_of(m, n, k, 3, &again));
        assert_int_equal(again.rows * 10000 + again.cols, t.rows * 10000 + t.cols);
        assert_int_equal(again.slices, t.slices);
    }
}

static void test_tiles_have_kernels(void **state)
{
    (void)state;
#define SAME(r, c, s) (tiles[i].rows == (r) && tiles[i].cols == (c) && tiles[i].slices == (s)) ||
    for (int i = 0; i < TILES; i++)
        assert_true(KILN_CUDA_TILES(SAME) false);
}

/* Products of a step of a small network: few tiles where that costs little, all blocks where k is long. */
static void test_tiles_fit_the_measurements(void **state)
{
    (void)state;
    static const struct {
        int64_t m, n, k;
        int32_t rows, cols;
    } known[] = {{32, 256, 784, 8, 8},  {32, 128, 256, 8, 8},  {32, 10, 128, 8, 8},    {32, 128, 10, 16, 16},
                 {32, 256, 128, 16, 8}, {10, 128, 32, 16, 16}, {128, 256, 32, 16, 32}, {256, 784, 32, 32, 64}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        kiln_cuda_tiling t;
        assert_true(kiln_cuda_tiling_of(known[i].m, known[i].n, known[i].k, 1, &t));
        assert_int_equal(t.rows, known[i].rows);
        assert_int_equal(t.cols, known[i].cols);
    }
}

static void test_what_is_left_to_the_library(void **state)
{
    (void)state;
    kiln_cuda_tiling t;
    assert_true(kiln_cuda_tiling_of(32, 256, 784, 1, &t));
    assert_false(kiln_cuda_tiling_of(1024, 1024, 1024, 1, &t));        /* large */
    assert_false(kiln_cuda_tiling_of(4, 4, 1 << 21, 1, &t));           /* long, with few elements */
    assert_false(kiln_cuda_tiling_of(32, 32, 0, 1, &t));               /* nothing to sum */
    assert_false(kiln_cuda_tiling_of(INT64_MAX, INT64_MAX, 8, 1, &t)); /* more than can be counted */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tiles_cover_the_product),
        cmocka_unit_test(test_tiles_have_kernels),
        cmocka_unit_test(test_tiles_fit_the_measurements),
        cmocka_unit_test(test_what_is_left_to_the_library),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
