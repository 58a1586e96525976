/* Planning a copy of a draft: to see what it needs, or how the device would compute it. */
#include "plan/backend.h"
#include "plan/draft.h"

int64_t kiln_draft_try(const kiln_draft *d, const int32_t *until, kiln_draft *keep)
{
    kiln_plan plan = {.device = d->plan->device, .noutputs = d->plan->noutputs, .nscalars = d->plan->nscalars};
    kiln_plan *p = keep ? keep->plan : &plan;
    kiln_draft copy = *d, *t = keep ? keep : &copy;
    *p = plan;
    *t = *d;
    t->scratch = (kiln_arena){0};
    t->plan = p;
    t->pool = &p->pool;
    t->values = KILN_ARENA_NEW(&t->scratch, kiln_draft_value, d->nvalues);
    bool ok = t->values;
    for (int32_t v = 0; ok && v < d->nvalues; v++)
        t->values[v] = d->values[v];
    ok = ok && (!until || kiln_draft_rewrite(t, until)) && kiln_draft_kernels(t) && kiln_draft_place(t);
    int64_t need = ok ? p->arena_bytes + p->all_output_bytes : -1;
    if (ok && keep) {
        kiln_draft_count(t);
        return need;
    }
    kiln_arena_free(&t->scratch);
    kiln_arena_free(&p->pool);
    return need;
}

/* What the kernel reads and makes has to be there for the other kernel as it is for this one. */
static void join(kiln_draft *d, int32_t node)
{
    const kiln_node *n = kiln_draft_node(d, node);
    for (int k = 0; k < n->nin; k++) {
        int32_t b = kiln_draft_made(d, n, k);
        if (b >= 0)
            d->values[b].joins = true;
    }
    for (int j = 0; j < n->nout; j++)
        d->values[kiln_draft_of(d, n->out + j)].joins = true;
}

static void note(kiln_draft *d, const kiln_plan *p, const kiln_choice *choices)
{
    for (int64_t k = 0; k < p->nkernels; k++) {
        kiln_choice *to = &d->groups[d->node_group[p->kernels[k].node]].choice;
        if (choices[k].how)
            to->how = choices[k].how;
        if (choices[k].by) {
            to->by = p->kernels[choices[k].by - 1].node + 1;
            join(d, p->kernels[k].node);
        }
    }
}

bool kiln_draft_choose(kiln_draft *d)
{
    if (d->chosen || !kiln_backend_chooses(d->plan->device))
        return true;
    kiln_plan plan = {0};
    kiln_draft t = {.plan = &plan};
    if (kiln_draft_try(d, NULL, &t) < 0)
        return false;
    kiln_choice *choices = KILN_ARENA_NEW(&d->scratch, kiln_choice, plan.nkernels);
    d->chosen = choices && kiln_backend_choose(&plan, choices);
    if (d->chosen)
        note(d, &plan, choices);
    kiln_arena_free(&t.scratch);
    kiln_arena_free(&plan.pool);
    return d->chosen;
}
