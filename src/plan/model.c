/* The model of memory over time: see model.h. */
#include "plan/model.h"
#include <string.h>
#include "plan/roof.h"
#include "tensor/memory.h"

/* ---- Making it ---- */

static int64_t round_up(int64_t bytes)
{
    return (bytes + KILN_BLOCK_ALIGN - 1) / KILN_BLOCK_ALIGN * KILN_BLOCK_ALIGN;
}

typedef struct making {
    kiln_model *m;
    kiln_draft *d;
    const kiln_draft *t;
    int32_t *number; /* by draft value: its number here; -1: none */
    int32_t *seen;   /* by value: by whom it was listed last */
    int32_t *until;  /* by draft value: none is gone */
    bool *part;
} making;

/* Lists base value b at list[n], if it has room in the arena and was not listed for `reader` yet. */
static int32_t add_read(const making *k, int32_t *to, int32_t n, int32_t b, int32_t reader)
{
    int32_t v = k->number[b];
    if (v < 0 || k->seen[v] == reader)
        return n;
    k->seen[v] = reader;
    to[n] = v;
    return n + 1;
}

/* What a group reads of others. */
static int32_t read_group(const making *k, int32_t place, int32_t n)
{
    const kiln_draft *d = k->d;
    int32_t group = d->ngroups - 1 - place;
    for (int32_t i = d->groups[group].last; i >= 0; i = d->node_next[i])
        for (int o = 0; o < kiln_draft_node(d, i)->nin; o++) {
            int32_t b = kiln_draft_made(d, kiln_draft_node(d, i), o);
            if (b >= 0 && d->node_group[d->values[b].node] != group)
                n = add_read(k, k->m->reads, n, b, place);
        }
    return n;
}

/* What the nodes of the value's group that lead to it read of others, or of what the group itself has stored. */
static int32_t read_value(const making *k, int32_t v, int32_t n)
{
    const kiln_draft *d = k->d;
    int32_t node = d->values[k->m->value[v]].node, group = d->node_group[node];
    kiln_draft_add_part(d, node, k->until, KILN_NEVER_GONE, k->part);
    for (int32_t i = d->groups[group].last; i >= 0; i = d->node_next[i])
        for (int o = 0; k->part[i] && o < kiln_draft_node(d, i)->nin; o++) {
            int32_t b = kiln_draft_made(d, kiln_draft_node(d, i), o);
            if (b >= 0 && !k->part[d->values[b].node])
                n = add_read(k, k->m->from, n, b, v);
        }
    for (int32_t i = d->groups[group].last; i >= 0; i = d->node_next[i])
        k->part[i] = false;
    return n;
}

/* How many operands values can have to read when each is run again. */
static int64_t count_sources(const making *k)
{
    const kiln_draft *d = k->d;
    int64_t n = 0;
    for (int32_t place = 0; place < k->m->ngroups; place++) {
        int64_t values = 0, operands = 0;
        for (int32_t v = k->m->member[place]; v >= 0; v = k->m->next[v])
            values++;
        for (int32_t i = d->groups[d->ngroups - 1 - place].last; i >= 0; i = d->node_next[i])
            operands += kiln_draft_node(d, i)->nin;
        n += values * operands;
    }
    return n;
}

static void take_kernels(const making *k)
{
    kiln_model *m = k->m;
    const kiln_plan *p = k->t->plan;
    for (int64_t i = 0; i < p->nkernels; i++) {
        const kiln_kernel *x = &p->kernels[i];
        int32_t place = k->d->ngroups - 1 - k->d->node_group[x->node];
        m->time[place] += kiln_roof_seconds(p->device, (double)x->flops, (double)x->bytes);
        if (x->workspace >= 0)
            m->work[place] = round_up(p->buffers[x->workspace].bytes);
    }
    for (int32_t place = 0; place < m->ngroups; place++)
        m->before[place + 1] = m->before[place] + m->time[place];
}

