/* Writing out formulas: the first pass. Every formula of the segment becomes the operations it stands for, in a copy of
 * the trace that the other passes then work on; the trace itself keeps one node.
 *
 * What a formula assigns keeps its number, so that lists of results hold for the copy too; values on the way are added
 * behind all others. */
#include <string.h>
#include "plan/draft.h"
#include "trace/formula.h"

extern const kiln_op kiln_op_assign;

typedef struct expansion {
    const kiln_trace *from;
    kiln_trace *to;
    kiln_storage *nowhere; /* stands for the storages of values on the way: nothing but their role is asked for */
} expansion;

static void count_rows(const kiln_trace *tr, int64_t *formulas, int64_t *rows)
{
    *formulas = *rows = 0;
    for (int64_t i = tr->first_node; i < tr->nnodes; i++)
        if (tr->nodes[i].op->cls == KILN_CLASS_FORMULA) {
            ++*formulas;
            *rows += 2 * tr->nodes[i].nints;
        }
}

/* Room for everything that is there and `rows` operations of three operands and one result. */
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
    if (!to->nodes || !to->values || !to->operands)
        return false;
    memcpy(to->nodes, from->nodes, (size_t)from->first_node * sizeof *to->nodes);
    memcpy(to->values, from->values, (size_t)from->nvalues * sizeof *to->values);
    memcpy(to->operands, from->operands, (size_t)from->noperands * sizeof *to->operands);
    to->nnodes = from->first_node;
    return true;
}

/* A value on the way, like the one that is given; a test's are flags. */
static int32_t add_value(expansion *e, int32_t like, bool flag)
{
    int32_t number = (int32_t)e->to->nvalues++;
    kiln_value *v = &e->to->values[number];
    *v = e->from->values[like];
    v->base = number;
    v->storage = e->nowhere;
    if (flag)
        v->dtype = KILN_BOOL;
    return number;
}

static void add_node(expansion *e, const kiln_node *n)
{
    for (int j = 0; j < n->nout; j++)
        e->to->values[n->out + j].node = (int32_t)e->to->nnodes;
    e->to->nodes[e->to->nnodes++] = *n;
}

static void write_out(expansion *e, const kiln_node *formula)
{
    kiln_trace *to = e->to;
    int32_t value[KILN_FORMULA_REGISTERS], next_out = formula->out, next_float = formula->floats;
    memcpy(value, to->operands + formula->in, (size_t)formula->nin * sizeof *value);
    for (int i = 0; next_out < formula->out + formula->nout; i++) {
        kiln_formula_row r = kiln_formula_row_at(to->ints + formula->ints, i);
        const kiln_pw_row *row = &kiln_pw_rows[r.row];
        bool assigns = r.row == KILN_PW_copy;
        int32_t out = assigns ? next_out++ : add_value(e, formula->out, row->kind == KILN_PW_IS_TEST);
        kiln_node n = {.op = assigns ? &kiln_op_assign : kiln_pw_op(r.row),
                       .origin = formula->origin,
                       .in = (int32_t)to->noperands,
                       .nin = row->arity,
                       .out = out,
                       .nout = 1,
                       .floats = next_float,
                       .nfloats = row->scalars};
        for (int k = 0; k < row->arity; k++)
            to->operands[to->noperands++] = value[r.src[k]];
        value[formula->nin + i] = out;
        next_float += row->scalars;
        add_node(e, &n);
    }
}

bool kiln_draft_expand(kiln_draft *d)
{
    expansion e = {.from = d->tr};
    int64_t formulas, rows;
    count_rows(e.from, &formulas, &rows);
    if (!formulas)
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
