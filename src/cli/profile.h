/* What the kernels of a training step take, summed by what they come from: for kiln bench --kernels. */
#ifndef KILN_CLI_PROFILE_H
#define KILN_CLI_PROFILE_H

#include "cli/step.h"

/* All launches that come from one operation in modules whose paths differ in numbers alone: in "h.*.mlp.c_fc". */
typedef struct profile_row {
    char *operation, *module;
    int64_t launches;
    double us, flops, bytes;
} profile_row;

typedef struct profile {
    profile_row *rows; /* the longest first */
    int64_t nrows, launches;
    double us;
} profile;

/* Times a few steps, and takes the median of each launch. 0, or the exit code after the error was reported. */
int profile_take(profile *p, step *s);

/* Prints the table; `seconds`: what the step takes when nobody looks. */
void profile_say(const profile *p, int64_t batch, double seconds);
void profile_free(profile *p);

#endif
