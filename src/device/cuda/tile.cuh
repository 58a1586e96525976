/* A tile of a product of f32 matrices, made by a block of KILN_CUDA_TILE_THREADS threads. Compiled ahead with small.cu
 * and as text with generated kernels; both give the same bits, whatever strides and alignment are: an element is the
 * sum of its slices in an order that the tiling tells, a slice the sum of its products in ascending k, each added by one
 * fma. */
#ifndef KILN_CUDA_TILE_CUH
#define KILN_CUDA_TILE_CUH

#include "device/cuda/staged.cuh"
#include "device/cuda/straight.cuh"

/* Adds up the sums of every element, in order. Four neighbours a thread; the first of the tile is element `at` of c;
 * `rows` and `cols` of it are there. */
template <int ROWS, int COLS, int WIDTH, typename Sink>
static __device__ __forceinline__ void kiln_cuda_tile_finish(const float *sums, int count, int64_t at, int64_t n,
                                                             int rows, int cols, const Sink &sink)
{
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < ROWS * COLS / 4; i += KILN_CUDA_TILE_THREADS) {
        const int row = (int)(i / (COLS / 4)), col = (int)(i % (COLS / 4)) * 4, left = cols - col;
        if (row >= rows || left <= 0)
            continue;
        const float *from = sums + row * WIDTH + col;
        float4 x = *(const float4 *)from;
#pragma unroll 16
        for (int s = 1; s < count; s++) {
            float4 y = *(const float4 *)(from + s * (ROWS * WIDTH));
            x.x += y.x, x.y += y.y, x.z += y.z, x.w += y.w;
        }
        const float values[4] = {x.x, x.y, x.z, x.w};
        int64_t element = at + row * n + col;
        asm("" : "+l"(element)); /* or compilers see through it and store vectors one float at a time */
        sink(element, left < 4 ? left : 4, values);
    }
}

static __device__ __forceinline__ kiln_cuda_panel kiln_cuda_panel_of(const float *from, int64_t line, int64_t step,
                                                                     int lines, bool aligned, bool fours, bool whole)
{
    const bool vector = (step == 1 ? line : line == 1 ? step : 1) % 4 == 0;
    return kiln_cuda_panel{from,  line, step, lines, vector && (aligned || (unsigned long long)from % 16 == 0),
                           fours, whole};
}

/* Whether a and b are known to be multiples of 16 bytes; else their tiles look. */
template <typename Shape> static constexpr bool kiln_cuda_aligned = Shape::aligned;
template <> constexpr bool kiln_cuda_aligned<kiln_cuda_matrices> = false;

template <typename Tiler, typename Shape, typename... More>
static __device__ __forceinline__ void kiln_cuda_tile_make(const Shape &s, const kiln_cuda_panel &a,
                                                           const kiln_cuda_panel &b, More... memory)
{
    if (s.a_col == 1 && s.b_row == 1)
        Tiler::template make<true, true>(a, b, s.k, memory...);
    else if (s.a_col == 1)
        Tiler::template make<true, false>(a, b, s.k, memory...);
    else if (s.b_row == 1)
        Tiler::template make<false, true>(a, b, s.k, memory...);
    else
        Tiler::template make<false, false>(a, b, s.k, memory...);
}

/* Tile number `tile` of all matrices' tiles, row by row. `s` is a kiln_cuda_matrices, or has the same members as
 * constants and `aligned`. `shared` is aligned to 16 bytes; the block has to meet before it is used again.
 *
 * sink(at, n, values) is called for every element once, with up to four neighbours of a row at a time: the elements of
 * c from `at`, four of them and `at` a multiple of four where the rows of c have a multiple of four. Consecutive
 * threads have consecutive ones. */
template <int ROWS, int COLS, int SLICES, typename Shape, typename Sink>
static __device__ __forceinline__ void kiln_cuda_tile(const Shape &s, int64_t tile, void *shared, const Sink &sink)
{
    const uint32_t across = (uint32_t)((s.n + COLS - 1) / COLS), down = (uint32_t)((s.m + ROWS - 1) / ROWS);
    const uint32_t line = (uint32_t)tile / across, matrix = line / down;
    const int64_t row = (int64_t)(line % down) * ROWS, col = (int64_t)((uint32_t)tile % across) * COLS;
    const int rows = s.m % ROWS == 0 || s.m - row >= ROWS ? ROWS : (int)(s.m - row);
    const int cols = s.n % COLS == 0 || s.n - col >= COLS ? COLS : (int)(s.n - col);
    const bool a_fours = (s.a_col == 1 ? s.k : s.m) % 4 == 0, b_fours = (s.b_row == 1 ? s.k : s.n) % 4 == 0;
    const kiln_cuda_panel a =
        kiln_cuda_panel_of(s.a + matrix * s.a_matrix + row * s.a_row, s.a_row, s.a_col, rows,
                           kiln_cuda_aligned<Shape> && s.a_matrix % 4 == 0, a_fours, a_fours && s.k % 4 == 0);
    const kiln_cuda_panel b =
        kiln_cuda_panel_of(s.b + matrix * s.b_matrix + col * s.b_col, s.b_col, s.b_row, cols,
                           kiln_cuda_aligned<Shape> && s.b_matrix % 4 == 0, b_fours, b_fours && s.k % 4 == 0);
    const int64_t at = (matrix * s.m + row) * s.n + col;
    float *sums = (float *)shared;
    if constexpr (KILN_CUDA_TILE_STRAIGHT(ROWS, COLS, SLICES)) {
        typedef kiln_cuda_straight<ROWS, COLS> tiler;
        kiln_cuda_tile_make<tiler>(s, a, b, sums);
        __syncthreads();
        kiln_cuda_tile_finish<ROWS, COLS, COLS>(sums, tiler::sums_of(s.k), at, s.n, rows, cols, sink);
    } else {
        typedef kiln_cuda_staged<ROWS, COLS, SLICES> tiler;
        kiln_cuda_tile_make<tiler>(s, a, b, sums, sums + SLICES * KILN_CUDA_TILE_SUMS(ROWS, COLS));
        __syncthreads();
        kiln_cuda_tile_finish<ROWS, COLS, tiler::WIDTH>(sums, tiler::sums_of(s.k), at, s.n, rows, cols, sink);
    }
}

#endif
