/* Optimizers: groups of parameters, their state, and the step that updates them all. */
#include <math.h>
#include <string.h>
#include "core/sized.h"
#include "core/alloc.h"
#include "core/convert.h"
#include "core/fail.h"
#include "core/half.h"
#include "core/hash.h"
#include "core/intern.h"
#include "ops/widen.h"
#include "optim/number.h"
#include "optim/optim.h"
#include "tensor/scope.h"
#include "trace/shapes.h"
#include "trace/autocast.h"

/* ---- Making ---- */

static bool find_listed(const kiln_optim *o, const kiln_tensor *t, int64_t first, bool *listed)
{
    *listed = false;
    for (int64_t i = 0; i < o->nparams; i++) {
        if (o->params[i].tensor != t)
            continue;
        *listed = true; /* one that a list names twice (a tied weight) is one parameter */
        if (i < first)
            return kiln_fail(KILN_E_ARGUMENT, o->rule->op.name, "%s is in another group already", o->params[i].name);
    }
    return true;
}

static uint64_t hash_name(const char *name)
{
    uint64_t hash = 0;
    for (; *name; name++)
        hash = kiln_mix(hash, (uint8_t)*name);
    return hash;
}

static bool is_taken(const kiln_optim *o, const char *name)
{
    uint64_t hash = hash_name(name);
    for (int64_t i = 0; i < o->nparams; i++)
        if (o->params[i].hash == hash && !strcmp(o->params[i].name, name))
            return true;
    return false;
}

/* A copy of the name; of one that another parameter has (both modules have a "bias") the first of name.2, name.3, …
 * that is free. So names follow from the order of the parameters alone, and what was saved is found again. */
static char *unique_name(const kiln_optim *o, const char *name)
{
    size_t room = strlen(name) + 24;
    char *copy = kiln_alloc(room, 1);
    if (copy)
        memcpy(copy, name, strlen(name) + 1);
    for (int64_t n = 2; copy && is_taken(o, copy); n++)
        snprintf(copy, room, "%s.%lld", name, (long long)n);
    return copy;
}

static bool add_param(kiln_optim *o, kiln_tensor *t, const char *name, int64_t index, int group)
{
    char number[24];
    snprintf(number, sizeof number, "%lld", (long long)index);
    name = name ? name : kiln_tensor_label(t, number);
    if (!t)
        return kiln_fail(KILN_E_ARGUMENT, o->rule->op.name, "parameter %s is NULL", name);
    if (!kiln_dtype_is_float(kiln_dtype_of(t)))
        return kiln_fail(KILN_E_DTYPE, o->rule->op.name, "%s is %s; only floats can be trained", name,
                         kiln_dtype_name(kiln_dtype_of(t)));
    if (!KILN_GROW(o->params, o->params_capacity, o->nparams + 1))
        return false;
    char *copy = unique_name(o, name);
    if (!copy)
        return false;
    o->params[o->nparams++] = (kiln_optim_param){.tensor = kiln_tensor_ref(t),
                                                 .name = copy,
                                                 .hash = hash_name(copy),
                                                 .label = kiln_intern(copy),
                                                 .group = group,
                                                 .clock = KILN_NO_DEVICE};
    return true;
}

static void free_params(kiln_optim *o, int64_t from)
{
    while (o->nparams > from) {
        kiln_optim_param *p = &o->params[--o->nparams];
        for (int k = 0; k < KILN_OPTIM_SLOTS; k++)
            kiln_release(p->state[k]);
        kiln_tensor_unref(p->tensor);
        kiln_free(p->name);
    }
}

static bool add_group(kiln_optim *o, kiln_params params, const kiln_optim_options *options)
{
    int64_t first = o->nparams;
    bool ok = KILN_GROW(o->groups, o->groups_capacity, o->ngroups + 1);
    for (int64_t i = 0; ok && i < params.count; i++) {
        bool listed;
        ok = find_listed(o, params.tensors[i], first, &listed) &&
             (listed || add_param(o, params.tensors[i], params.names ? params.names[i] : NULL, i, (int)o->ngroups));
    }
    if (!ok) {
        free_params(o, first);
        return false;
    }
    o->groups[o->ngroups++] = *options;
    return true;
}

