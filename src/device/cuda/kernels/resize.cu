/* Resizing of planes. Interpolation is separable: each output position along an axis is a weighted sum of a few input
 * positions, its taps, which are tabulated in the workspace. For the adjoint each input position also knows which
 * outputs tap it: neighbours, since taps never go back. */
#include "device/cuda/kernels/shape.cuh"
#include "kiln/ops.h"

enum { MAX_TAPS = 4 };

typedef struct taps {
    int32_t at[MAX_TAPS];
    double weight[MAX_TAPS];
} taps;

typedef struct range { /* of output positions */
    int32_t first, last;
} range;

typedef struct resizing {
    int count;             /* taps along each axis */
    int64_t in[2], out[2]; /* height and width of a plane before and after (the adjoint maps out to in) */
    int64_t planes;
    kiln_resize mode;
    bool align;
    taps *table;   /* of the out[0] rows, then of the out[1] columns */
    range *tapped; /* by output: of the in[0] rows, then of the in[1] columns */
} resizing;

/* ---- Taps, by PyTorch's rules ---- */

static __device__ void nearest_taps(taps *t, int64_t o, int64_t in, int64_t out)
{
    /* In float, as PyTorch does: where o·in/out is a whole number, rounding decides. */
    float scale = __fdiv_rn((float)in, (float)out);
    int64_t at = (int64_t)floorf(__fmul_rn((float)o, scale));
    t->at[0] = (int32_t)(at < in - 1 ? at : in - 1);
    t->weight[0] = 1;
}

static __device__ double source_position(int64_t o, int64_t in, int64_t out, bool align)
{
    if (align)
        return out > 1 ? (double)o * ((double)(in - 1) / (double)(out - 1)) : 0;
    return __dsub_rn(__dmul_rn((double)o + 0.5, (double)in / (double)out), 0.5);
}

static __device__ void linear_taps(taps *t, double position, int64_t in)
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
static __device__ void cubic_taps(taps *t, double position, int64_t in)
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

static __global__ void fill_taps(resizing r)
{
    KILN_CUDA_EACH(i, r.out[0] + r.out[1])
    {
        int axis = i >= r.out[0];
        int64_t o = axis ? i - r.out[0] : i, in = r.in[axis], out = r.out[axis];
        if (r.mode == KILN_NEAREST)
            nearest_taps(&r.table[i], o, in, out);
        else if (r.mode == KILN_LINEAR)
            linear_taps(&r.table[i], source_position(o, in, out, r.align), in);
        else
            cubic_taps(&r.table[i], source_position(o, in, out, r.align), in);
    }
}

/* The first of n outputs whose tap number `tap` is at `least` or behind it; n if there is none. */
static __device__ int32_t first_tapping(const taps *table, int64_t n, int tap, int64_t least)
{
    int64_t from = 0, to = n;
    while (from < to) {
        int64_t middle = from + (to - from) / 2;
        if (table[middle].at[tap] < least)
            from = middle + 1;
        else
            to = middle;
    }
    return (int32_t)from;
}

static __global__ void fill_ranges(resizing r)
{
    KILN_CUDA_EACH(i, r.in[0] + r.in[1])
    {
        int axis = i >= r.in[0];
        int64_t at = axis ? i - r.in[0] : i;
        const taps *table = r.table + (axis ? r.out[0] : 0);
        r.tapped[i].first = first_tapping(table, r.out[axis], r.count - 1, at);
        r.tapped[i].last = first_tapping(table, r.out[axis], 0, at + 1) - 1;
    }
}

/* ---- Planes ---- */

template <typename T, int COUNT>
static __global__ void resize_planes(const T *__restrict__ x, T *__restrict__ y, const __grid_constant__ resizing r,
                                     const int32_t *stop)
{
    if (stop && *stop)
        return;
    KILN_CUDA_EACH(e, r.planes * r.out[0] * r.out[1])
    {
        int64_t line = e / r.out[1], plane = line / r.out[0];
        const taps *row = &r.table[line - plane * r.out[0]], *column = &r.table[r.out[0] + e - line * r.out[1]];
        const T *from = x + plane * r.in[0] * r.in[1];
        if (COUNT == 1) {
            y[e] = from[row->at[0] * r.in[1] + column->at[0]];
            continue;
        }
        T sum = 0;
        for (int k = 0; k < COUNT; k++) {
            T across = 0;
            for (int m = 0; m < COUNT; m++)
                across += (T)column->weight[m] * from[row->at[k] * r.in[1] + column->at[m]];
            sum += (T)row->weight[k] * across;
        }
        y[e] = sum;
    }
}

/* What an output gives to input position `at`: at the borders several taps may be there. */
template <int COUNT> static __device__ double weight_at(const taps *t, int64_t at)
{
    double weight = 0;
    for (int k = 0; k < COUNT; k++)
        weight += t->at[k] == at ? t->weight[k] : 0;
    return weight;
}

