/* Writes a segment anew in which a region is cut into chunks (chunk.h): the same nodes once for each chunk, on slices
 * of what comes from outside, and what joins or adds up their results. */
#include <string.h>
#include "ops/widen.h"
#include "plan/chunk.h"

extern const kiln_op kiln_op_cat, kiln_op_slice, kiln_op_cast;

static bool copy_trace(kiln_chunking *c)
{
    const kiln_draft *d = c->d;
    const kiln_trace *from = c->from;
    kiln_arena *scratch = &c->d->scratch;
    int64_t more = 0, ints = 0;
    for (int32_t i = 0; i < d->nnodes; i++) /* it, a slice for each operand; casts, sums and what is joined */
        if (c->nodes[i].inside) {
            more += (int64_t)c->n * (1 + kiln_draft_node(d, i)->nin + 4 * kiln_draft_node(d, i)->nout);
            ints += (int64_t)c->n * kiln_draft_node(d, i)->nints;
        }
    kiln_trace *to = c->to = KILN_ARENA_NEW(scratch, kiln_trace, 1);
    c->nowhere = KILN_ARENA_NEW(scratch, kiln_storage, 1);
    c->pieces = KILN_ARENA_NEW(scratch, int32_t, c->npieces * c->n + 1);
    if (!to || !c->nowhere || !c->pieces)
        return false;
    *to = *from;
    to->nodes = KILN_ARENA_NEW(scratch, kiln_node, from->nnodes + more);
    to->values = KILN_ARENA_NEW(scratch, kiln_value, from->nvalues + more * KILN_MAX_OUTPUTS);
    to->operands = KILN_ARENA_NEW(scratch, int32_t, from->noperands + more * 4);
    to->ints = KILN_ARENA_NEW(scratch, int64_t, from->nints + more + ints);
    if (!to->nodes || !to->values || !to->operands || !to->ints)
        return false;
    memcpy(to->nodes, from->nodes, (size_t)from->first_node * sizeof *to->nodes);
    memcpy(to->values, from->values, (size_t)from->nvalues * sizeof *to->values);
    memcpy(to->operands, from->operands, (size_t)from->noperands * sizeof *to->operands);
    memcpy(to->ints, from->ints, (size_t)from->nints * sizeof *to->ints);
    for (int64_t v = from->first_value; v < from->nvalues; v++)
        to->values[v].node = -1;
    to->nnodes = from->first_node;
    return true;
}

static void add_node(kiln_chunking *c, const kiln_node *n)
{
    for (int j = 0; j < n->nout; j++)
        c->to->values[n->out + j].node = (int32_t)c->to->nnodes;
    c->to->nodes[c->to->nnodes++] = *n;
}

static void add_operand(kiln_chunking *c, kiln_node *n, int32_t value)
{
    c->to->operands[c->to->noperands++] = value;
    n->nin++;
}

/* A fresh value of its own memory, like another one. */
static int32_t add_value(kiln_chunking *c, int32_t like)
{
    int32_t value = (int32_t)c->to->nvalues++;
    kiln_value *v = &c->to->values[value];
    *v = c->to->values[like];
    v->base = value;
    v->storage = c->nowhere;
    v->leaf = NULL;
    v->import = -1;
    v->import_segment = 0;
    return value;
}

static int64_t in_chunk(const kiln_chunking *c, int64_t size)
{
    return size / c->units * (c->hi - c->lo);
}

/* A result like this one, of the chunk's rows. */
static int32_t add_piece(kiln_chunking *c, int32_t like, int dim)
{
    int32_t value = add_value(c, like);
    kiln_value *v = &c->to->values[value];
    if (dim >= 0)
        v->shape[dim] = in_chunk(c, v->shape[dim]);
    kiln_dense_strides(v->ndim, v->shape, v->stride);
    v->offset = 0;
    return value;
}

/* A node that stands for a part of n: without operands and integers yet. */
static kiln_node begin(const kiln_chunking *c, const kiln_node *n, const kiln_op *op, int32_t out)
{
    kiln_node x = *n;
    x.op = op;
    x.in = (int32_t)c->to->noperands;
    x.ints = (int32_t)c->to->nints;
    x.nin = x.nints = x.floats = x.nfloats = 0;
    x.out = out;
    x.nout = 1;
    return x;
}

static void add_unary(kiln_chunking *c, const kiln_node *n, const kiln_op *op, int32_t in, int32_t out)
{
    kiln_node x = begin(c, n, op, out);
    add_operand(c, &x, in);
    add_node(c, &x);
}

/* The rows of the chunk, of what a window shows: of a value of the region, of which the chunk has its own, or of a
 * value from outside. */
