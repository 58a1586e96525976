/* LAMB (You et al., 2020: "Large batch optimization for deep learning: training BERT in 76 minutes"): Adam's direction,
 * as long as the parameter itself. */
#include "optim/number.h"
#include "optim/rules/adam.h"

/* Adam's direction and the decay's; the averages go on. */
static kiln_tensor *direction(kiln_update *u, kiln_tensor *p, kiln_tensor *g)
{
    const kiln_optim_options *o = u->options;
    kiln_tensor *average = kiln_update_tensor(u, KILN_STATE0), *square = kiln_update_tensor(u, KILN_STATE1);
    kiln_tensor *m = kiln_add(kiln_mul_scalar(average, o->beta1), kiln_mul_scalar(g, 1 - o->beta1));
    kiln_tensor *v = kiln_add(kiln_mul_scalar(square, o->beta2), kiln_mul_scalar(kiln_square(g), 1 - o->beta2));
    kiln_number correction1 = kiln_bias_correction(u, 0, o->beta1), correction2 = kiln_bias_correction(u, 1, o->beta2);
    kiln_tensor *root =
        kiln_add_scalar(kiln_sqrt(kiln_update_scale(u, v, kiln_number_divided_by(u, 1, correction2))), o->eps);
    kiln_tensor *by = kiln_div(kiln_update_scale(u, m, kiln_number_divided_by(u, 1, correction1)), root);
    if (!kiln_update_assign(u, KILN_STATE0, m) || !kiln_update_assign(u, KILN_STATE1, v))
        return NULL;
    return o->weight_decay == 0 ? by : kiln_add(by, kiln_mul_scalar(p, o->weight_decay));
}

static bool compose(kiln_update *u)
{
    kiln_tensor *p = kiln_update_tensor(u, KILN_PARAMETER);
    kiln_tensor *by = direction(u, p, kiln_update_tensor(u, KILN_GRADIENT));
    kiln_tensor *length = kiln_update_norm(p), *step = kiln_update_norm(by);
    kiln_tensor *both = kiln_logical_and(kiln_gt_scalar(length, 0), kiln_gt_scalar(step, 0));
    kiln_tensor *trust = kiln_where(both, kiln_div(length, step), kiln_ones_like(step));
    return kiln_update_assign(u, KILN_PARAMETER, kiln_sub(p, kiln_mul(by, kiln_mul_scalar(trust, u->options->lr))));
}

const kiln_optim_rule kiln_optim_rule_lamb = {
    .op = {.name = "lamb", .cls = KILN_CLASS_COMPOSITE},
    .takes = KILN_ADAM_TAKES,
    .defaults = {.lr = 1e-3, .weight_decay = 1e-2, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-6},
    .state = {"exp_avg", "exp_avg_sq"},
    .compose = compose,
};
