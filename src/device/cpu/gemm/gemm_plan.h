/* How a matrix product is cut up: decided from sizes and strides alone. gemm.c runs it. */
#ifndef KILN_DEVICE_CPU_GEMM_PLAN_H
#define KILN_DEVICE_CPU_GEMM_PLAN_H

#include <stdbool.h>

#include "device/cpu/gemm/gemm.h"
#include "device/cpu/gemm/gemm_kernels.h"

enum { KILN_GEMM_ALIGNMENT = 64 }; /* of everything in the workspace */

typedef struct kiln_gemm_operand {
    const char *data;
    const int64_t *batch; /* offsets of the matrices, or NULL */
    int64_t along, k;     /* strides in elements along C's rows or columns, and along k (from pair to pair) */
} kiln_gemm_operand;

/* How vectors are loaded from the vector operand. BY_WORKER: each worker packs all of one matrix, and keeps it for its
 * next task. */
typedef enum kiln_gemm_vectors {
    KILN_GEMM_IN_PLACE,
    KILN_GEMM_PACKED_BY_TASK,
    KILN_GEMM_PACKED_BY_WORKER,
    KILN_GEMM_PACKED_FOR_ALL
} kiln_gemm_vectors;

typedef struct kiln_gemm_plan {
    const kiln_gemm *g;
    const kiln_gemm_kernels *kernels;
    const kiln_gemm_real *real;
    kiln_gemm_pack *pack;
    const kiln_gemm_pairs *pairs; /* NULL: elements are multiplied one by one */
    int64_t source, element;      /* bytes of an element of A and B, and of one while computing */
    kiln_gemm_operand scalar, vector;
    int64_t rows, cols, k; /* of the product as computed: C's or Cᵀ's; k counts pairs where these are multiplied */
    bool turned, dot, strips;
    bool pack_scalar, share_scalar; /* by each task, or once for all of them */
    kiln_gemm_vectors vectors;
    bool direct;                    /* tiles are summed in C itself */
    int64_t width;                  /* columns of a full tile */
    int64_t step;                   /* of k */
    int64_t row_unit;               /* blocks begin at multiples of so many rows */
    int64_t row_blocks, col_blocks; /* of one matrix */
    int64_t splits;                 /* partial products along k */
    int64_t shared_cols, shared_k;  /* columns (in blocks) and k that are packed for all tasks at once */
    size_t scalars, shared, sums, scalar_buffer, vector_buffer, tile_buffer, block_buffer; /* bytes */
} kiln_gemm_plan;

/* What multiplies pairs of bf16 here; NULL: nothing does. */
const kiln_gemm_pairs *kiln_gemm_pairs_best(void);

/* Packs up to a tile's height of rows as its scalar operand. */
static inline void kiln_gemm_pack_rows(const kiln_gemm_pairs *pairs, void *to, const void *from, int64_t from_row,
                                       int64_t from_k, int64_t rows, int64_t k, int64_t there)
{
    if (pairs->pack_squares)
        pairs->pack_squares(to, from, from_row, from_k, rows, k, there);
    else
        pairs->pack(to, rows, from, from_row, from_k, rows, rows, k, there);
}

/* The plan of a product that is not empty. */
kiln_gemm_plan kiln_gemm_plan_of(const kiln_gemm *g);

/* Scratch of each worker. */
size_t kiln_gemm_worker_bytes(const kiln_gemm_plan *p);

static inline int64_t kiln_least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t kiln_divide_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

#endif
