/* Which devices tests run on, and what they leave behind on any device. */
#ifndef KILN_TEST_DEVICES_H
#define KILN_TEST_DEVICES_H

#include "kiln.h"

enum { TEST_DEVICES = 8, TEST_SKIPPED = 77 /* ctest says "Skipped" */ };

/* The devices of KILN_TEST_DEVICES ("cpu,cuda:1"); without it the CPU, sim:0 where the plugin is there, and cuda:0
 * where there is a GPU. One that is not there is named with the reason; with KILN_TEST_WHOLE=1 there are none then: the
 * others have been tested elsewhere. KILN_TEST_ELSEWHERE=cuda leaves GPUs out where no devices are named. */
int devices_under_test(kiln_device devices[TEST_DEVICES]);

/* Whether it computes with the CPU's kernels: then its results have the same bits. */
bool has_cpu_bits(kiln_device device);

/* What main returns: not 0 after failures, TEST_SKIPPED when a device of KILN_TEST_DEVICES was not there. */
int test_exit(int failed);

/* Around each test: all memory it took from any device must have been given back to the device's pool, by tensors and
 * by steps, and the pool, the arena of steps included, must be able to give all of it back to the device. */
int memory_before(void **state);
int memory_after(void **state);

#endif
