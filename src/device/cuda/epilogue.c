/* Which groups behind products are a bias, a relu, or both. */
#include "device/cuda/epilogue.h"

/* Whether the operand is one row of n elements, without gaps, that is repeated for more than one row: a single row
 * could be written over by the result, which the library does not expect. */
static bool is_row(const kiln_operand *o, int64_t n, int64_t count)
{
    int64_t covered = 1, all = 1;
    for (int d = o->ndim; d-- > 0;) {
        if (o->shape[d] == 1)
            continue;
        bool repeated = covered == n;
        if (o->stride[d] != (repeated ? 0 : covered))
            return false;
        covered *= repeated ? 1 : o->shape[d];
        all *= o->shape[d];
    }
    return covered == n && all == count && count > n;
}

static bool is_bias(const kiln_operand *o, kiln_dtype dtype, int64_t n, int64_t count)
{
    return o->dtype == dtype && is_row(o, n, count) &&
           o->offset * (int64_t)kiln_dtype_size(dtype) % KILN_CUDA_BIAS_ALIGN == 0;
}

/* Whether instruction i exists, is of this row, and takes and makes numbers of the product's dtype. */
static bool has(const kiln_group *g, int i, int row, kiln_dtype dtype)
{
    return i < g->ninstrs && g->instrs[i].row == row && g->instrs[i].dtype == dtype && g->instrs[i].from == dtype;
}

/* What is added to `reg`; NULL when it is no bias. */
static const kiln_operand *added(const kiln_group *g, const kiln_instr *add, int16_t reg, kiln_dtype dtype, int64_t n)
{
    int16_t other = add->src[0] == reg ? add->src[1] : add->src[0];
    if ((add->src[0] != reg && add->src[1] != reg) || other < 0 || other >= g->nloads)
        return NULL;
    return is_bias(&g->loads[other], dtype, n, g->count) ? &g->loads[other] : NULL;
}

kiln_cuda_epilogue kiln_cuda_epilogue_of(const kiln_kernel *k, int64_t n)
{
    const kiln_cuda_epilogue none = {0};
    const kiln_group *g = k->group;
    kiln_dtype dtype = (kiln_dtype)k->in[0].dtype;
    kiln_cuda_epilogue e = {0};
    int done = 0;
    /* A fault keeps slots from being written, which the library cannot be told; it has no epilogues in f64. */
    if (!g || g->head < 0 || g->reduces || g->nstores != 1 || k->commits || dtype == KILN_F64)
        return none;
    int16_t reg = g->head;
    if (has(g, done, KILN_PW_add, dtype)) {
        e.bias = added(g, &g->instrs[done], reg, dtype, n);
        if (!e.bias)
            return none;
        reg = g->instrs[done++].dst;
    }
    if (has(g, done, KILN_PW_relu, dtype) && g->instrs[done].src[0] == reg) {
        e.relu = true;
        reg = g->instrs[done++].dst;
    }
    const kiln_store *s = &g->stores[0];
    if (!done || done < g->ninstrs || s->src != reg || s->to.dtype != dtype || !s->to.dense)
        return none;
    e.to = &s->to;
    return e;
}
