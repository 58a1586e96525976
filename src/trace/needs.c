/* What gradients can still need. A handle whose value needs a gradient keeps all that this gradient would read, until
 * kiln_backward has gone through it; so does memory that such a value was assigned to. What nothing keeps is not given
 * memory by a flush, and gives up the memory that an earlier one gave it.
 *
 * Values never change, but memory does: where a value is needed and its memory is assigned to, the value gets memory of
 * its own. */
#include "core/alloc.h"
#include "ops/helpers.h"
#include "ops/widen.h"
#include "tensor/memory.h"
#include "trace/trace.h"

/* ---- Which values a gradient can start from ---- */

void kiln_trace_hold(kiln_trace *tr, int32_t value, int by)
{
    kiln_value *v = &tr->values[value];
    v->holders += by;
    if (!v->spent)
        tr->graph_handles += by;
}

bool kiln_trace_walked(kiln_trace *tr, int32_t value)
{
    if (!KILN_GROW(tr->walked, tr->walked_capacity, tr->nwalked + 1))
        return false;
    tr->walked[tr->nwalked++] = value;
    return true;
}

/* ---- Reaching back ---- */

unsigned kiln_trace_reads(const kiln_trace *tr, const kiln_node *n)
{
    unsigned reads = 0;
    for (int k = 0; k < n->nin && n->op->cls != KILN_CLASS_VIEW; k++) {
        int32_t operand = tr->operands[n->in + k];
        if (operand >= 0 && tr->values[operand].requires_grad)
            reads |= kiln_op_reads(n->op, k);
    }
    /* A result that was rounded to 16 bits is computed anew, from the operands (kiln_pw_result). */
    bool rounded = n->op->cls == KILN_CLASS_POINTWISE && kiln_is_half((kiln_dtype)tr->values[n->out].dtype);
    return rounded && reads & KILN_READS_RESULT ? reads | KILN_READS_OPERANDS : reads;
}

static void mark_reads(kiln_trace *tr, const kiln_node *n)
{
    unsigned reads = kiln_trace_reads(tr, n);
    for (int k = 0; k < n->nin; k++)
        if (tr->operands[n->in + k] >= 0 && reads >> (k < 7 ? k : 7) & 1)
            tr->values[tr->values[tr->operands[n->in + k]].base].needed = true;
    for (int j = 0; j < n->nout && reads & KILN_READS_RESULT; j++)
        tr->values[tr->values[n->out + j].base].needed = true;
}

/* From the values that are marked as reached to all that their gradients flow to; with `reads`, what the rules on the
 * way look at is marked as needed. */
static void reach_back(kiln_trace *tr, bool reads)
{
    for (int64_t i = tr->nnodes; i-- > 0;) {
        const kiln_node *n = &tr->nodes[i];
        bool reached = false;
        for (int j = 0; j < n->nout; j++)
            reached |= tr->values[n->out + j].reached;
        if (!reached || !n->requires_grad)
            continue;
        for (int k = 0; k < n->nin; k++) {
            int32_t operand = tr->operands[n->in + k];
            if (operand >= 0)
                tr->values[operand].reached |= tr->values[operand].requires_grad;
        }
        if (reads)
            mark_reads(tr, n);
    }
}

static void clear_marks(kiln_trace *tr)
{
    for (int64_t i = 0; i < tr->nvalues; i++)
        tr->values[i].reached = tr->values[i].needed = false;
}

/* Handles of what kiln_backward has gone through no longer keep anything. */
static void spend(kiln_trace *tr)
{
    if (!tr->nwalked)
        return;
    clear_marks(tr);
    while (tr->nwalked)
        tr->values[tr->walked[--tr->nwalked]].reached = true;
    reach_back(tr, false);
    for (int64_t i = 0; i < tr->nvalues; i++) {
        kiln_value *v = &tr->values[i];
        if (!v->reached || v->spent)
            continue;
        v->spent = true;
        tr->graph_handles -= v->holders;
    }
}

