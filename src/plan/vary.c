/* Offsets that change from run to run. A plan that is made where an earlier one differed in offsets alone takes these
 * as run-time numbers: it serves every place. That is a matter of rewriting the segment, in a copy, before anything
 * else is planned:
 *
 * - A window whose place changes is copied out, by a kernel that is told where it begins, and whoever reads it reads
 * the copy. The copy has its dims in the window's order in memory, so that kernels which choose by strides choose as
 * they did.
 * - What is put or added at a changing place (assignments to views, gradients of views) is told where.
 *
 * All other offsets stay constants: the passes see that slices are disjoint, or aligned. */
#include <string.h>
#include "plan/code.h"
#include "plan/draft.h"

extern const kiln_op kiln_op_strided_copy, kiln_op_permute;

typedef struct rewriting {
    kiln_draft *d;
    const kiln_trace *from;
    kiln_trace *to;
    bool *moves;          /* by value: a window that begins elsewhere in each run */
    bool *told;           /* by node of the segment: it is told where */
    int32_t *copies;      /* by value: its copy; -1: none yet */
    int32_t *wholes;      /* by slot: an import that shows all of it; -1: none yet */
    kiln_storage nowhere; /* of the copies: nothing but its role is asked for */
    int32_t noffsets;
} rewriting;

/* ---- What moves ---- */

static bool is_wild(const kiln_draft *d, const kiln_code_part *p)
{
    int64_t place[2];
    if (!kiln_code_places(p, place))
        return false;
    for (int64_t i = 0; i < d->nwild; i++)
        if (d->wild[i].at == place[0])
            return true;
    return false;
}

static void find_moves(rewriting *r)
{
    const kiln_trace *tr = r->from;
    kiln_code_part p = {0};
    while (kiln_code_next(tr->code, tr->ncode, &p)) {
        if (!p.op) {
            r->moves[tr->imports[p.imports]] |= is_wild(r->d, &p);
            continue;
        }
        const kiln_node *n = &tr->nodes[tr->first_node + p.nodes];
        bool wild = is_wild(r->d, &p);
        if (n->op->cls == KILN_CLASS_VIEW) /* what shows a part of a window that moves moves with it */
            r->moves[n->out] = wild || r->moves[tr->operands[n->in]];
        else
            r->told[p.nodes] = wild;
    }
}

/* ---- Writing ---- */

/* An offset that comes with each run, counted behind the segment's own numbers. */
static int32_t add_offset(rewriting *r, kiln_offset o)
{
    r->d->plan->offsets[r->noffsets] = o;
    return (int32_t)r->from->nfloats + r->noffsets++;
}

static int32_t add_value(rewriting *r, const kiln_value *like)
{
    int32_t number = (int32_t)r->to->nvalues++;
    kiln_value *v = &r->to->values[number];
    *v = *like;
    v->base = number;
    v->storage = &r->nowhere;
    v->leaf = NULL;
    v->import = -1; /* what it is like may be one */
    v->import_segment = 0;
    v->offset = 0;
    return number;
}

static void add_node(rewriting *r, const kiln_node *n)
{
    for (int j = 0; j < n->nout; j++)
        r->to->values[n->out + j].node = (int32_t)r->to->nnodes;
    r->to->nodes[r->to->nnodes++] = *n;
}

static void add_made_node(rewriting *r, kiln_node n, int32_t operand, const int64_t *ints)
{
    kiln_trace *to = r->to;
    n.in = (int32_t)to->noperands;
    n.nin = n.nout = 1;
    n.ints = (int32_t)to->nints;
    to->operands[to->noperands++] = operand;
    memcpy(to->ints + to->nints, ints, (size_t)n.nints * sizeof *ints);
    to->nints += n.nints;
    add_node(r, &n);
}

/* An import that shows all of the slot in a row. */
static int32_t whole_slot(rewriting *r, const kiln_value *window)
{
    kiln_trace *to = r->to;
    kiln_storage *s = to->values[window->base].storage;
    int32_t slot = kiln_map_get(&to->slot_of, s);
    if (r->wholes[slot] < 0) {
        int32_t number = r->wholes[slot] = add_value(r, window);
        kiln_value *v = &to->values[number];
        v->node = -1;
        v->storage = s;
        v->ndim = 1;
        v->shape[0] = (int64_t)(s->bytes / kiln_dtype_size((kiln_dtype)v->dtype));
        v->stride[0] = 1;
        v->import = (int32_t)to->nimports;
        v->import_segment = to->segment;
        to->imports[to->nimports++] = number;
    }
    return r->wholes[slot];
}

/* What a window is cut from: a value of the segment, or all of a slot. */
static int32_t source_of(rewriting *r, int32_t value)
{
    const kiln_value *v = &r->from->values[value], *base = &r->from->values[v->base];
    return base->node >= r->from->first_node ? v->base : whole_slot(r, v);
}

/* Dims from the longest step to the shortest; repeated ones (of step 0) are not copied, only shown. */
static void sort_dims(const kiln_value *v, int *order)
{
    for (int d = 0; d < v->ndim; d++) {
        int at = d;
        for (; at > 0 && v->stride[order[at - 1]] < v->stride[d]; at--)
            order[at] = order[at - 1];
        order[at] = d;
    }
}

