/* How large a batch would fit: for the message of a step that is refused. */
#include "core/fail.h"
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
    int64_t low = 1, high = g->batch; /* low fits, high does not */
    double low_spare = spare(g, low, (double)left), high_spare = spare(g, high, (double)left);
    if (low_spare < 0)
        return -1;
    if (high_spare >= 0)
        return 0; /* the sizes that were found do not explain what the plan takes */
    for (int turn = 0; high - low > 1 + low / 200; turn++) {
        int64_t middle = turn % 3 == 2 ? low + (high - low) / 2 : kiln_growth_between(low, low_spare, high, high_spare);
        double here = spare(g, middle, (double)left);
        if (here >= 0) {
            low = middle;
            low_spare = here;
        } else {
            high = middle;
            high_spare = here;
        }
    }
    return low;
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
