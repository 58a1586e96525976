/* Values that an operation cannot take are reported as bad indices are: require looks at them, divide_integers looks at
 * the divisors on its way. */
#include "ops/require.h"
#include "device/cuda/kernels/index.cuh"
#include "device/cuda/kernels/pointwise.cuh"
#include "device/cuda/kernels/report.cuh"

/* ---- require ---- */

template <typename T>
static __global__ void look_at(const T *__restrict__ values, int64_t n, bool probabilities, kiln_cuda_fault fault)
{
    KILN_CUDA_EACH(i, n)
    {
        double value = (double)values[i]; /* of an integer no less different from 0 */
        if (!(probabilities ? value >= 0 && value <= 1 : value != 0))
            kiln_cuda_report(fault, i, i, 0);
    }
}

template <typename T> static void launch_look(const kiln_cuda_call *c, int64_t n)
{
    look_at<T><<<kiln_cuda_grid(n, KILN_CUDA_BLOCK), KILN_CUDA_BLOCK, 0, c->stream>>>(
        (const T *)c->in[1].data, n, c->ints[0] == KILN_REQUIRE_PROBABILITY, c->fault);
}

static bool require_all(const kiln_cuda_call *c)
{
    int64_t n = kiln_cuda_count_of(&c->in[1]), size = (int64_t)kiln_dtype_size(c->in[0].dtype);
    kiln_cuda_copy(c, c->out[0].data, c->in[0].data, kiln_cuda_count_of(&c->in[0]) * size);
    if (n == 0)
        return true;
    switch (c->in[1].dtype) {
    case KILN_U8: launch_look<uint8_t>(c, n); break;
    case KILN_I32: launch_look<int32_t>(c, n); break;
    case KILN_I64: launch_look<int64_t>(c, n); break;
    case KILN_F32: launch_look<float>(c, n); break;
    default: launch_look<double>(c, n); break;
    }
    return kiln_cuda_launched(c);
}

/* ---- divide_integers ---- */

static __device__ int64_t divide(int64_t a, int64_t b, int division)
{
    return division == KILN_FLOOR_DIVIDE ? k_floor_divide(a, b)
           : division == KILN_REMAINDER  ? k_remainder(a, b)
                                         : k_fmod(a, b);
}

template <typename T>
static __global__ void divide_all(const T *__restrict__ a, const T *__restrict__ b, T *__restrict__ y, int64_t n,
                                  int division, kiln_cuda_fault fault, const int32_t *stop)
{
    if (stop && *stop)
        return;
    KILN_CUDA_EACH(i, n)
    {
        if (b[i] == 0)
            kiln_cuda_report(fault, i, i, 0);
        y[i] = (T)divide((int64_t)a[i], (int64_t)b[i], division);
    }
}

template <typename T> static void launch_divide(const kiln_cuda_call *c, int64_t n)
{
    divide_all<T><<<kiln_cuda_grid(n, KILN_CUDA_BLOCK), KILN_CUDA_BLOCK, 0, c->stream>>>(
        (const T *)c->in[0].data, (const T *)c->in[1].data, (T *)c->out[0].data, n, (int)c->ints[0], c->fault, c->stop);
}

static bool divide_integers(const kiln_cuda_call *c)
{
    int64_t n = kiln_cuda_count_of(&c->out[0]);
    if (n == 0)
        return true;
    switch (c->in[0].dtype) {
    case KILN_U8: launch_divide<uint8_t>(c, n); break;
    case KILN_I32: launch_divide<int32_t>(c, n); break;
    default: launch_divide<int64_t>(c, n); break;
    }
    return kiln_cuda_launched(c);
}

#define LOOKED_AT (KILN_CUDA_INTS | KILN_CUDA_T(KILN_F32) | KILN_CUDA_T(KILN_F64))

extern "C" const kiln_cuda_kernel kiln_cuda_kernels_require[] = {
    {"require", LOOKED_AT, require_all, NULL},
    {"divide_integers", KILN_CUDA_INTS, divide_integers, NULL},
    {NULL, 0, NULL, NULL},
};
