/* Which elements a thread takes, and how results are folded together. M is what computes elements: the interpreter's
 * machine, or what codegen.c generates; both therefore give the same bits. It has
 *   N                                    elements it takes at a time, 2 or 4
 *   AHEAD                                times as many that a thread asks memory for before it folds the first
 *   elements(i, n, x)                    computes elements i … i+n-1, n ≤ N, and leaves those to fold in x
 *   scratch                              shared memory: four words a thread */
#ifndef KILN_CUDA_FOLD_CUH
#define KILN_CUDA_FOLD_CUH

#include "device/cuda/group/words.cuh"

/* The blocks that share the work, and which of them this one is. `each`: items that a block takes, a slab that begins
 * at `each` times its number; 0: as many as its threads take at once, then those that all blocks together are further
 * on. */
struct seat {
    int64_t block, blocks, each;
};

KILN_PW_INLINE seat whole_grid()
{
    return seat{(int64_t)blockIdx.x, (int64_t)gridDim.x, 0};
}

/* The items of a block: from `first` as many as its threads take at once, the next ones `step` further on, below `end`.
 */
struct turns {
    int64_t first, step, end;
};

KILN_PW_INLINE turns turns_of(seat s, int64_t count, int64_t at_once)
{
    if (!s.each)
        return turns{s.block * at_once, s.blocks * at_once, count};
    const int64_t first = s.block * s.each, end = first + s.each;
    return turns{first, at_once, end < count ? end : count};
}

/* ---- Pointwise ---- */

template <typename M> KILN_PW_INLINE void map(int64_t count, const M &m, seat s)
{
    const int n = M::N;
    uint64_t unused[n];
    const turns t = turns_of(s, count, (int64_t)blockDim.x * n);
    for (int64_t i = t.first + (int64_t)threadIdx.x * n; i < t.end; i += t.step)
        m.elements(i, t.end - i < n ? (int)(t.end - i) : n, unused);
}

/* ---- Folding ---- */

/* Results on their way are words of 8 bytes, whatever the class. */

KILN_PW_INLINE uint64_t neutral(int cls, int fold)
{
    const uint64_t one = cls == F32 ? bits(1.0f) : cls == F64 ? bits(1.0) : 1;
    switch (fold) {
    case PROD:
    case ALL: return one;
    case MAX: return cls == F32 ? 0xff800000u : cls == F64 ? 0xfff0000000000000u : cls == I64 ? 0x8000000000000000u : 0;
    case MIN: return cls == F32 ? 0x7f800000u : cls == F64 ? 0x7ff0000000000000u : cls == I64 ? 0x7fffffffffffffffu : 1;
    default: return 0;
    }
}

template <typename X, typename Ring> KILN_PW_INLINE uint64_t fold_as(int fold, uint64_t a_, uint64_t b_)
{
    const X a = as<X>(a_), b = as<X>(b_);
    switch (fold) {
    case SUM: return bits((X)((Ring)a + (Ring)b));
    case PROD: return bits((X)((Ring)a * (Ring)b));
    case MAX: return ((a > b) | k_isnan(a)) ? a_ : b_;
    case MIN: return ((a < b) | k_isnan(a)) ? a_ : b_;
    case ANY: return bits((X)((a != 0) | (b != 0)));
    default: return bits((X)((a != 0) & (b != 0)));
    }
}

KILN_PW_INLINE uint64_t fold_two(int cls, int fold, uint64_t a, uint64_t b)
{
    switch (cls) {
    case F32: return fold_as<float, float>(fold, a, b);
    case F64: return fold_as<double, double>(fold, a, b);
    case I64: return fold_as<int64_t, uint64_t>(fold, a, b);
    default: return fold_as<uint8_t, uint8_t>(fold, a, b);
    }
}

/* Elements i … i+n-1, at most a quad, into the four results of this thread. Where n is not known to be 4 that is asked
 * each time, and what comes next is not loaded before: callers have loops of their own for whole quads. */
