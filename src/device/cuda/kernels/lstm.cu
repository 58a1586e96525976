/* LSTM cells: a launch a step, since each step needs all of the one before. A block computes the products for some rows
 * of the batch and some units, and then what is left of the step for them. Small steps leave few blocks, so those are
 * kept narrow, and the threads of a narrow block share the terms of its sums. S is what elements are in memory, T what
 * they are computed as; cell states and their gradients are T in memory too. */
#include "device/cuda/kernels/halves.cuh"

enum { THREADS = 256, ROW_GROUPS = 16, GROUP = 4 };

/* Threads of a block are [shares][ROW_GROUPS][groups]: each sums, for R rows and a group of four columns, the terms of
 * its share. */
template <typename T, int R, int GROUPS> struct block_of {
    static constexpr int rows = ROW_GROUPS * R, cols = GROUP * GROUPS, shares = THREADS / (ROW_GROUPS * GROUPS);
    static constexpr int depth = GROUPS == 16 ? 32 : (sizeof(T) == 4 && R == 2) ? 128 : 64; /* terms at a time */
    static constexpr int pad = kiln_wide<T>, left_line = rows + pad, right_line = cols + GROUP;
    static constexpr int stage = depth * (left_line + right_line), sums = shares * rows * cols;
    static constexpr int elements = stage > sums ? stage : sums;
    static_assert(depth % shares == 0 && elements * sizeof(T) <= 48 * 1024,
                  "shares are alike and shared memory suffices");
};

/* The right operand of a product, whose column c is units (or gates) of w. */
template <typename S> struct weights_of {
    const S *w; /* [4H, H] */
    int64_t h;
    bool transposed; /* column c, term k: w[k, first + c]; else, c = 4·unit + kind: w[kind·H + first + unit, k] */
};

/* The block's sums of left[row, k]·right[k, column] over k < n, to [rows][cols] in shared memory. Rows of `left` are n
 * apart. All threads call it; ends with a barrier. */
template <typename T, int R, int GROUPS, typename S>
static __device__ __forceinline__ void multiply(T *shared, const S *left, int64_t rows_left, int64_t n,
                                                const weights_of<S> &right, int64_t first)
{
    typedef block_of<T, R, GROUPS> b;
    typedef kiln_element<S> element;
    constexpr int each = b::depth / b::shares;
    int me = (int)threadIdx.x, group = me % GROUPS, rows = me / GROUPS % ROW_GROUPS, share = me / (GROUPS * ROW_GROUPS);
    T *lefts = shared, *rights = shared + b::depth * b::left_line, sums[R][GROUP];
#pragma unroll
    for (int i = 0; i < R; i++)
#pragma unroll
        for (int j = 0; j < GROUP; j++)
            sums[i][j] = 0;
    for (int64_t from = 0; from < n; from += b::depth) {
        __syncthreads();
#pragma unroll 4
        for (int u = me; u < b::rows * b::depth; u += THREADS) { /* eight terms of four rows a warp: no bank twice */
            int row = u / 8 % b::rows, k = u % 8 + u / (8 * b::rows) * 8;
            lefts[k * b::left_line + row] = row < rows_left && from + k < n ? element::of(left[row * n + from + k]) : (T)0;
        }
        if (right.transposed)
#pragma unroll 4
            for (int u = me; u < b::cols * b::depth; u += THREADS) {
                int column = u % b::cols, k = u / b::cols;
                bool there = first + column < right.h && from + k < n;
                rights[k * b::right_line + column] =
                    there ? element::of(right.w[(from + k) * right.h + first + column]) : (T)0;
            }
        else
#pragma unroll 4
            for (int u = me; u < b::cols * b::depth; u += THREADS) {
                int column = u / 8 % b::cols, k = u % 8 + u / (8 * b::cols) * 8;
                int64_t unit = first + column / GROUP, gate = column % GROUP * right.h + unit;
                bool there = unit < right.h && from + k < n;
                rights[k * b::right_line + column] = there ? element::of(right.w[gate * right.h + from + k]) : (T)0;
            }
        __syncthreads();
#pragma unroll 8
        for (int k = share * each; k < (share + 1) * each; k++) {
            kiln_pack<T, R> x = kiln_load<R>(lefts + k * b::left_line + rows * R);
            kiln_pack<T, GROUP> y = kiln_load<GROUP>(rights + k * b::right_line + group * GROUP);
#pragma unroll
            for (int i = 0; i < R; i++)
#pragma unroll
                for (int j = 0; j < GROUP; j++)
                    sums[i][j] += x.at[i] * y.at[j];
        }
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < R; i++)
#pragma unroll
        for (int j = 0; j < GROUP; j++)
            shared[(share * b::rows + rows * R + i) * b::cols + group * GROUP + j] = sums[i][j];
    __syncthreads();
}

