/* What fork asks of a library with threads: the child has the calling thread alone, and every lock as another thread
 * may have held it. Locks of the library's own data are taken before the fork, so that the child finds the data whole
 * and the locks free; what belonged to other threads is given up or made anew in the child. */
#ifndef KILN_CORE_FORK_H
#define KILN_CORE_FORK_H

#include <pthread.h>
#include "core/export.h"

/* The order in which threads take such locks, where they hold several. */
typedef enum kiln_fork_order {
    KILN_FORK_DEVICES, /* which are there and open */
    KILN_FORK_PLANS,
    KILN_FORK_MEMORY,
    KILN_FORK_RUNS,
    KILN_FORK_DATA,
    KILN_FORK_FAULTS,
    KILN_FORK_HANDLES, /* of threads that have ended */
    KILN_FORK_TEXTS,   /* that are interned */
    KILN_FORK_LOCKS    /* how many there are */
} kiln_fork_order;

/* To be called when the library is loaded, before the lock is used: it is held over forks from then on. `in_child`,
 * which may be NULL, is called in the child while all of them are held. */
void kiln_fork_hold(kiln_fork_order order, pthread_mutex_t *lock, void (*in_child)(void));

/* How many forks lie between the process that loaded the library and this one: whoever has threads, or a lock that is
 * not held over a fork, makes them anew where the number is not the one it began with. */
KILN_PLUGIN_API unsigned kiln_forks(void);

#endif
