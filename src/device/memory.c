/* The memory pool of each device: blocks that were given back are kept for reuse, everything is counted, and a limit
 * holds for all of it.
 *
 * What is kept is bounded by what was in use: all that is held of the device, in use or not, stays below twice the most
 * that was in use since the pool was last trimmed, and a little; what was given back longest ago goes first. A loop
 * finds all it needs as long as its blocks, each counted once, stay below that: then it never asks the device. */
#include <pthread.h>
#include <stdio.h>
#include "core/alloc.h"
#include "core/available.h"
#include "core/fail.h"
#include "core/fork.h"
#include "core/sized.h"
#include "device/blocks.h"
#include "device/device.h"
#include "plan/backend.h"
#include "tensor/memory.h"
#include "tensor/thread.h"

typedef struct pool {
    kiln_blocks cached;
    int64_t blocks; /* taken from the device: cached ones and those in use. `cached` has room for all of them */
    uint64_t slack; /* blocks in use are larger than what counts as in use by so much in all */
    uint64_t most;  /* that was in use since the last trim */
    kiln_memory_stats stats;
    const kiln_device_table *table; /* NULL until the device was opened by somebody who wants memory or figures */
    void *dev;

    /* The arena: what running steps use of it counts as in use, the rest as cached. Steps that are started at the same
     * time share it, since the device does one after the other. */
    kiln_address arena;
    size_t arena_size, arena_used;
    int arena_users;
} pool;

enum { POOLS = KILN_DEVICE_KINDS * KILN_DEVICES_OF_A_KIND };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pool pools[POOLS];

static pool *pool_of(kiln_device device)
{
    if (device < 0)
        return NULL;
    int kind = device >> 8, index = device & 255;
    return kind < KILN_DEVICE_KINDS && index < KILN_DEVICES_OF_A_KIND ? &pools[kind * KILN_DEVICES_OF_A_KIND + index]
                                                                      : NULL;
}

static size_t round_up(const pool *p, size_t bytes)
{
    if (p->table->apart)
        return bytes ? bytes : 1;
    return bytes ? (bytes + KILN_BLOCK_ALIGN - 1) / KILN_BLOCK_ALIGN * KILN_BLOCK_ALIGN : KILN_BLOCK_ALIGN;
}

/* Opens the device and locks its pool; NULL with an error, and nothing is locked. */
static pool *lock_pool(kiln_device device)
{
    void *dev;
    const kiln_device_table *table = kiln_device_open(device, &dev);
    pool *p = table ? pool_of(device) : NULL;
    if (!p)
        return NULL;
    pthread_mutex_lock(&lock);
    p->table = table;
    p->dev = dev;
    return p;
}

/* The same for what was taken from an open device; NULL without an error where it is the parent's of a forked process:
 * what was taken from it is not ours to give back. */
static pool *lock_open(kiln_device device)
{
    void *dev;
    pool *p = kiln_device_opened(device, &dev) ? pool_of(device) : NULL;
    if (p)
        pthread_mutex_lock(&lock);
    return p;
}

/* The same without opening it; NULL with an error if there is no such device. */
static pool *lock_unopened(kiln_device device)
{
    void *dev;
    pool *p = kiln_device_describe(device, NULL) ? pool_of(device) : NULL;
    if (!p)
        return NULL;
    const kiln_device_table *table = kiln_device_opened(device, &dev);
    pthread_mutex_lock(&lock);
    if (table) {
        p->table = table;
        p->dev = dev;
    }
    return p;
}

/* ---- Blocks ---- */

static bool take_cached(pool *p, size_t size, kiln_block *block)
{
    /* A much larger block serves someone else better. Under a limit nothing may be wasted, since what was found to fit
     * has to fit. */
    if (!kiln_blocks_take(&p->cached, size, p->stats.limit ? size : size + size / 2, block))
        return false;
    p->stats.cached -= block->size;
    return true;
}

