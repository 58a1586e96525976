/* What a run computes from a model's outputs and its targets: the loss, and which metrics make sense. */
#ifndef KILN_TRAIN_TASK_H
#define KILN_TRAIN_TASK_H

#include "data/dataset.h"
#include "kiln/train.h"

typedef struct kiln_task {
    kiln_loss loss;
    kiln_loss_fn loss_fn; /* instead of `loss`, where it is not NULL */
    void *loss_context;
    unsigned metrics; /* kiln_metric */

    /* Found by kiln_task_check */
    bool labels;      /* targets are classes: outputs are [N, …, classes], targets [N, …] */
    int64_t classes;  /* the last dim of the outputs */
    int64_t places;   /* what accuracy counts in one sample: labels, or yes-or-no outputs */
    int64_t elements; /* outputs of one sample */
    bool ignores;     /* some labels may be KILN_NO_LABEL: how many count is known on the device alone */
} kiln_task;

/* The loss of a batch: the mean over its samples. Where `items` is not NULL it is a sum instead, over the labels that
 * count, and `items` is how many do (f32, one element). */
typedef struct kiln_batch_loss {
    kiln_tensor *value, *items;
} kiln_batch_loss;

/* Does the model fit the data, and the data the loss and the metrics? Found by shapes alone, before anything runs; the
 * error names the data set and both shapes. `operation` is what the user called. */
bool kiln_task_check(kiln_task *task, kiln_module *model, const kiln_dataset *set, int64_t batch,
                     const char *operation);

/* True where the loss is a mean over labels of which some may not count. */
bool kiln_task_sums_items(const kiln_task *task);
kiln_batch_loss kiln_task_loss(const kiln_task *task, kiln_tensor *output, kiln_tensor *x, kiln_tensor *y);
/* The mean that kiln_cross_entropy gives, and 0 where nothing counts. */
kiln_tensor *kiln_batch_loss_mean(const kiln_batch_loss *loss);

/* Outputs [N, …, classes] as [rows, classes], and targets [N, …] as i64 [rows]. */
kiln_tensor *kiln_task_rows(const kiln_task *task, kiln_tensor *output);
kiln_tensor *kiln_task_labels(kiln_tensor *y);
/* Of such labels, how many are not KILN_NO_LABEL: f32, one element. */
kiln_tensor *kiln_task_items(kiln_tensor *labels);

/* What an output is compared with element by element, in its shape and dtype. */
kiln_tensor *kiln_task_goal(const kiln_task *task, kiln_tensor *output, kiln_tensor *x, kiln_tensor *y);

/* Adds where it happened to the thread's error. */
void kiln_error_place(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
