/* Clipping and scaling: gradients replaced by others, between kiln_backward and kiln_optim_step. */
#include <math.h>
#include "core/fail.h"
#include "optim/optim.h"
#include "tensor/scope.h"
#include "trace/trace.h"
#include "trace/autocast.h"

static bool check_limit(const char *who, kiln_params params, double limit)
{
    if (isnan(limit) || limit < 0)
        return kiln_fail(KILN_E_ARGUMENT, who, "the limit is %g, but must be at least 0", limit);
    if (params.count && !params.tensors)
        return kiln_fail(KILN_E_ARGUMENT, who, "the list of parameters is not one");
    return params.count > 0 || kiln_ok(); /* an empty list may be what an earlier failure left */
}

/* The gradients' squares, summed in the order of the list; NULL without an error when there are no gradients. Half
 * precision is widened first: squares soon leave its range. */
static kiln_tensor *sum_of_squares(kiln_params params)
{
    kiln_tensor *total = NULL;
    for (int64_t i = 0; i < params.count; i++) {
        kiln_tensor *g = kiln_grad_of(params.tensors[i]);
        if (!g)
            continue;
        g = kiln_dtype_of(g) == KILN_F64 ? g : kiln_cast(g, KILN_F32);
        kiln_tensor *sum = kiln_sum_all(kiln_square(g));
        if (total && sum)
            sum = kiln_to(sum, kiln_device_of(total));
        if (!(total = total ? kiln_add(total, sum) : sum))
            return NULL;
    }
    return total;
}

static bool scale_all(kiln_trace *tr, kiln_params params, kiln_tensor *factor)
{
    for (int64_t i = 0; i < params.count; i++) {
        kiln_tensor *t = params.tensors[i], *g = kiln_grad_of(t);
        if (!g)
            continue;
        kiln_tensor *local = kiln_cast(kiln_to(factor, kiln_device_of(g)), kiln_dtype_of(g));
        kiln_tensor *scaled = kiln_mul(g, local);
        if (!scaled || !kiln_trace_replace_grad(tr, t, scaled))
            return false;
    }
    return true;
}

bool kiln_grads_scale(kiln_params params, kiln_tensor *factor)
{
    KILN_NO_AUTOCAST;
    kiln_trace *tr = factor ? kiln_trace_current() : NULL;
    uint64_t failures = kiln_fail_count();
    bool ok = false;
    if (tr)
        kiln_inner_scope
            kiln_no_grad
                ok = scale_all(tr, params, factor);
    return ok && kiln_fail_count() == failures; /* the end of the scope may run what has piled up; so below */
}

/* PyTorch's: gradient · min(1, max_norm / (norm + 1e-6)). */
static kiln_tensor *clip_norm(kiln_trace *tr, kiln_params params, double max_norm)
{
    uint64_t failures = kiln_fail_count();
    kiln_tensor *squares = sum_of_squares(params);
    if (!squares)
        return kiln_fail_count() == failures ? kiln_scalar(0, KILN_F32) : NULL;
    kiln_tensor *norm = kiln_sqrt(squares);
    kiln_tensor *factor = kiln_clamp(kiln_rdiv_scalar(kiln_add_scalar(norm, 1e-6), max_norm), -INFINITY, 1);
    return factor && scale_all(tr, params, factor) ? norm : NULL;
}

kiln_tensor *kiln_clip_grad_norm(kiln_params params, double max_norm)
{
    KILN_NO_AUTOCAST;
    kiln_trace *tr = check_limit("clip_grad_norm", params, max_norm) ? kiln_trace_current() : NULL;
    kiln_tensor *norm = NULL;
    if (!tr)
        return NULL;
    uint64_t failures = kiln_fail_count();
    kiln_inner_scope
        kiln_no_grad
            kiln_scope_hand_up(norm = clip_norm(tr, params, max_norm));
    return kiln_fail_count() == failures ? norm : NULL;
}

static bool clip_value(kiln_trace *tr, kiln_params params, double limit)
{
    for (int64_t i = 0; i < params.count; i++) {
        kiln_tensor *t = params.tensors[i], *g = kiln_grad_of(t);
        if (g && (!(g = kiln_clamp(g, -limit, limit)) || !kiln_trace_replace_grad(tr, t, g)))
            return false;
    }
    return true;
}

bool kiln_clip_grad_value(kiln_params params, double limit)
{
    KILN_NO_AUTOCAST;
    kiln_trace *tr = check_limit("clip_grad_value", params, limit) ? kiln_trace_current() : NULL;
    uint64_t failures = kiln_fail_count();
    bool ok = false;
    if (tr)
        kiln_inner_scope
            kiln_no_grad
                ok = clip_value(tr, params, limit);
    return ok && kiln_fail_count() == failures;
}
