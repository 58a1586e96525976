/* Matrix multiplication's inner loops for any processor: the compiler's own 16-byte vectors, multiplied and added in
 * two steps. */
#include "device/cpu/gemm/gemm_kernels.h"

#define KILN_GEMM_BYTES   16
#define KILN_GEMM_ROWS(X) X(1) X(2) X(3) X(4)

#define KILN_GEMM_HALVES
#define KILN_GEMM_REAL         float
#define KILN_GEMM_NAME(x)      x##_f32
#define KILN_GEMM_FMA(a, b, c) ((a) * (b) + (c))
#include "device/cpu/gemm/gemm_kernels.h"

#define KILN_GEMM_REAL         double
#define KILN_GEMM_NAME(x)      x##_f64
#define KILN_GEMM_FMA(a, b, c) ((a) * (b) + (c))
#include "device/cpu/gemm/gemm_kernels.h"

static const kiln_gemm_kernels table = KILN_GEMM_TABLE(4, KILN_GEMM_BYTES);
const kiln_gemm_kernels *const kiln_gemm_plain = &table;
