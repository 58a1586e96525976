/* Gradients: walks the trace backwards and records each node's gradient rule into the same trace. */
#include <math.h>
#include <string.h>
#include "core/alloc.h"
#include "core/fail.h"
#include "ops/helpers.h"
#include "ops/placed.h"
#include "tensor/scope.h"
#include "trace/autocast.h"
#include "trace/trace.h"

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

void kiln_grad_scope_end(kiln_grad_scope *scope)
{
    kiln_thread *th = kiln_thread_state();
    if (scope->inside && th && !th->told_broken_block) {
        th->told_broken_block = true;
        kiln_scope_broken("kiln_no_grad", "the loop goes on");
    }
    kiln_grad_scope_leave(scope);
}

/* True for what was computed from tensors that need gradients. */
static bool is_graph(const kiln_tensor *t)
{
    return !(t->leaf && t->requires_grad) && kiln_needs_grad(t);
}

kiln_tensor *kiln_requires_grad(kiln_tensor *t, bool wanted)
{
    if (!kiln_tensor_given(t, "requires_grad", 1))
        return NULL;
    if (wanted && !kiln_dtype_is_float((kiln_dtype)t->dtype))
        return kiln_fail(KILN_E_DTYPE, "requires_grad", "%s is %s; only floats have gradients",
                         kiln_tensor_label(t, "the tensor"), kiln_dtype_name((kiln_dtype)t->dtype));
    if (!kiln_trace_force(t))
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
        kiln_set_epoch(t, 0);
    }
    if (t->requires_grad != wanted)
        kiln_set_epoch(t, 0); /* its value in the trace, if it has one, is of the other kind */
    t->requires_grad = wanted;
    if (t->storage->role == KILN_ROLE_DATA && wanted)
        t->storage->role = KILN_ROLE_PARAMETER;
    return t;
}

kiln_tensor *kiln_grad_of(const kiln_tensor *t)
{
    return t && kiln_tensor_usable(t, "grad_of") ? kiln_tensor_grad(t) : NULL;
}

void kiln_zero_grad_of(kiln_tensor *t)
{
    if (!t || !kiln_tensor_usable(t, "zero_grad_of") || !t->extra || !t->extra->grad)
        return;
    kiln_tensor_unref(t->extra->grad);
    t->extra->grad = NULL;
    if (kiln_thread_current && !kiln_thread_current->nframes)
        kiln_trace_given_up(false);
}

bool kiln_set_grad_hook(kiln_tensor *t, kiln_hook hook, void *context)
{
    kiln_tensor_extra *e = kiln_tensor_given(t, "set_grad_hook", 1) ? kiln_tensor_extras(t) : NULL;
    if (!e)
        return false;
    atomic_fetch_add(&kiln_hooks, (hook != NULL) - (e->hook != NULL));
    e->hook = hook;
    e->hook_context = context;
    /* A computed tensor's hook is found through its value: let the value point at it. */
    kiln_trace *tr = kiln_trace_current();
    int32_t value = tr && is_graph(t) ? kiln_trace_value(tr, t) : -1;
    if (value >= 0 && !tr->values[value].leaf)
        tr->values[value].leaf = kiln_tensor_ref(t);
    return true;
}

/* ---- The walk ---- */

/* What has reached a value so far, owned by the scope of the walk. */
typedef struct kiln_reached {
    kiln_tensor *whole;
    int64_t part; /* the newest gradient of a part of it: its place in the walk's list, and one; 0: none */
} kiln_reached;

typedef struct walk {
    kiln_trace *tr;
    kiln_reached *grads;     /* by value */
    int64_t count, capacity; /* values when the walk began; room in grads */
    int32_t *arrived;        /* values that a gradient has reached: a heap, the newest first, then those walked past */
    int64_t nheap, narrived, arrived_capacity;
    struct part {
        kiln_placed placed;
        int64_t next; /* of the same value, as in kiln_reached */
    } * parts;
    int64_t nparts, parts_capacity;
    bool accumulate; /* kiln_backward: into the leaves' .grad. Else kiln_grad, which stops at wanted values */
    bool retain;     /* what was gone through can be gone through again */
    bool hooked;     /* some value has a hook: others may hold on to what the walk makes */
    bool phrase;     /* the next step may have it again: notes what arrives where (trail.h) */
} walk;

