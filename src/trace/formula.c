/* Building and recording formulas. */
#include "trace/formula.h"
#include <string.h>
#include "core/fail.h"
#include "trace/trace.h"

const kiln_op kiln_op_formula = {.name = "formula", .cls = KILN_CLASS_FORMULA, .dtypes = KILN_T_ALL};

/* ---- Building ---- */

void kiln_formula_begin(kiln_formula *p, kiln_tensor *const *in, int n)
{
    p->call.op = &kiln_op_formula;
    p->call.nin = n;
    p->call.nout = 0;
    p->call.attrs.nints = p->call.attrs.nfloats = p->nrows = 0;
    p->uneven = false;
    p->full = n > KILN_FORMULA_INPUTS;
    if (p->full)
        return;
    kiln_formula_set_inputs(p, in);
    for (int i = 0; i < n; i++)
        if (in[i])
            p->dtype[i] = in[i]->dtype;
}

void kiln_formula_expect(kiln_formula *p, kiln_register input, kiln_dtype dtype)
{
    p->dtype[input] = (uint8_t)dtype;
}

void kiln_formula_set_inputs(kiln_formula *p, kiln_tensor *const *in)
{
    for (int i = 0; i < p->call.nin; i++)
        p->in[i] = in[i];
}

/* Half of an integer: the row and three registers of 7 bits. */
static uint32_t half_of(int row, kiln_register a, kiln_register b, kiln_register c)
{
    return (uint32_t)row << 21 | (uint32_t)a << 14 | (uint32_t)b << 7 | (uint32_t)c;
}

_Static_assert(KILN_FORMULA_REGISTERS <= 128 && KILN_FORMULA_COUNT < 2048, "a row must fit half of an integer");

kiln_formula_row kiln_formula_row_at(const int64_t *ints, int i)
{
    uint32_t half = (uint32_t)((uint64_t)ints[i / 2] >> (i % 2 * 32));
    return (kiln_formula_row){(int)(half >> 21), {half >> 14 & 127, half >> 7 & 127, half & 127}};
}

/* Writes a row; the register that it makes. */
static kiln_register write(kiln_formula *p, int row, kiln_register a, kiln_register b, kiln_register c)
{
    kiln_attrs *attrs = &p->call.attrs;
    int i = p->nrows;
    if (p->full || i == KILN_FORMULA_ROWS) {
        p->full = true;
        return 0;
    }
    uint64_t half = half_of(row, a, b, c);
    if (i % 2 == 0)
        attrs->i[attrs->nints++] = (int64_t)half;
    else
        attrs->i[i / 2] |= (int64_t)(half << 32);
    p->nrows++;
    return p->call.nin + i;
}

kiln_dtype kiln_formula_dtype(int row, const uint8_t operands[3])
{
    switch (kiln_pw_rows[row].kind) {
    case KILN_PW_IS_TEST: return KILN_BOOL;
    case KILN_PW_IS_PICK: return operands[1];
    default: return operands[0];
    }
}

/* Whether a row can take operands of these types as they are. */
static bool takes(const kiln_pw_row *row, const uint8_t operands[3])
{
    bool pick = row->kind == KILN_PW_IS_PICK;
    bool even = !pick || operands[0] == KILN_BOOL;
    for (int k = pick + 1; k < row->arity; k++)
        even &= operands[k] == operands[(int)pick];
    return even && row->classes >> kiln_pw_class_of((kiln_dtype)operands[(int)pick]) & 1;
}

kiln_register kiln_formula_put(kiln_formula *p, kiln_pw_id row, kiln_register a, kiln_register b, double s)
{
    return kiln_formula_put3(p, row, a, b, 0, s);
}

kiln_register kiln_formula_put3(kiln_formula *p, kiln_pw_id row, kiln_register a, kiln_register b, kiln_register c,
                                double s)
{
    const kiln_pw_row *is = &kiln_pw_rows[row];
    kiln_attrs *attrs = &p->call.attrs;
    p->full |= is->scalars && attrs->nfloats == KILN_MAX_FLOATS;
    kiln_register made = write(p, row, a, is->arity > 1 ? b : 0, is->arity > 2 ? c : 0);
    if (p->full)
        return 0;
    if (is->scalars)
        attrs->f[attrs->nfloats++] = s;
    const uint8_t operands[3] = {p->dtype[a], p->dtype[b], p->dtype[c]};
    p->uneven |= !takes(is, operands);
    p->dtype[made] = (uint8_t)kiln_formula_dtype(row, operands);
    return made;
}

kiln_register kiln_formula_cast(kiln_formula *p, kiln_register a, kiln_dtype dtype)
{
    kiln_register made = write(p, KILN_PW_cast, a, (kiln_register)dtype, 0);
    if (!p->full)
        p->dtype[made] = (uint8_t)dtype;
    return made;
}

