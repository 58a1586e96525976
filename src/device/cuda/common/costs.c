/* Measured costs, a row a kind of GPU. A new one: run bench/cuda_tiles there, draw lines through its times, add a row.
 */
#include "device/cuda/common/costs.h"
#include <stddef.h>

static const kiln_cuda_costs measured[] = {
    {.measured = "H200, bench/cuda_tiles",
     .capability = 90,
     .blocks = 132,
     .barrier = 700,
     .tiny = 600,
     .fold = 1200,
     .store = 300,
     .little = 32 * 1024,
     .bytes_a_nanosecond = 30,
     .most_work = 48 << 20,
     .most_tensor_work = 2000 << 20,
     .room = 4500,
     .most_time = 9000,
     .most_tensor_time = 15000,
     .most_large_time = 40000,
     .sum_splits = 5000,
     .summed = 2000,
     .tiles = {{8, 8, 128, 400, 1500},
               {16, 8, 64, 380, 2350},
               {16, 16, 32, 300, 5900},
               {16, 32, 16, 280, 12000},
               {16, 32, 8, 600, 8200},
               {32, 32, 8, 700, 12500},
               {32, 64, 4, 800, 22000},
               {64, 64, 2, 900, 41000},
               {32, 32, 16, 1300, 5000},
               {64, 32, 8, 1800, 6700},
               {64, 64, 4, 1800, 12600},
               {128, 64, 2, 1800, 21600},
               {128, 128, 2, 2500, 22000}}},
};
enum { KINDS = sizeof measured / sizeof *measured };

static int apart(int a, int b)
{
    return a < b ? b - a : a - b;
}

/* By capability; blocks stay all on the device at once, so there are as many as multiprocessors. */
kiln_cuda_costs kiln_cuda_costs_of(int capability, int multiprocessors)
{
    const kiln_cuda_costs *nearest = &measured[0];
    for (size_t i = 1; i < KINDS; i++)
        if (apart(measured[i].capability, capability) < apart(nearest->capability, capability))
            nearest = &measured[i];
    kiln_cuda_costs costs = *nearest;
    costs.blocks = multiprocessors < 1                       ? 1
                   : multiprocessors > KILN_CUDA_MOST_BLOCKS ? KILN_CUDA_MOST_BLOCKS
                                                             : multiprocessors;
    return costs;
}
