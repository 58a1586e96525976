/* Lion (Chen et al., 2023: "Symbolic discovery of optimization algorithms"). */
#include "optim/rules/rows.h"

static void update(kiln_update *u)
{
    const kiln_optim_options *o = u->options;
    kiln_register direction = sign(u, blend(u, KILN_STATE0, o->beta1, KILN_GRADIENT, 1 - o->beta1));
    kiln_register average = blend(u, KILN_STATE0, o->beta2, KILN_GRADIENT, 1 - o->beta2);
    assign(u, KILN_STATE0, average);
    kiln_register by = mul_scalar(u, direction, o->lr);
    assign(u, KILN_PARAMETER, sub(u, shrunk_parameter(u), by));
}

const kiln_optim_rule kiln_optim_rule_lion = {
    .op = {.name = "lion", .cls = KILN_CLASS_COMPOSITE},
    .takes = KILN_TAKES(LR) | KILN_TAKES(WEIGHT_DECAY) | KILN_TAKES(BETA1) | KILN_TAKES(BETA2),
    .defaults = {.lr = 1e-4, .beta1 = 0.9, .beta2 = 0.99},
    .state = {"exp_avg"},
    .formula = update,
};
