/* Optimizers from options that stand in a table, without their size. */
#ifndef KILN_TEST_OPTIM_WITH_H
#define KILN_TEST_OPTIM_WITH_H

#include "kiln.h"

static inline kiln_optim *optim_with(const char *name, kiln_params params, kiln_optim_options options)
{
    options.size = sizeof options;
    return kiln_optim_new(name, params, &options);
}

#endif
