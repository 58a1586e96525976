/* Walks back that are written again: see memo.h. */
#include "trace/memo.h"
#include <string.h>
#include "core/alloc.h"

static kiln_extent extent_of(const kiln_trace *tr)
{
    return (kiln_extent){tr->nnodes, tr->nvalues, tr->noperands, tr->nints, tr->nfloats, tr->ncode};
}

static kiln_walk_start start_of(const kiln_trace *tr, int32_t value)
{
    const kiln_thread *th = kiln_thread_state();
    return (kiln_walk_start){extent_of(tr), value, tr->device, th->default_device, th->composing};
}

/* What a walk asks of a value that the code does not tell: what made it, and whether a gradient passes or ends there.
 */
static int32_t mark_of(const kiln_value *v)
{
    bool leaf = v->leaf && v->leaf->leaf;
    return v->node * 8 + v->requires_grad * 4 + leaf * 2 + (leaf && v->leaf->requires_grad);
}

/* ---- Does it fit? ---- */

/* Gradient rules see the numbers of nodes that need a gradient; those of others (seeds of random numbers) may differ.
 */
static bool same_nodes(const kiln_memo *s, const kiln_trace *tr)
{
    for (int64_t i = 0; i < tr->nnodes; i++) {
        const kiln_node *n = &tr->nodes[i];
        if (n->requires_grad != s->nodes[i].requires_grad)
            return false;
        if (n->requires_grad && n->nfloats &&
            memcmp(tr->floats + n->floats, s->floats + n->floats, (size_t)n->nfloats * sizeof *tr->floats) != 0)
            return false;
    }
    return true;
}

static bool same_values(const kiln_memo *s, const kiln_trace *tr)
{
    for (int64_t i = 0; i < tr->nvalues; i++)
        if (mark_of(&tr->values[i]) != s->marks[i])
            return false;
    return true;
}

/* No leaf has a gradient that another is to be added to. */
static bool leaves_are_free(const kiln_memo *s, const kiln_trace *tr)
{
    for (int64_t i = 0; i < s->narrivals; i++)
        if (kiln_tensor_grad(tr->values[s->arrivals[i].leaf].leaf))
            return false;
    return true;
}

static bool same_start(const kiln_walk_start *a, const kiln_walk_start *b)
{
    return memcmp(&a->extent, &b->extent, sizeof a->extent) == 0 && a->value == b->value && a->device == b->device &&
           a->default_device == b->default_device && a->composing == b->composing;
}

bool kiln_memo_fits(const kiln_trace *tr, int32_t value)
{
    const kiln_memo *s = tr->memo;
    if (!s || !s->complete || tr->first_node != 0)
        return false;
    kiln_walk_start start = start_of(tr, value);
    return same_start(&start, &s->start) && memcmp(tr->code, s->code, (size_t)tr->ncode * sizeof *tr->code) == 0 &&
           memcmp(tr->operands, s->operands, (size_t)tr->noperands * sizeof *tr->operands) == 0 && same_nodes(s, tr) &&
           same_values(s, tr) && leaves_are_free(s, tr);
}

/* ---- Writing it again ---- */

static void copy(void *to, const void *from, int64_t count, size_t size)
{
    if (count)
        memcpy(to, from, (size_t)count * size);
}

static bool make_room(const kiln_memo *s, kiln_trace *tr)
{
    return KILN_GROW(tr->nodes, tr->nodes_capacity, s->end.nodes) &&
           KILN_GROW(tr->values, tr->values_capacity, s->end.values) &&
           KILN_GROW(tr->operands, tr->operands_capacity, s->end.operands) &&
           KILN_GROW(tr->ints, tr->ints_capacity, s->end.ints) &&
           KILN_GROW(tr->floats, tr->floats_capacity, s->end.floats) &&
           KILN_GROW(tr->code, tr->code_capacity, s->end.code);
}

static void take_back_values(kiln_trace *tr, int64_t first, int64_t end)
{
    for (int64_t i = first; i < end; i++)
        if (tr->values[i].base == i)
            kiln_storage_unref(tr->values[i].storage);
}

/* As in the last step, but for the storages. */
static bool append_values(const kiln_memo *s, kiln_trace *tr)
{
    int64_t first = s->start.extent.values;
    copy(tr->values + first, s->values, s->end.values - first, sizeof *tr->values);
    for (int64_t i = first; i < s->end.values; i++) {
        kiln_value *v = &tr->values[i];
        if (v->base != i) {
            v->storage = tr->values[v->base].storage;
            v->version = tr->values[v->base].version;
        } else if ((v->storage = kiln_storage_new(tr->device, s->bytes[i - first])))
            v->storage->trace_refs = 1;
        else {
            take_back_values(tr, first, i);
            return false;
        }
    }
    return true;
}

