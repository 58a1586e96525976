/* Running sums and products along a dim. The dim is cut into parts: each part is folded, the folds of the parts before
 * are folded, then each part is gone through again from there. f32 is carried in double. */
#include "device/cuda/kernels/sort.cuh"

enum {
    ITEMS = 8,
    TILE = KILN_CUDA_BLOCK * ITEMS, /* elements of a row that a block goes through at a time */
    PIECE = 128,                    /* elements of a column that a thread goes through, where columns are few */
    MANY = 1 << 15                  /* columns that are not cut */
};

typedef struct scanning {
    kiln_cuda_extent x;
    int64_t part, parts;
    bool product;
} scanning;

static scanning plan_scan(const kiln_cuda_call *c, bool product)
{
    scanning s = {kiln_cuda_extent_at(&c->in[0], c->ints[0]), 0, 1, product};
    bool cut = s.x.before * s.x.after < MANY && s.x.at > 2 * PIECE;
    s.part = s.x.after == 1 ? (int64_t)TILE : cut ? (int64_t)PIECE : s.x.at;
    s.parts = s.part ? kiln_cuda_ceil(s.x.at, s.part) : 1;
    return s;
}

template <typename C> static inline __device__ C fold(C a, C b, bool product)
{
    return product ? a * b : a + b;
}

/* ---- Rows: neighbours in memory ---- */

/* The fold of the threads before this one; *all is that of the whole block. */
template <typename C> static __device__ C fold_before(C own, C *folds, C *all, bool product)
{
    const int t = (int)threadIdx.x;
    folds[t] = own;
    __syncthreads();
    for (int step = 1; step < KILN_CUDA_BLOCK; step *= 2) {
        C value = t >= step ? fold(folds[t - step], folds[t], product) : folds[t];
        __syncthreads();
        folds[t] = value;
        __syncthreads();
    }
    *all = folds[KILN_CUDA_BLOCK - 1];
    return t ? folds[t - 1] : (C)product;
}

/* With y: running folds, which begin with `carry` where there are parts. Without: the fold of each part. */
template <typename T, typename C>
static __global__ void scan_rows(const T *__restrict__ x, T *__restrict__ y, C *carry, scanning s, const int32_t *stop)
{
    __shared__ C folds[KILN_CUDA_BLOCK];
    __shared__ T elements[TILE];
    if (stop && *stop)
        return;
    for (int64_t item = blockIdx.x; item < s.x.before * s.parts; item += gridDim.x) {
        int64_t first = item / s.parts * s.x.at + item % s.parts * TILE, left = s.x.at - item % s.parts * TILE;
        const int n = (int)(left < TILE ? left : TILE), begin = (int)threadIdx.x * ITEMS;
        for (int i = (int)threadIdx.x; i < n; i += KILN_CUDA_BLOCK)
            elements[i] = x[first + i];
        __syncthreads();
        C own = (C)s.product, all;
        for (int i = begin; i < begin + ITEMS && i < n; i++)
            own = fold(own, (C)elements[i], s.product);
        C sum = fold_before(own, folds, &all, s.product);
        if (!y) {
            if (threadIdx.x == 0)
                carry[item] = all;
            __syncthreads();
            continue;
        }
        if (carry)
            sum = fold(carry[item], sum, s.product);
        for (int i = begin; i < begin + ITEMS && i < n; i++)
            elements[i] = (T)(sum = fold(sum, (C)elements[i], s.product));
        __syncthreads();
        for (int i = (int)threadIdx.x; i < n; i += KILN_CUDA_BLOCK)
            y[first + i] = elements[i];
        __syncthreads();
    }
}

/* ---- Columns: neighbours lie `after` apart ---- */

template <typename T, typename C>
static __global__ void scan_columns(const T *__restrict__ x, T *__restrict__ y, C *carry, scanning s,
                                    const int32_t *stop)
{
    if (stop && *stop)
        return;
    KILN_CUDA_EACH(item, s.x.before * s.parts * s.x.after)
    {
        int64_t rest = item / s.x.after, column = item - rest * s.x.after, o = rest / s.parts;
        int64_t begin = (rest - o * s.parts) * s.part, end = begin + s.part < s.x.at ? begin + s.part : s.x.at;
        C sum = y && carry ? carry[item] : (C)s.product;
        for (int64_t i = begin; i < end; i++) {
            int64_t at = (o * s.x.at + i) * s.x.after + column;
            sum = fold(sum, (C)x[at], s.product);
            if (y)
                y[at] = (T)sum;
        }
        if (!y)
            carry[item] = sum;
    }
}

/* carry[before][parts][after]: the fold of each part becomes that of those before it. */
template <typename C> static __global__ void scan_carry(C *carry, scanning s)
{
    KILN_CUDA_EACH(item, s.x.before * s.x.after)
    {
        int64_t o = item / s.x.after, column = item - o * s.x.after;
        C sum = (C)s.product;
#pragma unroll 8
        for (int64_t part = 0; part < s.parts; part++) {
            C *at = carry + (o * s.parts + part) * s.x.after + column;
            C own = *at;
            *at = sum;
            sum = fold(sum, own, s.product);
        }
    }
}

template <typename T, typename C> static void launch(const kiln_cuda_call *c, const scanning &s)
{
    const T *x = (const T *)c->in[0].data;
    T *y = (T *)c->out[0].data;
    C *carry = s.parts > 1 ? (C *)c->workspace : NULL;
    int64_t items = s.x.before * s.parts * s.x.after;
    const int threads = s.x.after == 1 ? KILN_CUDA_BLOCK : 64;
    unsigned grid = kiln_cuda_grid(items, s.x.after == 1 ? 1 : threads);
    void (*scan)(const T *, T *, C *, scanning, const int32_t *) =
        s.x.after == 1 ? scan_rows<T, C> : scan_columns<T, C>;
    if (carry) {
        scan<<<grid, threads, 0, c->stream>>>(x, NULL, carry, s, NULL);
        scan_carry<C><<<kiln_cuda_grid(s.x.before * s.x.after, 32), 32, 0, c->stream>>>(carry, s);
    }
    scan<<<grid, threads, 0, c->stream>>>(x, y, carry, s, c->stop);
}

static bool run(const kiln_cuda_call *c, bool product)
{
    scanning s = plan_scan(c, product);
    if (s.x.before * s.x.at * s.x.after == 0)
        return true;
    switch (c->in[0].dtype) {
    case KILN_F32: launch<float, double>(c, s); break;
    case KILN_F64: launch<double, double>(c, s); break;
    default: launch<uint64_t, uint64_t>(c, s); break; /* unsigned, so that it may wrap */
    }
    return kiln_cuda_launched(c);
}

bool kiln_cuda_cumsum(const kiln_cuda_call *c)
{
    return run(c, false);
}

bool kiln_cuda_cumprod(const kiln_cuda_call *c)
{
    return run(c, true);
}

size_t kiln_cuda_scan_workspace(const kiln_cuda_call *c)
{
    scanning s = plan_scan(c, false);
    return s.parts > 1 ? (size_t)(s.x.before * s.parts * s.x.after) * 8 : 0;
}
