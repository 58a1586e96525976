/* Recording: values, imports, nodes and the code that identifies a segment. */
#include "trace/trace.h"
#include <stdlib.h>
#include <string.h>
#include "core/alloc.h"
#include "core/fail.h"
#include "tensor/scope.h"
#include "tensor/share.h"

/* Epochs tell traces apart, also those of different threads. */
static atomic_uint_fast64_t next_epoch = 1;

/* What a thread has not run when it ends has never happened. */
static void trace_free(kiln_trace *tr)
{
    kiln_trace_discard(tr);
    kiln_map_free(&tr->leaves);
    kiln_map_free(&tr->slot_of);
    kiln_map_free(&tr->written);
    kiln_map_free(&tr->own);
    kiln_free(tr->values);
    kiln_free(tr->nodes);
    kiln_free(tr->operands);
    kiln_free(tr->ints);
    kiln_free(tr->floats);
    kiln_free(tr->imports);
    kiln_free(tr->import_code);
    kiln_free(tr->slots);
    kiln_free(tr->code);
    kiln_free(tr->kept);
    kiln_free(tr->commits);
    kiln_free(tr->commit_slots);
    kiln_free(tr->addresses);
    kiln_free(tr->blocks);
    kiln_free(tr->replaced);
    kiln_free(tr->walked);
    kiln_free(tr->moves);
    kiln_free(tr->spare_grads);
    kiln_free(tr->spare_arrived);
    kiln_free(tr->times);
    kiln_trail_free(&tr->trail);
    kiln_free(tr);
}

kiln_trace *kiln_trace_make(void)
{
    kiln_thread *th = kiln_thread_state();
    kiln_trace *tr = th ? kiln_alloc_zero(1, sizeof *tr) : NULL;
    if (!tr)
        return NULL;
    const char *eager = getenv("KILN_EAGER");
    tr->eager = eager && *eager && strcmp(eager, "0") != 0;
    tr->epoch = atomic_fetch_add(&next_epoch, 1);
    tr->segment = 1;
    tr->leaves.stamp = tr->slot_of.stamp = tr->written.stamp = tr->own.stamp = 1;
    th->trace = tr;
    th->trace_free = trace_free;
    return tr;
}

static void start_segment(kiln_trace *tr)
{
    tr->segment++;
    tr->first_node = (int32_t)tr->nnodes;
    tr->first_value = (int32_t)tr->nvalues;
    tr->first_float = (int32_t)tr->nfloats;
    tr->first_region = 0;
    tr->nimports = tr->nslots = tr->ncode = tr->overwrites = tr->nmoves = 0;
    kiln_map_clear(&tr->slot_of);
}

void kiln_trace_clear(kiln_trace *tr)
{
    /* New epoch first: releasing leaves below may free handles, which then need not be looked up. */
    tr->epoch = atomic_fetch_add(&next_epoch, 1);
    kiln_trail_restart(tr);
    kiln_trace_finish_grads(tr, false);
    for (int64_t i = 0; i < tr->nvalues; i++) {
        kiln_value *v = &tr->values[i];
        if (v->base == i && v->storage) {
            if (!v->storage->has_memory) /* otherwise other threads may be using it: nothing is written to it */
                v->storage->trace_refs--;
            kiln_storage_unref(v->storage);
        }
        kiln_tensor_unref(v->leaf);
    }
    tr->nvalues = tr->nnodes = tr->noperands = tr->nints = tr->nfloats = 0;
    tr->graph_handles = tr->nassigned = tr->nwalked = tr->unlooked = 0;
    kiln_map_clear(&tr->leaves);
    kiln_map_clear(&tr->written);
    start_segment(tr);
    tr->trail.segment = tr->segment;
}

void kiln_trace_discard(kiln_trace *tr)
{
    for (int64_t i = tr->first_value; i < tr->nvalues; i++) {
        const kiln_value *v = &tr->values[i];
        if (v->base == i && v->node >= 0 && v->storage && v->storage->has_memory)
            kiln_storage_unassigned(v->storage);
    }
    kiln_trace_finish_grads(tr, true);
    kiln_trace_clear(tr);
}

void kiln_trace_next_segment(kiln_trace *tr)
{
    kiln_trail_end_segment(tr);
    start_segment(tr);
    kiln_trace_finish_grads(tr, false);
}

/* ---- The code ---- */

/* Words being written, each compared with what lies there from the last step (trail.h). */
typedef struct writing {
    int64_t *word, differs;
} writing;

static writing begin_writing(const kiln_trace *tr)
{
    return (writing){tr->code + tr->ncode, 0};
}

