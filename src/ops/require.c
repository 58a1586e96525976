/* require(x, checked): x, once all of `checked` was looked at. It works as a bad index does: the kernel reports what it
 * found, and the step is discarded before it changes anything. */
#include "ops/require.h"
#include <stdio.h>
#include <string.h>
#include "ops/helpers.h"
#include "ops/pointwise.h"

extern const kiln_op kiln_op_require;

enum { WHAT = 0 };

/* No limit that an index could have. */
static kiln_demand require_demand(int ndim, const int64_t *shape, const int64_t *ints)
{
    (void)ndim, (void)shape;
    return (kiln_demand){-1, ints[WHAT]};
}

static kiln_demand divide_demand(int ndim, const int64_t *shape, const int64_t *ints)
{
    (void)ndim, (void)shape, (void)ints;
    return (kiln_demand){-1, KILN_REQUIRE_NOT_ZERO};
}

static bool infer_require(kiln_call *c)
{
    int64_t what = c->attrs.nints == 1 ? c->attrs.i[WHAT] : -1;
    if (!kiln_check_same_dtype(c, 0, 1) ||
        !kiln_check_attr(c, what >= 0 && what < KILN_REQUIREMENTS, "%lld is no requirement", (long long)what))
        return false;
    kiln_desc_like(&c->out[0], c->in[0]);
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
    .attrs = "what",
    .cls = KILN_CLASS_INDEX,
    .dtypes = KILN_T_NUMBERS,
    .min_in = 2,
    .max_in = 2,
    .demand = require_demand,
    .grad_skips = KILN_SKIPS_BOTH,
    .infer = infer_require,
    .compose = compose_require,
    .grad = grad_require,
    .explain = explain_require,
    .cases = KILN_CASES{"x[2,3] p[2,3] | 0", "x[] p[4] | 0", "x[2] x[0,3] | 0", "q[2,3] q[5] | 1", "x[3] p[300,70] | 0",
                        NULL},
};

/* Adding a 0 that depends on the look makes all that is computed from x depend on it, and copies nothing. */
kiln_tensor *kiln_require(kiln_tensor *x, kiln_requirement what)
{
    kiln_tensor *zero = kiln_fill_like(x, 0, NULL, 0);
    return kiln_add(x, KILN_OP(require, KILN_IN(zero, x), KILN_I(what)));
}

/* ---- divide_integers ---- */

static bool infer_divide(kiln_call *c)
{
    const kiln_tensor *a = c->in[0], *b = c->in[1];
    int64_t division = c->attrs.nints == 1 ? c->attrs.i[WHAT] : -1;
    if (!kiln_check_same_dtype(c, 0, 1) ||
        !kiln_check_attr(c, division >= 0 && division < KILN_DIVISIONS, "%lld is no division", (long long)division) ||
        !kiln_check_attr(c, a->ndim == b->ndim && !memcmp(a->shape, b->shape, a->ndim * sizeof *a->shape),
                         "a %s and b %s must have the same shape", kiln_shape_text(a->ndim, a->shape),
                         kiln_shape_text(b->ndim, b->shape)))
        return false;
    kiln_desc_like(&c->out[0], a);
    return true;
}

/* For devices without a kernel: the row, which gives 0 for a division by 0. */
static bool compose_divide(kiln_call *c, kiln_tensor **out)
{
    static const kiln_op *const rows[KILN_DIVISIONS] = {&kiln_op_floor_divide, &kiln_op_remainder, &kiln_op_fmod};
    out[0] = kiln_op_one(rows[c->attrs.i[WHAT]], KILN_IN(c->in[0], c->in[1]), KILN_NO_ATTRS);
    return out[0] != NULL;
}

static void explain_divide(kiln_error *e, const int64_t *ints, int64_t at)
{
    (void)ints;
    explain_require(e, (int64_t[]){KILN_REQUIRE_NOT_ZERO}, at);
}

const kiln_op kiln_op_divide_integers = {
    .name = "divide_integers",
    .attrs = "division",
    .cls = KILN_CLASS_INDEX,
    .dtypes = KILN_T_INTS,
    .min_in = 2,
    .max_in = 2,
    .demand = divide_demand,
    .infer = infer_divide,
    .compose = compose_divide,
    .explain = explain_divide,
    .cases = KILN_CASES{"x[2,3] p[2,3] | 0", "x[5] p[5] | 1", "x[7,33] p[7,33] | 2", "x[] p[] | 0", "x[0,3] x[0,3] | 1",
                        NULL},
};

const kiln_op *const kiln_ops_require[] = {&kiln_op_require, &kiln_op_divide_integers, NULL};
