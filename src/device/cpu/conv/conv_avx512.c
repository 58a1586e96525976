/* Direct convolution's inner loops for AVX-512. */
#include "device/cpu/conv/conv_kernels.h"

#if defined(__AVX512F__) && defined(__AVX512VL__) && defined(__FMA__)

#include <immintrin.h>

#define KILN_CONV_BYTES          64
#define KILN_CONV_NAME(x)        x##_wide
#define KILN_CONV_FMA(a, b, c)   _mm512_fmadd_ps(a, b, c)
#define KILN_CONV_STORE(p, v, n) _mm512_mask_storeu_ps(p, (__mmask16)((1u << (n)) - 1), v)
#define KILN_CONV_BLOCKS(X)      X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8)
#include "device/cpu/conv/conv_kernels.h"

#define KILN_CONV_BYTES        32
#define KILN_CONV_NAME(x)      x##_narrow
#define KILN_CONV_FMA(a, b, c) _mm256_fmadd_ps(a, b, c)
#include "device/cpu/conv/conv_kernels.h"

#define BLOCKS(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8)
static const kiln_conv_kernels table = {
    .block = 8,
    .lanes = 16,
    .sums = 28,
    .row = {{BLOCKS(KILN_CONV_ROW_1)}, {BLOCKS(KILN_CONV_ROW_2)}, {BLOCKS(KILN_CONV_ROW_3)}},
    .wide = {.lanes = 16, .taps = {KILN_CONV_TAPS(KILN_CONV_WIDE_TAPS)}, .turn = turn_wide},
    .narrow = {.lanes = 8, .taps = {KILN_CONV_TAPS(KILN_CONV_NARROW_TAPS)}, .turn = turn_narrow},
};
const kiln_conv_kernels *const kiln_conv_avx512 = &table;

#else

const kiln_conv_kernels *const kiln_conv_avx512 = NULL;

#endif