template <typename M>
KILN_PW_INLINE void fold_quad(const M &m, const kiln_cuda_reduction &r, int64_t i, int n, uint64_t *acc)
{
#pragma unroll
    for (int part = 0; part < 4; part += M::N) {
        if (part >= n)
            break;
        int here = n - part < M::N ? n - part : M::N;
        uint64_t x[M::N];
        m.elements(i + part, here, x);
#pragma unroll
        for (int v = 0; v < M::N; v++)
            if (v < here)
                acc[part + v] = fold_two(r.cls, r.fold, acc[part + v], x[v]);
    }
}

KILN_PW_INLINE uint64_t fold_lanes(const kiln_cuda_reduction &r, uint64_t x, int lanes)
{
    for (int width = lanes / 2; width > 0; width /= 2)
        x = fold_two(r.cls, r.fold, x, __shfl_down_sync(0xffffffffu, (unsigned long long)x, width, 32));
    return x;
}

KILN_PW_INLINE void put(const kiln_cuda_reduction &r, int64_t outer, int64_t chunk, int64_t inner, uint64_t x)
{
    if (r.partials)
        r.partials[(outer * r.chunks + chunk) * r.inner + inner] = x;
    else
        narrow(r.dtype, r.to, outer * r.inner + inner, x);
}

/* ---- Rows: the reduced dim is innermost ---- */

/* The value of the first r.lanes threads of a block, in thread 0. */
KILN_PW_INLINE uint64_t fold_block(const kiln_cuda_reduction &r, uint64_t x, uint64_t *warps)
{
    const int thread = (int)threadIdx.x;
    x = fold_lanes(r, x, 32);
    __syncthreads();
    if (thread % 32 == 0)
        warps[thread / 32] = x;
    __syncthreads();
    if (thread == 0)
        for (int w = 1; w < r.lanes / 32; w++)
            x = fold_two(r.cls, r.fold, x, warps[w]);
    return x;
}

/* r.lanes threads, up to a warp, share a short row; a whole block shares a chunk of a long one. */
template <typename M> KILN_PW_INLINE void rows(const kiln_cuda_reduction &r, const M &m, seat s)
{
    const int thread = (int)threadIdx.x, lane = thread % r.lanes;
    const int at_once = r.lanes > 32 ? 1 : (int)blockDim.x / r.lanes;
    bool works = thread < at_once * r.lanes;
    const turns t = turns_of(s, r.outer * r.chunks, at_once);
    for (int64_t first = t.first; first < t.end; first += t.step) {
        int64_t task = first + thread / r.lanes, row = task / r.chunks, chunk = task % r.chunks;
        int64_t start = chunk * r.chunk, end = start + r.chunk < r.reduced ? start + r.chunk : r.reduced;
        uint64_t acc[4];
        for (int v = 0; v < 4; v++)
            acc[v] = neutral(r.cls, r.fold);
        if (works && task < t.end) {
            int64_t at = start + 4 * lane;
#pragma unroll(M::AHEAD)
            for (; at + 4 <= end; at += 4 * r.lanes)
                fold_quad(m, r, row * r.reduced + at, 4, acc);
            if (at < end)
                fold_quad(m, r, row * r.reduced + at, (int)(end - at), acc);
        }
        uint64_t x =
            fold_two(r.cls, r.fold, fold_two(r.cls, r.fold, acc[0], acc[1]), fold_two(r.cls, r.fold, acc[2], acc[3]));
        x = r.lanes > 32 ? fold_block(r, x, m.scratch) : fold_lanes(r, x, r.lanes);
        if (works && lane == 0 && task < t.end)
            put(r, row, chunk, 0, x);
    }
}

/* ---- Columns: something is kept inside the reduced dim ---- */

/* r.lanes threads take quads of columns side by side, others of r.threads other rows of the same chunk. A block with
 * more threads takes several chunks at once. */
