/* The CUDA plugin that computes nothing (tests/fake/lowering.c, launches.c), in the place of the real one. */
#ifndef KILN_TEST_FAKE_H
#define KILN_TEST_FAKE_H

#include <stdbool.h>

/* Puts its folder before all others; false if it was not built. Before the first device is asked for. */
bool fake_cuda_wanted(void);

/* A function of it, by name; NULL as long as it was not opened. */
void (*fake_cuda_function(const char *name))(void);

#endif
