/* A pool of threads that help whoever calls kiln_parallel. Tasks are claimed one by one, by the caller too, and the
 * caller waits only for helpers that are inside a task: a helper that the system does not let run costs nothing, where
 * a fork-join barrier would wait for it. Helpers stay awake for a moment between jobs, since kernels follow each other
 * closely.
 *
 * OpenMP is used to tell libraries that have threads of their own (oneDNN) to keep to one inside a task. */
#include "core/parallel.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>

#ifdef KILN_OPENMP
#include <omp.h>
#else
static int omp_get_max_threads(void)
{
    return 1;
}
static void omp_set_num_threads(int threads)
{
    (void)threads;
}
#endif

enum { MAX_THREADS = 256 };

static atomic_int thread_count;         /* 0: not asked for yet */
static _Thread_local bool inside, owns; /* a task is run; the pool is this thread's */

static int clamp(long threads)
{
    return threads < 1 ? 1 : threads > MAX_THREADS ? MAX_THREADS : (int)threads;
}

/* OMP_NUM_THREADS may be a list ("4,2"): its first number counts. */
static long number_in(const char *variable)
{
    const char *text = getenv(variable);
    return text ? strtol(text, NULL, 10) : 0;
}

/* Inside a body this is 1: what a nested kiln_parallel may use. */
int kiln_threads(void)
{
    if (inside)
        return 1;
    int known = atomic_load_explicit(&thread_count, memory_order_relaxed);
    if (known)
        return known;
    long threads = number_in("KILN_NUM_THREADS");
    if (threads < 1)
        threads = number_in("OMP_NUM_THREADS");
    if (threads < 1)
        threads = sysconf(_SC_NPROCESSORS_ONLN);
    int expected = 0; /* kiln_threads_set may have come in between */
    atomic_compare_exchange_strong(&thread_count, &expected, clamp(threads));
    return atomic_load_explicit(&thread_count, memory_order_relaxed);
}

void kiln_threads_set(int threads)
{
    atomic_store_explicit(&thread_count, clamp(threads), memory_order_relaxed);
}

/* ---- The pool ---- */

typedef void body_fn(void *context, int64_t task, int worker);

enum {
    SPINS = 20000,
    YIELD_AFTER = 2000
}; /* some 50 microseconds awake; then sleep. While waiting: give way after 5 */

static struct {
    pthread_mutex_t owner; /* held by the thread whose job it is */
    pthread_mutex_t lock;  /* for sleeping and waking */
    pthread_cond_t wake;
    int started; /* helpers; their numbers are 1 … started */
    atomic_int sleepers;
    atomic_uint round; /* counts jobs */
    atomic_bool stop;

    /* The job. Its fields are stable while a helper counts as active and saw it open. */
    atomic_bool open;
    atomic_int active;
    body_fn *body;
    void *context;
    int64_t tasks;
    int helpers;
    atomic_int_fast64_t next;
} pool = {.owner = PTHREAD_MUTEX_INITIALIZER, .lock = PTHREAD_MUTEX_INITIALIZER, .wake = PTHREAD_COND_INITIALIZER};

static pthread_t threads[MAX_THREADS];

