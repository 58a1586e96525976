/* Computing again instead of keeping: values that the backward pass reads long after they were made give up their
 * memory in between, and what makes them is run once more before the first of their late readers.
 *
 * The pass runs when groups are formed and ordered. What is run again is a part of a group: the nodes that lead to the
 * wanted values, fused as they were. So every value is rounded where it was (inside a group 16-bit values stay wide), a
 * product keeps what finishes it, and random numbers keep seed and offset: the bits are those of the plain plan.
 * Nothing merges behind it either.
 *
 * What is run again is asked for by the program (kiln_recomputed), here, or chosen where a step does not fit (evict.c).
 */
#include <string.h>
#include "ops/widen.h"
#include "plan/draft.h"

enum { NEVER = KILN_NEVER_GONE };

typedef struct rewriting {
    kiln_draft *d;
    const kiln_trace *from;
    kiln_trace *to;
    const int32_t *until;
    /* What is run again, and when. */
    bool *part;     /* by node: it is */
    int32_t *place; /* by group: before which place in the order its part runs; NEVER: not at all */
    int32_t *work;  /* groups that have to be looked at (again) */
    bool *in_work;  /* by group */
    int32_t nwork;
    /* Writing it down. */
    int32_t *again;           /* by draft value: what stands for it behind `until`; -1: nothing yet */
    int32_t nold;             /* draft values from here on are copies */
    int32_t *number;          /* by old node: where it is now */
    kiln_draft_group *groups; /* in the order they run; last and nnodes: its first node and how many */
    int32_t ngroups;
} rewriting;

/* The group that runs at a place of the order, and the place of a group. */
static int32_t turned(const kiln_draft *d, int32_t group_or_place)
{
    return d->ngroups - 1 - group_or_place;
}

static int32_t maker(const kiln_draft *d, int32_t base)
{
    return d->node_group[d->values[base].node];
}

/* ---- What is run again, and when ---- */

/* Whether a node of the value's own group, run again, can read it from memory instead: it is there then, and memory
 * holds what the register did, which is not so in 16 bits. */
static bool is_in_memory(const kiln_draft *d, int32_t b, const int32_t *until, int32_t place)
{
    const kiln_draft_value *x = &d->values[b];
    bool stored = x->elsewhere || x->output >= 0 || (x->group >= 0 && x->group != maker(d, b));
    return stored && until[b] >= place && !kiln_is_half((kiln_dtype)x->v->dtype);
}

bool kiln_draft_add_part(const kiln_draft *d, int32_t node, const int32_t *until, int32_t place, bool *part)
{
    int32_t group = d->node_group[node];
    bool added = !part[node];
    part[node] = true;
    for (bool more = d->groups[group].nnodes > 1; more;) { /* seldom more than twice */
        more = false;
        for (int32_t i = d->groups[group].last; i >= 0; i = d->node_next[i])
            for (int k = 0; part[i] && k < kiln_draft_node(d, i)->nin; k++) {
                int32_t b = kiln_draft_made(d, kiln_draft_node(d, i), k);
                if (b < 0 || maker(d, b) != group || part[d->values[b].node] || is_in_memory(d, b, until, place))
                    continue;
                part[d->values[b].node] = more = added = true;
            }
    }
    return added;
}

/* Who reads base value b at this place reads it computed again, if it is gone by then. */
static void want(rewriting *r, int32_t b, int32_t place)
{
    if (r->until[b] >= place)
        return;
    int32_t group = maker(r->d, b);
    bool more = place < r->place[group];
    if (more)
        r->place[group] = place;
    more |= kiln_draft_add_part(r->d, r->d->values[b].node, r->until, r->place[group], r->part);
    if (more && !r->in_work[group]) {
        r->in_work[group] = true;
        r->work[r->nwork++] = group;
    }
}

