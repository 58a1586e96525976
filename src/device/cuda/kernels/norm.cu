/* normalize_rows, layer_norm_rows and its gradient: launching the kernels of norm.cuh, and those for rows that are too
 * long for these. */
#include <stdio.h>
#include <string.h>
#include "device/cuda/kernels/norm.cuh"
#include "device/cuda/kernels/rows.cuh"

/* ---- Forward ---- */

template <typename T, int V, int E>
static __global__ void HELD_BOUNDS(T, V, E, 6, 4) norm_held(norm_forward<T> p, int team)
{
    norm_row<T, V, E>(p, kiln_alone(), team);
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
    real mean = p.plain ? 0 : (real)(c.sum(sum, sums[0]) * p.share);
    for (int64_t i = 0; i < p.n; i += holding::part) {
        h.load(from + i, c, holding::next(p.n - i), p.aligned, 0);
        c.forget();
        squares += h.squares(c, holding::next(p.n - i), mean);
    }
    real rstd = (real)rsqrt(c.sum(squares, sums[1]) * p.share + *p.eps);
    for (int64_t i = 0; i < p.n; i += holding::part) {
        h.load(from + i, c, holding::next(p.n - i), p.aligned, 0);
        put_norm(p, kiln_alone(), h, c, blockIdx.x, i, holding::next(p.n - i), mean, rstd);
    }
    if (c.rank == 0)
        put_figures(p, blockIdx.x, mean, rstd);
}

static void *optional(const kiln_cuda_call *c, int k)
{
    return k < c->nin ? c->in[k].data : NULL;
}

static bool is_plain(const kiln_cuda_call *c)
{
    return c->nints > 1 && c->ints[1];
}

template <typename T> static norm_forward<T> forward_of(const kiln_cuda_call *c, shape s)
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
                         is_plain(c),
                         c->stop};
    p.aligned = kiln_aligned16(p.x) && kiln_aligned16(p.y) && kiln_aligned16(p.weight) && kiln_aligned16(p.bias);
    return p;
}