template <typename T, int COUNT>
static __global__ void resize_back(const T *__restrict__ gy, T *__restrict__ gx, const __grid_constant__ resizing r,
                                   const int32_t *stop)
{
    if (stop && *stop)
        return;
    KILN_CUDA_EACH(e, r.planes * r.in[0] * r.in[1])
    {
        int64_t line = e / r.in[1], x = e - line * r.in[1], plane = line / r.in[0], y = line - plane * r.in[0];
        const range down = r.tapped[y], across = r.tapped[r.in[0] + x];
        T total = 0;
        for (int64_t oy = down.first; oy <= down.last; oy++) {
            const T *from = gy + (plane * r.out[0] + oy) * r.out[1];
            T sum = 0;
            for (int64_t ox = across.first; ox <= across.last; ox++)
                sum += (T)weight_at<COUNT>(&r.table[r.out[0] + ox], x) * from[ox];
            total += (T)weight_at<COUNT>(&r.table[oy], y) * sum;
        }
        gx[e] = total;
    }
}

/* ---- Launchers ---- */

static size_t aligned(size_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

static resizing describe(const kiln_cuda_call *c, bool adjoint)
{
    const int64_t *in = (adjoint ? c->out : c->in)[0].shape, *out = (adjoint ? c->in : c->out)[0].shape;
    resizing r = {};
    r.mode = (kiln_resize)c->ints[0];
    r.align = c->ints[1] != 0;
    r.count = r.mode == KILN_NEAREST ? 1 : r.mode == KILN_LINEAR ? 2 : 4;
    r.in[0] = in[2];
    r.in[1] = in[3];
    r.out[0] = out[2];
    r.out[1] = out[3];
    r.planes = in[0] * in[1];
    r.table = (taps *)c->workspace;
    r.tapped = (range *)((char *)c->workspace + aligned((size_t)(out[2] + out[3]) * sizeof(taps)));
    return r;
}

static size_t resize_workspace(const kiln_cuda_call *c)
{
    return aligned((size_t)(c->out[0].shape[2] + c->out[0].shape[3]) * sizeof(taps));
}

static size_t resize_grad_workspace(const kiln_cuda_call *c)
{
    const int64_t *in = c->out[0].shape, *out = c->in[0].shape;
    return aligned((size_t)(out[2] + out[3]) * sizeof(taps)) + (size_t)(in[2] + in[3]) * sizeof(range);
}

template <typename T, int COUNT> static void launch_planes(const kiln_cuda_call *c, const resizing &r, bool adjoint)
{
    const T *from = (const T *)c->in[0].data;
    T *to = (T *)c->out[0].data;
    unsigned grid = kiln_cuda_grid(kiln_cuda_count_of(&c->out[0]), KILN_CUDA_BLOCK);
    if (adjoint)
        resize_back<T, COUNT><<<grid, KILN_CUDA_BLOCK, 0, c->stream>>>(from, to, r, c->stop);
    else
        resize_planes<T, COUNT><<<grid, KILN_CUDA_BLOCK, 0, c->stream>>>(from, to, r, c->stop);
}

template <typename T> static void launch(const kiln_cuda_call *c, const resizing &r, bool adjoint)
{
    switch (r.mode) {
    case KILN_NEAREST: launch_planes<T, 1>(c, r, adjoint); break;
    case KILN_LINEAR: launch_planes<T, 2>(c, r, adjoint); break;
    default: launch_planes<T, 4>(c, r, adjoint); break;
    }
}

static bool run(const kiln_cuda_call *c, bool adjoint)
{
    resizing r = describe(c, adjoint);
    if (kiln_cuda_count_of(&c->out[0]) == 0)
        return true;
    enum { THREADS = 64 };
    fill_taps<<<kiln_cuda_grid(r.out[0] + r.out[1], THREADS), THREADS, 0, c->stream>>>(r);
    if (adjoint)
        fill_ranges<<<kiln_cuda_grid(r.in[0] + r.in[1], THREADS), THREADS, 0, c->stream>>>(r);
    if (c->in[0].dtype == KILN_F64)
        launch<double>(c, r, adjoint);
    else
        launch<float>(c, r, adjoint);
    return kiln_cuda_launched(c);
}

static bool resize(const kiln_cuda_call *c)
{
    return run(c, false);
}

static bool resize_grad(const kiln_cuda_call *c)
{
    return run(c, true);
}

#define REAL (KILN_CUDA_T(KILN_F32) | KILN_CUDA_T(KILN_F64))

extern "C" const kiln_cuda_kernel kiln_cuda_kernels_resize[] = {
    {"resize", REAL, resize, resize_workspace},
    {"resize_grad", REAL, resize_grad, resize_grad_workspace},
    {NULL, 0, NULL, NULL},
};
