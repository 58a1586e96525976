/* Products by tiles. Where k is cut, a second link adds the partial sums of the splits. What the group behind a product
 * counts is added to a word of the chain's (counts.c). */
#include "device/cuda/chain/link.h"

#define say(a, ...) kiln_cuda_say(&(a)->w, __VA_ARGS__)
#define LL(x)       ((long long)(x))

enum { LEAST_SLAB = 4 }; /* rows of a tile that is a slab are multiples of it */

static const kiln_cuda_link_kind splits_kind;

static bool can(const kiln_cuda_call *c, bool large)
{
    const kiln_kernel *k = c->kernel;
    kiln_cuda_matrices m;
    kiln_cuda_tiling t;
    return k->op && k->op->cls == KILN_CLASS_MATMUL && kiln_cuda_tiled_of(c, &m, &t) && (large || !t.large) &&
           (!k->group || !k->group->reduces || kiln_cuda_can_count(c));
}

/* ---- Making ---- */

static bool add_splits(kiln_cuda_chain *chain, int64_t product)
{
    kiln_cuda_link *l =
        kiln_cuda_add_link(chain, &splits_kind, chain->links[product].kernel, chain->links[product].guarded);
    if (!l)
        return false;
    const kiln_cuda_link *first = &chain->links[product];
    int64_t cells = kiln_cuda_ceil_div(first->product.m * first->product.n, first->product.n % 4 ? 1 : 4);
    l->pointers = first->pointers;
    l->tiling = first->tiling;
    l->units = kiln_cuda_ceil_div(cells * kiln_cuda_tiling_matrices(&first->tiling), KILN_CUDA_CHAIN_THREADS);
    return true;
}

/* A product hands on its elements in fours only if its rows consist of fours. */
static void take_one_by_one(kiln_cuda_lowered *g)
{
    kiln_cuda_op *ops = (kiln_cuda_op *)(void *)g->k.body;
    kiln_cuda_load *loads = (kiln_cuda_load *)(void *)(ops + g->k.p.nops);
    kiln_cuda_store *stores = (kiln_cuda_store *)(void *)(loads + g->k.p.nloads);
    for (int i = 0; i < g->k.p.nloads; i++)
        loads[i].vector = false;
    for (int i = 0; i < g->k.p.nstores; i++)
        stores[i].vector = false;
}

/* The operands, the result where no group takes it, partial sums where there are splits. */
static bool make(kiln_cuda_chain *chain, kiln_cuda_link *l, const kiln_cuda_call *c)
{
    const kiln_kernel *k = c->kernel;
    const kiln_operand workspace = {.buffer = k->workspace};
    int64_t number = l - chain->links;
    l->tensor = kiln_cuda_takes_tensor(c);
    l->chosen = k->choice.how != 0;
    l->a_dtype = k->in[0].dtype;
    l->b_dtype = k->in[1].dtype;
    l->dtype = (uint8_t)kiln_cuda_multiplied_as(c);
    kiln_cuda_tiled_of(c, &l->product, &l->tiling);
    l->units = l->tiling.tiles;
    bool split = l->tiling.splits > 1;
    if (k->group) {
        l->counts = k->group->reduces;
        if (!kiln_cuda_link_group(chain, l, c))
            return false;
        if (l->product.n % 4)
            take_one_by_one(l->group);
    }
    return kiln_cuda_add_pointer(chain, &k->in[0]) && kiln_cuda_add_pointer(chain, &k->in[1]) &&
           (k->group || kiln_cuda_add_pointer(chain, &k->out[0])) &&
           (!split || (kiln_cuda_add_pointer(chain, &workspace) && add_splits(chain, number)));
}

/* ---- Text ---- */

static bool full_cells(const kiln_cuda_link *l)
{
    return l->product.n % 4 == 0;
}

/* Where the addresses of a count are: of its result, and of partial results, which there are none of here. */
static int count_addresses(const kiln_cuda_link *l)
{
    return l->pointers + l->group->k.p.nloads + l->group->k.p.nstores;
}

/* Where its own addresses are: a, b and, without a group, the result. */
static int addresses(const kiln_cuda_link *l)
{
    return l->group ? count_addresses(l) + (l->counts ? 2 : 0) : l->pointers;
}

/* Its sizes are constants, so that its tiles know them. */
static void declare(kiln_cuda_author *a, const kiln_cuda_link *l)
{
    const kiln_cuda_matrices *m = &l->product;
    const kiln_cuda_pointer *p = a->chain->pointers + addresses(l);
    say(a,
        "struct shape%d { const void *a, *b; static constexpr int64_t m = %lldL, n = %lldL, k = %lldL, a_row = %lldL, "
        "a_col = %lldL, b_row = %lldL, b_col = %lldL, a_matrix = %lldL, b_matrix = %lldL; "
        "static constexpr bool aligned = %s; };\n",
        kiln_cuda_link_number(a, l), LL(m->m), LL(m->n), LL(m->k), LL(m->a_row), LL(m->a_col), LL(m->b_row),
        LL(m->b_col), LL(m->a_matrix), LL(m->b_matrix),
        p[0].bytes % 16 == 0 && p[1].bytes % 16 == 0 ? "true" : "false");
}

