/* Making again: the pass behind merging that keeps 16-bit values instead of the f32 ones that were made of them. Where
 * an f32 value is a 16-bit one cast, or follows from such a cast by a pointwise operation or two (x - mean), and is
 * read again long after it was made, by a gradient, it is made a second time before that reader. The 16-bit value lives
 * in between, which takes half the memory, or none where it is kept in any case. Pointwise readers always get one of
 * their own, since fusion puts it into their kernel, and nothing is stored in f32 at all. And where elements are picked
 * out of a cast, the few that were picked are cast.
 *
 * What is made again carries a mark (`again` of the node) that merging respects. Steps without 16-bit values are left
 * as they are. */
#include <string.h>
#include "plan/copy.h"

enum {
    NEAR = 32,           /* readers no more nodes apart share a value */
    SMALLEST = 64 << 10, /* bytes: below that nothing is gained */
    MOST = 4,            /* nodes that making it again may take */
    SMALL = 64           /* an operand that is this many times smaller than the result may be kept for it */
};

typedef struct source {
    int32_t cost;    /* nodes that make it, from 16-bit and small values; 0: it is none of those */
    int32_t current; /* the one that near readers share: a value of the copy */
    int32_t read;    /* the node that read it last; -1: none yet */
    bool plain;      /* casts in it read memory in order: they cost a pointwise reader nothing */
} source;

typedef struct making {
    kiln_draft *d;
    kiln_copy copy;
    source *by_value; /* of the segment's values */
} making;

static bool is_row(const kiln_node *n, kiln_pw_id row)
{
    return n->op->cls == KILN_CLASS_POINTWISE && n->op->pointwise == (int)row;
}

static int32_t *operands_of(const kiln_trace *tr, const kiln_node *n)
{
    return tr->operands + n->in;
}

/* The entry of the value that `value` shows; NULL: it cannot be made again. */
static source *source_of(const making *m, int32_t value)
{
    int32_t base = value >= 0 ? m->copy.to->values[value].base : -1;
    if (base < m->copy.from->first_value || base >= m->copy.from->nvalues)
        return NULL;
    source *s = &m->by_value[base - m->copy.from->first_value];
    return s->cost ? s : NULL;
}

/* Equal computations were found by merging: whoever reads the later one reads the first. (A copy that need not be made
 * has another shape than its source, and is found once more.) */
static int32_t merged(const making *m, int32_t value)
{
    const kiln_trace *tr = m->copy.from;
    if (value < tr->first_value || tr->values[value].base != value || tr->values[value].node < 0)
        return value;
    int32_t own = kiln_draft_of(m->d, value), canon = m->d->values[own].canon;
    bool copy = is_row(&tr->nodes[tr->values[value].node], KILN_PW_copy);
    return canon == own || copy || canon < m->d->nimports ? value : canon - m->d->nimports + tr->first_value;
}

/* ---- Which values ---- */

static bool is_half(const kiln_value *v)
{
    return v->dtype == KILN_F16 || v->dtype == KILN_BF16;
}

static bool is_widening(const kiln_trace *tr, const kiln_node *n)
{
    return is_row(n, KILN_PW_cast) && is_half(&tr->values[operands_of(tr, n)[0]]) &&
           tr->values[n->out].dtype == KILN_F32;
}

static bool is_small(const kiln_trace *tr, int32_t value, int64_t beside)
{
    return kiln_draft_numel(&tr->values[tr->values[value].base]) * SMALL <= beside;
}

/* What it takes to make the node's result again, if that is little. */
static source weigh(const making *m, const kiln_node *n)
{
    const kiln_trace *tr = m->copy.from;
    const kiln_draft_value *x = &m->d->values[kiln_draft_of(m->d, n->out)];
    int64_t elements = kiln_draft_numel(&tr->values[n->out]);
    source none = {0}, s = {.cost = 1, .current = n->out, .read = -1, .plain = true};
    if (n->op->cls != KILN_CLASS_POINTWISE || is_row(n, KILN_PW_copy) || x->output >= 0 || x->commits ||
        elements * (int64_t)kiln_dtype_size((kiln_dtype)tr->values[n->out].dtype) < SMALLEST || is_half(x->v))
        return none;
    if (is_widening(tr, n)) {
        s.plain = kiln_draft_in_order(m->d, kiln_draft_in(m->d, n, 0));
        return s;
    }
    bool found = false;
    for (int k = 0; k < n->nin; k++) {
        int32_t in = operands_of(tr, n)[k];
        const source *of = source_of(m, merged(m, in));
        if (!of && !is_small(tr, in, elements))
            return none;
        if (of && !kiln_draft_in_order(m->d, kiln_draft_of(m->d, in)))
            return none;
        s.cost += of ? of->cost : 0;
        s.plain &= !of || of->plain;
        found |= of != NULL;
    }
    return found && s.cost <= MOST ? s : none;
}

static bool find_sources(making *m)
{
    const kiln_trace *tr = m->copy.from;
    bool any = false;
    for (int64_t i = tr->first_node; i < tr->nnodes; i++) {
        const kiln_node *n = &tr->nodes[i];
        if (n->op->cls == KILN_CLASS_VIEW)
            continue;
        source s = weigh(m, n);
        m->by_value[n->out - tr->first_value] = s;
        any |= s.cost > 0;
    }
    return any;
}

/* ---- Writing ---- */

/* A node like n of these operands; its result is like that of n. */
static int32_t write_like(making *m, kiln_node n, const int32_t *in)
{
    kiln_trace *to = m->copy.to;
    int32_t out = kiln_copy_value(&m->copy, n.out), first = (int32_t)to->noperands;
    for (int k = 0; k < n.nin; k++)
        to->operands[to->noperands++] = in[k];
    n.in = first;
    n.out = out;
    n.again = true;
    kiln_copy_node(&m->copy, &n);
    return out;
}

