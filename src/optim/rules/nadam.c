/* NAdam: Adam with Nesterov's momentum, whose share rises with the steps; PyTorch's to the letter. */
#include <math.h>
#include "optim/rules/adam.h"
#include "optim/rules/rows.h"

/* The momentum of a step, and the same as a number. */
static double momentum_at(const kiln_optim_options *o, int64_t step)
{
    return o->beta1 * (1 - 0.5 * pow(0.96, (double)step * o->momentum_decay));
}

static kiln_number momentum(kiln_update *u, kiln_number step)
{
    kiln_number power = kiln_number_power(u, 0.96, kiln_number_times(u, step, u->options->momentum_decay));
    return kiln_number_times(u, kiln_number_less_than(u, 1, kiln_number_times(u, power, 0.5)), u->options->beta1);
}

static void update(kiln_update *u)
{
    const kiln_optim_options *o = u->options;
    kiln_register g = o->decoupled ? KILN_GRADIENT : decayed_gradient(u);
    kiln_register p = o->decoupled ? shrunk_parameter(u) : KILN_PARAMETER;
    kiln_number step = kiln_number_step(u), next = momentum(u, kiln_number_plus(u, step, 1));
    kiln_number rest = kiln_number_less_than(u, 1, momentum(u, step));
    kiln_number product = kiln_number_product_of(u, momentum_at), through_next = kiln_number_product(u, product, next);
    kiln_register average = assign(u, KILN_STATE0, blend(u, KILN_STATE0, o->beta1, g, 1 - o->beta1));
    kiln_register square = assign(u, KILN_STATE1, blend_square(u, KILN_STATE1, o->beta2, g, 1 - o->beta2));
    kiln_number correction = kiln_number_divided_by(u, 1, kiln_bias_correction(u, 1, o->beta2));
    kiln_register root = add_scalar(u, square_root(u, scale(u, square, correction)), o->eps);
    kiln_number now = kiln_number_quotient(u, kiln_rate_times(u, rest), kiln_number_less_than(u, 1, product));
    kiln_number then = kiln_number_quotient(u, kiln_rate_times(u, next), kiln_number_less_than(u, 1, through_next));
    kiln_register by = blend_by(u, g, now, average, then);
    assign(u, KILN_PARAMETER, sub(u, p, div(u, by, root)));
}

const kiln_optim_rule kiln_optim_rule_nadam = {
    .op = {.name = "nadam", .cls = KILN_CLASS_COMPOSITE},
    .takes = KILN_ADAM_TAKES | KILN_TAKES(MOMENTUM_DECAY) | KILN_TAKES(DECOUPLED),
    .defaults = {.lr = 2e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .momentum_decay = 4e-3},
    .state = {"exp_avg", "exp_avg_sq"},
    .formula = update,
};
