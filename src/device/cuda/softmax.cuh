/* Softmax of rows, for kernels compiled ahead and generated ones. */
#ifndef KILN_CUDA_SOFTMAX_CUH
#define KILN_CUDA_SOFTMAX_CUH

#include "device/cuda/reduce.cuh"
#include "device/cuda/walk.h"

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
    return max == kiln_infinity(T()) ? (double)kiln_nan() : sum;
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

/* Rows first, first + step, …, one a team. What others wrote in the same launch may be among them, so nothing here is
 * declared as never changing. */
template <typename T, bool BLOCK, int V>
static __device__ __forceinline__ void softmax_teams(const T *x, T *y, int64_t first, int64_t step, int64_t rows,
                                                     int64_t n, bool log_of)
{
    typedef kiln_team<BLOCK> team;
    for (int64_t row = first; row < rows; row += step) {
        const T *from = x + row * n;
        T *to = y + row * n;
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

/* Rows of at most KILN_CUDA_SHORT_ROW elements, an element a thread, so that a warp has two rows. The next row is asked
 * for before this one is worked on. */
template <typename T>
static __device__ __forceinline__ void softmax_short(const T *x, T *y, int64_t first, int64_t step, int64_t rows, int n,
                                                     bool log_of)
{
    int lane = (int)threadIdx.x % KILN_CUDA_SHORT_ROW;
    const T nothing = -kiln_infinity(T());
    T next = first < rows && lane < n ? x[first * n + lane] : nothing;
    for (; first - first % 2 < rows; first += step) { /* both rows of a warp go on as long as one is there */
        T value = next;
        next = first + step < rows && lane < n ? x[(first + step) * n + lane] : nothing;
        T max = kiln_lanes_max<KILN_CUDA_SHORT_ROW>(value);
        double term = value == nothing ? 0 : (double)kiln_exp(value - max);
        T share = share_of<T>(whole_sum(max, kiln_lanes_sum<KILN_CUDA_SHORT_ROW>(term)), log_of);
        if (first < rows && lane < n)
            y[first * n + lane] = softmax_of(value, max, share, log_of);
    }
}

#endif