static void pause_a_little(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

static void claim_tasks(body_fn *body, void *context, int64_t tasks, int worker)
{
    for (int64_t task; (task = atomic_fetch_add_explicit(&pool.next, 1, memory_order_relaxed)) < tasks;)
        body(context, task, worker);
}

static void help(int worker)
{
    atomic_fetch_add(&pool.active, 1);
    if (atomic_load(&pool.open) && worker <= pool.helpers)
        claim_tasks(pool.body, pool.context, pool.tasks, worker);
    atomic_fetch_sub(&pool.active, 1);
}

/* Waits until the round is another than `seen`: awake for a while, then asleep. */
static void await_job(unsigned seen)
{
    for (int i = 0; i < SPINS; i++) {
        if (atomic_load_explicit(&pool.round, memory_order_acquire) != seen)
            return;
        pause_a_little();
    }
    pthread_mutex_lock(&pool.lock);
    atomic_fetch_add(&pool.sleepers, 1);
    while (atomic_load(&pool.round) == seen && !atomic_load(&pool.stop))
        pthread_cond_wait(&pool.wake, &pool.lock);
    atomic_fetch_sub(&pool.sleepers, 1);
    pthread_mutex_unlock(&pool.lock);
}

static void *helper(void *number)
{
    int worker = (int)(intptr_t)number;
    inside = true;
    omp_set_num_threads(1);
    for (unsigned seen = 0; !atomic_load(&pool.stop);) {
        unsigned now = atomic_load(&pool.round);
        if (now == seen) {
            await_job(seen);
            continue;
        }
        seen = now;
        help(worker);
    }
    return NULL;
}

/* With `owner` held. When threads cannot be had, the callers do the work alone. */
static void start_helpers(int wanted)
{
    while (pool.started < wanted) {
        if (pthread_create(&threads[pool.started], NULL, helper, (void *)(intptr_t)(pool.started + 1)))
            return;
        pool.started++;
    }
}

static void wake_sleepers(void)
{
    atomic_fetch_add(&pool.round, 1);
    if (!atomic_load(&pool.sleepers))
        return;
    pthread_mutex_lock(&pool.lock);
    pthread_cond_broadcast(&pool.wake);
    pthread_mutex_unlock(&pool.lock);
}

static void run_shared(int64_t tasks, body_fn *body, void *context, int threads_wanted)
{
    start_helpers(threads_wanted - 1);
    pool.body = body;
    pool.context = context;
    pool.tasks = tasks;
    pool.helpers = threads_wanted - 1;
    atomic_store(&pool.next, 0);
    atomic_store(&pool.open, true);
    wake_sleepers();
    claim_tasks(body, context, tasks, 0);
    atomic_store(&pool.open, false);
    for (int i = 0; atomic_load(&pool.active); i++)
        if (i < YIELD_AFTER)
            pause_a_little();
        else
            sched_yield();
}

/* A body runs with `inside` set and one OpenMP thread, also in the calling thread: a library it calls must not split
 * its sums by the number of threads. When another thread has the pool, or the caller is a task itself, it works alone.
 */
void kiln_parallel(int64_t tasks, void (*body)(void *context, int64_t task, int worker), void *context)
{
    if (tasks <= 0)
        return;
    bool outer = inside;
    int wanted = kiln_threads(), saved = outer ? 1 : omp_get_max_threads();
    if (wanted > tasks)
        wanted = (int)tasks;
    bool shared = !outer && wanted > 1 && pthread_mutex_trylock(&pool.owner) == 0;
    inside = true;
    if (!outer)
        omp_set_num_threads(1);
    if (shared) {
        owns = true;
        run_shared(tasks, body, context, wanted);
        owns = false;
        pthread_mutex_unlock(&pool.owner);
    } else
        for (int64_t task = 0; task < tasks; task++)
            body(context, task, 0);
    if (!outer)
        omp_set_num_threads(saved);
    inside = outer;
}

/* A forked child has no helpers: it starts its own when it needs them. Nothing of a job that another thread had under
 * way is left, and no lock is as it was. */
static void renew(void)
{
    pthread_mutex_init(&pool.owner, NULL);
    pthread_mutex_init(&pool.lock, NULL);
    pthread_cond_init(&pool.wake, NULL);
    pool.started = 0;
    atomic_store(&pool.open, false);
    atomic_store(&pool.sleepers, 0);
    atomic_store(&pool.active, 0);
    if (owns) /* it has forked in the middle of its own job */
        pthread_mutex_lock(&pool.owner);
}

__attribute__((constructor)) static void load(void)
{
    pthread_atfork(NULL, NULL, renew);
}

/* Another thread may have a job under way while the process ends: then its helpers stay. */
__attribute__((destructor)) static void unload(void)
{
    if (owns || pthread_mutex_trylock(&pool.owner) != 0)
        return;
    atomic_store(&pool.stop, true);
    wake_sleepers();
    for (int i = 0; i < pool.started; i++)
        pthread_join(threads[i], NULL);
    pool.started = 0;
}
