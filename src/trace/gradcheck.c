/* Gradients against central differences: what tests of operations and layers rest on.
 *
 * Both orders check a scalar made from f. The first: loss = Σ f(inputs)·w. The second: slope = Σᵢ ⟨d loss / d inputᵢ,
 * vᵢ⟩, whose gradient is right only if the gradient rules can themselves be differentiated. w and v are fixed random
 * numbers away from zero, so that no error of one element hides behind another's. */
#include <math.h>
#include <string.h>
#include "core/alloc.h"
#include "core/fail.h"
#include "tensor/scope.h"
#include "ops/op.h"

static const char who[] = "gradcheck";

typedef struct check {
    kiln_function f;
    void *context;
    kiln_tensor **inputs; /* the caller's */
    int n;
    bool second;
    double eps, tol;

    /* The evaluation under way: what f gets, which of those have a gradient, and the gradients. */
    kiln_tensor **args, **marked, **grads;
    int nmarked;
} check;

/* ---- The scalars ---- */

/* ±[0.5, 1.5), the same for the same arguments. */
static double fixed_random(uint64_t stream, uint64_t i)
{
    uint64_t z = (stream + 1) * 0x9e3779b97f4a7c15u + (i + 1) * 0xd1342543de82ef95u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    double magnitude = 0.5 + (double)(z >> 11) * 0x1p-53;
    return z & 1 ? magnitude : -magnitude;
}

/* Σ x·(the random numbers of a stream), with no dimensions. */
static kiln_tensor *weighted_sum(kiln_tensor *x, uint64_t stream)
{
    if (!x)
        return NULL;
    const int64_t count = kiln_numel(x);
    double *weights = kiln_alloc((size_t)count, sizeof *weights);
    if (!weights)
        return NULL;
    for (int64_t i = 0; i < count; i++)
        weights[i] = fixed_random(stream, (uint64_t)i);
    kiln_tensor *w = kiln_tensor_new(weights, KILN_F64, x->ndim, x->shape, x->device);
    kiln_free(weights);
    return kiln_sum_all(kiln_mul(x, w));
}

static kiln_tensor *loss_of(check *k)
{
    kiln_tensor *y = k->f(k->args, k->context);
    if (!y)
        return kiln_fail(KILN_E_ARGUMENT, who, "the function returned no tensor");
    if (y->dtype != KILN_F64)
        return kiln_fail(KILN_E_DTYPE, who, "the function returned %s, but differences need f64",
                         kiln_dtype_name((kiln_dtype)y->dtype));
    return weighted_sum(y, 0);
}

static kiln_tensor *slope_of(check *k)
{
    kiln_tensor *loss = loss_of(k);
    if (!loss || !kiln_needs_grad(loss)) /* without a gradient the slope is zero everywhere */
        return loss ? kiln_zeros_like(loss) : NULL;
    if (!kiln_grad(loss, NULL, k->marked, k->nmarked, k->grads))
        return NULL;
    kiln_tensor *slope = weighted_sum(k->grads[0], 1);
    for (int i = 1; i < k->nmarked; i++) {
        /* Inputs may be on different devices; the sum is where the first one is. */
        kiln_tensor *part = weighted_sum(k->grads[i], (uint64_t)i + 1);
        slope = kiln_add(slope, kiln_to(part, kiln_device_of(slope)));
    }
    return slope;
}

static kiln_tensor *scalar_of(check *k)
{
    return k->second ? slope_of(k) : loss_of(k);
}

/* Takes the caller's inputs for the next evaluation, but `replacement` for one of them, wherever it is given. */
static void set_args(check *k, int replaced, kiln_tensor *replacement)
{
    k->nmarked = 0;
    for (int i = 0; i < k->n; i++) {
        k->args[i] = replaced >= 0 && k->inputs[i] == k->inputs[replaced] ? replacement : k->inputs[i];
        if (kiln_needs_grad(k->inputs[i]))
            k->marked[k->nmarked++] = k->args[i];
    }
}

/* ---- The two gradients ---- */

/* The recorded gradient of all marked inputs, one after the other, to `out`. */
static bool analytic(check *k, double *out)
{
    set_args(k, -1, NULL);
    kiln_tensor *scalar = scalar_of(k);
    if (!scalar)
        return false;
    bool flows = kiln_needs_grad(scalar);
    if (flows && !kiln_grad(scalar, NULL, k->marked, k->nmarked, k->grads))
        return false;
    for (int i = 0; i < k->nmarked; i++) {
        size_t count = (size_t)kiln_numel(k->marked[i]);
        if (!flows)
            memset(out, 0, count * sizeof *out);
        else if (!kiln_read(k->grads[i], out, count * sizeof *out))
            return false;
        out += count;
    }
    return true;
}

/* The scalar with `data` in the place of one input. */
static bool value_with(check *k, int input, const double *data, double *value)
{
    const kiln_tensor *t = k->inputs[input];
    bool ok = false;
    kiln_inner_scope {
        kiln_grad_scope recording __attribute__((cleanup(kiln_grad_scope_leave), unused)) =
            kiln_grad_scope_enter(k->second);
        kiln_tensor *x = kiln_tensor_new(data, KILN_F64, t->ndim, t->shape, t->device);
        set_args(k, input, x);
        kiln_tensor *scalar = kiln_requires_grad(x, true) ? scalar_of(k) : NULL;
        ok = scalar && kiln_read(scalar, value, sizeof *value);
    }
    return ok;
}

