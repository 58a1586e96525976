/* Failures of a device, and the words for each thread. */
#include "device/failures.h"
#include <stdatomic.h>
#include "core/fail.h"

uint64_t kiln_witness_thread(const kiln_failures *f, kiln_witness *w)
{
    static atomic_uint_fast64_t threads;
    if (!w->thread) {
        w->thread = atomic_fetch_add_explicit(&threads, 1, memory_order_relaxed) + 1;
        w->knows = f->told;
    }
    return w->thread;
}

/* The first one whose words are kept. */
static uint64_t oldest_kept(const kiln_failures *f)
{
    return f->count > KILN_FAILURES ? f->count - KILN_FAILURES : 0;
}

static const kiln_failure *at(const kiln_failures *f, uint64_t i)
{
    return &f->kept[i % KILN_FAILURES];
}

void kiln_failures_add(kiln_failures *f, uint64_t first, uint64_t last, uint64_t thread, const kiln_error *error)
{
    f->kept[f->count++ % KILN_FAILURES] =
        (kiln_failure){.first = first, .last = last, .thread = thread, .error = *error};
}

static bool has_hit(const kiln_failure *x, uint64_t number)
{
    return number >= x->first && number <= x->last;
}

bool kiln_failures_hit(const kiln_failures *f, uint64_t number)
{
    uint64_t i = oldest_kept(f);
    bool hit = i > 0 && number < at(f, i)->first;
    for (; i < f->count && !hit; i++)
        hit = has_hit(at(f, i), number);
    return hit;
}

/* ---- Telling ---- */

static bool raise_skipped(const kiln_error *cause)
{
    kiln_fail(cause->code, cause->operation,
              "a step of this thread was skipped, because one that another thread gave before it failed: %.500s",
              cause->message);
    return kiln_hint("nothing was changed by it: run it again. The other thread is told of its own step");
}

static bool raise_elsewhere(const kiln_error *cause)
{
    kiln_fail(cause->code, cause->operation, "a step that another thread gave to this device failed: %.500s",
              cause->message);
    return kiln_hint("what this thread gave has taken place. If it builds on nothing of that step, go on: this is "
                     "said once");
}

/* Which of the failures from number `first` on, before `end`, concerns the thread most. */
static const kiln_failure *choose(const kiln_failures *f, const kiln_witness *w, uint64_t first, uint64_t end)
{
    const kiln_failure *chosen = at(f, end - 1);
    for (uint64_t i = first; i < end; i++)
        if (at(f, i)->thread == w->thread)
            return at(f, i);
        else if (has_hit(at(f, i), w->given))
            chosen = at(f, i);
    return chosen;
}

bool kiln_failures_tell(kiln_failures *f, kiln_witness *w, uint64_t until)
{
    kiln_witness_thread(f, w);
    if (w->knows == f->count)
        return true;
    uint64_t kept = oldest_kept(f), first = w->knows > kept ? w->knows : kept, end = first;
    while (end < f->count && at(f, end)->first <= until)
        end++;
    if (end == first)
        return true;
    const kiln_failure *x = choose(f, w, first, end);
    w->knows = end;
    f->told = end > f->told ? end : f->told;
    if (x->thread == w->thread)
        return kiln_fail_again(&x->error);
    return kiln_failures_hit(f, w->given) ? raise_skipped(&x->error) : raise_elsewhere(&x->error);
}

void kiln_failures_told(kiln_failures *f, kiln_witness *w)
{
    kiln_witness_thread(f, w);
    if (w->knows + 1 == f->count)
        w->knows = f->count;
    f->told = f->count;
}
