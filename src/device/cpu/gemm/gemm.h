/* Matrix multiplication on the CPU: C[b] = A[b] · B[b] for strided, batched operands.
 *
 * The result's bits depend on the shape and the strides alone, not on the number of threads, nor on whether C is stored
 * or only handed to an epilogue. Knows nothing of tensors: pointers, strides and a workspace come in, C comes out. */
#ifndef KILN_DEVICE_CPU_GEMM_H
#define KILN_DEVICE_CPU_GEMM_H

#include <stddef.h>
#include <stdint.h>

#include "kiln/dtype.h"

/* Receives one finished block of C, [rows, cols] with unit column stride, from the thread that made it and while it is
 * in cache. Blocks cover C and do not overlap. For f16 and bf16 the block is f32. `worker` is kiln_parallel's. */
typedef void kiln_gemm_epilogue(void *context, int64_t batch, int64_t row, int64_t col, int64_t rows, int64_t cols,
                                void *block, int64_t block_row_stride, int worker);

typedef struct kiln_gemm {
    int64_t m, n, k, batch; /* A is [m, k], B is [k, n], C is [m, n]; each may be 0, and k = 0 makes C zero */
    kiln_dtype dtype;       /* of A, B and C: f32, f64, f16 or bf16; the last two are summed in f32 */
    const void *a, *b;
    void *c; /* may be NULL when store is 0 */
    int64_t a_row, a_col, b_row, b_col,
        c_row;                        /* strides in elements; a's and b's may be 0 or negative; c's column is 1 */
    const int64_t *a_batch, *b_batch; /* element offset of each batch's matrix; NULL: all zero */
    int64_t c_batch;                  /* elements from one C to the next */
    kiln_gemm_epilogue *epilogue;     /* NULL: none */
    void *epilogue_context;
    int store; /* 1: C is written before the epilogue runs, and the block holds C's values (f16, bf16: after rounding).
                * 0: C is left alone, the block is scratch that the epilogue may change, and f16 and bf16 sums reach it
                * unrounded. */
} kiln_gemm;

/* Bytes of scratch that kiln_gemm_run needs while kiln_threads() is at most `threads`. Looks at sizes, strides, dtype,
 * store and whether there is an epilogue, not at addresses; 0 is possible. */
size_t kiln_gemm_workspace(const kiln_gemm *g, int threads);

/* Multiplies. `workspace` is 64-byte aligned. Allocates nothing and cannot fail. */
void kiln_gemm_run(const kiln_gemm *g, void *workspace);

#endif
