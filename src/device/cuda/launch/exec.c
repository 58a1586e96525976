/* Plans on CUDA: a plan is cut into parts, single kernels and chains of small ones. A plan that is one chain is one
 * launch, or several runs of it are (pending.h); others become a graph for each set of addresses they are run with
 * (few: parameters stay where they are, batches alternate between a few buffers). */
#include "device/cuda/launch/exec.h"
#include "core/alloc.h"
#include "core/fail.h"
#include "device/cuda/compile/codegen.h"
#include "device/cuda/memory/memory.h"
#include "device/cuda/launch/through.h"
#include "device/cuda/launch/pending.h"
#include "device/cuda/launch/rewrite.h"
#include "device/cuda/launch/sums.h"

/* ---- Parts ---- */

enum {
    LONGEST_CHAIN = 64, /* kernels: compiling takes about as much longer as there are more */
    FOR_A_LARGE_ONE = 5 /* kernels of a step, for each large product */
};

/* Whether the plan is one chain if that takes large products in. A few of them cost less than it saves: parts of a
 * graph wait for each other, and what follows a product is a pass of its own. */
static bool is_one_chain(kiln_cuda_device *d, const kiln_plan *plan)
{
    int64_t large = 0;
    bool can = plan->nkernels <= LONGEST_CHAIN;
    for (int64_t k = 0; can && k < plan->nkernels; k++) {
        kiln_cuda_call c;
        kiln_cuda_make_call(&c, d, plan, &plan->kernels[k], NULL, NULL);
        can = kiln_cuda_can_chain(&c, true);
        large += can && !kiln_cuda_can_chain(&c, false);
    }
    return can && large * FOR_A_LARGE_ONE <= plan->nkernels;
}

int64_t kiln_cuda_cut(kiln_cuda_device *d, const kiln_plan *plan, kiln_cuda_part *parts)
{
    int64_t n = 0;
    bool open = false, large = is_one_chain(d, plan);
    int32_t first = 0;
    for (int32_t k = 0; k < plan->nkernels; k++) {
        kiln_cuda_call c;
        kiln_cuda_make_call(&c, d, plan, &plan->kernels[k], NULL, NULL);
        bool can = kiln_cuda_can_chain(&c, large);
        if (!(can && open && k - first < LONGEST_CHAIN)) {
            n++;
            first = k;
        }
        open = can;
        if (parts)
            parts[n - 1] = (kiln_cuda_part){.first = first, .end = k + 1};
    }
    return n;
}

bool kiln_cuda_make_parts(kiln_cuda_device *d, kiln_cuda_exec *e, const kiln_plan *plan)
{
    bool ok = kiln_cuda_absorb_sums(d, plan, &e->absorbed);
    e->given = plan;
    e->plan = e->absorbed ? e->absorbed : plan;
    int64_t n = ok ? kiln_cuda_cut(d, e->plan, NULL) : 0;
    e->parts = kiln_alloc_zero((size_t)n + 1, sizeof *e->parts);
    e->part_of = kiln_alloc((size_t)e->plan->nkernels + 1, sizeof *e->part_of);
    if (!ok || !e->parts || !e->part_of || !kiln_cuda_find_waits(&e->waits, e->plan))
        return false;
    e->nparts = kiln_cuda_cut(d, e->plan, e->parts);
    for (int64_t i = 0; i < n; i++)
        for (int32_t k = e->parts[i].first; k < e->parts[i].end; k++)
            e->part_of[k] = (int32_t)i;
    return kiln_cuda_read_through(e->plan, e->parts, e->nparts, &e->through) &&
           (!e->through || kiln_cuda_find_waits(&e->through_waits, e->through));
}

bool kiln_cuda_make_chains(kiln_cuda_device *d, kiln_cuda_exec *e, const kiln_binding *b)
{
    for (int64_t i = 0; i < e->nparts; i++) {
        kiln_cuda_part *p = &e->parts[i];
        kiln_cuda_call c;
        if (p->chain || p->end - p->first < 2)
            continue;
        const kiln_plan *plan = e->through ? e->through : e->plan;
        kiln_cuda_make_call(&c, d, plan, &plan->kernels[p->first], b, e->scalars);
        if (!(p->chain = kiln_cuda_chain_new(&c, e->through ? &e->through_waits : &e->waits, p->first, p->end,
                                             e->barriers ? e->barriers + i : NULL)))
            return false;
    }
    return true;
}

void kiln_cuda_free_parts(kiln_cuda_exec *e)
{
    for (int64_t i = 0; i < e->nparts; i++)
        kiln_cuda_chain_free(e->parts[i].chain);
    kiln_free(e->parts);
    kiln_free(e->part_of);
    kiln_cuda_free_waits(&e->waits);
    kiln_cuda_free_waits(&e->through_waits);
    kiln_cuda_plan_free(e->through);
    kiln_cuda_plan_free(e->absorbed);
}

