/* Softmax, and the elements that class indices name. */
#include "device/cuda/kernels/halves.cuh"
#include "device/cuda/kernels/rows.cuh"
#include "device/cuda/kernels/picks.cuh"
#include "device/cuda/kernels/softmax.cuh"

/* ---- Softmax ---- */

/* Kernels for each of both: with the question left open, registers would not do. */
#define SOFTMAX_KERNELS(name, log_of, two, four)                                                                       \
    template <typename T, int V, int E>                                                                                \
    static __global__ void HELD_BOUNDS(T, V, E, two, four) name##_held(softmax_rows<T> p, int team)                    \
    {                                                                                                                  \
        const typename kiln_held<T, V, E>::crew c(team);                                                               \
        softmax_held<T, V, E>(p, c, (int64_t)blockIdx.x * c.teams, log_of);                                            \
    }                                                                                                                  \
    template <typename T, int V>                                                                                       \
    static __global__ void HELD_BOUNDS(T, V, (kiln_holding<T, V>::most), 1, 1) name##_long(softmax_rows<T> p, int)     \
    {                                                                                                                  \
        softmax_long<T, V>(p, blockIdx.x, log_of);                                                                     \
    }
SOFTMAX_KERNELS(plain, false, 8, 5)
SOFTMAX_KERNELS(log, true, 6, 4)

template <typename T>
static __global__ void softmax_short_rows(const T *x, T *y, int64_t rows, int n, bool log_of, const int32_t *stop)
{
    int64_t teams = blockDim.x / KILN_CUDA_SHORT_ROW;
    if (!(stop && *stop))
        softmax_short<T>(x, y, blockIdx.x * teams + threadIdx.x / KILN_CUDA_SHORT_ROW, gridDim.x * teams, rows, n,
                         log_of);
}

enum { COLUMN_THREADS = 256, SHORT_THREADS = 128 };

