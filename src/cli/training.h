/* A run of kiln train: its parts, the folder it works in (train_folder.c), and what is said about it (train_say.c). */
#ifndef KILN_CLI_TRAINING_H
#define KILN_CLI_TRAINING_H

#include "cli/recipe.h"

typedef struct training {
    const arguments *a;
    network net;
    source data;
    recipe recipe;
    kiln_device device;
    kiln_optim *optim;
    kiln_schedule *schedule;
    kiln_ema *ema;
    const char *folder;
    char *log, *curve;
    kiln_forecast planned;  /* what a step takes */
    uint64_t planned_plain; /* its peak without --amp; 0: not looked at */
    saved kept; /* of the run that is resumed: its newest checkpoint's weights, open until the network is built */
    char *kept_model, *kept_data, *kept_recipe; /* what it says about itself */
    char *moved, *moved_log;                    /* where the run that was in the folder, and the log, are now */
    bool quiet, resume, made_folder;
} training;

/* ---- The folder ---- */

/* Makes the folder of the run. One that is there is moved aside, unless the run is resumed; what the user named for
 * this run to read is never moved with it. */
int folder_make(training *t);
/* After an error: where nothing came to be in the new folder, or log, all is as it was before. */
void folder_undo(training *t);
/* What is in the folder to be resumed: t->kept and what it says about itself; nothing where it has no run yet. */
int folder_resume(training *t);

/* ---- Words ---- */

void say_start(const training *t);
void say_end(const training *t, const kiln_history *h, double seconds);
void say_files(const training *t, bool curve);
int say_interrupted(const training *t, const kiln_history *h); /* returns the exit code */
/* What the log's first line says beside what kiln_fit knows: a JSON object; freed by the caller. */
char *about_run(const training *t);

#endif
