/* Adadelta; PyTorch's to the letter. */
#include "optim/rules/rows.h"

static void update(kiln_update *u)
{
    const kiln_optim_options *o = u->options;
    kiln_register g = decayed_gradient(u);
    kiln_register square = assign(u, KILN_STATE0, blend_square(u, KILN_STATE0, o->rho, g, 1 - o->rho));
    kiln_register root = square_root(u, add_scalar(u, square, o->eps));
    kiln_register moved = square_root(u, add_scalar(u, KILN_STATE1, o->eps));
    kiln_register delta = mul(u, div(u, moved, root), g);
    assign(u, KILN_STATE1, blend_square(u, KILN_STATE1, o->rho, delta, 1 - o->rho));
    assign(u, KILN_PARAMETER, sub(u, KILN_PARAMETER, mul_scalar(u, delta, o->lr)));
}

const kiln_optim_rule kiln_optim_rule_adadelta = {
    .op = {.name = "adadelta", .cls = KILN_CLASS_COMPOSITE},
    .takes = KILN_TAKES(LR) | KILN_TAKES(WEIGHT_DECAY) | KILN_TAKES(EPS) | KILN_TAKES(RHO),
    .defaults = {.lr = 1, .rho = 0.9, .eps = 1e-6},
    .state = {"square_avg", "acc_delta"},
    .formula = update,
};