static void want_operands(rewriting *r, int32_t group, int32_t place, bool part)
{
    const kiln_draft *d = r->d;
    for (int32_t i = d->groups[group].last; i >= 0; i = d->node_next[i])
        for (int k = 0; (!part || r->part[i]) && k < kiln_draft_node(d, i)->nin; k++) {
            int32_t b = kiln_draft_made(d, kiln_draft_node(d, i), k);
            if (b >= 0 && (maker(d, b) != group || (part && !r->part[d->values[b].node])))
                want(r, b, place);
        }
}

static void find_parts(rewriting *r)
{
    for (int32_t place = 0; place < r->d->ngroups; place++) {
        want_operands(r, turned(r->d, place), place, false);
        while (r->nwork) {
            int32_t group = r->work[--r->nwork];
            r->in_work[group] = false;
            want_operands(r, group, r->place[group], true);
        }
    }
}

/* ---- Writing it down ---- */

/* A draft value like x, in memory of its own or (a window) in that of `base`. */
static int32_t add_value(rewriting *r, int32_t x, int32_t base, int32_t node)
{
    kiln_draft *d = r->d;
    int32_t value = (int32_t)r->to->nvalues++, number = d->nvalues++;
    kiln_value *v = &r->to->values[value];
    *v = *d->values[x].v;
    v->base = base < 0 ? value : r->to->first_value + base - d->nimports;
    v->import = -1;
    v->import_segment = 0;
    v->leaf = NULL;
    d->values[number] = (kiln_draft_value){.v = v,
                                           .base = base < 0 ? number : base,
                                           .canon = number,
                                           .node = node,
                                           .slot = -1,
                                           .output = -1,
                                           .group = -1,
                                           .buffer = -1};
    return r->again[x] = number;
}

/* What operand x is for a node of the group that runs at this place: itself, or a window onto the copy. */
static int32_t operand_at(rewriting *r, int32_t x, int32_t group, int32_t place, bool again)
{
    const kiln_draft *d = r->d;
    int32_t b = kiln_draft_base(d, x);
    if (d->values[b].node < 0)
        return x;
    bool own = d->node_group[d->values[b].node] == group && (!again || r->part[d->values[b].node]);
    if (own ? !again : r->until[b] >= place)
        return x;
    return r->again[x] >= 0 ? r->again[x] : add_value(r, x, r->again[b], -1);
}

static void put_node(rewriting *r, int32_t i, int32_t group, int32_t place, bool again)
{
    kiln_draft *d = r->d;
    kiln_trace *to = r->to;
    kiln_node n = r->from->nodes[r->from->first_node + i];
    int32_t in = (int32_t)to->noperands, here = (int32_t)to->nnodes - to->first_node;
    for (int k = 0; k < n.nin; k++) {
        int32_t x = kiln_draft_in(d, &n, k), y = x < 0 ? x : operand_at(r, x, group, place, again);
        to->operands[to->noperands++] = y == x ? r->from->operands[n.in + k] : to->first_value + y - d->nimports;
    }
    n.in = in;
    if (again) {
        int32_t out = (int32_t)to->nvalues;
        for (int j = 0; j < n.nout; j++)
            add_value(r, kiln_draft_of(d, n.out + j), -1, here);
        n.out = out;
        n.back = true;
    } else
        r->number[i] = here;
    to->nodes[to->nnodes++] = n;
}

/* What the device chose how to compute; -1: the group's only node. */
static int32_t chosen_node(const kiln_draft_group *g)
{
    return g->head >= 0 ? g->head : g->root;
}

