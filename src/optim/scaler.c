/* Loss scaling (kiln/amp.h). Scale, counters and verdicts are tensors without dims; what becomes of them is written
 * with ordinary operations and formulas of them, so it is a part of the step: planned, run again and discarded with it.
 */
#include "optim/scaler.h"
#include <math.h>
#include <string.h>
#include "core/alloc.h"
#include "core/fail.h"
#include "core/sized.h"
#include "optim/optim.h"
#include "tensor/memory.h"
#include "tensor/scope.h"
#include "trace/autocast.h"
#include "trace/formula.h"
#include "trace/trace.h"

/* Updates after which the scale is looked at: begun at one, asked for at the next, so that nobody waits. */
enum { LOOK_EVERY = 64 };

typedef enum stage { READY, UNSCALED, STEPPED } stage;

/* What was found so far, from the last parameter to the first: whether there is a value that is not finite, and whose
 * it is. The latter is one number, so that all of this is a chain of operations on numbers, which makes one kernel: the
 * parameter in the upper bits, how many of its values are not finite in the lower ones; 0 while there are none. */
enum { VALUES_BITS = 40, AT_ONCE = 14 };

typedef struct findings {
    kiln_device device;
    kiln_tensor *found, *code; /* NULL: nobody was looked at yet */
    kiln_tensor *counts[AT_ONCE];
    int64_t whose[AT_ONCE];
    int n;
} findings;

/* An optimizer that the scaler serves. */
typedef struct served {
    kiln_optim *optim;
    stage stage;
    kiln_tensor *found;   /* bool: a gradient is not finite; since it was unscaled */
    kiln_tensor *culprit; /* i64: of the last step that was left out, see findings */
    kiln_tensor *skipped; /* steps that were left out */
    kiln_formula sum;     /* the last one that summed up, and whose counts: most steps have the same */
    int64_t whose[AT_ONCE];
} served;

struct kiln_scaler {
    kiln_scaler_options o; /* with its defaults filled in */
    kiln_scaler_state start;
    kiln_tensor *scale;   /* f32; NULL until it is used. These three are on one device */
    kiln_tensor *tracker; /* i64 */
    kiln_tensor *skipped; /* i64 */
    served *served;
    int64_t nserved, served_capacity;
    kiln_formula update, remember; /* written once, recorded in each step; empty before */

    int64_t updates;
    uint64_t ticket; /* of the copy of the scale that is under way */
    bool looking, told;
    kiln_staging staging; /* where it goes to */
};

static const char who[] = "scaler";

/* ---- Making ---- */

static bool fill_options(kiln_scaler_options *o)
{
    o->init_scale = o->init_scale == 0 ? 65536 : o->init_scale;
    o->growth_factor = o->growth_factor == 0 ? 2 : o->growth_factor;
    o->backoff_factor = o->backoff_factor == 0 ? 0.5 : o->backoff_factor;
    o->growth_interval = o->growth_interval ? o->growth_interval : 2000;
    if (!(o->init_scale > 0 && isfinite((float)o->init_scale)))
        return kiln_fail(KILN_E_ARGUMENT, who, "init_scale is %g, but must be a number above 0", o->init_scale);
    if (!(o->growth_factor > 1 && isfinite(o->growth_factor)))
        return kiln_fail(KILN_E_ARGUMENT, who, "growth_factor is %g, but must be above 1", o->growth_factor);
    if (!(o->backoff_factor > 0 && o->backoff_factor < 1))
        return kiln_fail(KILN_E_ARGUMENT, who, "backoff_factor is %g, but must be between 0 and 1", o->backoff_factor);
    if (o->growth_interval < 1 || o->growth_interval > INT64_C(1) << 53)
        return kiln_fail(KILN_E_ARGUMENT, who, "growth_interval is %lld, but must be at least 1",
                         (long long)o->growth_interval);
    return true;
}