bool kiln_memo_append(kiln_trace *tr)
{
    const kiln_memo *s = tr->memo;
    const kiln_extent *from = &s->start.extent, *to = &s->end;
    if (!make_room(s, tr) || !append_values(s, tr))
        return false;
    copy(tr->nodes + from->nodes, s->nodes + from->nodes, to->nodes - from->nodes, sizeof *tr->nodes);
    copy(tr->operands + from->operands, s->operands + from->operands, to->operands - from->operands,
         sizeof *tr->operands);
    copy(tr->ints + from->ints, s->ints, to->ints - from->ints, sizeof *tr->ints);
    copy(tr->floats + from->floats, s->floats + from->floats, to->floats - from->floats, sizeof *tr->floats);
    copy(tr->code + from->code, s->code + from->code, to->code - from->code, sizeof *tr->code);
    tr->nnodes = to->nodes;
    tr->nvalues = to->values;
    tr->noperands = to->operands;
    tr->nints = to->ints;
    tr->nfloats = to->floats;
    tr->ncode = to->code;
    return true;
}

/* ---- Keeping it ---- */

bool kiln_memo_begin(kiln_trace *tr, int32_t value, kiln_memo **memo)
{
    *memo = NULL;
    if (tr->eager || tr->first_node != 0)
        return true;
    if (!tr->memo && !(tr->memo = kiln_alloc_zero(1, sizeof *tr->memo)))
        return false;
    kiln_memo *s = *memo = tr->memo;
    s->begun = start_of(tr, value);
    s->segment = tr->segment;
    s->nimports = tr->nimports;
    s->ncoming = 0;
    return true;
}

bool kiln_memo_arrived(kiln_memo *s, int32_t leaf, int32_t grad)
{
    if (!KILN_GROW(s->coming, s->coming_capacity, s->ncoming + 1))
        return false;
    s->coming[s->ncoming++] = (kiln_arrival){leaf, grad};
    return true;
}

/* True if the walk has read nothing from outside what it found, drew no random numbers, and assigned to nothing. */
static bool can_be_repeated(const kiln_memo *s, const kiln_trace *tr)
{
    if (tr->segment != s->segment || tr->nimports != s->nimports || tr->device != s->begun.device)
        return false;
    for (int64_t i = s->begun.extent.nodes; i < tr->nnodes; i++)
        if (tr->nodes[i].op->cls == KILN_CLASS_RANDOM)
            return false;
    for (int64_t i = s->begun.extent.values; i < tr->nvalues; i++) {
        const kiln_value *v = &tr->values[i];
        if (v->node < 0 || v->leaf || (v->base == i && (v->storage->has_memory || v->storage->version)))
            return false;
    }
    return true;
}

static bool keep_values(kiln_memo *s, const kiln_trace *tr)
{
    int64_t first = s->start.extent.values, count = s->end.values - first;
    if (!KILN_GROW(s->marks, s->marks_capacity, first) || !KILN_GROW(s->values, s->values_capacity, count) ||
        !KILN_GROW(s->bytes, s->bytes_capacity, count))
        return false;
    for (int64_t i = 0; i < first; i++)
        s->marks[i] = mark_of(&tr->values[i]);
    copy(s->values, tr->values + first, count, sizeof *s->values);
    for (int64_t i = 0; i < count; i++) {
        s->bytes[i] = s->values[i].storage->bytes;
        s->values[i].storage = NULL;
    }
    return true;
}

static bool keep_nodes(kiln_memo *s, const kiln_trace *tr)
{
    int64_t first = s->start.extent.ints, nints = s->end.ints - first;
    if (!KILN_GROW(s->nodes, s->nodes_capacity, tr->nnodes) ||
        !KILN_GROW(s->operands, s->operands_capacity, tr->noperands) || !KILN_GROW(s->ints, s->ints_capacity, nints) ||
        !KILN_GROW(s->floats, s->floats_capacity, tr->nfloats) || !KILN_GROW(s->code, s->code_capacity, tr->ncode))
        return false;
    copy(s->nodes, tr->nodes, tr->nnodes, sizeof *s->nodes);
    copy(s->operands, tr->operands, tr->noperands, sizeof *s->operands);
    copy(s->ints, tr->ints + first, nints, sizeof *s->ints);
    copy(s->floats, tr->floats, tr->nfloats, sizeof *s->floats);
    copy(s->code, tr->code, tr->ncode, sizeof *s->code);
    return true;
}

static void keep_arrivals(kiln_memo *s)
{
    kiln_arrival *spare = s->arrivals;
    int64_t capacity = s->arrivals_capacity;
    s->arrivals = s->coming;
    s->arrivals_capacity = s->coming_capacity;
    s->narrivals = s->ncoming;
    s->coming = spare;
    s->coming_capacity = capacity;
}

bool kiln_memo_end(kiln_memo *s, const kiln_trace *tr)
{
    if (!can_be_repeated(s, tr))
        return true;
    s->start = s->begun;
    s->end = extent_of(tr);
    s->complete = keep_values(s, tr) && keep_nodes(s, tr);
    keep_arrivals(s);
    return s->complete;
}

void kiln_memo_free(kiln_memo *s)
{
    if (!s)
        return;
    kiln_free(s->marks);
    kiln_free(s->code);
    kiln_free(s->nodes);
    kiln_free(s->operands);
    kiln_free(s->floats);
    kiln_free(s->ints);
    kiln_free(s->values);
    kiln_free(s->bytes);
    kiln_free(s->arrivals);
    kiln_free(s->coming);
    kiln_free(s);
}