/* ---- What it ends in ---- */

/* `row` makes the next output of the register. */
static void end_in(kiln_formula *p, int row, kiln_register value)
{
    p->full |= p->call.nout == KILN_MAX_OUTPUTS;
    write(p, row, value, 0, 0);
    if (!p->full)
        p->call.nout++;
}

void kiln_formula_assign(kiln_formula *p, kiln_register to, kiln_register value)
{
    end_in(p, KILN_PW_copy, value);
    if (p->full)
        return;
    p->to[p->call.nout - 1] = to;
    p->uneven |= p->dtype[to] != p->dtype[value];
}

void kiln_formula_result(kiln_formula *p, kiln_register value)
{
    end_in(p, KILN_PW_copy, value);
    if (p->full)
        return;
    p->to[p->call.nout - 1] = 0;
    p->call.out[p->call.nout - 1].dtype = (kiln_dtype)p->dtype[value];
}

void kiln_formula_count(kiln_formula *p, kiln_register flag)
{
    end_in(p, KILN_FORMULA_COUNT, flag);
    if (p->full)
        return;
    p->to[p->call.nout - 1] = -1;
    p->call.out[p->call.nout - 1].dtype = KILN_I64;
    p->uneven |= p->dtype[flag] != KILN_BOOL;
}

/* ---- Recording ---- */

/* Whether t can be an operand where rows are like `out`: broadcast or of their shape. */
static bool suits(const kiln_tensor *t, const kiln_tensor *out)
{
    int more = out->ndim - t->ndim;
    if (t->device != out->device || more < 0)
        return false;
    for (int d = 0; d < t->ndim; d++)
        if (t->shape[d] != out->shape[d + more] && t->shape[d] != 1)
            return false;
    return true;
}

static bool has_shape_of(const kiln_tensor *a, const kiln_tensor *b)
{
    if (a->ndim != b->ndim)
        return false;
    for (int d = 0; d < a->ndim; d++)
        if (a->shape[d] != b->shape[d])
            return false;
    return true;
}

/* True if the formula, whose rows are like `first`, can be a node. */
static bool is_uniform(const kiln_formula *p, const kiln_tensor *first)
{
    if (p->uneven || kiln_thread_state()->grad_enabled)
        return false;
    for (int i = 0; i < p->call.nin; i++)
        if (p->in[i] && (p->in[i]->dtype != p->dtype[i] || !suits(p->in[i], first)))
            return false;
    return true;
}

/* Destinations are of one shape, each a storage that has memory, whole. */
static bool can_assign(const kiln_formula *p)
{
    const kiln_tensor *first = p->in[p->to[0]];
    for (int j = 0; j < p->call.nout; j++) {
        const kiln_tensor *to = p->in[p->to[j]];
        if (!has_shape_of(to, first) || !to->storage->has_memory || !kiln_tensor_is_whole(to))
            return false;
    }
    return is_uniform(p, first);
}

static bool record_node(kiln_trace *tr, kiln_formula *p, kiln_tensor *const *to, bool phrase)
{
    for (int j = 0; j < p->call.nout; j++)
        kiln_desc_like(&p->call.out[j], to[j]);
    if (phrase)
        kiln_trail_write(tr, true);
    bool ok = kiln_trace_assign(tr, &p->call, to);
    if (phrase)
        kiln_trail_written(tr, ok, NULL, 0, NULL, 0);
    return ok;
}

/* As a phrase (trail.h), where it can be one. */
static bool record_results(kiln_trace *tr, const kiln_call *c, kiln_tensor **out)
{
    bool done = false;
    if (tr->walks || !kiln_trail_can_begin(tr))
        return kiln_trace_record(tr, c, c->in[0]->device, NULL, out);
    if (!kiln_trail_begin_call(tr, c->op, c->in, c->nin, &c->attrs, 0) ||
        (kiln_trail_has(tr) && !kiln_trail_append(tr, c->in, NULL, out, &done)))
        return false;
    if (done) {
        kiln_trail_set_numbers(tr, &c->attrs);
        return true;
    }
    kiln_trail_write(tr, false);
    bool ok = kiln_trace_record(tr, c, c->in[0]->device, NULL, out);
    kiln_trail_written(tr, ok, c->in, c->nin, out, c->nout);
    return ok;
}

static bool compute_node(kiln_trace *tr, kiln_formula *p, kiln_tensor **out)
{
    for (int j = 0; j < p->call.nout; j++) {
        kiln_desc *d = &p->call.out[j];
        kiln_desc_set(d, d->dtype, p->to[j] < 0 ? 0 : p->in[0]->ndim, p->in[0]->shape);
    }
    p->call.in = p->in;
    return record_results(tr, &p->call, out) && (!tr->eager || kiln_flush(tr, false));
}

