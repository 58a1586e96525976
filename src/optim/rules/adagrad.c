/* Adagrad; PyTorch's to the letter. */
#include "optim/rules/rows.h"

static bool has_state(const kiln_optim_options *o, const kiln_tensor *p, int slot, kiln_optim_state_shape *shape)
{
    (void)p, (void)slot;
    shape->value = o->initial_accumulator;
    return true;
}

static void update(kiln_update *u)
{
    const kiln_optim_options *o = u->options;
    kiln_register g = decayed_gradient(u);
    kiln_register sum = assign(u, KILN_STATE0, add(u, KILN_STATE0, mul(u, g, g)));
    kiln_register root = add_scalar(u, square_root(u, sum), o->eps);
    kiln_number since = kiln_number_times(u, kiln_number_plus(u, kiln_number_step(u), -1), o->lr_decay);
    kiln_number rate =
        o->lr_decay == 0 ? kiln_number_of(o->lr) : kiln_rate_divided_by(u, kiln_number_plus(u, since, 1));
    assign(u, KILN_PARAMETER, step_by_ratio(u, KILN_PARAMETER, g, rate, root));
}

const kiln_optim_rule kiln_optim_rule_adagrad = {
    .op = {.name = "adagrad", .cls = KILN_CLASS_COMPOSITE},
    .takes = KILN_TAKES(LR) | KILN_TAKES(WEIGHT_DECAY) | KILN_TAKES(EPS) | KILN_TAKES(LR_DECAY) |
             KILN_TAKES(INITIAL_ACCUMULATOR),
    .defaults = {.lr = 1e-2, .eps = 1e-10},
    .state = {"sum"},
    .has_state = has_state,
    .formula = update,
};