static bool check_list(const char *who, kiln_params params)
{
    if (params.count >= 0 && (!params.count || params.tensors))
        return true;
    return kiln_fail(KILN_E_ARGUMENT, who, "the list of parameters is not one");
}

kiln_optim *kiln_optim_new(const char *name, kiln_params params, const kiln_optim_options *options)
{
    kiln_optim_options given, resolved, defaults;
    const kiln_optim_rule *rule = kiln_optim_find(name);
    if (!rule || !KILN_TAKE_OPTIONS(name, given, options))
        return NULL;
    defaults = kiln_optim_defaults_of(rule);
    if (!kiln_optim_resolve(rule, &given, &defaults, &resolved) || !check_list(name, params))
        return NULL;
    if (!params.count) { /* what kiln_parameters gives when it fails, too */
        if (kiln_ok())
            kiln_fail(KILN_E_ARGUMENT, name, "there are no parameters to train");
        return NULL;
    }
    kiln_optim *o = kiln_alloc_zero(1, sizeof *o);
    if (!o)
        return NULL;
    o->rule = rule;
    o->label = kiln_intern("optimizer");
    if (add_group(o, params, &resolved))
        return o;
    kiln_optim_free(o);
    return NULL;
}

bool kiln_optim_add_group(kiln_optim *o, kiln_params params, const kiln_optim_options *options)
{
    kiln_optim_options given, resolved;
    return kiln_optim_given(o, "optimizer") && KILN_TAKE_OPTIONS(o->rule->op.name, given, options) &&
           kiln_optim_resolve(o->rule, &given, &o->groups[0], &resolved) && check_list(o->rule->op.name, params) &&
           (params.count || kiln_ok()) && kiln_optim_stop_clocks(o) && add_group(o, params, &resolved);
}

void kiln_optim_free(kiln_optim *o)
{
    if (!o)
        return;
    free_params(o, 0);
    kiln_optim_free_names(o);
    kiln_optim_drop_receipts(o, true);
    kiln_optim_drop_clocks(o);
    kiln_free(o->clocks);
    kiln_release(o->products.each);
    kiln_release(o->skipped);
    kiln_free(o->skips);
    kiln_free(o->list);
    kiln_free(o->names);
    kiln_free(o->params);
    kiln_free(o->groups);
    kiln_free(o);
}

/* ---- State tensors ---- */

static void fill(void *data, int64_t n, kiln_dtype dtype, double value)
{
    uint16_t half = dtype == KILN_F16 ? kiln_f32_to_f16((float)value) : kiln_f32_to_bf16((float)value);
    for (int64_t i = 0; i < n; i++)
        switch (dtype) {
        case KILN_F64: ((double *)data)[i] = value; break;
        case KILN_F32: ((float *)data)[i] = (float)value; break;
        default: ((uint16_t *)data)[i] = half; break;
        }
}

static bool has_master(const kiln_optim *o, const kiln_optim_param *p)
{
    return kiln_is_half(kiln_dtype_of(p->tensor)) && o->groups[p->group].master_weights;
}

static kiln_dtype state_dtype(const kiln_optim *o, const kiln_optim_param *p)
{
    return has_master(o, p) ? KILN_F32 : kiln_dtype_of(p->tensor);
}

const char *kiln_optim_slot_name(const kiln_optim *o, const kiln_optim_param *p, int slot)
{
    return slot == KILN_OPTIM_MASTER ? "master_param" : kiln_optim_rule_of(o, p)->state[slot];
}

/* Made at once, not as a part of the step: it stays when the step is discarded, and the first step's plan is that of
 * all others. A parameter that has only a shape has such a state. */
