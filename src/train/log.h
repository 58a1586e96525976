/* The log of a run: JSON lines, or CSV when the file's name ends in ".csv".
 *
 *     {"run": {"model": "Sequential", "parameters": 235146, …}}
 *     {"step": 50, "loss": 0.83, "lr": 0.001}                      the mean since the line before
 *     {"epoch": 1, "step": 1875, "loss": …, "val_loss": …, …}
 *
 * CSV has the epochs alone. Every line is written at once, so the file can be watched; a line that cannot be written is
 * an error. */
#ifndef KILN_TRAIN_LOG_H
#define KILN_TRAIN_LOG_H

#include "train/task.h"

typedef struct kiln_journal {
    int file; /* -1: no log */
    char *path;
    bool csv, validates;
    unsigned metrics;
    int64_t bytes; /* written so far */
} kiln_journal;

/* What the first line says about the run. */
typedef struct kiln_log_about {
    const char *model, *data, *optim, *device;
    int64_t parameters, samples, validation_samples, batch, accumulate, epochs;
    uint64_t seed;
    int threads;
    bool tf32;
    double first_step;
} kiln_log_about;

/* A fresh log, or (bytes > 0) one that goes on after its first `bytes` bytes; what comes after them is dropped. path
 * NULL: no log, and the calls below do nothing. */
bool kiln_log_open(kiln_journal *l, const char *path, unsigned metrics, bool validates, int64_t bytes);
void kiln_log_close(kiln_journal *l);

bool kiln_log_run(kiln_journal *l, const kiln_log_about *about);
bool kiln_log_step(kiln_journal *l, int64_t step, const kiln_result *mean, double lr);
bool kiln_log_epoch(kiln_journal *l, const kiln_epoch *e, int64_t step);

#endif
