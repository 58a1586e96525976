/* The tiles that attention and its gradient are made of without tensor cores: a part of plain.cu. A block of 128 threads, 16 across and
 * 8 down, works on a square tile of scores, of which a thread has `tall` rows and `wide` columns in registers. Operands
 * go through shared memory piece by piece, so that any width of heads will do. S is what elements are in memory, T what
 * they are computed as. */
#ifndef KILN_CUDA_ATTENTION_PLAIN_CUH
#define KILN_CUDA_ATTENTION_PLAIN_CUH

#include "device/cuda/attention/view.cuh"

enum { ACROSS = 16, DOWN = 8, THREADS = ACROSS * DOWN, PIECE = 32 };

template <typename T> struct tile {
    static constexpr int wide = kiln_wide<T>, tall = 2 * wide, side = ACROSS * wide;
    static constexpr int line = side + wide; /* rows in shared memory: 16-byte aligned, yet not all in one bank */
    static_assert(DOWN * tall == side, "tiles are square");
};

/* Shared memory of a block: pieces of two operands (or of one, as rows), and a tile of weights, transposed. */
template <typename T> struct alignas(16) room {
    T stage[2 * PIECE * tile<T>::line];
    T weights[tile<T>::side * tile<T>::line];
};

/* One head of an operand, `count` rows long. */
template <typename S> struct matrix {
    typedef typename kiln_element<S>::real real;
    const S *at;
    int64_t row, column, count, width;

    static __device__ __forceinline__ real value(const S *x)
    {
        return kiln_element<S>::of(*x);
    }

    /* Whether neighbours in memory are neighbours in a column. */
    __device__ __forceinline__ bool upright() const
    {
        return row == 1 && column != 1;
    }
};

/* n - from, or more than any tile has. */
static __device__ __forceinline__ int left_of(int64_t n, int64_t from)
{
    return n - from < 1024 ? (int)(n - from) : 1024;
}

/* Columns first … first + PIECE - 1 of rows from … from + side - 1 to [PIECE][line]: transposed. Eight threads read
 * neighbouring elements, and the 32 of a warp write to different banks. */
template <typename T, typename S>
static __device__ __forceinline__ void stage_turned(T *to, const matrix<S> &m, int64_t from, int64_t first)
{
    constexpr int side = tile<T>::side, line = tile<T>::line, step = THREADS / 8;
    int me = (int)threadIdx.x, rows = left_of(m.count, from), depth = left_of(m.width, first);
    const S *at = m.at + from * m.row + first * m.column;
    if (m.upright()) {
#pragma unroll 4
        for (int u = me; u < side * PIECE; u += THREADS)
            to[u / side * line + u % side] =
                u % side < rows && u / side < depth ? m.value(at + u % side + u / side * m.column) : (T)0;
        return;
    }
    int r = me / 8;
    at += r * m.row + me % 8 * m.column;
    to += me % 8 * line + r;
#pragma unroll 2
    for (int c = me % 8; c < PIECE; c += 8) {
        T x[side / step];
#pragma unroll
        for (int k = 0; k < side / step; k++)
            x[k] = r + k * step < rows && c < depth ? m.value(at + k * step * m.row) : (T)0;
#pragma unroll
        for (int k = 0; k < side / step; k++)
            to[k * step] = x[k];
        at += 8 * m.column;
        to += 8 * line;
    }
}

/* s = a·bᵀ: rows a_from … of a, rows b_from … of b. */
template <typename T, typename S>
static __device__ __forceinline__ void scores(T (&s)[tile<T>::tall][tile<T>::wide], const matrix<S> &a, int64_t a_from,
                                              const matrix<S> &b, int64_t b_from, T *stage)
{
    constexpr int wide = tile<T>::wide, tall = tile<T>::tall, line = tile<T>::line;
    const T *left = stage + threadIdx.x / ACROSS * tall, *right = stage + PIECE * line + threadIdx.x % ACROSS * wide;
#pragma unroll
    for (int i = 0; i < tall; i++)
#pragma unroll
        for (int j = 0; j < wide; j++)
            s[i][j] = 0;
    for (int64_t first = 0; first < a.width; first += PIECE) {
        __syncthreads();
        stage_turned(stage, a, a_from, first);
        stage_turned(stage + PIECE * line, b, b_from, first);
        __syncthreads();
        int depth = a.width - first < PIECE ? (int)(a.width - first) : PIECE;
        for (int k = 0; k < depth; k += 4) /* what lies beyond depth is zero */
#pragma unroll
            for (int d = 0; d < 4; d++) {
                kiln_pack<T, tall> x = kiln_load<tall>(left + (k + d) * line);
                kiln_pack<T, wide> y = kiln_load<wide>(right + (k + d) * line);
#pragma unroll
                for (int i = 0; i < tall; i++)
#pragma unroll
                    for (int j = 0; j < wide; j++)
                        s[i][j] += x.at[i] * y.at[j];
            }
    }
}

