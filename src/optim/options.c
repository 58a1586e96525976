/* Option lists: which optimizer has which, what is there when nothing is given, and which values make sense. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "core/fail.h"
#include "core/nearest.h"
#include "optim/optim.h"

typedef struct option {
    const char *name;
    size_t offset;
    bool flag;  /* a bool; others are doubles, 0 or more */
    bool share; /* below 1 */
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
};

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
        if (rule->takes >> i & 1 && at < sizeof has)
            at += (size_t)snprintf(has + at, sizeof has - at, "%s%s", at ? ", " : "", all[i].name);
    kiln_fail(KILN_E_ARGUMENT, rule->op.name, "%s has no %s", rule->op.name, all[missing].name);
    return kiln_hint("it has: %s", has);
}

static bool read_number(const kiln_optim_rule *rule, int i, double given, double *out)
{
    *out = given == KILN_ZERO ? 0 : given;
    if (!isfinite(*out) || *out < 0) {
        kiln_fail(KILN_E_ARGUMENT, rule->op.name, "%s is %g, but must be a number of at least 0", all[i].name, given);
        return kiln_hint("KILN_ZERO stands for 0 where 0 is not the default");
    }
    if (all[i].share && *out >= 1)
        return kiln_fail(KILN_E_ARGUMENT, rule->op.name, "%s is %g, but must be below 1", all[i].name, given);
    return true;
}

bool kiln_optim_resolve(const kiln_optim_rule *rule, const kiln_optim_options *given, const kiln_optim_options *base,
                        kiln_optim_options *out)
{
    *out = *base;
    for (int i = 0; i < KILN_OPTIONS; i++) {
        bool set = all[i].flag ? flag(given, i) : number(given, i) != 0;
        void *field = (char *)out + all[i].offset;
        if (!set)
            continue;
        if (!(rule->takes >> i & 1))
            return refuse(rule, i);
        if (all[i].flag)
            *(bool *)field = true;
        else if (!read_number(rule, i, number(given, i), field))
            return false;
    }
    if (out->nesterov && (out->momentum == 0 || out->dampening != 0))
        return kiln_fail(KILN_E_ARGUMENT, rule->op.name, "nesterov needs a momentum and no dampening");
    return true;
}

const kiln_optim_rule *kiln_optim_find(const char *name)
{
    kiln_nearest nearest = {0};
    char known[120] = "";
    size_t at = 0;
    if (!name)
        return kiln_fail(KILN_E_ARGUMENT, "optim", "the optimizer's name is NULL");
    for (const kiln_optim_rule *const *r = kiln_optim_rules; *r; r++) {
        if (strcmp(name, (*r)->op.name) == 0)
            return *r;
        kiln_nearest_offer(&nearest, name, (*r)->op.name);
        if (at < sizeof known)
            at += (size_t)snprintf(known + at, sizeof known - at, "%s%s", at ? ", " : "", (*r)->op.name);
    }
    kiln_fail(KILN_E_ARGUMENT, "optim", "there is no optimizer \"%.60s\"", name);
    return nearest.word ? kiln_hint("did you mean \"%s\"? There are: %s", nearest.word, known)
                        : kiln_hint("there are: %s", known);
}
