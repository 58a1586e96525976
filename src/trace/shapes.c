/* Tensors that have only a shape: see shapes.h. */
#include "trace/shapes.h"
#include "core/fail.h"
#include "tensor/memory.h"
#include "tensor/share.h"

static atomic_bool used; /* there were such tensors: most programs have none, and no flush looks for them */

/* ---- The block ---- */

/* What was written before is computed, what was written inside is not. */
static void end_part(const kiln_thread *th)
{
    if (th->trace && !th->trace->busy)
        kiln_flush(th->trace, false);
}

kiln_shapes_scope kiln_shapes_scope_enter(void)
{
    kiln_thread *th = kiln_thread_state();
    kiln_shapes_scope scope = {.saved = th && th->shapes_only, .active = true};
    if (th && !scope.saved) {
        end_part(th);
        th->shapes_only = true;
    }
    return scope;
}

void kiln_shapes_scope_leave(kiln_shapes_scope *scope)
{
    kiln_thread *th = kiln_thread_state();
    if (scope->active && th && !scope->saved) {
        end_part(th);
        th->shapes_only = false;
    }
    scope->active = false;
}

void kiln_shapes_scope_end(kiln_shapes_scope *scope)
{
    kiln_thread *th = kiln_thread_state();
    if (scope->inside && th && !th->told_broken_block) {
        th->told_broken_block = true;
        kiln_scope_broken("kiln_shapes_only", "the loop goes on");
    }
    kiln_shapes_scope_leave(scope);
}

/* ---- Tensors ---- */

bool kiln_is_shape_only(const kiln_tensor *t)
{
    return t && kiln_tensor_usable(t, "is_shape_only") && t->storage->shape_only &&
           t->storage->version == t->storage->memory_version;
}

bool kiln_shapes_mark(kiln_storage *s)
{
    if (!kiln_device_describe(s->device, NULL))
        return false;
    atomic_store_explicit(&used, true, memory_order_relaxed);
    s->has_memory = s->shape_only = true;
    return true;
}

kiln_tensor *kiln_shapes_tensor(kiln_dtype dtype, int ndim, const int64_t *shape, kiln_device device)
{
    kiln_storage *s = kiln_storage_new(device, (size_t)kiln_count(ndim, shape) * kiln_dtype_size(dtype));
    if (s && kiln_shapes_mark(s))
        return kiln_tensor_make(s, dtype, ndim, shape, NULL, 0);
    kiln_storage_unref(s);
    return NULL;
}

/* ---- Errors ---- */

static bool fail(const char *who, const char *name, int ndim, const int64_t *shape)
{
    kiln_fail(KILN_E_STATE, who, "%s %s has only a shape and no values: it was made inside kiln_shapes_only", name,
              kiln_shape_text(ndim, shape));
    return kiln_hint("give it values first (kiln_module_load, kiln_assign, kiln_init_normal, …), or make it outside of "
                     "kiln_shapes_only; a step that is only to be looked at ends with kiln_discard");
}

bool kiln_shapes_fail(const kiln_tensor *t, const char *who)
{
    return fail(who, kiln_tensor_label(t, "the tensor"), t->ndim, t->shape);
}

bool kiln_shapes_refuse(const char *who)
{
    if (!kiln_shapes_inside())
        return true;
    kiln_fail(KILN_E_STATE, who, "nothing is computed inside kiln_shapes_only: there are shapes, but no values");
    return kiln_hint("call it after the closing brace");
}

bool kiln_shapes_fail_memory(const kiln_tensor *t)
{
    const kiln_op *composing = kiln_thread_state()->composing;
    kiln_fail(KILN_E_STATE, composing ? composing->name : "assign",
              "%s %s has memory and is assigned to inside kiln_shapes_only, where nothing is computed",
              kiln_tensor_label(t, "the tensor"), kiln_shape_text(t->ndim, t->shape));
    return kiln_hint("make it inside kiln_shapes_only, too, or assign to it outside");
}

/* ---- Flushing ---- */

void kiln_shapes_pass(const kiln_trace *tr)
{
    atomic_store_explicit(&used, true, memory_order_relaxed);
    for (int64_t k = 0; k < tr->nkept; k++) {
        kiln_storage *s = tr->values[tr->kept[k]].storage;
        s->has_memory = s->shape_only = true;
        s->trace_refs = 0;
        kiln_set_version(&s->memory_version, s->version);
    }
    for (int64_t k = 0; k < tr->ncommits; k++)
        kiln_storage_assigned(tr->values[tr->commits[k]].storage);
}

static bool any_used(void)
{
    return atomic_load_explicit(&used, memory_order_relaxed);
}

bool kiln_shapes_check(const kiln_trace *tr)
{
    for (int64_t i = 0; i < tr->nimports && any_used(); i++) {
        const kiln_value *v = &tr->values[tr->imports[i]], *base = &tr->values[v->base];
        const kiln_tensor *leaf = v->leaf ? v->leaf : base->leaf;
        if (base->storage->shape_only)
            return fail("step", kiln_tensor_label(leaf, "a tensor"), v->ndim, v->shape);
    }
    return true;
}

/* A slot that is not read is assigned to as a whole. */
bool kiln_shapes_take_memory(const kiln_trace *tr)
{
    for (int64_t i = 0; i < tr->nslots && any_used(); i++) {
        kiln_storage *s = tr->slots[i];
        if (!s->shape_only)
            continue;
        if (!kiln_memory_take(s->device, s->bytes, &s->block))
            return false;
        s->address = s->block.address;
    }
    return true;
}

void kiln_shapes_give_back(const kiln_trace *tr)
{
    for (int64_t i = 0; i < tr->nslots; i++) {
        kiln_storage *s = tr->slots[i];
        if (!s->shape_only)
            continue;
        kiln_memory_give(s->device, s->block);
        s->block = (kiln_block){0};
        s->address = 0;
    }
}
