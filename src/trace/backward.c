/* Gradients: walks the trace backwards and records each node's gradient rule into the same trace. */
#include <math.h>
#include <string.h>
#include "core/alloc.h"
#include "core/fail.h"
#include "ops/helpers.h"
#include "tensor/scope.h"
#include "trace/stretch.h"

/* ---- Scopes and flags ---- */

kiln_grad_scope kiln_grad_scope_enter(bool enabled)
{
    kiln_thread *th = kiln_thread_state();
    if (!th)
        return (kiln_grad_scope){.saved = true, .active = true};
    kiln_grad_scope scope = {.saved = th->grad_enabled, .active = true};
    th->grad_enabled = enabled;
    return scope;
}

void kiln_grad_scope_leave(kiln_grad_scope *scope)
{
    kiln_thread *th = kiln_thread_state();
    if (scope->active && th)
        th->grad_enabled = scope->saved;
    scope->active = false;
}

static bool is_graph(const kiln_tensor *t)
{
    kiln_thread *th = kiln_thread_state();
    return !t->leaf && t->requires_grad && th && th->trace && t->epoch == th->trace->epoch;
}

kiln_tensor *kiln_requires_grad(kiln_tensor *t, bool wanted)
{
    if (!t)
        return NULL;
    if (wanted && !kiln_dtype_is_float((kiln_dtype)t->dtype))
        return kiln_fail(KILN_E_DTYPE, "requires_grad", "%s is %s; only floats have gradients",
                         kiln_tensor_label(t, "the tensor"), kiln_dtype_name((kiln_dtype)t->dtype));
    if (!kiln_trace_settle(t))
        return NULL;
    if (is_graph(t)) {
        if (wanted)
            return t;
        kiln_fail(KILN_E_GRADIENT, "requires_grad", "the tensor was computed from others that need gradients");
        return kiln_hint("use kiln_detach for a copy that does not");
    }
    if (!t->leaf) { /* computed, but without gradients: it can become a leaf */
        kiln_trace *tr = kiln_trace_current();
        if (!tr || !kiln_flush(tr, false))
            return NULL;
        t->leaf = true;
        t->epoch = 0;
    }
    if (t->requires_grad != wanted)
        t->epoch = 0; /* its value in the trace, if it has one, is of the other kind */
    t->requires_grad = wanted;
    if (t->storage->role == KILN_ROLE_DATA && wanted)
        t->storage->role = KILN_ROLE_PARAMETER;
    return t;
}

bool kiln_needs_grad(const kiln_tensor *t)
{
    return t && t->requires_grad && (t->leaf || is_graph(t));
}

/* On a device that runs on, a step can turn out to have failed after it was left: its gradients count as never made. */
kiln_tensor *kiln_grad_of(const kiln_tensor *t)
{
    kiln_tensor *grad = t && t->extra ? t->extra->grad : NULL;
    return grad && kiln_storage_computed(grad->storage) ? grad : NULL;
}

void kiln_zero_grad_of(kiln_tensor *t)
{
    if (!t || !t->extra || !t->extra->grad)
        return;
    kiln_tensor_unref(t->extra->grad);
    t->extra->grad = NULL;
}

bool kiln_set_grad_hook(kiln_tensor *t, kiln_hook hook, void *context)
{
    kiln_tensor_extra *e = t ? kiln_tensor_extras(t) : NULL;
    if (!e)
        return false;
    e->hook = hook;
    e->hook_context = context;
    /* A computed tensor's hook is found through its value: let the value point at it. */
    kiln_trace *tr = kiln_trace_current();
    if (tr && is_graph(t) && !tr->values[t->value].leaf)
        tr->values[t->value].leaf = kiln_tensor_ref(t);
    return true;
}

/* ---- The walk ---- */

typedef struct walk {
    kiln_trace *tr;
    kiln_tensor **grads;     /* by value: what has reached it so far, owned by the scope of the walk */
    int64_t count, capacity; /* values when the walk began; room in grads */
    bool *stop;              /* kiln_grad: values whose gradient is wanted; NULL for kiln_backward */
    bool accumulate;         /* kiln_backward: into the leaves' .grad */
    bool hooked;             /* some value has a hook: others may hold on to what the walk makes */
    kiln_stretch *stretch;   /* is told what arrives where; NULL: this walk cannot be written again */
} walk;

