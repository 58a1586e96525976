/* What has become of runs: those that are over are let go of, and one that met a bad index is dealt with once
 * everything that was given is over. */
#include <string.h>
#include "device/cuda/launch/exec.h"

kiln_witness *kiln_cuda_witness(const kiln_cuda_device *d)
{
    enum { DEVICES = 16 }; /* that the core knows numbers for */
    static _Thread_local kiln_witness witnesses[DEVICES];
    return &witnesses[d->index % DEVICES];
}

/* ---- Flights ---- */

static void let_go(kiln_cuda_device *d, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        kiln_run_unref(d->flights[i].run);
    memmove(d->flights, d->flights + n, (size_t)(d->nflights - n) * sizeof *d->flights);
    d->nflights -= n;
}

void kiln_cuda_let_go_of_finished(kiln_cuda_device *d)
{
    uint64_t done = d->record->done, first = d->nflights ? d->flights[0].number : UINT64_MAX;
    int64_t over = done >= first && !d->record->run ? (int64_t)(done - first) + 1 : 0;
    if (over > 0 && over >= d->nflights / 2)
        let_go(d, over);
}

/* Where the run that has met a bad index is among the flights; none are let go of while there is one. -1: there is
 * none. */
static int64_t faulty_flight(const kiln_cuda_device *d)
{
    uint64_t run = d->record->run;
    for (int64_t i = 0; run && i < d->nflights; i++)
        if (d->flights[i].number >= run)
            return i;
    return -1;
}

uint64_t kiln_cuda_faulty(const kiln_cuda_device *d)
{
    int64_t i = faulty_flight(d);
    return i < 0 ? 0 : d->flights[i].given;
}

void kiln_cuda_flights_failed(kiln_cuda_device *d, int64_t first, uint64_t last, const kiln_error *error)
{
    for (int64_t i = first; i < d->nflights; i++)
        atomic_store(&d->flights[i].run->failed, true);
    kiln_failures_add(&d->failures, d->flights[first].given, last, d->flights[first].thread, error);
}

/* ---- Settling ---- */

/* With nothing under way: the run that met a bad index and all behind it have failed, those that come next begin anew.
 * The words are found here, where the plan cannot be disposed of. */
static void take_fault(kiln_cuda_device *d, cudaStream_t stream)
{
    int64_t i = faulty_flight(d);
    if (i >= 0) {
        const kiln_bad_index bad = {d->record->kernel, d->record->index, d->record->limit};
        kiln_error error = kiln_bad_index_error(d->flights[i].plan, &bad);
        kiln_cuda_flights_failed(d, i, d->given, &error);
    }
    if (d->record->run) {
        memset((void *)d->record, 0, sizeof *d->record);
        cudaMemsetAsync(d->status, 0, sizeof *d->status, stream);
    }
    d->record->done = d->runs;
}

bool kiln_cuda_wait_for_all(kiln_cuda_device *d)
{
    cudaStream_t stream = kiln_cuda_stream(d);
    if (!stream || !kiln_cuda_ok(d, cudaStreamSynchronize(stream), "a step failed"))
        return false;
    take_fault(d, stream);
    let_go(d, d->nflights);
    return true;
}

bool kiln_cuda_drain(kiln_cuda_device *d)
{
    pthread_mutex_lock(&d->lock);
    bool ok = kiln_cuda_wait_for_all(d) && kiln_failures_tell(&d->failures, kiln_cuda_witness(d), UINT64_MAX);
    pthread_mutex_unlock(&d->lock);
    return ok;
}