static kiln_tensor *make_state(const kiln_tensor *p, kiln_dtype dtype, const kiln_optim_state_shape *s)
{
    if (p->storage->shape_only)
        return kiln_keep(kiln_shapes_tensor(dtype, s->ndim, s->shape, p->device));
    int64_t n = 1;
    for (int d = 0; d < s->ndim; d++)
        n *= s->shape[d];
    void *data = s->value != 0 ? kiln_alloc((size_t)n, kiln_dtype_size(dtype)) : NULL;
    if (s->value != 0 && !data)
        return NULL;
    if (data)
        fill(data, n, dtype, s->value);
    kiln_tensor *t = kiln_keep(kiln_tensor_new(data, dtype, s->ndim, s->shape, p->device));
    kiln_free(data);
    return t;
}

kiln_tensor *kiln_optim_converted(const kiln_tensor *t, kiln_dtype dtype)
{
    if (t->storage->shape_only)
        return kiln_keep(kiln_shapes_tensor(dtype, t->ndim, t->shape, t->device));
    int64_t n = kiln_numel(t);
    size_t bytes = (size_t)n * kiln_dtype_size(kiln_dtype_of(t));
    void *was = kiln_alloc(bytes, 1), *is = was ? kiln_alloc((size_t)n, kiln_dtype_size(dtype)) : NULL;
    kiln_tensor *fresh = NULL;
    if (is && (!n || kiln_trace_copy_out(t->storage, was, t->storage->address, bytes))) {
        kiln_convert_floats(is, dtype, was, kiln_dtype_of(t), n);
        fresh = kiln_keep(kiln_tensor_new(is, dtype, t->ndim, t->shape, t->device));
    }
    kiln_free(was);
    kiln_free(is);
    return fresh;
}

const kiln_optim_rule *kiln_optim_rule_of(const kiln_optim *o, const kiln_optim_param *p)
{
    const kiln_optim_rule *other = o->rule->rule_for ? o->rule->rule_for(&o->groups[p->group], p->tensor) : NULL;
    return other ? other : o->rule;
}

static bool wants_state(const kiln_optim *o, const kiln_optim_param *p, int slot, kiln_optim_state_shape *shape)
{
    const kiln_optim_rule *rule = kiln_optim_rule_of(o, p);
    *shape = (kiln_optim_state_shape){.ndim = p->tensor->ndim};
    memcpy(shape->shape, p->tensor->shape, sizeof shape->shape);
    if (slot == KILN_OPTIM_MASTER)
        return has_master(o, p);
    return rule->state[slot] && (!rule->has_state || rule->has_state(&o->groups[p->group], p->tensor, slot, shape));
}

/* The state tensor t, or none, made to fit the parameter; NULL with an error. */
static kiln_tensor *fitting_state(kiln_tensor *t, const kiln_tensor *p, kiln_dtype dtype,
                                  const kiln_optim_state_shape *shape)
{
    kiln_tensor *fit = !t                          ? make_state(p, dtype, shape)
                       : kiln_dtype_of(t) != dtype ? kiln_optim_converted(t, dtype)
                                                   : t;
    if (!fit || fit->device == p->device)
        return fit;
    kiln_tensor *moved = NULL;
    kiln_no_grad
        moved = kiln_keep(kiln_to(fit, p->device));
    if (fit != t)
        kiln_release(fit);
    return moved;
}

