/* Elements picked and placed by indices. An index outside its range is reported, and what it should have read is zero,
 * what it should have written is left alone. Tasks never share a target, so sums are added in the order of the indices
 * however many threads there are. */
#include <string.h>
#include "device/cpu/kernels/strided.h"
#include "device/cpu/common/ranges.h"
#include "ops/op.h"

/* True if all indices are in 0 … limit-1. Where one is not, its sign bit or that of what is left to the limit is set.
 */
static bool all_below(const int64_t *index, int64_t n, int64_t limit)
{
    uint64_t signs = 0;
    for (int64_t i = 0; i < n; i++)
        signs |= (uint64_t)index[i] | ((uint64_t)limit - 1 - (uint64_t)index[i]);
    return !(signs >> 63);
}

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
    bool whole; /* a lane's targets lie side by side, and no element of x is in no lane: copied lane by lane */
} walk;

/* What a task does: rows × columns of indices from where each tensor's lane begins. */
typedef struct block {
    int64_t x, index, src, row, rows, column, columns;
} block;

/* `good` for every index k at place p, row i, column j; `bad` for one out of range. A row that has none, and a block of
 * one column, whose indices are neighbours, go without looking at each again. */
#define FOR_BLOCK(bad, good)                                                                                           \
    if (w->index_step == 1 && all_below(index + b->index + b->row, b->rows - b->row, w->limit)) {                      \
        const int64_t j = 0;                                                                                           \
        for (int64_t i = b->row; i < b->rows; i++) {                                                                   \
            const int64_t p = b->index + i, k = index[p];                                                              \
            good;                                                                                                      \
        }                                                                                                              \
        return;                                                                                                        \
    }                                                                                                                  \
    for (int64_t i = b->row; i < b->rows; i++) {                                                                       \
        const int64_t first = b->index + i * w->index_step, count = b->columns - b->column;                            \
        bool safe = all_below(index + first + b->column, count, w->limit);                                             \
        for (int64_t j = b->column; safe && j < b->columns; j++) {                                                     \
            const int64_t p = first + j, k = index[p];                                                                 \
            good;                                                                                                      \
        }                                                                                                              \
        for (int64_t j = b->column; !safe && j < b->columns; j++) {                                                    \
            const int64_t p = first + j, k = index[p];                                                                 \
            if ((uint64_t)k < (uint64_t)w->limit) {                                                                    \
                good;                                                                                                  \
                continue;                                                                                              \
            }                                                                                                          \
            kiln_fault_report(w->call, p, k, w->limit);                                                                \
            bad;                                                                                                       \
        }                                                                                                              \
    }

#define GATHER(size)                                                                                                   \
    static void gather_##size(const walk *w, const block *b)                                                           \
    {                                                                                                                  \
        const int64_t *index = w->index->data, step = w->x_step;                                                       \
        const kiln_word##size *x = (const kiln_word##size *)w->x->data + b->x;                                         \
        kiln_word##size *y = w->call->out[0].data;                                                                     \
        FOR_BLOCK(y[p] = 0, y[p] = x[k * step + j])                                                                    \
    }
