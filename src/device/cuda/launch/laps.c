/* Events around launches: see laps.h.
 *
 * Between two events lies whatever the stream waited for, and a device that is quicker than the host waits for the next
 * launch. So launches are given in batches, behind a kernel that does nothing for as long as that takes. It is no
 * longer than that: should the host be late, times are too long, and nothing else. */
#include "device/cuda/launch/laps.h"
#include "core/alloc.h"
#include "device/cuda/launch/delay.h"

enum {
    BATCH = 128,  /* launches; a stream takes about a thousand before the host has to wait */
    DELAY_US = 10 /* for each of them: what a launch and an event cost the host, and some more */
};

bool kiln_cuda_laps_open(kiln_cuda_device *d, kiln_cuda_laps *laps, kiln_timing *timing, int64_t launches)
{
    int64_t wanted = launches + launches / BATCH + 1;
    *laps = (kiln_cuda_laps){.timing = timing, .events = kiln_alloc((size_t)wanted, sizeof *laps->events)};
    bool ok = laps->events != NULL;
    for (; ok && laps->room < wanted; laps->room += ok)
        ok = kiln_cuda_ok(d, cudaEventCreate(&laps->events[laps->room]), "no event");
    if (!ok)
        kiln_cuda_laps_close(laps);
    return ok;
}

void kiln_cuda_laps_close(kiln_cuda_laps *laps)
{
    while (laps->room > 0)
        cudaEventDestroy(laps->events[--laps->room]);
    kiln_free(laps->events);
    laps->events = NULL;
}

static bool mark(kiln_cuda_device *d, kiln_cuda_laps *laps)
{
    return kiln_cuda_ok(d, cudaEventRecord(laps->events[laps->nevents++], d->run_stream), "a launch cannot be timed");
}

bool kiln_cuda_lap_begins(kiln_cuda_device *d, kiln_cuda_laps *laps)
{
    if (!laps || laps->timing->count % BATCH)
        return true; /* where the last one ended */
    return kiln_cuda_ok(d, kiln_cuda_delay_launch(d->run_stream, BATCH * DELAY_US), "a launch cannot be timed") &&
           mark(d, laps);
}

bool kiln_cuda_lap_ends(kiln_cuda_device *d, kiln_cuda_laps *laps, int32_t first, int32_t end)
{
    if (!laps)
        return true;
    laps->timing->launches[laps->timing->count++] = (kiln_launch_time){.first = first, .end = end};
    return mark(d, laps);
}

/* The number in `given` of kernel k of `plan`, which is `from` or later: kernels were left out, none was moved. */
static int32_t number_in(const kiln_plan *given, int32_t from, const kiln_kernel *k)
{
    while (from + 1 < given->nkernels &&
           (given->kernels[from].node != k->node || given->kernels[from].group != k->group))
        from++;
    return from;
}

bool kiln_cuda_laps_read(kiln_cuda_device *d, kiln_cuda_laps *laps, const kiln_plan *plan, const kiln_plan *given)
{
    if (laps->nevents && !kiln_cuda_ok(d, cudaEventSynchronize(laps->events[laps->nevents - 1]), "a step failed"))
        return false;
    for (int64_t i = 0; i < laps->timing->count; i++) {
        kiln_launch_time *l = &laps->timing->launches[i];
        const cudaEvent_t *begin = &laps->events[i + i / BATCH];
        float ms = 0;
        if (!kiln_cuda_ok(d, cudaEventElapsedTime(&ms, begin[0], begin[1]), "a launch was not timed"))
            return false;
        l->microseconds = 1e3 * (double)ms;
        const kiln_kernel *last = &plan->kernels[l->end - 1];
        l->first = number_in(given, l->first, &plan->kernels[l->first]);
        l->end = number_in(given, l->first, last) + 1;
    }
    return true;
}
