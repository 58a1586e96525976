/* Elements picked and placed by indices. An index outside its range is reported, and what it should have read is zero,
 * what it should have written is left alone. Tasks never share a target, so sums are added in the order of the indices
 * however many threads there are. */
#include <string.h>
#include "device/cpu/place.h"
#include "device/cpu/ranges.h"
#include "ops/op.h"

/* ---- gather, scatter, scatter_add ---- */

/* The indices as lanes along `dim`. Lanes are apart: elements of two lanes never meet. A lane's first element in each
 * tensor is told by its number among all dims but `dim` and the last (`leads`), and its column in the last dim. */
typedef struct walk {
    const kiln_cpu_call *call;
    const kiln_cpu_operand *x, *index, *src; /* src: NULL for gather */
    int nlead;
    int64_t lead_shape[8], x_lead[8], index_lead[8], src_lead[8]; /* sizes and strides, last dim first */
    int64_t leads, length, columns, limit;
    int64_t x_step, index_step, src_step; /* along dim */
    int64_t lead_tasks, row_tasks, column_tasks;
} walk;

/* What a task does: rows × columns of indices from where each tensor's lane begins. */
typedef struct block {
    int64_t x, index, src, row, rows, column, columns;
} block;

/* `good` for every index k at place p, row i, column j; `bad` for one out of range. */
#define FOR_BLOCK(bad, good)                                                                                           \
    for (int64_t i = b->row; i < b->rows; i++)                                                                         \
        for (int64_t j = b->column; j < b->columns; j++) {                                                             \
            int64_t p = b->index + i * w->index_step + j, k = index[p];                                                \
            if ((uint64_t)k < (uint64_t)w->limit) {                                                                    \
                good;                                                                                                  \
                continue;                                                                                              \
            }                                                                                                          \
            kiln_fault_report(w->call, p, k, w->limit);                                                                \
            bad;                                                                                                       \
        }

#define GATHER(size)                                                                                                   \
    static void gather_##size(const walk *w, const block *b)                                                           \
    {                                                                                                                  \
        const int64_t *index = w->index->data;                                                                         \
        const kiln_word##size *x = (const kiln_word##size *)w->x->data + b->x;                                         \
        kiln_word##size *y = w->call->out[0].data;                                                                     \
        FOR_BLOCK(y[p] = 0, y[p] = x[k * w->x_step + j])                                                               \
    }
#define SCATTER(size)                                                                                                  \
    static void scatter_##size(const walk *w, const block *b)                                                          \
    {                                                                                                                  \
        const int64_t *index = w->index->data;                                                                         \
        const kiln_word##size *src = (const kiln_word##size *)w->src->data + b->src;                                   \
        kiln_word##size *y = (kiln_word##size *)w->call->out[0].data + b->x;                                           \
        FOR_BLOCK((void)0, y[k * w->x_step + j] = src[i * w->src_step + j])                                            \
    }
#define SCATTER_ADD(name, T)                                                                                           \
    static void scatter_add_##name(const walk *w, const block *b)                                                      \
    {                                                                                                                  \
        const int64_t *index = w->index->data;                                                                         \
        const T *src = (const T *)w->src->data + b->src;                                                               \
        T *y = (T *)w->call->out[0].data + b->x;                                                                       \
        FOR_BLOCK((void)0, y[k * w->x_step + j] = (T)(y[k * w->x_step + j] + src[i * w->src_step + j]))                \
    }
typedef void (*block_fn)(const walk *w, const block *b);
KILN_WORDS(GATHER)
KILN_WORDS(SCATTER)
KILN_ADDABLE(SCATTER_ADD)
#define GATHER_ROW(size)         gather_##size,
#define SCATTER_ROW(size)        scatter_##size,
#define SCATTER_ADD_ROW(name, T) scatter_add_##name,
static const block_fn gathers[] = {KILN_WORDS(GATHER_ROW)}, scatters[] = {KILN_WORDS(SCATTER_ROW)},
                      scatter_adds[] = {KILN_ADDABLE(SCATTER_ADD_ROW)};

