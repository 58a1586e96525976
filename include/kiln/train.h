/* Training in one call: fit, evaluate, predict. All of it is written with the public interface of the other headers;
 * the explicit loop can do the same. Model, data, loss and metrics are held against each other by their shapes before
 * anything runs. A thread that has an error pending begins none of these: clear it first. */
#ifndef KILN_TRAIN_H
#define KILN_TRAIN_H

#include <signal.h>
#include "kiln/amp.h"
#include "kiln/io.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Losses by name. Cross-entropy takes [N, classes] or [N, …, classes] and i64 targets [N, …]; targets of -100 count
 * neither in it nor in the metrics, and a step that has no others leaves the weights a gradient of 0. */
typedef enum kiln_loss {
    KILN_CROSS_ENTROPY,
    KILN_MSE,
    KILN_L1,
    KILN_HUBER,
    KILN_BCE_LOGITS,
    KILN_RECONSTRUCTION /* MSE against the input itself: autoencoders */
} kiln_loss;
/* Or one of one's own: the mean over the samples of the batch. */
typedef kiln_tensor *(*kiln_loss_fn)(kiln_tensor *output, kiln_tensor *x, kiln_tensor *y, void *context);

/* Metrics, to be or-ed. The loss is always there. */
typedef enum kiln_metric {
    KILN_ACCURACY = 1,
    KILN_TOP5 = 2,
    KILN_CONFUSION = 4,  /* evaluate alone: kiln_result.confusion */
    KILN_PERPLEXITY = 8, /* exp(loss) */
    KILN_MAE = 16
} kiln_metric;

/* What one pass over a data set gave. */
typedef struct kiln_result {
    double loss;
    double accuracy, top5, perplexity, mae; /* NaN where not asked for */
    int64_t samples;
    double seconds;
    int64_t classes;    /* of the confusion matrix; 0: none */
    int64_t *confusion; /* [classes, classes], row: the label, column: what was predicted; kiln_result_free */
    int64_t reserved_[4];
} kiln_result;
KILN_API void kiln_result_free(kiln_result *r);

typedef struct kiln_epoch {
    int64_t epoch;     /* from 0 */
    kiln_result train; /* averages over the epoch, in train mode */
    kiln_result test;  /* of `validate`; samples 0 without */
    double lr, seconds, samples_per_second,
        data_wait;   /* data_wait: the share of the time spent waiting for data, 0 … 1 */
    double scale;    /* of the loss, at its end; 0: it is not scaled */
    int64_t skipped; /* steps so far that were left out since a gradient was not finite */
    const char
        *culprit; /* of the last of them: the first parameter with such a gradient; NULL: none was, or not known */
    int64_t bad_values; /* how many elements of its gradient were not finite */
} kiln_epoch;

typedef enum kiln_stop {
    KILN_STOP_DONE,  /* all epochs */
    KILN_STOP_EARLY, /* early_stop epochs without getting better */
    KILN_STOP_ASKED, /* *stop was set, or a callback said so */
    KILN_STOP_ERROR
} kiln_stop;

typedef struct kiln_history {
    int64_t count;
    kiln_epoch *epochs; /* of earlier calls, too, where the run was resumed; kiln_history_free */
    int64_t steps;      /* optimizer steps, all in all */
    int64_t best;       /* the epoch with the best test loss (train loss without `validate`); -1: none */
    double first_step;  /* seconds from the call to the end of the first step: planning included */
    kiln_stop stop;
} kiln_history;
KILN_API void kiln_history_free(kiln_history *h);

/* Called at the given moments; false ends training (KILN_STOP_ASKED). Members may be NULL. */
typedef struct kiln_callback {
    bool (*step)(void *context, int64_t epoch, int64_t step);
    bool (*epoch)(void *context, const kiln_epoch *e);
    void *context;
    void (*reserved_[4])(void);
} kiln_callback;

