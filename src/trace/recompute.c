/* Regions of the trace that are computed again for the backward pass instead of being kept: nodes written inside carry
 * the region's number, and planning acts on it (plan/recompute.c). */
#include "core/fail.h"
#include "tensor/scope.h"
#include "trace/trace.h"

kiln_recompute_scope kiln_recompute_scope_enter(void)
{
    kiln_thread *th = kiln_thread_state();
    kiln_recompute_scope scope = {.saved = th ? th->region : 0, .active = true};
    if (th) {
        th->regions = th->regions < INT32_MAX ? th->regions + 1 : 1;
        th->region = th->regions;
    }
    return scope;
}

void kiln_recompute_scope_leave(kiln_recompute_scope *scope)
{
    kiln_thread *th = kiln_thread_state();
    if (scope->active && th)
        th->region = scope->saved;
    scope->active = false;
}

void kiln_recompute_scope_end(kiln_recompute_scope *scope)
{
    kiln_thread *th = kiln_thread_state();
    if (scope->inside && th && !th->told_broken_block) {
        th->told_broken_block = true;
        kiln_scope_broken("kiln_recomputed", "the loop goes on");
    }
    kiln_recompute_scope_leave(scope);
}

kiln_tensor *kiln_recompute(kiln_function f, void *context, kiln_tensor **inputs, int n)
{
    if (!f || n < 0 || (n && !inputs))
        return kiln_fail(KILN_E_ARGUMENT, "recompute", "%s",
                         !f ? "the function is NULL" : "the list of inputs is NULL, or their number negative");
    for (int i = 0; i < n; i++)
        if (!kiln_tensor_given(inputs[i], "recompute", i + 1))
            return NULL;
    kiln_tensor *y = NULL;
    kiln_recomputed y = f(inputs, context);
    return y;
}