kiln_scaler *kiln_scaler_new_(const kiln_scaler_options *options)
{
    kiln_scaler_options o;
    if (!KILN_TAKE_OPTIONS(who, o, options) || !fill_options(&o))
        return NULL;
    kiln_scaler *s = kiln_alloc_zero(1, sizeof *s);
    if (s) {
        s->o = o;
        s->start.scale = o.init_scale;
    }
    return s;
}

/* Forgets what the device holds. */
static void drop_tensors(kiln_scaler *s)
{
    if (s->looking)
        kiln_copied_out(s->scale->device, s->ticket); /* what is still being written to must not go */
    if (s->staging.memory)
        kiln_staging_give(s->scale->device, &s->staging);
    s->looking = false;
    for (int64_t i = 0; i < s->nserved; i++) {
        served *v = &s->served[i];
        kiln_release(v->found);
        kiln_release(v->culprit);
        kiln_release(v->skipped);
    }
    s->nserved = 0;
    kiln_release(s->scale);
    kiln_release(s->tracker);
    kiln_release(s->skipped);
    s->scale = s->tracker = s->skipped = NULL;
}

void kiln_scaler_free(kiln_scaler *s)
{
    if (!s)
        return;
    drop_tensors(s);
    kiln_free(s->served);
    kiln_free(s);
}

/* ---- Its tensors. Made at once, not as a part of the step: they stay when that is discarded. ---- */

static kiln_tensor *make(const void *value, kiln_dtype dtype, kiln_device device)
{
    kiln_tensor *t = kiln_keep(kiln_tensor_new(value, dtype, 0, NULL, device));
    if (t)
        t->storage->role = KILN_ROLE_OPTIMIZER;
    return t;
}

static bool place(kiln_scaler *s, kiln_device device)
{
    float scale = (float)s->start.scale;
    if (s->scale)
        return true;
    s->scale = make(&scale, KILN_F32, device);
    s->tracker = s->scale ? make(&s->start.growth_tracker, KILN_I64, device) : NULL;
    s->skipped = s->tracker ? make(&s->start.skipped, KILN_I64, device) : NULL;
    if (!s->skipped)
        drop_tensors(s);
    return s->skipped != NULL;
}

/* The optimizer's entry, if it has one. */
static served *find(const kiln_scaler *s, const kiln_optim *o)
{
    for (int64_t i = 0; i < s->nserved; i++)
        if (s->served[i].optim == o)
            return &s->served[i];
    return NULL;
}

/* A step that was discarded never happened: the verdict that it was to make says so. */
static void forget_discarded(served *v)
{
    const kiln_storage *found = v->found ? v->found->storage : NULL;
    if (!found || found->trace_refs > 0 || (found->has_memory && kiln_storage_computed(found)))
        return;
    kiln_release(v->found);
    v->found = NULL;
    v->stage = READY;
}

/* The optimizer's entry, made where it has none; NULL with an error. */
static served *serve(kiln_scaler *s, kiln_optim *o)
{
    served *v = find(s, o);
    int64_t none = 0;
    if (v) {
        forget_discarded(v);
        return v;
    }
    if (!place(s, o->params[0].tensor->device) || !KILN_GROW(s->served, s->served_capacity, s->nserved + 1))
        return NULL;
    served fresh = {.optim = o};
    fresh.culprit = make(&none, KILN_I64, s->scale->device);
    fresh.skipped = fresh.culprit ? make(&none, KILN_I64, s->scale->device) : NULL;
    if (!fresh.skipped) {
        kiln_release(fresh.culprit);
        return NULL;
    }
    s->served[s->nserved++] = fresh;
    return &s->served[s->nserved - 1];
}

/* ---- Scaling ---- */

