/* Pitch: the pass that lengthens rows of matrices to what a device's products want. A language model has 50,257 words,
 * a network for speech 333 features: rows of such matrices begin at odd addresses, for which libraries have slow
 * kernels only, and as slow they are where rows begin well and end oddly. With a few elements more a row, and a few
 * rows more of zeros along the sum, they are as fast as others.
 *
 * Everything is added beside what is there, and what nobody reads any more is pruned afterwards. Of a large product
 *
 * - an operand that pointwise operations made is made once more, with longer rows, from operands that have longer rows,
 *   are repeated along them, or are small; any other one is copied to longer rows;
 * - the result gets the rows and columns that come of it, and all readers windows onto those that it had. Where
 * somebody reads it otherwise, or it is kept, it is copied from there.
 *
 * The elements that are added repeat the first ones, so they hold nothing that the matrix does not hold anyway, and
 * nobody reads them but what makes others of them. Along the sum there are zeros in both operands.
 *
 * A product of other sizes may be computed by another kernel of the library, so sums may be made in another order. */
#include <stdatomic.h>
#include <string.h>
#include "ops/widen.h"
#include "plan/backend.h"
#include "plan/copy.h"

extern const kiln_op kiln_op_cat, kiln_op_cast, kiln_op_clone;

enum {
    LEAST = 256, /* rows, columns, and elements along the sum: so that copies cost little beside the product */
    SMALL = 64   /* an operand with so many times fewer elements than the result may be copied */
};
#define LEAST_FLOP 4000000000 /* a smaller product takes some tens of microseconds in any case */

typedef enum can { NOT_KNOWN, CANNOT, CAN } can;

/* Of a product [m, k] · [k, n]: which of its sizes are too odd. */
typedef struct oddness {
    bool m, n, k;
} oddness;

typedef struct pitching {
    kiln_draft *d;
    kiln_copy copy;
    int64_t row_bytes, unit; /* rows are lengthened to a multiple of so many elements */
    int64_t least;
    bool any;        /* of any type, with any work */
    uint8_t *can;    /* by draft value: whether it can be made with longer rows */
    int64_t *row;    /* by draft value: how long its rows are, if it is a product's and made so for all readers */
    bool *refused;   /* by draft value: somebody reads it in a way that longer rows do not allow */
    int32_t *longer; /* by draft value: what has the longer rows, in the copy; -1: nothing yet */
    int32_t *zeroed; /* by draft value: the same with zeros in what was added */
} pitching;

static _Atomic int64_t forced;

void kiln_pitch_from(int64_t elements)
{
    forced = elements;
}

/* ---- Windows ---- */

static int64_t last_size(const kiln_value *v)
{
    return v->ndim ? v->shape[v->ndim - 1] : 1;
}

static int64_t longer_size(const pitching *p, int64_t size)
{
    return (size + p->unit - 1) / p->unit * p->unit;
}

/* What the window onto rows of `size` elements is when they are as long as `longer`. False: it does not show rows. */
static bool translate(const kiln_value *window, int64_t size, int64_t longer, kiln_value *to)
{
    int64_t end = window->offset % size; /* the last column that it shows */
    *to = *window;
    to->offset = window->offset / size * longer + end;
    for (int d = 0; d < window->ndim; d++) {
        int64_t stride = window->stride[d];
        if (stride < 0)
            return false;
        if (stride % size == 0)
            to->stride[d] = stride / size * longer;
        else if (stride > size && window->shape[d] > 1)
            return false;
        else
            end += (window->shape[d] - 1) * stride;
    }
    return end < size;
}

/* The dim without gaps: of what has none the library takes a copy that has its last one. */
static int packed_dim(const kiln_value *v)
{
    return v->stride[v->ndim - 1] != 1 && v->stride[v->ndim - 2] == 1 ? v->ndim - 2 : v->ndim - 1;
}

