/* A tile of a product of matrices, made by a block of KILN_CUDA_TILE_THREADS threads. Compiled ahead with tiled.cu
 * and as text with generated kernels; both give the same bits, whatever strides and alignment are: an element is the
 * sum of its slices in an order that the tiling tells, a slice the sum of its products in ascending k, each added by one
 * fma, or eight or sixteen at a time as tensor cores do it. Whether an operand is read as it is or converted on the way
 * makes no difference either. */
#ifndef KILN_CUDA_TILE_CUH
#define KILN_CUDA_TILE_CUH

#include "device/cuda/gemm/staged.cuh"
#include "device/cuda/gemm/straight.cuh"
#include "device/cuda/gemm/tensor.cuh"

/* Adds up the sums of every element, in order. A thread has up to four cells at a time, so that a sink can ask memory
 * for what it needs of all before it writes any; the first of the tile is element `at` of c; `rows` and `cols` of it
 * are there. */
template <int ROWS, int COLS, int WIDTH, typename Sink>
static __device__ __forceinline__ void kiln_cuda_tile_finish(const float *sums, int count, int64_t at, int64_t n,
                                                             int rows, int cols, const Sink &sink)
{
    enum { CELLS = ROWS * COLS / 4, EACH = CELLS / KILN_CUDA_TILE_THREADS, ONCE = EACH > 4 ? 4 : EACH > 1 ? EACH : 1 };
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < CELLS; i += KILN_CUDA_TILE_THREADS * ONCE) {
        kiln_cuda_cell cells[ONCE];
#pragma unroll
        for (int c = 0; c < ONCE; c++) {
            const uint32_t number = i + c * KILN_CUDA_TILE_THREADS;
            const int row = (int)(number / (COLS / 4)), col = (int)(number % (COLS / 4)) * 4, left = cols - col;
            const float *from = sums + row * WIDTH + col;
            float4 x = *(const float4 *)from;
#pragma unroll 16
            for (int s = 1; s < count; s++) {
                float4 y = *(const float4 *)(from + s * (ROWS * WIDTH));
                x.x += y.x, x.y += y.y, x.z += y.z, x.w += y.w;
            }
            int64_t element = at + row * n + col;
            asm("" : "+l"(element)); /* or compilers see through it and store vectors one float at a time */
            cells[c] = kiln_cuda_cell{element, row >= rows || left <= 0 ? 0 : left < 4 ? left : 4, {x.x, x.y, x.z, x.w}};
        }
        sink(cells);
    }
}

/* `each`: elements that are read at a time. */
template <typename T>
static __device__ __forceinline__ kiln_cuda_panel<T> kiln_cuda_panel_of(const void *operand, int64_t at, int64_t line,
                                                                        int64_t step, int lines, int each, bool aligned,
                                                                        bool fours, bool whole)
{
    const T *from = (const T *)operand + at;
    const bool vector = (step == 1 ? line : line == 1 ? step : 1) % each == 0;
    return kiln_cuda_panel<T>{from,
                              line,
                              step,
                              lines,
                              vector && (aligned || (unsigned long long)from % (each * sizeof(T)) == 0),
                              fours,
                              whole};
}

/* Whether a and b are known to be multiples of 16 bytes; else their tiles look. */
template <typename Shape> static constexpr bool kiln_cuda_aligned = Shape::aligned;
template <> constexpr bool kiln_cuda_aligned<kiln_cuda_matrices> = false;

template <typename Tiler, typename Shape, typename A, typename B, typename... More>
static __device__ __forceinline__ void kiln_cuda_tile_make(const Shape &s, const kiln_cuda_panel<A> &a,
                                                           const kiln_cuda_panel<B> &b, int64_t k, More... memory)
{
    if (s.a_col == 1 && s.b_row == 1)
        Tiler::template make<true, true>(a, b, k, memory...);
    else if (s.a_col == 1)
        Tiler::template make<true, false>(a, b, k, memory...);
    else if (s.b_row == 1)
        Tiler::template make<false, true>(a, b, k, memory...);
    else
        Tiler::template make<false, false>(a, b, k, memory...);
}

/* Tile number `tile` of all matrices' tiles, row by row, of the first split, then of the next. `s` is a
 * kiln_cuda_matrices, or has the same members as constants and `aligned`; Types: kiln_cuda_types. `shared` is aligned to 16 bytes, better to
 * KILN_CUDA_TILE_ALIGN; the block has to meet before it is used again.
 *
 * sink(cells) is called with some cells at a time, such that every element is in one of them: four elements, and `at` a
 * multiple of four, where the rows of c have a multiple of four. Consecutive threads have consecutive ones. The elements
 * of the second split come behind all of the first. */
