/* Autocast: operands of an operation are converted before it is written (kiln/amp.h). */
#ifndef KILN_TRACE_AUTOCAST_H
#define KILN_TRACE_AUTOCAST_H

#include "kiln/amp.h"
#include "ops/op.h"
#include "tensor/thread.h"

/* Whether a call that the user makes now may have operands to convert. Parts of an operation are never converted: it
 * has said what its results are. */
static inline bool kiln_autocasts(const kiln_thread *th, const kiln_op *op)
{
    return th->autocast != KILN_F32 && op->autocast != KILN_CAST_NONE && !th->composing;
}

/* to[i] = in[i] in the type that the operation gets under autocast: itself, or a conversion in the innermost scope.
 * False with an error. */
bool kiln_autocast_operands(const kiln_op *op, kiln_tensor *const *in, int nin, kiln_tensor **to);

/* Switches it off to the end of the block: gradients and updates have the types that they have without it. */
#define KILN_NO_AUTOCAST                                                                                               \
    kiln_autocast_scope no_autocast __attribute__((cleanup(kiln_autocast_scope_leave), unused)) =                      \
        kiln_autocast_scope_enter(KILN_F32)

#endif
