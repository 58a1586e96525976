/* Building and recording formulas. */
#include "trace/formula.h"
#include <string.h>
#include "core/fail.h"
#include "trace/trace.h"

const kiln_op kiln_op_formula = {.name = "formula", .cls = KILN_CLASS_FORMULA, .dtypes = KILN_T_FLOATS};

/* ---- Building ---- */

void kiln_formula_begin(kiln_formula *p, kiln_tensor *const *in, int n)
{
    p->call.op = &kiln_op_formula;
    p->call.nin = n;
    p->call.nout = 0;
    p->call.attrs.nints = p->call.attrs.nfloats = p->nrows = 0;
    p->full = n > KILN_FORMULA_INPUTS;
    if (!p->full)
        kiln_formula_set_inputs(p, in);
}

void kiln_formula_set_inputs(kiln_formula *p, kiln_tensor *const *in)
{
    for (int i = 0; i < p->call.nin; i++)
        p->in[i] = in[i];
}

/* Half of an integer: the row and three registers of 7 bits. */
static uint32_t half_of(kiln_pw_id row, kiln_register a, kiln_register b, kiln_register c)
{
    return (uint32_t)row << 21 | (uint32_t)a << 14 | (uint32_t)b << 7 | (uint32_t)c;
}

_Static_assert(KILN_FORMULA_REGISTERS <= 128 && KILN_PW_ROWS <= 2048, "a row must fit half of an integer");

kiln_formula_row kiln_formula_row_at(const int64_t *ints, int i)
{
    uint32_t half = (uint32_t)((uint64_t)ints[i / 2] >> (i % 2 * 32));
    return (kiln_formula_row){(kiln_pw_id)(half >> 21), {half >> 14 & 127, half >> 7 & 127, half & 127}};
}

kiln_register kiln_formula_put(kiln_formula *p, kiln_pw_id row, kiln_register a, kiln_register b, double s)
{
    return kiln_formula_put3(p, row, a, b, 0, s);
}

kiln_register kiln_formula_put3(kiln_formula *p, kiln_pw_id row, kiln_register a, kiln_register b, kiln_register c,
                                double s)
{
    kiln_attrs *attrs = &p->call.attrs;
    int i = p->nrows, arity = kiln_pw_rows[row].arity;
    if (i == KILN_FORMULA_ROWS || attrs->nfloats == KILN_MAX_FLOATS) {
        p->full = true;
        return 0;
    }
    if (kiln_pw_rows[row].scalars)
        attrs->f[attrs->nfloats++] = s;
    uint64_t half = half_of(row, a, arity > 1 ? b : 0, arity > 2 ? c : 0);
    if (i % 2 == 0)
        attrs->i[attrs->nints++] = (int64_t)half;
    else
        attrs->i[i / 2] |= (int64_t)(half << 32);
    p->nrows++;
    return p->call.nin + i;
}

void kiln_formula_assign(kiln_formula *p, kiln_register to, kiln_register value)
{
    if (p->call.nout == KILN_MAX_OUTPUTS)
        p->full = true;
    else
        p->to[p->call.nout++] = to;
    kiln_formula_put(p, KILN_PW_copy, value, 0, 0);
}

/* ---- Recording ---- */

/* Whether t can be an operand where results are like `out`: their type or a flag, broadcast or of their shape. */
static bool suits(const kiln_tensor *t, const kiln_tensor *out)
{
    int more = out->ndim - t->ndim;
    if (t->device != out->device || (t->dtype != out->dtype && t->dtype != KILN_BOOL) || more < 0)
        return false;
    for (int d = 0; d < t->ndim; d++)
        if (t->shape[d] != out->shape[d + more] && t->shape[d] != 1)
            return false;
    return true;
}

static bool is_like(const kiln_tensor *a, const kiln_tensor *b)
{
    if (a->device != b->device || a->dtype != b->dtype || a->ndim != b->ndim)
        return false;
    for (int d = 0; d < a->ndim; d++)
        if (a->shape[d] != b->shape[d])
            return false;
    return true;
}

/* True if the formula can be a node: destinations of one shape, each a storage that has memory, whole. */
static bool is_uniform(const kiln_formula *p)
{
    const kiln_tensor *first = p->in[p->to[0]];
    unsigned others = 0; /* a bit for each input that is not like the destinations */
    if (kiln_thread_state()->grad_enabled || !kiln_dtype_is_float((kiln_dtype)first->dtype))
        return false;
    for (int i = 0; i < p->call.nin; i++) {
        if (!p->in[i] || p->in[i] == first || is_like(p->in[i], first))
            continue;
        if (!suits(p->in[i], first))
            return false;
        others |= 1u << i;
    }
    for (int j = 0; j < p->call.nout; j++) {
        const kiln_tensor *to = p->in[p->to[j]];
        if (others >> p->to[j] & 1 || !to->storage->has_memory || !kiln_tensor_is_whole(to))
            return false;
    }
    return true;
}

static bool record_node(kiln_trace *tr, kiln_formula *p)
{
    kiln_tensor *to[KILN_MAX_OUTPUTS];
    for (int j = 0; j < p->call.nout; j++) {
        to[j] = p->in[p->to[j]];
        kiln_desc_like(&p->call.out[j], to[j]);
    }
    p->call.in = p->in;
    return kiln_trace_assign(tr, &p->call, to);
}

/* The same, operation by operation. */
static bool write_rows(const kiln_formula *p)
{
    kiln_tensor *value[KILN_FORMULA_REGISTERS];
    const kiln_attrs *attrs = &p->call.attrs;
    const double *scalar = attrs->f;
    int assigned = 0, nin = p->call.nin;
    for (int i = 0; i < nin; i++)
        value[i] = p->in[i];
    for (int i = 0; i < p->nrows; i++) {
        kiln_formula_row r = kiln_formula_row_at(attrs->i, i);
        if (r.row == KILN_PW_copy) {
            if (!kiln_assign(p->in[p->to[assigned++]], value[r.src[0]]))
                return false;
            continue;
        }
        const kiln_pw_row *row = &kiln_pw_rows[r.row];
        kiln_attrs own = {.nfloats = row->scalars};
        for (int k = 0; k < row->scalars; k++)
            own.f[k] = *scalar++;
        kiln_tensor *in[3] = {value[r.src[0]], value[r.src[1]], value[r.src[2]]};
        if (!(value[nin + i] = kiln_pw_call(kiln_pw_op(r.row), in, row->arity, &own)))
            return false;
    }
    return true;
}

bool kiln_formula_record(kiln_formula *p)
{
    kiln_trace *tr = kiln_trace_current();
    if (!tr)
        return false;
    if (p->full || !p->call.nout)
        return kiln_fail(KILN_E_STATE, "formula", "it assigns nothing, or has more rows than there is room for");
    if (is_uniform(p))
        return record_node(tr, p);
    bool ok = false;
    kiln_inner_scope
        ok = write_rows(p);
    return ok;
}
