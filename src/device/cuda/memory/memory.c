/* Memory of a CUDA device: who lies where, the arena, and what is beside them. */
#include "device/cuda/memory/memory.h"
#include "core/alloc.h"
#include "device/cuda/memory/guard.h"
#include "device/cuda/common/library.h"
#include "device/cuda/memory/ranges.h"
#include "device/cuda/memory/vmm.h"

static const size_t large = (size_t)1 << 20; /* blocks from this size on lie apart from small ones */
enum {
    PIECE = 4, /* granules of the arena that are mapped at once, since mapping takes time by the piece */
    ROOM = 2   /* times the device's memory are the addresses for large blocks, so that holes do not matter */
};

typedef struct range { /* addresses */
    kiln_cuda_device *d;
    uint64_t base;
    size_t bytes, piece;
} range;

struct kiln_cuda_memory {
    pthread_mutex_t lock; /* taken after the device's where both are */
    kiln_cuda_guards guards;
    bool plain; /* there is no virtual memory, or none is wanted */
    kiln_cuda_vmm vmm;
    range small, large, arena;
    kiln_ranges small_blocks, large_blocks;
    size_t arena_bytes, arena_mapped;
    uint64_t handed;          /* bytes of blocks and arena */
    uint64_t context, beside; /* what the context took when it was made; what it and libraries take now */
};

/* ---- Opening ---- */

static bool map(void *owner, uint64_t first, uint64_t count)
{
    const range *r = owner;
    return kiln_cuda_has_memory(r->d,
                                kiln_cuda_vmm_map(&r->d->memory->vmm, r->base + first * r->piece, r->piece, count));
}

static void unmap(void *owner, uint64_t first, uint64_t count)
{
    const range *r = owner;
    kiln_cuda_ok(r->d, kiln_cuda_vmm_unmap(&r->d->memory->vmm, r->base + first * r->piece, r->piece, count),
                 "memory cannot be unmapped");
}

static bool reserve(kiln_cuda_device *d, range *r, size_t bytes, size_t piece)
{
    bytes = (bytes + piece - 1) / piece * piece;
    *r = (range){.d = d, .base = kiln_cuda_vmm_reserve(&d->memory->vmm, bytes), .bytes = bytes, .piece = piece};
    return r->base != 0;
}

static void unreserve(kiln_cuda_device *d, range *r)
{
    kiln_cuda_vmm_unreserve(&d->memory->vmm, r->base, r->bytes);
    *r = (range){0};
}

/* Addresses for everything, or for nothing. */
static bool reserve_all(kiln_cuda_device *d, size_t total)
{
    struct kiln_cuda_memory *m = d->memory;
    size_t granule = m->vmm.granule;
    if (reserve(d, &m->small, total, granule) && reserve(d, &m->large, total * ROOM, granule) &&
        reserve(d, &m->arena, total, granule * PIECE))
        return true;
    unreserve(d, &m->small);
    unreserve(d, &m->large);
    return false;
}

bool kiln_cuda_memory_open(kiln_cuda_device *d, uint64_t context)
{
    struct kiln_cuda_memory *m = d->memory = kiln_alloc_zero(1, sizeof *m);
    size_t available, total;
    if (!m)
        return false;
    pthread_mutex_init(&m->lock, NULL);
    m->context = m->beside = context;
    m->guards = kiln_cuda_guards_wanted();
    if (!kiln_cuda_ok(d, cudaMemGetInfo(&available, &total), "its memory cannot be asked about"))
        return false;
    m->plain = m->guards.on || !kiln_cuda_vmm_open(&m->vmm, d->index) || !reserve_all(d, total);
    return m->plain ||
           (kiln_ranges_init(&m->small_blocks, m->small.bytes, m->small.piece,
                             (kiln_granules){&m->small, map, unmap}) &&
            kiln_ranges_init(&m->large_blocks, m->large.bytes, m->large.piece, (kiln_granules){&m->large, map, unmap}));
}

/* The stream is idle. */
void kiln_cuda_memory_close(kiln_cuda_device *d)
{
    struct kiln_cuda_memory *m = d->memory;
    if (!m)
        return;
    if (!m->plain) {
        kiln_ranges_free(&m->small_blocks);
        kiln_ranges_free(&m->large_blocks);
        if (m->arena_mapped)
            unmap(&m->arena, 0, m->arena_mapped / m->arena.piece);
        unreserve(d, &m->small);
        unreserve(d, &m->large);
        unreserve(d, &m->arena);
    }
    pthread_mutex_destroy(&m->lock);
    kiln_free(m->guards.blocks);
    kiln_free(m);
    d->memory = NULL;
}

/* ---- Blocks ---- */

static void lock(kiln_cuda_device *d)
{
    if (d->memory->plain)
        pthread_mutex_lock(&d->lock); /* what is freed, and guards, go through the stream */
    pthread_mutex_lock(&d->memory->lock);
}

static void unlock(kiln_cuda_device *d)
{
    pthread_mutex_unlock(&d->memory->lock);
    if (d->memory->plain)
        pthread_mutex_unlock(&d->lock);
}

static kiln_address allocate_plain(kiln_cuda_device *d, size_t bytes)
{
    void *p = NULL;
    return kiln_cuda_has_memory(d, cudaMalloc(&p, bytes)) ? (kiln_address)(uintptr_t)p : 0;
}

static kiln_address allocate_mapped(struct kiln_cuda_memory *m, size_t bytes)
{
    const range *r = bytes < large ? &m->small : &m->large;
    uint64_t offset;
    return kiln_ranges_take(bytes < large ? &m->small_blocks : &m->large_blocks, bytes, &offset) ? r->base + offset : 0;
}