/* Counts the references that the trace itself has to leaves' handles and to memory that was assigned to. */
static void count_own_references(kiln_trace *tr)
{
    kiln_map_clear(&tr->own);
    for (int64_t i = 0; i < tr->nvalues; i++)
        if (tr->values[i].assigned)
            *kiln_map_at(&tr->own, tr->values[i].storage) = 0;
    for (int64_t i = 0; i < tr->nvalues; i++) {
        const kiln_value *v = &tr->values[i];
        if (v->base == i && kiln_map_get(&tr->own, v->storage) >= 0)
            ++*kiln_map_at(&tr->own, v->storage);
        if (v->leaf) {
            int32_t *count = kiln_map_at(&tr->own, v->leaf);
            *count = *count < 0 ? 1 : *count + 1;
        }
    }
}

static bool is_only_ours(const kiln_trace *tr, const void *what, const atomic_int *refs)
{
    return atomic_load_explicit(refs, memory_order_relaxed) == kiln_map_get(&tr->own, what);
}

/* A leaf's handle stands for a computed value once one was assigned to it. If the trace alone still has the handle, it
 * holds that value for nobody. */
static void let_go_of_handles(kiln_trace *tr)
{
    for (int64_t i = 0; i < tr->nvalues; i++) {
        kiln_tensor *t = tr->values[i].leaf;
        int32_t *counted = t ? kiln_map_at(&tr->own, t) : NULL;
        if (!t || !is_only_ours(tr, t, &t->refs))
            continue;
        *counted = 0; /* each once */
        if (kiln_map_get(&tr->own, t->storage) >= 0)
            ++*kiln_map_at(&tr->own, t->storage);
        if (t->leaf || !t->requires_grad || t->epoch != tr->epoch)
            continue;
        kiln_trace_hold(tr, t->value, -1);
        t->requires_grad = false;
        kiln_set_epoch(t, 0);
    }
}

/* Memory that nobody outside the trace can see any more keeps nothing either. */
static void let_go_of_memory(kiln_trace *tr)
{
    for (int64_t i = 0; i < tr->nvalues && tr->nassigned; i++) {
        kiln_value *v = &tr->values[i];
        if (!v->assigned || !is_only_ours(tr, v->storage, &v->storage->refs))
            continue;
        v->assigned = false;
        tr->nassigned--;
        kiln_trace_hold(tr, (int32_t)i, -1);
    }
}

/* A look at the whole trace takes as long as it has grown, so there is one when that much has happened since the last:
 * at an eighth of it, no more than this is kept too long, and reading after each operation stays linear. */
enum { LOOK_AT = 8 };

static bool is_look_due(kiln_trace *tr, int64_t happened)
{
    tr->unlooked += happened;
    if (!tr->nwalked && LOOK_AT * tr->unlooked < tr->nvalues)
        return false;
    tr->unlooked = 0;
    return true;
}

static void look(kiln_trace *tr)
{
    spend(tr);
    if (tr->graph_handles) {
        count_own_references(tr);
        let_go_of_handles(tr);
        let_go_of_memory(tr);
    }
}

bool kiln_trace_has_graph(kiln_trace *tr)
{
    if (tr->graph_handles && is_look_due(tr, 1))
        look(tr);
    return tr->graph_handles > 0;
}

/* ---- Values whose memory is assigned to ---- */

/* A value of the segment that a later assignment replaces: it is computed into memory of its own. */
static bool set_apart(kiln_value *v)
{
    kiln_storage *own = kiln_storage_new(v->storage->device, v->storage->bytes);
    if (!own)
        return false;
    own->role = v->storage->role;
    own->trace_refs = 1;
    v->storage->trace_refs -= !v->storage->has_memory;
    kiln_storage_unref(v->storage);
    v->storage = own;
    v->version = own->version;
    return true;
}

/* What the storage's memory holds before the segment runs, all of it in a row: a value; -1 with an error. */
static int32_t contents_before(kiln_trace *tr, kiln_storage *s, kiln_dtype dtype)
{
    int64_t n = (int64_t)(s->bytes / kiln_dtype_size(dtype)), one = 1;
    if (!KILN_GROW(tr->values, tr->values_capacity, tr->nvalues + 1))
        return -1;
    kiln_value *v = kiln_trace_new_value(tr, -1, s, dtype, 1, &n, &one, 0, false);
    v->version = s->memory_version;
    kiln_storage_ref(s);
    return v->base;
}

