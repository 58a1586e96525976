/* A step that does not fit into memory is refused before its first kernel: here it is found out, and said who has the
 * memory and what would help. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "core/alloc.h"
#include "core/available.h"
#include "core/fail.h"
#include "plan/backend.h"
#include "tensor/memory.h"
#include "trace/trace.h"

enum { FOR_PLACE = 100 }; /* that fit and loaders add: "found in epoch 1 at batch 3 of 40 of digits" */
enum { LARGEST = 5 };     /* tensors that are named, where they are not small beside the first */

/* What is known about a step that does not fit. */
typedef struct refusal {
    const kiln_trace *tr;
    const kiln_plan *p;
    int64_t need, left;
    int64_t in_use[KILN_ROLES];  /* what the step reads and writes of what is there */
    int64_t unused;              /* what is there beside that */
    int64_t at_peak[KILN_ROLES]; /* what it adds, when it adds most */
    int32_t peak;                /* the kernel that runs then; -1: not known */
} refusal;

static double mib(int64_t bytes)
{
    return (double)bytes / (1 << 20);
}

/* ---- The peak ---- */

static bool lives(const refusal *r, const kiln_buffer *b)
{
    return b->place == KILN_IN_OUTPUT || (b->place == KILN_IN_ARENA && b->first <= r->peak && r->peak <= b->last);
}

/* The kernel at which most of the arena is in use; -1 when there is no memory to find out. */
static int32_t find_peak(const kiln_plan *p)
{
    int64_t *change = kiln_alloc_zero((size_t)p->nkernels + 1, sizeof *change), live = 0, most = 0;
    int32_t peak = change ? 0 : -1;
    for (int64_t i = 0; change && i < p->nbuffers; i++) {
        const kiln_buffer *b = &p->buffers[i];
        if (b->place != KILN_IN_ARENA)
            continue;
        change[b->first] += b->bytes;
        change[b->last + 1] -= b->bytes;
    }
    for (int32_t k = 0; change && k < p->nkernels; k++) {
        live += change[k];
        if (live > most) {
            most = live;
            peak = k;
        }
    }
    kiln_free(change);
    return peak;
}

static void add_up(refusal *r)
{
    kiln_memory_stats stats;
    if (kiln_memory_get_stats(r->p->device, &stats))
        r->unused = (int64_t)stats.in_use;
    for (int64_t i = 0; i < r->tr->nslots; i++) {
        r->in_use[r->tr->slots[i]->role] += (int64_t)r->tr->slots[i]->bytes;
        r->unused -= (int64_t)r->tr->slots[i]->bytes;
    }
    for (int64_t i = 0; i < r->p->nbuffers; i++)
        if (lives(r, &r->p->buffers[i]))
            r->at_peak[r->p->buffers[i].role] += r->p->buffers[i].bytes;
}

/* ---- Names ---- */

typedef struct text {
    char at[sizeof((kiln_error *)0)->message];
    size_t used, size; /* of `size` that may be used */
} text;

/* Appends all of it or, where there is no room, nothing. */
__attribute__((format(printf, 2, 3))) static bool say(text *t, const char *format, ...)
{
    size_t room = t->size - t->used;
    va_list args;
    va_start(args, format);
    int n = vsnprintf(t->at + t->used, room, format, args);
    va_end(args);
    bool fits = n >= 0 && (size_t)n < room;
    t->at[t->used += fits ? (size_t)n : 0] = '\0';
    return fits;
}

static const kiln_value *import_of(const kiln_trace *tr, const kiln_storage *s)
{
    for (int64_t i = 0; i < tr->nimports; i++) {
        const kiln_value *v = &tr->values[tr->imports[i]];
        if (tr->values[v->base].storage == s)
            return v;
    }
    return NULL;
}

static const char *slot_name(const kiln_trace *tr, const kiln_buffer *b, const char *without)
{
    const kiln_value *v = import_of(tr, tr->slots[b->index]);
    const kiln_tensor *leaf = v ? v->leaf ? v->leaf : tr->values[v->base].leaf : NULL;
    return kiln_tensor_label(leaf, without);
}