template <typename T> static void launch_norm(const kiln_cuda_call *c, shape s)
{
    norm_forward<T> p = forward_of<T>(c, s);
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

/* ---- The same with groups around ---- */

template <typename P> static void set_parameters(kiln_cuda_body *b, const P &p)
{
    static_assert(sizeof p <= sizeof b->parameters && sizeof p % 8 == 0, "followed by what is aligned to 8 bytes");
    memcpy(b->parameters, &p, sizeof p);
    b->bytes = sizeof p;
    b->header = "device/cuda/kernels/norm.cuh";
}

template <typename T, int V> static bool norm_body_of(const kiln_cuda_call *c, shape s, kiln_cuda_body *b)
{
    typedef kiln_holding<T, V> holding;
    if (s.n > holding::longest)
        return false;
    int team = holding::team(s.n);
    const char *name = kiln_cuda_type_name(c->in[0].dtype);
    set_parameters(b, forward_of<T>(c, s));
    b->grid = held_grid(s.outer, team);
    b->threads = held_threads(s.outer, team);
    b->blocks = b->threads > 256 ? 1 : 3;
    snprintf(b->type, sizeof b->type, "norm_forward<%s>", name);
    snprintf(b->call, sizeof b->call, "norm_row<%s, %d, %d>(k.p, around, %d)", name, V, holding::each(s.n), team);
    return true;
}

template <typename T> static bool norm_body(const kiln_cuda_call *c, shape s, kiln_cuda_body *b)
{
    return kiln_packs<T>(s.n) ? norm_body_of<T, kiln_wide<T>>(c, s, b) : norm_body_of<T, 1>(c, s, b);
}

static bool layer_norm_rows_around(const kiln_cuda_call *c, kiln_cuda_body *b)
{
    shape s = rows_of(c);
    if (s.outer == 0)
        return false;
    switch (c->in[0].dtype) {
    case KILN_F16: return norm_body<kiln_f16>(c, s, b);
    case KILN_BF16: return norm_body<kiln_bf16>(c, s, b);
    case KILN_F32: return norm_body<float>(c, s, b);
    default: return false;
    }
}

/* ---- Backward ---- */

enum { GRAD_THREADS = 256, GRAD_TEAM = 512, GRAD_CHUNKS = 264 /* two blocks on each multiprocessor of an H200 */ };

/* How rows of n elements are shared: teams, and how many elements in packs of V a thread has. The lengths of rows alone
 * decide it, and with that the order of sums. */
typedef struct sharing {
    int width, each, team, threads;
    bool too_long;
} sharing;

template <typename S> static sharing share(int64_t n)
{
    constexpr int width = sizeof(S) == 8 ? 2 : 4, most = norm_grad_most<S>;
    sharing h = {n % width == 0 ? width : 1, 0, 0, 0, n > (int64_t)GRAD_TEAM * most};
    if (h.too_long)
        return h;
    int packs = (int)n / h.width, lanes = (packs + most / h.width - 1) / (most / h.width);
    h.team = lanes > 32 ? (lanes + 31) / 32 * 32 : 1;
    while (h.team < lanes)
        h.team *= 2;
    h.each = ((packs + h.team - 1) / h.team * h.width + 3) / 4 * 4;
    h.threads = h.team > GRAD_THREADS ? h.team : GRAD_THREADS / h.team * h.team;
    return h;
}

template <typename S, int V, int E>
static __global__ void __launch_bounds__(GRAD_TEAM, 1) norm_grad_held(norm_grad<S> p)
{
    extern __shared__ double room[];
    norm_grad_rows<S, V, E>(p, kiln_alone(), (typename kiln_element<S>::real *)room);
}

template <typename S> static auto grad_kernel(const sharing &h)
{
    constexpr int wide = sizeof(S) == 8 ? 2 : 4;
    switch (h.each) {
    case 4: return h.width > 1 ? norm_grad_held<S, wide, 4> : norm_grad_held<S, 1, 4>;
    case 8: return h.width > 1 ? norm_grad_held<S, wide, 8> : norm_grad_held<S, 1, 8>;
    case 12: return h.width > 1 ? norm_grad_held<S, wide, 12> : norm_grad_held<S, 1, 12>;
    default: return h.width > 1 ? norm_grad_held<S, wide, 16> : norm_grad_held<S, 1, 16>;
    }
}

/* Of shared memory. */
template <typename S> static size_t grad_room(const sharing &h, int64_t n)
{
    return h.threads > h.team && h.threads > 32 ? (size_t)(2 * n) * sizeof(typename kiln_element<S>::real) : 0;
}

/* Adds what the eight warps of a block have for 32 columns and writes both sums. */
template <typename T, typename S> static __device__ void put_sums(T weight, T bias, S *gweight, S *gbias, int64_t left)
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

/* Rows too long for that: a block a row, which reads it twice; sums over rows by other blocks, 32 columns of a chunk
 * each. */
template <typename S, int V> static __global__ void __launch_bounds__(GRAD_THREADS) grad_of_long(norm_grad<S> p)
{
    typedef kiln_element<S> element;
    typedef typename element::real T;
    typedef kiln_team<true> team;
    if (p.stop && *p.stop)
        return;
    int64_t begin = (int64_t)threadIdx.x * V, step = (int64_t)blockDim.x * V, n = p.n;
    for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
        const S *x = p.x + row * n, *gy = p.gy + row * n;
        T mean = p.mean[row], rstd = p.rstd[row];
        double sum = 0, along = 0;
        auto z_of = [&](S v) { return (element::of(v) - mean) * rstd; };
        auto u_of = [&](S g, int64_t i) {
            return p.weight ? element::of(g) * element::of(p.weight[i]) : element::of(g);
        };
#pragma unroll 2
        for (int64_t i = begin; i < n; i += step) {
            kiln_pack<S, V> v = kiln_load<V>(x + i), g = kiln_load<V>(gy + i);
            T us = 0, uzs = 0;
#pragma unroll
            for (int k = 0; k < V; k++) {
                T u = u_of(g.at[k], i + k);
                us += u;
                uzs += u * z_of(v.at[k]);
            }
            sum += (double)us;
            along += (double)uzs;
        }
        T mean_u = (T)(team::sum(sum) / (double)n), a = p.plain ? 0 : mean_u, b = (T)(team::sum(along) / (double)n);
#pragma unroll 2
        for (int64_t i = begin; i < n; i += step) {
            kiln_pack<S, V> v = kiln_load<V>(x + i), g = kiln_load<V>(gy + i);
#pragma unroll
            for (int k = 0; k < V; k++)
                v.at[k] = element::to(rstd * (u_of(g.at[k], i + k) - a - z_of(v.at[k]) * b));
            kiln_store<V>(p.gx + row * n + i, v);
        }
    }
}

