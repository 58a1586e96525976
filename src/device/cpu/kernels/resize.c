/* Resizing kernels. Interpolation is separable: each output position along an axis is a weighted sum of a few input
 * positions, its taps. These are tabulated for both axes in the workspace; a row is then made by summing whole input
 * rows and, from the result, the taps along the row. The adjoint takes the same steps backwards. */
#include "device/cpu/common/call.h"
#include "device/cpu/common/ranges.h"
#include "kiln/ops.h"

#include <math.h>
#include <string.h>

enum { MAX_TAPS = 4, ALIGNMENT = 64 };

typedef struct taps {
    int32_t at[MAX_TAPS];
    double weight[MAX_TAPS];
} taps;

typedef struct job {
    const kiln_cpu_call *c;
    int count;                  /* taps along each axis */
    int64_t in[2], out[2];      /* height and width of a plane before and after (the adjoint maps out to in) */
    const taps *rows, *columns; /* out[0] and out[1] of them */
    char *lines;                /* one scratch line of in[1] elements a task */
    size_t line_bytes;
    int64_t planes, items, tasks; /* items: what tasks share out: output rows, or planes for the adjoint */
} job;

/* ---- Taps, by PyTorch's rules ---- */

static void nearest_taps(taps *t, int64_t o, int64_t in, int64_t out)
{
    /* In float, as PyTorch does: where o·in/out is a whole number, rounding decides. */
    float scale = (float)in / (float)out;
    int64_t at = (int64_t)floorf((float)o * scale);
    t->at[0] = (int32_t)(at < in - 1 ? at : in - 1);
    t->weight[0] = 1;
}

static double source_position(int64_t o, int64_t in, int64_t out, bool align)
{
    if (align)
        return out > 1 ? (double)o * ((double)(in - 1) / (double)(out - 1)) : 0;
    return ((double)o + 0.5) * ((double)in / (double)out) - 0.5;
}

static void linear_taps(taps *t, double position, int64_t in)
{
    position = position > 0 ? position : 0;
    int64_t at = (int64_t)position < in - 1 ? (int64_t)position : in - 1;
    double part = position - (double)at;
    t->at[0] = (int32_t)at;
    t->at[1] = (int32_t)(at < in - 1 ? at + 1 : at);
    t->weight[0] = 1 - part;
    t->weight[1] = part;
}

/* Keys' cubic convolution, a = -0.75. Positions outside repeat the border. */
static void cubic_taps(taps *t, double position, int64_t in)
{
    const double a = -0.75;
    double whole = floor(position), part = position - whole;
    for (int k = 0; k < 4; k++) {
        int64_t at = (int64_t)whole - 1 + k;
        double d = fabs(part + 1 - k);
        t->at[k] = (int32_t)(at < 0 ? 0 : at < in ? at : in - 1);
        t->weight[k] = d <= 1 ? ((a + 2) * d - (a + 3)) * d * d + 1 : ((a * d - 5 * a) * d + 8 * a) * d - 4 * a;
    }
}

static void fill_taps(taps *table, int64_t in, int64_t out, kiln_resize mode, bool align)
{
    for (int64_t o = 0; o < out; o++) {
        if (mode == KILN_NEAREST)
            nearest_taps(&table[o], o, in, out);
        else if (mode == KILN_LINEAR)
            linear_taps(&table[o], source_position(o, in, out, align), in);
        else
            cubic_taps(&table[o], source_position(o, in, out, align), in);
    }
}

/* ---- Rows ---- */

