/* Products of a warp's 16 rows by mma.sync, for any GPU with tensor cores. Left operands and sums lie in registers: of
 * eight columns a thread has two neighbours, in row lane / 4 and in the eighth row below. Right operands are tiles in
 * shared memory, of which `valid` rows have to be looked at. */
#ifndef KILN_CUDA_ATTENTION_MMA_CUH
#define KILN_CUDA_ATTENTION_MMA_CUH

#include "device/cuda/attention/tiles.cuh"
#include "device/cuda/gemm/tensor.cuh"

/* What both kinds of elements have in common: nothing has to be waited for. */
struct kiln_attention_mma_common {
    /* Waits for products that were begun, of which x are sums. */
    template <int N> static __device__ __forceinline__ void end(float (&x)[N][4])
    {
    }
    static __device__ __forceinline__ void loaded() /* before the barrier behind which a tile is multiplied */
    {
    }
};

/* Two floats as a word of halves, the first one lowest. */
static __device__ __forceinline__ uint32_t kiln_pair_of(float low, float high, kiln_bf16)
{
    uint32_t y;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
}

static __device__ __forceinline__ uint32_t kiln_pair_of(float low, float high, kiln_f16)
{
    uint32_t y;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
}

/* f16 and bf16. */
template <typename Element> struct kiln_attention_mma : kiln_attention_mma_common {
    typedef Element S;
    static constexpr int step = 16; /* columns of the left operand a product takes */

    /* 16 rows of a tile, from `row` on, as a left operand. */
    template <int ROWS, int WIDTH>
    static __device__ __forceinline__ void left(uint32_t (&a)[4], const char *tile, int row, int k)
    {
        const int lane = (int)(threadIdx.x % 32);
        kiln_cuda_load_blocks<false>(
            a, tile + kiln_attention_tile<S, ROWS, WIDTH>::place(row + lane % 16, 2 * k + lane / 16));
    }

    /* Sums become a left operand: columns 16·k … of it. */
    template <int COUNT>
    static __device__ __forceinline__ void left_of(uint32_t (&a)[COUNT / step][4], const float (&x)[COUNT / 8][4])
    {
#pragma unroll
        for (int k = 0; k < COUNT / step; k++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                a[k][i] = kiln_pair_of(x[2 * k + i / 2][i % 2 * 2], x[2 * k + i / 2][i % 2 * 2 + 1], S{});
    }

    /* sums [16, ROWS] = a [16, WIDTH] · tileᵀ, a given by step. */
    template <int ROWS, int WIDTH, typename Left>
    static __device__ __forceinline__ void by_rows(float (&sums)[ROWS / 8][4], const Left &a, const char *tile,
                                                   int valid)
    {
        typedef kiln_attention_tile<S, ROWS, WIDTH> T;
        const int lane = (int)(threadIdx.x % 32);
#pragma unroll
        for (int n = 0; n < ROWS / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                sums[n][i] = 0;
#pragma unroll
        for (int k = 0; k < WIDTH / step; k++) {
            uint32_t x[4];
            a(x, k);
#pragma unroll
            for (int n = 0; n < ROWS / 8; n += 2) {
                if (n * 8 >= valid)
                    continue;
                uint32_t b[4];
                kiln_cuda_load_blocks<false>(
                    b, tile + T::place(n * 8 + lane % 8 + lane / 16 * 8, 2 * k + lane / 8 % 2));
                kiln_cuda_multiply(sums[n], x, {b[0], b[1]}, S{});
                kiln_cuda_multiply(sums[n + 1], x, {b[2], b[3]}, S{});
            }
        }
    }

    /* sums [16, WIDTH] += a [16, ROWS] · tile. */
    template <int ROWS, int WIDTH>
    static __device__ __forceinline__ void by_columns(float (&sums)[WIDTH / 8][4], const uint32_t (&a)[ROWS / step][4],
                                                      const char *tile, int valid)
    {
        typedef kiln_attention_tile<S, ROWS, WIDTH> T;
        const int lane = (int)(threadIdx.x % 32);
#pragma unroll
        for (int k = 0; k < ROWS / step; k++) {
            if (k * step >= valid)
                continue;
#pragma unroll
            for (int n = 0; n < WIDTH / 8; n += 2) {
                uint32_t b[4];
                kiln_cuda_load_blocks<true>(
                    b, tile + T::place(k * 16 + lane % 8 + lane / 8 % 2 * 8, n + lane / 16));
                kiln_cuda_multiply(sums[n], a[k], {b[0], b[1]}, S{});
                kiln_cuda_multiply(sums[n + 1], a[k], {b[2], b[3]}, S{});
            }
        }
    }
};

/* Floats as TF32. A left operand that was made of sums has its columns in another order, two neighbours four apart:
 * which the rows of the right operand then are, too. */
template <> struct kiln_attention_mma<float> : kiln_attention_mma_common {
    typedef float S;
    static constexpr int step = 8;

    template <int ROWS, int WIDTH>
    static __device__ __forceinline__ void left(uint32_t (&a)[4], const char *tile, int row, int k)
    {
        const int lane = (int)(threadIdx.x % 32);
        kiln_cuda_load_blocks<false>(
            a, tile + kiln_attention_tile<S, ROWS, WIDTH>::place(row + lane % 16, 2 * k + lane / 16));
#pragma unroll
        for (int i = 0; i < 4; i++)
            a[i] = kiln_cuda_tf32(a[i]);
    }

    template <int COUNT>
    static __device__ __forceinline__ void left_of(uint32_t (&a)[COUNT / step][4], const float (&x)[COUNT / 8][4])
    {
#pragma unroll
        for (int k = 0; k < COUNT / step; k++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                a[k][i] = kiln_cuda_tf32(__float_as_uint(x[k][i % 2 * 2 + i / 2]));
    }

    template <int ROWS, int WIDTH, typename Left>
    static __device__ __forceinline__ void by_rows(float (&sums)[ROWS / 8][4], const Left &a, const char *tile,
                                                   int valid)
    {
        typedef kiln_attention_tile<S, ROWS, WIDTH> T;
        const int lane = (int)(threadIdx.x % 32);
#pragma unroll
        for (int n = 0; n < ROWS / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                sums[n][i] = 0;
#pragma unroll
        for (int k = 0; k < WIDTH / step; k += 2) {
            uint32_t x[2][4];
            a(x[0], k);
            a(x[1], k + 1);
#pragma unroll
            for (int n = 0; n < ROWS / 8; n++) {
                if (n * 8 >= valid)
                    continue;
                uint32_t b[4];
                kiln_cuda_load_blocks<false>(b, tile + T::place(n * 8 + lane % 8, 2 * k + lane / 8));
#pragma unroll
                for (int i = 0; i < 4; i++)
                    b[i] = kiln_cuda_tf32(b[i]);
                kiln_cuda_multiply(sums[n], x[0], {b[0], b[1]}, S{});
                kiln_cuda_multiply(sums[n], x[1], {b[2], b[3]}, S{});
            }
        }
    }

    template <int ROWS, int WIDTH>
    static __device__ __forceinline__ void by_columns(float (&sums)[WIDTH / 8][4], const uint32_t (&a)[ROWS / step][4],
                                                      const char *tile, int valid)
    {
        typedef kiln_attention_tile<S, ROWS, WIDTH> T;
        const int lane = (int)(threadIdx.x % 32), pair = lane % 4 * 2, column = lane / 4;
#pragma unroll
        for (int k = 0; k < ROWS / step; k++) {
            if (k * step >= valid)
                continue;
#pragma unroll
            for (int n = 0; n < WIDTH / 8; n++) {
                uint32_t b[2];
#pragma unroll
                for (int i = 0; i < 2; i++)
                    b[i] = kiln_cuda_tf32(*(const uint32_t *)(tile + T::place(k * 8 + pair + i, 2 * n + column / 4) +
                                                              column % 4 * 4));
                kiln_cuda_multiply(sums[n], a[k], b, S{});
            }
        }
    }
};

#endif
