/* Softmax, layer norm (norm.cuh), and the elements that class indices name. */
#include "device/cuda/norm.cuh"
#include "device/cuda/report.cuh"

/* ---- Softmax ---- */

/* The largest of some elements and Σ exp(x - largest), which grow together. -inf adds nothing to any sum, and a NaN,
 * though never the largest, stays in it. */
template <typename T> struct running {
    T max;
    double sum;

    template <int N> __device__ __forceinline__ void take(const kiln_pack<T, N> &v)
    {
        T top = max, part = 0;
#pragma unroll
        for (int k = 0; k < N; k++)
            top = kiln_larger(top, v.at[k]);
        if (top > max) {
            sum *= (double)kiln_exp(max - top);
            max = top;
        }
#pragma unroll
        for (int k = 0; k < N; k++)
            part += v.at[k] == -kiln_infinity(T()) ? (T)0 : kiln_exp(v.at[k] - max);
        sum += (double)part;
    }

    /* The sum as it is beside a largest element that others may have met. */
    __device__ __forceinline__ double beside(T largest) const
    {
        return max < largest ? sum * (double)kiln_exp(max - largest) : sum;
    }
};

/* exp(inf - inf) is among the terms when there is an infinity. */
template <typename T> static __device__ __forceinline__ double whole_sum(T max, double sum)
{
    return max == kiln_infinity(T()) ? (double)NAN : sum;
}

/* What each element's difference from the largest is multiplied or lessened by. */
template <typename T> static __device__ __forceinline__ T share_of(double sum, bool log_of)
{
    return (T)(log_of ? log(sum) : 1 / sum);
}

template <typename T> static __device__ __forceinline__ T softmax_of(T x, T max, T share, bool log_of)
{
    return log_of ? x - max - share : kiln_exp(x - max) * share;
}

template <typename T, bool BLOCK, int V>
static __global__ void softmax_rows(const T *__restrict__ x, T *__restrict__ y, int64_t rows, int64_t n, bool log_of,
                                    const int32_t *stop)
{
    typedef kiln_team<BLOCK> team;
    if (stop && *stop)
        return;
    for (int64_t row = team::first_row(); row < rows; row += next_row<BLOCK>(gridDim.x)) {
        const T *__restrict__ from = x + row * n;
        T *__restrict__ to = y + row * n;
        running<T> r = {-kiln_infinity(T()), 0};
#pragma unroll 4
        for (int64_t i = (int64_t)team::rank() * V; i < n; i += (int64_t)team::size() * V)
            r.take(kiln_load<V>(from + i));
        T max = team::max(r.max);
        T share = share_of<T>(whole_sum(max, team::sum(r.beside(max))), log_of);
#pragma unroll 4
        for (int64_t i = (int64_t)team::rank() * V; i < n; i += (int64_t)team::size() * V) {
            kiln_pack<T, V> v = kiln_load<V>(from + i);
#pragma unroll
            for (int k = 0; k < V; k++)
                v.at[k] = softmax_of(v.at[k], max, share, log_of);
            kiln_store<V>(to + i, v);
        }
    }
}

enum { COLUMN_THREADS = 256 };

/* Down columns: threadIdx.x counts columns, threads with the same one share it. */
template <typename T>
static __global__ void softmax_columns(const T *__restrict__ x, T *__restrict__ y, shape s, bool log_of,
                                       const int32_t *stop)
{
    __shared__ T tops[COLUMN_THREADS];
    __shared__ double sums[COLUMN_THREADS];
    if (stop && *stop)
        return;
    int me = (int)(threadIdx.y * blockDim.x + threadIdx.x);
    for (int64_t first = (int64_t)blockIdx.x * blockDim.x; first < s.outer * s.inner;
         first += (int64_t)gridDim.x * blockDim.x) {
        int64_t column = first + threadIdx.x, from = column / s.inner * s.n * s.inner + column % s.inner;
        int64_t n = column < s.outer * s.inner ? s.n : 0;
        running<T> r = {-kiln_infinity(T()), 0};
#pragma unroll 4
        for (int64_t i = threadIdx.y; i < n; i += blockDim.y)
            r.take(kiln_load<1>(x + from + i * s.inner));
        tops[me] = r.max;
        sums[me] = r.sum;
        __syncthreads();
        T max = r.max;
        for (int k = 0; k < (int)blockDim.y; k++)
            max = kiln_larger(max, tops[k * blockDim.x + threadIdx.x]);
        double sum = 0;
        for (int k = 0; k < (int)blockDim.y; k++) {
            int at = (int)(k * blockDim.x + threadIdx.x);
            sum += running<T>{tops[at], sums[at]}.beside(max);
        }
        T share = share_of<T>(whole_sum(max, sum), log_of);
#pragma unroll 4
        for (int64_t i = threadIdx.y; i < n; i += blockDim.y)
            y[from + i * s.inner] = softmax_of(x[from + i * s.inner], max, share, log_of);
        __syncthreads();
    }
}

