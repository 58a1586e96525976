/* Pointwise kernels for AVX2, FMA and F16C. */
#include "device/cpu/group/pointwise.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define KILN_PW_TABLE kiln_pw_avx2
#define KILN_PW_ISA   "avx2"
#include "device/cpu/group/pointwise_kernels.h"
#else
const kiln_pw_table *const kiln_pw_avx2 = NULL;
#endif
