/* Numbers that the host or the device knows: see number.h. */
#include "optim/number.h"
#include <math.h>
#include "core/alloc.h"
#include "optim/optim.h"
#include "trace/trace.h"

kiln_number kiln_number_of(double value)
{
    return (kiln_number){.value = value};
}

kiln_number kiln_number_step(const kiln_update *u)
{
    if (!u->gated)
        return kiln_number_of((double)u->step);
    return (kiln_number){.on_device = true, .each = u->steps};
}

/* One row of pointwise.def on numbers that the device has. Nothing is recorded where the numbers that the host adds are
 * all that is asked for. */
static kiln_number on_device(const kiln_update *u, kiln_pw_id row, kiln_number a, kiln_number b, double s)
{
    kiln_number n = {.on_device = true};
    if (u->dry)
        return n;
    kiln_attrs attrs = {.nfloats = kiln_pw_rows[row].scalars, .f = {s}};
    n.each = kiln_pw_call(kiln_pw_op(row), (kiln_tensor *[]){a.each, b.each}, kiln_pw_rows[row].arity, &attrs);
    return n;
}

kiln_number kiln_number_plus(const kiln_update *u, kiln_number x, double s)
{
    return x.on_device ? on_device(u, KILN_PW_add_scalar, x, x, s) : kiln_number_of(x.value + s);
}

kiln_number kiln_number_times(const kiln_update *u, kiln_number x, double s)
{
    return x.on_device ? on_device(u, KILN_PW_mul_scalar, x, x, s) : kiln_number_of(x.value * s);
}

kiln_number kiln_number_less_than(const kiln_update *u, double s, kiln_number x)
{
    return x.on_device ? on_device(u, KILN_PW_rsub_scalar, x, x, s) : kiln_number_of(s - x.value);
}

kiln_number kiln_number_divided_by(const kiln_update *u, double s, kiln_number x)
{
    return x.on_device ? on_device(u, KILN_PW_rdiv_scalar, x, x, s) : kiln_number_of(s / x.value);
}

static kiln_number like(const kiln_update *u, kiln_number x, double value)
{
    return (kiln_number){.on_device = true, .each = u->dry ? NULL : kiln_full_like(x.each, value)};
}

kiln_number kiln_number_power(const kiln_update *u, double base, kiln_number x)
{
    return x.on_device ? on_device(u, KILN_PW_pow, like(u, x, base), x, 0) : kiln_number_of(pow(base, x.value));
}

kiln_number kiln_number_to(const kiln_update *u, kiln_number x, double power)
{
    return x.on_device ? on_device(u, KILN_PW_pow_scalar, x, x, power) : kiln_number_of(pow(x.value, power));
}

kiln_number kiln_number_product(const kiln_update *u, kiln_number a, kiln_number b)
{
    return a.on_device ? on_device(u, KILN_PW_mul, a, b, 0) : kiln_number_of(a.value * b.value);
}

kiln_number kiln_number_quotient(const kiln_update *u, kiln_number a, kiln_number b)
{
    return a.on_device ? on_device(u, KILN_PW_div, a, b, 0) : kiln_number_of(a.value / b.value);
}

kiln_number kiln_number_root(const kiln_update *u, kiln_number x)
{
    return x.on_device ? on_device(u, KILN_PW_sqrt, x, x, 0) : kiln_number_of(sqrt(x.value));
}

kiln_number kiln_number_at_most(const kiln_update *u, kiln_number x, double s)
{
    return x.on_device ? on_device(u, KILN_PW_minimum, x, like(u, x, s), 0) : kiln_number_of(fmin(x.value, s));
}

kiln_number kiln_number_choose(const kiln_update *u, kiln_number x, double s, kiln_number above, kiln_number other)
{
    if (!x.on_device)
        return x.value > s ? above : other;
    kiln_number n = {.on_device = true};
    if (u->dry)
        return n;
    kiln_tensor *a = above.on_device ? above.each : kiln_full_like(x.each, above.value);
    kiln_tensor *b = other.on_device ? other.each : kiln_full_like(x.each, other.value);
    n.each = kiln_where(kiln_gt_scalar(x.each, s), a, b);
    return n;
}

/* A product that is as good as 0. */
static const double gone = 1e-20;

