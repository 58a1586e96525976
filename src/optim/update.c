/* The optimizers' formulas, each written once with public operations, PyTorch's to the letter (lion: its paper's).
 * Inputs and results of the step are the planner's to arrange: an update that follows a weight's gradient ends up in
 * the kernel that computes the gradient. The chains are written so that the CPU joins them (device/cpu/join.def). */
#include <math.h>
#include "optim/optim.h"

#define HAS(name) (1u << KILN_OPTION_##name)

/* a·s + b·t */
static kiln_tensor *blend(kiln_tensor *a, double s, kiln_tensor *b, double t)
{
    return kiln_add(kiln_mul_scalar(a, s), kiln_mul_scalar(b, t));
}

/* a·s + b²·t */
static kiln_tensor *blend_square(kiln_tensor *a, double s, kiln_tensor *b, double t)
{
    return kiln_add(kiln_mul_scalar(a, s), kiln_mul_scalar(kiln_mul(b, b), t));
}

/* a - x·s / y */
static kiln_tensor *step_by_ratio(kiln_tensor *a, kiln_tensor *x, double s, kiln_tensor *y)
{
    return kiln_sub(a, kiln_div(kiln_mul_scalar(x, s), y));
}

/* The gradient with the weights' own pull added: decay that is not decoupled. */
static kiln_tensor *decayed_gradient(const kiln_update *u)
{
    double decay = u->options->weight_decay;
    return decay == 0 ? u->g : kiln_add(u->g, kiln_mul_scalar(u->p, decay));
}

/* The parameter shrunk by the rate times the decay: decoupled. */
static kiln_tensor *shrunk(const kiln_update *u)
{
    double shrink = u->options->lr * u->options->weight_decay;
    return u->options->weight_decay == 0 ? u->p : kiln_mul_scalar(u->p, 1 - shrink);
}

/* ---- sgd ---- */

static bool sgd_has(const kiln_optim_options *o, int slot)
{
    return slot == 0 && o->momentum != 0;
}

static bool sgd(const kiln_update *u)
{
    const kiln_optim_options *o = u->options;
    kiln_tensor *g = decayed_gradient(u), *buffer = u->state[0];
    if (o->momentum != 0) {
        bool first = u->step == 1; /* PyTorch's buffer starts as the gradient itself, undampened */
        kiln_tensor *next = blend(buffer, first ? 0 : o->momentum, g, first ? 1 : 1 - o->dampening);
        if (!kiln_assign(buffer, next))
            return false;
        g = o->nesterov ? kiln_add(g, kiln_mul_scalar(next, o->momentum)) : next;
    }
    return kiln_assign(u->p, kiln_sub(u->p, kiln_mul_scalar(g, o->lr)));
}

/* ---- adam and adamw ---- */

static bool adam_has(const kiln_optim_options *o, int slot)
{
    return slot < 2 || o->amsgrad;
}

static bool adam_from(const kiln_update *u, kiln_tensor *p, kiln_tensor *g)
{
    const kiln_optim_options *o = u->options;
    double correction1 = 1 - pow(o->beta1, (double)u->step), correction2 = 1 - pow(o->beta2, (double)u->step);
    kiln_tensor *average = blend(u->state[0], o->beta1, g, 1 - o->beta1);
    kiln_tensor *square = blend_square(u->state[1], o->beta2, g, 1 - o->beta2);
    kiln_tensor *largest = o->amsgrad ? kiln_maximum(u->state[2], square) : square;
    kiln_tensor *root = kiln_add_scalar(kiln_sqrt(kiln_mul_scalar(largest, 1 / correction2)), o->eps);
    return kiln_assign(u->state[0], average) && kiln_assign(u->state[1], square) &&
           (!o->amsgrad || kiln_assign(u->state[2], largest)) &&
           kiln_assign(u->p, step_by_ratio(p, average, o->lr / correction1, root));
}

static bool adam(const kiln_update *u)
{
    return adam_from(u, u->p, decayed_gradient(u));
}

static bool adamw(const kiln_update *u)
{
    return adam_from(u, shrunk(u), u->g);
}

/* ---- rmsprop ---- */

static bool rmsprop_has(const kiln_optim_options *o, int slot)
{
    return slot == 0 || (slot == 1 ? o->momentum > 0 : o->centered);
}

static bool rmsprop(const kiln_update *u)
{
    const kiln_optim_options *o = u->options;
    kiln_tensor *g = decayed_gradient(u), *p;
    kiln_tensor *square = blend_square(u->state[0], o->alpha, g, 1 - o->alpha), *variance = square;
    if (o->centered) {
        kiln_tensor *mean = blend(u->state[2], o->alpha, g, 1 - o->alpha);
        variance = kiln_sub(square, kiln_mul(mean, mean));
        if (!kiln_assign(u->state[2], mean))
            return false;
    }
    kiln_tensor *root = kiln_add_scalar(kiln_sqrt(variance), o->eps);
    if (o->momentum > 0) {
        kiln_tensor *buffer = kiln_add(kiln_mul_scalar(u->state[1], o->momentum), kiln_div(g, root));
        p = kiln_sub(u->p, kiln_mul_scalar(buffer, o->lr));
        if (!kiln_assign(u->state[1], buffer))
            return false;
    } else
        p = step_by_ratio(u->p, g, o->lr, root);
    return kiln_assign(u->state[0], square) && kiln_assign(u->p, p);
}

