/* Gradients in every float dtype. What is right is the gradient in f64 on the CPU, at the same operands. In 16 bits the
 * CPU's own may be off by one rounding of each element: everything before that is computed in f32, but for results that
 * a gradient reads, which are kept as they are stored. On other devices
 * rounding alone moves a gradient by some amount, and the CPU's own run in that dtype shows by how much: a device may
 * be off by a few times that. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "support/layouts.h"
#include "support/numbers.h"
#include "support/suite.h"
#include "trace/trace.h"

enum { LARGEST = 100000 }; /* elements of an operand: what is larger is about forward's splitting */

/* One pass: which case, in which dtype its operands are rounded, and in which one they are held. */
typedef struct pass {
    const test_case *c;
    kiln_dtype rounded;
    bool exact; /* held in f64 */
    kiln_device device;
    int output;
} pass;

typedef struct gradients {
    int n;
    int64_t count[KILN_MAX_INPUTS];
    double *values[KILN_MAX_INPUTS];
} gradients;

static void gradients_free(gradients *g)
{
    for (int i = 0; i < g->n; i++)
        free(g->values[i]);
    g->n = 0;
}

/* Makes operand k; true when a gradient is wanted for it. *in is NULL when it cannot be made. */
static bool place_operand(const pass *p, int k, kiln_tensor **in)
{
    ref_tensor values;
    placed_operand placed = {0};
    operand_values(p->c, k, p->rounded, LAYOUT_DENSE, &values);
    bool real = kiln_dtype_is_float(values.dtype);
    if (real && p->exact)
        values.dtype = KILN_F64;
    *in = operand_place(&values, LAYOUT_DENSE, p->device, &placed) ? placed.tensor : NULL;
    free(placed.bits);
    operand_free(&values);
    return real && !gradient_is_constant(p->c->op->name, k) && *in && kiln_requires_grad(*in, true);
}

/* The weights of the output's elements, of values that all dtypes hold exactly. */
static kiln_tensor *weights_for(const kiln_tensor *y, kiln_device device)
{
    int64_t count = kiln_numel(y);
    double *w = calloc((size_t)count + 1, sizeof *w);
    void *bits = calloc((size_t)count + 1, 8);
    number_rng rng = number_seed("weights", 0, 0);
    for (int64_t i = 0; i < count; i++)
        w[i] = 0.5 + (double)(number_next(&rng) % 16) / 16;
    number_store(bits, kiln_dtype_of(y), w, count);
    kiln_tensor *t = kiln_tensor_new(bits, kiln_dtype_of(y), kiln_ndim(y), kiln_shape(y), device);
    free(w);
    free(bits);
    return t;
}

static bool read_gradients(kiln_tensor **grads, int n, gradients *out)
{
    for (int i = 0; i < n; i++) {
        int64_t count = kiln_numel(grads[i]);
        size_t size = (size_t)count * kiln_dtype_size(kiln_dtype_of(grads[i]));
        void *bits = calloc(size + 1, 1);
        bool read = kiln_read(grads[i], bits, size);
        out->count[i] = count;
        out->values[i] = calloc((size_t)count + 1, sizeof(double));
        out->n = i + 1;
        if (read)
            number_load(out->values[i], kiln_dtype_of(grads[i]), bits, count);
        free(bits);
        if (!read)
            return false;
    }
    return true;
}

/* The gradients of one output; none where it is no float. False with Kiln's error. */
static bool run_pass(const pass *p, gradients *out)
{
    kiln_tensor *in[KILN_MAX_INPUTS] = {NULL}, *inputs[KILN_MAX_INPUTS], *grads[KILN_MAX_INPUTS] = {NULL};
    kiln_tensor *outs[KILN_MAX_OUTPUTS] = {NULL};
    int n = 0;
    bool ok = true;
    kiln_on_device (p->device)
        kiln_scope {
            for (int k = 0; k < p->c->nin; k++)
                if (p->c->in[k].kind != '-' && place_operand(p, k, &in[k]))
                    inputs[n++] = in[k];
            ok = kiln_ok() && kiln_op_call(p->c->op, in, p->c->nin, &p->c->attrs, outs);
            kiln_tensor *y = ok ? outs[p->output] : NULL;
            if (!y || n == 0 || !kiln_dtype_is_float(kiln_dtype_of(y)))
                continue; /* ends the scope */
            ok = kiln_grad(y, weights_for(y, p->device), inputs, n, grads) && read_gradients(grads, n, out);
        }
    return ok;
}

/* How far two gradients are apart at most; elements that are no numbers in f64, or beyond the dtype's range on the
 * CPU, do not count. */
static double distance(const double *got, const double *exact, const double *cpu, int64_t count)
{
    double most = 0;
    for (int64_t i = 0; i < count; i++)
        if (isfinite(exact[i]) && isfinite(cpu[i]) && !(fabs(got[i] - exact[i]) <= most))
            most = fabs(got[i] - exact[i]);
    return most;
}

static double largest(const double *values, int64_t count)
{
    double most = 0;
    for (int64_t i = 0; i < count; i++)
        if (isfinite(values[i]) && fabs(values[i]) > most)
            most = fabs(values[i]);
    return most;
}

