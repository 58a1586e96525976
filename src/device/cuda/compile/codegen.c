/* Generated kernels of a device: a table of texts, and threads that compile them. What is captured meanwhile
 * interprets. Kernels of whole steps come first, then those with the most work. Graphs are captured anew, which a
 * change of the generation tells, after each kernel of a whole step, and otherwise when as much work has been compiled
 * since as still waits: a network's first kernels, which take most of its time, are used long before the last one is
 * there, and graphs are not captured more often than there are halvings. */
#define _GNU_SOURCE /* gettid, sched_getaffinity */
#include "device/cuda/compile/codegen.h"
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "core/alloc.h"
#include "core/fail.h"
#include "core/hash.h"

typedef struct entry {
    uint64_t hash;
    char *text;
    double work;              /* bytes, in all places that asked for it */
    bool urgent, taken, done; /* taken: by a thread; done: it has been compiled, or cannot be */
    cudaLibrary_t library;
    cudaKernel_t kernel; /* NULL: not there */
} entry;

/* A compilation takes a few hundred MiB while it runs. */
enum { MOST_THREADS = 8 };

struct kiln_cuda_codegen {
    pthread_mutex_t lock; /* of everything below */
    pthread_cond_t changed;
    pthread_t threads[MOST_THREADS]; /* begun when there is more to do than those before them do */
    int nthreads, most_threads, idle;
    bool ending;
    bool waited_for; /* whoever asks for a kernel waits until it is there */
    entry *entries;
    int64_t nentries, capacity, waiting, untaken;
    bool news;                      /* kernels that no generation speaks of yet … */
    double work_done, work_waiting; /* … their work, and that of all that wait */
    char why[200];                  /* the first one that failed did so; empty: none has */
    bool told;
    _Atomic uint64_t generation;
    kiln_cuda_device *device;
    struct kiln_cuda_codegen *next; /* of all that are open */
};

static uint64_t hash_text(const char *text)
{
    uint64_t hash = 1;
    for (; *text; text++)
        hash = kiln_mix(hash, (unsigned char)*text);
    return hash;
}

/* ---- Forks ---- */

/* Held by a thread while it calls the driver, and over a fork: the child, when it ends, would wait for what the thread
 * had locked there. Not for long: a driver that forks itself, to start a program, may have what the thread waits for.
 */
static pthread_mutex_t driving = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local bool holds_driving;

enum { MOST_SECONDS = 2 };

static void before_fork(void)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += MOST_SECONDS;
    holds_driving = pthread_mutex_timedlock(&driving, &until) == 0;
}

static void after_fork(void)
{
    if (holds_driving)
        pthread_mutex_unlock(&driving);
    holds_driving = false;
}

/* ---- The threads ---- */

typedef struct loading {
    const struct kiln_cuda_codegen *gen;
    entry made;
} loading;

static bool load(entry *e, const void *cubin)
{
    pthread_mutex_lock(&driving);
    bool ok = cudaLibraryLoadData(&e->library, cubin, NULL, NULL, 0, NULL, NULL, 0) == cudaSuccess &&
              cudaLibraryGetKernel(&e->kernel, e->library, "kiln_generated") == cudaSuccess;
    if (!ok) {
        e->kernel = NULL;
        cudaGetLastError();
    }
    pthread_mutex_unlock(&driving);
    return ok;
}

static bool use_device(const struct kiln_cuda_codegen *gen)
{
    pthread_mutex_lock(&driving);
    bool ok = cudaSetDevice(gen->device->index) == cudaSuccess;
    pthread_mutex_unlock(&driving);
    return ok;
}

/* With the device's lock: not while a step is captured, launched or disposed of. Whoever waits for the kernel has that
 * lock already, and does nothing meanwhile. */
static bool take_cubin(void *context, const void *cubin, size_t bytes)
{
    (void)bytes;
    loading *l = context;
    kiln_cuda_device *d = l->gen->device;
    if (l->gen->waited_for)
        return load(&l->made, cubin);
    pthread_mutex_lock(&d->lock);
    bool ok = load(&l->made, cubin);
    pthread_mutex_unlock(&d->lock);
    return ok;
}

/* -1: nothing waits for a thread. */
static int64_t next_entry(const struct kiln_cuda_codegen *gen)
{
    int64_t first = -1;
    for (int64_t i = 0; i < gen->nentries; i++) {
        const entry *e = &gen->entries[i], *f = first < 0 ? NULL : &gen->entries[first];
        if (!e->taken && (!f || (e->urgent == f->urgent ? e->work > f->work : e->urgent)))
            first = i;
    }
    return first;
}

static void stop_all(void);