typedef struct walking {
    walk w;
    block_fn run;
} walking;

static void walk_task(void *context, int64_t task, int worker)
{
    (void)worker;
    const walk *w = &((const walking *)context)->w;
    block_fn run = ((const walking *)context)->run;
    int64_t column_task = task % w->column_tasks, row_task = task / w->column_tasks % w->row_tasks;
    int64_t lead_task = task / w->column_tasks / w->row_tasks;
    int64_t end = kiln_range_begin(w->leads, w->lead_tasks, lead_task + 1);
    for (int64_t lead = kiln_range_begin(w->leads, w->lead_tasks, lead_task); lead < end; lead++) {
        block b = {.row = kiln_range_begin(w->length, w->row_tasks, row_task),
                   .rows = kiln_range_begin(w->length, w->row_tasks, row_task + 1),
                   .column = kiln_range_begin(w->columns, w->column_tasks, column_task),
                   .columns = kiln_range_begin(w->columns, w->column_tasks, column_task + 1)};
        int64_t rest = lead;
        for (int d = 0; d < w->nlead; d++) {
            int64_t i = rest % w->lead_shape[d];
            rest /= w->lead_shape[d];
            b.x += i * w->x_lead[d];
            b.index += i * w->index_lead[d];
            b.src += i * w->src_lead[d];
        }
        run(w, &b);
    }
}

/* Splits the indices' dims into lanes; false when there are none. */
static bool make_walk(walk *w, const kiln_cpu_call *c, bool has_src)
{
    int dim = (int)c->ints[0], ndim = c->in[1].ndim;
    *w = (walk){.call = c, .x = &c->in[0], .index = &c->in[1], .src = has_src ? &c->in[2] : NULL};
    w->leads = w->length = w->columns = w->limit = 1;
    int64_t xs = 1, is = 1, ss = 1; /* strides of dim d */
    for (int d = ndim - 1; d >= 0; d--) {
        int64_t size = w->index->shape[d];
        if (size == 0)
            return false;
        if (d == dim) {
            w->length = size;
            w->limit = w->x->shape[d];
            w->x_step = xs;
            w->index_step = is;
            w->src_step = ss;
        } else if (d == ndim - 1) {
            w->columns = size;
        } else {
            w->leads *= size;
            w->lead_shape[w->nlead] = size;
            w->x_lead[w->nlead] = xs;
            w->index_lead[w->nlead] = is;
            w->src_lead[w->nlead++] = ss;
        }
        xs *= w->x->shape[d];
        is *= size;
        ss *= has_src ? w->src->shape[d] : 1;
    }
    return true;
}

static int64_t parts(int64_t items, int64_t least, int64_t wanted)
{
    int64_t most = items / least > 1 ? items / least : 1;
    return wanted < 1 ? 1 : wanted < most ? wanted : most;
}

static void run_walk(const kiln_cpu_call *c, block_fn run, bool has_src)
{
    walking g = {.run = run};
    walk *w = &g.w;
    if (!make_walk(w, c, has_src))
        return;
    int64_t wanted = kiln_range_count(w->leads * w->length * w->columns, 2);
    w->lead_tasks = parts(w->leads, 1, wanted);
    w->column_tasks = parts(w->columns, 64, wanted / w->lead_tasks);
    w->row_tasks = has_src ? 1 : parts(w->length, 64, wanted / w->lead_tasks / w->column_tasks); /* targets may meet */
    kiln_parallel(w->lead_tasks * w->row_tasks * w->column_tasks, walk_task, &g);
}

static int64_t bytes_of(const kiln_cpu_operand *x)
{
    kiln_extent s = kiln_extent_at(x, 0);
    return s.at * s.after * (int64_t)kiln_dtype_size(x->dtype);
}

