/* Groups: pointwise ones, and those that end in a reduction, of rows or of columns. A long reduction is done in chunks,
 * whose results a second link combines; a count, in a chain that is the whole plan, as a pointwise group that adds to a
 * word (counts.c). */
#include "device/cuda/chain/link.h"

#define say(a, ...) kiln_cuda_say(&(a)->w, __VA_ARGS__)
#define LL(x)       ((long long)(x))

enum { LEAST_SLAB = 4 }; /* rows of a chunk that is a slab are multiples of it */

static const kiln_cuda_link_kind counting_kind, rows_kind, columns_kind, combine_kind;

static bool can(const kiln_cuda_call *c, bool large)
{
    (void)large;
    const kiln_kernel *k = c->kernel;
    return k->group && k->group->count > 0 && (!k->op || k->op->cls == KILN_CLASS_REDUCE);
}

/* ---- Making ---- */

static int64_t reduction_units(const kiln_cuda_reduction *r)
{
    if (r->inner > 1)
        return kiln_cuda_ceil_div(r->outer * r->chunks * kiln_cuda_ceil_div(r->inner, 4 * (int64_t)r->lanes),
                                  KILN_CUDA_CHAIN_THREADS / r->threads);
    return kiln_cuda_ceil_div(r->outer * r->chunks, r->lanes > 32 ? 1 : KILN_CUDA_CHAIN_THREADS / r->lanes);
}

static bool make(kiln_cuda_chain *chain, kiln_cuda_link *l, const kiln_cuda_call *c)
{
    if (!kiln_cuda_link_group(chain, l, c))
        return false;
    const kiln_cuda_program *p = &l->group->k.p;
    l->counts = chain->alone && kiln_cuda_can_count(c);
    if (p->shape == KILN_CUDA_MAP || l->counts) {
        l->units = kiln_cuda_ceil_div(p->count, KILN_CUDA_CHAIN_THREADS * (l->group->wide ? 2 : 4));
        l->kind = l->counts ? &counting_kind : l->kind;
        return true;
    }
    l->kind = p->shape == KILN_CUDA_ROWS ? &rows_kind : &columns_kind;
    l->units = reduction_units(&p->r);
    if (p->r.chunks == 1)
        return true;
    kiln_cuda_reduction r = p->r;
    int pointers = l->pointers;
    kiln_cuda_link *second = kiln_cuda_add_link(chain, &combine_kind, l->kernel, l->guarded);
    if (!second)
        return false;
    second->pointers = pointers;
    second->units = r.outer * kiln_cuda_ceil_div(r.inner, KILN_CUDA_COMBINED);
    return true;
}

/* ---- Text ---- */

static bool map_full_cells(const kiln_cuda_link *l)
{
    return l->group->k.p.count % (l->group->wide ? 2 : 4) == 0;
}

static bool reduction_full_cells(const kiln_cuda_link *l)
{
    const kiln_cuda_reduction *r = &l->group->k.p.r;
    return (r->inner > 1 ? r->inner : r->reduced) % 4 == 0;
}

static void say_map(kiln_cuda_author *a, const kiln_cuda_link *l, const kiln_cuda_seat *seat)
{
    kiln_cuda_say_link_program(a, l);
    say(a, "map(%lldL, m, %s); ", LL(l->group->k.p.count), seat->seat);
}

static void say_counting(kiln_cuda_author *a, const kiln_cuda_link *l, const kiln_cuda_seat *seat)
{
    const kiln_cuda_program *p = &l->group->k.p;
    kiln_cuda_say_link_program(a, l);
    say(a, "map_counting(%lldL, m, k.data[%d], %s); ", LL(p->count),
        kiln_cuda_at(a, l->pointers + p->nloads + p->nstores), seat->seat);
}

/* `r`; the addresses of both halves are the first one's. */
static void say_reduction(kiln_cuda_author *a, const kiln_cuda_link *l, const kiln_cuda_program *p)
{
    const kiln_cuda_reduction *r = &p->r;
    int to = l->pointers + p->nloads + p->nstores;
    char partials[32] = "0";
    if (r->chunks > 1)
        snprintf(partials, sizeof partials, "k.data[%d]", kiln_cuda_at(a, to + 1));
    say(a,
        "const kiln_cuda_reduction r = {%lldL, %lldL, %lldL, %lldL, %lldL, 0, %d, %d, %d, %d, %d, (uint64_t *)%s, "
        "k.data[%d], 0}; ",
        LL(r->outer), LL(r->reduced), LL(r->inner), LL(r->chunk), LL(r->chunks), r->cls, r->fold, r->dtype, r->lanes,
        r->threads, partials, kiln_cuda_at(a, to));
}

