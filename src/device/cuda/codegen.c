/* Generated kernels of a device: a table of texts, and a thread that compiles them one after the other. What is
 * captured meanwhile interprets; once the thread has nothing left to do the generation changes, and graphs are captured
 * anew. */
#include "device/cuda/codegen.h"
#include <stdatomic.h>
#include <string.h>
#include "core/alloc.h"
#include "core/hash.h"

typedef struct entry {
    uint64_t hash;
    char *text;
    cudaLibrary_t library;
    cudaKernel_t kernel; /* NULL: not there */
    int device;
} entry;

struct kiln_cuda_codegen {
    pthread_mutex_t lock; /* of everything below */
    pthread_cond_t changed;
    pthread_t thread;
    bool running, ending;
    entry *entries;
    int64_t nentries, capacity;
    int64_t done; /* entries before this one have been compiled, or cannot be */
    bool news;    /* kernels that no generation speaks of yet */
    _Atomic uint64_t generation;
    kiln_cuda_device *device;
};

static uint64_t hash_text(const char *text)
{
    uint64_t hash = 1;
    for (; *text; text++)
        hash = kiln_mix(hash, (unsigned char)*text);
    return hash;
}

/* ---- The thread ---- */

/* Everything of the runtime that this thread uses is in here: the process does not end meanwhile. */
static bool take_cubin(void *context, const void *cubin, size_t bytes)
{
    (void)bytes;
    entry *e = context;
    bool ok = cudaSetDevice(e->device) == cudaSuccess &&
              cudaLibraryLoadData(&e->library, cubin, NULL, NULL, 0, NULL, NULL, 0) == cudaSuccess &&
              cudaLibraryGetKernel(&e->kernel, e->library, "kiln_generated") == cudaSuccess;
    if (!ok) {
        e->kernel = NULL;
        cudaGetLastError();
    }
    return ok;
}

/* On the thread that compiles: its errors are nobody's, the group is interpreted. */
static void *compile_all(void *context)
{
    struct kiln_cuda_codegen *gen = context;
    pthread_mutex_lock(&gen->lock);
    while (!gen->ending && !kiln_cuda_compiler_ended()) {
        if (gen->done == gen->nentries) {
            if (gen->news)
                atomic_fetch_add(&gen->generation, 1);
            gen->news = false;
            pthread_cond_broadcast(&gen->changed);
            pthread_cond_wait(&gen->changed, &gen->lock);
            continue;
        }
        entry e = {.device = gen->device->index};
        const char *text = gen->entries[gen->done].text; /* stays where it is while the table grows */
        pthread_mutex_unlock(&gen->lock);
        if (!kiln_cuda_compile(text, gen->device->capability, take_cubin, &e))
            kiln_error_clear();
        pthread_mutex_lock(&gen->lock);
        gen->entries[gen->done].library = e.library;
        gen->entries[gen->done].kernel = e.kernel;
        gen->news |= e.kernel != NULL;
        gen->done++;
        pthread_cond_broadcast(&gen->changed);
    }
    pthread_mutex_unlock(&gen->lock);
    return NULL;
}

/* ---- For the others ---- */

/* With the device's lock held, as all launchers are called. */
static bool open_codegen(kiln_cuda_device *d)
{
    struct kiln_cuda_codegen *gen = kiln_alloc_zero(1, sizeof *gen);
    if (!gen)
        return false;
    gen->device = d;
    pthread_mutex_init(&gen->lock, NULL);
    pthread_cond_init(&gen->changed, NULL);
    gen->running = pthread_create(&gen->thread, NULL, compile_all, gen) == 0;
    d->gen = gen;
    return true;
}

static entry *find_entry(struct kiln_cuda_codegen *gen, uint64_t hash, const char *text)
{
    for (int64_t i = 0; i < gen->nentries; i++)
        if (gen->entries[i].hash == hash && strcmp(gen->entries[i].text, text) == 0)
            return &gen->entries[i];
    return NULL;
}

static bool add_entry(struct kiln_cuda_codegen *gen, uint64_t hash, const char *text)
{
    size_t bytes = strlen(text) + 1;
    char *copy = KILN_GROW(gen->entries, gen->capacity, gen->nentries + 1) ? kiln_alloc(bytes, 1) : NULL;
    if (!copy)
        return false;
    memcpy(copy, text, bytes);
    gen->entries[gen->nentries++] = (entry){.hash = hash, .text = copy};
    pthread_cond_broadcast(&gen->changed);
    return true;
}

bool kiln_cuda_codegen_find(kiln_cuda_device *d, const char *text, const void **kernel)
{
    *kernel = NULL;
    int how = kiln_cuda_compiles();
    if (how == 0)
        return true;
    if (!d->gen && !open_codegen(d))
        return false;
    struct kiln_cuda_codegen *gen = d->gen;
    if (!gen->running)
        return true;
    uint64_t hash = hash_text(text);
    pthread_mutex_lock(&gen->lock);
    bool ok = find_entry(gen, hash, text) || add_entry(gen, hash, text);
    while (ok && how == 2 && gen->done < gen->nentries)
        pthread_cond_wait(&gen->changed, &gen->lock);
    if (ok)
        *kernel = (const void *)find_entry(gen, hash, text)->kernel;
    pthread_mutex_unlock(&gen->lock);
    return ok;
}

uint64_t kiln_cuda_codegen_generation(kiln_cuda_device *d)
{
    return d->gen ? atomic_load(&d->gen->generation) : 0;
}

void kiln_cuda_codegen_close(kiln_cuda_device *d)
{
    struct kiln_cuda_codegen *gen = d->gen;
    if (!gen)
        return;
    pthread_mutex_lock(&gen->lock);
    gen->ending = true;
    pthread_cond_broadcast(&gen->changed);
    pthread_mutex_unlock(&gen->lock);
    if (gen->running)
        pthread_join(gen->thread, NULL);
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
