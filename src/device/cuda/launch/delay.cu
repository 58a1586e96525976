/* Waiting on the device. */
#include "device/cuda/launch/delay.h"

static __device__ unsigned long long nanoseconds()
{
    unsigned long long now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

static __global__ void delay(unsigned long long how_long)
{
    unsigned long long begun = nanoseconds();
    while (nanoseconds() - begun < how_long)
        __nanosleep(1000);
}

extern "C" cudaError_t kiln_cuda_delay_launch(cudaStream_t stream, unsigned microseconds)
{
    unsigned long long how_long = 1000ull * microseconds;
    void *arguments[] = {&how_long};
    return cudaLaunchKernel((const void *)delay, 1, 1, arguments, 0, stream);
}