static void run_gather(const kiln_cpu_call *c)
{
    run_walk(c, gathers[kiln_word_slot(kiln_dtype_size(c->in[0].dtype))], false);
}

static void run_scatter(const kiln_cpu_call *c)
{
    kiln_copy_bytes(c->out[0].data, c->in[0].data, bytes_of(&c->out[0]));
    run_walk(c, scatters[kiln_word_slot(kiln_dtype_size(c->in[0].dtype))], true);
}

static void run_scatter_add(const kiln_cpu_call *c)
{
    kiln_copy_bytes(c->out[0].data, c->in[0].data, bytes_of(&c->out[0]));
    run_walk(c, scatter_adds[kiln_add_slot(c->in[0].dtype)], true);
}

/* ---- index_select ---- */

static void check_indices(const kiln_cpu_call *c, int64_t count, int64_t limit)
{
    const int64_t *index = c->in[1].data;
    for (int64_t i = 0; i < count; i++)
        if ((uint64_t)index[i] >= (uint64_t)limit) {
            kiln_fault_report(c, i, index[i], limit);
            return; /* the first one is the one that is kept */
        }
}

typedef struct selecting {
    const kiln_cpu_call *call;
    kiln_extent x;
    int64_t count, row, tasks; /* indices; bytes of a row */
} selecting;

static void select_range(void *context, int64_t task, int worker)
{
    (void)worker;
    const selecting *s = context;
    const int64_t *index = s->call->in[1].data;
    int64_t items = s->x.before * s->count, end = kiln_range_begin(items, s->tasks, task + 1);
    for (int64_t item = kiln_range_begin(items, s->tasks, task); item < end; item++) {
        int64_t i = item % s->count, k = index[i];
        char *to = (char *)s->call->out[0].data + item * s->row;
        if ((uint64_t)k >= (uint64_t)s->x.at) {
            kiln_fault_report(s->call, i, k, s->x.at);
            memset(to, 0, (size_t)s->row);
            continue;
        }
        const char *from = (const char *)s->call->in[0].data + (item / s->count * s->x.at + k) * s->row;
        if (s->row == 4) /* single elements: a call to memcpy would be most of the work */
            memcpy(to, from, 4);
        else if (s->row == 8)
            memcpy(to, from, 8);
        else
            memcpy(to, from, (size_t)s->row);
    }
}

static void run_index_select(const kiln_cpu_call *c)
{
    selecting s = {.call = c, .x = kiln_extent_at(&c->in[0], c->ints[0]), .count = c->in[1].shape[0]};
    s.row = s.x.after * (int64_t)kiln_dtype_size(c->in[0].dtype);
    s.tasks = s.row ? kiln_range_count(s.x.before * s.count, s.row / 4 + 4) : 0;
    if (!s.row)
        check_indices(c, s.count, s.x.at); /* there is nothing to copy, but a bad index is one all the same */
    kiln_parallel(s.tasks, select_range, &s);
}

/* ---- index_add ---- */

/* A task owns a block of target rows and columns, in a range of the dims before: it copies the block, then goes through
 * all indices and adds those that fall into it. */
typedef struct summing {
    const kiln_cpu_call *call;
    kiln_extent x;
    int64_t count;
    int64_t before_tasks, row_tasks, column_tasks;
} summing;

typedef struct target {
    int64_t o, row, rows, column, columns;
} target;

