/* In which wave of a chain each step runs, and in which strand. Steps that others wait for come as early as they can;
 * the rest where they make no wave longer. */
#include "core/alloc.h"
#include "device/cuda/chain/chain.h"

enum {
    TINY_UNITS = 2,     /* that one block takes in turn rather than wait for a barrier */
    BARRIER_TIME = 700, /* nanoseconds */
    LEAST_WIDE = 16,    /* rows of tiles that are as wide as the result */
    MOST_WIDE = 128,
    MOST_MOVED = 16 /* units of a step that is put off: larger ones would make a wave of their own longer */
};

static bool is_tiny(const kiln_cuda_step *s)
{
    return s->kind != KILN_CUDA_STEP_PRODUCT && s->kind != KILN_CUDA_STEP_SAMPLES && s->units <= TINY_UNITS;
}

/* ---- What waits for what ---- */

static bool is_listed(const kiln_cuda_waits *w, int32_t kernel, int32_t before)
{
    for (int64_t k = w->first[kernel]; k < w->first[kernel + 1]; k++)
        if (w->of[k] == before)
            return true;
    return false;
}

/* Whether a step has to wait for one before it. What a group stores is there when the first half of its reduction is
 * done; for the second half waits who touches the result, or what it is made of. */
static bool waits_for(const kiln_cuda_chain *chain, const kiln_cuda_waits *w, const kiln_cuda_step *s,
                      const kiln_cuda_step *before)
{
    const kiln_plan *plan = chain->plan;
    const kiln_kernel *k = &plan->kernels[before->kernel];
    if (kiln_cuda_is_second(s))
        return before == s - 1;
    if (before->kind == KILN_CUDA_STEP_COMBINE)
        return kiln_cuda_touches(plan, &plan->kernels[s->kernel], k->group->reduce_to.buffer) ||
               kiln_cuda_touches(plan, &plan->kernels[s->kernel], k->workspace);
    return is_listed(w, s->kernel, before->kernel);
}

typedef struct place { /* the earliest wave of a step, and the strand before it that it could go on with */
    int32_t wave, strand;
    bool joins;
} place;

static void come_after(place *p, const kiln_cuda_step *before)
{
    if (before->wave + 1 > p->wave)
        *p = (place){before->wave + 1, before->strand, before->strand >= 0};
    else if (before->wave + 1 == p->wave)
        p->joins &= before->strand == p->strand;
}

/* A strand that may call the step off is no place for what must not be written then: only barriers tell. */
static bool checks(const kiln_cuda_step *s)
{
    return s->kind == KILN_CUDA_STEP_PICK || s->kind == KILN_CUDA_STEP_PLACE;
}

/* Whether a step can go on with a strand: one of tiny steps, if it is one, or one of slabs. */
static bool can_join(const kiln_cuda_chain *chain, int64_t step, int32_t strand)
{
    const kiln_cuda_step *s = &chain->steps[step];
    bool tiny = true;
    for (int64_t i = step; i-- > 0;)
        if (chain->steps[i].strand == strand) {
            if (s->guarded && checks(&chain->steps[i]))
                return false;
            tiny = is_tiny(&chain->steps[i]); /* of the first, at last */
        }
    return tiny ? is_tiny(s) : kiln_cuda_goes_on(chain, step, strand);
}

/* Where a step can run at the earliest; its predecessors have their places. */
static place find_place(const kiln_cuda_chain *chain, const kiln_cuda_waits *w, int64_t step)
{
    place p = {0, -1, false};
    for (int64_t i = 0; i < step; i++)
        if (waits_for(chain, w, &chain->steps[step], &chain->steps[i]))
            come_after(&p, &chain->steps[i]);
    p.joins = p.joins && can_join(chain, step, p.strand);
    return p;
}

static void not_after(kiln_cuda_step *s, const kiln_cuda_step *next)
{
    bool together = s->wave == next->wave; /* one strand */
    int32_t latest = together ? next->latest : next->latest - 1;
    s->latest = latest < s->latest ? latest : s->latest;
}

/* From the waves that all steps have if each comes as early as it can. */
static void find_latest(kiln_cuda_chain *chain, const kiln_cuda_waits *w)
{
    for (int64_t i = 0; i < chain->nsteps; i++)
        chain->steps[i].latest = chain->nwaves - 1;
    for (int64_t i = chain->nsteps; i-- > 0;)
        for (int64_t j = 0; j < i; j++)
            if (waits_for(chain, w, &chain->steps[i], &chain->steps[j]))
                not_after(&chain->steps[j], &chain->steps[i]);
}

/* ---- Times ---- */

/* Of a wave, without what is tiny and what could come later. */
static int64_t wave_time(const kiln_cuda_chain *chain, int32_t wave)
{
    int64_t longest = 0;
    for (int64_t i = 0; i < chain->nsteps; i++) {
        const kiln_cuda_step *s = &chain->steps[i];
        if (s->wave == wave && !is_tiny(s) && s->latest == wave && kiln_cuda_step_time(chain, s) > longest)
            longest = kiln_cuda_step_time(chain, s);
    }
    return longest;
}

static int64_t strand_time(const kiln_cuda_chain *chain, int64_t before, int32_t strand)
{
    int64_t time = 0;
    for (int64_t i = 0; i < before; i++)
        time += chain->steps[i].strand == strand ? kiln_cuda_step_time(chain, &chain->steps[i]) : 0;
    return time;
}

/* ---- Waves ---- */

static void put(kiln_cuda_chain *chain, kiln_cuda_step *s, int32_t wave, int32_t strand)
{
    s->wave = wave;
    s->strand = strand;
    chain->nwaves = wave + 1 > chain->nwaves ? wave + 1 : chain->nwaves;
}

