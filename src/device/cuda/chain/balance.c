/* How the members of a wave share the blocks. Where there are more units than blocks some block does two things, and
 * all wait for it: fewer, larger tiles or slabs may be done sooner then. Whether they are is estimated: units are dealt
 * as the kernel deals them. */
#include <string.h>
#include "core/alloc.h"
#include "device/cuda/chain/link.h"

enum {
    FINER = 16 /* times that tiles may take are tried in steps of such a part */
};

typedef struct member {
    int64_t link, units, time;
    bool product, dealt;
    kiln_cuda_tiling own, best; /* of a product: with the device to itself, and so far */
} member;

typedef struct balancing {
    kiln_cuda_chain *chain;
    member *members; /* of the wave */
    int64_t nmembers;
    int64_t time; /* that it takes with the best so far */
} balancing;

/* ---- How long a wave takes ---- */

static void look_at(const balancing *f, member *p)
{
    p->units = kiln_cuda_member_units(f->chain, p->link);
    p->time = kiln_cuda_member_time(f->chain, p->link);
}

static void list_members(balancing *f, int32_t wave)
{
    f->nmembers = 0;
    for (int64_t i = kiln_cuda_next_member(f->chain, wave, -1); i >= 0; i = kiln_cuda_next_member(f->chain, wave, i)) {
        const kiln_cuda_link *s = &f->chain->links[i];
        member *p = &f->members[f->nmembers++];
        *p = (member){
            .link = i, .product = s->kind->tiles && s->strand < 0 && !s->chosen, .own = s->tiling, .best = s->tiling};
        look_at(f, p);
    }
}

static int64_t units_of(const balancing *f)
{
    int64_t units = 0;
    for (int64_t i = 0; i < f->nmembers; i++)
        units += f->members[i].units;
    return units;
}

static member *longest_left(balancing *f)
{
    member *longest = NULL;
    for (int64_t i = 0; i < f->nmembers; i++)
        if (!f->members[i].dealt && (!longest || f->members[i].time > longest->time))
            longest = &f->members[i];
    return longest;
}

/* When the last block is done: rounds go through the blocks forwards and backwards. */
static int64_t deal(balancing *f)
{
    int64_t busy[KILN_CUDA_MOST_BLOCKS] = {0}, number = 0, longest = 0, blocks = f->chain->costs->blocks;
    for (int64_t i = 0; i < f->nmembers; i++)
        f->members[i].dealt = false;
    for (member *p = longest_left(f); p; p = longest_left(f)) {
        p->dealt = true;
        for (int64_t u = 0; u < p->units; u++, number++) {
            int64_t place = number % blocks, round = number / blocks;
            int64_t *block = &busy[round % 2 ? blocks - 1 - place : place];
            *block += p->time;
            longest = *block > longest ? *block : longest;
        }
    }
    return longest;
}

/* ---- Tiles ---- */

static void set_tiling(balancing *f, member *p, const kiln_cuda_tiling *t)
{
    kiln_cuda_link *s = &f->chain->links[p->link];
    s->tiling = *t;
    s->units = t->tiles;
    look_at(f, p);
}

/* The fewest tiles that take no longer than `most` each, if they are fewer than those of *best. As many splits are as
 * many products with a shorter k, for which tilings without splits are asked for. */
static void try_splits(const kiln_cuda_chain *chain, const kiln_cuda_link *s, int32_t splits, int64_t most,
                       kiln_cuda_tiling *best)
{
    const kiln_cuda_sizes e = kiln_cuda_sizes_of(&s->product, best, s->tensor, chain->costs);
    const kiln_cuda_sizes one = {e.m,      e.n,    KILN_CUDA_TILE_SPLIT(e.k, (int64_t)splits), e.matrices * splits,
                                 e.tensor, e.costs};
    kiln_cuda_tiling t;
    for (int64_t tiles = best->tiles; tiles > 1 && kiln_cuda_tiling_within(one, tiles - 1, &t); tiles = t.tiles)
        if (kiln_cuda_tile_time(chain, &t) <= most)
            *best = kiln_cuda_tiling_with(t.rows, t.cols, t.slices, splits, e);
}

