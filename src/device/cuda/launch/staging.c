/* Copies beside the runs, and to the host later. Marks are events on the device's stream, tickets of copies to the
 * device events on the copies' own, tickets of those to the host on the device's. Events are few and used again: one
 * that was recorded again in the meantime stands for a later moment, and since both streams keep their order, waiting
 * for that is waiting for a little more, never for less. */
#include "device/cuda/launch/staging.h"
#include "core/alloc.h"
#include "device/cuda/launch/exec.h"

enum { EVENTS = 64 }; /* of each kind */

struct kiln_cuda_staging {
    cudaStream_t stream;
    cudaEvent_t marks[EVENTS], copies[EVENTS], copies_out[EVENTS];
    uint64_t marked, given, given_out;
    uint64_t done; /* copies known to be done */
};

static bool make_events(kiln_cuda_device *d, cudaEvent_t *events, int n)
{
    for (int i = 0; i < n; i++)
        if (!kiln_cuda_ok(d, cudaEventCreateWithFlags(&events[i], cudaEventDisableTiming), "no event"))
            return false;
    return true;
}

static void destroy_events(cudaEvent_t *events, int n)
{
    for (int i = 0; i < n; i++)
        if (events[i])
            cudaEventDestroy(events[i]);
}

static void destroy(struct kiln_cuda_staging *s)
{
    destroy_events(s->marks, EVENTS);
    destroy_events(s->copies, EVENTS);
    destroy_events(s->copies_out, EVENTS);
    if (s->stream)
        cudaStreamDestroy(s->stream);
    kiln_free(s);
}

/* With the lock held; made on first use. NULL with an error. */
static struct kiln_cuda_staging *staging_of(kiln_cuda_device *d)
{
    if (d->staging)
        return d->staging;
    struct kiln_cuda_staging *s = kiln_alloc_zero(1, sizeof *s);
    if (!s)
        return NULL;
    if (kiln_cuda_ok(d, cudaStreamCreateWithFlags(&s->stream, cudaStreamNonBlocking), "no stream for copies") &&
        make_events(d, s->marks, EVENTS) && make_events(d, s->copies, EVENTS) && make_events(d, s->copies_out, EVENTS))
        return d->staging = s;
    destroy(s);
    return NULL;
}

void kiln_cuda_staging_close(kiln_cuda_device *d)
{
    if (!d->staging)
        return;
    cudaStreamSynchronize(d->staging->stream);
    destroy(d->staging);
    d->staging = NULL;
}

uint64_t kiln_cuda_mark(void *dev)
{
    kiln_cuda_device *d = dev;
    if (!kiln_cuda_enter(d))
        return 0;
    pthread_mutex_lock(&d->lock);
    struct kiln_cuda_staging *s = staging_of(d);
    cudaStream_t stream = s ? kiln_cuda_stream(d) : NULL;
    uint64_t mark = stream ? s->marked + 1 : 0;
    if (stream && kiln_cuda_ok(d, cudaEventRecord(s->marks[mark % EVENTS], stream), "its work cannot be marked"))
        s->marked = mark;
    else
        mark = 0;
    pthread_mutex_unlock(&d->lock);
    return mark;
}

/* With the lock held. */
static bool begin_copy(kiln_cuda_device *d, struct kiln_cuda_staging *s, void *to, const void *from, size_t bytes,
                       uint64_t mark)
{
    if (mark && !kiln_cuda_ok(d, cudaStreamWaitEvent(s->stream, s->marks[mark % EVENTS], 0), "a copy cannot wait"))
        return false;
    uint64_t ticket = s->given + 1;
    if (!kiln_cuda_ok(d, cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, s->stream), "copying to it failed") ||
        !kiln_cuda_ok(d, cudaEventRecord(s->copies[ticket % EVENTS], s->stream), "a copy cannot be marked"))
        return false;
    s->given = ticket;
    return true;
}

bool kiln_cuda_copy_in_later(void *dev, kiln_address to, const void *from, size_t bytes, uint64_t mark,
                             uint64_t *ticket)
{
    kiln_cuda_device *d = dev;
    if (!kiln_cuda_enter(d))
        return false;
    pthread_mutex_lock(&d->lock);
    struct kiln_cuda_staging *s = staging_of(d);
    bool ok = s && begin_copy(d, s, (void *)(uintptr_t)to, from, bytes, mark);
    *ticket = ok ? s->given : 0;
    pthread_mutex_unlock(&d->lock);
    return ok;
}