static int other_dim(const kiln_value *v)
{
    return packed_dim(v) == v->ndim - 1 ? v->ndim - 2 : v->ndim - 1;
}

static bool suits(const pitching *p, const kiln_value *v, int64_t elements)
{
    return elements * (int64_t)kiln_dtype_size((kiln_dtype)v->dtype) % p->row_bytes == 0;
}

static const kiln_value *operand(const pitching *p, const kiln_node *n, int k)
{
    return &p->copy.from->values[p->copy.from->operands[n->in + k]];
}

/* ---- What can have longer rows ---- */

static bool is_large(const pitching *p, const kiln_node *n)
{
    if (n->op->cls != KILN_CLASS_MATMUL || n->nin != 2 || n->nout != 1)
        return false;
    const kiln_value *a = operand(p, n, 0), *b = operand(p, n, 1), *y = &p->copy.from->values[n->out];
    int64_t k = last_size(a), cols = last_size(b);
    bool gains = kiln_is_half((kiln_dtype)y->dtype) || (y->dtype == KILN_F32 && p->copy.from->tf32);
    if (!kiln_dtype_is_float((kiln_dtype)y->dtype) || b->ndim != 2 || a->ndim < 2 || k < p->least || cols < p->least)
        return false;
    int64_t rows = kiln_draft_numel(y) / cols;
    return rows >= p->least && (p->any || (gains && 2.0 * (double)rows * (double)cols * (double)k >= LEAST_FLOP));
}

/* How a pointwise operation with longer rows gets an operand. */
typedef enum source { NONE, SAME, REPEATED, LONGER, JOINED } source;

static bool can_lengthen(pitching *p, int32_t base);

static source source_of(pitching *p, const kiln_node *n, int k)
{
    const kiln_draft *d = p->d;
    int32_t in = kiln_draft_in(d, n, k);
    if (in < 0)
        return SAME;
    const kiln_value *x = operand(p, n, k), *y = &p->copy.from->values[n->out];
    int64_t size = last_size(y);
    int32_t base = kiln_draft_base(d, in);
    kiln_value to;
    if (last_size(x) == 1)
        return SAME;
    if (x->stride[x->ndim - 1] == 0)
        return REPEATED;
    if (x->stride[x->ndim - 1] != 1)
        return NONE;
    if (last_size(d->values[base].v) == size && x->offset % size == 0 &&
        translate(x, size, longer_size(p, size), &to) && can_lengthen(p, base))
        return LONGER;
    return kiln_draft_numel(x) * SMALL <= kiln_draft_numel(y) ? JOINED : NONE;
}

static bool can_lengthen(pitching *p, int32_t base)
{
    const kiln_draft_value *x = &p->d->values[base];
    if (p->can[base])
        return p->can[base] == CAN;
    p->can[base] = CANNOT;
    if (x->node < 0 || x->v->ndim < 1 || last_size(x->v) < p->least)
        return false;
    const kiln_node *n = kiln_draft_node(p->d, x->node);
    if (n->op->cls != KILN_CLASS_POINTWISE || n->nout != 1 || !n->nin) /* what counts would go on counting */
        return false;
    for (int k = 0; k < n->nin; k++)
        if (source_of(p, n, k) == NONE)
            return false;
    p->can[base] = CAN;
    return true;
}

static oddness oddness_of(const pitching *p, const kiln_node *n)
{
    const kiln_value *a = operand(p, n, 0), *b = operand(p, n, 1);
    bool a_by_k = packed_dim(a) == a->ndim - 1, b_by_k = packed_dim(b) == 0;
    return (oddness){.m = a->ndim == 2 && !a_by_k && !suits(p, a, a->shape[0]),
                     .n = !suits(p, b, b->shape[1]),
                     .k = (a_by_k || b_by_k) && !suits(p, b, b->shape[0])};
}

