/* RAdam: Adam that begins as plain momentum, until the average of squares is worth something; PyTorch's to the
 * letter. */
#include "optim/rules/adam.h"
#include "optim/rules/rows.h"

/* By how much the variance of the adaptive rate is rectified; 0: there are too few steps to divide by it at all. */
static kiln_number rectification(kiln_update *u, kiln_number correction)
{
    double most = 2 / (1 - u->options->beta2) - 1;
    kiln_number twice = kiln_number_times(u, kiln_number_step(u), 2), power = kiln_number_less_than(u, 1, correction);
    kiln_number lost = kiln_number_quotient(u, kiln_number_product(u, twice, power), correction);
    kiln_number n = kiln_number_less_than(u, most, lost);
    kiln_number above = kiln_number_product(u, kiln_number_plus(u, n, -4), kiln_number_plus(u, n, -2));
    kiln_number ratio =
        kiln_number_quotient(u, kiln_number_times(u, above, most), kiln_number_times(u, n, (most - 4) * (most - 2)));
    return kiln_number_choose(u, n, 5, kiln_number_root(u, ratio), kiln_number_of(0));
}

static void update(kiln_update *u)
{
    const kiln_optim_options *o = u->options;
    kiln_register g = o->decoupled ? KILN_GRADIENT : decayed_gradient(u);
    kiln_register p = o->decoupled ? shrunk_parameter(u) : KILN_PARAMETER;
    kiln_number rate = kiln_rate_divided_by(u, kiln_bias_correction(u, 0, o->beta1));
    kiln_number correction = kiln_bias_correction(u, 1, o->beta2), rectified = rectification(u, correction);
    kiln_number adaptive =
        kiln_number_product(u, kiln_number_product(u, rate, rectified), kiln_number_root(u, correction));
    kiln_number plain = kiln_number_choose(u, rectified, 0, kiln_number_of(0), rate);
    kiln_register average = assign(u, KILN_STATE0, blend(u, KILN_STATE0, o->beta1, g, 1 - o->beta1));
    kiln_register square = assign(u, KILN_STATE1, blend_square(u, KILN_STATE1, o->beta2, g, 1 - o->beta2));
    /* One of the two is 0. Where it is the host that knows which, it is not written. */
    if (rectified.on_device || rectified.value > 0)
        p = step_by_ratio(u, p, average, adaptive, add_scalar(u, square_root(u, square), o->eps));
    if (rectified.on_device || rectified.value <= 0)
        p = sub(u, p, scale(u, average, plain));
    assign(u, KILN_PARAMETER, p);
}

const kiln_optim_rule kiln_optim_rule_radam = {
    .op = {.name = "radam", .cls = KILN_CLASS_COMPOSITE},
    .takes = KILN_ADAM_TAKES | KILN_TAKES(DECOUPLED),
    .defaults = {.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8},
    .state = {"exp_avg", "exp_avg_sq"},
    .formula = update,
};