kiln_tensor *kiln_scaler_scale(kiln_scaler *s, kiln_tensor *loss)
{
    KILN_NO_AUTOCAST;
    if (!kiln_optim_given(s, who) || !kiln_tensor_given(loss, who, 1))
        return NULL;
    if (s->o.disabled)
        return loss;
    if (!kiln_dtype_is_float(kiln_dtype_of(loss)))
        return kiln_fail(KILN_E_DTYPE, who, "the loss is %s, but must be of floats",
                         kiln_dtype_name(kiln_dtype_of(loss)));
    kiln_tensor *scaled = NULL;
    if (!place(s, loss->device))
        return NULL;
    uint64_t failures = kiln_fail_count();
    kiln_inner_scope
        kiln_scope_hand_up(scaled = kiln_mul(loss, kiln_to(s->scale, loss->device)));
    return kiln_fail_count() == failures ? scaled : NULL; /* the end of the scope may run what has piled up */
}

static bool check_dtype(const kiln_optim_param *p)
{
    kiln_dtype dtype = kiln_dtype_of(p->tensor);
    if (dtype == KILN_F32 || dtype == KILN_F64)
        return true;
    kiln_fail(KILN_E_DTYPE, who, "%s is %s, and so is its gradient, which loses what scaling is to keep", p->name,
              kiln_dtype_name(dtype));
    return kiln_hint("keep parameters f32 and compute in 16 bits with kiln_autocast; bf16 needs no scaler");
}

/* Writes the formula that takes f's counts into account. */
static void write_sum(kiln_formula *p, const findings *f, kiln_tensor *const *in)
{
    bool first = !f->found;
    kiln_formula_begin(p, in, f->n + (first ? 0 : 2));
    kiln_register found = f->n, code = first ? 0 : f->n + 1; /* where there is none the first count is 0, too */
    for (int i = 0; i < f->n; i++) {
        kiln_register any = kiln_formula_cast(p, i, KILN_BOOL);
        kiln_register named = kiln_formula_put(p, KILN_PW_add_scalar, i, 0, (double)(f->whose[i] << VALUES_BITS));
        code = kiln_formula_put3(p, KILN_PW_where, any, named, code, 0);
        found = first && !i ? any : kiln_formula_put(p, KILN_PW_logical_or, found, any, 0);
    }
    kiln_formula_result(p, found);
    kiln_formula_result(p, code);
}

/* Takes the counts into account. */
static bool sum_up(served *v, findings *f)
{
    kiln_tensor *in[AT_ONCE + 2], *out[2];
    size_t bytes = (size_t)f->n * sizeof *f->whose;
    if (!f->n)
        return true;
    for (int i = 0; i < f->n; i++)
        in[i] = f->counts[i];
    in[f->n] = f->found;
    in[f->n + 1] = f->code;
    if (v->sum.call.nin == f->n + (f->found ? 2 : 0) && !memcmp(v->whose, f->whose, bytes))
        kiln_formula_set_inputs(&v->sum, in);
    else {
        write_sum(&v->sum, f, in);
        memcpy(v->whose, f->whose, bytes);
    }
    if (!kiln_formula_compute(&v->sum, out))
        return false;
    f->found = out[0];
    f->code = out[1];
    f->n = 0;
    return true;
}

static bool add_count(served *v, findings *f, int64_t whose, kiln_tensor *count)
{
    f->whose[f->n] = whose;
    return (f->counts[f->n++] = kiln_to(count, f->device)) && (f->n < AT_ONCE || sum_up(v, f));
}

/* The gradient without the scale takes the place of what it was; out[1] is how many of its values are not finite. *p:
 * that of the parameter before, or of none. */
static bool unscale_one(kiln_trace *tr, kiln_formula *p, const kiln_optim_param *param, kiln_tensor *g,
                        kiln_tensor *inverse, kiln_tensor **out)
{
    kiln_tensor *in[] = {g, kiln_cast(kiln_to(inverse, kiln_device_of(g)), kiln_dtype_of(g))};
    if (!in[1])
        return false;
    if (p->call.nout && p->dtype[0] == g->dtype)
        kiln_formula_set_inputs(p, in);
    else {
        kiln_formula_begin(p, in, 2);
        kiln_register plain = kiln_formula_put(p, KILN_PW_mul, 0, 1, 0);
        kiln_register finite = kiln_formula_put(p, KILN_PW_isfinite, plain, 0, 0);
        kiln_formula_result(p, plain);
        kiln_formula_count(p, kiln_formula_put(p, KILN_PW_logical_not, finite, 0, 0));
    }
    return kiln_formula_compute(p, out) && kiln_trace_replace_grad(tr, param->tensor, out[0]);
}