/* With the lock, which is given up meanwhile. What cannot be compiled is interpreted; the first to ask afterwards is
 * told why. */
static void compile_one(struct kiln_cuda_codegen *gen, int64_t i)
{
    loading l = {.gen = gen};
    const char *text = gen->entries[i].text; /* stays where it is while the table grows */
    gen->entries[i].taken = true;
    gen->untaken--;
    pthread_mutex_unlock(&gen->lock);
    bool ok = kiln_cuda_compile(text, gen->device->capability, take_cubin, &l);
    atexit(stop_all);
    pthread_mutex_lock(&gen->lock);
    if (!ok && !gen->why[0])
        snprintf(gen->why, sizeof gen->why, "%.199s", kiln_ok() ? "it cannot be loaded" : kiln_last_error()->message);
    kiln_error_clear();
    entry *e = &gen->entries[i];
    e->library = l.made.library;
    e->kernel = l.made.kernel;
    e->done = true;
    gen->waiting--;
    gen->work_waiting -= e->work;
    gen->news |= e->kernel != NULL;
    gen->work_done += e->work;
    if (gen->news && (e->urgent || !gen->waiting || gen->work_done >= gen->work_waiting)) {
        atomic_fetch_add(&gen->generation, 1);
        gen->news = false;
        gen->work_done = 0;
    }
    pthread_cond_broadcast(&gen->changed);
}

static void *compile_all(void *context)
{
    struct kiln_cuda_codegen *gen = context;
    bool usable = use_device(gen);
    pthread_mutex_lock(&gen->lock);
    while (!gen->ending) {
        int64_t next = usable ? next_entry(gen) : -1;
        gen->idle--;
        if (next >= 0)
            compile_one(gen, next);
        gen->idle++;
        if (next < 0)
            pthread_cond_wait(&gen->changed, &gen->lock);
    }
    pthread_mutex_unlock(&gen->lock);
    return NULL;
}

/* ---- Beginning and ending ---- */

static pthread_mutex_t all_lock = PTHREAD_MUTEX_INITIALIZER;
static struct kiln_cuda_codegen *all;

/* In a forked child there are no such threads, and nobody may wait for them when it ends. */
static void forget_all(void)
{
    pthread_mutex_init(&all_lock, NULL);
    pthread_mutex_init(&driving, NULL);
    holds_driving = false;
    all = NULL;
}

__attribute__((constructor)) static void load_codegen(void)
{
    pthread_atfork(before_fork, after_fork, forget_all);
}

static void stop_threads(struct kiln_cuda_codegen *gen)
{
    pthread_mutex_lock(&gen->lock);
    gen->ending = true;
    pthread_cond_broadcast(&gen->changed);
    pthread_mutex_unlock(&gen->lock);
    for (; gen->nthreads; gen->nthreads--)
        pthread_join(gen->threads[gen->nthreads - 1], NULL);
}

/* The runtime and the compiler take themselves apart when the process ends, and a thread that still uses them would
 * meet what is half gone. The kernel that is being compiled then is waited for. */
static void stop_all(void)
{
    pthread_mutex_lock(&all_lock);
    for (struct kiln_cuda_codegen *gen = all; gen; gen = gen->next)
        stop_threads(gen);
    pthread_mutex_unlock(&all_lock);
}

static void stop_all_for(void *nobody)
{
    (void)nobody;
    stop_all();
}

/* What exit does first is to destroy the calling thread's own objects, as C++ wants it: before anything that was
 * registered with atexit, by the driver in the middle of a compilation for instance. The C library's function for that
 * has no header. The main thread's objects stay until then; those of other threads do not, and where one of them ends
 * the process, or the C library is another one, atexit has to do: what is registered last runs first, so stop_all is
 * registered when the thread begins, which is after the runtime; again when the compiler has set itself up; and after
 * each kernel. */
extern int __cxa_thread_atexit_impl(void (*destroy)(void *object), void *object, void *within) __attribute__((weak));

static void stop_before_exit(void)
{
    static _Thread_local bool registered;
    if (registered || getpid() != gettid() || !__cxa_thread_atexit_impl)
        return;
    registered = __cxa_thread_atexit_impl(stop_all_for, NULL, &all_lock) == 0;
}

static void enter_list(struct kiln_cuda_codegen *gen)
{
    pthread_mutex_lock(&all_lock);
    gen->next = all;
    all = gen;
    pthread_mutex_unlock(&all_lock);
    atexit(stop_all);
}

