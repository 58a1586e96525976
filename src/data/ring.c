/* The ring of prepared batches. Workers sleep when it is full, and are woken when it has fallen to half: a batch of
 * small samples is prepared in microseconds, and waking somebody for each would cost more than that. */
#include "data/ring.h"
#include <signal.h>
#include "core/alloc.h"
#include "core/clock.h"
#include "core/fail.h"
#include "core/fork.h"
#include "data/augment.h"

int64_t kiln_ring_batch_size(const kiln_ring *r, int64_t index)
{
    int64_t left = r->data->info.count - index * r->batch;
    return left < r->batch ? left : r->batch;
}

static bool read_sample(const kiln_ring *r, int64_t index, void *x, void *y)
{
    if (!kiln_dataset_read(r->data, index, x, y))
        return false;
    if (kiln_augments(&r->augment))
        kiln_augment_sample(r->data, &r->augment, r->seed, r->epoch, index, x);
    return true;
}

/* Reads the samples of a batch. False with an error of the calling thread, or when the ring has jumped elsewhere. */
static bool fill(kiln_ring *r, kiln_slot *slot, int64_t index, unsigned jump)
{
    int64_t first = index * r->batch, size = kiln_ring_batch_size(r, index);
    char *x = slot->x, *y = slot->y;
    for (int64_t i = 0; i < size; i++, x += r->data->x_bytes, y = y ? y + r->data->y_bytes : NULL)
        if (atomic_load_explicit(&r->jump, memory_order_relaxed) != jump ||
            !read_sample(r, kiln_order_at(&r->order, first + i), x, y))
            return false;
    return true;
}

/* ---- Workers ---- */

/* With the lock held, which is given up while the batch is prepared. */
static void prepare(kiln_ring *r)
{
    int64_t index = r->claimed++;
    kiln_slot *slot = &r->slots[index % r->nslots];
    unsigned jump = atomic_load_explicit(&r->jump, memory_order_relaxed);
    r->busy++;
    pthread_mutex_unlock(&r->lock);
    kiln_error_clear(); /* of a sample that could be read all the same */
    slot->failed = !fill(r, slot, index, jump);
    if (slot->failed) {
        slot->error = *kiln_last_error();
        kiln_error_clear();
    }
    pthread_mutex_lock(&r->lock);
    r->busy--;
    slot->ready = true;
    if (r->listening)
        pthread_cond_signal(&r->news);
}

static void *work(void *p)
{
    kiln_ring *r = p;
    pthread_mutex_lock(&r->lock);
    while (!r->stop)
        if (r->claimed < r->end && r->claimed < r->taken + r->nslots)
            prepare(r);
        else {
            r->sleeping++;
            pthread_cond_wait(&r->wake, &r->lock);
            r->sleeping--;
        }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

/* Fewer threads than wanted, even none, give the same batches. Signals are for the program's own threads. */
static void start_workers(kiln_ring *r)
{
    sigset_t every, before;
    sigfillset(&every);
    pthread_sigmask(SIG_SETMASK, &every, &before);
    while (r->started < r->workers && !pthread_create(&r->thread[r->started], NULL, work, r))
        r->started++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    r->workers = r->started;
}

/* ---- The owner ---- */

static void make_locks(kiln_ring *r)
{
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->wake, NULL);
    pthread_cond_init(&r->news, NULL);
    r->forks = kiln_forks();
}

bool kiln_ring_init(kiln_ring *r)
{
    r->slots = kiln_alloc_zero((size_t)r->nslots, sizeof *r->slots);
    if (!r->slots)
        return false;
    make_locks(r);
    return true;
}

bool kiln_ring_renew(kiln_ring *r)
{
    if (!r->slots || r->forks == kiln_forks())
        return false;
    make_locks(r);
    r->started = r->busy = r->sleeping = 0;
    r->listening = false;
    return true;
}

void kiln_ring_stop(kiln_ring *r)
{
    if (!r->slots)
        return;
    kiln_ring_renew(r);
    pthread_mutex_lock(&r->lock);
    r->stop = true;
    atomic_fetch_add_explicit(&r->jump, 1, memory_order_relaxed);
    pthread_cond_broadcast(&r->wake);
    pthread_mutex_unlock(&r->lock);
    for (int i = 0; i < r->started; i++)
        pthread_join(r->thread[i], NULL);
    r->started = 0;
}

void kiln_ring_free(kiln_ring *r)
{
    if (!r->slots)
        return;
    pthread_cond_destroy(&r->news);
    pthread_cond_destroy(&r->wake);
    pthread_mutex_destroy(&r->lock);
    kiln_free(r->slots);
    r->slots = NULL;
}

/* With the lock held. */
static void listen(kiln_ring *r)
{
    r->listening = true;
    pthread_cond_wait(&r->news, &r->lock);
    r->listening = false;
}

void kiln_ring_restart(kiln_ring *r, int64_t epoch, int64_t index)
{
    pthread_mutex_lock(&r->lock);
    atomic_fetch_add_explicit(&r->jump, 1, memory_order_relaxed);
    r->end = r->claimed; /* nobody begins another batch */
    while (r->busy)
        listen(r);
    kiln_order_init(&r->order, r->data->info.count, r->shuffle, r->seed, epoch);
    r->epoch = epoch;
    r->claimed = r->taken = index;
    r->end = r->batches;
    for (int64_t i = 0; i < r->nslots; i++)
        r->slots[i].ready = false;
    if (r->sleeping)
        pthread_cond_broadcast(&r->wake);
    pthread_mutex_unlock(&r->lock);
    if (r->started < r->workers)
        start_workers(r);
}

/* Prepares the batch in the calling thread. */
static kiln_slot *prepare_now(kiln_ring *r, int64_t index)
{
    double since = kiln_seconds();
    kiln_slot *slot = &r->slots[index % r->nslots];
    bool ok = fill(r, slot, index, atomic_load_explicit(&r->jump, memory_order_relaxed));
    r->waited += kiln_seconds() - since;
    return ok ? slot : NULL;
}

kiln_slot *kiln_ring_take(kiln_ring *r, int64_t index)
{
    if (!r->workers)
        return prepare_now(r, index);
    kiln_slot *slot = &r->slots[index % r->nslots];
    pthread_mutex_lock(&r->lock);
    if (!slot->ready) {
        double since = kiln_seconds();
        if (r->sleeping) /* it may have fallen to more than half, where slots are given back late */
            pthread_cond_broadcast(&r->wake);
        while (!slot->ready)
            listen(r);
        r->waited += kiln_seconds() - since;
    }
    pthread_mutex_unlock(&r->lock);
    return slot->failed ? kiln_fail_again(&slot->error) : slot;
}

kiln_slot *kiln_ring_peek(kiln_ring *r, int64_t index)
{
    if (!r->workers)
        return NULL;
    kiln_slot *slot = &r->slots[index % r->nslots];
    pthread_mutex_lock(&r->lock);
    bool ready = slot->ready && !slot->failed;
    pthread_mutex_unlock(&r->lock);
    return ready ? slot : NULL;
}

void kiln_ring_give(kiln_ring *r, kiln_slot *slot)
{
    if (!r->workers)
        return;
    pthread_mutex_lock(&r->lock);
    slot->ready = false;
    r->taken++;
    if (r->sleeping && r->claimed - r->taken <= r->nslots / 2)
        pthread_cond_broadcast(&r->wake);
    pthread_mutex_unlock(&r->lock);
}
