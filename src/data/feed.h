/* Batches on their way to a device that is not the CPU: from the slots of the ring, which lie in one piece of pinned
 * memory, to a few buffers on the device that take turns. Copies are begun as soon as a slot is full and a buffer free,
 * and go on beside the steps; a batch is handed out with its copy under way, and what uses it waits on the device.
 * Since the buffers are few and stay, so are the addresses that a step sees. */
#ifndef KILN_DATA_FEED_H
#define KILN_DATA_FEED_H

#include "data/ring.h"
#include "tensor/memory.h"

enum {
    KILN_FEED_AHEAD = 2,  /* copies begun before their batch is asked for */
    KILN_FEED_BUFFERS = 4 /* those, the batch that was handed out, and the one before it, which may still be in use */
};

typedef struct kiln_feed_buffer {
    kiln_storage *x, *y; /* NULL: not there; y: also where there are no targets */
    int64_t batch;       /* what it holds and was not handed out; -1: nothing */
    uint64_t ticket;     /* of its copy */
    uint64_t mark;       /* everything that used its former contents was given before this */
    bool marked;         /* false: somebody held on to it, so that the mark is yet to be set */
    uint64_t age;        /* when it became free: the oldest one is used first */
} kiln_feed_buffer;

typedef struct kiln_feed {
    kiln_device device;
    kiln_ring *ring;
    kiln_staging staging; /* of all slots */
    uint64_t *tickets;    /* of the copy out of each slot */
    int64_t begun, given; /* batches whose copies were begun; whose slots went back to the workers */
    kiln_feed_buffer buffers[KILN_FEED_BUFFERS], *out; /* out: handed out last, until kiln_feed_release */
    uint64_t clock;
} kiln_feed;

/* Gives the slots of a ring memory. False with an error; kiln_feed_free either way. */
bool kiln_feed_init(kiln_feed *f, kiln_ring *r, kiln_device device);
void kiln_feed_free(kiln_feed *f); /* after kiln_ring_stop */

/* Drops what is on its way, and begins at batch `index` of `epoch`. */
void kiln_feed_restart(kiln_feed *f, int64_t epoch, int64_t index);

/* The next batch; the caller owns the tensors, *y is NULL where there are no targets. False with an error. */
bool kiln_feed_take(kiln_feed *f, int64_t index, kiln_tensor **x, kiln_tensor **y);

/* The caller has given up the tensors of the last batch. */
void kiln_feed_release(kiln_feed *f);

#endif
