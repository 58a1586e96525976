/* Adam with decoupled decay; PyTorch's to the letter. */
#include "optim/rules/adam.h"
#include "optim/rules/rows.h"

static void update(kiln_update *u)
{
    kiln_adam_update(u, shrunk_parameter(u), KILN_GRADIENT);
}

const kiln_optim_rule kiln_optim_rule_adamw = {
    .op = {.name = "adamw", .cls = KILN_CLASS_COMPOSITE},
    .takes = KILN_ADAM_TAKES | KILN_TAKES(AMSGRAD),
    .defaults = {.lr = 1e-3, .weight_decay = 1e-2, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8},
    .state = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"},
    .has_state = kiln_adam_has_state,
    .formula = update,
};
