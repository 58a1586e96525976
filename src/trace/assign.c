/* Assignment and moving between devices: the operations that know about storages. */
#include <string.h>
#include "core/alloc.h"
#include "core/fail.h"
#include "ops/helpers.h"
#include "ops/pointwise.h"
#include "ops/view.h"
#include "tensor/memory.h"
#include "tensor/share.h"
#include "trace/shapes.h"

extern const kiln_op kiln_op_assign, kiln_op_to_device, kiln_op_as_strided_put, kiln_op_straight_through;

/* ---- Records ---- */

static bool infer_same(kiln_call *c)
{
    kiln_desc_like(&c->out[0], c->in[0]);
    return true;
}

static bool grad_same(kiln_grad_call *g)
{
    g->gin[0] = g->gout[0];
    return true;
}

/* The value that a storage holds from now on: a copy of the source, bound to that storage. */
const kiln_op kiln_op_assign = {.name = "assign",
                                .cls = KILN_CLASS_POINTWISE,
                                .pointwise = KILN_PW_copy,
                                .dtypes = KILN_T_ALL,
                                .min_in = 1,
                                .max_in = 1,
                                .infer = infer_same,
                                .grad_reads = {KILN_READS_NOTHING},
                                .grad = grad_same,
                                .cases = KILN_CASES{"x[2,3]", "x[]", "x[0]", NULL}};

static bool grad_to_device(kiln_grad_call *g)
{
    g->gin[0] = kiln_to(g->gout[0], g->in[0]->device);
    return g->gin[0] != NULL;
}

const kiln_op kiln_op_to_device = {.name = "to",
                                   .attrs = "device",
                                   .cls = KILN_CLASS_TRANSFER,
                                   .dtypes = KILN_T_ALL,
                                   .min_in = 1,
                                   .max_in = 1,
                                   .infer = infer_same,
                                   .grad = grad_to_device};

/* f(base, x) = base with x written at the places of a strided window: ints are the window's strides and offset; or the
 * offset is its only float. */
static bool infer_put(kiln_call *c)
{
    if (!kiln_check_same_dtype(c, 0, 1) || !kiln_check_attr(c, c->attrs.nints + c->attrs.nfloats == c->in[1]->ndim + 1,
                                                            "strides and offset do not fit the operand"))
        return false;
    int64_t low = c->attrs.nfloats ? 0 : c->attrs.i[c->in[1]->ndim], high = low;
    for (int d = 0; d < c->in[1]->ndim; d++) {
        int64_t reach = (c->in[1]->shape[d] - 1) * c->attrs.i[d];
        *(reach < 0 ? &low : &high) += reach;
    }
    bool inside = kiln_numel(c->in[1]) == 0 || (low >= 0 && high < kiln_numel(c->in[0]));
    kiln_desc_like(&c->out[0], c->in[0]);
    return kiln_check_attr(c, inside, "the window reaches outside the base %s",
                           kiln_shape_text(c->in[0]->ndim, c->in[0]->shape));
}

static bool grad_put(kiln_grad_call *g)
{
    kiln_tensor *x = g->in[1], *go = kiln_contiguous(g->gout[0]);
    const int64_t *stride = g->attrs->i;
    if (g->need[0]) {
        kiln_tensor *zero = kiln_zeros_like(x);
        kiln_attrs a = *g->attrs;
        g->gin[0] = zero ? kiln_op_one(&kiln_op_as_strided_put, KILN_IN(go, zero), &a) : NULL;
    }
    if (g->need[1])
        g->gin[1] = g->attrs->nfloats ? kiln_strided_copy(go, x->ndim, x->shape, stride, g->attrs->f[0])
                                      : kiln_as_strided(go, x->ndim, x->shape, stride, stride[x->ndim]);
    return (!g->need[0] || g->gin[0]) && (!g->need[1] || g->gin[1]);
}

