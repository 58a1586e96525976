/* Elements that indices name: what gather, scatter and scatter_add share, and the launchers of the table in index.cu
 * that lie in other files. */
#ifndef KILN_CUDA_INDEX_CUH
#define KILN_CUDA_INDEX_CUH

#include "device/cuda/kernels/shape.cuh"

/* How the indices' elements (all of them, or one for each lane along `dim`) map to places in x and in the source: dims
 * that lie evenly in all tensors are one. Last dim first; x's place is without what the index adds. */
typedef struct kiln_cuda_lanes {
    int n;
    int64_t size[KILN_MAX_DIMS], index[KILN_MAX_DIMS], x[KILN_MAX_DIMS], src[KILN_MAX_DIMS]; /* sizes, strides */
    int64_t count;                                                                           /* of what is mapped */
    int64_t length, limit;                /* of the indices along dim; of x along dim */
    int64_t index_step, x_step, src_step; /* along dim */
} kiln_cuda_lanes;

typedef struct kiln_cuda_spot {
    int64_t index, x, src;
} kiln_cuda_spot;

static inline __device__ kiln_cuda_spot kiln_cuda_spot_of(const kiln_cuda_lanes &w, int64_t number)
{
    kiln_cuda_spot s = {0, 0, 0};
    for (int d = 0; d < w.n; d++) {
        int64_t rest = number / w.size[d], i = number - rest * w.size[d];
        s.index += i * w.index[d];
        s.x += i * w.x[d];
        s.src += i * w.src[d];
        number = rest;
    }
    return s;
}

/* Of the elements of in[1], or of the lanes along dim; in[2] is the source where there is one. */
static inline kiln_cuda_lanes kiln_cuda_make_lanes(const kiln_cuda_call *c, bool elements)
{
    const kiln_cuda_operand *x = &c->in[0], *index = &c->in[1], *src = c->nin > 2 ? &c->in[2] : &c->in[1];
    kiln_cuda_lanes w = {};
    int dim = (int)c->ints[0];
    w.count = w.length = w.limit = 1;
    int64_t xs = 1, is = 1, ss = 1; /* strides of dim d */
    for (int d = index->ndim - 1; d >= 0; d--) {
        int64_t size = index->shape[d], x_stride = d == dim ? 0 : xs;
        if (d == dim) {
            w.length = size;
            w.limit = x->shape[d];
            w.index_step = is;
            w.x_step = xs;
            w.src_step = ss;
        }
        if (d != dim || elements) {
            int e = w.n - 1;
            bool even =
                e >= 0 && w.index[e] * w.size[e] == is && w.x[e] * w.size[e] == x_stride && w.src[e] * w.size[e] == ss;
            w.count *= size;
            if (even) {
                w.size[e] *= size;
            } else if (size != 1) {
                w.size[w.n] = size;
                w.index[w.n] = is;
                w.x[w.n] = x_stride;
                w.src[w.n++] = ss;
            }
        }
        is *= size;
        xs *= x->shape[d];
        ss *= src->shape[d];
    }
    return w;
}

/* add.cu */
bool kiln_cuda_scatter_add(const kiln_cuda_call *c);
size_t kiln_cuda_scatter_add_workspace(const kiln_cuda_call *c);
bool kiln_cuda_index_add(const kiln_cuda_call *c);
size_t kiln_cuda_index_add_workspace(const kiln_cuda_call *c);

/* strided.cu */
bool kiln_cuda_cat(const kiln_cuda_call *c);
bool kiln_cuda_constant_pad(const kiln_cuda_call *c);
bool kiln_cuda_as_strided_add(const kiln_cuda_call *c);
bool kiln_cuda_as_strided_put(const kiln_cuda_call *c);
bool kiln_cuda_strided_copy(const kiln_cuda_call *c);

#endif