/* ---- Lowering ---- */

/* A graph must not go while it runs, nor a chain that has runs pending. */
static void wait_for_last_run(kiln_cuda_device *d, const kiln_cuda_exec *e)
{
    pthread_mutex_lock(&d->lock);
    cudaStream_t stream = kiln_cuda_stream(d);
    if (stream)
        cudaStreamSynchronize(stream);
    for (int64_t i = 0; i < d->nflights; i++)
        if (d->flights[i].plan == e->plan)
            d->flights[i].plan = NULL;
    pthread_mutex_unlock(&d->lock);
}

/* On a device that is lost. */
static void abandon_runs(kiln_cuda_device *d)
{
    pthread_mutex_lock(&d->lock);
    kiln_cuda_abandon(d);
    pthread_mutex_unlock(&d->lock);
}

void kiln_cuda_dispose(void *dev, void *p)
{
    kiln_cuda_device *d = dev;
    kiln_cuda_exec *e = p;
    if (cudaSetDevice(d->index) != cudaSuccess)
        abandon_runs(d);
    else {
        uint64_t memory = kiln_cuda_watch(d);
        wait_for_last_run(d, e);
        for (int i = 0; i < KILN_CUDA_GRAPHS; i++)
            kiln_cuda_graph_free(&e->graphs[i]);
        cudaFree(e->scalars);
        cudaFree(e->batches);
        kiln_cuda_watched(d, memory);
    }
    kiln_cuda_free_parts(e);
    kiln_free(e);
}

/* Scalars and barriers, which are both of eight bytes. */
static bool make_memory(kiln_cuda_device *d, kiln_cuda_exec *e)
{
    size_t scalars = (size_t)(e->plan->nscalars > 0 ? e->plan->nscalars : 1), n = scalars + (size_t)e->nparts;
    if (!kiln_cuda_ok(d, cudaMalloc((void **)&e->scalars, n * sizeof(double)), "no memory for a step's scalars"))
        return false;
    e->barriers = (unsigned long long *)(void *)(e->scalars + scalars);
    pthread_mutex_lock(&d->lock); /* not into a graph that another thread captures */
    cudaStream_t stream = kiln_cuda_stream(d);
    bool ok = stream &&
              kiln_cuda_ok(d, cudaMemsetAsync(e->scalars, 0, n * sizeof(double), stream), "memory cannot be written");
    pthread_mutex_unlock(&d->lock);
    return ok;
}

void *kiln_cuda_lower(void *dev, const kiln_plan *plan)
{
    kiln_cuda_device *d = dev;
    kiln_cuda_exec *e = kiln_cuda_enter(d) ? kiln_alloc_zero(1, sizeof *e) : NULL;
    if (!e)
        return NULL;
    if (kiln_cuda_make_parts(d, e, plan) && make_memory(d, e))
        return e;
    kiln_cuda_dispose(d, e);
    return NULL;
}

/* ---- Running ---- */

/* What has run a few times may never run again, and opening the compiler takes a tenth of a second: so much has to be
 * had from it. Twice in any case: what runs once is seldom a step. */
bool kiln_cuda_worth_compiling(const kiln_cuda_exec *e)
{
    enum { TWICE = 2, OFTEN = 16 };
    const double long_enough = 0.005; /* seconds, as the plan takes at best; interpreted it takes several times that */
    return e->runs >= OFTEN || (e->runs >= TWICE && (double)e->runs * e->plan->seconds >= long_enough) ||
           kiln_cuda_compiles() == 2;
}

/* Where there is none its kernels run one by one. */
static bool take_own_memory(kiln_cuda_device *d, kiln_cuda_exec *e, kiln_cuda_chain *chain)
{
    if (!e->whole || !chain->own_bytes)
        return true;
    uint64_t memory = kiln_cuda_watch(d);
    cudaError_t taken = cudaMalloc(&e->batches, 2 * chain->own_bytes);
    kiln_cuda_watched(d, memory);
    chain->own = (kiln_address)(uintptr_t)e->batches;
    if (taken == cudaSuccess) /* nothing is counted yet */
        taken = cudaMemsetAsync(e->batches, 0, 2 * chain->own_bytes, d->run_stream);
    if (taken != cudaErrorMemoryAllocation)
        return kiln_cuda_ok(d, taken, "no memory for batches");
    cudaGetLastError();
    e->whole = NULL;
    return true;
}

/* A plan that is one chain is launched as that, once its kernel is there. */
static bool find_whole(kiln_cuda_device *d, kiln_cuda_exec *e)
{
    kiln_cuda_chain *chain = e->nparts == 1 ? e->parts[0].chain : NULL;
    uint64_t generation = kiln_cuda_codegen_generation(d) + 1;
    if (!chain || e->whole || e->asked == generation || !kiln_cuda_worth_compiling(e))
        return true;
    e->asked = generation;
    return kiln_cuda_chain_kernel(d, chain, &e->whole) && take_own_memory(d, e, chain);
}

