/* The choice of a token by its logits, on their device: the host need not see them. Nothing here looks up elements by
 * computed indices (kiln_gather, kiln_max): a step that could still meet a bad one writes its results elsewhere and
 * copies them at its end, and the caches of a decoder with them. */
#include <math.h>
#include "models.h"

/* -1 where the logits were not fit to choose by. */
static kiln_tensor *checked(kiln_tensor *fit, kiln_tensor *tokens)
{
    return kiln_where(fit, tokens, kiln_full_like(tokens, -1));
}

static kiln_tensor *likeliest(kiln_tensor *logits)
{
    return checked(kiln_isfinite(kiln_amax(logits, KILN_DIMS(1), false)), kiln_argmax(logits, 1, false));
}

/* The share of probability to choose from: of all candidates, or of the fewest that have p of it. `up_to` [N,
 * candidates] has the sums up to each candidate, which do not reach 1 exactly. */
static kiln_tensor *share_of(kiln_tensor *up_to, double p)
{
    kiln_tensor *all = kiln_slice(up_to, 1, kiln_size(up_to, 1) - 1, kiln_size(up_to, 1), 1);
    if (!(p > 0 && p < 1))
        return all;
    kiln_tensor *enough = kiln_masked_fill(up_to, kiln_lt_scalar(up_to, p), INFINITY);
    return kiln_minimum(all, kiln_amin(enough, KILN_DIMS(1), true));
}

/* rows [N, candidates] at the places [N, 1]. */
static kiln_tensor *pick(kiln_tensor *rows, kiln_tensor *places)
{
    kiln_tensor *candidates = kiln_arange(0, (double)kiln_size(rows, 1), 1, KILN_I64);
    return kiln_sum(kiln_mul(kiln_eq(candidates, places), rows), KILN_DIMS(1), true);
}

/* A random number falls into one candidate's part of the share. */
static kiln_tensor *draw(kiln_tensor *logits, model_sampling how)
{
    kiln_tensor *tokens = NULL; /* of the candidates; NULL: they are all there, in order */
    if (how.top_k > 0 && how.top_k < kiln_size(logits, 1))
        logits = kiln_topk(logits, how.top_k, 1, true, &tokens);
    else if (how.top_p > 0 && how.top_p < 1)
        logits = kiln_sort(logits, 1, true, &tokens);
    logits = kiln_sub(logits, kiln_amax(logits, KILN_DIMS(1), true)); /* no temperature makes it infinite then */
    kiln_tensor *up_to = kiln_cumsum(kiln_softmax(kiln_div_scalar(logits, how.temperature), 1), 1);
    kiln_tensor *share = share_of(up_to, how.top_p);
    kiln_tensor *at = kiln_mul(share, kiln_rand(KILN_SHAPE(kiln_size(logits, 0), 1), KILN_F32));
    kiln_tensor *chosen = kiln_sum(kiln_le(up_to, at), KILN_DIMS(1), true);
    return checked(kiln_gt_scalar(share, 0), tokens ? pick(tokens, chosen) : chosen);
}

kiln_tensor *model_sample(kiln_tensor *logits, model_sampling how)
{
    kiln_tensor *tokens = NULL;
    if (!logits)
        return NULL;
    kiln_no_grad
        kiln_on_device (kiln_device_of(logits)) {
            logits = kiln_cast(logits, KILN_F32);
            tokens = how.temperature > 0 ? kiln_squeeze(draw(logits, how), 1) : likeliest(logits);
        }
    return tokens;
}
