/* Scopes from the inside, and what the trace is told about handles. */
#ifndef KILN_TENSOR_SCOPE_H
#define KILN_TENSOR_SCOPE_H

#include "core/alloc.h"
#include "tensor/thread.h"

/* Puts a new handle into the innermost scope, if one is open. False with an error when memory runs out. */
static inline bool kiln_scope_adopt(kiln_thread *th, kiln_tensor *t)
{
    if (!th->nframes)
        return true;
    if (!KILN_GROW(th->owned, th->owned_capacity, th->nowned + 1))
        return false;
    th->owned[th->nowned++] = t;
    t->scope = (int32_t)th->nowned; /* its place, counted from 1 */
    return true;
}

/* Drops one reference, whoever owns the others. */
void kiln_tensor_unref(kiln_tensor *t);

/* Implemented by the trace: an outermost step begins; a handle of a computed value that needs a gradient goes away; a
 * scope has ended (its handles are released already). `failed`: an error was raised in it and not cleared. */
void kiln_trace_step_begin(void);
void kiln_trace_forget(const kiln_tensor *t);
void kiln_trace_scope_end(bool step, bool failed);

#endif
