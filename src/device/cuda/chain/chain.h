/* Chains: a run of a plan's small kernels as one generated kernel. Launching a kernel costs more than most of them
 * take, so all blocks stay and walk through the kernels in waves: what has no reason to wait for each other is one
 * wave, and between two waves is a barrier of the whole grid. Kernels so small that one block does them follow each
 * other in that block (a strand) without such a barrier; so do, slab by slab of their rows, kernels that work row by
 * row. The arithmetic is that of the kernels compiled ahead, so
 * results are the same bits whichever runs. */
#ifndef KILN_CUDA_CHAIN_H
#define KILN_CUDA_CHAIN_H

#include "device/cuda/chain/multirun.h"
#include "device/cuda/common/depend.h"
#include "device/cuda/group/program.h"
#include "device/cuda/kernels/samples.h"
#include "device/cuda/kernels/softmax.h"
#include "device/cuda/gemm/tiled.h"
#include "device/cuda/chain/parameters.h"

/* ---- What a chain consists of (chain.c) ---- */

typedef struct kiln_cuda_link_kind kiln_cuda_link_kind; /* link.h */

typedef struct kiln_cuda_link {
    const kiln_cuda_link_kind *kind;
    int32_t kernel;             /* of the plan */
    bool guarded;               /* writes to a slot */
    bool counts;                /* its group ends in a count, which it adds to a word of the chain's (counts.c) */
    int64_t units;              /* pieces that blocks take */
    int32_t latest;             /* the last wave in which nobody would have to wait for it longer */
    int32_t wave, strand;       /* strand: -1 for links by themselves, which all blocks share */
    int64_t slab;               /* rows of a unit of its strand; 0: one block does the whole strand */
    int pointers, words;        /* its first ones */
    kiln_cuda_lowered *group;   /* NULL: none */
    kiln_cuda_matrices product; /* without addresses */
    kiln_cuda_tiling tiling;
    bool tensor;               /* how it may be tiled … */
    bool chosen;               /* … unless it has to be tiled as it is */
    uint8_t a_dtype, b_dtype;  /* of its operands in memory … */
    uint8_t dtype;             /* … and what they are multiplied as, which is the result's */
    kiln_cuda_samples samples; /* likewise */
} kiln_cuda_link;

typedef struct kiln_cuda_pointer { /* an address that a link uses */
    int32_t buffer;
    int64_t bytes; /* from its start */
    int64_t own;   /* where the buffer starts in the chain's own memory, and 1 more; 0: it is not there */
    bool counted;  /* a link adds to the word there, which is 0 when the chain begins */
} kiln_cuda_pointer;

typedef struct kiln_cuda_word { /* a scalar of the parameters */
    int32_t scalar;
    uint8_t cls; /* kiln_pw_class */
    bool as_index;
} kiln_cuda_word;

typedef struct kiln_cuda_chain {
    const kiln_plan *plan;
    const kiln_cuda_costs *costs; /* of the device */
    int32_t first, end;           /* kernels of the plan */
    bool alone;                   /* the whole plan: it needs no graph, and scalars are parameters */
    kiln_cuda_link *links;
    int64_t nlinks, links_capacity;
    int nwaves;
    kiln_cuda_pointer *pointers;
    int64_t npointers, pointers_capacity;
    int *places;     /* by pointer: its number among the parameters, which those to the same place share */
    int32_t *firsts; /* by place: the first pointer to it */
    int64_t nplaces;
    kiln_cuda_word *words;
    int64_t nwords, words_capacity;
    size_t shared;
    int64_t most_units; /* in a wave */
    int32_t prefetch;   /* the wave behind which the next run's batch is gathered; 0: a run gathers its own */
    int ncounts;        /* words that links add to (counts.c) */
    size_t own_bytes;   /* of a run: its counts, then its batch */
    kiln_address own;   /* on the device, for two: every other run has the second. Taken before the first launch */
    uint64_t ran;       /* runs that were launched: whose turn it is */
    char *text;         /* written when it is first asked for */
    kiln_cuda_multirun multirun; /* runs that are to be launched */
    unsigned long long *barrier; /* on the device */
    unsigned long long passed;   /* its count */
    uint64_t failures;           /* how many the device had seen when the count was last set to 0 */
} kiln_cuda_chain;

/* Whether a kernel can be a part of a chain; `large`: also if it is a product that a library is faster at. */
bool kiln_cuda_can_chain(const kiln_cuda_call *c, bool large);

/* The chain of kernels first … end-1, which all can, or are nothing; `c` is a call of any of them, with a binding. NULL
 * with an error. */
kiln_cuda_chain *kiln_cuda_chain_new(const kiln_cuda_call *c, const kiln_cuda_waits *w, int32_t first, int32_t end,
                                     unsigned long long *barrier);
void kiln_cuda_chain_free(kiln_cuda_chain *chain);

/* How a product of the chain is tiled, whether the chain runs or its kernels one by one; NULL for other kernels. */
const kiln_cuda_tiling *kiln_cuda_chain_tiling(const kiln_cuda_chain *chain, int32_t kernel);

