/* Scopes own the tensors made in them: a stack of handles with marks. */
#include "tensor/scope.h"
#include "core/alloc.h"
#include "core/fail.h"

/* Takes the tensor off its scope's list. */
static void disown(kiln_tensor *t)
{
    kiln_thread *th = kiln_thread_state();
    if (th && t->scope > 0 && t->scope <= th->nowned && th->owned[t->scope - 1] == t)
        th->owned[t->scope - 1] = NULL;
    t->scope = 0;
}

kiln_scope_mark kiln_scope_enter(bool step)
{
    kiln_thread *th = kiln_thread_state();
    if (!th || !KILN_GROW(th->frames, th->frames_capacity, th->nframes + 1))
        return (kiln_scope_mark){.depth = 0, .step = step}; /* the body is skipped: nothing would own what it makes */
    if (step && !th->steps)
        kiln_trace_step_begin();
    th->frames[th->nframes++] = (kiln_scope_frame){th->nowned, kiln_fail_count(), step};
    th->steps += step;
    return (kiln_scope_mark){.depth = (int32_t)th->nframes, .step = step};
}

void kiln_scope_leave(kiln_scope_mark *mark)
{
    kiln_thread *th = kiln_thread_state();
    int32_t depth = mark->depth;
    mark->depth = 0;
    if (depth <= 0 || !th)
        return;
    while (th->nframes >= depth) { /* inner scopes that were jumped out of end too */
        kiln_scope_frame frame = th->frames[th->nframes - 1];
        while (th->nowned > frame.first) {
            kiln_tensor *t = th->owned[--th->nowned];
            if (t) {
                t->scope = 0;
                kiln_tensor_unref(t);
            }
        }
        th->nframes--;
        th->steps -= frame.step;
        kiln_trace_scope_end(frame.step, !kiln_ok() && kiln_fail_count() != frame.failures);
    }
}

kiln_tensor *kiln_keep(kiln_tensor *t)
{
    if (t && t->scope)
        disown(t);
    return t;
}

void kiln_release(kiln_tensor *t)
{
    if (!t)
        return;
    if (t->scope)
        disown(t);
    kiln_tensor_unref(t);
}
