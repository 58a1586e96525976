/* In which wave of a chain each link runs, and in which strand. Links that others wait for come as early as they can;
 * the rest where they make no wave longer. */
#include "core/alloc.h"
#include "device/cuda/chain/link.h"

enum {
    TINY_UNITS = 2,  /* that one block takes in turn rather than wait for a barrier */
    LEAST_WIDE = 16, /* rows of tiles that are as wide as the result */
    MOST_WIDE = 128,
    MOST_MOVED = 16 /* units of a link that is put off: larger ones would make a wave of their own longer */
};

static bool is_tiny(const kiln_cuda_link *s)
{
    return s->kind->one_only && s->units <= TINY_UNITS;
}

/* ---- What waits for what ---- */

static bool is_listed(const kiln_cuda_waits *w, int32_t kernel, int32_t before)
{
    for (int64_t k = w->first[kernel]; k < w->first[kernel + 1]; k++)
        if (w->of[k] == before)
            return true;
    return false;
}

/* Whether a link has to wait for one before it. What a group stores is there when the first half of its reduction is
 * done; for the second half waits who touches the result, or what it is made of. */
static bool waits_for(const kiln_cuda_chain *chain, const kiln_cuda_waits *w, const kiln_cuda_link *s,
                      const kiln_cuda_link *before)
{
    const kiln_plan *plan = chain->plan;
    const kiln_kernel *k = &plan->kernels[before->kernel];
    if (s->kind->second)
        return before == s - 1;
    if (before->kind->combines)
        return kiln_cuda_touches(plan, &plan->kernels[s->kernel], k->group->reduce_to.buffer) ||
               kiln_cuda_touches(plan, &plan->kernels[s->kernel], k->workspace);
    return is_listed(w, s->kernel, before->kernel);
}

typedef struct place { /* the earliest wave of a link, and the strand before it that it could go on with */
    int32_t wave, strand;
    bool joins;
} place;

static void come_after(place *p, const kiln_cuda_link *before)
{
    if (before->wave + 1 > p->wave)
        *p = (place){before->wave + 1, before->strand, before->strand >= 0};
    else if (before->wave + 1 == p->wave)
        p->joins &= before->strand == p->strand;
}

/* Whether a link can go on with a strand: one of tiny links, if it is one, or one of slabs. */
static bool can_join(const kiln_cuda_chain *chain, int64_t link, int32_t strand)
{
    const kiln_cuda_link *s = &chain->links[link];
    bool tiny = true;
    for (int64_t i = link; i-- > 0;)
        if (chain->links[i].strand == strand) {
            /* Only barriers tell that it was called off: what must not be written then cannot be in the same strand. */
            if (s->guarded && chain->links[i].kind->checks)
                return false;
            tiny = is_tiny(&chain->links[i]); /* of the first, at last */
        }
    return tiny ? is_tiny(s) : kiln_cuda_goes_on(chain, link, strand);
}

/* Where a link can run at the earliest; its predecessors have their places. */
static place find_place(const kiln_cuda_chain *chain, const kiln_cuda_waits *w, int64_t link)
{
    place p = {0, -1, false};
    for (int64_t i = 0; i < link; i++)
        if (waits_for(chain, w, &chain->links[link], &chain->links[i]))
            come_after(&p, &chain->links[i]);
    p.joins = p.joins && can_join(chain, link, p.strand);
    return p;
}

static void not_after(kiln_cuda_link *s, const kiln_cuda_link *next)
{
    bool together = s->wave == next->wave; /* one strand */
    int32_t latest = together ? next->latest : next->latest - 1;
    s->latest = latest < s->latest ? latest : s->latest;
}

/* From the waves that all links have if each comes as early as it can. */
static void find_latest(kiln_cuda_chain *chain, const kiln_cuda_waits *w)
{
    for (int64_t i = 0; i < chain->nlinks; i++)
        chain->links[i].latest = chain->nwaves - 1;
    for (int64_t i = chain->nlinks; i-- > 0;)
        for (int64_t j = 0; j < i; j++)
            if (waits_for(chain, w, &chain->links[i], &chain->links[j]))
                not_after(&chain->links[j], &chain->links[i]);
}

/* ---- Times ---- */

/* Of a wave, without what is tiny and what could come later. */
static int64_t wave_time(const kiln_cuda_chain *chain, int32_t wave)
{
    int64_t longest = 0;
    for (int64_t i = 0; i < chain->nlinks; i++) {
        const kiln_cuda_link *s = &chain->links[i];
        if (s->wave == wave && !is_tiny(s) && s->latest == wave && kiln_cuda_link_time(chain, s) > longest)
            longest = kiln_cuda_link_time(chain, s);
    }
    return longest;
}

static int64_t strand_time(const kiln_cuda_chain *chain, int64_t before, int32_t strand)
{
    int64_t time = 0;
    for (int64_t i = 0; i < before; i++)
        time += chain->links[i].strand == strand ? kiln_cuda_link_time(chain, &chain->links[i]) : 0;
    return time;
}

/* ---- Waves ---- */

