/* Tiles of operands in shared memory: panels of rows of 128 bytes, side by side where rows are wider. The 16-byte packs
 * of row r change places by exclusive or with r % 8, so that eight rows of a column of packs lie in different banks.
 * That is what ldmatrix reads without conflicts, and what Hopper's instructions call the 128-byte swizzle. */
#ifndef KILN_CUDA_ATTENTION_TILES_CUH
#define KILN_CUDA_ATTENTION_TILES_CUH

#include "device/cuda/attention/problem.cuh"
#include "device/cuda/gemm/async.cuh"

/* ROWS rows of WIDTH elements. */
template <typename S, int ROWS, int WIDTH> struct kiln_attention_tile {
    static constexpr int pack = 16 / sizeof(S), panel = 128 / sizeof(S); /* elements */
    static constexpr int packs = WIDTH / pack, panels = (WIDTH + panel - 1) / panel;
    static constexpr int panel_bytes = ROWS * 128, bytes = panels * panel_bytes;
    static_assert(WIDTH % pack == 0 && ROWS % 8 == 0, "whole packs, and rows that the swizzle repeats after");

    /* Where pack number `column` of a row lies. */
    static __device__ __forceinline__ int place(int row, int column)
    {
        return column / 8 * panel_bytes + row * 128 + ((column ^ row) & 7) * 16;
    }
};

/* Rows of one head in global memory, or of a result. */
template <typename S> struct kiln_attention_rows {
    S *at;
    int64_t row, column;
    int count, width;
    bool packed; /* rows are whole packs of 16 bytes at aligned addresses: copies of a part would reach beyond it */

    __device__ __forceinline__ kiln_attention_rows(const kiln_attention_problem &p, const kiln_attention_head &head,
                                                   const kiln_attention_operand &x, int64_t count, int64_t width)
        : at(head.of<S>(p, x)), row(x.row), column(x.column), count((int)count), width((int)width)
    {
        packed = x.column == 1 && (uintptr_t)at % 16 == 0 && x.row * sizeof(S) % 16 == 0 &&
                 width * sizeof(S) % 16 == 0;
    }
};

/* Begins to copy rows from … of x into a tile, by THREADS threads. What is not there is 0. */
template <typename S, int ROWS, int WIDTH, int THREADS>
static __device__ __forceinline__ void kiln_attention_load(char *tile, const kiln_attention_rows<S> &x, int from)
{
    typedef kiln_attention_tile<S, ROWS, WIDTH> T;
    constexpr int step = THREADS / T::packs, passes = ROWS / step; /* rows from one of a thread's packs to the next */
    static_assert(step * T::packs == THREADS && passes * step == ROWS, "threads have equal shares");
    const int row = (int)threadIdx.x / T::packs, column = (int)threadIdx.x % T::packs, first = column * T::pack;
    const int left = x.count - from, there = x.width - first < T::pack ? x.width - first : T::pack;
    const S *source = x.at + (int64_t)(from + row) * x.row;
    if (x.packed) {
        source += first;
#pragma unroll
        for (int i = 0; i < passes; i++, source += step * x.row) {
            const bool reads = row + i * step < left && there > 0;
            kiln_cuda_copy_16(tile + T::place(row + i * step, column), reads ? source : x.at,
                              reads ? there * (int)sizeof(S) : 0);
        }
        return;
    }
#pragma unroll 1
    for (int i = 0; i < passes; i++, source += step * x.row) {
        alignas(16) S words[T::pack];
#pragma unroll
        for (int e = 0; e < T::pack; e++)
            words[e] = row + i * step < left && e < there ? source[(first + e) * x.column] : S{};
        *(uint4 *)(tile + T::place(row + i * step, column)) = *(const uint4 *)words;
    }
}

/* A warp's 16 rows of a tile, from `row` on, to rows `to` … of x. */
template <typename S, int ROWS, int WIDTH>
static __device__ __forceinline__ void kiln_attention_store(const char *tile, int row, const kiln_attention_rows<S> &x,
                                                            int to)
{
    typedef kiln_attention_tile<S, ROWS, WIDTH> T;
    const int lane = (int)(threadIdx.x % 32), left = x.count - to;
#pragma unroll 2
    for (int number = lane; number < 16 * T::packs; number += 32) {
        const int line = number / T::packs, column = number % T::packs, first = column * T::pack;
        if (line >= left || first >= x.width)
            continue;
        const uint4 words = *(const uint4 *)(tile + T::place(row + line, column));
        S *target = x.at + (int64_t)(to + line) * x.row + first * x.column;
        if (x.packed && first + T::pack <= x.width) {
            *(uint4 *)target = words;
        } else {
            const S *each = (const S *)&words;
#pragma unroll
            for (int e = 0; e < T::pack; e++)
                if (first + e < x.width)
                    target[e * x.column] = each[e];
        }
    }
}

#endif