/* Whether all of an operand's rows, as its base has them, can be had longer. */
static bool shows_rows(const pitching *p, const kiln_value *x, int32_t base)
{
    int64_t size = last_size(p->d->values[base].v);
    kiln_value to;
    return x->stride[packed_dim(x)] == 1 && x->shape[packed_dim(x)] == size && x->offset % size == 0 &&
           translate(x, size, longer_size(p, size), &to);
}

/* Rows that are even, and begin at odd places. */
static bool begins_oddly(const pitching *p, const kiln_value *x)
{
    return x->stride[packed_dim(x)] == 1 && !suits(p, x, x->stride[other_dim(x)]);
}

static bool is_touched(const pitching *p, const kiln_node *n)
{
    oddness odd = oddness_of(p, n);
    for (int k = 0; k < 2; k++)
        if (begins_oddly(p, operand(p, n, k)))
            return true;
    return odd.m || odd.n || odd.k;
}

static void find_refused(pitching *p)
{
    const kiln_draft *d = p->d;
    for (int32_t i = 0; i < d->nnodes; i++)
        for (int k = 0; d->node_live[i] && k < kiln_draft_node(d, i)->nin; k++) {
            int32_t in = kiln_draft_in(d, kiln_draft_node(d, i), k), base = in < 0 ? -1 : kiln_draft_base(d, in);
            if (base < 0 || !last_size(d->values[base].v))
                continue;
            int64_t size = last_size(d->values[base].v);
            kiln_value to;
            p->refused[base] |= !translate(d->values[in].v, size, longer_size(p, size), &to);
        }
}

/* True if there is anything to do. Says how much room that takes, at most. */
static bool find_work(pitching *p, kiln_copy_room *room)
{
    const kiln_draft *d = p->d;
    bool found = false;
    for (int32_t i = 0; i < d->nnodes; i++) {
        const kiln_node *n = kiln_draft_node(d, i);
        if (!d->node_live[i] || !is_large(p, n))
            continue;
        int32_t out = kiln_draft_of(d, n->out);
        const kiln_draft_value *x = &d->values[out];
        oddness odd = oddness_of(p, n);
        if ((odd.m || odd.n) && !p->refused[out] && x->output < 0 && !x->commits)
            p->row[out] = odd.n ? longer_size(p, last_size(x->v)) : last_size(x->v);
        if (p->row[out] && odd.n)
            p->can[out] = CAN;
        for (int k = 0; k < 2; k++)
            can_lengthen(p, kiln_draft_base(d, kiln_draft_in(d, n, k)));
        found |= is_touched(p, n);
    }
    for (int32_t i = 0; i < d->nnodes && found; i++) {
        const kiln_node *n = kiln_draft_node(d, i);
        bool again = n->nout == 1 && p->can[kiln_draft_of(d, n->out)] == CAN;
        if (!d->node_live[i])
            continue;
        for (int k = 0; k < n->nin; k++)
            again |= kiln_draft_in(d, n, k) >= 0 && p->row[kiln_draft_base(d, kiln_draft_in(d, n, k))];
        if (again || is_large(p, n))
            room->nodes +=
                4 + 24 * n->nin; /* it and another one; of an operand slices, copies and what is joined, twice */
    }
    room->values = room->nodes;
    room->operands = 4 * room->nodes;
    room->ints = room->nodes;
    return found;
}

/* ---- Writing ---- */

static int32_t part_of(pitching *p, const kiln_node *n, int32_t value, int dim, int64_t size)
{
    kiln_value v = p->copy.to->values[value];
    v.shape[dim] = size;
    return kiln_copy_view(&p->copy, n, value, &v);
}

/* A value of its own memory, as large as what `like` shows. */
static int32_t add_dense(pitching *p, int32_t like)
{
    int32_t out = kiln_copy_value(&p->copy, like);
    kiln_value *v = &p->copy.to->values[out];
    v->offset = 0;
    kiln_dense_strides(v->ndim, v->shape, v->stride);
    return out;
}

