/* require: a tensor's own values, once they were looked at. It works as a bad index does: the kernel reports what it
 * found, and the step is discarded before it changes anything. */
#include "ops/require.h"
#include <stdio.h>
#include <string.h>

extern const kiln_op kiln_op_require;

/* The planner compares the integers of operations that check their operand 1: dim, exception, limit (plan/order.c).
 * Here the second one says what is required, the others are no limit an index could have. */
enum { WHAT = 1 };

static bool infer_require(kiln_call *c)
{
    const kiln_tensor *x = c->in[0], *checked = c->in[1];
    int64_t what = c->attrs.nints == 3 ? c->attrs.i[WHAT] : -1;
    if (!kiln_check_same_dtype(c, 0, 1) ||
        !kiln_check_attr(c, what >= 0 && what < KILN_REQUIREMENTS, "%lld is no requirement", (long long)what) ||
        !kiln_check_attr(c, x->ndim == checked->ndim && !memcmp(x->shape, checked->shape, x->ndim * sizeof *x->shape),
                         "x %s and what is checked %s must have the same shape", kiln_shape_text(x->ndim, x->shape),
                         kiln_shape_text(checked->ndim, checked->shape)))
        return false;
    kiln_desc_like(&c->out[0], x);
    return true;
}

/* For devices without a kernel: x as it is. */
static bool compose_require(kiln_call *c, kiln_tensor **out)
{
    out[0] = kiln_reshape(c->in[0], c->in[0]->ndim, c->in[0]->shape);
    return out[0] != NULL;
}

static bool grad_require(kiln_grad_call *g)
{
    g->gin[0] = g->gout[0];
    return true;
}

static void explain_require(kiln_error *e, const int64_t *ints, int64_t at)
{
    e->code = KILN_E_ARGUMENT;
    snprintf(e->message, sizeof e->message,
             ints[WHAT] == KILN_REQUIRE_NOT_ZERO ? "integers are divided by element %lld of the divisor, which is 0"
                                                 : "element %lld is no probability: it must be between 0 and 1",
             (long long)at);
    snprintf(e->hint, sizeof e->hint, "the step was discarded: nothing was changed");
}

const kiln_op kiln_op_require = {
    .name = "require",
    .attrs = "dim what limit",
    .cls = KILN_CLASS_INDEX,
    .dtypes = KILN_T_NUMBERS,
    .min_in = 2,
    .max_in = 2,
    .checks_indices = true,
    .grad_skips = KILN_SKIPS_BOTH,
    .infer = infer_require,
    .compose = compose_require,
    .grad = grad_require,
    .explain = explain_require,
    .cases = KILN_CASES{"x[2,3] p[2,3] | 0 0 -1", "x[] p[] | 0 0 -1", "x[0,3] x[0,3] | 0 0 -1",
                        "q[2,3] q[2,3] | 0 1 -1", "x[300,70] p[300,70] | 0 0 -1", NULL},
};

kiln_tensor *kiln_require(kiln_tensor *x, kiln_requirement what)
{
    return KILN_OP(require, KILN_IN(x, x), KILN_I(0, what, -1));
}

const kiln_op *const kiln_ops_require[] = {&kiln_op_require, NULL};