const kiln_op kiln_op_as_strided_put = {
    .name = "as_strided_put",
    .attrs = "stride... offset",
    .start = KILN_START_LAST,
    .cls = KILN_CLASS_INDEX,
    .dtypes = KILN_T_ALL,
    .min_in = 2,
    .max_in = 2,
    .infer = infer_put,
    .grad_reads = {KILN_READS_NOTHING},
    .grad = grad_put,
    .cases = KILN_CASES{"x[4,5] x[2,3] | 10 2 1", "x[6] x[3] | -2 5", "x[3,3] x[3] | 4 0", "x[4] x[0] | 1 0",
                        "x[4,5] x[2,3] | 10 2 | 1", "x[3,3] x[3] | 3 | 2", "x[5] x[] | | 3", NULL}};

/* f(x, path) = x, with the gradient going to `path`: what x, a dense tensor, shows of the same memory before something
 * was assigned to it that gradients take no notice of. */
static bool infer_straight_through(kiln_call *c)
{
    kiln_desc *d = kiln_view_start(c);
    return kiln_check_same_dtype(c, 0, 1) && kiln_check_attr(c, kiln_is_contiguous(c->in[0]), "x is not dense") &&
           kiln_check_attr(c,
                           kiln_view_fits(c->in[1]->ndim, c->in[1]->shape, c->in[1]->stride, c->in[1]->offset,
                                          kiln_count(d->ndim, d->shape)),
                           "the path reaches outside of x");
}

static bool grad_straight_through(kiln_grad_call *g)
{
    const kiln_tensor *path = g->in[1];
    if (g->need[1])
        g->gin[1] = kiln_as_strided(g->gout[0], path->ndim, path->shape, path->stride, path->offset);
    return !g->need[1] || g->gin[1];
}

const kiln_op kiln_op_straight_through = {.name = "straight_through",
                                          .cls = KILN_CLASS_VIEW,
                                          .dtypes = KILN_T_ALL,
                                          .min_in = 2,
                                          .max_in = 2,
                                          .infer = infer_straight_through,
                                          .grad = grad_straight_through};

const kiln_op *const kiln_ops_move[] = {&kiln_op_assign, &kiln_op_to_device, &kiln_op_as_strided_put,
                                        &kiln_op_straight_through, NULL};

/* ---- Assignment ---- */

/* The source in the destination's dtype and shape. */
static kiln_tensor *fit_source(kiln_tensor *destination, kiln_tensor *source)
{
    int ndim;
    int64_t shape[KILN_MAX_DIMS];
    if (!kiln_broadcast(destination->ndim, destination->shape, source->ndim, source->shape, &ndim, shape) ||
        ndim != destination->ndim || memcmp(shape, destination->shape, (size_t)ndim * sizeof *shape) != 0)
        return kiln_fail(KILN_E_SHAPE, "assign", "a source of shape %s does not fit a destination of shape %s",
                         kiln_shape_text(source->ndim, source->shape),
                         kiln_shape_text(destination->ndim, destination->shape));
    bool same = source->ndim == ndim && memcmp(source->shape, shape, (size_t)ndim * sizeof *shape) == 0;
    source = kiln_cast(source, (kiln_dtype)destination->dtype);
    return same ? source : kiln_expand(source, ndim, shape);
}

/* Memory stands for the value from now on, and no longer for what gradients knew it to hold before. */
static void hold_assigned(kiln_trace *tr, int32_t value, int32_t before)
{
    while (before >= 0 && tr->values[before].unrecorded)
        before = tr->values[before].history;
    if (before >= 0 && tr->values[before].assigned) {
        tr->values[before].assigned = false;
        tr->nassigned--;
        kiln_trace_hold(tr, before, -1);
    }
    if (tr->values[value].requires_grad) {
        tr->values[value].assigned = true;
        tr->nassigned++;
        kiln_trace_hold(tr, value, 1);
    }
}

