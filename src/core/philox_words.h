/* Philox4x32-10 itself: the words of one block, integers alone. See core/philox.h for what is made of them. */
#ifndef KILN_CORE_PHILOX_WORDS_H
#define KILN_CORE_PHILOX_WORDS_H

#ifndef KILN_PHILOX_FN
#include <stdint.h>
#define KILN_PHILOX_FN static inline
#define KILN_PHILOX_HOST
#endif

/* One block: w[0 … 3] for a key and a counter of four words. */
KILN_PHILOX_FN void kiln_philox_words(uint32_t k0, uint32_t k1, const uint32_t *counter, uint32_t *w)
{
    uint32_t a = counter[0], b = counter[1], c = counter[2], d = counter[3];
    for (int round = 0; round < 10; round++) {
        uint64_t p = (uint64_t)a * 0xD2511F53u, q = (uint64_t)c * 0xCD9E8D57u;
        a = (uint32_t)(q >> 32) ^ b ^ k0;
        c = (uint32_t)(p >> 32) ^ d ^ k1;
        b = (uint32_t)q;
        d = (uint32_t)p;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    w[0] = a;
    w[1] = b;
    w[2] = c;
    w[3] = d;
}

#endif
