/* Interned texts: a list by number, and a table of numbers by hash. */
#include "core/intern.h"
#include <pthread.h>
#include <string.h>
#include "core/alloc.h"
#include "core/arena.h"
#include "core/fail.h"
#include "core/fork.h"
#include "core/hash.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static kiln_arena pool;
static const char **texts; /* text n is the one numbered n + 1 */
static int64_t ntexts, texts_capacity;
static uint32_t *places; /* open addressing; 0: free */
static uint64_t nplaces; /* a power of two, at least twice as many as texts; 0: none yet */

__attribute__((constructor)) static void load(void)
{
    kiln_fork_hold(KILN_FORK_TEXTS, &lock, NULL);
}

/* Where the text is, or would be. */
static uint32_t *place_of(const char *text)
{
    uint64_t hash = 0;
    for (const char *c = text; *c; c++)
        hash = kiln_mix(hash, (uint8_t)*c);
    uint64_t at = hash & (nplaces - 1);
    while (places[at] && strcmp(texts[places[at] - 1], text) != 0)
        at = (at + 1) & (nplaces - 1);
    return &places[at];
}

static bool make_room(void)
{
    enum { FIRST = 256 };
    if (!KILN_GROW(texts, texts_capacity, ntexts + 1))
        return false;
    if (2 * ((uint64_t)ntexts + 1) <= nplaces)
        return true;
    uint64_t more = nplaces ? 2 * nplaces : FIRST;
    uint32_t *fresh = kiln_alloc_zero(more, sizeof *fresh);
    if (!fresh)
        return false;
    kiln_free(places);
    places = fresh;
    nplaces = more;
    for (int64_t i = 0; i < ntexts; i++)
        *place_of(texts[i]) = (uint32_t)i + 1;
    return true;
}

/* With the lock. */
static uint32_t find_or_add(const char *text)
{
    if (!make_room())
        return 0;
    uint32_t *place = place_of(text), known = *place;
    size_t bytes = strlen(text) + 1;
    char *copy = known ? NULL : KILN_ARENA_NEW(&pool, char, bytes);
    if (!copy)
        return known;
    memcpy(copy, text, bytes);
    texts[ntexts++] = copy;
    return *place = (uint32_t)ntexts;
}

uint32_t kiln_intern(const char *text)
{
    uint64_t failures = kiln_fail_count();
    bool was_ok = kiln_ok();
    pthread_mutex_lock(&lock);
    uint32_t number = find_or_add(text);
    pthread_mutex_unlock(&lock);
    if (!number && was_ok)
        kiln_fail_forget(failures);
    return number;
}

const char *kiln_interned(uint32_t number)
{
    if (!number)
        return NULL;
    pthread_mutex_lock(&lock);
    const char *text = texts[number - 1];
    pthread_mutex_unlock(&lock);
    return text;
}
