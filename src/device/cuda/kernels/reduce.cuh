/* What row kernels share: sums and maxima over a warp or a block, in an order that depends on their sizes alone, and
 * loads of several elements at once. */
#ifndef KILN_CUDA_REDUCE_CUH
#define KILN_CUDA_REDUCE_CUH

#ifndef __CUDACC_RTC__
#include "device/cuda/common/launch.h"
#endif

static_assert(sizeof(double) == 8 && sizeof(float) == 4, "elements as the tensors have them");

/* N elements that one instruction moves (or several, beyond 16 bytes). */
template <typename T, int N> struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) kiln_pack {
    T at[N];
};

/* How many elements of a type are 16 bytes. */
template <typename T> constexpr int kiln_wide = 16 / (int)sizeof(T);

template <int N, typename T> static __device__ __forceinline__ kiln_pack<T, N> kiln_load(const T *from)
{
    return *reinterpret_cast<const kiln_pack<T, N> *>(from);
}

template <int N, typename T> static __device__ __forceinline__ void kiln_store(T *to, const kiln_pack<T, N> &v)
{
    *reinterpret_cast<kiln_pack<T, N> *>(to) = v;
}

static __device__ __forceinline__ float kiln_infinity(float)
{
    return __int_as_float(0x7f800000);
}

static __device__ __forceinline__ double kiln_infinity(double)
{
    return (double)__int_as_float(0x7f800000);
}

static __device__ __forceinline__ float kiln_nan()
{
    return __int_as_float(0x7fc00000);
}

static __device__ __forceinline__ float kiln_exp(float x)
{
    return expf(x);
}

static __device__ __forceinline__ double kiln_exp(double x)
{
    return exp(x);
}

static __device__ __forceinline__ float kiln_log(float x)
{
    return logf(x);
}

static __device__ __forceinline__ double kiln_log(double x)
{
    return log(x);
}

/* A NaN is passed over. */
static __device__ __forceinline__ float kiln_larger(float a, float b)
{
    return fmaxf(a, b);
}

static __device__ __forceinline__ double kiln_larger(double a, double b)
{
    return fmax(a, b);
}

/* Over `LANES` neighbouring threads; every one of them has the result, and the same bits of it, since a + b = b + a. */
template <int LANES, typename T> static __device__ __forceinline__ T kiln_lanes_sum(T x)
{
#pragma unroll
    for (int apart = LANES / 2; apart > 0; apart /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, apart);
    return x;
}

template <int LANES, typename T> static __device__ __forceinline__ T kiln_lanes_max(T x)
{
#pragma unroll
    for (int apart = LANES / 2; apart > 0; apart /= 2)
        x = kiln_larger(x, __shfl_xor_sync(0xffffffffu, x, apart));
    return x;
}

/* The threads that work on one row: a warp, or a whole block (of whole warps). All of them call, all get the result. */
template <bool BLOCK> struct kiln_team {
    static __device__ __forceinline__ int size()
    {
        return BLOCK ? (int)blockDim.x : 32;
    }

    static __device__ __forceinline__ int rank()
    {
        return BLOCK ? (int)threadIdx.x : (int)threadIdx.x % 32;
    }

    /* Teams in a block, and the number of this one. */
    static __device__ __forceinline__ int64_t first_row()
    {
        return BLOCK ? (int64_t)blockIdx.x : (int64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    }

    template <typename T> static __device__ __forceinline__ T sum(T x)
    {
        x = kiln_lanes_sum<32>(x);
        if (!BLOCK)
            return x;
        __shared__ T parts[32];
        __syncthreads(); /* the parts of the sum before were read */
        if (threadIdx.x % 32 == 0)
            parts[threadIdx.x / 32] = x;
        __syncthreads();
        T all = 0;
        for (int w = 0; w < (int)blockDim.x / 32; w++)
            all += parts[w];
        return all;
    }

    template <typename T> static __device__ __forceinline__ T max(T x)
    {
        x = kiln_lanes_max<32>(x);
        if (!BLOCK)
            return x;
        __shared__ T parts[32];
        __syncthreads();
        if (threadIdx.x % 32 == 0)
            parts[threadIdx.x / 32] = x;
        __syncthreads();
        T all = parts[0];
        for (int w = 1; w < (int)blockDim.x / 32; w++)
            all = kiln_larger(all, parts[w]);
        return all;
    }
};

#ifndef __CUDACC_RTC__
/* Blocks for n units of work that kernels loop over: no more than a grid may have. */
static inline unsigned kiln_grid(int64_t n)
{
    return (unsigned)(n < 1 ? 1 : n < (1 << 29) ? n : 1 << 29);
}

static inline bool kiln_aligned16(const void *p)
{
    return (uintptr_t)p % 16 == 0;
}
#endif

#endif
