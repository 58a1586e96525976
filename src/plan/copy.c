#include "plan/copy.h"
#include <string.h>

extern const kiln_op kiln_op_slice;

bool kiln_copy_begin(kiln_copy *c, kiln_draft *d, kiln_copy_room more)
{
    const kiln_trace *from = c->from = d->tr;
    kiln_trace *to = c->to = KILN_ARENA_NEW(&d->scratch, kiln_trace, 1);
    c->nowhere = KILN_ARENA_NEW(&d->scratch, kiln_storage, 1);
    if (!to || !c->nowhere)
        return false;
    *to = *from;
    to->nodes = KILN_ARENA_NEW(&d->scratch, kiln_node, from->nnodes + more.nodes);
    to->values = KILN_ARENA_NEW(&d->scratch, kiln_value, from->nvalues + more.values);
    to->operands = KILN_ARENA_NEW(&d->scratch, int32_t, from->noperands + more.operands);
    to->ints = KILN_ARENA_NEW(&d->scratch, int64_t, from->nints + more.ints);
    if (!to->nodes || !to->values || !to->operands || !to->ints)
        return false;
    memcpy(to->nodes, from->nodes, (size_t)from->first_node * sizeof *to->nodes);
    memcpy(to->values, from->values, (size_t)from->nvalues * sizeof *to->values);
    memcpy(to->operands, from->operands, (size_t)from->noperands * sizeof *to->operands);
    memcpy(to->ints, from->ints, (size_t)from->nints * sizeof *to->ints);
    to->nnodes = from->first_node;
    return true;
}

void kiln_copy_node(kiln_copy *c, const kiln_node *n)
{
    for (int j = 0; j < n->nout; j++)
        c->to->values[n->out + j].node = (int32_t)c->to->nnodes;
    c->to->nodes[c->to->nnodes++] = *n;
}

int32_t kiln_copy_value(kiln_copy *c, int32_t like)
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

kiln_node kiln_copy_start(const kiln_copy *c, const kiln_node *n, const kiln_op *op, int32_t out)
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

void kiln_copy_operand(kiln_copy *c, kiln_node *n, int32_t value)
{
    c->to->operands[c->to->noperands++] = value;
    n->nin++;
}

void kiln_copy_int(kiln_copy *c, kiln_node *n, int64_t value)
{
    c->to->ints[c->to->nints++] = value;
    n->nints++;
}

void kiln_copy_unary(kiln_copy *c, const kiln_node *n, const kiln_op *op, int32_t in, int32_t out)
{
    kiln_node x = kiln_copy_start(c, n, op, out);
    kiln_copy_operand(c, &x, in);
    kiln_copy_node(c, &x);
}

int32_t kiln_copy_view(kiln_copy *c, const kiln_node *n, int32_t source, const kiln_value *window)
{
    int32_t view = kiln_copy_value(c, source);
    kiln_value *v = &c->to->values[view];
    v->base = c->to->values[source].base;
    v->ndim = window->ndim;
    v->offset = window->offset;
    memcpy(v->shape, window->shape, sizeof v->shape);
    memcpy(v->stride, window->stride, sizeof v->stride);
    kiln_copy_unary(c, n, &kiln_op_slice, source, view);
    return view;
}
