/* Simulated devices: the CPU's kernels behind everything that makes a GPU different. Each device has an address space
 * that the host cannot dereference, a queue that a thread of its own works off while the host goes on, a memory of a
 * chosen size, and faults on demand. What is right here needs no more than the device table, and has a chance on a real
 * GPU.
 *
 * KILN_SIM_DEVICES sets how many there are (2), KILN_SIM_MEMORY their bytes (1 GiB); with KILN_SIM_APART=1 the buffers
 * of a plan share no room. */
#define _GNU_SOURCE
#include "device/sim/sim.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "core/alloc.h"
#include "core/fail.h"
#include "device/cpu/cpu.h"
#include "device/sim/copier.h"

/* Added to host addresses: no x86-64 or arm64 program can dereference the sum. */
#define ELSEWHERE ((kiln_address)1 << 62)

#define ARENA_RANGE ((size_t)1 << 36) /* addresses set aside for an arena; memory comes as it grows */

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
    char *data; /* a copy of what the caller may change: bytes to copy in, addresses and scalars of a run */
    int64_t capacity;
    uint64_t number; /* of a mark to pass, of a copy to wait for, of a copy that is asked about later */
    uint64_t seen;   /* failures its thread had been told of when it gave the job */
} job;

typedef struct sim {
    int index;
    pthread_mutex_t lock;
    pthread_cond_t wake, idle;
    pthread_t thread;
    job *first, *last, *spare;
    job *for_blocks; /* one for each allocated block: giving it back needs no memory */
    bool busy, stop;
    char *arena;
    size_t arena_bytes;
    int64_t used, size, fail_alloc, lose_after, slow_copies, slow_runs, overhead;
    bool lost;
    kiln_sim_copier copier;
    uint64_t failures; /* runs that failed */
    uint64_t told;     /* how many of them some thread has been told of */
    kiln_error error;  /* of the latest one */

    /* Copies to the host that are asked about later */
    uint64_t outs_given, outs_done;
    bool outs_failed[KILN_COPIES_OUT]; /* there was a failure before the copy, or it was not made */
} sim;

/* How many failures of each device this thread knows of, plus one; 0 before its first job. Whatever a thread gave
 * before it learned of a failure is skipped, since it may build on what was not computed; then the thread is told,
 * once. */
static _Thread_local uint64_t known[MAX_DEVICES];

static sim devices[MAX_DEVICES];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static int64_t setting(const char *name, int64_t otherwise)
{
    const char *text = getenv(name);
    return text && *text ? strtoll(text, NULL, 10) : otherwise;
}

static void set_up(void)
{
    for (int i = 0; i < MAX_DEVICES; i++) {
        sim *s = &devices[i];
        s->index = i;
        pthread_mutex_init(&s->lock, NULL);
        pthread_cond_init(&s->wake, NULL);
        pthread_cond_init(&s->idle, NULL);
        s->size = setting("KILN_SIM_MEMORY", (int64_t)1 << 30);
        s->fail_alloc = s->lose_after = -1;
        kiln_sim_copier_init(&s->copier);
    }
}

/* ---- The queue ---- */

static void nap(int64_t microseconds)
{
    if (microseconds > 0)
        usleep((useconds_t)microseconds);
}

