/* Writing out formulas: the first pass. Every formula of the segment becomes the operations it stands for, in a copy of
 * the trace that the other passes then work on; the trace itself keeps one node.
 *
 * What a formula assigns or results in keeps its number, so that lists of results hold for the copy too; values on the
 * way are added behind all others. */
#include <string.h>
#include "plan/draft.h"
#include "trace/formula.h"

extern const kiln_op kiln_op_assign, kiln_op_sum;

typedef struct expansion {
    const kiln_trace *from;
    kiln_trace *to;
    kiln_storage *nowhere; /* stands for the storages of values on the way: nothing but their role is asked for */
} expansion;

/* At most so many operations; a count is two. */
static int64_t count_rows(const kiln_trace *tr)
{
    int64_t rows = 0;
    for (int64_t i = tr->first_node; i < tr->nnodes; i++)
        if (tr->nodes[i].op->cls == KILN_CLASS_FORMULA)
            rows += 2 * tr->nodes[i].nints + tr->nodes[i].nout;
    return rows;
}

/* Room for everything that is there and `rows` operations of three operands, one result and a list of dims. */
static bool copy_trace(kiln_draft *d, expansion *e, int64_t rows)
{
    const kiln_trace *from = e->from;
    kiln_trace *to = e->to = KILN_ARENA_NEW(&d->scratch, kiln_trace, 1);
    e->nowhere = KILN_ARENA_NEW(&d->scratch, kiln_storage, 1);
    if (!to || !e->nowhere)
        return false;
    *to = *from;
    to->nodes = KILN_ARENA_NEW(&d->scratch, kiln_node, from->nnodes + rows);
    to->values = KILN_ARENA_NEW(&d->scratch, kiln_value, from->nvalues + rows);
    to->operands = KILN_ARENA_NEW(&d->scratch, int32_t, from->noperands + 3 * rows);
    to->ints = KILN_ARENA_NEW(&d->scratch, int64_t, from->nints + (KILN_MAX_DIMS + 1) * rows);
    if (!to->nodes || !to->values || !to->operands || !to->ints)
        return false;
    memcpy(to->nodes, from->nodes, (size_t)from->first_node * sizeof *to->nodes);
    memcpy(to->values, from->values, (size_t)from->nvalues * sizeof *to->values);
    memcpy(to->operands, from->operands, (size_t)from->noperands * sizeof *to->operands);
    memcpy(to->ints, from->ints, (size_t)from->nints * sizeof *to->ints);
    to->nnodes = from->first_node;
    return true;
}

/* A value on the way, of the shape that is given. */
static int32_t add_value(expansion *e, int32_t like, kiln_dtype dtype)
{
    int32_t number = (int32_t)e->to->nvalues++;
    kiln_value *v = &e->to->values[number];
    *v = e->from->values[like];
    v->base = number;
    v->storage = e->nowhere;
    v->dtype = (uint8_t)dtype;
    return number;
}

static void add_node(expansion *e, const kiln_node *n)
{
    for (int j = 0; j < n->nout; j++)
        e->to->values[n->out + j].node = (int32_t)e->to->nnodes;
    e->to->nodes[e->to->nnodes++] = *n;
}

typedef struct writing { /* of a formula */
    const kiln_node *formula;
    int32_t value[KILN_FORMULA_REGISTERS];
    int32_t next_out, next_float;
} writing;

/* A node of the formula: its operands and integers are added behind it. */
static kiln_node begin_node(const expansion *e, const writing *w, const kiln_op *op, int32_t out)
{
    return (kiln_node){.op = op,
                       .origin = w->formula->origin,
                       .module = w->formula->module,
                       .number = w->formula->number,
                       .in = (int32_t)e->to->noperands,
                       .out = out,
                       .nout = 1,
                       .ints = (int32_t)e->to->nints};
}

static void add_operand(expansion *e, kiln_node *n, int32_t value)
{
    e->to->operands[e->to->noperands++] = value;
    n->nin++;
}

static void add_int(expansion *e, kiln_node *n, int64_t i)
{
    e->to->ints[e->to->nints++] = i;
    n->nints++;
}

static int32_t write_cast(expansion *e, const writing *w, int32_t from, kiln_dtype dtype)
{
    kiln_node n = begin_node(e, w, &kiln_op_cast, add_value(e, w->formula->out, dtype));
    add_operand(e, &n, from);
    add_int(e, &n, dtype);
    add_node(e, &n);
    return n.out;
}

/* How many elements of a flag are true, as kiln_sum_all has it. */
static void write_count(expansion *e, const writing *w, int32_t flag, int32_t out)
{
    int32_t each = write_cast(e, w, flag, KILN_I64);
    kiln_node n = begin_node(e, w, &kiln_op_sum, out);
    add_operand(e, &n, each);
    add_int(e, &n, false); /* keepdim */
    for (int d = 0; d < e->to->values[each].ndim; d++)
        add_int(e, &n, d);
    add_node(e, &n);
}

static int32_t write_row(expansion *e, writing *w, kiln_formula_row r)
{
    const kiln_pw_row *row = &kiln_pw_rows[r.row];
    uint8_t dtypes[3] = {0};
    for (int k = 0; k < row->arity; k++)
        dtypes[k] = e->to->values[w->value[r.src[k]]].dtype;
    kiln_node n = begin_node(e, w, kiln_pw_op((kiln_pw_id)r.row),
                             add_value(e, w->formula->out, kiln_formula_dtype(r.row, dtypes)));
    for (int k = 0; k < row->arity; k++)
        add_operand(e, &n, w->value[r.src[k]]);
    n.floats = w->next_float;
    n.nfloats = row->scalars;
    w->next_float += row->scalars;
    add_node(e, &n);
    return n.out;
}

static void write_copy(expansion *e, const writing *w, int32_t from, int32_t out)
{
    kiln_node n = begin_node(e, w, &kiln_op_assign, out);
    add_operand(e, &n, from);
    add_node(e, &n);
}

static void write_out(expansion *e, const kiln_node *formula)
{
    writing w = {.formula = formula, .next_out = formula->out, .next_float = formula->floats};
    memcpy(w.value, e->to->operands + formula->in, (size_t)formula->nin * sizeof *w.value);
    for (int i = 0; w.next_out < formula->out + formula->nout; i++) {
        kiln_formula_row r = kiln_formula_row_at(e->to->ints + formula->ints, i);
        int32_t *made = &w.value[formula->nin + i];
        if (r.row == KILN_FORMULA_COUNT)
            write_count(e, &w, w.value[r.src[0]], w.next_out++);
        else if (r.row == KILN_PW_copy)
            write_copy(e, &w, w.value[r.src[0]], w.next_out++);
        else if (r.row == KILN_PW_cast)
            *made = write_cast(e, &w, w.value[r.src[0]], (kiln_dtype)r.src[1]);
        else
            *made = write_row(e, &w, r);
    }
}

bool kiln_draft_expand(kiln_draft *d)
{
    expansion e = {.from = d->tr};
    int64_t rows = count_rows(e.from);
    if (!rows)
        return true;
    if (!copy_trace(d, &e, rows))
        return false;
    for (int64_t i = e.from->first_node; i < e.from->nnodes; i++) {
        const kiln_node *n = &e.from->nodes[i];
        if (n->op->cls == KILN_CLASS_FORMULA)
            write_out(&e, n);
        else
            add_node(&e, n);
    }
    d->tr = e.to;
    return true;
}