static void say_rows(kiln_cuda_author *a, const kiln_cuda_link *l, const kiln_cuda_seat *seat)
{
    say_reduction(a, l, &l->group->k.p);
    kiln_cuda_say_link_program(a, l);
    say(a, "rows(r, m, %s); ", seat->seat);
}

static void say_columns(kiln_cuda_author *a, const kiln_cuda_link *l, const kiln_cuda_seat *seat)
{
    say_reduction(a, l, &l->group->k.p);
    kiln_cuda_say_link_program(a, l);
    say(a, "columns(r, m, %s); ", seat->seat);
}

static void say_combine(kiln_cuda_author *a, const kiln_cuda_link *l, const kiln_cuda_seat *seat)
{
    say_reduction(a, l, &l[-1].group->k.p);
    say(a, "combine(r, scratch, %s); ", seat->seat);
}

/* ---- Slabs and times ---- */

static bool cut_map(const kiln_cuda_chain *chain, const kiln_cuda_link *l, kiln_cuda_cut *c)
{
    (void)chain;
    *c = (kiln_cuda_cut){.elements = l->group->k.p.count};
    return true;
}

/* The dims that stay come first, those that go behind them. */
static bool keeps_order(const kiln_group *g)
{
    bool gone = false;
    for (int d = 0; d < g->reduce_ndim; d++)
        if (g->reduce_shape[d] != 1) {
            bool goes = g->reduce_dims >> d & 1;
            if (gone && !goes)
                return false;
            gone |= goes;
        }
    return true;
}

static bool cut_rows(const kiln_cuda_chain *chain, const kiln_cuda_link *l, kiln_cuda_cut *c)
{
    const kiln_cuda_reduction *r = &l->group->k.p.r;
    *c = (kiln_cuda_cut){.rows = r->outer};
    return r->chunks == 1 && r->lanes <= 32 && keeps_order(kiln_cuda_link_kernel(chain, l)->group);
}

/* Whole columns: slabs are of those. Or chunks of all of them. */
static bool cut_columns(const kiln_cuda_chain *chain, const kiln_cuda_link *l, kiln_cuda_cut *c)
{
    (void)chain;
    const kiln_cuda_reduction *r = &l->group->k.p.r;
    if (r->chunks == 1) {
        int64_t at_once = KILN_CUDA_CHAIN_THREADS / r->threads;
        *c = (kiln_cuda_cut){.rows = r->inner, .slab = 4 * r->lanes * at_once, .items = at_once, .columns = true};
        return r->outer == 1;
    }
    *c = (kiln_cuda_cut){.rows = r->reduced, .slab = r->chunk, .items = 1};
    return r->outer == 1 && r->inner <= 4 * (int64_t)r->lanes && r->chunk % LEAST_SLAB == 0;
}

static bool cut_combining(const kiln_cuda_chain *chain, const kiln_cuda_link *l, kiln_cuda_cut *c)
{
    (void)chain;
    const kiln_cuda_reduction *r = &l[-1].group->k.p.r;
    *c = (kiln_cuda_cut){.rows = r->inner, .slab = KILN_CUDA_COMBINED, .items = 1};
    return r->outer == 1 && r->inner >= KILN_CUDA_COMBINED;
}

static bool rows_fold(const kiln_cuda_link *l)
{
    return l->group->k.p.r.lanes > 32;
}

static bool columns_fold(const kiln_cuda_link *l)
{
    (void)l;
    return true;
}

/* ---- Records ---- */

const kiln_cuda_link_kind kiln_cuda_link_group_kind = {.can = can,
                                                       .make = make,
                                                       .text = say_map,
                                                       .full_cells = map_full_cells,
                                                       .cut = cut_map,
                                                       .goes_on = true,
                                                       .one_only = true};

static const kiln_cuda_link_kind counting_kind = {
    .text = say_counting, .full_cells = map_full_cells, .cut = cut_map, .goes_on = true, .one_only = true};

static const kiln_cuda_link_kind rows_kind = {.text = say_rows,
                                              .full_cells = reduction_full_cells,
                                              .cut = cut_rows,
                                              .folds = rows_fold,
                                              .goes_on = true,
                                              .one_only = true};

static const kiln_cuda_link_kind columns_kind = {.text = say_columns,
                                                 .full_cells = reduction_full_cells,
                                                 .cut = cut_columns,
                                                 .folds = columns_fold,
                                                 .one_only = true};

static const kiln_cuda_link_kind combine_kind = {
    .text = say_combine, .cut = cut_combining, .second = true, .combines = true, .one_only = true};