/* Whether draft value v is one that takes room in the arena. */
static bool has_room(const making *k, int32_t v)
{
    const kiln_draft_value *x = &k->t->values[v];
    return x->base == v && x->canon == v && x->node >= 0 && k->d->node_live[x->node] && x->buffer >= 0 &&
           k->t->plan->buffers[x->buffer].place == KILN_IN_ARENA;
}

static void take_values(const making *k)
{
    kiln_model *m = k->m;
    const kiln_draft *d = k->d;
    int32_t n = 0;
    for (int32_t v = 0; v < d->nvalues; v++) {
        k->until[v] = KILN_NEVER_GONE;
        k->number[v] = has_room(k, v) ? n : -1;
        if (k->number[v] < 0)
            continue;
        m->value[n] = v;
        m->until[n] = KILN_NEVER_GONE;
        m->made[n] = d->ngroups - 1 - d->node_group[d->values[v].node];
        m->may[n] = kiln_draft_can_recompute(d, v);
        m->bytes[n] = round_up(k->t->plan->buffers[k->t->values[v].buffer].bytes);
        m->next[n] = m->member[m->made[n]];
        m->member[m->made[n]] = n;
        n++;
    }
}

static bool take_reads(const making *k)
{
    kiln_model *m = k->m;
    int64_t operands = 0;
    for (int32_t i = 0; i < k->d->nnodes; i++)
        operands += k->d->node_live[i] ? kiln_draft_node(k->d, i)->nin : 0;
    m->reads = KILN_ARENA_NEW(&k->d->scratch, int32_t, operands);
    m->from = KILN_ARENA_NEW(&k->d->scratch, int32_t, count_sources(k));
    if (!m->reads || !m->from)
        return false;
    memset(k->seen, -1, (size_t)m->nvalues * sizeof *k->seen);
    for (int32_t place = 0, n = 0; place < m->ngroups; place++)
        m->reads_at[place + 1] = n = read_group(k, place, n);
    memset(k->seen, -1, (size_t)m->nvalues * sizeof *k->seen);
    for (int32_t v = 0, n = 0; v < m->nvalues; v++)
        m->from_at[v + 1] = n = read_value(k, v, n);
    return true;
}

bool kiln_model_make(kiln_model *m, kiln_draft *d, const kiln_draft *t)
{
    kiln_arena *a = &d->scratch;
    making k = {m,
                d,
                t,
                KILN_ARENA_NEW(a, int32_t, d->nvalues),
                NULL,
                KILN_ARENA_NEW(a, int32_t, d->nvalues),
                KILN_ARENA_NEW(a, bool, d->nnodes)};
    m->nvalues = 0;
    for (int32_t v = 0; v < d->nvalues; v++)
        m->nvalues += has_room(&k, v);
    int64_t groups = m->ngroups = d->ngroups, values = m->nvalues;
    k.seen = KILN_ARENA_NEW(a, int32_t, values);
    if (!k.number || !k.seen || !k.until || !k.part || !(m->value = KILN_ARENA_NEW(a, int32_t, values)) ||
        !(m->time = KILN_ARENA_NEW(a, double, groups)) || !(m->before = KILN_ARENA_NEW(a, double, groups + 1)) ||
        !(m->work = KILN_ARENA_NEW(a, int64_t, groups)) || !(m->reads_at = KILN_ARENA_NEW(a, int32_t, groups + 1)) ||
        !(m->from_at = KILN_ARENA_NEW(a, int32_t, values + 1)) || !(m->bytes = KILN_ARENA_NEW(a, int64_t, values)) ||
        !(m->made = KILN_ARENA_NEW(a, int32_t, values)) || !(m->may = KILN_ARENA_NEW(a, bool, values)) ||
        !(m->member = KILN_ARENA_NEW(a, int32_t, groups)) || !(m->next = KILN_ARENA_NEW(a, int32_t, values)) ||
        !(m->until = KILN_ARENA_NEW(a, int32_t, values)) || !(m->last = KILN_ARENA_NEW(a, int32_t, values)) ||
        !(m->last_again = KILN_ARENA_NEW(a, int32_t, values)) || !(m->start = KILN_ARENA_NEW(a, int32_t, groups)) ||
        !(m->early = KILN_ARENA_NEW(a, int32_t, values)) || !(m->late = KILN_ARENA_NEW(a, int32_t, values)) ||
        !(m->live = KILN_ARENA_NEW(a, int64_t, groups + 1)) || !(m->stack = KILN_ARENA_NEW(a, int32_t, groups)))
        return false;
    memset(m->member, -1, (size_t)groups * sizeof *m->member);
    take_kernels(&k);
    take_values(&k);
    return take_reads(&k);
}

