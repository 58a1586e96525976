/* Random numbers with the bits the CPU makes: element i is a function of seed, offset and i (see core/philox.h), one
 * thread a block of that row. A compiler for CUDA joins products and sums into one rounding, so the header is compiled
 * with a double whose operations round each for itself. */
#include <math.h>
#include "device/cuda/kernels/shape.cuh"

struct exact {
    double v;
    exact() = default;
    __device__ exact(double value) : v(value)
    {
    }
};
static __device__ inline exact operator+(exact a, exact b)
{
    return __dadd_rn(a.v, b.v);
}
static __device__ inline exact operator-(exact a, exact b)
{
    return __dsub_rn(a.v, b.v);
}
static __device__ inline exact operator*(exact a, exact b)
{
    return __dmul_rn(a.v, b.v);
}
static __device__ inline exact operator/(exact a, exact b)
{
    return __ddiv_rn(a.v, b.v);
}
static __device__ inline exact operator-(exact a)
{
    return -a.v;
}
static __device__ inline exact sqrt(exact a)
{
    return __dsqrt_rn(a.v);
}

#define KILN_PHILOX_FN static __device__ inline
#define double exact
#include "core/philox.h"
#undef double

/* The elements of a block, and how many there are. */
static __device__ inline void uniforms(const uint32_t *w, float *y)
{
    for (int j = 0; j < 4; j++)
        y[j] = kiln_uniform_f32(w[j]);
}

static __device__ inline void uniforms(const uint32_t *w, double *y)
{
    y[0] = kiln_uniform_f64(w[0], w[1]).v;
    y[1] = kiln_uniform_f64(w[2], w[3]).v;
}

template <typename T> static __device__ inline void normals(const uint32_t *w, T *y)
{
    for (int j = 0; j < 4; j += 2) {
        exact a, b;
        kiln_normal_pair(w[j], w[j + 1], &a, &b);
        y[j] = (T)a.v;
        y[j + 1] = (T)b.v;
    }
}

/* EACH elements a block; floats are seed and offset. */
template <typename T, int EACH, bool NORMAL>
static __global__ void draw(T *__restrict__ y, int64_t n, const double *__restrict__ floats, const int32_t *stop)
{
    if (stop && *stop)
        return;
    const uint64_t seed = (uint64_t)floats[0], offset = (uint64_t)floats[1];
    KILN_CUDA_EACH(block, (n + EACH - 1) / EACH)
    {
        uint32_t w[4];
        T e[4];
        kiln_philox(seed, offset + (uint64_t)block, w);
        if (NORMAL)
            normals(w, e);
        else
            uniforms(w, e);
        for (int j = 0; j < EACH; j++)
            if (block * EACH + j < n)
                y[block * EACH + j] = e[j];
    }
}

template <typename T, int EACH, bool NORMAL> static bool launch(const kiln_cuda_call *c)
{
    int64_t n = kiln_cuda_count_of(&c->out[0]);
    if (n == 0)
        return true;
    draw<T, EACH, NORMAL><<<kiln_cuda_grid(kiln_cuda_ceil(n, EACH), KILN_CUDA_BLOCK), KILN_CUDA_BLOCK, 0, c->stream>>>(
        (T *)c->out[0].data, n, c->floats, c->stop);
    return kiln_cuda_launched(c);
}

static bool random_uniform(const kiln_cuda_call *c)
{
    return c->out[0].dtype == KILN_F64 ? launch<double, 2, false>(c) : launch<float, 4, false>(c);
}

static bool random_normal(const kiln_cuda_call *c)
{
    return c->out[0].dtype == KILN_F64 ? launch<double, 4, true>(c) : launch<float, 4, true>(c);
}

#define WIDE (KILN_CUDA_T(KILN_F32) | KILN_CUDA_T(KILN_F64))

extern "C" const kiln_cuda_kernel kiln_cuda_kernels_random[] = {
    {"random_uniform", WIDE, random_uniform, NULL},
    {"random_normal", WIDE, random_normal, NULL},
    {NULL, 0, NULL, NULL},
};
