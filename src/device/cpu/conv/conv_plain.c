/* Direct convolution's inner loops for any processor: the compiler's own 16-byte vectors, multiplied and added in
 * two steps. */
#include "device/cpu/conv/conv_kernels.h"

static inline void store_some(float *to, kiln_conv_quad v, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        to[i] = v[i];
}

#define KILN_CONV_BYTES          16
#define KILN_CONV_NAME(x)        x##_wide
#define KILN_CONV_FMA(a, b, c)   ((a) * (b) + (c))
#define KILN_CONV_STORE(p, v, n) store_some(p, v, n)
#define KILN_CONV_BLOCKS(X)      X(1) X(2) X(3) X(4)
#include "device/cpu/conv/conv_kernels.h"

#define BLOCKS(X) X(1) X(2) X(3) X(4)
static const kiln_conv_kernels table = {
    .block = 4,
    .lanes = 4,
    .sums = 12,
    .row = {{BLOCKS(KILN_CONV_ROW_1)}, {BLOCKS(KILN_CONV_ROW_2)}, {BLOCKS(KILN_CONV_ROW_3)}},
    .wide = {.lanes = 4, .taps = {KILN_CONV_TAPS(KILN_CONV_WIDE_TAPS)}, .turn = turn_wide},
    .narrow = {.lanes = 4, .taps = {KILN_CONV_TAPS(KILN_CONV_WIDE_TAPS)}, .turn = turn_wide},
};
const kiln_conv_kernels *const kiln_conv_plain = &table;
