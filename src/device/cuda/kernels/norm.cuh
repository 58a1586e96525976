/* normalize_rows, layer_norm_rows and its gradient, by rows in registers; what may stand around them is in around.cuh.
 * Sums over a row are kept in double: they are few, and memory is what these kernels wait for. Compiled ahead (norm.cu)
 * and as text with generated kernels. */
#ifndef KILN_CUDA_NORM_CUH
#define KILN_CUDA_NORM_CUH

#include "device/cuda/kernels/around.cuh"
#include "device/cuda/kernels/halves.cuh"

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
    bool plain;   /* rows are only scaled: their mean is 0 */
    const int32_t *stop;

    __device__ __forceinline__ bool stopped() const
    {
        return stop && *stop;
    }
};

/* (x - mean) times rstd and weight, plus bias, N elements at a time. Weights are fetched a few at a time: there are not
 * as many registers left as the row has. An absent weight is 1, an absent bias -0: both leave every bit as it is. Where
 * BOTH are there nothing has to stand for them, not beyond the row either: what is made of it goes nowhere. */
template <int N, bool BOTH, typename T, int V, int E, bool BLOCK, typename A>
static __device__ __forceinline__ void
put_packs(const norm_forward<T> &p, const A &around, const kiln_held<T, V, E, BLOCK> &h, const kiln_crew<BLOCK> &c,
          T *to, int64_t first, const T *weight, const T *bias, int left, typename kiln_element<T>::real mean,
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
        kiln_put<held, N, some>(around, to, first, k, c, left, [&](int i) {
            return fma((h[i] - mean) * rstd, element::of(w[i - k]), element::of(b[i - k]));
        });
    }
}

