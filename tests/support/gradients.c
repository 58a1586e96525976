/* Gradients of every operation against central differences in f64, and the gradients of those gradients. An operation
 * with a float result must have a gradient unless it is listed here: a rule that is missing is a failure. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "support/layouts.h"
#include "support/suite.h"

/* Operations with float results and nothing to differentiate by, or whose results are drawn anew each time. */
static const char *const without_gradient[] = {
    "full", "iota",         "linspace",         "eye", "random_uniform", "random_normal", "dropout",
    "to",   "take_samples", "straight_through", NULL,
};

/* Operands that count as constants in the operation's definition. */
static const struct {
    const char *op;
    uint32_t operands; /* bit k: operand k */
} constants[] = {
    {"batch_norm", 1 << 1 | 1 << 2}, /* running statistics */
};

enum { LARGEST = 400 }; /* elements to differentiate by: each costs two evaluations */

bool gradient_is_listed(const char *name)
{
    for (const char *const *p = without_gradient; *p; p++)
        if (!strcmp(*p, name))
            return true;
    return false;
}

bool gradient_is_constant(const char *name, int operand)
{
    for (size_t k = 0; k < sizeof constants / sizeof *constants; k++)
        if (!strcmp(constants[k].op, name))
            return constants[k].operands >> operand & 1;
    return false;
}

/* One case being checked: the function that kiln_gradcheck differentiates. */
typedef struct problem {
    const test_case *c;
    kiln_tensor *in[KILN_MAX_INPUTS];
    int position[KILN_MAX_INPUTS]; /* which of the inputs operand k is; -1: it stays as it is */
    int output;
} problem;

static kiln_tensor *evaluate(kiln_tensor **inputs, void *context)
{
    problem *p = context;
    kiln_tensor *in[KILN_MAX_INPUTS], *outs[KILN_MAX_OUTPUTS] = {NULL};
    for (int k = 0; k < p->c->nin; k++)
        in[k] = p->position[k] < 0 ? p->in[k] : inputs[p->position[k]];
    return kiln_op_call(p->c->op, in, p->c->nin, &p->c->attrs, outs) ? outs[p->output] : NULL;
}

/* Makes the operands; returns how many elements there are to differentiate by, -1 when none can be made. */
static int64_t place_operands(problem *p, kiln_tensor **inputs, int *n)
{
    int64_t elements = 0;
    *n = 0;
    for (int k = 0; k < p->c->nin; k++) {
        p->position[k] = -1;
        p->in[k] = NULL;
        if (p->c->in[k].kind == '-')
            continue;
        ref_tensor values;
        operand_values(p->c, k, KILN_F64, LAYOUT_DENSE, &values);
        placed_operand placed = {0};
        bool ok = operand_place(&values, LAYOUT_DENSE, KILN_CPU, &placed);
        free(placed.bits);
        if (ok && values.dtype == KILN_F64 && !gradient_is_constant(p->c->op->name, k)) {
            kiln_requires_grad(placed.tensor, true);
            p->position[k] = *n;
            inputs[(*n)++] = placed.tensor;
            elements += values.count;
        }
        p->in[k] = placed.tensor;
        operand_free(&values);
        if (!ok)
            return -1;
    }
    return elements;
}

typedef struct progress {
    gradient_counts *counts;
    int64_t checked; /* of this operation */
    int64_t limit;   /* cases with more elements are left out */
    int64_t smallest;
    bool has_float_result;
} progress;

static void check_output(problem *p, kiln_tensor **inputs, int n, progress *s)
{
    for (int order = 1; order <= 2; order++) {
        bool ok = kiln_gradcheck(evaluate, p, inputs, n, order == 2, 0, 0);
        if (!ok) {
            complain(p->c->op->name, "gradient, order %d, output %d of '%s': %s", order, p->output, p->c->text,
                     kiln_last_error()->message);
            kiln_error_clear();
            return;
        }
        *(order == 1 ? &s->counts->first : &s->counts->second) += 1;
    }
    s->checked++;
}

static void check_case(const test_case *c, void *context)
{
    progress *s = context;
    kiln_scope {
        static problem p;
        kiln_tensor *inputs[KILN_MAX_INPUTS];
        int n;
        p.c = c;
        int64_t elements = place_operands(&p, inputs, &n);
        kiln_tensor *outs[KILN_MAX_OUTPUTS] = {NULL};
        if (elements < 0 || !kiln_op_call(c->op, p.in, c->nin, &c->attrs, outs)) {
            complain(c->op->name, "gradient of '%s': %s", c->text, kiln_last_error()->message);
            kiln_error_clear();
            continue; /* ends the scope */
        }
        for (int j = 0; j < (c->op->nout ? c->op->nout : 1); j++) {
            if (kiln_dtype_of(outs[j]) != KILN_F64 || n == 0)
                continue;
            s->has_float_result = true;
            if (elements && elements < s->smallest)
                s->smallest = elements;
            p.output = j;
            if (elements <= s->limit)
                check_output(&p, inputs, n, s);
        }
    }
    kiln_memory_trim(KILN_CPU); /* thousands of blocks were given back: the next case starts afresh */
}

/* Adds the operation to those that have nothing to differentiate. */
static void note_none(gradient_counts *counts, const char *name)
{
    size_t used = strlen(counts->names);
    counts->none++;
    snprintf(counts->names + used, sizeof counts->names - used, " %s", name);
}

gradient_counts gradients_check(void)
{
    gradient_counts counts = {0};
    for (int i = 0; i < kiln_op_count(); i++) {
        const kiln_op *op = kiln_op_at(i);
        if (!suite_wants(op))
            continue;
        if (gradient_is_listed(op->name) || !(op->dtypes >> KILN_F64 & 1)) {
            note_none(&counts, op->name);
            continue;
        }
        progress s = {.counts = &counts, .limit = LARGEST, .smallest = INT64_MAX};
        suite_cases(op, check_case, &s);
        if (s.has_float_result && !s.checked && s.smallest > LARGEST && s.smallest < INT64_MAX) {
            s.limit = s.smallest; /* an operation with large cases only: the smallest of them */
            suite_cases(op, check_case, &s);
        }
        counts.operations += s.has_float_result;
        if (!s.has_float_result)
            note_none(&counts, op->name);
        if (s.has_float_result && !s.checked)
            complain(op->name, "no gradient was checked");
    }
    return counts;
}