static bool add_grad(walk *w, int32_t value, kiln_tensor *g)
{
    const kiln_value *v = &w->tr->values[value];
    bool same = g->ndim == v->ndim && memcmp(g->shape, v->shape, v->ndim * sizeof *v->shape) == 0;
    if (!same && !(g = kiln_sum_to(g, v->ndim, v->shape)))
        return false;
    v = &w->tr->values[value]; /* recording may have moved the values */
    if (g->dtype != v->dtype && !(g = kiln_cast(g, (kiln_dtype)v->dtype)))
        return false;
    kiln_tensor *sum = w->grads[value] ? kiln_add(w->grads[value], g) : g;
    w->grads[value] = sum;
    return sum != NULL;
}

/* Runs the value's hook, if its tensor has one, on the complete gradient. */
static bool run_hook(walk *w, int32_t value)
{
    kiln_tensor *t = w->tr->values[value].leaf;
    if (!t || !t->extra || !t->extra->hook || !w->grads[value])
        return true;
    uint64_t failures = kiln_fail_count();
    kiln_tensor *g = t->extra->hook(w->grads[value], t->extra->hook_context);
    if (g)
        w->grads[value] = g;
    return kiln_fail_count() == failures;
}

static bool back_node(walk *w, int64_t n)
{
    kiln_tensor *in[KILN_MAX_INPUTS], *gin[KILN_MAX_INPUTS], *out[KILN_MAX_OUTPUTS], *gout[KILN_MAX_OUTPUTS];
    bool need[KILN_MAX_INPUTS], any = false;
    kiln_trace *tr = w->tr;
    kiln_node node = tr->nodes[n];
    for (int j = 0; j < node.nout; j++) {
        if (!run_hook(w, node.out + j))
            return false;
        any |= (gout[j] = w->grads[node.out + j]) != NULL;
    }
    if (!any)
        return true;
    kiln_attrs attrs; /* mostly room: filled in, not cleared */
    attrs.nints = node.nints;
    attrs.nfloats = node.nfloats;
    for (int i = 0; i < node.nints; i++)
        attrs.i[i] = tr->ints[node.ints + i];
    for (int i = 0; i < node.nfloats; i++)
        attrs.f[i] = tr->floats[node.floats + i];
    int32_t operands[KILN_MAX_INPUTS];
    memcpy(operands, tr->operands + node.in, (size_t)node.nin * sizeof *operands);
    for (int i = 0; i < node.nin; i++) {
        in[i] = gin[i] = NULL;
        need[i] = operands[i] >= 0 && tr->values[operands[i]].requires_grad;
        bool seen = operands[i] >= 0 && !(node.op->grad_skips & KILN_SKIPS_OPERANDS);
        if (seen && !(in[i] = kiln_trace_handle(tr, operands[i])))
            return false;
    }
    for (int j = 0; j < node.nout; j++) {
        out[j] = NULL;
        if (!(node.op->grad_skips & KILN_SKIPS_RESULTS) && !(out[j] = kiln_trace_handle(tr, node.out + j)))
            return false;
    }
    kiln_grad_call g = {node.op, &attrs, node.nin, node.nout, in, out, gout, need, gin};
    kiln_thread *th = kiln_thread_state();
    const kiln_op *outer = th->composing;
    th->composing = node.origin; /* the gradient of what the user wrote is part of it, too */
    bool ok = node.op->grad(&g);
    th->composing = outer;
    if (!ok)
        return false;
    for (int i = 0; i < node.nin; i++)
        if (need[i] && gin[i] && !add_grad(w, operands[i], gin[i]))
            return false;
    return true;
}

void kiln_trace_settle_grads(kiln_trace *tr, bool restore)
{
    while (tr->nreplaced) {
        struct kiln_replaced_grad r = tr->replaced[--tr->nreplaced];
        kiln_tensor **grad = &r.leaf->extra->grad;
        if (restore) {
            kiln_tensor_unref(*grad);
            *grad = r.grad;
        } else
            kiln_tensor_unref(r.grad);
        kiln_tensor_unref(r.leaf);
    }
}

/* Makes g the gradient of t. The old one is remembered until g is known to have been computed; one that is itself
 * pending has replaced another in the same segment. */
