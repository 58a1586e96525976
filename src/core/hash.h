/* Hashing of word streams, and a small map from pointers to integers that is emptied in O(1). */
#ifndef KILN_CORE_HASH_H
#define KILN_CORE_HASH_H

#include <stdbool.h>
#include <stdint.h>

static inline uint64_t kiln_mix(uint64_t hash, uint64_t word)
{
    hash ^= word * 0x9e3779b97f4a7c15u;
    return (hash << 29 | hash >> 35) * 0xbf58476d1ce4e5b9u + 0x94d049bb133111ebu;
}

/* Of many words at once. */
uint64_t kiln_hash_words(const int64_t *words, int64_t count);

/* Open addressing; an entry counts only if its stamp is the map's, so kiln_map_clear costs nothing. */
typedef struct kiln_map {
    struct kiln_map_entry {
        const void *key;
        int32_t value;
        uint32_t stamp;
    } * entries;
    int64_t capacity; /* a power of two, or 0 */
    int64_t count;
    uint32_t stamp;
} kiln_map;

int32_t kiln_map_get(const kiln_map *map, const void *key); /* -1 when absent */
bool kiln_map_grow(kiln_map *map, int64_t more);

/* Makes room for `more` new keys; false with an error. */
static inline bool kiln_map_reserve(kiln_map *map, int64_t more)
{
    return (map->count + more) * 2 <= map->capacity || kiln_map_grow(map, more);
}

/* Where the key's value is kept, -1 if the key is new; after kiln_map_reserve, and valid until the next change. */
int32_t *kiln_map_at(kiln_map *map, const void *key);
void kiln_map_clear(kiln_map *map);
void kiln_map_free(kiln_map *map);

#endif
