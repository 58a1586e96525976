/* The plan cache: plans by hash, compared in full, the least recently used ones dropped when they take too much memory
 * or are too many. Shared by all threads. */
#include <pthread.h>
#include <string.h>
#include "core/alloc.h"
#include "core/fail.h"
#include "core/fork.h"
#include "core/hash.h"
#include "core/sized.h"
#include "plan/code.h"
#include "plan/plan.h"
#include "tensor/thread.h"

enum { BUCKETS = 1024 };

static struct {
    pthread_mutex_t lock;
    kiln_plan *buckets[BUCKETS]; /* by hash */
    kiln_plan *alike[BUCKETS];   /* by the hash without offsets */
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
        kiln_plan **at = &cache.buckets[p->hash % BUCKETS], **alike = &cache.alike[p->alike_hash % BUCKETS];
        while (*at != p)
            at = &(*at)->same;
        *at = p->same;
        while (*alike != p)
            alike = &(*alike)->alike;
        *alike = p->alike;
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

/* True if the plan serves this code: the same but for offsets that it is given with each run. */
static bool is_of(const kiln_plan *p, const int64_t *code, int64_t ncode)
{
    int64_t at = 0;
    if (p->ncode != ncode)
        return false;
    for (int64_t i = 0; i < p->nwild; i++) {
        int64_t end = p->wild[i].at;
        if (memcmp(p->code + at, code + at, (size_t)(end - at) * sizeof *code) != 0 ||
            (p->wild[i].end && code[end] - code[end - 1] != p->code[end] - p->code[end - 1]))
            return false;
        at = end + 1;
    }
    return memcmp(p->code + at, code + at, (size_t)(ncode - at) * sizeof *code) == 0;
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

/* ---- Plans that differ in offsets ---- */

/* The offsets in which both differ, with those that the plan takes as they come; in order. There is room. */
static int64_t join_wild(const kiln_plan *p, const int64_t *code, kiln_wild *wild)
{
    kiln_code_part part = {0};
    int64_t n = 0, k = 0, place[2];
    while (kiln_code_next(code, p->ncode, &part)) {
        int places = kiln_code_places(&part, place);
        while (k < p->nwild && p->wild[k].at < part.at)
            k++;
        bool known = places && k < p->nwild && p->wild[k].at == place[0];
        if (!places || (!known && p->code[place[0]] == code[place[0]]))
            continue;
        wild[n++] = (kiln_wild){place[0], false};
        if (places == 2)
            wild[n++] = (kiln_wild){place[1], true};
    }
    return n;
}

static bool has_same_without_places(const kiln_plan *p, const int64_t *bare, int64_t ncode, int64_t *scratch)
{
    if (p->ncode != ncode)
        return false;
    kiln_code_without_places(p->code, ncode, scratch);
    return memcmp(scratch, bare, (size_t)ncode * sizeof *bare) == 0;
}

/* With the lock held. A plan that serves the code, or NULL and in *near one that differs in offsets alone, if any. */
static kiln_plan *look_for_alike(const int64_t *code, int64_t ncode, int64_t *bare, kiln_plan **near)
{
    uint64_t hash = kiln_hash_words(bare, ncode);
    for (kiln_plan *p = cache.alike[hash % BUCKETS]; p; p = p->alike) { /* newest first */
        if (p->alike_hash != hash || !has_same_without_places(p, bare, ncode, bare + ncode))
            continue;
        if (is_of(p, code, ncode))
            return p;
        if (!*near || p->nwild > (*near)->nwild)
            *near = p;
    }
    return NULL;
}

kiln_plan *kiln_plan_find_alike(const int64_t *code, int64_t ncode, kiln_wild **wild, int64_t *nwild)
{
    *wild = NULL;
    *nwild = 0;
    int64_t *bare = kiln_alloc(2 * (size_t)ncode, sizeof *bare);
    kiln_wild *differ = bare ? kiln_alloc((size_t)ncode, sizeof *differ) : NULL;
    kiln_plan *p = NULL, *near = NULL;
    if (differ) {
        kiln_code_without_places(code, ncode, bare);
        pthread_mutex_lock(&cache.lock);
        if ((p = look_for_alike(code, ncode, bare, &near))) {
            found(p);
            cache.stats.misses--; /* it was taken for one */
        } else if (near)
            *nwild = join_wild(near, code, differ);
        pthread_mutex_unlock(&cache.lock);
    }
    kiln_free(bare);
    if (*nwild)
        *wild = differ;
    else
        kiln_free(differ);
    return p;
}

kiln_plan *kiln_plan_newest(void)
{
    pthread_mutex_lock(&cache.lock);
    kiln_plan *p = cache.newest;
    if (p)
        atomic_fetch_add(&p->refs, 1);
    pthread_mutex_unlock(&cache.lock);
    return p;
}

/* ---- Adding ---- */

static uint64_t hash_without_places(const kiln_plan *p)
{
    bool was_ok = kiln_ok();
    uint64_t failures = kiln_fail_count();
    int64_t *bare = kiln_alloc((size_t)p->ncode, sizeof *bare);
    if (!bare) { /* then it is not found that way */
        if (was_ok)
            kiln_fail_forget(failures);
        return 0;
    }
    kiln_code_without_places(p->code, p->ncode, bare);
    uint64_t hash = kiln_hash_words(bare, p->ncode);
    kiln_free(bare);
    return hash;
}

void kiln_plan_add(kiln_plan *p)
{
    p->alike_hash = hash_without_places(p);
    pthread_mutex_lock(&cache.lock);
    kiln_plan *dropped = NULL;
    if (cache.stats.capacity > 0) { /* the newest is kept however large it is: the next step is likely to be the same */
        dropped = shrink(p);
        atomic_fetch_add(&p->refs, 1);
        p->same = cache.buckets[p->hash % BUCKETS];
        cache.buckets[p->hash % BUCKETS] = p;
        p->alike = cache.alike[p->alike_hash % BUCKETS];
        cache.alike[p->alike_hash % BUCKETS] = p;
        link_newest(p);
        cache.stats.plans++;
        cache.stats.bytes += p->held;
    }
    pthread_mutex_unlock(&cache.lock);
    drop(dropped);
}

void kiln_plan_cache_stats_(kiln_plan_cache *stats, size_t size)
{
    pthread_mutex_lock(&cache.lock);
    KILN_GIVE_SIZED(stats, size, cache.stats);
    pthread_mutex_unlock(&cache.lock);
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

__attribute__((constructor)) static void load(void)
{
    kiln_fork_hold(KILN_FORK_PLANS, &cache.lock, NULL);
}

/* Plans hold device resources; give them back before the devices go. Other threads that are at work may use them. */
__attribute__((destructor)) static void unload(void)
{
    if (kiln_thread_alone())
        kiln_plan_cache_set_capacity(0);
}
