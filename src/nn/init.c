/* Initialisers: numbers from the thread's random generator, assigned to a tensor. All of it is recorded like any
 * assignment; kiln_init_orthogonal alone computes at once, on the host. */
#include <math.h>
#include "core/alloc.h"
#include "kiln/grad.h"
#include "nn/module.h"
#include "ops/op.h"
#include "trace/shapes.h"

/* ---- Filling ---- */

/* What a fill needs besides the tensor it fills. */
typedef struct numbers {
    double a, b, low, high;
} numbers;
typedef kiln_tensor *(*source_fn)(const kiln_tensor *t, const numbers *n);

/* Inside kiln_shapes_only there is nothing to fill. */
static bool is_hollow(const kiln_tensor *t)
{
    return kiln_shapes_inside() && (t->storage->shape_only || !t->storage->has_memory);
}

/* Assigns what `source` makes; t, or NULL with an error. */
static kiln_tensor *fill(kiln_tensor *t, const char *who, source_fn source, numbers n)
{
    bool ok = false;
    if (!t)
        return kiln_ok() ? kiln_fail(KILN_E_ARGUMENT, who, "the tensor is NULL") : NULL;
    if (!kiln_tensor_usable(t, who))
        return NULL;
    if (is_hollow(t))
        return t;
    kiln_inner_scope {
        kiln_no_grad {
            kiln_on_device (t->device) {
                kiln_tensor *value = source(t, &n);
                ok = value && kiln_assign(t, value);
            }
        }
    }
    return ok ? t : NULL;
}

static kiln_tensor *constant(const kiln_tensor *t, const numbers *n)
{
    return kiln_scalar(n->a, (kiln_dtype)t->dtype);
}

static kiln_tensor *uniform(const kiln_tensor *t, const numbers *n)
{
    kiln_tensor *u = kiln_rand(t->ndim, t->shape, (kiln_dtype)t->dtype);
    return kiln_add_scalar(kiln_mul_scalar(u, n->b - n->a), n->a);
}

static kiln_tensor *normal(const kiln_tensor *t, const numbers *n)
{
    kiln_tensor *z = kiln_randn(t->ndim, t->shape, (kiln_dtype)t->dtype);
    return kiln_add_scalar(kiln_mul_scalar(z, n->b), n->a);
}

/* erf⁻¹(y): Winitzki's formula, good to 2e-3, then Newton's steps with erf itself. y stays off ±1, where it is
 * infinite.
 */
static kiln_tensor *erfinv(kiln_tensor *y)
{
    const double a = 0.147, edge = 1 - 1e-15;
    y = kiln_clamp(y, -edge, edge);
    kiln_tensor *l = kiln_log1p(kiln_neg(kiln_square(y)));
    kiln_tensor *t = kiln_add_scalar(kiln_mul_scalar(l, 0.5), 2 / (M_PI * a));
    kiln_tensor *root = kiln_sqrt(kiln_sub(kiln_square(t), kiln_mul_scalar(l, 1 / a)));
    kiln_tensor *x = kiln_mul(kiln_sign(y), kiln_sqrt(kiln_clamp(kiln_sub(root, t), 0, INFINITY)));
    for (int i = 0; i < 3; i++) {
        kiln_tensor *slope = kiln_mul_scalar(kiln_exp(kiln_neg(kiln_square(x))), M_2_SQRTPI);
        x = kiln_sub(x, kiln_div(kiln_sub(kiln_erf(x), y), slope));
    }
    return x;
}

/* The normal distribution's inverse at numbers drawn evenly between its values at the bounds: nothing is drawn twice.
 */
static kiln_tensor *truncated(const kiln_tensor *t, const numbers *n)
{
    double from = erf((n->low - n->a) / n->b * M_SQRT1_2), to = erf((n->high - n->a) / n->b * M_SQRT1_2);
    kiln_tensor *u = kiln_rand(t->ndim, t->shape, KILN_F64);
    kiln_tensor *z = erfinv(kiln_add_scalar(kiln_mul_scalar(u, to - from), from));
    return kiln_clamp(kiln_add_scalar(kiln_mul_scalar(z, n->b * M_SQRT2), n->a), n->low, n->high);
}

kiln_tensor *kiln_init_constant(kiln_tensor *t, double value)
{
    return fill(t, "init_constant", constant, (numbers){.a = value});
}

kiln_tensor *kiln_init_uniform(kiln_tensor *t, double low, double high)
{
    if (!(low <= high))
        return kiln_fail(KILN_E_ARGUMENT, "init_uniform", "low is %g, which is above high, %g", low, high);
    return fill(t, "init_uniform", uniform, (numbers){.a = low, .b = high});
}

kiln_tensor *kiln_init_normal(kiln_tensor *t, double mean, double std)
{
    if (!(std >= 0))
        return kiln_fail(KILN_E_ARGUMENT, "init_normal", "std is %g; it must not be negative", std);
    return fill(t, "init_normal", normal, (numbers){.a = mean, .b = std});
}