/* Appends a group, or the part of it that is run again, with its nodes in the order they have in it. */
static void put_group(rewriting *r, int32_t group, int32_t place, bool again)
{
    const kiln_draft *d = r->d;
    const kiln_draft_group *old = &d->groups[group];
    kiln_draft_group *g = &r->groups[r->ngroups++];
    *g = *old;
    g->last = (int32_t)r->to->nnodes - r->to->first_node;
    g->nnodes = 0;
    g->head = g->root = -1;
    for (int32_t i = old->last; i >= 0; i = d->node_next[i]) {
        if (again && !r->part[i])
            continue;
        int32_t here = g->last + g->nnodes++;
        if (i == old->head)
            g->head = here;
        if (i == old->root)
            g->root = here;
        put_node(r, i, group, place, again);
    }
    if (chosen_node(old) >= 0 && chosen_node(g) < 0)
        g->choice = (kiln_choice){0};
}

static bool write_down(rewriting *r)
{
    kiln_draft *d = r->d;
    /* By place: the groups whose parts run before it, in their order. */
    int32_t *first = KILN_ARENA_NEW(&d->scratch, int32_t, d->ngroups);
    int32_t *next = KILN_ARENA_NEW(&d->scratch, int32_t, d->ngroups);
    if (!first || !next)
        return false;
    memset(first, -1, (size_t)d->ngroups * sizeof *first);
    for (int32_t group = 0; group < d->ngroups; group++) /* from the last to the first */
        if (r->place[group] != NEVER) {
            next[group] = first[r->place[group]];
            first[r->place[group]] = group;
        }
    for (int32_t place = 0; place < d->ngroups; place++) {
        for (int32_t group = first[place]; group >= 0; group = next[group])
            put_group(r, group, place, true);
        put_group(r, turned(d, place), place, false);
    }
    return true;
}

/* ---- The draft as later passes want it ---- */

/* Groups that were computed together still are: the first of each pair is never run again. */
static void rejoin(rewriting *r)
{
    for (int32_t q = 0; q < r->ngroups; q++)
        if (r->groups[q].choice.by)
            r->groups[q].choice.by = r->number[r->groups[q].choice.by - 1] + 1;
}

/* Leaves out what nobody reads any more, and numbers the groups. */
static void regroup(rewriting *r)
{
    kiln_draft *d = r->d;
    int32_t kept = 0;
    for (int32_t q = 0; q < r->ngroups; q++) {
        kiln_draft_group g = r->groups[q];
        int32_t first = g.last, end = g.last + g.nnodes, before = -1;
        g.last = -1;
        g.nnodes = 0;
        for (int32_t i = first; i < end; i++) {
            if (!d->node_live[i])
                continue;
            *(before < 0 ? &g.last : &d->node_next[before]) = i;
            d->node_next[i] = -1;
            before = i;
            g.nnodes++;
        }
        if (!g.nnodes)
            continue;
        if (chosen_node(&g) >= 0 && !d->node_live[chosen_node(&g)])
            g.choice = (kiln_choice){0};
        g.head = g.head >= 0 && d->node_live[g.head] ? g.head : -1;
        g.root = g.root >= 0 && d->node_live[g.root] ? g.root : -1;
        if (g.nnodes == 1 && g.head >= 0) { /* a product with nothing to finish */
            g.work = KILN_WORK_KERNEL;
            g.head = -1;
        }
        r->groups[kept++] = g;
    }
    d->ngroups = kept;
    for (int32_t q = 0; q < kept; q++) {
        int32_t group = turned(d, q);
        d->groups[group] = r->groups[q];
        for (int32_t i = d->groups[group].last; i >= 0; i = d->node_next[i])
            d->node_group[i] = group;
    }
}

/* Which values others than their own group read. */
static void note_readers(kiln_draft *d)
{
    for (int32_t i = 0; i < d->nnodes; i++)
        for (int k = 0; d->node_live[i] && k < kiln_draft_node(d, i)->nin; k++) {
            int32_t b = kiln_draft_made(d, kiln_draft_node(d, i), k);
            if (b < 0)
                continue;
            d->values[b].group = maker(d, b);
            d->values[b].elsewhere |= maker(d, b) != d->node_group[i];
        }
}

