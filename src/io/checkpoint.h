/* The folder that checkpoints are in: which there are, putting a new one there, taking old ones away. */
#ifndef KILN_IO_CHECKPOINT_H
#define KILN_IO_CHECKPOINT_H

#include <stdbool.h>
#include <stdint.h>
#include "io/state.h"

/* A new checkpoint while it is written: folder/.step-N.tmp-PID-n, locked. */
typedef struct kiln_step_folder {
    const char *folder;
    int64_t step;
    char *path; /* NULL once it was published */
    int fd;     /* of the folder at `path`, whose lock says that somebody writes; -1: none */
} kiln_step_folder;

bool kiln_step_folder_begin(kiln_step_folder *s, const char *folder, int64_t step);

/* Gives a complete one its name: folder/step-N. Another one of the same step is replaced. Then those that are stale are
 * removed: later steps (of a run that was given up) and all but the last `keep`. */
bool kiln_step_folder_publish(kiln_step_folder *s, int keep);
void kiln_step_folder_end(kiln_step_folder *s); /* removes what was not published */

/* Whether such a checkpoint can be written, as far as that is known without writing: found out before hours of
 * training, not after them. */
bool kiln_checkpoint_check(const kiln_checkpoint *c);

/* The newest complete one in a folder, its state read; NULL with an error, or without one when there is none. It stays
 * where it is until kiln_step_folder_release(lock), to be called once its files are open. */
char *kiln_step_folder_newest(const char *folder, kiln_train_state *state, int *lock);
void kiln_step_folder_release(int *lock);

#endif