static int32_t dense(pitching *p, const kiln_node *n, int32_t value)
{
    const kiln_value *v = &p->copy.to->values[value];
    if (kiln_is_dense(v->ndim, v->shape, v->stride))
        return value;
    int32_t out = add_dense(p, value);
    kiln_copy_unary(&p->copy, n, &kiln_op_clone, value, out);
    return out;
}

/* False for each element: nothing is less than itself, whatever it is. */
static int32_t is_less(pitching *p, const kiln_node *n, int32_t value)
{
    int32_t less = add_dense(p, value);
    p->copy.to->values[less].dtype = KILN_BOOL;
    kiln_node lt = kiln_copy_start(&p->copy, n, kiln_pw_op(KILN_PW_lt), less);
    kiln_copy_operand(&p->copy, &lt, value);
    kiln_copy_operand(&p->copy, &lt, value);
    kiln_copy_node(&p->copy, &lt);
    return less;
}

static int32_t zeros_like(pitching *p, const kiln_node *n, int32_t value)
{
    int32_t less = is_less(p, n, value), out = add_dense(p, value);
    kiln_node cast = kiln_copy_start(&p->copy, n, &kiln_op_cast, out);
    kiln_copy_operand(&p->copy, &cast, less);
    kiln_copy_int(&p->copy, &cast, p->copy.to->values[out].dtype);
    kiln_copy_node(&p->copy, &cast);
    return out;
}

/* The value, dense, with `more` slices along a dim behind it: zeros, or its first ones once more. */
static int32_t joined(pitching *p, const kiln_node *n, int32_t value, int dim, int64_t more, bool zeros)
{
    int32_t first = part_of(p, n, value, dim, more), whole = dense(p, n, value);
    int32_t last = zeros ? zeros_like(p, n, first) : dense(p, n, first), out = add_dense(p, value);
    kiln_value *v = &p->copy.to->values[out];
    v->shape[dim] += more;
    kiln_dense_strides(v->ndim, v->shape, v->stride);
    kiln_node cat = kiln_copy_start(&p->copy, n, &kiln_op_cat, out);
    kiln_copy_operand(&p->copy, &cat, whole);
    kiln_copy_operand(&p->copy, &cat, last);
    kiln_copy_int(&p->copy, &cat, dim);
    kiln_copy_node(&p->copy, &cat);
    return out;
}

static int32_t transposed(pitching *p, const kiln_node *n, int32_t value)
{
    kiln_value v = p->copy.to->values[value], t = v;
    t.shape[v.ndim - 1] = v.shape[v.ndim - 2], t.shape[v.ndim - 2] = v.shape[v.ndim - 1];
    t.stride[v.ndim - 1] = v.stride[v.ndim - 2], t.stride[v.ndim - 2] = v.stride[v.ndim - 1];
    return kiln_copy_view(&p->copy, n, value, &t);
}

/* A matrix with `more` along one of its dims, with the same dim without gaps. */
static int32_t extended(pitching *p, const kiln_node *n, int32_t value, int dim, int64_t more, bool zeros)
{
    const kiln_value *v = &p->copy.to->values[value];
    int last = v->ndim - 1, packed = packed_dim(v);
    if (packed == last)
        return joined(p, n, value, dim, more, zeros);
    int32_t rows = joined(p, n, transposed(p, n, value), dim == packed ? last : last - 1, more, zeros);
    return transposed(p, n, rows);
}

/* What `value` shows, which is even, in memory of its own. */
static int32_t dense_rows(pitching *p, const kiln_node *n, int32_t value)
{
    const kiln_value *v = &p->copy.to->values[value];
    bool turned = packed_dim(v) != v->ndim - 1;
    int32_t rows = dense(p, n, turned ? transposed(p, n, value) : value);
    return turned ? transposed(p, n, rows) : rows;
}

