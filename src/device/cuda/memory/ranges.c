/* Blocks in a range of addresses: the first fit, in what has memory if it can be, neighbours joined, memory by the
 * granule. */
#include "device/cuda/memory/ranges.h"
#include <string.h>
#include "core/alloc.h"

enum { EMPTY, BACKED, FRESH }; /* FRESH: mapped for the block that is just being taken */

static uint64_t round_up(uint64_t n, uint64_t unit)
{
    return (n + unit - 1) / unit * unit;
}

bool kiln_ranges_init(kiln_ranges *r, uint64_t bytes, uint64_t granule, kiln_granules granules)
{
    *r = (kiln_ranges){.granule = granule, .granules = granules};
    if (!kiln_holes_reserve(&r->holes, 1))
        return false;
    kiln_holes_add(&r->holes, (kiln_hole){.bytes = bytes});
    return true;
}

/* ---- Granules ---- */

static bool has_memory(const kiln_ranges *r, uint64_t granule)
{
    return granule < (uint64_t)r->nbacked && r->backed[granule] != EMPTY;
}

/* How many bytes of a hole have memory, from its beginning on. */
static uint64_t ready_bytes(const kiln_ranges *r, const kiln_hole *hole)
{
    uint64_t end = hole->offset + hole->bytes, g = hole->offset / r->granule;
    while (g * r->granule < end && has_memory(r, g))
        g++;
    uint64_t to = g * r->granule;
    return to <= hole->offset ? 0 : (to < end ? to : end) - hole->offset;
}

/* The end of the run of granules like `from`, at most `end`. */
static uint64_t run_end(const kiln_ranges *r, uint64_t from, uint64_t end)
{
    uint64_t to = from + 1;
    while (to < end && r->backed[to] == r->backed[from])
        to++;
    return to;
}

static void unmap_run(kiln_ranges *r, uint64_t from, uint64_t to)
{
    r->granules.unmap(r->granules.owner, from, to - from);
    memset(r->backed + from, EMPTY, to - from);
    r->mapped -= (to - from) * r->granule;
}

/* Gives memory to the granules [first, end) that have none. */
static bool back(kiln_ranges *r, uint64_t first, uint64_t end)
{
    if (!KILN_GROW(r->backed, r->backed_capacity, (int64_t)end))
        return false;
    for (; (uint64_t)r->nbacked < end; r->nbacked++)
        r->backed[r->nbacked] = EMPTY;
    bool ok = true;
    for (uint64_t g = first, to; ok && g < end; g = to) {
        to = run_end(r, g, end);
        if (r->backed[g] != EMPTY)
            continue;
        ok = r->granules.map(r->granules.owner, g, to - g);
        if (ok) {
            memset(r->backed + g, FRESH, to - g);
            r->mapped += (to - g) * r->granule;
        }
    }
    for (uint64_t g = first, to; g < end; g = to) {
        to = run_end(r, g, end);
        if (r->backed[g] == FRESH && ok)
            memset(r->backed + g, BACKED, to - g);
        else if (r->backed[g] == FRESH)
            unmap_run(r, g, to);
    }
    return ok;
}

/* ---- Blocks ---- */

bool kiln_ranges_take(kiln_ranges *r, uint64_t bytes, uint64_t *offset)
{
    kiln_hole hole;
    if (!bytes || bytes > UINT64_MAX - KILN_RANGES_ALIGN)
        return false;
    bytes = round_up(bytes, KILN_RANGES_ALIGN);
    /* There are at most as many holes as blocks and one more: room now, so that giving back cannot fail. */
    if (!kiln_holes_reserve(&r->holes, r->blocks + 2) || !kiln_holes_find(&r->holes, bytes, &hole))
        return false;
    bool ready = hole.ready >= bytes;
    if (!ready && !back(r, hole.offset / r->granule, (hole.offset + bytes - 1) / r->granule + 1))
        return false;
    kiln_holes_take_at(&r->holes, hole.offset, &hole);
    *offset = hole.offset;
    hole.offset += bytes;
    hole.bytes -= bytes;
    hole.ready = ready ? hole.ready - bytes : ready_bytes(r, &hole);
    if (hole.bytes)
        kiln_holes_add(&r->holes, hole);
    r->blocks++;
    return true;
}

/* The hole that two neighbours make. */
static kiln_hole joined(kiln_hole a, kiln_hole b)
{
    return (kiln_hole){a.offset, a.bytes + b.bytes, a.ready + (a.ready == a.bytes ? b.ready : 0)};
}

void kiln_ranges_give(kiln_ranges *r, uint64_t offset, uint64_t bytes)
{
    bytes = round_up(bytes, KILN_RANGES_ALIGN);
    kiln_hole hole = {offset, bytes, bytes}, neighbour;
    if (kiln_holes_take_until(&r->holes, offset, &neighbour))
        hole = joined(neighbour, hole);
    if (kiln_holes_take_at(&r->holes, offset + bytes, &neighbour))
        hole = joined(hole, neighbour);
    kiln_holes_add(&r->holes, hole);
    r->blocks--;
}

static void trim_hole(void *ranges, kiln_hole *hole)
{
    kiln_ranges *r = ranges;
    uint64_t first = round_up(hole->offset, r->granule) / r->granule;
    uint64_t end = (hole->offset + hole->bytes) / r->granule;
    if (end > (uint64_t)r->nbacked)
        end = (uint64_t)r->nbacked;
    for (uint64_t g = first, to; g < end; g = to) {
        to = run_end(r, g, end);
        if (r->backed[g] == BACKED)
            unmap_run(r, g, to);
    }
    hole->ready = ready_bytes(r, hole);
}

void kiln_ranges_trim(kiln_ranges *r)
{
    kiln_holes_each(&r->holes, trim_hole, r);
}

void kiln_ranges_free(kiln_ranges *r)
{
    if (r->nbacked)
        trim_hole(r, &(kiln_hole){.bytes = (uint64_t)r->nbacked * r->granule});
    kiln_holes_free(&r->holes);
    kiln_free(r->backed);
    *r = (kiln_ranges){0};
}
