/* Row kernels for AVX2 and FMA. */
#include "device/cpu/rows/rows.h"

#if defined(__AVX2__) && defined(__FMA__)
#define ROWS_TABLE kiln_rows_avx2
#include "device/cpu/rows/rows_isa.h"
#else
const kiln_rows_kernels *const kiln_rows_avx2 = NULL;
#endif
