/* Writing an operation: the checks every operation shares, then kernel, composition or conversion, then the record. */
#include <string.h>
#include "core/fail.h"
#include "ops/widen.h"
#include "trace/autocast.h"
#include "trace/trace.h"

static const char *operand_label(const kiln_tensor *t, int i, char *buffer, size_t size)
{
    const char *name = kiln_get_name(t);
    if (*name)
        return name;
    snprintf(buffer, size, "operand %d", i + 1);
    return buffer;
}

static bool is_parameter(const kiln_tensor *t)
{
    return t->leaf && t->requires_grad;
}

/* All operands on one device; KILN_NO_DEVICE with an error that names both otherwise. */
static kiln_device common_device(const kiln_call *c, kiln_device device)
{
    int first = -1;
    for (int i = 0; i < c->nin; i++) {
        if (!c->in[i])
            continue;
        if (first < 0) {
            first = i;
            device = c->in[i]->device;
        } else if (c->in[i]->device != device) {
            char a[24], b[24];
            const char *la = operand_label(c->in[first], first, a, sizeof a);
            const char *lb = operand_label(c->in[i], i, b, sizeof b);
            kiln_fail(KILN_E_DEVICE, c->op->name, "%s %s is on %s, but %s %s is on %s", la,
                      kiln_shape_text(c->in[first]->ndim, c->in[first]->shape), kiln_device_name(device), lb,
                      kiln_shape_text(c->in[i]->ndim, c->in[i]->shape), kiln_device_name(c->in[i]->device));
            bool other = is_parameter(c->in[i]) && !is_parameter(c->in[first]); /* data is moved to the model */
            kiln_hint("move %s to %s with kiln_to; kiln_module_to moves a whole model", other ? la : lb,
                      kiln_device_name(other ? c->in[i]->device : device));
            return KILN_NO_DEVICE;
        }
    }
    return device;
}

static bool check_dtypes(const kiln_call *c)
{
    /* Indices, conditions and lengths have types of their own: their shape rules check them. */
    int last = c->op->cls == KILN_CLASS_POINTWISE && c->nin > 1 && c->in[0]->dtype == c->in[1]->dtype ? c->nin : 1;
    for (int i = 0; i < last && i < c->nin; i++)
        if (c->in[i] && !(c->op->dtypes >> c->in[i]->dtype & 1)) {
            char label[24];
            kiln_fail(KILN_E_DTYPE, c->op->name, "%s %s is %s, which %s does not take",
                      operand_label(c->in[i], i, label, sizeof label), kiln_shape_text(c->in[i]->ndim, c->in[i]->shape),
                      kiln_dtype_name((kiln_dtype)c->in[i]->dtype), c->op->name);
            return kiln_hint("convert it with kiln_cast");
        }
    return true;
}

/* Sizes that no memory could hold are refused here, once for all operations. */
static bool check_outputs(const kiln_call *c)
{
    for (int j = 0; j < c->nout; j++) {
        const kiln_desc *d = &c->out[j];
        int64_t n = d->ndim <= KILN_MAX_DIMS ? kiln_count(d->ndim, d->shape) : -1;
        if (n < 0 || n > INT64_MAX / 16)
            return kiln_fail(KILN_E_SHAPE, c->op->name, "the result's shape %s is not one a tensor can have",
                             d->ndim <= KILN_MAX_DIMS ? kiln_shape_text(d->ndim, d->shape)
                                                      : "(more than 8 dimensions)");
    }
    return true;
}

/* Half precision is for storage. Kernels that know f32 only, and compositions, serve the 16-bit types by converting
 * around them, so that there is one rounding at the end. */
static bool call_through_f32(kiln_call *c, kiln_tensor **out)
{
    kiln_tensor *in[KILN_MAX_INPUTS];
    for (int i = 0; i < c->nin; i++) {
        in[i] = kiln_widen(c->in[i]);
        if (c->in[i] && !in[i])
            return false;
    }
    if (!kiln_op_call(c->op, in, c->nin, &c->attrs, out))
        return false;
    for (int j = 0; j < c->nout; j++)
        if (out[j]->dtype == KILN_F32 && !(out[j] = kiln_cast(out[j], c->out[j].dtype)))
            return false;
    return true;
}

