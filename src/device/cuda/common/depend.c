/* Dependencies of a plan's kernels, by the ranges of memory they touch. */
#include "device/cuda/common/depend.h"
#include <string.h>
#include "core/alloc.h"

typedef struct access {
    int32_t space; /* a slot, an output behind the slots, or -1: the arena */
    int32_t kernel;
    int64_t from, to;
    bool writes;
} access;

typedef struct search {
    const kiln_plan *plan;
    kiln_cuda_waits *w;
    int32_t kernel;
    access *seen; /* what later kernels may have to wait for */
    int64_t nseen, capacity;
    int32_t *checks; /* kernels that can call the step off */
    int64_t nchecks;
    uint64_t *before; /* by kernel: a bit for each kernel it waits for, directly or not; NULL in long plans */
    int64_t words;
    int32_t sought; /* a buffer, for kiln_cuda_touches and kiln_cuda_writes */
    bool found, failed;
} search;

enum { MOST_TRACKED = 2048 }; /* kernels of a plan for which `before` is kept: half a MiB then */

/* ---- What a kernel touches ---- */

typedef void (*visit)(search *s, int32_t buffer, bool writes);

static void each_access(search *s, const kiln_kernel *k, visit f)
{
    for (int i = 0; i < k->nin; i++)
        f(s, k->in[i].buffer, false);
    for (int i = 0; k->group && i < k->group->nloads; i++)
        f(s, k->group->loads[i].buffer, false);
    for (int j = 0; j < k->nout; j++)
        f(s, k->out[j].buffer, true);
    for (int j = 0; k->group && j < k->group->nstores; j++)
        f(s, k->group->stores[j].to.buffer, true);
    if (k->group && k->group->reduces)
        f(s, k->group->reduce_to.buffer, true);
    f(s, k->workspace, true);
}

static bool in_slot(const kiln_plan *plan, const kiln_operand *o)
{
    return o->buffer >= 0 && plan->buffers[o->buffer].place == KILN_IN_SLOT;
}

bool kiln_cuda_writes_slot(const kiln_plan *plan, const kiln_kernel *k)
{
    for (int j = 0; j < k->nout; j++)
        if (in_slot(plan, &k->out[j]))
            return true;
    for (int s = 0; k->group && s < k->group->nstores; s++)
        if (in_slot(plan, &k->group->stores[s].to))
            return true;
    return k->group && k->group->reduces && in_slot(plan, &k->group->reduce_to);
}

static access access_of(const search *s, int32_t buffer, bool writes)
{
    const kiln_buffer *b = &s->plan->buffers[buffer];
    access a = {.space = -1, .kernel = s->kernel, .to = b->bytes, .writes = writes};
    if (b->place == KILN_IN_ARENA) {
        a.from = b->offset;
        a.to = b->offset + b->bytes;
    } else
        a.space = b->place == KILN_IN_SLOT ? b->index : s->plan->nslots + b->index;
    return a;
}

static bool overlap(const access *a, const access *b)
{
    return a->space == b->space && a->from < b->to && b->from < a->to;
}

bool kiln_cuda_share_memory(const kiln_plan *plan, int32_t a, int32_t b)
{
    const search s = {.plan = plan};
    const access x = access_of(&s, a, false), y = access_of(&s, b, false);
    return overlap(&x, &y);
}

static void compare(search *s, int32_t buffer, bool writes)
{
    (void)writes;
    s->found |= buffer >= 0 && kiln_cuda_share_memory(s->plan, buffer, s->sought);
}

static void compare_writes(search *s, int32_t buffer, bool writes)
{
    if (writes)
        compare(s, buffer, writes);
}

static bool meets(const kiln_plan *plan, const kiln_kernel *k, int32_t buffer, visit f)
{
    search s = {.plan = plan, .sought = buffer};
    if (buffer >= 0)
        each_access(&s, k, f);
    return s.found;
}

bool kiln_cuda_touches(const kiln_plan *plan, const kiln_kernel *k, int32_t buffer)
{
    return meets(plan, k, buffer, compare);
}

bool kiln_cuda_writes(const kiln_plan *plan, const kiln_kernel *k, int32_t buffer)
{
    return meets(plan, k, buffer, compare_writes);
}

/* ---- Waiting ---- */

static bool waits_already(const search *s, int32_t kernel)
{
    for (int64_t i = s->w->first[s->kernel]; i < s->w->n; i++)
        if (s->w->of[i] == kernel)
            return true;
    return false;
}

