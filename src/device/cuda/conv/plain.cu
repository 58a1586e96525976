/* Convolution by its definition, for what cuDNN has no deterministic algorithm for (odd strides and paddings, very
 * large tensors) and where a fault must keep it from writing. Each sum is made in one order: by one thread, or, for a
 * weight's gradient, whose sums are long and few, by a block that adds its threads' sums as a tree. */
#include "device/cuda/kernels/copy.h"
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#define HD static __host__ __device__ inline

enum { THREADS = 256 };
static const int64_t MAX_BLOCKS = 65535;

template <typename T> struct wide {
    typedef float type;
};
template <> struct wide<double> {
    typedef double type;
};
#define WIDE typename wide<T>::type

/* y[n, o, i, j] for element `at` of y. */
template <typename T> HD WIDE forward_at(const kiln_cuda_conv &s, const T *x, const T *w, int64_t at)
{
    int64_t ox = at % s.out[1], oy = at / s.out[1] % s.out[0], rest = at / s.out[1] / s.out[0];
    int64_t o = rest % s.outputs, n = rest / s.outputs;
    int64_t inputs = s.channels / s.groups, group = o / (s.outputs / s.groups);
    WIDE sum = 0;
    for (int64_t c = 0; c < inputs; c++) {
        const T *plane = x + (n * s.channels + group * inputs + c) * s.size[0] * s.size[1];
        const T *taps = w + (o * inputs + c) * s.kernel[0] * s.kernel[1];
        for (int64_t u = 0; u < s.kernel[0]; u++) {
            int64_t iy = oy * s.stride[0] + u * s.dilation[0] - s.padding[0];
            if (iy < 0 || iy >= s.size[0])
                continue;
            for (int64_t v = 0; v < s.kernel[1]; v++) {
                int64_t ix = ox * s.stride[1] + v * s.dilation[1] - s.padding[1];
                if (ix >= 0 && ix < s.size[1])
                    sum += (WIDE)plane[iy * s.size[1] + ix] * (WIDE)taps[u * s.kernel[1] + v];
            }
        }
    }
    return sum;
}

/* The output position whose tap at `tap` lies on input position i along an axis; -1: none. */
HD int64_t output_of(const kiln_cuda_conv &s, int axis, int64_t i, int64_t tap)
{
    int64_t from = i + s.padding[axis] - tap * s.dilation[axis];
    if (from < 0 || from % s.stride[axis])
        return -1;
    int64_t o = from / s.stride[axis];
    return o < s.out[axis] ? o : -1;
}

/* gx[n, c, i, j] for element `at` of x. */
template <typename T> HD WIDE input_grad_at(const kiln_cuda_conv &s, const T *gy, const T *w, int64_t at)
{
    int64_t ix = at % s.size[1], iy = at / s.size[1] % s.size[0], rest = at / s.size[1] / s.size[0];
    int64_t channel = rest % s.channels, n = rest / s.channels;
    int64_t inputs = s.channels / s.groups, outputs = s.outputs / s.groups;
    int64_t group = channel / inputs, c = channel % inputs;
    WIDE sum = 0;
    for (int64_t o = group * outputs; o < (group + 1) * outputs; o++) {
        const T *plane = gy + (n * s.outputs + o) * s.out[0] * s.out[1];
        const T *taps = w + (o * inputs + c) * s.kernel[0] * s.kernel[1];
        for (int64_t u = 0; u < s.kernel[0]; u++) {
            int64_t oy = output_of(s, 0, iy, u);
            if (oy < 0)
                continue;
            for (int64_t v = 0; v < s.kernel[1]; v++) {
                int64_t ox = output_of(s, 1, ix, v);
                if (ox >= 0)
                    sum += (WIDE)plane[oy * s.out[1] + ox] * (WIDE)taps[u * s.kernel[1] + v];
            }
        }
    }
    return sum;
}

