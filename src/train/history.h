/* What a run's epochs gave, in the order they were trained: in memory for the caller, and in the folder of the
 * checkpoints as history.jsonl, a line an epoch, exact to the bit, so that a run that is resumed has all of it. A
 * checkpoint knows how much of that file belongs to it, and stays as small after a million epochs as after one. */
#ifndef KILN_TRAIN_HISTORY_H
#define KILN_TRAIN_HISTORY_H

#include <jansson.h>
#include "kiln/train.h"
#include "train/journal.h"

typedef struct kiln_history_file {
    kiln_journal journal; /* opened for the first epoch */
    const char *folder;   /* NULL: in memory alone */
    int64_t room;         /* of the history's epochs */
} kiln_history_file;

/* Adds a finished epoch. */
bool kiln_history_add(kiln_history_file *f, kiln_history *h, const kiln_epoch *e);

/* Makes it safe on disk, and what a checkpoint keeps of it: a JSON object; NULL with an error. */
json_t *kiln_history_mark(kiln_history_file *f, const kiln_history *h);

/* Reads the epochs that a checkpoint knows of: its mark, or, of an earlier version, the list of epochs itself. Where
 * the file is gone, that is noticed and the history begins here. False with an error. */
bool kiln_history_resume(kiln_history_file *f, kiln_history *h, const json_t *kept);

void kiln_history_close(kiln_history_file *f);

#endif
