/* Storages: reference-counted memory behind tensors. */
#include <pthread.h>
#include "core/alloc.h"
#include "core/fork.h"
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
    atomic_init(&s->refs, 1); /* field by field: a struct of atomics is copied slowly */
    s->trace_refs = 0;
    s->device = device;
    atomic_init(&s->version, 0);
    atomic_init(&s->memory_version, 0);
    s->has_memory = s->shape_only = false;
    atomic_init(&s->shared, false);
    s->role = KILN_ROLE_DATA;
    s->maker = t->number;
    atomic_init(&s->writer, 0);
    s->bytes = bytes;
    s->address = 0;
    s->block = (kiln_block){0};
    s->run = NULL;
    s->thunk = NULL;
    return s;
}

void kiln_storage_unref(kiln_storage *s)
{
    if (!s || !kiln_unref(&s->refs))
        return;
    if (s->has_memory)
        kiln_memory_give(s->device, s->block);
    kiln_run_unref(s->run);
    if (s->thunk)
        kiln_thunk_free(s->thunk);
    kiln_thread *t = kiln_thread_state();
    if (!t) {
        kiln_free(s);
        return;
    }
    s->address = (uintptr_t)t->free_storages;
    t->free_storages = s;
}

/* Runs end on a device's thread and are begun on a user's: one list of recycled ones for all. */
static pthread_mutex_t runs_lock = PTHREAD_MUTEX_INITIALIZER;
static kiln_run *free_runs;

kiln_run *kiln_run_new(void)
{
    pthread_mutex_lock(&runs_lock);
    kiln_run *run = free_runs;
    if (run)
        free_runs = run->next;
    pthread_mutex_unlock(&runs_lock);
    if (!run && !(run = kiln_alloc(1, sizeof *run)))
        return NULL;
    atomic_init(&run->refs, 1);
    atomic_init(&run->failed, false);
    return run;
}

void kiln_run_ref(kiln_run *run)
{
    atomic_fetch_add_explicit(&run->refs, 1, memory_order_relaxed);
}

void kiln_run_unref(kiln_run *run)
{
    if (!run || !kiln_unref(&run->refs))
        return;
    pthread_mutex_lock(&runs_lock);
    run->next = free_runs;
    free_runs = run;
    pthread_mutex_unlock(&runs_lock);
}

__attribute__((constructor)) static void load(void)
{
    kiln_fork_hold(KILN_FORK_RUNS, &runs_lock, NULL);
}

__attribute__((destructor(101))) static void unload(void)
{
    if (!kiln_thread_alone())
        return;
    for (kiln_run *next; free_runs; free_runs = next) {
        next = free_runs->next;
        kiln_free(free_runs);
    }
}
