/* Writes a segment anew in which a region is cut into chunks (chunk.h): the same nodes once for each chunk, on slices
 * of what comes from outside, and what joins or adds up their results. */
#include <string.h>
#include "ops/widen.h"
#include "plan/chunk.h"

extern const kiln_op kiln_op_cat, kiln_op_cast, kiln_op_clone;

static bool copy_trace(kiln_chunking *c)
{
    const kiln_draft *d = c->d;
    kiln_copy_room more = {0};
    for (int32_t i = 0; i < d->nnodes; i++) /* it, a slice for each operand; casts, sums and what is joined */
        if (c->nodes[i].inside) {
            more.nodes += (int64_t)c->n * (1 + kiln_draft_node(d, i)->nin + 4 * kiln_draft_node(d, i)->nout);
            more.ints += (int64_t)c->n * kiln_draft_node(d, i)->nints;
        }
    more.values = more.nodes * KILN_MAX_OUTPUTS;
    more.operands = more.nodes * 4;
    more.ints += more.nodes;
    c->pieces = KILN_ARENA_NEW(&c->d->scratch, int32_t, c->npieces * c->n + 1);
    if (!c->pieces || !kiln_copy_begin(&c->copy, c->d, more))
        return false;
    for (int64_t v = c->copy.from->first_value; v < c->copy.from->nvalues; v++)
        c->copy.to->values[v].node = -1;
    return true;
}

static int64_t in_chunk(const kiln_chunking *c, int64_t size)
{
    return size / c->units * (c->hi - c->lo);
}

/* A result like this one, of the chunk's rows. */
static int32_t add_piece(kiln_chunking *c, int32_t like, int dim)
{
    int32_t value = kiln_copy_value(&c->copy, like);
    kiln_value *v = &c->copy.to->values[value];
    if (dim >= 0)
        v->shape[dim] = in_chunk(c, v->shape[dim]);
    kiln_dense_strides(v->ndim, v->shape, v->stride);
    v->offset = 0;
    return value;
}

/* The rows of the chunk, of what a window shows: of a value of the region, of which the chunk has its own, or of a
 * value from outside. */
static int32_t shown_rows(kiln_chunking *c, const kiln_node *n, int32_t value, int dim, int32_t piece)
{
    kiln_value v = c->copy.from->values[value];
    int64_t first = v.shape[dim] / c->units * c->lo;
    v.shape[dim] = in_chunk(c, v.shape[dim]);
    if (piece < 0)
        v.offset += first * v.stride[dim];
    const kiln_value *of = piece < 0 ? NULL : &c->copy.to->values[piece];
    if (of && !v.offset && v.ndim == of->ndim && !memcmp(v.shape, of->shape, v.ndim * sizeof *v.shape) &&
        kiln_is_dense(v.ndim, v.shape, v.stride))
        return piece;
    return kiln_copy_view(&c->copy, n, piece < 0 ? value : piece, &v);
}

static int32_t operand_of(kiln_chunking *c, const kiln_node *n, int k, int dim)
{
    int32_t value = c->copy.from->operands[n->in + k], in = kiln_draft_in(c->d, n, k), base = kiln_draft_base(c->d, in);
    return dim < 0 ? value : shown_rows(c, n, value, dim, c->values[base].piece);
}

/* Adds to the sum over all chunks so far; the last one completes the value. */
static void add_up(kiln_chunking *c, const kiln_node *n, int32_t value, int32_t part)
{
    kiln_cut_value *y = &c->values[kiln_draft_of(c->d, value)];
    kiln_dtype dtype = (kiln_dtype)c->copy.from->values[value].dtype, wide = kiln_wide(dtype);
    bool last = c->hi == c->units;
    if (wide != dtype) {
        int32_t narrow = part;
        part = kiln_copy_value(&c->copy, narrow);
        c->copy.to->values[part].dtype = (uint8_t)wide;
        kiln_node cast = kiln_copy_start(&c->copy, n, &kiln_op_cast, part);
        kiln_copy_int(&c->copy, &cast, wide);
        kiln_copy_operand(&c->copy, &cast, narrow);
        kiln_copy_node(&c->copy, &cast);
    }
    if (y->sum < 0) {
        y->sum = part;
        return;
    }
    int32_t sum = last && wide == dtype ? value : kiln_copy_value(&c->copy, part);
    kiln_node add = kiln_copy_start(&c->copy, n, kiln_pw_op(KILN_PW_add), sum);
    add.alone = true; /* else all parts would wait for the last one */
    kiln_copy_operand(&c->copy, &add, y->sum);
    kiln_copy_operand(&c->copy, &add, part);
    kiln_copy_node(&c->copy, &add);
    y->sum = sum;
    if (last && wide != dtype) {
        kiln_node cast = kiln_copy_start(&c->copy, n, &kiln_op_cast, value);
        kiln_copy_int(&c->copy, &cast, dtype);
        kiln_copy_operand(&c->copy, &cast, sum);
        kiln_copy_node(&c->copy, &cast);
    }
}