/* Whether a composition is to run in f32. Its shape rule has said what its results are. */
static bool is_widened(const kiln_call *c, kiln_device device)
{
    const kiln_op *op = c->op;
    kiln_dtype half = KILN_DTYPES;
    for (int i = 0; i < c->nin; i++)
        if (c->in[i] && kiln_is_half((kiln_dtype)c->in[i]->dtype))
            half = (kiln_dtype)c->in[i]->dtype;
    if (half == KILN_DTYPES || !op->infer)
        return false;
    const kiln_trace *tr = op->heart ? kiln_trace_current() : NULL; /* in eager mode nothing is finished in registers */
    return !op->keeps_half || (op->heart && ((tr && tr->eager) || !kiln_device_supports(device, op->heart, half)));
}

static bool record(kiln_call *c, kiln_device device, kiln_tensor **out)
{
    kiln_tensor *in[KILN_MAX_INPUTS];
    if (kiln_needs_dense(c->op->cls)) {
        for (int i = 0; i < c->nin; i++)
            if (!(in[i] = c->in[i] ? kiln_contiguous(c->in[i]) : NULL) && c->in[i])
                return false;
        c->in = in;
    }
    kiln_trace *tr = kiln_trace_current();
    if (!tr || !kiln_trace_record(tr, c, device, NULL, out))
        return false;
    return !tr->eager || c->op->cls == KILN_CLASS_VIEW || kiln_flush(tr, false);
}

/* Writes the operation with others; until that is done, nodes are parts of what the user called. */
static bool compose(kiln_call *c, kiln_tensor **out)
{
    kiln_thread *th = kiln_thread_state();
    const kiln_op *outer = th->composing;
    if (!outer)
        th->composing = c->op;
    bool ok = false;
    kiln_inner_scope {
        ok = c->op->compose(c, out);
        for (int j = 0; ok && j < (c->op->nout ? c->op->nout : 1); j++)
            kiln_scope_hand_up(out[j]);
    }
    th->composing = outer;
    return ok;
}

static bool call_on(const kiln_op *op, kiln_tensor *const *in, int nin, const kiln_attrs *attrs, kiln_device device,
                    kiln_tensor **out)
{
    kiln_call c; /* mostly room for what few operations have: filled in, not cleared */
    c.op = op;
    c.nin = nin;
    c.nout = op->nout ? op->nout : 1;
    c.in = (kiln_tensor **)in;
    kiln_attrs_copy(&c.attrs, attrs);
    device = common_device(&c, device);
    if (device == KILN_NO_DEVICE || (nin && !check_dtypes(&c)))
        return false;
    if (op->infer && (!op->infer(&c) || !check_outputs(&c)))
        return false;
    if (op->cls == KILN_CLASS_COMPOSITE)
        return is_widened(&c, device) ? call_through_f32(&c, out) : compose(&c, out);
    if (op->cls != KILN_CLASS_VIEW && op->cls != KILN_CLASS_POINTWISE) {
        kiln_dtype dtype = nin && in[0] ? (kiln_dtype)in[0]->dtype : c.out[0].dtype;
        if (!kiln_device_supports(device, op, dtype)) {
            if (nin && in[0] && kiln_is_half((kiln_dtype)in[0]->dtype))
                return call_through_f32(&c, out);
            if (op->compose)
                return compose(&c, out);
            return kiln_fail(KILN_E_UNSUPPORTED, op->name, "%s has no kernel for %s in %s", kiln_device_name(device),
                             op->name, kiln_dtype_name(dtype));
        }
    }
    return record(&c, device, out);
}

/* Outside any scope nobody else releases what is made on the way: copies of strided operands, conversions. */
static bool call_without_scope(const kiln_op *op, kiln_tensor *const *in, int nin, const kiln_attrs *attrs,
                               kiln_device device, kiln_tensor **out)
{
    bool ok = false;
    kiln_inner_scope {
        ok = call_on(op, in, nin, attrs, device, out);
        for (int j = 0; ok && j < (op->nout ? op->nout : 1); j++)
            kiln_scope_hand_up(out[j]);
    }
    return ok;
}

