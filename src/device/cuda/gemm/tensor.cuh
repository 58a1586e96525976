/* Tiles of f32 products by tensor cores, operands rounded to TF32. A warp makes 32 · 32 elements of a slice, of the
 * largest tiles 64 · 32, for which it reads a quarter less from shared memory. All threads together copy operands there,
 * a few stages ahead, of which every slice takes its part along k. A panel lies there as in global memory, line by line
 * where k has stride 1, else k by k, so that whole lines of the cache are copied; fours of elements change places within
 * 128 bytes such that the threads of a warp read from different banks. What lies beyond the end of k is 0; lines beyond
 * the edge are never written, and only get into elements that nobody looks at. */
#ifndef KILN_CUDA_TENSOR_CUH
#define KILN_CUDA_TENSOR_CUH

#include "device/cuda/gemm/async.cuh"
#include "device/cuda/gemm/tile.h"

/* Tensor cores look at the first eleven digits of a number and cut off the rest, which makes it smaller by half a unit
 * of the last on average. Multiplying by as much more makes up for it, over all numbers together; one that has no more
 * digits stays as it is, and so do infinities and NaNs. Rounding to nearest takes twice as many instructions. */
static __device__ __forceinline__ uint32_t kiln_cuda_tf32(uint32_t bits)
{
    return __float_as_uint(__fmul_rn(__uint_as_float(bits), 1 + 0x1.62e43p-12f));
}

/* Four blocks of 8 · 4 elements, of each of which a thread gets the (lane % 4)-th element of line lane / 4; thread i has
 * the address of line i % 8 of block i / 8. */
static __device__ __forceinline__ void kiln_cuda_load_blocks(uint32_t (&x)[4], const float *line)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"((unsigned)__cvta_generic_to_shared(line)));
}

