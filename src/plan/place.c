/* Memory: where in the arena each buffer lies. Buffers are placed in the order the kernels need them and their room is
 * free again after their last use, so the arena's size is the step's peak, known before anything runs. */
#include <math.h>
#include <string.h>
#include "core/fail.h"
#include "plan/backend.h"
#include "plan/draft.h"
#include "tensor/memory.h"

typedef struct hole {
    int64_t offset, bytes;
} hole;

typedef struct layout {
    kiln_draft *d;
    hole *holes; /* free ranges below `end`, by offset; never adjacent */
    int64_t nholes;
    int64_t end;
    int64_t apart; /* buffers of so many bytes or fewer lie one behind the other, and their room is not used twice … */
    int64_t beside; /* … from the arena's begin to here, so far */
    int32_t *dying; /* buffers by last use: heads by kernel, linked through next */
    int32_t *next;
    int32_t *along;   /* by kernel: one whose results it makes along with its own (kiln_choice), -1 */
    int32_t *follows; /* by buffer: the one whose place it takes over, -1 */
} layout;

static int64_t round_up(int64_t bytes)
{
    return bytes ? (bytes + KILN_BLOCK_ALIGN - 1) / KILN_BLOCK_ALIGN * KILN_BLOCK_ALIGN : KILN_BLOCK_ALIGN;
}

/* The smallest hole that is large enough, else the end. */
static int64_t take(layout *l, int64_t bytes)
{
    int64_t best = -1;
    for (int64_t i = 0; i < l->nholes; i++)
        if (l->holes[i].bytes >= bytes && (best < 0 || l->holes[i].bytes < l->holes[best].bytes))
            best = i;
    if (best < 0) {
        /* A hole that touches the end is enlarged rather than left behind. */
        if (l->nholes && l->holes[l->nholes - 1].offset + l->holes[l->nholes - 1].bytes == l->end) {
            int64_t offset = l->holes[--l->nholes].offset;
            l->end = offset + bytes;
            return offset;
        }
        l->end += bytes;
        return l->end - bytes;
    }
    int64_t offset = l->holes[best].offset;
    l->holes[best].offset += bytes;
    l->holes[best].bytes -= bytes;
    if (!l->holes[best].bytes) {
        l->nholes--;
        memmove(l->holes + best, l->holes + best + 1, (size_t)(l->nholes - best) * sizeof *l->holes);
    }
    return offset;
}

static void give(layout *l, int64_t offset, int64_t bytes)
{
    int64_t i = 0;
    while (i < l->nholes && l->holes[i].offset < offset)
        i++;
    bool before = i > 0 && l->holes[i - 1].offset + l->holes[i - 1].bytes == offset;
    bool after = i < l->nholes && offset + bytes == l->holes[i].offset;
    if (before && after) {
        l->holes[i - 1].bytes += bytes + l->holes[i].bytes;
        l->nholes--;
        memmove(l->holes + i, l->holes + i + 1, (size_t)(l->nholes - i) * sizeof *l->holes);
    } else if (before)
        l->holes[i - 1].bytes += bytes;
    else if (after) {
        l->holes[i].offset = offset;
        l->holes[i].bytes += bytes;
    } else {
        memmove(l->holes + i + 1, l->holes + i, (size_t)(l->nholes - i) * sizeof *l->holes);
        l->holes[i] = (hole){offset, bytes};
        l->nholes++;
    }
}

/* True if the kernel reads the buffer in another way than through this load of the group, or passes the load on as it
 * is.
 */
static bool reads_elsewhere(const kiln_kernel *k, const kiln_group *g, int32_t buffer, int load)
{
    for (int i = 0; i < g->nstores; i++)
        if (g->stores[i].src == load)
            return true;
    for (int i = 0; i < g->ngifts; i++)
        if (g->gifts[i].src == load)
            return true;
    for (kiln_access a = {0}; kiln_next_access(k, &a) && !a.writes;)
        if (a.buffer == buffer && a.operand != &g->loads[load])
            return true;
    return false;
}

/* A pointwise kernel may write over an operand that it reads in the same order and that nobody needs afterwards. */
static bool reuse_operand(layout *l, const kiln_kernel *k, const kiln_group *g, int32_t number, kiln_buffer *to,
                          size_t element)
{
    kiln_plan *p = l->d->plan;
    for (int i = 0; i < g->nloads; i++) {
        const kiln_operand *o = &g->loads[i];
        kiln_buffer *from = &p->buffers[o->buffer];
        if (from->place != KILN_IN_ARENA || from->last != number || from->first == number || !o->dense || o->offset ||
            kiln_count(o->ndim, o->shape) != g->count || kiln_dtype_size((kiln_dtype)o->dtype) != element ||
            round_up(from->bytes) != round_up(to->bytes) || reads_elsewhere(k, g, o->buffer, i))
            continue;
        to->offset = from->offset;
        l->follows[to - p->buffers] = o->buffer;
        from->last = number - 1; /* its room has a new owner: not given back */
        return true;
    }
    return false;
}