/* "layer1.0" of a parameter "layer1.0.weight" that the kernel reads; its length, 0: it reads none with such a name. */
static int module_of(const kiln_trace *tr, const kiln_plan *p, const kiln_kernel *k, const char **path)
{
    for (kiln_access a = {0}; kiln_next_access(k, &a) && !a.writes;) {
        const kiln_buffer *b = &p->buffers[a.buffer];
        if (b->place != KILN_IN_SLOT || b->role != KILN_ROLE_PARAMETER)
            continue;
        *path = slot_name(tr, b, "");
        const char *dot = strrchr(*path, '.');
        if (dot)
            return (int)(dot - *path);
    }
    return 0;
}

/* The module that wrote a kernel; or else, where no module did, that of the parameters that it reads, or that kernels
 * before it read. */
static int find_module(const kiln_trace *tr, const kiln_plan *p, int32_t kernel, const char **path, bool *before)
{
    enum { STEPS = 8 };
    const char *own = kiln_plan_module(tr, &p->kernels[kernel]);
    *before = false;
    if (own && *own) {
        *path = own;
        return (int)strlen(own);
    }
    for (int i = 0; i < STEPS && kernel >= 0; i++) {
        const kiln_kernel *k = &p->kernels[kernel];
        int length = module_of(tr, p, k, path);
        if (length)
            return length;
        int32_t from = -1;
        for (kiln_access a = {0}; from < 0 && kiln_next_access(k, &a) && !a.writes;)
            if (p->buffers[a.buffer].place == KILN_IN_ARENA && p->buffers[a.buffer].first < kernel)
                from = p->buffers[a.buffer].first;
        kernel = from;
        *before = true;
    }
    return 0;
}

static bool say_made(text *t, const refusal *r, const kiln_buffer *b)
{
    const char *path = "", *name = b->origin ? b->origin->name : "";
    bool before, work = b->role == KILN_ROLE_WORKSPACE;
    const kiln_kernel *k = &r->p->kernels[b->first];
    if (work)
        name = k->origin ? k->origin->name : "a group";
    int length = find_module(r->tr, r->p, b->first, &path, &before);
    bool ok = say(t, "%s%s", work ? "workspace of " : b->role == KILN_ROLE_GRADIENT ? "gradient by " : "", name);
    if (ok && length)
        ok = say(t, before ? " after %.*s" : " in %.*s", length, path);
    return ok && (work || say(t, " %s", kiln_shape_text(b->ndim, b->shape)));
}

static bool say_slot(text *t, const kiln_trace *tr, const kiln_buffer *b)
{
    static const char *const kinds[KILN_ROLES] = {"the batch",       "the data set",  "a parameter", "a gradient",
                                                  "optimizer state", "an activation", "workspace"};
    const kiln_value *v = import_of(tr, tr->slots[b->index]);
    return say(t, "%s", slot_name(tr, b, kinds[(int)b->role])) &&
           (!v || say(t, " %s", kiln_shape_text(v->ndim, v->shape)));
}

/* ---- The message ---- */

static const kiln_buffer *next_largest(const refusal *r, const kiln_buffer *const *said, int n)
{
    const kiln_buffer *best = NULL;
    for (int64_t i = 0; i < r->p->nbuffers; i++) {
        const kiln_buffer *b = &r->p->buffers[i];
        bool is_said = b->place != KILN_IN_SLOT && !lives(r, b);
        for (int j = 0; j < n; j++)
            is_said |= said[j] == b;
        if (!is_said && b->bytes > 0 && (!best || b->bytes > best->bytes))
            best = b;
    }
    return best;
}

static void say_largest(text *t, const refusal *r)
{
    const kiln_buffer *said[LARGEST];
    for (int n = 0; n < LARGEST; n++) {
        size_t before = t->used;
        const kiln_buffer *b = said[n] = next_largest(r, said, n);
        bool ok = b && b->bytes > said[0]->bytes / 100 && say(t, n ? ", " : ". Largest: ") &&
                  (b->place == KILN_IN_SLOT ? say_slot(t, r->tr, b) : say_made(t, r, b)) &&
                  say(t, " %.2f MiB", mib(b->bytes));
        if (ok)
            continue;
        t->at[t->used = before] = '\0'; /* no half of one */
        return;
    }
}

