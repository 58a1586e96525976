/* What an optimizer holds, and what its files share. optim.c makes optimizers and takes steps, options.c reads option
 * lists, rules.c knows all optimizers (rule.h, rules/), receipt.c counts steps so that discarded ones do not count,
 * clock.c counts those that a device may leave out (scaler.c). */
#ifndef KILN_OPTIM_OPTIM_H
#define KILN_OPTIM_OPTIM_H

#include "optim/rule.h"
#include "plan/rerun.h"

/* False if p is NULL, with an error where none explains it yet. */
static inline bool kiln_optim_given(const void *p, const char *who)
{
    if (!p && kiln_ok())
        kiln_fail(KILN_E_ARGUMENT, who, "the %s it is asked of is NULL", who);
    return p != NULL;
}

/* The rule of this name; NULL with an error that suggests the nearest. */
const kiln_optim_rule *kiln_optim_find(const char *name);

/* The rule's options where none are given. */
kiln_optim_options kiln_optim_defaults_of(const kiln_optim_rule *rule);

/* *out = what was given, and `base` where nothing was. False with an error when the optimizer does not have an option
 * that is set, or a value makes no sense. */
bool kiln_optim_resolve(const kiln_optim_rule *rule, const kiln_optim_options *given, const kiln_optim_options *base,
                        kiln_optim_options *out);

/* A parameter's state tensors: the rule's, and behind them the f32 copy of a 16-bit parameter. */
enum { KILN_OPTIM_MASTER = KILN_OPTIM_STATES, KILN_OPTIM_SLOTS };

typedef struct kiln_optim_param {
    kiln_tensor *tensor; /* a reference */
    char *name;
    uint64_t hash;  /* of the name: two that differ are told apart at once */
    uint32_t label; /* the name, interned: what its updates are recorded as parts of */
    int group;
    bool done;         /* scratch for a step */
    bool began;        /* its master holds something: it was shown, and may have been loaded */
    int64_t steps;     /* updates of it so far */
    kiln_device clock; /* whose clock counts them, where there are clocks */
    int64_t twin;      /* the first parameter that is known to have the same count there */
    kiln_tensor *state[KILN_OPTIM_SLOTS];
} kiln_optim_param;

/* Proof that the updates of a step ran: an empty tensor that the same segment of the trace is to make. */
typedef struct kiln_optim_receipt {
    kiln_tensor *token;
    bool counts;     /* the first one of its step: the one the optimizer's own count goes by */
    uint8_t *marks;  /* which parameters were updated; kept for reuse when the receipt is settled */
    int64_t room;    /* of marks */
    int64_t nparams; /* how many there were */
} kiln_optim_receipt;

/* How many steps were taken, on a device that decides by itself which are: clock.c. */
typedef struct kiln_optim_clock {
    kiln_device device;
    kiln_tensor *taken; /* f64: of each parameter, and last of the optimizer */
} kiln_optim_clock;

struct kiln_optim {
    const kiln_optim_rule *rule;
    uint32_t label; /* "optimizer", interned: what else its steps record */
    kiln_optim_options *groups;
    int64_t ngroups, groups_capacity;
    kiln_optim_param *params;
    int64_t nparams, params_capacity;
    int64_t steps;
    kiln_optim_power powers[2];
    kiln_optim_list products;
    kiln_optim_clock *clocks; /* one a device; none where the host counts */
    int64_t nclocks, clocks_capacity;
    kiln_optim_receipt *receipts; /* of steps that are not known to have run, the oldest first */
    int64_t nreceipts, receipts_capacity;
    bool told; /* of the forgotten kiln_zero_grad */

    /* kiln_optim_state's list. `skipped` holds how many steps each parameter had no part in, so that a late starter's
     * own count can be restored. */
    kiln_tensor *skipped;
    int64_t *skips, skips_capacity; /* what was last put into it */
    kiln_tensor **list;
    char **names;
    int64_t nlist, list_capacity, names_capacity;
};

/* The rule that updates a parameter. */
const kiln_optim_rule *kiln_optim_rule_of(const kiln_optim *o, const kiln_optim_param *p);

/* What a state tensor is saved as, behind the parameter's name. */
const char *kiln_optim_slot_name(const kiln_optim *o, const kiln_optim_param *p, int slot);

/* The parameter's state tensors where it is and of the type that fits: made, or changed after it. */
bool kiln_optim_place_state(const kiln_optim *o, kiln_optim_param *p);
/* The same state in another type, at once and not as a part of the step: its parameter was cast, which computed what
 * was pending. The caller's; NULL with an error. */
kiln_tensor *kiln_optim_converted(const kiln_tensor *t, kiln_dtype dtype);
void kiln_optim_free_names(kiln_optim *o);

/* kiln_optim_step, of which the device leaves out everything if `found`, a bool without dims, is true then. NULL: an
 * ordinary step. */
bool kiln_optim_step_unless(kiln_optim *o, kiln_tensor *found);

/* ---- Steps that are run again (plan/rerun.h) ---- */

/* The numbers of parameter i's next update, or of one of its rates, as recording it would make them; false if there are
 * not so many. */
bool kiln_optim_numbers(kiln_optim *o, int64_t i, double *to, int64_t count);

/* Rates that are numbers of their own come behind the parameters. */
int64_t kiln_optim_rate_index(const kiln_optim *o, const kiln_optim_options *group);

/* Runs a step that holds this optimizer's updates again, with the receipt that kiln_optim_step would have left. False
 * with an error, and the step does not count. */
bool kiln_optim_rerun(kiln_optim *o, kiln_rerun *step);

/* ---- clock.c ---- */

/* Steps are counted on the devices of the parameters from now on, or by the host again, which waits for the counts.
 * Nothing is done where it is so already. False with an error. */
bool kiln_optim_start_clocks(kiln_optim *o);
bool kiln_optim_stop_clocks(kiln_optim *o);
void kiln_optim_drop_clocks(kiln_optim *o);

kiln_tensor *kiln_optim_clock_on(const kiln_optim *o, kiln_device device); /* its counts */

/* The parameters that are done have taken a step there, by updates like u, unless its `found`. */
bool kiln_optim_advance_clock(kiln_optim *o, kiln_device device, const kiln_update *u);

/* ---- clip.c ---- */

/* All gradients of the list times a factor of one element. False with an error, also where the factor is NULL. */
bool kiln_grads_scale(kiln_params params, kiln_tensor *factor);

/* ---- receipt.c ---- */

/* Finds out about steps written earlier: those that were discarded no longer count. False with the error of a device
 * that failed and whose failure nobody was told of yet; the counts are right then, too. */
bool kiln_optim_settle(kiln_optim *o);

/* A receipt for updates about to be written, not yet on the list; NULL with an error. */
kiln_optim_receipt *kiln_optim_open_receipt(kiln_optim *o, bool counts);

/* The updates of the marked parameters were written on this device: from now on they count. */
bool kiln_optim_close_receipt(kiln_optim *o, kiln_device device);

void kiln_optim_drop_receipts(kiln_optim *o, bool all); /* all: memory as well */

#endif
