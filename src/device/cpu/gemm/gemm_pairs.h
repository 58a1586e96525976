/* Packing of bf16 in pairs along k (gemm_kernels.h), with AVX-512: a part of the files of instruction sets that
 * multiply pairs. */
#ifndef KILN_DEVICE_CPU_GEMM_PAIRS_H
#define KILN_DEVICE_CPU_GEMM_PAIRS_H

#include <immintrin.h>
#include <stdbool.h>
#include <string.h>
#include "device/cpu/gemm/gemm_kernels.h"

enum { PAIRS = 16 }; /* in a vector */

typedef struct pair_source { /* element (i, e) is at from[i * along + e * k] */
    const uint16_t *from;
    int64_t along, k;
    int64_t there; /* elements of k that there are */
} pair_source;

static inline __mmask16 first_lanes(int64_t count)
{
    return (__mmask16)(count >= PAIRS ? 0xffff : (1 << count) - 1);
}

static inline uint32_t pair_at(const pair_source *s, int64_t i, int64_t p)
{
    const uint16_t *at = s->from + i * s->along + 2 * p * s->k;
    uint32_t low = 2 * p < s->there ? at[0] : 0, high = 2 * p + 1 < s->there ? at[s->k] : 0;
    return low | high << 16;
}

/* Pair p of rows i … i + count - 1, where rows lie side by side. */
static inline __m512i pairs_across(const pair_source *s, int64_t i, int64_t count, int64_t p)
{
    const uint16_t *at = s->from + i + 2 * p * s->k;
    const __mmask16 lanes = first_lanes(count);
    __m512i low = _mm512_setzero_si512(), high = low;
    if (2 * p < s->there)
        low = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, at));
    if (2 * p + 1 < s->there)
        high = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, at + s->k));
    return _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
}

/* The same where rows lie apart, and so does k. Elements are fetched with the one before them, which is there for all
 * but the first. */
static inline __m512i pairs_apart(const pair_source *s, int64_t i, int64_t count, int64_t p)
{
    const uint16_t *at = s->from + i * s->along + 2 * p * s->k;
    const __mmask16 lanes = first_lanes(count), begun = i == 0 && p == 0 ? lanes & 0xfffe : lanes;
    const __m512i apart = _mm512_mullo_epi32(_mm512_set1_epi32((int)s->along),
                                             _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0));
    __m512i low = _mm512_setzero_si512(), high = low;
    if (2 * p < s->there)
        low = _mm512_srli_epi32(_mm512_mask_i32gather_epi32(low, begun, apart, at - 1, 2), 16);
    if (begun != lanes && s->there > 0)
        low = _mm512_mask_set1_epi32(low, 1, at[0]);
    if (2 * p + 1 < s->there)
        high = _mm512_mask_i32gather_epi32(high, lanes, apart, at + s->k - 1, 2);
    return _mm512_or_si512(low, _mm512_and_si512(high, _mm512_set1_epi32((int)0xffff0000)));
}

/* Whether they can be fetched so. */
static inline bool are_apart(const pair_source *s)
{
    return s->along > 0 && s->along < INT32_MAX / (2 * PAIRS) && s->k > 0;
}

static inline __m512i pairs_of_rows(const pair_source *s, int64_t i, int64_t count, int64_t p)
{
    return s->along == 1 ? pairs_across(s, i, count, p) : pairs_apart(s, i, count, p);
}

/* Pairs p … of row i, up to a vector of those before pair `end`, where k lies side by side. */
static inline __m512i pairs_along(const pair_source *s, int64_t i, int64_t p, int64_t end)
{
    int64_t elements = 2 * (end - p) < s->there - 2 * p ? 2 * (end - p) : s->there - 2 * p;
    const __mmask32 mask = elements >= 2 * PAIRS ? UINT32_MAX : elements > 0 ? (UINT32_C(1) << elements) - 1 : 0;
    return _mm512_maskz_loadu_epi16(mask, s->from + i * s->along + 2 * p);
}

/* 16 vectors of 16 pairs, transposed. */
static inline void turn_pairs(__m512i r[PAIRS])
{
    __m512i t[PAIRS];
#pragma GCC unroll 8
    for (int i = 0; i < PAIRS; i += 2) {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < PAIRS; i += 4) {
        r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
        r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
        r[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
        r[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
    }
}

/* to[p * to_k + i] */
static void pack_pairs(void *to_, int64_t to_k, const void *from, int64_t from_i, int64_t from_k, int64_t count,
                       int64_t width, int64_t k, int64_t there)
{
    const pair_source s = {from, from_i, from_k, there};
    char *to = to_;
    for (int64_t i = 0; i < width; i += PAIRS) {
        int64_t rows = count - i < 0 ? 0 : count - i < PAIRS ? count - i : PAIRS;
        const __mmask16 lanes = first_lanes(width - i);
        if (from_k == 1 && from_i != 1) {
            for (int64_t p = 0; p < k; p += PAIRS) {
                __m512i r[PAIRS];
#pragma GCC unroll 16
                for (int q = 0; q < PAIRS; q++)
                    r[q] = q < rows ? pairs_along(&s, i + q, p, k) : _mm512_setzero_si512();
                turn_pairs(r);
#pragma GCC unroll 16
                for (int q = 0; q < PAIRS; q++)
                    if (p + q < k)
                        _mm512_mask_storeu_epi32(to + 4 * ((p + q) * to_k + i), lanes, r[q]);
            }
            continue;
        }
        for (int64_t p = 0; p < k; p++) {
            char *line = to + 4 * (p * to_k + i);
            if (are_apart(&s)) {
                _mm512_mask_storeu_epi32(line, lanes, pairs_of_rows(&s, i, rows, p));
                continue;
            }
            for (int64_t q = 0; q < PAIRS && i + q < width; q++) {
                uint32_t pair = q < rows ? pair_at(&s, i + q, p) : 0;
                memcpy(line + 4 * q, &pair, sizeof pair);
            }
        }
    }
}

#ifdef __AMX_BF16__
static void pack_squares(void *to_, const void *from, int64_t from_i, int64_t from_k, int64_t rows, int64_t k,
                         int64_t there)
{
    const pair_source s = {from, from_i, from_k, there};
    char *to = to_;
    for (int64_t i = 0; i < rows; i += PAIRS)
        for (int64_t p = 0; p < k; p += PAIRS, to += 4 * PAIRS * PAIRS) {
            int64_t count = rows - i < PAIRS ? rows - i : PAIRS;
            if (from_k == 1)
                for (int64_t q = 0; q < count; q++)
                    _mm512_storeu_si512(to + 4 * PAIRS * q, pairs_along(&s, i + q, p, k));
            else if (are_apart(&s)) {
                __m512i r[PAIRS];
#pragma GCC unroll 16
                for (int q = 0; q < PAIRS; q++)
                    r[q] = pairs_of_rows(&s, i, count, p + q);
                turn_pairs(r);
#pragma GCC unroll 16
                for (int q = 0; q < PAIRS; q++)
                    _mm512_storeu_si512(to + 4 * PAIRS * q, r[q]);
            } else
                for (int64_t q = 0; q < count; q++)
                    for (int64_t l = 0; l < PAIRS; l++) {
                        uint32_t pair = pair_at(&s, i + q, p + l);
                        memcpy(to + 4 * (q * PAIRS + l), &pair, sizeof pair);
                    }
        }
}
#endif

#endif
