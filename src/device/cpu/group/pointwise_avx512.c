/* Pointwise kernels for AVX-512. The compiler would rather use half of a register; full ones measure faster. */
#include "device/cpu/group/pointwise.h"

#if defined(__AVX512F__) && defined(__AVX512VL__) && defined(__AVX512BW__) && defined(__AVX512DQ__)
#ifndef __clang__
#pragma GCC target("prefer-vector-width=512")
#endif
#define KILN_PW_TABLE kiln_pw_avx512
#define KILN_PW_ISA   "avx512"
#include "device/cpu/group/pointwise_kernels.h"
#else
const kiln_pw_table *const kiln_pw_avx512 = NULL;
#endif
