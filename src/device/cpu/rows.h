/* Row kernels of one instruction set, and the pick kernels that share their table. */
#ifndef KILN_CPU_ROWS_H
#define KILN_CPU_ROWS_H

#include "device/cpu/call.h"

/* Columns that one call of a column kernel takes at most: their maxima and sums stay in the first-level cache. */
enum { KILN_ROWS_COLUMNS = 256 };

/* For one element type; pointers are to elements of it. */
typedef struct kiln_rows_real {
    /* `rows` dense rows of n elements: softmax of each, or its logarithm. x and y may be the same. */
    void (*softmax)(const void *x, void *y, int64_t rows, int64_t n, bool log);

    /* The same down `columns` columns of n elements, `inner` apart. */
    void (*softmax_columns)(const void *x, void *y, int64_t columns, int64_t n, int64_t inner, bool log);

    /* y = (x - mean)·rstd for each row, whose mean and rstd = 1 / sqrt(variance + eps) are stored too. */
    void (*normalize)(const void *x, void *y, void *mean, void *rstd, int64_t rows, int64_t n, double eps);
} kiln_rows_real;

typedef struct kiln_rows_kernels {
    kiln_rows_real f32, f64;
} kiln_rows_kernels;

/* NULL where the compiler did not have the instructions. */
extern const kiln_rows_kernels *const kiln_rows_plain, *const kiln_rows_avx2, *const kiln_rows_avx512;

void kiln_cpu_nll_loss_pick(const kiln_cpu_call *c);
void kiln_cpu_nll_loss_place(const kiln_cpu_call *c);

#endif