static void place_buffer(layout *l, int32_t buffer)
{
    kiln_buffer *b = &l->d->plan->buffers[buffer];
    if (b->place != KILN_IN_ARENA || b->offset >= 0)
        return;
    if (b->bytes > l->apart)
        b->offset = take(l, round_up(b->bytes));
    else {
        b->offset = l->beside;
        l->beside += round_up(b->bytes);
    }
}

/* What a store makes may take the place of an operand; a reduction may go over its rows in several passes. */
static void place_store(layout *l, const kiln_kernel *k, const kiln_group *g, int32_t number, const kiln_operand *to)
{
    kiln_buffer *b = &l->d->plan->buffers[to->buffer];
    if (b->place == KILN_IN_ARENA && b->offset < 0 && !g->reduces && b->bytes > l->apart)
        reuse_operand(l, k, g, number, b, kiln_dtype_size((kiln_dtype)to->dtype));
}

/* What is read has its place already, but for operands of no elements, which no kernel writes. */
static void place_kernel(layout *l, int32_t number)
{
    kiln_plan *p = l->d->plan;
    kiln_kernel *k = &p->kernels[number];
    for (kiln_access a = {0}; kiln_next_access(k, &a);) {
        if (a.kind == KILN_ACCESS_STORE || a.kind == KILN_ACCESS_LEAD_STORE)
            place_store(l, k, a.kind == KILN_ACCESS_STORE ? k->group : k->lead, number, a.operand);
        place_buffer(l, a.buffer);
    }
    if (l->along[number] >= 0)
        for (kiln_access a = {0}; kiln_next_access(&p->kernels[l->along[number]], &a);)
            if (a.writes && a.operand)
                place_buffer(l, a.buffer);
    for (int32_t b = l->dying[number]; b >= 0; b = l->next[b])
        if (p->buffers[b].last == number && p->buffers[b].bytes > l->apart)
            give(l, p->buffers[b].offset, round_up(p->buffers[b].bytes));
}

static void add_workspaces(kiln_draft *d)
{
    kiln_plan *p = d->plan;
    for (int64_t k = 0; k < p->nkernels; k++) {
        size_t bytes = kiln_backend_workspace(p->device, &p->kernels[k]);
        if (!bytes)
            continue;
        p->kernels[k].workspace = (int32_t)p->nbuffers;
        p->buffers[p->nbuffers++] = (kiln_buffer){.place = KILN_IN_ARENA,
                                                  .index = -1,
                                                  .offset = -1,
                                                  .bytes = (int64_t)bytes,
                                                  .role = KILN_ROLE_WORKSPACE,
                                                  .first = (int32_t)k,
                                                  .last = (int32_t)k};
    }
}

/* All bytes of the arena's buffers that have no more than `most` each, side by side. */
static int64_t needed_by(const kiln_plan *p, int64_t most)
{
    int64_t needed = 0;
    for (int32_t b = 0; b < p->nbuffers; b++)
        if (p->buffers[b].place == KILN_IN_ARENA && p->buffers[b].bytes <= most)
            needed += round_up(p->buffers[b].bytes);
    return needed;
}

enum { ROOMY_PART = 8 };

/* Where kernels may run side by side, room that is used twice makes one wait for another. A plan that takes little has
 * none of that; in larger ones buffers up to a size have rooms of their own, such that these take a part of as much:
 * the many small ones behind a gradient or before a sum of sums. */
static void keep_small_apart(layout *l)
{
    const kiln_plan *p = l->d->plan;
    int64_t roomy = l->d->tight ? 0 : kiln_backend_roomy(p->device);
    l->apart = !roomy ? -1 : needed_by(p, INT64_MAX) <= roomy ? INT64_MAX : roomy / ROOMY_PART;
    while (l->apart > 0 && l->apart < INT64_MAX && needed_by(p, l->apart) > roomy / ROOMY_PART)
        l->apart /= 2;
    l->end = needed_by(p, l->apart);
}

/* Each buffer of the arena becomes an output that nobody keeps, of its exact size: a block that a tool for finding
 * errors can tell from all others. */
