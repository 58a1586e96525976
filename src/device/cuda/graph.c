/* Graphs: the parts of a plan as nodes that wait for each other where they must, captured for one set of addresses.
 * Header nodes come first; they are all that changes from run to run. */
#include <string.h>
#include "core/alloc.h"
#include "core/fail.h"
#include "device/cuda/codegen.h"
#include "device/cuda/exec.h"
#include "device/cuda/memory.h"

/* ---- Capturing ---- */

typedef struct nodes { /* of a graph; those that others have to wait for */
    cudaGraphNode_t *at;
    int64_t n, capacity;
} nodes;

typedef struct capture {
    kiln_cuda_device *d;
    kiln_cuda_exec *e;
    kiln_cuda_graph *g;
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
    if (!c->before.n && !add_nodes(&c->before, c->g->headers, c->e->nheaders))
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

/* The chain, or, as long as its kernel is not there, one kernel after the other. */
static bool capture_part(capture *c, kiln_cuda_part *p)
{
    const kiln_plan *plan = c->e->plan;
    const void *kernel = NULL;
    kiln_cuda_call call;
    for (int32_t k = p->first; k < p->end; k++) {
        kiln_cuda_make_call(&call, c->d, plan, &plan->kernels[k], c->b, c->e->scalars);
        call.chained = p->chain || !kiln_cuda_worth_compiling(c->e);
        call.tiling = p->chain ? kiln_cuda_chain_tiling(p->chain, k) : NULL;
        if (k == p->first && p->chain && !p->chain->alone && kiln_cuda_worth_compiling(c->e) &&
            !kiln_cuda_chain_kernel(c->d, p->chain, &kernel))
            return false;
        if (kernel)
            return kiln_cuda_chain_add(p->chain, c->b, c->e->scalars) &&
                   kiln_cuda_chain_launch(c->d, p->chain, kernel, 0);
        if (!kiln_cuda_launch(&call))
            return false;
    }
    return true;
}

static void fill_header(kiln_cuda_header *h, const kiln_cuda_device *d, const kiln_cuda_exec *e, int number,
                        const double *scalars, uint64_t run)
{
    h->state = d->state;
    h->record = d->mapped;
    h->scalars = e->scalars;
    h->barriers = e->barriers;
    h->nbarriers = number ? 0 : (int32_t)e->nparts;
    h->run = run;
    h->first = number * KILN_CUDA_HEADER;
    int left = e->plan->nscalars - h->first;
    h->n = left < KILN_CUDA_HEADER ? left : KILN_CUDA_HEADER;
    if (h->n > 0)
        memcpy(h->values, scalars + h->first, (size_t)h->n * sizeof *scalars);
}

static struct cudaKernelNodeParams header_node(void **arguments)
{
    return (struct cudaKernelNodeParams){.func = (void *)(uintptr_t)kiln_cuda_header_kernel(),
                                         .gridDim = {1, 1, 1},
                                         .blockDim = {128, 1, 1},
                                         .kernelParams = arguments};
}

static bool add_headers(capture *c)
{
    kiln_cuda_header header;
    void *arguments[] = {&header};
    struct cudaKernelNodeParams node = header_node(arguments);
    for (int i = 0; i < c->e->nheaders; i++) {
        fill_header(&header, c->d, c->e, i, c->b->scalars, 0);
        if (!kiln_cuda_ok(c->d, cudaGraphAddKernelNode(&c->g->headers[i], c->g->graph, NULL, 0, &node),
                          "no graph node"))
            return false;
    }
    return true;
}

static bool capture_parts(capture *c)
{
    cudaStream_t stream = c->d->run_stream;
    if (!kiln_cuda_ok(c->d,
                      cudaStreamBeginCaptureToGraph(stream, c->g->graph, c->g->headers, NULL, (size_t)c->e->nheaders,
                                                    cudaStreamCaptureModeThreadLocal),
                      "capturing a step did not begin"))
        return false;
    bool ok = true;
    for (int64_t i = 0; ok && i < c->e->nparts; i++) {
        ok = set_before(c, &c->e->parts[i]) && capture_part(c, &c->e->parts[i]) && note_ends(c, i);
        c->chain = c->e->parts[i].chain ? i : c->chain;
    }
    cudaGraph_t captured = NULL;
    cudaError_t ended = cudaStreamEndCapture(stream, &captured);
    return ok && kiln_cuda_ok(c->d, ended, "capturing a step failed");
}

static bool capture_graph(kiln_cuda_device *d, kiln_cuda_exec *e, kiln_cuda_graph *g, const kiln_binding *b)
{
    capture c = {.d = d, .e = e, .g = g, .b = b, .chain = -1};
    c.ends = kiln_alloc_zero((size_t)e->nparts + 1, sizeof *c.ends);
    bool ok = c.ends && kiln_cuda_ok(d, cudaGraphCreate(&g->graph, 0), "no graph") && add_headers(&c) &&
              capture_parts(&c) && kiln_cuda_ok(d, cudaGraphInstantiate(&g->exec, g->graph, 0), "a step has no graph");
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

void kiln_cuda_graph_free(kiln_cuda_graph *g)
{
    if (g->exec)
        cudaGraphExecDestroy(g->exec);
    if (g->graph)
        cudaGraphDestroy(g->graph);
    kiln_free(g->addresses);
    kiln_free(g->headers);
    *g = (kiln_cuda_graph){0};
}

static kiln_cuda_graph *make_graph(kiln_cuda_device *d, kiln_cuda_exec *e, const kiln_binding *b)
{
    const kiln_plan *plan = e->plan;
    kiln_cuda_graph *g = &e->graphs[0];
    for (int i = 1; i < KILN_CUDA_GRAPHS; i++) /* a free one, or the one that was not used for longest */
        if (e->graphs[i].used < g->used)
            g = &e->graphs[i];
    kiln_cuda_graph_free(g);
    g->generation = kiln_cuda_codegen_generation(d);
    g->compiling = kiln_cuda_worth_compiling(e);
    g->addresses = kiln_alloc((size_t)plan->nslots + (size_t)plan->noutputs + 1, sizeof *g->addresses);
    g->headers = kiln_alloc((size_t)e->nheaders, sizeof *g->headers);
    if (g->addresses && g->headers) {
        memcpy(g->addresses, b->slots, (size_t)plan->nslots * sizeof *b->slots);
        memcpy(g->addresses + plan->nslots, b->outputs, (size_t)plan->noutputs * sizeof *b->outputs);
        g->addresses[plan->nslots + plan->noutputs] = b->arena;
        if (capture_graph(d, e, g, b))
            return g;
    }
    kiln_cuda_graph_free(g);
    return NULL;
}

/* Graphs lie in the device's memory, and making one may load kernels. */
static kiln_cuda_graph *make_counted_graph(kiln_cuda_device *d, kiln_cuda_exec *e, const kiln_binding *b)
{
    uint64_t memory = kiln_cuda_watch(d);
    kiln_cuda_graph *g = make_graph(d, e, b);
    kiln_cuda_watched(d, memory);
    return g;
}

/* A graph that was captured before the last generated kernels were ready is made anew. */
static kiln_cuda_graph *find_graph(kiln_cuda_device *d, kiln_cuda_exec *e, const kiln_binding *b)
{
    for (int i = 0; i < KILN_CUDA_GRAPHS; i++) {
        kiln_cuda_graph *g = &e->graphs[i];
        if (!g->exec || !same_addresses(g, e->plan, b))
            continue;
        if (g->generation == kiln_cuda_codegen_generation(d) && g->compiling == kiln_cuda_worth_compiling(e))
            return g;
        if (!kiln_cuda_ok(d, cudaStreamSynchronize(d->run_stream), "a step failed")) /* it may be running */
            return NULL;
        g->used = 0;
        break;
    }
    return make_counted_graph(d, e, b);
}

bool kiln_cuda_graph_launch(kiln_cuda_device *d, kiln_cuda_exec *e, const kiln_binding *b, uint64_t run)
{
    kiln_cuda_graph *g = find_graph(d, e, b);
    if (!g)
        return false;
    g->used = ++e->clock;
    kiln_cuda_header header;
    void *arguments[] = {&header};
    struct cudaKernelNodeParams node = header_node(arguments);
    for (int i = 0; i < e->nheaders; i++) {
        fill_header(&header, d, e, i, b->scalars, run);
        if (!kiln_cuda_ok(d, cudaGraphExecKernelNodeSetParams(g->exec, g->headers[i], &node), "scalars cannot be set"))
            return false;
    }
    return kiln_cuda_ok(d, cudaGraphLaunch(g->exec, d->run_stream), "a step cannot be launched");
}
