/* Gathering, zeroing, and plain matrix products. Elements that only move are of 2, 4 or 8 bytes, whatever they are. */
#include "device/cuda/kernels/copy.h"
#include <cuda_bf16.h>
#include <cuda_fp16.h>

enum { THREADS = 256 };
static const int64_t MAX_BLOCKS = 65535;

static unsigned blocks_for(int64_t count)
{
    int64_t blocks = (count + THREADS - 1) / THREADS;
    return (unsigned)(blocks < MAX_BLOCKS ? blocks : MAX_BLOCKS);
}

/* ---- Gathering ---- */

/* Where element i of the dense order lies. I is 32 bits wide where that suffices: divisions are what this costs. */
template <typename I> static __host__ __device__ inline int64_t place_of(const kiln_cuda_window &w, I i)
{
    int64_t at = 0;
    for (int d = w.ndim; d-- > 1;) {
        I size = (I)w.shape[d], next = i / size;
        at += (int64_t)(i - next * size) * w.stride[d];
        i = next;
    }
    return w.ndim ? at + (int64_t)i * w.stride[0] : at;
}

template <typename T, typename I>
static __global__ void gather(T *to, const T *from, int64_t count, const __grid_constant__ kiln_cuda_window w)
{
    for (int64_t i = blockIdx.x * (int64_t)THREADS + threadIdx.x; i < count; i += gridDim.x * (int64_t)THREADS)
        to[i] = from[place_of<I>(w, (I)i)];
}

template <typename T>
static void gather_of(cudaStream_t stream, void *to, const void *from, int64_t count, const kiln_cuda_window &w)
{
    if (count <= INT32_MAX)
        gather<T, uint32_t><<<blocks_for(count), THREADS, 0, stream>>>((T *)to, (const T *)from, count, w);
    else
        gather<T, uint64_t><<<blocks_for(count), THREADS, 0, stream>>>((T *)to, (const T *)from, count, w);
}

/* Without dims of size 1, and with those joined that lie behind each other. */
static kiln_cuda_window joined(const kiln_cuda_window &w)
{
    kiln_cuda_window j = {};
    for (int d = 0; d < w.ndim; d++) {
        if (w.shape[d] == 1)
            continue;
        if (j.ndim && j.stride[j.ndim - 1] == w.stride[d] * w.shape[d])
            j.shape[j.ndim - 1] *= w.shape[d];
        else
            j.shape[j.ndim++] = w.shape[d];
        j.stride[j.ndim - 1] = w.stride[d];
    }
    return j;
}

extern "C" void kiln_cuda_gather(cudaStream_t stream, void *to, const void *from, size_t element,
                                 const kiln_cuda_window *window)
{
    kiln_cuda_window w = joined(*window);
    int64_t count = 1;
    for (int d = 0; d < w.ndim; d++)
        count *= w.shape[d];
    if (count == 0)
        return;
    if (element == 2)
        gather_of<uint16_t>(stream, to, from, count, w);
    else if (element == 4)
        gather_of<uint32_t>(stream, to, from, count, w);
    else
        gather_of<uint64_t>(stream, to, from, count, w);
}

/* ---- Zeros ---- */

static __global__ void zero(uint16_t *to, int64_t count, const int32_t *stop)
{
    if (stop && *stop)
        return;
    for (int64_t i = blockIdx.x * (int64_t)THREADS + threadIdx.x; i < count; i += gridDim.x * (int64_t)THREADS)
        to[i] = 0;
}

extern "C" void kiln_cuda_zero(cudaStream_t stream, void *to, size_t bytes, const int32_t *stop)
{
    if (bytes && !stop)
        cudaMemsetAsync(to, 0, bytes, stream);
    else if (bytes)
        zero<<<blocks_for((int64_t)bytes / 2), THREADS, 0, stream>>>((uint16_t *)to, (int64_t)bytes / 2, stop);
}

/* ---- Products ---- */

/* What elements are computed in. */
template <typename T> struct wide {
    typedef float type;
};
template <> struct wide<double> {
    typedef double type;
};

/* Element i of c. */
template <typename T>
static __host__ __device__ inline T product_at(const kiln_cuda_plain_product &p, const T *a, const T *b, int64_t i)
{
    typedef typename wide<T>::type W;
    int64_t col = i % p.n, row = i / p.n % p.m, rest = i / p.n / p.m;
    for (int d = p.nbatch; d-- > 0; rest /= p.batch[d]) {
        a += rest % p.batch[d] * p.a_batch[d];
        b += rest % p.batch[d] * p.b_batch[d];
    }
    a += row * p.a_row;
    b += col * p.b_col;
    W sum = 0;
    for (int64_t k = 0; k < p.k; k++)
        sum += (W)a[k * p.a_col] * (W)b[k * p.b_row];
    return (T)sum;
}

template <typename T>
static __global__ void product(const __grid_constant__ kiln_cuda_plain_product p, const T *a, const T *b, T *c,
                               int64_t count, const int32_t *stop)
{
    if (stop && *stop)
        return;
    for (int64_t i = blockIdx.x * (int64_t)THREADS + threadIdx.x; i < count; i += gridDim.x * (int64_t)THREADS)
        c[i] = product_at<T>(p, a, b, i);
}

extern "C" void kiln_cuda_plain_matmul(cudaStream_t stream, kiln_dtype dtype, const kiln_cuda_plain_product *p,
                                       const void *a, const void *b, void *c, const int32_t *stop)
{
    int64_t count = p->m * p->n;
    for (int d = 0; d < p->nbatch; d++)
        count *= p->batch[d];
    if (count == 0)
        return;
#define OF(T) product<T><<<blocks_for(count), THREADS, 0, stream>>>(*p, (const T *)a, (const T *)b, (T *)c, count, stop)
    switch (dtype) {
    case KILN_F64: OF(double); break;
    case KILN_F16: OF(__half); break;
    case KILN_BF16: OF(__nv_bfloat16); break;
    default: OF(float); break;
    }
#undef OF
}
