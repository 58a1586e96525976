/* Counts that may be large. */
#ifndef KILN_CORE_COUNTS_H
#define KILN_CORE_COUNTS_H

#include <stdint.h>

/* The largest count (of steps, epochs, samples) that is believed where it comes from a file or a caller. Whole numbers
 * up to it are exact in JSON and as doubles, and go on being counted without overflow. */
#define KILN_COUNT_MAX ((int64_t)1 << 53)

/* Figures of work end where 64 bits do: a step of any size can be planned, if not run. */
static inline int64_t kiln_plus(int64_t a, int64_t b)
{
    int64_t sum;
    return __builtin_add_overflow(a, b, &sum) ? INT64_MAX : sum;
}

static inline int64_t kiln_times(int64_t a, int64_t b)
{
    int64_t product;
    return __builtin_mul_overflow(a, b, &product) ? INT64_MAX : product;
}

#endif
