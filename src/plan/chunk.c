/* Chunks: the pass behind merging that keeps a result too large to be whole from ever being so. The logits of a
 * language model are the case: a product makes them, far larger than its operands, everything that happens to them
 * (softmax, picking targets, a guess, the gradient) happens row by row, and what leaves are small results for each row,
 * the gradient of the rows they came from, and sums over all rows (the gradient of the weight). So a few rows are taken
 * through all of that, then the next few: the same nodes, written once for each chunk, on slices of what comes from
 * outside. What leaves is joined, or added up, behind the last chunk.
 *
 * Nothing is known of losses here. Beginning with the product the pass follows what can be cut by rows (rows.h). The
 * nodes that touch a large value, and those on the way from one to another, make the region; if one of them cannot be
 * cut, or if a large value is wanted from outside, everything stays as it is.
 *
 * A sum over rows becomes a sum of sums, in f32 where values have 16 bits. All other results are computed as they were,
 * of fewer rows. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include "plan/chunk.h"

enum { CHUNK_MIB = 512, MOST_CHUNKS = KILN_MAX_INPUTS, MOST_CUTS = 16, MOST_TRIES = 32 };

/* Bytes that a value may have; 0: the environment was not asked yet. That is done once: plans in the cache do not say
 * with which limit they were made. */
static _Atomic int64_t most;

static int64_t asked_bytes(void)
{
    const char *text = getenv("KILN_CHUNK_MIB");
    char *end = NULL;
    long mib = text ? strtol(text, &end, 10) : -1;
    if (!end || *text < '0' || *text > '9' || *end)
        mib = CHUNK_MIB;
    return mib > 0 && mib <= INT64_MAX >> 20 ? (int64_t)mib << 20 : INT64_MAX;
}

void kiln_chunk_above(int64_t bytes)
{
    most = bytes;
}

static int64_t bytes_of(const kiln_value *v)
{
    return kiln_draft_numel(v) * (int64_t)kiln_dtype_size((kiln_dtype)v->dtype);
}

/* ---- Rows of a value ---- */

static int row_dim_of(const kiln_chunking *c, int32_t value)
{
    const kiln_value *v = c->d->values[value].v, *base = c->d->values[kiln_draft_base(c->d, value)].v;
    return kiln_rows_dim(v->ndim, v->shape, v->stride, v->offset, kiln_draft_numel(base));
}

/* ---- The region ---- */

/* The product with the largest result of more than `least` bytes, behind the one before it in that order: the largest
 * first, equal ones as they were written. -1: there is none. */
static int32_t next_seed(const kiln_draft *d, int64_t least, int32_t before)
{
    int64_t limit = before < 0 ? INT64_MAX : bytes_of(&d->tr->values[kiln_draft_node(d, before)->out]), found = least;
    int32_t seed = -1;
    for (int32_t i = 0; i < d->nnodes; i++) {
        const kiln_node *n = kiln_draft_node(d, i);
        if (!d->node_live[i] || n->op->cls != KILN_CLASS_MATMUL)
            continue;
        int64_t bytes = bytes_of(&d->tr->values[n->out]);
        if (bytes > found && (bytes < limit || (bytes == limit && i > before))) {
            found = bytes;
            seed = i;
        }
    }
    return seed;
}

/* How the node is cut, if it reads something of rows; and what it makes is of rows then, unless it is a sum. */
static void follow(kiln_chunking *c, int32_t i)
{
    const kiln_draft *d = c->d;
    const kiln_node *n = kiln_draft_node(d, i);
    kiln_cut_node *x = &c->nodes[i];
    int8_t cut[KILN_MAX_INPUTS];
    bool reads = false, can = true;
    for (int k = 0; k < n->nin; k++) {
        int32_t in = kiln_draft_in(d, n, k);
        bool rows = in >= 0 && c->values[kiln_draft_base(d, in)].rows;
        cut[k] = (int8_t)(rows ? row_dim_of(c, in) : KILN_NO_ROWS);
        can &= !rows || cut[k] >= 0;
        reads |= rows;
        x->large |= rows && kiln_chunk_large(c, kiln_draft_base(d, in));
    }
    x->cuts = i == c->seed || (reads && can && !n->region && kiln_rows_from(d->tr, n, cut, &x->rows));
    for (int j = 0; j < n->nout && x->cuts && !x->rows.sums; j++)
        x->cuts &= row_dim_of(c, kiln_draft_of(d, n->out + j)) == x->rows.out;
    for (int j = 0; j < n->nout && x->cuts && !x->rows.sums; j++) {
        c->values[kiln_draft_of(d, n->out + j)].rows = true;
        x->large |= kiln_chunk_large(c, kiln_draft_of(d, n->out + j));
    }
}

/* The node behind an operand; -1: it comes from outside of the segment. */
static int32_t maker(const kiln_draft *d, const kiln_node *n, int k)
{
    int32_t made = kiln_draft_made(d, n, k);
    return made < 0 ? -1 : d->values[made].node;
}

