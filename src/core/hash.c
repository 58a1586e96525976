#include "core/hash.h"
#include "core/alloc.h"

static uint64_t fold(uint64_t a, uint64_t b)
{
    unsigned __int128 product = (unsigned __int128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

/* Two words a multiplication, and four chains of them side by side, so that none waits for the one before. */
uint64_t kiln_hash_words(const int64_t *words, int64_t count)
{
    const uint64_t salt = 0x9e3779b97f4a7c15u;
    uint64_t chain[4] = {(uint64_t)count, 0xbf58476d1ce4e5b9u, 0x94d049bb133111ebu, 0xd6e8feb86659fd93u};
    int64_t i = 0;
    for (; i + 8 <= count; i += 8)
        for (int k = 0; k < 4; k++)
            chain[k] = fold(chain[k] ^ (uint64_t)words[i + 2 * k], salt ^ (uint64_t)words[i + 2 * k + 1]);
    for (; i < count; i++)
        chain[0] = kiln_mix(chain[0], (uint64_t)words[i]);
    return kiln_mix(kiln_mix(chain[0], chain[1]), kiln_mix(chain[2], chain[3]));
}

static int64_t place(const struct kiln_map_entry *entries, int64_t capacity, uint32_t stamp, const void *key)
{
    uint64_t i = kiln_mix(0, (uintptr_t)key) & (uint64_t)(capacity - 1);
    while (entries[i].stamp == stamp && entries[i].key != key)
        i = (i + 1) & (uint64_t)(capacity - 1);
    return (int64_t)i;
}

int32_t kiln_map_get(const kiln_map *map, const void *key)
{
    if (!map->count)
        return -1;
    const struct kiln_map_entry *e = &map->entries[place(map->entries, map->capacity, map->stamp, key)];
    return e->stamp == map->stamp ? e->value : -1;
}

bool kiln_map_grow(kiln_map *map, int64_t more)
{
    int64_t capacity = map->capacity ? map->capacity * 2 : 64;
    while ((map->count + more) * 2 > capacity)
        capacity *= 2;
    struct kiln_map_entry *entries = kiln_alloc_zero((size_t)capacity, sizeof *entries);
    if (!entries)
        return false;
    for (int64_t i = 0; i < map->capacity; i++)
        if (map->count && map->entries[i].stamp == map->stamp) {
            struct kiln_map_entry *e = &entries[place(entries, capacity, 1, map->entries[i].key)];
            *e = map->entries[i];
            e->stamp = 1;
        }
    kiln_free(map->entries);
    map->entries = entries;
    map->capacity = capacity;
    map->stamp = 1;
    return true;
}

int32_t *kiln_map_at(kiln_map *map, const void *key)
{
    struct kiln_map_entry *e = &map->entries[place(map->entries, map->capacity, map->stamp, key)];
    if (e->stamp != map->stamp) {
        *e = (struct kiln_map_entry){key, -1, map->stamp};
        map->count++;
    }
    return &e->value;
}

void kiln_map_clear(kiln_map *map)
{
    map->count = 0;
    if (++map->stamp == 0) { /* the stamps went round: old entries would look fresh */
        for (int64_t i = 0; i < map->capacity; i++)
            map->entries[i].stamp = 0;
        map->stamp = 1;
    }
}

void kiln_map_free(kiln_map *map)
{
    kiln_free(map->entries);
    *map = (kiln_map){0};
}