static int32_t shown_rows(kiln_chunking *c, const kiln_node *n, int32_t value, int dim, int32_t piece)
{
    kiln_value v = c->from->values[value];
    int64_t first = v.shape[dim] / c->units * c->lo;
    v.shape[dim] = in_chunk(c, v.shape[dim]);
    if (piece < 0)
        v.offset += first * v.stride[dim];
    const kiln_value *of = piece < 0 ? NULL : &c->to->values[piece];
    if (of && !v.offset && v.ndim == of->ndim && !memcmp(v.shape, of->shape, v.ndim * sizeof *v.shape) &&
        kiln_is_dense(v.ndim, v.shape, v.stride))
        return piece;
    int32_t source = piece < 0 ? value : piece, shown = add_value(c, value);
    c->to->values[shown] = v;
    c->to->values[shown].base = c->to->values[source].base;
    c->to->values[shown].storage = c->nowhere;
    c->to->values[shown].import = -1;
    c->to->values[shown].import_segment = 0;
    add_unary(c, n, &kiln_op_slice, source, shown);
    return shown;
}

static int32_t operand_of(kiln_chunking *c, const kiln_node *n, int k, int dim)
{
    int32_t value = c->from->operands[n->in + k], in = kiln_draft_in(c->d, n, k), base = kiln_draft_base(c->d, in);
    return dim < 0 ? value : shown_rows(c, n, value, dim, c->values[base].piece);
}

/* Adds to the sum over all chunks so far; the last one completes the value. */
static void add_up(kiln_chunking *c, const kiln_node *n, int32_t value, int32_t part)
{
    kiln_cut_value *y = &c->values[kiln_draft_of(c->d, value)];
    kiln_dtype dtype = (kiln_dtype)c->from->values[value].dtype, wide = kiln_wide(dtype);
    bool last = c->hi == c->units;
    if (wide != dtype) {
        int32_t narrow = part;
        part = add_value(c, narrow);
        c->to->values[part].dtype = (uint8_t)wide;
        c->to->ints[c->to->nints] = wide;
        kiln_node cast = begin(c, n, &kiln_op_cast, part);
        c->to->nints += cast.nints = 1;
        add_operand(c, &cast, narrow);
        add_node(c, &cast);
    }
    if (y->sum < 0) {
        y->sum = part;
        return;
    }
    int32_t sum = last && wide == dtype ? value : add_value(c, part);
    kiln_node add = begin(c, n, kiln_pw_op(KILN_PW_add), sum);
    add.alone = true; /* else all parts would wait for the last one */
    add_operand(c, &add, y->sum);
    add_operand(c, &add, part);
    add_node(c, &add);
    y->sum = sum;
    if (last && wide != dtype) {
        c->to->ints[c->to->nints] = dtype;
        kiln_node cast = begin(c, n, &kiln_op_cast, value);
        c->to->nints += cast.nints = 1;
        add_operand(c, &cast, sum);
        add_node(c, &cast);
    }
}

static void write_piece(kiln_chunking *c, int32_t i)
{
    kiln_node n = *kiln_draft_node(c->d, i), x = n;
    const kiln_rows *rows = &c->nodes[i].rows;
    int32_t in[KILN_MAX_INPUTS];
    for (int k = 0; k < n.nin; k++)
        in[k] = operand_of(c, &n, k, rows->in[k]);
    x.in = (int32_t)c->to->noperands;
    x.nin = 0;
    for (int k = 0; k < n.nin; k++)
        add_operand(c, &x, in[k]);
    x.out = (int32_t)c->to->nvalues;
    for (int j = 0; j < n.nout; j++)
        c->values[kiln_draft_of(c->d, n.out + j)].piece = add_piece(c, n.out + j, rows->out);
    if (rows->size) {
        x.ints = (int32_t)c->to->nints;
        memcpy(c->to->ints + x.ints, c->from->ints + n.ints, (size_t)n.nints * sizeof *c->to->ints);
        c->to->ints[x.ints + rows->size - 1] = c->to->values[x.out].shape[rows->out];
        c->to->nints += n.nints;
    }
    add_node(c, &x);
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
                kiln_node cat = begin(c, n, &kiln_op_cat, n->out + j);
                c->to->ints[c->to->nints++] = c->nodes[i].rows.out;
                cat.nints = 1;
                for (int p = 0; p < c->n; p++)
                    add_operand(c, &cat, c->pieces[at * c->n + p]);
                add_node(c, &cat);
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
        add_node(c, n);
        return;
    }
    c->broken |= d->node_live[i];
    for (int j = 0; j < n->nout; j++) {
        int32_t out = kiln_draft_of(d, n->out + j),
                same = n->op->cls == KILN_CLASS_VIEW ? out : kiln_draft_base(d, out);
        if (same != out && !c->values[same].gone && n->nout == 1)
            add_unary(c, n, kiln_pw_op(KILN_PW_copy), same - d->nimports + c->from->first_value, n->out);
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
