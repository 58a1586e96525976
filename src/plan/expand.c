/* Writing out formulas: the first pass. Every formula of the segment becomes the operations it stands for, in a copy of
 * the trace that the other passes then work on; the trace itself keeps one node.
 *
 * What a formula assigns or results in keeps its number, so that lists of results hold for the copy too; values on the
 * way are added behind all others. */
#include <string.h>
#include "plan/copy.h"
#include "trace/formula.h"

extern const kiln_op kiln_op_assign, kiln_op_sum;

/* At most so many operations; a count is two. */
static int64_t count_rows(const kiln_trace *tr)
{
    int64_t rows = 0;
    for (int64_t i = tr->first_node; i < tr->nnodes; i++)
        if (tr->nodes[i].op->cls == KILN_CLASS_FORMULA)
            rows += 2 * tr->nodes[i].nints + tr->nodes[i].nout;
    return rows;
}

/* A value on the way, of the shape that is given. */
static int32_t add_value(kiln_copy *e, int32_t like, kiln_dtype dtype)
{
    int32_t number = kiln_copy_value(e, like);
    e->to->values[number].dtype = (uint8_t)dtype;
    return number;
}

typedef struct writing { /* of a formula */
    const kiln_node *formula;
    int32_t value[KILN_FORMULA_REGISTERS];
    int32_t next_out, next_float;
} writing;

/* A node of the formula: its operands and integers are added behind it. */
static kiln_node begin_node(const kiln_copy *e, const writing *w, const kiln_op *op, int32_t out)
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

static int32_t write_cast(kiln_copy *e, const writing *w, int32_t from, kiln_dtype dtype)
{
    kiln_node n = begin_node(e, w, &kiln_op_cast, add_value(e, w->formula->out, dtype));
    kiln_copy_operand(e, &n, from);
    kiln_copy_int(e, &n, dtype);
    kiln_copy_node(e, &n);
    return n.out;
}

/* How many elements of a flag are true, as kiln_sum_all has it. */
static void write_count(kiln_copy *e, const writing *w, int32_t flag, int32_t out)
{
    int32_t each = write_cast(e, w, flag, KILN_I64);
    kiln_node n = begin_node(e, w, &kiln_op_sum, out);
    kiln_copy_operand(e, &n, each);
    kiln_copy_int(e, &n, false); /* keepdim */
    for (int d = 0; d < e->to->values[each].ndim; d++)
        kiln_copy_int(e, &n, d);
    kiln_copy_node(e, &n);
}

static int32_t write_row(kiln_copy *e, writing *w, kiln_formula_row r)
{
    const kiln_pw_row *row = &kiln_pw_rows[r.row];
    uint8_t dtypes[3] = {0};
    for (int k = 0; k < row->arity; k++)
        dtypes[k] = e->to->values[w->value[r.src[k]]].dtype;
    kiln_node n = begin_node(e, w, kiln_pw_op((kiln_pw_id)r.row),
                             add_value(e, w->formula->out, kiln_formula_dtype(r.row, dtypes)));
    for (int k = 0; k < row->arity; k++)
        kiln_copy_operand(e, &n, w->value[r.src[k]]);
    n.floats = w->next_float;
    n.nfloats = row->scalars;
    w->next_float += row->scalars;
    kiln_copy_node(e, &n);
    return n.out;
}

static void write_copy(kiln_copy *e, const writing *w, int32_t from, int32_t out)
{
    kiln_node n = begin_node(e, w, &kiln_op_assign, out);
    kiln_copy_operand(e, &n, from);
    kiln_copy_node(e, &n);
}

static void write_out(kiln_copy *e, const kiln_node *formula)
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
    kiln_copy e;
    int64_t rows = count_rows(d->tr);
    if (!rows)
        return true;
    /* Operations of three operands, one result and a list of dims. */
    kiln_copy_room more = {.nodes = rows, .values = rows, .operands = 3 * rows, .ints = (KILN_MAX_DIMS + 1) * rows};
    if (!kiln_copy_begin(&e, d, more))
        return false;
    for (int64_t i = e.from->first_node; i < e.from->nnodes; i++) {
        const kiln_node *n = &e.from->nodes[i];
        if (n->op->cls == KILN_CLASS_FORMULA)
            write_out(&e, n);
        else
            kiln_copy_node(&e, n);
    }
    d->tr = e.to;
    return true;
}
