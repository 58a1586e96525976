/* Batches of a data set in memory: the order of samples, and how images are augmented, written down a second time, from
 * the papers' descriptions. */
#include "support/ref.h"

/* Philox4x32-10 of Salmon et al.: ten rounds of multiplying two words and swapping, with a key that is bumped. */
static void philox(const uint32_t key[2], uint32_t c[4])
{
    uint64_t bump0 = key[0], bump1 = key[1];
    for (int round = 0; round < 10; round++) {
        uint64_t first = c[0] * (uint64_t)0xD2511F53, second = c[2] * (uint64_t)0xCD9E8D57;
        uint32_t next[4] = {(uint32_t)(second >> 32) ^ c[1] ^ (uint32_t)bump0, (uint32_t)second,
                            (uint32_t)(first >> 32) ^ c[3] ^ (uint32_t)bump1, (uint32_t)first};
        for (int k = 0; k < 4; k++)
            c[k] = next[k];
        bump0 += 0x9E3779B9;
        bump1 += 0xBB67AE85;
    }
}

static uint64_t mangle(uint64_t half, uint64_t key)
{
    uint64_t x = (half + key * 0x100000001) * 0x9E3779B97F4A7C15;
    return ((x ^ (x >> 32)) * 0xD6E8FEB86659FD93) >> 32;
}

/* The sample at `position` of an epoch: an even number of bits or one more in the upper half, 8 rounds or 24. */
static int64_t shuffled(int64_t n, int64_t position, const double *scalars)
{
    uint64_t low_size = 1, high_size = 1, at = (uint64_t)position;
    int bits = 0;
    while (low_size * high_size < (uint64_t)n)
        *(bits++ % 2 ? &low_size : &high_size) *= 2;
    if (n < 2)
        return position;
    do
        for (uint32_t round = 0; round < (bits > 10 ? 8 : 24); round++) {
            const uint32_t key[2] = {(uint32_t)scalars[1], (uint32_t)scalars[2]};
            uint32_t words[4] = {(uint32_t)scalars[3], (uint32_t)scalars[4], round / 4 * 4, 0x6f726472};
            philox(key, words);
            uint64_t low = at % low_size, high = at / low_size;
            if (round % 2)
                low ^= mangle(high, words[round % 4]) % low_size;
            else
                high ^= mangle(low, words[round % 4]) % high_size;
            at = high * low_size + low;
        }
    while (at >= (uint64_t)n);
    return (int64_t)at;
}

/* Which element of an image becomes its element e; -1: none of them. Sample by sample a vertical and a horizontal shift
 * and a mirror are drawn from the first three words. */
static int64_t augmented(const ref_call *c, int ndim, int64_t sample, int64_t e)
{
    const double *scalars = c->attrs.f;
    const int64_t *shape = c->attrs.i + 8, crop = REF_INT(c, 6);
    if (!REF_INT(c, 5) && !crop)
        return e;
    const uint32_t key[2] = {(uint32_t)scalars[1], (uint32_t)scalars[2]};
    uint32_t words[4] = {(uint32_t)sample, (uint32_t)(sample >> 32), (uint32_t)scalars[3],
                         (uint32_t)scalars[4] ^ 0x706f7365};
    philox(key, words);
    int64_t height = shape[ndim - 2], width = shape[ndim - 1], x = e % width, y = e / width % height;
    double choices = (double)(2 * crop + 1);
    if (REF_INT(c, 5) && words[2] >= 0x80000000)
        x = width - 1 - x;
    x += (int64_t)(words[1] / 4294967296.0 * choices) - crop;
    int64_t from = y + (int64_t)(words[0] / 4294967296.0 * choices) - crop;
    bool inside = x >= 0 && x < width && from >= 0 && from < height;
    return inside ? (e / width - y + from) * width + x : -1;
}

static void run_take_samples(ref_call *c)
{
    const ref_tensor *x = c->in[0];
    int ndim = c->attrs.nints - 8;
    kiln_dtype dtype = REF_INT(c, 0) < 0 ? x->dtype : (kiln_dtype)REF_INT(c, 0);
    ref_tensor *out = ref_out(c, 0, dtype, ndim, c->attrs.i + 8);
    int64_t elements = ref_count(ndim - 1, c->attrs.i + 9);
    for (int64_t i = 0; i < out->count; i++) {
        int64_t position = (int64_t)REF_FLOAT(c, 0) + i / elements;
        int64_t sample = REF_INT(c, 4) ? shuffled(REF_INT(c, 1), position, c->attrs.f) : position;
        int64_t e = augmented(c, ndim, sample, i % elements);
        double stored = e < 0 ? 0 : x->data[REF_INT(c, 2) + sample * REF_INT(c, 3) + e];
        out->data[i] = c->in[1] ? c->in[1]->data[(int)stored] : stored;
    }
}

const ref_entry ref_entries_samples[] = {
    {"take_samples", run_take_samples, 0},
    {NULL, NULL, 0},
};
