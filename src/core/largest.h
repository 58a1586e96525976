/* Looking for the largest size that fits, where what it takes grows almost evenly with it: a batch and its memory. Each
 * try costs a plan, so the next one is where a straight line through those before it says that nothing is left. */
#ifndef KILN_CORE_LARGEST_H
#define KILN_CORE_LARGEST_H

#include <stdbool.h>
#include <stdint.h>

typedef struct kiln_largest {
    int64_t most;    /* no size beyond it */
    int64_t inexact; /* near enough: less than one part in that many below the answer; 0: exactly */
    int64_t low;     /* the largest that is known to fit; 0: none */
    int64_t high;    /* the smallest that is known not to; 0: none */
    double low_spare, high_spare;
    int64_t before; /* fits as well, and is smaller than low; 0: none */
    double before_spare;
    int turns; /* between low and high */
} kiln_largest;

/* Where between two sizes nothing is left, if what is left goes evenly from low_spare to high_spare, which is negative.
 * Never one of the two. */
static inline int64_t kiln_largest_between(int64_t low, double low_spare, int64_t high, double high_spare)
{
    double share = low_spare / (low_spare - high_spare);
    int64_t guess = low + (int64_t)(share * (double)(high - low));
    return guess <= low ? low + 1 : guess >= high ? high - 1 : guess;
}

/* How far a size may be from the answer, which is less than 1 away where it is small. */
static inline int64_t kiln_largest_slack(const kiln_largest *l)
{
    return 1 + (l->inexact ? l->low / l->inexact : 0);
}

/* Beyond all that fits: where the line through the last two has nothing left; eight times as much where there is no
 * line. `low` itself if nothing beyond it would fit. */
static inline int64_t kiln_largest_beyond(const kiln_largest *l)
{
    double each = l->before ? (l->before_spare - l->low_spare) / (double)(l->low - l->before) : 0;
    double guess = each > 0 ? (double)l->low + l->low_spare / each : 8 * (double)l->low;
    return guess < (double)l->most ? (int64_t)guess : l->most;
}

/* The next size to try; 0: low is the answer. */
static inline int64_t kiln_largest_next(kiln_largest *l)
{
    if (!l->low)
        return l->high == 1 || l->most < 1 ? 0 : l->high == 2 || l->most < 2 ? 1 : 2;
    if (!l->high) {
        int64_t beyond = kiln_largest_beyond(l);
        return beyond - l->low >= (beyond < l->most ? kiln_largest_slack(l) : 1) ? beyond : 0;
    }
    if (l->high - l->low <= kiln_largest_slack(l))
        return 0;
    return l->turns++ % 4 == 3 ? l->low + (l->high - l->low) / 2
                               : kiln_largest_between(l->low, l->low_spare, l->high, l->high_spare);
}

/* What is left with a size that was tried; negative: it does not fit. */
static inline void kiln_largest_tell(kiln_largest *l, int64_t size, double spare)
{
    if (spare < 0) {
        l->high = size;
        l->high_spare = spare;
        return;
    }
    l->before = l->low;
    l->before_spare = l->low_spare;
    l->low = size;
    l->low_spare = spare;
}

#endif
