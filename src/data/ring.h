/* Batches prepared ahead: a ring of slots that worker threads fill in the order of an epoch, and one thread empties.
 * Without workers that thread fills them itself. Knows nothing of tensors: slots are host memory. */
#ifndef KILN_DATA_RING_H
#define KILN_DATA_RING_H

#include <pthread.h>
#include <stdatomic.h>
#include "data/dataset.h"
#include "core/order.h"

enum { KILN_RING_WORKERS = 256 };

typedef struct kiln_slot {
    char *x, *y; /* room for a batch; whoever owns the ring may put others here while the slot is his */
    bool ready, failed;
    kiln_error error; /* where it failed */
} kiln_slot;

typedef struct kiln_ring {
    const kiln_dataset *data;
    int64_t batch, batches; /* samples a batch, batches an epoch */
    bool shuffle;
    uint64_t seed;
    kiln_augment augment;
    kiln_slot *slots; /* batch i of an epoch goes to slot i % nslots */
    int64_t nslots;
    int workers; /* wanted; 0 once none could be started */
    double waited;

    pthread_t thread[KILN_RING_WORKERS];
    int started;
    unsigned forks; /* as kiln_forks said when the workers were started: in a forked child they are not there */
    pthread_mutex_t lock;
    pthread_cond_t wake; /* for workers: there is room, or an end */
    pthread_cond_t news; /* for the owner: a slot is ready, or a worker is done */

    /* Under the lock. `order` and `epoch` change only while no worker is busy. */
    kiln_order order;
    int64_t epoch;
    int64_t claimed; /* batches of this epoch that a worker has begun or ended */
    int64_t taken;   /* batches the owner is done with */
    int64_t end;     /* workers go no further */
    int busy, sleeping;
    bool listening, stop; /* the owner waits for news; the ring is being freed */
    atomic_uint jump;     /* counts restarts: a worker drops a batch that nobody wants any more */
} kiln_ring;

/* Makes slots without memory. The fields data … workers are set already. False with an error. */
bool kiln_ring_init(kiln_ring *r);
void kiln_ring_stop(kiln_ring *r); /* ends the workers, for good */
void kiln_ring_free(kiln_ring *r); /* after kiln_ring_stop; x and y of the slots are the owner's */

/* In a forked child, which has none of the parent's workers: makes ready for others. True if it did, and the ring must
 * be restarted then. */
bool kiln_ring_renew(kiln_ring *r);

/* Drops everything prepared, and begins at batch `index` of `epoch`. */
void kiln_ring_restart(kiln_ring *r, int64_t epoch, int64_t index);

/* The slot with batch `index`, which must be the next one, or one of the next, as far as slots go; waits for it. NULL
 * with the error that it met. */
kiln_slot *kiln_ring_take(kiln_ring *r, int64_t index);

/* The same if it is ready, and nothing is wrong with it; NULL otherwise, without an error and without waiting. */
kiln_slot *kiln_ring_peek(kiln_ring *r, int64_t index);

/* The owner is done with the slot that it took, the oldest one if there are several. */
void kiln_ring_give(kiln_ring *r, kiln_slot *slot);

/* How many samples batch `index` has. */
int64_t kiln_ring_batch_size(const kiln_ring *r, int64_t index);

#endif
