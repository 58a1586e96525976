/* Casts that are read through. Under autocast every weight and every batch is converted to 16 bits before products use
 * it. Products by tiles and groups can as well read the f32 value and convert it on the way. */
#include <string.h>
#include "core/alloc.h"
#include "device/cuda/launch/rewrite.h"
#include "device/cuda/launch/through.h"

/* ---- Casts ---- */

/* All elements of a buffer's window in the order they are counted. */
static bool is_plain(const kiln_operand *o, int64_t count)
{
    int64_t covered = 1;
    for (int d = o->ndim; d-- > 0;) {
        if (o->shape[d] != 1 && o->stride[d] != covered)
            return false;
        covered *= o->shape[d];
    }
    return covered == count;
}

/* A conversion of f32 to 16 bits and nothing else, to scratch memory. */
static bool is_cast(const kiln_plan *plan, const kiln_kernel *k)
{
    const kiln_group *g = k->group;
    return g && !k->op && g->head < 0 && !g->reduces && g->nloads == 1 && g->ninstrs == 1 && g->nstores == 1 &&
           g->instrs[0].row == KILN_PW_cast && g->loads[0].dtype == KILN_F32 &&
           kiln_is_half((kiln_dtype)g->instrs[0].dtype) && g->stores[0].src == g->instrs[0].dst &&
           g->stores[0].to.dtype == g->instrs[0].dtype &&
           plan->buffers[g->stores[0].to.buffer].place == KILN_IN_ARENA && is_plain(&g->loads[0], g->count);
}

/* ---- Readers ---- */

/* What was read of the cast's result, of its operand. */
static kiln_operand source_of(const kiln_group *cast, const kiln_operand *o)
{
    kiln_operand from = *o;
    from.buffer = cast->loads[0].buffer;
    from.dtype = cast->loads[0].dtype;
    from.offset += cast->loads[0].offset - cast->stores[0].to.offset;
    return from;
}

static bool read_operands(kiln_plan *plan, kiln_kernel *k, const kiln_group *cast)
{
    int32_t made = cast->stores[0].to.buffer;
    kiln_operand *in = KILN_ARENA_NEW(&plan->pool, kiln_operand, k->nin);
    if (!in)
        return false;
    for (int i = 0; i < k->nin; i++) {
        in[i] = k->in[i];
        if (in[i].buffer == made) {
            in[i] = source_of(cast, &k->in[i]);
            k->rounds_to = cast->instrs[0].dtype;
        }
    }
    k->in = in;
    return true;
}

/* A register as it is numbered with one more instruction in front of the others; the load's is that one's. */
static int16_t renumbered(const kiln_group *g, int16_t reg, int load)
{
    int16_t first = (int16_t)(g->nloads + (g->head >= 0));
    return reg == load ? first : reg >= first ? (int16_t)(reg + 1) : reg;
}

/* The group with a load of what the cast was made of, and the cast as its first instruction. */
static kiln_group *with_cast(kiln_plan *plan, const kiln_group *g, int load, const kiln_group *cast)
{
    kiln_group *to = KILN_ARENA_NEW(&plan->pool, kiln_group, 1);
    kiln_operand *loads = KILN_ARENA_NEW(&plan->pool, kiln_operand, g->nloads);
    kiln_instr *instrs = KILN_ARENA_NEW(&plan->pool, kiln_instr, g->ninstrs + 1);
    kiln_store *stores = KILN_ARENA_NEW(&plan->pool, kiln_store, g->nstores + 1);
    if (!to || !loads || !instrs || !stores)
        return NULL;
    memcpy(loads, g->loads, (size_t)g->nloads * sizeof *loads);
    loads[load] = source_of(cast, &g->loads[load]);
    instrs[0] = cast->instrs[0];
    instrs[0].src[0] = (int16_t)load;
    instrs[0].dst = (int16_t)(g->nloads + (g->head >= 0));
    for (int i = 0; i < g->ninstrs; i++) {
        instrs[i + 1] = g->instrs[i];
        instrs[i + 1].dst = renumbered(g, g->instrs[i].dst, load);
        for (int s = 0; s < 3; s++)
            instrs[i + 1].src[s] = renumbered(g, g->instrs[i].src[s], load);
    }
    for (int i = 0; i < g->nstores; i++) {
        stores[i] = g->stores[i];
        stores[i].src = renumbered(g, g->stores[i].src, load);
    }
    *to = *g;
    to->loads = loads;
    to->instrs = instrs;
    to->ninstrs++;
    to->stores = stores;
    to->reduce_src = renumbered(g, g->reduce_src, load);
    return to;
}

static bool read_loads(kiln_plan *plan, kiln_kernel *k, const kiln_group *cast)
{
    int32_t made = cast->stores[0].to.buffer;
    int n = k->group ? k->group->nloads : 0;
    for (int i = 0; i < n; i++) {
        kiln_group *g = k->group->loads[i].buffer == made ? with_cast(plan, k->group, i, cast) : k->group;
        if (!g)
            return false;
        k->group = g;
    }
    return true;
}

/* ---- Plans ---- */

/* Only products and groups can convert. */
static bool can_convert(const kiln_kernel *k)
{
    return k->op ? k->op->cls == KILN_CLASS_MATMUL || k->op->cls == KILN_CLASS_REDUCE : k->group != NULL;
}

/* Lets all kernels of the part that can read through the cast; it stays if others read it. */
static bool absorb_cast(kiln_plan *plan, const kiln_cuda_part *p, int32_t cast, int64_t *absorbed)
{
    const kiln_group *g = plan->kernels[cast].group;
    int32_t last = plan->buffers[g->stores[0].to.buffer].last; /* sums.h may have left fewer kernels than that counts */
    bool read = false;
    for (int32_t i = cast + 1; i < plan->nkernels && i <= last; i++) {
        kiln_kernel *k = &plan->kernels[i];
        if (!kiln_cuda_reads(k, g->stores[0].to.buffer))
            continue;
        if (i >= p->end || !can_convert(k) || !kiln_cuda_stays(plan, cast, i, g->loads[0].buffer)) {
            read = true;
            continue;
        }
        if (!read_operands(plan, k, g) || !read_loads(plan, k, g))
            return false;
        ++*absorbed;
    }
    if (!read)
        plan->kernels[cast] = (kiln_kernel){.workspace = -1}; /* touches nothing, and becomes no link */
    return true;
}

bool kiln_cuda_read_casts(kiln_plan *plan, const kiln_cuda_part *part, int64_t *absorbed)
{
    for (int32_t k = part->first; k < part->end; k++)
        if (is_cast(plan, &plan->kernels[k]) && !absorb_cast(plan, part, k, absorbed))
            return false;
    return true;
}
