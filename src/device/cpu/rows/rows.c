/* Softmax and row normalisation on the CPU: cuts the work into tasks and hands them to the kernels of this machine. */
#include <string.h>
#include "device/cpu/common/isa.h"
#include "device/cpu/common/ranges.h"
#include "device/cpu/group/group.h"
#include "device/cpu/group/pointwise.h"
#include "device/cpu/rows/rows.h"
#include "plan/plan.h"

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

/* ---- Rows of what is normalised ---- */

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

/* ---- Block by block ---- */

/* Rows of halves, and those that groups around the kernel make or finish, go through scratch memory a few at a time, as
 * many as are a tile of a group: each worker has room for so many of two operands and of the result, behind what all
 * share. */
enum { ROOMS = 3 };

static bool goes_by_blocks(const job *j)
{
    return j->half || j->c->lead || j->c->finish;
}

static int64_t block_rows(const job *j)
{
    int64_t rows = j->n ? KILN_TILE / j->n : 1;
    return rows < 1 ? 1 : rows < j->items ? rows : j->items;
}

static size_t wide(const job *j) /* bytes of an element as it is computed */
{
    return j->half ? sizeof(float) : j->element;
}

static size_t rooms_bytes(const job *j, int64_t shared)
{
    int64_t rooms = goes_by_blocks(j) ? ROOMS * block_rows(j) * j->n * kiln_threads() : 0;
    return (size_t)((j->half ? shared : 0) + rooms) * wide(j);
}

static void *room_of(const job *j, int64_t shared, int worker, int number)
{
    int64_t at = (j->half ? shared : 0) + (ROOMS * worker + number) * block_rows(j) * j->n;
    return (char *)j->c->workspace + (size_t)at * wide(j);
}

static void widen(const job *j, void *to, const void *from, int64_t count)
{
    kiln_pw_best()->load[j->c->in[0].dtype](to, from, count);
}

static void narrow(const job *j, void *to, const void *from, int64_t count)
{
    kiln_pw_best()->store[j->c->in[0].dtype](to, from, count);
}

/* Rows that are under way together. */
typedef struct block {
    int64_t first, rows;
} block;

/* The block behind `b`, before row `end`. */
static block next_block(const job *j, block b, int64_t end)
{
    int64_t first = b.first + b.rows, rows = block_rows(j);
    return (block){first, end - first < rows ? end - first : rows};
}

/* Where rows of operand k are to be read: what leads has made them already. */
static const void *read_rows(const job *j, int k, block b, void *room)
{
    const kiln_cpu_operand *x = &j->c->in[k];
    if (x->data && !j->half)
        return at(j, x, b.first * j->n);
    if (x->data)
        widen(j, room, at(j, x, b.first * j->n), b.rows * j->n);
    return room;
}

/* Where rows of the result are to be written, and what becomes of them then. */
static void *begin_rows(const job *j, block b, void *room)
{
    return j->half || j->c->finish ? room : at(j, &j->c->out[0], b.first * j->n);
}

static void end_rows(const job *j, block b, const void *room, int worker)
{
    if (j->c->finish)
        j->c->finish(j->c->finish_context, b.first * j->n, b.rows * j->n, room, worker);
    else if (j->half)
        narrow(j, at(j, &j->c->out[0], b.first * j->n), room, b.rows * j->n);
}

static void lead_rows(const job *j, block b, void **to, int worker)
{
    if (j->c->lead)
        j->c->lead(j->c->lead_context, b.first * j->n, b.rows * j->n, to, worker);
}

/* ---- normalize_rows ---- */

static void normalize_task(void *context, int64_t task, int worker)
{
    const job *j = context;
    const kiln_cpu_operand *out = j->c->out;
    double eps = j->c->floats[0];
    int64_t first = kiln_range_begin(j->items, j->tasks, task), end = kiln_range_begin(j->items, j->tasks, task + 1);
    if (!goes_by_blocks(j)) {
        j->kernels->normalize(at(j, &j->c->in[0], first * j->n), at(j, &out[0], first * j->n), at(j, &out[1], first),
                              at(j, &out[2], first), end - first, j->n, eps);
        return;
    }
    void *y = room_of(j, 0, worker, 1);
    for (block b = next_block(j, (block){first, 0}, end); b.rows > 0; b = next_block(j, b, end)) {
        void *x = room_of(j, 0, worker, 0);
        lead_rows(j, b, &x, worker);
        j->kernels->normalize(read_rows(j, 0, b, x), begin_rows(j, b, y), at(j, &out[1], b.first),
                              at(j, &out[2], b.first), b.rows, j->n, eps);
        end_rows(j, b, y, worker);
    }
}

static void normalize_rows(const kiln_cpu_call *c)
{
    run_rows(c, 2, normalize_task);
}

static size_t normalize_workspace(const kiln_cpu_call *c)
{
    job j = measure_rows(c);
    return rooms_bytes(&j, 0);
}

/* ---- layer_norm_rows ---- */

/* Rows that are only scaled. */
static bool is_plain(const kiln_cpu_call *c)
{
    return c->nints > 1 && c->ints[1];
}

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
                              .weight = row_operand(j, 1, 0),
                              .bias = row_operand(j, 2, j->n),
                              .plain = is_plain(j->c)};
    if (!goes_by_blocks(j)) {
        r.x = at(j, &in[0], first * j->n);
        r.y = at(j, &out[0], first * j->n);
        r.mean = figure_at(j, &out[1], first);
        r.rstd = figure_at(j, &out[2], first);
        j->kernels->layer_norm(&r, j->c->floats[0]);
        return;
    }
    void *y = room_of(j, 2 * j->n, worker, 1);
    for (block b = next_block(j, (block){first, 0}, end); b.rows > 0; b = next_block(j, b, end)) {
        void *x = room_of(j, 2 * j->n, worker, 0);
        lead_rows(j, b, &x, worker);
        r.rows = b.rows;
        r.x = read_rows(j, 0, b, x);
        r.y = begin_rows(j, b, y);
        r.mean = figure_at(j, &out[1], b.first);
        r.rstd = figure_at(j, &out[2], b.first);
        j->kernels->layer_norm(&r, j->c->floats[0]);
        end_rows(j, b, y, worker);
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
    return rooms_bytes(&j, 2 * j.n);
}

