/* Locks that are held over a fork. That of the devices is of the kind that notices if its own thread takes it again: a
 * GPU's driver forks while it is asked for devices, to start a program. The others are taken several times a step,
 * where that would be felt, and are not held while a driver is asked to begin. */
#include "core/fork.h"
#include <stdatomic.h>
#include <stddef.h>

static struct held {
    pthread_mutex_t *lock; /* NULL: nobody has brought it */
    void (*in_child)(void);
} held[KILN_FORK_LOCKS];

static _Thread_local unsigned taken; /* bits: which of them this thread has taken, in order to fork */
static atomic_uint forks;

unsigned kiln_forks(void)
{
    return atomic_load_explicit(&forks, memory_order_relaxed);
}

static void renew(kiln_fork_order order)
{
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_settype(&attributes,
                              order == KILN_FORK_DEVICES ? PTHREAD_MUTEX_ERRORCHECK : PTHREAD_MUTEX_DEFAULT);
    pthread_mutex_init(held[order].lock, &attributes);
    pthread_mutexattr_destroy(&attributes);
}

void kiln_fork_hold(kiln_fork_order order, pthread_mutex_t *lock, void (*in_child)(void))
{
    held[order] = (struct held){.lock = lock, .in_child = in_child};
    renew(order);
}

static void before(void)
{
    taken = 0;
    for (int i = 0; i < KILN_FORK_LOCKS; i++)
        if (held[i].lock && pthread_mutex_lock(held[i].lock) == 0)
            taken |= 1u << i;
}

static void in_parent(void)
{
    for (int i = KILN_FORK_LOCKS - 1; i >= 0; i--)
        if (taken >> i & 1)
            pthread_mutex_unlock(held[i].lock);
}

/* Locks are made anew, not unlocked: they know by its number which thread holds them, and that has changed. */
static void in_child(void)
{
    atomic_fetch_add(&forks, 1);
    for (int i = 0; i < KILN_FORK_LOCKS; i++)
        if (held[i].in_child)
            held[i].in_child();
    for (int i = 0; i < KILN_FORK_LOCKS; i++)
        if (held[i].lock)
            renew((kiln_fork_order)i);
}

__attribute__((constructor)) static void load(void)
{
    pthread_atfork(before, in_parent, in_child);
}
