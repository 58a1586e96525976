/* Plans on CUDA: a plan becomes a graph for each set of addresses it is run with (few: parameters stay where they are,
 * batches alternate between a few buffers). Running is one launch of a graph whose first node brings the run's number
 * and scalars. */
#include "device/cuda/exec.h"
#include "device/cuda/codegen.h"
#include <stdio.h>
#include <string.h>
#include "core/alloc.h"
#include "core/fail.h"

/* ---- Kernels by operation ---- */

static const kiln_cuda_kernel *const tables[] = {
    kiln_cuda_kernels_rows,   kiln_cuda_kernels_index,  kiln_cuda_kernels_sort, kiln_cuda_kernels_pool,
    kiln_cuda_kernels_resize, kiln_cuda_kernels_random, kiln_cuda_kernels_conv, kiln_cuda_kernels_attention,
    kiln_cuda_kernels_lstm,   kiln_cuda_kernels_samples};

static const kiln_cuda_kernel *find_kernel(const kiln_op *op, kiln_dtype dtype)
{
    for (size_t t = 0; t < sizeof tables / sizeof *tables; t++)
        for (const kiln_cuda_kernel *k = tables[t]; k->op; k++)
            if (strcmp(k->op, op->name) == 0 && k->dtypes >> dtype & 1)
                return k;
    return NULL;
}

bool kiln_cuda_supports(void *dev, const kiln_op *op, kiln_dtype dtype)
{
    (void)dev;
    switch (op->cls) {
    case KILN_CLASS_VIEW:
    case KILN_CLASS_POINTWISE:
    case KILN_CLASS_REDUCE: return true;
    case KILN_CLASS_MATMUL: return kiln_dtype_is_float(dtype);
    default: return find_kernel(op, dtype) != NULL;
    }
}

static kiln_dtype first_dtype(const kiln_kernel *k)
{
    return (kiln_dtype)(k->nin && k->in[0].buffer >= 0 ? k->in[0].dtype : k->out[0].dtype);
}

/* ---- Calls ---- */

static kiln_cuda_operand plain_operand(const kiln_cuda_call *c, const kiln_operand *o)
{
    kiln_cuda_operand p = {0};
    if (o->buffer < 0)
        return p;
    p.dtype = (kiln_dtype)o->dtype;
    p.ndim = o->ndim;
    p.shape = o->shape;
    p.stride = o->stride;
    if (c->binding)
        p.data = kiln_cuda_address(c, o);
    return p;
}

static bool in_slot(const kiln_plan *plan, const kiln_operand *o)
{
    return o->buffer >= 0 && plan->buffers[o->buffer].place == KILN_IN_SLOT;
}

static bool writes_slot(const kiln_plan *plan, const kiln_kernel *k)
{
    for (int j = 0; j < k->nout; j++)
        if (in_slot(plan, &k->out[j]))
            return true;
    for (int s = 0; k->group && s < k->group->nstores; s++)
        if (in_slot(plan, &k->group->stores[s].to))
            return true;
    return k->group && k->group->reduces && in_slot(plan, &k->group->reduce_to);
}

/* Without addresses when there is no binding. */
static void make_call(kiln_cuda_call *c, kiln_cuda_device *d, const kiln_plan *plan, const kiln_kernel *k,
                      const kiln_binding *binding, double *scalars)
{
    *c = (kiln_cuda_call){.device = d,
                          .stream = d->stream,
                          .name = k->op ? k->op->name : "a fused group",
                          .kernel = k,
                          .nin = k->nin,
                          .nout = k->nout,
                          .ints = k->ints,
                          .nints = k->nints,
                          .nfloats = k->nscalars,
                          .multiprocessors = d->multiprocessors,
                          .plan = plan,
                          .binding = binding};
    c->scalars = scalars;
    c->floats = scalars ? scalars + k->scalars : NULL;
    for (int i = 0; i < k->nin; i++)
        c->in[i] = plain_operand(c, &k->in[i]);
    for (int j = 0; j < k->nout; j++)
        c->out[j] = plain_operand(c, &k->out[j]);
    if (!binding)
        return;
    if (k->workspace >= 0)
        c->workspace = (void *)(uintptr_t)kiln_buffer_address(plan, binding, k->workspace);
    c->fault = (kiln_cuda_fault){d->state, d->mapped, (int32_t)(k - plan->kernels)};
    c->stop = writes_slot(plan, k) ? &d->state->stop : NULL;
}

size_t kiln_cuda_workspace(void *dev, const kiln_kernel *k)
{
    kiln_cuda_call c;
    make_call(&c, dev, NULL, k, NULL, NULL);
    if (k->op && k->op->cls == KILN_CLASS_MATMUL)
        return kiln_cuda_matmul_workspace(&c);
    if (k->group)
        return kiln_cuda_group_workspace(dev, k->group);
    const kiln_cuda_kernel *kernel = find_kernel(k->op, first_dtype(k));
    return kernel && kernel->workspace ? kernel->workspace(&c) : 0;
}