static void write_piece(kiln_chunking *c, int32_t i)
{
    kiln_node n = *kiln_draft_node(c->d, i), x = n;
    const kiln_rows *rows = &c->nodes[i].rows;
    int32_t in[KILN_MAX_INPUTS];
    for (int k = 0; k < n.nin; k++)
        in[k] = operand_of(c, &n, k, rows->in[k]);
    x.in = (int32_t)c->copy.to->noperands;
    x.nin = 0;
    for (int k = 0; k < n.nin; k++)
        kiln_copy_operand(&c->copy, &x, in[k]);
    x.out = (int32_t)c->copy.to->nvalues;
    for (int j = 0; j < n.nout; j++)
        c->values[kiln_draft_of(c->d, n.out + j)].piece = add_piece(c, n.out + j, rows->out);
    if (rows->size) {
        x.ints = (int32_t)c->copy.to->nints;
        memcpy(c->copy.to->ints + x.ints, c->copy.from->ints + n.ints, (size_t)n.nints * sizeof *c->copy.to->ints);
        c->copy.to->ints[x.ints + rows->size - 1] = c->copy.to->values[x.out].shape[rows->out];
        c->copy.to->nints += n.nints;
    }
    kiln_copy_node(&c->copy, &x);
    for (int j = 0; j < n.nout && rows->sums; j++)
        add_up(c, &n, n.out + j, x.out + j);
}

/* Notes the pieces of what leaves, in the order of nodes; behind the last chunk they are joined. */
static void gather(kiln_chunking *c, int chunk)
{
    int64_t at = 0;
    for (int32_t i = 0; i < c->d->nnodes; i++)
        for (int j = 0; c->nodes[i].inside && j < kiln_draft_node(c->d, i)->nout; j++) {
            const kiln_node *n = kiln_draft_node(c->d, i);
            const kiln_cut_value *y = &c->values[kiln_draft_of(c->d, n->out + j)];
            if (!y->leaves || !y->rows)
                continue;
            c->pieces[at * c->n + chunk] = y->piece;
            if (chunk == c->n - 1) {
                kiln_node cat = kiln_copy_start(&c->copy, n, &kiln_op_cat, n->out + j);
                kiln_copy_int(&c->copy, &cat, c->nodes[i].rows.out);
                for (int p = 0; p < c->n; p++)
                    kiln_copy_operand(&c->copy, &cat, c->pieces[at * c->n + p]);
                kiln_copy_node(&c->copy, &cat);
            }
            at++;
        }
}

static void write_region(kiln_chunking *c)
{
    for (int chunk = 0; chunk < c->n; chunk++) {
        c->lo = c->units * chunk / c->n;
        c->hi = c->units * (chunk + 1) / c->n;
        for (int32_t i = 0; i < c->d->nnodes; i++)
            if (c->nodes[i].inside)
                write_piece(c, i);
        gather(c, chunk);
    }
}

/* A node as it is, if what it reads is there. What merging found to be equal to something of the region may read what
 * is not: it becomes a copy of that, which merging finds again. */
static void write_node(kiln_chunking *c, int32_t i)
{
    const kiln_draft *d = c->d;
    const kiln_node *n = kiln_draft_node(d, i);
    bool there = true;
    for (int k = 0; k < n->nin; k++) {
        int32_t in = kiln_draft_in(d, n, k);
        there &= in < 0 || kiln_trace_is_path(n->op, k) || !c->values[in].gone;
    }
    if (there) {
        kiln_copy_node(&c->copy, n);
        return;
    }
    c->broken |= d->node_live[i];
    for (int j = 0; j < n->nout; j++) {
        int32_t out = kiln_draft_of(d, n->out + j),
                same = n->op->cls == KILN_CLASS_VIEW ? out : kiln_draft_base(d, out);
        if (same != out && !c->values[same].gone && n->nout == 1)
            kiln_copy_unary(&c->copy, n, &kiln_op_clone, same - d->nimports + c->copy.from->first_value, n->out);
        else
            c->values[out].gone = true;
    }
}

static void write_all(kiln_chunking *c)
{
    const kiln_draft *d = c->d;
    for (int32_t i = 0; i < d->nnodes; i++)
        for (int j = 0; c->nodes[i].inside && j < kiln_draft_node(d, i)->nout; j++) {
            kiln_cut_value *y = &c->values[kiln_draft_of(d, kiln_draft_node(d, i)->out + j)];
            y->gone = !y->leaves;
        }
    for (int32_t i = 0; i < d->nnodes; i++)
        if (!c->nodes[i].inside && (i < c->seed || c->nodes[i].ahead))
            write_node(c, i);
    write_region(c);
    for (int32_t i = c->seed; i < d->nnodes; i++)
        if (!c->nodes[i].inside && !c->nodes[i].ahead)
            write_node(c, i);
}

bool kiln_chunk_write(kiln_chunking *c)
{
    if (!copy_trace(c))
        return false;
    write_all(c);
    return true;
}