kiln_tensor *kiln_init_trunc_normal(kiln_tensor *t, double mean, double std, double low, double high)
{
    if (!(std > 0) || !(low < high))
        return kiln_fail(KILN_E_ARGUMENT, "init_trunc_normal",
                         "std is %g, low %g, high %g; std must be above 0 and low below high", std, low, high);
    return fill(t, "init_trunc_normal", truncated, (numbers){.a = mean, .b = std, .low = low, .high = high});
}

/* ---- By the number of inputs and outputs ---- */

/* Inputs and outputs of a weight [out, in, kernel…]; false with an error for tensors of less than two dims. */
static bool fans(const kiln_tensor *t, const char *who, double *in, double *out)
{
    if (!t)
        return kiln_ok() ? kiln_fail(KILN_E_ARGUMENT, who, "the tensor is NULL") : false;
    if (t->ndim < 2)
        return kiln_fail(KILN_E_SHAPE, who, "%s %s has less than two dims: it has no inputs and outputs to go by",
                         kiln_tensor_label(t, "the tensor"), kiln_shape_text(t->ndim, t->shape));
    double kernel = (double)kiln_count(t->ndim - 2, t->shape + 2);
    *in = (double)t->shape[1] * kernel;
    *out = (double)t->shape[0] * kernel;
    return true;
}

kiln_tensor *kiln_init_xavier_uniform(kiln_tensor *t, double gain)
{
    double in, out;
    if (!fans(t, "init_xavier_uniform", &in, &out))
        return NULL;
    double bound = fabs(gain) * sqrt(6 / (in + out));
    return kiln_init_uniform(t, -bound, bound);
}

kiln_tensor *kiln_init_xavier_normal(kiln_tensor *t, double gain)
{
    double in, out;
    if (!fans(t, "init_xavier_normal", &in, &out))
        return NULL;
    return kiln_init_normal(t, 0, fabs(gain) * sqrt(2 / (in + out)));
}

/* The standard deviation that keeps the size of signals through a leaky ReLU; 0 for a tensor without elements. */
static double kaiming_std(double slope, double fan)
{
    return fan > 0 ? sqrt(2 / (1 + slope * slope) / fan) : 0;
}

kiln_tensor *kiln_init_kaiming_uniform(kiln_tensor *t, double slope, bool fan_out)
{
    double in, out;
    if (!fans(t, "init_kaiming_uniform", &in, &out))
        return NULL;
    double bound = sqrt(3) * kaiming_std(slope, fan_out ? out : in);
    return kiln_init_uniform(t, -bound, bound);
}

kiln_tensor *kiln_init_kaiming_normal(kiln_tensor *t, double slope, bool fan_out)
{
    double in, out;
    if (!fans(t, "init_kaiming_normal", &in, &out))
        return NULL;
    return kiln_init_normal(t, 0, kaiming_std(slope, fan_out ? out : in));
}

/* ---- Orthogonal ---- */

/* Makes the rows (at most as many as columns) orthogonal and of length 1, one after the other: Gram and Schmidt, each
 * row twice, which is as exact as Householder's reflections. */
static void orthogonalise(double *rows, int64_t n, int64_t width)
{
    for (int64_t i = 0; i < n; i++) {
        double *row = rows + i * width, length = 0;
        for (int pass = 0; pass < 2; pass++)
            for (int64_t j = 0; j < i; j++) {
                const double *other = rows + j * width;
                double along = 0;
                for (int64_t k = 0; k < width; k++)
                    along += row[k] * other[k];
                for (int64_t k = 0; k < width; k++)
                    row[k] -= along * other[k];
            }
        for (int64_t k = 0; k < width; k++)
            length += row[k] * row[k];
        for (int64_t k = 0; k < width; k++)
            row[k] /= length > 0 ? sqrt(length) : 1;
    }
}

/* t as a matrix [rows, columns] of which the shorter side is orthonormal, from normal numbers. */
static bool assign_orthogonal(kiln_tensor *t, double gain, double *data)
{
    int64_t rows = t->shape[0], columns = rows ? kiln_numel(t) / rows : 0;
    int64_t n = rows < columns ? rows : columns, width = rows < columns ? columns : rows;
    kiln_tensor *drawn = kiln_randn(KILN_SHAPE(n, width), KILN_F64);
    if (!kiln_read(drawn, data, (size_t)(n * width) * sizeof *data))
        return false;
    orthogonalise(data, n, width);
    kiln_tensor *q = kiln_mul_scalar(kiln_tensor_new(data, KILN_F64, KILN_SHAPE(n, width), t->device), gain);
    return kiln_assign(t, kiln_reshape(rows < columns ? q : kiln_transpose(q, 0, 1), t->ndim, t->shape));
}

kiln_tensor *kiln_init_orthogonal(kiln_tensor *t, double gain)
{
    double in, out;
    if (!fans(t, "init_orthogonal", &in, &out))
        return NULL;
    if (is_hollow(t))
        return t;
    double *data = kiln_alloc((size_t)kiln_numel(t), sizeof *data);
    bool ok = false;
    if (data)
        kiln_inner_scope {
            kiln_no_grad {
                kiln_on_device (t->device)
                    ok = assign_orthogonal(t, gain, data);
            }
        }
    kiln_free(data);
    return ok ? t : NULL;
}