/* ---- Values in the order they are walked past ----
 * Values and nodes are numbered as they were written: newest first, every gradient is complete before it is used. Only
 * values that a gradient has reached are looked at, however long the trace is. */

static bool push(walk *w, int32_t value)
{
    if (!KILN_GROW(w->arrived, w->arrived_capacity, w->narrived + 1))
        return false;
    int32_t *heap = w->arrived;
    heap[w->narrived++] = heap[w->nheap]; /* the first of those walked past makes room */
    int64_t i = w->nheap++;
    for (; i > 0 && heap[(i - 1) / 2] < value; i = (i - 1) / 2)
        heap[i] = heap[(i - 1) / 2];
    heap[i] = value;
    return true;
}

/* The newest value in the heap, which leaves it. */
static int32_t pop(walk *w)
{
    int32_t *heap = w->arrived, top = heap[0], last = heap[--w->nheap];
    int64_t i = 0;
    for (int64_t child; (child = 2 * i + 1) < w->nheap; i = child) {
        child += child + 1 < w->nheap && heap[child + 1] > heap[child];
        if (heap[child] < last)
            break;
        heap[i] = heap[child];
    }
    heap[i] = last;
    heap[w->nheap] = top;
    return top;
}

static bool is_reached(const walk *w, int32_t value)
{
    return w->grads[value].whole || w->grads[value].part;
}

static bool add_grad(walk *w, int32_t value, kiln_tensor *g)
{
    const kiln_value *v = &w->tr->values[value];
    bool same = g->ndim == v->ndim && memcmp(g->shape, v->shape, v->ndim * sizeof *v->shape) == 0;
    if (!same && !(g = kiln_sum_to(g, v->ndim, v->shape)))
        return false;
    v = &w->tr->values[value]; /* recording may have moved the values */
    if (g->dtype != v->dtype && !(g = kiln_cast(g, (kiln_dtype)v->dtype)))
        return false;
    if (!is_reached(w, value) && !push(w, value))
        return false;
    kiln_tensor **whole = &w->grads[value].whole, *sum = *whole ? kiln_add(*whole, g) : g;
    *whole = sum ? sum : g;
    return sum != NULL;
}

/* Keeps the gradient of a part of the value, until all have arrived. */
static bool add_part(walk *w, int32_t value, kiln_tensor *g, int dim, int64_t start)
{
    kiln_dtype dtype = (kiln_dtype)w->tr->values[value].dtype;
    if (g->dtype != dtype && !(g = kiln_cast(g, dtype)))
        return false;
    if (!KILN_GROW(w->parts, w->parts_capacity, w->nparts + 1) || (!is_reached(w, value) && !push(w, value)))
        return false;
    kiln_placed placed = {.grad = g, .dim = dim, .start = start, .order = w->nparts};
    w->parts[w->nparts] = (struct part){placed, w->grads[value].part};
    w->grads[value].part = ++w->nparts;
    return true;
}

/* Of the value whose turn it is: its parts are put where they belong, and added to what the whole has. */
static bool lay_out_parts(walk *w, int32_t value)
{
    int64_t n = 0;
    for (int64_t p = w->grads[value].part; p; p = w->parts[p - 1].next)
        n++;
    if (!n)
        return true;
    kiln_placed *placed = kiln_alloc((size_t)n, sizeof *placed);
    if (!placed)
        return false;
    for (int64_t i = 0, p = w->grads[value].part; p; p = w->parts[p - 1].next)
        placed[i++] = w->parts[p - 1].placed;
    w->grads[value].part = 0;
    int64_t shape[KILN_MAX_DIMS]; /* recording moves the values */
    memcpy(shape, w->tr->values[value].shape, sizeof shape);
    kiln_tensor *sum = kiln_lay_out(placed, n, w->tr->values[value].ndim, shape), *whole = w->grads[value].whole;
    kiln_free(placed);
    return (w->grads[value].whole = sum && whole ? kiln_add(whole, sum) : sum) != NULL;
}