static bool set_grad(kiln_trace *tr, kiln_tensor *t, kiln_tensor *g)
{
    kiln_tensor **grad = &t->extra->grad;
    if (*grad && !(*grad)->storage->has_memory)
        kiln_tensor_unref(*grad);
    else if (KILN_GROW(tr->replaced, tr->replaced_capacity, tr->nreplaced + 1))
        tr->replaced[tr->nreplaced++] = (struct kiln_replaced_grad){kiln_tensor_ref(t), *grad};
    else
        return false;
    *grad = kiln_keep(g);
    return true;
}

bool kiln_trace_replace_grad(kiln_trace *tr, kiln_tensor *t, kiln_tensor *g)
{
    g->storage->role = KILN_ROLE_GRADIENT;
    g->spent = t->extra->grad->spent;
    return set_grad(tr, t, g);
}

/* True if g, which arrived at a leaf, is all of a storage that this walk made, and not yet the gradient of another. */
static bool is_own(const walk *w, const kiln_tensor *g)
{
    const kiln_trace *tr = w->tr;
    return !w->hooked && g->epoch == tr->epoch && tr->values[g->value].base >= w->count &&
           g->storage->role == KILN_ROLE_DATA && kiln_tensor_is_whole(g);
}

/* g is the gradient of t from now on, which had `before`. */
static bool hand_grad(kiln_trace *tr, kiln_tensor *t, const kiln_tensor *before, kiln_tensor *g)
{
    g->storage->role = KILN_ROLE_GRADIENT;
    g->spent = before && before->spent ? KILN_SPENT_AND_ADDED_TO : KILN_UNSPENT;
    return set_grad(tr, t, g);
}

static bool leaf_arrived(walk *w, int32_t value)
{
    if (!w->grads[value])
        return true;
    if (!run_hook(w, value))
        return false;
    kiln_tensor *t = w->tr->values[value].leaf;
    if (!w->accumulate || !t->leaf || !t->requires_grad)
        return true;
    kiln_tensor_extra *e = kiln_tensor_extras(t);
    if (!e)
        return false;
    kiln_tensor *g = w->grads[value], *before = kiln_grad_of(t);
    if (before) {
        g = kiln_add(before, g);
        w->stretch = NULL;
    } else if (!is_own(w, g)) /* a copy, so that no two gradients share memory */
        g = kiln_clone(g);
    return g && (!w->stretch || kiln_stretch_arrived(w->stretch, value, g->value)) && hand_grad(w->tr, t, before, g);
}

/* Values and nodes are in the order they were written, so one pass from the last to the first sees every gradient
 * complete before it is used. */
static bool walk_back(walk *w, int32_t from)
{
    for (int32_t v = from; v >= 0; v--) {
        const kiln_value *value = &w->tr->values[v];
        int32_t node = value->node;
        bool leaf = value->leaf && value->leaf->leaf;
        if (leaf && !leaf_arrived(w, v))
            return false;
        if (leaf || (w->stop && w->stop[v]) || node < 0)
            continue;
        /* At a node's first output the gradients of all of its outputs are known. */
        if (v == w->tr->nodes[node].out && w->tr->nodes[node].requires_grad && !back_node(w, node))
            return false;
    }
    return true;
}

static bool has_hooks(const kiln_trace *tr)
{
    for (int64_t i = 0; i < tr->nvalues; i++) {
        const kiln_tensor *t = tr->values[i].leaf;
        if (t && t->extra && t->extra->hook)
            return true;
    }
    return false;
}

/* The walk is the last one once more. */
static bool walk_again(kiln_trace *tr)
{
    const kiln_stretch *s = tr->stretch;
    if (!kiln_stretch_append(tr))
        return false;
    for (int64_t i = 0; i < s->narrivals; i++) {
        kiln_tensor *t = tr->values[s->arrivals[i].leaf].leaf, *g = kiln_trace_handle(tr, s->arrivals[i].grad);
        if (!g || !kiln_tensor_extras(t) || !hand_grad(tr, t, NULL, g))
            return false;
    }
    return true;
}