/* What becomes of a batch whose step does not fit into the memory that is left. */
typedef enum kiln_fit_memory {
    KILN_FIT_WHOLE, /* the step is refused, with an error */
    KILN_FIT_SPLIT, /* it is gone through in as few parts as fit, each a step of its own, and the weights are updated
                       once, from the gradient of the whole: the same result within rounding, random numbers included. A
                       model that takes samples together in training (batch norm) is refused where it would have to be
                       split */
    KILN_FIT_LOCAL  /* the same, and batch norm takes the statistics of each part */
} kiln_fit_memory;

/* For the batch of kiln_fit: the largest that fits into the device's memory, found from the plan of its step. */
#define KILN_BATCH_AUTO ((int64_t)-1)

typedef struct kiln_fit_options {
    size_t size;            /* of the struct; the macros set it */
    int64_t epochs;         /* 1 */
    int64_t batch;          /* 32; KILN_BATCH_AUTO: see kiln_forecast. A run that is resumed keeps its batch */
    kiln_dataset *validate; /* looked at after each epoch */
    kiln_optim *optim;      /* NULL: adam with its defaults */
    kiln_schedule *schedule;
    bool schedule_epochs; /* it counts epochs instead of optimizer steps */
    kiln_loss loss;
    kiln_loss_fn loss_fn; /* instead of `loss` */
    void *loss_context;
    unsigned metrics;             /* kiln_metric */
    int64_t accumulate;           /* batches whose gradients make one step, that of one large batch; 1 */
    double clip_norm, clip_value; /* 0: none */
    kiln_ema *ema;                /* updated each step; used for validation and `best` */
    int64_t early_stop;           /* epochs without a better test loss; 0: never */

    uint64_t seed; /* of the order of samples; kiln_manual_seed sets the one for weights and dropout */
    bool no_shuffle;
    kiln_augment augment; /* of images to train with, by the same seed; those to validate with stay as they are */
    int workers;          /* of the loader */
    int64_t limit; /* optimizer steps at most; 0: no limit. What was trained of the last epoch is looked at, too */

    const char *checkpoint; /* a folder: last state, best weights (best.safetensors), history.jsonl (an epoch a line),
                               made where missing. Without `resume` one that holds a run already is refused */
    int64_t save_steps;     /* a checkpoint every so many steps; 0: after each epoch. There is always one at the end */
    bool resume;            /* go on from the folder's last checkpoint, if there is one, as if nothing had happened: to
                               the bit, with any number of workers and threads. `epochs` and `limit` count from the very
                               beginning, the seed is the checkpoint's. A folder with weights and without a checkpoint
                               is refused */
    int nmeta;              /* kept in the files: what model this is */
    const kiln_meta *meta;
    const char *log; /* JSON lines ({"run": …}, {"step": …}, {"epoch": …}), or CSV (epochs alone) when it ends in
                        ".csv"; continued on resume. A file that is there and is no log is refused */
    int64_t log_steps; /* a step line in the log, and one of progress where that is no terminal, every so many steps; 0:
                          at most 200 an epoch in the log, and progress by time: every 30 s, later less often */
    const char *about; /* a JSON object whose members go into the log's first line, in place of its own of that name */
    FILE *progress;    /* where to show progress: a line that moves on a terminal, plain lines otherwise */

    const kiln_callback *callbacks;
    int ncallbacks;
    volatile sig_atomic_t *stop; /* set it (in a signal handler) to end after the current step, with a checkpoint */
    volatile sig_atomic_t *save; /* set it for a checkpoint after the current step; fit sets it back and goes on */
    kiln_dtype autocast;         /* KILN_BF16, KILN_F16: forward passes and losses run under it, as inside kiln_autocast
                                    (kiln/amp.h). 0: as the calling thread has it */
    kiln_scaler *scaler;         /* of the loss. NULL: one with its defaults under autocast to f16, else none */
    kiln_fit_memory fit_memory;  /* KILN_FIT_SPLIT: batches that do not fit are gone through in parts */
    int64_t micro_batch;   /* samples in such a part, also where more would fit; 0: as many as fit. Batches, steps, logs
                              and the order of samples stay what they are */
    kiln_dtype save_dtype; /* of the floats in best.safetensors, as kiln_safetensors_save_as; 0: as they are.
                              Checkpoints hold everything as it is */
} kiln_fit_options;

