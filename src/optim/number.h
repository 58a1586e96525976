/* Numbers of an update that follow from the count of steps: bias corrections, rates that decay. As a rule the host
 * knows the count, and they are run-time scalars. Where a gradient scaler may leave steps out (scaler.c), only the
 * device knows which were taken; a number is a tensor there then, f64, with an element for each parameter of the
 * optimizer. Rules are written with these functions and need not know which of the two it is. */
#ifndef KILN_OPTIM_NUMBER_H
#define KILN_OPTIM_NUMBER_H

#include "optim/rule.h"

/* How many steps the parameter has taken, this one included. */
kiln_number kiln_number_step(const kiln_update *u);

kiln_number kiln_number_plus(const kiln_update *u, kiln_number x, double s);
kiln_number kiln_number_times(const kiln_update *u, kiln_number x, double s);
kiln_number kiln_number_less_than(const kiln_update *u, double s, kiln_number x);  /* s - x */
kiln_number kiln_number_divided_by(const kiln_update *u, double s, kiln_number x); /* s / x */
kiln_number kiln_number_power(const kiln_update *u, double base, kiln_number x);   /* base to the power of x */
kiln_number kiln_number_to(const kiln_update *u, kiln_number x, double power);     /* x to that power */
kiln_number kiln_number_product(const kiln_update *u, kiln_number a, kiln_number b);
kiln_number kiln_number_quotient(const kiln_update *u, kiln_number a, kiln_number b);
kiln_number kiln_number_root(const kiln_update *u, kiln_number x);
kiln_number kiln_number_at_most(const kiln_update *u, kiln_number x, double s);
/* x above s ? above : other */
kiln_number kiln_number_choose(const kiln_update *u, kiln_number x, double s, kiln_number above, kiln_number other);
kiln_number kiln_number_of(double value);
/* factor(options, 1) · … · factor(options, step), which goes to 0. The factors may follow from beta1 and momentum_decay
 * alone. */
kiln_number kiln_number_product_of(const kiln_update *u, double (*factor)(const kiln_optim_options *, int64_t));

/* The rate times, or divided by, x. The rate may be another one in each step. */
kiln_number kiln_rate_times(const kiln_update *u, kiln_number x);
kiln_number kiln_rate_divided_by(const kiln_update *u, kiln_number x);

/* 1 - beta^step. Parameters mostly are at the same step: the power is kept from one to the next. */
kiln_number kiln_bias_correction(const kiln_update *u, int which, double beta);

/* ---- What is done with them ---- */

/* In formulas: the register times the number. */
kiln_register kiln_formula_scale(kiln_update *u, kiln_register a, kiln_number by);

/* In compositions: the tensor times the number; the next value of the parameter or of a state. NULL or false with an
 * error. */
kiln_tensor *kiln_update_number(const kiln_update *u,
                                kiln_tensor *each); /* the parameter's, in its type, without dims */
kiln_tensor *kiln_update_scale(const kiln_update *u, kiln_tensor *x, kiln_number by);
kiln_tensor *kiln_update_lerp(const kiln_update *u, kiln_tensor *a, kiln_tensor *b, kiln_number weight);
bool kiln_update_assign(const kiln_update *u, int input, kiln_tensor *value);

#endif
