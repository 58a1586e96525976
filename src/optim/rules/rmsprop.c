/* RMSprop, centered or not, with momentum; PyTorch's to the letter. */
#include "optim/rules/rows.h"

static bool has_state(const kiln_optim_options *o, const kiln_tensor *p, int slot, kiln_optim_state_shape *shape)
{
    (void)p, (void)shape;
    return slot == 0 || (slot == 1 ? o->momentum > 0 : o->centered);
}

static void update(kiln_update *u)
{
    const kiln_optim_options *o = u->options;
    kiln_register g = decayed_gradient(u), p;
    kiln_register square = assign(u, KILN_STATE0, blend_square(u, KILN_STATE0, o->alpha, g, 1 - o->alpha));
    kiln_register variance = square;
    if (o->centered) {
        kiln_register mean = assign(u, KILN_STATE2, blend(u, KILN_STATE2, o->alpha, g, 1 - o->alpha));
        variance = sub(u, square, mul(u, mean, mean));
    }
    kiln_register root = add_scalar(u, square_root(u, variance), o->eps);
    if (o->momentum > 0) {
        kiln_register ratio = div(u, g, root);
        kiln_register buffer = assign(u, KILN_STATE1, add(u, mul_scalar(u, KILN_STATE1, o->momentum), ratio));
        p = sub(u, KILN_PARAMETER, mul_scalar(u, buffer, o->lr));
    } else
        p = step_by_ratio(u, KILN_PARAMETER, g, kiln_number_of(o->lr), root);
    assign(u, KILN_PARAMETER, p);
}

const kiln_optim_rule kiln_optim_rule_rmsprop = {
    .op = {.name = "rmsprop", .cls = KILN_CLASS_COMPOSITE},
    .takes = KILN_TAKES(LR) | KILN_TAKES(WEIGHT_DECAY) | KILN_TAKES(MOMENTUM) | KILN_TAKES(EPS) | KILN_TAKES(ALPHA) |
             KILN_TAKES(CENTERED),
    .defaults = {.lr = 1e-2, .alpha = 0.99, .eps = 1e-8},
    .state = {"square_avg", "momentum_buffer", "grad_avg"},
    .has_state = has_state,
    .formula = update,
};