static bool release_oldest(pool *p)
{
    kiln_block block;
    if (!kiln_blocks_take_oldest(&p->cached, &block))
        return false;
    p->table->release(p->dev, block.address, block.size);
    p->stats.cached -= block.size;
    p->blocks--;
    return true;
}

/* Keeps to the bound, when `more` are about to be taken from the device. Steps of small networks fit into the constant
 * whatever they do. */
static void keep_less(pool *p, size_t more)
{
    enum { LITTLE = 16 << 20 };
    uint64_t in_use = p->stats.in_use + more, most = in_use > p->most ? in_use : p->most;
    while (in_use + p->slack + p->stats.cached > 2 * most + LITTLE && release_oldest(p)) {
    }
}

/* The arena's length; true if it has it then. */
static bool resize_arena(pool *p, size_t size)
{
    p->stats.cached -= p->arena_size - p->arena_used;
    p->arena_size = p->table->arena(p->dev, size, &p->arena);
    p->stats.cached += p->arena_size - p->arena_used;
    return p->arena_size >= size;
}

static void trim(pool *p)
{
    while (release_oldest(p)) {
    }
    p->most = p->stats.in_use;
    if (p->arena_size > p->arena_used)
        resize_arena(p, p->arena_used);
    if (p->table->trim)
        p->table->trim(p->dev);
}

static uint64_t overhead(const pool *p)
{
    return p->table && p->table->overhead ? p->table->overhead(p->dev) : 0;
}

static bool over_limit(const pool *p, size_t more)
{
    return p->stats.limit && p->stats.in_use + p->slack + p->stats.cached + overhead(p) + more > p->stats.limit;
}

/* Asks the device, which may round up: what then passes the limit goes back. */
static kiln_address allocate(const pool *p, size_t size, bool *limited)
{
    *limited = over_limit(p, size);
    kiln_address address = *limited ? 0 : p->table->allocate(p->dev, size);
    if (!address || !over_limit(p, size))
        return address;
    *limited = true;
    p->table->release(p->dev, address, size);
    if (p->table->trim)
        p->table->trim(p->dev);
    return 0;
}

static bool take_fresh(pool *p, size_t size, kiln_block *block, bool *limited)
{
    if (!kiln_blocks_reserve(&p->cached, p->blocks + 1)) /* now, so that giving the block back cannot fail */
        return false;
    keep_less(p, size);
    bool was_ok = kiln_ok();
    uint64_t failures = kiln_fail_count();
    block->address = allocate(p, size, limited);
    if (!block->address && p->stats.cached) { /* perhaps what is cached stands in the way */
        trim(p);
        block->address = allocate(p, size, limited);
    }
    if (!block->address)
        return false;
    if (was_ok)
        kiln_fail_forget(failures); /* of a first attempt */
    block->size = size;
    p->blocks++;
    p->stats.allocations++;
    return true;
}

static void now_in_use(pool *p, size_t bytes)
{
    p->stats.in_use += bytes;
    if (p->stats.in_use > p->stats.peak)
        p->stats.peak = p->stats.in_use;
    if (p->stats.in_use + p->slack > p->most)
        p->most = p->stats.in_use;
}

/* "12.25 MiB", or bytes where that would be next to none; one of the thread's texts. */
static const char *size_text(uint64_t bytes)
{
    char *text = kiln_text();
    if (bytes < 10486)
        snprintf(text, KILN_TEXT, "%llu bytes", (unsigned long long)bytes);
    else
        snprintf(text, KILN_TEXT, "%.2f MiB", (double)bytes / (1 << 20));
    return text;
}

/* Always false. `beside` is what the device takes for itself. */
static bool refuse(kiln_device device, size_t size, const kiln_memory_stats *s, bool limited, uint64_t beside)
{
    char itself[64] = "";
    const char *name = kiln_device_name(device);
    if (beside)
        snprintf(itself, sizeof itself, ", and %s by the device itself", size_text(beside));
    if (limited)
        return kiln_fail(KILN_E_MEMORY, "memory", "%s more on %s would pass its limit of %s: %s are in use%s",
                         size_text(size), name, size_text(s->limit), size_text(s->in_use), itself);
    return kiln_fail(KILN_E_MEMORY, "memory", "%s could not give %s more; %s are in use%s", name, size_text(size),
                     size_text(s->in_use), itself);
}

