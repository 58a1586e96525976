/* Autocast: see autocast.h. */
#include "trace/autocast.h"
#include "core/fail.h"
#include "kiln/ops.h"
#include "ops/widen.h"
#include "tensor/scope.h"

kiln_autocast_scope kiln_autocast_scope_enter(kiln_dtype dtype)
{
    kiln_thread *th = kiln_thread_state();
    kiln_autocast_scope scope = {.saved = th ? (kiln_dtype)th->autocast : KILN_F32, .active = true};
    if (dtype != KILN_F32 && !(dtype >= 0 && dtype < KILN_DTYPES && kiln_is_half(dtype))) {
        kiln_fail(KILN_E_DTYPE, "autocast", "autocast to %s is not possible",
                  dtype >= 0 && dtype < KILN_DTYPES ? kiln_dtype_name(dtype) : "no dtype");
        kiln_hint("KILN_BF16 and KILN_F16 are, and KILN_F32 switches it off");
    } else if (th)
        th->autocast = (uint8_t)dtype;
    return scope;
}

void kiln_autocast_scope_leave(kiln_autocast_scope *scope)
{
    kiln_thread *th = kiln_thread_state();
    if (scope->active && th)
        th->autocast = (uint8_t)scope->saved;
    scope->active = false;
}

void kiln_autocast_scope_end(kiln_autocast_scope *scope)
{
    kiln_thread *th = kiln_thread_state();
    if (scope->inside && th && !th->told_broken_block) {
        th->told_broken_block = true;
        kiln_scope_broken("kiln_autocast", "the loop goes on");
    }
    kiln_autocast_scope_leave(scope);
}

kiln_dtype kiln_autocast_dtype(void)
{
    const kiln_thread *th = kiln_thread_state();
    return th ? (kiln_dtype)th->autocast : KILN_F32;
}

static bool takes_part(const kiln_tensor *t)
{
    return t && (t->dtype == KILN_F32 || kiln_is_half((kiln_dtype)t->dtype));
}

/* The widest of the operands' types: two different halves meet in f32. */
static kiln_dtype widest(kiln_tensor *const *in, int nin)
{
    kiln_dtype found = KILN_DTYPES;
    for (int i = 0; i < nin; i++)
        if (takes_part(in[i]))
            found = found == KILN_DTYPES || found == (kiln_dtype)in[i]->dtype ? (kiln_dtype)in[i]->dtype : KILN_F32;
    return found;
}

static kiln_dtype wanted_by(const kiln_op *op, kiln_dtype lower, kiln_tensor *const *in, int nin)
{
    switch (op->autocast) {
    case KILN_CAST_LOWER: return lower;
    case KILN_CAST_FLOAT: return KILN_F32;
    default: return widest(in, nin);
    }
}

bool kiln_autocast_operands(const kiln_op *op, kiln_tensor *const *in, int nin, kiln_tensor **to)
{
    kiln_dtype wanted = wanted_by(op, kiln_autocast_dtype(), in, nin);
    for (int i = 0; i < nin; i++) {
        to[i] = takes_part(in[i]) && (kiln_dtype)in[i]->dtype != wanted ? kiln_cast(in[i], wanted) : in[i];
        if (in[i] && !to[i])
            return false;
    }
    return true;
}