static bool seed(walk *w, kiln_tensor *output, kiln_tensor *grad, const char *who)
{
    if (!kiln_needs_grad(output)) {
        kiln_fail(KILN_E_GRADIENT, who, "the output does not depend on anything that needs a gradient");
        return kiln_hint("mark parameters with kiln_requires_grad before the forward pass, outside kiln_no_grad");
    }
    int32_t value = kiln_trace_value(w->tr, output);
    if (value < 0)
        return false;
    if (grad && (grad->ndim != output->ndim || memcmp(grad->shape, output->shape, output->ndim * sizeof *grad->shape)))
        return kiln_fail(KILN_E_SHAPE, who, "the gradient has shape %s, but the output has %s",
                         kiln_shape_text(grad->ndim, grad->shape), kiln_shape_text(output->ndim, output->shape));
    w->hooked = has_hooks(w->tr);
    if (w->accumulate && !grad && !w->hooked) {
        if (kiln_stretch_fits(w->tr, value))
            return walk_again(w->tr);
        if (!kiln_stretch_begin(w->tr, value, &w->stretch))
            return false;
    }
    if (!grad && !(grad = kiln_ones_like(output)))
        return false;
    w->count = w->tr->nvalues;
    w->grads = w->tr->spare_grads;
    w->capacity = w->tr->spare_grads_capacity;
    w->tr->spare_grads = NULL; /* a hook may start a walk of its own */
    w->tr->spare_grads_capacity = 0;
    if (!KILN_GROW(w->grads, w->capacity, w->count))
        return false;
    memset(w->grads, 0, (size_t)w->count * sizeof *w->grads);
    return add_grad(w, value, grad) && walk_back(w, value) && (!w->stretch || kiln_stretch_end(w->stretch, w->tr));
}

static void end_walk(walk *w)
{
    kiln_trace *tr = w->tr;
    tr->walks--;
    if (!w->grads)
        return;
    kiln_free(tr->spare_grads);
    tr->spare_grads = w->grads;
    tr->spare_grads_capacity = w->capacity;
}

bool kiln_backward_with(kiln_tensor *output, kiln_tensor *grad)
{
    kiln_trace *tr = output ? kiln_trace_current() : NULL;
    if (!tr)
        return false;
    walk w = {.tr = tr, .accumulate = true};
    bool ok = false;
    tr->walks++;
    kiln_scope
        kiln_no_grad
            ok = seed(&w, output, grad, "backward");
    end_walk(&w);
    return ok;
}

bool kiln_backward(kiln_tensor *loss)
{
    if (!loss)
        return false;
    if (kiln_numel(loss) != 1) {
        kiln_fail(KILN_E_GRADIENT, "backward", "the loss has shape %s, but must have one element",
                  kiln_shape_text(loss->ndim, loss->shape));
        return kiln_hint("reduce it with kiln_mean_all or kiln_sum_all, or use kiln_backward_with");
    }
    return kiln_backward_with(loss, NULL);
}

bool kiln_grad(kiln_tensor *output, kiln_tensor *grad_output, kiln_tensor *const *inputs, int n, kiln_tensor **grads)
{
    kiln_trace *tr = output && inputs && grads ? kiln_trace_current() : NULL;
    if (!tr)
        return false;
    for (int i = 0; i < n; i++)
        if (!inputs[i] || !kiln_needs_grad(inputs[i]))
            return kiln_fail(KILN_E_GRADIENT, "grad", "input %d does not need a gradient", i + 1);
    walk w = {.tr = tr};
    tr->walks++;
    bool ok = kiln_trace_value(tr, output) >= 0;
    for (int i = 0; ok && i < n; i++) /* first all values, then arrays of their number */
        ok = kiln_trace_value(tr, inputs[i]) >= 0;
    w.stop = ok ? kiln_alloc_zero((size_t)tr->nvalues, sizeof *w.stop) : NULL;
    ok = w.stop != NULL;
    for (int i = 0; ok && i < n; i++)
        w.stop[kiln_trace_value(tr, inputs[i])] = true;
    ok = ok && seed(&w, output, grad_output, "grad");
    for (int i = 0; ok && i < n; i++) {
        int32_t v = kiln_trace_value(tr, inputs[i]);
        grads[i] = v < w.count && w.grads[v] ? w.grads[v] : kiln_zeros_like(inputs[i]);
        ok = grads[i] != NULL;
    }
    end_walk(&w);
    kiln_free(w.stop);
    return ok;
}

kiln_tensor *kiln_detach(kiln_tensor *t)
{
    if (!t)
        return NULL;
    kiln_tensor *window = NULL;
    kiln_no_grad
        window = kiln_permute(t, t->ndim, (const int64_t[]){0, 1, 2, 3, 4, 5, 6, 7}); /* the whole, as it is */
    return window;
}
