/* Jobs of simulated devices: see queue.h. */
#define _GNU_SOURCE
#include "device/sim/queue.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "core/alloc.h"
#include "core/fail.h"
#include "device/cpu/common/cpu.h"

_Thread_local kiln_witness kiln_sim_witnesses[MAX_DEVICES];

static void nap(int64_t microseconds)
{
    if (microseconds > 0)
        usleep((useconds_t)microseconds);
}

static void run_job(sim *s, const job *j)
{
    kiln_bad_index bad = {.kernel = -1};
    kiln_cpu_execute(j->exec, &j->binding, j->timing, &bad);
    if (bad.kernel < 0)
        return;
    pthread_mutex_lock(&s->lock);
    s->failure = (kiln_failure){.first = j->given, .thread = j->thread, .error = kiln_bad_index_error(j->plan, &bad)};
    s->failing = true;
    atomic_store(&j->binding.run->failed, true);
    pthread_mutex_unlock(&s->lock);
}

static void do_job(sim *s, const job *j, int64_t pause)
{
    if (j->kind == JOB_FREE) {
        free(j->to);
    } else if (j->kind == JOB_MARK) {
        kiln_sim_copier_pass(&s->copier, j->number);
    } else if (j->kind == JOB_AWAIT) {
        kiln_sim_copier_done(&s->copier, j->number, true);
    } else {
        nap(pause);
        if (j->kind == JOB_RUN)
            run_job(s, j);
        else
            memcpy(j->to, j->from, j->bytes);
    }
}

/* Work that a lost device does not do; the rest keeps things in order. */
static bool is_work(const job *j)
{
    return j->kind == JOB_RUN || j->kind == JOB_COPY_IN || j->kind == JOB_COPY_OUT || j->kind == JOB_COPY_OUT_LATER;
}

/* Runs are skipped behind one that has failed. Copies are not: what is copied in is new data that the next attempt will
 * want. */
static bool skips(const sim *s, const job *j)
{
    return is_work(j) && (s->lost || (j->kind == JOB_RUN && (s->failing || j->given <= s->skipped)));
}

/* With the lock held: the first job is out of the queue. */
static void end_job(sim *s, job *j)
{
    s->done = j->given;
    s->current = NULL;
    j->next = s->spare;
    s->spare = j;
    if (s->waiting)
        pthread_cond_broadcast(&s->idle);
}

/* With the lock held: whether the device does not do this job. */
static bool must_skip(sim *s, const job *j)
{
    if (s->lose_after >= 0 && is_work(j) && s->lose_after-- == 0) {
        s->lost = true;
        s->lost_first = j->given;
    }
    if (s->lost && is_work(j))
        s->lost_last = j->given;
    return skips(s, j);
}

void *kiln_sim_work(void *p)
{
    sim *s = p;
    pthread_mutex_lock(&s->lock);
    while (!s->stop || s->first) {
        job *j = s->first;
        if (!j) {
            pthread_cond_wait(&s->wake, &s->lock);
            continue;
        }
        s->first = j->next;
        s->current = j;
        bool skip = must_skip(s, j);
        int64_t pause = j->kind == JOB_RUN ? s->slow_runs : s->slow_copies;
        pthread_mutex_unlock(&s->lock);
        if (!skip)
            do_job(s, j, pause);
        else if (j->kind == JOB_RUN)
            atomic_store(&j->binding.run->failed, true);
        if (j->kind == JOB_RUN)
            kiln_run_unref(j->binding.run);
        pthread_mutex_lock(&s->lock);
        end_job(s, j);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* A job with room for `bytes` of its own; NULL with an error. */
job *kiln_sim_job(sim *s, job_kind kind, size_t bytes)
{
    pthread_mutex_lock(&s->lock);
    job *j = s->spare;
    if (j)
        s->spare = j->next;
    pthread_mutex_unlock(&s->lock);
    if (!j && !(j = kiln_alloc_zero(1, sizeof *j)))
        return NULL;
    j->kind = kind;
    j->next = NULL;
    if (KILN_GROW(j->data, j->capacity, (int64_t)bytes))
        return j;
    kiln_free(j->data);
    kiln_free(j);
    return NULL;
}

/* With the lock held. */
void kiln_sim_append(sim *s, job *j)
{
    kiln_witness *w = &kiln_sim_witnesses[s->index];
    j->thread = kiln_witness_thread(&s->failures, w);
    j->given = ++s->given;
    if (j->kind == JOB_RUN)
        w->given = j->given;
    *(s->first ? &s->last->next : &s->first) = j;
    s->last = j;
    pthread_cond_signal(&s->wake);
}

void kiln_sim_enqueue(sim *s, job *j)
{
    pthread_mutex_lock(&s->lock);
    kiln_sim_append(s, j);
    pthread_mutex_unlock(&s->lock);
}

/* With the lock held: waits for that job and those before it, whatever others give meanwhile. */
void kiln_sim_wait_until(sim *s, uint64_t number)
{
    s->waiting++;
    while (s->done < number)
        pthread_cond_wait(&s->idle, &s->lock);
    s->waiting--;
}

/* With the lock held: deals with a run that has failed. All that was given so far is over before anybody is told. */
void kiln_sim_after_failure(sim *s)
{
    if (s->failing) {
        s->skipped = s->given;
        kiln_failures_add(&s->failures, s->failure.first, s->given, s->failure.thread, &s->failure.error);
        s->failing = false;
    }
    kiln_sim_wait_until(s, s->skipped);
}

bool kiln_sim_fail_lost(const sim *s)
{
    kiln_fail(KILN_E_LOST, "device", "sim:%d is lost: it does not answer any more", s->index);
    return kiln_hint("other devices go on working; tensors on this one are gone");
}

/* With the lock held: raises what went wrong and the thread does not know of. */
bool kiln_sim_report(sim *s)
{
    if (s->lost)
        return kiln_sim_fail_lost(s);
    kiln_sim_after_failure(s);
    return kiln_failures_tell(&s->failures, &kiln_sim_witnesses[s->index], UINT64_MAX);
}

bool kiln_sim_drain(sim *s)
{
    pthread_mutex_lock(&s->lock);
    kiln_sim_wait_until(s, s->given);
    bool ok = kiln_sim_report(s);
    pthread_mutex_unlock(&s->lock);
    return ok;
}

void kiln_sim_free_jobs(job **list)
{
    for (job *next; *list; *list = next) {
        next = (*list)->next;
        kiln_free((*list)->data);
        kiln_free(*list);
    }
}
