/* The line that shows how far a run is: one that moves on a terminal, plain lines elsewhere. */
#ifndef KILN_TRAIN_PROGRESS_H
#define KILN_TRAIN_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include "core/clock.h"

enum { KILN_PROGRESS_VALUES = 12, KILN_PROGRESS_TEXT = 1024 };

/* What a line says. Times in seconds; NaN: not known, not shown. */
typedef struct kiln_progress_line {
    const char *what;         /* "Evaluating"; NULL: "Epoch 3/10" */
    int64_t epoch, epochs;    /* epoch from 1 */
    int64_t done, total;      /* batches */
    double seconds, step;     /* so far; for one batch */
    double rate, wait, first; /* samples a second, share of waiting for data, the first step: of finished lines */
    bool finished;            /* no bar that moves, no time to go */
    bool best;                /* this epoch is the best so far */
    const char *phase;        /* "validating 3/40" instead of the time to go; NULL: none */
    int count;
    struct {
        const char *name; /* "val_loss" */
        double value;
    } values[KILN_PROGRESS_VALUES];
} kiln_progress_line;

void kiln_progress_value(kiln_progress_line *l, const char *name, double value); /* NaN loss is shown, too */

/* The line's text without a line end, at most `width` columns wide: what matters least is left out first. With `bar` a
 * bar is drawn where there is room; colour codes take no columns. Returns the columns used. */
int kiln_progress_format(char *out, size_t size, const kiln_progress_line *l, int width, bool bar, bool color);

typedef struct kiln_progress {
    FILE *file; /* NULL: shows nothing */
    bool terminal, color;
    bool open; /* a line that moves is on the screen */
    double begun, drawn;
} kiln_progress;

void kiln_progress_init(kiln_progress *p, FILE *file);
bool kiln_progress_plain(const kiln_progress *p); /* lines that stay, one below the other */
/* Is it time to draw again? On a terminal ten times a second; elsewhere (unless its lines are `counted` by somebody)
 * every 30 seconds, and less often the longer it takes, so that a log of days can be read. */
bool kiln_progress_due(const kiln_progress *p, bool counted);
void kiln_progress_draw(kiln_progress *p, const kiln_progress_line *l);
void kiln_progress_note(kiln_progress *p, const char *format, ...) __attribute__((format(printf, 2, 3)));
void kiln_progress_close(kiln_progress *p); /* leaves a moving line as it is and goes to the next */

#endif
