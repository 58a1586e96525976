/* An optimizer's tensors as a list with names, for saving and restoring. */
#include <string.h>
#include "core/alloc.h"
#include "core/counts.h"
#include "core/fail.h"
#include "optim/optim.h"
#include "tensor/scope.h"

static int64_t count_states(const kiln_optim *o)
{
    int64_t n = 0;
    for (int64_t i = 0; i < o->nparams; i++)
        for (int k = 0; k < KILN_OPTIM_SLOTS; k++)
            n += o->params[i].state[k] != NULL;
    return n;
}

static bool add_name(kiln_optim *o, const char *param, const char *state)
{
    size_t size = strlen(param) + strlen(state) + 2;
    char *name = kiln_alloc(size, 1);
    if (!name)
        return false;
    snprintf(name, size, "%s%s%s", param, *param ? "." : "", state);
    o->names[o->nlist++] = name;
    return true;
}

static bool make_names(kiln_optim *o, int64_t count)
{
    kiln_optim_free_names(o);
    if (!KILN_GROW(o->list, o->list_capacity, count) || !KILN_GROW(o->names, o->names_capacity, count))
        return false;
    for (int64_t i = 0; i < o->nparams; i++)
        for (int k = 0; k < KILN_OPTIM_SLOTS; k++)
            if (o->params[i].state[k] && !add_name(o, o->params[i].name, kiln_optim_slot_name(o, &o->params[i], k)))
                return false;
    return add_name(o, "", "skipped");
}

void kiln_optim_free_names(kiln_optim *o)
{
    while (o->nlist)
        kiln_free(o->names[--o->nlist]);
}

/* Whether there is a `skipped` for all parameters, with values. */
static bool has_skipped(const kiln_optim *o)
{
    return o->skipped && kiln_numel(o->skipped) == o->nparams && !kiln_is_shape_only(o->skipped);
}

/* Brings `skipped` up to date. Where it already says what the counts say it is left alone: it may hold what was just
 * loaded. */
static bool note_skipped(kiln_optim *o)
{
    bool same = has_skipped(o);
    if (!KILN_GROW(o->skips, o->skips_capacity, o->nparams))
        return false;
    for (int64_t i = 0; i < o->nparams; i++) {
        int64_t skips = o->steps - o->params[i].steps;
        same &= o->skips[i] == skips;
        o->skips[i] = skips;
    }
    if (same)
        return true;
    kiln_tensor *t = kiln_keep(kiln_tensor_new(o->skips, KILN_I64, KILN_SHAPE(o->nparams), KILN_CPU));
    if (!t)
        return false;
    t->storage->role = KILN_ROLE_OPTIMIZER;
    kiln_release(o->skipped);
    o->skipped = t;
    return true;
}

/* A master that no step has filled yet is shown as what the first one will make of it. */
static bool begin_master(kiln_optim_param *p)
{
    kiln_tensor *master = p->state[KILN_OPTIM_MASTER];
    if (!master || p->steps || p->began || p->tensor->storage->shape_only)
        return true;
    kiln_inner_scope
        kiln_no_grad
            p->began = kiln_assign(master, p->tensor);
    return p->began;
}

kiln_params kiln_optim_state(kiln_optim *o)
{
    if (!kiln_optim_given(o, "optimizer") || !kiln_optim_settle(o) || !kiln_optim_stop_clocks(o))
        return (kiln_params){0};
    for (int64_t i = 0; i < o->nparams; i++)
        if (!kiln_optim_place_state(o, &o->params[i]) || !begin_master(&o->params[i]))
            return (kiln_params){0};
    int64_t states = count_states(o), n = 0;
    if (!states)
        return (kiln_params){0};
    if (!note_skipped(o) || (o->nlist != states + 1 && !make_names(o, states + 1)))
        return (kiln_params){0};
    for (int64_t i = 0; i < o->nparams; i++)
        for (int k = 0; k < KILN_OPTIM_SLOTS; k++)
            if (o->params[i].state[k])
                o->list[n++] = o->params[i].state[k];
    o->list[n] = o->skipped;
    return (kiln_params){o->nlist, o->list, (const char *const *)o->names};
}

bool kiln_optim_set_steps(kiln_optim *o, int64_t steps)
{
    if (!kiln_optim_given(o, "optimizer"))
        return false;
    if (steps < 0 || steps > KILN_COUNT_MAX)
        return kiln_fail(KILN_E_ARGUMENT, o->rule->op.name, "%lld steps cannot have been taken", (long long)steps);
    if (!kiln_optim_settle(o) || !kiln_optim_stop_clocks(o) || !KILN_GROW(o->skips, o->skips_capacity, o->nparams))
        return false;
    bool loaded = has_skipped(o);
    if (loaded && !kiln_read(o->skipped, o->skips, (size_t)o->nparams * sizeof *o->skips))
        return false;
    for (int64_t i = 0; i < o->nparams; i++) {
        kiln_optim_param *p = &o->params[i];
        int64_t skips = loaded ? o->skips[i] : o->steps - p->steps;
        p->steps = skips < 0 ? steps : skips > steps ? 0 : steps - skips;
    }
    kiln_optim_drop_receipts(o, false);
    kiln_optim_drop_clocks(o);
    o->steps = steps;
    return true;
}