static void put_word(writing *w, int64_t word)
{
    w->differs |= *w->word ^ word;
    *w->word++ = word;
}

/* How long the code is then. */
static int64_t end_writing(kiln_trace *tr, const writing *w)
{
    int64_t ncode = w->word - tr->code;
    tr->trail.intact = tr->trail.intact && ncode <= tr->trail.last.code && !w->differs;
    return ncode;
}

bool kiln_trace_slot(kiln_trace *tr, kiln_storage *s, int32_t *slot)
{
    if (!KILN_GROW(tr->slots, tr->slots_capacity, tr->nslots + 1) || !kiln_map_reserve(&tr->slot_of, 1))
        return false;
    int32_t *known = kiln_map_at(&tr->slot_of, s);
    if (*known < 0) {
        *known = (int32_t)tr->nslots++;
        tr->slots[*known] = s;
        kiln_storage_use(kiln_thread_state(), s);
    }
    *slot = *known;
    return true;
}

bool kiln_trace_fail_no_value(const kiln_storage *s, const char *who)
{
    if (s->has_memory && !kiln_device_wait(s->device))
        return false; /* the error of the run that failed, if nobody was told yet */
    kiln_fail(KILN_E_STATE, who, "a tensor has no value: it is pending in another thread, or its step was discarded");
    return kiln_hint(
        "call kiln_eval in the thread that wrote it before handing it over; after an error, write it again");
}

/* Values of this trace are saved before their memory is assigned to: somebody else has done that. Always false. */
static bool fail_overwritten(const kiln_trace *tr, const kiln_value *v)
{
    const kiln_tensor *leaf = v->leaf ? v->leaf : tr->values[v->base].leaf;
    const kiln_op *maker = v->node >= 0 ? tr->nodes[v->node].origin : NULL, *reader = kiln_thread_state()->composing;
    const char *name = leaf ? kiln_get_name(leaf) : "", *made = *name ? name : maker ? maker->name : "a tensor";
    kiln_fail(KILN_E_STATE, reader ? reader->name : NULL,
              "%s%s %s is still needed, but was overwritten by another thread, or by steps that were not recorded",
              maker && !*name ? "the result of " : "", made, kiln_shape_text(v->ndim, v->shape));
    return kiln_hint("compute and use it within one kiln_step, or kiln_clone it");
}

/* An earlier segment has made it, or not even that: no handle could ask for it then. Always false. */
static bool fail_given_up(void)
{
    const kiln_op *reader = kiln_thread_state()->composing;
    kiln_fail(KILN_E_STATE, reader ? reader->name : NULL,
              "kiln_backward has gone through this before, and what it needed was given up when a value was read");
    return kiln_hint("use kiln_backward_retain for all but the last pass, or read values after it");
}

/* Leaves get value numbers too, when they are first met, so a value's own number may differ between equal segments (and
 * be the same in different ones): the code numbers imports by first use, and what the segment makes by node and output.
 */
bool kiln_trace_import(kiln_trace *tr, int32_t value)
{
    kiln_value *v = &tr->values[value];
    kiln_storage *s = tr->values[v->base].storage;
    if (!s->has_memory && tr->values[v->base].node >= 0)
        return fail_given_up();
    if (!kiln_trace_has_value(s, NULL))
        return false;
    kiln_value *base = &tr->values[v->base];
    if (base->node < 0 && !base->import_segment) /* first met just now: another thread may have been quick */
        base->version = s->memory_version;
    else if (base->version != s->memory_version) /* not looked at twice: it may change between two looks */
        return fail_overwritten(tr, v);
    int32_t slot;
    if (!KILN_GROW(tr->imports, tr->imports_capacity, tr->nimports + 1) ||
        !KILN_GROW(tr->import_code, tr->import_code_capacity, tr->nimports + 1) || !kiln_trace_slot(tr, s, &slot) ||
        !KILN_GROW(tr->code, tr->code_capacity, tr->ncode + 6 + 2 * KILN_MAX_DIMS))
        return false;
    v->import = (int32_t)tr->nimports;
    v->import_segment = tr->segment;
    v->number = -1 - v->import;
    tr->import_code[tr->nimports] = tr->ncode;
    tr->imports[tr->nimports++] = value;
    writing w = begin_writing(tr);
    put_word(&w, KILN_CODE_IMPORT);
    put_word(&w, (int64_t)slot << 32 | v->dtype << 16 | v->ndim << 8 | (uint8_t)s->role);
    put_word(&w, (int64_t)s->bytes);
    put_word(&w, s->device);
    put_word(&w, v->offset);
    for (int d = 0; d < v->ndim; d++) {
        put_word(&w, v->shape[d]);
        put_word(&w, v->stride[d]);
    }
    tr->ncode = end_writing(tr, &w);
    return true;
}