static bool take(pool *p, size_t size, kiln_block *block, bool *limited)
{
    *block = (kiln_block){0};
    if (!take_cached(p, size, block) && !take_fresh(p, size, block, limited))
        return false;
    block->bytes = size;
    p->slack += block->size - size;
    now_in_use(p, size);
    return true;
}

int64_t kiln_memory_take_all(kiln_device device, const int64_t *bytes, int64_t n, kiln_block *blocks)
{
    pool *p = lock_pool(device);
    if (!p)
        return 0;
    bool limited = false;
    int64_t taken = 0;
    while (taken < n && take(p, round_up(p, (size_t)bytes[taken]), &blocks[taken], &limited))
        taken++;
    if (taken == n) {
        pthread_mutex_unlock(&lock);
        return n;
    }
    kiln_memory_stats stats = p->stats;
    size_t size = round_up(p, (size_t)bytes[taken]);
    uint64_t beside = overhead(p);
    pthread_mutex_unlock(&lock);
    refuse(device, size, &stats, limited, beside);
    return taken;
}

bool kiln_memory_take(kiln_device device, size_t bytes, kiln_block *block)
{
    return kiln_memory_take_all(device, &(int64_t){(int64_t)bytes}, 1, block) == 1;
}

void kiln_memory_give(kiln_device device, kiln_block block)
{
    pool *p = block.address ? lock_open(device) : NULL;
    if (!p)
        return;
    p->stats.in_use -= block.bytes;
    p->slack -= block.size - block.bytes;
    if (p->table->apart) {
        p->table->release(p->dev, block.address, block.size);
        p->blocks--;
    } else {
        kiln_blocks_add(&p->cached, block);
        p->stats.cached += block.size;
        keep_less(p, 0);
    }
    pthread_mutex_unlock(&lock);
}

/* ---- The arena ---- */

static bool grow_arena(pool *p, size_t size)
{
    size_t had = p->arena_size;
    if (size <= had)
        return true;
    keep_less(p, size - had);
    if (over_limit(p, size - had))
        return false;
    if (resize_arena(p, size) && !over_limit(p, 0)) {
        p->stats.allocations++;
        return true;
    }
    resize_arena(p, had);
    return false;
}

static bool has_arena(pool *p)
{
    if (p->table->arena && !p->arena)
        p->arena_size = p->table->arena(p->dev, 0, &p->arena);
    return p->arena != 0;
}

bool kiln_memory_take_arena(kiln_device device, size_t bytes, kiln_block *arena)
{
    pool *p = lock_pool(device);
    if (!p)
        return false;
    size_t size = round_up(p, bytes);
    bool has = has_arena(p), ok = has && grow_arena(p, size);
    if (!ok && has && p->stats.cached) { /* perhaps what is cached stands in the way */
        trim(p);
        ok = grow_arena(p, size);
    }
    if (ok) {
        size_t more = size > p->arena_used ? size - p->arena_used : 0;
        p->arena_users++;
        p->arena_used += more;
        p->stats.cached -= more;
        now_in_use(p, more);
        *arena = (kiln_block){p->arena, size, size};
    }
    pthread_mutex_unlock(&lock);
    return ok || kiln_memory_take(device, bytes, arena);
}

void kiln_memory_give_arena(kiln_device device, kiln_block arena)
{
    pool *p = lock_open(device);
    if (!p)
        return;
    bool shared = arena.address == p->arena;
    if (shared && --p->arena_users == 0) {
        p->stats.in_use -= p->arena_used;
        p->stats.cached += p->arena_used;
        p->arena_used = 0;
    }
    pthread_mutex_unlock(&lock);
    if (!shared)
        kiln_memory_give(device, arena);
}

/* ---- What is left ---- */

