/* Mixed precision: operations that are fast in 16 bits run in 16 bits, the others in f32, and weights stay f32. bf16
 * has f32's range and needs nothing else; gradients in f16 need a scaler. */
#ifndef KILN_AMP_H
#define KILN_AMP_H

#include "kiln/optim.h"

#ifdef __cplusplus
extern "C" {
#endif

/* kiln_autocast(KILN_BF16) { … }: inside the braces operands are converted by what is done with them, as PyTorch's
 * autocast does on a GPU. Products, convolutions, attention and recurrent layers get KILN_BF16 or KILN_F16;
 * exponentials, sums, norms, softmax and losses get f32; where several operands have to agree they get the widest type
 * among them; all others run in the type they are given. f64 and integers are left alone. KILN_F32 switches it off
 * inside. Parameters stay as they are and get gradients of their own type; a weight that is used several times in a
 * step is converted once. kiln_backward, optimizers and averages take no notice of it: forward and loss belong into the
 * braces, the rest does not need to. break and continue inside them end them, not the loop around them, and a break is
 * noticed. */
#define kiln_autocast(dtype) KILN_AUTOCAST_AS_(dtype, KILN_LINE_NAME_(kiln_autocast_, __LINE__))
#define KILN_AUTOCAST_AS_(dtype, scope)                                                                                \
    for (kiln_autocast_scope scope                                                                                     \
         __attribute__((cleanup(kiln_autocast_scope_leave))) = kiln_autocast_scope_enter(dtype);                       \
         scope.active; kiln_autocast_scope_end(&scope))                                                                \
        for (scope.inside = true; scope.inside; scope.inside = false)
typedef struct kiln_autocast_scope {
    kiln_dtype saved;
    bool active, inside;
} kiln_autocast_scope;
/* An error for other types, and autocast is what it was. */
KILN_API kiln_autocast_scope kiln_autocast_scope_enter(kiln_dtype dtype);
KILN_API void kiln_autocast_scope_leave(kiln_autocast_scope *scope);
KILN_API void kiln_autocast_scope_end(kiln_autocast_scope *scope);

/* What autocast converts to in this thread now; KILN_F32: it is off. */
KILN_API kiln_dtype kiln_autocast_dtype(void);

/* ---- Loss scaling: PyTorch's GradScaler ----
 * Small gradients vanish in f16. So the loss is scaled up before kiln_backward and the gradients down behind it. Where
 * that made one of them infinite or NaN, the optimizer's step is left out, parameters, moments and count of steps stay
 * as they are, and the scale is lowered; after many good steps in a row it is raised. All of it happens on the device:
 * nothing in a step waits.
 *
 *     kiln_step {
 *         kiln_zero_grad(optim);
 *         kiln_autocast(KILN_F16)
 *             loss = kiln_cross_entropy(kiln_forward(model, b.x), b.y);
 *         kiln_backward(kiln_scaler_scale(scaler, loss));
 *         kiln_scaler_unscale(scaler, optim);            // only where gradients are looked at or changed: clipping
 *         kiln_clip_grad_norm(kiln_parameters(model), 1);
 *         kiln_scaler_step(scaler, optim);
 *         kiln_scaler_update(scaler);
 *     }
 *
 * One scaler serves several losses and optimizers: each optimizer's step goes by its own gradients, and the scale is
 * updated once, when all of them are done. To accumulate, scale each loss and do the rest once a window. Schedules
 * count steps that were left out, bias corrections do not. */
typedef struct kiln_scaler kiln_scaler;
typedef struct kiln_scaler_options {
    size_t size;             /* of the struct; the macro sets it */
    double init_scale;       /* 65536 */
    double growth_factor;    /* 2 */
    double backoff_factor;   /* 0.5 */
    int64_t growth_interval; /* good steps until the scale grows; 2000 */
    bool disabled;           /* losses and gradients are left as they are, every step is taken */
} kiln_scaler_options;
/* kiln_scaler_new(.init_scale = 1024), or () for the defaults. Free it before the optimizers it served. */
#define kiln_scaler_new(...) kiln_scaler_new_(KILN_OPTIONS_(kiln_scaler_options, __VA_ARGS__))
KILN_API kiln_scaler *kiln_scaler_new_(const kiln_scaler_options *options);
KILN_API void kiln_scaler_free(kiln_scaler *s);

/* The loss times the scale; NULL with an error. */
KILN_API kiln_tensor *kiln_scaler_scale(kiln_scaler *s, kiln_tensor *loss);

/* Divides the gradients of the optimizer's parameters by the scale, and finds out whether they are finite. At most once
 * before each kiln_scaler_step, which does it where it was not done. */
KILN_API bool kiln_scaler_unscale(kiln_scaler *s, kiln_optim *o);

/* kiln_optim_step, if all gradients of the optimizer's parameters are finite. Once before each kiln_scaler_update. */
KILN_API bool kiln_scaler_step(kiln_scaler *s, kiln_optim *o);

/* Lowers or raises the scale by what the gradients were like since the last call. A scale that falls below 1 is noticed
 * some steps later (kiln_next_notice): no scale makes such gradients finite. */
KILN_API bool kiln_scaler_update(kiln_scaler *s);

/* What a scaler remembers, for saving. Asking waits for the device. */
typedef struct kiln_scaler_state {
    double scale;           /* 1 where it is disabled */
    int64_t growth_tracker; /* good steps in a row */
    int64_t skipped;        /* updates that found a gradient that was not finite */
} kiln_scaler_state;
KILN_API bool kiln_scaler_get_(kiln_scaler *s, kiln_scaler_state *state, size_t size);
static inline kiln_scaler_state kiln_scaler_get(kiln_scaler *s) /* all 0 with an error on failure */
{
    kiln_scaler_state state = {0, 0, 0};
    kiln_scaler_get_(s, &state, sizeof state);
    return state;
}
KILN_API bool kiln_scaler_set_(kiln_scaler *s, const kiln_scaler_state *state, size_t size);
static inline bool kiln_scaler_set(kiln_scaler *s, kiln_scaler_state state)
{
    return kiln_scaler_set_(s, &state, sizeof state);
}

/* The culprit of the last step of an optimizer that was left out. Asking waits for the device. */
typedef struct kiln_scaler_culprit {
    const char *parameter; /* the first one whose gradient was not finite; NULL: no step was left out */
    int64_t values;        /* how many elements of its gradient were not */
    int64_t skipped;       /* steps of this optimizer that were left out so far */
} kiln_scaler_culprit;
KILN_API bool kiln_scaler_blame_(kiln_scaler *s, const kiln_optim *o, kiln_scaler_culprit *culprit, size_t size);
static inline kiln_scaler_culprit kiln_scaler_blame(kiln_scaler *s, const kiln_optim *o) /* all 0 on failure */
{
    kiln_scaler_culprit culprit = {0, 0, 0};
    kiln_scaler_blame_(s, o, &culprit, sizeof culprit);
    return culprit;
}

#ifdef __cplusplus
}
#endif
#endif