/* What shows of `base` what `value` shows of what it was made from. */
static int32_t shown(making *m, int32_t value, int32_t base)
{
    if (m->copy.to->values[value].base == value)
        return base;
    kiln_node n = m->copy.to->nodes[m->copy.to->values[value].node];
    int32_t in[KILN_MAX_INPUTS];
    memcpy(in, operands_of(m->copy.to, &n), (size_t)n.nin * sizeof *in);
    in[0] = shown(m, in[0], base);
    int32_t out = write_like(m, n, in);
    m->copy.to->values[out].base = m->copy.to->values[in[0]].base;
    return out;
}

/* The value once more, from the operands that its node had in the segment. */
static int32_t make_again(making *m, int32_t value)
{
    kiln_node n = m->copy.from->nodes[m->copy.from->values[value].node];
    int32_t in[KILN_MAX_INPUTS];
    for (int k = 0; k < n.nin; k++) {
        in[k] = merged(m, operands_of(m->copy.from, &n)[k]);
        if (source_of(m, in[k]))
            in[k] = shown(m, in[k], make_again(m, m->copy.to->values[in[k]].base));
    }
    return write_like(m, n, in);
}

/* What the node numbered i reads in the place of the value. */
static int32_t operand_for(making *m, const kiln_node *n, int32_t i, int32_t value)
{
    source *s = source_of(m, value);
    if (!s || n->op->cls == KILN_CLASS_VIEW)
        return value;
    bool first = s->read < 0, near = i - s->read <= NEAR;
    bool light = s->plain && (n->op->cls == KILN_CLASS_POINTWISE || n->op->cls == KILN_CLASS_REDUCE);
    int32_t base = m->copy.to->values[value].base, current = s->current;
    if (!first && (light || !near))
        current = make_again(m, base);
    if (!light)
        s->current = current;
    if (first || !light)
        s->read = i;
    return current == base ? value : shown(m, value, current);
}

/* Elements picked out of a cast are those of its operand, cast: no need to cast all of them. Says whether it was
 * written so. */
static bool pick_first(making *m, const kiln_node *n)
{
    kiln_trace *to = m->copy.to;
    const int32_t *in = operands_of(to, n);
    const kiln_value *x = n->nin ? &to->values[in[0]] : NULL;
    if (n->op->cls != KILN_CLASS_INDEX || !(n->op->picks & 1) || n->nout != 1 || x->base != in[0] || x->node < 0 ||
        !source_of(m, in[0]) || !is_widening(to, &to->nodes[x->node]))
        return false;
    kiln_node cast = to->nodes[x->node], pick = *n;
    int32_t narrow = operands_of(to, &cast)[0];
    kiln_dtype half = (kiln_dtype)to->values[narrow].dtype;
    const kiln_value *v = &to->values[narrow];
    if (!kiln_is_dense(v->ndim, v->shape, v->stride) || !kiln_device_supports(m->copy.from->device, n->op, half))
        return false;
    pick.in = (int32_t)to->noperands;
    pick.out = kiln_copy_value(&m->copy, n->out);
    to->values[pick.out].dtype = (uint8_t)half;
    for (int k = 0; k < n->nin; k++)
        to->operands[to->noperands++] = k ? in[k] : narrow;
    kiln_copy_node(&m->copy, &pick);
    cast.in = (int32_t)to->noperands;
    to->operands[to->noperands++] = pick.out;
    cast.out = n->out;
    kiln_copy_node(&m->copy, &cast);
    return true;
}

static void write_all(making *m)
{
    const kiln_trace *from = m->copy.from;
    for (int64_t i = from->first_node; i < from->nnodes; i++) {
        const kiln_node *n = &from->nodes[i];
        int32_t *in = m->copy.to->operands + n->in, was[KILN_MAX_INPUTS];
        for (int k = 0; k < n->nin; k++)
            was[k] = in[k] = merged(m, in[k]);
        if (pick_first(m, n))
            continue;
        for (int k = 0; k < n->nin; k++) {
            bool twice = k && was[k] == was[k - 1]; /* x·x */
            in[k] = twice ? in[k - 1] : operand_for(m, n, (int32_t)i, was[k]);
        }
        kiln_copy_node(&m->copy, n);
    }
}

/* The most nodes that can be added: for each reader the value, and the views through which it is read. */
static int64_t count_readers(const making *m)
{
    const kiln_trace *tr = m->copy.from;
    int64_t count = 0;
    for (int64_t i = tr->first_node; i < tr->nnodes; i++)
        for (int k = 0; k < tr->nodes[i].nin; k++) {
            int32_t value = merged(m, operands_of(tr, &tr->nodes[i])[k]);
            const source *s = source_of(m, value);
            if (!s)
                continue;
            for (count += s->cost + MOST; tr->values[value].base != value; count++)
                value = operands_of(tr, &tr->nodes[tr->values[value].node])[0];
        }
    return count;
}

bool kiln_draft_widen(kiln_draft *d)
{
    making m = {.d = d, .copy = {.from = d->tr, .to = (kiln_trace *)d->tr}};
    m.by_value = KILN_ARENA_NEW(&d->scratch, source, d->tr->nvalues - d->tr->first_value + 1);
    if (!m.by_value)
        return false;
    if (!find_sources(&m))
        return true;
    int64_t more = count_readers(&m);
    if (!kiln_copy_begin(&m.copy, d, (kiln_copy_room){.nodes = more, .values = more, .operands = 3 * more}))
        return false;
    write_all(&m);
    d->tr = m.copy.to;
    return kiln_draft_import(d) && kiln_draft_merge(d);
}
