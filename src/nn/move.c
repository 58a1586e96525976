/* Moving a tree to another device, and casting it to another type. Optimizers and programs hold the handles of
 * parameters, so the handles stay: what they refer to is replaced, once all of it has arrived. */
#include "core/alloc.h"
#include "nn/module.h"
#include "trace/shapes.h"

/* From now on t shows what `moved`, a fresh dense tensor of the same shape, holds. The new storage counts versions from
 * where the old one stopped: values that the trace remembers of t are then known to be old. */
static void redirect(kiln_tensor *t, const kiln_tensor *moved)
{
    kiln_storage *old = t->storage, *fresh = moved->storage;
    kiln_storage_ref(fresh);
    fresh->role = old->role;
    kiln_set_version(&fresh->version, old->version + 1);
    kiln_set_version(&fresh->memory_version, old->version + 1);
    t->storage = fresh;
    t->device = fresh->device;
    t->dtype = moved->dtype;
    t->offset = 0;
    kiln_dense_strides(t->ndim, t->shape, t->stride);
    kiln_set_epoch(t, 0);
    t->value = -1;
    t->version = fresh->version;
    kiln_storage_unref(old);
}

/* Where to, or into what. */
typedef struct destination {
    kiln_device device; /* KILN_NO_DEVICE: each stays where it is */
    kiln_dtype dtype;   /* of floats; KILN_DTYPES: each keeps its own */
} destination;

/* What has to change: tensors, then gradients; NULL where there is none or it is as it should be already. */
static kiln_tensor *traveller(kiln_params state, int64_t i, const destination *to)
{
    kiln_tensor *t = i < state.count ? state.tensors[i] : kiln_grad_of(state.tensors[i - state.count]);
    if (!t)
        return NULL;
    bool moves = to->device != KILN_NO_DEVICE && t->device != to->device;
    bool casts = to->dtype != KILN_DTYPES && kiln_dtype_is_float(kiln_dtype_of(t)) && kiln_dtype_of(t) != to->dtype;
    return moves || casts ? t : NULL;
}

static kiln_tensor *changed(kiln_tensor *t, const destination *to)
{
    if (to->device != KILN_NO_DEVICE)
        return kiln_to(t, to->device);
    return kiln_is_shape_only(t) ? kiln_shapes_tensor(to->dtype, t->ndim, t->shape, t->device)
                                 : kiln_cast(t, to->dtype);
}

static bool change_all(kiln_params state, const destination *to, kiln_tensor **changes)
{
    for (int64_t i = 0; i < 2 * state.count; i++) {
        kiln_tensor *t = traveller(state, i, to);
        if (t && !(changes[i] = changed(t, to)))
            return false;
    }
    if (!kiln_eval())
        return false;
    for (int64_t i = 0; i < 2 * state.count; i++)
        if (changes[i])
            redirect(traveller(state, i, to), changes[i]);
    return true;
}

static bool change(kiln_module *m, const destination *to)
{
    uint64_t failures = kiln_fail_count();
    kiln_params state = kiln_state(m);
    if (kiln_fail_count() != failures || !kiln_eval()) /* what is pending belongs to what it was written for */
        return false;
    kiln_tensor **changes = kiln_alloc_zero(2 * (size_t)state.count, sizeof(kiln_tensor *));
    bool ok = false;
    if (changes)
        kiln_inner_scope
            kiln_no_grad
                ok = change_all(state, to, changes);
    kiln_free(changes);
    return ok;
}

bool kiln_module_to(kiln_module *m, kiln_device device)
{
    if (!m)
        return kiln_fail_null("module_to", 1);
    return kiln_device_describe(device, NULL) && change(m, &(destination){device, KILN_DTYPES});
}

bool kiln_module_cast(kiln_module *m, kiln_dtype dtype)
{
    if (!m)
        return kiln_fail_null("module_cast", 1);
    if (!kiln_dtype_is_float(dtype)) {
        kiln_fail(KILN_E_DTYPE, "module_cast", "a model cannot be cast to %s",
                  kiln_dtype_size(dtype) ? kiln_dtype_name(dtype) : "what is no dtype");
        return kiln_hint("KILN_F16, KILN_BF16, KILN_F32 and KILN_F64 are the floats there are");
    }
    return change(m, &(destination){KILN_NO_DEVICE, dtype});
}

static kiln_device first_device(const kiln_module *m)
{
    kiln_device device = m->nmembers ? m->members[0].tensor->device : KILN_NO_DEVICE;
    for (int64_t i = 0; device == KILN_NO_DEVICE && i < m->nchildren; i++)
        device = first_device(m->children[i]);
    return device;
}

kiln_device kiln_module_device(const kiln_module *m)
{
    kiln_device device = kiln_given(m, "module_device") ? first_device(m) : KILN_NO_DEVICE;
    return device == KILN_NO_DEVICE ? kiln_default_device() : device;
}
