/* What attention.c and its template share. */
#ifndef KILN_CPU_ATTENTION_H
#define KILN_CPU_ATTENTION_H

#include "device/cpu/common/call.h"
#include "device/cpu/gemm/gemm_kernels.h"
#include "device/cpu/group/pointwise.h"
#include "device/cpu/rows/rows.h"

/* A result, or an operand that was one (y and its gradient), with its dims in the order of q: they lie in memory with
 * the rows behind the first batch dim (ops/attention.c). */
typedef struct kiln_attention_laid {
    kiln_cpu_operand x;
    int64_t shape[KILN_MAX_DIMS], stride[KILN_MAX_DIMS];
} kiln_attention_laid;

typedef struct kiln_attention {
    const kiln_cpu_call *c;
    const kiln_gemm_real *gemm;
    kiln_gemm_pack *pack;
    const kiln_rows_real *rows;
    bool half;               /* operands and results are of 16 bits: all of them are copied, as f32 */
    size_t element;          /* bytes of theirs */
    int64_t heads;           /* all batch dims together */
    int64_t l, s, e, ev;     /* queries, keys, their widths */
    int64_t e_wide, ev_wide; /* rounded up to whole vectors */
    int64_t tall, panel;     /* rows and columns of a full tile */
    int64_t line;            /* elements from one row of scores to the next */
    int64_t block, blocks;   /* rows that are worked on together, and how many such blocks of rows are tasks */
    bool causal;
    double scale;
    size_t worker_bytes;
} kiln_attention;

static inline int64_t kiln_round_up(int64_t n, int64_t unit)
{
    return (n + unit - 1) / unit * unit;
}

/* Keys that queries up to `row` (excluded) see. */
static inline int64_t kiln_attention_keys(const kiln_attention *a, int64_t row)
{
    return a->causal && row < a->s ? row : a->s;
}

static inline void kiln_attention_upright(const kiln_cpu_operand *from, kiln_attention_laid *to)
{
    int n = from->ndim;
    to->x = *from;
    for (int d = 0; d < n; d++) {
        int at = n < 4 || d == 0 || d == n - 1 ? d : d == n - 2 ? 1 : d + 1;
        to->shape[d] = from->shape[at];
        to->stride[d] = from->stride[at];
    }
    to->x.shape = to->shape;
    to->x.stride = to->stride;
}

/* Where head `head` of an operand begins, in elements. */
static inline int64_t kiln_attention_head(const kiln_cpu_operand *x, int dims, int64_t head)
{
    int64_t offset = 0;
    for (int d = dims; d-- > 0; head /= x->shape[d])
        offset += head % x->shape[d] * x->stride[d];
    return offset;
}

/* The scores of queries row … row + rows - 1. */
static inline kiln_attend_rows kiln_attention_rows(const kiln_attention *a, void *scores, int64_t row, int64_t rows,
                                                   int64_t end)
{
    return (kiln_attend_rows){.x = scores,
                              .line = a->line,
                              .rows = rows,
                              .seen = kiln_attention_keys(a, row + 1),
                              .grows = a->causal,
                              .end = end,
                              .scale = a->scale};
}

#endif