static double tolerance(kiln_dtype dtype)
{
    switch (dtype) {
    case KILN_F64: return 1e-11;
    case KILN_F32: return 64 * number_epsilon(dtype);
    default: return 4 * number_epsilon(dtype);
    }
}

/* What rounding alone does in f64, where the CPU's own run is what is right and shows nothing: some units of numbers of
 * size 1, which operands and weights have. Gradients that nearly cancel out are that far off. */
static double unseen(kiln_dtype dtype)
{
    return dtype == KILN_F64 ? 4 * number_epsilon(dtype) : 0;
}

static void compare(const pass *p, const gradients *got, const gradients *cpu, const gradients *exact)
{
    for (int i = 0; i < exact->n; i++) {
        int64_t count = exact->count[i];
        double own = distance(cpu->values[i], exact->values[i], cpu->values[i], count);
        double most = 4 * own + unseen(p->rounded) + tolerance(p->rounded) * largest(exact->values[i], count);
        double off = distance(got->values[i], exact->values[i], cpu->values[i], count);
        if (!(off <= most))
            complain(p->c->op->name, "'%s' %s on %s: gradient %d of output %d is off by %.3g, the CPU's by %.3g",
                     p->c->text, kiln_dtype_name(p->rounded), kiln_device_name(p->device), i, p->output, off, own);
    }
}

/* Whether the gradient of what the operation is, or is made of, reads a result of 16 bits. */
static bool reads_result(const kiln_op *op)
{
    const kiln_op *node = op->heart ? op->heart : op;
    bool reads = false;
    for (int i = 0; i < 3; i++)
        reads |= node->cls != KILN_CLASS_POINTWISE && node->grad_reads[i] & KILN_READS_RESULT;
    return reads && kiln_device_supports(KILN_CPU, node, KILN_BF16);
}

/* Elements whose gradient does not exist in f64, or is beyond the range of the dtype, do not count. */
static void compare_half(const pass *p, const gradients *cpu, const gradients *exact)
{
    for (int i = 0; i < exact->n; i++) {
        double unit = reads_result(p->c->op) ? tolerance(p->rounded) : 64 * number_epsilon(KILN_F32);
        if (p->c->op->heart && p->c->op->heart->cls == KILN_CLASS_SCAN)
            unit *= 4; /* what is rounded is handed on, and grows, from step to step */
        double terms = unit * fmax(1, largest(exact->values[i], exact->count[i]));
        for (int64_t k = 0; k < exact->count[i]; k++) {
            double got = cpu->values[i][k], want = exact->values[i][k];
            if (!isfinite(want) || isinf(number_round(want, p->rounded)) ||
                fabs(got - want) <= number_rounding(fmax(fabs(want), fabs(got)), p->rounded) + terms)
                continue;
            complain(p->c->op->name, "'%s' %s: gradient %d of output %d, element %lld is %.9g instead of %.9g",
                     p->c->text, kiln_dtype_name(p->rounded), i, p->output, (long long)k, got, want);
            break;
        }
    }
}

typedef struct progress {
    const kiln_device *devices;
    int ndevices;
    int64_t compared;
} progress;

static void check_output(const test_case *c, kiln_dtype dtype, int output, progress *s)
{
    gradients exact = {0}, cpu = {0};
    pass p = {.c = c, .rounded = dtype, .exact = true, .device = KILN_CPU, .output = output};
    bool ok = run_pass(&p, &exact);
    p.exact = false;
    ok = ok && run_pass(&p, &cpu);
    if (ok && (dtype == KILN_F16 || dtype == KILN_BF16)) {
        compare_half(&p, &cpu, &exact);
        s->compared++;
    }
    for (int d = 1; ok && exact.n && d < s->ndevices; d++) {
        gradients got = {0};
        p.device = s->devices[d];
        ok = run_pass(&p, &got);
        if (ok)
            compare(&p, &got, &cpu, &exact);
        s->compared += ok;
        gradients_free(&got);
    }
    if (!ok)
        complain(c->op->name, "'%s' %s on %s: no gradient: %s", c->text, kiln_dtype_name(dtype),
                 kiln_device_name(p.device), kiln_last_error()->message);
    kiln_error_clear();
    gradients_free(&exact);
    gradients_free(&cpu);
}

static void check_case(const test_case *c, void *context)
{
    for (int k = 0; k < c->nin; k++)
        if (c->in[k].kind != '-' && case_count(&c->in[k]) > LARGEST)
            return;
    for (int d = 0; d < KILN_DTYPES; d++)
        for (int j = 0; j < (c->op->nout ? c->op->nout : 1); j++)
            if (c->op->dtypes >> d & 1 && kiln_dtype_is_float((kiln_dtype)d))
                check_output(c, (kiln_dtype)d, j, context);
}

int64_t backward_check(const kiln_device *devices, int n)
{
    progress s = {.devices = devices, .ndevices = n};
    for (int i = 0; i < kiln_op_count(); i++) {
        const kiln_op *op = kiln_op_at(i);
        if (!suite_wants(op) || gradient_is_listed(op->name) || !(op->dtypes >> KILN_F64 & 1))
            continue;
        suite_cases(op, check_case, &s);
        for (int d = 0; d < n; d++)
            kiln_memory_trim(devices[d]);
    }
    return s.compared;
}