static void run_job(sim *s, const job *j)
{
    kiln_bad_index bad = {.kernel = -1};
    kiln_cpu_execute(j->exec, &j->binding, &bad);
    if (bad.kernel < 0)
        return;
    kiln_error_clear();
    kiln_fail_bad_index(j->plan, &bad);
    pthread_mutex_lock(&s->lock);
    s->error = *kiln_last_error();
    s->failures++;
    atomic_store(&j->binding.run->failed, true);
    pthread_mutex_unlock(&s->lock);
    kiln_error_clear();
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

/* Runs are skipped after a failure that their thread did not know of. Copies are not: what is copied in is new data
 * that the next attempt will want. */
static bool skips(const sim *s, const job *j)
{
    return is_work(j) && (s->lost || (j->kind == JOB_RUN && j->seen < s->failures));
}

/* With the lock held. */
static void note_copy_out(sim *s, const job *j, bool skipped)
{
    s->outs_failed[j->number % KILN_COPIES_OUT] = skipped || j->seen < s->failures;
    s->outs_done = j->number;
    pthread_cond_broadcast(&s->idle);
}

static void *work(void *p)
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
        s->busy = true;
        if (s->lose_after >= 0 && is_work(j) && s->lose_after-- == 0)
            s->lost = true;
        bool skip = skips(s, j);
        int64_t pause = j->kind == JOB_RUN ? s->slow_runs : s->slow_copies;
        pthread_mutex_unlock(&s->lock);
        if (!skip)
            do_job(s, j, pause);
        else if (j->kind == JOB_RUN)
            atomic_store(&j->binding.run->failed, true);
        if (j->kind == JOB_RUN)
            kiln_run_unref(j->binding.run);
        pthread_mutex_lock(&s->lock);
        s->busy = false;
        if (j->kind == JOB_COPY_OUT_LATER)
            note_copy_out(s, j, skip);
        j->next = s->spare;
        s->spare = j;
        if (!s->first)
            pthread_cond_broadcast(&s->idle);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* A job with room for `bytes` of its own; NULL with an error. */
static job *new_job(sim *s, job_kind kind, size_t bytes)
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

/* With the lock held: how many failures the calling thread knows of. A thread that comes new to the device is to be
 * told of one that nobody was told of: what it was handed may be lacking. */
static uint64_t *thread_knows(sim *s)
{
    if (!known[s->index])
        known[s->index] = s->told + 1;
    return &known[s->index];
}

/* With the lock held. */
static void append(sim *s, job *j)
{
    j->seen = *thread_knows(s) - 1;
    *(s->first ? &s->last->next : &s->first) = j;
    s->last = j;
    pthread_cond_signal(&s->wake);
}

static void enqueue(sim *s, job *j)
{
    pthread_mutex_lock(&s->lock);
    append(s, j);
    pthread_mutex_unlock(&s->lock);
}

/* With the lock held: raises what went wrong since the last report. */
static bool report(sim *s)
{
    if (s->lost) {
        kiln_fail(KILN_E_LOST, "device", "sim:%d is lost: it does not answer any more", s->index);
        return kiln_hint("other devices go on working; tensors on this one are gone");
    }
    uint64_t *knows = thread_knows(s);
    if (*knows > s->failures)
        return true;
    *knows = s->failures + 1;
    s->told = s->failures;
    kiln_fail(s->error.code, s->error.operation, "%s", s->error.message);
    return kiln_hint("%s", s->error.hint);
}

static bool drain(sim *s)
{
    pthread_mutex_lock(&s->lock);
    while (s->first || s->busy)
        pthread_cond_wait(&s->idle, &s->lock);
    bool ok = report(s);
    pthread_mutex_unlock(&s->lock);
    return ok;
}

/* ---- The table ---- */

static int sim_count(char *why, size_t size)
{
    int64_t n = setting("KILN_SIM_DEVICES", 2);
    if (n <= 0)
        snprintf(why, size, "KILN_SIM_DEVICES is 0");
    return n < 0 ? 0 : n > MAX_DEVICES ? MAX_DEVICES : (int)n;
}

static bool sim_describe(int index, kiln_device_info *info)
{
    pthread_once(&once, set_up);
    sim *s = &devices[index];
    pthread_mutex_lock(&s->lock);
    snprintf(info->name, sizeof info->name, "simulated device %d", index);
    info->memory_total = (uint64_t)s->size;
    info->memory_free = (uint64_t)(s->size > s->used ? s->size - s->used : 0);
    info->threads = 1;
    snprintf(info->features, sizeof info->features, "the cpu's kernels behind an asynchronous queue");
    pthread_mutex_unlock(&s->lock);
    return true;
}

static void *sim_open(int index)
{
    pthread_once(&once, set_up);
    sim *s = &devices[index];
    s->stop = false;
    if (pthread_create(&s->thread, NULL, work, s))
        return kiln_fail(KILN_E_DEVICE, "device", "sim:%d could not start its thread", index);
    return s;
}

static void free_jobs(job **list)
{
    for (job *next; *list; *list = next) {
        next = (*list)->next;
        kiln_free((*list)->data);
        kiln_free(*list);
    }
}

static void sim_close(void *dev)
{
    sim *s = dev;
    pthread_mutex_lock(&s->lock);
    s->stop = true;
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->thread, NULL);
    kiln_sim_copier_close(&s->copier);
    free_jobs(&s->spare);
    free_jobs(&s->for_blocks); /* of blocks that were never given back */
    if (s->arena)
        munmap(s->arena, ARENA_RANGE);
    s->arena = NULL;
    s->arena_bytes = 0;
}

