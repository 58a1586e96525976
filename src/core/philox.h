/* Random numbers by counting: Philox4x32-10 turns (key, counter) into four 32-bit words, so that element i of a tensor
 * depends on (seed, offset, i) alone, whoever computes it. Plain C that CUDA and OpenCL compile as well: define
 * KILN_PHILOX_FN there (say, as `static __device__ inline`), and switch floating-point contraction off for equal bits.
 *
 *   counter   the 64-bit number offset + block, in words 0 and 1
 *   f32       uniform: 24 bits of one word, 4 elements a block        normal: 4 elements a block
 *   f64       uniform: 53 bits of two words, 2 elements a block       normal: the same numbers as f32, not rounded
 */
#ifndef KILN_CORE_PHILOX_H
#define KILN_CORE_PHILOX_H

#include "core/philox_words.h"
#ifdef KILN_PHILOX_HOST
#include <math.h>
#endif

KILN_PHILOX_FN void kiln_philox(uint64_t seed, uint64_t block, uint32_t *w)
{
    const uint32_t counter[4] = {(uint32_t)block, (uint32_t)(block >> 32), 0, 0};
    kiln_philox_words((uint32_t)seed, (uint32_t)(seed >> 32), counter, w);
}

/* Uniform in [0, 1). */
KILN_PHILOX_FN float kiln_uniform_f32(uint32_t w)
{
    return (float)(int32_t)(w >> 8) * 0x1p-24f;
}

KILN_PHILOX_FN double kiln_uniform_f64(uint32_t low, uint32_t high)
{
    return (double)(int64_t)(((uint64_t)high << 32 | low) >> 11) * 0x1p-53;
}

/* log((w + 1/2) / 2^32), by the series of 2·artanh((m - 1) / (m + 1)) on m in [√½, √2). */
KILN_PHILOX_FN double kiln_log_of_word(uint32_t w)
{
    union {
        double f;
        uint64_t u;
    } m;
    m.f = (double)w + 0.5;
    uint64_t up = m.u + (0x3FF0000000000000u - 0x3FE6A09E667F3BCDu); /* carries into the exponent from √½ on */
    double exponent = (double)((int32_t)(up >> 52) - 1023 - 32);
    m.u = (up & 0x000FFFFFFFFFFFFFu) + 0x3FE6A09E667F3BCDu;
    double f = m.f - 1.0, s = f / (m.f + 1.0), z = s * s, p = 1.0 / 23;
    p = p * z + 1.0 / 21;
    p = p * z + 1.0 / 19;
    p = p * z + 1.0 / 17;
    p = p * z + 1.0 / 15;
    p = p * z + 1.0 / 13;
    p = p * z + 1.0 / 11;
    p = p * z + 1.0 / 9;
    p = p * z + 1.0 / 7;
    p = p * z + 1.0 / 5;
    p = p * z + 1.0 / 3;
    return exponent * 0.6931471805599453 + (2.0 * s + 2.0 * s * z * p);
}

/* Two normal numbers from two words by Box and Muller, with nothing but + - * / and a square root, each rounded
 * correctly everywhere: all devices get the same bits. */
KILN_PHILOX_FN void kiln_normal_pair(uint32_t u, uint32_t v, double *z0, double *z1)
{
    double r = sqrt(-2.0 * kiln_log_of_word(u));
    uint32_t quarter = (v + 0x20000000u) >> 30;                                        /* the nearest quarter turn */
    double x = (double)(int32_t)(v - (quarter << 30)) * (6.283185307179586 * 0x1p-32); /* the angle beyond it */
    double q = x * x;
    double c = 1.0 / 20922789888000.0, s = 1.0 / 355687428096000.0;
    c = c * q - 1.0 / 87178291200.0;
    c = c * q + 1.0 / 479001600.0;
    c = c * q - 1.0 / 3628800.0;
    c = c * q + 1.0 / 40320.0;
    c = c * q - 1.0 / 720.0;
    c = c * q + 1.0 / 24.0;
    c = c * q - 0.5;
    c = c * q + 1.0;
    s = s * q - 1.0 / 1307674368000.0;
    s = s * q + 1.0 / 6227020800.0;
    s = s * q - 1.0 / 39916800.0;
    s = s * q + 1.0 / 362880.0;
    s = s * q - 1.0 / 5040.0;
    s = s * q + 1.0 / 120.0;
    s = s * q - 1.0 / 6.0;
    s = s * q * x + x;
    double cosine = (quarter & 1) ? -s : c, sine = (quarter & 1) ? c : s;
    double sign = (quarter & 2) ? -r : r;
    *z0 = sign * cosine;
    *z1 = sign * sine;
}

#endif
