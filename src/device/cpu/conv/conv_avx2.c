/* Direct convolution's inner loops for AVX2 with FMA. */
#include "device/cpu/conv/conv_kernels.h"

#if defined(__AVX2__) && defined(__FMA__)

#include <immintrin.h>

static inline __m256i first_lanes(int64_t n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

#define KILN_CONV_BYTES          32
#define KILN_CONV_NAME(x)        x##_wide
#define KILN_CONV_FMA(a, b, c)   _mm256_fmadd_ps(a, b, c)
#define KILN_CONV_STORE(p, v, n) _mm256_maskstore_ps(p, first_lanes(n), v)
#define KILN_CONV_BLOCKS(X)      X(1) X(2) X(3) X(4)
#include "device/cpu/conv/conv_kernels.h"

#define KILN_CONV_BYTES        16
#define KILN_CONV_NAME(x)      x##_narrow
#define KILN_CONV_FMA(a, b, c) _mm_fmadd_ps(a, b, c)
#include "device/cpu/conv/conv_kernels.h"

#define BLOCKS(X) X(1) X(2) X(3) X(4)
static const kiln_conv_kernels table = {
    .block = 4,
    .lanes = 8,
    .sums = 12,
    .row = {{BLOCKS(KILN_CONV_ROW_1)}, {BLOCKS(KILN_CONV_ROW_2)}, {BLOCKS(KILN_CONV_ROW_3)}},
    .wide = {.lanes = 8, .taps = {KILN_CONV_TAPS(KILN_CONV_WIDE_TAPS)}, .turn = turn_wide},
    .narrow = {.lanes = 4, .taps = {KILN_CONV_TAPS(KILN_CONV_NARROW_TAPS)}, .turn = turn_narrow},
};
const kiln_conv_kernels *const kiln_conv_avx2 = &table;

#else

const kiln_conv_kernels *const kiln_conv_avx2 = NULL;

#endif
