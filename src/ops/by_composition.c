/* Gradients of operations that are themselves gradients: rather than by a rule of their own, by writing the operation
 * down with others and differentiating that, in f32 where operands are of 16 bits. Slower than a rule, and always
 * right; second derivatives are rare. */
#include "ops/helpers.h"
#include "ops/widen.h"

/* A window onto the same value: the walk stops there and does not go on to what the value was computed from. */
static kiln_tensor *window_on(kiln_tensor *t)
{
    return kiln_permute(t, t->ndim, (const int64_t[]){0, 1, 2, 3, 4, 5, 6, 7});
}

static bool differentiate(kiln_grad_call *g, kiln_tensor **in, kiln_tensor *const *wanted, int n, kiln_tensor **grads)
{
    kiln_tensor *out[KILN_MAX_OUTPUTS] = {NULL}, *sum = NULL;
    kiln_call c = {.op = g->op, .nin = g->nin, .nout = g->nout, .in = in, .attrs = *g->attrs};
    if (!g->op->infer(&c) || !g->op->compose(&c, out))
        return false;
    for (int j = 0; j < g->nout; j++) {
        kiln_tensor *term = g->gout[j] ? kiln_sum_all(kiln_mul(out[j], kiln_widen(g->gout[j]))) : NULL;
        if (g->gout[j] && !(sum = sum ? kiln_add(sum, term) : term))
            return false;
    }
    return !sum || !kiln_needs_grad(sum) || kiln_grad(sum, NULL, wanted, n, grads);
}

bool kiln_grad_by_composition(kiln_grad_call *g)
{
    kiln_tensor *in[KILN_MAX_INPUTS] = {NULL}, *wanted[KILN_MAX_INPUTS], *grads[KILN_MAX_INPUTS] = {NULL};
    int n = 0;
    bool ok = true;
    kiln_grad_scope scope = kiln_grad_scope_enter(true);
    for (int i = 0; ok && i < g->nin; i++) {
        in[i] = g->in[i];
        if (g->need[i])
            ok = (wanted[n++] = in[i] = window_on(g->in[i])) != NULL;
        in[i] = kiln_widen(in[i]);
    }
    ok = ok && (n == 0 || differentiate(g, in, wanted, n, grads));
    kiln_grad_scope_leave(&scope);
    n = 0;
    for (int i = 0; ok && i < g->nin; i++)
        if (g->need[i])
            g->gin[i] = grads[n++];
    return ok;
}
