/* Graphs: the parts of a plan as nodes that wait for each other where they must, captured for one set of addresses. A
 * graph never changes: what differs from run to run is brought by a prologue, which is launched before it. */
#include <string.h>
#include "core/alloc.h"
#include "core/fail.h"
#include "device/cuda/compile/codegen.h"
#include "device/cuda/launch/exec.h"
#include "device/cuda/memory/memory.h"

/* ---- Parts on the stream ---- */

/* The chain, or, as long as its kernel is not there, one kernel after the other. */
static bool launch_part(kiln_cuda_device *d, const kiln_cuda_exec *e, const kiln_cuda_part *p, const kiln_binding *b,
                        kiln_cuda_laps *laps)
{
    const kiln_plan *plan = e->plan;
    const void *kernel = NULL;
    kiln_cuda_call call;
    for (int32_t k = p->first; k < p->end; k++) {
        kiln_cuda_make_call(&call, d, plan, &plan->kernels[k], b, e->scalars);
        call.chained = p->chain || !kiln_cuda_worth_compiling(e);
        call.tiling = p->chain ? kiln_cuda_chain_tiling(p->chain, k) : NULL;
        if (k == p->first && p->chain && !p->chain->alone && kiln_cuda_worth_compiling(e) &&
            !kiln_cuda_chain_kernel(d, p->chain, &kernel))
            return false;
        if (!kiln_cuda_lap_begins(d, laps))
            return false;
        if (kernel)
            return kiln_cuda_chain_add(p->chain, b, e->scalars) && kiln_cuda_chain_launch(d, p->chain, kernel, 0) &&
                   kiln_cuda_lap_ends(d, laps, p->first, p->end);
        if (!kiln_cuda_launch(&call) || !kiln_cuda_lap_ends(d, laps, k, k + 1))
            return false;
    }
    return true;
}

static bool launch_parts(kiln_cuda_device *d, const kiln_cuda_exec *e, const kiln_binding *b, kiln_cuda_laps *laps)
{
    for (int64_t i = 0; i < e->nparts; i++)
        if (!launch_part(d, e, &e->parts[i], b, laps))
            return false;
    return true;
}

/* ---- Capturing ---- */

typedef struct nodes { /* of a graph; those that others have to wait for */
    cudaGraphNode_t *at;
    int64_t n, capacity;
} nodes;

typedef struct capture {
    kiln_cuda_device *d;
    kiln_cuda_exec *e;
    const kiln_binding *b;
    nodes *ends; /* by part: its last nodes */
    nodes before;
    int64_t chain; /* the part that was the last chain; -1: none yet */
} capture;

static bool add_nodes(nodes *to, const cudaGraphNode_t *from, int64_t n)
{
    if (!KILN_GROW(to->at, to->capacity, to->n + n))
        return false;
    for (int64_t i = 0; i < n; i++) {
        int64_t j = 0;
        while (j < to->n && to->at[j] != from[i])
            j++;
        if (j == to->n)
            to->at[to->n++] = from[i];
    }
    return true;
}

/* What the part has to wait for becomes what the stream waits for. Chains wait for each other in any case: two of them,
 * each with a part of its blocks on the device, would wait for the rest for ever. */
static bool set_before(capture *c, const kiln_cuda_part *p)
{
    const kiln_cuda_waits *w = &c->e->waits;
    c->before.n = 0;
    for (int32_t k = p->first; k < p->end; k++)
        for (int64_t i = w->first[k]; i < w->first[k + 1]; i++) {
            const nodes *ends = &c->ends[c->e->part_of[w->of[i]]];
            if (w->of[i] < p->first && !add_nodes(&c->before, ends->at, ends->n))
                return false;
        }
    if (p->chain && c->chain >= 0 && !add_nodes(&c->before, c->ends[c->chain].at, c->ends[c->chain].n))
        return false;
    return kiln_cuda_ok(c->d,
                        cudaStreamUpdateCaptureDependencies(c->d->run_stream, c->before.at, NULL, (size_t)c->before.n,
                                                            cudaStreamSetCaptureDependencies),
                        "nodes of a step cannot wait for each other");
}

