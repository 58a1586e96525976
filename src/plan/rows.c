/* Pointwise operations, products, reductions, gradients of windows, and what says of itself along which dim its
 * elements meet. */
#include "plan/rows.h"
#include <string.h>
#include "plan/plan.h"

extern const kiln_op kiln_op_as_strided_add;

int kiln_rows_dim(int ndim, const int64_t *shape, const int64_t *stride, int64_t offset, int64_t elements)
{
    int dim = KILN_NO_ROWS;
    for (int d = 0; d < ndim; d++)
        if (shape[d] > 1 && stride[d] * shape[d] == elements)
            dim = d;
    for (int d = 0; d < ndim; d++) {
        if (stride[d] < 0)
            return KILN_NO_ROWS;
        offset += d == dim ? 0 : (shape[d] - 1) * stride[d];
    }
    return dim >= 0 && offset < stride[dim] ? dim : KILN_NO_ROWS;
}

static const kiln_value *operand(const kiln_trace *tr, const kiln_node *n, int k)
{
    int32_t value = tr->operands[n->in + k];
    return value < 0 ? NULL : &tr->values[value];
}

/* The dim of v that lies over dim `out` of a broadcast of it to `ndim` dims; KILN_NO_ROWS: it is repeated there. */
static int8_t aligned(const kiln_value *v, int ndim, int out, int64_t size)
{
    int dim = out - (ndim - v->ndim);
    return (int8_t)(dim >= 0 && v->shape[dim] == size ? dim : KILN_NO_ROWS);
}

/* The dim that `cut` names, of the first operand that is cut, in a broadcast of it to `ndim` dims. */
static int broadcast_dim(const kiln_trace *tr, const kiln_node *n, const int8_t *cut, int ndim)
{
    for (int k = 0; k < n->nin; k++)
        if (cut[k] >= 0)
            return cut[k] + ndim - operand(tr, n, k)->ndim;
    return KILN_NO_ROWS;
}

static bool pointwise(const kiln_trace *tr, const kiln_node *n, int out, kiln_rows *rows)
{
    const kiln_value *y = &tr->values[n->out];
    rows->out = (int8_t)out;
    for (int k = 0; k < n->nin; k++)
        rows->in[k] = aligned(operand(tr, n, k), y->ndim, out, y->shape[out]);
    return true;
}

static bool reduce(const kiln_trace *tr, const kiln_node *n, const int8_t *cut, kiln_rows *rows)
{
    bool keepdim = tr->ints[n->ints];
    int before = 0;
    for (int i = 1; i < n->nints; i++) {
        rows->sums |= tr->ints[n->ints + i] == cut[0];
        before += tr->ints[n->ints + i] < cut[0];
    }
    rows->in[0] = cut[0];
    rows->out = (int8_t)(rows->sums ? KILN_NO_ROWS : cut[0] - (keepdim ? 0 : before));
    return !rows->sums || n->op->fold == KILN_FOLD_SUM;
}

static bool reduce_to(const kiln_trace *tr, const kiln_node *n, int out, kiln_rows *rows)
{
    int8_t cut[1] = {(int8_t)out};
    for (int d = 0; d < operand(tr, n, 0)->ndim && !tr->ints[n->ints]; d++) /* past dims that are gone */
        for (int i = 1; i < n->nints; i++)
            cut[0] = (int8_t)(cut[0] + (tr->ints[n->ints + i] == d && d <= cut[0]));
    return reduce(tr, n, cut, rows) && !rows->sums;
}

/* a [..., m, k] · b [..., k, n]: rows of the result are rows of a, its columns columns of b. */
static bool product(const kiln_trace *tr, const kiln_node *n, int out, kiln_rows *rows)
{
    const kiln_value *y = &tr->values[n->out];
    rows->out = (int8_t)out;
    for (int k = 0; k < 2; k++) {
        const kiln_value *x = operand(tr, n, k);
        bool own = k == out - (y->ndim - 2);
        rows->in[k] = (int8_t)(out < y->ndim - 2 ? aligned(x, y->ndim, out, y->shape[out])
                               : own             ? x->ndim - 2 + k
                                                 : KILN_NO_ROWS);
    }
    return true;
}

/* Along k there are parts of a sum. */
static bool sum_of_products(const kiln_trace *tr, const kiln_node *n, const int8_t *cut, kiln_rows *rows)
{
    int inner[2] = {operand(tr, n, 0)->ndim - 1, operand(tr, n, 1)->ndim - 2};
    if (cut[0] != inner[0] && cut[1] != inner[1])
        return false;
    *rows = (kiln_rows){.sums = true, .out = KILN_NO_ROWS, .in = {(int8_t)inner[0], (int8_t)inner[1]}};
    return true;
}