static int64_t power_of_two(int64_t least)
{
    int64_t p = 1;
    while (p < least)
        p *= 2;
    return p;
}

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

template <typename T> static void launch_softmax(const kiln_cuda_call *c, shape s, bool log_of)
{
    const T *x = (const T *)c->in[0].data;
    T *y = (T *)c->out[0].data;
    if (s.inner == 1) {
        teams t = teams_for(s.outer, s.n, 0);
        bool wide = s.n % kiln_wide<T> == 0 && kiln_aligned16(x) && kiln_aligned16(y);
        ROW_KERNEL(softmax_rows, t, T, wide, 0, c->stream, x, y, s.outer, s.n, log_of, c->stop);
        return;
    }
    int64_t columns = s.outer * s.inner, across, down = 1;
    if (columns >= 65536)
        across = COLUMN_THREADS;
    else {
        across = smaller(power_of_two(columns), 32);
        down = smaller(smaller(COLUMN_THREADS / across, 32), power_of_two((s.n + 3) / 4));
    }
    dim3 block((unsigned)across, (unsigned)down);
    softmax_columns<T><<<kiln_grid((columns + across - 1) / across), block, 0, c->stream>>>(x, y, s, log_of, c->stop);
}

static bool run_softmax(const kiln_cuda_call *c, bool log_of)
{
    shape s = split(&c->in[0], c->ints[0], c->ints[0] + 1);
    if (s.outer * s.n * s.inner == 0)
        return true;
    if (c->in[0].dtype == KILN_F64)
        launch_softmax<double>(c, s, log_of);
    else
        launch_softmax<float>(c, s, log_of);
    return kiln_cuda_launched(c);
}

static bool softmax(const kiln_cuda_call *c)
{
    return run_softmax(c, false);
}

static bool log_softmax(const kiln_cuda_call *c)
{
    return run_softmax(c, true);
}

/* ---- nll_loss_pick, nll_loss_place ---- */

/* x is [outer, classes, inner], target [outer, inner]. Targets equal to `ignore` take no part. */
typedef struct picks {
    const int64_t *target;
    int64_t outer, classes, inner, ignore;
    const int32_t *stop;
    kiln_cuda_fault fault;
} picks;

/* Whether target i names a class; one that should but does not is reported. Reports are not kept back while `stop` is
 * set: blocks that come late may have the earlier one. */
static __device__ __forceinline__ bool names_class(const picks &p, int64_t i)
{
    int64_t target = p.target[i];
    if (target == p.ignore)
        return false;
    if (target >= 0 && target < p.classes)
        return true;
    kiln_cuda_report(p.fault, i, target, p.classes);
    return false;
}

template <typename T> static __global__ void pick(picks p, const T *x, T *y)
{
    bool writes = !(p.stop && *p.stop);
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < p.outer * p.inner;
         i += (int64_t)gridDim.x * blockDim.x) {
        T picked = 0;
        if (names_class(p, i))
            picked = -x[(i / p.inner * p.classes + p.target[i]) * p.inner + i % p.inner];
        if (writes)
            y[i] = picked;
    }
}

