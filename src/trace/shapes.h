/* Tensors that have only a shape (kiln_shapes_only). Their storages count as having memory, so that recording,
 * gradients and planning treat them like any other and make the same plans; only who would touch the memory has to
 * look. Inside the block a flush runs nothing: what it would have computed has only a shape, too. */
#ifndef KILN_TRACE_SHAPES_H
#define KILN_TRACE_SHAPES_H

#include "trace/trace.h"

/* Whether the calling thread is inside kiln_shapes_only. */
static inline bool kiln_shapes_inside(void)
{
    return kiln_thread_current && kiln_thread_current->shapes_only;
}

/* Makes a new storage one that has only a shape; false with an error if there is no such device. */
bool kiln_shapes_mark(kiln_storage *s);

/* A tensor that has only a shape, in the current scope; it records nothing. NULL with an error. */
kiln_tensor *kiln_shapes_tensor(kiln_dtype dtype, int ndim, const int64_t *shape, kiln_device device);

/* Says that somebody needs values that are not there. Always false. */
bool kiln_shapes_fail(const kiln_tensor *t, const char *who);

/* False with an error inside the block: for what has no meaning there. */
bool kiln_shapes_refuse(const char *who);

/* Says that inside the block t, which has memory, is to be assigned to. Always false. */
bool kiln_shapes_fail_memory(const kiln_tensor *t);

/* ---- For kiln_flush ---- */

/* Inside the block, in place of a run: results and assigned tensors have only a shape. */
void kiln_shapes_pass(const kiln_trace *tr);

/* False with an error if the segment reads a tensor that has only a shape: it cannot run. */
bool kiln_shapes_check(const kiln_trace *tr);

/* Before a run that reads none of them: memory for those that it assigns all of. False with an error. */
bool kiln_shapes_take_memory(const kiln_trace *tr);

/* After a run that failed: it is as it was. */
void kiln_shapes_give_back(const kiln_trace *tr);

#endif
