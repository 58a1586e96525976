/* What a loader would take, for who plans with it before it is made. */
#ifndef KILN_DATA_LOADER_H
#define KILN_DATA_LOADER_H

#include "kiln/data.h"

/* Bytes on its device that its batches take. */
typedef struct kiln_loader_room {
    uint64_t working, resting; /* resting: before it has handed one out, and after the last one of an epoch */
} kiln_loader_room;

/* A full batch as a loader with these options would hand it out, without values: tensors that have only a shape or,
 * where the set lies on the device (it is put there as the loader would), are taken from it. The caller releases both.
 * False with an error. */
bool kiln_loader_sketch(kiln_dataset *d, const kiln_loader_options *o, kiln_batch *b, kiln_loader_room *room);

#endif
