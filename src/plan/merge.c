/* The first passes: number the values, merge equal computations, drop what nobody needs. */
#include <string.h>
#include "plan/draft.h"

int64_t kiln_draft_numel(const kiln_value *v)
{
    int64_t n = 1;
    for (int i = 0; i < v->ndim; i++)
        n *= v->shape[i];
    return n;
}

bool kiln_draft_in_order(const kiln_draft *d, int32_t value)
{
    const kiln_value *v = d->values[value].v, *b = d->values[d->values[value].base].v;
    return v->offset == 0 && v->dtype == b->dtype && kiln_is_dense(v->ndim, v->shape, v->stride) &&
           kiln_draft_numel(v) == kiln_draft_numel(b);
}

/* ---- Import ---- */

bool kiln_draft_import(kiln_draft *d)
{
    const kiln_trace *tr = d->tr;
    d->nimports = (int32_t)tr->nimports;
    d->nvalues = d->nimports + (int32_t)tr->nvalues - tr->first_value;
    d->nnodes = (int32_t)tr->nnodes - tr->first_node;
    d->values = KILN_ARENA_NEW(&d->scratch, kiln_draft_value, d->nvalues);
    d->node_live = KILN_ARENA_NEW(&d->scratch, bool, d->nnodes);
    d->node_group = KILN_ARENA_NEW(&d->scratch, int32_t, d->nnodes);
    d->node_next = KILN_ARENA_NEW(&d->scratch, int32_t, d->nnodes);
    d->groups = KILN_ARENA_NEW(&d->scratch, kiln_draft_group, d->nnodes + 1);
    if (!d->values || !d->node_live || !d->node_group || !d->node_next || !d->groups)
        return false;
    for (int32_t i = 0; i < d->nvalues; i++) {
        bool import = i < d->nimports;
        int32_t value = import ? tr->imports[i] : tr->first_value + i - d->nimports;
        const kiln_value *v = &tr->values[value];
        d->values[i] = (kiln_draft_value){
            .v = v, .base = i, .canon = i, .node = -1, .slot = -1, .output = -1, .group = -1, .buffer = -1};
        if (import) {
            d->values[i].slot = kiln_map_get(&tr->slot_of, tr->values[v->base].storage);
            continue;
        }
        if (v->node < 0) /* a leaf: it takes part as an import */
            continue;
        d->values[i].node = v->node - tr->first_node;
        if (v->base != value) /* a view has the base of what it was made from; imports are bases, whatever they show */
            d->values[i].base = d->values[kiln_draft_in(d, &tr->nodes[v->node], 0)].base;
    }
    for (int64_t k = 0; k < tr->nkept; k++)
        d->values[kiln_draft_of(d, tr->kept[k])].output = (int32_t)k;
    for (int64_t k = 0; k < tr->ncommits; k++) {
        kiln_draft_value *x = &d->values[kiln_draft_of(d, tr->commits[k])];
        x->commits = true;
        x->slot = tr->commit_slots[k];
    }
    return true;
}

/* ---- Merge ---- */

static uint64_t window_hash(const kiln_draft *d, int32_t value, uint64_t h)
{
    const kiln_value *v = d->values[value].v;
    h = kiln_mix(h, (uint64_t)kiln_draft_base(d, value) << 16 | v->dtype << 8 | v->ndim);
    h = kiln_mix(h, (uint64_t)v->offset);
    for (int i = 0; i < v->ndim; i++)
        h = kiln_mix(kiln_mix(h, (uint64_t)v->shape[i]), (uint64_t)v->stride[i]);
    return h;
}

static bool same_window(const kiln_draft *d, int32_t a, int32_t b)
{
    const kiln_value *x = d->values[a].v, *y = d->values[b].v;
    size_t bytes = x->ndim * sizeof *x->shape;
    return kiln_draft_base(d, a) == kiln_draft_base(d, b) && x->dtype == y->dtype && x->ndim == y->ndim &&
           x->offset == y->offset && memcmp(x->shape, y->shape, bytes) == 0 && memcmp(x->stride, y->stride, bytes) == 0;
}

