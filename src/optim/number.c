/* Numbers that the host or the device knows: see number.h. */
#include "optim/number.h"
#include <math.h>
#include "core/alloc.h"
#include "optim/optim.h"
#include "trace/trace.h"

/* ---- Numbers on the device ---- */

/* Inputs and the first row of an update's `numbers`. */
enum { TAKEN, PRODUCT, COUNT_INPUTS, STEP = COUNT_INPUTS };

void kiln_numbers_begin(kiln_update *u)
{
    u->nnumbers = u->nrates = 0;
    u->known_for = -1;
    u->product = NULL;
    if (!u->gated || u->dry)
        return;
    kiln_tensor *const later[COUNT_INPUTS] = {NULL};
    kiln_formula_begin(&u->numbers, later, COUNT_INPUTS);
    kiln_formula_expect(&u->numbers, TAKEN, KILN_F64);
    kiln_formula_expect(&u->numbers, PRODUCT, KILN_F64);
    kiln_formula_put(&u->numbers, KILN_PW_add_scalar, TAKEN, 0, 1);
}

static kiln_number on_device(kiln_register made)
{
    return (kiln_number){.on_device = true, .made = made};
}

/* One row. Nothing is written where the numbers that the host adds are all that is asked for. */
static kiln_number row(kiln_update *u, kiln_pw_id id, kiln_number a, kiln_number b, double s)
{
    return on_device(u->dry ? 0 : kiln_formula_put(&u->numbers, id, a.made, b.made, s));
}

/* x where the condition is false, else s. */
static kiln_number fill(kiln_update *u, kiln_number condition, kiln_number x, double s)
{
    return row(u, KILN_PW_masked_fill, condition, x, s);
}

/* Records a formula of numbers for the parameter's count. */
static bool record(kiln_update *u, kiln_formula *p, kiln_tensor **out)
{
    kiln_trace *tr = kiln_trace_current();
    int64_t twin = u->owner->params[u->index].twin, at = tr ? tr->nfloats : 0;
    kiln_tensor *const in[COUNT_INPUTS] = {kiln_select(u->clock, 0, twin), u->product};
    if (!tr || !in[TAKEN])
        return false;
    kiln_formula_set_inputs(p, in);
    bool ok = kiln_formula_compute(p, out);
    for (int i = 0; ok && i < u->nrates; i++) /* they are others when the step is run again */
        ok = kiln_trace_vary(tr, u->owner, kiln_optim_rate_index(u->owner, u->options), at + u->rates[i], 1);
    return ok;
}

/* The last of p's results: a number in the parameter's type. */
static void add_result(const kiln_update *u, kiln_formula *p, kiln_number x)
{
    kiln_dtype dtype = kiln_dtype_of(u->formula.in[KILN_PARAMETER]);
    kiln_formula_result(p, dtype == KILN_F64 ? x.made : kiln_formula_cast(p, x.made, dtype));
}

/* A number without dims, by itself; NULL with an error. */
static kiln_tensor *tensor_of(kiln_update *u, kiln_number x)
{
    kiln_tensor *out[KILN_MAX_OUTPUTS];
    kiln_formula p = u->numbers;
    add_result(u, &p, x);
    return record(u, &p, out) ? out[0] : NULL;
}

bool kiln_numbers_record(kiln_update *u)
{
    int64_t twin = u->owner->params[u->index].twin;
    if (!u->nnumbers || u->dry)
        return true;
    if (u->known_for != twin && !record(u, &u->numbers, u->known))
        return false;
    u->known_for = twin;
    for (int k = 0; k < u->nnumbers; k++)
        u->formula.in[KILN_NUMBER0 + k] = u->known[k];
    return true;
}

/* ---- Arithmetic ---- */

kiln_number kiln_number_of(double value)
{
    return (kiln_number){.value = value};
}

kiln_number kiln_number_step(kiln_update *u)
{
    return u->gated ? on_device(STEP) : kiln_number_of((double)u->step);
}

kiln_number kiln_number_plus(kiln_update *u, kiln_number x, double s)
{
    return x.on_device ? row(u, KILN_PW_add_scalar, x, x, s) : kiln_number_of(x.value + s);
}

