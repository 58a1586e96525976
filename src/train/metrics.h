/* Sums of the loss and the metrics over batches. They are added up on the device, inside the step, so that a step reads
 * nothing back; now and then they are moved to doubles on the host and begun anew, so that f32 suffices. A move is
 * begun after one batch and asked for some batches later: a device that was waited for would run dry. */
#ifndef KILN_TRAIN_METRICS_H
#define KILN_TRAIN_METRICS_H

#include "tensor/memory.h"
#include "train/progress.h"
#include "train/task.h"

/* The last one is there where some labels do not count: how many do. */
enum { KILN_SUM_LOSS, KILN_SUM_CORRECT, KILN_SUM_TOP5, KILN_SUM_ABSOLUTE, KILN_SUM_ITEMS, KILN_SUMS };

/* Batches (of a training run: optimizer steps) after which sums are moved to the host. */
enum { KILN_COLLECT_EVERY = 50 };

enum { KILN_MOVES = 2 }; /* that can be under way */

/* All that was summed, on the host. */
typedef struct kiln_totals {
    double sum[KILN_SUMS];
    int64_t samples;
} kiln_totals;

typedef struct kiln_meter {
    const kiln_task *task;
    kiln_tensor *all;            /* the memory that the sums lie in, side by side: they are read with one copy */
    kiln_tensor *sum[KILN_SUMS]; /* f32 without dims; NULL: not wanted */
    kiln_tensor *confusion;      /* i64 [classes · classes]; NULL: not wanted */
    kiln_totals collected;       /* what was moved to the host */
    int64_t samples;             /* in the sums on the device */
    bool fresh;                  /* the next batch begins the sums anew */

    int64_t begun, ended; /* moves; the others are under way, move i in place i % KILN_MOVES */
    struct kiln_move {
        uint64_t ticket;
        int64_t samples;
    } moves[KILN_MOVES];
    kiln_staging staging; /* where they go to; taken with the first one */
} kiln_meter;

bool kiln_meter_init(kiln_meter *m, const kiln_task *task, kiln_device device, bool confusion);
void kiln_meter_free(kiln_meter *m);
void kiln_meter_reset(kiln_meter *m); /* forgets everything but the confusion matrix, also moves under way */

/* Inside a step: adds a batch of `size` samples. */
bool kiln_meter_add(kiln_meter *m, const kiln_batch_loss *loss, kiln_tensor *output, kiln_tensor *x, kiln_tensor *y,
                    int64_t size);

/* For a step that is run again: what it multiplies the sums with, and that it has added a batch to them. */
double kiln_meter_keep(const kiln_meter *m);
void kiln_meter_count(kiln_meter *m, int64_t size);

/* Begins to move the sums to the host; fewer than KILN_MOVES must be under way. */
bool kiln_meter_move(kiln_meter *m);
/* Ends the oldest move under way. *t is all that was summed when it was begun. */
bool kiln_meter_moved(kiln_meter *m, kiln_totals *t);
/* Whether the oldest move is over because the device makes copies at once. Asks nobody. */
bool kiln_meter_at_once(const kiln_meter *m);
/* Begins a move and ends the one before, for those who do not ask what was summed then. */
bool kiln_meter_collect(kiln_meter *m);

bool kiln_meter_read(kiln_meter *m, kiln_totals *t); /* all there is by now; changes nothing */

/* The sums on the device as they are, to be saved and put back to the bit; no move is under way. */
bool kiln_meter_get(kiln_meter *m, double sums[KILN_SUMS]);
bool kiln_meter_set(kiln_meter *m, const double sums[KILN_SUMS]);

/* Averages; NaN where not asked for. */
kiln_result kiln_totals_result(const kiln_task *task, const kiln_totals *t);
/* What came between two moments. */
kiln_totals kiln_totals_since(const kiln_totals *now, const kiln_totals *before);

/* Puts a result's numbers on a progress line, those of a validation as "val_loss". */
void kiln_progress_result(kiln_progress_line *l, bool validation, const kiln_result *r, unsigned metrics);

bool kiln_meter_confusion(kiln_meter *m, kiln_result *r);

#endif
