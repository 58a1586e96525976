/* Pooling kernels, in parallel over planes. A plane's windows are visited in row-major order. Planes of halves are
 * converted to f32 and back, each by the task that pools it. */
#include <string.h>
#include "device/cpu/common/call.h"
#include "device/cpu/common/isa.h"
#include "device/cpu/common/ranges.h"
#include "device/cpu/group/pointwise.h"
#include "device/cpu/kernels/pool_kernels.h"
#include "ops/op.h"

/* A window along one axis: elements first, first + step, … below end. `span` counts the padding it covers, for means.
 */
typedef struct window {
    int64_t first, end, step, span;
} window;

typedef struct axis {
    int64_t size, out; /* of input and output */
    int64_t kernel, stride, padding, dilation;
    bool adaptive;
} axis;

static inline window window_at(const axis *a, int64_t o)
{
    if (a->adaptive) {
        int64_t first = o * a->size / a->out, end = ((o + 1) * a->size + a->out - 1) / a->out;
        return (window){first, end, 1, end - first};
    }
    int64_t first = o * a->stride - a->padding, end = first + a->dilation * (a->kernel - 1) + 1;
    int64_t padded_end = end < a->size + a->padding ? end : a->size + a->padding, span = padded_end - first;
    if (first < 0)
        first += (-first + a->dilation - 1) / a->dilation * a->dilation;
    return (window){first, end < a->size ? end : a->size, a->dilation, span};
}

typedef struct job {
    const kiln_cpu_call *c;
    const kiln_pool_kernels *kernels;
    axis y, x;
    bool include_pad;
    int64_t planes, tasks;
    void (*body)(void *, int64_t, int);
    int64_t before; /* planes of the call before the first of these */
} job;

#define FOR_PLANES(j, task)                                                                                            \
    for (int64_t plane = kiln_range_begin((j)->planes, (j)->tasks, task),                                              \
                 last = kiln_range_begin((j)->planes, (j)->tasks, task + 1);                                           \
         plane < last; plane++)

/* ---- Halves ---- */

static int64_t plane_of(const kiln_cpu_operand *o)
{
    return o->shape[2] * o->shape[3];
}

static bool is_half(kiln_dtype dtype)
{
    return dtype == KILN_F16 || dtype == KILN_BF16;
}

/* A plane of the operand and one of the result, for each worker. */
static size_t workspace(const kiln_cpu_call *c)
{
    int64_t each = plane_of(&c->in[0]) + plane_of(&c->out[0]);
    return is_half(c->in[0].dtype) ? (size_t)(each * kiln_threads()) * sizeof(float) : 0;
}

/* Each plane as a call of its own. A second operand or result are the places of maxima. */
static void pool_halves(void *context, int64_t task, int worker)
{
    const job *j = context;
    const kiln_cpu_call *c = j->c;
    kiln_dtype dtype = c->in[0].dtype;
    int64_t in = plane_of(&c->in[0]), out = plane_of(&c->out[0]);
    float *x = (float *)c->workspace + (in + out) * worker, *y = x + in;
    kiln_cpu_call one = *c;
    job mine = *j;
    mine.c = &one;
    mine.planes = mine.tasks = 1;
    one.in[0].data = x;
    one.out[0].data = y;
    FOR_PLANES(j, task)
    {
        mine.before = plane;
        if (c->nin > 1)
            one.in[1].data = (int64_t *)c->in[1].data + plane * in;
        if (c->nout > 1)
            one.out[1].data = (int64_t *)c->out[1].data + plane * out;
        kiln_pw_best()->load[dtype](x, (const uint16_t *)c->in[0].data + plane * in, in);
        j->body(&mine, 0, worker);
        kiln_pw_best()->store[dtype]((uint16_t *)c->out[0].data + plane * out, y, out);
    }
}

static void start(job *j, void (*body)(void *, int64_t, int))
{
    const int64_t *shape = j->c->in[0].shape;
    j->kernels = kiln_isa_pick(kiln_pool_plain, kiln_pool_avx2, kiln_pool_avx512);
    j->planes = shape[0] * shape[1];
    int64_t in = j->y.size * j->x.size, out = j->y.out * j->x.out;
    int64_t windows = j->y.adaptive ? 0 : out * j->y.kernel * j->x.kernel;
    j->tasks = kiln_range_count(j->planes, in + out + windows);
    j->body = body;
    kiln_parallel(j->tasks, is_half(j->c->in[0].dtype) ? pool_halves : body, j);
}

/* ---- Maxima. A NaN is taken over any number. ---- */

/* Windows of a row that lie wholly inside, many at a time: returns how many from `ox` on were done. */
static int64_t many_f64(const job *j, const window *wy, int64_t ox, const double *x, double *values, int64_t *indices)
{
    (void)j, (void)wy, (void)ox, (void)x, (void)values, (void)indices;
    return 0;
}

