/* Blocks kept for reuse: a treap, that is a search tree by size and address in which random weights, largest on top,
 * keep paths short, and a list by age through the same nodes. Nodes lie in one array and are named by their index, so
 * that it can grow. */
#include "device/blocks.h"
#include "core/alloc.h"
#include "core/hash.h"

typedef kiln_blocks_node node;

bool kiln_blocks_reserve(kiln_blocks *b, int64_t count)
{
    if (!KILN_GROW(b->nodes, b->capacity, count + 1))
        return false;
    if (!b->used) {
        b->nodes[0] = (node){0};
        b->used = 1;
    }
    return true;
}

void kiln_blocks_free(kiln_blocks *b)
{
    kiln_free(b->nodes);
    *b = (kiln_blocks){0};
}

/* ---- The tree ---- */

static bool before(const kiln_block *a, const kiln_block *b)
{
    return a->size < b->size || (a->size == b->size && a->address < b->address);
}

/* Goes down to where the weight says that the node belongs, and parts what lies below there by its block. */
static void insert(kiln_blocks *b, int64_t i)
{
    node *n = b->nodes, *new = &n[i];
    int64_t *at = &b->root;
    while (*at && n[*at].weight >= new->weight)
        at = before(&n[*at].block, &new->block) ? &n[*at].right : &n[*at].left;
    int64_t rest = *at, *left = &new->left, *right = &new->right;
    *at = i;
    while (rest)
        if (before(&n[rest].block, &new->block)) {
            *left = rest;
            left = &n[rest].right;
            rest = *left;
        } else {
            *right = rest;
            right = &n[rest].left;
            rest = *right;
        }
    *left = *right = 0;
}

/* What lay below the node is joined in its place. */
static void delete (kiln_blocks *b, int64_t i)
{
    node *n = b->nodes;
    int64_t *at = &b->root;
    while (*at != i)
        at = before(&n[*at].block, &n[i].block) ? &n[*at].right : &n[*at].left;
    int64_t left = n[i].left, right = n[i].right;
    while (left && right)
        if (n[left].weight >= n[right].weight) {
            *at = left;
            at = &n[left].right;
            left = *at;
        } else {
            *at = right;
            at = &n[right].left;
            right = *at;
        }
    *at = left ? left : right;
}

/* The first one of at least `size`; 0: none. */
static int64_t first_of(const kiln_blocks *b, size_t size)
{
    int64_t found = 0;
    for (int64_t i = b->root; i;)
        if (b->nodes[i].block.size < size)
            i = b->nodes[i].right;
        else {
            found = i;
            i = b->nodes[i].left;
        }
    return found;
}

/* ---- Both orders ---- */

void kiln_blocks_add(kiln_blocks *b, kiln_block block)
{
    int64_t i = b->spare;
    if (i)
        b->spare = b->nodes[i].left;
    else
        i = b->used++;
    node *n = &b->nodes[i];
    *n = (node){.block = block, .weight = kiln_mix(1, block.address), .older = b->newest};
    *(b->newest ? &b->nodes[b->newest].newer : &b->oldest) = i;
    b->newest = i;
    b->count++;
    insert(b, i);
}

static kiln_block take_out(kiln_blocks *b, int64_t i)
{
    delete (b, i);
    node *n = &b->nodes[i];
    *(n->older ? &b->nodes[n->older].newer : &b->oldest) = n->newer;
    *(n->newer ? &b->nodes[n->newer].older : &b->newest) = n->older;
    n->left = b->spare;
    b->spare = i;
    b->count--;
    return n->block;
}

bool kiln_blocks_take(kiln_blocks *b, size_t least, size_t most, kiln_block *block)
{
    int64_t i = first_of(b, least);
    if (!i || b->nodes[i].block.size > most)
        return false;
    *block = take_out(b, i);
    return true;
}

bool kiln_blocks_take_oldest(kiln_blocks *b, kiln_block *block)
{
    if (!b->oldest)
        return false;
    *block = take_out(b, b->oldest);
    return true;
}