/* The sum of all shares for one row and column. */
template <typename T, int R, int GROUPS>
static __device__ __forceinline__ T product_at(const T *shared, int row, int column)
{
    typedef block_of<T, R, GROUPS> b;
    T sum = 0;
#pragma unroll
    for (int share = 0; share < b::shares; share++)
        sum += shared[(share * b::rows + row) * b::cols + column];
    return sum;
}

static __device__ __forceinline__ float tanh_of(float x)
{
    return tanhf(x);
}

static __device__ __forceinline__ double tanh_of(double x)
{
    return tanh(x);
}

template <typename T> static __device__ __forceinline__ T gate_of(T x)
{
    T e = kiln_exp(x < 0 ? x : -x);
    return (x < 0 ? e : (T)1) / ((T)1 + e);
}

/* ---- Forward ---- */

/* One step; gates [N, 4H], the rest [N, H]. */
template <typename S> struct step {
    typedef typename kiln_element<S>::real real;
    const S *x, *h_before;
    const real *c_before;
    const S *w;
    S *h;
    real *c;
    S *gates;
    int64_t n, units;
    const int32_t *stop;
};

template <typename S, int R, int GROUPS> static __global__ void __launch_bounds__(THREADS) forward(step<S> p)
{
    typedef kiln_element<S> element;
    typedef typename element::real T;
    typedef block_of<T, R, GROUPS> b;
    __shared__ alignas(16) T shared[b::elements];
    if (p.stop && *p.stop)
        return;
    int64_t blocks_across = (p.units + GROUPS - 1) / GROUPS, unit = blockIdx.x % blocks_across * GROUPS;
    int64_t row = blockIdx.x / blocks_across * b::rows, h = p.units;
    multiply<T, R, GROUPS>(shared, p.h_before + row * h, p.n - row, h, weights_of<S>{p.w, h, false}, unit);
    for (int cell = (int)threadIdx.x; cell < b::rows * GROUPS; cell += THREADS) {
        int r = cell / GROUPS, u = cell % GROUPS;
        if (row + r >= p.n || unit + u >= h)
            continue;
        int64_t at = (row + r) * h + unit + u, first = 4 * (row + r) * h + unit + u;
        T sum[4];
#pragma unroll
        for (int k = 0; k < 4; k++)
            sum[k] = element::of(p.x[first + k * h]) + product_at<T, R, GROUPS>(shared, r, u * GROUP + k);
        T i = gate_of(sum[0]), f = gate_of(sum[1]), g = tanh_of(sum[2]), o = gate_of(sum[3]);
        T c = f * p.c_before[at] + i * g;
        p.gates[first] = element::to(i);
        p.gates[first + h] = element::to(f);
        p.gates[first + 2 * h] = element::to(g);
        p.gates[first + 3 * h] = element::to(o);
        p.c[at] = c;
        p.h[at] = element::to(o * tanh_of(c));
    }
}

/* h and c begin with h0 and c0. */
template <typename S, typename T>
static __global__ void begin(const S *h0, const T *c0, S *h, T *c, int64_t count, const int32_t *stop)
{
    if (stop && *stop)
        return;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (int64_t)gridDim.x * blockDim.x) {
        h[i] = h0[i];
        c[i] = c0[i];
    }
}

/* ---- Backward ---- */

/* One step; gradients from outside may be NULL, gx_next is where there is no step behind it, and gx where there is none
 * left: then the gradients of h0 and c0 are all there is to do. */
template <typename S> struct step_back {
    typedef typename kiln_element<S>::real real;
    const S *gates, *w, *gh, *ggates, *gx_next;
    const real *c_before, *c, *gc;
    S *gx, *gh0;
    real *carry; /* the gradient of c from the step behind, then of the c before; in the end of c0 */
    bool carried;
    int64_t n, units;
    const int32_t *stop;
};

