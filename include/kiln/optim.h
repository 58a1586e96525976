/* Optimizers, schedules, clipping, averages of weights. */
#ifndef KILN_OPTIM_H
#define KILN_OPTIM_H

#include "kiln/grad.h"
#include "kiln/nn.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kiln_optim kiln_optim;

/* One list of options for all; each optimizer reads those it has and refuses others that are set. 0 stands for the
 * default, which is PyTorch's where PyTorch has the optimizer; where 0 itself is meant and is not the default, write
 * KILN_ZERO, or begin with kiln_optim_defaults, in whose struct every field means what it says. */
#define KILN_ZERO (-1.0)
typedef struct kiln_optim_options {
    size_t size;         /* of the struct; the macros set it */
    double lr;           /* 1e-3; adadelta 1, adafactor, adagrad, rmsprop 1e-2, nadam 2e-3, lion 1e-4 */
    double weight_decay; /* 0; adamw, lamb 1e-2, muon 0.1; decoupled in adafactor, adamw, lion, muon, part of what
                            is scaled in lamb, else added to the gradient */
    double momentum;     /* sgd, rmsprop: 0; muon: 0.95 */
    double dampening;    /* sgd: 0 */
    bool nesterov;       /* sgd; muon: yes */
    double beta1, beta2; /* adam and its kin, lamb, muon's adamw: 0.9, 0.999; lion: 0.9, 0.99 */
    double eps;          /* 1e-8; adagrad 1e-10, adadelta, lamb 1e-6, muon 1e-7, adafactor the type's precision */
    bool amsgrad;        /* adam, adamw */
    double alpha;        /* rmsprop: 0.99 */
    bool centered;       /* rmsprop */
    double lr_decay;     /* adagrad: 0 */
    double initial_accumulator; /* adagrad: 0 */
    double rho;                 /* adadelta: 0.9 */
    double momentum_decay;      /* nadam: 4e-3 */
    bool decoupled;             /* nadam, radam: weight decay as adamw's */
    double beta2_decay;         /* adafactor: 0.8; 1 - beta2 of step t is t to the power of minus it */
    double eps2;                /* adafactor: 1e-3; steps are relative to the parameter's size, or to this */
    double max_rms;             /* adafactor: 1; how large an update may be before it is scaled down */
    double iterations;          /* muon: 5 */
    bool match_rms;             /* muon: steps as large as adamw's, so that its rate and decay fit */
    bool adamw;                 /* muon: this group's parameters are updated by adamw (embeddings, heads) */
    bool exact;                 /* set by kiln_optim_defaults: 0 means 0, false means false */
    bool master_weights;        /* all: yes. A 16-bit parameter is updated as an f32 copy of it, with f32 state, and is
                                   that copy rounded: steps smaller than its own precision would be lost otherwise */
} kiln_optim_options;

/* kiln_optim_adam(kiln_parameters(model), .lr = 1e-3). The parameters must outlive the optimizer. NULL with an error.
 * muon is for matrices: parameters of one dim are updated by adamw with the same options. */
#define kiln_optim_sgd(...)       KILN_CALL2_(kiln_optim_new, kiln_optim_options, "sgd", __VA_ARGS__, )
#define kiln_optim_adam(...)      KILN_CALL2_(kiln_optim_new, kiln_optim_options, "adam", __VA_ARGS__, )
#define kiln_optim_adamw(...)     KILN_CALL2_(kiln_optim_new, kiln_optim_options, "adamw", __VA_ARGS__, )
#define kiln_optim_nadam(...)     KILN_CALL2_(kiln_optim_new, kiln_optim_options, "nadam", __VA_ARGS__, )
#define kiln_optim_radam(...)     KILN_CALL2_(kiln_optim_new, kiln_optim_options, "radam", __VA_ARGS__, )
#define kiln_optim_rmsprop(...)   KILN_CALL2_(kiln_optim_new, kiln_optim_options, "rmsprop", __VA_ARGS__, )
#define kiln_optim_adagrad(...)   KILN_CALL2_(kiln_optim_new, kiln_optim_options, "adagrad", __VA_ARGS__, )
#define kiln_optim_adadelta(...)  KILN_CALL2_(kiln_optim_new, kiln_optim_options, "adadelta", __VA_ARGS__, )
#define kiln_optim_adafactor(...) KILN_CALL2_(kiln_optim_new, kiln_optim_options, "adafactor", __VA_ARGS__, )
#define kiln_optim_lamb(...)      KILN_CALL2_(kiln_optim_new, kiln_optim_options, "lamb", __VA_ARGS__, )
#define kiln_optim_lion(...)      KILN_CALL2_(kiln_optim_new, kiln_optim_options, "lion", __VA_ARGS__, )
#define kiln_optim_muon(...)      KILN_CALL2_(kiln_optim_new, kiln_optim_options, "muon", __VA_ARGS__, )
KILN_API kiln_optim *kiln_optim_new(const char *name, kiln_params params, const kiln_optim_options *options);
KILN_API void kiln_optim_free(kiln_optim *o);

