/* Which groups behind products are a bias. A relu is left to the group: the library's is max(x, 0), which hides a NaN.
 */
#include "device/cuda/gemm/epilogue.h"
#include "core/alloc.h"

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

/* Who reads a register: instructions and stores. */
static int readers(const kiln_group *g, int16_t reg)
{
    int n = 0;
    for (int i = 0; i < g->ninstrs; i++)
        for (int s = 0; s < 3; s++)
            n += g->instrs[i].src[s] == reg;
    for (int i = 0; i < g->nstores; i++)
        n += g->stores[i].src == reg;
    return n;
}

static const kiln_store *store_of(const kiln_group *g, int16_t reg)
{
    for (int i = 0; i < g->nstores; i++)
        if (g->stores[i].src == reg)
            return &g->stores[i];
    return NULL;
}

kiln_cuda_epilogue kiln_cuda_epilogue_of(const kiln_kernel *k, int64_t n)
{
    const kiln_cuda_epilogue none = {0};
    const kiln_group *g = k->group;
    kiln_dtype dtype = (kiln_dtype)k->in[0].dtype;
    /* A fault keeps slots from being written, which the library cannot be told; it has no epilogues in f64. */
    if (!g || g->head < 0 || g->reduces || k->commits || dtype == KILN_F64 || readers(g, g->head) != 1)
        return none;
    for (int16_t i = 0; i < g->ninstrs; i++) {
        const kiln_instr *add = &g->instrs[i];
        if (add->row != KILN_PW_add || add->dtype != dtype || add->from != dtype)
            continue;
        const kiln_store *s = store_of(g, add->dst);
        kiln_cuda_epilogue e = {s ? &s->to : NULL, added(g, add, g->head, dtype, n), i, g->ninstrs > 1};
        if (e.bias && s && s->to.dtype == dtype && s->to.dense && (e.goes_on || g->nstores == 1))
            return e;
    }
    return none;
}

/* ---- What is left ---- */

/* Registers are numbered anew: the sum is the head, those of later instructions come one earlier. */
static int16_t renumbered(const kiln_group *g, int16_t sum, int16_t reg)
{
    return reg == sum ? g->head : reg > sum ? (int16_t)(reg - 1) : reg;
}

kiln_group *kiln_cuda_epilogue_rest(const kiln_kernel *k, const kiln_cuda_epilogue *e, bool stored)
{
    const kiln_group *g = k->group;
    const int16_t sum = g->instrs[e->added].dst;
    kiln_group *rest =
        kiln_alloc(1, sizeof *rest + (size_t)g->ninstrs * sizeof *g->instrs + (size_t)g->nstores * sizeof *g->stores);
    if (!rest)
        return NULL;
    *rest = *g;
    rest->stores = (kiln_store *)(void *)(rest + 1);
    rest->instrs = (kiln_instr *)(void *)(rest->stores + g->nstores);
    rest->ninstrs = rest->nstores = 0;
    for (int16_t i = 0; i < g->ninstrs; i++) {
        kiln_instr in = g->instrs[i];
        in.dst = renumbered(g, sum, in.dst);
        for (int s = 0; s < 3; s++)
            in.src[s] = renumbered(g, sum, in.src[s]);
        if (i != e->added)
            rest->instrs[rest->ninstrs++] = in;
    }
    for (int i = 0; i < g->nstores; i++)
        if (stored || &g->stores[i].to != e->to)
            rest->stores[rest->nstores++] = (kiln_store){renumbered(g, sum, g->stores[i].src), g->stores[i].to};
    return rest;
}
