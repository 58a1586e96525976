/* What adam, adamw and others that keep averages of the gradient and of its square share. */
#ifndef KILN_OPTIM_ADAM_H
#define KILN_OPTIM_ADAM_H

#include "optim/rule.h"

#define KILN_ADAM_TAKES                                                                                                \
    (KILN_TAKES(LR) | KILN_TAKES(WEIGHT_DECAY) | KILN_TAKES(BETA1) | KILN_TAKES(BETA2) | KILN_TAKES(EPS))

/* Adam's update of a parameter that is p so far, by the gradient g. */
void kiln_adam_update(kiln_update *u, kiln_register p, kiln_register g);

/* The third state is for amsgrad alone. */
bool kiln_adam_has_state(const kiln_optim_options *o, const kiln_tensor *p, int slot, kiln_optim_state_shape *shape);

#endif
