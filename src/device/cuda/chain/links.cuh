/* What generated chains are made of: the barrier between waves, and links that are no groups. All blocks of a chain run
 * at the same time (chain_launch.c sees to that). What one wave writes others read behind a barrier, so nothing here may
 * be loaded as if it never changed. */
#ifndef KILN_CUDA_CHAIN_LINKS_CUH
#define KILN_CUDA_CHAIN_LINKS_CUH

#include "device/cuda/kernels/pointwise.cuh"
#include "device/cuda/chain/parameters.h"

/* A thread's number, asked for anew wherever it is used: a chain goes through its waves once a run, and compilers would
 * compute before the first one what follows from a number that never changes, for all links, and keep it in registers
 * that the tiles then lack. */
struct kiln_cuda_number {
    unsigned x;
};

KILN_PW_INLINE kiln_cuda_number kiln_cuda_thread()
{
    kiln_cuda_number n;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(n.x));
    __builtin_assume(n.x < KILN_CUDA_CHAIN_THREADS);
    return n;
}
#define threadIdx kiln_cuda_thread()

#include "device/cuda/group/fold.cuh"
#include "device/cuda/kernels/halves.cuh"
#include "device/cuda/kernels/picks.cuh"
#include "device/cuda/kernels/samples.cuh"
#include "device/cuda/kernels/softmax.cuh"
#include "device/cuda/gemm/tile.cuh"

/* Waits for what was launched before, where it was launched without waiting itself; the next one can come as near from
 * now on. True when an earlier run was stopped and this one must write no slot. */
KILN_PW_INLINE bool begin(const kiln_cuda_chain_parameters &c)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
    return *(volatile int32_t *)&c.state->stop != 0;
}

/* One of several runs; each of those before it had as many barriers as `waves`. Does what a graph's first node does. */
KILN_PW_INLINE kiln_cuda_chain_parameters begin_run(const kiln_cuda_chain_parameters &c, unsigned number, unsigned waves)
{
    kiln_cuda_chain_parameters one = c;
    one.base += (unsigned long long)number * waves * gridDim.x;
    one.run += number;
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        *(volatile unsigned long long *)&one.state->run = one.run;
        one.record->done = one.run - 1;
    }
    return one;
}

/* Comes to a barrier: what the block wrote before is seen behind it. */
KILN_PW_INLINE void arrive(const kiln_cuda_chain_parameters &c)
{
    __syncthreads();
    if (threadIdx.x == 0)
        asm volatile("red.release.gpu.global.add.u64 [%0], %1;" ::"l"(c.barrier), "l"(1ull) : "memory");
}

/* Waits until all blocks have come; `count` is how many barriers there were with this one. True when the run is to
 * write no slot any more. */
KILN_PW_INLINE bool wait_for_all(const kiln_cuda_chain_parameters &c, int count, bool stopped)
{
    __shared__ bool fault;
    if (threadIdx.x == 0) {
        const unsigned long long all = c.base + (unsigned long long)count * gridDim.x;
        unsigned long long now;
        do
            asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(now) : "l"(c.barrier) : "memory");
        while ((now & ~KILN_CUDA_STOPPED) < all);
        fault = now >= KILN_CUDA_STOPPED;
    }
    __syncthreads();
    return stopped || fault;
}

KILN_PW_INLINE bool barrier(const kiln_cuda_chain_parameters &c, int count, bool stopped)
{
    arrive(c);
    return wait_for_all(c, count, stopped);
}

/* ---- Steps ---- */

/* A product's elements as they come. */
template <typename T, bool VECTORS> struct plain_sink {
    T *to;
    template <int N> __device__ __forceinline__ void operator()(const kiln_cuda_cell (&cells)[N]) const
    {
#pragma unroll
        for (int c = 0; c < N; c++)
            kiln_cuda_store_cell(to, cells[c], VECTORS);
    }
};

/* A product's elements through the group behind it, which may take a cell in two parts. What it loads for all cells is
 * asked for first: a load behind a store would have to wait for it, since they might meet. Where the group ends in a
 * count, `*sum` is what this thread has counted. */
template <typename P> struct group_sink {
    const P &p;
    uint64_t *sum;
    template <int N> __device__ __forceinline__ void operator()(const kiln_cuda_cell (&cells)[N]) const
    {
        enum { PARTS = 4 / P::N };
        typename P::fetched f[N * PARTS];
#pragma unroll
        for (int i = 0; i < N * PARTS; i++)
            f[i] = p.fetch(cells[i / PARTS].at + i % PARTS * P::N, cells[i / PARTS].n - i % PARTS * P::N);
#pragma unroll
        for (int i = 0; i < N * PARTS; i++) {
            const int n = cells[i / PARTS].n - i % PARTS * P::N;
            uint64_t x[P::N] = {};
            p.elements(cells[i / PARTS].at + i % PARTS * P::N, n, cells[i / PARTS].x + i % PARTS * P::N, x, f[i]);
            if (sum)
#pragma unroll
                for (int v = 0; v < P::N; v++)
                    *sum += v < n ? x[v] : 0;
        }
    }
};