#define INDEX_ADD(name, T)                                                                                             \
    static void index_add_##name(const summing *s, const target *t)                                                    \
    {                                                                                                                  \
        const int64_t *index = s->call->in[1].data, width = s->x.after, columns = t->columns - t->column;              \
        const T *x = (const T *)s->call->in[0].data + t->o * s->x.at * width + t->column;                              \
        const T *src = (const T *)s->call->in[2].data + t->o * s->count * width + t->column;                           \
        T *y = (T *)s->call->out[0].data + t->o * s->x.at * width + t->column;                                         \
        if (x != y && columns == width)                                                                                \
            memcpy(y + t->row * width, x + t->row * width, (size_t)((t->rows - t->row) * width) * sizeof(T));          \
        for (int64_t r = t->row; x != y && columns < width && r < t->rows; r++)                                        \
            memcpy(y + r * width, x + r * width, (size_t)columns * sizeof(T));                                         \
        for (int64_t i = 0; i < s->count; i++) {                                                                       \
            int64_t k = index[i];                                                                                      \
            if (k < t->row || k >= t->rows)                                                                            \
                continue;                                                                                              \
            const T *from = src + i * width;                                                                           \
            T *to = y + k * width;                                                                                     \
            for (int64_t j = 0; j < columns; j++)                                                                      \
                to[j] = (T)(to[j] + from[j]);                                                                          \
        }                                                                                                              \
    }
KILN_ADDABLE(INDEX_ADD)
#define INDEX_ADD_ROW(name, T) index_add_##name,
static void (*const index_adds[])(const summing *s, const target *t) = {KILN_ADDABLE(INDEX_ADD_ROW)};

static void sum_task(void *context, int64_t task, int worker)
{
    (void)worker;
    const summing *s = context;
    int64_t column_task = task % s->column_tasks, row_task = task / s->column_tasks % s->row_tasks;
    int64_t before_task = task / s->column_tasks / s->row_tasks;
    target t = {.row = kiln_range_begin(s->x.at, s->row_tasks, row_task),
                .rows = kiln_range_begin(s->x.at, s->row_tasks, row_task + 1),
                .column = kiln_range_begin(s->x.after, s->column_tasks, column_task),
                .columns = kiln_range_begin(s->x.after, s->column_tasks, column_task + 1)};
    int64_t end = kiln_range_begin(s->x.before, s->before_tasks, before_task + 1);
    for (t.o = kiln_range_begin(s->x.before, s->before_tasks, before_task); t.o < end; t.o++)
        index_adds[kiln_add_slot(s->call->in[0].dtype)](s, &t);
}

static void run_index_add(const kiln_cpu_call *c)
{
    summing s = {.call = c, .x = kiln_extent_at(&c->in[0], c->ints[0]), .count = c->in[1].shape[0]};
    check_indices(c, s.count, s.x.at);
    if (s.x.before * s.x.at * s.x.after == 0)
        return;
    int64_t wanted = kiln_range_count(s.x.before * s.x.after * (s.x.at + s.count), 1);
    s.before_tasks = parts(s.x.before, 1, wanted);
    s.column_tasks = parts(s.x.after, 32, wanted / s.before_tasks);
    s.row_tasks = parts(s.x.at, 4, wanted / s.before_tasks / s.column_tasks);
    s.row_tasks = s.row_tasks < 8 ? s.row_tasks : 8; /* each of them reads all indices */
    kiln_parallel(s.before_tasks * s.row_tasks * s.column_tasks, sum_task, &s);
}

enum { ADDED = KILN_T_INTS | 1 << KILN_F32 | 1 << KILN_F64 };

const kiln_cpu_kernel kiln_cpu_kernels_index[] = {
    {.op = "gather", .dtypes = KILN_T_ALL, .run = run_gather},
    {.op = "scatter", .dtypes = KILN_T_ALL, .run = run_scatter},
    {.op = "scatter_add", .dtypes = ADDED, .run = run_scatter_add},
    {.op = "index_select", .dtypes = KILN_T_ALL, .run = run_index_select},
    {.op = "index_add", .dtypes = ADDED, .run = run_index_add},
    {.op = "cat", .dtypes = KILN_T_ALL, .run = kiln_cpu_cat},
    {.op = "constant_pad", .dtypes = KILN_T_ALL, .run = kiln_cpu_constant_pad},
    {.op = "as_strided_add", .dtypes = ADDED, .run = kiln_cpu_as_strided_add},
    {0},
};
