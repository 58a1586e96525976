/* Building and recording programs. */
#include "trace/program.h"
#include <string.h>
#include "core/fail.h"
#include "trace/trace.h"

const kiln_op kiln_op_program = {.name = "program", .cls = KILN_CLASS_PROGRAM, .dtypes = KILN_T_FLOATS};

/* ---- Building ---- */

void kiln_program_begin(kiln_program *p, kiln_tensor *const *in, int n)
{
    p->call.op = &kiln_op_program;
    p->call.nin = n;
    p->call.nout = 0;
    p->call.attrs.nints = p->call.attrs.nfloats = p->nrows = 0;
    p->full = n > KILN_PROGRAM_INPUTS;
    if (!p->full)
        kiln_program_set_inputs(p, in);
}

void kiln_program_set_inputs(kiln_program *p, kiln_tensor *const *in)
{
    for (int i = 0; i < p->call.nin; i++)
        p->in[i] = in[i];
}

/* Half of an integer: the row and two registers. */
static uint32_t half_of(kiln_pw_id row, kiln_register a, kiln_register b)
{
    return (uint32_t)row << 16 | (uint32_t)a << 8 | (uint32_t)b;
}

kiln_program_row kiln_program_row_at(const int64_t *ints, int i)
{
    uint32_t half = (uint32_t)((uint64_t)ints[i / 2] >> (i % 2 * 32));
    return (kiln_program_row){(kiln_pw_id)(half >> 16), {(int)(half >> 8 & 255), (int)(half & 255)}};
}

kiln_register kiln_program_put(kiln_program *p, kiln_pw_id row, kiln_register a, kiln_register b, double s)
{
    kiln_attrs *attrs = &p->call.attrs;
    int i = p->nrows;
    if (i == KILN_PROGRAM_ROWS || attrs->nfloats == KILN_MAX_FLOATS) {
        p->full = true;
        return 0;
    }
    if (kiln_pw_rows[row].scalars)
        attrs->f[attrs->nfloats++] = s;
    uint64_t half = half_of(row, a, kiln_pw_rows[row].arity > 1 ? b : 0);
    if (i % 2 == 0)
        attrs->i[attrs->nints++] = (int64_t)half;
    else
        attrs->i[i / 2] |= (int64_t)(half << 32);
    p->nrows++;
    return p->call.nin + i;
}

void kiln_program_assign(kiln_program *p, kiln_register to, kiln_register value)
{
    if (p->call.nout == KILN_MAX_OUTPUTS)
        p->full = true;
    else
        p->to[p->call.nout++] = to;
    kiln_program_put(p, KILN_PW_copy, value, 0, 0);
}

/* ---- Recording ---- */

static bool is_like(const kiln_tensor *a, const kiln_tensor *b)
{
    if (a->device != b->device || a->dtype != b->dtype || a->ndim != b->ndim)
        return false;
    for (int d = 0; d < a->ndim; d++)
        if (a->shape[d] != b->shape[d])
            return false;
    return true;
}

/* True if the program can be a node: one shape, and each destination a storage that has memory, whole. */
static bool is_uniform(const kiln_program *p)
{
    const kiln_tensor *first = p->in[p->to[0]];
    if (kiln_thread_state()->grad_enabled || !kiln_dtype_is_float((kiln_dtype)first->dtype))
        return false;
    for (int i = 0; i < p->call.nin; i++)
        if (p->in[i] && p->in[i] != first && !is_like(p->in[i], first))
            return false;
    for (int j = 0; j < p->call.nout; j++)
        if (!p->in[p->to[j]]->storage->has_memory || !kiln_tensor_is_whole(p->in[p->to[j]]))
            return false;
    return true;
}

static bool record_node(kiln_trace *tr, kiln_program *p)
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
static bool write_rows(const kiln_program *p)
{
    kiln_tensor *value[KILN_PROGRAM_REGISTERS];
    const kiln_attrs *attrs = &p->call.attrs;
    const double *scalar = attrs->f;
    int assigned = 0, nin = p->call.nin;
    for (int i = 0; i < nin; i++)
        value[i] = p->in[i];
    for (int i = 0; i < p->nrows; i++) {
        kiln_program_row r = kiln_program_row_at(attrs->i, i);
        if (r.row == KILN_PW_copy) {
            if (!kiln_assign(p->in[p->to[assigned++]], value[r.src[0]]))
                return false;
            continue;
        }
        const kiln_pw_row *row = &kiln_pw_rows[r.row];
        kiln_attrs own = {.nfloats = row->scalars};
        for (int k = 0; k < row->scalars; k++)
            own.f[k] = *scalar++;
        kiln_tensor *in[2] = {value[r.src[0]], value[r.src[1]]};
        if (!(value[nin + i] = kiln_pw_call(kiln_pw_op(r.row), in, row->arity, &own)))
            return false;
    }
    return true;
}

bool kiln_program_record(kiln_program *p)
{
    kiln_trace *tr = kiln_trace_current();
    if (!tr)
        return false;
    if (p->full || !p->call.nout)
        return kiln_fail(KILN_E_STATE, "program", "it assigns nothing, or has more rows than there is room for");
    if (is_uniform(p))
        return record_node(tr, p);
    bool ok = false;
    kiln_inner_scope
        ok = write_rows(p);
    return ok;
}