static __device__ __forceinline__ void kiln_cuda_multiply_16_8_8(float (&c)[4], const uint32_t (&a)[4],
                                                                const uint32_t (&b)[2])
{
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

template <int ROWS, int COLS, int SLICES> struct kiln_cuda_tensor {
    enum {
        LONG = KILN_CUDA_TENSOR_LONG(SLICES), /* of a stage, along k … */
        CHUNK = LONG / SLICES,                /* … and of a slice's part */
        STAGES = KILN_CUDA_TENSOR_STAGES(ROWS, COLS, SLICES),
        SIZE = (ROWS + COLS) * LONG,
        CREW = KILN_CUDA_TILE_THREADS / SLICES,
        WIDTH = COLS + KILN_CUDA_TENSOR_PAD, /* of a row of sums */
        BLOCKS = KILN_CUDA_TENSOR_BLOCKS(ROWS, COLS, SLICES), /* of 32 · 32 elements, one below the other: a warp's */
        ACROSS = COLS / 32,                                   /* warps side by side */
        BUFFERS = BLOCKS == 1 ? 2 : 1 /* of operands in registers; more elements leave no room for a second one */
    };
    static_assert(CREW == ROWS / (32 * BLOCKS) * ACROSS * 32, "every warp has its elements");
    static_assert(BLOCKS == 1 || SLICES == 2, "the sums of one slice are added to those of the other");

    /* How many fours the at-th of a line or of a k is moved, by exclusive or. */
    template <bool ALONG> static __device__ __forceinline__ int turn_of(int line_or_k)
    {
        return ALONG ? line_or_k & 7 : (line_or_k & 3) * 2;
    }

    /* ---- Copying ---- */

    /* A thread's share of a panel: a few fours of each stage. */
    template <int LINES, bool ALONG> struct copier {
        enum {
            FOURS = (ALONG ? (int)LONG : LINES) / 4,  /* side by side */
            APART = KILN_CUDA_TILE_THREADS / FOURS,   /* lines or k between two of a thread's own */
            PASSES = LINES * LONG / 4 / KILN_CUDA_TILE_THREADS,
            PITCH = ALONG ? (int)LONG : LINES
        };
        static_assert(PASSES * KILN_CUDA_TILE_THREADS * 4 == LINES * LONG && APART % 8 == 0, "fours are dealt evenly");
        const float *from;
        int64_t next, pass; /* to the next stage, to the next of its own */
        int line, k, lines, element, to;
        bool vector, whole; /* by 16 bytes, with no look at the edge */

        __device__ __forceinline__ copier(const kiln_cuda_panel &p)
        {
            const int thread = (int)(threadIdx.x % KILN_CUDA_TILE_THREADS); /* which tells compilers that it is below */
            const int other = thread / FOURS, at = thread % FOURS;
            line = ALONG ? other : at * 4;
            k = ALONG ? at * 4 : other;
            from = p.from + line * p.line + k * p.step;
            next = LONG * p.step;
            pass = APART * (ALONG ? p.line : p.step);
            lines = p.lines, vector = p.vector, element = (int)(ALONG ? p.step : p.line);
            whole = vector && (ALONG || line + 4 <= lines);
            to = other * PITCH + (at ^ turn_of<ALONG>(other)) * 4;
        }

        /* Begins to copy a stage, of which `left` elements along k are there, FULL: all, and goes on to the next. */
        template <bool FULL> __device__ __forceinline__ void copy(float *panel, int left)
        {
#pragma unroll
            for (int i = 0; i < PASSES; i++) {
                const float *source = from + i * pass;
                float *target = panel + to + i * APART * PITCH;
                if (line + (ALONG ? i * APART : 0) >= lines)
                    continue;
                const int there = FULL && ALONG ? 4 : ALONG ? left - k : FULL || k + i * APART < left ? lines - line : 0;
                if (FULL && whole)
                    kiln_cuda_copy_16(target, source, 16);
                else if (vector)
                    kiln_cuda_copy_16(target, source, there >= 4 ? 16 : there > 0 ? there * 4 : 0);
                else
                    for (int e = 0; e < 4; e++)
                        kiln_cuda_copy_4(target + e, source + e * element, e < there ? 4 : 0);
            }
            from += next;
        }
    };

    /* ---- Multiplying ---- */

    /* How a warp reads the lines from `line` on of a panel, a multiple of 32, at the k of its slice, from `first` on.
     * Where in a panel is a sum of what a thread knows and of what the compiler knows. */
    template <int LINES, bool ALONG> struct reader {
        int at, turn;
        __device__ __forceinline__ reader(int line, int first, uint32_t lane)
        {
            const int eighth = (int)(lane % 8), quarter = (int)(lane % 4);
            at = ALONG ? (line + (int)(lane / 16) * 8 + eighth) * LONG
                       : (first + quarter) * LINES + line + ((int)(lane / 4) ^ turn_of<false>(quarter)) * 4;
            turn = turn_of<ALONG>(eighth) ^ (int)(lane / 8 % 2) ^ first / 4;
        }

        /* Eight k from k of 32 lines, the block-th of the warp's. */
        __device__ __forceinline__ void load(const float *panel, int block, int k, uint32_t (&x)[2][4]) const
        {
#pragma unroll
            for (int half = 0; half < 2; half++)
                if constexpr (ALONG) {
                    kiln_cuda_load_blocks(x[half], panel + at + (k / 4 ^ turn) * 4 + (block * 32 + half * 16) * LONG);
                } else {
                    const uint4 v = *(const uint4 *)(panel + at + (k + half * 4) * LINES + block * 32);
                    x[half][0] = v.x, x[half][1] = v.y, x[half][2] = v.z, x[half][3] = v.w;
                }
        }
    };

    /* Of these, rounded, the k / 4-th of the i-th line, which is the one that line_of tells. */
    template <bool ALONG> static __device__ __forceinline__ uint32_t rounded(const uint32_t (&x)[2][4], int i, int k)
    {
        return kiln_cuda_tf32(ALONG ? x[i / 2][i % 2 * 2 + k] : x[k][i]);
    }

    /* The i-th line that the threads with lane / 4 == at have, and the i-th pair of columns, those with lane % 4 * 2 == at
     * or one less. */
    template <bool ALONG> static __device__ __forceinline__ int line_of(int at, int i)
    {
        return ALONG ? i * 8 + at : at * 4 + i;
    }

    /* With two buffers what comes next is loaded before what is there is multiplied. */
    template <bool A_ALONG, bool B_ALONG>
    static __device__ __forceinline__ void multiply(const reader<ROWS, A_ALONG> &rows, const reader<COLS, B_ALONG> &cols,
                                                    const float *stage, float (&sum)[BLOCKS][2][4][4])
    {
        uint32_t a[BUFFERS][BLOCKS][2][4], b[BUFFERS][2][4];
        auto fetch = [&](int k) {
            const int to = k / 8 % BUFFERS;
#pragma unroll
            for (int block = 0; block < BLOCKS; block++)
                rows.load(stage, block, k, a[to][block]);
            cols.load(stage + ROWS * LONG, 0, k, b[to]);
        };
        if (BUFFERS == 2)
            fetch(0);
#pragma unroll
        for (int k = 0; k < CHUNK; k += 8) {
            const int now = k / 8 % BUFFERS, next = k + (BUFFERS - 1) * 8;
            if (next < CHUNK)
                fetch(next);
            uint32_t y[4][2];
#pragma unroll
            for (int i = 0; i < 8; i++)
                y[i / 2][i % 2] = rounded<B_ALONG>(b[now], i / 2, i % 2);
#pragma unroll
            for (int block = 0; block < BLOCKS; block++) {
                uint32_t x[2][4];
#pragma unroll
                for (int i = 0; i < 8; i++)
                    x[i / 4][i % 4] = rounded<A_ALONG>(a[now][block], i / 4 * 2 + i % 2, i % 4 / 2);
#pragma unroll
                for (int i = 0; i < 8; i++)
                    kiln_cuda_multiply_16_8_8(sum[block][i / 4][i % 4], x[i / 4], y[i % 4]);
            }
        }
    }

    /* ---- Sums ---- */

    template <bool ADD> static __device__ __forceinline__ void put_two(float *to, float x, float y)
    {
        const float2 there = ADD ? *(const float2 *)to : float2{0, 0};
        *(float2 *)to = ADD ? float2{x + there.x, y + there.y} : float2{x, y};
    }

    /* A warp's, to where they are read from; ADD: they are added to what is there. */
    template <bool A_ALONG, bool B_ALONG, bool ADD>
    static __device__ __forceinline__ void put(float *to, uint32_t lane, const float (&sum)[BLOCKS][2][4][4])
    {
        const int col = (int)(lane % 4) * 2;
#pragma unroll
        for (int i = 0; i < 4 * BLOCKS; i++) {
            float *row = to + (i / 4 * 32 + line_of<A_ALONG>((int)(lane / 4), i % 4)) * WIDTH;
            const float(&x)[4][4] = sum[i / 4][i % 4 / 2];
            const int at = i % 2 * 2;
#pragma unroll
            for (int j = 0; j < 4; j++)
                if constexpr (B_ALONG)
                    put_two<ADD>(row + line_of<true>(col, j), x[j][at], x[j][at + 1]);
                else
                    put_two<ADD>(row + line_of<false>(col + j / 2, j % 2 * 2), x[j % 2 * 2][at + j / 2],
                                 x[j % 2 * 2 + 1][at + j / 2]);
        }
    }

    /* Each slice has a place for its sums, or, where a warp has two blocks of them, the first slice adds its own to the
     * second's. */
    template <bool A_ALONG, bool B_ALONG>
    static __device__ __forceinline__ void put_all(float *memory, int number, int row, int col, uint32_t lane,
                                                   const float (&sum)[BLOCKS][2][4][4])
    {
        float *to = memory + row * WIDTH + col;
        __syncthreads();
        if constexpr (BLOCKS == 1) {
            put<A_ALONG, B_ALONG, false>(to + number * (ROWS * WIDTH), lane, sum);
        } else {
            if (number == 1)
                put<A_ALONG, B_ALONG, false>(to, lane, sum);
            __syncthreads();
            if (number == 0)
                put<A_ALONG, B_ALONG, true>(to, lane, sum);
        }
    }

    /* The sums take the place of the panels. While a thread multiplies a stage others may be at it too, but none at the
     * one before any more: what comes next goes there. */
    template <bool A_ALONG, bool B_ALONG>
    static __device__ __forceinline__ void make(const kiln_cuda_panel &a, const kiln_cuda_panel &b, int64_t k,
                                                float *memory)
    {
        const uint32_t warp = threadIdx.x % CREW / 32, lane = threadIdx.x % 32;
        const int number = (int)(threadIdx.x / CREW), row = (int)(warp / ACROSS) * (32 * BLOCKS);
        const int col = (int)(warp % ACROSS) * 32;
        copier<ROWS, A_ALONG> first(a);
        copier<COLS, B_ALONG> second(b);
        const reader<ROWS, A_ALONG> rows(row, number * CHUNK, lane);
        const reader<COLS, B_ALONG> cols(col, number * CHUNK, lane);
        float sum[BLOCKS][2][4][4] = {};
        int left = (int)k, to = 0, from = 0; /* to be copied, and the stages that are next */
        auto begin = [&] {
            if (left >= LONG) {
                first.template copy<true>(memory + to, left);
                second.template copy<true>(memory + to + ROWS * LONG, left);
            } else if (left > 0) {
                first.template copy<false>(memory + to, left);
                second.template copy<false>(memory + to + ROWS * LONG, left);
            }
            kiln_cuda_copies_end();
            left -= LONG;
            to = to == (STAGES - 1) * SIZE ? 0 : to + SIZE;
        };
#pragma unroll 1
        for (int i = 0; i < STAGES - 1; i++)
            begin();
#pragma unroll 1
        for (int ready = (int)k; ready > 0; ready -= LONG) {
            kiln_cuda_copies_wait<STAGES - 2>();
            __syncthreads();
            begin();
            multiply(rows, cols, memory + from, sum);
            from = from == (STAGES - 1) * SIZE ? 0 : from + SIZE;
        }
        put_all<A_ALONG, B_ALONG>(memory, number, row, col, lane, sum);
    }

    /* How many sums of each element there are then. */
    static __device__ __forceinline__ int sums_of(int64_t k)
    {
        if (BLOCKS > 1)
            return 1;
        const int64_t slices = (k + CHUNK - 1) / CHUNK;
        return (int)(slices < SLICES ? slices : SLICES);
    }
};

#endif
