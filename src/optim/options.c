/* Option lists: which optimizer has which, what is there when nothing is given, and which values make sense. */
#include <math.h>
#include <string.h>
#include "core/fail.h"
#include "optim/optim.h"

typedef struct option {
    const char *name;
    size_t offset;
    bool flag;  /* a bool; others are doubles */
    bool share; /* below 1 */
    bool whole; /* no fractions */
    double least;
} option;

#define FIELD(option) .name = #option, .offset = offsetof(kiln_optim_options, option)
static const option all[KILN_OPTIONS] = {
    [KILN_OPTION_LR] = {FIELD(lr)},
    [KILN_OPTION_WEIGHT_DECAY] = {FIELD(weight_decay)},
    [KILN_OPTION_MOMENTUM] = {FIELD(momentum)},
    [KILN_OPTION_DAMPENING] = {FIELD(dampening)},
    [KILN_OPTION_NESTEROV] = {FIELD(nesterov), .flag = true},
    [KILN_OPTION_BETA1] = {FIELD(beta1), .share = true},
    [KILN_OPTION_BETA2] = {FIELD(beta2), .share = true},
    [KILN_OPTION_EPS] = {FIELD(eps)},
    [KILN_OPTION_AMSGRAD] = {FIELD(amsgrad), .flag = true},
    [KILN_OPTION_ALPHA] = {FIELD(alpha)},
    [KILN_OPTION_CENTERED] = {FIELD(centered), .flag = true},
    [KILN_OPTION_LR_DECAY] = {FIELD(lr_decay)},
    [KILN_OPTION_INITIAL_ACCUMULATOR] = {FIELD(initial_accumulator)},
    [KILN_OPTION_RHO] = {FIELD(rho), .share = true},
    [KILN_OPTION_MOMENTUM_DECAY] = {FIELD(momentum_decay)},
    [KILN_OPTION_DECOUPLED] = {FIELD(decoupled), .flag = true},
    [KILN_OPTION_BETA2_DECAY] = {FIELD(beta2_decay)},
    [KILN_OPTION_EPS2] = {FIELD(eps2)},
    [KILN_OPTION_MAX_RMS] = {FIELD(max_rms), .least = 1},
    [KILN_OPTION_ITERATIONS] = {FIELD(iterations), .whole = true},
    [KILN_OPTION_MATCH_RMS] = {FIELD(match_rms), .flag = true},
    [KILN_OPTION_ADAMW] = {FIELD(adamw), .flag = true},
    [KILN_OPTION_MASTER_WEIGHTS] = {FIELD(master_weights), .flag = true},
};

static bool has_option(const kiln_optim_rule *rule, int i)
{
    return (rule->takes | KILN_ALL_TAKE) >> i & 1;
}

kiln_optim_options kiln_optim_defaults_of(const kiln_optim_rule *rule)
{
    kiln_optim_options options = rule->defaults;
    options.master_weights = true;
    return options;
}

static double number(const kiln_optim_options *o, int i)
{
    return *(const double *)(const void *)((const char *)o + all[i].offset);
}

static bool flag(const kiln_optim_options *o, int i)
{
    return *(const bool *)((const char *)o + all[i].offset);
}

static bool refuse(const kiln_optim_rule *rule, int missing)
{
    char has[200] = "";
    size_t at = 0;
    for (int i = 0; i < KILN_OPTIONS; i++)
        if (has_option(rule, i) && at < sizeof has)
            at += (size_t)snprintf(has + at, sizeof has - at, "%s%s", at ? ", " : "", all[i].name);
    kiln_fail(KILN_E_ARGUMENT, rule->op.name, "%s has no %s", rule->op.name, all[missing].name);
    return kiln_hint("it has: %s", has);
}

static bool read_number(const kiln_optim_rule *rule, int i, double given, double *out)
{
    const option *known = &all[i];
    *out = given == KILN_ZERO ? 0 : given;
    if (!isfinite(*out) || *out < known->least) {
        kiln_fail(KILN_E_ARGUMENT, rule->op.name, "%s is %g, but must be a number of at least %g", known->name, given,
                  known->least);
        return kiln_hint("KILN_ZERO stands for 0 where 0 is not the default");
    }
    if (known->share && *out >= 1)
        return kiln_fail(KILN_E_ARGUMENT, rule->op.name, "%s is %g, but must be below 1", known->name, given);
    if (known->whole && (*out != floor(*out) || *out > 1000))
        return kiln_fail(KILN_E_ARGUMENT, rule->op.name, "%s is %g, but must be a whole number of at most 1000",
                         known->name, given);
    return true;
}

bool kiln_optim_resolve(const kiln_optim_rule *rule, const kiln_optim_options *given, const kiln_optim_options *base,
                        kiln_optim_options *out)
{
    *out = *base;
    for (int i = 0; i < KILN_OPTIONS; i++) {
        bool set = all[i].flag ? flag(given, i) : number(given, i) != 0, has = has_option(rule, i);
        void *field = (char *)out + all[i].offset;
        if (set && !has)
            return refuse(rule, i);
        if (!has || (!set && !given->exact))
            continue;
        if (all[i].flag)
            *(bool *)field = flag(given, i);
        else if (!read_number(rule, i, number(given, i), field))
            return false;
    }
    if (out->nesterov && (out->momentum == 0 || out->dampening != 0))
        return kiln_fail(KILN_E_ARGUMENT, rule->op.name, "nesterov needs a momentum and no dampening");
    return true;
}

bool kiln_optim_has_option(const char *name, const char *wanted)
{
    const kiln_optim_rule *rule = kiln_optim_find(name);
    for (int i = 0; rule && wanted && i < KILN_OPTIONS; i++)
        if (!strcmp(wanted, all[i].name))
            return has_option(rule, i);
    return false;
}
