/* A moving average of a module's parameters and buffers: often better than the weights of any one step. Averages of
 * 16-bit weights are f32: what a step adds is smaller than their last digit. */
#include <math.h>
#include <string.h>
#include "core/alloc.h"
#include "core/fail.h"
#include "ops/widen.h"
#include "optim/optim.h"
#include "tensor/scope.h"
#include "trace/autocast.h"

struct kiln_ema {
    double decay;
    int64_t count;
    kiln_tensor **weights; /* references: the module's own */
    kiln_tensor **averages;
    kiln_tensor **exact; /* of 16-bit weights that were exchanged: the average that the weight now shows, as it was */
    char **names;
};

/* What the average of a weight is kept in. */
static kiln_dtype average_dtype(const kiln_tensor *weight)
{
    return kiln_is_half(kiln_dtype_of(weight)) ? KILN_F32 : kiln_dtype_of(weight);
}

void kiln_ema_free(kiln_ema *e)
{
    if (!e)
        return;
    for (int64_t i = 0; i < e->count; i++) {
        kiln_tensor_unref(e->weights[i]);
        kiln_release(e->averages[i]);
        kiln_release(e->exact[i]);
        kiln_free(e->names[i]);
    }
    kiln_free(e->weights);
    kiln_free(e->averages);
    kiln_free(e->exact);
    kiln_free(e->names);
    kiln_free(e);
}

static bool add(kiln_ema *e, kiln_tensor *weight, const char *name)
{
    size_t size = strlen(name) + 1;
    int64_t i = e->count;
    if (!(e->names[i] = kiln_alloc(size, 1)))
        return false;
    memcpy(e->names[i], name, size);
    e->weights[i] = kiln_tensor_ref(weight);
    e->count++;
    kiln_no_grad
        e->averages[i] = kiln_keep(average_dtype(weight) == kiln_dtype_of(weight) ? kiln_clone(weight)
                                                                                  : kiln_cast(weight, KILN_F32));
    if (e->averages[i])
        e->averages[i]->storage->role = KILN_ROLE_OPTIMIZER;
    return e->averages[i] != NULL;
}

static bool fill(kiln_ema *e, kiln_params state)
{
    size_t n = (size_t)state.count;
    e->weights = kiln_alloc_zero(n, sizeof(kiln_tensor *));
    e->averages = e->weights ? kiln_alloc_zero(n, sizeof(kiln_tensor *)) : NULL;
    e->exact = e->averages ? kiln_alloc_zero(n, sizeof(kiln_tensor *)) : NULL;
    e->names = e->exact ? kiln_alloc_zero(n, sizeof(char *)) : NULL;
    bool ok = e->names != NULL;
    for (int64_t i = 0; ok && i < state.count; i++)
        ok = add(e, state.tensors[i], state.names[i]);
    return ok && kiln_eval(); /* here and now: a step that is discarded later must not take the copies with it */
}

kiln_ema *kiln_ema_new(kiln_module *m, double decay)
{
    if (!(decay >= 0 && decay <= 1))
        return kiln_fail(KILN_E_ARGUMENT, "ema", "the decay is %g, but must be from 0 to 1", decay);
    uint64_t failures = kiln_fail_count();
    kiln_params state = m ? kiln_state(m) : (kiln_params){0};
    if (!m || kiln_fail_count() != failures)
        return !m && kiln_ok() ? kiln_fail(KILN_E_ARGUMENT, "ema", "the module is NULL") : NULL;
    kiln_ema *e = kiln_alloc_zero(1, sizeof *e);
    if (!e)
        return NULL;
    e->decay = decay;
    if (fill(e, state))
        return e;
    kiln_ema_free(e);
    return NULL;
}