/* Runs the value's hook, if its tensor has one, on the complete gradient. */
static bool run_hook(walk *w, int32_t value)
{
    kiln_tensor *t = w->tr->values[value].leaf;
    if (!t || !t->extra || !t->extra->hook || !w->grads[value].whole)
        return true;
    uint64_t failures = kiln_fail_count();
    kiln_tensor *g = t->extra->hook(w->grads[value].whole, t->extra->hook_context);
    if (g)
        w->grads[value].whole = g;
    return kiln_fail_count() == failures;
}

static bool write_gradient(walk *w, kiln_node node)
{
    kiln_tensor *in[KILN_MAX_INPUTS], *gin[KILN_MAX_INPUTS], *out[KILN_MAX_OUTPUTS], *gout[KILN_MAX_OUTPUTS];
    bool need[KILN_MAX_INPUTS], any = false;
    kiln_trace *tr = w->tr;
    for (int j = 0; j < node.nout; j++) {
        if (!run_hook(w, node.out + j))
            return false;
        any |= (gout[j] = w->grads[node.out + j].whole) != NULL;
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
    kiln_grad_call g = {node.op, &attrs, node.nin, node.nout, in, out, gout, need, gin, .part_dim = -1};
    kiln_thread_state()->composing = node.origin; /* a hook's operations were not */
    if (!node.op->grad(&g))
        return false;
    if (g.part_dim >= 0)
        return add_part(w, operands[0], gin[0], g.part_dim, g.part_start);
    for (int i = 0; i < node.nin; i++)
        if (need[i] && gin[i] && !add_grad(w, operands[i], gin[i]))
            return false;
    return true;
}

/* The gradient of what the user wrote, in some module, is part of both, too. */
static bool back_node(walk *w, int64_t n)
{
    kiln_thread *th = kiln_thread_state();
    const kiln_op *outer = th->composing;
    uint32_t outer_module = th->module;
    th->module = w->tr->nodes[n].module;
    bool ok = write_gradient(w, w->tr->nodes[n]);
    th->composing = outer;
    th->module = outer_module;
    return ok;
}

void kiln_trace_finish_grads(kiln_trace *tr, bool restore)
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
    if (!w->grads[value].whole)
        return true;
    if (!run_hook(w, value))
        return false;
    kiln_tensor *t = w->tr->values[value].leaf;
    if (!w->accumulate || !t->leaf || !t->requires_grad)
        return true;
    kiln_tensor_extra *e = kiln_tensor_extras(t);
    if (!e)
        return false;
    kiln_tensor *g = w->grads[value].whole, *before = kiln_tensor_grad(t);
    if (before) {
        g = kiln_add(before, g);
        w->tr->trail.once = true;
    } else if (!is_own(w, g)) /* a copy, so that no two gradients share memory */
        g = kiln_clone(g);
    return g && (!w->phrase || kiln_trail_arrived(&w->tr->trail, value, g->value)) && hand_grad(w->tr, t, before, g);
}

static bool walk_back(walk *w)
{
    while (w->nheap) {
        int32_t v = pop(w);
        if (!lay_out_parts(w, v))
            return false;
        const kiln_value *value = &w->tr->values[v];
        int32_t node = value->node;
        bool leaf = value->leaf && value->leaf->leaf;
        if (leaf && !leaf_arrived(w, v))
            return false;
        if (leaf || (!w->accumulate && value->wanted) || node < 0)
            continue;
        /* Once: at the oldest of its results that something has arrived at, all of them are complete. */
        const kiln_node *n = &w->tr->nodes[node];
        bool last = true;
        for (int32_t older = n->out; older < v; older++)
            last &= !is_reached(w, older);
        if (last && n->requires_grad && !back_node(w, node))
            return false;
    }
    return true;
}

static bool has_hooks(const kiln_trace *tr)
{
    if (!atomic_load_explicit(&kiln_hooks, memory_order_relaxed))
        return false;
    for (int64_t i = 0; i < tr->nvalues; i++) {
        const kiln_tensor *t = tr->values[i].leaf;
        if (t && t->extra && t->extra->hook)
            return true;
    }
    return false;
}

/* ---- The last walk once more (trail.h) ---- */

/* No leaf has a gradient that another is to be added to. */
static bool leaves_are_free(const kiln_trace *tr)
{
    int64_t n;
    const kiln_arrival *a = kiln_trail_arrivals(&tr->trail, &n);
    for (int64_t i = 0; i < n; i++)
        if (kiln_tensor_grad(tr->values[a[i].leaf].leaf))
            return false;
    return true;
}

