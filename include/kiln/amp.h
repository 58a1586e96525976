/* Mixed precision: operations that are fast in 16 bits run in 16 bits, the others in f32, and weights stay f32. */
#ifndef KILN_AMP_H
#define KILN_AMP_H

#include "kiln/tensor.h"

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

#ifdef __cplusplus
}
#endif
#endif