static void keep_apart(kiln_plan *p)
{
    for (int32_t b = 0; b < p->nbuffers; b++)
        if (p->buffers[b].place == KILN_IN_ARENA) {
            p->buffers[b].place = KILN_IN_OUTPUT;
            p->buffers[b].index = p->noutputs++;
        }
}

/* Where memory is short the arena is also laid out another way, and the smaller one is taken. */
static bool pack(layout *l)
{
    const kiln_plan *p = l->d->plan;
    int64_t *bytes = KILN_ARENA_NEW(&l->d->scratch, int64_t, p->nbuffers);
    for (int32_t b = 0; bytes && b < p->nbuffers; b++)
        bytes[b] = round_up(p->buffers[b].bytes);
    return bytes && kiln_draft_pack(l->d, l->follows, &l->end, bytes);
}

/* Sizes are added up from here on. */
static bool can_be_counted(const kiln_plan *p)
{
    double all = 0;
    for (int32_t b = 0; b < p->nbuffers; b++)
        all += p->buffers[b].bytes < 0 ? INFINITY : (double)p->buffers[b].bytes;
    if (all < 0x1p62)
        return true;
    kiln_fail(KILN_E_MEMORY, "step", "what its %lld kernels read and write would take %.3g EiB all in all",
              (long long)p->nkernels, all / 0x1p60);
    return kiln_hint("nothing was changed. Use a smaller batch or model");
}

/* The most bytes of activations that are needed at one time, once it is known who takes whose place. */
static bool find_activation_peak(kiln_draft *d)
{
    kiln_plan *p = d->plan;
    int64_t *change = KILN_ARENA_NEW(&d->scratch, int64_t, p->nkernels + 2), now = 0; /* by kernel */
    if (!change)
        return false;
    for (int32_t b = 0; b < p->nbuffers; b++) {
        const kiln_buffer *x = &p->buffers[b];
        if (x->role != KILN_ROLE_ACTIVATION || x->place == KILN_IN_SLOT)
            continue;
        change[x->first] += x->bytes;
        change[x->last + 1] -= x->bytes;
    }
    for (int32_t k = 0; k <= p->nkernels; k++) {
        now += change[k];
        p->activation_peak = now > p->activation_peak ? now : p->activation_peak;
    }
    return true;
}

bool kiln_draft_place(kiln_draft *d)
{
    kiln_plan *p = d->plan;
    bool apart = kiln_backend_apart(p->device);
    add_workspaces(d);
    if (!can_be_counted(p))
        return false;
    if (apart)
        keep_apart(p);
    layout l = {.d = d};
    l.holes = KILN_ARENA_NEW(&d->scratch, hole, p->nbuffers + 1);
    l.dying = KILN_ARENA_NEW(&d->scratch, int32_t, p->nkernels);
    l.next = KILN_ARENA_NEW(&d->scratch, int32_t, p->nbuffers);
    l.along = KILN_ARENA_NEW(&d->scratch, int32_t, p->nkernels);
    l.follows = KILN_ARENA_NEW(&d->scratch, int32_t, p->nbuffers);
    p->output_bytes = KILN_ARENA_NEW(d->pool, int64_t, p->noutputs);
    if (!l.holes || !l.dying || !l.next || !l.along || !l.follows || !p->output_bytes)
        return false;
    memset(l.follows, -1, (size_t)p->nbuffers * sizeof *l.follows);
    memset(l.along, -1, (size_t)p->nkernels * sizeof *l.along);
    for (int32_t k = 0; k < p->nkernels; k++)
        if (p->kernels[k].choice.by)
            l.along[p->kernels[k].choice.by - 1] = k;
    memset(l.dying, -1, (size_t)p->nkernels * sizeof *l.dying);
    for (int32_t b = 0; b < p->nbuffers; b++) {
        kiln_buffer *x = &p->buffers[b];
        p->role_bytes[(int)x->role] += x->bytes;
        if (x->place == KILN_IN_OUTPUT) {
            p->output_bytes[x->index] = apart ? x->bytes : round_up(x->bytes);
            p->all_output_bytes += p->output_bytes[x->index];
        } else if (x->place == KILN_IN_ARENA) {
            l.next[b] = l.dying[x->last];
            l.dying[x->last] = b;
        }
    }
    keep_small_apart(&l);
    for (int32_t k = 0; k < p->nkernels; k++)
        place_kernel(&l, k);
    if (d->tight && !pack(&l))
        return false;
    p->arena_bytes = l.end;
    return find_activation_peak(d);
}
