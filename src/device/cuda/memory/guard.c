/* Blocks between zones that nobody may write to. */
#include "device/cuda/memory/guard.h"
#include <stdlib.h>
#include <string.h>
#include "core/alloc.h"

enum { ZONE = 256, PATTERN = 0xcb };

static bool asked_for(const char *how)
{
    const char *text = getenv("KILN_CUDA_MEMCHECK");
    return text && strcmp(text, how) == 0;
}

kiln_cuda_guards kiln_cuda_guards_wanted(void)
{
    bool exact = asked_for("exact");
    return (kiln_cuda_guards){.on = exact || asked_for("1"), .zone = exact ? 0 : ZONE};
}

static bool fill(kiln_cuda_device *d, void *zone, size_t bytes)
{
    cudaStream_t stream = bytes ? kiln_cuda_stream(d) : NULL;
    return !bytes ||
           (stream && kiln_cuda_ok(d, cudaMemsetAsync(zone, PATTERN, bytes, stream), "a guard zone cannot be set"));
}

kiln_address kiln_cuda_guards_allocate(kiln_cuda_device *d, kiln_cuda_guards *g, size_t bytes)
{
    void *start = NULL;
    if (bytes > SIZE_MAX - 2 * g->zone || !KILN_GROW(g->blocks, g->capacity, g->nblocks + 1))
        return 0;
    if (!kiln_cuda_has_memory(d, cudaMalloc(&start, bytes + 2 * g->zone)))
        return 0;
    char *address = (char *)start + g->zone;
    if (!fill(d, start, g->zone) || !fill(d, address + bytes, g->zone)) {
        cudaFree(start);
        return 0;
    }
    g->blocks[g->nblocks++] = (struct kiln_cuda_block){address, bytes};
    return (kiln_address)(uintptr_t)address;
}

/* Bytes of a zone from the first to the last that were written to; sets it right, so that it is told once. */
static size_t damage(kiln_cuda_device *d, char *zone, size_t bytes, size_t *first)
{
    unsigned char seen[ZONE];
    cudaStream_t stream = bytes ? kiln_cuda_stream(d) : NULL;
    if (!stream ||
        !kiln_cuda_ok(d, cudaMemcpyAsync(seen, zone, bytes, cudaMemcpyDeviceToHost, stream),
                      "a guard zone cannot be read") ||
        !kiln_cuda_ok(d, cudaStreamSynchronize(stream), "a step failed"))
        return 0;
    size_t last = bytes;
    *first = 0;
    while (*first < bytes && seen[*first] == PATTERN)
        (*first)++;
    while (last > *first && seen[last - 1] == PATTERN)
        last--;
    if (last > *first)
        fill(d, zone, bytes);
    return last - *first;
}

static bool check_block(kiln_cuda_device *d, const kiln_cuda_guards *g, const struct kiln_cuda_block *b)
{
    size_t first, before = damage(d, b->address - g->zone, g->zone, &first);
    if (before)
        return kiln_fail(KILN_E_DEVICE, "memory",
                         "cuda:%d: something wrote to %zu bytes, %zu bytes before the start of a block of %zu bytes",
                         d->index, before, g->zone - first, b->bytes);
    size_t behind = damage(d, b->address + b->bytes, g->zone, &first);
    if (behind)
        return kiln_fail(KILN_E_DEVICE, "memory",
                         "cuda:%d: something wrote to %zu bytes, %zu bytes behind the end of a block of %zu bytes",
                         d->index, behind, first, b->bytes);
    return !d->lost;
}

void kiln_cuda_guards_release(kiln_cuda_device *d, kiln_cuda_guards *g, kiln_address address)
{
    int64_t i = 0;
    while (i < g->nblocks && (kiln_address)(uintptr_t)g->blocks[i].address != address)
        i++;
    if (i == g->nblocks)
        return;
    check_block(d, g, &g->blocks[i]);
    cudaFree(g->blocks[i].address - g->zone); /* waits for what uses it */
    cudaGetLastError();
    g->blocks[i] = g->blocks[--g->nblocks];
}

bool kiln_cuda_guards_check(kiln_cuda_device *d, const kiln_cuda_guards *g)
{
    bool ok = true;
    for (int64_t i = 0; ok && g->zone && i < g->nblocks; i++)
        ok = check_block(d, g, &g->blocks[i]);
    return ok;
}