static bool note_ends(capture *c, int64_t part)
{
    enum cudaStreamCaptureStatus status;
    const cudaGraphNode_t *at = NULL;
    size_t n = 0;
    return kiln_cuda_ok(c->d, cudaStreamGetCaptureInfo(c->d->run_stream, &status, NULL, NULL, &at, NULL, &n),
                        "capturing a step failed") &&
           add_nodes(&c->ends[part], at, (int64_t)n);
}

static bool capture_parts(capture *c)
{
    bool ok = true;
    for (int64_t i = 0; ok && i < c->e->nparts; i++) {
        ok = set_before(c, &c->e->parts[i]) && launch_part(c->d, c->e, &c->e->parts[i], c->b, NULL) && note_ends(c, i);
        c->chain = c->e->parts[i].chain ? i : c->chain;
    }
    return ok;
}

static bool capture_graph(kiln_cuda_device *d, kiln_cuda_exec *e, kiln_cuda_graph *g, const kiln_binding *b)
{
    capture c = {.d = d, .e = e, .b = b, .chain = -1};
    c.ends = kiln_alloc_zero((size_t)e->nparts + 1, sizeof *c.ends);
    bool ok = c.ends && kiln_cuda_ok(d, cudaStreamBeginCapture(d->run_stream, cudaStreamCaptureModeThreadLocal),
                                     "capturing a step did not begin");
    if (ok) {
        ok = capture_parts(&c);
        cudaError_t ended = cudaStreamEndCapture(d->run_stream, &g->graph);
        ok = ok && kiln_cuda_ok(d, ended, "capturing a step failed") &&
             kiln_cuda_ok(d, cudaGraphInstantiate(&g->exec, g->graph, 0), "a step has no graph");
    }
    for (int64_t i = 0; c.ends && i < e->nparts; i++)
        kiln_free(c.ends[i].at);
    kiln_free(c.ends);
    kiln_free(c.before.at);
    return ok;
}

/* ---- Graphs by addresses ---- */

static bool same_addresses(const kiln_cuda_graph *g, const kiln_plan *plan, const kiln_binding *b)
{
    return !memcmp(g->addresses, b->slots, (size_t)plan->nslots * sizeof *b->slots) &&
           !memcmp(g->addresses + plan->nslots, b->outputs, (size_t)plan->noutputs * sizeof *b->outputs) &&
           g->addresses[plan->nslots + plan->noutputs] == b->arena;
}

static void destroy(kiln_cuda_graph *g)
{
    if (g->exec)
        cudaGraphExecDestroy(g->exec);
    if (g->graph)
        cudaGraphDestroy(g->graph);
    g->exec = NULL;
    g->graph = NULL;
}

void kiln_cuda_graph_free(kiln_cuda_graph *g)
{
    destroy(g);
    kiln_free(g->addresses);
    *g = (kiln_cuda_graph){0};
}

/* It may be running. */
static bool wait_for(kiln_cuda_device *d, const kiln_cuda_graph *g)
{
    return !g->exec || kiln_cuda_ok(d, cudaStreamSynchronize(d->run_stream), "a step failed");
}

static kiln_cuda_graph *find_graph(kiln_cuda_exec *e, const kiln_binding *b)
{
    for (int i = 0; i < KILN_CUDA_GRAPHS; i++)
        if (e->graphs[i].addresses && same_addresses(&e->graphs[i], e->plan, b))
            return &e->graphs[i];
    return NULL;
}

