/* Generated kernels of a device: a table of texts, and a thread that compiles them one after the other. What is
 * captured meanwhile interprets. Kernels of whole steps come first; after each of them, and when nothing is left to do,
 * the generation changes and graphs are captured anew. */
#define _GNU_SOURCE /* gettid */
#include "device/cuda/compile/codegen.h"
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "core/alloc.h"
#include "core/fail.h"
#include "core/hash.h"

typedef struct entry {
    uint64_t hash;
    char *text;
    bool urgent, done; /* done: it has been compiled, or cannot be */
    cudaLibrary_t library;
    cudaKernel_t kernel; /* NULL: not there */
} entry;

struct kiln_cuda_codegen {
    pthread_mutex_t lock; /* of everything below */
    pthread_cond_t changed;
    pthread_t thread;
    bool running, ending;
    bool waited_for; /* whoever asks for a kernel waits until it is there */
    entry *entries;
    int64_t nentries, capacity, waiting;
    bool news;     /* kernels that no generation speaks of yet */
    char why[200]; /* the first one that failed did so; empty: none has */
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

/* ---- The thread ---- */

typedef struct loading {
    const struct kiln_cuda_codegen *gen;
    entry made;
} loading;

static bool load(entry *e, const void *cubin)
{
    if (cudaLibraryLoadData(&e->library, cubin, NULL, NULL, 0, NULL, NULL, 0) == cudaSuccess &&
        cudaLibraryGetKernel(&e->kernel, e->library, "kiln_generated") == cudaSuccess)
        return true;
    e->kernel = NULL;
    cudaGetLastError();
    return false;
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

static int64_t next_entry(const struct kiln_cuda_codegen *gen)
{
    int64_t first = -1;
    for (int64_t i = 0; i < gen->nentries; i++)
        if (!gen->entries[i].done && (first < 0 || (gen->entries[i].urgent && !gen->entries[first].urgent)))
            first = i;
    return first;
}

static void stop_all(void);

/* With the lock, which is given up meanwhile. What cannot be compiled is interpreted; the first to ask afterwards is
 * told why. */
static void compile_one(struct kiln_cuda_codegen *gen, int64_t i)
{
    loading l = {.gen = gen};
    const char *text = gen->entries[i].text; /* stays where it is while the table grows */
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
    gen->news |= e->kernel != NULL;
    if (gen->news && (e->urgent || !gen->waiting)) {
        atomic_fetch_add(&gen->generation, 1);
        gen->news = false;
    }
    pthread_cond_broadcast(&gen->changed);
}

static void *compile_all(void *context)
{
    struct kiln_cuda_codegen *gen = context;
    bool usable = cudaSetDevice(gen->device->index) == cudaSuccess;
    pthread_mutex_lock(&gen->lock);
    while (!gen->ending)
        if (usable && gen->waiting)
            compile_one(gen, next_entry(gen));
        else
            pthread_cond_wait(&gen->changed, &gen->lock);
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
    all = NULL;
}

__attribute__((constructor)) static void load_codegen(void)
{
    pthread_atfork(NULL, NULL, forget_all);
}

static void stop_thread(struct kiln_cuda_codegen *gen)
{
    pthread_mutex_lock(&gen->lock);
    gen->ending = true;
    pthread_cond_broadcast(&gen->changed);
    pthread_mutex_unlock(&gen->lock);
    if (gen->running)
        pthread_join(gen->thread, NULL);
    gen->running = false;
}

/* The runtime and the compiler take themselves apart when the process ends, and a thread that still uses them would
 * meet what is half gone. The kernel that is being compiled then is waited for. */
static void stop_all(void)
{
    pthread_mutex_lock(&all_lock);
    for (struct kiln_cuda_codegen *gen = all; gen; gen = gen->next)
        stop_thread(gen);
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
    enter_list(gen);
    gen->running = pthread_create(&gen->thread, NULL, compile_all, gen) == 0;
    d->gen = gen;
    return true;
}

void kiln_cuda_codegen_close(kiln_cuda_device *d)
{
    struct kiln_cuda_codegen *gen = d->gen;
    if (!gen)
        return;
    leave_list(gen);
    stop_thread(gen);
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

static bool add_entry(struct kiln_cuda_codegen *gen, uint64_t hash, const char *text, bool urgent)
{
    size_t bytes = strlen(text) + 1;
    char *copy = KILN_GROW(gen->entries, gen->capacity, gen->nentries + 1) ? kiln_alloc(bytes, 1) : NULL;
    if (!copy)
        return false;
    memcpy(copy, text, bytes);
    gen->entries[gen->nentries++] = (entry){.hash = hash, .text = copy, .urgent = urgent};
    gen->waiting++;
    pthread_cond_broadcast(&gen->changed);
    return true;
}

bool kiln_cuda_codegen_find(kiln_cuda_device *d, const char *text, bool urgent, const void **kernel)
{
    *kernel = NULL;
    int how = kiln_cuda_compiles();
    if (how == 0)
        return true;
    if (!d->gen && !open_codegen(d, how == 2))
        return false;
    stop_before_exit();
    struct kiln_cuda_codegen *gen = d->gen;
    if (!gen->running)
        return true;
    uint64_t hash = hash_text(text);
    pthread_mutex_lock(&gen->lock);
    bool ok = find_entry(gen, hash, text) != NULL;
    if (!ok) {
        kiln_cuda_compiler_prepare(text, d->capability, stop_all);
        ok = add_entry(gen, hash, text, urgent);
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
