/* Thunks: a handle that has no value of its own, only the operation that makes it. Wherever it is an operand
 * the operation is recorded along, so that it becomes part of that step, needs no memory after it, and can be made
 * again by the next one. Batches of a data set that lies on the device are such tensors.
 *
 * Using one as an operand changes nothing about it, so threads may share it. Whoever wants to change it, or to
 * differentiate by it, has it computed first. */
#ifndef KILN_TRACE_THUNK_H
#define KILN_TRACE_THUNK_H

#include "trace/trace.h"

struct kiln_thunk {
    const kiln_op *op; /* of one result */
    int nin;
    kiln_tensor *in[2]; /* references; tensors that have memory, dense */
    kiln_attrs attrs;
    kiln_desc out;
};

/* A handle for what the operation will give; it belongs to the current scope. NULL with an error. */
kiln_tensor *kiln_thunk_new(const kiln_op *op, kiln_tensor *const *in, int nin, const kiln_attrs *attrs);

/* The thunk, to change its run-time scalars, where nobody but the caller can see the tensor; NULL otherwise. */
kiln_thunk *kiln_thunk_alone(const kiln_tensor *t);

#endif
