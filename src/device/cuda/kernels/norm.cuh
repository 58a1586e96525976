/* normalize_rows, layer_norm_rows and its gradient: a part of rows.cu. Sums over a row are kept in double: they are
 * few, and memory is what these kernels wait for. */
#ifndef KILN_CUDA_NORM_CUH
#define KILN_CUDA_NORM_CUH

#include "device/cuda/kernels/halves.cuh"
#include "device/cuda/kernels/rows.cuh"

/* ---- Forward ---- */

/* y = (x - mean)·rstd·weight + bias; weight and bias may be NULL. */
template <typename T> struct norm_forward {
    typedef typename kiln_element<T>::real real;
    const T *x, *weight, *bias;
    T *y;
    real *mean, *rstd;
    int64_t rows, n;
    double share; /* 1 / n */
    const double *eps;
    bool aligned; /* x, y, weight and bias: to 16 bytes */
    const int32_t *stop;

    __device__ __forceinline__ bool stopped() const
    {
        return stop && *stop;
    }
};

/* (x - mean) times rstd and weight, plus bias, N elements at a time. Weights are fetched a few at a time: there are not
 * as many registers left as the row has. An absent weight is 1, an absent bias -0: both leave every bit as it is. Where
 * BOTH are there nothing has to stand for them, not beyond the row either: what is made of it goes nowhere. */
template <int N, bool BOTH, typename T, int V, int E, bool BLOCK>
static __device__ __forceinline__ void put_packs(const norm_forward<T> &p, const kiln_held<T, V, E, BLOCK> &h,
                                                 const kiln_crew<BLOCK> &c, T *to, const T *weight, const T *bias,
                                                 int left, typename kiln_element<T>::real mean,
                                                 typename kiln_element<T>::real rstd)
{
    typedef kiln_held<T, V, E, BLOCK> held;
    typedef kiln_element<T> element;
    constexpr int some = N < 4 ? 4 : N;
    if (p.stopped())
        return;
#pragma unroll
    for (int k = 0; k < E; k += some) {
        kiln_lying<T, some> w, b;
        if (!BOTH) {
            w.fill(element::to(1));
            b.fill(element::to(-0.0f));
        }
        held::template fetch<N, false>(w, k, weight, c, BOTH || p.weight ? left : 0);
        held::template fetch<N, false>(b, k, bias, c, BOTH || p.bias ? left : 0);
        held::template put<N, some>(to, k, c, left, [&](int i) {
            return fma((h[i] - mean) * rstd, element::of(w[i - k]), element::of(b[i - k]));
        });
    }
}

/* The elements in hand, of which the first is number `begin` of its row. */
template <typename T, int V, int E, bool BLOCK>
static __device__ __forceinline__ void
put_norm(const norm_forward<T> &p, kiln_held<T, V, E, BLOCK> &h, kiln_crew<BLOCK> &c, int64_t row, int64_t begin,
         int left, typename kiln_element<T>::real mean, typename kiln_element<T>::real rstd)
{
    typedef kiln_held<T, V, E, BLOCK> held;
    h.forget();
    c.forget();
    T *to = held::mine(p.y + row * p.n + begin, c);
    const T *weight = held::mine(p.weight + begin, c), *bias = held::mine(p.bias + begin, c);
    if ((V == 1 || p.aligned) && p.weight && p.bias)
        put_packs<V, true>(p, h, c, to, weight, bias, left, mean, rstd);
    else if (V == 1 || p.aligned)
        put_packs<V, false>(p, h, c, to, weight, bias, left, mean, rstd);
    else
        put_packs<1, false>(p, h, c, to, weight, bias, left, mean, rstd);
}

template <typename T>
static __device__ __forceinline__ void put_figures(const norm_forward<T> &p, int64_t row,
                                                   typename kiln_element<T>::real mean,
                                                   typename kiln_element<T>::real rstd)
{
    if (p.stopped())
        return;
    p.mean[row] = mean;
    p.rstd[row] = rstd;
}

template <typename H> static __device__ __forceinline__ double sum_of(const H &h)
{
    return H::sum([&](int i) { return h[i]; });
}

