/* The queue of a simulated device: jobs that its thread does one after the other while the host goes on, what becomes
 * of them when one fails or the device is lost, and who is told. */
#ifndef KILN_SIM_QUEUE_H
#define KILN_SIM_QUEUE_H

#include <pthread.h>
#include "device/device.h"
#include "device/failures.h"
#include "device/sim/copier.h"

enum { MAX_DEVICES = 8 };

typedef enum job_kind {
    JOB_COPY_IN,
    JOB_COPY_OUT,
    JOB_COPY_OUT_LATER,
    JOB_RUN,
    JOB_FREE,
    JOB_MARK,
    JOB_AWAIT
} job_kind;

typedef struct job {
    struct job *next;
    job_kind kind;
    void *to; /* host addresses, already translated */
    const void *from;
    size_t bytes;
    const void *exec;
    const kiln_plan *plan;
    kiln_binding binding;
    kiln_timing *timing; /* of a run that is timed, whose giver waits for it; NULL */
    char *data;          /* a copy of what the caller may change: bytes to copy in, addresses and scalars of a run */
    int64_t capacity;
    uint64_t number; /* of a mark to pass, of a copy to wait for */
    uint64_t given;  /* its own number */
    uint64_t thread; /* which gave it */
} job;

typedef struct sim {
    int index;
    pthread_mutex_t lock;
    pthread_cond_t wake, idle;
    pthread_t thread;
    job *first, *last, *spare;
    const job *current;   /* which is being done; NULL: none */
    job *for_blocks;      /* one for each allocated block: giving it back needs no memory */
    uint64_t given, done; /* numbers of the last job that was given, and that is over */
    int waiting;          /* threads that want to know when jobs are over */
    bool stop;
    char *arena;
    size_t arena_bytes;
    int64_t used, size, fail_alloc, lose_after, slow_copies, slow_runs, overhead;
    bool lost;
    uint64_t lost_first, lost_last; /* jobs that were not done because of that */
    kiln_sim_copier copier;

    /* A run that has failed, and nobody has looked yet: runs behind it are skipped. Once somebody has, it is one of the
     * failures, and what was given until then is skipped, up to `skipped`. */
    bool failing;
    kiln_failure failure;
    uint64_t skipped;
    kiln_failures failures;
} sim;

extern _Thread_local kiln_witness kiln_sim_witnesses[MAX_DEVICES];

/* The device's thread. */
void *kiln_sim_work(void *sim);

/* A job with room for `bytes` of its own; NULL with an error. */
job *kiln_sim_job(sim *s, job_kind kind, size_t bytes);
void kiln_sim_enqueue(sim *s, job *j);
void kiln_sim_free_jobs(job **list);

/* ---- With the lock held ---- */

void kiln_sim_append(sim *s, job *j);

/* Waits for that job and those before it, whatever others give meanwhile. */
void kiln_sim_wait_until(sim *s, uint64_t number);

/* Deals with a run that has failed. All that was given so far is over before anybody is told. */
void kiln_sim_after_failure(sim *s);

/* ---- Telling: false with an error ---- */

bool kiln_sim_fail_lost(const sim *s); /* always */
bool kiln_sim_drain(sim *s);           /* waits for all jobs; what went wrong and the thread does not know of */
bool kiln_sim_report(sim *s);          /* the same without waiting, with the lock held */

#endif