static bool find_inside(kiln_chunking *c)
{
    const kiln_draft *d = c->d;
    for (int32_t i = 0; i < d->nnodes; i++)
        for (int k = 0; d->node_live[i] && k < kiln_draft_node(d, i)->nin; k++) {
            int32_t by = maker(d, kiln_draft_node(d, i), k);
            c->nodes[i].behind |= by >= 0 && (c->nodes[by].large || c->nodes[by].behind);
        }
    for (int32_t i = d->nnodes; i-- > 0;)
        for (int k = 0; d->node_live[i] && (c->nodes[i].large || c->nodes[i].leads) && k < kiln_draft_node(d, i)->nin;
             k++) {
            int32_t by = maker(d, kiln_draft_node(d, i), k);
            if (by >= 0)
                c->nodes[by].leads = true;
        }
    for (int32_t i = 0; i < d->nnodes; i++) {
        kiln_cut_node *x = &c->nodes[i];
        x->inside = x->large || (x->behind && x->leads);
        if (x->inside && (!x->cuts || (x->rows.sums && x->leads)))
            return false;
    }
    return true;
}

/* What is read outside, or kept, is put together again: nothing large can be. */
static bool find_leaving(kiln_chunking *c)
{
    const kiln_draft *d = c->d;
    for (int32_t i = 0; i < d->nnodes; i++)
        for (int k = 0; d->node_live[i] && !c->nodes[i].inside && k < kiln_draft_node(d, i)->nin; k++) {
            int32_t by = maker(d, kiln_draft_node(d, i), k);
            if (by >= 0 && c->nodes[by].inside)
                c->values[kiln_draft_made(d, kiln_draft_node(d, i), k)].leaves = true;
        }
    for (int32_t i = 0; i < d->nnodes; i++)
        for (int j = 0; c->nodes[i].inside && j < kiln_draft_node(d, i)->nout; j++) {
            int32_t out = kiln_draft_of(d, kiln_draft_node(d, i)->out + j);
            kiln_cut_value *y = &c->values[out];
            y->leaves |= d->values[out].output >= 0 || d->values[out].commits;
            if (y->leaves && y->rows && kiln_chunk_large(c, out))
                return false;
            c->npieces += y->leaves && y->rows;
        }
    return true;
}

static void join_units(kiln_chunking *c, int64_t size)
{
    c->units = !c->units || size < c->units ? size : c->units;
}

/* The coarsest rows that anything in the region has; all others are cut between these. */
static bool find_units(kiln_chunking *c)
{
    for (int pass = 0; pass < 2; pass++)
        for (int32_t i = 0; i < c->d->nnodes && (pass == 0 || c->units > 0); i++) {
            const kiln_node *n = kiln_draft_node(c->d, i);
            const kiln_rows *rows = &c->nodes[i].rows;
            for (int k = -1; c->nodes[i].inside && k < n->nin; k++) {
                int dim = k < 0 ? rows->out : rows->in[k];
                int32_t value = k < 0 ? n->out : c->d->tr->operands[n->in + k];
                if (dim < 0)
                    continue;
                int64_t size = c->d->tr->values[value].shape[dim];
                if (pass == 0)
                    join_units(c, size);
                else if (size % c->units)
                    return false;
            }
        }
    return c->units > 0;
}

/* Chunks of one size, so that they share kernels, unless that would take many more of them. */
static void find_count(kiln_chunking *c)
{
    int64_t all = bytes_of(&c->d->tr->values[kiln_draft_node(c->d, c->seed)->out]), wanted = (all - 1) / c->most + 1;
    int64_t bound = c->units < MOST_CHUNKS ? c->units : MOST_CHUNKS, n = wanted < bound ? wanted : bound;
    c->n = (int)n;
    while (n > 0 && n <= 2 * wanted && n <= bound && c->units % n)
        n++;
    if (n <= 2 * wanted && n <= bound)
        c->n = (int)n;
}

static bool reads_large(const kiln_chunking *c, const kiln_node *n)
{
    for (int k = 0; k < n->nin; k++) {
        int32_t in = kiln_draft_in(c->d, n, k);
        if (in >= 0 && kiln_chunk_large(c, kiln_draft_base(c->d, in)))
            return true;
    }
    return false;
}

/* Something large that only the region reads, by rows, need not be whole either: a mask, what gradients are put into.
 * Whoever makes it, and whoever reads it for the region alone, joins. Readers come first. */