/* Whether a link has scalars, which of the plan's is its first one, and how many links before it have any. */
bool kiln_cuda_has_scalars(const kiln_cuda_chain *chain, const kiln_cuda_link *link);
int32_t kiln_cuda_first_scalar(const kiln_cuda_chain *chain, const kiln_cuda_link *link);
int kiln_cuda_scalars_before(const kiln_cuda_chain *chain, const kiln_cuda_link *link);

/* Its kernel; NULL as long as that is not there. False with an error. */
bool kiln_cuda_chain_kernel(kiln_cuda_device *d, kiln_cuda_chain *chain, const void **kernel);

/* ---- Launching (chain_launch.c) ---- */

/* Adds a run to those of the next launch. `scalars`: where on the device they are, unless the chain is alone. False,
 * without an error, if there is no room. */
bool kiln_cuda_chain_add(kiln_cuda_chain *chain, const kiln_binding *b, const double *scalars);

/* Launches what was added, of which nothing is left then. `first`: the number of its first run where the chain is
 * alone, else 0. */
bool kiln_cuda_chain_launch(kiln_cuda_device *d, kiln_cuda_chain *chain, const void *kernel, uint64_t first);

/* ---- The order of its links (waves.c) ---- */

/* Sets waves, strands and tiles. False with an error. */
bool kiln_cuda_chain_arrange(kiln_cuda_chain *chain, const kiln_cuda_waits *w);

bool kiln_cuda_begins_strand(const kiln_cuda_chain *chain, int64_t link);

/* ---- Units and how long they take (times.c) ---- */

/* About how long a link takes if it has the device to itself, in nanoseconds. */
int64_t kiln_cuda_link_time(const kiln_cuda_chain *chain, const kiln_cuda_link *link);

/* The members of a wave are links by themselves and strands, each told by its first link. Blocks take the units of the
 * longest first; the member behind `member` in that order, or the first behind -1; -1: there are no more. */
int64_t kiln_cuda_next_member(const kiln_cuda_chain *chain, int32_t wave, int64_t member);

/* How many units a member has, and how long each takes. A strand has one, or slabs. */
int64_t kiln_cuda_member_units(const kiln_cuda_chain *chain, int64_t member);
int64_t kiln_cuda_member_time(const kiln_cuda_chain *chain, int64_t member);

int64_t kiln_cuda_tile_time(const kiln_cuda_chain *chain, const kiln_cuda_tiling *t);

/* Of all members together. */
int64_t kiln_cuda_wave_units(const kiln_cuda_chain *chain, int32_t wave);

/* ---- Parts that share the blocks (balance.c) ---- */

/* Makes tiles and slabs larger where a wave with more units than blocks is over sooner then. False with an error. */
bool kiln_cuda_chain_balance(kiln_cuda_chain *chain);

/* How long a wave would take then, in nanoseconds; nothing is changed. False with an error. */
bool kiln_cuda_balanced_time(kiln_cuda_chain *chain, int32_t wave, int64_t *time);

/* ---- Memory of its own ---- */

/* All that addresses the buffer addresses the chain's own memory instead, `at` bytes from where a run's begins. */
void kiln_cuda_chain_own(kiln_cuda_chain *chain, int32_t buffer, size_t at);

/* ---- Counting (counts.c) ---- */

/* Whether the group of a call ends in a count; and whether that can be made by adding to a word of a chain's. */
bool kiln_cuda_is_count(const kiln_cuda_call *c);
bool kiln_cuda_can_count(const kiln_cuda_call *c);

/* Sets `ncounts` and makes room for as many. */
void kiln_cuda_chain_counts(kiln_cuda_chain *chain);

/* ---- Gathering ahead (prefetch.c) ---- */

/* Sets `prefetch` of an arranged chain, and makes room for a batch. */
void kiln_cuda_chain_prefetch(kiln_cuda_chain *chain);

/* ---- Strands of slabs (slabs.c) ---- */

/* Whether a link works row by row, so that it can be done in slabs. */
bool kiln_cuda_has_rows(const kiln_cuda_chain *chain, const kiln_cuda_link *link);

/* Whether each slab of the link needs no more of a strand's links, all of them before it, than the same slab. */
bool kiln_cuda_goes_on(const kiln_cuda_chain *chain, int64_t link, int32_t strand);

/* Cuts the strand that a link is the first of; one of a single link, which gains nothing by it, is none any more. */
void kiln_cuda_cut_strand(kiln_cuda_chain *chain, int64_t link);

/* Cuts a strand of slabs into so many, or less. False where the link begins none, or slabs cannot be larger. */
bool kiln_cuda_recut_strand(kiln_cuda_chain *chain, int64_t link, int64_t slabs);

/* How many items of the link, as its device function counts them, a slab has. */
int64_t kiln_cuda_slab_items(const kiln_cuda_chain *chain, const kiln_cuda_link *link);

/* ---- Its text (chain/text.c) ---- */
char *kiln_cuda_chain_text(const kiln_cuda_chain *chain);

#endif
