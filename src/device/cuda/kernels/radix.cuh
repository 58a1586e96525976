/* A stable sort of rows of unsigned keys, each with its place: what sort, topk, index_add and scatter_add stand on. */
#ifndef KILN_CUDA_RADIX_CUH
#define KILN_CUDA_RADIX_CUH

#include "device/cuda/kernels/shape.cuh"

/* Rows of n pairs in two buffers: the caller fills the first, keys and places 0 … n-1; the sort uses both in turn. */
typedef struct kiln_cuda_pairs {
    int64_t rows, n;
    bool wide; /* keys of 64 bits instead of 32 */
    void *keys[2];
    uint32_t *places[2];
    uint32_t *counts, *totals;
    size_t bytes; /* of all of them */
} kiln_cuda_pairs;

/* Lays the buffers out from `memory` on (NULL to learn how much they take). Rows are shorter than 2^31. */
kiln_cuda_pairs kiln_cuda_pairs_at(void *memory, int64_t rows, int64_t n, bool wide);

/* Sorts each row by the lowest `bits` bits of its keys (the others must be 0). Returns the buffer the result is in. */
int kiln_cuda_sort_pairs(const kiln_cuda_call *c, const kiln_cuda_pairs *p, int bits);

#endif
