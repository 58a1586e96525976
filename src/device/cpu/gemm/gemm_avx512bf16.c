/* Products of bf16 with AVX-512 BF16: one instruction multiplies two pairs of numbers in each lane and adds both
 * products to an f32. Subnormal numbers count as zeros. */
#include "device/cpu/gemm/gemm_kernels.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512BF16__)

#include "device/cpu/gemm/gemm_pairs.h"

#define KILN_GEMM_BYTES   64
#define KILN_GEMM_ROWS(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12)

#define KILN_GEMM_PAIRS
#define KILN_GEMM_REAL         float
#define KILN_GEMM_NAME(x)      x##_f32
#define KILN_GEMM_FMA(a, b, c) _mm512_dpbf16_ps(c, (__m512bh)(a), (__m512bh)(b))
#include "device/cpu/gemm/gemm_kernels.h"

#define dot_f32 NULL
static const kiln_gemm_pairs table = {
    .real = KILN_GEMM_REAL_TABLE(12, PAIRS, F32, f32), .pack = pack_pairs, .unit = 1, .cycles = 1};
const kiln_gemm_pairs *const kiln_gemm_avx512_bf16 = &table;

#else

const kiln_gemm_pairs *const kiln_gemm_avx512_bf16 = NULL;

#endif