static bool same_node(const kiln_draft *d, const kiln_node *a, const kiln_node *b)
{
    if (a->op != b->op || a->nin != b->nin || a->nints != b->nints ||
        (a->nints && memcmp(d->tr->ints + a->ints, d->tr->ints + b->ints, (size_t)a->nints * sizeof *d->tr->ints) != 0))
        return false;
    for (int i = 0; i < a->nin; i++) {
        int32_t x = kiln_draft_in(d, a, i), y = kiln_draft_in(d, b, i);
        if ((x < 0) != (y < 0) || (x >= 0 && !same_window(d, x, y)))
            return false;
    }
    return true;
}

static bool has_fate(const kiln_draft_value *x)
{
    return x->output >= 0 || x->commits;
}

/* A copy whose source is computed here need not be made: both are the same memory, which then has the copy's fate. */
static bool elide_copy(kiln_draft *d, const kiln_node *n)
{
    if (n->op->cls != KILN_CLASS_POINTWISE || n->op->pointwise != KILN_PW_copy)
        return false;
    int32_t in = kiln_draft_in(d, n, 0), out = kiln_draft_of(d, n->out), source = kiln_draft_base(d, in);
    kiln_draft_value *from = &d->values[source], *to = &d->values[out];
    if (!kiln_draft_in_order(d, in) || kiln_draft_numel(from->v) != kiln_draft_numel(to->v) || to->commits)
        return false;
    if (to->output >= 0) {
        if (from->node < 0 || has_fate(from))
            return false;
        from->output = to->output;
    }
    to->canon = source;
    return true;
}

bool kiln_draft_merge(kiln_draft *d)
{
    int64_t capacity = 16;
    while (capacity < 2 * (int64_t)d->nnodes)
        capacity *= 2;
    int32_t *seen = KILN_ARENA_NEW(&d->scratch, int32_t, capacity); /* node + 1 by hash */
    if (!seen)
        return false;
    for (int32_t i = 0; i < d->nnodes; i++) {
        const kiln_node *n = kiln_draft_node(d, i);
        if (n->op->cls == KILN_CLASS_VIEW || elide_copy(d, n) || n->nfloats || n->again)
            continue;
        bool kept = false;
        uint64_t h = kiln_mix((uintptr_t)n->op, (uint64_t)n->nin);
        for (int j = 0; j < n->nout; j++)
            kept |= has_fate(&d->values[kiln_draft_of(d, n->out + j)]);
        for (int k = 0; k < n->nin; k++) {
            int32_t in = kiln_draft_in(d, n, k);
            h = in < 0 ? kiln_mix(h, ~0u) : window_hash(d, in, h);
        }
        for (int k = 0; k < n->nints; k++)
            h = kiln_mix(h, (uint64_t)d->tr->ints[n->ints + k]);
        int64_t at = (int64_t)(h & (uint64_t)(capacity - 1));
        while (seen[at] && !same_node(d, kiln_draft_node(d, seen[at] - 1), n))
            at = (at + 1) & (capacity - 1);
        if (!seen[at])
            seen[at] = i + 1;
        else if (!kept)
            for (int j = 0; j < n->nout; j++)
                d->values[kiln_draft_of(d, n->out + j)].canon =
                    kiln_draft_base(d, kiln_draft_of(d, kiln_draft_node(d, seen[at] - 1)->out + j));
    }
    return true;
}

/* ---- Prune ---- */

void kiln_draft_prune(kiln_draft *d)
{
    for (int32_t i = 0; i < d->nvalues; i++)
        d->values[i].live = has_fate(&d->values[i]) && d->values[i].canon == i;
    for (int32_t i = d->nnodes; i-- > 0;) {
        const kiln_node *n = kiln_draft_node(d, i);
        if (n->op->cls == KILN_CLASS_VIEW)
            continue;
        for (int j = 0; j < n->nout; j++) {
            const kiln_draft_value *x = &d->values[kiln_draft_of(d, n->out + j)];
            d->node_live[i] |= x->live && x->canon == kiln_draft_of(d, n->out + j);
        }
        for (int k = 0; d->node_live[i] && k < n->nin; k++) {
            int32_t in = kiln_draft_in(d, n, k);
            if (in >= 0)
                d->values[kiln_draft_base(d, in)].live = true;
        }
    }
}
