/* Adam, with its decay added to the gradient; PyTorch's to the letter. */
#include "optim/rules/adam.h"
#include "optim/rules/rows.h"

bool kiln_adam_has_state(const kiln_optim_options *o, const kiln_tensor *p, int slot, kiln_optim_state_shape *shape)
{
    (void)p, (void)shape;
    return slot < 2 || o->amsgrad;
}

void kiln_adam_update(kiln_update *u, kiln_register p, kiln_register g)
{
    const kiln_optim_options *o = u->options;
    kiln_number correction1 = kiln_bias_correction(u, 0, o->beta1), correction2 = kiln_bias_correction(u, 1, o->beta2);
    kiln_register average = assign(u, KILN_STATE0, blend(u, KILN_STATE0, o->beta1, g, 1 - o->beta1));
    kiln_register square = assign(u, KILN_STATE1, blend_square(u, KILN_STATE1, o->beta2, g, 1 - o->beta2));
    kiln_register largest = o->amsgrad ? assign(u, KILN_STATE2, maximum(u, KILN_STATE2, square)) : square;
    kiln_register root =
        add_scalar(u, square_root(u, scale(u, largest, kiln_number_divided_by(u, 1, correction2))), o->eps);
    assign(u, KILN_PARAMETER, step_by_ratio(u, p, average, kiln_rate_divided_by(u, correction1), root));
}

static void update(kiln_update *u)
{
    kiln_adam_update(u, KILN_PARAMETER, decayed_gradient(u));
}

const kiln_optim_rule kiln_optim_rule_adam = {
    .op = {.name = "adam", .cls = KILN_CLASS_COMPOSITE},
    .takes = KILN_ADAM_TAKES | KILN_TAKES(AMSGRAD),
    .defaults = {.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8},
    .state = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"},
    .has_state = kiln_adam_has_state,
    .formula = update,
};
