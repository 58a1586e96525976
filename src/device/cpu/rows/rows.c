/* Softmax and row normalisation on the CPU: cuts the work into tasks and hands them to the kernels of this machine. */
#include <string.h>
#include "device/cpu/common/isa.h"
#include "device/cpu/common/ranges.h"
#include "device/cpu/group/pointwise.h"
#include "device/cpu/rows/rows.h"
#include "ops/op.h"

static const kiln_rows_real *kernels_for(kiln_dtype dtype)
{
    const kiln_rows_kernels *kernels = kiln_isa_pick(kiln_rows_plain, kiln_rows_avx2, kiln_rows_avx512);
    return dtype == KILN_F64 ? &kernels->f64 : &kernels->f32;
}

typedef struct job {
    const kiln_cpu_call *c;
    const kiln_rows_real *kernels;
    bool log;
    bool half;      /* rows are converted to f32 in scratch memory, one at a time, and back */
    size_t element; /* bytes in memory, of x and what is like it */
    int64_t outer, n, inner;
    int64_t strips; /* of columns, in each of `outer` */
    int64_t items, tasks;
} job;

static void *at(const job *j, const kiln_cpu_operand *o, int64_t index)
{
    return (char *)o->data + (size_t)index * j->element;
}

static void *figure_at(const job *j, const kiln_cpu_operand *o, int64_t index) /* what is f32 where x is half */
{
    return (char *)o->data + (size_t)index * (j->half ? sizeof(float) : j->element);
}

/* ---- Softmax: [outer, n, inner], along n ---- */

static void softmax_strip(const job *j, int64_t strip)
{
    int64_t first = strip % j->strips * KILN_ROWS_COLUMNS, from = strip / j->strips * j->n * j->inner + first;
    int64_t columns = j->inner - first < KILN_ROWS_COLUMNS ? j->inner - first : KILN_ROWS_COLUMNS;
    j->kernels->softmax_columns(at(j, &j->c->in[0], from), at(j, &j->c->out[0], from), columns, j->n, j->inner, j->log);
}

static void softmax_task(void *context, int64_t task, int worker)
{
    (void)worker;
    const job *j = context;
    int64_t first = kiln_range_begin(j->items, j->tasks, task), end = kiln_range_begin(j->items, j->tasks, task + 1);
    if (j->inner == 1) {
        int64_t from = first * j->n;
        j->kernels->softmax(at(j, &j->c->in[0], from), at(j, &j->c->out[0], from), end - first, j->n, j->log);
        return;
    }
    for (int64_t strip = first; strip < end; strip++)
        softmax_strip(j, strip);
}

static void run_softmax(const kiln_cpu_call *c, bool log)
{
    const kiln_cpu_operand *x = &c->in[0];
    int dim = (int)c->ints[0];
    job j = {.c = c, .kernels = kernels_for(x->dtype), .log = log, .element = kiln_dtype_size(x->dtype)};
    j.outer = j.n = j.inner = 1;
    for (int d = 0; d < x->ndim; d++) /* a number without dims is one row of one element */
        *(d < dim ? &j.outer : d == dim ? &j.n : &j.inner) *= x->shape[d];
    if (j.outer * j.n * j.inner == 0)
        return;
    j.strips = (j.inner + KILN_ROWS_COLUMNS - 1) / KILN_ROWS_COLUMNS;
    j.items = j.outer * j.strips;
    j.tasks = kiln_range_count(j.items, 4 * j.n * (j.inner < KILN_ROWS_COLUMNS ? j.inner : KILN_ROWS_COLUMNS));
    kiln_parallel(j.tasks, softmax_task, &j);
}

static void softmax(const kiln_cpu_call *c)
{
    run_softmax(c, false);
}

static void log_softmax(const kiln_cpu_call *c)
{
    run_softmax(c, true);
}

/* ---- normalize_rows ---- */

static bool is_half(kiln_dtype dtype)
{
    return dtype == KILN_F16 || dtype == KILN_BF16;
}

static job measure_rows(const kiln_cpu_call *c)
{
    const kiln_cpu_operand *x = &c->in[0];
    job j = {.c = c, .kernels = kernels_for(x->dtype), .element = kiln_dtype_size(x->dtype), .n = 1, .items = 1};
    j.half = is_half(x->dtype);
    for (int d = 0; d < x->ndim; d++)
        *(d < x->ndim - c->ints[0] ? &j.items : &j.n) *= x->shape[d];
    return j;
}