/* A thread's part of the tile to shared memory, transposed: [column][row]. */
template <typename T>
static __device__ __forceinline__ void put_weights(const T (&s)[tile<T>::tall][tile<T>::wide], T *weights)
{
    constexpr int wide = tile<T>::wide, tall = tile<T>::tall, line = tile<T>::line;
    T *to = weights + threadIdx.x % ACROSS * wide * line + threadIdx.x / ACROSS * tall;
#pragma unroll
    for (int j = 0; j < wide; j++) {
        kiln_pack<T, tall> v;
#pragma unroll
        for (int i = 0; i < tall; i++)
            v.at[i] = s[i][j];
        kiln_store<tall>(to + j * line, v);
    }
}

/* Columns of a result that a thread has: groups of `each` neighbours, ACROSS·each from one group to the next. */
template <typename T, int NV> struct columns {
    static constexpr int each = NV < tile<T>::wide ? NV : tile<T>::wide, all = ACROSS * NV;
    static constexpr int side = tile<T>::side, space = 2 * PIECE * tile<T>::line;
    static constexpr int keys = side * all <= space ? side : side / 2; /* staged at once */
    static_assert(keys * all <= space, "they fit where pieces of operands lie");

    static __device__ __forceinline__ int of(int k)
    {
        return k / each * (ACROSS * each) + (int)threadIdx.x % ACROSS * each + k % each;
    }
};

/* sums += weights·b: rows from … of b that there are, its columns first …; begins with a barrier. */
template <typename T, int NV, typename S>
static __device__ __forceinline__ void accumulate(T (&sums)[tile<T>::tall][NV], const T *weights, const matrix<S> &b,
                                                  int64_t from, int64_t first, T *stage)
{
    typedef columns<T, NV> cols;
    constexpr int tall = tile<T>::tall, line = tile<T>::line, keys = cols::keys, all = cols::all, each = cols::each;
    int me = (int)threadIdx.x;
    for (int done = 0; done < tile<T>::side && from + done < b.count; done += keys) {
        __syncthreads();
        int rows = left_of(b.count, from + done), depth = left_of(b.width, first);
        const S *at = b.at + (from + done) * b.row + first * b.column;
        if (b.upright()) {
#pragma unroll 4
            for (int u = me; u < keys * all; u += THREADS)
                stage[u % keys * all + u / keys] =
                    u % keys < rows && u / keys < depth ? b.value(at + u % keys + u / keys * b.column) : (T)0;
        } else {
            constexpr int step = THREADS / all;
            int c = me % all;
            at += me / all * b.row + c * b.column;
#pragma unroll 8
            for (int r = me / all; r < keys; r += step, at += step * b.row)
                stage[r * all + c] = r < rows && c < depth ? b.value(at) : (T)0;
        }
        __syncthreads();
        const T *left = weights + done * line + me / ACROSS * tall;
#pragma unroll 4
        for (int k = 0; k < keys; k++) {
            kiln_pack<T, tall> x = kiln_load<tall>(left + k * line);
#pragma unroll
            for (int g = 0; g < NV; g += each) {
                kiln_pack<T, each> y = kiln_load<each>(stage + k * all + cols::of(g));
#pragma unroll
                for (int i = 0; i < tall; i++)
#pragma unroll
                    for (int j = 0; j < each; j++)
                        sums[i][g + j] += x.at[i] * y.at[j];
            }
        }
    }
}

/* Rows from … of a result of `count` rows, `apart` from one to the next, its columns first …, each row times its factor.
 */
template <typename T, int NV, typename S>
static __device__ __forceinline__ void put(S *to, int64_t apart, const T (&sums)[tile<T>::tall][NV],
                                           const T (&times)[tile<T>::tall], int64_t from, int64_t count, int64_t first,
                                           int64_t width)
{
    typedef columns<T, NV> cols;
    constexpr int each = cols::each;
    bool whole = width % each == 0 && apart % each == 0 && (uintptr_t)to % (each * sizeof(S)) == 0;
#pragma unroll
    for (int i = 0; i < tile<T>::tall; i++) {
        int64_t row = from + threadIdx.x / ACROSS * tile<T>::tall + i;
        if (row >= count)
            continue;
#pragma unroll
        for (int g = 0; g < NV; g += each) {
            int64_t column = first + cols::of(g);
            kiln_pack<S, each> v;
#pragma unroll
            for (int j = 0; j < each; j++)
                v.at[j] = kiln_element<S>::to(sums[i][g + j] * times[i]);
            if (whole && column < width)
                kiln_store<each>(to + row * apart + column, v);
#pragma unroll
            for (int j = 0; j < each; j++)
                if (!whole && column + j < width)
                    to[row * apart + column + j] = v.at[j];
        }
    }
}

#endif