/* A step that is left out is remembered with what was found. */
static bool remember(kiln_scaler *s, const served *v, const findings *f)
{
    enum { CULPRIT, SKIPPED, FOUND, CODE };
    kiln_formula *p = &s->remember;
    kiln_tensor *const in[] = {v->culprit, v->skipped, f->found, f->code};
    if (p->call.nout)
        kiln_formula_set_inputs(p, in);
    else {
        kiln_formula_begin(p, in, 4);
        kiln_formula_assign(p, CULPRIT, kiln_formula_put3(p, KILN_PW_where, FOUND, CODE, CULPRIT, 0));
        kiln_register one = kiln_formula_cast(p, FOUND, KILN_I64);
        kiln_formula_assign(p, SKIPPED, kiln_formula_put(p, KILN_PW_add, SKIPPED, one, 0));
    }
    return kiln_formula_record(p);
}

static bool unscale(kiln_trace *tr, kiln_scaler *s, served *v)
{
    const kiln_optim *o = v->optim;
    kiln_tensor *inverse = kiln_reciprocal(s->scale), *out[2];
    findings f = {.device = s->scale->device};
    kiln_formula p;
    p.call.nout = 0;
    for (int64_t i = o->nparams; i-- > 0;) {
        const kiln_optim_param *param = &o->params[i];
        kiln_tensor *g = kiln_grad_of(param->tensor);
        if (!g || !kiln_needs_grad(param->tensor))
            continue;
        if (!inverse || !check_dtype(param) || !unscale_one(tr, &p, param, g, inverse, out) ||
            !add_count(v, &f, i, out[1]))
            return false;
    }
    if (!sum_up(v, &f))
        return false;
    if (!f.found) /* no parameter has a gradient */
        kiln_on_device (f.device)
            f.found = kiln_zeros(0, NULL, KILN_BOOL);
    else if (!remember(s, v, &f))
        return false;
    return f.found && (v->found = kiln_keep(f.found)) != NULL;
}

static bool unscale_for(kiln_scaler *s, served *v)
{
    kiln_trace *tr = kiln_trace_current();
    uint64_t failures = kiln_fail_count();
    bool ok = false;
    if (tr)
        kiln_inner_scope
            kiln_no_grad
                ok = unscale(tr, s, v);
    ok = ok && kiln_fail_count() == failures; /* the end of the scope may run what has piled up */
    if (ok)
        v->stage = UNSCALED;
    else if (tr)
        kiln_trace_discard(tr); /* half of the gradients must not be unscaled without the others */
    return ok;
}

bool kiln_scaler_unscale(kiln_scaler *s, kiln_optim *o)
{
    KILN_NO_AUTOCAST;
    if (!kiln_optim_given(s, who) || !kiln_optim_given(o, "optimizer"))
        return false;
    served *v = s->o.disabled ? NULL : serve(s, o);
    if (!v)
        return s->o.disabled;
    if (v->stage == UNSCALED)
        return kiln_fail(KILN_E_STATE, who, "the gradients of this %s were unscaled already since the last update",
                         o->rule->op.name);
    if (v->stage == STEPPED)
        return kiln_fail(KILN_E_STATE, who, "kiln_scaler_unscale comes before kiln_scaler_step, not after it");
    return unscale_for(s, v);
}