/* With the lock held: is there so much more? */
static bool has_room(sim *s, size_t bytes)
{
    bool ok = (!s->lost || report(s)) && s->used + (int64_t)bytes <= s->size;
    if (s->fail_alloc >= 0 && s->fail_alloc-- == 0)
        ok = false;
    return ok;
}

static kiln_address sim_allocate(void *dev, size_t bytes)
{
    sim *s = dev;
    job *j = kiln_alloc_zero(1, sizeof *j);
    if (!j)
        return 0;
    pthread_mutex_lock(&s->lock);
    void *p = has_room(s, bytes) ? aligned_alloc(64, (bytes + 63) & ~(size_t)63) : NULL;
    if (p) {
        s->used += (int64_t)bytes;
        j->next = s->for_blocks;
        s->for_blocks = j;
    }
    pthread_mutex_unlock(&s->lock);
    if (!p) {
        kiln_free(j);
        return 0;
    }
    memset(p, 0xa5, bytes); /* fresh memory holds nothing useful */
    return (kiln_address)(uintptr_t)p + ELSEWHERE;
}

static void sim_release(void *dev, kiln_address address, size_t bytes)
{
    sim *s = dev;
    pthread_mutex_lock(&s->lock);
    s->used -= (int64_t)bytes;
    job *j = s->for_blocks;
    s->for_blocks = j->next;
    pthread_mutex_unlock(&s->lock);
    j->kind = JOB_FREE;
    j->next = NULL;
    j->to = (void *)(uintptr_t)(address - ELSEWHERE);
    enqueue(s, j); /* behind whatever still uses it */
}

static uint64_t sim_overhead(void *dev)
{
    sim *s = dev;
    pthread_mutex_lock(&s->lock);
    uint64_t bytes = (uint64_t)s->overhead;
    pthread_mutex_unlock(&s->lock);
    return bytes;
}

static size_t whole_pages(size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return (bytes + page - 1) / page * page;
}

/* Makes the memory from `from` on, up to `to`, usable or not; pages that both sides share stay. */
static bool set_usable(const sim *s, size_t from, size_t to, bool usable)
{
    char *start = s->arena + whole_pages(from);
    size_t bytes = whole_pages(to) - whole_pages(from);
    return mprotect(start, bytes, usable ? PROT_READ | PROT_WRITE : PROT_NONE) == 0 &&
           (usable || madvise(start, bytes, MADV_DONTNEED) == 0);
}

