/* Counting steps. A step is a transaction: when it is discarded, it never happened, and neither its number nor the bias
 * corrections that follow from it may go on. An optimizer is not told; it looks. Each step leaves a receipt: an empty
 * tensor that the same segment makes. Once that has a value, the step took place; if it never gets one, or the run that
 * was to make it failed, the step did not. On devices that run while the host goes on, steps are taken as done until
 * their run is known to have failed. That is soon enough: what is given to a device between a failure and its
 * discovery is skipped by it. */
#include <string.h>
#include "core/alloc.h"
#include "core/fail.h"
#include "optim/optim.h"
#include "tensor/scope.h"

/* So many unsettled receipts, and the optimizer waits for the device once instead of keeping more. */
enum { PATIENCE = 1024 };

typedef enum fate { UNKNOWN, TAKEN, DISCARDED } fate;

static fate fate_of(const kiln_optim_receipt *r)
{
    const kiln_storage *s = r->token->storage;
    if (!s->has_memory)
        return s->trace_refs > 0 ? UNKNOWN : DISCARDED;
    if (!s->run)
        return TAKEN;
    bool ended = atomic_load_explicit(&s->run->refs, memory_order_acquire) == 1; /* the device let go of it */
    if (!kiln_storage_computed(s))
        return DISCARDED;
    return ended ? TAKEN : UNKNOWN;
}

static bool runs_on(const kiln_optim_receipt *r)
{
    return r->token->storage->has_memory && r->token->storage->run;
}

/* After a failure the device may not have come to the runs behind it, which it will skip: only when it is idle is the
 * fate of all of them known. */
static bool wait_for_devices(const kiln_optim *o)
{
    bool ok = true;
    kiln_device waited_for = KILN_NO_DEVICE;
    for (int64_t i = o->nreceipts; i-- > 0;) {
        kiln_device device = o->receipts[i].token->device;
        if (device == waited_for || !runs_on(&o->receipts[i]))
            continue;
        ok &= kiln_device_wait(device);
        waited_for = device;
    }
    return ok;
}

static void count(kiln_optim *o, const kiln_optim_receipt *r, int by)
{
    for (int64_t i = 0; i < r->nparams; i++)
        o->params[i].steps += r->marks[i] ? by : 0;
    o->steps += r->counts ? by : 0;
}

/* Whether there may be something to settle. Runs of a device end in order, and with one that fails all behind it do:
 * while both the first and the last are open, all are. */
static bool has_news(const kiln_optim *o)
{
    return o->nreceipts > 0 && (o->nreceipts >= PATIENCE || fate_of(&o->receipts[0]) != UNKNOWN ||
                                fate_of(&o->receipts[o->nreceipts - 1]) != UNKNOWN);
}

static bool has_failed(const kiln_optim *o)
{
    for (int64_t i = 0; i < o->nreceipts; i++)
        if (runs_on(&o->receipts[i]) && fate_of(&o->receipts[i]) == DISCARDED)
            return true;
    return false;
}

/* Open receipts move to the front; the memory of those that are settled stays behind them. */
static void keep_open(kiln_optim *o, bool waited)
{
    int64_t open = 0;
    for (int64_t i = 0; i < o->nreceipts; i++) {
        kiln_optim_receipt r = o->receipts[i];
        fate f = fate_of(&r);
        if (!waited && f == DISCARDED && runs_on(&r))
            f = UNKNOWN; /* failed since it was looked at: the next time, together with those behind it */
        if (f == UNKNOWN && !(waited && runs_on(&r))) {
            o->receipts[i] = o->receipts[open];
            o->receipts[open++] = r;
            continue;
        }
        if (f == DISCARDED)
            count(o, &r, -1);
        kiln_scope_drop(r.token);
        o->receipts[i].token = NULL;
    }
    o->nreceipts = open;
}

bool kiln_optim_settle(kiln_optim *o)
{
    if (!has_news(o))
        return true;
    bool wait = o->nreceipts >= PATIENCE || has_failed(o);
    bool ok = !wait || wait_for_devices(o);
    keep_open(o, wait);
    return ok;
}

kiln_optim_receipt *kiln_optim_open_receipt(kiln_optim *o, bool counts)
{
    int64_t before = o->receipts_capacity;
    if (!KILN_GROW(o->receipts, o->receipts_capacity, o->nreceipts + 1))
        return NULL;
    if (o->receipts_capacity > before)
        memset(o->receipts + before, 0, (size_t)(o->receipts_capacity - before) * sizeof *o->receipts);
    kiln_optim_receipt *r = &o->receipts[o->nreceipts];
    if (!KILN_GROW(r->marks, r->room, o->nparams))
        return NULL;
    memset(r->marks, 0, (size_t)o->nparams);
    r->nparams = o->nparams;
    r->counts = counts;
    return r;
}

static void put_on_list(kiln_optim *o)
{
    count(o, &o->receipts[o->nreceipts++], 1);
}

bool kiln_optim_close_receipt(kiln_optim *o, kiln_device device)
{
    kiln_optim_receipt *r = &o->receipts[o->nreceipts];
    kiln_on_device (device)
        r->token = kiln_keep(kiln_zeros(KILN_SHAPE(0), KILN_F32));
    if (!r->token)
        return false;
    put_on_list(o);
    return true;
}

bool kiln_optim_rerun(kiln_optim *o, kiln_rerun *step)
{
    kiln_optim_receipt *r = kiln_optim_open_receipt(o, true);
    for (int64_t i = 0; r && i < step->nvarying; i++)
        if (step->varying[i].owner == o && step->varying[i].index < o->nparams)
            r->marks[step->varying[i].index] = 1;
    kiln_storage *s = r ? kiln_storage_new(step->plan->device, 0) : NULL;
    if (!s || !(r->token = kiln_keep(kiln_tensor_make(s, KILN_F32, KILN_SHAPE(0), NULL, 0))))
        return false;
    if (kiln_rerun_run(step, s)) {
        put_on_list(o);
        return true;
    }
    kiln_scope_drop(r->token);
    r->token = NULL;
    return false;
}

void kiln_optim_drop_receipts(kiln_optim *o, bool all)
{
    while (o->nreceipts) {
        kiln_optim_receipt *r = &o->receipts[--o->nreceipts];
        kiln_scope_drop(r->token);
        r->token = NULL;
    }
    for (int64_t i = 0; all && i < o->receipts_capacity; i++)
        kiln_free(o->receipts[i].marks);
    if (all)
        kiln_free(o->receipts);
}
