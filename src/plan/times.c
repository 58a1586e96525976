/* Steps that are timed: see times.h. */
#include "plan/times.h"
#include "core/alloc.h"
#include "core/counts.h"
#include "core/sized.h"

bool kiln_time_next_step(void)
{
    kiln_trace *tr = kiln_trace_current();
    if (tr && tr->timing == KILN_UNTIMED)
        tr->timing = KILN_TIMED_NEXT;
    return tr != NULL;
}

int64_t kiln_step_times_(kiln_kernel_time *list, int64_t room, size_t size)
{
    const kiln_trace *tr = kiln_thread_current ? kiln_thread_current->trace : NULL;
    int64_t n = tr ? tr->ntimes : 0;
    for (int64_t i = 0; list && i < room && i < n; i++)
        KILN_GIVE_SIZED((char *)list + (size_t)i * size, size, tr->times[i]);
    return n;
}

bool kiln_times_begin(kiln_trace *tr, const kiln_plan *p, kiln_timing *timing)
{
    return KILN_GROW(tr->times, tr->times_capacity, tr->ntimes + p->nkernels) &&
           (timing->launches = kiln_alloc((size_t)p->nkernels, sizeof *timing->launches));
}

static kiln_kernel_time time_of(const kiln_trace *tr, const kiln_plan *p, const kiln_launch_time *l)
{
    const kiln_kernel *k = &p->kernels[l->first];
    kiln_kernel_time t = {.operation = k->origin->name,
                          .module = kiln_plan_module(tr, k),
                          .backward = k->back,
                          .kernels = l->end - l->first,
                          .microseconds = l->microseconds};
    kiln_kernel_title(k, t.kernel, sizeof t.kernel);
    for (int32_t i = l->first; i < l->end; i++) {
        t.flops = kiln_plus(t.flops, p->kernels[i].flops);
        t.bytes = kiln_plus(t.bytes, p->kernels[i].bytes);
    }
    return t;
}

void kiln_times_end(kiln_trace *tr, const kiln_plan *p, kiln_timing *timing, bool ok)
{
    for (int64_t i = 0; ok && i < timing->count; i++)
        tr->times[tr->ntimes++] = time_of(tr, p, &timing->launches[i]);
    kiln_free(timing->launches);
    *timing = (kiln_timing){0};
}