bool kiln_scaler_step(kiln_scaler *s, kiln_optim *o)
{
    KILN_NO_AUTOCAST;
    if (!kiln_optim_given(s, who) || !kiln_optim_given(o, "optimizer"))
        return false;
    if (s->o.disabled)
        return kiln_optim_step(o);
    served *v = serve(s, o);
    if (!v)
        return false;
    if (v->stage == STEPPED) {
        kiln_fail(KILN_E_STATE, who, "this %s has taken its step since the last update", o->rule->op.name);
        return kiln_hint("call kiln_scaler_update once after the steps of all optimizers");
    }
    if ((v->stage == READY && !unscale_for(s, v)) || !kiln_optim_step_unless(o, v->found))
        return false;
    v->stage = STEPPED;
    return true;
}

/* ---- The scale itself ---- */

/* As PyTorch's: back off at once; grow after so many good steps, unless that leaves f32's range. The scale follows from
 * the tracker, which is 0 again in both cases: one chain of operations, and one kernel. */
static void write_update(kiln_formula *p, const kiln_scaler_options *o, kiln_tensor *const *in)
{
    enum { SCALE, TRACKER, SKIPPED, FOUND, INPUTS };
    kiln_formula_begin(p, in, INPUTS);
    kiln_register good = kiln_formula_put(p, KILN_PW_add_scalar, TRACKER, 0, 1);
    kiln_register due = kiln_formula_put(p, KILN_PW_ge_scalar, good, 0, (double)o->growth_interval);
    kiln_register over = kiln_formula_put(p, KILN_PW_logical_or, FOUND, due, 0);
    kiln_register tracker = kiln_formula_put(p, KILN_PW_masked_fill, over, good, 0);
    kiln_register grown = kiln_formula_put(p, KILN_PW_mul_scalar, SCALE, 0, o->growth_factor);
    kiln_register is_over = kiln_formula_put(p, KILN_PW_eq_scalar, tracker, 0, 0);
    kiln_register can_grow = kiln_formula_put(p, KILN_PW_isfinite, grown, 0, 0);
    kiln_register grows = kiln_formula_put(p, KILN_PW_logical_and, is_over, can_grow, 0);
    kiln_register larger = kiln_formula_put3(p, KILN_PW_where, grows, grown, SCALE, 0);
    kiln_register smaller = kiln_formula_put(p, KILN_PW_mul_scalar, SCALE, 0, o->backoff_factor);
    kiln_register one = kiln_formula_cast(p, FOUND, KILN_I64);
    kiln_formula_assign(p, TRACKER, tracker);
    kiln_formula_assign(p, SCALE, kiln_formula_put3(p, KILN_PW_where, FOUND, smaller, larger, 0));
    kiln_formula_assign(p, SKIPPED, kiln_formula_put(p, KILN_PW_add, SKIPPED, one, 0));
}

static bool record_update(kiln_scaler *s, kiln_tensor *found)
{
    kiln_tensor *const in[] = {s->scale, s->tracker, s->skipped, found};
    if (s->update.call.nout)
        kiln_formula_set_inputs(&s->update, in);
    else
        write_update(&s->update, &s->o, in);
    return kiln_formula_record(&s->update);
}

static void tell_small(kiln_scaler *s)
{
    float scale = *(const float *)s->staging.memory;
    if (s->told || !(scale < 1))
        return;
    s->told = true;
    kiln_notice(
        "the gradient scaler has lowered its scale to %g: there are gradients that are not finite at any scale, and "
        "their "
        "steps are left out. kiln_scaler_blame names the parameter; look for huge values in the data, and try a lower "
        "learning rate or bf16",
        (double)scale);
}

/* Copies are of what the device has by then: the steps before this one. */
static bool look(kiln_scaler *s)
{
    kiln_device device = s->scale->device;
    if (s->looking) {
        s->looking = false;
        if (!kiln_copied_out(device, s->ticket))
            return false;
        tell_small(s);
    }
    if (kiln_is_shape_only(s->scale) || !kiln_storage_computed(s->scale->storage))
        return true;
    if (!s->staging.memory && !kiln_staging_take(device, sizeof(float), &s->staging))
        return false;
    s->looking = kiln_copy_out_later(device, s->staging.memory, s->scale->storage->address, sizeof(float), &s->ticket);
    return s->looking;
}

