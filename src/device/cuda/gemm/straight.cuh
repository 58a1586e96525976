/* Tiles whose operands go from memory straight to registers. A thread makes 4 · 4 elements of a slice and has the loads
 * for two fours of k under way, so nobody waits for anybody until all sums are there. With few elements and a long k
 * that is sooner done than by shared memory, since a warp then has several slices and loads hardly anything twice.
 *
 * Fours of k are dealt to slices in turn, so that the slices of a warp read neighbours, and together whole lines of the
 * cache. The slices of a warp are added up in pairs, then pairs of pairs, then those, and the warps' sums in order.
 * Loads are ordinary ones: what other blocks wrote before a barrier of the grid that ends in an acquire is seen. */
#ifndef KILN_CUDA_STRAIGHT_CUH
#define KILN_CUDA_STRAIGHT_CUH

#include "device/cuda/gemm/panel.cuh"

/* As: what elements are multiplied as. They stay as they lie in memory until then, so that nobody waits for them before. */
template <int ROWS, int COLS, typename As> struct kiln_cuda_straight {
    enum {
        AREA = ROWS * COLS,
        LANES = AREA / 16, /* threads of a slice */
        SLICES = KILN_CUDA_TILE_THREADS / LANES,
        BESIDE = KILN_CUDA_TILE_BESIDE(ROWS, COLS),
        ROUND = 4 * SLICES,             /* along k, until it is a slice's turn again */
        ACROSS = COLS / 4,              /* a slice's threads, as a grid of which … */
        NEAR = ACROSS < 8 ? ACROSS : 8, /* … a warp has as many columns, and eight of its threads one row */
    };

    /* A thread's four lines. */
    template <typename T> struct lines {
        const T *from;
        int line, step;
        int last;    /* that is there; it stands for those beyond the edge, whose products nobody looks at */
        bool vector; /* loaded four at a time */
    };

    template <bool ALONG, typename T>
    static __device__ __forceinline__ lines<T> lines_of(const kiln_cuda_panel<T> &p, int first, int k)
    {
        const bool vector = p.vector && p.fours;
        if (first + 4 > p.lines && (first >= p.lines || (!ALONG && vector)))
            first = !ALONG && vector ? p.lines - 4 : p.lines - 1;
        return lines<T>{p.from + first * p.line + k * p.step, (int)p.line, (int)p.step,
                        first + 4 <= p.lines ? 3 : p.lines - 1 - first, vector};
    }

    /* Four k, of which `left` are there, of four lines: line by line where k has stride 1, else k by k. */
    template <bool ALONG, typename T>
    static __device__ __forceinline__ void load(const lines<T> &l, int left, kiln_cuda_four<T> (&x)[4])
    {
        const T none = {};
        if (l.vector) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const T *four_at = l.from + (ALONG ? (i < l.last ? i : l.last) * l.line : i * l.step);
                x[i] = (ALONG ? 0 : i) < left ? *(const kiln_cuda_four<T> *)four_at
                                              : kiln_cuda_four<T>::of(none, none, none, none);
            }
            return;
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            T v[4];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const int line = ALONG ? i : j, k = ALONG ? j : i;
                v[j] = k < left ? l.from[(line < l.last ? line : l.last) * l.line + k * l.step] : none;
            }
            x[i] = kiln_cuda_four<T>::of(v[0], v[1], v[2], v[3]);
        }
    }

    template <bool A_ALONG, bool B_ALONG, typename A, typename B>
    static __device__ __forceinline__ void multiply(const kiln_cuda_four<A> (&x)[4], const kiln_cuda_four<B> (&y)[4],
                                                    float (&sum)[4][4])
    {
        float a[4][4], b[4][4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            x[i].template numbers<As>(a[i]);
            y[i].template numbers<As>(b[i]);
        }
#pragma unroll
        for (int k = 0; k < 4; k++)
#pragma unroll
            for (int h = 0; h < 4; h++)
#pragma unroll
                for (int w = 0; w < 4; w++)
                    sum[h][w] = __fmaf_rn(A_ALONG ? a[h][k] : a[k][h], B_ALONG ? b[w][k] : b[k][w], sum[h][w]);
    }

    /* ---- Sums of a warp's slices ---- */

    /* Elements in an order such that those a thread keeps are in other banks than its neighbours'. */
    static __device__ __forceinline__ int row_of(int four)
    {
        return four % 2 * 2 + four / 2;
    }

    /* Adds up slices: neighbours, then neighbouring pairs, then fours. Each time a thread hands half of its elements to
     * the other and gets the other's of those it keeps. The first 16 / BESIDE are what is left. */
    template <int BIT> static __device__ __forceinline__ void join(float (&x)[16], uint32_t slice)
    {
        const int half = 8 / BIT;
        const bool upper = slice & BIT;
#pragma unroll
        for (int i = 0; i < half; i++) {
            const float mine = upper ? x[i + half] : x[i], other = upper ? x[i] : x[i + half];
            x[i] = mine + __shfl_xor_sync(0xffffffff, other, BIT);
        }
        if constexpr (BIT * 2 < BESIDE)
            join<BIT * 2>(x, slice);
    }

    static __device__ __forceinline__ void put(float *to, const float (&sum)[4][4], uint32_t slice)
    {
        float x[16];
#pragma unroll
        for (int i = 0; i < 16; i++)
            x[i] = sum[row_of(i / 4)][i % 4];
        if constexpr (BESIDE > 1)
            join<1>(x, slice);
        const int first = (int)((slice & 1) * 2 + (slice >> 1 & 1)); /* of the fours it kept */
        if constexpr (BESIDE == 8)
            *(float2 *)(to + row_of(first) * COLS + (slice >> 2) * 2) = float2{x[0], x[1]};
#pragma unroll
        for (int i = 0; i < 4 / BESIDE; i++)
            *(float4 *)(to + row_of(first + i) * COLS) = float4{x[i * 4], x[i * 4 + 1], x[i * 4 + 2], x[i * 4 + 3]};
    }

    /* All sums of the tile, those of the slices of a warp added up. There are always two places for what is loaded: one
     * for what is multiplied, one for what comes next. */
    template <bool A_ALONG, bool B_ALONG, typename A, typename B>
    static __device__ __forceinline__ void make(const kiln_cuda_panel<A> &a, const kiln_cuda_panel<B> &b, int64_t k,
                                                float *sums)
    {
        const uint32_t part = threadIdx.x / (LANES * BESIDE), slice = threadIdx.x % BESIDE;
        const uint32_t cell = threadIdx.x % (LANES * BESIDE) / BESIDE;
        const int row = (int)(cell / NEAR % 4 + cell / (4 * ACROSS) * 4) * 4;
        const int col = (int)(cell % NEAR + cell / (4 * NEAR) % (ACROSS / NEAR) * NEAR) * 4;
        const int own = (int)(slice * 4), end = (int)k;
        int at = (int)part * (4 * BESIDE); /* where the warp is */
        if (at >= end)
            return;
        const bool even = k % (4 * BESIDE) == 0; /* a warp's slices end together */
        lines<A> p = lines_of<A_ALONG>(a, row, at + own);
        lines<B> q = lines_of<B_ALONG>(b, col, at + own);
        float sum[4][4] = {};
        kiln_cuda_four<A> x[2][4];
        kiln_cuda_four<B> y[2][4];
        load<A_ALONG>(p, even ? 4 : end - at - own, x[0]);
        load<B_ALONG>(q, even ? 4 : end - at - own, y[0]);
#pragma unroll 1
        for (bool more = true; more;)
#pragma unroll
            for (int now = 0; now < 2 && more; now++) {
                at += ROUND;
                more = k > (now + 1) * ROUND && at < end; /* known to be false when k is short */
                if (more) {
                    p.from += (int64_t)ROUND * p.step, q.from += (int64_t)ROUND * q.step;
                    load<A_ALONG>(p, even ? 4 : end - at - own, x[1 - now]);
                    load<B_ALONG>(q, even ? 4 : end - at - own, y[1 - now]);
                }
                multiply<A_ALONG, B_ALONG>(x[now], y[now], sum);
            }
        put(sums + part * AREA + row * COLS + col, sum, slice);
    }

    /* How many sums of an element there are. */
    static __device__ __forceinline__ int sums_of(int64_t k)
    {
        const int64_t used = (k + 4 * BESIDE - 1) / (4 * BESIDE);
        return (int)(used < SLICES / BESIDE ? used : SLICES / BESIDE);
    }
};

#endif
