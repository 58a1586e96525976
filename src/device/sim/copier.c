#include "device/sim/copier.h"
#include <string.h>
#include <unistd.h>
#include "core/alloc.h"
#include "core/fail.h"

struct kiln_sim_copy {
    kiln_sim_copy *next;
    void *to;
    const void *from;
    size_t bytes;
    uint64_t mark;
};

void kiln_sim_copier_init(kiln_sim_copier *c)
{
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->news, NULL);
}

/* With the lock held, which is given up meanwhile. */
static void do_first(kiln_sim_copier *c)
{
    kiln_sim_copy *copy = c->first;
    int64_t slow = c->slow;
    pthread_mutex_unlock(&c->lock);
    if (slow > 0)
        usleep((useconds_t)slow);
    memcpy(copy->to, copy->from, copy->bytes);
    pthread_mutex_lock(&c->lock);
    c->first = copy->next;
    c->done++;
    pthread_cond_broadcast(&c->news);
    kiln_free(copy);
}

static void *work(void *p)
{
    kiln_sim_copier *c = p;
    pthread_mutex_lock(&c->lock);
    while (!c->stop || c->first)
        if (c->first && c->first->mark <= c->passed)
            do_first(c);
        else
            pthread_cond_wait(&c->news, &c->lock);
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

void kiln_sim_copier_close(kiln_sim_copier *c)
{
    pthread_mutex_lock(&c->lock);
    bool started = c->started;
    c->stop = true;
    c->started = false;
    c->passed = c->marked;
    pthread_cond_broadcast(&c->news);
    pthread_mutex_unlock(&c->lock);
    if (started)
        pthread_join(c->thread, NULL);
    c->stop = false;
}

uint64_t kiln_sim_copier_mark(kiln_sim_copier *c)
{
    pthread_mutex_lock(&c->lock);
    uint64_t mark = ++c->marked;
    pthread_mutex_unlock(&c->lock);
    return mark;
}

void kiln_sim_copier_pass(kiln_sim_copier *c, uint64_t mark)
{
    pthread_mutex_lock(&c->lock);
    c->passed = mark > c->passed ? mark : c->passed;
    pthread_cond_broadcast(&c->news);
    pthread_mutex_unlock(&c->lock);
}

uint64_t kiln_sim_copier_give(kiln_sim_copier *c, void *to, const void *from, size_t bytes, uint64_t mark)
{
    kiln_sim_copy *copy = kiln_alloc(1, sizeof *copy);
    if (!copy)
        return 0;
    *copy = (kiln_sim_copy){.to = to, .from = from, .bytes = bytes, .mark = mark};
    pthread_mutex_lock(&c->lock);
    if (!c->started)
        c->started = pthread_create(&c->thread, NULL, work, c) == 0;
    uint64_t ticket = c->started ? ++c->given : 0;
    if (ticket) {
        *(c->first ? &c->last->next : &c->first) = copy;
        c->last = copy;
        pthread_cond_broadcast(&c->news);
    }
    pthread_mutex_unlock(&c->lock);
    if (ticket)
        return ticket;
    kiln_free(copy);
    kiln_fail(KILN_E_DEVICE, "device", "a simulated device could not start its copying thread");
    return 0;
}

bool kiln_sim_copier_done(kiln_sim_copier *c, uint64_t ticket, bool wait)
{
    pthread_mutex_lock(&c->lock);
    while (wait && c->done < ticket)
        pthread_cond_wait(&c->news, &c->lock);
    bool done = c->done >= ticket;
    pthread_mutex_unlock(&c->lock);
    return done;
}