static bool numeric(check *k, int input, double *data, int64_t element, double *slope)
{
    const double x = data[element], up = x + k->eps, down = x - k->eps;
    double above = 0, below = 0;
    data[element] = up;
    bool ok = value_with(k, input, data, &above);
    data[element] = down;
    ok = ok && value_with(k, input, data, &below);
    data[element] = x;
    *slope = (above - below) / (up - down);
    return ok;
}

/* ---- The comparison ---- */

static bool agree(const check *k, double a, double n)
{
    const double distance = fabs(a - n);
    return isfinite(distance) && distance <= k->tol * (1 + fmax(fabs(a), fabs(n)));
}

static bool disagree(const check *k, int input, int64_t element, double a, double n)
{
    const kiln_tensor *t = k->inputs[input];
    int64_t index[KILN_MAX_DIMS], rest = element;
    for (int d = t->ndim; d-- > 0; rest /= t->shape[d])
        index[d] = rest % t->shape[d];
    const char *name = kiln_get_name(t);
    kiln_fail(KILN_E_GRADIENT, who,
              "%s-order gradient of input %d%s%s of shape %s at element %s: analytic %.9g, numeric %.9g (tolerance %g)",
              k->second ? "second" : "first", input + 1, *name ? " " : "", name, kiln_shape_text(t->ndim, t->shape),
              kiln_shape_text(t->ndim, index), a, n, k->tol);
    return kiln_hint("a gradient rule is wrong, or the function has a kink or a random number near this point");
}

static bool check_input(check *k, int input, double *data, const double *grad)
{
    const int64_t count = kiln_numel(k->inputs[input]);
    if (!kiln_read(k->inputs[input], data, (size_t)count * sizeof *data))
        return false;
    for (int64_t e = 0; e < count; e++) {
        double slope;
        if (!numeric(k, input, data, e, &slope))
            return false;
        if (!agree(k, grad[e], slope))
            return disagree(k, input, e, grad[e], slope);
    }
    return true;
}

static bool check_order(check *k, bool second, double *grad, double *data)
{
    k->second = second;
    bool ok = false;
    kiln_inner_scope {
        kiln_grad_scope recording __attribute__((cleanup(kiln_grad_scope_leave), unused)) = kiln_grad_scope_enter(true);
        ok = analytic(k, grad);
    }
    for (int i = 0; ok && i < k->n; i++) {
        if (!kiln_needs_grad(k->inputs[i]))
            continue;
        ok = check_input(k, i, data, grad);
        grad += kiln_numel(k->inputs[i]);
    }
    return ok;
}

/* Counts the marked inputs, their elements and those of the largest; false when they cannot be checked. */
static bool survey(const check *k, int64_t *elements, int64_t *largest)
{
    int marked = 0;
    for (int i = 0; i < k->n; i++) {
        const kiln_tensor *t = k->inputs[i];
        if (!kiln_tensor_given(t, who, i + 1))
            return false;
        if (!kiln_needs_grad(t))
            continue;
        if (t->dtype != KILN_F64)
            return kiln_fail(KILN_E_DTYPE, who, "input %d is %s, but differences need f64", i + 1,
                             kiln_dtype_name((kiln_dtype)t->dtype));
        const int64_t count = kiln_numel(t);
        *elements += count;
        *largest = count > *largest ? count : *largest;
        marked++;
    }
    if (marked)
        return true;
    kiln_fail(KILN_E_GRADIENT, who, "none of the %d inputs needs a gradient", k->n);
    return kiln_hint("mark them with kiln_requires_grad");
}

bool kiln_gradcheck(kiln_function f, void *context, kiln_tensor **inputs, int n, bool second, double eps, double tol)
{
    if (!f || !inputs || n < 0)
        return kiln_fail(KILN_E_ARGUMENT, who, "a function and its inputs are needed");
    if (!(eps >= 0) || !(tol >= 0) || isinf(eps))
        return kiln_fail(KILN_E_ARGUMENT, who, "eps %g and tol %g must not be negative", eps, tol);
    check k = {.f = f, .context = context, .inputs = inputs, .n = n};
    k.eps = eps > 0 ? eps : 1e-6;
    k.tol = tol > 0 ? tol : 1e-4;
    int64_t elements = 0, largest = 0;
    if (!survey(&k, &elements, &largest))
        return false;
    kiln_tensor **lists = kiln_alloc_zero((size_t)n * 3, sizeof *lists);
    double *grad = kiln_alloc((size_t)elements, sizeof *grad), *data = kiln_alloc((size_t)largest, sizeof *data);
    bool ok = lists && grad && data;
    if (ok) {
        k.args = lists;
        k.marked = lists + n;
        k.grads = lists + 2 * n;
        ok = check_order(&k, false, grad, data) && (!second || check_order(&k, true, grad, data));
    }
    kiln_free(lists);
    kiln_free(grad);
    kiln_free(data);
    return ok;
}
