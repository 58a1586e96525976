/* Host memory. Every allocation of the library goes through here, so that a test can make each one fail in turn. */
#ifndef KILN_CORE_ALLOC_H
#define KILN_CORE_ALLOC_H

#include <stddef.h>
#include <stdint.h>
#include "core/export.h"

/* Like malloc, calloc and realloc, but raise KILN_E_MEMORY where they return NULL. Sizes are count × size, checked for
 * overflow. A count of zero gives a pointer that may be freed. */
KILN_PLUGIN_API void *kiln_alloc(size_t count, size_t size);
KILN_PLUGIN_API void *kiln_alloc_zero(size_t count, size_t size);
KILN_PLUGIN_API void *kiln_realloc(void *p, size_t count, size_t size);
KILN_PLUGIN_API void *kiln_alloc_aligned(size_t bytes); /* 64-byte aligned, freed with kiln_free */
KILN_PLUGIN_API void kiln_free(void *p);

/* For tests: lets the next `n` allocations of this process succeed and the one after them fail, once. A negative n
 * switches that off. kiln_alloc_count counts allocations since the start of the process. */
void kiln_alloc_fail_after(int64_t n);
uint64_t kiln_alloc_count(void);

/* A growing array: makes room for `need` items in *items, doubling; false (with an error) when memory runs out. */
#define KILN_GROW(items, capacity, need)                                                                               \
    ((need) <= (capacity) || kiln_grow((void **)&(items), &(capacity), (need), sizeof *(items)))
KILN_PLUGIN_API _Bool kiln_grow(void **items, int64_t *capacity, int64_t need, size_t size);

#endif
