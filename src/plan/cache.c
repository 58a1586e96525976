/* The plan cache: plans by hash, compared in full, the least recently used ones dropped when they take too much memory
 * or are too many. Shared by all threads. */
#include <pthread.h>
#include <string.h>
#include "plan/plan.h"

enum { BUCKETS = 1024 };

static struct {
    pthread_mutex_t lock;
    kiln_plan *buckets[BUCKETS];
    kiln_plan *newest, *oldest;
    kiln_plan_cache stats;
} cache = {.lock = PTHREAD_MUTEX_INITIALIZER, .stats = {.capacity = INT64_MAX, .byte_capacity = 128 << 20}};

static void unlink_plan(kiln_plan *p)
{
    *(p->newer ? &p->newer->older : &cache.newest) = p->older;
    *(p->older ? &p->older->newer : &cache.oldest) = p->newer;
}

static void link_newest(kiln_plan *p)
{
    p->newer = NULL;
    p->older = cache.newest;
    *(cache.newest ? &cache.newest->newer : &cache.oldest) = p;
    cache.newest = p;
}

static bool is_too_much(const kiln_plan *room_for)
{
    int64_t plans = cache.stats.plans + (room_for != NULL), bytes = cache.stats.bytes + (room_for ? room_for->held : 0);
    return plans > cache.stats.capacity || bytes > cache.stats.byte_capacity;
}

/* Takes the oldest plans out until what is left, and the one that room is wanted for, is not too much; returns them
 * chained through `same`. */
static kiln_plan *shrink(const kiln_plan *room_for)
{
    kiln_plan *out = NULL;
    while (cache.oldest && is_too_much(room_for)) {
        kiln_plan *p = cache.oldest;
        kiln_plan **at = &cache.buckets[p->hash % BUCKETS];
        while (*at != p)
            at = &(*at)->same;
        *at = p->same;
        unlink_plan(p);
        cache.stats.plans--;
        cache.stats.bytes -= p->held;
        p->same = out;
        out = p;
    }
    return out;
}

static void drop(kiln_plan *list)
{
    for (kiln_plan *next; list; list = next) {
        next = list->same;
        kiln_plan_unref(list);
    }
}

static bool is_of(const kiln_plan *p, const int64_t *code, int64_t ncode)
{
    return p->ncode == ncode && memcmp(p->code, code, (size_t)ncode * sizeof *code) == 0;
}

/* With the lock held: a reference for whoever has found it. */
static void found(kiln_plan *p)
{
    atomic_fetch_add(&p->refs, 1);
    if (p != cache.newest) {
        unlink_plan(p);
        link_newest(p);
    }
    cache.stats.hits++;
}

kiln_plan *kiln_plan_find_newest(const int64_t *code, int64_t ncode)
{
    pthread_mutex_lock(&cache.lock);
    kiln_plan *p = cache.newest && is_of(cache.newest, code, ncode) ? cache.newest : NULL;
    if (p)
        found(p);
    pthread_mutex_unlock(&cache.lock);
    return p;
}

kiln_plan *kiln_plan_find(uint64_t hash, const int64_t *code, int64_t ncode)
{
    pthread_mutex_lock(&cache.lock);
    kiln_plan *p = cache.buckets[hash % BUCKETS];
    while (p && (p->hash != hash || !is_of(p, code, ncode)))
        p = p->same;
    if (p)
        found(p);
    else
        cache.stats.misses++;
    pthread_mutex_unlock(&cache.lock);
    return p;
}

void kiln_plan_add(kiln_plan *p)
{
    pthread_mutex_lock(&cache.lock);
    kiln_plan *dropped = NULL;
    if (cache.stats.capacity > 0) { /* the newest is kept however large it is: the next step is likely to be the same */
        dropped = shrink(p);
        atomic_fetch_add(&p->refs, 1);
        p->same = cache.buckets[p->hash % BUCKETS];
        cache.buckets[p->hash % BUCKETS] = p;
        link_newest(p);
        cache.stats.plans++;
        cache.stats.bytes += p->held;
    }
    pthread_mutex_unlock(&cache.lock);
    drop(dropped);
}

kiln_plan_cache kiln_plan_cache_stats(void)
{
    pthread_mutex_lock(&cache.lock);
    kiln_plan_cache stats = cache.stats;
    pthread_mutex_unlock(&cache.lock);
    return stats;
}

static void set_limit(int64_t *limit, int64_t to)
{
    pthread_mutex_lock(&cache.lock);
    *limit = to > 0 ? to : 0;
    kiln_plan *dropped = shrink(NULL);
    pthread_mutex_unlock(&cache.lock);
    drop(dropped);
}

void kiln_plan_cache_set_capacity(int64_t plans)
{
    set_limit(&cache.stats.capacity, plans);
}

void kiln_plan_cache_set_bytes(int64_t bytes)
{
    set_limit(&cache.stats.byte_capacity, bytes);
}

/* Plans hold device resources; give them back before the devices go. */
__attribute__((destructor)) static void unload(void)
{
    kiln_plan_cache_set_capacity(0);
}
