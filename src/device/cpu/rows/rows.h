/* Row kernels of one instruction set, and the pick kernels that share their table. */
#ifndef KILN_CPU_ROWS_H
#define KILN_CPU_ROWS_H

#include "device/cpu/common/call.h"
#include "device/cpu/rows/lstm.h"

/* Columns that one call of a column kernel takes at most: their maxima and sums stay in the first-level cache. */
enum { KILN_ROWS_COLUMNS = 256 };

/* Rows of attention scores, `line` apart, with room for whole vectors behind each. Row i has seen + i·grows elements,
 * but at most `end`; what lies behind them, up to `end`, is hidden. */
typedef struct kiln_attend_rows {
    void *x;
    int64_t line, rows, seen, grows, end;
    double scale;
} kiln_attend_rows;

/* Rows of n elements, with one mean and rstd each. */
typedef struct kiln_layer_norm_rows {
    int64_t rows, n;
    const void *x, *weight, *bias;
    void *y, *mean, *rstd;
    const void *gy; /* for the gradient, whose results are gx [rows, n] and gweight, gbias [n] */
    void *gx, *gweight, *gbias;
    bool goes_on; /* gweight and gbias are added to what is there */
    bool plain;   /* rows are only scaled: their mean is 0 */
} kiln_layer_norm_rows;

/* For one element type; pointers are to elements of it. */
typedef struct kiln_rows_real {
    /* `rows` dense rows of n elements: softmax of each, or its logarithm. x and y may be the same. */
    void (*softmax)(const void *x, void *y, int64_t rows, int64_t n, bool log);

    /* The same down `columns` columns of n elements, `inner` apart. */
    void (*softmax_columns)(const void *x, void *y, int64_t columns, int64_t n, int64_t inner, bool log);

    /* y = (x - mean)·rstd for each row, whose mean and rstd = 1 / sqrt(variance + eps) are stored too. */
    void (*normalize)(const void *x, void *y, void *mean, void *rstd, int64_t rows, int64_t n, double eps);

    /* y = (x - mean)·rstd·weight + bias; weight and bias may be NULL. */
    void (*layer_norm)(const kiln_layer_norm_rows *r, double eps);

    /* The gradients of x, and the sums over the rows of those of weight and bias. */
    void (*layer_norm_grad)(const kiln_layer_norm_rows *r);

    /* Rows of attention scores become weights: exp(scale·x - their largest), zero where they are hidden. The weights'
     * sums' reciprocals go to `share`, the logarithms of Σ exp(scale·x) to `lse`. */
    void (*attend)(const kiln_attend_rows *r, void *share, void *lse);

    /* The same from those logarithms: x becomes w = exp(scale·x - lse), and g, the gradient of w, becomes that of the
     * scores before scaling: scale·w·(g - along). */
    void (*attend_grad)(const kiln_attend_rows *r, void *g, const void *lse, const void *along);

    /* to[i] = Σ a[i, j]·b[i, j] over n elements of each row. */
    void (*row_dots)(const void *a, int64_t a_row, const void *b, int64_t b_row, int64_t rows, int64_t n, void *to);

    /* A step of an LSTM, and the way back through one: what is left when the products are done. */
    void (*lstm)(const kiln_lstm_rows *rows);
    void (*lstm_grad)(const kiln_lstm_rows *rows);
} kiln_rows_real;

typedef struct kiln_rows_kernels {
    kiln_rows_real f32, f64;
} kiln_rows_kernels;

/* NULL where the compiler did not have the instructions. */
extern const kiln_rows_kernels *const kiln_rows_plain, *const kiln_rows_avx2, *const kiln_rows_avx512;

void kiln_cpu_nll_loss_pick(const kiln_cpu_call *c);
void kiln_cpu_nll_loss_place(const kiln_cpu_call *c);

#endif