static size_t sim_arena(void *dev, size_t bytes, kiln_address *address)
{
    sim *s = dev;
    pthread_mutex_lock(&s->lock);
    while (bytes < s->arena_bytes && (s->first || s->busy)) /* runs that were given before may use what goes */
        pthread_cond_wait(&s->idle, &s->lock);
    if (!s->arena) {
        void *p = mmap(NULL, ARENA_RANGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        s->arena = p == MAP_FAILED ? NULL : p;
    }
    size_t had = s->arena_bytes;
    bool grows = bytes > had, ok = s->arena && bytes <= ARENA_RANGE;
    if (ok && grows)
        ok = has_room(s, bytes - had) && set_usable(s, had, bytes, true);
    else if (ok)
        ok = set_usable(s, bytes, had, false);
    if (ok) {
        s->used += (int64_t)bytes - (int64_t)had;
        s->arena_bytes = bytes;
    }
    if (ok && grows)
        memset(s->arena + had, 0xa5, bytes - had); /* fresh memory holds nothing useful */
    *address = s->arena ? (kiln_address)(uintptr_t)s->arena + ELSEWHERE : 0;
    size_t now = s->arena_bytes;
    pthread_mutex_unlock(&s->lock);
    return now;
}

static bool sim_copy_in(void *dev, kiln_address to, const void *from, size_t bytes)
{
    sim *s = dev;
    job *j = new_job(s, JOB_COPY_IN, bytes);
    if (!j)
        return false;
    memcpy(j->data, from, bytes);
    j->to = (void *)(uintptr_t)(to - ELSEWHERE);
    j->from = j->data;
    j->bytes = bytes;
    enqueue(s, j);
    pthread_mutex_lock(&s->lock);
    bool ok = report(s);
    pthread_mutex_unlock(&s->lock);
    return ok;
}

static job *new_copy_out(sim *s, job_kind kind, void *to, kiln_address from, size_t bytes)
{
    job *j = new_job(s, kind, 0);
    if (!j)
        return NULL;
    j->to = to;
    j->from = (const void *)(uintptr_t)(from - ELSEWHERE);
    j->bytes = bytes;
    return j;
}

static bool sim_copy_out(void *dev, void *to, kiln_address from, size_t bytes)
{
    sim *s = dev;
    job *j = new_copy_out(s, JOB_COPY_OUT, to, from, bytes);
    if (!j)
        return false;
    enqueue(s, j);
    return drain(s);
}

static bool sim_copy_out_later(void *dev, void *to, kiln_address from, size_t bytes, uint64_t *ticket)
{
    sim *s = dev;
    job *j = new_copy_out(s, JOB_COPY_OUT_LATER, to, from, bytes);
    if (!j)
        return false;
    pthread_mutex_lock(&s->lock);
    *ticket = j->number = ++s->outs_given;
    append(s, j);
    pthread_mutex_unlock(&s->lock);
    return true;
}

static bool sim_copied_out(void *dev, uint64_t ticket)
{
    sim *s = dev;
    pthread_mutex_lock(&s->lock);
    while (s->outs_done < ticket)
        pthread_cond_wait(&s->idle, &s->lock);
    bool failed = s->outs_failed[ticket % KILN_COPIES_OUT], told = failed && report(s);
    pthread_mutex_unlock(&s->lock);
    if (told)
        kiln_fail(KILN_E_STATE, "device", "sim:%d: a step failed before its results were copied", s->index);
    return !failed;
}

/* ---- Copies beside the queue ---- */

static void *sim_pinned(void *dev, size_t bytes)
{
    (void)dev;
    return aligned_alloc(64, (bytes + 63) & ~(size_t)63);
}

static void sim_unpin(void *dev, void *memory)
{
    (void)dev;
    free(memory);
}

/* Puts a job with a number at the queue's end; false with an error. */
static bool enqueue_number(sim *s, job_kind kind, uint64_t number)
{
    job *j = new_job(s, kind, 0);
    if (!j)
        return false;
    j->number = number;
    enqueue(s, j);
    return true;
}

static uint64_t sim_mark(void *dev)
{
    sim *s = dev;
    uint64_t mark = kiln_sim_copier_mark(&s->copier);
    return enqueue_number(s, JOB_MARK, mark) ? mark : 0;
}

static bool sim_copy_in_later(void *dev, kiln_address to, const void *from, size_t bytes, uint64_t mark,
                              uint64_t *ticket)
{
    sim *s = dev;
    pthread_mutex_lock(&s->lock);
    bool ok = !s->lost || report(s);
    pthread_mutex_unlock(&s->lock);
    *ticket = ok ? kiln_sim_copier_give(&s->copier, (void *)(uintptr_t)(to - ELSEWHERE), from, bytes, mark) : 0;
    return *ticket != 0;
}

static bool sim_await_copy(void *dev, uint64_t ticket)
{
    return enqueue_number(dev, JOB_AWAIT, ticket);
}

static bool sim_copied(void *dev, uint64_t ticket, bool wait)
{
    return kiln_sim_copier_done(&((sim *)dev)->copier, ticket, wait);
}

static void *sim_lower(void *dev, const kiln_plan *plan)
{
    (void)dev;
    return kiln_cpu_lower(NULL, plan);
}

static void sim_dispose(void *dev, void *exec)
{
    sim *s = dev;
    pthread_mutex_lock(&s->lock);
    while (s->first || s->busy) /* a run of it may be waiting; errors are for whoever asks for results */
        pthread_cond_wait(&s->idle, &s->lock);
    pthread_mutex_unlock(&s->lock);
    kiln_cpu_dispose(NULL, exec);
}

static bool sim_run(void *dev, void *exec, const kiln_binding *b)
{
    sim *s = dev;
    const kiln_plan *plan = *(const kiln_plan *const *)exec; /* the first thing in it */
    int64_t slots = plan->nslots, outputs = plan->noutputs;
    pthread_mutex_lock(&s->lock);
    bool ok = report(s);
    pthread_mutex_unlock(&s->lock);
    job *j = ok ? new_job(s, JOB_RUN, (size_t)(slots + outputs + plan->nscalars + 1) * 8) : NULL;
    if (!j)
        return false;
    kiln_address *addresses = (kiln_address *)(void *)j->data;
    double *scalars = (double *)(void *)(addresses + slots + outputs);
    for (int64_t i = 0; i < slots; i++)
        addresses[i] = b->slots[i] - ELSEWHERE;
    for (int64_t i = 0; i < outputs; i++)
        addresses[slots + i] = b->outputs[i] - ELSEWHERE;
    if (plan->nscalars)
        memcpy(scalars, b->scalars, (size_t)plan->nscalars * sizeof *scalars);
    j->binding = (kiln_binding){addresses, addresses + slots, b->arena ? b->arena - ELSEWHERE : 0, scalars, b->run};
    kiln_run_ref(b->run);
    j->exec = exec;
    j->plan = plan;
    enqueue(s, j);
    return true;
}

static bool sim_wait(void *dev)
{
    return drain(dev);
}

static kiln_device_table table = {.version = KILN_DEVICE_VERSION,
                                  .kind = "sim",
                                  .runs_on = true,
                                  .count = sim_count,
                                  .describe = sim_describe,
                                  .open = sim_open,
                                  .close = sim_close,
                                  .allocate = sim_allocate,
                                  .release = sim_release,
                                  .arena = sim_arena,
                                  .overhead = sim_overhead,
                                  .copy_in = sim_copy_in,
                                  .copy_out = sim_copy_out,
                                  .pinned = sim_pinned,
                                  .unpin = sim_unpin,
                                  .mark = sim_mark,
                                  .copy_in_later = sim_copy_in_later,
                                  .await_copy = sim_await_copy,
                                  .copied = sim_copied,
                                  .copy_out_later = sim_copy_out_later,
                                  .copied_out = sim_copied_out,
                                  .supports = kiln_cpu_supports,
                                  .workspace = kiln_cpu_workspace,
                                  .lower = sim_lower,
                                  .dispose = sim_dispose,
                                  .held = kiln_cpu_held,
                                  .run = sim_run,
                                  .wait = sim_wait};

KILN_PLUGIN_API const kiln_device_table *kiln_device_plugin(void);
KILN_PLUGIN_API const kiln_device_table *kiln_device_plugin(void)
{
    table.apart = setting("KILN_SIM_APART", 0) != 0;
    return &table;
}

KILN_PLUGIN_API int64_t kiln_sim_control(int index, kiln_sim_command command, int64_t value);
KILN_PLUGIN_API int64_t kiln_sim_control(int index, kiln_sim_command command, int64_t value)
{
    pthread_once(&once, set_up);
    sim *s = &devices[index];
    pthread_mutex_lock(&s->lock);
    switch (command) {
    case KILN_SIM_MEMORY: s->size = value ? value : (int64_t)1 << 30; break;
    case KILN_SIM_FAIL_ALLOC: s->fail_alloc = value; break;
    case KILN_SIM_LOSE_AFTER: s->lose_after = value; break;
    case KILN_SIM_REVIVE: s->lost = false; break;
    case KILN_SIM_SLOW_COPIES:
        s->slow_copies = value;
        pthread_mutex_lock(&s->copier.lock);
        s->copier.slow = value;
        pthread_mutex_unlock(&s->copier.lock);
        break;
    case KILN_SIM_SLOW_RUNS: s->slow_runs = value; break;
    case KILN_SIM_OVERHEAD: s->overhead = value; break;
    }
    int64_t used = s->used;
    pthread_mutex_unlock(&s->lock);
    return used;
}
