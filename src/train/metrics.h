/* Sums of the loss and the metrics over batches. They are added up on the device, inside the step, so that a step reads
 * nothing back; now and then they are read, moved to doubles on the host, and begun anew, so that f32 suffices. */
#ifndef KILN_TRAIN_METRICS_H
#define KILN_TRAIN_METRICS_H

#include "train/progress.h"
#include "train/task.h"

enum { KILN_SUM_LOSS, KILN_SUM_CORRECT, KILN_SUM_TOP5, KILN_SUM_ABSOLUTE, KILN_SUMS };

/* Batches (of a training run: optimizer steps) after which sums are moved to the host. */
enum { KILN_DRAIN = 50 };

/* All that was summed, on the host. */
typedef struct kiln_totals {
    double sum[KILN_SUMS];
    int64_t samples;
} kiln_totals;

typedef struct kiln_meter {
    const kiln_task *task;
    kiln_tensor *sum[KILN_SUMS]; /* f32 without dims; NULL: not wanted */
    kiln_tensor *confusion;      /* i64 [classes · classes]; NULL: not wanted */
    kiln_totals drained;         /* what was moved to the host */
    int64_t samples;             /* in the sums on the device */
    bool fresh;                  /* the next batch begins the sums anew */
} kiln_meter;

bool kiln_meter_init(kiln_meter *m, const kiln_task *task, kiln_device device, bool confusion);
void kiln_meter_free(kiln_meter *m);
void kiln_meter_reset(kiln_meter *m); /* forgets everything but the confusion matrix */

/* Inside a step: adds a batch of `size` samples. */
bool kiln_meter_add(kiln_meter *m, kiln_tensor *loss, kiln_tensor *output, kiln_tensor *x, kiln_tensor *y,
                    int64_t size);

bool kiln_meter_read(kiln_meter *m, kiln_totals *t); /* changes nothing */
bool kiln_meter_drain(kiln_meter *m, kiln_totals *t);

/* The sums on the device as they are, to be saved and put back to the bit. */
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
