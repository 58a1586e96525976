/* Row kernels for AVX-512. */
#include "device/cpu/rows/rows.h"

#if defined(__AVX512F__) && defined(__AVX512VL__) && defined(__AVX512BW__) && defined(__AVX512DQ__)
#define ROWS_TABLE kiln_rows_avx512
#include "device/cpu/rows/rows_isa.h"
#else
const kiln_rows_kernels *const kiln_rows_avx512 = NULL;
#endif