static int64_t many_f32(const job *j, const window *wy, int64_t ox, const float *x, float *values, int64_t *indices)
{
    const axis *a = &j->x;
    int64_t lanes = j->kernels->lanes, plane = j->y.size * a->size, first = ox * a->stride - a->padding;
    if (a->adaptive || a->stride > 2 || first < 0 || a->out - ox < lanes || plane > INT32_MAX)
        return 0;
    int64_t span = (a->kernel - 1) * a->dilation + 1, inside = (a->size - span - first) / a->stride + 1;
    int64_t rows = (wy->end - wy->first + wy->step - 1) / wy->step, last = wy->first + (rows - 1) * wy->step;
    int64_t behind = plane - last * a->size - first - span + 1 - 2 * lanes; /* what may be read beyond a vector */
    int64_t readable = behind / a->stride + lanes, n = a->out - ox;
    n = n < inside ? n : inside;
    n = n < readable ? n : readable;
    if (behind < 0 || first + span > a->size || n < lanes)
        return 0;
    j->kernels->max_row(x, wy->first * a->size + first, n, a->stride, rows, wy->step * a->size, a->kernel, a->dilation,
                        values, indices);
    return n;
}

#define MAXIMA(T, name, many)                                                                                          \
    static void name##_plane(const job *j, const T *x, T *values, int64_t *indices)                                    \
    {                                                                                                                  \
        for (int64_t oy = 0; oy < j->y.out; oy++) {                                                                    \
            window wy = window_at(&j->y, oy);                                                                          \
            bool tried = false;                                                                                        \
            for (int64_t ox = 0; ox < j->x.out; ox++) {                                                                \
                window wx = window_at(&j->x, ox);                                                                      \
                if (!tried && (j->x.adaptive || ox * j->x.stride >= j->x.padding)) {                                   \
                    int64_t done = many(j, &wy, ox, x, values, indices);                                               \
                    tried = true;                                                                                      \
                    values += done;                                                                                    \
                    indices += done;                                                                                   \
                    ox += done;                                                                                        \
                    if (ox == j->x.out)                                                                                \
                        break;                                                                                         \
                    wx = window_at(&j->x, ox);                                                                         \
                }                                                                                                      \
                int64_t best = wy.first * j->x.size + wx.first;                                                        \
                T value = x[best];                                                                                     \
                for (int64_t iy = wy.first; iy < wy.end; iy += wy.step)                                                \
                    for (int64_t at = iy * j->x.size + wx.first; at < iy * j->x.size + wx.end; at += wx.step) {        \
                        bool better = x[at] > value || x[at] != x[at];                                                 \
                        best = better ? at : best;                                                                     \
                        value = better ? x[at] : value;                                                                \
                    }                                                                                                  \
                *values++ = value;                                                                                     \
                *indices++ = best;                                                                                     \
            }                                                                                                          \
        }                                                                                                              \
    }                                                                                                                  \
    static void name(void *context, int64_t task, int worker)                                                          \
    {                                                                                                                  \
        (void)worker;                                                                                                  \
        const job *j = context;                                                                                        \
        int64_t in = j->y.size * j->x.size, out = j->y.out * j->x.out;                                                 \
        FOR_PLANES(j, task)                                                                                            \
        name##_plane(j, (const T *)j->c->in[0].data + plane * in, (T *)j->c->out[0].data + plane * out,                \
                     (int64_t *)j->c->out[1].data + plane * out);                                                      \
    }
MAXIMA(float, maxima_f32, many_f32)
MAXIMA(double, maxima_f64, many_f64)

/* The most frequent windows: 2 × 2, side by side, that cover the plane. */
static bool is_by_twos(const job *j)
{
    const axis *y = &j->y, *x = &j->x;
    return y->kernel == 2 && x->kernel == 2 && y->stride == 2 && x->stride == 2 && y->padding == 0 && x->padding == 0 &&
           y->dilation == 1 && x->dilation == 1 && 2 * y->out == y->size && 2 * x->out == x->size &&
           y->size <= INT32_MAX / x->size;
}

static void maxima_by_twos(void *context, int64_t task, int worker)
{
    (void)worker;
    const job *j = context;
    int64_t in = j->y.size * j->x.size, out = j->y.out * j->x.out;
    int64_t first = kiln_range_begin(j->planes, j->tasks, task), end = kiln_range_begin(j->planes, j->tasks, task + 1);
    j->kernels->max2((const float *)j->c->in[0].data + first * in, end - first, j->y.out, j->x.out,
                     (float *)j->c->out[0].data + first * out, (int64_t *)j->c->out[1].data + first * out);
}