/* The same for a product; its own tiles where there are none. What is cut stays cut, and nothing else is: splits have a
 * second link, and room for as many. */
static kiln_cuda_tiling fewest_tiles(const balancing *f, const member *p, int64_t most)
{
    kiln_cuda_tiling best = p->own;
    for (int32_t splits = p->own.splits > 1 ? 2 : 1; splits <= p->own.splits; splits++)
        try_splits(f->chain, &f->chain->links[p->link], splits, most, &best);
    return best;
}

static void keep(balancing *f, int64_t time)
{
    f->time = time;
    for (int64_t i = 0; i < f->nmembers; i++)
        f->members[i].best = f->chain->links[f->members[i].link].tiling;
}

/* The fewest tiles that take no longer for one product, or for all where `only` is NULL; kept if that is sooner done.
 */
static void try_time(balancing *f, const member *only, int64_t most)
{
    for (int64_t i = 0; i < f->nmembers; i++) {
        member *p = &f->members[i];
        if (p->product && (!only || p == only)) {
            kiln_cuda_tiling t = fewest_tiles(f, p, most);
            set_tiling(f, p, &t);
        }
    }
    int64_t time = deal(f);
    if (time < f->time)
        keep(f, time);
    for (int64_t i = 0; i < f->nmembers; i++)
        if (f->members[i].product)
            set_tiling(f, &f->members[i], &f->members[i].best);
}

/* Tiles that take longer than the wave does now are of no use. */
static void balance_tiles(balancing *f)
{
    int64_t longest = f->time;
    for (int64_t i = -1; i < f->nmembers; i++)
        if (i < 0 || f->members[i].product)
            for (int64_t most = longest / FINER + 1; most < longest; most += most / FINER + 1)
                try_time(f, i < 0 ? NULL : &f->members[i], most);
}

/* ---- Slabs ---- */

/* A strand gets as many slabs less as there are units too many, unless they are many, if that is sooner done. */
static void balance_slabs(balancing *f)
{
    for (int64_t i = 0; i < f->nmembers; i++) {
        member *p = &f->members[i];
        int64_t units = p->units, over = units_of(f) - f->chain->costs->blocks;
        if (over < 1 || 2 * over > units || !kiln_cuda_recut_strand(f->chain, p->link, units - over))
            continue;
        look_at(f, p);
        int64_t time = deal(f);
        if (time < f->time) {
            f->time = time;
            continue;
        }
        kiln_cuda_recut_strand(f->chain, p->link, units);
        look_at(f, p);
    }
}

static void balance_wave(balancing *f, int32_t wave)
{
    list_members(f, wave);
    f->time = deal(f);
    if (units_of(f) <= f->chain->costs->blocks)
        return;
    balance_slabs(f);
    balance_tiles(f);
}

bool kiln_cuda_chain_balance(kiln_cuda_chain *chain)
{
    balancing f = {.chain = chain, .members = kiln_alloc((size_t)chain->nlinks + 1, sizeof *f.members)};
    if (!f.members)
        return false;
    for (int32_t wave = 0; wave < chain->nwaves; wave++)
        balance_wave(&f, wave);
    kiln_free(f.members);
    return true;
}

bool kiln_cuda_balanced_time(kiln_cuda_chain *chain, int32_t wave, int64_t *time)
{
    balancing f = {.chain = chain, .members = kiln_alloc((size_t)chain->nlinks + 1, sizeof *f.members)};
    size_t bytes = (size_t)chain->nlinks * sizeof *chain->links;
    kiln_cuda_link *before = kiln_alloc(bytes + 1, 1);
    bool ok = f.members && before;
    if (ok) {
        memcpy(before, chain->links, bytes);
        balance_wave(&f, wave);
        *time = f.time;
        memcpy(chain->links, before, bytes);
    }
    kiln_free(f.members);
    kiln_free(before);
    return ok;
}
