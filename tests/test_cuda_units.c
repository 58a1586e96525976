/* How the blocks of a chain's kernel share the units of a wave (chain/parameters.h): arithmetic that needs no device.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>
#include "device/cuda/chain/parameters.h"

enum { MOST_BLOCKS = 140, MOST_UNITS = 450 };

/* As generated kernels do it: blockIdx.x and gridDim.x are unsigned. */
#define EACH_UNIT(u, block, blocks, units)                                                                             \
    for (int64_t u = block, step_ = KILN_CUDA_FIRST_STEP(block, blocks); u < units;                                    \
         u += step_, step_ = KILN_CUDA_NEXT_STEP(step_, blocks))

static void test_every_unit_is_done_once(void **state)
{
    (void)state;
    for (unsigned blocks = 1; blocks <= MOST_BLOCKS; blocks++)
        for (int64_t units = 1; units < MOST_UNITS; units += 1 + units / 40) {
            int done[MOST_UNITS] = {0};
            for (unsigned block = 0; block < blocks; block++)
                EACH_UNIT(u, block, blocks, units)
            done[u]++;
            for (int64_t u = 0; u < units; u++)
                assert_int_equal(done[u], 1);
        }
}

/* With units that come longest first, a block's second one is the shorter the longer its first is. */
static void test_rounds_turn_back(void **state)
{
    (void)state;
    for (unsigned block = 0; block < 132; block++) {
        int64_t taken[4], n = 0;
        EACH_UNIT(u, block, 132u, 4 * 132)
        taken[n++] = u;
        assert_int_equal(n, 4);
        assert_int_equal(taken[0], block);
        assert_int_equal(taken[1], 2 * 132 - 1 - block);
        assert_int_equal(taken[2], 2 * 132 + block);
        assert_int_equal(taken[3], 4 * 132 - 1 - block);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_unit_is_done_once),
                                       cmocka_unit_test(test_rounds_turn_back)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