/* Until what is pending has run, no other thread may assign to the tensor: false with an error. */
static bool claim(const kiln_thread *th, const kiln_tensor *to)
{
    kiln_storage *s = to->storage;
    unsigned writer = 0;
    if (kiln_shapes_inside() && s->has_memory && !s->shape_only)
        return kiln_shapes_fail_memory(to);
    kiln_storage_use(th, s);
    if (!s->has_memory || s->writer == th->number || atomic_compare_exchange_strong(&s->writer, &writer, th->number))
        return true;
    kiln_fail(KILN_E_STATE, th->composing ? th->composing->name : "assign", "%s %s is being changed by another thread",
              kiln_tensor_label(to, "the tensor"), kiln_shape_text(to->ndim, to->shape));
    return kiln_hint("one thread may change a tensor while others read it; let the others wait, or give each its own");
}

/* Nothing was assigned after all. */
static void unclaim(const kiln_thread *th, kiln_storage *s)
{
    if (s->writer == th->number && s->version == s->memory_version)
        kiln_storage_unassigned(s);
}

/* What a node made and the tensor's memory holds, where nothing was assigned to it yet; -1: it came from outside. */
static int32_t made_value(const kiln_trace *tr, const kiln_tensor *t)
{
    int32_t base = t->epoch == tr->epoch ? tr->values[t->value].base : -1;
    return base >= 0 && tr->values[base].node >= 0 && tr->values[base].storage == t->storage ? base : -1;
}

/* Notes that `value` is what the destination's storage holds from now on; `made` is what it held if nothing was
 * assigned to it before. `recorded`: gradients know of it. */
static void note_assigned(kiln_trace *tr, kiln_storage *s, int32_t value, int32_t made, bool recorded)
{
    int32_t *newest = kiln_map_at(&tr->written, s);
    kiln_value *v = &tr->values[value];
    v->version = s->version + 1;
    kiln_set_version(&s->version, v->version);
    v->unrecorded = !recorded;
    v->history = *newest >= 0 ? *newest : made;
    tr->overwrites += s->has_memory;
    if (recorded)
        hold_assigned(tr, value, *newest);
    *newest = value;
}

/* Which operand is assigned to. */
static int operand_of(const kiln_call *c, const kiln_tensor *to)
{
    int i = 0;
    while (i < c->nin && c->in[i] != to)
        i++;
    return i;
}

static void unclaim_all(kiln_storage *const *bind, int n)
{
    while (n-- > 0)
        unclaim(kiln_thread_state(), bind[n]);
}

/* The storages to assign to, claimed, and room to note it; false with an error. */
static bool claim_all(kiln_trace *tr, const kiln_call *c, kiln_tensor *const *to, kiln_storage **bind)
{
    if (!kiln_map_reserve(&tr->written, c->nout) || !kiln_trace_reserve_own(tr, c->nout))
        return false;
    for (int j = 0; j < c->nout; j++) {
        bind[j] = to[j]->storage;
        if (!claim(kiln_thread_state(), to[j])) {
            unclaim_all(bind, j);
            return false;
        }
    }
    return true;
}

/* The last node's results are what `to` hold from now on. */
static bool note_all(kiln_trace *tr, const kiln_call *c, kiln_tensor *const *to, kiln_storage *const *bind)
{
    const kiln_node *n = &tr->nodes[tr->nnodes - 1];
    bool grad = n->requires_grad, enabled = kiln_thread_state()->grad_enabled;
    int32_t first = n->out;
    for (int j = 0; j < c->nout; j++)
        note_assigned(tr, bind[j], first + j, made_value(tr, to[j]), enabled);
    /* Other windows are found when they are used; one that a gradient flows through must know before anything runs. */
    for (int j = 0; j < c->nout; j++)
        if (!(to[j]->leaf && !grad) && kiln_trace_value(tr, to[j]) < 0)
            return false;
    return !tr->eager || kiln_flush(tr, false);
}