template <typename T, int V, int E>
static __global__ void HELD_BOUNDS(T, V, E, 6, 4) norm_held(norm_forward<T> p, int team)
{
    typedef kiln_held<T, V, E> held;
    typedef typename held::real real;
    __shared__ double sums[2][32];
    typename held::crew c(team);
    int64_t row = (int64_t)blockIdx.x * c.teams + c.slot;
    int left = row < p.rows ? (int)p.n : 0;
    held h;
    h.load(p.x + row * p.n, c, left, p.aligned, 0);
    real mean = (real)(c.sum(sum_of(h), sums[0]) * p.share);
    c.forget();
    real rstd = (real)rsqrt(c.sum(h.squares(c, left, mean), sums[1]) * p.share + *p.eps);
    if (c.rank == 0 && row < p.rows)
        put_figures(p, row, mean, rstd);
    put_norm(p, h, c, row, 0, left, mean, rstd);
}

/* Rows too long for that, a block each: read once for the mean, once for the variance, once for the result. */
template <typename T, int V>
static __global__ void HELD_BOUNDS(T, V, (kiln_holding<T, V>::most), 1, 1) norm_long(norm_forward<T> p, int team)
{
    typedef kiln_holding<T, V> holding;
    typedef kiln_held_part<T, V> held;
    typedef typename held::real real;
    __shared__ double sums[2][32];
    typename held::crew c(team);
    const T *from = p.x + blockIdx.x * p.n;
    double sum = 0, squares = 0;
    held h;
    for (int64_t i = 0; i < p.n; i += holding::part) {
        h.load(from + i, c, holding::next(p.n - i), p.aligned, 0);
        sum += sum_of(h);
    }
    real mean = (real)(c.sum(sum, sums[0]) * p.share);
    for (int64_t i = 0; i < p.n; i += holding::part) {
        h.load(from + i, c, holding::next(p.n - i), p.aligned, 0);
        c.forget();
        squares += h.squares(c, holding::next(p.n - i), mean);
    }
    real rstd = (real)rsqrt(c.sum(squares, sums[1]) * p.share + *p.eps);
    for (int64_t i = 0; i < p.n; i += holding::part) {
        h.load(from + i, c, holding::next(p.n - i), p.aligned, 0);
        put_norm(p, h, c, blockIdx.x, i, holding::next(p.n - i), mean, rstd);
    }
    if (c.rank == 0)
        put_figures(p, blockIdx.x, mean, rstd);
}

static void *optional(const kiln_cuda_call *c, int k)
{
    return k < c->nin ? c->in[k].data : NULL;
}

template <typename T> static void launch_norm(const kiln_cuda_call *c, shape s)
{
    typedef typename kiln_element<T>::real real;
    norm_forward<T> p = {(const T *)c->in[0].data,
                         (const T *)optional(c, 1),
                         (const T *)optional(c, 2),
                         (T *)c->out[0].data,
                         (real *)c->out[1].data,
                         (real *)c->out[2].data,
                         s.outer,
                         s.n,
                         1 / (double)s.n,
                         c->floats,
                         false,
                         c->stop};
    p.aligned = kiln_aligned16(p.x) && kiln_aligned16(p.y) && kiln_aligned16(p.weight) && kiln_aligned16(p.bias);
    HELD_KERNEL(norm_held, norm_long, T, s, c->stream, p);
}

/* Rows are the last ints[0] dims. */
static shape rows_of(const kiln_cuda_call *c)
{
    return split(&c->in[0], c->in[0].ndim - c->ints[0], c->in[0].ndim);
}

static bool layer_norm_rows(const kiln_cuda_call *c) /* normalize_rows is the same without weight and bias */
{
    shape s = rows_of(c);
    if (s.outer == 0)
        return true;
    switch (c->in[0].dtype) {
    case KILN_F16: launch_norm<kiln_f16>(c, s); break;
    case KILN_BF16: launch_norm<kiln_bf16>(c, s); break;
    case KILN_F64: launch_norm<double>(c, s); break;
    default: launch_norm<float>(c, s);
    }
    return kiln_cuda_launched(c);
}

/* ---- Backward ---- */

enum { GRAD_THREADS = 256 };

/* With z = (x - mean)·rstd and u = gy·weight: gx = rstd·(u - mean(u) - z·mean(u·z)), gweight = Σ gy·z, gbias = Σ gy.
 * The sums over rows are taken in chunks of rows, whose sums a second kernel adds. */