/* Trains. On an error (kiln_ok is false) the history holds the epochs that were finished. A loss that is no number is
 * such an error: found within 50 steps, on a device that works beside the host within 100, and before anything is
 * saved. */
#define kiln_fit(...) KILN_CALL2_(kiln_fit_with, kiln_fit_options, __VA_ARGS__, )
KILN_API void kiln_fit_(kiln_module *model, kiln_dataset *train, const kiln_fit_options *options, kiln_history *history,
                        size_t size);
static inline kiln_history kiln_fit_with(kiln_module *model, kiln_dataset *train, const kiln_fit_options *options)
{
    kiln_history history;
    kiln_fit_(model, train, options, &history, sizeof history);
    return history;
}

/* What a step of kiln_fit will take of its device, in bytes. */
typedef struct kiln_forecast {
    int64_t batch;     /* samples; 0: not even one fits, or an error */
    uint64_t in_use;   /* what is there already, with the optimizer's state and the data set */
    uint64_t batches;  /* that the loader prepares ahead, on the device */
    uint64_t step;     /* the plan's peak: activations, gradients, workspace, results */
    uint64_t overhead; /* the device's own: context and libraries */
    uint64_t peak;     /* all of these together, or what validating takes where that is more */
    uint64_t room;     /* what may be used in all: the limit, or what is free beside it */
    uint64_t reserved_[4];
} kiln_forecast;

/* Plans the step that kiln_fit would train with; nothing is computed. The optimizer's state is made, and the data set
 * put on the device, as fit would. `.batch` is the one to look at (32), or KILN_BATCH_AUTO: the largest one that fits
 * into the device's limit or, without one, into what it has free, less a part for what cannot be foreseen; never more
 * than there are samples. For the same limit it is always the same. */
#define kiln_fit_forecast(...) KILN_CALL2_(kiln_fit_forecast_with, kiln_fit_options, __VA_ARGS__, )
KILN_API bool kiln_fit_forecast_(kiln_module *model, kiln_dataset *train, const kiln_fit_options *options,
                                 kiln_forecast *forecast, size_t size);
static inline kiln_forecast kiln_fit_forecast_with(kiln_module *model, kiln_dataset *train,
                                                   const kiln_fit_options *options)
{
    kiln_forecast forecast;
    kiln_fit_forecast_(model, train, options, &forecast, sizeof forecast);
    return forecast;
}

typedef struct kiln_evaluate_options {
    size_t size;   /* of the struct; the macros set it */
    int64_t batch; /* 256 */
    kiln_loss loss;
    kiln_loss_fn loss_fn;
    void *loss_context;
    unsigned metrics;
    int workers;
    int64_t limit; /* samples at most; 0: all */
    FILE *progress;
    volatile sig_atomic_t *stop;
    kiln_dtype autocast; /* KILN_BF16, KILN_F16; 0: as the calling thread has it. So has kiln_predict it */
} kiln_evaluate_options;
#define kiln_evaluate(...) KILN_CALL2_(kiln_evaluate_with, kiln_evaluate_options, __VA_ARGS__, )
KILN_API void kiln_evaluate_(kiln_module *model, kiln_dataset *data, const kiln_evaluate_options *options,
                             kiln_result *result, size_t size);
static inline kiln_result kiln_evaluate_with(kiln_module *model, kiln_dataset *data,
                                             const kiln_evaluate_options *options)
{
    kiln_result result;
    kiln_evaluate_(model, data, options, &result, sizeof result);
    return result;
}

/* The model's outputs for all samples (batch by batch, in eval mode) as one tensor on the CPU, owned by the scope. */
KILN_API kiln_tensor *kiln_predict(kiln_module *model, kiln_dataset *data, int64_t batch);

#ifdef __cplusplus
}
#endif
#endif