/* With the lock, which is given up meanwhile: waits until few enough graphs are under way. The device has enough to do
 * with that, and each graph that is launched while many wait makes it slower. */
static bool wait_for_room(kiln_cuda_device *d, const kiln_cuda_exec *e)
{
    if (e->whole || d->graphs < KILN_CUDA_AHEAD)
        return true;
    cudaEvent_t end = d->graph_ends[d->graphs % KILN_CUDA_AHEAD];
    pthread_mutex_unlock(&d->lock);
    bool ok = kiln_cuda_ok(d, cudaEventSynchronize(end), "a step failed");
    pthread_mutex_lock(&d->lock);
    return ok;
}

/* The one place where it is chosen how a run is launched, unless it is timed. A plan that is one chain is that, once
 * its kernel is there. Any other is a graph, except where memory is guarded, or addresses are new each time, so that
 * graphs would be made for nothing. The latter is seen late: launching kernels one by one can fail in the middle of a
 * step, which a graph cannot, and what has run before will not. */
static kiln_cuda_mode mode_of(const kiln_cuda_device *d, const kiln_cuda_exec *e)
{
    if (e->whole)
        return KILN_CUDA_AS_CHAIN;
    return e->strangers > KILN_CUDA_GRAPHS || kiln_cuda_memory_guarded(d) ? KILN_CUDA_SINGLY : KILN_CUDA_AS_GRAPH;
}

/* With the lock held: launches the run, or leaves it to a launch of several. */
static bool start(kiln_cuda_device *d, kiln_cuda_exec *e, const kiln_binding *b)
{
    kiln_cuda_graph *g = NULL;
    if (!kiln_cuda_make_chains(d, e, b) || !find_whole(d, e))
        return false;
    if (!e->whole && !(kiln_cuda_flush(d) && (g = kiln_cuda_graph_for(d, e, b))))
        return false;
    switch (mode_of(d, e)) {
    case KILN_CUDA_AS_CHAIN: return kiln_cuda_pend(d, e->parts[0].chain, e->whole, b);
    case KILN_CUDA_AS_GRAPH: return kiln_cuda_launch_graph(d, e, g, b, d->runs + 1);
    default: return kiln_cuda_launch_singly(d, e, b, d->runs + 1, NULL);
    }
}

/* The same for a run that is timed: behind those that wait for a launch, part by part. */
static bool start_timed(kiln_cuda_device *d, kiln_cuda_exec *e, const kiln_binding *b, kiln_cuda_laps *laps)
{
    return kiln_cuda_make_chains(d, e, b) && kiln_cuda_flush(d) && kiln_cuda_launch_singly(d, e, b, d->runs + 1, laps);
}

/* With the lock held: the run has a number from now on. */
static void take_off(kiln_cuda_device *d, kiln_cuda_exec *e, kiln_run *run)
{
    kiln_witness *w = kiln_cuda_witness(d);
    w->given = ++d->given;
    e->runs++;
    kiln_run_ref(run);
    d->flights[d->nflights++] = (kiln_cuda_flight){.number = ++d->runs,
                                                   .given = d->given,
                                                   .thread = kiln_witness_thread(&d->failures, w),
                                                   .run = run,
                                                   .plan = e->plan};
}

static bool run(kiln_cuda_device *d, kiln_cuda_exec *e, const kiln_binding *b, kiln_cuda_laps *laps)
{
    pthread_mutex_lock(&d->lock);
    bool ok = wait_for_room(d, e) && kiln_failures_tell(&d->failures, kiln_cuda_witness(d), UINT64_MAX);
    kiln_cuda_let_go_of_finished(d);
    ok = ok && KILN_GROW(d->flights, d->flights_capacity, d->nflights + 1) &&
         (laps ? start_timed(d, e, b, laps) : start(d, e, b));
    if (ok) {
        take_off(d, e, b->run);
        ok = kiln_cuda_flush_due(d);
    }
    pthread_mutex_unlock(&d->lock);
    return ok;
}

bool kiln_cuda_run(void *dev, void *exec, const kiln_binding *b)
{
    kiln_cuda_device *d = dev;
    return kiln_cuda_enter(d) && run(d, exec, b, NULL);
}

bool kiln_cuda_time(void *dev, void *exec, const kiln_binding *b, kiln_timing *timing)
{
    kiln_cuda_device *d = dev;
    const kiln_cuda_exec *e = exec;
    kiln_cuda_laps laps;
    bool ok = kiln_cuda_enter(d) && kiln_cuda_laps_open(d, &laps, timing, e->plan->nkernels);
    if (!ok)
        return false;
    ok = run(d, exec, b, &laps) && kiln_cuda_laps_read(d, &laps, e->plan, e->given);
    kiln_cuda_laps_close(&laps);
    return ok;
}
