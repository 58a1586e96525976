/* Numbers that are read through: a kernel that makes single elements out of counts, and those who read them. Whether a
 * step is left out follows from how many values of each gradient are not finite; all updates wait for that. Each of
 * them can as well look at the counts itself. */
#include <string.h>
#include "core/alloc.h"
#include "device/cuda/launch/rewrite.h"
#include "device/cuda/launch/through.h"

enum { MOST_LOADS = 16, MOST_INSTRS = 32 }; /* of a number: every thread of every reader does as much */

/* What register `reg` of a group is made of: a part of the group. */
typedef struct number {
    const kiln_group *g;
    int16_t reg;
    int16_t loads[MOST_LOADS], instrs[MOST_INSTRS]; /* in their order */
    int nloads, ninstrs;
} number;

/* ---- What can be read through ---- */

/* Only single elements. */
static bool makes_numbers(const kiln_kernel *k)
{
    const kiln_group *g = k->group;
    return g && !k->op && g->head < 0 && !g->reduces && g->count == 1;
}

/* Whether a kernel of the part before `end` makes the count in this buffer. */
static bool is_count(const kiln_plan *plan, const kiln_cuda_part *p, int32_t end, const kiln_operand *o)
{
    for (int32_t k = p->first; k < end && o->dtype == KILN_I64; k++) {
        const kiln_group *g = plan->kernels[k].group;
        if (g && g->reduces && g->reduce_to.buffer == o->buffer)
            return true;
    }
    return false;
}

/* Registers that lead to the wanted one, found from the last to the first. False if there are too many, or one is
 * rounded where it is stored. */
static bool slice(const kiln_group *g, int16_t reg, number *x)
{
    bool needed[MOST_INSTRS * 4] = {false};
    *x = (number){.g = g, .reg = reg};
    if (g->nloads + g->ninstrs > (int)(sizeof needed / sizeof *needed))
        return false;
    needed[reg] = true;
    for (int i = g->ninstrs; i-- > 0;)
        for (int s = 0; s < 3 && needed[g->instrs[i].dst]; s++)
            if (g->instrs[i].src[s] >= 0)
                needed[g->instrs[i].src[s]] = true;
    for (int i = 0; i < g->nloads; i++)
        if (needed[i]) {
            if (x->nloads == MOST_LOADS)
                return false;
            x->loads[x->nloads++] = (int16_t)i;
        }
    for (int i = 0; i < g->ninstrs; i++)
        if (needed[g->instrs[i].dst]) {
            if (x->ninstrs == MOST_INSTRS || kiln_is_half((kiln_dtype)g->instrs[i].dtype))
                return false;
            x->instrs[x->ninstrs++] = (int16_t)i;
        }
    return x->nloads > 0 && x->ninstrs > 0;
}

/* Whether kernel `reader` may read the number's own operands, which the maker may have written over, instead of what
 * kernel `maker` made of them. */
static bool can_read(const kiln_plan *plan, const kiln_cuda_part *p, const number *x, int32_t maker, int32_t reader)
{
    bool counts = false;
    for (int i = 0; i < x->nloads; i++) {
        const kiln_operand *o = &x->g->loads[x->loads[i]];
        counts |= is_count(plan, p, maker, o);
        if (!kiln_cuda_stays(plan, maker - 1, reader, o->buffer))
            return false;
    }
    return counts;
}

/* ---- Readers ---- */

typedef struct renumbering { /* of a group whose load `load` is replaced by a number */
    const kiln_group *g;
    const number *x;
    int load, nloads, first; /* first: of the instructions */
} renumbering;

/* A register of the number, in the group. The first of its loads takes the replaced one's place. */
static int16_t own(const renumbering *r, int16_t reg)
{
    for (int i = 0; i < r->x->nloads; i++)
        if (r->x->loads[i] == reg)
            return (int16_t)(i ? r->g->nloads - 1 + i : r->load);
    for (int i = 0; i < r->x->ninstrs; i++)
        if (r->x->g->instrs[r->x->instrs[i]].dst == reg)
            return (int16_t)(r->first + i);
    return -1; /* an operand that is not there */
}

/* A register of the group as it was. */
static int16_t old(const renumbering *r, int16_t reg)
{
    if (reg == r->load)
        return own(r, r->x->reg);
    if (reg < r->g->nloads)
        return reg;
    if (reg == r->g->head)
        return (int16_t)r->nloads;
    return (int16_t)(reg - r->g->nloads - (r->g->head >= 0) + r->first + r->x->ninstrs);
}

