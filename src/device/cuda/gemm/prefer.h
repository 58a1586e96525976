/* Which of the ways that cuBLASLt offers for a product is taken. */
#ifndef KILN_CUDA_PREFER_H
#define KILN_CUDA_PREFER_H

#include "device/cuda/gemm/cublaslt.h"

/* One of them: the library's number for its tile, and in how many parts it sums. */
typedef struct kiln_cuda_offer {
    uint32_t tile, splits;
} kiln_cuda_offer;

/* The number of the one to take, of n ≥ 1 in the library's order. It follows from these alone, never from a clock. */
int kiln_cuda_prefer(const kiln_cuda_product *p, int capability, const kiln_cuda_offer *offers, int n);

#endif
