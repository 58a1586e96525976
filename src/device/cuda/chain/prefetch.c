/* Gathering ahead: where several runs share a launch and each begins by gathering a batch, that of the next one is
 * gathered beside what this one computes, and the runs behind the first have a wave less. Blocks that have nothing else
 * to do come to the barrier behind a wave first and gather then, which the wave behind it need not wait for: they have
 * the time of both. Batches lie in memory of the chain's own, twice, so that one can be read while the next is
 * written. */
#include "device/cuda/chain/link.h"

enum {
    MOST_OWN = 1 << 20, /* bytes that a batch may take: with larger ones a wave more or less hardly matters */
    ALIGNMENT = 256
};

static bool same_memory(const kiln_plan *plan, int32_t a, int32_t b)
{
    if (a < 0 || b < 0 || plan->buffers[a].place != plan->buffers[b].place)
        return a >= 0 && a == b;
    return a == b || (plan->buffers[a].place != KILN_IN_ARENA && plan->buffers[a].index == plan->buffers[b].index);
}

static bool writes(const kiln_plan *plan, const kiln_kernel *k, int32_t buffer)
{
    for (kiln_access a = {0}; kiln_next_access(k, &a);)
        if (a.writes && same_memory(plan, a.buffer, buffer))
            return true;
    return false;
}

static bool only_one_writes(const kiln_cuda_chain *chain, int32_t buffer, int32_t kernel)
{
    for (int32_t i = chain->first; i < chain->end; i++)
        if (i != kernel && writes(chain->plan, &chain->plan->kernels[i], buffer))
            return false;
    return true;
}

/* Whether it reads what no run writes, to memory that nobody sees after the run. */
static bool can_be_ahead(const kiln_cuda_chain *chain, const kiln_cuda_link *s)
{
    const kiln_plan *plan = chain->plan;
    const kiln_kernel *k = &plan->kernels[s->kernel];
    if (!s->kind->gathers || plan->buffers[k->out[0].buffer].place != KILN_IN_ARENA ||
        !only_one_writes(chain, k->out[0].buffer, s->kernel))
        return false;
    for (int i = 0; i < k->nin; i++)
        if (k->in[i].buffer >= 0 &&
            (plan->buffers[k->in[i].buffer].place != KILN_IN_SLOT || !only_one_writes(chain, k->in[i].buffer, -1)))
            return false;
    return true;
}

/* Whether the first wave consists of such links; *bytes: what they write. */
static bool only_gathers(const kiln_cuda_chain *chain, int64_t *bytes)
{
    *bytes = 0;
    for (int64_t i = 0; i < chain->nlinks; i++) {
        const kiln_cuda_link *s = &chain->links[i];
        if (s->wave > 0)
            continue;
        if (!can_be_ahead(chain, s))
            return false;
        *bytes += chain->plan->buffers[chain->plan->kernels[s->kernel].out[0].buffer].bytes + ALIGNMENT;
    }
    return *bytes <= MOST_OWN;
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Units of the fuller of a wave and the next one. */
static int64_t units_of_two(const kiln_cuda_chain *chain, int32_t wave)
{
    return larger(kiln_cuda_wave_units(chain, wave), kiln_cuda_wave_units(chain, wave + 1));
}

/* How long a wave takes in which no block does two things. */
static int64_t time_of(const kiln_cuda_chain *chain, int32_t wave)
{
    return kiln_cuda_member_time(chain, kiln_cuda_next_member(chain, wave, -1));
}

/* The wave that takes longest together with the next one, where no block has to do two things then; 0: none. */
static int32_t find_wave(const kiln_cuda_chain *chain)
{
    int64_t gathering = kiln_cuda_wave_units(chain, 0), longest = 0;
    int32_t best = 0;
    for (int32_t wave = 1; wave + 1 < chain->nwaves; wave++) {
        int64_t time = time_of(chain, wave) + time_of(chain, wave + 1);
        if (time > longest && units_of_two(chain, wave) + gathering <= chain->costs->blocks) {
            longest = time;
            best = wave;
        }
    }
    return best;
}

static void take_buffer(kiln_cuda_chain *chain, int32_t buffer)
{
    kiln_cuda_chain_own(chain, buffer, chain->own_bytes);
    size_t bytes = (size_t)chain->plan->buffers[buffer].bytes;
    chain->own_bytes += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

void kiln_cuda_chain_prefetch(kiln_cuda_chain *chain)
{
    int64_t bytes;
    if (!chain->alone || kiln_cuda_runs_wanted() == 1 || !only_gathers(chain, &bytes))
        return;
    chain->prefetch = find_wave(chain);
    if (!chain->prefetch)
        return;
    chain->most_units =
        larger(chain->most_units, kiln_cuda_wave_units(chain, 0) + units_of_two(chain, chain->prefetch));
    for (int64_t i = 0; i < chain->nlinks; i++)
        if (chain->links[i].wave == 0)
            take_buffer(chain, chain->plan->kernels[chain->links[i].kernel].out[0].buffer);
}