/* ---- Values ---- */

/* Whether the last step has such a value at this place. */
static bool is_trailed(const kiln_trace *tr, int32_t node, int dtype, int ndim, const int64_t *shape,
                       const int64_t *stride, int64_t offset, bool requires_grad)
{
    const kiln_value *v = &tr->values[tr->nvalues];
    if (tr->nvalues >= tr->trail.last.values || v->node != node || v->dtype != dtype || v->ndim != ndim ||
        v->offset != offset || v->requires_grad != requires_grad)
        return false;
    int64_t differs = 0;
    for (int d = 0; d < ndim; d++)
        differs |= (v->shape[d] ^ shape[d]) | (v->stride[d] ^ stride[d]);
    return !differs;
}

kiln_value *kiln_trace_new_value(kiln_trace *tr, int32_t node, kiln_storage *storage, int dtype, int ndim,
                                 const int64_t *shape, const int64_t *stride, int64_t offset, bool requires_grad)
{
    kiln_value *v = &tr->values[tr->nvalues];
    if (tr->trail.intact)
        tr->trail.intact = is_trailed(tr, node, dtype, ndim, shape, stride, offset, requires_grad);
    v->node = node;
    v->base = (int32_t)tr->nvalues++;
    v->dtype = (uint8_t)dtype;
    v->ndim = (uint8_t)ndim;
    v->requires_grad = requires_grad;
    v->needed = v->unrecorded = v->assigned = v->spent = v->wanted = false;
    v->holders = 0;
    v->version = storage->version;
    v->import = -1;
    v->import_segment = 0;
    v->storage = storage;
    v->leaf = NULL;
    v->offset = offset;
    for (int d = 0; d < ndim; d++) {
        v->shape[d] = shape[d];
        v->stride[d] = stride[d];
    }
    return v;
}

/* ---- Nodes ---- */

static bool make_room(kiln_trace *tr, const kiln_call *c)
{
    return KILN_GROW(tr->nodes, tr->nodes_capacity, tr->nnodes + 1) &&
           KILN_GROW(tr->values, tr->values_capacity, tr->nvalues + c->nout) &&
           KILN_GROW(tr->operands, tr->operands_capacity, tr->noperands + c->nin) &&
           KILN_GROW(tr->ints, tr->ints_capacity, tr->nints + c->attrs.nints) &&
           KILN_GROW(tr->floats, tr->floats_capacity, tr->nfloats + c->attrs.nfloats) &&
           KILN_GROW(tr->code, tr->code_capacity, tr->ncode + 5 + c->nin + c->attrs.nints + KILN_MAX_DIMS);
}

/* Above the counts: whether a walk back wrote the node, and to which region it belongs, counted from the segment's
 * first.
 */
static int64_t marks_of(kiln_trace *tr, const kiln_node *n)
{
    if (!n->region)
        return (int64_t)n->back << 40;
    if (!tr->first_region)
        tr->first_region = n->region;
    return (int64_t)n->back << 40 | (int64_t)1 << 41 | (int64_t)((n->region - tr->first_region) & 0xfffff) << 42;
}

/* Numbers that a gradient's rule may see are not what they were in the last step. */
static bool numbers_differ(const kiln_trace *tr, const kiln_call *c, const kiln_node *n)
{
    size_t bytes = (size_t)c->attrs.nfloats * sizeof *c->attrs.f;
    return n->requires_grad && bytes && n->floats + c->attrs.nfloats <= tr->trail.last.floats &&
           memcmp(tr->floats + n->floats, c->attrs.f, bytes) != 0;
}

/* Writes what the node is made of, and the same as code; returns how long that is then. `differs`: the node that the
 * last step has here does, in what is not part of the code. */
static int64_t put_node(kiln_trace *tr, const kiln_call *c, const kiln_node *n, const int32_t *in, bool differs)
{
    writing w = begin_writing(tr);
    int nin = c->nin, nints = c->attrs.nints, nfloats = c->attrs.nfloats;
    if (tr->trail.intact)
        tr->trail.same_numbers &= !numbers_differ(tr, c, n);
    w.differs = differs;
    put_word(&w, (int64_t)(intptr_t)n->op);
    put_word(&w, (int64_t)(intptr_t)n->origin);
    put_word(&w, marks_of(tr, n) | (int64_t)nin << 32 | nints << 16 | nfloats);
    for (int i = 0; i < nin; i++) {
        w.differs |= tr->operands[n->in + i] ^ in[i];
        tr->operands[n->in + i] = in[i];
        put_word(&w, in[i] < 0 || kiln_trace_is_path(n->op, i) ? INT64_MIN : tr->values[in[i]].number);
    }
    for (int i = 0; i < nints; i++)
        put_word(&w, tr->ints[n->ints + i] = c->attrs.i[i]);
    for (int i = 0; i < nfloats; i++)
        tr->floats[n->floats + i] = c->attrs.f[i];
    return end_writing(tr, &w);
}