static double product_of(const kiln_update *u, double (*factor)(const kiln_optim_options *, int64_t))
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
static kiln_tensor *list_products(const kiln_update *u, double (*factor)(const kiln_optim_options *, int64_t))
{
    enum { LONGEST = 1 << 16 };
    const kiln_optim_options *o = u->options;
    kiln_optim_list *kept = u->products;
    if (kept->each && kept->beta == o->beta1 && kept->decay == o->momentum_decay &&
        kept->each->device == u->steps->device)
        return kept->each;
    double *values = kiln_alloc(LONGEST, sizeof *values), product = 1;
    int64_t n = 0;
    while (values && n < LONGEST && product > gone) {
        product *= factor(o, n + 1);
        values[n++] = product;
    }
    kiln_tensor *list = values ? kiln_keep(kiln_tensor_new(values, KILN_F64, KILN_SHAPE(n), u->steps->device)) : NULL;
    kiln_free(values);
    if (list) {
        kiln_release(kept->each);
        *kept = (kiln_optim_list){o->beta1, o->momentum_decay, list};
    }
    return list;
}

kiln_number kiln_number_product_of(const kiln_update *u, double (*factor)(const kiln_optim_options *, int64_t))
{
    if (!u->gated)
        return kiln_number_of(product_of(u, factor));
    kiln_tensor *list = u->dry ? NULL : list_products(u, factor);
    if (!list)
        return (kiln_number){.on_device = true};
    kiln_tensor *at = kiln_clamp(kiln_add_scalar(u->steps, -1), 0, (double)kiln_numel(list) - 1);
    return (kiln_number){.on_device = true, .each = kiln_index_select(list, 0, kiln_cast(at, KILN_I64))};
}

/* ---- Rates ---- */

/* Written with the rate as the number of its row, which is another one when the step is run again. */
static kiln_number with_rate(const kiln_update *u, kiln_pw_id row, kiln_number x)
{
    kiln_trace *tr = u->dry ? NULL : kiln_trace_current();
    int64_t at = tr ? tr->nfloats : 0;
    kiln_number n = on_device(u, row, x, x, u->options->lr);
    if (tr && !kiln_trace_vary(tr, u->owner, kiln_optim_rate_index(u->owner, u->options), at, tr->nfloats - at))
        n.each = NULL;
    return n;
}

kiln_number kiln_rate_times(const kiln_update *u, kiln_number x)
{
    return x.on_device ? with_rate(u, KILN_PW_mul_scalar, x) : kiln_number_of(u->options->lr * x.value);
}

kiln_number kiln_rate_divided_by(const kiln_update *u, kiln_number x)
{
    return x.on_device ? with_rate(u, KILN_PW_rdiv_scalar, x) : kiln_number_of(u->options->lr / x.value);
}

kiln_number kiln_bias_correction(const kiln_update *u, int which, double beta)
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
    u->numbers[u->nnumbers] = u->dry ? NULL : kiln_cast(by.each, kiln_dtype_of(u->formula.in[KILN_PARAMETER]));
    return kiln_formula_put(&u->formula, KILN_PW_mul, a, KILN_NUMBER0 + u->nnumbers++, 0);
}

kiln_tensor *kiln_update_number(const kiln_update *u, kiln_tensor *each)
{
    kiln_dtype dtype = kiln_dtype_of(u->formula.in[KILN_PARAMETER]);
    return kiln_select(kiln_cast(each, dtype), 0, u->index);
}

kiln_tensor *kiln_update_scale(const kiln_update *u, kiln_tensor *x, kiln_number by)
{
    return by.on_device ? kiln_mul(x, kiln_update_number(u, by.each)) : kiln_mul_scalar(x, by.value);
}

kiln_tensor *kiln_update_lerp(const kiln_update *u, kiln_tensor *a, kiln_tensor *b, kiln_number weight)
{
    return weight.on_device ? kiln_add(a, kiln_mul(kiln_sub(b, a), kiln_update_number(u, weight.each)))
                            : kiln_lerp(a, b, weight.value);
}

bool kiln_update_assign(const kiln_update *u, int input, kiln_tensor *value)
{
    kiln_tensor *to = kiln_update_tensor(u, input);
    return kiln_assign(to, u->gated ? kiln_where(u->found, to, value) : value);
}