static void put_instrs(const renumbering *r, kiln_instr *to)
{
    for (int i = 0; i < r->x->ninstrs; i++, to++) {
        *to = r->x->g->instrs[r->x->instrs[i]];
        to->dst = own(r, to->dst);
        for (int s = 0; s < 3; s++)
            to->src[s] = own(r, to->src[s]);
    }
    for (int i = 0; i < r->g->ninstrs; i++, to++) {
        *to = r->g->instrs[i];
        to->dst = old(r, to->dst);
        for (int s = 0; s < 3; s++)
            to->src[s] = to->src[s] < 0 ? to->src[s] : old(r, to->src[s]);
    }
}

/* One element, repeated as the replaced one was. */
static void put_loads(const renumbering *r, kiln_operand *to)
{
    const kiln_operand replaced = r->g->loads[r->load];
    memcpy(to, r->g->loads, (size_t)r->g->nloads * sizeof *to);
    for (int i = 0; i < r->x->nloads; i++) {
        const kiln_operand *from = &r->x->g->loads[r->x->loads[i]];
        kiln_operand *o = &to[own(r, r->x->loads[i])];
        *o = replaced;
        o->buffer = from->buffer;
        o->dtype = from->dtype;
        o->offset = from->offset;
    }
}

static kiln_group *with_number(kiln_plan *plan, const kiln_group *g, int load, const number *x)
{
    int nloads = g->nloads - 1 + x->nloads;
    const renumbering r = {g, x, load, nloads, nloads + (g->head >= 0)};
    kiln_group *to = KILN_ARENA_NEW(&plan->pool, kiln_group, 1);
    kiln_operand *loads = KILN_ARENA_NEW(&plan->pool, kiln_operand, nloads);
    kiln_instr *instrs = KILN_ARENA_NEW(&plan->pool, kiln_instr, g->ninstrs + x->ninstrs);
    kiln_store *stores = KILN_ARENA_NEW(&plan->pool, kiln_store, g->nstores + 1);
    if (!to || !loads || !instrs || !stores)
        return NULL;
    put_loads(&r, loads);
    put_instrs(&r, instrs);
    for (int i = 0; i < g->nstores; i++) {
        stores[i] = g->stores[i];
        stores[i].src = old(&r, g->stores[i].src);
    }
    *to = *g;
    to->nloads = nloads;
    to->loads = loads;
    to->ninstrs += x->ninstrs;
    to->instrs = instrs;
    to->stores = stores;
    to->head = g->head < 0 ? g->head : (int16_t)nloads;
    to->reduce_src = g->reduces ? old(&r, g->reduce_src) : g->reduce_src;
    return to;
}

/* The load by which a kernel's group reads the buffer; -1: none. */
static int load_of(const kiln_kernel *k, int32_t buffer)
{
    for (int i = 0; k->group && i < k->group->nloads; i++)
        if (k->group->loads[i].buffer == buffer)
            return i;
    return -1;
}

/* ---- Plans ---- */

/* Lets the kernels of the part that can read through what the kernel stores; *left: whether anybody else reads it. */
static bool absorb_store(kiln_plan *plan, const kiln_cuda_part *p, int32_t maker, const kiln_store *s,
                         int64_t *absorbed, bool *left)
{
    const int32_t made = s->to.buffer;
    number x = {0};
    bool is_number = !kiln_is_half((kiln_dtype)s->to.dtype) && slice(plan->kernels[maker].group, s->src, &x);
    for (int32_t i = maker + 1; i < plan->nkernels; i++) {
        kiln_kernel *k = &plan->kernels[i];
        bool can = is_number && i < p->end && can_read(plan, p, &x, maker, i);
        for (int load; can && (load = load_of(k, made)) >= 0; ++*absorbed)
            if (!(k->group = with_number(plan, k->group, load, &x)))
                return false;
        *left |= kiln_cuda_reads(k, made);
    }
    return true;
}

static bool absorb_numbers(kiln_plan *plan, const kiln_cuda_part *p, int32_t maker, int64_t *absorbed)
{
    const kiln_group *g = plan->kernels[maker].group;
    bool left = false;
    for (int i = 0; i < g->nstores; i++) {
        left |= plan->buffers[g->stores[i].to.buffer].place != KILN_IN_ARENA;
        if (!absorb_store(plan, p, maker, &g->stores[i], absorbed, &left))
            return false;
    }
    if (!left)
        plan->kernels[maker] = (kiln_kernel){.workspace = -1}; /* touches nothing, and becomes no link */
    return true;
}

bool kiln_cuda_read_numbers(kiln_plan *plan, const kiln_cuda_part *part, int64_t *absorbed)
{
    for (int32_t k = part->first; k < part->end; k++)
        if (makes_numbers(&plan->kernels[k]) && !absorb_numbers(plan, part, k, absorbed))
            return false;
    return true;
}