/* The names of all optimizers, in alphabetical order, with NULL at the end. */
KILN_API const char *const *kiln_optim_names(void);

/* Whether an optimizer has an option: ("sgd", "momentum"). False with an error when there is no such optimizer. */
KILN_API bool kiln_optim_has_option(const char *name, const char *option);

/* An optimizer's options as they are when none is given. Change fields and hand its address to kiln_optim_new:
 *     kiln_optim_options o = kiln_optim_defaults("adamw");
 *     o.weight_decay = 0;
 *     kiln_optim *optim = kiln_optim_new("adamw", kiln_parameters(model), &o);
 * All 0 with an error when there is no such optimizer. */
KILN_API void kiln_optim_defaults_(const char *name, kiln_optim_options *options, size_t size);
static inline kiln_optim_options kiln_optim_defaults(const char *name)
{
    kiln_optim_options options;
    kiln_optim_defaults_(name, &options, sizeof options);
    return options;
}

/* A further group of parameters with options of its own (unset ones are the first group's), also of another module. A
 * parameter is in one group. A name that is there already ("bias" of both) becomes the first of bias.2, bias.3, … that
 * is free: what is saved is found again by an optimizer that was made in the same order. */
#define kiln_optim_group(...) KILN_CALL2_(kiln_optim_add_group, kiln_optim_options, __VA_ARGS__, )
KILN_API bool kiln_optim_add_group(kiln_optim *o, kiln_params params, const kiln_optim_options *options);

/* Forgets the gradients of all its parameters. */
KILN_API void kiln_zero_grad(kiln_optim *o);

/* Updates every parameter that has a gradient and is not frozen; outside a kiln_step this runs what was recorded. If
 * gradients of an earlier step were not zeroed and the new ones were added to them, that is noticed and said once
 * (kiln_next_notice). */
KILN_API bool kiln_optim_step(kiln_optim *o);

KILN_API const char *kiln_optim_name(const kiln_optim *o); /* "adam" */
/* Steps taken, not counting those that were discarded. What a device is still working on counts until it has failed. */
KILN_API int64_t kiln_optim_steps(const kiln_optim *o);
KILN_API int kiln_optim_groups(const kiln_optim *o);
KILN_API double kiln_optim_lr(const kiln_optim *o, int group); /* NaN with an error when there is no such group */
KILN_API bool kiln_optim_set_lr(kiln_optim *o, int group, double lr); /* group -1: all */

/* Its tensors, for saving: "0.weight.exp_avg", …, "0.weight.master_param" of a 16-bit parameter, and last "skipped":
 * how many steps each parameter had no gradient in. The list belongs to the optimizer and holds until it is asked for
 * again. State that a first step would make is made by this call. Empty for optimizers without state; empty with an
 * error on failure. */
KILN_API kiln_params kiln_optim_state(kiln_optim *o);
/* After the state's tensors were overwritten with saved ones: how many steps had been taken. */
KILN_API bool kiln_optim_set_steps(kiln_optim *o, int64_t steps);

/* ---- Clipping: between kiln_backward and kiln_optim_step ---- */

/* Scales all gradients so that their norm together is at most max_norm. The norm before, as a tensor of no dimensions;
 * NULL with an error. */
