/* The memory pool of each device: blocks that were given back are kept for reuse, everything is counted, and a limit
 * holds for all of it. */
#include <pthread.h>
#include <string.h>
#include "core/alloc.h"
#include "core/fail.h"
#include "device/device.h"
#include "plan/backend.h"
#include "tensor/memory.h"

typedef struct pool {
    kiln_block *cached; /* by size */
    int64_t ncached, capacity;
    int64_t blocks; /* taken from the device: cached ones and those in use. `cached` has room for all of them */
    uint64_t slack; /* blocks in use are larger than what counts as in use by so much in all */
    kiln_memory_stats stats;
} pool;

enum { POOLS = 64 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pool pools[POOLS];

static pool *pool_of(kiln_device device)
{
    if (device < 0)
        return NULL;
    int i = (device >> 8) * 16 + (device & 15);
    return i < POOLS ? &pools[i] : NULL;
}

static size_t round_up(size_t bytes)
{
    return bytes ? (bytes + KILN_BLOCK_ALIGN - 1) / KILN_BLOCK_ALIGN * KILN_BLOCK_ALIGN : KILN_BLOCK_ALIGN;
}

/* The first cached block of at least `size`. */
static int64_t lower_bound(const pool *p, size_t size)
{
    int64_t low = 0, high = p->ncached;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (p->cached[middle].size < size)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool take_cached(pool *p, size_t size, kiln_block *block)
{
    int64_t i = lower_bound(p, size);
    /* A much larger block serves someone else better. Under a limit nothing may be wasted, since what was found to fit
     * has to fit. */
    if (i == p->ncached || p->cached[i].size > (p->stats.limit ? size : size + size / 2))
        return false;
    *block = p->cached[i];
    p->ncached--;
    memmove(p->cached + i, p->cached + i + 1, (size_t)(p->ncached - i) * sizeof *p->cached);
    p->stats.cached -= block->size;
    return true;
}

static void trim(pool *p, const kiln_device_table *table, void *dev)
{
    for (int64_t i = 0; i < p->ncached; i++)
        table->release(dev, p->cached[i].address, p->cached[i].size);
    p->blocks -= p->ncached;
    p->ncached = 0;
    p->stats.cached = 0;
}

static bool over_limit(const pool *p, size_t more)
{
    return p->stats.limit && p->stats.in_use + p->slack + p->stats.cached + more > p->stats.limit;
}

static bool take_fresh(pool *p, const kiln_device_table *table, void *dev, size_t size, kiln_block *block)
{
    if (!KILN_GROW(p->cached, p->capacity, p->blocks + 1)) /* now, so that giving the block back cannot fail */
        return false;
    bool was_ok = kiln_ok();
    if (over_limit(p, size))
        trim(p, table, dev);
    block->address = over_limit(p, size) ? 0 : table->allocate(dev, size);
    if (!block->address && p->ncached) { /* perhaps what is cached stands in the way */
        trim(p, table, dev);
        block->address = over_limit(p, size) ? 0 : table->allocate(dev, size);
    }
    if (!block->address)
        return false;
    if (was_ok)
        kiln_error_clear(); /* of a first attempt */
    block->size = size;
    p->blocks++;
    p->stats.allocations++;
    return true;
}

bool kiln_memory_take(kiln_device device, size_t bytes, kiln_block *block)
{
    void *dev;
    const kiln_device_table *table = kiln_device_open(device, &dev);
    pool *p = table ? pool_of(device) : NULL;
    if (!p)
        return false;
    size_t size = round_up(bytes);
    *block = (kiln_block){0};
    pthread_mutex_lock(&lock);
    bool ok = take_cached(p, size, block) || take_fresh(p, table, dev, size, block);
    if (ok) {
        block->bytes = size;
        p->slack += block->size - size;
        p->stats.in_use += size;
        if (p->stats.in_use > p->stats.peak)
            p->stats.peak = p->stats.in_use;
    }
    kiln_memory_stats stats = p->stats;
    bool limited = !ok && over_limit(p, size);
    pthread_mutex_unlock(&lock);
    if (ok)
        return true;
    if (limited)
        return kiln_fail(KILN_E_MEMORY, "memory", "%zu bytes more on %s would pass its limit of %llu: %llu are in use",
                         size, kiln_device_name(device), (unsigned long long)stats.limit,
                         (unsigned long long)stats.in_use);
    return kiln_fail(KILN_E_MEMORY, "memory", "%s could not give %zu bytes more; %llu are in use",
                     kiln_device_name(device), size, (unsigned long long)stats.in_use);
}

void kiln_memory_give(kiln_device device, kiln_block block)
{
    void *dev;
    const kiln_device_table *table = kiln_device_open(device, &dev);
    pool *p = table ? pool_of(device) : NULL;
    if (!p || !block.address)
        return;
    pthread_mutex_lock(&lock);
    p->stats.in_use -= block.bytes;
    p->slack -= block.size - block.bytes;
    int64_t i = lower_bound(p, block.size);
    memmove(p->cached + i + 1, p->cached + i, (size_t)(p->ncached - i) * sizeof *p->cached);
    p->cached[i] = block;
    p->ncached++;
    p->stats.cached += block.size;
    pthread_mutex_unlock(&lock);
}

int64_t kiln_memory_left(kiln_device device)
{
    pool *p = pool_of(device);
    pthread_mutex_lock(&lock);
    int64_t left = p && p->stats.limit ? (int64_t)p->stats.limit - (int64_t)(p->stats.in_use + p->slack) : INT64_MAX;
    pthread_mutex_unlock(&lock);
    return left > 0 ? left : 0;
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

bool kiln_memory_get_stats(kiln_device device, kiln_memory_stats *stats)
{
    pool *p = kiln_device_describe(device, NULL) ? pool_of(device) : NULL;
    if (!p || !stats)
        return false;
    pthread_mutex_lock(&lock);
    *stats = p->stats;
    pthread_mutex_unlock(&lock);
    return true;
}

bool kiln_memory_reset_peak(kiln_device device)
{
    pool *p = kiln_device_describe(device, NULL) ? pool_of(device) : NULL;
    if (!p)
        return false;
    pthread_mutex_lock(&lock);
    p->stats.peak = p->stats.in_use;
    pthread_mutex_unlock(&lock);
    return true;
}

bool kiln_memory_set_limit(kiln_device device, uint64_t bytes)
{
    pool *p = kiln_device_describe(device, NULL) ? pool_of(device) : NULL;
    if (!p)
        return false;
    pthread_mutex_lock(&lock);
    p->stats.limit = bytes;
    pthread_mutex_unlock(&lock);
    return true;
}

bool kiln_memory_trim(kiln_device device)
{
    void *dev;
    const kiln_device_table *table = kiln_device_open(device, &dev);
    pool *p = table ? pool_of(device) : NULL;
    if (!p)
        return false;
    pthread_mutex_lock(&lock);
    trim(p, table, dev);
    pthread_mutex_unlock(&lock);
    return true;
}

/* Cached blocks go back before the devices are closed. */
__attribute__((destructor(102))) static void unload(void)
{
    for (int i = 0; i < POOLS; i++) {
        void *dev;
        if (pools[i].ncached) {
            const kiln_device_table *table = kiln_device_open((kiln_device)(i / 16 << 8 | i % 16), &dev);
            if (table)
                trim(&pools[i], table, dev);
        }
        kiln_free(pools[i].cached);
        pools[i] = (pool){0};
    }
}