bool kiln_optim_place_state(const kiln_optim *o, kiln_optim_param *p)
{
    kiln_dtype dtype = state_dtype(o, p);
    if (p->state[KILN_OPTIM_MASTER] && !has_master(o, p)) { /* the parameter is no longer in 16 bits */
        kiln_release(p->state[KILN_OPTIM_MASTER]);
        p->state[KILN_OPTIM_MASTER] = NULL;
    }
    for (int k = 0; k < KILN_OPTIM_SLOTS; k++) {
        kiln_optim_state_shape shape;
        kiln_tensor *t = p->state[k];
        if (t && kiln_is_shape_only(t) && !p->tensor->storage->shape_only)
            t = NULL; /* the parameter got values since: its state begins */
        if ((t && t->device == p->tensor->device && kiln_dtype_of(t) == dtype) || !wants_state(o, p, k, &shape))
            continue;
        if (k == KILN_OPTIM_MASTER && !t)
            p->began = false;
        if (!(t = fitting_state(t, p->tensor, dtype, &shape)))
            return false;
        t->storage->role = KILN_ROLE_OPTIMIZER;
        kiln_release(p->state[k]);
        p->state[k] = t;
    }
    return true;
}

/* ---- The step ---- */

static bool is_due(const kiln_optim_param *p)
{
    return kiln_grad_of(p->tensor) && kiln_needs_grad(p->tensor);
}

/* The gradient of a parameter that is due. It is not asked for again: a device may tell at any time that the step which
 * was to compute it has failed. Then there is none any more, and whoever uses this one is told. */
static kiln_tensor *gradient_of(const kiln_optim_param *p)
{
    return p->tensor->extra->grad;
}

/* A gradient that a step has used and that was added to since means that nobody zeroed it. */
static void notice_unzeroed(kiln_optim *o, const kiln_optim_param *p)
{
    if (o->told || gradient_of(p)->spent != KILN_SPENT_AND_ADDED_TO)
        return;
    o->told = true;
    kiln_notice("%s: the gradient of %s was added to the one that an earlier step has used already: call "
                "kiln_zero_grad before each kiln_backward (or before the first of several that make one step)",
                o->rule->op.name, p->name);
}

/* No update is written there yet. It is mostly room for the formula, which is not cleared. */
static void begin_updates(kiln_optim *o, kiln_update *u, bool gated)
{
    u->owner = o;
    u->powers = o->powers;
    u->products = &o->products;
    u->gated = u->dry = gated;
    u->found = u->clock = NULL;
    u->options = NULL;
    u->step = 0;
    u->formula.call.nin = 0;
}

/* Which inputs a formula has tells which states there are. */
static unsigned present(kiln_tensor *const *in)
{
    unsigned mask = 0;
    for (int k = 0; k < KILN_OPTIM_STATES; k++)
        mask |= (in[KILN_STATE0 + k] != NULL) << k;
    return mask;
}

/* Whether what u knows of numbers on the device holds for the parameter's count too, or follows from it alike. */
static bool has_numbers_for(const kiln_update *u, const kiln_optim_param *p)
{
    return !u->gated || u->dry || !u->product || u->known_for == p->twin;
}

/* The parameter's next update, by this gradient. In most steps it is the one written before it in *u, of other tensors:
 * formulas look at options, the count of steps and which states there are. A master is updated in the place of its
 * parameter. False with an error. */
static bool write_update(kiln_optim *o, int64_t i, kiln_tensor *gradient, const kiln_optim_rule *rule, kiln_update *u)
{
    const kiln_optim_param *p = &o->params[i];
    kiln_tensor *master = p->state[KILN_OPTIM_MASTER];
    kiln_tensor *in[KILN_UPDATE_INPUTS] = {master ? master : p->tensor, gradient};
    int n = KILN_STATE0;
    for (int k = 0; k < KILN_OPTIM_STATES; k++)
        if ((in[KILN_STATE0 + k] = p->state[k]))
            n = KILN_STATE0 + k + 1;
    if (u->gated) {
        in[KILN_GATE] = u->found;
        n = KILN_UPDATE_INPUTS;
    }
    bool same = rule->formula && u->options == &o->groups[p->group] && (u->gated || u->step == p->steps + 1) &&
                u->formula.call.nin == n && present(u->formula.in) == present(in) &&
                u->formula.in[0]->dtype == in[0]->dtype && has_numbers_for(u, p);
    u->index = i;
    if (same)
        kiln_formula_set_inputs(&u->formula, in);
    else {
        u->options = &o->groups[p->group];
        u->step = p->steps + 1;
        kiln_numbers_begin(u);
        kiln_formula_begin(&u->formula, in, n);
        if (rule->formula)
            rule->formula(u);
    }
    return kiln_numbers_record(u);
}

