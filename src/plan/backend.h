/* What planning and running ask of the device layer, which implements these. */
#ifndef KILN_PLAN_BACKEND_H
#define KILN_PLAN_BACKEND_H

#include "plan/plan.h"
#include "tensor/share.h"

/* Scratch bytes a kernel wants beside its operands. */
size_t kiln_backend_workspace(kiln_device device, const kiln_kernel *kernel);

/* Makes plan->exec; false with an error. */
bool kiln_backend_lower(kiln_plan *plan);
void kiln_backend_dispose(kiln_plan *plan);
size_t kiln_backend_held(const kiln_plan *plan); /* host memory that what the device made of it takes */
bool kiln_backend_runs_on(kiln_device device);   /* a run returns before it is done */

/* Whether more than shapes decides how a device computes kernels; and how it would those of a plan, whose memory is
 * placed: a choice a kernel. False with an error. */
bool kiln_backend_chooses(kiln_device device);
bool kiln_backend_choose(const kiln_plan *plan, kiln_choice *choices);

/* `timing`: the run is timed, kernel by kernel; NULL: it is not. False with an error. */
bool kiln_backend_run(const kiln_plan *plan, const kiln_binding *binding, kiln_timing *timing);

/* The same in the turn of this thread, where runs are done by the threads that start them. */
static inline bool kiln_backend_take_turn(const kiln_plan *plan, const kiln_binding *binding, kiln_timing *timing,
                                          kiln_turn turn)
{
    if (binding->run) /* the device does one after the other */
        return kiln_backend_run(plan, binding, timing);
    kiln_turn_begin(turn);
    bool ok = kiln_backend_run(plan, binding, timing);
    kiln_turn_end(turn);
    return ok;
}

/* A number that changes when plans for the device have to be made anew (how many threads share the work). */
int64_t kiln_backend_version(kiln_device device);

/* A plan's scratch below so many bytes is laid out without using room twice. */
int64_t kiln_backend_roomy(kiln_device device);

/* What the device can do with an operation with a first operand of this dtype: KILN_CAN_*. */
unsigned kiln_backend_can(kiln_device device, const kiln_op *op, kiln_dtype dtype, const kiln_work *work);

/* Whether a group that begins with a matrix product may also end in a count: a sum of integers over all elements. */
bool kiln_backend_counts_products(kiln_device device);

/* What rows of matrices should begin and end at multiples of, in bytes, for large products on tensor cores; 0: at
 * anything. */
int64_t kiln_backend_row_bytes(kiln_device device);

/* No two buffers of a plan may share room: the device is set up to find kernels that go beyond theirs. */
bool kiln_backend_apart(kiln_device device);

/* The scratch memory of a run, given back as soon as the run was started. A device that does one run after the other
 * has one for all of them, whose address stays the same. False with KILN_E_MEMORY. */
bool kiln_memory_take_arena(kiln_device device, size_t bytes, kiln_block *arena);
void kiln_memory_give_arena(kiln_device device, kiln_block arena);

/* Bytes that could still be taken from the device now; INT64_MAX where there is no limit to be told. */
int64_t kiln_memory_left(kiln_device device);

/* The same for so many bytes. A host gives out memory that it does not have: it is asked what it has where they are
 * many more than the pool keeps. */
int64_t kiln_memory_left_for(kiln_device device, int64_t bytes);

/* The same by asking the device, which may take its time: what it has free, and what the pool would give back. */
int64_t kiln_memory_available(kiln_device device);

#endif
