/* Plain products of a plan's operands, and of matrices as a library takes them. */
#include "device/cuda/gemm/plain.h"
#include "device/cuda/kernels/copy.h"

/* The size of dim d of a batch of `ndim`; its stride, 0 where the operand is repeated. */
static int64_t batch_dim(const kiln_cuda_operand *x, int ndim, int d, int64_t *stride)
{
    int at = d - (ndim - (x->ndim - 2));
    int64_t size = at < 0 ? 1 : x->shape[at];
    *stride = size == 1 ? 0 : x->stride[at];
    return size;
}

void kiln_cuda_plain_guarded(const kiln_cuda_call *c)
{
    const kiln_cuda_operand *a = &c->in[0], *b = &c->in[1];
    kiln_cuda_plain_product p = {.m = a->shape[a->ndim - 2],
                                 .n = b->shape[b->ndim - 1],
                                 .k = a->shape[a->ndim - 1],
                                 .nbatch = (a->ndim > b->ndim ? a->ndim : b->ndim) - 2,
                                 .a_row = a->stride[a->ndim - 2],
                                 .a_col = a->stride[a->ndim - 1],
                                 .b_row = b->stride[b->ndim - 2],
                                 .b_col = b->stride[b->ndim - 1]};
    for (int d = 0; d < p.nbatch; d++) {
        int64_t size = batch_dim(a, p.nbatch, d, &p.a_batch[d]), other = batch_dim(b, p.nbatch, d, &p.b_batch[d]);
        p.batch[d] = size == 1 ? other : size;
    }
    kiln_cuda_plain_matmul(c->stream, a->dtype, &p, a->data, b->data, c->out[0].data, c->stop);
}

void kiln_cuda_plain_run(cudaStream_t stream, const kiln_cuda_product *x, const void *a, const void *b, void *c)
{
    int64_t together = x->c_stride == x->m * x->n ? x->batch : 1; /* others have gaps between them in c */
    int64_t element = (int64_t)kiln_dtype_size((kiln_dtype)x->dtype);
    kiln_cuda_plain_product p = {.m = x->m,
                                 .n = x->n,
                                 .k = x->k,
                                 .nbatch = 1,
                                 .batch = {together},
                                 .a_batch = {x->a.stride},
                                 .b_batch = {x->b.stride},
                                 .a_row = x->a.turned ? 1 : x->a.ld,
                                 .a_col = x->a.turned ? x->a.ld : 1,
                                 .b_row = x->b.turned ? 1 : x->b.ld,
                                 .b_col = x->b.turned ? x->b.ld : 1};
    for (int64_t i = 0; i < x->batch; i += together)
        kiln_cuda_plain_matmul(stream, (kiln_dtype)x->dtype, &p, (const char *)a + i * x->a.stride * element,
                               (const char *)b + i * x->b.stride * element, (char *)c + i * x->c_stride * element,
                               NULL);
}
