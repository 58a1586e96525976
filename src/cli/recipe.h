/* A recipe: all that decides what a training run computes, from options, a run that is resumed, and defaults that suit
 * the model. It is kept in the run, so that --resume alone goes on as it began. */
#ifndef KILN_CLI_RECIPE_H
#define KILN_CLI_RECIPE_H

#include "cli/work.h"

typedef struct recipe {
    int64_t epochs, batch, accumulate, warmup, early_stop, seed;
    double lr, weight_decay, momentum, clip, ema; /* weight_decay, momentum < 0: the optimizer's own default */
    bool no_shuffle, flip;
    kiln_dtype amp;  /* 0: none */
    bool find_batch; /* --batch auto: it is found when model and optimizer are there, and kept in the run */
    kiln_fit_memory fit_memory;
    int64_t crop;
    char optim[16], schedule[96];
} recipe;

/* kept: the JSON object of the run that is resumed, or NULL. The second one, once the batch is known: epochs and
 * warm-up.
 */
int recipe_choose(recipe *r, const arguments *a, const network *n, int64_t samples, const char *kept);
int recipe_length(recipe *r, const arguments *a, const network *n, int64_t samples, const char *kept);
/* A JSON object, with the model as the user named it; freed by the caller. */
char *recipe_meta(const recipe *r, const char *model);

kiln_optim *recipe_optim(const recipe *r, kiln_module *m);
/* 0 and *out, which counts optimizer steps. */
int recipe_schedule(const recipe *r, kiln_optim *o, int64_t samples, kiln_schedule **out);

/* Whether such samples can be augmented as the recipe says. */
int recipe_check_images(const recipe *r, const kiln_data_info *data);

/* Checks "--schedule" before anything is opened. */
int schedule_check(const char *text);

#define SCHEDULES "constant step cosine one-cycle exponential plateau"

#endif
