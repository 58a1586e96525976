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

/* As many tensors as this are no model any more, but a loop that nobody cleans up after. */
enum { MANY_BARE = 4096 };

bool kiln_scope_bare(kiln_thread *th, kiln_tensor *t)
{
    t->bare = true;
    if (++th->nbare >= MANY_BARE && !th->told_bare) {
        th->told_bare = true;
        kiln_notice(
            "%lld tensors were made outside any scope and not released: memory grows with each. Put the body of "
            "the loop into kiln_step { } or kiln_scope { }, or call kiln_release for what it makes",
            (long long)th->nbare);
    }
    return true;
}

/* Opens a frame; its depth, 0 with an error. */
static int32_t open_frame(kiln_scope_kind kind, bool open)
{
    kiln_thread *th = kiln_thread_state();
    bool step = kind == KILN_SCOPE_STEP;
    if (!th || !KILN_GROW(th->frames, th->frames_capacity, th->nframes + 1))
        return 0;
    if (step && !th->steps)
        kiln_trace_step_begin();
    th->frames[th->nframes++] = (kiln_scope_frame){th->nowned, kiln_fail_count(), (uint8_t)kind, open};
    th->steps += step;
    return (int32_t)th->nframes;
}

void kiln_scope_hand_up(kiln_tensor *t)
{
    const kiln_thread *th = kiln_thread_current;
    if (t && t->scope > th->frames[th->nframes - 1].first && t->goes_up == KILN_STAYS_BEHIND)
        t->goes_up = KILN_GOES_UP;
}

static void release_all(kiln_thread *th, int64_t first)
{
    while (th->nowned > first) {
        kiln_tensor *t = th->owned[--th->nowned];
        if (!t)
            continue;
        t->scope = 0;
        t->alive = false;
        kiln_tensor_unref(t);
    }
}

/* What goes up stays in the list, which is the enclosing scope's from there on. */
static void release_inner(kiln_thread *th, int64_t first, kiln_scope_kind kind)
{
    int64_t kept = first, end = th->nowned;
    const kiln_scope_frame *outer = th->nframes ? &th->frames[th->nframes - 1] : NULL;
    bool home = !outer || outer->kind != KILN_SCOPE_INNER;
    for (int64_t i = first; i < end; i++) {
        kiln_tensor *t = th->owned[i];
        if (!t)
            continue;
        kiln_goes_up way = kind == KILN_SCOPE_GUEST ? KILN_GOES_TO_PROGRAM : (kiln_goes_up)t->goes_up;
        t->scope = 0;
        if (way == KILN_STAYS_BEHIND) {
            t->alive = false;
            kiln_tensor_drop(t);
            continue;
        }
        t->goes_up = way == KILN_GOES_TO_PROGRAM && !home ? KILN_GOES_TO_PROGRAM : KILN_STAYS_BEHIND;
        if (!outer) {
            kiln_scope_bare(th, t);
            continue;
        }
        th->owned[kept++] = t;
        t->scope = (int32_t)kept;
    }
    th->nowned = kept;
}

/* Closes all frames from that depth on: inner scopes that were jumped out of end too. `broken`: the outermost of them
 * counts as failed. */
static void close_frames(kiln_thread *th, int64_t depth, bool broken)
{
    while (th->nframes >= depth) {
        kiln_scope_frame frame = th->frames[--th->nframes];
        kiln_scope_kind kind = (kiln_scope_kind)frame.kind;
        th->steps -= kind == KILN_SCOPE_STEP;
        if (kind == KILN_SCOPE_INNER || kind == KILN_SCOPE_GUEST)
            release_inner(th, frame.first, kind);
        else
            release_all(th, frame.first);
        bool failed = !kiln_ok() && kiln_fail_count() != frame.failures;
        kiln_trace_scope_end(kind, failed || (broken && th->nframes < depth));
    }
}

kiln_scope_mark kiln_scope_enter(kiln_scope_kind kind)
{
    return (kiln_scope_mark){.depth = open_frame(kind, false)}; /* 0: the braces are skipped, nothing would own */
}

static void close_scope(kiln_scope_mark *mark, bool broken)
{
    kiln_thread *th = kiln_thread_state();
    int32_t depth = mark->depth;
    mark->depth = 0;
    if (depth > 0 && th)
        close_frames(th, depth, broken);
}

void kiln_scope_leave(kiln_scope_mark *mark)
{
    close_scope(mark, false);
}

void kiln_scope_broken(const char *what, const char *then)
{
    kiln_notice("break inside %s { } ends these braces, not the loop around them: %s. A loop that is to be left from "
                "inside a step wants kiln_step_begin and kiln_step_end",
                what, then);
}

void kiln_scope_end(kiln_scope_mark *mark)
{
    kiln_thread *th = kiln_thread_state();
    bool broken = mark->inside && mark->depth > 0 && th && mark->depth <= th->nframes;
    bool step = broken && th->frames[mark->depth - 1].kind == KILN_SCOPE_STEP;
    if (step && !th->told_broken_step)
        kiln_scope_broken("kiln_step", "the step was discarded, and the loop goes on");
    else if (broken && !step && !th->told_broken_scope)
        kiln_scope_broken("kiln_scope", "the loop goes on");
    if (broken)
        *(step ? &th->told_broken_step : &th->told_broken_scope) = true;
    close_scope(mark, step);
}

bool kiln_step_begin(void)
{
    return open_frame(KILN_SCOPE_STEP, true) > 0;
}

bool kiln_step_end(void)
{
    kiln_thread *th = kiln_thread_state();
    int64_t depth = th ? th->nframes : 0;
    while (depth > 0 && !th->frames[depth - 1].open)
        depth--;
    if (depth == 0) {
        kiln_fail(KILN_E_STATE, "step_end", "no step was begun in this thread");
        return kiln_hint("kiln_step_begin comes first; kiln_step { … } ends at its closing brace");
    }
    uint64_t failures = th->frames[depth - 1].failures;
    close_frames(th, depth, false);
    return kiln_ok() || kiln_fail_count() == failures;
}

kiln_tensor *kiln_keep(kiln_tensor *t)
{
    if (!t || !kiln_tensor_usable(t, "keep"))
        return NULL;
    if (t->scope)
        disown(t);
    kiln_thread *th = t->bare ? kiln_thread_state() : NULL;
    if (th)
        th->nbare--;
    t->bare = false; /* somebody sees to it: a module, an optimizer, the program */
    return t;
}

void kiln_scope_drop(kiln_tensor *t)
{
    if (!t)
        return;
    if (t->scope)
        disown(t);
    t->alive = false;
    kiln_tensor_drop(t);
}

void kiln_release(kiln_tensor *t)
{
    if (!t || !kiln_tensor_usable(t, "release"))
        return;
    if (t->scope)
        disown(t);
    t->alive = false;
    bool held = atomic_load(&t->refs) > 1;
    kiln_tensor_unref(t);
    if (kiln_thread_current && !kiln_thread_current->nframes)
        kiln_trace_given_up(held);
}
