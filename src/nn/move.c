/* Moving a tree to another device. Optimizers and programs hold the handles of parameters, so the handles stay: what
 * they refer to is replaced, once all of it has arrived. */
#include "core/alloc.h"
#include "nn/module.h"

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
    t->offset = 0;
    kiln_dense_strides(t->ndim, t->shape, t->stride);
    kiln_set_epoch(t, 0);
    t->value = -1;
    t->version = fresh->version;
    kiln_storage_unref(old);
}

/* What has to move: tensors, then gradients; NULL where there is none or it is there already. */
static kiln_tensor *traveller(kiln_params state, int64_t i, kiln_device device)
{
    kiln_tensor *t = i < state.count ? state.tensors[i] : kiln_grad_of(state.tensors[i - state.count]);
    return t && t->device != device ? t : NULL;
}

static bool move_all(kiln_params state, kiln_device device, kiln_tensor **moved)
{
    for (int64_t i = 0; i < 2 * state.count; i++) {
        kiln_tensor *t = traveller(state, i, device);
        if (t && !(moved[i] = kiln_to(t, device)))
            return false;
    }
    for (int64_t i = 0; i < 2 * state.count; i++)
        if (moved[i])
            redirect(traveller(state, i, device), moved[i]);
    return true;
}

bool kiln_module_to(kiln_module *m, kiln_device device)
{
    if (!m)
        return kiln_fail_null("module_to", 1);
    uint64_t failures = kiln_fail_count();
    kiln_params state = kiln_device_describe(device, NULL) ? kiln_state(m) : (kiln_params){0};
    if (kiln_fail_count() != failures || !kiln_eval()) /* what is pending belongs to the device it was written for */
        return false;
    kiln_tensor **moved = kiln_alloc_zero(2 * (size_t)state.count, sizeof(kiln_tensor *));
    bool ok = false;
    if (moved)
        kiln_inner_scope
            kiln_no_grad
                ok = move_all(state, device, moved);
    kiln_free(moved);
    return ok;
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
