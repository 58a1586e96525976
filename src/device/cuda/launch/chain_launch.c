/* Launching chains: what their kernel gets, and how it is put on the stream. */
#include <string.h>
#include "device/cuda/launch/exec.h"

/* ---- Runs ---- */

/* As the device converts it: `scalar` in words.cuh. */
static uint64_t word_of(const kiln_cuda_word *w, double x)
{
    uint64_t bits = 0;
    float narrow = (float)x;
    switch (w->cls) {
    case KILN_PW_F32:
        if (!w->as_index) {
            memcpy(&bits, &narrow, sizeof narrow);
            return bits;
        }
        break;
    case KILN_PW_F64: break;
    case KILN_PW_I64:
        return x != x        ? 0
               : x >= 0x1p63 ? (uint64_t)INT64_MAX
               : x < -0x1p63 ? (uint64_t)INT64_MIN
                             : (uint64_t)(int64_t)x;
    default: return x != 0;
    }
    memcpy(&bits, &x, sizeof x);
    return bits;
}

/* What is a run's in the chain's own memory; runs have it in turn. */
static kiln_address own_of(const kiln_cuda_chain *chain, uint64_t run)
{
    return chain->own + run % 2 * chain->own_bytes;
}

/* For run number `run` of a launch. */
static uint64_t address_of(const kiln_cuda_chain *chain, const kiln_cuda_pointer *p, const kiln_binding *b, int run)
{
    if (p->buffer < 0)
        return 0;
    kiln_address own = own_of(chain, chain->ran + (uint64_t)run) + (uint64_t)p->own - 1;
    return (p->own ? own : kiln_buffer_address(chain->plan, b, p->buffer)) + (uint64_t)p->bytes;
}

bool kiln_cuda_chain_add(kiln_cuda_chain *chain, const kiln_binding *b, const double *scalars)
{
    kiln_cuda_multirun *m = &chain->multirun;
    for (int64_t i = 0; i < chain->nplaces; i++)
        m->given[i] = address_of(chain, &chain->pointers[chain->firsts[i]], b, m->runs);
    uint64_t *words = kiln_cuda_multirun_add(m);
    if (words && !chain->alone) {
        words[0] = (uint64_t)(uintptr_t)scalars;
        for (int64_t i = 0, n = 1; i < chain->nlinks; i++)
            if (kiln_cuda_has_scalars(chain, &chain->links[i]))
                words[n++] = (uint64_t)kiln_cuda_first_scalar(chain, &chain->links[i]);
    }
    for (int64_t i = 0; words && chain->alone && i < chain->nwords; i++)
        words[i] = word_of(&chain->words[i], b->scalars[chain->words[i].scalar]);
    return words != NULL;
}

/* ---- Launching ---- */

/* After a fault the barrier's count says so until it is set anew. */
static bool reset_barrier(kiln_cuda_device *d, kiln_cuda_chain *chain)
{
    if (!chain->alone || chain->failures == d->failures.count)
        return true;
    chain->failures = d->failures.count;
    chain->passed = 0;
    return kiln_cuda_ok(d, cudaMemsetAsync(chain->barrier, 0, sizeof *chain->barrier, d->run_stream),
                        "a barrier cannot be set");
}

/* Blocks wait for each other, so all have to be on the device at once. A cooperative launch sees to that. A chain that
 * is launched by itself has the device to itself, and no more blocks than multiprocessors: it need not ask, and can be
 * brought near while the run before it ends. Unless other processes run kernels beside ours: two chains that each had a
 * part of their blocks on the device would wait for ever. */
static cudaLaunchAttribute how_to_launch(const kiln_cuda_device *d, const kiln_cuda_chain *chain)
{
    cudaLaunchAttribute a = {.id = cudaLaunchAttributeCooperative, .val = {.cooperative = 1}};
    if (chain->alone && d->capability >= 90 && !d->shared) {
        a.id = cudaLaunchAttributeProgrammaticStreamSerialization;
        a.val.programmaticStreamSerializationAllowed = 1;
    }
    return a;
}

/* Barriers: behind every wave but the last of all. Where batches are gathered ahead only the first run has a first
 * wave. */
static uint64_t barriers_of(const kiln_cuda_chain *chain, uint64_t runs)
{
    uint64_t waves = (uint64_t)chain->nwaves;
    return chain->prefetch ? runs * (waves - 1) : runs * waves - 1;
}

/* In a graph: its counts lie where the plan has them, and a graph may run again. */
static bool zero_counts(kiln_cuda_device *d, const kiln_cuda_chain *chain)
{
    bool ok = true;
    for (int64_t i = 0; ok && !chain->alone && i < chain->npointers; i++)
        if (chain->pointers[i].counted)
            ok = kiln_cuda_ok(
                d,
                cudaMemsetAsync((void *)(uintptr_t)kiln_cuda_multirun_address(&chain->multirun, chain->places[i]), 0,
                                sizeof(uint64_t), d->run_stream),
                "a count cannot be set");
    return ok;
}

static bool launch(kiln_cuda_device *d, kiln_cuda_chain *chain, const void *kernel, uint64_t first)
{
    if (!reset_barrier(d, chain) || !zero_counts(d, chain))
        return false;
    const uint64_t runs = (uint64_t)chain->multirun.runs;
    kiln_cuda_chain_parameters parameters = {chain->barrier, chain->passed, first, runs, d->status, d->mapped, {NULL}};
    for (int i = 0; i < 2 && chain->own; i++)
        parameters.counts[i] = (unsigned long long *)(uintptr_t)own_of(chain, chain->ran + (uint64_t)i);
    memcpy(chain->multirun.parameters, &parameters, sizeof parameters);
    int64_t blocks = chain->most_units < d->multiprocessors ? chain->most_units : d->multiprocessors;
    cudaLaunchAttribute attribute = how_to_launch(d, chain);
    cudaLaunchConfig_t how = {.gridDim = {(unsigned)blocks, 1, 1},
                              .blockDim = {KILN_CUDA_CHAIN_THREADS, 1, 1},
                              .dynamicSmemBytes = chain->shared,
                              .stream = d->run_stream,
                              .attrs = &attribute,
                              .numAttrs = 1};
    void *arguments[] = {chain->multirun.parameters};
    if (!kiln_cuda_ok(d, cudaLaunchKernelExC(&how, kernel, arguments), "a step cannot be launched"))
        return false;
    if (chain->alone)
        chain->passed += barriers_of(chain, runs) * (uint64_t)blocks;
    chain->ran += runs;
    return true;
}

bool kiln_cuda_chain_launch(kiln_cuda_device *d, kiln_cuda_chain *chain, const void *kernel, uint64_t first)
{
    bool ok = launch(d, chain, kernel, first);
    kiln_cuda_multirun_clear(&chain->multirun);
    return ok;
}