/* ---- adagrad ---- */

static bool adagrad(const kiln_update *u)
{
    const kiln_optim_options *o = u->options;
    kiln_tensor *g = decayed_gradient(u);
    kiln_tensor *sum = kiln_add(u->state[0], kiln_mul(g, g));
    kiln_tensor *root = kiln_add_scalar(kiln_sqrt(sum), o->eps);
    double rate = o->lr / (1 + (double)(u->step - 1) * o->lr_decay);
    return kiln_assign(u->state[0], sum) && kiln_assign(u->p, step_by_ratio(u->p, g, rate, root));
}

/* ---- lion (Chen et al., 2023: "Symbolic discovery of optimization algorithms") ---- */

static bool lion(const kiln_update *u)
{
    const kiln_optim_options *o = u->options;
    kiln_tensor *direction = kiln_sign(blend(u->state[0], o->beta1, u->g, 1 - o->beta1));
    kiln_tensor *average = blend(u->state[0], o->beta2, u->g, 1 - o->beta2);
    return kiln_assign(u->state[0], average) &&
           kiln_assign(u->p, kiln_sub(shrunk(u), kiln_mul_scalar(direction, o->lr)));
}

/* ---- The records ---- */

#define ADAM_OPTIONS (HAS(LR) | HAS(WEIGHT_DECAY) | HAS(BETA1) | HAS(BETA2) | HAS(EPS) | HAS(AMSGRAD))
#define ADAM_STATE                                                                                                     \
    {                                                                                                                  \
        "exp_avg", "exp_avg_sq", "max_exp_avg_sq"                                                                      \
    }

static const kiln_optim_rule sgd_rule = {.op = {.name = "sgd", .cls = KILN_CLASS_COMPOSITE},
                                         .takes = HAS(LR) | HAS(WEIGHT_DECAY) | HAS(MOMENTUM) | HAS(DAMPENING) |
                                                  HAS(NESTEROV),
                                         .defaults = {.lr = 1e-3},
                                         .state = {"momentum_buffer"},
                                         .has_state = sgd_has,
                                         .update = sgd};

static const kiln_optim_rule adam_rule = {.op = {.name = "adam", .cls = KILN_CLASS_COMPOSITE},
                                          .takes = ADAM_OPTIONS,
                                          .defaults = {.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8},
                                          .state = ADAM_STATE,
                                          .has_state = adam_has,
                                          .update = adam};

static const kiln_optim_rule adamw_rule = {
    .op = {.name = "adamw", .cls = KILN_CLASS_COMPOSITE},
    .takes = ADAM_OPTIONS,
    .defaults = {.lr = 1e-3, .weight_decay = 1e-2, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8},
    .state = ADAM_STATE,
    .has_state = adam_has,
    .update = adamw};

static const kiln_optim_rule rmsprop_rule = {.op = {.name = "rmsprop", .cls = KILN_CLASS_COMPOSITE},
                                             .takes = HAS(LR) | HAS(WEIGHT_DECAY) | HAS(MOMENTUM) | HAS(EPS) |
                                                      HAS(ALPHA) | HAS(CENTERED),
                                             .defaults = {.lr = 1e-2, .alpha = 0.99, .eps = 1e-8},
                                             .state = {"square_avg", "momentum_buffer", "grad_avg"},
                                             .has_state = rmsprop_has,
                                             .update = rmsprop};

static const kiln_optim_rule adagrad_rule = {.op = {.name = "adagrad", .cls = KILN_CLASS_COMPOSITE},
                                             .takes = HAS(LR) | HAS(WEIGHT_DECAY) | HAS(EPS) | HAS(LR_DECAY) |
                                                      HAS(INITIAL_ACCUMULATOR),
                                             .defaults = {.lr = 1e-2, .eps = 1e-10},
                                             .state = {"sum"},
                                             .update = adagrad};

static const kiln_optim_rule lion_rule = {.op = {.name = "lion", .cls = KILN_CLASS_COMPOSITE},
                                          .takes = HAS(LR) | HAS(WEIGHT_DECAY) | HAS(BETA1) | HAS(BETA2),
                                          .defaults = {.lr = 1e-4, .beta1 = 0.9, .beta2 = 0.99},
                                          .state = {"exp_avg"},
                                          .update = lion};

const kiln_optim_rule *const kiln_optim_rules[] = {&sgd_rule,     &adam_rule, &adamw_rule, &rmsprop_rule,
                                                   &adagrad_rule, &lion_rule, NULL};
