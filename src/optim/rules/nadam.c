/* NAdam: Adam with Nesterov's momentum, whose share rises with the steps; PyTorch's to the letter. */
#include <math.h>
#include "optim/rules/adam.h"
#include "optim/rules/rows.h"

/* The momentum of a step. */
static double momentum_at(const kiln_optim_options *o, int64_t step)
{
    return o->beta1 * (1 - 0.5 * pow(0.96, (double)step * o->momentum_decay));
}

/* The product of all momenta so far. It is as good as 0, and 1 minus it 1, long before the factors get many. */
static double momentum_product(kiln_update *u)
{
    const kiln_optim_options *o = u->options;
    kiln_optim_power *kept = &u->powers[0];
    if (kept->beta == o->beta1 && kept->decay == o->momentum_decay && kept->step == u->step)
        return kept->value;
    double product = 1;
    for (int64_t step = 1; step <= u->step && product > 1e-20; step++)
        product *= momentum_at(o, step);
    *kept = (kiln_optim_power){o->beta1, o->momentum_decay, u->step, product};
    return product;
}

static void update(kiln_update *u)
{
    const kiln_optim_options *o = u->options;
    kiln_register g = o->decoupled ? KILN_GRADIENT : decayed_gradient(u);
    kiln_register p = o->decoupled ? shrunk_parameter(u) : KILN_PARAMETER;
    double mu = momentum_at(o, u->step), next = momentum_at(o, u->step + 1), product = momentum_product(u);
    kiln_register average = blend(u, KILN_STATE0, o->beta1, g, 1 - o->beta1);
    kiln_register square = blend_square(u, KILN_STATE1, o->beta2, g, 1 - o->beta2);
    double correction = kiln_bias_correction(u, 1, o->beta2);
    kiln_register root = add_scalar(u, square_root(u, mul_scalar(u, square, 1 / correction)), o->eps);
    kiln_register by = blend(u, g, o->lr * (1 - mu) / (1 - product), average, o->lr * next / (1 - product * next));
    assign(u, KILN_STATE0, average);
    assign(u, KILN_STATE1, square);
    assign(u, KILN_PARAMETER, sub(u, p, div(u, by, root)));
}

const kiln_optim_rule kiln_optim_rule_nadam = {
    .op = {.name = "nadam", .cls = KILN_CLASS_COMPOSITE},
    .takes = KILN_ADAM_TAKES | KILN_TAKES(MOMENTUM_DECAY) | KILN_TAKES(DECOUPLED),
    .defaults = {.lr = 2e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .momentum_decay = 4e-3},
    .state = {"exp_avg", "exp_avg_sq"},
    .formula = update,
};