/* The segment also copies what is about to be overwritten. The value moves there once it has run. */
static bool copy_away(kiln_trace *tr, int32_t value)
{
    extern const kiln_op kiln_op_clone;
    kiln_storage *s = tr->values[value].storage;
    for (int64_t i = 0; i < tr->nmoves; i++)
        if (tr->values[tr->moves[i].value].storage == s) { /* somebody saves the same */
            if (!KILN_GROW(tr->moves, tr->moves_capacity, tr->nmoves + 1))
                return false;
            tr->moves[tr->nmoves++] = (struct kiln_trace_move){value, tr->moves[i].copy};
            return true;
        }
    int32_t before = contents_before(tr, s, (kiln_dtype)tr->values[value].dtype);
    kiln_tensor *handle = before >= 0 ? kiln_trace_handle(tr, before) : NULL, *copy = NULL;
    kiln_call call = {.op = &kiln_op_clone, .nin = 1, .nout = 1, .in = &handle};
    bool ok = handle && KILN_GROW(tr->moves, tr->moves_capacity, tr->nmoves + 1) && call.op->infer(&call) &&
              kiln_trace_record(tr, &call, s->device, NULL, &copy);
    if (ok) {
        tr->values[copy->value].needed = true;
        tr->moves[tr->nmoves++] = (struct kiln_trace_move){value, copy->value};
    }
    kiln_scope_drop(handle);
    kiln_scope_drop(copy);
    return ok;
}

static bool save_overwritten(kiln_trace *tr)
{
    int64_t values = tr->nvalues; /* copies add to them */
    for (int64_t i = tr->overwrites ? 0 : tr->first_value; i < values && tr->graph_handles; i++) {
        kiln_value *v = &tr->values[i];
        const kiln_storage *s = v->storage;
        if (!v->needed || v->base != i || v->version == s->version)
            continue;
        bool pending = i >= tr->first_value && v->node >= 0;
        bool overwritten = s->has_memory && v->version == s->memory_version &&
                           kiln_map_get(&tr->written, s) >= tr->first_value; /* by this segment */
        if (pending ? !set_apart(v) : overwritten && !copy_away(tr, (int32_t)i))
            return false;
    }
    return true;
}

void kiln_trace_moved(kiln_trace *tr)
{
    while (tr->nmoves) {
        struct kiln_trace_move move = tr->moves[--tr->nmoves];
        kiln_value *v = &tr->values[move.value];
        kiln_storage *to = tr->values[move.copy].storage;
        kiln_storage_ref(to);
        kiln_storage_unref(v->storage);
        v->storage = to;
        v->version = to->version;
    }
}

/* ---- For a flush ---- */

/* All that gradients can read, from what they can start at. */
static void mark_exactly(kiln_trace *tr)
{
    look(tr);
    clear_marks(tr);
    for (int64_t i = 0; i < tr->nvalues && tr->graph_handles; i++) {
        kiln_value *v = &tr->values[i];
        v->reached = v->requires_grad && v->holders > 0 && !v->spent;
    }
    if (tr->graph_handles)
        reach_back(tr, true);
}

/* What the segment's gradients would read, whether or not anybody can ask for them. */
static void mark_segment(kiln_trace *tr)
{
    for (int64_t i = tr->first_node; i < tr->nnodes && tr->graph_handles; i++)
        if (tr->nodes[i].requires_grad)
            mark_reads(tr, &tr->nodes[i]);
}

bool kiln_trace_mark_needed(kiln_trace *tr)
{
    tr->looked = is_look_due(tr, tr->nnodes - tr->first_node);
    if (tr->looked)
        mark_exactly(tr);
    else
        mark_segment(tr);
    return kiln_trail_make_storages(tr) && save_overwritten(tr);
}

void kiln_trace_release_unneeded(kiln_trace *tr)
{
    for (int64_t i = 0; i < tr->first_value && tr->looked; i++) {
        kiln_value *v = &tr->values[i];
        kiln_storage *s = v->storage;
        if (v->base != i || v->node < 0 || v->needed || !s->has_memory || atomic_load(&s->refs) > 1)
            continue;
        kiln_memory_give(s->device, s->block);
        s->has_memory = false;
        s->trace_refs = 1;
    }
}
