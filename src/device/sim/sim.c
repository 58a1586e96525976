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
#include "device/cpu/common/cpu.h"
#include "device/sim/queue.h"

/* Added to host addresses: no x86-64 or arm64 program can dereference the sum. */
#define ELSEWHERE ((kiln_address)1 << 62)

#define ARENA_RANGE ((size_t)1 << 36) /* addresses set aside for an arena; memory comes as it grows */

static sim devices[MAX_DEVICES];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static int64_t setting(const char *name, int64_t otherwise)
{
    const char *text = getenv(name);
    return text && *text ? strtoll(text, NULL, 10) : otherwise;
}

static void make_locks(void)
{
    for (int i = 0; i < MAX_DEVICES; i++) {
        sim *s = &devices[i];
        pthread_mutex_init(&s->lock, NULL);
        pthread_cond_init(&s->wake, NULL);
        pthread_cond_init(&s->idle, NULL);
        kiln_sim_copier_init(&s->copier);
    }
}

static void set_up(void)
{
    make_locks();
    for (int i = 0; i < MAX_DEVICES; i++) {
        sim *s = &devices[i];
        s->index = i;
        s->size = setting("KILN_SIM_MEMORY", (int64_t)1 << 30);
        s->fail_alloc = s->lose_after = -1;
    }
}

/* In a forked child devices of the parent can still be described. */
__attribute__((constructor)) static void load(void)
{
    pthread_atfork(NULL, NULL, make_locks);
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
    if (pthread_create(&s->thread, NULL, kiln_sim_work, s))
        return kiln_fail(KILN_E_DEVICE, "device", "sim:%d could not start its thread", index);
    return s;
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
    kiln_sim_free_jobs(&s->spare);
    kiln_sim_free_jobs(&s->for_blocks); /* of blocks that were never given back */
    if (s->arena)
        munmap(s->arena, ARENA_RANGE);
    s->arena = NULL;
    s->arena_bytes = 0;
}

/* With the lock held: is there so much more? */
static bool has_room(sim *s, size_t bytes)
{
    bool ok = (!s->lost || kiln_sim_fail_lost(s)) && s->used + (int64_t)bytes <= s->size;
    if (s->fail_alloc >= 0 && s->fail_alloc-- == 0)
        ok = false;
    return ok;
}

/* LeakSanitizer's, where it is there: it does not see that an address is a block. What is in use is counted. */
void __lsan_ignore_object(const void *p) __attribute__((weak));

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
    if (__lsan_ignore_object)
        __lsan_ignore_object(p);
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
    kiln_sim_enqueue(s, j); /* behind whatever still uses it */
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

static char *reserve(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    return p;
}

static size_t sim_arena(void *dev, size_t bytes, kiln_address *address)
{
    sim *s = dev;
    pthread_mutex_lock(&s->lock);
    if (bytes < s->arena_bytes)
        kiln_sim_wait_until(s, s->given); /* runs that were given before may use what goes */
    if (!s->arena)
        s->arena = reserve(ARENA_RANGE);
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
    job *j = kiln_sim_job(s, JOB_COPY_IN, bytes);
    if (!j)
        return false;
    memcpy(j->data, from, bytes);
    j->to = (void *)(uintptr_t)(to - ELSEWHERE);
    j->from = j->data;
    j->bytes = bytes;
    pthread_mutex_lock(&s->lock);
    kiln_sim_append(s, j);
    bool ok = !s->lost || kiln_sim_fail_lost(s);
    pthread_mutex_unlock(&s->lock);
    return ok;
}

static job *new_copy_out(sim *s, job_kind kind, void *to, kiln_address from, size_t bytes)
{
    job *j = kiln_sim_job(s, kind, 0);
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
    kiln_sim_enqueue(s, j);
    return kiln_sim_drain(s);
}

static bool sim_copy_out_later(void *dev, void *to, kiln_address from, size_t bytes, uint64_t *ticket)
{
    sim *s = dev;
    job *j = new_copy_out(s, JOB_COPY_OUT_LATER, to, from, bytes);
    if (!j)
        return false;
    pthread_mutex_lock(&s->lock);
    kiln_sim_append(s, j);
    *ticket = j->given;
    pthread_mutex_unlock(&s->lock);
    return true;
}

