/* Counting: sums of integers over all elements of a group, which many blocks make a part of. Each block adds its part
 * to a word that all share. Integers may be added in any order, so bits do not depend on it, and nobody has to wait
 * until all parts are there to add them up. The word has to be 0 when the run begins. Runs of a chain that is the whole
 * plan have two lots of words in turn, in memory of the chain's own: each run sets those of the next one to 0, while
 * nobody uses them. Other chains are parts of a graph, which sets the words to 0 before it launches them. */
#include "device/cuda/chain/link.h"

enum { ALIGNMENT = 256 };

bool kiln_cuda_is_count(const kiln_cuda_call *c)
{
    const kiln_group *g = c->kernel->group;
    if (!g || !g->reduces || g->fold != KILN_FOLD_SUM || g->reduce_to.dtype != KILN_I64)
        return false;
    for (int d = 0; d < g->reduce_ndim; d++)
        if (g->reduce_shape[d] != 1 && !(g->reduce_dims >> d & 1))
            return false;
    return true;
}

/* Others may look for what outlives the run where the plan has it: it cannot be moved. */
bool kiln_cuda_can_count(const kiln_cuda_call *c)
{
    return kiln_cuda_is_count(c) && c->plan &&
           c->plan->buffers[c->kernel->group->reduce_to.buffer].place == KILN_IN_ARENA;
}

/* Marks where the word is added to. */
static void mark(kiln_cuda_chain *chain, const kiln_cuda_link *l, int32_t buffer)
{
    for (int64_t i = l->pointers; i < chain->npointers; i++)
        if (chain->pointers[i].buffer == buffer) {
            chain->pointers[i].counted = true;
            return;
        }
}

void kiln_cuda_chain_counts(kiln_cuda_chain *chain)
{
    for (int64_t i = 0; i < chain->nlinks; i++) {
        const kiln_cuda_link *l = &chain->links[i];
        const kiln_group *g = kiln_cuda_link_kernel(chain, l)->group;
        if (!l->counts)
            continue;
        mark(chain, l, g->reduce_to.buffer);
        if (chain->alone)
            kiln_cuda_chain_own(chain, g->reduce_to.buffer, (size_t)chain->ncounts++ * sizeof(uint64_t));
    }
    size_t bytes = (size_t)chain->ncounts * sizeof(uint64_t);
    chain->own_bytes += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}