static int64_t row_of(const pitching *p, int32_t base)
{
    return p->row[base] ? p->row[base] : longer_size(p, last_size(p->d->values[base].v));
}

/* The window that `value` is, onto what has longer rows in the place of its base. With `all` of a row along a dim; -1:
 * what it showed. `zeros`: in what was added. */
static int32_t shown(pitching *p, const kiln_node *n, int32_t value, int32_t base, int all, bool zeros)
{
    kiln_value to;
    translate(&p->copy.from->values[value], last_size(p->d->values[base].v), row_of(p, base), &to);
    if (all >= 0)
        to.shape[all] = row_of(p, base);
    return kiln_copy_view(&p->copy, n, zeros ? p->zeroed[base] : p->longer[base], &to);
}

/* Operand k as a node reads it that stays what it is. */
static int32_t operand_of(pitching *p, const kiln_node *n, int k)
{
    int32_t value = p->copy.from->operands[n->in + k], in = kiln_draft_in(p->d, n, k);
    int32_t base = in < 0 ? -1 : kiln_draft_base(p->d, in);
    return base >= 0 && p->row[base] ? shown(p, n, value, base, -1, false) : value;
}

/* A node like n of these operands. */
static void write_like(pitching *p, const kiln_node *n, const int32_t *in, int32_t out)
{
    kiln_node x = *n;
    x.in = (int32_t)p->copy.to->noperands;
    x.nin = 0;
    for (int k = 0; k < n->nin; k++)
        kiln_copy_operand(&p->copy, &x, in[k]);
    x.out = out;
    kiln_copy_node(&p->copy, &x);
}

/* A result like n's with these last dims. */
static int32_t add_result(pitching *p, const kiln_node *n, int64_t rows, int64_t columns)
{
    int32_t out = kiln_copy_value(&p->copy, n->out);
    kiln_value *v = &p->copy.to->values[out];
    if (v->ndim > 1)
        v->shape[v->ndim - 2] = rows;
    v->shape[v->ndim - 1] = columns;
    kiln_dense_strides(v->ndim, v->shape, v->stride);
    return out;
}

static void lengthen(pitching *p, int32_t base)
{
    const kiln_node *n = kiln_draft_node(p->d, p->d->values[base].node);
    int32_t in[KILN_MAX_INPUTS];
    int64_t size = last_size(p->d->values[base].v), longer = longer_size(p, size);
    if (p->longer[base] >= 0)
        return;
    for (int k = 0; k < n->nin; k++) {
        int32_t value = p->copy.from->operands[n->in + k], own = kiln_draft_in(p->d, n, k);
        source from = source_of(p, n, k);
        if (from == LONGER) {
            lengthen(p, kiln_draft_base(p->d, own));
            in[k] = shown(p, n, value, kiln_draft_base(p->d, own), p->copy.from->values[value].ndim - 1, false);
            continue;
        }
        in[k] = operand_of(p, n, k);
        int dim = value < 0 ? 0 : p->copy.from->values[value].ndim - 1;
        if (from == REPEATED)
            in[k] = part_of(p, n, in[k], dim, longer);
        else if (from == JOINED)
            in[k] = joined(p, n, in[k], dim, longer - size, false);
    }
    const kiln_value *y = &p->copy.from->values[n->out];
    p->longer[base] = add_result(p, n, y->ndim > 1 ? y->shape[y->ndim - 2] : 1, longer);
    write_like(p, n, in, p->longer[base]);
}