template <typename S> struct norm_grad {
    typedef typename kiln_element<S>::real real;
    const S *x;
    const real *mean, *rstd;
    const S *gy, *weight;
    S *gx;
    S *gweight, *gbias; /* where there is one chunk */
    real *parts;        /* else: its sums for both, those of chunk k 2·n·k further */
    int64_t rows, n, chunk, chunks;
    unsigned row_blocks; /* blocks before those that sum over rows */
    const int32_t *stop, *sums_stop;
};

template <typename S, bool BLOCK, int V> static __device__ void grad_of_rows(const norm_grad<S> &p)
{
    typedef kiln_element<S> element;
    typedef typename element::real T;
    typedef kiln_team<BLOCK> team;
    int64_t begin = (int64_t)team::rank() * V, step = (int64_t)team::size() * V, n = p.n;
    for (int64_t row = team::first_row(); row < p.rows; row += next_row<BLOCK>(p.row_blocks)) {
        const S *__restrict__ x = p.x + row * n, *__restrict__ gy = p.gy + row * n;
        S *__restrict__ gx = p.gx + row * n;
        T mean = p.mean[row], rstd = p.rstd[row];
        double sum = 0, along = 0;
#pragma unroll 2
        for (int64_t i = begin; i < n; i += step) {
            kiln_pack<S, V> v = kiln_load<V>(x + i), u = kiln_load<V>(gy + i), w;
            if (p.weight)
                w = kiln_load<V>(p.weight + i);
            T us = 0, uzs = 0;
#pragma unroll
            for (int k = 0; k < V; k++) {
                T each = element::of(u.at[k]);
                each = p.weight ? each * element::of(w.at[k]) : each;
                us += each;
                uzs += each * ((element::of(v.at[k]) - mean) * rstd);
            }
            sum += (double)us;
            along += (double)uzs;
        }
        T a = (T)(team::sum(sum) / (double)n), b = (T)(team::sum(along) / (double)n);
#pragma unroll 2
        for (int64_t i = begin; i < n; i += step) {
            kiln_pack<S, V> v = kiln_load<V>(x + i), u = kiln_load<V>(gy + i), w;
            if (p.weight)
                w = kiln_load<V>(p.weight + i);
#pragma unroll
            for (int k = 0; k < V; k++) {
                T each = element::of(u.at[k]);
                each = p.weight ? each * element::of(w.at[k]) : each;
                v.at[k] = element::to(rstd * (each - a - (element::of(v.at[k]) - mean) * rstd * b));
            }
            kiln_store<V>(gx + i, v);
        }
    }
}

/* Adds what the eight warps of a block have for 32 columns and writes both sums. */
template <typename T, typename S>
static __device__ void put_sums(T weight, T bias, S *gweight, S *gbias, int64_t left)
{
    __shared__ T parts[2][GRAD_THREADS];
    parts[0][threadIdx.x] = weight;
    parts[1][threadIdx.x] = bias;
    __syncthreads();
    int which = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    if (which < 2 && lane < left) {
        T all = 0;
        for (int w = 0; w < GRAD_THREADS / 32; w++)
            all += parts[which][w * 32 + lane];
        (which ? gbias : gweight)[lane] = kiln_element<S>::to(all);
    }
    __syncthreads();
}

/* Both kinds of blocks in one launch, since neither waits for the other. */
template <typename S, bool BLOCK, int V>
static __global__ void __launch_bounds__(GRAD_THREADS) norm_rows_grad(norm_grad<S> p)
{
    typedef kiln_element<S> element;
    typedef typename element::real T;
    if (blockIdx.x < p.row_blocks) {
        if (!(p.stop && *p.stop))
            grad_of_rows<S, BLOCK, V>(p);
        return;
    }
    if (p.sums_stop && *p.sums_stop)
        return;
    int64_t strips = (p.n + 31) / 32;
    for (int64_t k = blockIdx.x - p.row_blocks; k < strips * p.chunks; k += gridDim.x - p.row_blocks) {
        int64_t chunk = k / strips, first = k % strips * 32, column = first + threadIdx.x % 32;
        int64_t end = (chunk + 1) * p.chunk < p.rows ? (chunk + 1) * p.chunk : p.rows;
        T weight = 0, bias = 0;
        if (column < p.n) {
#pragma unroll 4
            for (int64_t row = chunk * p.chunk + threadIdx.x / 32; row < end; row += GRAD_THREADS / 32) {
                T g = element::of(p.gy[row * p.n + column]);
                weight += g * ((element::of(p.x[row * p.n + column]) - p.mean[row]) * p.rstd[row]);
                bias += g;
            }
        }
        T *part = p.parts + 2 * chunk * p.n + first;
        if (p.parts)
            put_sums(weight, bias, part, part + p.n, p.n - first);
        else
            put_sums(weight, bias, p.gweight + first, p.gbias + first, p.n - first);
    }
}

