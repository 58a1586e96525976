/* Thread state: one object a thread behind a thread-local pointer, released by a key's destructor when it ends. */
#include "tensor/thread.h"
#include <pthread.h>
#include "core/alloc.h"
#include "core/fail.h"

_Thread_local kiln_thread *kiln_thread_current __attribute__((tls_model("initial-exec")));
static pthread_key_t key;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void thread_end(void *p)
{
    kiln_thread *t = p;
    kiln_thread_current = t; /* releasing tensors below looks for the state */
    for (int64_t i = t->nowned; i-- > 0;)
        if (t->owned[i]) {
            t->owned[i]->scope = 0;
            kiln_release(t->owned[i]);
        }
    if (t->trace)
        t->trace_free(t->trace);
    kiln_thread_current = NULL;
    for (kiln_tensor *next; t->free_tensors; t->free_tensors = next) {
        next = (kiln_tensor *)t->free_tensors->extra;
        kiln_free(t->free_tensors);
    }
    for (kiln_storage *next; t->free_storages; t->free_storages = next) {
        next = (kiln_storage *)(uintptr_t)t->free_storages->address;
        kiln_free(t->free_storages);
    }
    kiln_free(t->owned);
    kiln_free(t->frames);
    kiln_free(t);
}

/* The main thread's destructors do not run at exit: release what it still holds, so that leak checkers stay quiet. */
static void process_end(void)
{
    if (kiln_thread_current)
        thread_end(kiln_thread_current);
}

static void make_key(void)
{
    pthread_key_create(&key, thread_end);
}

__attribute__((destructor)) static void unload(void)
{
    process_end();
}

kiln_thread *kiln_thread_make(void)
{
    pthread_once(&once, make_key);
    kiln_thread *t = kiln_alloc_zero(1, sizeof *t);
    if (!t)
        return NULL;
    t->default_device = KILN_CPU;
    t->grad_enabled = true;
    if (pthread_setspecific(key, t)) {
        kiln_free(t);
        return kiln_fail(KILN_E_MEMORY, NULL, "no room for the thread's state");
    }
    return kiln_thread_current = t;
}
