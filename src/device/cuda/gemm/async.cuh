/* Copies from global to shared memory that a thread starts and goes on, and barriers of a part of a block. Compiled
 * ahead and as text with generated kernels.
 *
 * Both copies see what other blocks wrote before a barrier of the grid that ends in an acquire: that empties the first
 * level cache, which the copies of 4 bytes go through. */
#ifndef KILN_CUDA_ASYNC_CUH
#define KILN_CUDA_ASYNC_CUH

/* 16 bytes, of which the first `bytes` come from `from` and the rest are 0; both addresses are multiples of 16. */
static __device__ __forceinline__ void kiln_cuda_copy_16(void *to, const void *from, int bytes)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((unsigned)__cvta_generic_to_shared(to)),
                 "l"(from), "r"(bytes)
                 : "memory");
}

/* 4 bytes, or, where `bytes` is 0, a 0. */
static __device__ __forceinline__ void kiln_cuda_copy_4(float *to, const float *from, int bytes)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"((unsigned)__cvta_generic_to_shared(to)),
                 "l"(from), "r"(bytes)
                 : "memory");
}

/* Ends a batch of copies. */
static __device__ __forceinline__ void kiln_cuda_copies_end(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Waits until at most `batches` of the thread's own are under way. */
template <int batches> static __device__ __forceinline__ void kiln_cuda_copies_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(batches) : "memory");
}

/* A barrier of `threads` consecutive threads, the part-th ones of their block. */
template <int threads> static __device__ __forceinline__ void kiln_cuda_part_sync(int part)
{
    if (threads <= 32)
        __syncwarp();
    else
        asm volatile("bar.sync %0, %1;" ::"r"(1 + part), "n"(threads) : "memory");
}

#endif