/* Where its elements go; `at`: its pointers. */
static void say_sink(kiln_cuda_author *a, const kiln_cuda_link *l, int at)
{
    const char *type = kiln_cuda_type_name(l->dtype);
    if (l->group)
        say(a, "group_sink<program%d>{m, %s}", kiln_cuda_link_number(a, l), l->counts ? "&counted" : "nullptr");
    else
        say(a, "plain_sink<%s, %s>{(%s *)k.data[%d]}", type,
            l->product.n % 4 == 0 && a->chain->pointers[at + 2].bytes % 16 == 0 ? "true" : "false", type,
            kiln_cuda_at(a, at + 2));
}

/* What the group of product `l` needs before it takes elements, and what is left to do behind them. */
static void say_group_begins(kiln_cuda_author *a, const kiln_cuda_link *l)
{
    if (l->group)
        kiln_cuda_say_link_program(a, l);
    if (l->counts)
        say(a, "uint64_t counted = 0; ");
}

static void say_group_ends(kiln_cuda_author *a, const kiln_cuda_link *l)
{
    if (l->counts)
        say(a, "add_counts(k.data[%d], counted); ", kiln_cuda_at(a, count_addresses(l)));
}

static void say_product(kiln_cuda_author *a, const kiln_cuda_link *l, const kiln_cuda_seat *seat)
{
    const kiln_cuda_tiling *t = &l->tiling;
    int at = addresses(l);
    say(a, "const shape%d p = {k.data[%d], k.data[%d]}; ", kiln_cuda_link_number(a, l), kiln_cuda_at(a, at),
        kiln_cuda_at(a, at + 1));
    if (t->splits == 1)
        say_group_begins(a, l);
    say(a, "kiln_cuda_tile<%d, %d, %d, kiln_cuda_types<%s, %s, %s>>(p, %lldL, %d, %s, scratch, ", t->rows, t->cols,
        t->slices, kiln_cuda_type_name(l->a_dtype), kiln_cuda_type_name(l->b_dtype), kiln_cuda_type_name(l->dtype),
        LL(kiln_cuda_tiling_matrices(t)), t->splits, seat->unit);
    if (t->splits == 1)
        say_sink(a, l, at);
    else
        say(a, "plain_sink<float, %s>{(float *)k.data[%d]}", l->product.n % 4 ? "false" : "true",
            kiln_cuda_at(a, at + (l->group ? 2 : 3)));
    say(a, "); ");
    if (t->splits == 1)
        say_group_ends(a, l);
}

/* What the product before it left in splits. */
static void say_splits(kiln_cuda_author *a, const kiln_cuda_link *l, const kiln_cuda_seat *seat)
{
    const kiln_cuda_link *p = l - 1;
    int at = addresses(p);
    int64_t count = p->product.m * p->product.n * kiln_cuda_tiling_matrices(&p->tiling);
    say_group_begins(a, p);
    say(a,
        "kiln_cuda_sum_splits((const float *)k.data[%d], %lldL, %lldL, %d, (%s) * blockDim.x + threadIdx.x, %lldL * "
        "blockDim.x, ",
        kiln_cuda_at(a, at + (p->group ? 2 : 3)), LL(count), LL(p->product.n), p->tiling.splits,
        seat->alone ? "0" : seat->unit, LL(seat->alone ? 1 : l->units));
    say_sink(a, p, at);
    say(a, "); ");
    say_group_ends(a, p);
}

/* ---- Slabs and times ---- */

/* Tiles as wide as the result: each is a slab, and needs its own rows of a. */
static bool cut(const kiln_cuda_chain *chain, const kiln_cuda_link *l, kiln_cuda_cut *c)
{
    (void)chain;
    const kiln_cuda_tiling *t = &l->tiling;
    *c = (kiln_cuda_cut){.rows = l->product.m, .slab = t->rows, .whole_second = true};
    return t->across == 1 && t->tiles == t->down && t->rows % LEAST_SLAB == 0 && !l->counts;
}

static int64_t whole_time(const kiln_cuda_chain *chain, const kiln_cuda_link *l)
{
    return l->tiling.nanoseconds + kiln_cuda_store_time(chain, l);
}

/* Tiles of splits hand nothing to a group. */
static int64_t unit_time(const kiln_cuda_chain *chain, const kiln_cuda_link *l)
{
    return kiln_cuda_tile_time(chain, &l->tiling) + (l->tiling.splits == 1 ? kiln_cuda_store_time(chain, l) : 0);
}

static const kiln_cuda_link_kind splits_kind = {.text = say_splits, .second = true, .one_only = true};

const kiln_cuda_link_kind kiln_cuda_link_product = {.can = can,
                                                    .make = make,
                                                    .declare = declare,
                                                    .text = say_product,
                                                    .full_cells = full_cells,
                                                    .cut = cut,
                                                    .time = whole_time,
                                                    .unit_time = unit_time,
                                                    .tiles = true};