bool kiln_trace_assign_again(kiln_trace *tr, const kiln_call *c, kiln_tensor *const *to, bool *done)
{
    kiln_storage *bind[KILN_MAX_OUTPUTS];
    *done = false;
    if (!kiln_trail_begin_call(tr, c->op, c->in, c->nin, &c->attrs, c->nout))
        return false;
    for (int j = 0; j < c->nout; j++)
        kiln_trail_put(&tr->trail, operand_of(c, to[j]));
    if (!kiln_trail_has(tr))
        return true;
    if (!claim_all(tr, c, to, bind))
        return false;
    bool ok = kiln_trail_append(tr, c->in, bind, NULL, done);
    if (!*done)
        unclaim_all(bind, c->nout);
    if (!*done || !ok)
        return ok;
    kiln_trail_set_numbers(tr, &c->attrs);
    return note_all(tr, c, to, bind);
}

bool kiln_trace_assign(kiln_trace *tr, const kiln_call *c, kiln_tensor *const *to)
{
    kiln_storage *bind[KILN_MAX_OUTPUTS];
    if (!claim_all(tr, c, to, bind))
        return false;
    if (!kiln_trace_record(tr, c, to[0]->device, bind, NULL)) {
        unclaim_all(bind, c->nout);
        return false;
    }
    return note_all(tr, c, to, bind); /* only now: the operands may be older windows of the same storages */
}

static bool assign_checked(kiln_trace *tr, kiln_tensor *destination, kiln_tensor *source)
{
    kiln_call c = {.op = &kiln_op_assign, .nin = 1, .nout = 1, .in = &source};
    kiln_tensor *operands[2];
    if (!kiln_tensor_is_whole(destination)) {
        operands[0] = kiln_trace_whole(tr, destination);
        operands[1] = kiln_contiguous(source);
        if (!operands[0] || !operands[1])
            return false;
        c = (kiln_call){.op = &kiln_op_as_strided_put, .nin = 2, .nout = 1, .in = operands};
        memcpy(c.attrs.i, destination->stride, sizeof destination->stride);
        c.attrs.i[destination->ndim] = destination->offset;
        c.attrs.nints = destination->ndim + 1;
    }
    return c.op->infer(&c) && kiln_trace_assign(tr, &c, &destination);
}

/* True if the value is a parameter or shows part of one that a gradient flows to. */
static bool shows_parameter(const kiln_trace *tr, int32_t value)
{
    for (const kiln_value *v = &tr->values[value]; v->requires_grad;) {
        if (v->leaf && v->leaf->leaf && v->leaf->requires_grad)
            return true;
        if (v->node < 0 || tr->nodes[v->node].op->cls != KILN_CLASS_VIEW)
            return false;
        v = &tr->values[tr->operands[tr->nodes[v->node].in]];
    }
    return false;
}

static bool check_assign(kiln_trace *tr, kiln_tensor *destination, const kiln_tensor *source)
{
    if (destination->device != source->device) {
        kiln_fail(KILN_E_DEVICE, "assign", "the destination %s is on %s, but the source is on %s",
                  kiln_tensor_label(destination, ""), kiln_device_name(destination->device),
                  kiln_device_name(source->device));
        return kiln_hint("kiln_to(source, kiln_device_of(destination)) first");
    }
    bool recording = kiln_thread_state()->grad_enabled && kiln_needs_grad(destination);
    int32_t value = recording ? kiln_trace_value(tr, destination) : -1;
    if (recording && (value < 0 || shows_parameter(tr, value))) {
        kiln_fail(KILN_E_GRADIENT, "assign", "%s needs a gradient and cannot be changed in place while recording one",
                  kiln_tensor_label(destination, "the tensor"));
        return kiln_hint("put the assignment into kiln_no_grad { … }");
    }
    const kiln_storage *s = destination->storage;
    if (!s->has_memory && s->trace_refs > 0 && destination->epoch != tr->epoch && kiln_map_get(&tr->written, s) < 0) {
        kiln_fail(KILN_E_STATE, "assign", "%s is pending in another thread",
                  kiln_tensor_label(destination, "the destination"));
        return kiln_hint("call kiln_eval in the thread that wrote it before handing it over");
    }
    for (int d = 0; d < destination->ndim; d++)
        if (destination->stride[d] == 0 && destination->shape[d] > 1)
            return kiln_fail(KILN_E_SHAPE, "assign", "the destination is an expanded view: its elements share memory");
    return true;
}

