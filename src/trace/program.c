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
    p->call.attrs.nints = p->call.attrs.nfloats = 0;
    p->full = n > KILN_PROGRAM_INPUTS;
    for (int i = 0; i < n && !p->full; i++)
        p->in[i] = in[i];
}

static int64_t word_of(kiln_pw_id row, kiln_register a, kiln_register b)
{
    return (int64_t)row << 16 | a << 8 | b;
}

kiln_program_row kiln_program_row_of(int64_t word)
{
    return (kiln_program_row){(kiln_pw_id)(word >> 16), {(int)(word >> 8 & 255), (int)(word & 255)}};
}

kiln_register kiln_program_put(kiln_program *p, kiln_pw_id row, kiln_register a, kiln_register b, double s)
{
    kiln_attrs *attrs = &p->call.attrs;
    if (attrs->nints == KILN_MAX_INTS || attrs->nfloats == KILN_MAX_FLOATS) {
        p->full = true;
        return 0;
    }
    if (kiln_pw_rows[row].scalars)
        attrs->f[attrs->nfloats++] = s;
    attrs->i[attrs->nints++] = word_of(row, a, kiln_pw_rows[row].arity > 1 ? b : 0);
    return p->call.nin + attrs->nints - 1;
}

void kiln_program_assign(kiln_program *p, kiln_tensor *to, kiln_register value)
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
    return a->device == b->device && a->dtype == b->dtype && a->ndim == b->ndim &&
           memcmp(a->shape, b->shape, a->ndim * sizeof *a->shape) == 0;
}

/* True if the program can be a node: one shape, and each destination a storage that has memory, whole. */
static bool is_uniform(const kiln_program *p)
{
    const kiln_tensor *first = p->to[0];
    if (kiln_thread_state()->grad_enabled || !kiln_dtype_is_float((kiln_dtype)first->dtype))
        return false;
    for (int i = 0; i < p->call.nin; i++)
        if (p->in[i] && !is_like(p->in[i], first))
            return false;
    for (int j = 0; j < p->call.nout; j++)
        if (!is_like(p->to[j], first) || !p->to[j]->storage->has_memory || !kiln_tensor_is_whole(p->to[j]))
            return false;
    return true;
}

static bool record_node(kiln_trace *tr, kiln_program *p)
{
    for (int j = 0; j < p->call.nout; j++)
        kiln_desc_like(&p->call.out[j], p->to[j]);
    p->call.in = p->in;
    return kiln_trace_assign(tr, &p->call, p->to);
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
    for (int i = 0; i < attrs->nints; i++) {
        kiln_program_row r = kiln_program_row_of(attrs->i[i]);
        if (r.row == KILN_PW_copy) {
            if (!kiln_assign(p->to[assigned++], value[r.src[0]]))
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
    kiln_scope
        ok = write_rows(p);
    return ok;
}
