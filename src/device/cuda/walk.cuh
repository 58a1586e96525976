/* What generated chains are made of: the barrier between waves, and steps that are no groups. All blocks of a chain run
 * at the same time (its launch is cooperative). What one wave writes others read behind a barrier, so nothing here may
 * be loaded as if it never changed. */
#ifndef KILN_CUDA_WALK_CUH
#define KILN_CUDA_WALK_CUH

#include "device/cuda/fold.cuh"
#include "device/cuda/halves.cuh"
#include "device/cuda/picks.cuh"
#include "device/cuda/samples.cuh"
#include "device/cuda/softmax.cuh"
#include "device/cuda/tile.cuh"
#include "device/cuda/walk.h"

/* Waits for what was launched before, where it was launched without waiting itself (the next one can come as near from
 * now on), and does what a graph's first node does. True when an earlier run was stopped and this one must write no slot. */
KILN_PW_INLINE bool begin(const kiln_cuda_walk &c)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
    if (c.run && blockIdx.x == 0 && threadIdx.x == 0) {
        *(volatile unsigned long long *)&c.state->run = c.run;
        c.record->done = c.run - 1;
    }
    return *(volatile int32_t *)&c.state->stop != 0;
}

/* Waits for all blocks; `count` is how many barriers there were with this one. What they wrote before it is seen behind
 * it. True when the run is to write no slot any more. */
KILN_PW_INLINE bool barrier(const kiln_cuda_walk &c, int count, bool stopped)
{
    __shared__ bool fault;
    __syncthreads();
    if (threadIdx.x == 0) {
        const unsigned long long all = c.base + (unsigned long long)count * gridDim.x;
        unsigned long long now;
        asm volatile("red.release.gpu.global.add.u64 [%0], %1;" ::"l"(c.barrier), "l"(1ull) : "memory");
        do
            asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(now) : "l"(c.barrier) : "memory");
        while ((now & ~KILN_CUDA_STOPPED) < all);
        fault = now >= KILN_CUDA_STOPPED;
    }
    __syncthreads();
    return stopped || fault;
}

/* ---- Steps ---- */

/* A product's elements as they come. */
template <bool VECTORS> struct plain_sink {
    float *to;
    __device__ __forceinline__ void operator()(int64_t at, int n, const float *x) const
    {
        if (VECTORS && n == 4)
            *(float4 *)(to + at) = make_float4(x[0], x[1], x[2], x[3]);
        else
            for (int v = 0; v < 4; v++)
                if (v < n)
                    to[at + v] = x[v];
    }
};

/* A product's elements through the group behind it. */
template <typename P> struct group_sink {
    const P &p;
    __device__ __forceinline__ void operator()(int64_t at, int n, const float *x) const
    {
        uint64_t unused[4];
        p.elements(at, n < P::N ? n : P::N, unused, x);
        if (P::N < 4 && n > P::N)
            p.elements(at + P::N, n - P::N, unused, x + P::N);
    }
};

/* Rows of softmax: short ones, or up to a warp each. */
template <typename T>
KILN_PW_INLINE void softmax_short_step(const void *x, void *y, int64_t rows, int n, bool log_of, seat s)
{
    int64_t teams = blockDim.x / KILN_CUDA_SHORT_ROW;
    softmax_short<T>((const T *)x, (T *)y, s.block * teams + threadIdx.x / KILN_CUDA_SHORT_ROW, s.blocks * teams, rows, n,
                     log_of);
}

/* ALIGNED: x and y, to 16 bytes. */
template <typename T, bool ALIGNED>
KILN_PW_INLINE void softmax_step(const void *x, void *y, int64_t rows, int64_t n, bool log_of, seat s)
{
    typedef kiln_holding<T> holding;
    const softmax_rows<T> p = {(const T *)x, (T *)y, rows, n, ALIGNED, nullptr};
    const kiln_crew<false> c(holding::team(n));
    for (int64_t first = s.block * c.teams; first < rows; first += s.blocks * c.teams)
        if (holding::packs(n))
            softmax_held<T, holding::pack, holding::least>(p, c, first, log_of);
        else
            softmax_held<T, 1, holding::least>(p, c, first, log_of);
}

/* argmax and argmin of short rows, a thread each: the first of equal ones, and a NaN beats all numbers. */
KILN_PW_INLINE void find_step(const void *x, void *y, int64_t rows, int n, bool least, seat s)
{
    for (int64_t row = s.block * blockDim.x + threadIdx.x; row < rows; row += s.blocks * blockDim.x) {
        const float *from = (const float *)x + row * n;
        float best = from[0];
        int64_t place = 0;
        for (int i = 1; i < n; i++) {
            float v = from[i];
            if ((v != v && best == best) || (least ? v < best : v > best)) {
                best = v;
                place = i;
            }
        }
        ((int64_t *)y)[row] = place;
    }
}

KILN_PW_INLINE picks picks_in(const kiln_cuda_walk &c, int kernel, const void *target, int64_t outer, int64_t classes,
                              int64_t inner, int64_t ignore)
{
    return picks{(const int64_t *)target, outer,   classes, inner, ignore, 0,
                 kiln_cuda_fault{c.state, c.record, kernel, c.run, c.barrier}};
}

template <typename T>
KILN_PW_INLINE void pick_step(const picks &p, const void *x, void *y, bool writes, seat s)
{
    pick<T>(p, (const T *)x, (T *)y, writes, s.block * blockDim.x + threadIdx.x, s.blocks * blockDim.x);
}

template <typename T>
KILN_PW_INLINE void place_step(const picks &p, const void *g, void *y, bool writes, seat s)
{
    place<T, uint32_t, true>(p, (const T *)g, (T *)y, writes, s.block * blockDim.x + threadIdx.x,
                             s.blocks * blockDim.x);
}

#endif