/* A master stands for its parameter as long as it rounds to it. Elements of the parameter that somebody else has
 * changed (loaded, initialised, exchanged for averages), and all of them before the first step, are taken over as they
 * are. */
static bool follow_parameter(kiln_tensor *master, kiln_tensor *p)
{
    kiln_tensor *same = kiln_eq(kiln_cast(master, kiln_dtype_of(p)), p);
    return kiln_assign(master, kiln_where(same, master, kiln_cast(p, KILN_F32)));
}

static bool update_one(kiln_optim *o, int64_t i, kiln_update *u)
{
    kiln_trace *tr = kiln_trace_current();
    const kiln_optim_param *p = &o->params[i];
    const kiln_optim_rule *rule = kiln_optim_rule_of(o, p);
    kiln_tensor *master = p->state[KILN_OPTIM_MASTER], *gradient = gradient_of(p);
    if (master && (!follow_parameter(master, p->tensor) || !(gradient = kiln_cast(gradient, KILN_F32))))
        return false;
    int64_t at = tr->nfloats;
    if (!write_update(o, i, gradient, rule, u))
        return false;
    if (rule->formula)
        at = tr->nfloats; /* what the device's numbers are made of is noted apart */
    bool ok = rule->formula ? kiln_formula_record(&u->formula) : rule->compose(u);
    if (!rule->formula)
        u->options = NULL; /* nothing that the next update could be like */
    return ok && kiln_trace_vary(tr, o, i, at, tr->nfloats - at) && (!master || kiln_assign(p->tensor, master));
}

/* The updates of all parameters on one device, and the receipt for them. */
static bool update_device(kiln_optim *o, int64_t first, bool counts, kiln_tensor *found)
{
    kiln_thread *th = kiln_thread_state();
    kiln_device device = o->params[first].tensor->device;
    kiln_optim_receipt *receipt = kiln_optim_open_receipt(o, counts);
    kiln_update u;
    begin_updates(o, &u, found != NULL);
    if (found) {
        u.dry = false;
        u.found = kiln_to(found, device);
        u.clock = kiln_optim_clock_on(o, device);
        if (!u.found)
            return false;
    }
    for (int64_t i = first; receipt && i < o->nparams; i++) {
        kiln_optim_param *p = &o->params[i];
        if (p->done || p->tensor->device != device || !is_due(p))
            continue;
        th->module = p->label;
        if (!update_one(o, i, &u))
            return false;
        receipt->marks[i] = 1;
        p->done = true;
    }
    th->module = o->label;
    return receipt && (!found || kiln_optim_advance_clock(o, device, &u)) && kiln_optim_close_receipt(o, device);
}

/* One pass over all groups. Every operation in it is a part of the optimizer's, for messages and for devices that can
 * run all updates as one. */
static bool update_all(kiln_optim *o, kiln_tensor *found)
{
    kiln_thread *th = kiln_thread_state();
    const kiln_op *outer = th->composing;
    uint32_t outer_module = th->module;
    bool ok = true, counts = true;
    uint64_t failures = kiln_fail_count();
    if (!outer)
        th->composing = &o->rule->op;
    th->module = o->label;
    kiln_inner_scope
        kiln_no_grad
            for (int64_t i = 0; ok && i < o->nparams; i++)
                if (!o->params[i].done && is_due(&o->params[i])) {
                    ok = update_device(o, i, counts, found);
                    counts = false;
                }
    th->composing = outer;
    th->module = outer_module;
    return ok && kiln_fail_count() == failures; /* the end of the scope may run what has piled up */
}