static kiln_storage *output_storage(const kiln_desc *d, kiln_device device, int refs)
{
    int64_t n = 1;
    for (int i = 0; i < d->ndim; i++)
        n *= d->shape[i];
    kiln_storage *s = kiln_storage_new(device, (size_t)n * kiln_dtype_size(d->dtype));
    if (s)
        atomic_init(&s->refs, refs); /* nobody else knows it yet */
    return s;
}

/* A result that lives in `bind`: its window must be the dense whole of that storage. */
static bool add_output(kiln_trace *tr, const kiln_desc *d, const kiln_node *n, int j, kiln_device device,
                       kiln_storage *bind, kiln_tensor **out)
{
    bool view = n->op->cls == KILN_CLASS_VIEW;
    const kiln_value *base = view ? &tr->values[tr->values[tr->operands[n->in]].base] : NULL;
    kiln_storage *s = view ? base->storage : bind ? bind : output_storage(d, device, out ? 2 : 1);
    if (!s)
        return false;
    if (bind) /* the value's reference */
        kiln_storage_ref(s);
    if (out && (view || bind)) /* the handle's */
        kiln_storage_ref(s);
    int64_t dense[KILN_MAX_DIMS];
    if (!view)
        kiln_dense_strides(d->ndim, d->shape, dense);
    kiln_value *v =
        kiln_trace_new_value(tr, (int32_t)tr->nnodes, s, d->dtype, d->ndim, d->shape, view ? d->stride : dense,
                             view ? d->offset : 0, n->requires_grad && kiln_dtype_is_float(d->dtype));
    v->number = (v->node - tr->first_node) * KILN_MAX_OUTPUTS + j;
    if (view) {
        v->base = base->base;
        v->version = base->version;
    } else
        s->trace_refs += !s->has_memory;
    return !out || (out[j] = kiln_trace_handle_of(tr, n->out + j, s));
}

static void take_back_outputs(kiln_trace *tr, int64_t values)
{
    while (tr->nvalues > values) {
        const kiln_value *v = &tr->values[--tr->nvalues];
        if (v->base != tr->nvalues)
            continue;
        v->storage->trace_refs -= !v->storage->has_memory;
        kiln_storage_unref(v->storage);
    }
}

/* Numbers of the operands' values, made readable in the segment: all of them but what a view only hands gradients to.
 */
static bool find_operands(kiln_trace *tr, const kiln_call *c, int32_t *in, bool *grad)
{
    for (int i = 0; i < c->nin; i++) {
        kiln_tensor *t = c->in[i];
        in[i] = -1;
        if (!t)
            continue;
        if ((in[i] = kiln_trace_knows(tr, t) ? t->value : kiln_trace_value(tr, t)) < 0)
            return false;
        const kiln_value *v = &tr->values[in[i]];
        *grad |= v->requires_grad;
        bool known = v->import_segment == tr->segment || v->node >= tr->first_node;
        if (!known && !kiln_trace_is_path(c->op, i) && !kiln_trace_import(tr, in[i]))
            return false;
    }
    return true;
}