/* Down columns: threadIdx.x counts columns, threads with the same one share it. */
template <typename T>
static __global__ void softmax_columns(const T *__restrict__ x, T *__restrict__ y, shape s, bool log_of,
                                       const int32_t *stop)
{
    typedef typename kiln_element<T>::real real;
    __shared__ real tops[COLUMN_THREADS];
    __shared__ double sums[COLUMN_THREADS];
    if (stop && *stop)
        return;
    int me = (int)(threadIdx.y * blockDim.x + threadIdx.x);
    for (int64_t first = (int64_t)blockIdx.x * blockDim.x; first < s.outer * s.inner;
         first += (int64_t)gridDim.x * blockDim.x) {
        int64_t column = first + threadIdx.x, from = column / s.inner * s.n * s.inner + column % s.inner;
        int64_t n = column < s.outer * s.inner ? s.n : 0;
        running<T> r = {-kiln_infinity(real()), 0};
#pragma unroll 4
        for (int64_t i = threadIdx.y; i < n; i += blockDim.y) {
            const real one[] = {kiln_element<T>::of(x[from + i * s.inner])};
            r.template take<1>(one);
        }
        tops[me] = r.max;
        sums[me] = r.sum;
        __syncthreads();
        real max = r.max;
        for (int k = 0; k < (int)blockDim.y; k++)
            max = kiln_larger(max, tops[k * blockDim.x + threadIdx.x]);
        double sum = 0;
        for (int k = 0; k < (int)blockDim.y; k++) {
            int at = (int)(k * blockDim.x + threadIdx.x);
            sum += running<T>{tops[at], sums[at]}.beside(max);
        }
        real share = share_of<T>(whole_sum(max, sum), log_of);
#pragma unroll 4
        for (int64_t i = threadIdx.y; i < n; i += blockDim.y)
            y[from + i * s.inner] =
                kiln_element<T>::to(softmax_of<T>(kiln_element<T>::of(x[from + i * s.inner]), max, share, log_of));
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
    if (s.inner == 1 && s.n <= KILN_CUDA_SHORT_ROW) {
        int64_t rows = SHORT_THREADS / KILN_CUDA_SHORT_ROW;
        softmax_short_rows<T><<<kiln_grid((s.outer + rows - 1) / rows), SHORT_THREADS, 0, c->stream>>>(
            x, y, s.outer, (int)s.n, log_of, c->stop);
        return;
    }
    if (s.inner == 1) {
        softmax_rows<T> p = {x, y, s.outer, s.n, kiln_aligned16(x) && kiln_aligned16(y), c->stop};
        if (log_of)
            HELD_KERNEL(log_held, log_long, T, s, c->stream, p);
        else
            HELD_KERNEL(plain_held, plain_long, T, s, c->stream, p);
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
    switch (c->in[0].dtype) {
    case KILN_F16: launch_softmax<kiln_f16>(c, s, log_of); break;
    case KILN_BF16: launch_softmax<kiln_bf16>(c, s, log_of); break;
    case KILN_F64: launch_softmax<double>(c, s, log_of); break;
    default: launch_softmax<float>(c, s, log_of);
    }
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

template <typename T> static __global__ void pick_all(picks p, const T *x, T *y)
{
    pick(p, x, y, !(p.stop && *p.stop), (int64_t)blockIdx.x * blockDim.x + threadIdx.x,
         (int64_t)gridDim.x * blockDim.x);
}

template <typename T, typename I, bool WIDE> static __global__ void place_all(picks p, const T *g, T *y)
{
    place<T, I, WIDE>(p, g, y, !(p.stop && *p.stop), (int64_t)blockIdx.x * blockDim.x + threadIdx.x,
                      (int64_t)gridDim.x * blockDim.x);
}

static picks picks_of(const kiln_cuda_call *c, const kiln_cuda_operand *x)
{
    shape s = split(x, c->ints[0], c->ints[0] + 1);
    int64_t row = x->ndim == 2 && c->ints[0] == 1 ? x->stride[0] : s.n * s.inner; /* of two dims: maybe further apart */
    return picks{(const int64_t *)c->in[1].data, s.outer, s.n, s.inner, row, c->ints[1], c->stop, c->fault};
}

enum { PICK_THREADS = 128, PICK_BLOCKS = 1 << 16 };

static unsigned pick_grid(int64_t threads)
{
    return kiln_grid(smaller((threads + PICK_THREADS - 1) / PICK_THREADS, PICK_BLOCKS));
}

template <typename T> static void launch_pick(const kiln_cuda_call *c, picks p)
{
    pick_all<T><<<pick_grid(p.outer * p.inner), PICK_THREADS, 0, c->stream>>>(p, (const T *)c->in[0].data,
                                                                              (T *)c->out[0].data);
}

static bool nll_loss_pick(const kiln_cuda_call *c)
{
    picks p = picks_of(c, &c->in[0]);
    if (p.outer * p.inner == 0)
        return true;
    switch (c->in[0].dtype) {
    case KILN_F64: launch_pick<double>(c, p); break;
    case KILN_F16: launch_pick<kiln_f16>(c, p); break;
    case KILN_BF16: launch_pick<kiln_bf16>(c, p); break;
    default: launch_pick<float>(c, p);
    }
    return kiln_cuda_launched(c);
}

template <typename T> static void launch_place(const kiln_cuda_call *c, picks p)
{
    const T *g = (const T *)c->in[0].data;
    T *y = (T *)c->out[0].data;
    int64_t targets = p.outer * p.inner, count = targets * p.classes;
    unsigned grid = pick_grid(targets > (count + 3) / 4 ? targets : (count + 3) / 4);
    if (!kiln_aligned16(y))
        place_all<T, uint64_t, false><<<grid, PICK_THREADS, 0, c->stream>>>(p, g, y);
    else if (count >> 32)
        place_all<T, uint64_t, true><<<grid, PICK_THREADS, 0, c->stream>>>(p, g, y);
    else
        place_all<T, uint32_t, true><<<grid, PICK_THREADS, 0, c->stream>>>(p, g, y);
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
    {"softmax", KILN_CUDA_FLOATS, softmax, NULL},
    {"log_softmax", KILN_CUDA_FLOATS, log_softmax, NULL},
    {"nll_loss_pick", KILN_CUDA_FLOATS, nll_loss_pick, NULL},
    {"nll_loss_place", REALS, nll_loss_place, NULL},
    {NULL, 0, NULL, NULL},
};