/* t as it has to be beside the weight; NULL with an error. */
static kiln_tensor *fitting(kiln_tensor *t, const kiln_tensor *weight)
{
    kiln_dtype dtype = average_dtype(weight);
    kiln_tensor *cast = kiln_dtype_of(t) == dtype ? t : kiln_optim_converted(t, dtype);
    if (!cast || cast->device == weight->device)
        return cast;
    kiln_tensor *moved = kiln_keep(kiln_to(cast, weight->device));
    if (cast != t)
        kiln_release(cast);
    return moved;
}

static bool follow_one(kiln_tensor **t, const kiln_tensor *weight)
{
    kiln_tensor *fit = *t ? fitting(*t, weight) : NULL;
    if (fit == *t)
        return true;
    if (!fit)
        return false;
    fit->storage->role = KILN_ROLE_OPTIMIZER;
    kiln_release(*t);
    *t = fit;
    return true;
}

/* Averages go where the weights have gone, and what the weights were cast to. */
static bool follow(kiln_ema *e)
{
    for (int64_t i = 0; i < e->count; i++)
        if (!follow_one(&e->averages[i], e->weights[i]) || !follow_one(&e->exact[i], e->weights[i]))
            return false;
    return true;
}

static bool blend(kiln_ema *e, int64_t i)
{
    kiln_tensor *average = e->averages[i], *weight = e->weights[i];
    if (!kiln_dtype_is_float(kiln_dtype_of(weight)))
        return kiln_assign(average, weight); /* counters are copied */
    weight = kiln_cast(weight, kiln_dtype_of(average));
    if (!weight)
        return false;
    kiln_formula p;
    kiln_formula_begin(&p, KILN_IN(average, weight));
    kiln_formula_assign(&p, 0, kiln_formula_put(&p, KILN_PW_lerp, 0, 1, 1 - e->decay));
    return kiln_formula_record(&p);
}

/* A 16-bit weight can only show a rounded average. The average itself is set aside, and comes back where the weight
 * still is what it was rounded to. */
static bool swap_rounded(kiln_ema *e, int64_t i)
{
    kiln_tensor *weight = e->weights[i], *average = e->averages[i];
    if (!e->exact[i]) {
        e->exact[i] = kiln_keep(kiln_tensor_new(NULL, KILN_F32, average->ndim, average->shape, average->device));
        if (!e->exact[i])
            return false;
        e->exact[i]->storage->role = KILN_ROLE_OPTIMIZER;
    }
    kiln_tensor *was = kiln_clone(weight), *aside = kiln_clone(average);
    kiln_tensor *same = kiln_eq(kiln_cast(e->exact[i], kiln_dtype_of(weight)), was);
    kiln_tensor *next = kiln_where(same, e->exact[i], kiln_cast(was, KILN_F32));
    return next && kiln_assign(weight, average) && kiln_assign(average, next) && kiln_assign(e->exact[i], aside);
}

static bool swap(kiln_ema *e, int64_t i)
{
    kiln_tensor *weight = e->weights[i], *average = e->averages[i];
    if (kiln_dtype_of(weight) != kiln_dtype_of(average))
        return swap_rounded(e, i);
    kiln_tensor *was = kiln_clone(weight);
    return was && kiln_assign(weight, average) && kiln_assign(average, was);
}

static bool for_each(kiln_ema *e, bool (*change)(kiln_ema *e, int64_t i))
{
    bool ok = kiln_optim_given(e, "average");
    kiln_inner_scope
        kiln_no_grad {
            ok = ok && follow(e);
            for (int64_t i = 0; ok && i < e->count; i++)
                ok = change(e, i);
        }
    return ok;
}

bool kiln_ema_update(kiln_ema *e)
{
    KILN_NO_AUTOCAST;
    return for_each(e, blend);
}

bool kiln_ema_swap(kiln_ema *e)
{
    return for_each(e, swap);
}

kiln_params kiln_ema_state(kiln_ema *e)
{
    bool ok = kiln_optim_given(e, "average");
    kiln_inner_scope
        kiln_no_grad
            ok = ok && follow(e);
    return ok ? (kiln_params){e->count, e->averages, (const char *const *)e->names} : (kiln_params){0};
}
