/* The order of samples: for each (seed, epoch) a shuffle of 0 … n-1 that takes no memory, so that any place of any
 * epoch can be asked for at once. */
#ifndef KILN_DATA_ORDER_H
#define KILN_DATA_ORDER_H

#include <stdbool.h>
#include <stdint.h>

enum { KILN_ORDER_ROUNDS = 24 };

typedef struct kiln_order {
    int64_t n;
    bool shuffle;
    int low_bits, high_bits; /* the two halves of a number below 2^(low + high) >= n */
    int rounds;
    uint32_t key[KILN_ORDER_ROUNDS];
} kiln_order;

void kiln_order_init(kiln_order *order, int64_t n, bool shuffle, uint64_t seed, int64_t epoch);

/* Which sample stands at `position`, 0 … n-1. */
int64_t kiln_order_at(const kiln_order *order, int64_t position);

#endif