/* Every element of y is written once: a thread has four in a row, and divides (in I) once for all of them. */
template <typename T, typename I, bool WIDE> static __global__ void place(picks p, const T *g, T *y)
{
    enum { EACH = 4 };
    int64_t thread = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, threads = (int64_t)gridDim.x * blockDim.x;
    bool writes = !(p.stop && *p.stop);
    for (int64_t i = thread; i < p.outer * p.inner; i += threads)
        names_class(p, i);
    int64_t count = p.outer * p.classes * p.inner;
    for (int64_t first = thread * EACH; writes && first < count; first += threads * EACH) {
        int64_t line = (int64_t)((I)first / (I)p.inner), within = first - line * p.inner;
        int64_t outer = (int64_t)((I)line / (I)p.classes), which = line - outer * p.classes;
        kiln_pack<T, EACH> v;
#pragma unroll
        for (int k = 0; k < EACH; k++) {
            v.at[k] = 0;
            if (first + k < count) {
                int64_t target = p.target[outer * p.inner + within];
                if (target == which && target != p.ignore)
                    v.at[k] = -g[outer * p.inner + within];
            }
            if (++within == p.inner) {
                within = 0;
                if (++which == p.classes) {
                    which = 0;
                    outer++;
                }
            }
        }
        if (WIDE && first + EACH <= count)
            kiln_store<EACH>(y + first, v);
        else
            for (int k = 0; k < EACH && first + k < count; k++)
                y[first + k] = v.at[k];
    }
}

static picks picks_of(const kiln_cuda_call *c, const kiln_cuda_operand *x)
{
    shape s = split(x, c->ints[0], c->ints[0] + 1);
    return picks{(const int64_t *)c->in[1].data, s.outer, s.n, s.inner, c->ints[1], c->stop, c->fault};
}

enum { PICK_THREADS = 128, PICK_BLOCKS = 1 << 16 };

static unsigned pick_grid(int64_t threads)
{
    return kiln_grid(smaller((threads + PICK_THREADS - 1) / PICK_THREADS, PICK_BLOCKS));
}

static bool nll_loss_pick(const kiln_cuda_call *c)
{
    picks p = picks_of(c, &c->in[0]);
    int64_t n = p.outer * p.inner;
    if (n == 0)
        return true;
    if (c->in[0].dtype == KILN_F64)
        pick<double>
            <<<pick_grid(n), PICK_THREADS, 0, c->stream>>>(p, (const double *)c->in[0].data, (double *)c->out[0].data);
    else
        pick<float>
            <<<pick_grid(n), PICK_THREADS, 0, c->stream>>>(p, (const float *)c->in[0].data, (float *)c->out[0].data);
    return kiln_cuda_launched(c);
}

template <typename T> static void launch_place(const kiln_cuda_call *c, picks p)
{
    const T *g = (const T *)c->in[0].data;
    T *y = (T *)c->out[0].data;
    int64_t targets = p.outer * p.inner, count = targets * p.classes;
    unsigned grid = pick_grid(targets > (count + 3) / 4 ? targets : (count + 3) / 4);
    if (!kiln_aligned16(y))
        place<T, uint64_t, false><<<grid, PICK_THREADS, 0, c->stream>>>(p, g, y);
    else if (count >> 32)
        place<T, uint64_t, true><<<grid, PICK_THREADS, 0, c->stream>>>(p, g, y);
    else
        place<T, uint32_t, true><<<grid, PICK_THREADS, 0, c->stream>>>(p, g, y);
}

static bool nll_loss_place(const kiln_cuda_call *c)
{
    picks p = picks_of(c, &c->out[0]);
    if (p.outer * p.inner == 0)
        return true;
    if (c->in[0].dtype == KILN_F64)
        launch_place<double>(c, p);
    else
        launch_place<float>(c, p);
    return kiln_cuda_launched(c);
}

enum { REALS = KILN_CUDA_T(KILN_F32) | KILN_CUDA_T(KILN_F64) }; /* halves are widened by the compositions */

extern "C" const kiln_cuda_kernel kiln_cuda_kernels_rows[] = {
    {"softmax", REALS, softmax, NULL},
    {"log_softmax", REALS, log_softmax, NULL},
    {"normalize_rows", REALS, layer_norm_rows, NULL},
    {"layer_norm_rows", REALS, layer_norm_rows, NULL},
    {"layer_norm_rows_grad", REALS, layer_norm_rows_grad, norm_grad_workspace},
    {"nll_loss_pick", REALS, nll_loss_pick, NULL},
    {"nll_loss_place", REALS, nll_loss_place, NULL},
    {NULL, 0, NULL, NULL},
};