/* A free one, or the one that was not used for longest, for addresses that were not met before. */
static kiln_cuda_graph *add_graph(kiln_cuda_device *d, kiln_cuda_exec *e, const kiln_binding *b)
{
    const kiln_plan *plan = e->plan;
    kiln_cuda_graph *g = &e->graphs[0];
    for (int i = 1; i < KILN_CUDA_GRAPHS; i++)
        if (e->graphs[i].used < g->used)
            g = &e->graphs[i];
    if (!wait_for(d, g))
        return NULL;
    kiln_cuda_graph_free(g);
    g->addresses = kiln_alloc((size_t)plan->nslots + (size_t)plan->noutputs + 1, sizeof *g->addresses);
    if (!g->addresses)
        return NULL;
    memcpy(g->addresses, b->slots, (size_t)plan->nslots * sizeof *b->slots);
    memcpy(g->addresses + plan->nslots, b->outputs, (size_t)plan->noutputs * sizeof *b->outputs);
    g->addresses[plan->nslots + plan->noutputs] = b->arena;
    return g;
}

/* One that was captured before the last generated kernels were ready is made anew. */
static bool is_current(kiln_cuda_device *d, const kiln_cuda_exec *e, const kiln_cuda_graph *g)
{
    return g->exec && g->generation == kiln_cuda_codegen_generation(d) && g->compiling == kiln_cuda_worth_compiling(e);
}

/* Graphs lie in the device's memory, and making one may load kernels. */
static bool make_graph(kiln_cuda_device *d, kiln_cuda_exec *e, kiln_cuda_graph *g, const kiln_binding *b)
{
    if (!wait_for(d, g))
        return false;
    uint64_t memory = kiln_cuda_watch(d);
    destroy(g);
    g->generation = kiln_cuda_codegen_generation(d);
    g->compiling = kiln_cuda_worth_compiling(e);
    bool ok = capture_graph(d, e, g, b);
    if (!ok)
        kiln_cuda_graph_free(g);
    kiln_cuda_watched(d, memory);
    return ok;
}

/* ---- Running ---- */

static bool launch_prologues(kiln_cuda_device *d, const kiln_cuda_exec *e, const double *scalars, uint64_t run)
{
    kiln_cuda_prologue h = {.state = d->status,
                            .record = d->mapped,
                            .scalars = e->scalars,
                            .barriers = e->barriers,
                            .run = run,
                            .nbarriers = e->whole ? 0 : (int32_t)e->nparts}; /* that of a whole plan goes on counting */
    do {
        int left = e->plan->nscalars - h.first;
        h.n = left < KILN_CUDA_PROLOGUE_SCALARS ? left : KILN_CUDA_PROLOGUE_SCALARS;
        if (!kiln_cuda_ok(d, kiln_cuda_prologue_launch(d->run_stream, &h, scalars + h.first), "scalars cannot be set"))
            return false;
        h.first += h.n;
        h.nbarriers = 0;
    } while (h.first < e->plan->nscalars);
    return true;
}

kiln_cuda_graph *kiln_cuda_graph_for(kiln_cuda_device *d, kiln_cuda_exec *e, const kiln_binding *b)
{
    kiln_cuda_graph *g = find_graph(e, b);
    e->strangers = g ? 0 : e->strangers + 1;
    if (g || (g = add_graph(d, e, b)))
        g->used = ++e->clock;
    return g;
}

static bool mark_end(kiln_cuda_device *d)
{
    return kiln_cuda_ok(d, cudaEventRecord(d->graph_ends[d->graphs++ % KILN_CUDA_AHEAD], d->run_stream),
                        "a step's end cannot be marked");
}

bool kiln_cuda_launch_graph(kiln_cuda_device *d, kiln_cuda_exec *e, kiln_cuda_graph *g, const kiln_binding *b,
                            uint64_t run)
{
    return (is_current(d, e, g) || make_graph(d, e, g, b)) && launch_prologues(d, e, b->scalars, run) &&
           kiln_cuda_ok(d, cudaGraphLaunch(g->exec, d->run_stream), "a step cannot be launched") && mark_end(d);
}

bool kiln_cuda_launch_singly(kiln_cuda_device *d, kiln_cuda_exec *e, const kiln_binding *b, uint64_t run,
                             kiln_cuda_laps *laps)
{
    return launch_prologues(d, e, b->scalars, run) && launch_parts(d, e, b, laps) && mark_end(d);
}
