/* Thunks: see thunk.h. */
#include "trace/thunk.h"
#include "core/alloc.h"
#include "core/fail.h"
#include "tensor/scope.h"

void kiln_thunk_free(kiln_thunk *r)
{
    for (int i = 0; i < r->nin; i++)
        kiln_tensor_unref(r->in[i]);
    kiln_free(r);
}

kiln_tensor *kiln_thunk_new(const kiln_op *op, kiln_tensor *const *in, int nin, const kiln_attrs *attrs)
{
    kiln_call c = {.op = op, .nin = nin, .nout = 1, .in = (kiln_tensor **)in, .attrs = *attrs};
    if (!op->infer(&c))
        return NULL;
    kiln_storage *s = kiln_storage_new(in[0]->device, (size_t)kiln_count(c.out[0].ndim, c.out[0].shape) *
                                                          kiln_dtype_size(c.out[0].dtype));
    kiln_thunk *r = s ? kiln_alloc_zero(1, sizeof *r) : NULL;
    if (!r) {
        kiln_storage_unref(s);
        return NULL;
    }
    r->op = op;
    r->nin = nin;
    for (int i = 0; i < nin; i++)
        r->in[i] = kiln_tensor_ref(in[i]);
    r->attrs = c.attrs;
    r->out = c.out[0];
    s->thunk = r;
    return kiln_tensor_make(s, r->out.dtype, r->out.ndim, r->out.shape, NULL, 0);
}

/* A trace that knows the handle, or its value, holds a reference to it. */
kiln_thunk *kiln_thunk_alone(const kiln_tensor *t)
{
    bool alone = atomic_load_explicit(&t->refs, memory_order_acquire) == 1 &&
                 atomic_load_explicit(&t->storage->refs, memory_order_acquire) == 1;
    return alone ? t->storage->thunk : NULL;
}

kiln_tensor *kiln_trace_follow(kiln_trace *tr, const kiln_tensor *t)
{
    const kiln_thunk *r = t->storage->thunk;
    kiln_tensor *out = NULL;
    kiln_call c; /* filled in, not cleared: it is mostly room */
    c.op = r->op;
    c.nin = r->nin;
    c.nout = 1;
    c.in = (kiln_tensor **)r->in;
    c.attrs.nints = r->attrs.nints;
    c.attrs.nfloats = r->attrs.nfloats;
    for (int i = 0; i < r->attrs.nints; i++)
        c.attrs.i[i] = r->attrs.i[i];
    for (int i = 0; i < r->attrs.nfloats; i++)
        c.attrs.f[i] = r->attrs.f[i];
    c.out[0] = r->out;
    kiln_thread *th = kiln_thread_state();
    const kiln_op *composing = th->composing;
    th->composing = NULL; /* it is no part of what it is the first operand of */
    bool ok = kiln_trace_record(tr, &c, t->device, NULL, &out) &&
              kiln_trace_vary(tr, r, 0, tr->nfloats - r->attrs.nfloats, r->attrs.nfloats);
    th->composing = composing;
    return ok ? out : NULL;
}

/* True while the trace can still read the value: it is pending, or has memory. */
static bool is_there(const kiln_trace *tr, int32_t value)
{
    return tr->values[value].node >= tr->first_node || tr->values[value].storage->has_memory;
}

int32_t kiln_trace_made_value(kiln_trace *tr, kiln_tensor *t)
{
    int32_t value = kiln_map_get(&tr->leaves, t);
    if (value >= 0 && is_there(tr, value))
        return value;
    kiln_tensor *made = kiln_trace_follow(tr, t);
    if (!made || !kiln_map_reserve(&tr->leaves, 1)) {
        kiln_scope_drop(made);
        return -1;
    }
    value = made->value;
    tr->values[value].leaf = kiln_tensor_ref(t); /* keeps the address from being reused while the map knows it */
    *kiln_map_at(&tr->leaves, t) = value;
    kiln_scope_drop(made);
    return value;
}

/* As for a tensor that moves to another device (nn/move.c): the handle stays, the storage is replaced, and counts
 * versions on, so that values that a trace remembers of the handle are known to be old. */
static void adopt(kiln_tensor *t, const kiln_tensor *made)
{
    kiln_storage *old = t->storage, *fresh = made->storage;
    kiln_storage_ref(fresh);
    kiln_set_version(&fresh->version, old->version + 1);
    kiln_set_version(&fresh->memory_version, old->version + 1);
    t->storage = fresh;
    kiln_storage_unref(old);
}

bool kiln_trace_force(kiln_tensor *t)
{
    if (!t->storage->thunk)
        return true;
    kiln_trace *tr = kiln_trace_current();
    kiln_tensor *made = tr ? kiln_trace_follow(tr, t) : NULL;
    if (!made || !kiln_flush(tr, false))
        return false;
    adopt(t, made);
    kiln_scope_drop(made);
    return true;
}
