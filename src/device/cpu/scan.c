/* Running sums and products along a dim. f32 rows are carried in double, so that a long row loses nothing on the way.
 */
#include "device/cpu/call.h"
#include "device/cpu/place.h"
#include "device/cpu/ranges.h"
#include "ops/op.h"

enum { LANES = 64 }; /* columns scanned side by side */

typedef struct scanning {
    const void *x;
    void *y;
    kiln_extent extent;
    void (*run)(const void *x, void *y, int64_t rows, int64_t stride, int64_t lanes);
    int64_t blocks, tasks, size; /* blocks of lanes in a row; bytes of an element */
} scanning;

/* y[i] = x[0] ∘ … ∘ x[i], `stride` elements apart, for `lanes` neighbouring columns. W carries, T is stored. */
#define SCAN(name, T, W, start, op)                                                                                    \
    static void name(const void *from, void *to, int64_t rows, int64_t stride, int64_t lanes)                          \
    {                                                                                                                  \
        const T *x = from;                                                                                             \
        T *y = to;                                                                                                     \
        W carry[LANES];                                                                                                \
        if (lanes == 1) {                                                                                              \
            W one = start;                                                                                             \
            for (int64_t i = 0; i < rows; i++)                                                                         \
                y[i * stride] = (T)(one = one op x[i * stride]);                                                       \
            return;                                                                                                    \
        }                                                                                                              \
        for (int64_t j = 0; j < lanes; j++)                                                                            \
            carry[j] = start;                                                                                          \
        for (int64_t i = 0; i < rows; i++)                                                                             \
            for (int64_t j = 0; j < lanes; j++)                                                                        \
                y[i * stride + j] = (T)(carry[j] = carry[j] op x[i * stride + j]);                                     \
    }
SCAN(sum_f32, float, double, 0, +)
SCAN(sum_f64, double, double, 0, +)
SCAN(sum_i64, uint64_t, uint64_t, 0, +) /* unsigned, so that it may wrap */
SCAN(prod_f32, float, double, 1, *)
SCAN(prod_f64, double, double, 1, *)
SCAN(prod_i64, uint64_t, uint64_t, 1, *)

static void scan_range(void *context, int64_t task, int worker)
{
    (void)worker;
    const scanning *s = context;
    kiln_extent e = s->extent;
    int64_t items = e.before * s->blocks, end = kiln_range_begin(items, s->tasks, task + 1);
    for (int64_t item = kiln_range_begin(items, s->tasks, task); item < end; item++) {
        int64_t block = item % s->blocks, lane = block * LANES;
        int64_t at = (item / s->blocks * e.at * e.after + lane) * s->size;
        s->run((const char *)s->x + at, (char *)s->y + at, e.at, e.after,
               e.after - lane < LANES ? e.after - lane : LANES);
    }
}

static void scan(const kiln_cpu_call *c, void (*f32)(const void *, void *, int64_t, int64_t, int64_t),
                 void (*f64)(const void *, void *, int64_t, int64_t, int64_t),
                 void (*i64)(const void *, void *, int64_t, int64_t, int64_t))
{
    kiln_dtype dtype = c->in[0].dtype;
    scanning s = {.x = c->in[0].data,
                  .y = c->out[0].data,
                  .extent = kiln_extent_at(&c->in[0], c->ints[0]),
                  .run = dtype == KILN_F32   ? f32
                         : dtype == KILN_F64 ? f64
                                             : i64,
                  .size = (int64_t)kiln_dtype_size(dtype)};
    kiln_extent e = s.extent;
    if (e.before * e.at * e.after == 0)
        return;
    s.blocks = (e.after + LANES - 1) / LANES;
    s.tasks = kiln_range_count(e.before * s.blocks, e.at * (e.after < LANES ? e.after : LANES));
    kiln_parallel(s.tasks, scan_range, &s);
}

static void run_cumsum(const kiln_cpu_call *c)
{
    scan(c, sum_f32, sum_f64, sum_i64);
}

static void run_cumprod(const kiln_cpu_call *c)
{
    scan(c, prod_f32, prod_f64, prod_i64);
}

enum { SCANNED = 1 << KILN_F32 | 1 << KILN_F64 | 1 << KILN_I64 };

const kiln_cpu_kernel kiln_cpu_kernels_scan[] = {
    {.op = "cumsum", .dtypes = SCANNED, .run = run_cumsum},
    {.op = "cumprod", .dtypes = SCANNED, .run = run_cumprod},
    {0},
};