int64_t kiln_memory_left(kiln_device device)
{
    pool *p = pool_of(device);
    pthread_mutex_lock(&lock);
    uint64_t left = INT64_MAX, taken;
    if (p && p->stats.limit) {
        taken = p->stats.in_use + p->slack + overhead(p);
        left = p->stats.limit > taken ? p->stats.limit - taken : 0;
    }
    pthread_mutex_unlock(&lock);
    return left < INT64_MAX ? (int64_t)left : INT64_MAX;
}

int64_t kiln_memory_left_for(kiln_device device, int64_t bytes)
{
    enum { LITTLE = 64 << 20 }; /* not worth asking for */
    int64_t left = kiln_memory_left(device);
    kiln_memory_stats stats;
    if (device != KILN_CPU || bytes > left || bytes <= LITTLE || !kiln_memory_get_stats(device, &stats) ||
        bytes - LITTLE <= (int64_t)stats.cached)
        return left;
    uint64_t there = kiln_available(), all = there < INT64_MAX - stats.cached ? there + stats.cached : INT64_MAX;
    return (int64_t)all < left ? (int64_t)all : left;
}

int64_t kiln_memory_available(kiln_device device)
{
    kiln_device_info info;
    int64_t left = kiln_memory_left(device);
    kiln_memory_stats stats;
    if (!kiln_device_describe(device, &info) || !info.memory_total || !kiln_memory_get_stats(device, &stats))
        return left;
    int64_t available = (int64_t)(info.memory_free + stats.cached);
    return available < left ? available : left;
}

/* ---- Public ---- */

bool kiln_memory_get_stats_(kiln_device device, kiln_memory_stats *stats, size_t size)
{
    pool *p = stats ? lock_unopened(device) : NULL;
    if (!p)
        return false;
    kiln_memory_stats own = p->stats;
    own.overhead = overhead(p);
    KILN_GIVE_SIZED(stats, size, own);
    pthread_mutex_unlock(&lock);
    return true;
}

bool kiln_memory_reset_peak(kiln_device device)
{
    pool *p = lock_unopened(device);
    if (!p)
        return false;
    p->stats.peak = p->stats.in_use;
    pthread_mutex_unlock(&lock);
    return true;
}

bool kiln_memory_set_limit(kiln_device device, uint64_t bytes)
{
    pool *p = bytes ? lock_pool(device) : lock_unopened(device); /* open, it can tell what it takes for itself */
    if (!p)
        return false;
    uint64_t least = bytes ? overhead(p) : 0;
    if (bytes >= least)
        p->stats.limit = bytes;
    pthread_mutex_unlock(&lock);
    if (bytes >= least)
        return true;
    kiln_fail(
        KILN_E_MEMORY, "memory_set_limit",
        "a limit of %llu bytes on %s is below the %llu that the device takes for itself: its context and libraries",
        (unsigned long long)bytes, kiln_device_name(device), (unsigned long long)least);
    return kiln_hint("the limit is as it was. It has to leave room for tensors too");
}

bool kiln_memory_trim(kiln_device device)
{
    pool *p = lock_pool(device);
    if (!p)
        return false;
    trim(p);
    pthread_mutex_unlock(&lock);
    return true;
}

/* ---- Beginning and ending ---- */

static void forget(pool *p)
{
    kiln_blocks_free(&p->cached);
    *p = (pool){0};
}

/* Of what the parent has open nothing is ours. */
static void leave_to_parent(void)
{
    for (int i = 0; i < POOLS; i++)
        if (pools[i].table && pools[i].table != &kiln_cpu_table)
            forget(&pools[i]);
}

__attribute__((constructor)) static void load(void)
{
    kiln_fork_hold(KILN_FORK_MEMORY, &lock, leave_to_parent);
}

/* Cached blocks go back before the devices are closed; unless other threads are at work, which may take and give as
 * long as there is a process. */
__attribute__((destructor(102))) static void unload(void)
{
    if (!kiln_thread_alone())
        return;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < POOLS; i++) {
        if (pools[i].table)
            trim(&pools[i]);
        forget(&pools[i]);
    }
    pthread_mutex_unlock(&lock);
}
