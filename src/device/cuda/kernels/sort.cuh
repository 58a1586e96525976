/* Elements as unsigned keys in the same order, and the launchers of the table in sort.cu that lie in other files. */
#ifndef KILN_CUDA_SORT_CUH
#define KILN_CUDA_SORT_CUH

#include "device/cuda/kernels/shape.cuh"

/* How an element of a dtype becomes a key: NaN last, both zeros equal. A Key type for each, since f16, bf16 and
 * integers share C types. */
struct kiln_cuda_key_u8 { /* bool too */
    typedef uint8_t element;
    typedef uint32_t key;
    enum { BITS = 8 };
    static __device__ uint32_t of(uint8_t v)
    {
        return v;
    }
};

struct kiln_cuda_key_i32 {
    typedef int32_t element;
    typedef uint32_t key;
    enum { BITS = 32 };
    static __device__ uint32_t of(int32_t v)
    {
        return (uint32_t)v ^ UINT32_C(1) << 31;
    }
};

struct kiln_cuda_key_i64 {
    typedef int64_t element;
    typedef uint64_t key;
    enum { BITS = 64 };
    static __device__ uint64_t of(int64_t v)
    {
        return (uint64_t)v ^ UINT64_C(1) << 63;
    }
};

/* 16-bit floats, whose infinity has these bits. */
template <int INFINITE> struct kiln_cuda_key_half {
    typedef uint16_t element;
    typedef uint32_t key;
    enum { BITS = 16 };
    static __device__ uint32_t of(uint16_t v)
    {
        const uint32_t magnitude = v & 0x7fffu;
        return magnitude > INFINITE ? 0xffffu : magnitude == 0 ? 0x8000u : v & 0x8000u ? ~v & 0xffffu : v | 0x8000u;
    }
};

struct kiln_cuda_key_f32 {
    typedef float element;
    typedef uint32_t key;
    enum { BITS = 32 };
    static __device__ uint32_t of(float v)
    {
        const uint32_t sign = UINT32_C(1) << 31, bits = v == 0 ? 0 : __float_as_uint(v);
        return v != v ? UINT32_MAX : bits & sign ? ~bits : bits | sign;
    }
};

struct kiln_cuda_key_f64 {
    typedef double element;
    typedef uint64_t key;
    enum { BITS = 64 };
    static __device__ uint64_t of(double v)
    {
        const uint64_t sign = UINT64_C(1) << 63, bits = v == 0 ? 0 : (uint64_t)__double_as_longlong(v);
        return v != v ? UINT64_MAX : bits & sign ? ~bits : bits | sign;
    }
};

/* find.cu */
bool kiln_cuda_argmax(const kiln_cuda_call *c);
bool kiln_cuda_argmin(const kiln_cuda_call *c);
size_t kiln_cuda_extreme_workspace(const kiln_cuda_call *c);

/* scan.cu */
bool kiln_cuda_cumsum(const kiln_cuda_call *c);
bool kiln_cuda_cumprod(const kiln_cuda_call *c);
size_t kiln_cuda_scan_workspace(const kiln_cuda_call *c);

#endif
