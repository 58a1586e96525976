/* Storages: reference-counted memory behind tensors. */
#include "core/alloc.h"
#include "tensor/memory.h"
#include "tensor/thread.h"

kiln_storage *kiln_storage_new(kiln_device device, size_t bytes)
{
    kiln_thread *t = kiln_thread_state();
    if (!t)
        return NULL;
    kiln_storage *s = t->free_storages;
    if (s)
        t->free_storages = (kiln_storage *)(uintptr_t)s->address;
    else if (!(s = kiln_alloc(1, sizeof *s)))
        return NULL;
    *s = (kiln_storage){.device = device, .bytes = bytes};
    atomic_init(&s->refs, 1);
    return s;
}

void kiln_storage_ref(kiln_storage *s)
{
    atomic_fetch_add_explicit(&s->refs, 1, memory_order_relaxed);
}

void kiln_storage_unref(kiln_storage *s)
{
    if (!s || atomic_fetch_sub_explicit(&s->refs, 1, memory_order_acq_rel) != 1)
        return;
    if (s->has_memory)
        kiln_memory_give(s->device, s->block);
    kiln_thread *t = kiln_thread_state();
    if (!t) {
        kiln_free(s);
        return;
    }
    s->address = (uintptr_t)t->free_storages;
    t->free_storages = s;
}
