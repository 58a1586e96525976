/* Running sums, products and linear recurrences along a dim. f32 rows are carried in double, so that a long row loses
 * nothing on the way. Each step waits for the one before, so that several scans run side by side: neighbouring columns,
 * or rows where there is one column. */
#include "device/cpu/common/call.h"
#include "device/cpu/kernels/strided.h"
#include "device/cpu/common/ranges.h"
#include "ops/op.h"

enum { COLUMNS = 64, ROWS = 4 }; /* scanned side by side; more rows of 4 KiB would share too few lines of the cache */

/* Some scans of `length` elements, `step` apart; the scans themselves are `apart` (1: columns). */
typedef struct scan_block {
    const void *a, *b; /* b: a recurrence's terms, whose factors are a */
    void *y;
    int64_t length, step, count, apart;
    bool backward;
} scan_block;

typedef void (*scan_fn)(const scan_block *s);

#define SCANS static inline __attribute__((always_inline)) void

/* y[i] = x[0] ∘ … ∘ x[i]. W carries, T is stored. The compiler makes vectors of columns. */
#define SCAN(name, T, W, start, op)                                                                                    \
    SCANS name##_of(const scan_block *s, int64_t apart)                                                                \
    {                                                                                                                  \
        const T *x = s->a;                                                                                             \
        T *y = s->y;                                                                                                   \
        W carry[COLUMNS];                                                                                              \
        for (int64_t j = 0; j < s->count; j++)                                                                         \
            carry[j] = start;                                                                                          \
        for (int64_t i = 0; i < s->length; i++, x += s->step, y += s->step)                                            \
            for (int64_t j = 0; j < s->count; j++)                                                                     \
                y[j * apart] = (T)(carry[j] = carry[j] op x[j * apart]);                                               \
    }                                                                                                                  \
    BLOCKS(name)

/* s[i] = b[i] + a[i]·s[i-1]; backward s[i] = b[i] + a[i+1]·s[i+1] */
#define RECUR(name, T)                                                                                                 \
    SCANS name##_of(const scan_block *s, int64_t apart)                                                                \
    {                                                                                                                  \
        double carry[COLUMNS] = {0};                                                                                   \
        for (int64_t k = 0; k < s->length; k++) {                                                                      \
            int64_t at = (s->backward ? s->length - 1 - k : k) * s->step, from = s->backward ? at + s->step : at;      \
            const T *b = (const T *)s->b + at, *a = (const T *)s->a + (k ? from : at);                                 \
            T *y = (T *)s->y + at;                                                                                     \
            for (int64_t j = 0; j < s->count; j++)                                                                     \
                y[j * apart] = (T)(carry[j] = k ? b[j * apart] + a[j * apart] * carry[j] : b[j * apart]);              \
        }                                                                                                              \
    }                                                                                                                  \
    BLOCKS(name)

/* Columns, and as many rows as run side by side, with numbers that the compiler knows. */
#define BLOCKS(name)                                                                                                   \
    static void name(const scan_block *s)                                                                              \
    {                                                                                                                  \
        scan_block known = *s;                                                                                         \
        if (s->apart == 1)                                                                                             \
            name##_of(s, 1);                                                                                           \
        else if (s->count == ROWS && s->step == 1) {                                                                   \
            known.count = ROWS;                                                                                        \
            known.step = 1;                                                                                            \
            name##_of(&known, s->apart);                                                                               \
        } else                                                                                                         \
            name##_of(s, s->apart);                                                                                    \
    }

SCAN(sum_f32, float, double, 0, +)
SCAN(sum_f64, double, double, 0, +)
SCAN(sum_i64, uint64_t, uint64_t, 0, +) /* unsigned, so that it may wrap */
SCAN(prod_f32, float, double, 1, *)
SCAN(prod_f64, double, double, 1, *)
SCAN(prod_i64, uint64_t, uint64_t, 1, *)
RECUR(recur_f32, float)
RECUR(recur_f64, double)

typedef struct scanning {
    const kiln_cpu_call *call;
    kiln_extent extent;
    scan_fn run;
    bool backward;
    int64_t blocks, tasks; /* blocks: of columns in each part before dim, or of rows */
} scanning;

static scan_block block_at(const scanning *s, int64_t item)
{
    const kiln_cpu_call *c = s->call;
    kiln_extent e = s->extent;
    bool rows = e.after == 1;
    int64_t first = rows ? item * ROWS : item % s->blocks * COLUMNS, limit = rows ? ROWS : COLUMNS;
    int64_t count = (rows ? e.before : e.after) - first, size = (int64_t)kiln_dtype_size(c->in[0].dtype);
    int64_t at = (rows ? first * e.at : item / s->blocks * e.at * e.after + first) * size;
    return (scan_block){.a = (const char *)c->in[0].data + at,
                        .b = c->nin > 1 ? (const char *)c->in[1].data + at : NULL,
                        .y = (char *)c->out[0].data + at,
                        .length = e.at,
                        .step = e.after,
                        .count = count < limit ? count : limit,
                        .apart = rows ? e.at : 1,
                        .backward = s->backward};
}

static void scan_range(void *context, int64_t task, int worker)
{
    (void)worker;
    const scanning *s = context;
    int64_t items = s->extent.after == 1 ? s->blocks : s->extent.before * s->blocks;
    int64_t end = kiln_range_begin(items, s->tasks, task + 1);
    for (int64_t item = kiln_range_begin(items, s->tasks, task); item < end; item++) {
        scan_block b = block_at(s, item);
        s->run(&b);
    }
}

static void scan(const kiln_cpu_call *c, scan_fn f32, scan_fn f64, scan_fn i64, bool backward)
{
    kiln_dtype dtype = c->in[0].dtype;
    scanning s = {.call = c,
                  .extent = kiln_extent_at(&c->in[0], c->ints[0]),
                  .run = dtype == KILN_F32   ? f32
                         : dtype == KILN_F64 ? f64
                                             : i64,
                  .backward = backward};
    kiln_extent e = s.extent;
    if (e.before * e.at * e.after == 0)
        return;
    bool rows = e.after == 1;
    s.blocks = rows ? (e.before + ROWS - 1) / ROWS : (e.after + COLUMNS - 1) / COLUMNS;
    s.tasks = kiln_range_count(rows ? s.blocks : e.before * s.blocks, e.at * (rows                ? ROWS
                                                                              : e.after < COLUMNS ? e.after
                                                                                                  : COLUMNS));
    kiln_parallel(s.tasks, scan_range, &s);
}

static void run_cumsum(const kiln_cpu_call *c)
{
    scan(c, sum_f32, sum_f64, sum_i64, false);
}

static void run_cumprod(const kiln_cpu_call *c)
{
    scan(c, prod_f32, prod_f64, prod_i64, false);
}

static void run_linear_recurrence(const kiln_cpu_call *c)
{
    scan(c, recur_f32, recur_f64, NULL, c->ints[1]);
}

enum { SCANNED = 1 << KILN_F32 | 1 << KILN_F64 | 1 << KILN_I64 };

const kiln_cpu_kernel kiln_cpu_kernels_scan[] = {
    {.op = "cumsum", .dtypes = SCANNED, .run = run_cumsum},
    {.op = "cumprod", .dtypes = SCANNED, .run = run_cumprod},
    {.op = "linear_recurrence", .dtypes = 1 << KILN_F32 | 1 << KILN_F64, .run = run_linear_recurrence},
    {0},
};