kiln_number kiln_number_times(kiln_update *u, kiln_number x, double s)
{
    return x.on_device ? row(u, KILN_PW_mul_scalar, x, x, s) : kiln_number_of(x.value * s);
}

kiln_number kiln_number_less_than(kiln_update *u, double s, kiln_number x)
{
    return x.on_device ? row(u, KILN_PW_rsub_scalar, x, x, s) : kiln_number_of(s - x.value);
}

kiln_number kiln_number_divided_by(kiln_update *u, double s, kiln_number x)
{
    return x.on_device ? row(u, KILN_PW_rdiv_scalar, x, x, s) : kiln_number_of(s / x.value);
}

kiln_number kiln_number_power(kiln_update *u, double base, kiln_number x)
{
    return x.on_device ? row(u, KILN_PW_rpow_scalar, x, x, base) : kiln_number_of(pow(base, x.value));
}

kiln_number kiln_number_to(kiln_update *u, kiln_number x, double power)
{
    return x.on_device ? row(u, KILN_PW_pow_scalar, x, x, power) : kiln_number_of(pow(x.value, power));
}

kiln_number kiln_number_product(kiln_update *u, kiln_number a, kiln_number b)
{
    return a.on_device ? row(u, KILN_PW_mul, a, b, 0) : kiln_number_of(a.value * b.value);
}

kiln_number kiln_number_quotient(kiln_update *u, kiln_number a, kiln_number b)
{
    return a.on_device ? row(u, KILN_PW_div, a, b, 0) : kiln_number_of(a.value / b.value);
}

kiln_number kiln_number_root(kiln_update *u, kiln_number x)
{
    return x.on_device ? row(u, KILN_PW_sqrt, x, x, 0) : kiln_number_of(sqrt(x.value));
}

kiln_number kiln_number_at_most(kiln_update *u, kiln_number x, double s)
{
    return x.on_device ? fill(u, row(u, KILN_PW_gt_scalar, x, x, s), x, s) : kiln_number_of(fmin(x.value, s));
}

kiln_number kiln_number_choose(kiln_update *u, kiln_number x, double s, kiln_number above, kiln_number other)
{
    if (!x.on_device)
        return x.value > s ? above : other;
    kiln_number high = row(u, KILN_PW_gt_scalar, x, x, s);
    if (above.on_device && other.on_device)
        return on_device(u->dry ? 0
                                : kiln_formula_put3(&u->numbers, KILN_PW_where, high.made, above.made, other.made, 0));
    kiln_number low = row(u, KILN_PW_le_scalar, x, x, s);
    if (above.on_device)
        return fill(u, low, above, other.value);
    return fill(u, high, other.on_device ? other : fill(u, low, x, other.value), above.value);
}

/* A product that is as good as 0. */
static const double gone = 1e-20;

static double product_of(kiln_update *u, double (*factor)(const kiln_optim_options *, int64_t))
{
    const kiln_optim_options *o = u->options;
    kiln_optim_power *kept = &u->powers[0];
    if (kept->beta == o->beta1 && kept->decay == o->momentum_decay && kept->step == u->step)
        return kept->value;
    double product = 1;
    for (int64_t step = 1; step <= u->step && product > gone; step++)
        product *= factor(o, step);
    *kept = (kiln_optim_power){o->beta1, o->momentum_decay, u->step, product};
    return product;
}

/* All products until they are gone, for the device to pick from; made once. Should betas next to 1 leave one that is
 * not gone at the end of the list, the last one stands for those behind it. */
static kiln_tensor *list_products(kiln_update *u, double (*factor)(const kiln_optim_options *, int64_t))
{
    enum { LONGEST = 1 << 16 };
    const kiln_optim_options *o = u->options;
    kiln_optim_list *kept = u->products;
    if (kept->each && kept->beta == o->beta1 && kept->decay == o->momentum_decay &&
        kept->each->device == u->clock->device)
        return kept->each;
    double *values = kiln_alloc(LONGEST, sizeof *values), product = 1;
    int64_t n = 0;
    while (values && n < LONGEST && product > gone) {
        product *= factor(o, n + 1);
        values[n++] = product;
    }
    kiln_tensor *list = values ? kiln_keep(kiln_tensor_new(values, KILN_F64, KILN_SHAPE(n), u->clock->device)) : NULL;
    kiln_free(values);
    if (list) {
        kiln_release(kept->each);
        *kept = (kiln_optim_list){o->beta1, o->momentum_decay, list};
    }
    return list;
}