bool kiln_cuda_launched(const kiln_cuda_call *c)
{
    cudaError_t e = cudaGetLastError();
    return e == cudaSuccess || kiln_fail(KILN_E_LOST, c->name, "cuda:%d: launching %s failed: %s", c->device->index,
                                         c->name, cudaGetErrorString(e));
}

static bool launch(kiln_cuda_device *d, const kiln_plan *plan, const kiln_kernel *k, const kiln_binding *binding,
                   double *scalars)
{
    kiln_cuda_call c;
    make_call(&c, d, plan, k, binding, scalars);
    if (k->op && k->op->cls == KILN_CLASS_MATMUL)
        return kiln_cuda_matmul_launch(&c);
    if (k->group)
        return kiln_cuda_group_launch(&c, k->group, NULL);
    const kiln_cuda_kernel *kernel = find_kernel(k->op, first_dtype(k));
    if (!kernel)
        return kiln_fail(KILN_E_UNSUPPORTED, k->op->name, "cuda has no kernel for %s in %s", k->op->name,
                         kiln_dtype_name(first_dtype(k)));
    return kernel->launch(&c);
}

/* ---- Graphs ---- */

enum { GRAPHS = 8 };

typedef struct graph {       /* of one set of addresses */
    kiln_address *addresses; /* slots, outputs, arena */
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaGraphNode_t *headers;
    uint64_t generation; /* which generated kernels were there when it was captured */
    uint64_t used;
} graph;

typedef struct exec {
    const kiln_plan *plan;
    double *scalars; /* on the device */
    int nheaders;
    graph graphs[GRAPHS];
    uint64_t clock;
} exec;

static int64_t naddresses(const kiln_plan *plan)
{
    return (int64_t)plan->nslots + plan->noutputs + 1;
}

static bool same_addresses(const graph *g, const kiln_plan *plan, const kiln_binding *b)
{
    return !memcmp(g->addresses, b->slots, (size_t)plan->nslots * sizeof *b->slots) &&
           !memcmp(g->addresses + plan->nslots, b->outputs, (size_t)plan->noutputs * sizeof *b->outputs) &&
           g->addresses[plan->nslots + plan->noutputs] == b->arena;
}

static void forget(graph *g)
{
    if (g->exec)
        cudaGraphExecDestroy(g->exec);
    if (g->graph)
        cudaGraphDestroy(g->graph);
    kiln_free(g->addresses);
    kiln_free(g->headers);
    *g = (graph){0};
}

