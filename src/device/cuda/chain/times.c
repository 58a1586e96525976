/* About how long the parts of a chain take, and the order in which blocks take the units of a wave: longest first.
 * Units are dealt in rounds, every other one backwards (parameters.h), so that the second round begins with the blocks
 * that have least to do. */
#include "device/cuda/chain/chain.h"

enum {
    TINY_TIME = 600,        /* nanoseconds of a step that moves little */
    FOLD_TIME = 1200,       /* and of one that folds results by shared memory */
    STORE_TIME = 300,       /* and of each store of a group */
    LITTLE = 32 * 1024,     /* bytes that a block moves in that time … */
    BYTES_A_NANOSECOND = 30 /* … and of those beyond */
};

/* ---- Steps ---- */

/* Whether the threads of a block wait for each other, again and again. */
static bool folds(const kiln_cuda_step *s)
{
    return s->kind == KILN_CUDA_STEP_COLUMNS || (s->kind == KILN_CUDA_STEP_ROWS && s->group->k.p.r.lanes > 32);
}

static int64_t store_time(const kiln_cuda_step *s)
{
    return s->group ? s->group->k.p.nstores * STORE_TIME : 0;
}

/* Of a step that is no product, by a block that takes such a part of it. */
static int64_t time_of_part(const kiln_cuda_chain *chain, const kiln_cuda_step *s, int64_t parts)
{
    int64_t bytes = chain->plan->kernels[s->kernel].bytes / (parts < 1 ? 1 : parts);
    bool much = bytes > LITTLE && !kiln_cuda_is_second(s);
    return (folds(s) ? FOLD_TIME : TINY_TIME) + store_time(s) + (much ? (bytes - LITTLE) / BYTES_A_NANOSECOND : 0);
}

int64_t kiln_cuda_step_time(const kiln_cuda_chain *chain, const kiln_cuda_step *s)
{
    if (s->kind == KILN_CUDA_STEP_PRODUCT)
        return s->tiling.nanoseconds + store_time(s);
    return time_of_part(chain, s, s->units < KILN_CUDA_TILE_BLOCKS ? s->units : KILN_CUDA_TILE_BLOCKS);
}

/* ---- Units ---- */

int64_t kiln_cuda_tile_time(const kiln_cuda_tiling *t)
{
    int64_t rounds = (t->tiles + KILN_CUDA_TILE_BLOCKS - 1) / KILN_CUDA_TILE_BLOCKS;
    return (t->nanoseconds - t->joining) / rounds;
}

/* Tiles of cuts hand nothing to a group. */
static int64_t product_time(const kiln_cuda_step *s)
{
    return kiln_cuda_tile_time(&s->tiling) + (s->tiling.cuts == 1 ? store_time(s) : 0);
}

static int64_t unit_time(const kiln_cuda_chain *chain, const kiln_cuda_step *s)
{
    bool alone = s->strand >= 0 && !s->slab;
    return s->kind == KILN_CUDA_STEP_PRODUCT ? product_time(s) : time_of_part(chain, s, alone ? 1 : s->units);
}

int64_t kiln_cuda_part_time(const kiln_cuda_chain *chain, int64_t part)
{
    const kiln_cuda_step *first = &chain->steps[part];
    int64_t time = 0;
    if (first->strand < 0)
        return unit_time(chain, first);
    for (int64_t i = part; i < chain->nsteps; i++)
        if (chain->steps[i].wave == first->wave && chain->steps[i].strand == first->strand)
            time += unit_time(chain, &chain->steps[i]);
    return time;
}

/* ---- Waves ---- */

static bool is_part(const kiln_cuda_chain *chain, int64_t step, int32_t wave)
{
    return chain->steps[step].wave == wave && (chain->steps[step].strand < 0 || kiln_cuda_begins_strand(chain, step));
}

int64_t kiln_cuda_next_part(const kiln_cuda_chain *chain, int32_t wave, int64_t part)
{
    int64_t best = -1, longest = -1, limit = part < 0 ? INT64_MAX : kiln_cuda_part_time(chain, part);
    for (int64_t i = 0; i < chain->nsteps; i++) {
        if (!is_part(chain, i, wave))
            continue;
        int64_t time = kiln_cuda_part_time(chain, i);
        bool later = time < limit || (time == limit && i > part); /* of equal ones the first comes first */
        if (later && time > longest) {
            best = i;
            longest = time;
        }
    }
    return best;
}

int64_t kiln_cuda_part_units(const kiln_cuda_chain *chain, int64_t part)
{
    const kiln_cuda_step *s = &chain->steps[part];
    return s->strand < 0 || s->slab ? s->units : 1;
}

int64_t kiln_cuda_wave_units(const kiln_cuda_chain *chain, int32_t wave)
{
    int64_t units = 0;
    for (int64_t i = 0; i < chain->nsteps; i++)
        units += is_part(chain, i, wave) ? kiln_cuda_part_units(chain, i) : 0;
    return units;
}