/* Spreads the rows over tasks; `cost` is what an element takes. */
static void run_rows(const kiln_cpu_call *c, int64_t cost, void (*task)(void *context, int64_t task, int worker))
{
    job j = measure_rows(c);
    if (j.items == 0)
        return;
    j.tasks = kiln_range_count(j.items, cost * j.n);
    kiln_parallel(j.tasks, task, &j);
}

static void normalize_task(void *context, int64_t task, int worker)
{
    (void)worker;
    const job *j = context;
    const kiln_cpu_operand *out = j->c->out;
    int64_t first = kiln_range_begin(j->items, j->tasks, task), end = kiln_range_begin(j->items, j->tasks, task + 1);
    j->kernels->normalize(at(j, &j->c->in[0], first * j->n), at(j, &out[0], first * j->n), at(j, &out[1], first),
                          at(j, &out[2], first), end - first, j->n, j->c->floats[0]);
}

static void normalize_rows(const kiln_cpu_call *c)
{
    run_rows(c, 2, normalize_task);
}

/* ---- Halves ---- */

/* Floats of scratch memory: so many that all share, and then so many for each worker. */
static size_t scratch_bytes(const job *j, int64_t shared, int64_t each)
{
    return j->half ? (size_t)(shared + each * kiln_threads()) * sizeof(float) : 0;
}

static float *scratch_of(const job *j, int64_t shared, int64_t each, int worker)
{
    return (float *)j->c->workspace + shared + each * worker;
}

static void widen(const job *j, float *to, const void *from, int64_t count)
{
    kiln_pw_best()->load[j->c->in[0].dtype](to, from, count);
}

static void narrow(const job *j, void *to, const float *from, int64_t count)
{
    kiln_pw_best()->store[j->c->in[0].dtype](to, from, count);
}

/* ---- layer_norm_rows ---- */

/* A row's weight or bias, number k of the operands, which of halves lies in the shared scratch memory from `from` on.
 */
static const void *row_operand(const job *j, int k, int64_t from)
{
    if (k >= j->c->nin || !j->c->in[k].data)
        return NULL;
    return j->half ? (float *)j->c->workspace + from : j->c->in[k].data;
}

static void widen_row_operand(const job *j, int k, int64_t from)
{
    if (j->half && k < j->c->nin && j->c->in[k].data)
        widen(j, (float *)j->c->workspace + from, j->c->in[k].data, j->n);
}

static void layer_norm_task(void *context, int64_t task, int worker)
{
    const job *j = context;
    const kiln_cpu_operand *in = j->c->in, *out = j->c->out;
    int64_t first = kiln_range_begin(j->items, j->tasks, task), end = kiln_range_begin(j->items, j->tasks, task + 1);
    kiln_layer_norm_rows r = {.rows = end - first,
                              .n = j->n,
                              .x = at(j, &in[0], first * j->n),
                              .weight = row_operand(j, 1, 0),
                              .bias = row_operand(j, 2, j->n),
                              .y = at(j, &out[0], first * j->n),
                              .mean = figure_at(j, &out[1], first),
                              .rstd = figure_at(j, &out[2], first)};
    if (!j->half) {
        j->kernels->layer_norm(&r, j->c->floats[0]);
        return;
    }
    float *x = scratch_of(j, 2 * j->n, 2 * j->n, worker), *y = x + j->n;
    r.rows = 1;
    r.x = x;
    r.y = y;
    for (int64_t row = first; row < end; row++) {
        widen(j, x, at(j, &in[0], row * j->n), j->n);
        r.mean = figure_at(j, &out[1], row);
        r.rstd = figure_at(j, &out[2], row);
        j->kernels->layer_norm(&r, j->c->floats[0]);
        narrow(j, at(j, &out[0], row * j->n), y, j->n);
    }
}

static void layer_norm_rows(const kiln_cpu_call *c)
{
    job j = measure_rows(c);
    widen_row_operand(&j, 1, 0);
    widen_row_operand(&j, 2, j.n);
    run_rows(c, 3, layer_norm_task);
}

static size_t layer_norm_workspace(const kiln_cpu_call *c)
{
    job j = measure_rows(c);
    return scratch_bytes(&j, 2 * j.n, 2 * j.n);
}

/* ---- layer_norm_rows_grad ---- */

enum { SUMMED_ROWS = 64 }; /* rows whose gradients of weight and bias a task sums; the sums are added in order */

static int64_t summing_tasks(const job *j)
{
    return (j->items + SUMMED_ROWS - 1) / SUMMED_ROWS;
}

/* The workspace: sums of the gradients of weight and bias, those of all rows and then those of each task, one behind
 * the other; of halves also the weight, and three rows for each worker. */