static bool renew(rewriting *r)
{
    kiln_draft *d = r->d;
    for (int32_t v = 0; v < d->nvalues; v++) {
        kiln_draft_value *x = &d->values[v];
        if (v < r->nold && x->node >= 0)
            x->node = r->number[x->node];
        x->group = x->buffer = -1;
        x->fusable = x->elsewhere = x->live = false;
    }
    d->tr = r->to;
    d->nnodes = (int32_t)r->to->nnodes - r->to->first_node;
    d->node_live = KILN_ARENA_NEW(&d->scratch, bool, d->nnodes);
    d->node_group = KILN_ARENA_NEW(&d->scratch, int32_t, d->nnodes);
    d->node_next = KILN_ARENA_NEW(&d->scratch, int32_t, d->nnodes);
    d->groups = KILN_ARENA_NEW(&d->scratch, kiln_draft_group, r->ngroups + 1);
    if (!d->node_live || !d->node_group || !d->node_next || !d->groups)
        return false;
    kiln_draft_prune(d);
    rejoin(r);
    regroup(r);
    note_readers(d);
    return true;
}

static bool make_room(rewriting *r)
{
    kiln_draft *d = r->d;
    const kiln_trace *from = r->from;
    kiln_trace *to = r->to = KILN_ARENA_NEW(&d->scratch, kiln_trace, 1);
    kiln_draft_value *values = KILN_ARENA_NEW(&d->scratch, kiln_draft_value, 2 * (int64_t)d->nvalues);
    if (!to || !values)
        return false;
    *to = *from;
    to->nodes = KILN_ARENA_NEW(&d->scratch, kiln_node, from->first_node + 2 * (int64_t)d->nnodes);
    to->values = KILN_ARENA_NEW(&d->scratch, kiln_value, from->nvalues + d->nvalues);
    to->operands = KILN_ARENA_NEW(&d->scratch, int32_t, 3 * from->noperands);
    r->part = KILN_ARENA_NEW(&d->scratch, bool, d->nnodes);
    r->number = KILN_ARENA_NEW(&d->scratch, int32_t, d->nnodes);
    r->place = KILN_ARENA_NEW(&d->scratch, int32_t, d->ngroups);
    r->work = KILN_ARENA_NEW(&d->scratch, int32_t, d->ngroups);
    r->in_work = KILN_ARENA_NEW(&d->scratch, bool, d->ngroups);
    r->again = KILN_ARENA_NEW(&d->scratch, int32_t, d->nvalues);
    r->groups = KILN_ARENA_NEW(&d->scratch, kiln_draft_group, 2 * (int64_t)d->ngroups);
    if (!to->nodes || !to->values || !to->operands || !r->part || !r->number || !r->place || !r->work || !r->in_work ||
        !r->again || !r->groups)
        return false;
    memcpy(to->nodes, from->nodes, (size_t)from->first_node * sizeof *to->nodes);
    memcpy(to->values, from->values, (size_t)from->nvalues * sizeof *to->values);
    memcpy(to->operands, from->operands, (size_t)from->noperands * sizeof *to->operands);
    memcpy(values, d->values, (size_t)d->nvalues * sizeof *values);
    memset(r->again, -1, (size_t)d->nvalues * sizeof *r->again);
    for (int32_t g = 0; g < d->ngroups; g++)
        r->place[g] = NEVER;
    d->values = values;
    to->nnodes = from->first_node;
    r->nold = d->nvalues;
    return true;
}

bool kiln_draft_rewrite(kiln_draft *d, const int32_t *until)
{
    rewriting r = {.d = d, .from = d->tr, .until = until};
    if (!make_room(&r))
        return false;
    find_parts(&r);
    return write_down(&r) && renew(&r);
}

/* ---- What the program asks for ---- */

/* Nothing that could call the step off is run late, nor on indices that nobody has looked at: until then no slot would
 * be written. */