static bool hand_again(kiln_trace *tr, const kiln_arrival *a, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        kiln_tensor *t = tr->values[a[i].leaf].leaf, *g = kiln_trace_handle(tr, a[i].grad);
        if (!g || !kiln_tensor_extras(t) || !hand_grad(tr, t, NULL, g))
            return false;
    }
    return true;
}

/* Begins a phrase, if the walk can be one; *done: the last step has it, and it was appended. False with an error. */
static bool walk_again(walk *w, int32_t value, bool *done)
{
    kiln_trace *tr = w->tr;
    enum { KEY = 5 };
    static const char walking; /* no operation has its address */
    *done = false;
    if (w->hooked || tr->walks > 1 || !kiln_trail_can_begin(tr))
        return true;
    if (!kiln_trail_begin(tr, KEY))
        return false;
    kiln_trail_put(&tr->trail, (int64_t)(intptr_t)&walking);
    kiln_trail_put(&tr->trail, value);
    kiln_trail_put(&tr->trail, (int64_t)(intptr_t)kiln_thread_state()->composing);
    kiln_trail_put(&tr->trail, kiln_thread_state()->default_device);
    kiln_trail_put(&tr->trail, kiln_thread_state()->module);
    if (kiln_trail_has(tr) && tr->trail.same_numbers && leaves_are_free(tr)) {
        int64_t n;
        const kiln_arrival *a = kiln_trail_arrivals(&tr->trail, &n);
        if (!kiln_trail_append(tr, NULL, NULL, NULL, done))
            return false;
        if (*done)
            return hand_again(tr, a, n);
    }
    kiln_trail_write(tr, false);
    w->phrase = true;
    return true;
}

/* The lists of the last walk, if no other walk, begun by a hook, has them. */
static bool take_lists(walk *w)
{
    kiln_trace *tr = w->tr;
    w->grads = tr->spare_grads;
    w->arrived = tr->spare_arrived;
    int64_t had = w->capacity = tr->spare_grads_capacity;
    w->arrived_capacity = tr->spare_arrived_capacity;
    tr->spare_grads = NULL;
    tr->spare_arrived = NULL;
    tr->spare_grads_capacity = tr->spare_arrived_capacity = 0;
    if (!KILN_GROW(w->grads, w->capacity, w->count))
        return false;
    memset(w->grads + had, 0, (size_t)(w->capacity - had) * sizeof *w->grads);
    return true;
}

static bool seed(walk *w, kiln_tensor *output, kiln_tensor *grad, const char *who)
{
    if (output->requires_grad && !kiln_needs_grad(output)) {
        kiln_fail(KILN_E_GRADIENT, who,
                  "what the output was computed from is not known any more: the kiln_step it was made in has ended, or "
                  "kiln_backward has gone through it and a value was read since");
        return kiln_hint("call it in the same step, and kiln_backward_retain for all but the last pass");
    }
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
    bool done = false;
    if (w->accumulate && !grad && !walk_again(w, value, &done))
        return false;
    if (done)
        return true;
    bool ok = grad || (grad = kiln_ones_like(output));
    w->count = w->tr->nvalues;
    ok = ok && take_lists(w) && add_grad(w, value, grad) && walk_back(w);
    if (w->phrase)
        kiln_trail_written(w->tr, ok, NULL, 0, NULL, 0);
    return ok;
}

static void end_walk(walk *w)
{
    kiln_trace *tr = w->tr;
    tr->walks--;
    for (int64_t i = 0; i < w->narrived; i++)
        w->grads[w->arrived[i]] = (kiln_reached){0};
    kiln_free(w->parts);
    if (w->capacity > tr->spare_grads_capacity) {
        kiln_free(tr->spare_grads);
        tr->spare_grads = w->grads;
        tr->spare_grads_capacity = w->capacity;
    } else
        kiln_free(w->grads);
    if (w->arrived_capacity > tr->spare_arrived_capacity) {
        kiln_free(tr->spare_arrived);
        tr->spare_arrived = w->arrived;
        tr->spare_arrived_capacity = w->arrived_capacity;
    } else
        kiln_free(w->arrived);
}

