/* One pass over a data set in eval mode, for kiln_evaluate and for the validation of kiln_fit. */
#ifndef KILN_TRAIN_EVALUATE_H
#define KILN_TRAIN_EVALUATE_H

#include "train/metrics.h"

typedef struct kiln_pass {
    kiln_module *model;
    kiln_dataset *data;
    const kiln_task *task; /* checked */
    int64_t batch;
    int workers;
    bool confusion;
    kiln_meter *meter; /* the caller's to free, empty at first, to be used by one pass after the other; NULL: none */
    volatile sig_atomic_t *stop;
    /* Called after each batch; may be NULL. */
    void (*show)(void *context, kiln_meter *meter, int64_t done, int64_t total);
    void *context;
} kiln_pass;

/* Modes and random state are as before afterwards. False on an error. A pass that was stopped has seen fewer samples
 * than there are. */
bool kiln_pass_run(const kiln_pass *p, kiln_result *r);

/* A module tree's modes (train or eval), to be put back. */
typedef struct kiln_modes {
    int64_t count, room;
    bool *training;
} kiln_modes;
bool kiln_modes_get(kiln_modes *modes, const kiln_module *m);
void kiln_modes_restore(kiln_modes *modes, kiln_module *m); /* and frees them */

/* The same error for every call that is given nothing, or after something failed already. */
bool kiln_can_begin(const char *operation, const kiln_module *model, const kiln_dataset *data);

#endif
