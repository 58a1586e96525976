/* The elements that class indices name (nll_loss_pick), and the gradient back at their places (nll_loss_place), for
 * kernels compiled ahead and generated ones. */
#ifndef KILN_CUDA_PICKS_CUH
#define KILN_CUDA_PICKS_CUH

#include "device/cuda/kernels/halves.cuh"
#include "device/cuda/kernels/reduce.cuh"
#include "device/cuda/kernels/report.cuh"

/* x is [outer, classes, inner], target [outer, inner]. Targets equal to `ignore` take no part. */
typedef struct picks {
    const int64_t *target;
    int64_t outer, classes, inner, row, ignore; /* row: elements from one of x's outer to the next */
    const int32_t *stop;
    kiln_cuda_fault fault;
} picks;

/* Whether target i names a class; one that should but does not is reported. Reports are not kept back while `stop` is
 * set: blocks that come late may have the earlier one. */
static __device__ __forceinline__ bool names_class(const picks &p, int64_t i)
{
    int64_t target = p.target[i];
    if (target == p.ignore)
        return false;
    if (target >= 0 && target < p.classes)
        return true;
    kiln_cuda_report(p.fault, i, target, p.classes);
    return false;
}

static __device__ __forceinline__ float negated(float x)
{
    return -x;
}
static __device__ __forceinline__ double negated(double x)
{
    return -x;
}
static __device__ __forceinline__ kiln_f16 negated(kiln_f16 x)
{
    return kiln_f16{(uint16_t)(x.bits ^ 0x8000)};
}
static __device__ __forceinline__ kiln_bf16 negated(kiln_bf16 x)
{
    return kiln_bf16{(uint16_t)(x.bits ^ 0x8000)};
}

template <typename T>
static __device__ __forceinline__ void pick(const picks &p, const T *x, T *y, bool writes, int64_t thread,
                                            int64_t threads)
{
    for (int64_t i = thread; i < p.outer * p.inner; i += threads) {
        T picked = {};
        if (names_class(p, i))
            picked = negated(x[i / p.inner * p.row + p.target[i] * p.inner + i % p.inner]);
        if (writes)
            y[i] = picked;
    }
}

static __device__ __forceinline__ void check_targets(const picks &p, int64_t thread, int64_t threads)
{
    for (int64_t i = thread; i < p.outer * p.inner; i += threads)
        names_class(p, i);
}

/* Every element of y is written once: a thread has four in a row, and divides (in I) once for all of them. */
template <typename T, typename I, bool WIDE>
static __device__ __forceinline__ void spread(const picks &p, const T *g, T *y, int64_t thread, int64_t threads)
{
    enum { EACH = 4 };
    int64_t count = p.outer * p.classes * p.inner;
    for (int64_t first = thread * EACH; first < count; first += threads * EACH) {
        int64_t line = (int64_t)((I)first / (I)p.inner), within = first - line * p.inner;
        int64_t outer = (int64_t)((I)line / (I)p.classes), which = line - outer * p.classes;
        kiln_pack<T, EACH> v;
#pragma unroll
        for (int k = 0; k < EACH; k++) {
            v.at[k] = 0;
            if (first + k < count) {
                int64_t target = p.target[outer * p.inner + within];
                if (target == which && target != p.ignore)
                    v.at[k] = -g[outer * p.inner + within];
            }
            if (++within == p.inner) {
                within = 0;
                if (++which == p.classes) {
                    which = 0;
                    outer++;
                }
            }
        }
        if (WIDE && first + EACH <= count)
            kiln_store<EACH>(y + first, v);
        else
            for (int k = 0; k < EACH && first + k < count; k++)
                y[first + k] = v.at[k];
    }
}

template <typename T, typename I, bool WIDE>
static __device__ __forceinline__ void place(const picks &p, const T *g, T *y, bool writes, int64_t thread,
                                             int64_t threads)
{
    check_targets(p, thread, threads);
    if (writes)
        spread<T, I, WIDE>(p, g, y, thread, threads);
}

#endif