void kiln_model_tell(const kiln_model *m, int32_t ndraft, int32_t *all)
{
    for (int32_t v = 0; v < ndraft; v++)
        all[v] = KILN_NEVER_GONE;
    for (int32_t v = 0; v < m->nvalues; v++)
        all[m->value[v]] = m->until[v];
}

/* ---- Going through it ---- */

/* Notes that value v is read at group g; what has to be run again for that is put on the stack. */
static int32_t read_at(kiln_model *m, int32_t v, int32_t g, int32_t around, int32_t nstack)
{
    if (m->until[v] < g) {
        m->last_again[v] = g;
        if (m->start[m->made[v]] == KILN_NEVER_GONE) {
            m->start[m->made[v]] = g;
            m->stack[nstack++] = m->made[v];
        }
        return nstack;
    }
    m->last[v] = m->last[v] > g ? m->last[v] : g;
    if (g <= around)
        m->early[v] = g;
    else if (m->late[v] == KILN_NEVER_GONE)
        m->late[v] = g;
    return nstack;
}

static void read_all(kiln_model *m, int32_t around)
{
    for (int32_t g = 0; g < m->ngroups; g++) {
        int32_t n = 0;
        for (int32_t k = m->reads_at[g]; k < m->reads_at[g + 1]; k++)
            n = read_at(m, m->reads[k], g, around, n);
        while (n) {
            int32_t again = m->stack[--n];
            for (int32_t v = m->member[again]; v >= 0; v = m->next[v]) {
                if (m->until[v] == KILN_NEVER_GONE)
                    continue;
                if (m->last_again[v] < g)
                    m->last_again[v] = g;
                for (int32_t k = m->from_at[v]; k < m->from_at[v + 1]; k++)
                    n = read_at(m, m->from[k], g, around, n);
            }
        }
    }
}

void kiln_model_run(kiln_model *m, int32_t around)
{
    m->around = around;
    for (int32_t v = 0; v < m->nvalues; v++) {
        m->last[v] = m->early[v] = m->made[v];
        m->last_again[v] = -1;
        m->late[v] = KILN_NEVER_GONE;
    }
    for (int32_t g = 0; g < m->ngroups; g++)
        m->start[g] = KILN_NEVER_GONE;
    read_all(m, around);
    memset(m->live, 0, (size_t)(m->ngroups + 1) * sizeof *m->live);
    m->extra = 0;
    for (int32_t g = 0; g < m->ngroups; g++) {
        int32_t again = m->start[g];
        for (int32_t v = m->member[g]; v >= 0; v = m->next[v]) {
            m->live[g] += m->bytes[v];
            m->live[m->last[v] + 1] -= m->bytes[v];
            if (again == KILN_NEVER_GONE || m->last_again[v] < 0)
                continue;
            m->live[again] += m->bytes[v];
            m->live[m->last_again[v] + 1] -= m->bytes[v];
        }
        if (again != KILN_NEVER_GONE)
            m->extra += m->time[g];
    }
    m->peak = m->peak_at = 0;
    int64_t now = 0;
    for (int32_t g = 0; g < m->ngroups; g++) {
        now += m->live[g];
        m->live[g] = now + m->work[g];
        if (m->live[g] > m->peak) {
            m->peak = m->live[g];
            m->peak_at = g;
        }
    }
}