/* The adjoint: elements are added to where the maxima were found. */
#define PLACE(T, name)                                                                                                 \
    static void name(void *context, int64_t task, int worker)                                                          \
    {                                                                                                                  \
        (void)worker;                                                                                                  \
        const job *j = context;                                                                                        \
        int64_t in = j->y.out * j->x.out, out = j->y.size * j->x.size;                                                 \
        FOR_PLANES(j, task)                                                                                            \
        {                                                                                                              \
            const T *gy = (const T *)j->c->in[0].data + plane * in;                                                    \
            const int64_t *index = (const int64_t *)j->c->in[1].data + plane * in;                                     \
            T *gx = (T *)j->c->out[0].data + plane * out;                                                              \
            memset(gx, 0, (size_t)out * sizeof(T));                                                                    \
            for (int64_t i = 0; i < in; i++)                                                                           \
                if ((uint64_t)index[i] < (uint64_t)out)                                                                \
                    gx[index[i]] += gy[i];                                                                             \
                else                                                                                                   \
                    kiln_fault_report(j->c, (j->before + plane) * in + i, index[i], out);                              \
        }                                                                                                              \
    }
PLACE(float, place_f32)
PLACE(double, place_f64)

/* ---- Means and their adjoint. Sums are made in double: windows of adaptive pooling can be whole planes. ---- */

static inline int64_t divisor(const job *j, const window *wy, const window *wx)
{
    return j->include_pad ? wy->span * wx->span : (wy->end - wy->first) * (wx->end - wx->first);
}

/* A window as wide as the plane is one run of memory. */
#define MEANS(T, name)                                                                                                 \
    static inline double name##_run(const T *x, int64_t n)                                                             \
    {                                                                                                                  \
        double lanes[8] = {0}, sum = 0;                                                                                \
        int64_t i = 0;                                                                                                 \
        for (; i + 8 <= n; i += 8)                                                                                     \
            for (int l = 0; l < 8; l++)                                                                                \
                lanes[l] += (double)x[i + l];                                                                          \
        for (; i < n; i++)                                                                                             \
            sum += (double)x[i];                                                                                       \
        for (int l = 0; n >= 8 && l < 8; l++)                                                                          \
            sum += lanes[l];                                                                                           \
        return sum;                                                                                                    \
    }                                                                                                                  \
    static inline double name##_window(const job *j, const T *x, const window *wy, const window *wx)                   \
    {                                                                                                                  \
        int64_t width = wx->end - wx->first, height = wy->end - wy->first;                                             \
        const T *corner = x + wy->first * j->x.size + wx->first;                                                       \
        if (width == j->x.size)                                                                                        \
            return name##_run(corner, height * width);                                                                 \
        double sum = 0;                                                                                                \
        for (int64_t row = 0; row < height; row++)                                                                     \
            for (int64_t i = 0; i < width; i++)                                                                        \
                sum += (double)corner[row * j->x.size + i];                                                            \
        return sum;                                                                                                    \
    }                                                                                                                  \
    static void name##_plane(const job *j, const T *x, T *y)                                                           \
    {                                                                                                                  \
        for (int64_t oy = 0; oy < j->y.out; oy++) {                                                                    \
            window wy = window_at(&j->y, oy);                                                                          \
            for (int64_t ox = 0; ox < j->x.out; ox++) {                                                                \
                window wx = window_at(&j->x, ox);                                                                      \
                bool empty = wy.first >= wy.end || wx.first >= wx.end;                                                 \
                *y++ = empty ? 0 : (T)(name##_window(j, x, &wy, &wx) / (double)divisor(j, &wy, &wx));                  \
            }                                                                                                          \
        }                                                                                                              \
    }                                                                                                                  \
    static void name(void *context, int64_t task, int worker)                                                          \
    {                                                                                                                  \
        (void)worker;                                                                                                  \
        const job *j = context;                                                                                        \
        FOR_PLANES(j, task)                                                                                            \
        name##_plane(j, (const T *)j->c->in[0].data + plane * j->y.size * j->x.size,                                   \
                     (T *)j->c->out[0].data + plane * j->y.out * j->x.out);                                            \
    }                                                                                                                  \
    static void name##_grad_plane(const job *j, const T *gy, T *gx)                                                    \
    {                                                                                                                  \
        memset(gx, 0, (size_t)(j->y.size * j->x.size) * sizeof(T));                                                    \
        for (int64_t oy = 0; oy < j->y.out; oy++) {                                                                    \
            window wy = window_at(&j->y, oy);                                                                          \
            for (int64_t ox = 0; ox < j->x.out; ox++, gy++) {                                                          \
                window wx = window_at(&j->x, ox);                                                                      \
                if (wy.first >= wy.end || wx.first >= wx.end)                                                          \
                    continue;                                                                                          \
                T share = (T)((double)*gy / (double)divisor(j, &wy, &wx));                                             \
                for (int64_t iy = wy.first; iy < wy.end; iy++)                                                         \
                    for (int64_t ix = wx.first; ix < wx.end; ix++)                                                     \
                        gx[iy * j->x.size + ix] += share;                                                              \
            }                                                                                                          \
        }                                                                                                              \
    }                                                                                                                  \
    static void name##_grad(void *context, int64_t task, int worker)                                                   \
    {                                                                                                                  \
        (void)worker;                                                                                                  \
        const job *j = context;                                                                                        \
        FOR_PLANES(j, task)                                                                                            \
        name##_grad_plane(j, (const T *)j->c->in[0].data + plane * j->y.out * j->x.out,                                \
                          (T *)j->c->out[0].data + plane * j->y.size * j->x.size);                                     \
    }
