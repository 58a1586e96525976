/* How large a batch would fit: for the message of a step that is refused. */
#include "core/fail.h"
#include "core/largest.h"
#include "plan/growth.h"

/* What is left over with this batch, when a smaller one takes less memory itself; negative: it does not fit. Other
 * sizes may be fused in other ways, which was seen to make up to 1.4 % (a transformer): so much is kept free. */
static double spare(const kiln_growth *g, int64_t batch, double left)
{
    double room = left + g->data * (1 - (double)batch / (double)g->batch), peak = (double)kiln_growth_peak(g, batch);
    return room - peak * (batch < g->batch ? 1 + 1.0 / 64 : 1);
}

/* The message says "about": half a percent is near enough. */
static int64_t search(const kiln_growth *g, int64_t left)
{
    kiln_largest l = {.most = g->batch, .inexact = 200};
    double one = spare(g, 1, (double)left), all = spare(g, g->batch, (double)left);
    if (one < 0)
        return -1;
    if (all >= 0)
        return 0; /* the sizes that were found do not explain what the plan takes */
    kiln_largest_tell(&l, 1, one);
    kiln_largest_tell(&l, g->batch, all);
    for (int64_t batch; (batch = kiln_largest_next(&l));)
        kiln_largest_tell(&l, batch, spare(g, batch, (double)left));
    return l.low;
}

int64_t kiln_plan_fitting_batch(const kiln_trace *tr, const kiln_plan *p, int64_t left, int64_t *batch)
{
    kiln_growth g;
    bool was_ok = kiln_ok();
    uint64_t failures = kiln_fail_count();
    *batch = kiln_growth_batch(tr);
    if (*batch < 2)
        return 0;
    int64_t fits = kiln_growth_find(&g, tr, p, *batch) ? search(&g, left) : 0;
    kiln_growth_free(&g);
    if (was_ok) /* not to know it is no error */
        kiln_fail_forget(failures);
    return fits;
}