static void find_feeding(kiln_chunking *c)
{
    const kiln_draft *d = c->d;
    for (int32_t v = 0; v < d->nvalues; v++)
        c->values[v].feeds = !c->values[v].rows && d->values[v].output < 0 && !d->values[v].commits;
    for (int32_t i = d->nnodes; i-- > 0;) {
        const kiln_node *n = kiln_draft_node(d, i);
        kiln_cut_node *x = &c->nodes[i];
        int32_t out = kiln_draft_of(d, n->out);
        if (!d->node_live[i])
            continue;
        bool may = !x->inside && n->nout == 1 && !n->region && c->values[out].feeds && c->values[out].read;
        int dim = may && (kiln_chunk_large(c, out) || reads_large(c, n)) ? row_dim_of(c, out) : KILN_NO_ROWS;
        if (dim >= 0 && kiln_rows_to(d->tr, n, dim, &x->rows))
            x->inside = c->values[out].rows = true;
        for (int k = 0; k < n->nin; k++) {
            int32_t in = kiln_draft_in(d, n, k);
            kiln_cut_value *y = in < 0 ? NULL : &c->values[kiln_draft_base(d, in)];
            if (!y)
                continue;
            y->read = true;
            y->feeds &= x->inside && x->rows.in[k] >= 0 && row_dim_of(c, in) == x->rows.in[k];
        }
    }
}

static bool find_region(kiln_chunking *c)
{
    kiln_draft *d = c->d;
    const kiln_node *seed = kiln_draft_node(d, c->seed);
    int dim = row_dim_of(c, kiln_draft_of(d, seed->out));
    if (dim < 0 || seed->region || !kiln_rows_to(d->tr, seed, dim, &c->nodes[c->seed].rows))
        return false;
    for (int32_t i = 0; i < d->nnodes; i++)
        if (d->node_live[i])
            follow(c, i);
    if (!find_inside(c))
        return false;
    find_feeding(c);
    if (!find_leaving(c) || !find_units(c))
        return false;
    find_count(c);
    return c->n > 1;
}

/* ---- What has to come before it ---- */

static void mark_ahead(kiln_chunking *c, int32_t value)
{
    int32_t node = value < 0 ? -1 : c->d->tr->values[value].node - c->d->tr->first_node;
    if (node >= 0)
        c->nodes[node].ahead = true;
}

/* Nodes as they were written, views among them. */
static void find_ahead(kiln_chunking *c)
{
    const kiln_draft *d = c->d;
    for (int32_t i = d->nnodes; i-- > 0;) {
        const kiln_node *n = kiln_draft_node(d, i);
        for (int k = 0; (c->nodes[i].inside || c->nodes[i].ahead) && k < n->nin; k++) {
            int32_t in = kiln_draft_in(d, n, k);
            bool path = kiln_trace_is_path(n->op, k), own = in >= 0 && c->values[kiln_draft_base(d, in)].rows;
            if (!path && !(c->nodes[i].inside && own && c->nodes[d->values[kiln_draft_base(d, in)].node].inside))
                mark_ahead(c, c->d->tr->operands[n->in + k]);
        }
    }
}

typedef enum outcome { WHOLE, CUT, FAILED /* with an error */ } outcome;

/* c has room for nodes and values. */
static outcome cut(kiln_chunking *c, int32_t seed)
{
    kiln_draft *d = c->d;
    *c = (kiln_chunking){.d = d, .seed = seed, .most = c->most, .nodes = c->nodes, .values = c->values};
    c->elements = kiln_draft_numel(&d->tr->values[kiln_draft_node(d, seed)->out]);
    memset(c->nodes, 0, (size_t)d->nnodes * sizeof *c->nodes);
    for (int32_t v = 0; v < d->nvalues; v++)
        c->values[v] = (kiln_cut_value){.piece = -1, .sum = -1};
    if (!find_region(c))
        return WHOLE;
    find_ahead(c);
    if (!kiln_chunk_write(c))
        return FAILED;
    if (c->broken)
        return WHOLE;
    d->tr = c->copy.to;
    return kiln_draft_import(d) && kiln_draft_merge(d) ? CUT : FAILED;
}

/* Cuts the largest product that can be. */
static outcome cut_one(kiln_draft *d, int64_t most_bytes)
{
    kiln_draft_prune(d);
    int32_t seed = next_seed(d, most_bytes, -1);
    if (seed < 0)
        return WHOLE;
    kiln_chunking c = {.d = d, .most = most_bytes};
    c.nodes = KILN_ARENA_NEW(&d->scratch, kiln_cut_node, d->nnodes);
    c.values = KILN_ARENA_NEW(&d->scratch, kiln_cut_value, d->nvalues);
    outcome o = c.nodes && c.values ? WHOLE : FAILED;
    for (int tries = 0; o == WHOLE && seed >= 0 && tries < MOST_TRIES; tries++) {
        o = cut(&c, seed);
        if (o == WHOLE)
            seed = next_seed(d, most_bytes, seed);
    }
    return o;
}

/* A segment may have several: two heads, or steps that were written one after the other. */
bool kiln_draft_chunk(kiln_draft *d)
{
    int64_t bytes = most;
    if (!bytes)
        most = bytes = asked_bytes();
    outcome o = CUT;
    for (int cuts = 0; o == CUT && cuts < MOST_CUTS; cuts++)
        o = cut_one(d, bytes);
    return o != FAILED;
}
