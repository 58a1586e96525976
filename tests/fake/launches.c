/* CUDA as far as steps that are one launch need it, without a GPU: the calls below stand for the runtime's (the linker
 * puts them in their place), and launches are compared with what runs were given. A run begins when a test says so, or
 * when the stream is waited for; it computes nothing. */
#define KILN_FAKE_PLUGIN
#include "launches.h"
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "core/alloc.h"

enum { RUNS = 256 }; /* that can be under way */

typedef struct expectation { /* what a run was given */
    uint64_t *data;
    double *scalars;
} expectation;

static kiln_cuda_device *device;
static expectation expected[RUNS]; /* by number */
static uint64_t launched, begun;   /* the last numbers */
static int launches, runs, wrong, gathered_ahead, most_runs, single_launches, delays;
static int failing;
static atomic_int gives_way; /* microseconds */

int fake_launches(void)
{
    return launches;
}

int fake_runs(void)
{
    return runs;
}

int fake_most_runs(void)
{
    return most_runs;
}

int fake_runs_given(void)
{
    return (int)device->runs;
}

int fake_gathered_ahead(void)
{
    return gathered_ahead;
}

int fake_single_launches(void)
{
    return single_launches;
}

int fake_delays(void)
{
    return delays;
}

int fake_wrong(void)
{
    return wrong;
}

int fake_begin(int n)
{
    for (; n > 0 && begun < launched; n--)
        device->record->done = begun++;
    return (int)(launched - begun);
}

int fake_fault(int run)
{
    device->record->kernel = 0;
    device->record->index = 99;
    device->record->limit = 10;
    device->record->run = (unsigned long long)run;
    return run;
}

int fake_fail_launches(int fail)
{
    return failing = fail;
}

int fake_share(int shared)
{
    return device->shared = shared;
}

int fake_give_way(int us)
{
    return gives_way = us;
}

/* ---- Runs as they were given ---- */

static bool note(const kiln_cuda_exec *e, const kiln_binding *b, expectation *x)
{
    const kiln_cuda_chain *c = e->parts[0].chain;
    x->data = kiln_alloc((size_t)c->nplaces + 1, sizeof *x->data);
    x->scalars = kiln_alloc((size_t)e->plan->nscalars + 1, sizeof *x->scalars);
    if (!x->data || !x->scalars)
        return false;
    for (int64_t i = 0; i < c->nplaces; i++) {
        const kiln_cuda_pointer *p = &c->pointers[c->firsts[i]];
        uint64_t at = p->own ? (uint64_t)p->own - 1 : p->buffer < 0 ? 0 : kiln_buffer_address(e->plan, b, p->buffer);
        x->data[i] = p->buffer < 0 ? 0 : at + (uint64_t)p->bytes;
    }
    memcpy(x->scalars, b->scalars, (size_t)e->plan->nscalars * sizeof *x->scalars);
    return true;
}

static void forget(expectation *x)
{
    kiln_free(x->data);
    kiln_free(x->scalars);
    *x = (expectation){0};
}

/* Whether the plan is one chain, which can be launched. */
static bool is_chain(const kiln_cuda_exec *e)
{
    return e->nparts == 1 && e->parts[0].end - e->parts[0].first >= 2;
}

/* Chains are made with the first run, which a graph would do. */
static bool make_ready(kiln_cuda_device *d, kiln_cuda_exec *e, const kiln_binding *b)
{
    kiln_cuda_part *p = &e->parts[0];
    kiln_cuda_call c;
    kiln_cuda_make_call(&c, d, e->plan, &e->plan->kernels[0], b, e->scalars);
    if (!p->chain && !(p->chain = kiln_cuda_chain_new(&c, &e->waits, p->first, p->end, e->barriers)))
        return false;
    expectation *x = &expected[(d->runs + 1) % RUNS];
    forget(x);
    if (!e->batches && p->chain->own_bytes && !(e->batches = kiln_alloc_zero(2, p->chain->own_bytes)))
        return false;
    p->chain->own = (kiln_address)(uintptr_t)e->batches;
    e->whole = e; /* what launches know it by */
    return note(e, b, x);
}

/* Anything else would be a graph: here that does nothing. */
bool fake_run(kiln_cuda_device *d, kiln_cuda_exec *e, const kiln_binding *b)
{
    return is_chain(e) ? make_ready(d, e, b) && kiln_cuda_run(d, e, b) : kiln_cuda_stream(d) != NULL;
}

/* As a run, this one has a number too, and has been launched. */
bool fake_time(kiln_cuda_device *d, kiln_cuda_exec *e, const kiln_binding *b, kiln_timing *timing)
{
    bool ok = (!is_chain(e) || make_ready(d, e, b)) && kiln_cuda_time(d, e, b, timing);
    launched += ok;
    return ok;
}