/* The elements in hand, of which the first is number `begin` of its row. */
template <typename T, int V, int E, bool BLOCK, typename A>
static __device__ __forceinline__ void
put_norm(const norm_forward<T> &p, const A &around, kiln_held<T, V, E, BLOCK> &h, kiln_crew<BLOCK> &c, int64_t row,
         int64_t begin, int left, typename kiln_element<T>::real mean, typename kiln_element<T>::real rstd)
{
    typedef kiln_held<T, V, E, BLOCK> held;
    h.forget();
    c.forget();
    int64_t first = row * p.n + begin;
    T *to = held::mine(p.y + first, c);
    const T *weight = held::mine(p.weight + begin, c), *bias = held::mine(p.bias + begin, c);
    if ((V == 1 || p.aligned) && p.weight && p.bias)
        put_packs<V, true>(p, around, h, c, to, first, weight, bias, left, mean, rstd);
    else if (V == 1 || p.aligned)
        put_packs<V, false>(p, around, h, c, to, first, weight, bias, left, mean, rstd);
    else
        put_packs<1, false>(p, around, h, c, to, first, weight, bias, left, mean, rstd);
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

/* The row of this team. */
template <typename T, int V, int E, typename A>
static __device__ __forceinline__ void norm_row(const norm_forward<T> &p, const A &around, int team)
{
    typedef kiln_held<T, V, E> held;
    typedef typename held::real real;
    __shared__ double sums[2][32];
    typename held::crew c(team);
    int64_t row = (int64_t)blockIdx.x * c.teams + c.slot;
    int left = row < p.rows ? (int)p.n : 0;
    held h;
    if constexpr (A::given != 0) {
        h.all.fill(held::element::to(0));
        kiln_take(around, c, row * p.n, left, h, h);
    } else
        h.load(p.x + row * p.n, c, left, p.aligned, 0);
    real mean = p.plain ? 0 : (real)(c.sum(sum_of(h), sums[0]) * p.share);
    c.forget();
    real rstd = (real)rsqrt(c.sum(h.squares(c, left, mean), sums[1]) * p.share + *p.eps);
    if (c.rank == 0 && row < p.rows)
        put_figures(p, row, mean, rstd);
    put_norm(p, around, h, c, row, 0, left, mean, rstd);
}

/* ---- Backward ---- */

/* With z = (x - mean)·rstd and u = gy·weight: gx = rstd·(u - mean(u) - z·mean(u·z)), gweight = Σ gy·z, gbias = Σ gy.
 * A block takes a chunk of rows, a team of its threads every so many of these, and what is summed over rows is kept
 * with the columns that a thread has of all of them: x and gy are read once. A second kernel adds the sums of chunks.
 */
template <typename S> struct norm_grad {
    typedef typename kiln_element<S>::real real;
    const S *x;
    const real *mean, *rstd;
    const S *gy, *weight; /* weight: NULL for 1 */
    S *gx;
    S *gweight, *gbias; /* where there is one chunk */
    real *parts;        /* else: its sums for both, those of chunk k 2·n·k further */
    int64_t rows, n, chunk, chunks;
    int32_t team;
    bool aligned; /* x, gy, gx and weight: to 16 bytes */
    bool plain;   /* rows are only scaled */
    const int32_t *stop, *sums_stop;
};

/* Elements that a thread has of a row, at most: their sums and what they are made of have to fit in registers. */
template <typename S> constexpr int norm_grad_most = sizeof(typename kiln_element<S>::real) == 8 ? 8 : 16;

/* Several teams of a block, of some lanes of a warp or of whole warps, which wait for nobody outside the team. */
struct kiln_squad : kiln_crew<true> {
    __device__ __forceinline__ explicit kiln_squad(int size) : kiln_crew<true>(size)
    {
        rank = (int)threadIdx.x % size;
        slot = (int)threadIdx.x / size;
        teams = (int)blockDim.x / size;
    }

    /* Both over the team; all its threads get the same bits. `parts` is the block's, another one than in the call
     * before: what that one held may still be read. */
    __device__ __forceinline__ void sum(double &a, double &b, double (&parts)[2][32]) const
    {
#pragma unroll
        for (int apart = 16; apart > 0; apart /= 2)
            if (apart < size) {
                a += __shfl_xor_sync(0xffffffffu, a, apart);
                b += __shfl_xor_sync(0xffffffffu, b, apart);
            }
        if (size <= 32)
            return;
        int warp = (int)threadIdx.x / 32, begin = slot * (size / 32);
        if (threadIdx.x % 32 == 0) {
            parts[0][warp] = a;
            parts[1][warp] = b;
        }
        asm volatile("bar.sync %0, %1;" ::"r"(slot + 1), "r"(size) : "memory");
        a = b = 0;
        for (int w = begin; w < begin + size / 32; w++) {
            a += parts[0][w];
            b += parts[1][w];
        }
    }
};

/* Column `column` of the sums of this block's chunk. */
template <typename S, typename T>
static __device__ __forceinline__ void put_column(const norm_grad<S> &p, int64_t column, T weight, T bias)
{
    if (p.parts) {
        p.parts[2 * blockIdx.x * p.n + column] = weight;
        p.parts[(2 * blockIdx.x + 1) * p.n + column] = bias;
    } else {
        p.gweight[column] = kiln_element<S>::to(weight);
        p.gbias[column] = kiln_element<S>::to(bias);
    }
}

/* Adds what the teams of a block have, in their order. `room`: 2·n elements of shared memory, used where teams are in
 * several warps. */
template <typename S, typename H, typename T>
static __device__ __forceinline__ void put_columns(const norm_grad<S> &p, const kiln_squad &c, T (&weight)[H::each],
                                                   T (&bias)[H::each], T *room)
{
    for (int apart = c.size; apart < 32; apart *= 2)
#pragma unroll
        for (int i = 0; i < H::each; i++) {
            weight[i] += __shfl_xor_sync(0xffffffffu, weight[i], apart);
            bias[i] += __shfl_xor_sync(0xffffffffu, bias[i], apart);
        }
    int together = c.size < 32 ? 32 : c.size, mine = (int)threadIdx.x / together;
    int others = (int)blockDim.x / together;
    bool first = c.size >= 32 || (int)threadIdx.x % 32 < c.size, quiet = p.sums_stop && *p.sums_stop;
    for (int turn = 0; others > 1 && turn < others; turn++) {
        __syncthreads();
#pragma unroll
        for (int i = 0; i < H::each; i++) {
            int column = H::place(c, i);
            if (mine != turn || !first || column >= p.n)
                continue;
            room[column] = turn ? room[column] + weight[i] : weight[i];
            room[p.n + column] = turn ? room[p.n + column] + bias[i] : bias[i];
        }
    }
    if (quiet)
        return;
    __syncthreads();
    if (others > 1) {
        for (int column = (int)threadIdx.x; column < p.n; column += (int)blockDim.x)
            put_column(p, column, room[column], room[p.n + column]);
        return;
    }
#pragma unroll
    for (int i = 0; i < H::each; i++)
        if (first && H::place(c, i) < p.n)
            put_column(p, H::place(c, i), weight[i], bias[i]);
}

/* What is made of a thread's elements of a row: z in place of x, u in place of gy, and their part of the sums. */
template <typename S, typename H, int N, typename T>
static __device__ __forceinline__ void take_elements(const norm_grad<S> &p, const kiln_squad &c, int left, T mean,
                                                     T rstd, T (&z)[H::each], T (&u)[H::each], T (&weight)[H::each],
                                                     T (&bias)[H::each], double &sum, double &along)
{
    typedef kiln_element<S> element;
    constexpr int some = N < 4 ? 4 : N;
    const S *from = H::mine(p.weight, c);
#pragma unroll
    for (int k = 0; k < H::each; k += some) {
        kiln_lying<S, some> w;
        w.fill(element::to(1));
        H::template fetch<N, false>(w, k, from, c, p.weight ? left : 0);
        T us = 0, uzs = 0;
#pragma unroll
        for (int i = k; i < k + some; i++) {
            z[i] = (z[i] - mean) * rstd;
            weight[i] += u[i] * z[i];
            bias[i] += u[i];
            u[i] *= element::of(w[i - k]);
            us += u[i];
            uzs += u[i] * z[i];
        }
        sum += (double)us;
        along += (double)uzs;
    }
}

template <typename S, int V, int E, typename A>
static __device__ __forceinline__ void norm_grad_rows(const norm_grad<S> &p, const A &around,
                                                      typename kiln_element<S>::real *room)
{
    typedef kiln_held<S, V, E, true> held;
    typedef typename held::real T;
    constexpr int step = kiln_cell<held>;
    __shared__ double parts[2][2][32];
    const kiln_squad c(p.team);
    T weight[E] = {}, bias[E] = {};
    int64_t begin = blockIdx.x * p.chunk, end = begin + p.chunk < p.rows ? begin + p.chunk : p.rows;
    bool quiet = p.stop && *p.stop;
    int turn = 0;
    for (int64_t at = begin; at < end; at += c.teams, turn ^= 1) {
        int64_t row = at + c.slot, first = row * p.n;
        int left = row < end ? (int)p.n : 0;
        T mean = left ? p.mean[row] : 0, rstd = left ? p.rstd[row] : 0, z[E], u[E];
        typename A::template fetched<step> ahead[E / step];
        held x, gy;
        if constexpr (A::given != 0) {
            x.all.fill(held::element::to(0));
            gy.all.fill(held::element::to(0));
            kiln_take(around, c, first, left, x, gy);
        }
        if constexpr (!(A::given & 1))
            x.load(p.x + first, c, left, p.aligned, 0);
        if constexpr (!(A::given & 2))
            gy.load(p.gy + first, c, left, p.aligned, 0);
        if constexpr (A::finishes)
#pragma unroll
            for (int k = 0; k < E; k += step)
                if (held::place(c, k) < left)
                    ahead[k / step] = around.template fetch<step>(first + held::place(c, k));
#pragma unroll
        for (int i = 0; i < E; i++) {
            z[i] = x[i];
            u[i] = gy[i];
        }
        double sum = 0, along = 0;
        if (V == 1 || p.aligned)
            take_elements<S, held, V>(p, c, left, mean, rstd, z, u, weight, bias, sum, along);
        else
            take_elements<S, held, 1>(p, c, left, mean, rstd, z, u, weight, bias, sum, along);
        c.sum(sum, along, parts[turn]);
        T a = p.plain ? 0 : (T)(sum / (double)p.n), b = (T)(along / (double)p.n);
        if (quiet)
            continue;
        auto gradient = [&](int i) { return rstd * (u[i] - a - z[i] * b); };
        if constexpr (A::finishes) {
#pragma unroll
            for (int k = 0; k < E; k += step)
                if (held::place(c, k) < left)
                    kiln_finish<held>(around, ahead[k / step], first, k, c, gradient);
        } else
            held::store(p.gx + first, c, left, p.aligned, gradient);
    }
    put_columns<S, held>(p, c, weight, bias, room);
}

#endif