#define SCATTER(size)                                                                                                  \
    static void scatter_##size(const walk *w, const block *b)                                                          \
    {                                                                                                                  \
        const int64_t *index = w->index->data, step = w->x_step, src_step = w->src_step;                               \
        const kiln_word##size *src = (const kiln_word##size *)w->src->data + b->src;                                   \
        kiln_word##size *y = (kiln_word##size *)w->call->out[0].data + b->x;                                           \
        if (w->whole)                                                                                                  \
            memcpy(y, (const kiln_word##size *)w->x->data + b->x, (size_t)w->limit * size);                            \
        FOR_BLOCK((void)0, y[k * step + j] = src[i * src_step + j])                                                    \
    }
#define SCATTER_ADD(name, T)                                                                                           \
    static void scatter_add_##name(const walk *w, const block *b)                                                      \
    {                                                                                                                  \
        const int64_t *index = w->index->data, step = w->x_step, src_step = w->src_step;                               \
        const T *src = (const T *)w->src->data + b->src;                                                               \
        T *y = (T *)w->call->out[0].data + b->x;                                                                       \
        if (w->whole)                                                                                                  \
            memcpy(y, (const T *)w->x->data + b->x, (size_t)w->limit * sizeof(T));                                     \
        FOR_BLOCK((void)0, y[k * step + j] = (T)(y[k * step + j] + src[i * src_step + j]))                             \
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

/* Moves the block from the lanes `at` (a number in each leading dim) to the next ones. */
static void next_lead(const walk *w, int64_t *at, block *b)
{
    for (int d = 0; d < w->nlead; d++) {
        b->x += w->x_lead[d];
        b->index += w->index_lead[d];
        b->src += w->src_lead[d];
        if (++at[d] < w->lead_shape[d])
            return;
        b->x -= at[d] * w->x_lead[d];
        b->index -= at[d] * w->index_lead[d];
        b->src -= at[d] * w->src_lead[d];
        at[d] = 0;
    }
}

static void walk_task(void *context, int64_t task, int worker)
{
    (void)worker;
    const walk *w = &((const walking *)context)->w;
    block_fn run = ((const walking *)context)->run;
    int64_t column_task = task % w->column_tasks, row_task = task / w->column_tasks % w->row_tasks;
    int64_t lead_task = task / w->column_tasks / w->row_tasks, at[8];
    int64_t lead = kiln_range_begin(w->leads, w->lead_tasks, lead_task), rest = lead;
    int64_t end = kiln_range_begin(w->leads, w->lead_tasks, lead_task + 1);
    block b = {.row = kiln_range_begin(w->length, w->row_tasks, row_task),
               .rows = kiln_range_begin(w->length, w->row_tasks, row_task + 1),
               .column = kiln_range_begin(w->columns, w->column_tasks, column_task),
               .columns = kiln_range_begin(w->columns, w->column_tasks, column_task + 1)};
    for (int d = 0; d < w->nlead; d++) {
        at[d] = rest % w->lead_shape[d];
        rest /= w->lead_shape[d];
        b.x += at[d] * w->x_lead[d];
        b.index += at[d] * w->index_lead[d];
        b.src += at[d] * w->src_lead[d];
    }
    for (; lead < end; lead++) {
        run(w, &b);
        next_lead(w, at, &b);
    }
}

/* Splits the indices' dims into lanes; false when there are none. */
static bool make_walk(walk *w, const kiln_cpu_call *c, bool has_src)
{
    int dim = (int)c->ints[0], ndim = c->in[1].ndim;
    *w = (walk){.call = c, .x = &c->in[0], .index = &c->in[1], .src = has_src ? &c->in[2] : NULL};
    w->leads = w->length = w->columns = w->limit = 1;
    w->whole = has_src && dim == ndim - 1;
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
            w->whole &= size == w->x->shape[d];
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

static int64_t bytes_of(const kiln_cpu_operand *x)
{
    kiln_extent s = kiln_extent_at(x, 0);
    return s.at * s.after * (int64_t)kiln_dtype_size(x->dtype);
}

/* Columns are a line of the cache wide: what is picked or met by chance stays in the nearer caches. */
static void run_walk(const kiln_cpu_call *c, block_fn run, bool has_src)
{
    walking g = {.run = run};
    walk *w = &g.w;
    bool any = make_walk(w, c, has_src);
    if (has_src && !(any && w->whole))
        kiln_copy_bytes(c->out[0].data, c->in[0].data, bytes_of(&c->out[0]));
    if (!any)
        return;
    int64_t wanted = kiln_range_count(w->leads * w->length * w->columns, 2);
    w->lead_tasks = parts(w->leads, 1, wanted);
    w->column_tasks = parts(w->columns, 16, wanted / w->lead_tasks);
    w->row_tasks = has_src ? 1 : parts(w->length, 64, wanted / w->lead_tasks / w->column_tasks); /* targets may meet */
    kiln_parallel(w->lead_tasks * w->row_tasks * w->column_tasks, walk_task, &g);
}

static void run_gather(const kiln_cpu_call *c)
{
    run_walk(c, gathers[kiln_word_slot(kiln_dtype_size(c->in[0].dtype))], false);
}

static void run_scatter(const kiln_cpu_call *c)
{
    run_walk(c, scatters[kiln_word_slot(kiln_dtype_size(c->in[0].dtype))], true);
}

static void run_scatter_add(const kiln_cpu_call *c)
{
    run_walk(c, scatter_adds[kiln_add_slot(c->in[0].dtype)], true);
}

/* ---- index_select ---- */

static void check_indices(const kiln_cpu_call *c, int64_t count, int64_t limit)
{
    const int64_t *index = c->in[1].data;
    if (all_below(index, count, limit))
        return;
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
    bool good;                 /* all indices are known to be */
} selecting;

/* Some rows of one part of x, by indices that are all good. Single elements are words; longer rows come from anywhere,
 * so that the processor has to be told in time. */
static void copy_rows(char *to, const char *from, int64_t row, const int64_t *index, int64_t count)
{
    enum { AHEAD = 8, LINE = 64, LINES = 4 };
#define SINGLE(size)                                                                                                   \
    for (int64_t i = 0; row == size && i < count; i++)                                                                 \
        ((kiln_word##size *)to)[i] = ((const kiln_word##size *)from)[index[i]];
    KILN_WORDS(SINGLE)
#undef SINGLE
    for (int64_t i = 0; row != 1 && row != 2 && row != 4 && row != 8 && i < count; i++) {
        if (i + AHEAD < count)
            for (int64_t at = 0; at < row && at < LINES * LINE; at += LINE)
                __builtin_prefetch(from + index[i + AHEAD] * row + at);
        memcpy(to + i * row, from + index[i] * row, (size_t)row);
    }
}

/* The same where there may be bad ones. */
static void copy_good_rows(const selecting *s, char *to, const char *from, int64_t first, int64_t count)
{
    const int64_t *index = s->call->in[1].data;
    for (int64_t i = first; i < first + count; i++, to += s->row) {
        if ((uint64_t)index[i] < (uint64_t)s->x.at) {
            memcpy(to, from + index[i] * s->row, (size_t)s->row);
            continue;
        }
        kiln_fault_report(s->call, i, index[i], s->x.at);
        memset(to, 0, (size_t)s->row);
    }
}

static void select_range(void *context, int64_t task, int worker)
{
    (void)worker;
    const selecting *s = context;
    const int64_t *index = s->call->in[1].data;
    int64_t items = s->x.before * s->count, end = kiln_range_begin(items, s->tasks, task + 1);
    for (int64_t item = kiln_range_begin(items, s->tasks, task), some; item < end; item += some) {
        int64_t part = item / s->count, first = item % s->count;
        some = s->count - first < end - item ? s->count - first : end - item;
        char *to = (char *)s->call->out[0].data + item * s->row;
        const char *from = (const char *)s->call->in[0].data + part * s->x.at * s->row;
        if (s->good || all_below(index + first, some, s->x.at))
            copy_rows(to, from, s->row, index + first, some);
        else
            copy_good_rows(s, to, from, first, some);
    }
}

static void run_index_select(const kiln_cpu_call *c)
{
    selecting s = {.call = c, .x = kiln_extent_at(&c->in[0], c->ints[0]), .count = c->in[1].shape[0]};
    s.row = s.x.after * (int64_t)kiln_dtype_size(c->in[0].dtype);
    s.tasks = s.row ? kiln_range_count(s.x.before * s.count, s.row / 4 + 4) : 0;
    if (!s.row)
        check_indices(c, s.count, s.x.at); /* there is nothing to copy, but a bad index is one all the same */
    s.good = s.x.before > 1 && all_below(c->in[1].data, s.count, s.x.at);
    kiln_parallel(s.tasks, select_range, &s);
}

/* ---- index_add ---- */

/* A task owns a bucket of target rows and some of their columns, in a range of the dims before: it copies them, then
 * adds what falls there. Where there are several buckets the indices are first dealt out to them, keeping their order.
 */
typedef struct summing {
    const kiln_cpu_call *call;
    kiln_extent x;
    int64_t count;
    int shift; /* a bucket is 2^shift rows */
    int64_t before_tasks, buckets, column_tasks;
    int64_t *start, *order; /* a bucket's indices are numbers order[start[bucket] … start[bucket + 1] - 1] */
} summing;

typedef struct target {
    int64_t o, bucket, column, columns;
} target;

enum { MOST_BUCKETS = 16 };

#define INDEX_ADD(name, T)                                                                                             \
    static void index_add_##name(const summing *s, const target *t)                                                    \
    {                                                                                                                  \
        const int64_t *index = s->call->in[1].data, width = s->x.after, columns = t->columns - t->column;              \
        int64_t row = t->bucket << s->shift, rows = (t->bucket + 1) << s->shift;                                       \
        const T *x = (const T *)s->call->in[0].data + t->o * s->x.at * width + t->column;                              \
        const T *src = (const T *)s->call->in[2].data + t->o * s->count * width + t->column;                           \
        T *y = (T *)s->call->out[0].data + t->o * s->x.at * width + t->column;                                         \
        rows = rows < s->x.at ? rows : s->x.at;                                                                        \
        if (x != y && columns == width)                                                                                \
            memcpy(y + row * width, x + row * width, (size_t)((rows - row) * width) * sizeof(T));                      \
        for (int64_t r = row; x != y && columns < width && r < rows; r++)                                              \
            memcpy(y + r * width, x + r * width, (size_t)columns * sizeof(T));                                         \
        int64_t first = s->order ? s->start[t->bucket] : 0, end = s->order ? s->start[t->bucket + 1] : s->count;       \
        for (int64_t n = first; n < end; n++) {                                                                        \
            int64_t i = s->order ? s->order[n] : n, k = index[i];                                                      \
            if ((uint64_t)k >= (uint64_t)s->x.at)                                                                      \
                continue; /* reported already */                                                                       \
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
    int64_t column_task = task % s->column_tasks, before_task = task / s->column_tasks / s->buckets;
    target t = {.bucket = task / s->column_tasks % s->buckets,
                .column = kiln_range_begin(s->x.after, s->column_tasks, column_task),
                .columns = kiln_range_begin(s->x.after, s->column_tasks, column_task + 1)};
    int64_t end = kiln_range_begin(s->x.before, s->before_tasks, before_task + 1);
    for (t.o = kiln_range_begin(s->x.before, s->before_tasks, before_task); t.o < end; t.o++)
        index_adds[kiln_add_slot(s->call->in[0].dtype)](s, &t);
}

/* How the work is cut, by shapes alone. */
static summing plan_sums(const kiln_cpu_call *c)
{
    summing s = {.call = c, .x = kiln_extent_at(&c->in[0], c->ints[0]), .count = c->in[1].shape[0], .buckets = 1};
    int64_t wanted = kiln_range_count(s.x.before * s.x.after * (s.x.at + s.count), 1);
    s.before_tasks = parts(s.x.before, 1, wanted);
    int64_t most = s.x.after < 8 ? 1 : parts(s.x.at, 4, wanted / s.before_tasks); /* short rows are soon added */
    most = most < MOST_BUCKETS ? most : MOST_BUCKETS;
    while (s.x.at > 0 && (s.x.at - 1) >> s.shift >= most)
        s.shift++;
    s.buckets = s.x.at > 0 ? ((s.x.at - 1) >> s.shift) + 1 : 1;
    s.column_tasks = parts(s.x.after, 64, wanted / s.before_tasks / s.buckets);
    return s;
}

/* Bad indices go to the first bucket, which passes them over. */
static int64_t bucket_of(const summing *s, int64_t k)
{
    return (uint64_t)k < (uint64_t)s->x.at ? k >> s->shift : 0;
}

static void deal_out(summing *s)
{
    const int64_t *index = s->call->in[1].data;
    int64_t at[MOST_BUCKETS] = {0};
    s->start = s->call->workspace;
    s->order = s->start + MOST_BUCKETS + 1;
    for (int64_t i = 0; i < s->count; i++)
        at[bucket_of(s, index[i])]++;
    s->start[0] = 0;
    for (int64_t b = 0; b < s->buckets; b++) {
        s->start[b + 1] = s->start[b] + at[b];
        at[b] = s->start[b];
    }
    for (int64_t i = 0; i < s->count; i++)
        s->order[at[bucket_of(s, index[i])]++] = i;
}

static size_t index_add_workspace(const kiln_cpu_call *c)
{
    summing s = plan_sums(c);
    return s.buckets > 1 ? (size_t)(MOST_BUCKETS + 1 + s.count) * sizeof(int64_t) : 0;
}

static void run_index_add(const kiln_cpu_call *c)
{
    summing s = plan_sums(c);
    check_indices(c, s.count, s.x.at);
    if (s.x.before * s.x.at * s.x.after == 0)
        return;
    if (s.buckets > 1)
        deal_out(&s);
    kiln_parallel(s.before_tasks * s.buckets * s.column_tasks, sum_task, &s);
}

enum { ADDED = KILN_T_INTS | 1 << KILN_F32 | 1 << KILN_F64 };

const kiln_cpu_kernel kiln_cpu_kernels_index[] = {
    {.op = "gather", .dtypes = KILN_T_ALL, .run = run_gather},
    {.op = "scatter", .dtypes = KILN_T_ALL, .run = run_scatter},
    {.op = "scatter_add", .dtypes = ADDED, .run = run_scatter_add},
    {.op = "index_select", .dtypes = KILN_T_ALL, .run = run_index_select},
    {.op = "index_add", .dtypes = ADDED, .run = run_index_add, .workspace = index_add_workspace},
    {.op = "cat", .dtypes = KILN_T_ALL, .run = kiln_cpu_cat},
    {.op = "constant_pad", .dtypes = KILN_T_ALL, .run = kiln_cpu_constant_pad},
    {.op = "as_strided_add", .dtypes = ADDED, .run = kiln_cpu_as_strided_add},
    {0},
};