template <int ROWS, int COLS, int SLICES, typename Types, typename Shape, typename Sink>
static __device__ __forceinline__ void kiln_cuda_tile(const Shape &s, int64_t matrices, int splits, int64_t tile,
                                                      void *shared, const Sink &sink)
{
    const uint32_t across = (uint32_t)((s.n + COLS - 1) / COLS), down = (uint32_t)((s.m + ROWS - 1) / ROWS);
    const uint32_t line = (uint32_t)tile / across, number = line / down;
    const uint32_t split = splits == 1 ? 0 : number / (uint32_t)matrices;
    const uint32_t matrix = splits == 1 ? number : number % (uint32_t)matrices;
    const int64_t row = (int64_t)(line % down) * ROWS, col = (int64_t)((uint32_t)tile % across) * COLS;
    const int64_t length = KILN_CUDA_TILE_SPLIT(s.k, (int64_t)splits), begin = split * length;
    const int64_t k = splits == 1 || s.k - begin < length ? s.k - begin : length;
    const int rows = s.m % ROWS == 0 || s.m - row >= ROWS ? ROWS : (int)(s.m - row);
    const int cols = s.n % COLS == 0 || s.n - col >= COLS ? COLS : (int)(s.n - col);
    const bool a_fours = (s.a_col == 1 ? s.k : s.m) % 4 == 0, b_fours = (s.b_row == 1 ? s.k : s.n) % 4 == 0;
    typedef typename Types::a A;
    typedef typename Types::b B;
    typedef typename Types::as As;
    const bool tensor = KILN_CUDA_TILE_TENSOR(ROWS, COLS, SLICES);
    const int a_each = tensor ? 16 / sizeof(A) : 4, b_each = tensor ? 16 / sizeof(B) : 4;
    const kiln_cuda_panel<A> a = kiln_cuda_panel_of<A>(
        s.a, matrix * s.a_matrix + row * s.a_row + begin * s.a_col, s.a_row, s.a_col, rows, a_each,
        kiln_cuda_aligned<Shape> && s.a_matrix % a_each == 0, a_fours, a_fours && s.k % 4 == 0);
    const kiln_cuda_panel<B> b = kiln_cuda_panel_of<B>(
        s.b, matrix * s.b_matrix + col * s.b_col + begin * s.b_row, s.b_col, s.b_row, cols, b_each,
        kiln_cuda_aligned<Shape> && s.b_matrix % b_each == 0, b_fours, b_fours && s.k % 4 == 0);
    const int64_t at = (number * s.m + row) * s.n + col;
    float *sums = (float *)shared;
    if constexpr (tensor) {
        typedef kiln_cuda_tensor<ROWS, COLS, SLICES, A, B, As> tiler;
        kiln_cuda_tile_make<tiler>(s, a, b, k, sums);
        __syncthreads();
        kiln_cuda_tile_finish<ROWS, COLS, tiler::WIDTH>(sums, tiler::sums_of(k), at, s.n, rows, cols, sink);
    } else if constexpr (KILN_CUDA_TILE_STRAIGHT(ROWS, COLS, SLICES)) {
        typedef kiln_cuda_straight<ROWS, COLS, As> tiler;
        kiln_cuda_tile_make<tiler>(s, a, b, k, sums);
        __syncthreads();
        kiln_cuda_tile_finish<ROWS, COLS, COLS>(sums, tiler::sums_of(k), at, s.n, rows, cols, sink);
    } else {
        typedef kiln_cuda_staged<ROWS, COLS, SLICES, As> tiler;
        kiln_cuda_tile_make<tiler>(s, a, b, k, sums, sums + SLICES * KILN_CUDA_TILE_SUMS(ROWS, COLS));
        __syncthreads();
        kiln_cuda_tile_finish<ROWS, COLS, tiler::WIDTH>(sums, tiler::sums_of(k), at, s.n, rows, cols, sink);
    }
}

/* Adds the partial sums of all splits of `count` elements, four at a time where there are whole fours: from `from` on,
 * steps of `step`. Elements reach the sink as those of tiles do. */
template <typename Sink>
static __device__ __forceinline__ void kiln_cuda_sum_splits(const float *partials, int64_t count, int64_t n, int splits,
                                                      int64_t from, int64_t step, const Sink &sink)
{
    const bool fours = n % 4 == 0;
    const int each = fours ? 4 : 1;
    for (int64_t i = from * each; i < count; i += step * each) {
        kiln_cuda_cell cell[1] = {{i, each, {}}};
        float(&x)[4] = cell[0].x;
        if (fours) {
            float4 v = *(const float4 *)(partials + i);
#pragma unroll 8
            for (int c = 1; c < splits; c++) {
                const float4 y = *(const float4 *)(partials + c * count + i);
                v.x += y.x, v.y += y.y, v.z += y.z, v.w += y.w;
            }
            x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
        } else {
            x[0] = partials[i];
            for (int c = 1; c < splits; c++)
                x[0] += partials[c * count + i];
        }
        sink(cell);
    }
}

#endif