/* What is known of the device's memory that this process does not have. */
static void say_others(text *t, kiln_device device)
{
    kiln_device_info info;
    kiln_memory_stats stats;
    if (!kiln_device_describe(device, &info) || !info.memory_total || info.memory_free >= info.memory_total ||
        !kiln_memory_get_stats(device, &stats))
        return;
    uint64_t taken = info.memory_total - info.memory_free;
    uint64_t own = device == KILN_CPU ? kiln_resident_set() : stats.in_use + stats.cached + stats.overhead;
    say(t, ". Other processes hold %.2f of the %.2f GiB of %s", (double)(taken > own ? taken - own : 0) / (1 << 30),
        (double)info.memory_total / (1 << 30), device == KILN_CPU ? "this machine" : kiln_device_name(device));
}

typedef struct share {
    const char *name;
    int64_t bytes;
} share;

/* ". In use: parameters 1.20, optimizer 2.40 MiB", without those that have next to none. */
static void say_shares(text *t, const char *beginning, const share *all, int n)
{
    bool any = false;
    for (int i = 0; i < n; i++)
        if (mib(all[i].bytes) >= 0.005) {
            say(t, "%s%s %.2f", any ? ", " : beginning, all[i].name, mib(all[i].bytes));
            any = true;
        }
    if (any)
        say(t, " MiB");
}

static void say_roles(text *t, const refusal *r)
{
    const int64_t *use = r->in_use, *add = r->at_peak;
    const share there[] = {{"parameters", use[KILN_ROLE_PARAMETER]},
                           {"optimizer", use[KILN_ROLE_OPTIMIZER]},
                           {"gradients", use[KILN_ROLE_GRADIENT]},
                           {"data", use[KILN_ROLE_DATA] + use[KILN_ROLE_DATASET]},
                           {"what the step does not use", r->unused}};
    const share more[] = {{"activations", add[KILN_ROLE_ACTIVATION] + add[KILN_ROLE_DATA]},
                          {"gradients", add[KILN_ROLE_GRADIENT]},
                          {"workspace", add[KILN_ROLE_WORKSPACE]}};
    say_shares(t, ". In use: ", there, 5);
    say_shares(t, ". The step adds at its peak: ", more, 3);
}

static _Thread_local kiln_refused refused;

bool kiln_plan_refused(kiln_refused *last)
{
    *last = refused;
    refused = (kiln_refused){0};
    return last->need > 0;
}

/* Always false. The batch is looked for before the error is raised, so that its hint stays the error's. */
static bool refuse(const kiln_trace *tr, const kiln_plan *p, int64_t need, int64_t left)
{
    refusal r = {.tr = tr, .p = p, .need = need, .left = left, .peak = find_peak(p)};
    text others = {.size = sizeof others.at}, t = {0};
    int64_t batch, fits = kiln_plan_fitting_batch(tr, p, left, &batch);
    refused = (kiln_refused){need, left, fits};
    kiln_error_clear(); /* of what could not be found out for want of memory */
    add_up(&r);
    say_others(&others, p->device);
    t.size = sizeof t.at - others.used - FOR_PLACE; /* which come last */
    say(&t, "the step needs %.2f MiB on %s beside what is in use, but %.2f MiB are left", mib(need),
        kiln_device_name(p->device), mib(left));
    say_roles(&t, &r);
    say_largest(&t, &r);
    kiln_fail(KILN_E_MEMORY, "step", "%s%s", t.at, others.at);
    if (fits >= 1 && fits < batch)
        kiln_hint("nothing was changed. A batch of about %lld instead of %lld would fit", (long long)fits,
                  (long long)batch);
    else if (fits < 0)
        kiln_hint("nothing was changed. Not even a batch of 1 instead of %lld would fit: use a smaller model, release "
                  "tensors, or raise the limit",
                  (long long)batch);
    else
        kiln_hint("nothing was changed. Use a smaller %smodel, release tensors, or raise the limit",
                  batch ? "batch or " : "");
    return false;
}

bool kiln_plan_check_room(const kiln_trace *tr, const kiln_plan *p)
{
    int64_t need = p->arena_bytes + p->all_output_bytes, left = kiln_memory_left_for(p->device, need);
    return need <= left || refuse(tr, p, need, left);
}

void kiln_plan_explain(const kiln_trace *tr, const kiln_plan *p)
{
    int64_t need = p->arena_bytes + p->all_output_bytes, left = kiln_memory_available(p->device);
    if (kiln_last_error()->code != KILN_E_MEMORY || need <= left)
        return; /* the block that the device could not give tells more */
    kiln_error_clear();
    refuse(tr, p, need, left);
}
