/* Runs that are given and not launched yet. */
#include "device/cuda/pending.h"

/* The last n that were given will never run. */
static void fail_last(kiln_cuda_device *d, int n)
{
    for (; n > 0; n--) {
        kiln_run *run = d->flights[--d->nflights].run;
        atomic_store(&run->failed, true);
        kiln_run_unref(run);
        d->runs--;
    }
}

void kiln_cuda_abandon(kiln_cuda_device *d)
{
    if (!d->pending)
        return;
    fail_last(d, d->pending->batch.runs);
    kiln_cuda_batch_clear(&d->pending->batch);
    d->pending = NULL;
}

bool kiln_cuda_flush(kiln_cuda_device *d)
{
    kiln_cuda_chain *chain = d->pending;
    int runs = chain ? chain->batch.runs : 0;
    d->pending = NULL;
    if (!chain || kiln_cuda_chain_launch(d, chain, d->pending_kernel, d->runs - (uint64_t)runs + 1))
        return true;
    fail_last(d, runs);
    return false;
}

bool kiln_cuda_flush_due(kiln_cuda_device *d)
{
    const kiln_cuda_batch *b = d->pending ? &d->pending->batch : NULL;
    return !b || !kiln_cuda_batch_due(b, d->runs - (uint64_t)b->runs, d->record->done) || kiln_cuda_flush(d);
}

/* An empty batch has room for any run. */
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