/* The window's elements at their place of the day: a value that stands for it. */
static int32_t copy_of(rewriting *r, int32_t value, const kiln_node *reader, kiln_offset where)
{
    if (r->copies[value] >= 0)
        return r->copies[value];
    kiln_value window = r->from->values[value];
    int32_t source = source_of(r, value), copied = add_value(r, &window), shown = add_value(r, &window);
    kiln_value *c = &r->to->values[copied], *s = &r->to->values[shown];
    int64_t ints[2 * KILN_MAX_DIMS + 1] = {window.ndim}, step = 1, dims[KILN_MAX_DIMS] = {0};
    int order[KILN_MAX_DIMS];
    sort_dims(&window, order);
    for (int k = window.ndim; k-- > 0;) {
        int d = order[k];
        c->shape[k] = window.stride[d] ? window.shape[d] : 1;
        c->stride[k] = step;
        s->stride[d] = window.stride[d] ? step : 0;
        ints[1 + k] = c->shape[k];
        ints[1 + window.ndim + k] = window.stride[d];
        dims[d] = k;
        step *= c->shape[k];
    }
    kiln_node made = {.origin = reader->origin, .module = reader->module, .number = reader->number};
    kiln_node take = made, show = made;
    take.op = &kiln_op_strided_copy;
    take.out = copied;
    take.nints = 2 * window.ndim + 1;
    take.floats = add_offset(r, where);
    take.nfloats = 1;
    add_made_node(r, take, source, ints);
    s->base = copied;
    show.op = &kiln_op_permute;
    show.out = shown;
    show.nints = window.ndim;
    add_made_node(r, show, copied, dims);
    return r->copies[value] = shown;
}

/* Where a moving value's offset is found in the next run: it is an import, or a view of the segment. */
static kiln_offset place_of(const rewriting *r, int32_t value)
{
    const kiln_value *v = &r->from->values[value];
    bool import = v->node < r->from->first_node;
    return import ? (kiln_offset){KILN_OFFSET_OF_IMPORT, v->import}
                  : (kiln_offset){KILN_OFFSET_OF_VIEW, v->node - r->from->first_node};
}

static void rewrite_node(rewriting *r, int64_t number)
{
    const kiln_trace *from = r->from;
    kiln_node n = from->nodes[from->first_node + number];
    bool view = n.op->cls == KILN_CLASS_VIEW;
    for (int k = 0; k < n.nin && !view; k++) {
        int32_t operand = from->operands[n.in + k];
        if (operand >= 0 && r->moves[operand])
            r->to->operands[n.in + k] = copy_of(r, operand, &n, place_of(r, operand));
    }
    if (r->told[number]) { /* the last integer becomes its only number */
        n.nints--;
        n.floats = add_offset(r, (kiln_offset){KILN_OFFSET_OF_NODE, (int32_t)number});
        n.nfloats = 1;
    }
    add_node(r, &n);
}

/* ---- All of it ---- */

/* Room for all that is there, and for two more values, nodes and operands for each window that is copied out. */
static bool make_room(rewriting *r)
{
    kiln_draft *d = r->d;
    const kiln_trace *from = r->from;
    int64_t windows = from->noperands + from->nimports + 1;
    kiln_trace *to = r->to = KILN_ARENA_NEW(&d->scratch, kiln_trace, 1);
    if (!to)
        return false;
    *to = *from;
    to->nodes = KILN_ARENA_NEW(&d->scratch, kiln_node, from->nnodes + 2 * windows);
    to->values = KILN_ARENA_NEW(&d->scratch, kiln_value, from->nvalues + 2 * windows + from->nslots);
    to->operands = KILN_ARENA_NEW(&d->scratch, int32_t, from->noperands + 2 * windows);
    to->ints = KILN_ARENA_NEW(&d->scratch, int64_t, from->nints + 4 * windows * KILN_MAX_DIMS);
    to->imports = KILN_ARENA_NEW(&d->scratch, int32_t, from->nimports + from->nslots);
    r->moves = KILN_ARENA_NEW(&d->scratch, bool, from->nvalues);
    r->told = KILN_ARENA_NEW(&d->scratch, bool, from->nnodes - from->first_node);
    r->copies = KILN_ARENA_NEW(&d->scratch, int32_t, from->nvalues);
    r->wholes = KILN_ARENA_NEW(&d->scratch, int32_t, from->nslots);
    d->plan->offsets = KILN_ARENA_NEW(d->pool, kiln_offset, windows + from->nnodes - from->first_node);
    if (!to->nodes || !to->values || !to->operands || !to->ints || !to->imports || !r->moves || !r->told ||
        !r->copies || !r->wholes || !d->plan->offsets)
        return false;
    memcpy(to->nodes, from->nodes, (size_t)from->first_node * sizeof *to->nodes);
    memcpy(to->values, from->values, (size_t)from->nvalues * sizeof *to->values);
    memcpy(to->operands, from->operands, (size_t)from->noperands * sizeof *to->operands);
    memcpy(to->ints, from->ints, (size_t)from->nints * sizeof *to->ints);
    memcpy(to->imports, from->imports, (size_t)from->nimports * sizeof *to->imports);
    memset(r->copies, -1, (size_t)from->nvalues * sizeof *r->copies);
    memset(r->wholes, -1, (size_t)from->nslots * sizeof *r->wholes);
    to->nnodes = from->first_node;
    return true;
}

bool kiln_draft_vary(kiln_draft *d)
{
    if (!d->nwild)
        return true;
    rewriting *r = KILN_ARENA_NEW(&d->scratch, rewriting, 1);
    if (!r)
        return false;
    r->d = d;
    r->from = d->tr;
    if (!make_room(r))
        return false;
    find_moves(r);
    for (int64_t i = 0; i < r->from->nnodes - r->from->first_node; i++)
        rewrite_node(r, i);
    d->plan->noffsets = r->noffsets;
    d->plan->nscalars += r->noffsets;
    d->tr = r->to;
    return true;
}