bool kiln_optim_step(kiln_optim *o)
{
    return kiln_optim_given(o, "optimizer") && kiln_optim_step_unless(o, NULL);
}

bool kiln_optim_step_unless(kiln_optim *o, kiln_tensor *found)
{
    KILN_NO_AUTOCAST;
    kiln_trace *tr = kiln_trace_current();
    if (!tr || !kiln_optim_settle(o) || !(found ? kiln_optim_start_clocks(o) : kiln_optim_stop_clocks(o)))
        return false;
    for (int64_t i = 0; i < o->nparams; i++) {
        kiln_optim_param *p = &o->params[i];
        p->done = false;
        if (!is_due(p))
            continue;
        if (!kiln_optim_place_state(o, p))
            return false;
        notice_unzeroed(o, p);
    }
    if (!update_all(o, found)) {
        kiln_trace_discard(tr); /* half of the parameters must not be updated without the others */
        return false;
    }
    for (int64_t i = 0; i < o->nparams; i++)
        if (o->params[i].done)
            gradient_of(&o->params[i])->spent = KILN_SPENT;
    return kiln_trace_end_segment(tr);
}

bool kiln_optim_numbers(kiln_optim *o, int64_t i, double *to, int64_t count)
{
    kiln_update u;
    if (i >= o->nparams) {
        *to = o->groups[i - o->nparams].lr;
        return count == 1;
    }
    const kiln_optim_rule *rule = kiln_optim_rule_of(o, &o->params[i]);
    if (!rule->formula)
        return false; /* its numbers are known to the operations that it is composed of */
    begin_updates(o, &u, o->nclocks > 0);
    if (!write_update(o, i, NULL, rule, &u))
        return false;
    const kiln_attrs *attrs = &u.formula.call.attrs;
    if (attrs->nfloats != count)
        return false;
    memcpy(to, attrs->f, (size_t)count * sizeof *to);
    return true;
}

int64_t kiln_optim_rate_index(const kiln_optim *o, const kiln_optim_options *group)
{
    return o->nparams + (group - o->groups);
}

void kiln_zero_grad(kiln_optim *o)
{
    for (int64_t i = 0; kiln_given(o, "zero_grad") && i < o->nparams; i++)
        kiln_zero_grad_of(o->params[i].tensor);
}

/* ---- Asking and setting ---- */

const char *kiln_optim_name(const kiln_optim *o)
{
    return kiln_given(o, "optim_name") ? o->rule->op.name : "";
}

int64_t kiln_optim_steps(const kiln_optim *o)
{
    if (!kiln_given(o, "optim_steps"))
        return 0;
    kiln_optim_settle((kiln_optim *)o); /* finds out what is so already */
    kiln_optim_stop_clocks((kiln_optim *)o);
    return o->steps;
}

int kiln_optim_groups(const kiln_optim *o)
{
    return kiln_given(o, "optim_groups") ? (int)o->ngroups : 0;
}

static bool check_group(const kiln_optim *o, int group)
{
    if (!kiln_optim_given(o, "optimizer"))
        return false;
    if (group >= 0 && group < o->ngroups)
        return true;
    return kiln_fail(KILN_E_ARGUMENT, o->rule->op.name, "there is no group %d: the optimizer has %lld", group,
                     (long long)o->ngroups);
}

double kiln_optim_lr(const kiln_optim *o, int group)
{
    return check_group(o, group) ? o->groups[group].lr : NAN;
}

bool kiln_optim_set_lr(kiln_optim *o, int group, double lr)
{
    if (!check_group(o, group == -1 ? 0 : group))
        return false;
    if (!isfinite(lr) || lr < 0)
        return kiln_fail(KILN_E_ARGUMENT, o->rule->op.name, "a learning rate must be a number of at least 0, not %g",
                         lr);
    for (int g = 0; g < (int)o->ngroups; g++)
        if (group == -1 || group == g)
            o->groups[g].lr = lr;
    return true;
}
