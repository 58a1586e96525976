/* Stochastic gradient descent with momentum; PyTorch's to the letter. */
#include "optim/rules/rows.h"

static bool has_state(const kiln_optim_options *o, const kiln_tensor *p, int slot, kiln_optim_state_shape *shape)
{
    (void)p, (void)slot, (void)shape;
    return o->momentum != 0;
}

static kiln_number after_first(kiln_update *u, double value, double first)
{
    return kiln_number_choose(u, kiln_number_step(u), 1, kiln_number_of(value), kiln_number_of(first));
}

static void update(kiln_update *u)
{
    const kiln_optim_options *o = u->options;
    kiln_register g = decayed_gradient(u);
    if (o->momentum != 0) {
        /* PyTorch's buffer starts as the gradient itself, undampened */
        kiln_number kept = after_first(u, o->momentum, 0), added = after_first(u, 1 - o->dampening, 1);
        kiln_register next = assign(u, KILN_STATE0, blend_by(u, KILN_STATE0, kept, g, added));
        g = o->nesterov ? add(u, g, mul_scalar(u, next, o->momentum)) : next;
    }
    assign(u, KILN_PARAMETER, sub(u, KILN_PARAMETER, mul_scalar(u, g, o->lr)));
}

const kiln_optim_rule kiln_optim_rule_sgd = {
    .op = {.name = "sgd", .cls = KILN_CLASS_COMPOSITE},
    .takes =
        KILN_TAKES(LR) | KILN_TAKES(WEIGHT_DECAY) | KILN_TAKES(MOMENTUM) | KILN_TAKES(DAMPENING) | KILN_TAKES(NESTEROV),
    .defaults = {.lr = 1e-3},
    .state = {"momentum_buffer"},
    .has_state = has_state,
    .formula = update,
};