static void leave_list(const struct kiln_cuda_codegen *gen)
{
    pthread_mutex_lock(&all_lock);
    for (struct kiln_cuda_codegen **p = &all; *p; p = &(*p)->next)
        if (*p == gen) {
            *p = gen->next;
            break;
        }
    pthread_mutex_unlock(&all_lock);
}

/* With the device's lock held, as all launchers are called. */
static bool open_codegen(kiln_cuda_device *d, bool waited_for)
{
    struct kiln_cuda_codegen *gen = kiln_alloc_zero(1, sizeof *gen);
    if (!gen)
        return false;
    gen->device = d;
    gen->waited_for = waited_for;
    pthread_mutex_init(&gen->lock, NULL);
    pthread_cond_init(&gen->changed, NULL);
    cpu_set_t cores;
    int most = sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) - 1 : 1; /* one has the steps */
    gen->most_threads = most < 1 ? 1 : most > MOST_THREADS ? MOST_THREADS : most;
    enter_list(gen);
    d->gen = gen;
    return true;
}

/* With the lock, for one more text than there are. False when there is not a single thread. */
static bool begin_thread(struct kiln_cuda_codegen *gen)
{
    if (gen->untaken >= gen->idle && gen->nthreads < gen->most_threads && !gen->ending &&
        pthread_create(&gen->threads[gen->nthreads], NULL, compile_all, gen) == 0) {
        gen->nthreads++;
        gen->idle++; /* until it has found something */
    }
    return gen->nthreads > 0;
}

void kiln_cuda_codegen_close(kiln_cuda_device *d)
{
    struct kiln_cuda_codegen *gen = d->gen;
    if (!gen)
        return;
    leave_list(gen);
    stop_threads(gen);
    for (int64_t i = 0; i < gen->nentries; i++) {
        if (gen->entries[i].library)
            cudaLibraryUnload(gen->entries[i].library);
        kiln_free(gen->entries[i].text);
    }
    kiln_free(gen->entries);
    pthread_mutex_destroy(&gen->lock);
    pthread_cond_destroy(&gen->changed);
    kiln_free(gen);
    d->gen = NULL;
}

/* ---- For the others ---- */

static entry *find_entry(struct kiln_cuda_codegen *gen, uint64_t hash, const char *text)
{
    for (int64_t i = 0; i < gen->nentries; i++)
        if (gen->entries[i].hash == hash && strcmp(gen->entries[i].text, text) == 0)
            return &gen->entries[i];
    return NULL;
}

static bool add_entry(struct kiln_cuda_codegen *gen, uint64_t hash, const char *text, bool urgent, double work)
{
    size_t bytes = strlen(text) + 1;
    char *copy = KILN_GROW(gen->entries, gen->capacity, gen->nentries + 1) ? kiln_alloc(bytes, 1) : NULL;
    if (!copy)
        return false;
    memcpy(copy, text, bytes);
    gen->entries[gen->nentries++] = (entry){.hash = hash, .text = copy, .urgent = urgent, .work = work};
    gen->waiting++;
    gen->untaken++;
    gen->work_waiting += work;
    pthread_cond_broadcast(&gen->changed);
    return true;
}

bool kiln_cuda_codegen_find(kiln_cuda_device *d, const char *text, bool urgent, double work, const void **kernel)
{
    *kernel = NULL;
    int how = kiln_cuda_compiles();
    if (how == 0)
        return true;
    if (!d->gen && !open_codegen(d, how == 2))
        return false;
    stop_before_exit();
    struct kiln_cuda_codegen *gen = d->gen;
    uint64_t hash = hash_text(text);
    pthread_mutex_lock(&gen->lock);
    entry *there = find_entry(gen, hash, text);
    if (there && !there->done) {
        there->work += work;
        gen->work_waiting += work;
    }
    bool ok = there != NULL;
    if (!ok) {
        kiln_cuda_compiler_prepare(text, d->capability, stop_all);
        if (!begin_thread(gen)) {
            pthread_mutex_unlock(&gen->lock);
            return true;
        }
        ok = add_entry(gen, hash, text, urgent, work);
    }
    while (ok && gen->waited_for && gen->waiting && !gen->ending)
        pthread_cond_wait(&gen->changed, &gen->lock);
    if (ok)
        *kernel = (const void *)find_entry(gen, hash, text)->kernel;
    if (gen->why[0] && !gen->told)
        kiln_notice("cuda:%d: a kernel could not be compiled, so its part of a step is slower: %s", d->index, gen->why);
    gen->told = gen->told || gen->why[0];
    pthread_mutex_unlock(&gen->lock);
    return ok;
}

uint64_t kiln_cuda_codegen_generation(kiln_cuda_device *d)
{
    return d->gen ? atomic_load(&d->gen->generation) : 0;
}
