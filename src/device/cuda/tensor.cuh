/* Tiles of f32 products by tensor cores, operands rounded to TF32. A warp makes 32 · 32 elements of a slice; all threads
 * together copy operands to shared memory, a few stages ahead, of which every slice takes its part along k. A panel lies
 * there as in global memory, line by line where k has stride 1, else k by k, so that whole lines of the cache are
 * copied; fours of elements change places within 128 bytes such that the threads of a warp read from different banks.
 * What lies beyond the end of k is 0; lines beyond the edge are never written, and only get into elements that nobody
 * looks at. */
#ifndef KILN_CUDA_TENSOR_CUH
#define KILN_CUDA_TENSOR_CUH

#include "device/cuda/async.cuh"
#include "device/cuda/tile.h"

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
        ACROSS = COLS / 32                   /* warps side by side */
    };
    static_assert(CREW == ROWS / 32 * ACROSS * 32, "a warp makes 32 · 32 elements");

    /* Where a four is: the at-th of its line, or of its k. */
    template <int LINES, bool ALONG> static __device__ __forceinline__ int cell(int line_or_k, int at)
    {
        return ALONG ? line_or_k * LONG + (at ^ (line_or_k & 7)) * 4
                     : line_or_k * LINES + (at ^ (line_or_k & 3) * 2) * 4;
    }

    /* ---- Copying ---- */

    /* A thread's share of a panel: a few fours of each stage. */
    template <int LINES, bool ALONG> struct copier {
        enum {
            FOURS = (ALONG ? (int)LONG : LINES) / 4,  /* side by side */
            APART = KILN_CUDA_TILE_THREADS / FOURS,   /* lines or k between two of a thread's own */
            PASSES = LINES * LONG / 4 / KILN_CUDA_TILE_THREADS
        };
        static_assert(PASSES * KILN_CUDA_TILE_THREADS * 4 == LINES * LONG && APART % 8 == 0, "fours are dealt evenly");
        const float *from;
        int64_t next, pass; /* to the next stage, to the next of its own */
        int line, k, lines, element, to;
        bool vector, whole; /* by 16 bytes, with no look at the edge */

        __device__ __forceinline__ copier(const kiln_cuda_panel &p)
        {
            const int other = (int)(threadIdx.x / FOURS), at = (int)(threadIdx.x % FOURS);
            line = ALONG ? other : at * 4;
            k = ALONG ? at * 4 : other;
            from = p.from + line * p.line + k * p.step;
            next = LONG * p.step;
            pass = APART * (ALONG ? p.line : p.step);
            lines = p.lines, vector = p.vector, element = (int)(ALONG ? p.step : p.line);
            whole = vector && (ALONG || line + 4 <= lines);
            to = cell<LINES, ALONG>(other, at);
        }

        /* Begins to copy a stage, of which `left` elements along k are there, and goes on to the next. */
        __device__ __forceinline__ void copy(float *panel, int left)
        {
#pragma unroll
            for (int i = 0; i < PASSES; i++) {
                const float *source = from + i * pass;
                float *target = panel + to + i * APART * (ALONG ? (int)LONG : LINES);
                if (line + (ALONG ? i * APART : 0) >= lines)
                    continue;
                const int there = ALONG ? left - k : k + i * APART < left ? lines - line : 0;
                if (whole && left >= LONG)
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

    /* Eight k of 32 lines. */
    template <int LINES, bool ALONG>
    static __device__ __forceinline__ void load(const float *panel, int line, int k, uint32_t lane, uint32_t (&x)[2][4])
    {
#pragma unroll
        for (int half = 0; half < 2; half++)
            if constexpr (ALONG) {
                const int at = line + half * 16 + (int)(lane / 16 * 8 + lane % 8);
                kiln_cuda_load_blocks(x[half], panel + cell<LINES, true>(at, k / 4 + (int)(lane / 8 % 2)));
            } else {
                const int at = k + half * 4 + (int)(lane % 4);
                const uint4 v = *(const uint4 *)(panel + cell<LINES, false>(at, line / 4 + (int)(lane / 4)));
                x[half][0] = v.x, x[half][1] = v.y, x[half][2] = v.z, x[half][3] = v.w;
            }
    }

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

    /* What comes next is loaded before what is there is multiplied. */
    template <bool A_ALONG, bool B_ALONG>
    static __device__ __forceinline__ void multiply(const float *stage, int row, int col, int first, uint32_t lane,
                                                    float (&sum)[2][4][4])
    {
        uint32_t a[2][2][4], b[2][2][4];
        load<ROWS, A_ALONG>(stage, row, first, lane, a[0]);
        load<COLS, B_ALONG>(stage + ROWS * LONG, col, first, lane, b[0]);
#pragma unroll
        for (int k = 0; k < CHUNK; k += 8) {
            const int now = k / 8 % 2;
            if (k + 8 < CHUNK) {
                load<ROWS, A_ALONG>(stage, row, first + k + 8, lane, a[1 - now]);
                load<COLS, B_ALONG>(stage + ROWS * LONG, col, first + k + 8, lane, b[1 - now]);
            }
            uint32_t x[2][4], y[4][2];
#pragma unroll
            for (int i = 0; i < 8; i++) {
                x[i / 4][i % 4] = rounded<A_ALONG>(a[now], i / 4 * 2 + i % 2, i % 4 / 2);
                y[i / 2][i % 2] = rounded<B_ALONG>(b[now], i / 2, i % 2);
            }
#pragma unroll
            for (int i = 0; i < 8; i++)
                kiln_cuda_multiply_16_8_8(sum[i / 4][i % 4], x[i / 4], y[i % 4]);
        }
    }

    template <bool A_ALONG, bool B_ALONG>
    static __device__ __forceinline__ void put(float *to, uint32_t lane, const float (&sum)[2][4][4])
    {
        const int col = (int)(lane % 4) * 2;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float *row = to + line_of<A_ALONG>((int)(lane / 4), i) * WIDTH;
            const float(&x)[4][4] = sum[i / 2];
            const int at = i % 2 * 2;
            if constexpr (B_ALONG) {
#pragma unroll
                for (int w = 0; w < 4; w++)
                    *(float2 *)(row + line_of<true>(col, w)) = float2{x[w][at], x[w][at + 1]};
            } else {
#pragma unroll
                for (int j = 0; j < 2; j++)
                    *(float4 *)(row + line_of<false>(col + j, 0)) =
                        float4{x[0][at + j], x[1][at + j], x[2][at + j], x[3][at + j]};
            }
        }
    }

    /* The sums of all slices; they take the place of the panels. While a thread multiplies a stage others may be at it
     * too, but none at the one before any more: what comes next goes there. */
    template <bool A_ALONG, bool B_ALONG>
    static __device__ __forceinline__ void make(const kiln_cuda_panel &a, const kiln_cuda_panel &b, int64_t k,
                                                float *memory)
    {
        const uint32_t warp = threadIdx.x % CREW / 32, lane = threadIdx.x % 32;
        const int number = (int)(threadIdx.x / CREW), row = (int)(warp / ACROSS) * 32, col = (int)(warp % ACROSS) * 32;
        copier<ROWS, A_ALONG> first(a);
        copier<COLS, B_ALONG> second(b);
        float sum[2][4][4] = {};
        int left = (int)k, to = 0, from = 0; /* to be copied, and the stages that are next */
        auto begin = [&] {
            if (left > 0) {
                first.copy(memory + to, left);
                second.copy(memory + to + ROWS * LONG, left);
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
            multiply<A_ALONG, B_ALONG>(memory + from, row, col, number * CHUNK, lane, sum);
            from = from == (STAGES - 1) * SIZE ? 0 : from + SIZE;
        }
        __syncthreads();
        put<A_ALONG, B_ALONG>(memory + (number * ROWS + row) * WIDTH + col, lane, sum);
    }

    static __device__ __forceinline__ int sums_of(int64_t k)
    {
        const int64_t slices = (k + CHUNK - 1) / CHUNK;
        return (int)(slices < SLICES ? slices : SLICES);
    }
};

#endif
