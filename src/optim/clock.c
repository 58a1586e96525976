/* Counting steps where the device decides whether one is taken (a gradient scaler leaves out those whose gradients are
 * not finite): the counts lie there, go on in the same step as the parameters, and nobody waits for them. The host's
 * own counts are made right when it counts again. */
#include "core/alloc.h"
#include "core/fail.h"
#include "optim/number.h"
#include "optim/optim.h"
#include "tensor/scope.h"
#include "trace/shapes.h"

static bool is_counted(const kiln_optim_param *p)
{
    return p->clock == p->tensor->device;
}

kiln_tensor *kiln_optim_clock_on(const kiln_optim *o, kiln_device device)
{
    for (int64_t i = 0; i < o->nclocks; i++)
        if (o->clocks[i].device == device)
            return o->clocks[i].taken;
    return NULL;
}

void kiln_optim_drop_clocks(kiln_optim *o)
{
    while (o->nclocks)
        kiln_release(o->clocks[--o->nclocks].taken);
    for (int64_t i = 0; i < o->nparams; i++)
        o->params[i].clock = KILN_NO_DEVICE;
}

/* Parameters that had only shapes when the clocks were made may have values since. */
static bool has_only_shapes(const kiln_optim *o)
{
    return o->nclocks > 0 && kiln_is_shape_only(o->clocks[0].taken);
}

/* ---- Starting ---- */

static double *list_counts(const kiln_optim *o)
{
    double *counts = kiln_alloc((size_t)o->nparams + 1, sizeof *counts);
    for (int64_t i = 0; counts && i < o->nparams; i++)
        counts[i] = (double)o->params[i].steps;
    if (counts)
        counts[o->nparams] = (double)o->steps;
    return counts;
}

/* Made at once, not as a part of the step: it stays when the step is discarded. */
static bool add_clock(kiln_optim *o, const kiln_tensor *param, const double *counts)
{
    if (!KILN_GROW(o->clocks, o->clocks_capacity, o->nclocks + 1))
        return false;
    kiln_tensor *t = param->storage->shape_only
                         ? kiln_keep(kiln_shapes_tensor(KILN_F64, KILN_SHAPE(o->nparams + 1), param->device))
                         : kiln_keep(kiln_tensor_new(counts, KILN_F64, KILN_SHAPE(o->nparams + 1), param->device));
    if (!t)
        return false;
    t->storage->role = KILN_ROLE_OPTIMIZER;
    o->clocks[o->nclocks++] = (kiln_optim_clock){param->device, t};
    return true;
}

/* Whether a step is still under way whose end the host's counts depend on. */
static bool settle_all(kiln_optim *o)
{
    for (int64_t i = 0; i < o->nreceipts; i++)
        if (!kiln_device_wait(o->receipts[i].token->device))
            return false;
    return kiln_optim_settle(o);
}

static void find_twin(kiln_optim *o, int64_t i)
{
    kiln_optim_param *p = &o->params[i];
    for (p->twin = 0; p->twin < i; p->twin++)
        if (o->params[p->twin].steps == p->steps && o->params[p->twin].tensor->device == p->tensor->device)
            return;
}

bool kiln_optim_start_clocks(kiln_optim *o)
{
    bool all = o->nclocks > 0 && !has_only_shapes(o);
    for (int64_t i = 0; i < o->nparams; i++)
        all &= is_counted(&o->params[i]);
    if (all)
        return true;
    double *counts = kiln_optim_stop_clocks(o) && settle_all(o) ? list_counts(o) : NULL;
    bool ok = counts != NULL;
    for (int64_t i = 0; ok && i < o->nparams; i++) {
        kiln_optim_param *p = &o->params[i];
        ok = kiln_optim_clock_on(o, p->tensor->device) || add_clock(o, p->tensor, counts);
        p->clock = p->tensor->device;
        find_twin(o, i);
    }
    if (!ok)
        kiln_optim_drop_clocks(o);
    kiln_free(counts);
    return ok;
}

/* ---- Stopping ---- */

static bool read_clock(kiln_optim *o, const kiln_optim_clock *c, double *counts)
{
    if (!kiln_read(c->taken, counts, ((size_t)o->nparams + 1) * sizeof *counts))
        return false;
    for (int64_t i = 0; i < o->nparams; i++)
        if (o->params[i].clock == c->device)
            o->params[i].steps = (int64_t)counts[i];
    o->steps = (int64_t)counts[o->nparams];
    return true;
}

bool kiln_optim_stop_clocks(kiln_optim *o)
{
    if (!o->nclocks)
        return true;
    double *counts = has_only_shapes(o) ? NULL : kiln_alloc((size_t)o->nparams + 1, sizeof *counts);
    bool ok = counts || has_only_shapes(o);
    for (int64_t i = 0; ok && counts && i < o->nclocks; i++)
        ok = read_clock(o, &o->clocks[i], counts);
    kiln_free(counts);
    if (!ok)
        return false;
    kiln_optim_drop_receipts(o, false); /* they are in the counts */
    kiln_optim_drop_clocks(o);
    return true;
}

/* ---- A step ---- */

/* 1 for the parameters that took part; NULL with an error. */
static kiln_tensor *list_done(const kiln_optim *o, kiln_device device)
{
    double *done = kiln_alloc((size_t)o->nparams + 1, sizeof *done);
    if (!done)
        return NULL;
    for (int64_t i = 0; i < o->nparams; i++)
        done[i] = o->params[i].done;
    done[o->nparams] = 1;
    kiln_tensor *t = kiln_tensor_new(done, KILN_F64, KILN_SHAPE(o->nparams + 1), device);
    kiln_free(done);
    return t;
}

/* Who took part in other steps than its twin has a count of its own from now on. From the last one, since those before
 * it are compared with. */
static void part_twins(kiln_optim *o, kiln_device device)
{
    for (int64_t i = o->nparams; i-- > 0;) {
        kiln_optim_param *p = &o->params[i];
        if (p->clock == device && p->done != o->params[p->twin].done)
            p->twin = i;
    }
}

bool kiln_optim_advance_clock(kiln_optim *o, kiln_device device, const kiln_update *u)
{
    enum { TAKEN, FOUND, DONE };
    kiln_tensor *done = NULL;
    kiln_formula p;
    bool all = true;
    for (int64_t i = 0; i < o->nparams; i++)
        all &= o->params[i].done || o->params[i].clock != device;
    if (!all) {
        done = list_done(o, device);
        part_twins(o, device);
        if (!done)
            return false;
    }
    kiln_formula_begin(&p, KILN_IN(kiln_optim_clock_on(o, device), u->found, done));
    kiln_register next =
        all ? kiln_formula_put(&p, KILN_PW_add_scalar, TAKEN, 0, 1) : kiln_formula_put(&p, KILN_PW_add, TAKEN, DONE, 0);
    kiln_formula_assign(&p, TAKEN, kiln_formula_put3(&p, KILN_PW_where, FOUND, TAKEN, next, 0));
    return kiln_formula_record(&p);
}
