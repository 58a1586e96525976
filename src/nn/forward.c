/* Forward passes: the way into every module. An error raised on the way is given the path of the innermost module it
 * came up in. */
#include "nn/module.h"

_Thread_local kiln_nn_state kiln_nn __attribute__((tls_model("initial-exec")));

/* Puts "layer1.0.conv1 (Conv2d): " before the message of an error that came up in m. */
static void explain(const kiln_module *m)
{
    kiln_error e = *kiln_last_error();
    char path[200];
    kiln_module_path(m, path, sizeof path);
    kiln_error_clear();
    if (*path)
        kiln_fail(e.code, e.operation, "%s (%s): %s", path, m->kind, e.message);
    else
        kiln_fail(e.code, e.operation, "%s: %s", m->kind, e.message);
    if (e.hint[0])
        kiln_hint("%s", e.hint);
    kiln_nn.explained++;
}

kiln_visit kiln_visit_begin(kiln_module *m, kiln_tensor *x)
{
    kiln_visit v = {.explained = kiln_nn.explained, .was_ok = kiln_ok(), .number = -1};
    kiln_thread *th = kiln_thread_state();
    if (th) {
        v.outer = th->module;
        th->module = kiln_module_label(m);
    }
    if (kiln_nn.watch)
        v.number = kiln_nn.watch->begin(kiln_nn.watch, m, x);
    if (m->recompute)
        v.again = kiln_recompute_scope_enter();
    return v;
}

kiln_tensor *kiln_visit_end(kiln_module *m, kiln_visit *v, kiln_tensor *y)
{
    kiln_recompute_scope_leave(&v->again);
    if (kiln_thread_current)
        kiln_thread_current->module = v->outer;
    if (!y && kiln_ok())
        kiln_fail(KILN_E_STATE, "forward", "it gave no result, and no error that says why");
    if (!y && v->was_ok && v->explained == kiln_nn.explained)
        explain(m);
    if (kiln_nn.watch)
        kiln_nn.watch->end(kiln_nn.watch, v->number, y);
    return y;
}

static kiln_tensor *visit(kiln_module *m, kiln_tensor *x)
{
    kiln_visit v = kiln_visit_begin(m, x);
    return kiln_visit_end(m, &v, m->layer->forward(m, x));
}

/* What a layer makes on its way to the result is released when that is there. */
static kiln_tensor *visit_in_scope(kiln_module *m, kiln_tensor *x)
{
    kiln_tensor *y = NULL;
    kiln_inner_scope
        kiln_scope_hand_up(y = visit(m, x));
    return y;
}

/* True if a scope of the program is open; where there is none, what is made would belong to nobody. */
static bool has_program_scope(void)
{
    const kiln_thread *th = kiln_thread_state();
    for (int64_t i = th ? th->nframes : 0; i-- > 0;)
        if (th->frames[i].kind == KILN_SCOPE_PLAIN || th->frames[i].kind == KILN_SCOPE_STEP)
            return true;
    return false;
}

/* A program's own forward function may put tensors aside (a VAE its mean and variance): what it makes lives as long as
 * the program's scope, also when a layer of ours has called it. */
static kiln_tensor *visit_guest(kiln_module *m, kiln_tensor *x)
{
    kiln_tensor *y = NULL;
    for (kiln_scope_mark mark = kiln_scope_enter(KILN_SCOPE_GUEST); mark.depth; kiln_scope_leave(&mark))
        y = visit(m, x);
    return y;
}

kiln_tensor *kiln_forward(kiln_module *m, kiln_tensor *x)
{
    if (!m)
        return kiln_fail(KILN_E_ARGUMENT, "forward", "the module is NULL");
    if (!kiln_tensor_given(x, "forward", 2))
        return NULL;
    if (m->layer->way == KILN_GUEST && has_program_scope())
        return visit_guest(m, x);
    return (m->layer->way == KILN_DIRECT ? visit : visit_in_scope)(m, x);
}
