/* Order: when each group runs. Fusion leaves results that nobody in the step reads (an optimizer's assignments, with
 * the product that made the gradient) at the very end. Here such groups move up to where their operands are complete:
 * the operands are still in cache then, and their memory is free for others from there on. */
#include <string.h>
#include "plan/draft.h"

/* When a group runs: groups are numbered from the last to the first. */
static int32_t when(const kiln_draft *d, int32_t group)
{
    return d->ngroups - 1 - group;
}

/* ---- Kernels that can call the step off ---- */

typedef struct check {
    int32_t when; /* -1: never */
    kiln_demand wants;
} check;

static check check_of(const kiln_draft *d, int32_t node)
{
    const kiln_node *n = kiln_draft_node(d, node);
    const kiln_value *x = d->values[kiln_draft_in(d, n, 0)].v;
    return (check){when(d, d->node_group[node]), n->op->demand(x->ndim, x->shape, d->tr->ints + n->ints)};
}

static bool same_demand(kiln_demand a, kiln_demand b)
{
    return a.limit == b.limit && a.except == b.except;
}

/* Indices that were found good once (when rows were looked up) are not bad later (when their gradients are added up).
 */
bool kiln_draft_find_checks(kiln_draft *d, int32_t *last_check)
{
    *last_check = -1;
    check *first = NULL; /* by value: the first check of it */
    for (int pass = 0; pass < 2; pass++)
        for (int32_t i = 0; i < d->nnodes; i++) {
            if (!d->node_live[i] || !kiln_draft_node(d, i)->op->demand)
                continue;
            if (!first) {
                if (!(first = KILN_ARENA_NEW(&d->scratch, check, d->nvalues)))
                    return false;
                for (int32_t v = 0; v < d->nvalues; v++)
                    first[v].when = -1;
            }
            int32_t index = kiln_draft_in(d, kiln_draft_node(d, i), 1);
            check now = check_of(d, i), *known = &first[kiln_draft_base(d, index)];
            if (pass == 0) {
                if (kiln_draft_in_order(d, index) && (known->when < 0 || now.when < known->when))
                    *known = now;
            } else if ((known->when < 0 || known->when >= now.when || !same_demand(known->wants, now.wants)) &&
                       now.when > *last_check)
                *last_check = now.when;
        }
    return true;
}

/* ---- Groups that nobody waits for ---- */

enum { NOBODY = -1, SEVERAL = -2 };

typedef struct ordering {
    kiln_draft *d;
    bool *sink;         /* by group: no other group reads its results */
    int32_t *after;     /* by group: the last one (by `when`) it must follow; -1 */
    int32_t *slot_read; /* by slot: when a group that is no sink reads it last; -1 */
    int32_t *slot_sink; /* by slot: the sink that reads it; NOBODY, SEVERAL */
} ordering;

static void follow(ordering *o, int32_t group, int32_t position)
{
    if (position > o->after[group])
        o->after[group] = position;
}

static const kiln_draft_value *operand(const kiln_draft *d, const kiln_node *n, int k)
{
    int32_t in = kiln_draft_in(d, n, k);
    return in < 0 ? NULL : &d->values[kiln_draft_base(d, in)];
}

static void find_sinks(ordering *o)
{
    kiln_draft *d = o->d;
    for (int32_t i = 0; i < d->nnodes; i++)
        for (int k = 0; d->node_live[i] && k < kiln_draft_node(d, i)->nin; k++) {
            const kiln_draft_value *x = operand(d, kiln_draft_node(d, i), k);
            if (!x || x->node < 0 || d->node_group[x->node] == d->node_group[i])
                continue;
            o->sink[d->node_group[x->node]] = false;
            follow(o, d->node_group[i], when(d, d->node_group[x->node]));
        }
}

/* What is read, or, where that is a cast of a slot, the slot: a device may read through the cast, and finds nothing
 * there any more once the slot is written. */
static const kiln_draft_value *behind_cast(const kiln_draft *d, const kiln_draft_value *x)
{
    const kiln_node *n = x->node >= 0 ? kiln_draft_node(d, x->node) : NULL;
    bool cast = n && n->op->cls == KILN_CLASS_POINTWISE && n->op->pointwise == KILN_PW_cast;
    const kiln_draft_value *from = cast ? operand(d, n, 0) : NULL;
    return from && from->node < 0 ? from : x;
}