template <typename T, typename S>
static __device__ __forceinline__ void back_cell(const step_back<S> &p, int64_t row, int64_t unit, T gh)
{
    typedef kiln_element<S> element;
    int64_t h = p.units, at = row * h + unit, first = 4 * row * h + unit;
    T gc = (p.carried ? p.carry[at] : (T)0) + (p.gc ? p.gc[at] : (T)0);
    gh += p.gh ? element::of(p.gh[at]) : (T)0;
    if (!p.gx) {
        p.gh0[at] = element::to(gh);
        p.carry[at] = gc;
        return;
    }
    T i = element::of(p.gates[first]), f = element::of(p.gates[first + h]), g = element::of(p.gates[first + 2 * h]);
    T o = element::of(p.gates[first + 3 * h]), from[4];
#pragma unroll
    for (int k = 0; k < 4; k++)
        from[k] = p.ggates ? element::of(p.ggates[first + k * h]) : (T)0;
    T t = tanh_of(p.c[at]), d = gc + gh * o * (1 - t * t);
    p.gx[first] = element::to((d * g + from[0]) * (i * (1 - i)));
    p.gx[first + h] = element::to((d * p.c_before[at] + from[1]) * (f * (1 - f)));
    p.gx[first + 2 * h] = element::to((d * i + from[2]) * (1 - g * g));
    p.gx[first + 3 * h] = element::to((gh * t + from[3]) * (o * (1 - o)));
    p.carry[at] = d * f;
}

template <typename S, int R, int GROUPS> static __global__ void __launch_bounds__(THREADS) backward(step_back<S> p)
{
    typedef typename kiln_element<S>::real T;
    typedef block_of<T, R, GROUPS> b;
    __shared__ alignas(16) T shared[b::elements];
    if (p.stop && *p.stop)
        return;
    int64_t blocks_across = (p.units + b::cols - 1) / b::cols, unit = blockIdx.x % blocks_across * b::cols;
    int64_t row = blockIdx.x / blocks_across * b::rows, h = p.units;
    if (p.gx_next)
        multiply<T, R, GROUPS>(shared, p.gx_next + row * 4 * h, p.n - row, 4 * h, weights_of<S>{p.w, h, true}, unit);
    for (int cell = (int)threadIdx.x; cell < b::rows * b::cols; cell += THREADS) {
        int r = cell / b::cols, u = cell % b::cols;
        if (row + r < p.n && unit + u < h)
            back_cell<T>(p, row + r, unit + u, p.gx_next ? product_at<T, R, GROUPS>(shared, r, u) : (T)0);
    }
}

/* ---- Launching ---- */

typedef struct sizes {
    int64_t t, n, h;
} sizes;

/* Both operations' first operand is [T, N, 4H]. */
static sizes sizes_of(const kiln_cuda_call *c)
{
    const int64_t *shape = c->in[0].shape;
    return sizes{shape[0], shape[1], shape[2] / 4};
}

enum { ENOUGH_BLOCKS = 96 };

/* Blocks for n rows and `across` columns' groups of four, with R rows a thread. */
static int64_t blocks_for(int64_t n, int64_t across, int r, int groups)
{
    return (n + ROW_GROUPS * r - 1) / (ROW_GROUPS * r) * ((across + groups - 1) / groups);
}

/* The widest blocks of which there are still enough for the device. */
#define STEP_KERNEL(kernel, T, n, across, stream, p)                                                                   \
    do {                                                                                                               \
        int r = (n) > 32 ? 4 : 2, groups = 16;                                                                         \
        while (groups > 1 && blocks_for(n, across, r, groups) < ENOUGH_BLOCKS)                                         \
            groups /= 4;                                                                                               \
        unsigned grid = (unsigned)blocks_for(n, across, r, groups);                                                    \
        if (r == 4 && groups == 16)                                                                                    \
            kernel<T, 4, 16><<<grid, THREADS, 0, stream>>>(p);                                                         \
        else if (r == 4 && groups == 4)                                                                                \
            kernel<T, 4, 4><<<grid, THREADS, 0, stream>>>(p);                                                          \
        else if (r == 4)                                                                                               \
            kernel<T, 4, 1><<<grid, THREADS, 0, stream>>>(p);                                                          \
        else if (groups == 16)                                                                                         \
            kernel<T, 2, 16><<<grid, THREADS, 0, stream>>>(p);                                                         \
        else if (groups == 4)                                                                                          \
            kernel<T, 2, 4><<<grid, THREADS, 0, stream>>>(p);                                                          \
        else                                                                                                           \
            kernel<T, 2, 1><<<grid, THREADS, 0, stream>>>(p);                                                          \
    } while (0)

template <typename S> static void launch(const step<S> &p, cudaStream_t stream)
{
    STEP_KERNEL(forward, S, p.n, p.units, stream, p);
}

