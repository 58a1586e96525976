/* Scopes from the inside, and what the trace is told about handles. */
#ifndef KILN_TENSOR_SCOPE_H
#define KILN_TENSOR_SCOPE_H

#include "tensor/thread.h"

/* Puts a new handle into the innermost scope, if one is open. False with an error when memory runs out. */
bool kiln_scope_adopt(kiln_thread *th, kiln_tensor *t);

/* Drops one reference, whoever owns the others. */
void kiln_tensor_unref(kiln_tensor *t);

/* Implemented by the trace: an outermost step begins; a handle goes away; a scope has ended (its handles are released
 * already). `failed`: an error was raised in it and not cleared. */
void kiln_trace_step_begin(void);
void kiln_trace_forget(const kiln_tensor *t);
void kiln_trace_scope_end(bool step, bool failed);

#endif