static int dims_of(const kiln_trace *tr, const kiln_node *n)
{
    int most = 0;
    for (int k = 0; k < n->nin; k++)
        most = operand(tr, n, k)->ndim > most ? operand(tr, n, k)->ndim : most;
    for (int j = 0; j < n->nout; j++)
        most = tr->values[n->out + j].ndim > most ? tr->values[n->out + j].ndim : most;
    return most;
}

/* Elements meet along one dim, which some of the tensors do not have. `at`: among the dims of those that have it. */
static bool along_one(const kiln_trace *tr, const kiln_node *n, int at, kiln_rows *rows)
{
    int ndim = dims_of(tr, n), meet = (int)tr->ints[n->ints + n->op->along - 1];
    for (int k = 0; k < n->nin; k++)
        rows->in[k] = (int8_t)(at - (operand(tr, n, k)->ndim < ndim && at > meet));
    for (int j = 0; j < n->nout; j++)
        rows->out = (int8_t)(at - (tr->values[n->out + j].ndim < ndim && at > meet));
    return at != meet;
}

/* That dim for one of a tensor. */
static int among_all(const kiln_trace *tr, const kiln_node *n, const kiln_value *v, int dim)
{
    return dim + (v->ndim < dims_of(tr, n) && dim >= tr->ints[n->ints + n->op->along - 1]);
}

static int among_all_of_cut(const kiln_trace *tr, const kiln_node *n, const int8_t *cut)
{
    for (int k = 0; k < n->nin; k++)
        if (cut[k] >= 0)
            return among_all(tr, n, operand(tr, n, k), cut[k]);
    return KILN_NO_ROWS;
}

/* Zeros of a shape with the operand added into a window: [ndim, shape…, stride of each dim of the operand…, offset]. */
static bool window(const kiln_trace *tr, const kiln_node *n, const int8_t *cut, kiln_rows *rows)
{
    const kiln_value *x = operand(tr, n, 0), *y = &tr->values[n->out];
    const int64_t *stride = tr->ints + n->ints + 1 + y->ndim, all = kiln_count(y->ndim, y->shape);
    if (n->nfloats) /* the offset comes with each run */
        return false;
    int out = kiln_rows_dim(y->ndim, y->shape, y->stride, 0, all);
    *rows = (kiln_rows){.out = (int8_t)out, .in = {cut[0]}, .size = (int8_t)(2 + out)};
    return out >= 0 && kiln_rows_dim(x->ndim, x->shape, stride, stride[x->ndim], all) == cut[0];
}

static bool is_complete(const kiln_trace *tr, const kiln_node *n)
{
    for (int k = 0; k < n->nin; k++)
        if (!operand(tr, n, k))
            return false;
    return true;
}

bool kiln_rows_from(const kiln_trace *tr, const kiln_node *n, const int8_t *cut, kiln_rows *rows)
{
    int ndim = tr->values[n->out].ndim;
    bool can = false;
    *rows = (kiln_rows){0};
    if (!is_complete(tr, n))
        return false;
    if (n->op->along)
        can = along_one(tr, n, among_all_of_cut(tr, n, cut), rows);
    else if (n->op->cls == KILN_CLASS_POINTWISE)
        can = pointwise(tr, n, broadcast_dim(tr, n, cut, ndim), rows);
    else if (n->op->cls == KILN_CLASS_REDUCE)
        can = reduce(tr, n, cut, rows);
    else if (n->op == &kiln_op_as_strided_add)
        can = window(tr, n, cut, rows);
    else if (n->op->cls == KILN_CLASS_MATMUL)
        can = sum_of_products(tr, n, cut, rows) || product(tr, n, broadcast_dim(tr, n, cut, ndim), rows);
    for (int k = 0; k < n->nin; k++) /* operands that are cut have to be cut as the others want it */
        can &= cut[k] < 0 || cut[k] == rows->in[k];
    return can;
}

bool kiln_rows_to(const kiln_trace *tr, const kiln_node *n, int out, kiln_rows *rows)
{
    *rows = (kiln_rows){0};
    if (!is_complete(tr, n))
        return false;
    if (n->op->along)
        return along_one(tr, n, among_all(tr, n, &tr->values[n->out], out), rows);
    return n->op->cls == KILN_CLASS_POINTWISE ? pointwise(tr, n, out, rows)
           : n->op->cls == KILN_CLASS_REDUCE  ? reduce_to(tr, n, out, rows)
           : n->op->cls == KILN_CLASS_MATMUL  ? product(tr, n, out, rows)
                                              : false;
}