static void launch(const step<double> &p, cudaStream_t stream)
{
    forward<double, 2, 4><<<(unsigned)blocks_for(p.n, p.units, 2, 4), THREADS, 0, stream>>>(p);
}

template <typename S> static void launch(const step_back<S> &p, cudaStream_t stream)
{
    STEP_KERNEL(backward, S, p.n, (p.units + GROUP - 1) / GROUP, stream, p);
}

static void launch(const step_back<double> &p, cudaStream_t stream)
{
    unsigned grid = (unsigned)blocks_for(p.n, (p.units + GROUP - 1) / GROUP, 2, 4);
    backward<double, 2, 4><<<grid, THREADS, 0, stream>>>(p);
}

template <typename S> static void run_cells(const kiln_cuda_call *c, sizes s)
{
    typedef typename kiln_element<S>::real T;
    int64_t state = s.n * s.h;
    S *h = (S *)c->out[0].data;
    T *cell = (T *)c->out[1].data;
    begin<S, T><<<kiln_grid((state + THREADS - 1) / THREADS), THREADS, 0, c->stream>>>(
        (const S *)c->in[1].data, (const T *)c->in[2].data, h, cell, state, c->stop);
    for (int64_t t = 0; t < s.t; t++) {
        step<S> p = {(const S *)c->in[0].data + t * 4 * state,
                     h + t * state,
                     cell + t * state,
                     (const S *)c->in[3].data,
                     h + (t + 1) * state,
                     cell + (t + 1) * state,
                     (S *)c->out[2].data + t * 4 * state,
                     s.n,
                     s.h,
                     c->stop};
        launch(p, c->stream);
    }
}

template <typename T> static const T *part_of(const kiln_cuda_call *c, int k, int64_t offset)
{
    return k < c->nin && c->in[k].data ? (const T *)c->in[k].data + offset : NULL;
}

template <typename S> static void run_cells_grad(const kiln_cuda_call *c, sizes s)
{
    typedef typename kiln_element<S>::real T;
    int64_t state = s.n * s.h;
    S *gx = (S *)c->out[0].data;
    for (int64_t t = s.t - 1; t >= -1; t--) {
        step_back<S> p = {};
        p.w = (const S *)c->in[2].data;
        p.gh = part_of<S>(c, 3, (t + 1) * state);
        p.gc = part_of<T>(c, 4, (t + 1) * state);
        p.gx_next = t + 1 < s.t ? gx + (t + 1) * 4 * state : NULL;
        p.gh0 = (S *)c->out[1].data;
        p.carry = (T *)c->out[2].data;
        p.carried = t + 1 < s.t;
        p.n = s.n;
        p.units = s.h;
        p.stop = c->stop;
        if (t >= 0) {
            p.gates = (const S *)c->in[0].data + t * 4 * state;
            p.c_before = (const T *)c->in[1].data + t * state;
            p.c = p.c_before + state;
            p.ggates = part_of<S>(c, 5, t * 4 * state);
            p.gx = gx + t * 4 * state;
        }
        launch(p, c->stream);
    }
}

static bool lstm_cells(const kiln_cuda_call *c)
{
    sizes s = sizes_of(c);
    if (s.n == 0 || s.h == 0)
        return true;
    switch (c->in[0].dtype) {
    case KILN_F64: run_cells<double>(c, s); break;
    case KILN_F16: run_cells<kiln_f16>(c, s); break;
    case KILN_BF16: run_cells<kiln_bf16>(c, s); break;
    default: run_cells<float>(c, s);
    }
    return kiln_cuda_launched(c);
}

static bool lstm_cells_grad(const kiln_cuda_call *c)
{
    sizes s = sizes_of(c);
    if (s.n == 0 || s.h == 0)
        return true;
    switch (c->in[0].dtype) {
    case KILN_F64: run_cells_grad<double>(c, s); break;
    case KILN_F16: run_cells_grad<kiln_f16>(c, s); break;
    case KILN_BF16: run_cells_grad<kiln_bf16>(c, s); break;
    default: run_cells_grad<float>(c, s);
    }
    return kiln_cuda_launched(c);
}

extern "C" const kiln_cuda_kernel kiln_cuda_kernels_lstm[] = {
    {"lstm_cells", KILN_CUDA_FLOATS, lstm_cells, NULL},
    {"lstm_cells_grad", KILN_CUDA_FLOATS, lstm_cells_grad, NULL},
    {NULL, 0, NULL, NULL},
};
