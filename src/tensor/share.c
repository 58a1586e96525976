/* Turns of threads that use the same tensors: see share.h. */
#include "tensor/share.h"
#include <pthread.h>

/* Those who wait to write go first: a thread that reads without end would keep them waiting for ever. */
#ifdef PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP
#define FAIR PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP
#else
#define FAIR PTHREAD_RWLOCK_INITIALIZER
#endif
static pthread_rwlock_t knowing = FAIR; /* which tensors are shared: read by every run, changed when one becomes so */
static pthread_rwlock_t shared = FAIR;  /* all tensors that are */

/* In a child of fork nobody else is under way. */
static void others_are_gone(void)
{
    knowing = shared = (pthread_rwlock_t)FAIR;
}

__attribute__((constructor)) static void load(void)
{
    pthread_atfork(NULL, NULL, others_are_gone);
}

void kiln_turn_begin(kiln_turn turn)
{
    pthread_rwlock_rdlock(&knowing);
    if (turn == KILN_TURN_READS)
        pthread_rwlock_rdlock(&shared);
    else if (turn == KILN_TURN_WRITES)
        pthread_rwlock_wrlock(&shared);
}

void kiln_turn_end(kiln_turn turn)
{
    if (turn != KILN_TURN_ALONE)
        pthread_rwlock_unlock(&shared);
    pthread_rwlock_unlock(&knowing);
}

void kiln_storage_share(kiln_storage *s)
{
    pthread_rwlock_wrlock(&knowing);
    atomic_store_explicit(&s->shared, true, memory_order_relaxed);
    pthread_rwlock_unlock(&knowing);
}
