/* Which value of the trace a handle stands for. A handle remembers the value it was made for and the version its
 * storage had then. When the storage was assigned to since, through whichever handle, it stands for a window onto what
 * was assigned, which is found when it is next used.
 *
 * That window is part of what the user wrote before, not of what asks for it: it is recorded with its gradient also
 * inside kiln_no_grad. So looking at a tensor never changes a gradient. */
#include <string.h>
#include "core/alloc.h"
#include "ops/helpers.h"
#include "tensor/scope.h"
#include "trace/trace.h"

extern const kiln_op kiln_op_as_strided, kiln_op_straight_through;

/* What a tensor from outside the trace holds. */
static int32_t leaf_value(kiln_trace *tr, kiln_tensor *t)
{
    if (!KILN_GROW(tr->values, tr->values_capacity, tr->nvalues + 1) || !kiln_map_reserve(&tr->leaves, 1) ||
        !kiln_trace_reserve_own(tr, 1))
        return -1;
    int32_t *known = kiln_map_at(&tr->leaves, t);
    if (*known >= 0 && tr->values[*known].storage == t->storage &&
        tr->values[*known].version == t->storage->memory_version &&
        tr->values[*known].requires_grad == (t->requires_grad && t->leaf))
        return *known;
    kiln_value *v = kiln_trace_new_value(tr, -1, t->storage, t->dtype, t->ndim, t->shape, t->stride, t->offset,
                                         t->requires_grad && t->leaf);
    v->version = t->storage->memory_version;
    kiln_storage_ref(t->storage);
    v->leaf = kiln_tensor_ref(t); /* also keeps the address from being reused while the map knows it */
    return *known = v->base;
}

/* ---- After an assignment ---- */

/* The newest value assigned to a storage in this trace; -1: none. */
static int32_t assigned_value(const kiln_trace *tr, const kiln_storage *s)
{
    return tr->written.count ? kiln_map_get(&tr->written, s) : -1;
}

static bool is_parameter(const kiln_tensor *t)
{
    return t->leaf && t->requires_grad;
}

/* The value that a value is a window of, as gradients see it. */
static int32_t shown_whole(const kiln_trace *tr, int32_t value)
{
    for (int32_t node; (node = tr->values[value].node) >= 0;) {
        const kiln_node *n = &tr->nodes[node];
        if (n->op->cls != KILN_CLASS_VIEW || n->op == &kiln_op_straight_through)
            break;
        value = tr->operands[n->in];
    }
    return value;
}

/* Where gradients of `assigned` go, as far as t is concerned: to itself, or past what was assigned unrecorded to what
 * its memory held before. -1: nowhere. */
static int32_t gradient_path(const kiln_trace *tr, const kiln_tensor *t, int32_t assigned)
{
    while (assigned >= 0 && tr->values[assigned].unrecorded) {
        assigned = tr->values[assigned].history;
        if (assigned < 0) /* nothing was assigned before: t still knows what it showed */
            return t->epoch == tr->epoch ? shown_whole(tr, t->value) : -1;
    }
    return assigned;
}

/* Records a call of one result: its value; -1 with an error. */
static int32_t record_value(kiln_trace *tr, const kiln_call *call, kiln_device device, bool grad)
{
    kiln_thread *th = kiln_thread_state();
    kiln_tensor *out = NULL;
    bool enabled = th->grad_enabled;
    th->grad_enabled = grad;
    bool ok = kiln_trace_record(tr, call, device, NULL, &out);
    th->grad_enabled = enabled;
    int32_t value = ok ? out->value : -1;
    kiln_scope_drop(out);
    return value;
}

/* The elements of `assigned` with gradients that go to `path`. */
static int32_t straight_through(kiln_trace *tr, int32_t assigned, int32_t path, kiln_device device)
{
    kiln_tensor *in[] = {kiln_trace_handle(tr, assigned), kiln_trace_handle(tr, path)};
    kiln_call call = {.op = &kiln_op_straight_through, .nin = 2, .nout = 1, .in = in};
    bool ok = in[0] && in[1] && call.op->infer(&call);
    int32_t value = ok ? record_value(tr, &call, device, true) : -1;
    kiln_scope_drop(in[0]);
    kiln_scope_drop(in[1]);
    return value;
}

/* The newest value of t's memory, whole, with the gradient that it has for t; `assigned` was assigned to it last. */
static int32_t newest_value(kiln_trace *tr, const kiln_tensor *t, int32_t assigned)
{
    int32_t path = gradient_path(tr, t, assigned);
    if (path < 0 || path == assigned || !tr->values[path].requires_grad)
        return assigned;
    return straight_through(tr, assigned, path, t->device);
}

/* A window with t's geometry onto `whole`, a value of its memory; without a gradient if t is detached. */
static int32_t window_on(kiln_trace *tr, kiln_tensor *t, int32_t whole)
{
    const kiln_value *v = &tr->values[whole];
    size_t bytes = t->ndim * sizeof *t->shape;
    bool cut = t->detached && v->requires_grad;
    if (!is_parameter(t) && !cut && v->ndim == t->ndim && v->dtype == t->dtype && t->offset == 0 &&
        memcmp(v->shape, t->shape, bytes) == 0 && memcmp(v->stride, t->stride, bytes) == 0)
        return whole; /* as it is */
    kiln_call call = {.op = &kiln_op_as_strided, .nin = 1, .nout = 1};
    kiln_tensor *handle = kiln_trace_handle(tr, whole);
    if (!handle)
        return -1;
    call.in = &handle;
    kiln_attrs *a = &call.attrs;
    a->i[a->nints++] = t->ndim;
    for (int d = 0; d < t->ndim; d++)
        a->i[a->nints++] = t->shape[d];
    for (int d = 0; d < t->ndim; d++)
        a->i[a->nints++] = t->stride[d];
    a->i[a->nints++] = t->offset;
    kiln_desc_like(&call.out[0], t);
    memcpy(call.out[0].stride, t->stride, sizeof t->stride);
    call.out[0].offset = t->offset;
    int32_t value = record_value(tr, &call, t->device, !t->detached);
    if (value >= 0 && is_parameter(t)) { /* after its update: a leaf again */
        tr->values[value].requires_grad = true;
        tr->values[value].leaf = kiln_tensor_ref(t);
    }
    kiln_scope_drop(handle);
    return value;
}

