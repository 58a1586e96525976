/* Scopes from the inside, and what the trace is told about handles. */
#ifndef KILN_TENSOR_SCOPE_H
#define KILN_TENSOR_SCOPE_H

#include "core/alloc.h"
#include "tensor/thread.h"

/* Counts a handle that no scope will release; when they pile up, that is said once. Always true. */
bool kiln_scope_bare(kiln_thread *th, kiln_tensor *t);

/* Puts a new handle into the innermost scope, if one is open. False with an error when memory runs out. */
static inline bool kiln_scope_adopt(kiln_thread *th, kiln_tensor *t)
{
    if (!th->nframes)
        return kiln_scope_bare(th, t);
    if (!KILN_GROW(th->owned, th->owned_capacity, th->nowned + 1))
        return false;
    th->owned[th->nowned++] = t;
    t->scope = (int32_t)th->nowned; /* its place, counted from 1 */
    return true;
}

/* A scope of the library's own: what is made on the way to a result is released at its end, however long the step
 * around it is. It ends no segment. */
#define kiln_inner_scope KILN_SCOPE_(KILN_SCOPE_INNER)

/* When the innermost scope, an inner one, ends, t goes to the enclosing one, if it was made inside. NULL is fine. */
void kiln_scope_hand_up(kiln_tensor *t);

/* Releases a handle that no program has seen: it can be used again at once. NULL is fine. */
void kiln_scope_drop(kiln_tensor *t);

/* Says once that `what` { … } was left by break. */
void kiln_scope_broken(const char *what, const char *then);

/* Drops one reference, whoever owns the others. */
void kiln_tensor_unref(kiln_tensor *t);

/* Implemented by the trace: an outermost step begins; a handle of a computed value that needs a gradient goes away; a
 * scope has ended (its handles are released already), `failed`: an error was raised in it and not cleared; a handle was
 * given up outside any scope, `held`: somebody else has it still. */
void kiln_trace_step_begin(void);
void kiln_trace_forget(const kiln_tensor *t);
void kiln_trace_scope_end(kiln_scope_kind kind, bool failed);
void kiln_trace_given_up(bool held);

#endif
