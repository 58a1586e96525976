#include "support/other.h"
#include <pthread.h>
#include <stdlib.h>

struct other_thread {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t news;
    void (*f)(void *context);
    void *context;
    bool end;
};

static void *work(void *p)
{
    other_thread *o = p;
    pthread_mutex_lock(&o->lock);
    while (!o->end || o->f) {
        if (!o->f) {
            pthread_cond_wait(&o->news, &o->lock);
            continue;
        }
        o->f(o->context);
        o->f = NULL;
        pthread_cond_broadcast(&o->news);
    }
    pthread_mutex_unlock(&o->lock);
    return NULL;
}

other_thread *other_start(void)
{
    other_thread *o = calloc(1, sizeof *o);
    if (!o)
        return NULL;
    pthread_mutex_init(&o->lock, NULL);
    pthread_cond_init(&o->news, NULL);
    if (pthread_create(&o->thread, NULL, work, o) == 0)
        return o;
    free(o);
    return NULL;
}

void other_do(other_thread *o, void (*f)(void *context), void *context)
{
    pthread_mutex_lock(&o->lock);
    o->f = f;
    o->context = context;
    pthread_cond_broadcast(&o->news);
    while (o->f)
        pthread_cond_wait(&o->news, &o->lock);
    pthread_mutex_unlock(&o->lock);
}

void other_end(other_thread *o)
{
    pthread_mutex_lock(&o->lock);
    o->end = true;
    pthread_cond_broadcast(&o->news);
    pthread_mutex_unlock(&o->lock);
    pthread_join(o->thread, NULL);
    pthread_mutex_destroy(&o->lock);
    pthread_cond_destroy(&o->news);
    free(o);
}