/* ---- Launches ---- */

static bool is_word(const kiln_cuda_word *w, uint64_t bits, double x)
{
    float narrow = (float)x;
    uint64_t want = 0;
    if (w->cls == KILN_PW_F64 || w->as_index)
        memcpy(&want, &x, sizeof x);
    else if (w->cls == KILN_PW_F32)
        memcpy(&want, &narrow, sizeof narrow);
    else
        return true;
    return bits == want;
}

/* Run i of the launch, as the kernel finds it. */
static bool is_as_given(const kiln_cuda_chain *chain, const unsigned char *parameters, int i, const expectation *x)
{
    const kiln_cuda_multirun *b = &chain->multirun;
    const uint64_t *data = (const uint64_t *)(const void *)(parameters + sizeof(kiln_cuda_chain_parameters));
    const uint64_t *words = data + b->most_sets * b->npointers;
    const uint8_t *sets = (const uint8_t *)(words + b->most * b->nwords);
    bool ok = x->data != NULL;
    for (int64_t p = 0; ok && p < b->npointers; p++) {
        uint64_t own = chain->own + (chain->ran + (uint64_t)i) % 2 * chain->own_bytes;
        ok = data[sets[i] * b->npointers + p] == x->data[p] + (chain->pointers[chain->firsts[p]].own ? own : 0);
    }
    for (int64_t w = 0; ok && w < b->nwords; w++)
        ok = is_word(&chain->words[w], words[i * b->nwords + w], x->scalars[chain->words[w].scalar]);
    return ok;
}

/* As the kernel comes to them, one by one. */
static unsigned barriers_of(const kiln_cuda_chain *chain, unsigned in_launch)
{
    unsigned n = 0;
    for (unsigned run = 0; run < in_launch; run++)
        for (int wave = chain->prefetch && run ? 1 : 0; wave < chain->nwaves; wave++)
            n += wave + 1 < chain->nwaves || run + 1 < in_launch;
    return n;
}

static void launch(const cudaLaunchConfig_t *how, const kiln_cuda_chain *chain, const unsigned char *parameters)
{
    kiln_cuda_chain_parameters walk;
    memcpy(&walk, parameters, sizeof walk);
    wrong += walk.run != launched + 1 || walk.runs < 1 || walk.runs > KILN_CUDA_MOST_RUNS;
    wrong += walk.base != *walk.barrier;
    wrong += how->numAttrs != 1 || (how->attrs->id == cudaLaunchAttributeCooperative) != device->shared;
    *walk.barrier += barriers_of(chain, (unsigned)walk.runs) * how->gridDim.x;
    gathered_ahead += chain->prefetch && walk.runs > 1;
    for (unsigned i = 0; i < walk.runs; i++)
        wrong += !is_as_given(chain, parameters, (int)i, &expected[(walk.run + i) % RUNS]);
    launches++;
    most_runs = chain->multirun.most;
    runs += (int)walk.runs;
    launched = walk.run + walk.runs - 1;
}

/* ---- The runtime ---- */

cudaError_t __wrap_cudaLaunchKernelExC(const cudaLaunchConfig_t *how, const void *kernel, void **arguments);
cudaError_t __wrap_cudaLaunchKernelExC(const cudaLaunchConfig_t *how, const void *kernel, void **arguments)
{
    if (failing == 2) { /* once */
        failing = 0;
        return cudaErrorMemoryAllocation;
    }
    if (failing)
        return cudaErrorLaunchOutOfResources;
    launch(how, ((const kiln_cuda_exec *)kernel)->parts[0].chain, arguments[0]);
    return cudaSuccess;
}

/* The clock that events are on: each kernel that is launched by itself takes a millisecond, a delay an hour. */
static double clock_ms;

bool __wrap_kiln_cuda_launch(const kiln_cuda_call *c);
bool __wrap_kiln_cuda_launch(const kiln_cuda_call *c)
{
    single_launches++;
    clock_ms++;
    return kiln_cuda_ok(c->device, failing ? cudaErrorLaunchOutOfResources : cudaSuccess, "launching failed");
}

cudaError_t __wrap_kiln_cuda_delay_launch(cudaStream_t stream, unsigned microseconds);
cudaError_t __wrap_kiln_cuda_delay_launch(cudaStream_t stream, unsigned microseconds)
{
    wrong += stream != device->run_stream || !microseconds;
    delays++;
    clock_ms += 3.6e6;
    return cudaSuccess;
}

