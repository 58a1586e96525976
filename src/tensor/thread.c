/* Thread state: one object a thread behind a thread-local pointer, released by a key's destructor when it ends. */
#include "tensor/thread.h"
#include <pthread.h>
#include "core/alloc.h"
#include "core/fail.h"
#include "core/fork.h"

_Thread_local kiln_thread *kiln_thread_current __attribute__((tls_model("initial-exec")));
static pthread_key_t key;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static atomic_int states; /* of all threads */

/* ---- Recycled handles ---- */

/* Released handles of threads that have ended. They stay, so that their use is recognised, and serve later threads. */
static pthread_mutex_t orphans_lock = PTHREAD_MUTEX_INITIALIZER;
static kiln_tensor *orphans;

static kiln_tensor *next_of(const kiln_tensor *t)
{
    return (kiln_tensor *)t->extra;
}

static void link_to(kiln_tensor *t, kiln_tensor *next)
{
    t->extra = (kiln_tensor_extra *)next;
}

kiln_tensor *kiln_thread_reuse(kiln_thread *th)
{
    kiln_tensor *t = th->free_tensors;
    if (t)
        th->free_tensors = next_of(t);
    else if (th->nreleased > KILN_HANDLES_APART) {
        t = th->oldest;
        th->oldest = next_of(t);
        th->nreleased--;
    }
    return t;
}

void kiln_thread_recycle(kiln_thread *th, kiln_tensor *t, bool seen)
{
    if (!seen) {
        link_to(t, th->free_tensors);
        th->free_tensors = t;
        return;
    }
    link_to(t, NULL);
    if (th->nreleased++)
        link_to(th->newest, t);
    else
        th->oldest = t;
    th->newest = t;
}

static void adopt_orphans(kiln_thread *th)
{
    pthread_mutex_lock(&orphans_lock);
    kiln_tensor *list = orphans;
    orphans = NULL;
    pthread_mutex_unlock(&orphans_lock);
    for (kiln_tensor *next; list; list = next) {
        next = next_of(list);
        kiln_thread_recycle(th, list, true);
    }
}

static void leave_orphans(kiln_thread *th)
{
    pthread_mutex_lock(&orphans_lock);
    for (kiln_tensor *t = th->oldest, *next; th->nreleased; t = next, th->nreleased--) {
        next = next_of(t);
        link_to(t, orphans);
        orphans = t;
    }
    pthread_mutex_unlock(&orphans_lock);
}

static void free_list(kiln_tensor *list)
{
    for (kiln_tensor *next; list; list = next) {
        next = next_of(list);
        kiln_free(list);
    }
}

/* ---- Beginning and end ---- */

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
    free_list(t->free_tensors);
    leave_orphans(t);
    for (kiln_storage *next; t->free_storages; t->free_storages = next) {
        next = (kiln_storage *)(uintptr_t)t->free_storages->address;
        kiln_free(t->free_storages);
    }
    kiln_free(t->owned);
    kiln_free(t->frames);
    kiln_free(t);
    atomic_fetch_sub(&states, 1);
}

bool kiln_thread_alone(void)
{
    return atomic_load(&states) == (kiln_thread_current ? 1 : 0);
}

/* The main thread's destructors do not run at exit: release what it still holds, so that leak checkers stay quiet.
 * Others that are at work may use its tensors. */
static void process_end(void)
{
    if (kiln_thread_current && kiln_thread_alone())
        thread_end(kiln_thread_current);
}

static void make_key(void)
{
    pthread_key_create(&key, thread_end);
}

/* A forked child has one thread. */
static void others_are_gone(void)
{
    atomic_store(&states, kiln_thread_current ? 1 : 0);
}

__attribute__((constructor)) static void load(void)
{
    pthread_atfork(NULL, NULL, others_are_gone);
    kiln_fork_hold(KILN_FORK_HANDLES, &orphans_lock, NULL);
}

__attribute__((destructor)) static void unload(void)
{
    process_end();
    if (!kiln_thread_alone())
        return; /* they may be adopted this moment, and go with the process */
    free_list(orphans);
    orphans = NULL;
}

kiln_thread *kiln_thread_make(void)
{
    pthread_once(&once, make_key);
    kiln_thread *t = kiln_alloc_zero(1, sizeof *t);
    if (!t)
        return NULL;
    static atomic_uint threads;
    t->number = atomic_fetch_add(&threads, 1) + 1;
    t->default_device = KILN_CPU;
    t->grad_enabled = true;
    t->autocast = KILN_F32;
    if (pthread_setspecific(key, t)) {
        kiln_free(t);
        return kiln_fail(KILN_E_MEMORY, NULL, "no room for the thread's state");
    }
    adopt_orphans(t);
    atomic_fetch_add(&states, 1);
    return kiln_thread_current = t;
}
