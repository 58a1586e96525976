/* Runs that are given and not launched yet. */
#include "device/cuda/launch/pending.h"
#include <stdio.h>
#include "core/clock.h"
#include "core/fail.h"
#include "device/cuda/launch/exec.h"

/* The last n that were given will never run, and leave their numbers to others. */
static void fail_last(kiln_cuda_device *d, int n, const kiln_error *error)
{
    if (n > 0)
        kiln_cuda_flights_failed(d, d->nflights - n, d->flights[d->nflights - 1].given, error);
    for (; n > 0; n--) {
        kiln_run_unref(d->flights[--d->nflights].run);
        d->runs--;
    }
}

void kiln_cuda_abandon(kiln_cuda_device *d)
{
    if (!d->pending)
        return;
    kiln_error error = {.code = KILN_E_LOST};
    snprintf(error.message, sizeof error.message, "cuda:%d was lost before a step could be launched", d->index);
    fail_last(d, d->pending->multirun.runs, &error);
    kiln_cuda_multirun_clear(&d->pending->multirun);
    d->pending = NULL;
}

/* Why runs that were given before could not be launched. Want of memory would invite the caller to try again, and what
 * is lost with it would be forgotten. */
static kiln_error why_lost(const kiln_cuda_device *d, bool raised)
{
    kiln_error error = {.code = KILN_E_DEVICE};
    snprintf(error.message, sizeof error.message, "cuda:%d: a step could not be launched", d->index);
    if (raised)
        error = *kiln_last_error();
    error.code = error.code == KILN_E_MEMORY ? KILN_E_DEVICE : error.code;
    return error;
}

/* The last `mine` of them are being given just now: if they are not launched they were never given. Whoever launches
 * runs is told here why that failed, also if they are another thread's; the others are told later. */
static bool launch_pending(kiln_cuda_device *d, int mine)
{
    kiln_cuda_chain *chain = d->pending;
    int runs = chain ? chain->multirun.runs : 0;
    bool was_ok = kiln_ok();
    uint64_t failures = kiln_fail_count();
    d->pending = NULL;
    if (!chain || kiln_cuda_chain_launch(d, chain, d->pending_kernel, d->runs - (uint64_t)runs + 1))
        return true;
    for (int i = 0; i < mine; i++) {
        kiln_run_unref(d->flights[--d->nflights].run);
        d->runs--;
    }
    if (runs == mine)
        return false;
    kiln_error error = why_lost(d, was_ok);
    fail_last(d, runs - mine, &error);
    kiln_failures_told(&d->failures, kiln_cuda_witness(d));
    if (was_ok)
        kiln_fail_forget(failures);
    return kiln_fail_again(&error);
}

bool kiln_cuda_flush(kiln_cuda_device *d)
{
    d->pace.lonely = 0;
    return launch_pending(d, 0);
}

bool kiln_cuda_flush_due(kiln_cuda_device *d)
{
    kiln_cuda_multirun *b = d->pending ? &d->pending->multirun : NULL;
    return !b || !kiln_cuda_multirun_due(b, &d->pace, d->runs - (uint64_t)b->runs, d->record->done, kiln_seconds()) ||
           launch_pending(d, 1);
}

/* An empty multirun has room for any run. */
bool kiln_cuda_pend(kiln_cuda_device *d, kiln_cuda_chain *chain, const void *kernel, const kiln_binding *b)
{
    bool joins = (!d->pending || d->pending == chain) && kiln_cuda_chain_add(chain, b, NULL);
    if (!joins && !(kiln_cuda_flush(d) && kiln_cuda_chain_add(chain, b, NULL)))
        return false;
    d->pending = chain;
    d->pending_kernel = kernel;
    return true;
}

cudaStream_t kiln_cuda_stream(kiln_cuda_device *d)
{
    return kiln_cuda_flush(d) ? d->run_stream : NULL;
}
