/* How products of small matrices are cut into tiles on CUDA: arithmetic that needs no device. The plugin keeps its
 * symbols to itself, so the file is compiled in. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "device/cuda/common/costs.c"
#include "device/cuda/gemm/tile.c"

#define h200 measured[0]

enum { MOST_SHARED = 163 << 10 }; /* a block's, where devices have least (8.0) */

static const int64_t sizes[] = {1, 3, 8, 10, 31, 32, 37, 64, 128, 256, 300, 784, 1024};
enum { SIZES = sizeof sizes / sizeof *sizes };

static void test_tiles_cover_the_product(void **state)
{
    (void)state;
    for (int i = 0; i < SIZES * SIZES * SIZES; i++) {
        int64_t m = sizes[i % SIZES], n = sizes[i / SIZES % SIZES], k = sizes[i / SIZES / SIZES];
        kiln_cuda_sizes e = {m, n, k, 3, i % 2, &h200};
        kiln_cuda_tiling t, again;
        if (!kiln_cuda_tiling_of(e, &t))
            continue;
        assert_true(t.down * t.rows >= m && (t.down - 1) * t.rows < m);
        assert_true(t.across * t.cols >= n && (t.across - 1) * t.cols < n);
        assert_int_equal(t.tiles, 3 * t.across * t.down * t.splits);
        assert_true(t.slices * KILN_CUDA_TILE_SLICE(k, t.slices) >= k);
        assert_true(t.splits * KILN_CUDA_TILE_SPLIT(k, t.splits) >= k &&
                    (t.splits - 1) * KILN_CUDA_TILE_SPLIT(k, t.splits) < k);
        assert_true(t.shared <= MOST_SHARED);
        assert_true(kiln_cuda_tiling_of(e, &again));
        assert_int_equal(again.rows * 10000 + again.cols, t.rows * 10000 + t.cols);
        assert_int_equal(again.slices * 1000 + again.splits, t.slices * 1000 + t.splits);
    }
}

/* Operands are rounded only where that is allowed. */
static void test_tensor_cores_are_asked_for(void **state)
{
    (void)state;
    for (int i = 0; i < SIZES * SIZES * SIZES; i++) {
        kiln_cuda_sizes e = {sizes[i % SIZES], sizes[i / SIZES % SIZES], sizes[i / SIZES / SIZES], 1, false, &h200};
        kiln_cuda_tiling t;
        if (kiln_cuda_tiling_of(e, &t))
            assert_false(by_tensor_cores(t.rows, t.cols, t.slices) || t.splits > 1);
    }
    kiln_cuda_tiling t;
    assert_true(kiln_cuda_tiling_of((kiln_cuda_sizes){1024, 256, 784, 1, true, &h200}, &t));
    assert_true(by_tensor_cores(t.rows, t.cols, t.slices));
    assert_int_equal(t.splits, 1);
    assert_int_equal(kiln_cuda_tiling_partials(&t, (kiln_cuda_sizes){1024, 256, 784, 1, true, &h200}), 0);
}

/* A long k with a small result is cut between blocks, so that all have something to do. */
static void test_long_products_are_cut(void **state)
{
    (void)state;
    kiln_cuda_sizes e = {128, 256, 4096, 1, true, &h200};
    kiln_cuda_tiling t;
    assert_true(kiln_cuda_tiling_of(e, &t));
    assert_true(t.splits > 1 && t.tiles <= h200.blocks && t.tiles > h200.blocks / 2);
    assert_int_equal(kiln_cuda_tiling_partials(&t, e), (size_t)t.splits * 128 * 256 * sizeof(float));
    assert_true(!kiln_cuda_tiling_within(e, t.tiles, &t) || t.splits == 1);
}

static void test_tiles_have_kernels(void **state)
{
    (void)state;
#define SAME(r, c, s) (h200.tiles[i].rows == (r) && h200.tiles[i].cols == (c) && h200.tiles[i].slices == (s)) ||
    for (int i = 0; i < KILN_CUDA_TILE_COSTS; i++)
        assert_true(KILN_CUDA_TILES(SAME) KILN_CUDA_TENSOR_TILES(SAME) false);
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
        assert_true(kiln_cuda_tiling_of((kiln_cuda_sizes){known[i].m, known[i].n, known[i].k, 1, false, &h200}, &t));
        assert_int_equal(t.rows, known[i].rows);
        assert_int_equal(t.cols, known[i].cols);
    }
}

static void test_what_is_left_to_the_library(void **state)
{
    (void)state;
    kiln_cuda_tiling t;
    static const kiln_cuda_sizes taken = {32, 256, 784, 1, false, &h200},
                                 left[] = {{1024, 1024, 1024, 1, false, &h200}, /* large */
                                           {8192, 8192, 1024, 1, true, &h200},
                                           {4, 4, 1 << 21, 1, false, &h200}, /* long */
                                           {32, 32, 0, 1, true, &h200},      /* nothing to sum */
                                           {INT64_MAX, INT64_MAX, 8, 1, true, &h200}};
    assert_true(kiln_cuda_tiling_of(taken, &t));
    for (size_t i = 0; i < sizeof left / sizeof *left; i++)
        assert_false(kiln_cuda_tiling_of(left[i], &t));
}

/* Products that are made by tiles only where that keeps a chain together. */
static void test_large_ones_are_marked(void **state)
{
    (void)state;
    static const kiln_cuda_sizes large[] = {{1024, 1024, 1024, 1, true, &h200},
                                            {8192, 256, 784, 1, true, &h200},
                                            {16640, 192, 192, 1, true, &h200}}; /* two of the largest tiles a block */
    kiln_cuda_tiling t = {.large = true};
    assert_true(kiln_cuda_tiling_of((kiln_cuda_sizes){1024, 256, 784, 1, true, &h200}, &t));
    assert_false(t.large);
    for (size_t i = 0; i < sizeof large / sizeof *large; i++) {
        assert_true(kiln_cuda_tiling_of(large[i], &t));
        assert_true(t.large);
    }
}

/* A GPU that nobody measured: the nearest kind's costs, its own blocks. */
static void test_other_devices(void **state)
{
    (void)state;
    kiln_cuda_costs other = kiln_cuda_costs_of(80, 40), none = kiln_cuda_costs_of(120, 100000);
    assert_int_equal(other.blocks, 40);
    assert_int_equal(none.blocks, KILN_CUDA_MOST_BLOCKS);
    assert_memory_equal(other.tiles, h200.tiles, sizeof other.tiles);
    assert_int_equal(kiln_cuda_costs_of(90, h200.blocks).blocks, h200.blocks);
    kiln_cuda_sizes e = {128, 256, 4096, 1, true, &other};
    kiln_cuda_tiling few, many;
    assert_true(kiln_cuda_tiling_of(e, &few));
    e.costs = &h200;
    assert_true(kiln_cuda_tiling_of(e, &many));
    assert_true(few.tiles <= 40 || few.splits == 1); /* no more splits than there are blocks for */
    assert_true(few.tiles < many.tiles);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tiles_cover_the_product),
        cmocka_unit_test(test_tiles_have_kernels),
        cmocka_unit_test(test_tensor_cores_are_asked_for),
        cmocka_unit_test(test_long_products_are_cut),
        cmocka_unit_test(test_other_devices),
        cmocka_unit_test(test_tiles_fit_the_measurements),
        cmocka_unit_test(test_what_is_left_to_the_library),
        cmocka_unit_test(test_large_ones_are_marked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