/* With the lock held. A run behind the copy that has failed is left to whoever waits for that. */
static bool was_copied(sim *s, uint64_t ticket)
{
    kiln_sim_wait_until(s, ticket);
    if (ticket >= s->lost_first && ticket <= s->lost_last)
        return kiln_sim_fail_lost(s);
    if (s->failing && s->failure.first < ticket)
        kiln_sim_after_failure(s);
    if (!kiln_failures_tell(&s->failures, &kiln_sim_witnesses[s->index], ticket))
        return false;
    return !kiln_failures_hit(&s->failures, ticket) ||
           kiln_fail(KILN_E_STATE, "device", "sim:%d: a step failed before its results were copied", s->index);
}

static bool sim_copied_out(void *dev, uint64_t ticket)
{
    sim *s = dev;
    pthread_mutex_lock(&s->lock);
    bool ok = was_copied(s, ticket);
    pthread_mutex_unlock(&s->lock);
    return ok;
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
    job *j = kiln_sim_job(s, kind, 0);
    if (!j)
        return false;
    j->number = number;
    kiln_sim_enqueue(s, j);
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
    bool ok = !s->lost || kiln_sim_fail_lost(s);
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

/* With the lock held: the number of its last run that is not over; 0: all are. */
static uint64_t last_run(const sim *s, const void *exec)
{
    uint64_t last = s->current && s->current->kind == JOB_RUN && s->current->exec == exec ? s->current->given : 0;
    for (const job *j = s->first; j; j = j->next)
        if (j->kind == JOB_RUN && j->exec == exec)
            last = j->given;
    return last;
}

static void sim_dispose(void *dev, void *exec)
{
    sim *s = dev;
    pthread_mutex_lock(&s->lock);
    kiln_sim_wait_until(s, last_run(s, exec)); /* errors are for whoever asks for results */
    pthread_mutex_unlock(&s->lock);
    kiln_cpu_dispose(NULL, exec);
}

/* A run at the queue's end; its number, 0 with an error. */
static uint64_t give_run(sim *s, void *exec, const kiln_binding *b, kiln_timing *timing)
{
    const kiln_plan *plan = *(const kiln_plan *const *)exec; /* the first thing in it */
    int64_t slots = plan->nslots, outputs = plan->noutputs;
    pthread_mutex_lock(&s->lock);
    bool ok = kiln_sim_report(s);
    pthread_mutex_unlock(&s->lock);
    job *j = ok ? kiln_sim_job(s, JOB_RUN, (size_t)(slots + outputs + plan->nscalars + 1) * 8) : NULL;
    if (!j)
        return 0;
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
    j->timing = timing;
    pthread_mutex_lock(&s->lock);
    kiln_sim_append(s, j);
    uint64_t number = j->given;
    pthread_mutex_unlock(&s->lock);
    return number;
}

static bool sim_run(void *dev, void *exec, const kiln_binding *b)
{
    return give_run(dev, exec, b, NULL) != 0;
}

static bool sim_time(void *dev, void *exec, const kiln_binding *b, kiln_timing *timing)
{
    sim *s = dev;
    uint64_t number = give_run(s, exec, b, timing);
    pthread_mutex_lock(&s->lock);
    kiln_sim_wait_until(s, number); /* what went wrong is for whoever asks for results */
    pthread_mutex_unlock(&s->lock);
    return number != 0;
}

static bool sim_wait(void *dev)
{
    return kiln_sim_drain(dev);
}

static kiln_device_table table = {.version = KILN_DEVICE_VERSION,
                                  .kind = "sim",
                                  .runs_on = true,
                                  .row_bytes = 16, /* so that plans are made which want that, as on CUDA */
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
                                  .can = kiln_cpu_can,
                                  .workspace = kiln_cpu_workspace,
                                  .lower = sim_lower,
                                  .dispose = sim_dispose,
                                  .held = kiln_cpu_held,
                                  .run = sim_run,
                                  .time = sim_time,
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
