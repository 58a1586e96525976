/* An arena: many small allocations that are freed together. */
#ifndef KILN_CORE_ARENA_H
#define KILN_CORE_ARENA_H

#include <stddef.h>
#include "core/export.h"

typedef struct kiln_arena {
    struct kiln_arena_chunk *chunks; /* newest first */
    size_t used, size;               /* of the newest */
    size_t total;                    /* bytes of all */
} kiln_arena;

/* Zeroed memory, 16-byte aligned; NULL with an error when memory runs out. A count of 0 gives a valid pointer. */
KILN_PLUGIN_API void *kiln_arena_take(kiln_arena *a, size_t count, size_t size);
KILN_PLUGIN_API void kiln_arena_free(kiln_arena *a);

#define KILN_ARENA_NEW(arena, type, count) ((type *)kiln_arena_take((arena), (size_t)(count), sizeof(type)))

#endif
