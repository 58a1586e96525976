/* Gradients: reverse-mode differentiation of what was recorded. */
#ifndef KILN_GRAD_H
#define KILN_GRAD_H

#include "kiln/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Marks a tensor the gradient is wanted for (a parameter): a float tensor that was not computed from others that need
 * one. Returns t, or NULL with an error. */
KILN_API kiln_tensor *kiln_requires_grad(kiln_tensor *t, bool wanted);
KILN_API bool kiln_needs_grad(const kiln_tensor *t); /* true also for what was computed from such tensors */

/* The accumulated gradient, owned by t; NULL (no error) when there is none. */
KILN_API kiln_tensor *kiln_grad_of(const kiln_tensor *t);

/* Forgets t's gradient, so that the next kiln_backward starts from nothing. */
KILN_API void kiln_zero_grad_of(kiln_tensor *t);

/* Adds d loss / d t to the gradient of every tensor that wants one. `loss` has one element. What was needed for that
 * may be given up once a value was read behind it; to differentiate through it once more after a read, retain it. */
KILN_API bool kiln_backward(kiln_tensor *loss);
KILN_API bool kiln_backward_retain(kiln_tensor *loss);

/* The same for any output, weighted by `grad` (same shape; NULL means ones). */
KILN_API bool kiln_backward_with(kiln_tensor *output, kiln_tensor *grad);

/* d output / d inputs[i], weighted by grad_output (NULL: ones), as fresh tensors in grads[i]; leaves .grad alone.
 * An input the output does not depend on gets zeros. The results can be differentiated again. */
KILN_API bool kiln_grad(kiln_tensor *output, kiln_tensor *grad_output, kiln_tensor *const *inputs, int n,
                        kiln_tensor **grads);

/* kiln_no_grad { … }: what is recorded inside needs no gradient. What is assigned inside to a tensor that was computed
 * changes its elements; gradients pass through it to what it was computed from, as if nothing had been assigned. break
 * and continue inside the braces end them, not the loop around them, and a break is noticed. */
#define kiln_no_grad KILN_NO_GRAD_AS_(KILN_LINE_NAME_(kiln_grad_, __LINE__))
#define KILN_NO_GRAD_AS_(scope)                                                                                        \
    for (kiln_grad_scope scope __attribute__((cleanup(kiln_grad_scope_leave))) = kiln_grad_scope_enter(false);         \
         scope.active; kiln_grad_scope_end(&scope))                                                                    \
        for (scope.inside = true; scope.inside; scope.inside = false)
typedef struct kiln_grad_scope {
    bool saved, active, inside;
} kiln_grad_scope;
KILN_API kiln_grad_scope kiln_grad_scope_enter(bool enabled);
KILN_API void kiln_grad_scope_leave(kiln_grad_scope *scope);
KILN_API void kiln_grad_scope_end(kiln_grad_scope *scope);

/* kiln_recomputed { … }: activation checkpointing, PyTorch's torch.utils.checkpoint. What is computed inside and read
 * by the backward pass is not kept for it but computed again when it gets there, from what came into the braces: less
 * memory, more arithmetic, the same bits. Random numbers are drawn again alike, and what is assigned inside (running
 * statistics) is assigned once. What operations behind the braces read is kept. The planner sees to it, so forward and
 * backward belong into one kiln_step; where a value is read between them, all is kept. Braces inside braces are regions
 * of their own; break and continue end them, not the loop around them, and a break is noticed. */
#define kiln_recomputed KILN_RECOMPUTED_AS_(KILN_LINE_NAME_(kiln_recomputed_, __LINE__))
#define KILN_RECOMPUTED_AS_(scope)                                                                                     \
    for (kiln_recompute_scope scope                                                                                    \
         __attribute__((cleanup(kiln_recompute_scope_leave))) = kiln_recompute_scope_enter();                          \
         scope.active; kiln_recompute_scope_end(&scope))                                                               \
        for (scope.inside = true; scope.inside; scope.inside = false)
typedef struct kiln_recompute_scope {
    int32_t saved;
    bool active, inside;
} kiln_recompute_scope;
KILN_API kiln_recompute_scope kiln_recompute_scope_enter(void);
KILN_API void kiln_recompute_scope_leave(kiln_recompute_scope *scope);
KILN_API void kiln_recompute_scope_end(kiln_recompute_scope *scope);

/* A function of tensors: one tensor, or NULL with an error. */
typedef kiln_tensor *(*kiln_function)(kiln_tensor **inputs, void *context);

/* f(inputs, context) inside kiln_recomputed: what it returned. NULL with an error where f or an input is NULL. */
KILN_API kiln_tensor *kiln_recompute(kiln_function f, void *context, kiln_tensor **inputs, int n);

/* The same value, cut off from what it was computed from. It shares t's memory: what is assigned to t is seen in it,
 * but brings it no gradient. */
KILN_API kiln_tensor *kiln_detach(kiln_tensor *t);

/* Called with each gradient that reaches t during kiln_backward; what it returns (NULL: unchanged) goes on instead.
 * One hook a tensor; a second call replaces it, NULL removes it. */
typedef kiln_tensor *(*kiln_hook)(kiln_tensor *grad, void *context);
KILN_API bool kiln_set_grad_hook(kiln_tensor *t, kiln_hook hook, void *context);

/* Compares the gradient of sum(f(inputs)·random weights) with central differences, in f64. `f` gets the n inputs (f64,
 * marked) and returns one tensor. On success true; otherwise false and an error that names input, element, both values.
 * With `second`, the gradient's own gradient is checked as well. eps 0 and tol 0 take defaults (1e-6, 1e-4). */
KILN_API bool kiln_gradcheck(kiln_function f, void *context, kiln_tensor **inputs, int n, bool second, double eps,
                             double tol);

#ifdef __cplusplus
}
#endif
#endif