/* What all threads have counted, added to a word that was 0 when the run began: integers may be added in any order. As a
 * rule nobody has anything to add. */
KILN_PW_INLINE void add_counts(void *to, uint64_t sum)
{
    if (!__any_sync(0xffffffffu, sum != 0))
        return;
    for (int width = 16; width > 0; width /= 2)
        sum += __shfl_down_sync(0xffffffffu, (unsigned long long)sum, width, 32);
    if (threadIdx.x % 32 == 0)
        atomicAdd((unsigned long long *)to, (unsigned long long)sum);
}

/* Elements of which some are counted. */
template <typename M> KILN_PW_INLINE void map_counting(int64_t count, const M &m, void *to, seat s)
{
    const int n = M::N;
    const turns t = turns_of(s, count, (int64_t)blockDim.x * n);
    uint64_t sum = 0;
    for (int64_t i = t.first + (int64_t)threadIdx.x * n; i < t.end; i += t.step) {
        const int here = t.end - i < n ? (int)(t.end - i) : n;
        uint64_t x[n];
        m.elements(i, here, x);
#pragma unroll
        for (int v = 0; v < n; v++)
            sum += v < here ? x[v] : 0;
    }
    add_counts(to, sum);
}

/* Rows of softmax: short ones, or up to a warp each. */
template <typename T>
KILN_PW_INLINE void softmax_short_link(const void *x, void *y, int64_t rows, int n, bool log_of, seat s)
{
    const turns t = turns_of(s, rows, blockDim.x / KILN_CUDA_SHORT_ROW);
    softmax_short<T>((const T *)x, (T *)y, t.first + threadIdx.x / KILN_CUDA_SHORT_ROW, t.step, t.end, n, log_of);
}

/* n elements a row; ALIGNED: x and y, to 16 bytes. */
template <typename T, int n, bool ALIGNED>
KILN_PW_INLINE void softmax_link(const void *x, void *y, int64_t rows, bool log_of, seat s)
{
    constexpr int V = kiln_packs<T>(n) ? kiln_wide<T> : 1, E = kiln_holding<T, V>::each(n);
    const typename kiln_held<T, V, E>::crew c(kiln_holding<T, V>::team(n));
    const turns t = turns_of(s, rows, c.teams);
    const softmax_rows<T> p = {(const T *)x, (T *)y, t.end, n, ALIGNED, nullptr};
    for (int64_t first = t.first; first < t.end; first += t.step)
        softmax_held<T, V, E>(p, c, first, log_of);
}

/* argmax and argmin of short rows, a thread each: the first of equal ones, and a NaN beats all numbers. */
template <typename T>
KILN_PW_INLINE void find_link(const void *x, void *y, int64_t rows, int n, bool least, seat s)
{
    const turns t = turns_of(s, rows, blockDim.x);
    for (int64_t row = t.first + threadIdx.x; row < t.end; row += t.step) {
        const T *from = (const T *)x + row * n;
        float best = kiln_cuda_float_of(from[0]);
        int64_t place = 0;
        for (int i = 1; i < n; i++) {
            float v = kiln_cuda_float_of(from[i]);
            if ((v != v && best == best) || (least ? v < best : v > best)) {
                best = v;
                place = i;
            }
        }
        ((int64_t *)y)[row] = place;
    }
}

KILN_PW_INLINE picks picks_in(const kiln_cuda_chain_parameters &c, int kernel, const void *target, int64_t outer, int64_t classes,
                              int64_t inner, int64_t row, int64_t ignore)
{
    return picks{(const int64_t *)target, outer,   classes, inner, row, ignore, 0,
                 kiln_cuda_fault{c.state, c.record, kernel, c.run, c.barrier}};
}

/* Slabs are of targets, and only where nothing is inside the classes: those of a slab end where an earlier end of all
 * targets would be. */
KILN_PW_INLINE picks picks_until(picks p, int64_t end, seat s)
{
    p.outer = s.each ? end : p.outer;
    return p;
}

template <typename T>
KILN_PW_INLINE void pick_link(const picks &p, const void *x, void *y, bool writes, seat s)
{
    const turns t = turns_of(s, p.outer * p.inner, blockDim.x);
    pick<T>(picks_until(p, t.end, s), (const T *)x, (T *)y, writes, t.first + threadIdx.x, t.step);
}

template <typename T>
KILN_PW_INLINE void place_link(const picks &p, const void *g, void *y, bool writes, seat s)
{
    const turns t = turns_of(s, p.outer * p.inner, blockDim.x);
    const picks mine = picks_until(p, t.end, s);
    check_targets(mine, t.first + threadIdx.x, t.step);
    s.each *= p.classes;
    const turns e = turns_of(s, p.outer * p.classes * p.inner, (int64_t)blockDim.x * 4);
    if (writes)
        spread<T, uint32_t, true>(mine, (const T *)g, (T *)y, e.first / 4 + threadIdx.x, e.step / 4);
}

#endif
