/* The list of optimizers, which is the list of files in rules/, and what those share. */
#include <stdlib.h>
#include <string.h>
#include "core/fail.h"
#include "core/nearest.h"
#include "core/sized.h"
#include "optim/optim.h"

#define KILN_OPTIMIZER(name) extern const kiln_optim_rule kiln_optim_rule_##name;
#include "optim/rules.def" /* made by the build: a line a file */
#undef KILN_OPTIMIZER

#define KILN_OPTIMIZER(name) &kiln_optim_rule_##name,
static const kiln_optim_rule *const rules[] = {
#include "optim/rules.def"
};
#undef KILN_OPTIMIZER

#define KILN_OPTIMIZER(name) #name,
static const char *const names[] = {
#include "optim/rules.def"
    NULL};
#undef KILN_OPTIMIZER

const char *const *kiln_optim_names(void)
{
    return names;
}

static const kiln_optim_rule *rule_of_name(const char *name)
{
    for (size_t i = 0; names[i]; i++)
        if (!strcmp(name, names[i]))
            return rules[i];
    return NULL;
}

const kiln_optim_rule *kiln_optim_find(const char *name)
{
    kiln_nearest nearest = {0};
    char known[160] = "";
    size_t at = 0;
    if (!name)
        return kiln_fail(KILN_E_ARGUMENT, "optim", "the optimizer's name is NULL");
    const kiln_optim_rule *rule = rule_of_name(name);
    if (rule)
        return rule;
    for (size_t i = 0; names[i]; i++) {
        kiln_nearest_offer(&nearest, name, names[i]);
        if (at < sizeof known)
            at += (size_t)snprintf(known + at, sizeof known - at, "%s%s", at ? ", " : "", names[i]);
    }
    kiln_fail(KILN_E_ARGUMENT, "optim", "there is no optimizer \"%.60s\"", name);
    return nearest.word ? kiln_hint("did you mean \"%s\"? There are: %s", nearest.word, known)
                        : kiln_hint("there are: %s", known);
}

void kiln_optim_defaults_(const char *name, kiln_optim_options *to, size_t size)
{
    const kiln_optim_rule *rule = kiln_optim_find(name);
    kiln_optim_options options = rule ? kiln_optim_defaults_of(rule) : (kiln_optim_options){0};
    options.size = size;
    options.exact = true;
    KILN_GIVE_SIZED(to, size, options);
}

/* ---- What rules share ---- */

kiln_tensor *kiln_update_norm(kiln_tensor *x)
{
    return kiln_norm(x, 2, 0, NULL, false);
}
