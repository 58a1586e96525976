/* Matrix multiplication's inner loops for AVX-512: 12 × 2 accumulators out of 32 registers, which leaves room for the
 * broadcasts and the vectors loaded. */
#include "device/cpu/gemm/gemm_kernels.h"

#if defined(__AVX512F__) && defined(__FMA__)

#include <immintrin.h>

#define KILN_GEMM_BYTES   64
#define KILN_GEMM_ROWS(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12)

#define KILN_GEMM_HALVES
#define KILN_GEMM_REAL         float
#define KILN_GEMM_NAME(x)      x##_f32
#define KILN_GEMM_FMA(a, b, c) _mm512_fmadd_ps(a, b, c)
#include "device/cpu/gemm/gemm_kernels.h"

#define KILN_GEMM_REAL         double
#define KILN_GEMM_NAME(x)      x##_f64
#define KILN_GEMM_FMA(a, b, c) _mm512_fmadd_pd(a, b, c)
#include "device/cpu/gemm/gemm_kernels.h"

static const kiln_gemm_kernels table = KILN_GEMM_TABLE(12, KILN_GEMM_BYTES);
const kiln_gemm_kernels *const kiln_gemm_avx512 = &table;

#else

const kiln_gemm_kernels *const kiln_gemm_avx512 = NULL;

#endif
