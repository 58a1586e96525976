/* A run of kiln_fit: its parts, where it stands, and how that is saved and found again. */
#ifndef KILN_TRAIN_TRAINING_H
#define KILN_TRAIN_TRAINING_H

#include "plan/rerun.h"
#include "train/history.h"
#include "train/log.h"
#include "train/metrics.h"
#include "train/progress.h"

/* A moment at which the sums were moved to the host: they are looked at, and logged, once they are there. */
typedef struct kiln_collection {
    int64_t step;
    double lr;
    bool line; /* a step line is due */
} kiln_collection;

typedef struct kiln_training {
    kiln_fit_options o; /* with its defaults filled in */
    kiln_module *model;
    kiln_data_info data;
    kiln_device device;
    kiln_task task, validation;
    kiln_optim *optim;
    bool own_optim;
    kiln_scaler *scaler; /* NULL: the loss is not scaled */
    bool own_scaler;
    kiln_loader *loader;
    kiln_meter meter, validation_meter;
    kiln_progress progress;
    kiln_log_file log;

    kiln_history history; /* what is returned */
    kiln_history_file history_file;

    /* Where it stands: the next batch, after `step` optimizer steps. A checkpoint holds all of this. */
    int64_t epoch, batch, step;
    double lr;          /* of the last step */
    double best;        /* the loss of the best epoch; INFINITY: none yet */
    int64_t bad;        /* epochs since then */
    kiln_totals line;   /* what had been summed when the last step line was written */
    kiln_mark log_mark; /* how much of the log belongs to what is saved */
    double spent;       /* seconds this epoch took in earlier calls, */
    double waited;      /* and how many of them were spent waiting for data */

    /* Of this call only */
    int64_t batches;         /* of an epoch */
    int64_t step_samples;    /* in all batches that make one optimizer step */
    int64_t step_seen;       /* of them, those that were trained on */
    kiln_tensor *step_items; /* of them, the labels that count: f32 on the device; NULL: the host knows */
    int64_t finite;          /* the step up to which the loss was looked at and found finite */
    double called, begun;    /* when kiln_fit was called, when the epoch (or the rest of it) began */
    double waited_at;        /* the loader's waiting time then */
    int64_t done_here;       /* batches trained on in this epoch and call: for times a step */
    bool forecasts_rests;    /* forecasts look at the last, shorter batch, too */
    bool auto_batch;         /* o.batch is to be found, or was */
    bool resumed;            /* from a checkpoint */
    bool dirty;              /* something happened since the last checkpoint */
    bool saved;              /* there is a checkpoint */
    bool save_asked;         /* somebody wants one */
    bool line_due;           /* o.log_steps have passed */
    int folder;              /* of the checkpoints, locked; -1: none */

    int64_t part;      /* samples of a batch that are gone through at once (split.c); those of a batch: all */
    int64_t part_told; /* the size that was told of */

    kiln_collection collections[KILN_MOVES]; /* of the meter's moves under way, oldest first */
    int ncollections;

    kiln_rerun rerun;       /* the last step, to be run again */
    int64_t rerun_size;     /* samples in its batch */
    uint64_t rerun_outline; /* of the model then */
    int rerun_tries;        /* left in this epoch to find a step that can be */
} kiln_training;

/* Checks the options and the data, makes the parts, and resumes where that is wanted. What was made is the caller's to
 * free, also on failure. */
bool kiln_training_prepare(kiln_training *t, kiln_dataset *train);

/* Its first part: all but what is saved and found again, and the loader. */
bool kiln_training_equip(kiln_training *t, kiln_dataset *train);

/* Records a step on one batch, the last of its window or not; false with an error. */
bool kiln_training_write(kiln_training *t, const kiln_batch *b, bool last);

/* What the step takes with a batch of this size, or with the largest that fits (KILN_BATCH_AUTO). Nothing is changed.
 * False with an error. */
bool kiln_training_forecast(kiln_training *t, kiln_dataset *train, int64_t batch, kiln_forecast *f);
/* Sets the batch of an auto_batch training; false with an error, also where not even a batch of 1 fits. */
bool kiln_training_find_batch(kiln_training *t, kiln_dataset *train);
/* After an error of a run that is over: where memory did not suffice for what is beside the step, for batches that are
 * prepared for instance, the error gets the batch that would fit. Ends the loader. */
void kiln_training_name_batch(kiln_training *t, kiln_dataset *train);
/* The size of batches, and of what is gone through at once. */
void kiln_training_set_batch(kiln_training *t, int64_t batch);

/* An error when the loss that was summed up to this step is not finite. */
bool kiln_training_check_loss(kiln_training *t, const kiln_totals *totals, int64_t step);

/* Steps that are run again without being recorded (rerun.c). At the beginning of an epoch; for a batch, whose step is
 * recorded between the other two where it cannot be run so. */
typedef enum kiln_rerun_outcome { KILN_RERUN_RECORD, KILN_RERUN_DONE, KILN_RERUN_FAILED } kiln_rerun_outcome;
void kiln_training_expect_reruns(kiln_training *t);
kiln_rerun_outcome kiln_training_rerun(kiln_training *t, const kiln_batch *b);
void kiln_training_watch(kiln_training *t, const kiln_batch *b);
void kiln_training_watched(kiln_training *t);

/* Batches that are gone through in parts (split.c). */
typedef bool (*kiln_write_step)(kiln_training *t, const kiln_batch *b, bool last);
/* Where the last step was refused for want of memory and fit may split: chooses smaller parts than `size` samples, and
 * forgets the error raised since the count was `failures`. Otherwise false, with that error. */
bool kiln_training_shrink(kiln_training *t, int64_t whole, int64_t size, uint64_t failures);
/* Trains on a batch part by part; `last` as for `write`, which writes the step of a part. */
bool kiln_training_split(kiln_training *t, const kiln_batch *b, bool last, kiln_write_step write);

/* After a multiple of KILN_COLLECT_EVERY steps: begins to move the sums, and looks at those of the time before. */
bool kiln_training_collect(kiln_training *t, int64_t steps_in_epoch);
/* Looks at all sums that are on their way: afterwards the log is complete up to this step. */
bool kiln_training_collect_all(kiln_training *t);

/* Saves where it stands in the folder of the options (nothing without one). */
bool kiln_training_save(kiln_training *t);
/* The model's weights as they are now, as the best ones. */
bool kiln_training_save_best(kiln_training *t);
/* Goes on from the folder's last checkpoint, if one is there and wanted. Makes the folder where it is missing. */
bool kiln_training_resume(kiln_training *t);

#endif