template <typename M> KILN_PW_INLINE void columns(const kiln_cuda_reduction &r, const M &m, seat s)
{
    const int next = r.threads; /* from the first of a thread's four to the second */
    const int thread = (int)threadIdx.x, team = thread / r.threads, rank = thread % r.threads;
    int lane = rank % r.lanes, line = rank / r.lanes, lines = r.threads / r.lanes;
    uint64_t *partial = m.scratch + team * 4 * r.threads + rank;
    int64_t blocks = (r.inner + 4 * r.lanes - 1) / (4 * r.lanes);
    const turns t = turns_of(s, r.outer * r.chunks * blocks, (int)blockDim.x / r.threads);
    for (int64_t first = t.first; first < t.end; first += t.step) {
        int64_t task = first + team, column = (task % blocks * r.lanes + lane) * 4, chunk = task / blocks % r.chunks;
        int64_t outer = task / blocks / r.chunks;
        int64_t start = chunk * r.chunk, end = start + r.chunk < r.reduced ? start + r.chunk : r.reduced;
        int n = task >= t.end ? 0 : r.inner - column < 4 ? (int)(r.inner - column) : 4;
        uint64_t acc[4];
        for (int v = 0; v < 4; v++)
            acc[v] = neutral(r.cls, r.fold);
        if (n == 4)
#pragma unroll(M::AHEAD)
            for (int64_t row = start + line; row < end; row += lines)
                fold_quad(m, r, (outer * r.reduced + row) * r.inner + column, 4, acc);
        else if (n > 0)
            for (int64_t row = start + line; row < end; row += lines)
                fold_quad(m, r, (outer * r.reduced + row) * r.inner + column, n, acc);
        __syncthreads();
        for (int v = 0; v < 4; v++)
            partial[v * next] = acc[v];
        for (int half = lines / 2; half > 0; half /= 2) {
            __syncthreads();
            if (line < half)
                for (int v = 0; v < 4; v++) {
                    acc[v] = fold_two(r.cls, r.fold, acc[v], partial[v * next + half * r.lanes]);
                    partial[v * next] = acc[v];
                }
        }
        if (line == 0)
            for (int v = 0; v < 4; v++)
                if (v < n)
                    put(r, outer, chunk, column + v, acc[v]);
    }
}

/* ---- Combining partial results ---- */

/* As columns do it, with partial results in place of rows; by the first KILN_CUDA_COMBINE threads. */
KILN_PW_INLINE void combine(const kiln_cuda_reduction &r, uint64_t *partial, seat s)
{
    int lanes = 1;
    while (lanes < r.inner && lanes < KILN_CUDA_COMBINED)
        lanes *= 2;
    const int thread = (int)threadIdx.x;
    int lane = thread % lanes, line = thread / lanes, lines = KILN_CUDA_COMBINE / lanes;
    int64_t blocks = (r.inner + lanes - 1) / lanes;
    const turns t = turns_of(s, r.outer * blocks, 1);
    for (int64_t task = t.first; task < t.end; task += t.step) {
        int64_t column = task % blocks * lanes + lane, outer = task / blocks;
        const uint64_t *from = r.partials + outer * r.chunks * r.inner + column;
        uint64_t x = neutral(r.cls, r.fold);
        if (line < lines && column < r.inner)
#pragma unroll 8
            for (int64_t c = line; c < r.chunks; c += lines)
                x = fold_two(r.cls, r.fold, x, from[c * r.inner]);
        __syncthreads();
        if (line < lines)
            partial[thread] = x;
        for (int half = lines / 2; half > 0; half /= 2) {
            __syncthreads();
            if (line < half)
                partial[thread] = x = fold_two(r.cls, r.fold, x, partial[thread + half * lanes]);
        }
        if (line == 0 && column < r.inner)
            narrow(r.dtype, r.to, outer * r.inner + column, x);
    }
}

#endif