/* [size] times true and [longer - size] times false, as long as some value has so many elements along a dim. */
static int32_t mask(pitching *p, const kiln_node *n, int32_t value, int dim, int64_t longer)
{
    kiln_value v = p->copy.to->values[value];
    int64_t size = v.shape[dim];
    v.stride[0] = v.stride[dim];
    v.shape[0] = size;
    v.ndim = 1;
    int32_t line = kiln_copy_view(&p->copy, n, value, &v), less = is_less(p, n, line), more = add_dense(p, less);
    kiln_copy_unary(&p->copy, n, kiln_pw_op(KILN_PW_logical_not), less, more);
    int32_t rest = part_of(p, n, less, 0, longer - size), out = add_dense(p, more);
    p->copy.to->values[out].shape[0] = longer;
    kiln_node cat = kiln_copy_start(&p->copy, n, &kiln_op_cat, out);
    kiln_copy_operand(&p->copy, &cat, more);
    kiln_copy_operand(&p->copy, &cat, rest);
    kiln_copy_int(&p->copy, &cat, 0);
    kiln_copy_node(&p->copy, &cat);
    return out;
}

/* What has longer rows in the place of a base, with zeros in what was added. `like`: a value that has as many elements
 * as its rows had along a dim. */
static void put_zeros(pitching *p, const kiln_node *n, int32_t base, int32_t like, int dim)
{
    if (p->zeroed[base] >= 0)
        return;
    int32_t from = p->longer[base], out = kiln_copy_value(&p->copy, from);
    kiln_value one = p->copy.to->values[like];
    one.ndim = 1;
    one.shape[0] = 1;
    int32_t zero = zeros_like(p, n, kiln_copy_view(&p->copy, n, like, &one));
    int32_t in[] = {mask(p, n, like, dim, last_size(&p->copy.to->values[from])), from, zero};
    kiln_node where = kiln_copy_start(&p->copy, n, kiln_pw_op(KILN_PW_where), out);
    for (int k = 0; k < 3; k++)
        kiln_copy_operand(&p->copy, &where, in[k]);
    kiln_copy_node(&p->copy, &where);
    p->zeroed[base] = out;
}

/* Operand k of a large product with so many rows and columns, which suit. Along the sum there are zeros. */
static int32_t operand_with(pitching *p, const kiln_node *n, int k, const int64_t *wanted)
{
    int32_t value = p->copy.from->operands[n->in + k], base = kiln_draft_base(p->d, kiln_draft_in(p->d, n, k));
    const kiln_value *x = operand(p, n, k);
    int first = x->ndim - 2, packed = packed_dim(x), other = other_dim(x), summed = k == 0 ? x->ndim - 1 : 0;
    int64_t more = wanted[packed - first] - x->shape[packed], others = wanted[other - first] - x->shape[other];
    bool longer = (more || begins_oddly(p, x)) && p->can[base] == CAN && !(k == 1 && packed == summed);
    int32_t to;
    if (longer && shows_rows(p, x, base)) {
        if (!p->row[base])
            lengthen(p, base);
        if (more && packed == summed)
            put_zeros(p, n, base, operand_of(p, n, 1), 0);
        to = shown(p, n, value, base, more ? packed : -1, p->zeroed[base] >= 0);
    } else if (more)
        to = extended(p, n, operand_of(p, n, k), packed, more, packed == summed);
    else if (begins_oddly(p, x) && !p->row[base])
        to = dense_rows(p, n, value);
    else
        to = operand_of(p, n, k);
    return others ? extended(p, n, to, other, others, other == summed) : to;
}

static void write_product(pitching *p, const kiln_node *n)
{
    oddness odd = oddness_of(p, n);
    int32_t base = kiln_draft_of(p->d, n->out), out = n->out;
    const kiln_value *a = operand(p, n, 0), *b = operand(p, n, 1);
    int64_t rows = a->shape[a->ndim - 2], columns = b->shape[1], inner = b->shape[0];
    int64_t m = odd.m ? longer_size(p, rows) : rows, k = odd.k ? longer_size(p, inner) : inner,
            c = odd.n ? longer_size(p, columns) : columns;
    int32_t in[2];
    in[0] = operand_with(p, n, 0, (int64_t[]){m, k}); /* one after the other: both write nodes */
    in[1] = operand_with(p, n, 1, (int64_t[]){k, c});
    if (odd.m || odd.n)
        out = add_result(p, n, m, c);
    write_like(p, n, in, out);
    if (out == n->out)
        return;
    p->longer[base] = out;
    kiln_value whole = p->copy.from->values[n->out];
    translate(&p->copy.from->values[n->out], columns, c, &whole);
    if (p->row[base])
        kiln_copy_node(&p->copy, n); /* nobody reads it, but there may be views of it that nobody reads */
    else
        kiln_copy_unary(&p->copy, n, &kiln_op_clone, kiln_copy_view(&p->copy, n, out, &whole), n->out);
}

