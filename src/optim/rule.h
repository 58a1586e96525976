/* An optimizer is one record: a file in rules/ that has the name of the optimizer and defines kiln_optim_rule_<name>.
 * Its update is a formula of pointwise rows, or, where it needs more (norms, products), a composition of operations. */
#ifndef KILN_OPTIM_RULE_H
#define KILN_OPTIM_RULE_H

#include "kiln/optim.h"
#include "trace/formula.h"

enum { KILN_OPTIM_STATES = 3 };

/* What an update has, as a formula's registers and as kiln_update_tensor's: the parameter, its gradient, and its states
 * in the order of the rule's names. */
enum {
    KILN_PARAMETER,
    KILN_GRADIENT,
    KILN_STATE0,
    KILN_STATE1,
    KILN_STATE2,
    KILN_GATE,    /* whether the step is left out; then the parameter and its states stay as they are */
    KILN_NUMBER0, /* numbers that the device knows, in the order in which the formula uses them */
    KILN_NUMBERS = 3,
    KILN_UPDATE_INPUTS = KILN_NUMBER0 + KILN_NUMBERS,
    KILN_RATES = 4 /* rates that such numbers are made of */
};

/* Powers of betas, for the next parameter that asks for the same. */
typedef struct kiln_optim_power {
    double beta, decay; /* decay: of nadam's momenta */
    int64_t step;
    double value;
} kiln_optim_power;

/* A number of an update, which the host knows or the device (number.h). */
typedef struct kiln_number {
    double value;
    bool on_device;
    kiln_register made; /* on_device: by which row of the update's `numbers` */
} kiln_number;

/* Products of nadam's momenta, from step 1 on, on a device. */
typedef struct kiln_optim_list {
    double beta, decay;
    kiln_tensor *each;
} kiln_optim_list;

/* One parameter's update, about to be written. */
typedef struct kiln_update {
    const struct kiln_optim *owner;
    const kiln_optim_options *options;
    int64_t index;            /* of the parameter */
    int64_t step;             /* of this parameter, from 1; not known if the update is gated */
    kiln_optim_power *powers; /* two of them */
    kiln_formula formula;

    /* Gated: the device decides whether the step is taken, and alone knows how many were (clock.c). */
    bool gated;
    bool dry;           /* nothing is recorded: the formula's own numbers are all that is asked for */
    kiln_tensor *found; /* a bool without dims: leave it out */
    kiln_tensor *clock; /* f64: how many steps were taken, for each parameter */
    kiln_optim_list *products;
    kiln_formula numbers;  /* of f64 without dims: what follows from the parameter's count (number.c) */
    kiln_tensor *product;  /* its second input, where it has one */
    int rates[KILN_RATES]; /* which of its floats are the rate */
    int nrates;
    int nnumbers;                     /* that the formula uses: the results of `numbers` */
    kiln_tensor *known[KILN_NUMBERS]; /* the same, for the parameters that have taken as many steps as `known_for` */
    int64_t known_for;                /* -1: none yet */
} kiln_update;

/* A state tensor that is to be made: zeros like the parameter where a rule does not say otherwise. */
typedef struct kiln_optim_state_shape {
    int ndim;
    int64_t shape[KILN_MAX_DIMS];
    double value; /* that it begins with */
} kiln_optim_state_shape;

typedef struct kiln_optim_rule kiln_optim_rule;
struct kiln_optim_rule {
    kiln_op op;     /* its name; the operations of all updates of a step are parts of it */
    uint32_t takes; /* a bit for each option it has beside those that all have: KILN_TAKES(LR) | … */
    kiln_optim_options defaults;
    const char *state[KILN_OPTIM_STATES]; /* names as PyTorch's */
    /* Whether a parameter has the state, and of which shape. NULL: all of them, like the parameter. */
    bool (*has_state)(const kiln_optim_options *options, const kiln_tensor *parameter, int slot,
                      kiln_optim_state_shape *shape);
    /* One of the two writes the update. Whatever changes from step to step is a number in it: a run-time scalar of the
     * plan. */
    void (*formula)(kiln_update *u);
    bool (*compose)(kiln_update *u);
    /* The rule that updates this parameter in its place; NULL: this one. */
    const kiln_optim_rule *(*rule_for)(const kiln_optim_options *options, const kiln_tensor *parameter);
};

enum {
    KILN_OPTION_LR,
    KILN_OPTION_WEIGHT_DECAY,
    KILN_OPTION_MOMENTUM,
    KILN_OPTION_DAMPENING,
    KILN_OPTION_NESTEROV,
    KILN_OPTION_BETA1,
    KILN_OPTION_BETA2,
    KILN_OPTION_EPS,
    KILN_OPTION_AMSGRAD,
    KILN_OPTION_ALPHA,
    KILN_OPTION_CENTERED,
    KILN_OPTION_LR_DECAY,
    KILN_OPTION_INITIAL_ACCUMULATOR,
    KILN_OPTION_RHO,
    KILN_OPTION_MOMENTUM_DECAY,
    KILN_OPTION_DECOUPLED,
    KILN_OPTION_BETA2_DECAY,
    KILN_OPTION_EPS2,
    KILN_OPTION_MAX_RMS,
    KILN_OPTION_ITERATIONS,
    KILN_OPTION_MATCH_RMS,
    KILN_OPTION_ADAMW,
    KILN_OPTION_MASTER_WEIGHTS,
    KILN_OPTIONS
};
#define KILN_TAKES(option) (1u << KILN_OPTION_##option)
#define KILN_ALL_TAKE      KILN_TAKES(MASTER_WEIGHTS)

/* ---- What rules share: also number.h ---- */

/* For compositions: the tensor behind an input. */
static inline kiln_tensor *kiln_update_tensor(const kiln_update *u, int input)
{
    return u->formula.in[input];
}

/* The square root of the sum of all squares, a tensor without dims. */
kiln_tensor *kiln_update_norm(kiln_tensor *x);

#endif
