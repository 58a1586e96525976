/* A Feistel network: each round changes one half of the number by a keyed function of the other, which can be undone,
 * so that the whole is one to one on 0 … 2^bits-1. Numbers beyond n are sent through again until one falls below it
 * ("cycle walking"): that keeps it one to one on 0 … n-1, and takes less than two tries on average. */
#include "data/order.h"
#include "core/philox.h"

/* With few bits a round can do little: after eight, not all orders of five samples are equally likely. */
enum { ROUNDS = 8, FEW_BITS = 10 };

void kiln_order_init(kiln_order *order, int64_t n, bool shuffle, uint64_t seed, int64_t epoch)
{
    int bits = n < 2 ? 0 : 64 - __builtin_clzll((unsigned long long)(n - 1));
    *order = (kiln_order){.n = n, .shuffle = shuffle, .low_bits = bits / 2, .high_bits = bits - bits / 2};
    order->rounds = bits > FEW_BITS ? ROUNDS : KILN_ORDER_ROUNDS;
    for (uint32_t i = 0; i < (uint32_t)order->rounds; i += 4) {
        const uint32_t counter[4] = {(uint32_t)epoch, (uint32_t)((uint64_t)epoch >> 32), i, 0x6f726472};
        kiln_philox_words((uint32_t)seed, (uint32_t)(seed >> 32), counter, order->key + i);
    }
}

/* Every bit of the result depends on every bit of both. */
static inline uint64_t scramble(uint64_t half, uint32_t key)
{
    uint64_t x = (half + ((uint64_t)key << 32 | key)) * 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 32) * 0xD6E8FEB86659FD93u;
    return x >> 32;
}

static uint64_t pass(const kiln_order *o, uint64_t number)
{
    uint64_t low_mask = (UINT64_C(1) << o->low_bits) - 1, high_mask = (UINT64_C(1) << o->high_bits) - 1;
    uint64_t low = number & low_mask, high = number >> o->low_bits;
    for (int i = 0; i < o->rounds; i += 2) {
        high ^= scramble(low, o->key[i]) & high_mask;
        low ^= scramble(high, o->key[i + 1]) & low_mask;
    }
    return high << o->low_bits | low;
}

int64_t kiln_order_at(const kiln_order *order, int64_t position)
{
    if (!order->shuffle || order->n < 2)
        return position;
    uint64_t number = (uint64_t)position;
    do
        number = pass(order, number);
    while (number >= (uint64_t)order->n);
    return (int64_t)number;
}