static void fill_header(kiln_cuda_header *h, const kiln_cuda_device *d, const exec *e, int number,
                        const double *scalars, uint64_t run)
{
    h->state = d->state;
    h->record = d->mapped;
    h->scalars = e->scalars;
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

/* Writes the whole plan on the stream while it is captured behind the header nodes. */
static bool capture(kiln_cuda_device *d, exec *e, graph *g, const kiln_binding *b)
{
    kiln_cuda_header header;
    void *arguments[] = {&header};
    struct cudaKernelNodeParams node = header_node(arguments);
    if (!kiln_cuda_ok(d, cudaGraphCreate(&g->graph, 0), "no graph"))
        return false;
    for (int i = 0; i < e->nheaders; i++) {
        fill_header(&header, d, e, i, b->scalars, 0);
        if (!kiln_cuda_ok(d, cudaGraphAddKernelNode(&g->headers[i], g->graph, NULL, 0, &node), "no graph node"))
            return false;
    }
    if (!kiln_cuda_ok(d,
                      cudaStreamBeginCaptureToGraph(d->stream, g->graph, g->headers, NULL, (size_t)e->nheaders,
                                                    cudaStreamCaptureModeThreadLocal),
                      "capturing a step did not begin"))
        return false;
    bool ok = true;
    for (int64_t i = 0; ok && i < e->plan->nkernels; i++)
        ok = launch(d, e->plan, &e->plan->kernels[i], b, e->scalars);
    cudaGraph_t captured = NULL;
    cudaError_t ended = cudaStreamEndCapture(d->stream, &captured);
    return ok && kiln_cuda_ok(d, ended, "capturing a step failed") &&
           kiln_cuda_ok(d, cudaGraphInstantiate(&g->exec, g->graph, 0), "a step's graph cannot be made");
}

static graph *make_graph(kiln_cuda_device *d, exec *e, const kiln_binding *b)
{
    const kiln_plan *plan = e->plan;
    graph *g = &e->graphs[0];
    for (int i = 1; i < GRAPHS; i++) /* a free one, or the one that was not used for longest */
        if (e->graphs[i].used < g->used)
            g = &e->graphs[i];
    forget(g);
    g->generation = kiln_cuda_codegen_generation(d);
    g->addresses = kiln_alloc((size_t)naddresses(plan), sizeof *g->addresses);
    g->headers = kiln_alloc((size_t)e->nheaders, sizeof *g->headers);
    if (g->addresses && g->headers) {
        memcpy(g->addresses, b->slots, (size_t)plan->nslots * sizeof *b->slots);
        memcpy(g->addresses + plan->nslots, b->outputs, (size_t)plan->noutputs * sizeof *b->outputs);
        g->addresses[plan->nslots + plan->noutputs] = b->arena;
        if (capture(d, e, g, b))
            return g;
    }
    forget(g);
    return NULL;
}

/* A graph that was captured before the last generated kernels were ready is made anew. */
static graph *find_graph(kiln_cuda_device *d, exec *e, const kiln_binding *b)
{
    for (int i = 0; i < GRAPHS; i++) {
        graph *g = &e->graphs[i];
        if (!g->exec || !same_addresses(g, e->plan, b))
            continue;
        if (g->generation == kiln_cuda_codegen_generation(d))
            return g;
        if (!kiln_cuda_ok(d, cudaStreamSynchronize(d->stream), "a step failed")) /* it may be running */
            return NULL;
        g->used = 0;
        break;
    }
    return make_graph(d, e, b);
}

/* ---- Lowering ---- */

void kiln_cuda_dispose(void *dev, void *p)
{
    kiln_cuda_device *d = dev;
    exec *e = p;
    if (cudaSetDevice(d->index) == cudaSuccess) {
        cudaStreamSynchronize(d->stream); /* a graph must not go while it runs */
        pthread_mutex_lock(&d->lock);
        for (int64_t i = 0; i < d->nflights; i++)
            if (d->flights[i].plan == e->plan)
                d->flights[i].plan = NULL;
        pthread_mutex_unlock(&d->lock);
        for (int i = 0; i < GRAPHS; i++)
            forget(&e->graphs[i]);
        cudaFree(e->scalars);
    }
    kiln_free(e);
}

void *kiln_cuda_lower(void *dev, const kiln_plan *plan)
{
    kiln_cuda_device *d = dev;
    exec *e = kiln_cuda_enter(d) ? kiln_alloc_zero(1, sizeof *e) : NULL;
    if (!e)
        return NULL;
    e->plan = plan;
    e->nheaders = plan->nscalars > 0 ? (plan->nscalars + KILN_CUDA_HEADER - 1) / KILN_CUDA_HEADER : 1;
    size_t bytes = (size_t)(plan->nscalars > 0 ? plan->nscalars : 1) * sizeof(double);
    if (kiln_cuda_ok(d, cudaMalloc((void **)&e->scalars, bytes), "no memory for a step's scalars"))
        return e;
    kiln_cuda_dispose(d, e);
    return NULL;
}

/* ---- Running ---- */

static void let_go(kiln_cuda_device *d, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        kiln_run_unref(d->flights[i].run);
    memmove(d->flights, d->flights + n, (size_t)(d->nflights - n) * sizeof *d->flights);
    d->nflights -= n;
}

bool kiln_cuda_settle(kiln_cuda_device *d)
{
    pthread_mutex_lock(&d->lock);
    uint64_t failed = d->record->run;
    kiln_bad_index bad = {d->record->kernel, d->record->index, d->record->limit};
    const kiln_plan *plan = NULL;
    for (int64_t i = 0; failed && i < d->nflights; i++) {
        if (d->flights[i].number == failed)
            plan = d->flights[i].plan;
        if (d->flights[i].number >= failed)
            atomic_store(&d->flights[i].run->failed, true);
    }
    if (failed) {
        memset((void *)d->record, 0, sizeof *d->record);
        cudaMemsetAsync(d->state, 0, sizeof *d->state, d->stream);
    }
    let_go(d, d->nflights);
    pthread_mutex_unlock(&d->lock);
    if (!failed)
        return true;
    if (plan)
        return kiln_fail_bad_index(plan, &bad);
    return kiln_fail(KILN_E_INDEX, NULL, "index %lld is out of range: it must be at least 0 and below %lld",
                     (long long)bad.index, (long long)bad.limit);
}

/* With the lock held. */
static bool launch_graph(kiln_cuda_device *d, exec *e, const kiln_binding *b)
{
    graph *g = find_graph(d, e, b);
    if (!g)
        return false;
    g->used = ++e->clock;
    kiln_cuda_header header;
    void *arguments[] = {&header};
    struct cudaKernelNodeParams node = header_node(arguments);
    for (int i = 0; i < e->nheaders; i++) {
        fill_header(&header, d, e, i, b->scalars, d->runs + 1);
        if (!kiln_cuda_ok(d, cudaGraphExecKernelNodeSetParams(g->exec, g->headers[i], &node), "scalars cannot be set"))
            return false;
    }
    return kiln_cuda_ok(d, cudaGraphLaunch(g->exec, d->stream), "a step cannot be launched");
}

bool kiln_cuda_run(void *dev, void *p, const kiln_binding *b)
{
    kiln_cuda_device *d = dev;
    exec *e = p;
    if (!kiln_cuda_enter(d))
        return false;
    pthread_mutex_lock(&d->lock);
    int64_t over = 0;
    while (over < d->nflights && !d->record->run && d->flights[over].number <= d->record->done)
        over++;
    let_go(d, over);
    bool ok = KILN_GROW(d->flights, d->flights_capacity, d->nflights + 1) && launch_graph(d, e, b);
    if (ok) {
        kiln_run_ref(b->run);
        d->flights[d->nflights++] = (kiln_cuda_flight){++d->runs, b->run, e->plan};
    }
    pthread_mutex_unlock(&d->lock);
    return ok;
}