/* ---- Operation by operation ---- */

typedef struct writing {
    const kiln_formula *p;
    kiln_tensor *value[KILN_FORMULA_REGISTERS];
    const double *scalar; /* the next one */
} writing;

static kiln_tensor *write_row(writing *w, kiln_formula_row r)
{
    kiln_tensor *in[3] = {w->value[r.src[0]]};
    if (r.row == KILN_PW_cast)
        return kiln_cast(in[0], (kiln_dtype)r.src[1]);
    const kiln_pw_row *row = &kiln_pw_rows[r.row];
    kiln_attrs own = {.nfloats = row->scalars};
    for (int k = 0; k < row->scalars; k++)
        own.f[k] = *w->scalar++;
    for (int k = 1; k < row->arity; k++)
        in[k] = w->value[r.src[k]];
    const kiln_op *op = kiln_pw_op((kiln_pw_id)r.row);
    if (row->kind != KILN_PW_IS_PICK)
        return kiln_pw_call(op, in, row->arity, &own);
    kiln_dtype dtype = kiln_pw_promote(row->arity - 1, in + 1); /* the condition is a flag, whatever the others are */
    for (int k = 1; k < row->arity; k++)
        in[k] = kiln_cast(in[k], dtype);
    return kiln_op_one(op, in, row->arity, &own);
}

/* The output j of a formula that ends in results; out is NULL where it ends in assignments. */
static bool write_end(const writing *w, kiln_formula_row r, int j, kiln_tensor **out)
{
    const kiln_formula *p = w->p;
    kiln_tensor *value = w->value[r.src[0]];
    if (!out)
        return kiln_assign(p->in[p->to[j]], value);
    if (p->to[j] < 0)
        out[j] = kiln_sum_all(kiln_cast(value, KILN_BOOL));
    else
        out[j] = kiln_clone(kiln_expand(kiln_cast(value, p->call.out[j].dtype), p->in[0]->ndim, p->in[0]->shape));
    if (out[j])
        kiln_scope_hand_up(out[j]);
    return out[j] != NULL;
}

static bool write_rows(const kiln_formula *p, kiln_tensor **out)
{
    writing w = {.p = p, .scalar = p->call.attrs.f};
    int ended = 0;
    for (int i = 0; i < p->call.nin; i++)
        w.value[i] = p->in[i];
    for (int i = 0; i < p->nrows; i++) {
        kiln_formula_row r = kiln_formula_row_at(p->call.attrs.i, i);
        bool ok = kiln_formula_row_ends(r.row) ? write_end(&w, r, ended++, out)
                                               : (w.value[p->call.nin + i] = write_row(&w, r)) != NULL;
        if (!ok)
            return false;
    }
    return true;
}

/* The trace that it can be written to; NULL with an error. */
static kiln_trace *trace_for(const kiln_formula *p)
{
    kiln_trace *tr = kiln_trace_current();
    if (tr && !p->full && p->call.nout)
        return tr;
    return tr ? kiln_fail(KILN_E_STATE, "formula", "it ends in nothing, or has more rows than there is room for")
              : NULL;
}

/* Whether what it assigns to has memory, which may come and go, and everything else is part of a phrase's key. */
static bool may_repeat(const kiln_trace *tr, const kiln_formula *p, kiln_tensor *const *to)
{
    for (int j = 0; j < p->call.nout; j++)
        if (!to[j]->storage->has_memory)
            return false;
    return !p->uneven && !tr->walks && kiln_trail_can_begin(tr);
}

bool kiln_formula_record(kiln_formula *p)
{
    kiln_trace *tr = trace_for(p);
    kiln_tensor *to[KILN_MAX_OUTPUTS];
    bool ok = false, done = false;
    if (!tr)
        return false;
    for (int j = 0; j < p->call.nout; j++)
        to[j] = p->in[p->to[j]];
    p->call.in = p->in;
    bool phrase = may_repeat(tr, p, to);
    if (phrase && (!kiln_trace_assign_again(tr, &p->call, to, &done) || done))
        return done;
    if (can_assign(p))
        return record_node(tr, p, to, phrase);
    kiln_inner_scope
        ok = write_rows(p, NULL);
    return ok;
}

bool kiln_formula_compute(kiln_formula *p, kiln_tensor **out)
{
    kiln_trace *tr = trace_for(p);
    if (!tr || is_uniform(p, p->in[0]))
        return tr && compute_node(tr, p, out);
    bool ok = false;
    kiln_inner_scope
        ok = write_rows(p, out);
    return ok;
}
