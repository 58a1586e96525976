/* Numbers of an update that follow from the count of steps: bias corrections, rates that decay. As a rule the host
 * knows the count, and they are run-time scalars. Where a gradient scaler may leave steps out (scaler.c), only the
 * device knows which were taken; a number is a row of a formula on the count then (`numbers` of the update), in f64.
 * Rules are written with these functions and need not know which of the two it is. */
#ifndef KILN_OPTIM_NUMBER_H
#define KILN_OPTIM_NUMBER_H

#include "optim/rule.h"

/* How many steps the parameter has taken, this one included. */
kiln_number kiln_number_step(kiln_update *u);

kiln_number kiln_number_plus(kiln_update *u, kiln_number x, double s);
kiln_number kiln_number_times(kiln_update *u, kiln_number x, double s);
kiln_number kiln_number_less_than(kiln_update *u, double s, kiln_number x);  /* s - x */
kiln_number kiln_number_divided_by(kiln_update *u, double s, kiln_number x); /* s / x */
kiln_number kiln_number_power(kiln_update *u, double base, kiln_number x);   /* base to the power of x */
kiln_number kiln_number_to(kiln_update *u, kiln_number x, double power);     /* x to that power */
kiln_number kiln_number_product(kiln_update *u, kiln_number a, kiln_number b);
kiln_number kiln_number_quotient(kiln_update *u, kiln_number a, kiln_number b);
kiln_number kiln_number_root(kiln_update *u, kiln_number x);
kiln_number kiln_number_at_most(kiln_update *u, kiln_number x, double s);
/* x above s ? above : other */
kiln_number kiln_number_choose(kiln_update *u, kiln_number x, double s, kiln_number above, kiln_number other);
kiln_number kiln_number_of(double value);
/* factor(options, 1) · … · factor(options, step), which goes to 0. The factors may follow from beta1 and momentum_decay
 * alone. */
kiln_number kiln_number_product_of(kiln_update *u, double (*factor)(const kiln_optim_options *, int64_t));

/* The rate times, or divided by, x. The rate may be another one in each step. */
kiln_number kiln_rate_times(kiln_update *u, kiln_number x);
kiln_number kiln_rate_divided_by(kiln_update *u, kiln_number x);

/* 1 - beta^step. Parameters mostly are at the same step: the power is kept from one to the next. */
kiln_number kiln_bias_correction(kiln_update *u, int which, double beta);

/* ---- What is done with them ---- */

/* Starts the numbers of an update that is about to be written. */
void kiln_numbers_begin(kiln_update *u);

/* In formulas: the register times the number. */
kiln_register kiln_formula_scale(kiln_update *u, kiln_register a, kiln_number by);

/* Records the numbers that the formula uses, unless those of another parameter with as many steps are known, and makes
 * them its inputs. False with an error. */
bool kiln_numbers_record(kiln_update *u);

/* In compositions: the tensor times the number; the next value of the parameter or of a state. NULL or false with an
 * error. */
kiln_tensor *kiln_update_scale(kiln_update *u, kiln_tensor *x, kiln_number by);
kiln_tensor *kiln_update_lerp(kiln_update *u, kiln_tensor *a, kiln_tensor *b, kiln_number weight);
bool kiln_update_assign(const kiln_update *u, int input, kiln_tensor *value);

#endif
