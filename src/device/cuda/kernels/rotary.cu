/* Rotary position embedding: a thread turns neighbours of a row's first half together with those of its second half, so
 * that memory is read and written once. x is read where it lies. */
#include "device/cuda/kernels/halves.cuh"
#include "device/cuda/kernels/shape.cuh"

/* Strides are in elements. */
template <typename S> struct rotation {
    typedef typename kiln_element<S>::real real;
    const S *x;
    const real *cos, *sin;
    S *y;
    int64_t half, length, rows; /* half a row; positions; rows of x in all */
    int64_t x_row, x_step, cos_row, cos_step, sin_row, sin_step;
    int nouter; /* dims in front of the position, last first; neighbours are one where they lie so */
    int64_t outer[KILN_MAX_DIMS], stride[KILN_MAX_DIMS];
    bool back;
    const int32_t *stop;
};

/* V neighbours at a time. Where V is more than 1 they lie side by side, aligned. I counts them all. */
template <typename S, int V, typename I> static __global__ void rotate(const __grid_constant__ rotation<S> r)
{
    typedef typename kiln_element<S>::real real;
    if (r.stop && *r.stop)
        return;
    I packs = (I)(r.half / V), count = (I)r.rows * packs;
    for (I i = (I)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (I)gridDim.x * blockDim.x) {
        I row = i / packs, outer = row / (I)r.length;
        int64_t first = (int64_t)(i - row * packs) * V, position = (int64_t)(row - outer * (I)r.length);
        const S *x = r.x + position * r.x_row + first * r.x_step;
        for (int d = 0; d < r.nouter; d++) {
            I next = outer / (I)r.outer[d];
            x += (int64_t)(outer - next * (I)r.outer[d]) * r.stride[d];
            outer = next;
        }
        kiln_pack<S, V> a = kiln_load<V>(x), b = kiln_load<V>(x + r.half * r.x_step);
        kiln_pack<real, V> cos = kiln_load<V>(r.cos + position * r.cos_row + first * r.cos_step);
        kiln_pack<real, V> sin = kiln_load<V>(r.sin + position * r.sin_row + first * r.sin_step);
#pragma unroll
        for (int k = 0; k < V; k++) {
            real p = kiln_element<S>::of(a.at[k]), q = kiln_element<S>::of(b.at[k]);
            real c = cos.at[k], s = r.back ? -sin.at[k] : sin.at[k];
            a.at[k] = kiln_element<S>::to(p * c - q * s);
            b.at[k] = kiln_element<S>::to(q * c + p * s);
        }
        S *y = r.y + (int64_t)row * 2 * r.half + first;
        kiln_store<V>(y, a);
        kiln_store<V>(y + r.half, b);
    }
}

template <typename S> static rotation<S> measure(const kiln_cuda_call *c)
{
    typedef typename kiln_element<S>::real real;
    const kiln_cuda_operand *x = &c->in[0], *cos = &c->in[1], *sin = &c->in[2];
    int last = x->ndim - 1;
    rotation<S> r = {};
    r.x = (const S *)x->data;
    r.cos = (const real *)cos->data;
    r.sin = (const real *)sin->data;
    r.y = (S *)c->out[0].data;
    r.half = x->shape[last] / 2;
    r.length = x->shape[last - 1];
    r.x_row = x->stride[last - 1];
    r.x_step = x->stride[last];
    r.cos_row = cos->stride[0];
    r.cos_step = cos->stride[1];
    r.sin_row = sin->stride[0];
    r.sin_step = sin->stride[1];
    r.rows = r.length;
    for (int d = last - 2; d >= 0; d--) {
        int64_t size = x->shape[d], before = r.nouter - 1;
        r.rows *= size;
        if (r.nouter && r.stride[before] * r.outer[before] == x->stride[d])
            r.outer[before] *= size;
        else if (size != 1) {
            r.outer[r.nouter] = size;
            r.stride[r.nouter++] = x->stride[d];
        }
    }
    r.back = c->ints[0] != 0;
    r.stop = c->stop;
    return r;
}

/* Whether all that a thread takes at a time lies side by side, and begins where 16 bytes do. */
template <typename S> static bool lies_in_packs(const rotation<S> &r)
{
    int64_t wide = kiln_wide<S>;
    bool packs = r.half % wide == 0 && r.x_step == 1 && r.cos_step == 1 && r.sin_step == 1 && r.x_row % wide == 0 &&
                 r.cos_row % wide == 0 && r.sin_row % wide == 0 && kiln_aligned16(r.x) && kiln_aligned16(r.y) &&
                 kiln_aligned16(r.cos) && kiln_aligned16(r.sin);
    for (int d = 0; d < r.nouter; d++)
        packs = packs && r.stride[d] % wide == 0;
    return packs;
}

template <typename S, int V> static void launch(const kiln_cuda_call *c, const rotation<S> &r)
{
    int64_t count = r.rows * (r.half / V);
    unsigned grid = kiln_cuda_grid(count, KILN_CUDA_BLOCK);
    if (count >> 31)
        rotate<S, V, uint64_t><<<grid, KILN_CUDA_BLOCK, 0, c->stream>>>(r);
    else
        rotate<S, V, uint32_t><<<grid, KILN_CUDA_BLOCK, 0, c->stream>>>(r);
}

template <typename S> static void launch(const kiln_cuda_call *c)
{
    rotation<S> r = measure<S>(c);
    if (r.rows * r.half == 0)
        return;
    if (lies_in_packs(r))
        launch<S, kiln_wide<S>>(c, r);
    else
        launch<S, 1>(c, r);
}

static bool rotary(const kiln_cuda_call *c)
{
    switch (c->in[0].dtype) {
    case KILN_F64: launch<double>(c); break;
    case KILN_F16: launch<kiln_f16>(c); break;
    case KILN_BF16: launch<kiln_bf16>(c); break;
    default: launch<float>(c);
    }
    return kiln_cuda_launched(c);
}

extern "C" const kiln_cuda_kernel kiln_cuda_kernels_rotary[] = {
    {"rotary", KILN_CUDA_FLOATS, rotary, NULL},
    {NULL, 0, NULL, NULL},
};