/* Chains find their barriers at 0. */
cudaError_t __wrap_kiln_cuda_prologue_launch(cudaStream_t stream, const kiln_cuda_prologue *h, const double *values);
cudaError_t __wrap_kiln_cuda_prologue_launch(cudaStream_t stream, const kiln_cuda_prologue *h, const double *values)
{
    (void)values;
    wrong += stream != device->run_stream || h->run != launched + 1;
    for (int32_t i = 0; i < h->nbarriers; i++)
        h->barriers[i] = 0;
    return cudaSuccess;
}

cudaError_t __wrap_cudaEventCreate(cudaEvent_t *event);
cudaError_t __wrap_cudaEventCreate(cudaEvent_t *event)
{
    *event = kiln_alloc_zero(1, sizeof(double));
    return *event ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t __wrap_cudaEventDestroy(cudaEvent_t event);
cudaError_t __wrap_cudaEventDestroy(cudaEvent_t event)
{
    kiln_free(event);
    return cudaSuccess;
}

cudaError_t __wrap_cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t __wrap_cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    wrong += stream != device->run_stream;
    if (event) /* the device's own do not exist */
        *(double *)event = clock_ms;
    return cudaSuccess;
}

cudaError_t __wrap_cudaEventSynchronize(cudaEvent_t event);
cudaError_t __wrap_cudaEventSynchronize(cudaEvent_t event)
{
    (void)event;
    return cudaSuccess;
}

cudaError_t __wrap_cudaEventElapsedTime(float *ms, cudaEvent_t begin, cudaEvent_t end);
cudaError_t __wrap_cudaEventElapsedTime(float *ms, cudaEvent_t begin, cudaEvent_t end)
{
    *ms = (float)(*(double *)end - *(double *)begin);
    return cudaSuccess;
}

cudaError_t __wrap_cudaStreamSynchronize(cudaStream_t stream);
cudaError_t __wrap_cudaStreamSynchronize(cudaStream_t stream)
{
    wrong += stream != device->run_stream;
    fake_begin(RUNS);
    return cudaSuccess;
}

cudaError_t __wrap_cudaMemsetAsync(void *memory, int value, size_t bytes, cudaStream_t stream);
cudaError_t __wrap_cudaMemsetAsync(void *memory, int value, size_t bytes, cudaStream_t stream)
{
    wrong += stream != device->run_stream;
    memset(memory, value, bytes);
    return cudaSuccess;
}

cudaError_t __wrap_cudaMalloc(void **memory, size_t bytes);
cudaError_t __wrap_cudaMalloc(void **memory, size_t bytes)
{
    *memory = kiln_alloc(bytes, 1);
    return *memory ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t __wrap_cudaFree(void *memory);
cudaError_t __wrap_cudaFree(void *memory)
{
    kiln_free(memory);
    return cudaSuccess;
}

cudaError_t __wrap_cudaSetDevice(int index);
cudaError_t __wrap_cudaSetDevice(int index)
{
    (void)index;
    return cudaSuccess;
}

int __real_pthread_mutex_unlock(pthread_mutex_t *lock);
int __wrap_pthread_mutex_unlock(pthread_mutex_t *lock);
int __wrap_pthread_mutex_unlock(pthread_mutex_t *lock)
{
    int result = __real_pthread_mutex_unlock(lock), us = gives_way;
    if (us && lock == &device->lock)
        usleep((useconds_t)us);
    return result;
}

/* memory.c measures what a context takes; there is none. */
uint64_t __wrap_kiln_cuda_watch(kiln_cuda_device *d);
uint64_t __wrap_kiln_cuda_watch(kiln_cuda_device *d)
{
    (void)d;
    return 0;
}

void __wrap_kiln_cuda_watched(kiln_cuda_device *d, uint64_t before);
void __wrap_kiln_cuda_watched(kiln_cuda_device *d, uint64_t before)
{
    (void)d;
    (void)before;
}

/* ---- The device ---- */

bool fake_open(kiln_cuda_device *d)
{
    device = d;
    d->run_stream = (cudaStream_t)d; /* any address does */
    d->status = kiln_alloc_zero(1, sizeof *d->status);
    d->record = kiln_alloc_zero(1, sizeof *d->record);
    d->mapped = d->record;
    pthread_mutex_init(&d->lock, NULL);
    return d->status && d->record;
}

void fake_close(kiln_cuda_device *d)
{
    for (int i = 0; i < RUNS; i++)
        forget(&expected[i]);
    pthread_mutex_destroy(&d->lock);
    kiln_free(d->status);
    kiln_free((void *)d->record);
    kiln_free(d->flights);
}
