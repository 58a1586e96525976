/* Holes between blocks: a treap, that is a search tree by offset in which random weights, largest on top, keep paths
 * short. Each node knows the largest hole below it, so that the first one that is large enough is found on one path. */
#include "device/cuda/memory/holes.h"
#include "core/alloc.h"
#include "core/hash.h"

typedef kiln_holes_node node;

bool kiln_holes_reserve(kiln_holes *h, int64_t count)
{
    if (!KILN_GROW(h->nodes, h->capacity, count + 1))
        return false;
    if (!h->used) {
        h->nodes[0] = (node){0};
        h->used = 1;
    }
    return true;
}

void kiln_holes_free(kiln_holes *h)
{
    kiln_free(h->nodes);
    *h = (kiln_holes){0};
}

/* ---- The tree ---- */

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* What a node knows of those below it, after they changed. */
static int64_t updated(node *n, int64_t i)
{
    const node *left = &n[n[i].left], *right = &n[n[i].right];
    n[i].most_bytes = larger(n[i].hole.bytes, larger(left->most_bytes, right->most_bytes));
    n[i].most_ready = larger(n[i].hole.ready, larger(left->most_ready, right->most_ready));
    return i;
}

/* Parts a tree into the holes before an offset and those from it on. */
static void part(node *n, int64_t tree, uint64_t offset, int64_t *before, int64_t *from)
{
    if (!tree) {
        *before = *from = 0;
        return;
    }
    int64_t between;
    if (n[tree].hole.offset < offset) {
        part(n, n[tree].right, offset, &between, from);
        n[tree].right = between;
        *before = updated(n, tree);
    } else {
        part(n, n[tree].left, offset, before, &between);
        n[tree].left = between;
        *from = updated(n, tree);
    }
}

/* Joins two trees, of which the first has the lower offsets. */
static int64_t join(node *n, int64_t a, int64_t b)
{
    if (!a || !b)
        return a ? a : b;
    if (n[a].weight >= n[b].weight) {
        n[a].right = join(n, n[a].right, b);
        return updated(n, a);
    }
    n[b].left = join(n, a, n[b].left);
    return updated(n, b);
}

/* ---- Holes ---- */

void kiln_holes_add(kiln_holes *h, kiln_hole hole)
{
    int64_t i = h->spare, before, behind;
    if (i)
        h->spare = h->nodes[i].left;
    else
        i = h->used++;
    h->nodes[i] = (node){.hole = hole, .weight = kiln_mix(1, hole.offset)};
    updated(h->nodes, i);
    part(h->nodes, h->root, hole.offset, &before, &behind);
    h->root = join(h->nodes, join(h->nodes, before, i), behind);
    h->count++;
}

static void take_out(kiln_holes *h, uint64_t offset)
{
    int64_t before, i, behind;
    part(h->nodes, h->root, offset, &before, &behind);
    part(h->nodes, behind, offset + 1, &i, &behind);
    h->root = join(h->nodes, before, behind);
    h->nodes[i].left = h->spare;
    h->spare = i;
    h->count--;
}

bool kiln_holes_find(const kiln_holes *h, uint64_t bytes, kiln_hole *hole)
{
    const node *n = h->nodes;
    int64_t i = h->root;
    bool ready = n[i].most_ready >= bytes;
    if (!ready && n[i].most_bytes < bytes)
        return false;
    for (;;) {
        const node *left = &n[n[i].left];
        if ((ready ? left->most_ready : left->most_bytes) >= bytes)
            i = n[i].left;
        else if ((ready ? n[i].hole.ready : n[i].hole.bytes) >= bytes)
            break;
        else
            i = n[i].right;
    }
    *hole = n[i].hole;
    return true;
}

/* The last hole that begins before `end`, 0: none. */
static int64_t last_before(const kiln_holes *h, uint64_t end)
{
    int64_t found = 0;
    for (int64_t i = h->root; i;)
        if (h->nodes[i].hole.offset < end) {
            found = i;
            i = h->nodes[i].right;
        } else
            i = h->nodes[i].left;
    return found;
}

static bool take_if(kiln_holes *h, int64_t i, bool wanted, kiln_hole *hole)
{
    if (!i || !wanted)
        return false;
    *hole = h->nodes[i].hole;
    take_out(h, hole->offset);
    return true;
}

bool kiln_holes_take_at(kiln_holes *h, uint64_t offset, kiln_hole *hole)
{
    int64_t i = last_before(h, offset + 1);
    return take_if(h, i, h->nodes[i].hole.offset == offset, hole);
}

bool kiln_holes_take_until(kiln_holes *h, uint64_t end, kiln_hole *hole)
{
    int64_t i = last_before(h, end);
    return take_if(h, i, h->nodes[i].hole.offset + h->nodes[i].hole.bytes == end, hole);
}

static void each(node *n, int64_t i, void (*use)(void *context, kiln_hole *hole), void *context)
{
    if (!i)
        return;
    each(n, n[i].left, use, context);
    use(context, &n[i].hole);
    each(n, n[i].right, use, context);
    updated(n, i);
}

void kiln_holes_each(kiln_holes *h, void (*use)(void *context, kiln_hole *hole), void *context)
{
    each(h->nodes, h->root, use, context);
}
