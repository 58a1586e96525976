/* Pooling loops for AVX-512. */
#if defined(__AVX512F__) && defined(__AVX512VL__) && defined(__AVX512BW__) && defined(__AVX512DQ__)
#define POOL_TABLE kiln_pool_avx512
#include "device/cpu/kernels/pool_kernels.h"
#else
#include "device/cpu/kernels/pool_kernels.h"
const kiln_pool_kernels *const kiln_pool_avx512 = NULL;
#endif
