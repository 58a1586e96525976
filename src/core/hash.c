#include "core/hash.h"
#include "core/alloc.h"

uint64_t kiln_hash_words(const int64_t *words, int64_t count)
{
    uint64_t a = (uint64_t)count, b = 1, c = 2, d = 3;
    int64_t i = 0;
    for (; i + 4 <= count; i += 4) {
        a = kiln_mix(a, (uint64_t)words[i]);
        b = kiln_mix(b, (uint64_t)words[i + 1]);
        c = kiln_mix(c, (uint64_t)words[i + 2]);
        d = kiln_mix(d, (uint64_t)words[i + 3]);
    }
    for (; i < count; i++)
        a = kiln_mix(a, (uint64_t)words[i]);
    return kiln_mix(kiln_mix(a, b), kiln_mix(c, d));
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

bool kiln_map_reserve(kiln_map *map, int64_t more)
{
    if (map->capacity && (map->count + more) * 2 <= map->capacity)
        return true;
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

void kiln_map_put(kiln_map *map, const void *key, int32_t value)
{
    struct kiln_map_entry *e = &map->entries[place(map->entries, map->capacity, map->stamp, key)];
    map->count += e->stamp != map->stamp;
    *e = (struct kiln_map_entry){key, value, map->stamp};
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
