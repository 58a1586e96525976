/* Data sets on a device: all samples as they are stored, put there once, and batches that are gathered there. */
#ifndef KILN_DATA_RESIDENT_H
#define KILN_DATA_RESIDENT_H

#include "data/dataset.h"

/* One side of the samples: element e of sample i is element start + i · distance + e. */
typedef struct kiln_resident_side {
    kiln_tensor *data;  /* one-dimensional; NULL: there are no targets */
    kiln_tensor *table; /* what bytes stand for, or NULL */
    int64_t start, distance;
} kiln_resident_side;

typedef struct kiln_resident {
    struct kiln_resident *next; /* on another device */
    kiln_device device;
    kiln_resident_side x, y;
} kiln_resident;

/* The samples of d on a device, put there by the first call that asks; they stay as long as d does. *first: the number
 * there of d's first sample. NULL without an error where that cannot be: samples differ each time they are read, one
 * cannot be read, or all would take more than `share` of the device's memory. */
const kiln_resident *kiln_resident_of(kiln_dataset *d, kiln_device device, double share, int64_t *first);

/* Gives back the memory of a data set's copies on all devices. */
void kiln_resident_free(kiln_resident *r);

/* Which samples of a set make up a batch. */
typedef struct kiln_pick {
    int64_t first, count; /* the set's samples among those on the device */
    bool shuffle;
    uint64_t seed;
    int64_t epoch, position; /* of the batch's first sample */
    int64_t size;            /* samples in the batch */
    kiln_augment augment;    /* all zero for targets */
    uint64_t blank;          /* as kiln_dataset has it */
} kiln_pick;

/* One side of a batch, a thunk (trace/thunk.h). `old`, the same side of an earlier batch or NULL, is given
 * up: where nobody else knows it, it becomes the new one. The caller owns the result; NULL with an error. */
kiln_tensor *kiln_resident_batch(const kiln_resident_side *side, const kiln_field *item, const kiln_pick *pick,
                                 kiln_tensor *old);

/* Some samples of such a batch, or of one that has memory, from number `first` of the batch on; only they are gathered.
 * It belongs to the current scope; NULL with an error, or for NULL. */
kiln_tensor *kiln_batch_part(kiln_tensor *batch, int64_t first, int64_t size);

#endif
