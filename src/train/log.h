/* The log of a run: JSON lines, or CSV when the file's name ends in ".csv".
 *
 *     {"run": {"version": "0.1.0", "model": "Sequential", "parameters": 235146, …}}
 *     {"step": 50, "loss": 0.83, "lr": 0.001}                      the mean since the line before
 *     {"epoch": 1, "step": 1875, "loss": …, "val_loss": …, …}
 *
 * memory_peak of an epoch: the most bytes of the device's memory that were in use so far, with what it takes for
 * itself. CSV has the epochs alone. Every line is written at once, so the file can be watched; a line that cannot be
 * written is an error. */
#ifndef KILN_TRAIN_LOG_H
#define KILN_TRAIN_LOG_H

#include "train/journal.h"
#include "train/task.h"

typedef struct kiln_log_file {
    kiln_journal journal;
    bool csv, validates, scales;
    unsigned metrics;
    kiln_device device; /* whose memory an epoch's line tells of */
} kiln_log_file;

/* What the first line says about the run. */
typedef struct kiln_log_about {
    const char *model, *data, *optim, *schedule, *device;
    int64_t parameters, samples, validation_samples, batch, micro_batch, accumulate, epochs; /* micro_batch 0: none */
    double lr;
    uint64_t seed;
    int threads;
    bool tf32;
    kiln_dtype autocast; /* KILN_F32: none */
    double first_step;
    const char *more; /* a JSON object whose members are added, or take the place of these; NULL: none */
} kiln_log_about;

/* A fresh log, or (an unempty mark) one that goes on behind the mark. path NULL: no log, and the calls below do
 * nothing.
 */
bool kiln_log_open(kiln_log_file *l, const char *path, unsigned metrics, bool validates, bool scales, kiln_mark mark);
void kiln_log_close(kiln_log_file *l);

bool kiln_log_run(kiln_log_file *l, const kiln_log_about *about);
bool kiln_log_step(kiln_log_file *l, int64_t step, const kiln_result *mean, double lr);
bool kiln_log_epoch(kiln_log_file *l, const kiln_epoch *e, int64_t step);

#endif
