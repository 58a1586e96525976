/* A step that is run again without being recorded. Recording says what a step is made of; where it is known to come out
 * the same, all that a run needs is left over from the time before: the plan, the addresses of its slots, and numbers,
 * of which a few are new.
 *
 * Two recordings are looked at. The first is remembered, with the places of those of its numbers whose source is
 * known. From these the numbers of the second are foretold, and if that turns out to be the foretold step, to the bit,
 * the next ones need not be recorded as long as nobody has touched what they work on. Whatever stands in the way is no
 * error: the step is recorded, and finds it. */
#ifndef KILN_PLAN_RERUN_H
#define KILN_PLAN_RERUN_H

#include "plan/plan.h"
#include "trace/trace.h"

/* Run-time scalars at … at+count-1 of the step: the owner makes them anew for each. */
typedef struct kiln_varying {
    const void *owner;
    int64_t index; /* which of the owner's */
    int64_t at, count;
} kiln_varying;

typedef struct kiln_rerun {
    kiln_plan *plan; /* a reference; NULL: nothing is remembered */
    struct kiln_rerun_slot {
        kiln_storage *storage; /* a reference */
        kiln_address address;
        uint32_t version; /* that the last run left in its memory */
    } * slots;
    int64_t nslots, slots_capacity;
    struct kiln_rerun_leaf {
        kiln_tensor *tensor; /* a reference */
        const kiln_storage *storage;
        bool requires_grad;
    } * leaves; /* the tensors that it was recorded with */
    int64_t nleaves, leaves_capacity;
    kiln_address *addresses; /* of the slots, then of the results, for a run */
    int64_t addresses_capacity;
    int32_t *commits; /* slots that the step assigns to */
    int64_t ncommits, commits_capacity;
    double *floats; /* of the last step; those of the next one are put here */
    int64_t nfloats, floats_capacity;
    kiln_varying *varying;
    int64_t nvarying, varying_capacity;
    kiln_block proof; /* where the results lie, which are empty */
    kiln_device default_device;
    bool tf32;
    int64_t generation; /* of the backend */
    bool foretold;      /* a recording came out as foretold */

    /* While one is recorded */
    kiln_varying *noted;
    int64_t nnoted, noted_capacity;
    int segments; /* it was run in */
} kiln_rerun;

/* Around a step that is recorded. The floats are those it is expected to have, if a step is remembered; afterwards it
 * is the one that is remembered, unless it is of a kind that cannot be. */
void kiln_rerun_watch(kiln_rerun *r);
void kiln_rerun_watched(kiln_rerun *r);

/* Called by a flush, while the segment that ran is still there. */
void kiln_rerun_segment(kiln_rerun *r, const kiln_trace *tr, kiln_plan *plan);

/* True if the remembered step can be run here and now, and would be the one that is recorded otherwise. */
bool kiln_rerun_ready(const kiln_rerun *r);

/* Runs it with its floats. `proof`, an empty storage without memory, becomes one that the run has made. False with an
 * error, and nothing was changed; KILN_E_MEMORY is better explained by recording the step. */
bool kiln_rerun_run(kiln_rerun *r, kiln_storage *proof);

/* Gives up what is remembered. */
void kiln_rerun_forget(kiln_rerun *r);
void kiln_rerun_free(kiln_rerun *r);

#endif