static void find_checked(kiln_draft *d)
{
    for (int32_t i = 0; i < d->nnodes; i++) {
        int32_t b =
            d->node_live[i] && kiln_draft_node(d, i)->op->demand ? kiln_draft_made(d, kiln_draft_node(d, i), 1) : -1;
        if (b >= 0)
            d->values[b].checked = true;
    }
}

bool kiln_draft_can_recompute(const kiln_draft *d, int32_t value)
{
    const kiln_draft_value *x = &d->values[value];
    if (x->checked || x->joins || x->base != value || x->canon != value || x->node < 0 || !d->node_live[x->node] ||
        x->output >= 0 || x->commits)
        return false;
    const kiln_op *op = kiln_draft_node(d, x->node)->op;
    const kiln_class cls = op->cls;
    return !op->demand && cls != KILN_CLASS_VIEW && cls != KILN_CLASS_ASSIGN && cls != KILN_CLASS_TRANSFER;
}

static bool has_regions(const kiln_draft *d)
{
    for (int32_t i = 0; i < d->nnodes; i++)
        if (d->node_live[i] && kiln_draft_node(d, i)->region)
            return true;
    return false;
}

/* By group: whether it belongs to a walk back. */
static bool *find_walk(kiln_draft *d)
{
    bool *back = KILN_ARENA_NEW(&d->scratch, bool, d->ngroups);
    for (int32_t i = 0; back && i < d->nnodes; i++)
        if (d->node_live[i])
            back[d->node_group[i]] |= kiln_draft_node(d, i)->back;
    return back;
}

/* Whether the value can be computed again by nodes of its own region, from what others made: fused with what came
 * before the region, it is kept like the rest of what comes in. */
static bool stays_inside(const kiln_draft *d, int32_t value, const int32_t *until, bool *part)
{
    int32_t node = d->values[value].node, group = d->node_group[node];
    bool inside = true;
    kiln_draft_add_part(d, node, until, NEVER, part);
    for (int32_t i = d->groups[group].last; i >= 0; i = d->node_next[i]) {
        inside &= !part[i] || kiln_draft_node(d, i)->region == kiln_draft_node(d, node)->region;
        part[i] = false;
    }
    return inside;
}

bool kiln_draft_recompute(kiln_draft *d)
{
    find_checked(d);
    if (!has_regions(d))
        return true;
    if (!kiln_draft_choose(d))
        return false;
    d->tight = true; /* whoever wants that wants memory */
    bool *back = find_walk(d);
    int32_t *until = KILN_ARENA_NEW(&d->scratch, int32_t, d->nvalues);
    bool *part = KILN_ARENA_NEW(&d->scratch, bool, d->nnodes);
    if (!back || !until || !part)
        return false;
    for (int32_t v = 0; v < d->nvalues; v++) {
        int32_t node = d->values[v].node;
        bool wanted = kiln_draft_can_recompute(d, v) && kiln_draft_node(d, node)->region && !back[d->node_group[node]];
        until[v] = wanted ? turned(d, d->node_group[node]) : NEVER;
    }
    /* A value is there until its region has read it; what others than the walk back read, too, is kept. */
    for (int32_t i = 0; i < d->nnodes; i++) {
        const kiln_node *n = kiln_draft_node(d, i);
        for (int k = 0; d->node_live[i] && !back[d->node_group[i]] && k < n->nin; k++) {
            int32_t b = kiln_draft_made(d, n, k), now = turned(d, d->node_group[i]);
            if (b < 0 || until[b] == NEVER)
                continue;
            bool inside = kiln_draft_node(d, d->values[b].node)->region == n->region;
            until[b] = !inside ? NEVER : now > until[b] ? now : until[b];
        }
    }
    for (int32_t v = 0; v < d->nvalues; v++)
        if (until[v] != NEVER && !stays_inside(d, v, until, part))
            until[v] = NEVER;
    return kiln_draft_rewrite(d, until);
}
