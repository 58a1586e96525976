/* RAdam: Adam that begins as plain momentum, until the average of squares is worth something; PyTorch's to the
 * letter. */
#include <math.h>
#include "optim/rules/adam.h"
#include "optim/rules/rows.h"

/* By how much the variance of the adaptive rate is rectified; 0: there are too few steps to divide by it at all. */
static double rectification(const kiln_optim_options *o, int64_t step, double correction)
{
    double most = 2 / (1 - o->beta2) - 1, n = most - 2 * (double)step * (1 - correction) / correction;
    return n > 5 ? sqrt((n - 4) * (n - 2) * most / ((most - 4) * (most - 2) * n)) : 0;
}

static void update(kiln_update *u)
{
    const kiln_optim_options *o = u->options;
    kiln_register g = o->decoupled ? KILN_GRADIENT : decayed_gradient(u);
    kiln_register p = o->decoupled ? shrunk_parameter(u) : KILN_PARAMETER;
    double rate = o->lr / kiln_bias_correction(u, 0, o->beta1), correction = kiln_bias_correction(u, 1, o->beta2);
    double rectified = rectification(o, u->step, correction);
    kiln_register average = blend(u, KILN_STATE0, o->beta1, g, 1 - o->beta1);
    kiln_register square = blend_square(u, KILN_STATE1, o->beta2, g, 1 - o->beta2);
    if (rectified > 0)
        p = step_by_ratio(u, p, average, rate * rectified * sqrt(correction),
                          add_scalar(u, square_root(u, square), o->eps));
    else
        p = sub(u, p, mul_scalar(u, average, rate));
    assign(u, KILN_STATE0, average);
    assign(u, KILN_STATE1, square);
    assign(u, KILN_PARAMETER, p);
}

const kiln_optim_rule kiln_optim_rule_radam = {
    .op = {.name = "radam", .cls = KILN_CLASS_COMPOSITE},
    .takes = KILN_ADAM_TAKES | KILN_TAKES(DECOUPLED),
    .defaults = {.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8},
    .state = {"exp_avg", "exp_avg_sq"},
    .formula = update,
};
