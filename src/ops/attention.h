/* What the rules of attention share: how its results lie, what it is composed of. */
#ifndef KILN_OPS_ATTENTION_H
#define KILN_OPS_ATTENTION_H

#include "ops/op.h"

extern const kiln_op kiln_op_attention, kiln_op_attention_masked, kiln_op_attention_grad, kiln_op_attention_masked_grad;

/* Integers and floats of all four; those that are not masked have the first of each alone. */
enum { KILN_ATTEND_CAUSAL, KILN_ATTEND_DROPOUT }; /* 1: dropout_p counts */
enum { KILN_ATTEND_SCALE, KILN_ATTEND_P, KILN_ATTEND_SEED, KILN_ATTEND_OFFSET };

/* ---- How results lie ---- */

/* Heads are parts of the rows of a product, and come back as such: [N, L, heads, E], which is then one row of the next
 * product. So results, and gradients, lie in memory as [b₀, L, b₁, …, E] where there are two batch dims or more, and
 * the views that users take of them, [b₀, b₁, …, L, E] and back, cost nothing. */
void kiln_attention_lay_shape(int64_t *shape, const kiln_tensor *like, int64_t rows, int64_t width);
kiln_tensor *kiln_attention_laid(kiln_tensor *t);    /* [b₀, b₁, …, L, E] as it lies in memory; NULL for NULL */
kiln_tensor *kiln_attention_upright(kiln_tensor *t); /* and back */

/* ---- What it is composed of ---- */

/* Operands: what weights are made of. */
typedef struct kiln_attention_scores {
    kiln_tensor *q, *k;
    kiln_tensor *mask;    /* [..., L, S], bool or float; NULL: none */
    kiln_tensor *lengths; /* [...], i64: keys that there are; NULL: all */
    const kiln_attrs *attrs;
} kiln_attention_scores;

/* scale·q·kᵀ with the mask; minus infinity where a query must not look. */
kiln_tensor *kiln_attention_scores_of(const kiln_attention_scores *s);

/* What weights are multiplied by, 0 or 1 / (1 - p); NULL where there is no dropout, or with an error. */
kiln_tensor *kiln_attention_kept(const kiln_attention_scores *s);

/* The gradient of a mask that was added, of the scores' size: of the operands of attention_masked_grad. NULL with an
 * error.
 */
kiln_tensor *kiln_attention_mask_grad(kiln_tensor *const *operands, int count, const kiln_attrs *a);

/* The shape rule of q, k and v, and of y and the logarithms; y's shape is c->out[0]'s. */
bool kiln_attention_infer(kiln_call *c);

/* That of mask and lengths, operands `first` and the next. */
bool kiln_attention_masks_fit(const kiln_call *c, int first);

/* FLOP of products of the scores' size: `of_q` that sum over the width of q, `of_v` over that of v. */
int64_t kiln_attention_flops(const kiln_work *w, int of_q, int of_v);

static inline kiln_tensor *kiln_turned(kiln_tensor *t)
{
    return kiln_transpose(t, -1, -2);
}

#endif
