/* Softmax and row normalisation on the CPU: cuts the work into tasks and hands them to the kernels of this machine. */
#include <string.h>
#include "device/cpu/common/isa.h"
#include "device/cpu/common/ranges.h"
#include "device/cpu/rows/rows.h"

static const kiln_rows_real *kernels_for(kiln_dtype dtype)
{
    const kiln_rows_kernels *kernels = kiln_isa_pick(kiln_rows_plain, kiln_rows_avx2, kiln_rows_avx512);
    return dtype == KILN_F64 ? &kernels->f64 : &kernels->f32;
}

/* ---- Softmax: [outer, n, inner], along n ---- */

typedef struct job {
    const kiln_cpu_call *c;
    const kiln_rows_real *kernels;
    bool log;
    size_t element;
    int64_t outer, n, inner;
    int64_t strips; /* of columns, in each of `outer` */
    int64_t items, tasks;
} job;

static const char *at(const job *j, const kiln_cpu_operand *o, int64_t index)
{
    return (const char *)o->data + (size_t)index * j->element;
}

static void softmax_strip(const job *j, int64_t strip)
{
    int64_t first = strip % j->strips * KILN_ROWS_COLUMNS, from = strip / j->strips * j->n * j->inner + first;
    int64_t columns = j->inner - first < KILN_ROWS_COLUMNS ? j->inner - first : KILN_ROWS_COLUMNS;
    j->kernels->softmax_columns(at(j, &j->c->in[0], from), (void *)at(j, &j->c->out[0], from), columns, j->n, j->inner,
                                j->log);
}

static void softmax_task(void *context, int64_t task, int worker)
{
    (void)worker;
    const job *j = context;
    int64_t first = kiln_range_begin(j->items, j->tasks, task), end = kiln_range_begin(j->items, j->tasks, task + 1);
    if (j->inner == 1) {
        int64_t from = first * j->n;
        j->kernels->softmax(at(j, &j->c->in[0], from), (void *)at(j, &j->c->out[0], from), end - first, j->n, j->log);
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

static job measure_rows(const kiln_cpu_call *c)
{
    const kiln_cpu_operand *x = &c->in[0];
    job j = {.c = c, .kernels = kernels_for(x->dtype), .element = kiln_dtype_size(x->dtype), .n = 1, .items = 1};
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
    j->kernels->normalize(at(j, &j->c->in[0], first * j->n), (void *)at(j, &out[0], first * j->n),
                          (void *)at(j, &out[1], first), (void *)at(j, &out[2], first), end - first, j->n,
                          j->c->floats[0]);
}

static void normalize_rows(const kiln_cpu_call *c)
{
    run_rows(c, 2, normalize_task);
}

/* ---- layer_norm_rows ---- */

enum { SUMMED_ROWS = 64 }; /* rows whose gradients of weight and bias a task sums; the sums are added in order */

static void layer_norm_task(void *context, int64_t task, int worker)
{
    (void)worker;
    const job *j = context;
    const kiln_cpu_operand *in = j->c->in, *out = j->c->out;
    int64_t first = kiln_range_begin(j->items, j->tasks, task), end = kiln_range_begin(j->items, j->tasks, task + 1);
    kiln_layer_norm_rows r = {.rows = end - first,
                              .n = j->n,
                              .x = at(j, &in[0], first * j->n),
                              .weight = j->c->nin > 1 ? in[1].data : NULL,
                              .bias = j->c->nin > 2 ? in[2].data : NULL,
                              .y = (void *)at(j, &out[0], first * j->n),
                              .mean = (void *)at(j, &out[1], first),
                              .rstd = (void *)at(j, &out[2], first)};
    j->kernels->layer_norm(&r, j->c->floats[0]);
}

static void layer_norm_rows(const kiln_cpu_call *c)
{
    run_rows(c, 3, layer_norm_task);
}

/* Where a task's sums of the gradients of weight and bias go, one behind the other. */
static char *task_sums(const job *j, int64_t task)
{
    return (char *)j->c->workspace + (size_t)(2 * task * j->n) * j->element;
}

static void layer_norm_grad_task(void *context, int64_t task, int worker)
{
    (void)worker;
    const job *j = context;
    const kiln_cpu_operand *in = j->c->in;
    int64_t first = task * SUMMED_ROWS, rows = j->items - first < SUMMED_ROWS ? j->items - first : SUMMED_ROWS;
    kiln_layer_norm_rows r = {.rows = rows,
                              .n = j->n,
                              .x = at(j, &in[0], first * j->n),
                              .mean = (void *)at(j, &in[1], first),
                              .rstd = (void *)at(j, &in[2], first),
                              .gy = at(j, &in[3], first * j->n),
                              .weight = j->c->nin > 4 ? in[4].data : NULL,
                              .gx = (void *)at(j, &j->c->out[0], first * j->n),
                              .gweight = task_sums(j, task),
                              .gbias = task_sums(j, task) + (size_t)j->n * j->element};
    j->kernels->layer_norm_grad(&r);
}

static void add_sums(const job *j, const char *from, char *to)
{
    for (int64_t i = 0; i < j->n; i++)
        if (j->element == 8)
            ((double *)to)[i] += ((const double *)from)[i];
        else
            ((float *)to)[i] += ((const float *)from)[i];
}

static int64_t summing_tasks(const job *j)
{
    return (j->items + SUMMED_ROWS - 1) / SUMMED_ROWS;
}

static void layer_norm_rows_grad(const kiln_cpu_call *c)
{
    job j = measure_rows(c);
    kiln_parallel(summing_tasks(&j), layer_norm_grad_task, &j);
    for (int k = 0; k < 2; k++) {
        memset(c->out[1 + k].data, 0, (size_t)j.n * j.element);
        for (int64_t task = 0; task < summing_tasks(&j); task++)
            add_sums(&j, task_sums(&j, task) + (size_t)(k * j.n) * j.element, c->out[1 + k].data);
    }
}

static size_t layer_norm_workspace(const kiln_cpu_call *c)
{
    job j = measure_rows(c);
    return (size_t)(2 * summing_tasks(&j) * j.n) * j.element;
}

const kiln_cpu_kernel kiln_cpu_kernels_rows[] = {
    {.op = "softmax", .dtypes = 1 << KILN_F32 | 1 << KILN_F64, .run = softmax},
    {.op = "log_softmax", .dtypes = 1 << KILN_F32 | 1 << KILN_F64, .run = log_softmax},
    {.op = "normalize_rows", .dtypes = 1 << KILN_F32 | 1 << KILN_F64, .run = normalize_rows},
    {.op = "layer_norm_rows", .dtypes = 1 << KILN_F32 | 1 << KILN_F64, .run = layer_norm_rows},
    {.op = "layer_norm_rows_grad",
     .dtypes = 1 << KILN_F32 | 1 << KILN_F64,
     .run = layer_norm_rows_grad,
     .workspace = layer_norm_workspace},
    {.op = "nll_loss_pick", .dtypes = 1 << KILN_F32 | 1 << KILN_F64, .run = kiln_cpu_nll_loss_pick},
    {.op = "nll_loss_place", .dtypes = 1 << KILN_F32 | 1 << KILN_F64, .run = kiln_cpu_nll_loss_place},
    {0},
};