template <typename T, typename S>
static __global__ void __launch_bounds__(GRAD_THREADS)
    add_chunks(const T *parts, S *gweight, S *gbias, int64_t n, int64_t chunks, const int32_t *stop)
{
    if (stop && *stop)
        return;
    for (int64_t first = (int64_t)blockIdx.x * 32; first < n; first += (int64_t)gridDim.x * 32) {
        int64_t column = first + threadIdx.x % 32;
        T weight = 0, bias = 0;
        if (column < n) {
#pragma unroll 4
            for (int64_t k = threadIdx.x / 32; k < chunks; k += GRAD_THREADS / 32) {
                weight += parts[2 * k * n + column];
                bias += parts[(2 * k + 1) * n + column];
            }
        }
        put_sums(weight, bias, gweight + first, gbias + first, n - first);
    }
}

enum { CHUNK_ROWS = 64, MOST_CHUNKS = 256 };

static int64_t chunk_rows(int64_t rows)
{
    int64_t all = (rows + MOST_CHUNKS - 1) / MOST_CHUNKS;
    return all > CHUNK_ROWS ? all : (int64_t)CHUNK_ROWS;
}

/* One where there are no rows, so that sums of nothing are written. */
static int64_t chunks_of(int64_t rows)
{
    int64_t chunk = chunk_rows(rows);
    return rows > chunk ? (rows + chunk - 1) / chunk : 1;
}

static size_t norm_grad_workspace(const kiln_cuda_call *c)
{
    shape s = rows_of(c);
    size_t element = c->in[0].dtype == KILN_F64 ? 8 : 4;
    return chunks_of(s.outer) > 1 ? (size_t)(2 * chunks_of(s.outer) * s.n) * element : 0;
}

template <typename S> static void launch_norm_grad(const kiln_cuda_call *c, shape s)
{
    typedef typename kiln_element<S>::real T;
    norm_grad<S> p = {};
    p.x = (const S *)c->in[0].data;
    p.mean = (const T *)c->in[1].data;
    p.rstd = (const T *)c->in[2].data;
    p.gy = (const S *)c->in[3].data;
    p.weight = (const S *)optional(c, 4);
    p.gx = (S *)c->out[0].data;
    p.gweight = (S *)c->out[1].data;
    p.gbias = (S *)c->out[2].data;
    p.rows = s.outer;
    p.n = s.n;
    p.chunk = chunk_rows(s.outer);
    p.chunks = chunks_of(s.outer);
    p.parts = p.chunks > 1 ? (T *)c->workspace : NULL;
    p.stop = c->stop;
    p.sums_stop = p.parts ? NULL : c->stop;
    bool wide = s.n % kiln_wide<S> == 0 && kiln_aligned16(p.x) && kiln_aligned16(p.gy) && kiln_aligned16(p.gx) &&
                kiln_aligned16(p.weight);
    teams t = teams_for(s.outer, s.n, GRAD_THREADS);
    p.row_blocks = s.outer ? t.grid : 0;
    t.grid = p.row_blocks + kiln_grid((s.n + 31) / 32 * p.chunks);
    ROW_KERNEL(norm_rows_grad, t, S, wide, 0, c->stream, p);
    if (p.parts)
        add_chunks<T, S><<<kiln_grid((s.n + 31) / 32), GRAD_THREADS, 0, c->stream>>>(p.parts, p.gweight, p.gbias, s.n,
                                                                                     p.chunks, c->stop);
}

static bool layer_norm_rows_grad(const kiln_cuda_call *c)
{
    shape s = rows_of(c);
    if (s.n == 0)
        return true;
    switch (c->in[0].dtype) {
    case KILN_F64: launch_norm_grad<double>(c, s); break;
    case KILN_F16: launch_norm_grad<kiln_f16>(c, s); break;
    case KILN_BF16: launch_norm_grad<kiln_bf16>(c, s); break;
    default: launch_norm_grad<float>(c, s);
    }
    return kiln_cuda_launched(c);
}

#endif
