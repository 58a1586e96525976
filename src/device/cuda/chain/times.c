/* About how long links and members of waves take, and the order in which blocks take the units of a wave: longest
 * first. Units are dealt in rounds, every other one backwards (parameters.h), so that the second round begins with the
 * blocks that have least to do. */
#include "device/cuda/chain/link.h"

/* ---- Links ---- */

int64_t kiln_cuda_store_time(const kiln_cuda_chain *chain, const kiln_cuda_link *l)
{
    return l->group ? l->group->k.p.nstores * chain->costs->store : 0;
}

/* By what it moves, of a block that takes such a share of it. */
static int64_t time_of_share(const kiln_cuda_chain *chain, const kiln_cuda_link *l, int64_t shares)
{
    const kiln_cuda_costs *costs = chain->costs;
    int64_t bytes = chain->plan->kernels[l->kernel].bytes / (shares < 1 ? 1 : shares);
    bool much = bytes > costs->little && !l->kind->second, folds = l->kind->folds && l->kind->folds(l);
    return (folds ? costs->fold : costs->tiny) + kiln_cuda_store_time(chain, l) +
           (much ? (bytes - costs->little) / costs->bytes_a_nanosecond : 0);
}

int64_t kiln_cuda_link_time(const kiln_cuda_chain *chain, const kiln_cuda_link *l)
{
    if (l->kind->time)
        return l->kind->time(chain, l);
    return time_of_share(chain, l, l->units < chain->costs->blocks ? l->units : chain->costs->blocks);
}

/* ---- Units ---- */

int64_t kiln_cuda_tile_time(const kiln_cuda_chain *chain, const kiln_cuda_tiling *t)
{
    int64_t rounds = kiln_cuda_ceil_div(t->tiles, chain->costs->blocks);
    return (t->nanoseconds - t->summing) / rounds;
}

static int64_t unit_time(const kiln_cuda_chain *chain, const kiln_cuda_link *l)
{
    bool alone = l->strand >= 0 && !l->slab;
    return l->kind->unit_time ? l->kind->unit_time(chain, l) : time_of_share(chain, l, alone ? 1 : l->units);
}

int64_t kiln_cuda_member_time(const kiln_cuda_chain *chain, int64_t member)
{
    const kiln_cuda_link *first = &chain->links[member];
    int64_t time = 0;
    if (first->strand < 0)
        return unit_time(chain, first);
    for (int64_t i = member; i < chain->nlinks; i++)
        if (chain->links[i].wave == first->wave && chain->links[i].strand == first->strand)
            time += unit_time(chain, &chain->links[i]);
    return time;
}

/* ---- Waves ---- */

static bool is_member(const kiln_cuda_chain *chain, int64_t link, int32_t wave)
{
    return chain->links[link].wave == wave && (chain->links[link].strand < 0 || kiln_cuda_begins_strand(chain, link));
}

int64_t kiln_cuda_next_member(const kiln_cuda_chain *chain, int32_t wave, int64_t member)
{
    int64_t best = -1, longest = -1, limit = member < 0 ? INT64_MAX : kiln_cuda_member_time(chain, member);
    for (int64_t i = 0; i < chain->nlinks; i++) {
        if (!is_member(chain, i, wave))
            continue;
        int64_t time = kiln_cuda_member_time(chain, i);
        bool later = time < limit || (time == limit && i > member); /* of equal ones the first comes first */
        if (later && time > longest) {
            best = i;
            longest = time;
        }
    }
    return best;
}

int64_t kiln_cuda_member_units(const kiln_cuda_chain *chain, int64_t member)
{
    const kiln_cuda_link *s = &chain->links[member];
    return s->strand < 0 || s->slab ? s->units : 1;
}

int64_t kiln_cuda_wave_units(const kiln_cuda_chain *chain, int32_t wave)
{
    int64_t units = 0;
    for (int64_t i = 0; i < chain->nlinks; i++)
        units += is_member(chain, i, wave) ? kiln_cuda_member_units(chain, i) : 0;
    return units;
}