template <typename S> static __global__ void __launch_bounds__(GRAD_THREADS) sums_of_long(norm_grad<S> p)
{
    typedef kiln_element<S> element;
    typedef typename element::real T;
    if (p.sums_stop && *p.sums_stop)
        return;
    int64_t strips = (p.n + 31) / 32;
    for (int64_t k = blockIdx.x; k < strips * p.chunks; k += gridDim.x) {
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

enum { ADDED = 8 /* columns of a block: a sector of the cache; the chunks are shared out to 32 threads a column */ };

/* Adds the sums of chunks. There are few columns, so what counts is how many loads are on their way. */
template <typename T, typename S>
static __global__ void __launch_bounds__(GRAD_THREADS)
    add_chunks(const T *parts, S *gweight, S *gbias, int64_t n, int64_t chunks, const int32_t *stop)
{
    __shared__ T sums[2][GRAD_THREADS / 32][ADDED];
    if (stop && *stop)
        return;
    int64_t first = (int64_t)blockIdx.x * ADDED, column = first + threadIdx.x % ADDED;
    T weight = 0, bias = 0;
    if (column < n) {
#pragma unroll 8
        for (int64_t k = threadIdx.x / ADDED; k < chunks; k += GRAD_THREADS / ADDED) {
            weight += parts[2 * k * n + column];
            bias += parts[(2 * k + 1) * n + column];
        }
    }
#pragma unroll
    for (int apart = ADDED; apart < 32; apart *= 2) {
        weight += __shfl_xor_sync(0xffffffffu, weight, apart);
        bias += __shfl_xor_sync(0xffffffffu, bias, apart);
    }
    if (threadIdx.x % 32 < ADDED) {
        sums[0][threadIdx.x / 32][threadIdx.x % 32] = weight;
        sums[1][threadIdx.x / 32][threadIdx.x % 32] = bias;
    }
    __syncthreads();
    int which = (int)threadIdx.x / ADDED, lane = (int)threadIdx.x % ADDED;
    if (which > 1 || column >= n)
        return;
    T all = 0;
    for (int w = 0; w < GRAD_THREADS / 32; w++)
        all += sums[which][w][lane];
    (which ? gbias : gweight)[column] = kiln_element<S>::to(all);
}

/* ---- Launching it ---- */

/* Rows of a chunk: two for each team at least. */
static int64_t chunk_rows(const sharing &h, int64_t rows)
{
    int64_t teams = h.too_long ? GRAD_THREADS / 32 : h.threads / h.team, all = (rows + GRAD_CHUNKS - 1) / GRAD_CHUNKS;
    return all > 2 * teams ? all : 2 * teams;
}

/* One where there are no rows, so that sums of nothing are written. */
static int64_t chunks_of(const sharing &h, int64_t rows)
{
    int64_t chunk = chunk_rows(h, rows);
    return rows > chunk ? (rows + chunk - 1) / chunk : 1;
}

template <typename S> static size_t parts_bytes(shape s)
{
    int64_t chunks = chunks_of(share<S>(s.n), s.outer);
    return chunks > 1 ? (size_t)(2 * chunks * s.n) * sizeof(typename kiln_element<S>::real) : 0;
}

static size_t norm_grad_workspace(const kiln_cuda_call *c)
{
    shape s = rows_of(c);
    switch (c->in[0].dtype) {
    case KILN_F64: return parts_bytes<double>(s);
    case KILN_F16: return parts_bytes<kiln_f16>(s);
    case KILN_BF16: return parts_bytes<kiln_bf16>(s);
    default: return parts_bytes<float>(s);
    }
}

template <typename S> static norm_grad<S> grad_of(const kiln_cuda_call *c, shape s, const sharing &h)
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
    p.chunk = chunk_rows(h, s.outer);
    p.chunks = chunks_of(h, s.outer);
    p.parts = p.chunks > 1 ? (T *)c->workspace : NULL;
    p.team = h.team;
    p.aligned = kiln_aligned16(p.x) && kiln_aligned16(p.gy) && kiln_aligned16(p.gx) && kiln_aligned16(p.weight);
    p.plain = is_plain(c);
    p.stop = c->stop;
    p.sums_stop = p.parts ? NULL : c->stop;
    return p;
}

template <typename S> static void add_up(const kiln_cuda_call *c, const norm_grad<S> &p)
{
    typedef typename kiln_element<S>::real T;
    if (p.parts)
        add_chunks<T, S><<<kiln_grid((p.n + ADDED - 1) / ADDED), GRAD_THREADS, 0, c->stream>>>(
            p.parts, p.gweight, p.gbias, p.n, p.chunks, c->stop);
}

template <typename S> static void launch_norm_grad(const kiln_cuda_call *c, shape s)
{
    const sharing h = share<S>(s.n);
    const norm_grad<S> p = grad_of<S>(c, s, h);
    if (!h.too_long)
        grad_kernel<S>(h)<<<(unsigned)p.chunks, h.threads, grad_room<S>(h, s.n), c->stream>>>(p);
    else {
        auto rows = s.n % kiln_wide<S> == 0 && p.aligned ? grad_of_long<S, kiln_wide<S>> : grad_of_long<S, 1>;
        if (s.outer)
            rows<<<kiln_grid(s.outer), GRAD_THREADS, 0, c->stream>>>(p);
        sums_of_long<S><<<kiln_grid((s.n + 31) / 32 * p.chunks), GRAD_THREADS, 0, c->stream>>>(p);
    }
    add_up(c, p);
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

/* ---- The same with groups around ---- */

template <typename S> static bool grad_rest(const kiln_cuda_call *c)
{
    shape s = rows_of(c);
    add_up(c, grad_of<S>(c, s, share<S>(s.n)));
    return kiln_cuda_launched(c);
}

template <typename S> static bool grad_body(const kiln_cuda_call *c, kiln_cuda_body *b)
{
    shape s = rows_of(c);
    const sharing h = share<S>(s.n);
    if (h.too_long || s.n == 0)
        return false;
    const norm_grad<S> p = grad_of<S>(c, s, h);
    const char *name = kiln_cuda_type_name(c->in[0].dtype);
    set_parameters(b, p);
    b->grid = (unsigned)p.chunks;
    b->threads = (unsigned)h.threads;
    b->blocks = h.threads > GRAD_THREADS ? 1 : 2;
    b->shared = grad_room<S>(h, s.n);
    b->rest = grad_rest<S>;
    snprintf(b->type, sizeof b->type, "norm_grad<%s>", name);
    snprintf(b->call, sizeof b->call, "norm_grad_rows<%s, %d, %d>(k.p, around, (float *)scratch)", name, h.width,
             h.each);
    return true;
}

static bool layer_norm_rows_grad_around(const kiln_cuda_call *c, kiln_cuda_body *b)
{
    switch (c->in[0].dtype) {
    case KILN_F16: return grad_body<kiln_f16>(c, b);
    case KILN_BF16: return grad_body<kiln_bf16>(c, b);
    case KILN_F32: return grad_body<float>(c, b);
    default: return false;
    }
}

enum { REALS = KILN_CUDA_T(KILN_F32) | KILN_CUDA_T(KILN_F64) }; /* halves are widened by the compositions */

extern "C" const kiln_cuda_kernel kiln_cuda_kernels_norm[] = {
    {"normalize_rows", REALS, layer_norm_rows, NULL, KILN_CUDA_AROUND, layer_norm_rows_around},
    {"layer_norm_rows", KILN_CUDA_FLOATS, layer_norm_rows, NULL, KILN_CUDA_AROUND, layer_norm_rows_around},
    {"layer_norm_rows_grad", KILN_CUDA_FLOATS, layer_norm_rows_grad, norm_grad_workspace, KILN_CUDA_AROUND,
     layer_norm_rows_grad_around},
    {NULL, 0, NULL, NULL, 0, NULL},
};
