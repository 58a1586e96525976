/* Host memory: the C library's allocator, with overflow checks, errors, and failures on demand. */
#include "core/alloc.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "core/fail.h"

enum { ALIGNMENT = 64 }; /* a cache line, and the widest vector */
enum { HUGE_PAGE = 2 << 20 };

static atomic_int_fast64_t until_failure = -1; /* allocations that still succeed; negative: all */
static atomic_uint_fast64_t allocations;

/* Counts an allocation; true when this one is to fail. */
static bool must_fail(void)
{
    atomic_fetch_add_explicit(&allocations, 1, memory_order_relaxed);
    if (atomic_load_explicit(&until_failure, memory_order_relaxed) < 0)
        return false;
    return atomic_fetch_sub_explicit(&until_failure, 1, memory_order_relaxed) == 0; /* goes to -1: off again */
}

static void *memory_error(size_t bytes)
{
    return kiln_fail(KILN_E_MEMORY, NULL, "cannot allocate %zu bytes of host memory", bytes);
}

static bool bytes_for(size_t count, size_t size, size_t *bytes)
{
    if (__builtin_mul_overflow(count, size, bytes) || *bytes > PTRDIFF_MAX) {
        kiln_fail(KILN_E_MEMORY, NULL, "cannot allocate %zu items of %zu bytes: more than an address can tell", count,
                  size);
        return false;
    }
    if (*bytes == 0)
        *bytes = 1;
    return true;
}

void *kiln_alloc(size_t count, size_t size)
{
    size_t bytes;
    if (!bytes_for(count, size, &bytes))
        return NULL;
    void *p = must_fail() ? NULL : malloc(bytes);
    return p ? p : memory_error(bytes);
}

void *kiln_alloc_zero(size_t count, size_t size)
{
    size_t bytes;
    if (!bytes_for(count, size, &bytes))
        return NULL;
    void *p = must_fail() ? NULL : calloc(1, bytes);
    return p ? p : memory_error(bytes);
}

void *kiln_realloc(void *old, size_t count, size_t size)
{
    size_t bytes;
    if (!bytes_for(count, size, &bytes))
        return NULL;
    void *p = must_fail() ? NULL : realloc(old, bytes);
    return p ? p : memory_error(bytes);
}

void *kiln_alloc_aligned(size_t bytes)
{
    if (bytes > PTRDIFF_MAX - ALIGNMENT)
        return memory_error(bytes);
    size_t rounded = bytes ? (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT : ALIGNMENT;
    bool large = rounded >= 2 * (size_t)HUGE_PAGE;
    void *p = NULL;
    if (must_fail() || posix_memalign(&p, large ? HUGE_PAGE : ALIGNMENT, rounded))
        return memory_error(bytes);
#ifdef MADV_HUGEPAGE
    if (large) /* kernels that stream through large tensors meet fewer page walks; refused, nothing is lost */
        madvise(p, rounded / HUGE_PAGE * HUGE_PAGE, MADV_HUGEPAGE);
#endif
    return p;
}

void kiln_free(void *p)
{
    free(p);
}

void kiln_alloc_fail_after(int64_t n)
{
    atomic_store_explicit(&until_failure, n < 0 ? -1 : n, memory_order_relaxed);
}

uint64_t kiln_alloc_count(void)
{
    return atomic_load_explicit(&allocations, memory_order_relaxed);
}

bool kiln_grow(void **items, int64_t *capacity, int64_t need, size_t size)
{
    if (need <= *capacity)
        return true;
    int64_t wanted = *capacity < 8 ? 16 : *capacity > INT64_MAX / 2 ? INT64_MAX : *capacity * 2;
    if (wanted < need)
        wanted = need;
    void *grown = kiln_realloc(*items, (size_t)wanted, size);
    if (!grown)
        return false;
    *items = grown;
    *capacity = wanted;
    return true;
}
