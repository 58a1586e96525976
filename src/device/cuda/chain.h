/* Chains: a run of a plan's small kernels as one generated kernel. Launching a kernel costs more than most of them
 * take, so all blocks stay and walk through the kernels in waves: what has no reason to wait for each other is one
 * wave, and between two waves is a barrier of the whole grid. Kernels so small that one block does them follow each
 * other in that block (a strand) without such a barrier. The arithmetic is that of the kernels compiled ahead, so
 * results are the same bits whichever runs. */
#ifndef KILN_CUDA_CHAIN_H
#define KILN_CUDA_CHAIN_H

#include "device/cuda/depend.h"
#include "device/cuda/program.h"
#include "device/cuda/samples.h"
#include "device/cuda/small.h"
#include "device/cuda/walk.h"

/* ---- What a chain consists of (chain.c) ---- */

typedef enum kiln_cuda_step_kind {
    KILN_CUDA_STEP_MAP,
    KILN_CUDA_STEP_ROWS,
    KILN_CUDA_STEP_COLUMNS,
    KILN_CUDA_STEP_COMBINE, /* the second half of a reduction in chunks */
    KILN_CUDA_STEP_PRODUCT,
    KILN_CUDA_STEP_JOIN, /* the second half of a product in cuts */
    KILN_CUDA_STEP_SOFTMAX,
    KILN_CUDA_STEP_PICK,
    KILN_CUDA_STEP_PLACE,
    KILN_CUDA_STEP_SAMPLES,
    KILN_CUDA_STEP_FIND
} kiln_cuda_step_kind;

typedef struct kiln_cuda_step {
    kiln_cuda_step_kind kind;
    int32_t kernel;             /* of the plan */
    bool guarded;               /* writes to a slot */
    int64_t units;              /* pieces that blocks take */
    int32_t latest;             /* the last wave in which nobody would have to wait for it longer */
    int32_t wave, strand;       /* strand: -1 for steps that all blocks share */
    int pointers, words;        /* its first ones */
    kiln_cuda_lowered *group;   /* NULL: none */
    kiln_cuda_matrices product; /* without addresses */
    kiln_cuda_tiling tiling;
    bool tf32;                 /* how it may be tiled */
    kiln_cuda_samples samples; /* likewise */
} kiln_cuda_step;

typedef struct kiln_cuda_pointer { /* an address of the parameters */
    int32_t buffer;
    int64_t bytes; /* from its start */
} kiln_cuda_pointer;

typedef struct kiln_cuda_word { /* a scalar of the parameters */
    int32_t scalar;
    uint8_t cls; /* kiln_pw_class */
    bool as_index;
} kiln_cuda_word;

typedef struct kiln_cuda_chain {
    const kiln_plan *plan;
    int32_t first, end; /* kernels of the plan */
    bool alone;         /* the whole plan: it needs no graph, and scalars are parameters */
    kiln_cuda_step *steps;
    int64_t nsteps, steps_capacity;
    int nwaves;
    kiln_cuda_pointer *pointers;
    int64_t npointers, pointers_capacity;
    kiln_cuda_word *words;
    int64_t nwords, words_capacity;
    size_t shared;
    int64_t most_units; /* in a wave */
    char *text;         /* written when it is first asked for */
    unsigned char *parameters;
    size_t parameter_bytes;
    unsigned long long *barrier; /* on the device */
    unsigned long long passed;   /* its count */
    uint64_t faults;             /* how many the device had seen when the count was last set to 0 */
} kiln_cuda_chain;

/* Whether a kernel can be a part of a chain. */
bool kiln_cuda_can_chain(const kiln_cuda_call *c);

/* The chain of kernels first … end-1, which all can; `c` is a call of any of them, with a binding. NULL with an error.
 */
kiln_cuda_chain *kiln_cuda_chain_new(const kiln_cuda_call *c, const kiln_cuda_waits *w, int32_t first, int32_t end,
                                     unsigned long long *barrier);
void kiln_cuda_chain_free(kiln_cuda_chain *chain);

/* How a product of the chain is tiled, whether the chain runs or its kernels one by one; NULL for other kernels. */
const kiln_cuda_tiling *kiln_cuda_chain_tiling(const kiln_cuda_chain *chain, int32_t kernel);

/* Its kernel; NULL as long as that is not there. False with an error. */
bool kiln_cuda_chain_kernel(kiln_cuda_device *d, kiln_cuda_chain *chain, const void **kernel);

/* Puts it on the call's stream; `run`: the number of the run where the chain is alone. */
bool kiln_cuda_chain_launch(kiln_cuda_chain *chain, const kiln_cuda_call *c, const void *kernel, uint64_t run);

/* ---- The order of its steps (waves.c) ---- */

/* Sets waves, strands and tiles. False with an error. */
bool kiln_cuda_chain_arrange(kiln_cuda_chain *chain, const kiln_cuda_waits *w);

/* Whether a step goes on with the one before it, of the same kernel. */
static inline bool kiln_cuda_is_second(const kiln_cuda_step *s)
{
    return s->kind == KILN_CUDA_STEP_COMBINE || s->kind == KILN_CUDA_STEP_JOIN;
}

/* What blocks take of a wave: a strand is one unit. */
int64_t kiln_cuda_wave_units(const kiln_cuda_chain *chain, int32_t wave);
bool kiln_cuda_begins_strand(const kiln_cuda_chain *chain, int64_t step);

/* ---- Its text (chain_text.c) ---- */
char *kiln_cuda_chain_text(const kiln_cuda_chain *chain);

#endif