MEANS(float, means_f32)
MEANS(double, means_f64)

/* ---- The kernels: attributes to axes ---- */

static bool is_f64(const kiln_cpu_call *c)
{
    return c->in[0].dtype == KILN_F64;
}

static void max_pool(const kiln_cpu_call *c)
{
    const int64_t *i = c->ints, *size = c->in[0].shape + 2;
    job j = {.c = c,
             .y = {.size = size[0], .out = i[8], .kernel = i[0], .stride = i[2], .padding = i[4], .dilation = i[6]},
             .x = {.size = size[1], .out = i[9], .kernel = i[1], .stride = i[3], .padding = i[5], .dilation = i[7]}};
    start(&j, is_f64(c) ? maxima_f64 : is_by_twos(&j) ? maxima_by_twos : maxima_f32);
}

static void max_pool_grad(const kiln_cpu_call *c)
{
    const int64_t *size = c->ints, *out = c->in[0].shape + 2;
    job j = {.c = c, .y = {.size = size[0], .out = out[0]}, .x = {.size = size[1], .out = out[1]}};
    start(&j, is_f64(c) ? place_f64 : place_f32);
}

static job averaging(const kiln_cpu_call *c, const int64_t *size)
{
    const int64_t *i = c->ints;
    return (job){.c = c,
                 .y = {.size = size[0], .out = i[6], .kernel = i[0], .stride = i[2], .padding = i[4], .dilation = 1},
                 .x = {.size = size[1], .out = i[7], .kernel = i[1], .stride = i[3], .padding = i[5], .dilation = 1},
                 .include_pad = i[8] != 0};
}

static void avg_pool(const kiln_cpu_call *c)
{
    job j = averaging(c, c->in[0].shape + 2);
    start(&j, is_f64(c) ? means_f64 : means_f32);
}

static void avg_pool_grad(const kiln_cpu_call *c)
{
    job j = averaging(c, c->out[0].shape + 2);
    start(&j, is_f64(c) ? means_f64_grad : means_f32_grad);
}

static job adaptive(const kiln_cpu_call *c, const int64_t *size, const int64_t *out)
{
    return (job){.c = c,
                 .y = {.size = size[0], .out = out[0], .adaptive = true},
                 .x = {.size = size[1], .out = out[1], .adaptive = true}};
}

/* Of whole planes: global average pooling. */
static void means_of_planes(void *context, int64_t task, int worker)
{
    (void)worker;
    const job *j = context;
    int64_t first = kiln_range_begin(j->planes, j->tasks, task), end = kiln_range_begin(j->planes, j->tasks, task + 1);
    int64_t plane = j->y.size * j->x.size;
    j->kernels->means((const float *)j->c->in[0].data + first * plane, end - first, plane,
                      (float *)j->c->out[0].data + first);
}

static void adaptive_avg_pool(const kiln_cpu_call *c)
{
    job j = adaptive(c, c->in[0].shape + 2, c->out[0].shape + 2);
    bool whole = j.y.out == 1 && j.x.out == 1;
    start(&j, is_f64(c) ? means_f64 : whole ? means_of_planes : means_f32);
}

static void adaptive_avg_pool_grad(const kiln_cpu_call *c)
{
    job j = adaptive(c, c->out[0].shape + 2, c->in[0].shape + 2);
    start(&j, is_f64(c) ? means_f64_grad : means_f32_grad);
}

static void adaptive_max_pool(const kiln_cpu_call *c)
{
    job j = adaptive(c, c->in[0].shape + 2, c->out[0].shape + 2);
    start(&j, is_f64(c) ? maxima_f64 : maxima_f32);
}

#define ROW(name)                                                                                                      \
    {                                                                                                                  \
        .op = #name, .dtypes = KILN_T_FLOATS, .run = name, .workspace = workspace                                      \
    }
const kiln_cpu_kernel kiln_cpu_kernels_pool[] = {
    ROW(max_pool),          ROW(max_pool_grad),          ROW(avg_pool),          ROW(avg_pool_grad),
    ROW(adaptive_avg_pool), ROW(adaptive_avg_pool_grad), ROW(adaptive_max_pool), {0},
};
