/* Pooling loops for AVX2. */
#if defined(__AVX2__)
#define POOL_TABLE kiln_pool_avx2
#include "device/cpu/kernels/pool_kernels.h"
#else
#include "device/cpu/kernels/pool_kernels.h"
const kiln_pool_kernels *const kiln_pool_avx2 = NULL;
#endif
