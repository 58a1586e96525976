/* The optimizers' formulas, each written once as a formula (trace/formula.h), PyTorch's to the letter (lion: its
 * paper's). Where the step puts them is the planner's to arrange: an update that follows a weight's gradient ends up in
 * the kernel that computes the gradient. The chains are written so that the CPU joins them (device/cpu/join.def). */
#include <math.h>
#include "optim/optim.h"

#define HAS(name) (1u << KILN_OPTION_##name)

typedef kiln_register reg;
enum { P = KILN_UPDATE_PARAMETER, G = KILN_UPDATE_GRADIENT, STATE0 = KILN_UPDATE_STATE, STATE1, STATE2 };

/* ---- Rows ---- */

#define ROW1(name, row)                                                                                                \
    static reg name(kiln_update *u, reg a)                                                                             \
    {                                                                                                                  \
        return kiln_formula_put(&u->formula, KILN_PW_##row, a, 0, 0);                                                  \
    }
#define ROW1S(name)                                                                                                    \
    static reg name(kiln_update *u, reg a, double s)                                                                   \
    {                                                                                                                  \
        return kiln_formula_put(&u->formula, KILN_PW_##name, a, 0, s);                                                 \
    }
#define ROW2(name)                                                                                                     \
    static reg name(kiln_update *u, reg a, reg b)                                                                      \
    {                                                                                                                  \
        return kiln_formula_put(&u->formula, KILN_PW_##name, a, b, 0);                                                 \
    }
ROW1(square_root, sqrt)
ROW1(sign, sign)
ROW1S(mul_scalar)
ROW1S(add_scalar)
ROW2(add)
ROW2(sub)
ROW2(mul)
ROW2(div)
ROW2(maximum)

/* The parameter, or a state, holds the value from now on. */
static void assign(kiln_update *u, reg to, reg value)
{
    kiln_formula_assign(&u->formula, to, value);
}

/* ---- What formulas share ---- */

/* a·s + b·t */
static reg blend(kiln_update *u, reg a, double s, reg b, double t)
{
    reg right = mul_scalar(u, b, t), left = mul_scalar(u, a, s);
    return add(u, left, right);
}

/* a·s + b²·t */
static reg blend_square(kiln_update *u, reg a, double s, reg b, double t)
{
    reg right = mul_scalar(u, mul(u, b, b), t), left = mul_scalar(u, a, s);
    return add(u, left, right);
}

/* a - x·s / y */
static reg step_by_ratio(kiln_update *u, reg a, reg x, double s, reg y)
{
    return sub(u, a, div(u, mul_scalar(u, x, s), y));
}

/* The gradient with the weights' own pull added: decay that is not decoupled. */
static reg decayed_gradient(kiln_update *u)
{
    double decay = u->options->weight_decay;
    return decay == 0 ? G : add(u, G, mul_scalar(u, P, decay));
}

/* The parameter shrunk by the rate times the decay: decoupled. */
static reg shrunk(kiln_update *u)
{
    double shrink = u->options->lr * u->options->weight_decay;
    return u->options->weight_decay == 0 ? P : mul_scalar(u, P, 1 - shrink);
}

/* 1 - beta^step. Parameters mostly are at the same step: the power is kept from one to the next. */
static double correction(kiln_update *u, int which, double beta)
{
    kiln_optim_power *p = &u->powers[which];
    if (p->beta != beta || p->step != u->step)
        *p = (kiln_optim_power){beta, u->step, pow(beta, (double)u->step)};
    return 1 - p->value;
}

/* ---- sgd ---- */

static bool sgd_has(const kiln_optim_options *o, int slot)
{
    return slot == 0 && o->momentum != 0;
}

static void sgd(kiln_update *u)
{
    const kiln_optim_options *o = u->options;
    reg g = decayed_gradient(u);
    if (o->momentum != 0) {
        bool first = u->step == 1; /* PyTorch's buffer starts as the gradient itself, undampened */
        reg next = blend(u, STATE0, first ? 0 : o->momentum, g, first ? 1 : 1 - o->dampening);
        assign(u, STATE0, next);
        g = o->nesterov ? add(u, g, mul_scalar(u, next, o->momentum)) : next;
    }
    assign(u, P, sub(u, P, mul_scalar(u, g, o->lr)));
}

/* ---- adam and adamw ---- */

static bool adam_has(const kiln_optim_options *o, int slot)
{
    return slot < 2 || o->amsgrad;
}

static void adam_from(kiln_update *u, reg p, reg g)
{
    const kiln_optim_options *o = u->options;
    double correction1 = correction(u, 0, o->beta1), correction2 = correction(u, 1, o->beta2);
    reg average = blend(u, STATE0, o->beta1, g, 1 - o->beta1);
    reg square = blend_square(u, STATE1, o->beta2, g, 1 - o->beta2);
    reg largest = o->amsgrad ? maximum(u, STATE2, square) : square;
    reg root = add_scalar(u, square_root(u, mul_scalar(u, largest, 1 / correction2)), o->eps);
    assign(u, STATE0, average);
    assign(u, STATE1, square);
    if (o->amsgrad)
        assign(u, STATE2, largest);
    assign(u, P, step_by_ratio(u, p, average, o->lr / correction1, root));
}

static void adam(kiln_update *u)
{
    adam_from(u, P, decayed_gradient(u));
}

static void adamw(kiln_update *u)
{
    adam_from(u, shrunk(u), G);
}

/* ---- rmsprop ---- */

static bool rmsprop_has(const kiln_optim_options *o, int slot)
{
    return slot == 0 || (slot == 1 ? o->momentum > 0 : o->centered);
}

static void rmsprop(kiln_update *u)
{
    const kiln_optim_options *o = u->options;
    reg g = decayed_gradient(u), p;
    reg square = blend_square(u, STATE0, o->alpha, g, 1 - o->alpha), variance = square;
    if (o->centered) {
        reg mean = blend(u, STATE2, o->alpha, g, 1 - o->alpha);
        variance = sub(u, square, mul(u, mean, mean));
        assign(u, STATE2, mean);
    }
    reg root = add_scalar(u, square_root(u, variance), o->eps);
    if (o->momentum > 0) {
        reg ratio = div(u, g, root);
        reg buffer = add(u, mul_scalar(u, STATE1, o->momentum), ratio);
        p = sub(u, P, mul_scalar(u, buffer, o->lr));
        assign(u, STATE1, buffer);
    } else
        p = step_by_ratio(u, P, g, o->lr, root);
    assign(u, STATE0, square);
    assign(u, P, p);
}

/* ---- adagrad ---- */

static void adagrad(kiln_update *u)
{
    const kiln_optim_options *o = u->options;
    reg g = decayed_gradient(u);
    reg sum = add(u, STATE0, mul(u, g, g));
    reg root = add_scalar(u, square_root(u, sum), o->eps);
    double rate = o->lr / (1 + (double)(u->step - 1) * o->lr_decay);
    assign(u, STATE0, sum);
    assign(u, P, step_by_ratio(u, P, g, rate, root));
}

/* ---- lion (Chen et al., 2023: "Symbolic discovery of optimization algorithms") ---- */

static void lion(kiln_update *u)
{
    const kiln_optim_options *o = u->options;
    reg direction = sign(u, blend(u, STATE0, o->beta1, G, 1 - o->beta1));
    reg average = blend(u, STATE0, o->beta2, G, 1 - o->beta2);
    assign(u, STATE0, average);
    reg by = mul_scalar(u, direction, o->lr);
    assign(u, P, sub(u, shrunk(u), by));
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