#define RESIZE(T, name)                                                                                                \
    static void name##_row(const job *j, const T *plane, int64_t oy, T *line, T *y)                                    \
    {                                                                                                                  \
        const taps *row = &j->rows[oy];                                                                                \
        int64_t width = j->in[1];                                                                                      \
        for (int k = 0; k < j->count; k++) {                                                                           \
            const T *source = plane + row->at[k] * width;                                                              \
            T weight = (T)row->weight[k];                                                                              \
            for (int64_t x = 0; x < width; x++)                                                                        \
                line[x] = k ? line[x] + weight * source[x] : weight * source[x];                                       \
        }                                                                                                              \
        for (int64_t ox = 0; ox < j->out[1]; ox++) {                                                                   \
            const taps *column = &j->columns[ox];                                                                      \
            T sum = 0;                                                                                                 \
            for (int k = 0; k < j->count; k++)                                                                         \
                sum += (T)column->weight[k] * line[column->at[k]];                                                     \
            y[ox] = sum;                                                                                               \
        }                                                                                                              \
    }                                                                                                                  \
    static void name##_row_nearest(const job *j, const T *plane, int64_t oy, T *y)                                     \
    {                                                                                                                  \
        const T *source = plane + j->rows[oy].at[0] * j->in[1];                                                        \
        for (int64_t ox = 0; ox < j->out[1]; ox++)                                                                     \
            y[ox] = source[j->columns[ox].at[0]];                                                                      \
    }                                                                                                                  \
    static void name(void *context, int64_t task, int worker)                                                          \
    {                                                                                                                  \
        (void)worker;                                                                                                  \
        const job *j = context;                                                                                        \
        T *line = (T *)(void *)(j->lines + (size_t)task * j->line_bytes);                                              \
        int64_t last = kiln_range_begin(j->items, j->tasks, task + 1);                                                 \
        for (int64_t row = kiln_range_begin(j->items, j->tasks, task); row < last; row++) {                            \
            const T *plane = (const T *)j->c->in[0].data + row / j->out[0] * j->in[0] * j->in[1];                      \
            T *y = (T *)j->c->out[0].data + row * j->out[1];                                                           \
            if (j->count == 1)                                                                                         \
                name##_row_nearest(j, plane, row % j->out[0], y);                                                      \
            else                                                                                                       \
                name##_row(j, plane, row % j->out[0], line, y);                                                        \
        }                                                                                                              \
    }                                                                                                                  \
    static void name##_grad_row(const job *j, const T *gy, int64_t oy, T *line, T *plane)                              \
    {                                                                                                                  \
        const taps *row = &j->rows[oy];                                                                                \
        int64_t width = j->in[1];                                                                                      \
        memset(line, 0, (size_t)width * sizeof(T));                                                                    \
        for (int64_t ox = 0; ox < j->out[1]; ox++) {                                                                   \
            const taps *column = &j->columns[ox];                                                                      \
            for (int k = 0; k < j->count; k++)                                                                         \
                line[column->at[k]] += (T)column->weight[k] * gy[ox];                                                  \
        }                                                                                                              \
        for (int k = 0; k < j->count; k++) {                                                                           \
            T *target = plane + row->at[k] * width;                                                                    \
            T weight = (T)row->weight[k];                                                                              \
            for (int64_t x = 0; x < width; x++)                                                                        \
                target[x] += weight * line[x];                                                                         \
        }                                                                                                              \
    }                                                                                                                  \
    static void name##_grad(void *context, int64_t task, int worker)                                                   \
    {                                                                                                                  \
        (void)worker;                                                                                                  \
        const job *j = context;                                                                                        \
        T *line = (T *)(void *)(j->lines + (size_t)task * j->line_bytes);                                              \
        int64_t last = kiln_range_begin(j->items, j->tasks, task + 1), size = j->in[0] * j->in[1];                     \
        for (int64_t p = kiln_range_begin(j->items, j->tasks, task); p < last; p++) {                                  \
            T *plane = (T *)j->c->out[0].data + p * size;                                                              \
            memset(plane, 0, (size_t)size * sizeof(T));                                                                \
            const T *gy = (const T *)j->c->in[0].data + p * j->out[0] * j->out[1];                                     \
            for (int64_t oy = 0; oy < j->out[0]; oy++)                                                                 \
                name##_grad_row(j, gy + oy * j->out[1], oy, line, plane);                                              \
        }                                                                                                              \
    }
RESIZE(float, resize_f32)
RESIZE(double, resize_f64)

/* ---- The kernels ---- */

static size_t aligned(size_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static job describe(const kiln_cpu_call *c, bool adjoint)
{
    const int64_t *in = (adjoint ? c->out : c->in)[0].shape, *out = (adjoint ? c->in : c->out)[0].shape;
    job j = {.c = c, .in = {in[2], in[3]}, .out = {out[2], out[3]}, .planes = in[0] * in[1]};
    j.count = c->ints[0] == KILN_NEAREST ? 1 : c->ints[0] == KILN_LINEAR ? 2 : 4;
    j.items = adjoint ? j.planes : j.planes * j.out[0];
    j.tasks = kiln_range_count(j.items, (in[3] + out[3]) * j.count * (adjoint ? j.out[0] : 1));
    j.line_bytes = aligned((size_t)in[3] * kiln_dtype_size(c->in[0].dtype));
    return j;
}

static size_t workspace(const kiln_cpu_call *c, bool adjoint)
{
    job j = describe(c, adjoint);
    return aligned((size_t)(j.out[0] + j.out[1]) * sizeof(taps)) + (size_t)j.tasks * j.line_bytes;
}

static size_t resize_workspace(const kiln_cpu_call *c)
{
    return workspace(c, false);
}

static size_t resize_grad_workspace(const kiln_cpu_call *c)
{
    return workspace(c, true);
}

static void run(const kiln_cpu_call *c, bool adjoint)
{
    job j = describe(c, adjoint);
    if (j.items == 0)
        return;
    taps *table = c->workspace;
    fill_taps(table, j.in[0], j.out[0], (kiln_resize)c->ints[0], c->ints[1] != 0);
    fill_taps(table + j.out[0], j.in[1], j.out[1], (kiln_resize)c->ints[0], c->ints[1] != 0);
    j.rows = table;
    j.columns = table + j.out[0];
    j.lines = (char *)c->workspace + aligned((size_t)(j.out[0] + j.out[1]) * sizeof(taps));
    bool wide = c->in[0].dtype == KILN_F64;
    if (adjoint)
        kiln_parallel(j.tasks, wide ? resize_f64_grad : resize_f32_grad, &j);
    else
        kiln_parallel(j.tasks, wide ? resize_f64 : resize_f32, &j);
}

static void resize(const kiln_cpu_call *c)
{
    run(c, false);
}

static void resize_grad(const kiln_cpu_call *c)
{
    run(c, true);
}

enum { REAL = 1 << KILN_F32 | 1 << KILN_F64 };

const kiln_cpu_kernel kiln_cpu_kernels_resize[] = {
    {.op = "resize", .dtypes = REAL, .run = resize, .workspace = resize_workspace},
    {.op = "resize_grad", .dtypes = REAL, .run = resize_grad, .workspace = resize_grad_workspace},
    {0},
};