/* The number of a strand that the step begins, whether or not others go on with it; -1 where none could. */
static int32_t new_strand(const kiln_cuda_chain *chain, const kiln_cuda_step *s, int32_t *strands)
{
    return is_tiny(s) || kiln_cuda_has_rows(chain, s) ? (*strands)++ : -1;
}

/* As early as possible; where a step can go on with the strand before it, it does. */
static void set_waves(kiln_cuda_chain *chain, const kiln_cuda_waits *w)
{
    int32_t strands = 0;
    for (int64_t i = 0; i < chain->nsteps; i++) {
        kiln_cuda_step *s = &chain->steps[i];
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
static bool find_wide_tiles(const kiln_cuda_step *s, kiln_cuda_tiling *t)
{
    if (s->kind != KILN_CUDA_STEP_PRODUCT || s->tiling.cuts > 1 || s->tiling.across == 1)
        return false;
    for (int64_t rows = LEAST_WIDE; rows <= MOST_WIDE; rows *= 2)
        if (kiln_cuda_tiling_within(kiln_cuda_extent_of(&s->product, &s->tiling, s->tf32),
                                    (s->product.m + rows - 1) / rows, t) &&
            t->across == 1 && t->nanoseconds < s->tiling.nanoseconds + BARRIER_TIME)
            return true;
    return false;
}

/* Products have such tiles where what follows can go on with their slabs then and a wave less is left. */
static void widen_tiles(kiln_cuda_chain *chain, const kiln_cuda_waits *w)
{
    int waves = count_waves(chain, w);
    for (int64_t i = 0; i < chain->nsteps; i++) {
        kiln_cuda_step *s = &chain->steps[i];
        const kiln_cuda_tiling own = s->tiling;
        if (!find_wide_tiles(s, &s->tiling)) {
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

/* The first wave from `from` on that the step does not make longer, else the longest, as long as it holds up nobody. */
static int32_t roomy_wave(const kiln_cuda_chain *chain, const kiln_cuda_step *s, int32_t from, const int64_t *times)
{
    int32_t best = from;
    for (int32_t wave = from + 1;
         wave <= s->latest && s->units <= MOST_MOVED && times[best] < kiln_cuda_step_time(chain, s); wave++)
        best = times[wave] > times[best] ? wave : best;
    return best;
}

/* Small steps and products that others can wait for move to a wave that is long anyway. */
static void fill_waves(kiln_cuda_chain *chain, const kiln_cuda_waits *w, const int64_t *times)
{
    int32_t strands = 0;
    for (int64_t i = 0; i < chain->nsteps; i++) {
        kiln_cuda_step *s = &chain->steps[i];
        place p = find_place(chain, w, i);
        bool fits = p.joins && strand_time(chain, i, p.strand) + kiln_cuda_step_time(chain, s) <= times[p.wave - 1];
        if (p.joins && (fits || p.wave > s->latest))
            put(chain, s, p.wave - 1, p.strand);
        else
            put(chain, s, roomy_wave(chain, s, p.wave, times), new_strand(chain, s, &strands));
    }
}

static void cut_strands(kiln_cuda_chain *chain)
{
    for (int64_t i = 0; i < chain->nsteps; i++)
        if (chain->steps[i].strand >= 0 && kiln_cuda_begins_strand(chain, i) && !is_tiny(&chain->steps[i]))
            kiln_cuda_cut_strand(chain, i);
}

static bool set_places(kiln_cuda_chain *chain, const kiln_cuda_waits *w)
{
    widen_tiles(chain, w);
    count_waves(chain, w);
    int64_t *times = kiln_alloc_zero((size_t)chain->nsteps + 2, sizeof *times); /* never more waves than steps */
    if (!times)
        return false;
    find_latest(chain, w);
    for (int32_t wave = 0; wave < chain->nwaves; wave++)
        times[wave] = wave_time(chain, wave);
    fill_waves(chain, w, times);
    cut_strands(chain);
    kiln_free(times);
    return true;
}

bool kiln_cuda_begins_strand(const kiln_cuda_chain *chain, int64_t step)
{
    for (int64_t i = 0; i < step; i++)
        if (chain->steps[i].wave == chain->steps[step].wave && chain->steps[i].strand == chain->steps[step].strand)
            return false;
    return true;
}

/* ---- Tiles ---- */

const kiln_cuda_tiling *kiln_cuda_chain_tiling(const kiln_cuda_chain *chain, int32_t kernel)
{
    for (int64_t i = 0; i < chain->nsteps; i++)
        if (chain->steps[i].kernel == kernel && chain->steps[i].kind == KILN_CUDA_STEP_PRODUCT)
            return &chain->steps[i].tiling;
    return NULL;
}

/* What its launch has to know. */
static void count_units(kiln_cuda_chain *chain)
{
    for (int64_t i = 0; i < chain->nsteps; i++)
        if (chain->steps[i].kind == KILN_CUDA_STEP_PRODUCT && chain->steps[i].tiling.shared > chain->shared)
            chain->shared = chain->steps[i].tiling.shared;
    for (int32_t wave = 0; wave < chain->nwaves; wave++) {
        int64_t units = kiln_cuda_wave_units(chain, wave);
        chain->most_units = units > chain->most_units ? units : chain->most_units;
    }
}

bool kiln_cuda_chain_arrange(kiln_cuda_chain *chain, const kiln_cuda_waits *w)
{
    if (!set_places(chain, w) || !kiln_cuda_chain_fit(chain))
        return false;
    count_units(chain);
    return true;
}
