/* Tensors that several threads use. A step is one look at them and one change of them: a run that only reads sees all
 * of another thread's step or nothing of it. On devices that do one run after the other that is so by itself; where
 * runs are done by the threads that start them (the CPU), those that touch shared tensors take turns. Threads that
 * share nothing are not held up. */
#ifndef KILN_TENSOR_SHARE_H
#define KILN_TENSOR_SHARE_H

#include "tensor/thread.h"

/* What a run does with tensors that are shared. */
typedef enum kiln_turn { KILN_TURN_ALONE /* it touches none */, KILN_TURN_READS, KILN_TURN_WRITES } kiln_turn;

void kiln_turn_begin(kiln_turn turn);
void kiln_turn_end(kiln_turn turn);

/* Another thread than the one that made it uses the storage: waits until no run that was begun without knowing that is
 * under way. */
void kiln_storage_share(kiln_storage *s);

static inline bool kiln_storage_is_shared(const kiln_storage *s)
{
    return atomic_load_explicit(&s->shared, memory_order_relaxed);
}

/* What this thread has assigned to the storage has run; or it is discarded, and has never happened. */
static inline void kiln_storage_assigned(kiln_storage *s)
{
    kiln_set_version(&s->memory_version, s->version);
    atomic_store_explicit(&s->writer, 0, memory_order_release);
}
static inline void kiln_storage_unassigned(kiln_storage *s)
{
    kiln_set_version(&s->version, s->memory_version);
    atomic_store_explicit(&s->writer, 0, memory_order_release);
}

/* The calling thread is about to use the storage. */
static inline void kiln_storage_use(const kiln_thread *th, kiln_storage *s)
{
    if (s->maker != th->number && !kiln_storage_is_shared(s))
        kiln_storage_share(s);
}

#endif