bool kiln_trace_record(kiln_trace *tr, const kiln_call *c, kiln_device device, kiln_storage *const *bind,
                       kiln_tensor **out)
{
    int32_t in[KILN_MAX_INPUTS];
    bool grad = false;
    if (tr->device != device && tr->nnodes > tr->first_node && !kiln_flush(tr, false))
        return false;
    tr->device = device;
    if (!find_operands(tr, c, in, &grad) || !make_room(tr, c))
        return false;
    kiln_thread *th = kiln_thread_state();
    kiln_node *n = &tr->nodes[tr->nnodes];
    const kiln_node last = tr->nnodes < tr->trail.last.nodes ? *n : (kiln_node){0};
    *n = (kiln_node){.op = c->op,
                     .origin = th->composing ? th->composing : c->op,
                     .in = (int32_t)tr->noperands,
                     .nin = c->nin,
                     .out = (int32_t)tr->nvalues,
                     .nout = c->nout,
                     .ints = (int32_t)tr->nints,
                     .nints = c->attrs.nints,
                     .floats = (int32_t)tr->nfloats,
                     .nfloats = c->attrs.nfloats,
                     .region = tr->walks ? 0 : th->region,
                     .module = th->module,
                     .number = (int32_t)tr->nnodes - tr->first_node,
                     .back = tr->walks > 0,
                     .requires_grad = grad && th->grad_enabled && c->op->grad};
    bool differs = last.requires_grad != n->requires_grad || last.module != n->module;
    int64_t ncode = put_node(tr, c, n, in, differs);
    for (int j = 0; j < n->nout; j++)
        if (!add_output(tr, &c->out[j], n, j, device, bind ? bind[j] : NULL, out)) {
            for (int k = 0; out && k < j; k++)
                kiln_scope_drop(out[k]);
            take_back_outputs(tr, n->out);
            return false;
        }
    if (out && c->op->cls == KILN_CLASS_VIEW)
        out[0]->detached = c->in[0]->detached;
    tr->ncode = ncode;
    tr->nnodes++;
    tr->noperands += n->nin;
    tr->nints += n->nints;
    tr->nfloats += n->nfloats;
    return true;
}

/* Many nodes that nothing will ever read may pile up where no step ends: run them off at some point. */
enum { SEGMENT_LIMIT = 4000, SCOPE_LIMIT = 500 };

bool kiln_trace_tidy(kiln_trace *tr)
{
    kiln_thread *th = kiln_thread_state();
    if (th->steps || tr->busy)
        return true;
    bool ok = tr->nnodes - tr->first_node <= SEGMENT_LIMIT || kiln_flush(tr, false);
    if (tr->nvalues && tr->nnodes == tr->first_node && !tr->walks && !kiln_trace_has_graph(tr))
        kiln_trace_clear(tr);
    return ok;
}

/* True if somebody can ask for something that is pending. */
static bool is_pending_seen(const kiln_trace *tr)
{
    for (int64_t i = tr->first_value; i < tr->nvalues; i++) {
        const kiln_value *v = &tr->values[i];
        if (v->base == i && v->node >= 0 && v->storage && kiln_trace_is_seen(v->storage))
            return true;
    }
    return false;
}

bool kiln_trace_end_segment(kiln_trace *tr)
{
    kiln_thread *th = kiln_thread_state();
    if (th->steps || tr->busy || tr->walks)
        return true;
    if ((tr->overwrites || tr->nnodes - tr->first_node > SCOPE_LIMIT) && !kiln_flush(tr, false))
        return false;
    if (tr->nnodes > tr->first_node && !kiln_trace_has_graph(tr) && !is_pending_seen(tr))
        kiln_trace_clear(tr);
    return kiln_trace_tidy(tr);
}

/* What was written before a step is computed before it, so that a step that fails takes nothing else with it. */
void kiln_trace_step_begin(void)
{
    kiln_thread *th = kiln_thread_state();
    kiln_trace *tr = th ? th->trace : NULL;
    if (!tr || tr->busy)
        return;
    kiln_flush(tr, false);
    if (tr->timing == KILN_TIMED_NEXT) {
        tr->timing = KILN_TIMED_NOW;
        tr->ntimes = 0;
    }
}

void kiln_trace_given_up(bool held)
{
    kiln_thread *th = kiln_thread_state();
    if (!th || !th->trace)
        return;
    if (held || th->trace->nassigned)
        kiln_trace_look_next(th->trace);
    kiln_trace_end_segment(th->trace);
}

void kiln_trace_scope_end(kiln_scope_kind kind, bool failed)
{
    kiln_thread *th = kiln_thread_state();
    kiln_trace *tr = th ? th->trace : NULL;
    if (!tr || tr->busy)
        return;
    if (kind != KILN_SCOPE_STEP) {
        if (kind == KILN_SCOPE_PLAIN && !th->nframes) {
            kiln_trace_look_next(tr);
            kiln_trace_end_segment(tr);
        } else
            kiln_trace_tidy(tr);
        return;
    }
    bool outermost = th->steps == 0;
    if (failed)
        kiln_trace_discard(tr);
    else
        failed = !kiln_flush(tr, outermost);
    if (outermost && tr->timing == KILN_TIMED_NOW) {
        tr->timing = KILN_UNTIMED;
        tr->ntimes = failed ? 0 : tr->ntimes;
    }
    if (outermost) {
        tr->fresh_steps = tr->planned ? tr->fresh_steps + 1 : 0;
        tr->planned = false;
    }
    if (outermost && tr->nnodes == tr->first_node && tr->nvalues)
        kiln_trace_clear(tr);
}