kiln_address kiln_cuda_allocate(void *dev, size_t bytes)
{
    kiln_cuda_device *d = dev;
    struct kiln_cuda_memory *m = d->memory;
    if (!kiln_cuda_enter(d))
        return 0;
    lock(d);
    kiln_address address = m->guards.on ? kiln_cuda_guards_allocate(d, &m->guards, bytes)
                           : m->plain   ? allocate_plain(d, bytes)
                                        : allocate_mapped(m, bytes);
    m->handed += address ? bytes : 0;
    unlock(d);
    return address;
}

/* Work that was given before may still use the block: cudaFree waits for it once it is launched, and what is mapped
 * stays mapped until kiln_cuda_trim, which waits for it. */
void kiln_cuda_release(void *dev, kiln_address address, size_t bytes)
{
    kiln_cuda_device *d = dev;
    struct kiln_cuda_memory *m = d->memory;
    if (cudaSetDevice(d->index) != cudaSuccess)
        return;
    lock(d);
    m->handed -= bytes;
    if (m->plain)
        kiln_cuda_stream(d);
    if (m->guards.on)
        kiln_cuda_guards_release(d, &m->guards, address);
    else if (m->plain)
        cudaFree((void *)(uintptr_t)address);
    else if (address - m->small.base < m->small.bytes)
        kiln_ranges_give(&m->small_blocks, address - m->small.base, bytes);
    else
        kiln_ranges_give(&m->large_blocks, address - m->large.base, bytes);
    unlock(d);
}

bool kiln_cuda_memory_guarded(const kiln_cuda_device *d)
{
    return d->memory->guards.on;
}

bool kiln_cuda_memory_check(kiln_cuda_device *d)
{
    if (!d->memory->guards.on)
        return true;
    lock(d);
    bool ok = kiln_cuda_guards_check(d, &d->memory->guards);
    unlock(d);
    return ok;
}

/* Memory must not go while something on the stream may use it, so the stream is waited for. What is given to it from
 * then on cannot use it: it belongs to nobody. */
void kiln_cuda_trim(void *dev)
{
    kiln_cuda_device *d = dev;
    struct kiln_cuda_memory *m = d->memory;
    if (m->plain || !kiln_cuda_enter(d) || !kiln_cuda_idle(d))
        return;
    pthread_mutex_lock(&m->lock);
    kiln_ranges_trim(&m->small_blocks);
    kiln_ranges_trim(&m->large_blocks);
    pthread_mutex_unlock(&m->lock);
}

/* ---- The arena ---- */

/* With the lock held; false when there is no more. */
static bool set_arena(struct kiln_cuda_memory *m, size_t bytes)
{
    size_t piece = m->arena.piece, need = (bytes + piece - 1) / piece * piece;
    if (need > m->arena_mapped && !map(&m->arena, m->arena_mapped / piece, (need - m->arena_mapped) / piece))
        return false;
    if (need < m->arena_mapped)
        unmap(&m->arena, need / piece, (m->arena_mapped - need) / piece);
    m->arena_mapped = need;
    m->handed += bytes;
    m->handed -= m->arena_bytes;
    m->arena_bytes = bytes;
    return true;
}

size_t kiln_cuda_arena(void *dev, size_t bytes, kiln_address *address)
{
    kiln_cuda_device *d = dev;
    struct kiln_cuda_memory *m = d->memory;
    *address = m->arena.base;
    if (m->plain)
        return 0;
    bool shrinks = bytes < m->arena_bytes; /* the pool's lock is held: no other thread changes it */
    if (bytes <= m->arena.bytes && kiln_cuda_enter(d) && (!shrinks || kiln_cuda_idle(d))) {
        pthread_mutex_lock(&m->lock);
        set_arena(m, bytes);
        pthread_mutex_unlock(&m->lock);
    }
    return m->arena_bytes;
}

/* ---- What is beside them ---- */

static uint64_t mapped(const struct kiln_cuda_memory *m)
{
    return m->plain ? m->handed : m->small_blocks.mapped + m->large_blocks.mapped + m->arena_mapped;
}

uint64_t kiln_cuda_overhead(void *dev)
{
    kiln_cuda_device *d = dev;
    struct kiln_cuda_memory *m = d->memory;
    pthread_mutex_lock(&m->lock);
    uint64_t bytes = m->beside + mapped(m) - m->handed;
    pthread_mutex_unlock(&m->lock);
    return bytes;
}

static _Thread_local int watching; /* what is watched within what is watched counts once */

/* Free memory and what is mapped change together, so their sum changes by what others take and give. */
static uint64_t free_and_mapped(kiln_cuda_device *d)
{
    size_t available = 0, total = 0;
    int mode = kiln_cuda_relax();
    pthread_mutex_lock(&d->memory->lock);
    bool ok = cudaMemGetInfo(&available, &total) == cudaSuccess;
    uint64_t sum = available + mapped(d->memory);
    pthread_mutex_unlock(&d->memory->lock);
    kiln_cuda_unrelax(mode);
    if (!ok)
        cudaGetLastError(); /* whoever uses the device next is told */
    return ok ? sum : 0;
}

uint64_t kiln_cuda_watch(kiln_cuda_device *d)
{
    return watching++ ? 0 : free_and_mapped(d);
}

void kiln_cuda_watched(kiln_cuda_device *d, uint64_t before)
{
    struct kiln_cuda_memory *m = d->memory;
    uint64_t after = --watching ? 0 : free_and_mapped(d);
    if (!before || !after)
        return;
    pthread_mutex_lock(&m->lock);
    uint64_t given = after > before ? after - before : 0;
    m->beside += before > after ? before - after : 0;
    m->beside = m->beside > m->context + given ? m->beside - given : m->context;
    pthread_mutex_unlock(&m->lock);
}
