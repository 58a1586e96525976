/* Products of a warpgroup's 64 rows by Hopper's wgmma: the same interface as mma.cuh, and the same places in registers.
 * Tensor cores read right operands from shared memory themselves, as tiles.cuh lays them out, along rows or along
 * columns; products are begun, and waited for at the end. */
#ifndef KILN_CUDA_ATTENTION_WGMMA_CUH
#define KILN_CUDA_ATTENTION_WGMMA_CUH

#include "device/cuda/attention/mma.cuh"

/* How a tile lies in shared memory, for the instruction: the 128-byte swizzle; eight rows of 128 bytes follow each
 * other, and `panel` bytes later begins what is beside them. */
static __device__ __forceinline__ uint64_t kiln_wgmma_tile(const char *at, int panel)
{
    const uint64_t address = (uint64_t)__cvta_generic_to_shared(at);
    return (address & 0x3ffff) >> 4 | (uint64_t)(panel >> 4) << 16 | (uint64_t)(1024 >> 4) << 32 | UINT64_C(1) << 62;
}

#define KILN_SUMS_8(x, i) "+f"(x[i][0]), "+f"(x[i][1]), "+f"(x[i][2]), "+f"(x[i][3])
#define KILN_SUMS_32(x, i)                                                                                             \
    KILN_SUMS_8(x, i), KILN_SUMS_8(x, i + 1), KILN_SUMS_8(x, i + 2), KILN_SUMS_8(x, i + 3)
#define KILN_SUMS_64(x, i)  KILN_SUMS_32(x, i), KILN_SUMS_32(x, i + 4)
#define KILN_SUMS_128(x, i) KILN_SUMS_64(x, i), KILN_SUMS_64(x, i + 8)

#define KILN_NAMES_32 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define KILN_NAMES_64                                                                                                  \
    KILN_NAMES_32 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define KILN_NAMES_128                                                                                                 \
    KILN_NAMES_64 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "                 \
                  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

/* sums [64, N] (+)= a [64, 16] · b; COLUMNS: k runs down the tile's rows, else along them; ADD: what is there counts. */
#define KILN_WGMMA(N, type, As, names, a0, a1, a2, a3, b, add, turned)                                                 \
    template <bool COLUMNS, bool ADD>                                                                                  \
    static __device__ __forceinline__ void kiln_wgmma(float(&x)[N / 8][4], const uint32_t(&a)[4], uint64_t tile, As)   \
    {                                                                                                                  \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " add ", 0;\n"                                                  \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." type "." type " {" names "}, {" a0 ", " a1      \
                     ", " a2 ", " a3 "}, " b ", p, 1, 1, " turned ";\n}\n"                                             \
                     : KILN_SUMS_##N(x, 0)                                                                             \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(tile), "n"(ADD), "n"(COLUMNS));                 \
    }
#define KILN_WGMMAS(type, As)                                                                                          \
    KILN_WGMMA(32, type, As, KILN_NAMES_32, "%16", "%17", "%18", "%19", "%20", "%21", "%22")                           \
    KILN_WGMMA(64, type, As, KILN_NAMES_64, "%32", "%33", "%34", "%35", "%36", "%37", "%38")                           \
    KILN_WGMMA(128, type, As, KILN_NAMES_128, "%64", "%65", "%66", "%67", "%68", "%69", "%70")
KILN_WGMMAS("bf16", kiln_bf16)
KILN_WGMMAS("f16", kiln_f16)

template <typename Element> struct kiln_attention_wgmma : kiln_attention_mma<Element> {
    typedef Element S;
    static constexpr int step = 16;

    /* Before the first of products: registers that they read or add to may have changed. */
    static __device__ __forceinline__ void begin()
    {
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    }

    /* Sums are in registers that the compiler takes for ready: what reads them must not move up to before the wait. */
    template <int N> static __device__ __forceinline__ void end(float (&x)[N][4])
    {
        asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
        for (int i = 0; i < 4 * N; i++)
            asm volatile("" : "+f"(x[i / 4][i % 4])::"memory");
    }

    /* What the calling thread wrote to shared memory, tensor cores see behind the next barrier. */
    static __device__ __forceinline__ void loaded()
    {
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }

    template <int ROWS, int WIDTH, typename Left>
    static __device__ __forceinline__ void by_rows(float (&sums)[ROWS / 8][4], const Left &a, const char *tile, int)
    {
        typedef kiln_attention_tile<S, ROWS, WIDTH> T;
        uint32_t x[WIDTH / step][4];
#pragma unroll
        for (int k = 0; k < WIDTH / step; k++)
            a(x[k], k);
        begin();
#pragma unroll
        for (int k = 0; k < WIDTH / step; k++) {
            const uint64_t b = kiln_wgmma_tile(tile + k / 4 * T::panel_bytes + k % 4 * 32, T::panel_bytes);
            if (k)
                kiln_wgmma<false, true>(sums, x[k], b, S{});
            else
                kiln_wgmma<false, false>(sums, x[k], b, S{});
        }
    }

    template <int ROWS, int WIDTH>
    static __device__ __forceinline__ void by_columns(float (&sums)[WIDTH / 8][4], const uint32_t (&a)[ROWS / step][4],
                                                      const char *tile, int)
    {
        typedef kiln_attention_tile<S, ROWS, WIDTH> T;
        begin();
#pragma unroll
        for (int k = 0; k < ROWS / step; k++)
            kiln_wgmma<true, true>(sums, a[k], kiln_wgmma_tile(tile + k * 16 * 128, T::panel_bytes), S{});
    }
};

#endif
