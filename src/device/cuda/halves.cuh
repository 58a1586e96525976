/* Elements of 16 bits in kernels of rows: computed in float, rounded once. */
#ifndef KILN_CUDA_HALVES_CUH
#define KILN_CUDA_HALVES_CUH

#include "device/cuda/held.cuh"
#include "device/cuda/pointwise.cuh"

struct kiln_f16 {
    uint16_t bits;
};

struct kiln_bf16 {
    uint16_t bits;
};

template <> struct kiln_element<kiln_f16> {
    typedef float real;

    static __device__ __forceinline__ float of(kiln_f16 x)
    {
        return kiln_of_f16(x.bits);
    }

    static __device__ __forceinline__ kiln_f16 to(float x)
    {
        return kiln_f16{kiln_to_f16(x)};
    }
};

template <> struct kiln_element<kiln_bf16> {
    typedef float real;

    static __device__ __forceinline__ float of(kiln_bf16 x)
    {
        return kiln_of_bf16(x.bits);
    }

    static __device__ __forceinline__ kiln_bf16 to(float x)
    {
        return kiln_bf16{kiln_to_bf16(x)};
    }
};

#endif