static void wait_for(search *s, int32_t kernel)
{
    kiln_cuda_waits *w = s->w;
    if (kernel == s->kernel || waits_already(s, kernel))
        return;
    s->failed = s->failed || !KILN_GROW(w->of, w->capacity, w->n + 1);
    if (!s->failed)
        w->of[w->n++] = kernel;
}

static void meet(search *s, int32_t buffer, bool writes)
{
    if (buffer < 0)
        return;
    access a = access_of(s, buffer, writes);
    for (int64_t i = 0; i < s->nseen; i++)
        if ((writes || s->seen[i].writes) && overlap(&a, &s->seen[i]))
            wait_for(s, s->seen[i].kernel);
}

/* Whoever would have to wait for what is written over has to wait for this kernel, which waits for it. */
static void remember(search *s, int32_t buffer, bool writes)
{
    if (buffer < 0)
        return;
    access a = access_of(s, buffer, writes);
    int64_t kept = 0;
    for (int64_t i = 0; i < s->nseen; i++) {
        const access *x = &s->seen[i];
        bool covered = writes && x->kernel != s->kernel && x->space == a.space && a.from <= x->from && x->to <= a.to;
        if (!covered)
            s->seen[kept++] = *x;
    }
    s->nseen = kept;
    s->failed = s->failed || !KILN_GROW(s->seen, s->capacity, s->nseen + 1);
    if (!s->failed)
        s->seen[s->nseen++] = a;
}

/* Nothing in a slot may be written before all indices were found good. */
static void wait_for_checks(search *s, const kiln_kernel *k)
{
    if (kiln_cuda_writes_slot(s->plan, k))
        for (int64_t i = 0; i < s->nchecks; i++)
            wait_for(s, s->checks[i]);
    if (k->op && k->op->demand)
        s->checks[s->nchecks++] = s->kernel;
}

static void prune(search *s)
{
    kiln_cuda_waits *w = s->w;
    uint64_t *mine = s->before + s->kernel * s->words;
    int64_t first = w->first[s->kernel], kept = first;
    for (int64_t i = first; i < w->n; i++) {
        const uint64_t *theirs = s->before + w->of[i] * s->words;
        for (int64_t k = 0; k < s->words; k++)
            mine[k] |= theirs[k];
    }
    for (int64_t i = first; i < w->n; i++)
        if (!(mine[w->of[i] / 64] >> (w->of[i] % 64) & 1)) /* nobody else among them waits for it */
            w->of[kept++] = w->of[i];
    w->n = kept;
    for (int64_t i = first; i < w->n; i++)
        mine[w->of[i] / 64] |= UINT64_C(1) << (w->of[i] % 64);
}

static void sort(search *s)
{
    int32_t *of = s->w->of;
    for (int64_t i = s->w->first[s->kernel] + 1; i < s->w->n; i++) {
        int32_t x = of[i];
        int64_t j = i;
        for (; j > s->w->first[s->kernel] && of[j - 1] > x; j--)
            of[j] = of[j - 1];
        of[j] = x;
    }
}

bool kiln_cuda_find_waits(kiln_cuda_waits *w, const kiln_plan *plan)
{
    int64_t n = plan->nkernels;
    search s = {.plan = plan, .w = w, .words = (n + 63) / 64};
    *w = (kiln_cuda_waits){0};
    w->first = kiln_alloc_zero((size_t)n + 1, sizeof *w->first);
    s.checks = kiln_alloc((size_t)n + 1, sizeof *s.checks);
    s.before = n <= MOST_TRACKED ? kiln_alloc_zero((size_t)(n * s.words) + 1, sizeof *s.before) : NULL;
    s.failed = !w->first || !s.checks || (n <= MOST_TRACKED && !s.before);
    for (; !s.failed && s.kernel < n; s.kernel++) {
        const kiln_kernel *k = &plan->kernels[s.kernel];
        w->first[s.kernel] = w->n;
        each_access(&s, k, meet);
        wait_for_checks(&s, k);
        each_access(&s, k, remember);
        if (!s.failed && s.before)
            prune(&s);
        sort(&s);
    }
    if (!s.failed)
        w->first[n] = w->n;
    kiln_free(s.seen);
    kiln_free(s.checks);
    kiln_free(s.before);
    return !s.failed;
}

void kiln_cuda_free_waits(kiln_cuda_waits *w)
{
    kiln_free(w->first);
    kiln_free(w->of);
    *w = (kiln_cuda_waits){0};
}