bool kiln_scaler_passed(kiln_scaler *s)
{
    return ++s->updates % LOOK_EVERY != 0 || s->told || !s->scale || look(s);
}

bool kiln_scaler_update(kiln_scaler *s)
{
    KILN_NO_AUTOCAST;
    kiln_tensor *found = NULL;
    bool ok = true;
    uint64_t failures = kiln_fail_count();
    if (!kiln_optim_given(s, who))
        return false;
    if (s->o.disabled)
        return true;
    kiln_inner_scope
        kiln_no_grad {
            for (int64_t i = 0; ok && i < s->nserved; i++) {
                served *v = &s->served[i];
                forget_discarded(v);
                if (v->stage != READY)
                    ok = (found = found ? kiln_logical_or(found, v->found) : v->found) != NULL;
            }
            if (ok && !found) {
                ok = kiln_fail(KILN_E_STATE, who, "there is nothing to go by: no optimizer has taken a step");
                kiln_hint("kiln_scaler_update comes after kiln_scaler_step, once for all optimizers");
            }
            ok = ok && record_update(s, found);
        }
    for (int64_t i = 0; i < s->nserved; i++) {
        kiln_release(s->served[i].found);
        s->served[i].found = NULL;
        s->served[i].stage = READY;
    }
    kiln_trace *tr = ok && kiln_fail_count() == failures ? kiln_trace_current() : NULL;
    return tr && kiln_trace_end_segment(tr) && kiln_scaler_passed(s);
}

/* ---- Asking and setting ---- */

bool kiln_scaler_get_(kiln_scaler *s, kiln_scaler_state *state, size_t size)
{
    if (!kiln_optim_given(s, who))
        return false;
    kiln_scaler_state now = s->start;
    uint64_t failures = kiln_fail_count();
    if (s->o.disabled)
        now.scale = 1;
    else if (s->scale)
        now = (kiln_scaler_state){kiln_item(s->scale), kiln_item_i64(s->tracker), kiln_item_i64(s->skipped)};
    if (kiln_fail_count() != failures)
        return false;
    KILN_GIVE_SIZED(state, size, now);
    return true;
}

bool kiln_scaler_set_(kiln_scaler *s, const kiln_scaler_state *given, size_t size)
{
    kiln_scaler_state state = {0};
    if (!kiln_optim_given(s, who) || !given || !KILN_TAKE_SIZED(who, state, given, size))
        return false;
    if (!(state.scale > 0 && isfinite((float)state.scale)) || state.growth_tracker < 0 || state.skipped < 0)
        return kiln_fail(KILN_E_ARGUMENT, who,
                         "no scaler can be at a scale of %g after %lld good steps and %lld others", state.scale,
                         (long long)state.growth_tracker, (long long)state.skipped);
    drop_tensors(s);
    s->start = state;
    s->told = false;
    return true;
}

bool kiln_scaler_blame_(kiln_scaler *s, const kiln_optim *o, kiln_scaler_culprit *culprit, size_t size)
{
    kiln_scaler_culprit found = {0};
    if (!kiln_optim_given(s, who) || !kiln_optim_given(o, "optimizer"))
        return false;
    const served *v = find(s, o);
    uint64_t failures = kiln_fail_count();
    if (v && (found.skipped = kiln_item_i64(v->skipped)) > 0) {
        int64_t code = kiln_item_i64(v->culprit), first = code >> VALUES_BITS;
        found.values = code & ((INT64_C(1) << VALUES_BITS) - 1);
        found.parameter = first >= 0 && first < o->nparams ? o->params[first].name : NULL;
    }
    if (kiln_fail_count() != failures)
        return false;
    KILN_GIVE_SIZED(culprit, size, found);
    return true;
}
