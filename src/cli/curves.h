/* The log of a run as curves. */
#ifndef KILN_CLI_CURVES_H
#define KILN_CLI_CURVES_H

#include "cli/cli.h"

typedef struct curve {
    int count, room;
    double *xy; /* x: optimizer steps; pairs without a value are left out */
} curve;

typedef enum curve_kind { TRAIN_LOSS, TEST_LOSS, TRAIN_ACCURACY, TEST_ACCURACY, CURVES } curve_kind;

typedef struct curves {
    char *name;            /* for the legend */
    char *model, *data;    /* as the log says; may be NULL */
    double steps_an_epoch; /* 0: not known */
    curve all[CURVES];
} curves;

/* JSON lines, or CSV where the name ends in .csv. 0, or the exit code after the error was reported. */
int curves_read(curves *c, const char *path);
void curves_free(curves *c);

#endif