/* The one of the parameter's step: without dims. NULL with an error. */
static kiln_tensor *pick_product(kiln_update *u, double (*factor)(const kiln_optim_options *, int64_t))
{
    kiln_tensor *list = list_products(u, factor);
    if (!list)
        return NULL;
    kiln_tensor *taken = kiln_select(u->clock, 0, u->owner->params[u->index].twin);
    kiln_tensor *at = kiln_cast(kiln_clamp(taken, 0, (double)kiln_numel(list) - 1), KILN_I64);
    return kiln_select(kiln_index_select(list, 0, kiln_unsqueeze(at, 0)), 0, 0);
}

kiln_number kiln_number_product_of(kiln_update *u, double (*factor)(const kiln_optim_options *, int64_t))
{
    if (!u->gated)
        return kiln_number_of(product_of(u, factor));
    if (!u->dry)
        u->product = pick_product(u, factor);
    return on_device(PRODUCT);
}

/* ---- Rates ---- */

/* Written with the rate as the number of its row. */
static kiln_number with_rate(kiln_update *u, kiln_pw_id id, kiln_number x)
{
    if (u->dry)
        return on_device(0);
    u->numbers.full |= u->nrates == KILN_RATES;
    if (!u->numbers.full)
        u->rates[u->nrates++] = u->numbers.call.attrs.nfloats;
    return row(u, id, x, x, u->options->lr);
}

kiln_number kiln_rate_times(kiln_update *u, kiln_number x)
{
    return x.on_device ? with_rate(u, KILN_PW_mul_scalar, x) : kiln_number_of(u->options->lr * x.value);
}

kiln_number kiln_rate_divided_by(kiln_update *u, kiln_number x)
{
    return x.on_device ? with_rate(u, KILN_PW_rdiv_scalar, x) : kiln_number_of(u->options->lr / x.value);
}

kiln_number kiln_bias_correction(kiln_update *u, int which, double beta)
{
    if (u->gated)
        return kiln_number_less_than(u, 1, kiln_number_power(u, beta, kiln_number_step(u)));
    kiln_optim_power *p = &u->powers[which];
    if (p->beta != beta || p->step != u->step)
        *p = (kiln_optim_power){.beta = beta, .step = u->step, .value = pow(beta, (double)u->step)};
    return kiln_number_of(1 - p->value);
}

/* ---- What is done with them ---- */

kiln_register kiln_formula_scale(kiln_update *u, kiln_register a, kiln_number by)
{
    if (!by.on_device)
        return kiln_formula_put(&u->formula, KILN_PW_mul_scalar, a, 0, by.value);
    if (u->nnumbers == KILN_NUMBERS) {
        u->formula.full = true;
        return a;
    }
    if (!u->dry)
        add_result(u, &u->numbers, by);
    kiln_formula_expect(&u->formula, KILN_NUMBER0 + u->nnumbers, kiln_dtype_of(u->formula.in[KILN_PARAMETER]));
    return kiln_formula_put(&u->formula, KILN_PW_mul, a, KILN_NUMBER0 + u->nnumbers++, 0);
}

kiln_tensor *kiln_update_scale(kiln_update *u, kiln_tensor *x, kiln_number by)
{
    return by.on_device ? kiln_mul(x, tensor_of(u, by)) : kiln_mul_scalar(x, by.value);
}

kiln_tensor *kiln_update_lerp(kiln_update *u, kiln_tensor *a, kiln_tensor *b, kiln_number weight)
{
    return weight.on_device ? kiln_add(a, kiln_mul(kiln_sub(b, a), tensor_of(u, weight)))
                            : kiln_lerp(a, b, weight.value);
}

bool kiln_update_assign(const kiln_update *u, int input, kiln_tensor *value)
{
    kiln_tensor *to = kiln_update_tensor(u, input);
    return kiln_assign(to, u->gated ? kiln_where(u->found, to, value) : value);
}
