#include "core/arena.h"
#include <stdint.h>
#include "core/alloc.h"

struct kiln_arena_chunk {
    struct kiln_arena_chunk *next;
    size_t padding; /* keeps what follows 16-byte aligned */
};

enum { CHUNK = 16384 };

void *kiln_arena_take(kiln_arena *a, size_t count, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes) || bytes > SIZE_MAX / 2)
        return kiln_alloc(SIZE_MAX, 2); /* raises the error */
    bytes = (bytes + 15) & ~(size_t)15;
    if (!a->chunks || a->size - a->used < bytes) {
        size_t room = a->size * 2 > CHUNK ? a->size * 2 : CHUNK; /* doubling: few chunks however much is asked */
        if (room > 1 << 20)
            room = 1 << 20;
        if (room < bytes)
            room = bytes;
        struct kiln_arena_chunk *chunk = kiln_alloc_zero(1, sizeof *chunk + room);
        if (!chunk)
            return NULL;
        chunk->next = a->chunks;
        a->chunks = chunk;
        a->size = room;
        a->total += room;
        a->used = 0;
    }
    void *p = (char *)(a->chunks + 1) + a->used;
    a->used += bytes;
    return p;
}

void kiln_arena_free(kiln_arena *a)
{
    for (struct kiln_arena_chunk *next; a->chunks; a->chunks = next) {
        next = a->chunks->next;
        kiln_free(a->chunks);
    }
    *a = (kiln_arena){0};
}