static void find_slot_readers(ordering *o)
{
    kiln_draft *d = o->d;
    for (int32_t i = 0; i < d->nnodes; i++)
        for (int k = 0; d->node_live[i] && k < kiln_draft_node(d, i)->nin; k++) {
            const kiln_draft_value *read = operand(d, kiln_draft_node(d, i), k);
            const kiln_draft_value *x = read ? behind_cast(d, read) : NULL;
            int32_t group = d->node_group[i];
            if (!x || x->node >= 0)
                continue;
            if (!o->sink[group]) {
                if (when(d, group) > o->slot_read[x->slot])
                    o->slot_read[x->slot] = when(d, group);
            } else if (x == read && o->slot_sink[x->slot] != group)
                o->slot_sink[x->slot] = o->slot_sink[x->slot] == NOBODY ? group : SEVERAL;
        }
}

/* An assigned value is best written where it belongs at once: after all who read the old one, and all who might call
 * the step off. */
static void follow_readers(ordering *o, int32_t last_check)
{
    kiln_draft *d = o->d;
    for (int64_t c = 0; c < d->tr->ncommits; c++) {
        const kiln_draft_value *x = &d->values[kiln_draft_base(d, kiln_draft_of(d, d->tr->commits[c]))];
        if (x->node < 0 || !x->commits)
            continue;
        int32_t group = d->node_group[x->node], reader = o->slot_sink[x->slot];
        follow(o, group, last_check);
        follow(o, group, o->slot_read[x->slot]);
        if (reader != NOBODY && reader != group)
            o->sink[group] = false; /* stays where it is */
    }
}

/* Renumbers the groups: position p of the new order is group ngroups - 1 - p. */
static bool renumber(kiln_draft *d, const int32_t *order)
{
    int32_t n = d->ngroups, *number = KILN_ARENA_NEW(&d->scratch, int32_t, n);
    kiln_draft_group *groups = KILN_ARENA_NEW(&d->scratch, kiln_draft_group, n);
    if (!number || !groups)
        return false;
    memcpy(groups, d->groups, (size_t)n * sizeof *groups);
    for (int32_t p = 0; p < n; p++) {
        number[order[p]] = n - 1 - p;
        d->groups[n - 1 - p] = groups[order[p]];
    }
    for (int32_t i = 0; i < d->nnodes; i++)
        if (d->node_group[i] >= 0)
            d->node_group[i] = number[d->node_group[i]];
    for (int32_t v = 0; v < d->nvalues; v++)
        if (d->values[v].group >= 0)
            d->values[v].group = number[d->values[v].group];
    return true;
}

bool kiln_draft_order(kiln_draft *d)
{
    int32_t n = d->ngroups, last_check, placed = 0;
    if (!kiln_draft_find_checks(d, &last_check))
        return false;
    ordering o = {.d = d};
    o.sink = KILN_ARENA_NEW(&d->scratch, bool, n);
    o.after = KILN_ARENA_NEW(&d->scratch, int32_t, n);
    o.slot_read = KILN_ARENA_NEW(&d->scratch, int32_t, d->tr->nslots);
    o.slot_sink = KILN_ARENA_NEW(&d->scratch, int32_t, d->tr->nslots);
    int32_t *first = KILN_ARENA_NEW(&d->scratch, int32_t, n + 1); /* by position: the groups that move behind it */
    int32_t *next = KILN_ARENA_NEW(&d->scratch, int32_t, n), *order = KILN_ARENA_NEW(&d->scratch, int32_t, n);
    if (!o.sink || !o.after || !o.slot_read || !o.slot_sink || !first || !next || !order)
        return false;
    memset(o.sink, true, (size_t)n * sizeof *o.sink);
    memset(o.after, -1, (size_t)n * sizeof *o.after);
    memset(o.slot_read, -1, (size_t)d->tr->nslots * sizeof *o.slot_read);
    memset(o.slot_sink, -1, (size_t)d->tr->nslots * sizeof *o.slot_sink); /* NOBODY */
    memset(first, -1, (size_t)(n + 1) * sizeof *first);
    find_sinks(&o);
    find_slot_readers(&o);
    follow_readers(&o, last_check);
    for (int32_t group = 0; group < n; group++) { /* from the last to the first, so that the lists come out in order */
        if (!o.sink[group])
            continue;
        next[group] = first[o.after[group] + 1];
        first[o.after[group] + 1] = group;
    }
    for (int32_t p = -1; p < n; p++) {
        if (p >= 0 && !o.sink[n - 1 - p])
            order[placed++] = n - 1 - p;
        for (int32_t group = first[p + 1]; group >= 0; group = next[group])
            order[placed++] = group;
    }
    return renumber(d, order);
}