static int64_t all_sums(const job *j)
{
    return 2 * j->n * (1 + summing_tasks(j));
}

static char *sums_of(const job *j, int64_t task) /* -1: of all rows */
{
    return (char *)j->c->workspace + (size_t)(2 * (1 + task) * j->n) * (j->half ? sizeof(float) : j->element);
}

static void layer_norm_grad_task(void *context, int64_t task, int worker)
{
    const job *j = context;
    const kiln_cpu_operand *in = j->c->in;
    int64_t first = task * SUMMED_ROWS, rows = j->items - first < SUMMED_ROWS ? j->items - first : SUMMED_ROWS;
    size_t wide = j->half ? sizeof(float) : j->element;
    kiln_layer_norm_rows r = {.rows = rows,
                              .n = j->n,
                              .x = at(j, &in[0], first * j->n),
                              .mean = figure_at(j, &in[1], first),
                              .rstd = figure_at(j, &in[2], first),
                              .gy = at(j, &in[3], first * j->n),
                              .weight = row_operand(j, 4, all_sums(j)),
                              .gx = at(j, &j->c->out[0], first * j->n),
                              .gweight = sums_of(j, task),
                              .gbias = sums_of(j, task) + (size_t)j->n * wide};
    if (!j->half) {
        j->kernels->layer_norm_grad(&r);
        return;
    }
    float *x = scratch_of(j, all_sums(j) + j->n, 3 * j->n, worker), *gy = x + j->n, *gx = gy + j->n;
    r.rows = 1;
    r.x = x;
    r.gy = gy;
    r.gx = gx;
    for (int64_t row = first; row < first + rows; row++, r.goes_on = true) {
        widen(j, x, at(j, &in[0], row * j->n), j->n);
        widen(j, gy, at(j, &in[3], row * j->n), j->n);
        r.mean = figure_at(j, &in[1], row);
        r.rstd = figure_at(j, &in[2], row);
        j->kernels->layer_norm_grad(&r);
        narrow(j, at(j, &j->c->out[0], row * j->n), gx, j->n);
    }
}

static void add_sums(const job *j, const char *from, char *to)
{
    for (int64_t i = 0; i < 2 * j->n; i++)
        if (j->element == 8)
            ((double *)to)[i] += ((const double *)from)[i];
        else
            ((float *)to)[i] += ((const float *)from)[i];
}

static void layer_norm_rows_grad(const kiln_cpu_call *c)
{
    job j = measure_rows(c);
    size_t wide = j.half ? sizeof(float) : j.element;
    widen_row_operand(&j, 4, all_sums(&j));
    kiln_parallel(summing_tasks(&j), layer_norm_grad_task, &j);
    char *sums = sums_of(&j, -1);
    memset(sums, 0, (size_t)(2 * j.n) * wide);
    for (int64_t task = 0; task < summing_tasks(&j); task++)
        add_sums(&j, sums_of(&j, task), sums);
    for (int k = 0; k < 2; k++, sums += (size_t)j.n * wide) {
        if (j.half)
            narrow(&j, c->out[1 + k].data, (const float *)(const void *)sums, j.n);
        else
            memcpy(c->out[1 + k].data, sums, (size_t)j.n * wide);
    }
}

static size_t layer_norm_grad_workspace(const kiln_cpu_call *c)
{
    job j = measure_rows(c);
    return j.half ? scratch_bytes(&j, all_sums(&j) + j.n, 3 * j.n) : (size_t)all_sums(&j) * j.element;
}

/* What is not here in 16 bits is converted around: gradients of softmax read its result, and would read it rounded. */
enum { REALS = 1 << KILN_F32 | 1 << KILN_F64 };

const kiln_cpu_kernel kiln_cpu_kernels_rows[] = {
    {.op = "softmax", .dtypes = REALS, .run = softmax},
    {.op = "log_softmax", .dtypes = REALS, .run = log_softmax},
    {.op = "normalize_rows", .dtypes = REALS, .run = normalize_rows},
    {.op = "layer_norm_rows", .dtypes = KILN_T_FLOATS, .run = layer_norm_rows, .workspace = layer_norm_workspace},
    {.op = "layer_norm_rows_grad",
     .dtypes = KILN_T_FLOATS,
     .run = layer_norm_rows_grad,
     .workspace = layer_norm_grad_workspace},
    {.op = "nll_loss_pick", .dtypes = KILN_T_FLOATS, .run = kiln_cpu_nll_loss_pick},
    {.op = "nll_loss_place", .dtypes = REALS, .run = kiln_cpu_nll_loss_place},
    {0},
};