static void put(kiln_cuda_chain *chain, kiln_cuda_link *s, int32_t wave, int32_t strand)
{
    s->wave = wave;
    s->strand = strand;
    chain->nwaves = wave + 1 > chain->nwaves ? wave + 1 : chain->nwaves;
}

/* The number of a strand that the link begins, whether or not others go on with it; -1 where none could. */
static int32_t new_strand(const kiln_cuda_chain *chain, const kiln_cuda_link *s, int32_t *strands)
{
    return is_tiny(s) || kiln_cuda_has_rows(chain, s) ? (*strands)++ : -1;
}

/* As early as possible; where a link can go on with the strand before it, it does. */
static void set_waves(kiln_cuda_chain *chain, const kiln_cuda_waits *w)
{
    int32_t strands = 0;
    for (int64_t i = 0; i < chain->nlinks; i++) {
        kiln_cuda_link *s = &chain->links[i];
        place p = find_place(chain, w, i);
        put(chain, s, p.joins ? p.wave - 1 : p.wave, p.joins ? p.strand : new_strand(chain, s, &strands));
    }
}

/* How many waves there are at least. */
static int count_waves(kiln_cuda_chain *chain, const kiln_cuda_waits *w)
{
    chain->nwaves = 0;
    set_waves(chain, w);
    return chain->nwaves;
}

/* Tiles as wide as the result, if they take little longer. */
static bool find_wide_tiles(const kiln_cuda_chain *chain, const kiln_cuda_link *s, kiln_cuda_tiling *t)
{
    if (!s->kind->tiles || s->chosen || s->tiling.splits > 1 || s->tiling.across == 1)
        return false;
    for (int64_t rows = LEAST_WIDE; rows <= MOST_WIDE; rows *= 2)
        if (kiln_cuda_tiling_within(kiln_cuda_sizes_of(&s->product, &s->tiling, s->tensor, chain->costs),
                                    (s->product.m + rows - 1) / rows, t) &&
            t->across == 1 && t->nanoseconds < s->tiling.nanoseconds + chain->costs->barrier)
            return true;
    return false;
}

/* Products have such tiles where what follows can go on with their slabs then and a wave less is left. */
static void widen_tiles(kiln_cuda_chain *chain, const kiln_cuda_waits *w)
{
    int waves = count_waves(chain, w);
    for (int64_t i = 0; i < chain->nlinks; i++) {
        kiln_cuda_link *s = &chain->links[i];
        const kiln_cuda_tiling own = s->tiling;
        if (!find_wide_tiles(chain, s, &s->tiling)) {
            s->tiling = own;
            continue;
        }
        s->units = s->tiling.tiles;
        int now = count_waves(chain, w);
        if (now >= waves) {
            s->tiling = own;
            s->units = own.tiles;
        }
        waves = now < waves ? now : waves;
    }
}

/* The first wave from `from` on that the link does not make longer, else the longest, as long as it holds up nobody. */
static int32_t roomy_wave(const kiln_cuda_chain *chain, const kiln_cuda_link *s, int32_t from, const int64_t *times)
{
    int32_t best = from;
    for (int32_t wave = from + 1;
         wave <= s->latest && s->units <= MOST_MOVED && times[best] < kiln_cuda_link_time(chain, s); wave++)
        best = times[wave] > times[best] ? wave : best;
    return best;
}

/* Small links and products that others can wait for move to a wave that is long anyway. */
static void fill_waves(kiln_cuda_chain *chain, const kiln_cuda_waits *w, const int64_t *times)
{
    int32_t strands = 0;
    for (int64_t i = 0; i < chain->nlinks; i++) {
        kiln_cuda_link *s = &chain->links[i];
        place p = find_place(chain, w, i);
        bool fits = p.joins && strand_time(chain, i, p.strand) + kiln_cuda_link_time(chain, s) <= times[p.wave - 1];
        if (p.joins && (fits || p.wave > s->latest))
            put(chain, s, p.wave - 1, p.strand);
        else
            put(chain, s, roomy_wave(chain, s, p.wave, times), new_strand(chain, s, &strands));
    }
}

static void cut_strands(kiln_cuda_chain *chain)
{
    for (int64_t i = 0; i < chain->nlinks; i++)
        if (chain->links[i].strand >= 0 && kiln_cuda_begins_strand(chain, i) && !is_tiny(&chain->links[i]))
            kiln_cuda_cut_strand(chain, i);
}

/* ---- Products that can wait ---- */

/* The link that adds up the splits of a product; -1: there is none. */
static int64_t summing_link(const kiln_cuda_chain *chain, int64_t link)
{
    return chain->links[link].tiling.splits > 1 ? link + 1 : -1;
}

static bool is_alone(const kiln_cuda_chain *chain, int64_t link)
{
    for (int64_t i = 0; i < chain->nlinks; i++)
        if (i != link && chain->links[link].strand >= 0 && chain->links[i].strand == chain->links[link].strand)
            return false;
    return true;
}

/* Between which waves a link may run, with the others where they are; the sum of its splits comes after it wherever it
 * is. */
