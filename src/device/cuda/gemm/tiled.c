/* Which products of a plan are small ones. */
#include "device/cuda/gemm/tiled.h"
#include "device/cuda/gemm/choice.h"
#include "plan/plan.h"

/* The size of dim i of the batch, counted from the last; its stride, 0 where the operand is repeated. */
static int64_t batch_dim(const kiln_cuda_operand *x, int i, int64_t *stride)
{
    int at = x->ndim - 3 - i;
    int64_t size = at < 0 ? 1 : x->shape[at];
    *stride = size == 1 ? 0 : x->stride[at];
    return size;
}

/* The batch as one walk; false when there is none. */
static bool join_batch(const kiln_cuda_operand *a, const kiln_cuda_operand *b, kiln_cuda_matrices *s, int64_t *matrices)
{
    int ndim = (a->ndim > b->ndim ? a->ndim : b->ndim) - 2;
    *matrices = 1;
    for (int i = 0; i < ndim; i++) {
        int64_t a_stride, b_stride, size = batch_dim(a, i, &a_stride), other = batch_dim(b, i, &b_stride);
        size = size == 1 ? other : size;
        if (size == 1)
            continue;
        if (*matrices == 1) {
            s->a_matrix = a_stride;
            s->b_matrix = b_stride;
        } else if (a_stride != s->a_matrix * *matrices || b_stride != s->b_matrix * *matrices)
            return false;
        *matrices *= size;
    }
    return true;
}

/* Matrices below each other that share b are one matrix. */
static void join_rows(kiln_cuda_matrices *s, int64_t *matrices)
{
    if (*matrices == 1 || s->b_matrix != 0 || (s->m > 1 && s->a_matrix != s->m * s->a_row))
        return;
    if (s->m == 1)
        s->a_row = s->a_matrix;
    s->m *= *matrices;
    s->a_matrix = 0;
    *matrices = 1;
}

/* Whether tiles can count in ints within a few lines. */
static bool near_enough(int64_t stride)
{
    return stride > -(1 << 28) && stride < 1 << 28;
}

kiln_dtype kiln_cuda_multiplied_as(const kiln_cuda_call *c)
{
    return c->kernel->rounds_to ? (kiln_dtype)c->kernel->rounds_to : c->in[0].dtype;
}

static bool is_half(kiln_dtype dtype)
{
    return dtype == KILN_F16 || dtype == KILN_BF16;
}

bool kiln_cuda_takes_tensor(const kiln_cuda_call *c)
{
    return c->kernel->tf32 || is_half(kiln_cuda_multiplied_as(c));
}

bool kiln_cuda_tiled_of(const kiln_cuda_call *c, kiln_cuda_matrices *s, kiln_cuda_tiling *t)
{
    const kiln_cuda_operand *a = &c->in[0], *b = &c->in[1];
    int64_t matrices;
    *s = (kiln_cuda_matrices){.a = a->data, .b = b->data};
    s->m = a->shape[a->ndim - 2];
    s->k = a->shape[a->ndim - 1];
    s->n = b->shape[b->ndim - 1];
    s->a_row = a->stride[a->ndim - 2];
    s->a_col = a->stride[a->ndim - 1];
    s->b_row = b->stride[b->ndim - 2];
    s->b_col = b->stride[b->ndim - 1];
    if ((a->dtype != KILN_F32 && !is_half(a->dtype)) || !join_batch(a, b, s, &matrices))
        return false;
    join_rows(s, &matrices);
    if (!near_enough(s->a_row) || !near_enough(s->a_col) || !near_enough(s->b_row) || !near_enough(s->b_col))
        return false;
    kiln_cuda_sizes e = {s->m, s->n, s->k, matrices, kiln_cuda_takes_tensor(c), c->costs};
    if (c->kernel->choice.how) {
        bool tiles = kiln_cuda_way_of(c->kernel->choice.how) == KILN_CUDA_BY_TILES;
        *t = tiles ? kiln_cuda_chosen_tiles(c->kernel->choice.how, e) : (kiln_cuda_tiling){0};
        return tiles;
    }
    bool ok = kiln_cuda_tiling_of(e, t);
    if (ok && c->tiling)
        *t = *c->tiling;
    return ok;
}
