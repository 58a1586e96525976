/* The order of samples: for each (seed, epoch) a shuffle of 0 … n-1 that takes no memory, so that any place of any
 * epoch can be asked for at once, by the host and by a kernel alike. Plain C that CUDA compiles as well: define
 * KILN_PHILOX_FN there, as for core/philox.h.
 *
 * It is a Feistel network: each round changes one half of the number by a keyed function of the other, which can be
 * undone, so that the whole is one to one on 0 … 2^bits-1. Numbers beyond n are sent through again until one falls
 * below it ("cycle walking"): that keeps it one to one on 0 … n-1, and takes less than two tries on average. */
#ifndef KILN_CORE_ORDER_H
#define KILN_CORE_ORDER_H

#include "core/philox_words.h"
#ifdef KILN_PHILOX_HOST
#include <stdbool.h>
#endif

/* With few bits a round can do little: after eight, not all orders of five samples are equally likely. */
enum { KILN_ORDER_ROUNDS = 24, KILN_ORDER_USUAL_ROUNDS = 8, KILN_ORDER_FEW_BITS = 10 };

/* What depends on the number of samples alone. */
typedef struct kiln_order_size {
    int64_t n;
    int32_t low_bits, high_bits; /* the two halves of a number below 2^(low + high) >= n */
    int32_t rounds;              /* 0: samples stay where they are */
} kiln_order_size;

typedef struct kiln_order {
    kiln_order_size size;
    uint32_t key[KILN_ORDER_ROUNDS];
} kiln_order;

KILN_PHILOX_FN kiln_order_size kiln_order_size_of(int64_t n, bool shuffle)
{
    int bits = 0;
    while (n > 1 && (uint64_t)(n - 1) >> bits)
        bits++;
    kiln_order_size size;
    size.n = n;
    size.low_bits = bits / 2;
    size.high_bits = bits - bits / 2;
    size.rounds = !shuffle || n < 2 ? 0 : bits > KILN_ORDER_FEW_BITS ? KILN_ORDER_USUAL_ROUNDS : KILN_ORDER_ROUNDS;
    return size;
}

/* The keys of rounds i … i+3, i a multiple of four. */
KILN_PHILOX_FN void kiln_order_keys(uint64_t seed, uint64_t epoch, int i, uint32_t *key)
{
    const uint32_t counter[4] = {(uint32_t)epoch, (uint32_t)(epoch >> 32), (uint32_t)i, 0x6f726472};
    kiln_philox_words((uint32_t)seed, (uint32_t)(seed >> 32), counter, key);
}

KILN_PHILOX_FN void kiln_order_init(kiln_order *order, int64_t n, bool shuffle, uint64_t seed, int64_t epoch)
{
    order->size = kiln_order_size_of(n, shuffle);
    for (int i = 0; i < order->size.rounds; i += 4)
        kiln_order_keys(seed, (uint64_t)epoch, i, order->key + i);
}

/* Every bit of the result depends on every bit of both. */
KILN_PHILOX_FN uint64_t kiln_order_scramble(uint64_t half, uint32_t key)
{
    uint64_t x = (half + ((uint64_t)key << 32 | key)) * 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 32) * 0xD6E8FEB86659FD93u;
    return x >> 32;
}

KILN_PHILOX_FN uint64_t kiln_order_pass(const kiln_order_size *o, const uint32_t *key, uint64_t number)
{
    const uint64_t one = 1, low_mask = (one << o->low_bits) - 1, high_mask = (one << o->high_bits) - 1;
    uint64_t low = number & low_mask, high = number >> o->low_bits;
    for (int i = 0; i < o->rounds; i += 2) {
        high ^= kiln_order_scramble(low, key[i]) & high_mask;
        low ^= kiln_order_scramble(high, key[i + 1]) & low_mask;
    }
    return high << o->low_bits | low;
}

/* Which sample stands at `position`, 0 … n-1, by keys that lie anywhere. */
KILN_PHILOX_FN int64_t kiln_order_find(const kiln_order_size *size, const uint32_t *key, int64_t position)
{
    if (size->rounds == 0)
        return position;
    uint64_t number = (uint64_t)position;
    do
        number = kiln_order_pass(size, key, number);
    while (number >= (uint64_t)size->n);
    return (int64_t)number;
}

KILN_PHILOX_FN int64_t kiln_order_at(const kiln_order *order, int64_t position)
{
    return kiln_order_find(&order->size, order->key, position);
}

#endif