/* ---- layer_norm_rows_grad ---- */

enum { SUMMED_ROWS = 64 }; /* rows whose gradients of weight and bias a task sums; the sums are added in order */
enum { X, MEAN, RSTD, GY, WEIGHT };

static int64_t summing_tasks(const job *j)
{
    return (j->items + SUMMED_ROWS - 1) / SUMMED_ROWS;
}

/* The workspace: sums of the gradients of weight and bias, those of all rows and then those of each task, one behind
 * the other; of halves also the weight; and the rooms of the workers. */
static int64_t all_sums(const job *j)
{
    return 2 * j->n * (1 + summing_tasks(j));
}

static char *sums_of(const job *j, int64_t task) /* -1: of all rows */
{
    return (char *)j->c->workspace + (size_t)(2 * (1 + task) * j->n) * wide(j);
}

static void *grad_room_of(const job *j, int worker, int number)
{
    return (char *)room_of(j, j->n, worker, number) + (size_t)all_sums(j) * wide(j);
}

static void layer_norm_grad_task(void *context, int64_t task, int worker)
{
    const job *j = context;
    const kiln_cpu_operand *in = j->c->in;
    int64_t first = task * SUMMED_ROWS, rows = j->items - first < SUMMED_ROWS ? j->items - first : SUMMED_ROWS;
    kiln_layer_norm_rows r = {.rows = rows,
                              .n = j->n,
                              .plain = is_plain(j->c),
                              .weight = row_operand(j, WEIGHT, all_sums(j)),
                              .gweight = sums_of(j, task),
                              .gbias = sums_of(j, task) + (size_t)j->n * wide(j)};
    if (!goes_by_blocks(j)) {
        r.x = at(j, &in[X], first * j->n);
        r.gy = at(j, &in[GY], first * j->n);
        r.gx = at(j, &j->c->out[0], first * j->n);
        r.mean = figure_at(j, &in[MEAN], first);
        r.rstd = figure_at(j, &in[RSTD], first);
        j->kernels->layer_norm_grad(&r);
        return;
    }
    void *gx = grad_room_of(j, worker, 2);
    for (block b = next_block(j, (block){first, 0}, first + rows); b.rows > 0; b = next_block(j, b, first + rows)) {
        void *led[] = {[X] = grad_room_of(j, worker, 0), [GY] = grad_room_of(j, worker, 1)};
        lead_rows(j, b, led, worker);
        r.rows = b.rows;
        r.x = read_rows(j, X, b, led[X]);
        r.gy = read_rows(j, GY, b, led[GY]);
        r.gx = begin_rows(j, b, gx);
        r.mean = figure_at(j, &in[MEAN], b.first);
        r.rstd = figure_at(j, &in[RSTD], b.first);
        j->kernels->layer_norm_grad(&r);
        r.goes_on = true;
        end_rows(j, b, gx, worker);
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
    widen_row_operand(&j, WEIGHT, all_sums(&j));
    kiln_parallel(summing_tasks(&j), layer_norm_grad_task, &j);
    char *sums = sums_of(&j, -1);
    memset(sums, 0, (size_t)(2 * j.n) * wide(&j));
    for (int64_t task = 0; task < summing_tasks(&j); task++)
        add_sums(&j, sums_of(&j, task), sums);
    for (int k = 0; k < 2; k++, sums += (size_t)j.n * wide(&j)) {
        if (j.half)
            narrow(&j, c->out[1 + k].data, sums, j.n);
        else
            memcpy(c->out[1 + k].data, sums, (size_t)j.n * wide(&j));
    }
}

static size_t layer_norm_grad_workspace(const kiln_cpu_call *c)
{
    job j = measure_rows(c);
    return (size_t)all_sums(&j) * wide(&j) + rooms_bytes(&j, j.n);
}

/* What is not here in 16 bits is converted around: gradients of softmax read its result, and would read it rounded. */
enum { REALS = 1 << KILN_F32 | 1 << KILN_F64, BOTH = KILN_CAN_END | KILN_CAN_LEAD };

const kiln_cpu_kernel kiln_cpu_kernels_rows[] = {
    {.op = "softmax", .dtypes = REALS, .run = softmax},
    {.op = "log_softmax", .dtypes = REALS, .run = log_softmax},
    {.op = "normalize_rows", .dtypes = REALS, .can = BOTH, .run = normalize_rows, .workspace = normalize_workspace},
    {.op = "layer_norm_rows",
     .dtypes = KILN_T_FLOATS,
     .can = BOTH,
     .run = layer_norm_rows,
     .workspace = layer_norm_workspace},
    {.op = "layer_norm_rows_grad",
     .dtypes = KILN_T_FLOATS,
     .can = BOTH,
     .run = layer_norm_rows_grad,
     .workspace = layer_norm_grad_workspace},
    {.op = "nll_loss_pick", .dtypes = KILN_T_FLOATS, .run = kiln_cpu_nll_loss_pick},
    {.op = "nll_loss_place", .dtypes = REALS, .run = kiln_cpu_nll_loss_place},
    {0},
};