bool kiln_assign(kiln_tensor *destination, kiln_tensor *source)
{
    bool given = kiln_tensor_given(destination, "assign", 1) && kiln_tensor_given(source, "assign", 2);
    kiln_trace *tr = given ? kiln_trace_current() : NULL;
    if (!tr || !kiln_trace_force(destination) || !check_assign(tr, destination, source))
        return false;
    kiln_thread *th = kiln_thread_state();
    bool ok = false, enabled = th->grad_enabled;
    if (destination->detached) { /* gradients learn of it only where it brings one */
        th->grad_enabled = enabled && kiln_needs_grad(source);
        destination->detached = !th->grad_enabled;
    }
    kiln_inner_scope
        ok = (source = fit_source(destination, source)) && assign_checked(tr, destination, source);
    th->grad_enabled = enabled;
    return ok;
}

/* ---- Moving ---- */

/* The tensor's bytes through the host into fresh memory on `device`. The source must be dense and computed. */
static bool copy_across(const kiln_tensor *t, kiln_storage *to)
{
    if (t->storage->shape_only)
        return kiln_shapes_mark(to);
    void *bounce = kiln_alloc(to->bytes, 1);
    bool ok = bounce && kiln_memory_take(to->device, to->bytes, &to->block);
    if (ok) {
        uint64_t start = t->storage->address + (uint64_t)t->offset * kiln_dtype_size((kiln_dtype)t->dtype);
        to->has_memory = true;
        to->address = to->block.address;
        ok = !to->bytes || (kiln_trace_copy_out(t->storage, bounce, start, to->bytes) &&
                            kiln_copy_in(to->device, to->address, bounce, to->bytes));
    }
    kiln_free(bounce);
    return ok;
}

/* A segment belongs to one device, so a move computes its operand first and happens at once. When a gradient is to flow
 * back through it, it leaves a node of its own between two segments. */
static kiln_tensor *move(kiln_trace *tr, kiln_tensor *t, kiln_device device)
{
    kiln_tensor *dense = kiln_contiguous(t), *out = NULL;
    bool grad = kiln_needs_grad(t) && kiln_thread_state()->grad_enabled;
    bool pending = dense && (!dense->storage->has_memory || dense->storage->version != dense->storage->memory_version);
    if (!dense || ((pending || grad) && !kiln_flush(tr, false)))
        return NULL;
    if (!kiln_trace_has_value(dense->storage, "to"))
        return NULL;
    kiln_storage *s = kiln_storage_new(device, (size_t)kiln_numel(t) * kiln_dtype_size((kiln_dtype)t->dtype));
    if (!s || !copy_across(dense, s)) {
        kiln_storage_unref(s);
        return NULL;
    }
    if (!grad)
        return kiln_tensor_make(s, (kiln_dtype)t->dtype, t->ndim, t->shape, NULL, 0);
    kiln_call c = {.op = &kiln_op_to_device, .nin = 1, .nout = 1, .in = &dense, .attrs = {.nints = 1, .i = {device}}};
    bool ok = infer_same(&c) && kiln_trace_record(tr, &c, device, &s, &out);
    kiln_storage_unref(s);
    kiln_trace_next_segment(tr);
    return ok ? out : NULL;
}

kiln_tensor *kiln_to(kiln_tensor *t, kiln_device device)
{
    if (!kiln_tensor_given(t, "to", 1))
        return NULL;
    if (t->device == device)
        return t;
    kiln_trace *tr = kiln_device_describe(device, NULL) ? kiln_trace_current() : NULL;
    if (!tr || !t->storage->thunk)
        return tr ? move(tr, t, device) : NULL;
    kiln_tensor *made = kiln_trace_follow(tr, t), *moved = made ? move(tr, made, device) : NULL;
    kiln_scope_drop(made);
    return moved;
}
