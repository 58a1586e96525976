/* The copy engine of a simulated device: a thread that copies beside the device's queue. Copies are done one after the
 * other, each once the queue has passed its mark, straight from the host memory they were given: whoever changes that
 * too early is found out. */
#ifndef KILN_SIM_COPIER_H
#define KILN_SIM_COPIER_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct kiln_sim_copy kiln_sim_copy;

typedef struct kiln_sim_copier {
    pthread_mutex_t lock;
    pthread_cond_t news;
    pthread_t thread;
    bool started, stop;
    kiln_sim_copy *first, *last;
    uint64_t marked, passed; /* marks given; the last one that the queue has come to */
    uint64_t given, done;    /* copies */
    int64_t slow;            /* microseconds a copy takes longer */
} kiln_sim_copier;

void kiln_sim_copier_init(kiln_sim_copier *c);
void kiln_sim_copier_close(kiln_sim_copier *c); /* after the queue has ended; waits for all copies */

/* A new mark, for the queue to pass. */
uint64_t kiln_sim_copier_mark(kiln_sim_copier *c);
void kiln_sim_copier_pass(kiln_sim_copier *c, uint64_t mark);

/* The ticket of a copy that is on its way; 0 with an error. */
uint64_t kiln_sim_copier_give(kiln_sim_copier *c, void *to, const void *from, size_t bytes, uint64_t mark);

/* True when the copy is done; `wait`: waits for that. */
bool kiln_sim_copier_done(kiln_sim_copier *c, uint64_t ticket, bool wait);

#endif
