/* Dependencies of a plan's kernels, by the ranges of memory they touch. */
#include "device/cuda/common/depend.h"
#include <string.h>
#include "core/alloc.h"

typedef struct span { /* of memory, and who touches it */
    int32_t space;    /* a slot, an output behind the slots, or -1: the arena */
    int32_t kernel;
    int64_t from, to;
    bool writes;
} span;

typedef struct search {
    const kiln_plan *plan;
    kiln_cuda_waits *w;
    int32_t kernel;
    span *seen; /* what later kernels may have to wait for */
    int64_t nseen, capacity;
    int32_t *checks; /* kernels that can call the step off */
    int64_t nchecks;
    uint64_t *before; /* by kernel: a bit for each kernel it waits for, directly or not; NULL in long plans */
    int64_t words;
    bool failed;
} search;

enum { MOST_TRACKED = 2048 }; /* kernels of a plan for which `before` is kept: half a MiB then */

/* ---- What a kernel touches ---- */

bool kiln_cuda_writes_slot(const kiln_plan *plan, const kiln_kernel *k)
{
    for (kiln_access a = {0}; kiln_next_access(k, &a);)
        if (a.writes && plan->buffers[a.buffer].place == KILN_IN_SLOT)
            return true;
    return false;
}

static span span_of(const search *s, int32_t buffer, bool writes)
{
    const kiln_buffer *b = &s->plan->buffers[buffer];
    span a = {.space = -1, .kernel = s->kernel, .to = b->bytes, .writes = writes};
    if (b->place == KILN_IN_ARENA) {
        a.from = b->offset;
        a.to = b->offset + b->bytes;
    } else
        a.space = b->place == KILN_IN_SLOT ? b->index : s->plan->nslots + b->index;
    return a;
}

static bool overlap(const span *a, const span *b)
{
    return a->space == b->space && a->from < b->to && b->from < a->to;
}

bool kiln_cuda_share_memory(const kiln_plan *plan, int32_t a, int32_t b)
{
    const search s = {.plan = plan};
    const span x = span_of(&s, a, false), y = span_of(&s, b, false);
    return overlap(&x, &y);
}

bool kiln_cuda_touches(const kiln_plan *plan, const kiln_kernel *k, int32_t buffer)
{
    for (kiln_access a = {0}; buffer >= 0 && kiln_next_access(k, &a);)
        if (kiln_cuda_share_memory(plan, a.buffer, buffer))
            return true;
    return false;
}

bool kiln_cuda_writes(const kiln_plan *plan, const kiln_kernel *k, int32_t buffer)
{
    for (kiln_access a = {0}; buffer >= 0 && kiln_next_access(k, &a);)
        if (a.writes && kiln_cuda_share_memory(plan, a.buffer, buffer))
            return true;
    return false;
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
    span a = span_of(s, buffer, writes);
    for (int64_t i = 0; i < s->nseen; i++)
        if ((writes || s->seen[i].writes) && overlap(&a, &s->seen[i]))
            wait_for(s, s->seen[i].kernel);
}

/* Whoever would have to wait for what is written over has to wait for this kernel, which waits for it. */
static void remember(search *s, int32_t buffer, bool writes)
{
    span a = span_of(s, buffer, writes);
    int64_t kept = 0;
    for (int64_t i = 0; i < s->nseen; i++) {
        const span *x = &s->seen[i];
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
        for (kiln_access a = {0}; kiln_next_access(k, &a);)
            meet(&s, a.buffer, a.writes);
        wait_for_checks(&s, k);
        for (kiln_access a = {0}; kiln_next_access(k, &a);)
            remember(&s, a.buffer, a.writes);
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