KILN_API kiln_tensor *kiln_clip_grad_norm(kiln_params params, double max_norm);
KILN_API bool kiln_clip_grad_value(kiln_params params, double limit); /* each element to -limit … limit */

/* ---- A moving average of a module's state; that of 16-bit weights is kept in f32 ---- */
typedef struct kiln_ema kiln_ema;
KILN_API kiln_ema *kiln_ema_new(kiln_module *m, double decay); /* starts as a copy */
KILN_API void kiln_ema_free(kiln_ema *e);
/* After each optimizer step: average = decay·average + (1 - decay)·weights; what is no float is copied. */
KILN_API bool kiln_ema_update(kiln_ema *e);
KILN_API bool kiln_ema_swap(kiln_ema *e);         /* weights and averages change places; once more to go back */
KILN_API kiln_params kiln_ema_state(kiln_ema *e); /* for saving; the names are the module's */

/* ---- Schedules: the learning rate as a function of time ----
 * A schedule scales what each group's rate was when it was made. kiln_schedule_advance goes one unit on, whatever the
 * program counts in: steps or epochs. Free it before the optimizer. */
typedef struct kiln_schedule kiln_schedule;
KILN_API kiln_schedule *kiln_schedule_constant(kiln_optim *o);
KILN_API kiln_schedule *kiln_schedule_step(kiln_optim *o, int64_t every, double gamma);
KILN_API kiln_schedule *kiln_schedule_multistep(kiln_optim *o, int n, const int64_t *milestones, double gamma);
KILN_API kiln_schedule *kiln_schedule_exponential(kiln_optim *o, double gamma);
KILN_API kiln_schedule *kiln_schedule_linear(kiln_optim *o, double from, double to, int64_t total); /* factors */
/* To final_factor times the rate; from `total` on it stays there. */
KILN_API kiln_schedule *kiln_schedule_cosine(kiln_optim *o, int64_t total, double final_factor);
/* PyTorch's OneCycleLR with its defaults: from max_lr / 25 up to max_lr in the first `up` share (0: 0.3), then down, by
 * cosines; the same for all groups. Momenta are left alone (cycle_momentum=False). */
KILN_API kiln_schedule *kiln_schedule_one_cycle(kiln_optim *o, double max_lr, int64_t total, double up);
/* Linear from `start` times the rate (0: 1/units) to the full rate over `units`, then what `then` says (NULL:
 * constant), counted from there. Owns `then`, also when it fails. */
KILN_API kiln_schedule *kiln_schedule_warmup(kiln_optim *o, int64_t units, double start, kiln_schedule *then);
/* Times `factor` when the value given to kiln_schedule_observe has not fallen for `patience` calls (PyTorch's defaults:
 * 0.1, 10; its threshold: 1e-4 relative); `rising`: not risen. */
KILN_API kiln_schedule *kiln_schedule_plateau(kiln_optim *o, double factor, int64_t patience, bool rising);
KILN_API void kiln_schedule_free(kiln_schedule *s);
KILN_API const char *kiln_schedule_name(const kiln_schedule *s); /* "cosine"; of a warm-up what comes then */
KILN_API bool kiln_schedule_advance(kiln_schedule *s);
KILN_API bool kiln_schedule_observe(kiln_schedule *s, double value); /* for plateau; others ignore it */
/* All a schedule remembers, for saving. */
typedef struct kiln_schedule_state {
    int64_t unit;          /* advances so far */
    double best, factor;   /* plateau */
    int64_t bad, observed; /* plateau */
} kiln_schedule_state;
KILN_API void kiln_schedule_get_(const kiln_schedule *s, kiln_schedule_state *state, size_t size);
static inline kiln_schedule_state kiln_schedule_get(const kiln_schedule *s)
{
    kiln_schedule_state state;
    kiln_schedule_get_(s, &state, sizeof state);
    return state;
}
KILN_API bool kiln_schedule_set_(kiln_schedule *s, const kiln_schedule_state *state, size_t size);
static inline bool kiln_schedule_set(kiln_schedule *s, kiln_schedule_state state) /* also sets the optimizer's rates */
{
    return kiln_schedule_set_(s, &state, sizeof state);
}

#ifdef __cplusplus
}
#endif
#endif