/* Rows of two dims, one behind the other. */
static bool may_be_pitched(const pitching *p, const kiln_node *n, int k, int32_t value)
{
    const kiln_value *v = &p->copy.to->values[value];
    return n->op->pitched && k == 0 && v->ndim == 2 && v->stride[1] == 1 &&
           p->copy.from->ints[n->ints + n->op->along - 1] == 1;
}

static void write_node(pitching *p, const kiln_node *n)
{
    int32_t in[KILN_MAX_INPUTS];
    bool other = false;
    for (int k = 0; k < n->nin; k++) {
        in[k] = operand_of(p, n, k);
        if (in[k] != p->copy.from->operands[n->in + k] && kiln_needs_dense(n->op->cls) &&
            !may_be_pitched(p, n, k, in[k]))
            in[k] = dense(p, n, in[k]);
        other |= in[k] != p->copy.from->operands[n->in + k];
    }
    if (other)
        write_like(p, n, in, n->out);
    else
        kiln_copy_node(&p->copy, n);
}

static void write_all(pitching *p)
{
    const kiln_draft *d = p->d;
    for (int32_t i = 0; i < d->nnodes; i++) {
        const kiln_node *n = kiln_draft_node(d, i);
        if (!d->node_live[i])
            kiln_copy_node(&p->copy, n);
        else if (is_large(p, n) && is_touched(p, n))
            write_product(p, n);
        else
            write_node(p, n);
    }
}

bool kiln_draft_pitch(kiln_draft *d)
{
    int64_t bytes = kiln_backend_row_bytes(d->plan->device), few = forced;
    if (!bytes)
        return true;
    pitching p = {.d = d, .copy = {.from = d->tr}, .row_bytes = bytes, .unit = bytes / 2, .any = few > 0};
    p.least = p.any ? few : LEAST;
    p.least = p.least < p.unit ? p.unit : p.least; /* the first columns are repeated: there are enough of them */
    bool any = false;
    kiln_draft_prune(d);
    for (int32_t i = 0; i < d->nnodes && !any; i++)
        any = d->node_live[i] && is_large(&p, kiln_draft_node(d, i));
    if (!any)
        return true;
    kiln_copy_room room = {0};
    p.can = KILN_ARENA_NEW(&d->scratch, uint8_t, d->nvalues);
    p.row = KILN_ARENA_NEW(&d->scratch, int64_t, d->nvalues);
    p.refused = KILN_ARENA_NEW(&d->scratch, bool, d->nvalues);
    p.longer = KILN_ARENA_NEW(&d->scratch, int32_t, d->nvalues);
    p.zeroed = KILN_ARENA_NEW(&d->scratch, int32_t, d->nvalues);
    if (!p.can || !p.row || !p.refused || !p.longer || !p.zeroed)
        return false;
    memset(p.longer, -1, (size_t)d->nvalues * sizeof *p.longer);
    memset(p.zeroed, -1, (size_t)d->nvalues * sizeof *p.zeroed);
    find_refused(&p);
    if (!find_work(&p, &room))
        return true;
    if (!kiln_copy_begin(&p.copy, d, room))
        return false;
    write_all(&p);
    d->tr = p.copy.to;
    return kiln_draft_import(d) && kiln_draft_merge(d);
}
