/* A tile of a product of f32 matrices, made by a block of KILN_CUDA_TILE_THREADS threads. Compiled ahead with small.cu
 * and as text with generated kernels; both give the same bits, whatever strides and alignment are: an element is the
 * sum of its slices in their order, a slice the sum of its products in ascending k, each added by one fma.
 *
 * A crew of threads makes each slice: it copies its part of the operands to shared memory, several chunks ahead, and
 * waits for nobody else until all sums are there. Both operands are taken as lines along k, the rows of a and the
 * columns of b: a panel holds the lines of a tile, and lies in shared memory as in global memory, line by line where k
 * has stride 1, else k by k, so that it can be copied by 16 bytes. */
#ifndef KILN_CUDA_TILE_CUH
#define KILN_CUDA_TILE_CUH

#include "device/cuda/async.cuh"
#include "device/cuda/tile.h"

struct kiln_cuda_panel {
    const float *from;  /* the first line's first element */
    int64_t line, step; /* from line to line, along k */
    int lines;          /* that there are */
    bool vector;        /* copied by 16 bytes … */
    bool whole;         /* … none of which reach beyond the end */
};

template <int ROWS, int COLS, int SLICES> struct kiln_cuda_tiler {
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

    /* Element i of LINES · CHUNK, or, where `each` is 4, the i-th four. */
    template <int LINES, bool ALONG, int each>
    static __device__ __forceinline__ void copy(float *to, const kiln_cuda_panel &p, const float *from, int left,
                                                uint32_t i)
    {
        const uint32_t width = (ALONG ? CHUNK : LINES) / each;
        const int at = (int)(i % width) * each, other = (int)(i / width);
        const int line = ALONG ? other : at, k = ALONG ? at : other;
        if (line >= p.lines || k >= ((left + 3) & ~3))
            return;
        float *cell = to + (ALONG ? line * LINE + k : k * LINES + line);
        const float *source = from + line * p.line + k * p.step;
        if (each == 1)
            return kiln_cuda_copy_4(cell, source, k < left ? 4 : 0);
        const int there = ALONG ? left - k : k < left ? p.lines - line : 0;
        kiln_cuda_copy_16(cell, source, p.whole || there >= 4 ? 16 : there * 4);
    }

    template <int LINES, bool ALONG, int each>
    static __device__ __forceinline__ void copy_all(float *to, const kiln_cuda_panel &p, const float *from, int left,
                                                    uint32_t thread)
    {
        const uint32_t count = LINES * CHUNK / each;
#pragma unroll(each == 1 ? 2 : 8)
        for (uint32_t done = 0; done < count; done += CREW)
            if (count % CREW == 0 || done + thread < count)
                copy<LINES, ALONG, each>(to, p, from, left, done + thread);
    }

    /* Begins to copy the chunk at k, of which `left` elements are there; the last four are filled up with zeros. */
    template <int LINES, bool ALONG>
    static __device__ __forceinline__ void stage(float *to, const kiln_cuda_panel &p, int k, int left,
                                                 uint32_t thread)
    {
        const float *from = p.from + k * p.step;
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

    /* One slice by its crew. Threads of a warp that share a row differ from their neighbours in the lowest bit, those
     * that share a column in the next: that is when loads of 16 bytes for half a warp are one access. */
    template <bool A_ALONG, bool B_ALONG>
    static __device__ __forceinline__ void slice(const kiln_cuda_panel &a, const kiln_cuda_panel &b, int64_t k,
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

    /* ---- Results ---- */

    /* Four neighbours a thread. The first of the tile is element `at` of c; `rows` and `cols` of it are there. */
    template <typename Sink>
    static __device__ __forceinline__ void finish(const float *sums, int slices, int64_t at, int64_t n, int rows,
                                                  int cols, const Sink &sink)
    {
#pragma unroll 1
        for (uint32_t i = threadIdx.x; i < ROWS * COLS / 4; i += KILN_CUDA_TILE_THREADS) {
            const int row = (int)(i / (COLS / 4)), col = (int)(i % (COLS / 4)) * 4, left = cols - col;
            if (row >= rows || left <= 0)
                continue;
            const float *from = sums + row * WIDTH + col;
            float4 x = *(const float4 *)from;
#pragma unroll 8
            for (int s = 1; s < slices; s++) {
                float4 y = *(const float4 *)(from + s * KILN_CUDA_TILE_SUMS(ROWS, COLS));
                x.x += y.x, x.y += y.y, x.z += y.z, x.w += y.w;
            }
            const float values[4] = {x.x, x.y, x.z, x.w};
            sink(at + row * n + col, left < 4 ? left : 4, values);
        }
    }
};

static __device__ __forceinline__ kiln_cuda_panel kiln_cuda_panel_of(const float *from, int64_t line, int64_t step,
                                                                     int lines, bool whole)
{
    kiln_cuda_panel p = {from, line, step, lines, false, whole};
    p.vector = (step == 1 ? line : line == 1 ? step : 1) % 4 == 0 && (unsigned long long)from % 16 == 0;
    return p;
}

/* Tile number `tile` of all matrices' tiles, row by row. `s` is a kiln_cuda_matrices, or has the same members as
 * constants. `shared` is aligned to 16 bytes; all threads are done with it at the end.
 *
 * sink(at, n, values) is called for every element once, with up to four neighbours of a row at a time: the elements of
 * c from `at`, four of them and `at` a multiple of four where the rows of c have a multiple of four. Consecutive
 * threads have consecutive ones. */
template <int ROWS, int COLS, int SLICES, typename Shape, typename Sink>
static __device__ __forceinline__ void kiln_cuda_tile(const Shape &s, int64_t tile, void *shared, const Sink &sink)
{
    typedef kiln_cuda_tiler<ROWS, COLS, SLICES> tiler;
    const uint32_t across = (uint32_t)((s.n + COLS - 1) / COLS), down = (uint32_t)((s.m + ROWS - 1) / ROWS);
    const uint32_t line = (uint32_t)tile / across, matrix = line / down;
    const int64_t row = (int64_t)(line % down) * ROWS, col = (int64_t)((uint32_t)tile % across) * COLS;
    const int rows = s.m - row < ROWS ? (int)(s.m - row) : ROWS, cols = s.n - col < COLS ? (int)(s.n - col) : COLS;
    const kiln_cuda_panel a = kiln_cuda_panel_of(s.a + matrix * s.a_matrix + row * s.a_row, s.a_row, s.a_col, rows,
                                                 s.k % 4 == 0 && (s.a_col == 1 || s.m % 4 == 0));
    const kiln_cuda_panel b = kiln_cuda_panel_of(s.b + matrix * s.b_matrix + col * s.b_col, s.b_col, s.b_row, cols,
                                                 s.k % 4 == 0 && (s.b_row == 1 || s.n % 4 == 0));
    float *sums = (float *)shared, *stages = sums + SLICES * KILN_CUDA_TILE_SUMS(ROWS, COLS);
    if (s.a_col == 1 && s.b_row == 1)
        tiler::template slice<true, true>(a, b, s.k, sums, stages);
    else if (s.a_col == 1)
        tiler::template slice<true, false>(a, b, s.k, sums, stages);
    else if (s.b_row == 1)
        tiler::template slice<false, true>(a, b, s.k, sums, stages);
    else
        tiler::template slice<false, false>(a, b, s.k, sums, stages);
    __syncthreads();
    const int length = (int)KILN_CUDA_TILE_SLICE(s.k, SLICES), slices = (int)((s.k + length - 1) / length);
    tiler::finish(sums, slices, (matrix * s.m + row) * s.n + col, s.n, rows, cols, sink);
    __syncthreads();
}

#endif
