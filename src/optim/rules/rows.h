/* What formulas are written with: rows of pointwise.def, and short chains of them that several optimizers have. */
#ifndef KILN_OPTIM_ROWS_H
#define KILN_OPTIM_ROWS_H

#include "optim/number.h"

#define KILN_ROW1_(name, row)                                                                                          \
    static inline kiln_register name(kiln_update *u, kiln_register a)                                                  \
    {                                                                                                                  \
        return kiln_formula_put(&u->formula, KILN_PW_##row, a, 0, 0);                                                  \
    }
#define KILN_ROW1S_(name)                                                                                              \
    static inline kiln_register name(kiln_update *u, kiln_register a, double s)                                        \
    {                                                                                                                  \
        return kiln_formula_put(&u->formula, KILN_PW_##name, a, 0, s);                                                 \
    }
#define KILN_ROW2_(name)                                                                                               \
    static inline kiln_register name(kiln_update *u, kiln_register a, kiln_register b)                                 \
    {                                                                                                                  \
        return kiln_formula_put(&u->formula, KILN_PW_##name, a, b, 0);                                                 \
    }
KILN_ROW1_(square_root, sqrt)
KILN_ROW1_(sign, sign)
KILN_ROW1S_(mul_scalar)
KILN_ROW1S_(add_scalar)
KILN_ROW2_(add)
KILN_ROW2_(sub)
KILN_ROW2_(mul)
KILN_ROW2_(div)
KILN_ROW2_(maximum)
#undef KILN_ROW1_
#undef KILN_ROW1S_
#undef KILN_ROW2_

/* The register times a number that follows from the count of steps. */
static inline kiln_register scale(kiln_update *u, kiln_register a, kiln_number by)
{
    return kiln_formula_scale(u, a, by);
}

/* The parameter, or a state, holds the value from now on: the one returned, which is what it was if the step is left
 * out. What else is computed from the value is computed from that, so that all of an update is one group. */
static inline kiln_register assign(kiln_update *u, kiln_register to, kiln_register value)
{
    if (u->gated)
        value = kiln_formula_put3(&u->formula, KILN_PW_where, KILN_GATE, to, value, 0);
    kiln_formula_assign(&u->formula, to, value);
    return value;
}

/* ---- What formulas share. The chains are written so that the CPU joins them (device/cpu/group/join.def). ---- */

/* a·s + b·t */
static inline kiln_register blend_by(kiln_update *u, kiln_register a, kiln_number s, kiln_register b, kiln_number t)
{
    kiln_register right = scale(u, b, t), left = scale(u, a, s);
    return add(u, left, right);
}
static inline kiln_register blend(kiln_update *u, kiln_register a, double s, kiln_register b, double t)
{
    return blend_by(u, a, kiln_number_of(s), b, kiln_number_of(t));
}

/* a·s + b²·t */
static inline kiln_register blend_square(kiln_update *u, kiln_register a, double s, kiln_register b, double t)
{
    kiln_register right = mul_scalar(u, mul(u, b, b), t), left = mul_scalar(u, a, s);
    return add(u, left, right);
}

/* a - x·s / y */
static inline kiln_register step_by_ratio(kiln_update *u, kiln_register a, kiln_register x, kiln_number s,
                                          kiln_register y)
{
    return sub(u, a, div(u, scale(u, x, s), y));
}

/* The gradient with the weights' own pull added: decay that is not decoupled. */
static inline kiln_register decayed_gradient(kiln_update *u)
{
    double decay = u->options->weight_decay;
    return decay == 0 ? KILN_GRADIENT : (int)add(u, KILN_GRADIENT, mul_scalar(u, KILN_PARAMETER, decay));
}

/* The parameter shrunk by the rate times the decay: decoupled. */
static inline kiln_register shrunk_parameter(kiln_update *u)
{
    double shrink = u->options->lr * u->options->weight_decay;
    return u->options->weight_decay == 0 ? KILN_PARAMETER : (int)mul_scalar(u, KILN_PARAMETER, 1 - shrink);
}

#endif