bool kiln_cuda_await_copy(void *dev, uint64_t ticket)
{
    kiln_cuda_device *d = dev;
    if (!kiln_cuda_enter(d))
        return false;
    pthread_mutex_lock(&d->lock);
    struct kiln_cuda_staging *s = d->staging;
    bool done = ticket <= s->done;
    cudaStream_t stream = done ? NULL : kiln_cuda_stream(d);
    bool ok = done || (stream && kiln_cuda_ok(d, cudaStreamWaitEvent(stream, s->copies[ticket % EVENTS], 0),
                                              "a step cannot wait"));
    pthread_mutex_unlock(&d->lock);
    return ok;
}

/* The lock is not held while it waits: the event can only come to stand for a later copy. */
static bool wait_for(kiln_cuda_device *d, cudaEvent_t event)
{
    return kiln_cuda_enter(d) && kiln_cuda_ok(d, cudaEventSynchronize(event), "copying to it failed");
}

/* Errors count as done here: what is copied next, or run, meets them. */
static bool is_over(cudaEvent_t event)
{
    if (cudaEventQuery(event) != cudaErrorNotReady)
        return true;
    cudaGetLastError(); /* that it is not ready is no error */
    return false;
}

bool kiln_cuda_copied(void *dev, uint64_t ticket, bool wait)
{
    kiln_cuda_device *d = dev;
    pthread_mutex_lock(&d->lock);
    struct kiln_cuda_staging *s = d->staging;
    bool done = ticket <= s->done;
    cudaEvent_t event = s->copies[ticket % EVENTS];
    pthread_mutex_unlock(&d->lock);
    if (done || !(wait ? wait_for(d, event) : is_over(event)))
        return done;
    pthread_mutex_lock(&d->lock);
    s->done = ticket > s->done ? ticket : s->done;
    pthread_mutex_unlock(&d->lock);
    return true;
}

/* ---- To the host ---- */

/* A ticket says all that is asked later: the copy's number among all that is given, and its event. */
static uint64_t ticket_of(uint64_t given, uint64_t copy)
{
    return given * EVENTS + copy % EVENTS;
}

/* With the lock held; the ticket, 0 with an error. On the device's own stream: a small copy takes less there than the
 * two streams take to wait for each other. */
static uint64_t begin_copy_out(kiln_cuda_device *d, struct kiln_cuda_staging *s, void *to, const void *from,
                               size_t bytes)
{
    uint64_t copy = s->given_out + 1;
    cudaStream_t stream = kiln_cuda_stream(d);
    if (!stream ||
        !kiln_cuda_ok(d, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream), "copying from it failed") ||
        !kiln_cuda_ok(d, cudaEventRecord(s->copies_out[copy % EVENTS], stream), "a copy cannot be marked"))
        return 0;
    s->given_out = copy;
    return ticket_of(++d->given, copy);
}

bool kiln_cuda_copy_out_later(void *dev, void *to, kiln_address from, size_t bytes, uint64_t *ticket)
{
    kiln_cuda_device *d = dev;
    if (!kiln_cuda_enter(d))
        return false;
    pthread_mutex_lock(&d->lock);
    struct kiln_cuda_staging *s = staging_of(d);
    *ticket = s ? begin_copy_out(d, s, to, (const void *)(uintptr_t)from, bytes) : 0;
    pthread_mutex_unlock(&d->lock);
    return *ticket != 0;
}

/* With the lock held. A run behind the copy that failed is left to whoever waits for that: what is told here depends on
 * the order of work, never on how far the device has come. */
static bool was_computed(kiln_cuda_device *d, uint64_t given)
{
    uint64_t fault = kiln_cuda_faulty(d);
    if (fault && fault < given && !kiln_cuda_wait_for_all(d))
        return false;
    if (!kiln_failures_tell(&d->failures, kiln_cuda_witness(d), given))
        return false;
    return !kiln_failures_hit(&d->failures, given) ||
           kiln_fail(KILN_E_STATE, NULL, "cuda:%d: a step failed before its results were copied", d->index);
}

/* The lock is not held while it waits: the event can only come to stand for a later copy. */
bool kiln_cuda_copied_out(void *dev, uint64_t ticket)
{
    kiln_cuda_device *d = dev;
    pthread_mutex_lock(&d->lock);
    cudaEvent_t event = d->staging->copies_out[ticket % EVENTS];
    pthread_mutex_unlock(&d->lock);
    if (!kiln_cuda_enter(d) || !kiln_cuda_ok(d, cudaEventSynchronize(event), "copying from it failed"))
        return false;
    pthread_mutex_lock(&d->lock);
    bool ok = was_computed(d, ticket / EVENTS);
    pthread_mutex_unlock(&d->lock);
    return ok;
}