/* The part of gw[o, c, u, v], element `at` of w, that one of `threads` threads sums. */
template <typename T>
HD WIDE weight_grad_part(const kiln_cuda_conv &s, const T *gy, const T *x, int64_t at, int thread, int threads)
{
    int64_t v = at % s.kernel[1], u = at / s.kernel[1] % s.kernel[0], rest = at / s.kernel[1] / s.kernel[0];
    int64_t inputs = s.channels / s.groups;
    int64_t c = rest % inputs, o = rest / inputs, group = o / (s.outputs / s.groups);
    int64_t pixels = s.out[0] * s.out[1];
    WIDE sum = 0;
    for (int64_t i = thread; i < s.batch * pixels; i += threads) {
        int64_t n = i / pixels, pixel = i % pixels;
        int64_t iy = pixel / s.out[1] * s.stride[0] + u * s.dilation[0] - s.padding[0];
        int64_t ix = pixel % s.out[1] * s.stride[1] + v * s.dilation[1] - s.padding[1];
        if (iy < 0 || iy >= s.size[0] || ix < 0 || ix >= s.size[1])
            continue;
        sum += (WIDE)gy[(n * s.outputs + o) * pixels + pixel] *
               (WIDE)x[((n * s.channels + group * inputs + c) * s.size[0] + iy) * s.size[1] + ix];
    }
    return sum;
}

/* a and b are what the kind reads, in the order of the operation's operands: x, w or gy, w. */
template <typename T, bool grad>
static __global__ void by_element(const __grid_constant__ kiln_cuda_conv s, const T *a, const T *w, T *to,
                                  int64_t count, const int32_t *stop)
{
    if (stop && *stop)
        return;
    for (int64_t i = blockIdx.x * (int64_t)THREADS + threadIdx.x; i < count; i += gridDim.x * (int64_t)THREADS)
        to[i] = (T)(grad ? input_grad_at<T>(s, a, w, i) : forward_at<T>(s, a, w, i));
}

template <typename T>
static __global__ void by_block(const __grid_constant__ kiln_cuda_conv s, const T *gy, const T *x, T *to, int64_t count,
                                const int32_t *stop)
{
    __shared__ WIDE sums[THREADS];
    if (stop && *stop)
        return;
    int thread = (int)threadIdx.x;
    for (int64_t i = blockIdx.x; i < count; i += gridDim.x) {
        sums[thread] = weight_grad_part<T>(s, gy, x, i, thread, THREADS);
        for (int half = THREADS / 2; half > 0; half /= 2) {
            __syncthreads();
            if (thread < half)
                sums[thread] += sums[thread + half];
        }
        if (thread == 0)
            to[i] = (T)sums[0];
        __syncthreads();
    }
}

template <typename T>
static void launch(cudaStream_t stream, const kiln_cuda_conv &s, const kiln_cuda_conv_data &d, const int32_t *stop)
{
    int64_t inputs = s.channels / s.groups;
    int64_t count = s.kind == KILN_CUDA_CONV_FORWARD      ? s.batch * s.outputs * s.out[0] * s.out[1]
                    : s.kind == KILN_CUDA_CONV_INPUT_GRAD ? s.batch * s.channels * s.size[0] * s.size[1]
                                                          : s.outputs * inputs * s.kernel[0] * s.kernel[1];
    int64_t blocks = s.kind == KILN_CUDA_CONV_WEIGHT_GRAD ? count : (count + THREADS - 1) / THREADS;
    unsigned grid = (unsigned)(blocks < MAX_BLOCKS ? blocks : MAX_BLOCKS);
    if (s.kind == KILN_CUDA_CONV_FORWARD)
        by_element<T, false><<<grid, THREADS, 0, stream>>>(s, (const T *)d.x, (const T *)d.w, (T *)d.y, count, stop);
    else if (s.kind == KILN_CUDA_CONV_INPUT_GRAD)
        by_element<T, true><<<grid, THREADS, 0, stream>>>(s, (const T *)d.y, (const T *)d.w, (T *)d.x, count, stop);
    else
        by_block<T><<<grid, THREADS, 0, stream>>>(s, (const T *)d.y, (const T *)d.x, (T *)d.w, count, stop);
}

extern "C" void kiln_cuda_plain_conv(cudaStream_t stream, const kiln_cuda_conv *s, const kiln_cuda_conv_data *data,
                                     const int32_t *stop)
{
    switch (s->dtype) {
    case KILN_F64: launch<double>(stream, *s, *data, stop); break;
    case KILN_F16: launch<__half>(stream, *s, *data, stop); break;
    case KILN_BF16: launch<__nv_bfloat16>(stream, *s, *data, stop); break;
    default: launch<float>(stream, *s, *data, stop); break;
    }
}