/* From now on the handle stands for `value`. Unless it is a parameter, whether it needs a gradient follows from that.
 */
static void point_at(kiln_trace *tr, kiln_tensor *t, int32_t value)
{
    if (t->requires_grad && !t->leaf && t->epoch == tr->epoch)
        kiln_trace_hold(tr, t->value, -1);
    kiln_set_epoch(t, tr->epoch);
    t->value = value;
    t->version = t->storage->version;
    if (is_parameter(t))
        return;
    bool wants = tr->values[value].requires_grad;
    if (t->requires_grad != wants) /* not written for nothing: other threads may look */
        t->requires_grad = wants;
    if (t->leaf && wants)
        t->leaf = false;
    if (wants)
        kiln_trace_hold(tr, value, 1);
}

/* What was assigned and has run is in memory: a plain import, unless a gradient is to flow back through it. */
static bool is_in_trace(const kiln_trace *tr, const kiln_tensor *t, int32_t value)
{
    return tr->values[value].node >= tr->first_node || (tr->values[value].requires_grad && !t->detached);
}

int32_t kiln_trace_value(kiln_trace *tr, kiln_tensor *t)
{
    if (kiln_trace_knows(tr, t))
        return t->value;
    if (t->storage->thunk)
        return kiln_trace_made_value(tr, t);
    int32_t whole = assigned_value(tr, t->storage);
    if (whole >= 0 && !is_parameter(t) && !t->detached && (whole = newest_value(tr, t, whole)) < 0)
        return -1;
    if (whole < 0 || !is_in_trace(tr, t, whole))
        return kiln_trace_has_value(t->storage, NULL) ? leaf_value(tr, t) : -1;
    int32_t value = window_on(tr, t, whole);
    if (value >= 0)
        point_at(tr, t, value);
    return value;
}

kiln_tensor *kiln_trace_whole(kiln_trace *tr, kiln_tensor *t)
{
    int32_t value = kiln_trace_value(tr, t), whole = value < 0 ? -1 : assigned_value(tr, t->storage);
    if (value < 0 || (whole >= 0 && (whole = newest_value(tr, t, whole)) < 0))
        return NULL;
    if (whole >= 0 && is_in_trace(tr, t, whole))
        return kiln_trace_handle(tr, whole);
    int32_t base = tr->values[value].base;
    if (base != value && tr->values[base].node >= 0) /* what a node made is dense; a leaf may itself be a window */
        return kiln_trace_handle(tr, base);
    int64_t n = (int64_t)(t->storage->bytes / kiln_dtype_size((kiln_dtype)t->dtype));
    kiln_storage_ref(t->storage);
    return kiln_tensor_make(t->storage, (kiln_dtype)t->dtype, 1, &n, NULL, 0);
}

bool kiln_needs_grad(const kiln_tensor *t)
{
    if (!t || !kiln_tensor_usable(t, "needs_grad"))
        return false;
    if (is_parameter(t))
        return true;
    const kiln_trace *tr = kiln_thread_current ? kiln_thread_current->trace : NULL;
    if (!tr || kiln_trace_knows(tr, t))
        return tr && t->requires_grad;
    int32_t assigned = assigned_value(tr, t->storage);
    if (assigned < 0)
        return t->requires_grad && t->epoch == tr->epoch;
    int32_t path = t->detached ? -1 : gradient_path(tr, t, assigned);
    return path >= 0 && tr->values[path].requires_grad;
}

/* ---- Handles of values ---- */

kiln_tensor *kiln_trace_handle_of(kiln_trace *tr, int32_t value, kiln_storage *s)
{
    const kiln_value *v = &tr->values[value];
    kiln_tensor *t = kiln_tensor_make(s, (kiln_dtype)v->dtype, v->ndim, v->shape, v->stride, v->offset);
    if (!t)
        return NULL;
    kiln_set_epoch(t, tr->epoch);
    t->value = value;
    t->version = s->version; /* the handle means this value, also if the storage was assigned to since */
    t->leaf = false;
    t->requires_grad = v->requires_grad;
    if (t->requires_grad)
        kiln_trace_hold(tr, value, 1);
    return t;
}

kiln_tensor *kiln_trace_handle(kiln_trace *tr, int32_t value)
{
    kiln_storage *s = kiln_trail_storage(tr, tr->values[value].base);
    if (!s)
        return NULL;
    kiln_storage_ref(s);
    return kiln_trace_handle_of(tr, value, s);
}

void kiln_trace_forget(const kiln_tensor *t)
{
    kiln_thread *th = kiln_thread_state();
    if (th && th->trace && t->epoch == th->trace->epoch)
        kiln_trace_hold(th->trace, t->value, -1);
}
