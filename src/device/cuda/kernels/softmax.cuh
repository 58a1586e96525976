/* Softmax of rows, for kernels compiled ahead and generated ones. */
#ifndef KILN_CUDA_SOFTMAX_CUH
#define KILN_CUDA_SOFTMAX_CUH

#include "device/cuda/kernels/held.cuh"
#include "device/cuda/kernels/softmax.h"

/* The largest of some elements and Σ exp(x - largest), which grow together. -inf adds nothing to any sum, and a NaN,
 * though never the largest, stays in it. */
template <typename T> struct running {
    typedef typename kiln_element<T>::real real;
    real max;
    double sum;

    /* The first N of v. */
    template <int N, typename V> __device__ __forceinline__ void take(const V &v)
    {
        real top = max;
#pragma unroll
        for (int k = 0; k < N; k++)
            top = kiln_larger(top, v[k]);
        if (top > max) {
            sum *= (double)kiln_element<T>::exp(max - top);
            max = top;
        }
#pragma unroll
        for (int k = 0; k < N; k += 4) {
            real part = 0;
#pragma unroll
            for (int j = k; j < k + 4 && j < N; j++)
                part += v[j] == -kiln_infinity(real()) ? (real)0 : kiln_element<T>::exp(v[j] - max);
            sum += (double)part;
        }
    }

    /* The sum as it is beside a largest element that others may have met. */
    __device__ __forceinline__ double beside(real largest) const
    {
        return max < largest ? sum * (double)kiln_element<T>::exp(max - largest) : sum;
    }
};

/* exp(inf - inf) is among the terms when there is an infinity. */
template <typename T> static __device__ __forceinline__ double whole_sum(T max, double sum)
{
    return max == kiln_infinity(T()) ? (double)kiln_nan() : sum;
}

/* What makes results of elements' differences from the largest. */
template <typename T> static __device__ __forceinline__ typename kiln_element<T>::real share_of(double sum, bool log_of)
{
    return log_of ? (typename kiln_element<T>::real)log(sum) : kiln_element<T>::divisor(sum);
}

template <typename T, typename X> static __device__ __forceinline__ X softmax_of(X x, X max, X share, bool log_of)
{
    return log_of ? x - max - share : kiln_element<T>::exp_over(x - max, share);
}

/* ---- Rows in registers ---- */

template <typename T> struct softmax_rows {
    const T *x;
    T *y;
    int64_t rows, n;
    bool aligned;        /* x and y: to 16 bytes */
    const int32_t *stop; /* nothing is written while it is not 0; may be NULL */

    __device__ __forceinline__ bool stopped() const
    {
        return stop && *stop;
    }
};

/* One row a team, the first of the block's teams `first`. Whether something may be written is asked last, so that no
 * row waits for the answer. An infinity or a NaN among the terms makes the sum a NaN, as it should, and a row of -inf
 * alone has no other terms; so there is no case of its own. */
template <typename T, int V, int E>
static __device__ __forceinline__ void softmax_held(const softmax_rows<T> &p, typename kiln_held<T, V, E>::crew c,
                                                    int64_t first, bool log_of)
{
    typedef kiln_held<T, V, E> held;
    typedef typename held::real real;
    __shared__ real tops[32];
    __shared__ double sums[32];
    int64_t row = first + c.slot;
    int left = row < p.rows ? (int)p.n : 0;
    held h;
    h.load(p.x + row * p.n, c, left, p.aligned, -kiln_infinity(real()));
    const real max = c.max(h.largest(), tops);
    const double sum = held::sum([&](int i) {
        const real less = h[i] - max, term = held::element::exp(less);
        if constexpr (!held::widened)
            h.replace(i, log_of ? less : term);
        return term;
    });
    const real share = share_of<T>(c.sum(sum, sums), log_of);
    h.forget();
    c.forget();
    held::store(p.y + row * p.n, c, p.stopped() ? 0 : left, p.aligned, [&](int i) {
        if constexpr (held::widened)
            return softmax_of<T>(h[i], max, share, log_of);
        else
            return log_of ? h[i] - share : h[i] * share;
    });
}

/* Rows too long for that, a block each: read twice, the second time from the second level cache if it has room. */
template <typename T, int V>
static __device__ __forceinline__ void softmax_long(const softmax_rows<T> &p, int64_t row, bool log_of)
{
    typedef kiln_holding<T, V> holding;
    typedef kiln_held_part<T, V> held;
    typedef typename held::real real;
    __shared__ real tops[32];
    __shared__ double sums[32];
    typename held::crew c(holding::threads);
    running<T> r = {-kiln_infinity(real()), 0};
    held h;
    for (int64_t i = 0; i < p.n; i += holding::part) {
        h.load(p.x + row * p.n + i, c, holding::next(p.n - i), p.aligned, -kiln_infinity(real()));
        r.template take<held::each>(h);
    }
    real max = c.max(r.max, tops);
    real share = share_of<T>(whole_sum(max, c.sum(r.beside(max), sums)), log_of);
    for (int64_t i = 0; i < p.n; i += holding::part) {
        h.load(p.x + row * p.n + i, c, holding::next(p.n - i), p.aligned, 0);
        c.forget();
        held::store(p.y + row * p.n + i, c, p.stopped() ? 0 : holding::next(p.n - i), p.aligned,
                    [&](int k) { return softmax_of<T>(h[k], max, share, log_of); });
    }
}

/* ---- A few elements ---- */

/* Rows of at most KILN_CUDA_SHORT_ROW elements, an element a thread, so that a warp has two rows. The next row is asked
 * for before this one is worked on. */
template <typename T>
static __device__ __forceinline__ void softmax_short(const T *x, T *y, int64_t first, int64_t step, int64_t rows, int n,
                                                     bool log_of)
{
    typedef typename kiln_element<T>::real real;
    int lane = (int)threadIdx.x % KILN_CUDA_SHORT_ROW;
    const real nothing = -kiln_infinity(real());
    real next = first < rows && lane < n ? kiln_element<T>::of(x[first * n + lane]) : nothing;
    for (; first - first % 2 < rows; first += step) { /* both rows of a warp go on as long as one is there */
        const real value = next;
        next = first + step < rows && lane < n ? kiln_element<T>::of(x[(first + step) * n + lane]) : nothing;
        const real max = kiln_lanes_max<KILN_CUDA_SHORT_ROW>(value);
        const double term = value == nothing ? 0 : (double)kiln_element<T>::exp(value - max);
        const real share = share_of<T>(whole_sum(max, kiln_lanes_sum<KILN_CUDA_SHORT_ROW>(term)), log_of);
        if (first < rows && lane < n)
            y[first * n + lane] = kiln_element<T>::to(softmax_of<T>(value, max, share, log_of));
    }
}

#endif