static bool backward(kiln_tensor *output, kiln_tensor *grad, bool retain)
{
    KILN_NO_AUTOCAST;
    bool given = kiln_tensor_given(output, "backward", 1) && (!grad || kiln_tensor_usable(grad, "backward"));
    kiln_trace *tr = given ? kiln_trace_current() : NULL;
    if (!tr)
        return false;
    walk w = {.tr = tr, .accumulate = true, .retain = retain};
    bool ok = false;
    tr->walks++;
    kiln_inner_scope
        kiln_no_grad
            ok = seed(&w, output, grad, "backward") && (retain || kiln_trace_walked(tr, kiln_trace_value(tr, output)));
    end_walk(&w);
    return ok;
}

static bool has_one_element(const kiln_tensor *loss)
{
    if (!kiln_tensor_given(loss, "backward", 1))
        return false;
    if (kiln_numel(loss) == 1)
        return true;
    kiln_fail(KILN_E_GRADIENT, "backward", "the loss has shape %s, but must have one element",
              kiln_shape_text(loss->ndim, loss->shape));
    return kiln_hint("reduce it with kiln_mean_all or kiln_sum_all, or use kiln_backward_with");
}

bool kiln_backward_with(kiln_tensor *output, kiln_tensor *grad)
{
    return backward(output, grad, false);
}

bool kiln_backward(kiln_tensor *loss)
{
    return has_one_element(loss) && backward(loss, NULL, false);
}

bool kiln_backward_retain(kiln_tensor *loss)
{
    return has_one_element(loss) && backward(loss, NULL, true);
}

/* Marks the values of the inputs as wanted, or no longer so. */
static bool mark_wanted(kiln_trace *tr, kiln_tensor *const *inputs, int n, bool wanted)
{
    bool ok = true;
    for (int i = 0; i < n; i++) {
        int32_t value = kiln_trace_value(tr, inputs[i]);
        if (value >= 0)
            tr->values[value].wanted = wanted;
        ok &= value >= 0;
    }
    return ok;
}

bool kiln_grad(kiln_tensor *output, kiln_tensor *grad_output, kiln_tensor *const *inputs, int n, kiln_tensor **grads)
{
    KILN_NO_AUTOCAST;
    for (int i = 0; grads && i < n; i++)
        grads[i] = NULL;
    if (!kiln_tensor_given(output, "grad", 1) || (grad_output && !kiln_tensor_usable(grad_output, "grad")))
        return false;
    if (n < 0 || (n && (!inputs || !grads)))
        return kiln_fail(KILN_E_ARGUMENT, "grad", "%d inputs, or a list of them that is NULL", n);
    kiln_trace *tr = kiln_trace_current();
    if (!tr)
        return false;
    for (int i = 0; i < n; i++) {
        if (!inputs[i])
            return kiln_fail(KILN_E_ARGUMENT, "grad", "input %d is NULL", i + 1);
        if (!kiln_needs_grad(inputs[i]))
            return kiln_fail(KILN_E_GRADIENT, "grad", "input %d does not need a gradient", i + 1);
    }
    walk w = {.tr = tr};
    tr->walks++;
    bool ok = mark_wanted(tr, inputs, n, true) && seed(&w, output, grad_output, "grad");
    for (int i = 0; ok && i < n; i++) {
        int32_t v = kiln_trace_value(tr, inputs[i]);
        grads[i] = v < w.count && w.grads[v].whole ? w.grads[v].whole : kiln_zeros_like(inputs[i]);
        ok = grads[i] != NULL;
    }
    mark_wanted(tr, inputs, n, false);
    for (int i = 0; !ok && i < n; i++) /* all of them or none */
        grads[i] = NULL;
    end_walk(&w);
    return ok;
}

kiln_tensor *kiln_detach(kiln_tensor *t)
{
    if (!kiln_tensor_given(t, "detach", 1))
        return NULL;
    kiln_tensor *window = NULL;
    kiln_no_grad
        window = kiln_permute(t, t->ndim, (const int64_t[]){0, 1, 2, 3, 4, 5, 6, 7}); /* the whole, as it is */
    if (window)
        window->detached = true;
    return window;
}
