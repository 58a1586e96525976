/* What launchers of data movement share: extents around a dim, grids, copies, elements as words of their size. */
#ifndef KILN_CUDA_SHAPE_CUH
#define KILN_CUDA_SHAPE_CUH

#include "device/cuda/common/launch.h"

enum { KILN_CUDA_BLOCK = 256 };

/* Element (o, i, n) of an operand, split at `dim`, is number (o · at + i) · after + n. A number without dims is [1]. */
typedef struct kiln_cuda_extent {
    int64_t before, at, after;
} kiln_cuda_extent;

static inline kiln_cuda_extent kiln_cuda_extent_at(const kiln_cuda_operand *x, int64_t dim)
{
    kiln_cuda_extent e = {1, 1, 1};
    for (int d = 0; d < x->ndim; d++)
        *(d < dim ? &e.before : d == dim ? &e.at : &e.after) *= x->shape[d];
    return e;
}

static inline int64_t kiln_cuda_ceil(int64_t a, int64_t b)
{
    return a / b + (a % b != 0);
}

/* Blocks for `items` that are gone through in steps of the whole grid. */
static inline unsigned kiln_cuda_grid(int64_t items, int64_t a_block)
{
    int64_t n = kiln_cuda_ceil(items, a_block), most = 1 << 16;
    return (unsigned)(n < most ? n : most);
}

/* The smallest power of two that is not below n, at most `most` (a power of two). */
static inline int kiln_cuda_power(int64_t n, int most)
{
    int p = 1;
    while (p < n && p < most)
        p *= 2;
    return p;
}

#define KILN_CUDA_EACH(i, n)                                                                                           \
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < (n); i += (int64_t)gridDim.x * blockDim.x)

/* Widest word, at most 16 bytes, that an address or a number of bytes is a multiple of. */
static inline uint64_t kiln_cuda_common(uint64_t so_far, uint64_t number)
{
    while (number % so_far != 0)
        so_far /= 2;
    return so_far;
}

/* Calls launch<word of `size` bytes>(…). */
#define KILN_CUDA_BY_SIZE(size, launch, ...)                                                                           \
    ((size) == 1   ? launch<uint8_t>(__VA_ARGS__)                                                                      \
     : (size) == 2 ? launch<uint16_t>(__VA_ARGS__)                                                                     \
     : (size) == 4 ? launch<uint32_t>(__VA_ARGS__)                                                                     \
                   : launch<uint64_t>(__VA_ARGS__))

/* The same with words of 16 bytes. */
#define KILN_CUDA_BY_WORD(size, launch, ...)                                                                           \
    ((size) == 16 ? launch<uint4>(__VA_ARGS__) : KILN_CUDA_BY_SIZE(size, launch, __VA_ARGS__))

template <typename W>
static __global__ void kiln_cuda_copy_words(const W *__restrict__ from, W *__restrict__ to, int64_t n,
                                            const int32_t *stop)
{
    if (stop && *stop)
        return;
    KILN_CUDA_EACH(i, n)
    to[i] = from[i];
}

template <typename W> static void kiln_cuda_copy_as(const kiln_cuda_call *c, void *to, const void *from, int64_t bytes)
{
    int64_t n = bytes / (int64_t)sizeof(W);
    kiln_cuda_copy_words<W>
        <<<kiln_cuda_grid(n, KILN_CUDA_BLOCK), KILN_CUDA_BLOCK, 0, c->stream>>>((const W *)from, (W *)to, n, c->stop);
}

/* to = from; nothing where they are the same memory. Unlike a copy of the runtime it heeds c->stop. */
static inline void kiln_cuda_copy(const kiln_cuda_call *c, void *to, const void *from, int64_t bytes)
{
    if (to == from || bytes == 0)
        return;
    uint64_t word = kiln_cuda_common(
        kiln_cuda_common(kiln_cuda_common(16, (uint64_t)(uintptr_t)to), (uint64_t)(uintptr_t)from), (uint64_t)bytes);
    KILN_CUDA_BY_WORD(word, kiln_cuda_copy_as, c, to, from, bytes);
}

#endif