static bool call(const kiln_op *op, kiln_tensor *const *in, int nin, const kiln_attrs *attrs, kiln_device device,
                 kiln_tensor **out)
{
    kiln_thread *th = kiln_thread_state();
    return th && (th->nframes ? call_on : call_without_scope)(op, in, nin, attrs, device, out);
}

/* The conversions are nobody's but the operation's; within it nothing else is converted. */
static bool call_autocast(const kiln_op *op, kiln_tensor *const *in, int nin, const kiln_attrs *attrs,
                          kiln_tensor **out)
{
    kiln_tensor *own[KILN_MAX_INPUTS];
    bool ok = false;
    kiln_inner_scope {
        if (kiln_autocast_operands(op, in, nin, own)) {
            KILN_NO_AUTOCAST;
            ok = call(op, own, nin, attrs, KILN_NO_DEVICE, out);
        }
        for (int j = 0; ok && j < (op->nout ? op->nout : 1); j++)
            kiln_scope_hand_up(out[j]);
    }
    return ok;
}

static bool call_anew(const kiln_op *op, kiln_tensor *const *in, int nin, const kiln_attrs *attrs, kiln_tensor **out)
{
    const kiln_thread *th = kiln_thread_state();
    if (th && kiln_autocasts(th, op))
        return call_autocast(op, in, nin, attrs, out);
    return call(op, in, nin, attrs, KILN_NO_DEVICE, out);
}

/* ---- As in the last step (trail.h) ---- */

static bool call_as_phrase(kiln_trace *tr, const kiln_op *op, kiln_tensor *const *in, int nin, const kiln_attrs *attrs,
                           kiln_tensor **out)
{
    bool done = false;
    if (!kiln_trail_begin_call(tr, op, in, nin, attrs, 0))
        return false;
    if (kiln_trail_has(tr) && !kiln_trail_append(tr, in, NULL, out, &done))
        return false;
    if (done)
        return true;
    kiln_trail_write(tr, false);
    bool ok = call_anew(op, in, nin, attrs, out);
    kiln_trail_written(tr, ok, in, nin, out, op->nout ? op->nout : 1);
    return ok;
}

bool kiln_op_call(const kiln_op *op, kiln_tensor *const *in, int nin, const kiln_attrs *attrs, kiln_tensor **out)
{
    for (int j = 0; j < (op->nout ? op->nout : 1); j++)
        out[j] = NULL;
    if (nin < op->min_in || nin > KILN_MAX_INPUTS || (op->max_in >= op->min_in && nin > op->max_in && op->max_in > 0))
        return kiln_fail(KILN_E_ARGUMENT, op->name, "%d operands were given", nin);
    for (int i = 0; i < nin; i++) {
        bool optional = i >= op->min_in && op->max_in >= 0;
        if (!(in[i] && in[i]->alive) && !(!in[i] && optional))
            return kiln_tensor_given(in[i], op->name, i + 1);
    }
    const kiln_thread *th = kiln_thread_state();
    kiln_trace *tr = th ? th->trace : NULL;
    if (tr && !tr->walks && kiln_trail_can_begin(tr))
        return call_as_phrase(tr, op, in, nin, attrs, out);
    return call_anew(op, in, nin, attrs, out);
}

kiln_tensor *kiln_op_one(const kiln_op *op, kiln_tensor *const *in, int nin, const kiln_attrs *attrs)
{
    kiln_tensor *out[KILN_MAX_OUTPUTS];
    return kiln_op_call(op, in, nin, attrs, out) ? out[0] : NULL;
}

kiln_tensor *kiln_op_create(const kiln_op *op, const kiln_attrs *attrs, kiln_device device)
{
    kiln_tensor *out[KILN_MAX_OUTPUTS];
    if (device == KILN_NO_DEVICE)
        return kiln_fail(KILN_E_DEVICE, op->name, "there is no device to make the tensor on");
    bool ok = false;
    kiln_on_device (device) /* compositions make their parts there too */
        ok = call(op, NULL, 0, attrs, device, out);
    return ok ? out[0] : NULL;
}