static void find_room(const kiln_cuda_chain *chain, const kiln_cuda_waits *w, int64_t link, int32_t *from, int32_t *to)
{
    const kiln_cuda_link *s = &chain->links[link];
    const int64_t sum = s->kind->tiles ? summing_link(chain, link) : -1;
    *from = 0;
    *to = chain->nwaves - 1;
    for (int64_t i = 0; i < chain->nlinks; i++) {
        const kiln_cuda_link *t = &chain->links[i];
        if (i < link && waits_for(chain, w, s, t) && t->wave + 1 > *from)
            *from = t->wave + 1;
        if (i > link && i != sum && waits_for(chain, w, t, s) && t->wave - 1 < *to)
            *to = t->wave - 1;
    }
    if (sum >= 0) {
        int32_t ignored, last;
        find_room(chain, w, sum, &ignored, &last);
        *to = last - 1 < *to ? last - 1 : *to;
    }
}

static void put_product(kiln_cuda_chain *chain, int64_t link, int32_t wave)
{
    const int64_t sum = summing_link(chain, link);
    chain->links[link].wave = wave;
    if (sum >= 0 && chain->links[sum].wave <= wave)
        chain->links[sum].wave = wave + 1;
}

/* The product goes to the longest wave that it can be in, if that makes the two shorter together: both are looked at as
 * they will be when their members share the blocks. False with an error. */
static bool try_longest(kiln_cuda_chain *chain, const kiln_cuda_waits *w, int64_t link, int64_t *times)
{
    const int32_t here = chain->links[link].wave;
    int32_t from, to, there = -1;
    find_room(chain, w, link, &from, &to);
    for (int32_t wave = from; wave <= to; wave++)
        if (wave != here && (there < 0 || times[wave] > times[there]))
            there = wave;
    if (there < 0)
        return true;
    int64_t with, without;
    chain->links[link].wave = there;
    bool ok = kiln_cuda_balanced_time(chain, here, &without) && kiln_cuda_balanced_time(chain, there, &with);
    chain->links[link].wave = here;
    if (ok && with + without < times[here] + times[there]) {
        put_product(chain, link, there);
        times[here] = without;
        times[there] = with;
    }
    return ok;
}

/* Weight gradients, as a rule: nobody waits for them but the updates at the end. No wave is left empty. */
static bool move_products(kiln_cuda_chain *chain, const kiln_cuda_waits *w, int64_t *times)
{
    bool ok = true;
    for (int32_t wave = 0; ok && wave < chain->nwaves; wave++)
        ok = kiln_cuda_balanced_time(chain, wave, &times[wave]);
    for (int64_t i = 0; ok && i < chain->nlinks; i++) {
        const kiln_cuda_link *s = &chain->links[i];
        const int64_t sum = s->kind->tiles ? summing_link(chain, i) : -1;
        if (s->kind->tiles && s->strand < 0 && !s->chosen && kiln_cuda_wave_units(chain, s->wave) > s->units &&
            (sum < 0 || (is_alone(chain, sum) &&
                         kiln_cuda_wave_units(chain, chain->links[sum].wave) > kiln_cuda_member_units(chain, sum))))
            ok = try_longest(chain, w, i, times);
    }
    return ok;
}

static bool set_places(kiln_cuda_chain *chain, const kiln_cuda_waits *w)
{
    widen_tiles(chain, w);
    count_waves(chain, w);
    int64_t *times = kiln_alloc_zero((size_t)chain->nlinks + 2, sizeof *times); /* never more waves than links */
    if (!times)
        return false;
    find_latest(chain, w);
    for (int32_t wave = 0; wave < chain->nwaves; wave++)
        times[wave] = wave_time(chain, wave);
    fill_waves(chain, w, times);
    cut_strands(chain);
    bool ok = move_products(chain, w, times);
    kiln_free(times);
    return ok;
}

bool kiln_cuda_begins_strand(const kiln_cuda_chain *chain, int64_t link)
{
    for (int64_t i = 0; i < link; i++)
        if (chain->links[i].wave == chain->links[link].wave && chain->links[i].strand == chain->links[link].strand)
            return false;
    return true;
}

/* ---- Tiles ---- */

const kiln_cuda_tiling *kiln_cuda_chain_tiling(const kiln_cuda_chain *chain, int32_t kernel)
{
    for (int64_t i = 0; i < chain->nlinks; i++)
        if (chain->links[i].kernel == kernel && chain->links[i].kind->tiles)
            return &chain->links[i].tiling;
    return NULL;
}

/* What its launch has to know. */
static void count_units(kiln_cuda_chain *chain)
{
    for (int64_t i = 0; i < chain->nlinks; i++)
        if (chain->links[i].kind->tiles && chain->links[i].tiling.shared > chain->shared)
            chain->shared = chain->links[i].tiling.shared;
    for (int32_t wave = 0; wave < chain->nwaves; wave++) {
        int64_t units = kiln_cuda_wave_units(chain, wave);
        chain->most_units = units > chain->most_units ? units : chain->most_units;
    }
}

bool kiln_cuda_chain_arrange(kiln_cuda_chain *chain, const kiln_cuda_waits *w)
{
    if (!set_places(chain, w) || !kiln_cuda_chain_balance(chain))
        return false;
    count_units(chain);
    return true;
}
