/* Which groups behind products are a bias. A relu is left to the group: the library's is max(x, 0), which hides a NaN.
 */
#include "device/cuda/gemm/epilogue.h"

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
    /* A fault keeps slots from being written, which the library cannot be told; it has no epilogues in f64. */
    if (!g || g->head < 0 || g->reduces || g->nstores != 1 || k->commits || dtype == KILN_F64)
        return none;
    const kiln_instr *add = &g->instrs[0];
    const kiln_store *s = &g->stores[0];
    if (g->ninstrs != 1 || add->row != KILN_PW_add || add->dtype != dtype || add->from != dtype)
        return none;
    kiln_cuda_epilogue e = {.to = &s->to, .bias = added(g, add, g->head, dtype, n)};
    return e.bias && s->src == add->dst && s->to.dtype == dtype && s->to.dense ? e : none;
}
