/* Products of matrices: tile.cuh with sizes that are known at run time. */
#include "device/cuda/gemm/tiled.h"
#include "device/cuda/gemm/tile.cuh"

/* Results, or partial sums of splits. */
template <typename T> struct kiln_cuda_to_memory {
    void *to;
    bool partial, vector;

    __device__ kiln_cuda_to_memory(void *at, int64_t n, bool splits) : to(at), partial(splits)
    {
        vector = n % 4 == 0 && (uint64_t)to % (4 * (splits ? sizeof(float) : sizeof(T))) == 0;
    }

    template <int N> __device__ __forceinline__ void operator()(const kiln_cuda_cell (&cells)[N]) const
    {
#pragma unroll
        for (int c = 0; c < N; c++)
            if (sizeof(T) < 4 && partial)
                kiln_cuda_store_cell((float *)to, cells[c], vector);
            else
                kiln_cuda_store_cell((T *)to, cells[c], vector);
    }
};

template <int ROWS, int COLS, int SLICES, typename T>
static __global__ void __launch_bounds__(KILN_CUDA_TILE_THREADS, 1)
    product(const __grid_constant__ kiln_cuda_matrices s, int64_t matrices, int splits, int64_t tiles, void *to,
            const int32_t *stop)
{
    extern __shared__ float4 shared[];
    if (stop && *stop)
        return;
    const kiln_cuda_to_memory<T> sink(to, s.n, splits > 1);
    for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        kiln_cuda_tile<ROWS, COLS, SLICES, kiln_cuda_types<T, T, T>>(s, matrices, splits, tile, shared, sink);
        __syncthreads();
    }
}

template <typename T>
static __global__ void joined(const float *partials, int64_t count, int64_t n, int splits, void *to,
                              const int32_t *stop)
{
    if (stop && *stop)
        return;
    const kiln_cuda_to_memory<T> sink(to, n, false);
    kiln_cuda_sum_splits(partials, count, n, splits, blockIdx.x * (int64_t)blockDim.x + threadIdx.x,
                   gridDim.x * (int64_t)blockDim.x, sink);
}

typedef void kernel(kiln_cuda_matrices s, int64_t matrices, int splits, int64_t tiles, void *to, const int32_t *stop);
typedef void join(const float *partials, int64_t count, int64_t n, int splits, void *to, const int32_t *stop);

template <typename T> static kernel *kernel_of(const kiln_cuda_tiling *t)
{
#define CASE(ROWS, COLS, SLICES)                                                                                       \
    if (t->rows == ROWS && t->cols == COLS && t->slices == SLICES)                                                     \
        return product<ROWS, COLS, SLICES, T>;
    KILN_CUDA_TILES(CASE)
    KILN_CUDA_TENSOR_TILES(CASE)
    return NULL;
}

extern "C" bool kiln_cuda_tiled_launch(const kiln_cuda_call *c, const kiln_cuda_matrices *s, const kiln_cuda_tiling *t,
                                       kiln_dtype dtype, void *to, float *partials)
{
    const int64_t most = 8 * (int64_t)c->multiprocessors, matrices = kiln_cuda_tiling_matrices(t);
    const int64_t count = matrices * s->m * s->n;
    const bool cut = t->splits > 1;
    kernel *k = dtype == KILN_F16    ? kernel_of<kiln_f16>(t)
                : dtype == KILN_BF16 ? kernel_of<kiln_bf16>(t)
                                     : kernel_of<float>(t);
    join *j = dtype == KILN_F16 ? joined<kiln_f16> : dtype == KILN_BF16 ? joined<kiln_bf16> : joined<float>;
    cudaError_t e = cudaFuncSetAttribute((const void *)k, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)t->shared);
    if (e == cudaSuccess)
        k<<<(unsigned)(t->tiles < most ? t->tiles : most), KILN_CUDA_TILE_THREADS, t->shared, c->stream>>>(
            *s, matrices, t->splits, t->tiles, cut ? partials : to, cut ? NULL : c->stop);
    if (e == cudaSuccess && cut) {
        const int64_t blocks = (count + 1023) / 1024;
        j<<<(unsigned)(blocks < most ? blocks : most), 256, 0, c->stream>>>(partials, count, s->n, t->splits, to,
                                                                            c->stop);
    }
    return kiln_cuda_launched(c);
}
