/* Tiles whose operands go through shared memory. A crew of threads makes each slice: it copies its part of the operands
 * there, several chunks ahead, and waits for nobody else until all sums are there. Panels lie in shared memory as in
 * global memory, line by line where k has stride 1, else k by k, so that they can be copied by 16 bytes. Elements that
 * are not floats, or are to be rounded, become floats on the way. */
#ifndef KILN_CUDA_STAGED_CUH
#define KILN_CUDA_STAGED_CUH

#include "device/cuda/gemm/async.cuh"
#include "device/cuda/gemm/panel.cuh"

/* As: what elements are multiplied as. */
template <int ROWS, int COLS, int SLICES, typename As> struct kiln_cuda_staged {
    enum {
        CHUNK = KILN_CUDA_TILE_CHUNK,
        STAGES = KILN_CUDA_TILE_STAGES,
        LINE = CHUNK + KILN_CUDA_TILE_PAD,
        WIDTH = COLS + KILN_CUDA_TILE_PAD, /* of a row of sums */
        CREW = KILN_CUDA_TILE_THREADS / SLICES,
        OWN = ROWS * COLS / CREW, /* elements a thread sums, HIGH · WIDE */
        WIDE = OWN >= 16 || (OWN >= 8 && COLS >= 16) ? 4 : 2,
        HIGH = OWN / WIDE,
        DOWN = ROWS / HIGH, /* the crew, as a grid */
        ACROSS = COLS / WIDE
    };
    static_assert(DOWN % 4 == 0 && ACROSS % 4 == 0, "a crew consists of squares of 16 threads");

    /* ---- Copying ---- */

    /* The first `there` of some neighbours, as numbers. */
    template <int each, typename T> static __device__ __forceinline__ void convert(float *to, const T *from, int there)
    {
        if (each == 4 && there == 4) {
            float x[4];
            ((const kiln_cuda_four<T> *)from)->template numbers<As>(x);
            *(float4 *)to = float4{x[0], x[1], x[2], x[3]};
            return;
        }
#pragma unroll
        for (int i = 0; i < each; i++)
            to[i] = i < there ? kiln_cuda_number<As>(from[i]) : 0;
    }

    /* Element i of LINES · CHUNK, or, where `each` is 4, the i-th four. */
    template <int LINES, bool ALONG, int each, typename T>
    static __device__ __forceinline__ void copy(float *to, const kiln_cuda_panel<T> &p, const T *from, int left,
                                                uint32_t i)
    {
        const uint32_t width = (ALONG ? CHUNK : LINES) / each;
        const int at = (int)(i % width) * each, other = (int)(i / width);
        const int line = ALONG ? other : at, k = ALONG ? at : other;
        if (line >= p.lines || k >= ((left + 3) & ~3))
            return;
        float *cell = to + (ALONG ? line * LINE + k : k * LINES + line);
        const T *source = from + line * p.line + k * p.step;
        const int there = each == 1 ? k < left : ALONG ? left - k : k < left ? p.lines - line : 0;
        if constexpr (sizeof(T) == 2 || sizeof(As) == 2)
            convert<each>(cell, source, p.whole || there >= each ? each : there);
        else if (each == 1)
            kiln_cuda_copy_4(cell, source, there * 4);
        else
            kiln_cuda_copy_16(cell, source, p.whole || there >= 4 ? 16 : there * 4);
    }

    template <int LINES, bool ALONG, int each, typename T>
    static __device__ __forceinline__ void copy_all(float *to, const kiln_cuda_panel<T> &p, const T *from, int left,
                                                    uint32_t thread)
    {
        const uint32_t count = LINES * CHUNK / each;
#pragma unroll(each == 1 ? 2 : 8)
        for (uint32_t done = 0; done < count; done += CREW)
            if (count % CREW == 0 || done + thread < count)
                copy<LINES, ALONG, each>(to, p, from, left, done + thread);
    }

    /* Begins to copy the chunk at k, of which `left` elements are there; the last four are filled up with zeros. */
    template <int LINES, bool ALONG, typename T>
    static __device__ __forceinline__ void stage(float *to, const kiln_cuda_panel<T> &p, int k, int left,
                                                 uint32_t thread)
    {
        const T *from = p.from + k * p.step;
        if (p.vector)
            copy_all<LINES, ALONG, 4>(to, p, from, left, thread);
        else
            copy_all<LINES, ALONG, 1>(to, p, from, left, thread);
    }

    /* ---- Multiplying ---- */

    /* Four k of a thread's N lines. It is the `at`-th of `threads`; its lines are not neighbours where that would put
     * several threads on one bank. */
    template <int LINES, int N, bool ALONG>
    static __device__ __forceinline__ void load(const float *panel, int k, int at, float (&x)[4][N])
    {
        const int threads = LINES / N;
        if constexpr (ALONG) {
#pragma unroll
            for (int i = 0; i < N; i++) {
                float4 v = *(const float4 *)(panel + (at + i * threads) * LINE + k);
                x[0][i] = v.x, x[1][i] = v.y, x[2][i] = v.z, x[3][i] = v.w;
            }
        } else {
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const float *from = panel + (k + j) * LINES + at * N;
                if constexpr (N == 4) {
                    float4 v = *(const float4 *)from;
                    x[j][0] = v.x, x[j][1] = v.y, x[j][2] = v.z, x[j][3] = v.w;
                } else if constexpr (N == 2) {
                    float2 v = *(const float2 *)from;
                    x[j][0] = v.x, x[j][1] = v.y;
                } else
                    x[j][0] = *from;
            }
        }
    }

    /* The line that `load` puts at i. */
    template <int LINES, int N, bool ALONG> static __device__ __forceinline__ int line_of(int at, int i)
    {
        return ALONG ? at + i * (LINES / N) : at * N + i;
    }

    template <bool A_ALONG, bool B_ALONG>
    static __device__ __forceinline__ void multiply(const float *panels, int left, int row, int col,
                                                    float (&sum)[HIGH][WIDE])
    {
        const int most = left < CHUNK ? left : (int)CHUNK;
#pragma unroll(OWN >= 16 ? 2 : 4)
        for (int k = 0; k < most; k += 4) {
            float x[4][HIGH], y[4][WIDE];
            load<ROWS, HIGH, A_ALONG>(panels, k, row, x);
            load<COLS, WIDE, B_ALONG>(panels + KILN_CUDA_TILE_PANEL(ROWS), k, col, y);
#pragma unroll
            for (int j = 0; j < 4; j++)
#pragma unroll
                for (int h = 0; h < HIGH; h++)
#pragma unroll
                    for (int w = 0; w < WIDE; w++)
                        sum[h][w] = __fmaf_rn(x[j][h], y[j][w], sum[h][w]);
        }
    }

    template <bool A_ALONG, bool B_ALONG>
    static __device__ __forceinline__ void put(float *to, int row, int col, const float (&sum)[HIGH][WIDE])
    {
#pragma unroll
        for (int h = 0; h < HIGH; h++) {
            float *line = to + line_of<ROWS, HIGH, A_ALONG>(row, h) * WIDTH;
#pragma unroll
            for (int w = 0; w < WIDE; w++)
                line[line_of<COLS, WIDE, B_ALONG>(col, w)] = sum[h][w];
        }
    }

    /* Each slice by its crew. Threads of a warp that share a row differ from their neighbours in the lowest bit, those
     * that share a column in the next: that is when loads of 16 bytes for half a warp are one access. */
    template <bool A_ALONG, bool B_ALONG, typename A, typename B>
    static __device__ __forceinline__ void make(const kiln_cuda_panel<A> &a, const kiln_cuda_panel<B> &b, int64_t k,
                                                float *sums, float *stages)
    {
        const int length = (int)KILN_CUDA_TILE_SLICE(k, SLICES), chunks = (length + CHUNK - 1) / CHUNK;
        const uint32_t thread = threadIdx.x % CREW, square = thread / 16;
        const int row = (int)((thread >> 1 & 1) + (thread >> 2 & 2) + square / (ACROSS / 4) * 4);
        const int col = (int)((thread & 1) + (thread >> 1 & 2) + square % (ACROSS / 4) * 4);
        const int number = (int)(threadIdx.x / CREW), first = number * length, rest = (int)k - first;
        const int left = rest < length ? rest : length;
        const int size = KILN_CUDA_TILE_STAGE(ROWS, COLS);
        float sum[HIGH][WIDE] = {};
#pragma unroll 1
        for (int c = 0; c < chunks + STAGES - 1; c++) {
            if (c < chunks) {
                float *to = stages + (c % STAGES * SLICES + number) * size;
                stage<ROWS, A_ALONG>(to, a, first + c * CHUNK, left - c * CHUNK, thread);
                stage<COLS, B_ALONG>(to + KILN_CUDA_TILE_PANEL(ROWS), b, first + c * CHUNK, left - c * CHUNK, thread);
            }
            kiln_cuda_copies_end();
            const int ready = c - (STAGES - 1);
            if (ready < 0)
                continue;
            kiln_cuda_copies_wait<STAGES - 1>();
            kiln_cuda_part_sync<CREW>(number);
            multiply<A_ALONG, B_ALONG>(stages + (ready % STAGES * SLICES + number) * size, left - ready * CHUNK, row,
                                       col, sum);
            if (c + 1 < chunks) /* into what was just read */
                kiln_cuda_part_sync<CREW>(number);
        }
        put<A_ALONG, B_ALONG>(sums + number * KILN_CUDA_TILE_SUMS(ROWS, COLS), row, col, sum);
    }

    static __device__ __forceinline__ int sums_of(int64_t k)
    {
        const int64_t length = KILN_CUDA_TILE_SLICE(k, SLICES);
        return (int)((k + length - 1) / length);
    }
};

#endif
