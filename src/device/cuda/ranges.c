/* Blocks in a range of addresses: best fit, neighbours joined, memory by the granule. */
#include "device/cuda/ranges.h"
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
    if (!KILN_GROW(r->holes, r->holes_capacity, 2))
        return false;
    r->holes[r->nholes++] = (kiln_hole){0, bytes};
    return true;
}

/* ---- Granules ---- */

static bool has_memory(const kiln_ranges *r, uint64_t granule)
{
    return granule < (uint64_t)r->nbacked && r->backed[granule] != EMPTY;
}

/* How many granules a block there would need that have no memory yet. */
static uint64_t missing(const kiln_ranges *r, uint64_t offset, uint64_t bytes)
{
    uint64_t n = 0, last = (offset + bytes - 1) / r->granule;
    for (uint64_t g = offset / r->granule; g <= last; g++)
        n += !has_memory(r, g);
    return n;
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

/* The hole where a block takes the least new memory; of those the smallest, so that large ones last. -1: none. */
static int64_t best_hole(const kiln_ranges *r, uint64_t bytes)
{
    int64_t best = -1;
    uint64_t least = 0;
    for (int64_t i = 0; i < r->nholes; i++) {
        if (r->holes[i].bytes < bytes)
            continue;
        uint64_t need = missing(r, r->holes[i].offset, bytes);
        if (best < 0 || need < least || (need == least && r->holes[i].bytes < r->holes[best].bytes)) {
            best = i;
            least = need;
        }
    }
    return best;
}

static void remove_hole(kiln_ranges *r, int64_t i)
{
    r->nholes--;
    memmove(r->holes + i, r->holes + i + 1, (size_t)(r->nholes - i) * sizeof *r->holes);
}

bool kiln_ranges_take(kiln_ranges *r, uint64_t bytes, uint64_t *offset)
{
    if (!bytes || bytes > UINT64_MAX - KILN_RANGES_ALIGN)
        return false;
    bytes = round_up(bytes, KILN_RANGES_ALIGN);
    /* There are at most as many holes as blocks and one more: now, so that giving back cannot fail. */
    int64_t i = KILN_GROW(r->holes, r->holes_capacity, r->blocks + 2) ? best_hole(r, bytes) : -1;
    if (i < 0)
        return false;
    kiln_hole *hole = &r->holes[i];
    if (!back(r, hole->offset / r->granule, (hole->offset + bytes - 1) / r->granule + 1))
        return false;
    *offset = hole->offset;
    hole->offset += bytes;
    hole->bytes -= bytes;
    if (!hole->bytes)
        remove_hole(r, i);
    r->blocks++;
    return true;
}

/* The first hole behind an offset. */
static int64_t hole_behind(const kiln_ranges *r, uint64_t offset)
{
    int64_t low = 0, high = r->nholes;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (r->holes[middle].offset < offset)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

void kiln_ranges_give(kiln_ranges *r, uint64_t offset, uint64_t bytes)
{
    bytes = round_up(bytes, KILN_RANGES_ALIGN);
    int64_t i = hole_behind(r, offset);
    r->blocks--;
    bool before = i > 0 && r->holes[i - 1].offset + r->holes[i - 1].bytes == offset;
    bool after = i < r->nholes && offset + bytes == r->holes[i].offset;
    if (before) {
        r->holes[i - 1].bytes += bytes + (after ? r->holes[i].bytes : 0);
        if (after)
            remove_hole(r, i);
    } else if (after) {
        r->holes[i].offset = offset;
        r->holes[i].bytes += bytes;
    } else {
        memmove(r->holes + i + 1, r->holes + i, (size_t)(r->nholes - i) * sizeof *r->holes);
        r->holes[i] = (kiln_hole){offset, bytes};
        r->nholes++;
    }
}

void kiln_ranges_trim(kiln_ranges *r)
{
    for (int64_t i = 0; i < r->nholes; i++) {
        uint64_t first = round_up(r->holes[i].offset, r->granule) / r->granule;
        uint64_t end = (r->holes[i].offset + r->holes[i].bytes) / r->granule;
        if (end > (uint64_t)r->nbacked)
            end = (uint64_t)r->nbacked;
        for (uint64_t g = first, to; g < end; g = to) {
            to = run_end(r, g, end);
            if (r->backed[g] == BACKED)
                unmap_run(r, g, to);
        }
    }
}

void kiln_ranges_free(kiln_ranges *r)
{
    if (r->holes) {
        r->holes[0] = (kiln_hole){0, (uint64_t)r->nbacked * r->granule};
        r->nholes = 1;
        kiln_ranges_trim(r);
    }
    kiln_free(r->holes);
    kiln_free(r->backed);
    *r = (kiln_ranges){0};
}
