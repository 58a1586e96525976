/* Losses, with PyTorch's reductions and corner cases; all are compositions. */
#include <math.h>
#include <string.h>
#include "core/sized.h"
#include "ops/pick.h"
#include "ops/pointwise.h"
#include "ops/require.h"

/* ---- cross_entropy, nll_loss ---- */

static int class_dim(const kiln_tensor *x)
{
    return x->ndim == 1 ? 0 : 1;
}

/* Describes the result: one element, or one for each target when nothing is reduced. */
static bool describe_loss(kiln_call *c, int64_t reduction, int n, const int64_t *shape)
{
    if (!kiln_check_attr(c, reduction >= KILN_MEAN && reduction <= KILN_NONE,
                         "reduction %lld is none of mean, sum, none", (long long)reduction))
        return false;
    kiln_desc_set(&c->out[0], (kiln_dtype)c->in[0]->dtype, reduction == KILN_NONE ? n : 0, shape);
    return true;
}

static bool class_loss_infer(kiln_call *c)
{
    const kiln_tensor *x = c->in[0], *target = c->in[1], *weight = c->in[2];
    int64_t shape[KILN_MAX_DIMS];
    if (!kiln_check_ndim(c, 0, 1, KILN_MAX_DIMS))
        return false;
    int dim = class_dim(x);
    if (weight && (weight->ndim != 1 || weight->shape[0] != x->shape[dim]))
        return kiln_fail(
            KILN_E_SHAPE, c->op->name, "weight %s must have one element for each of the %lld classes of x %s",
            kiln_shape_text(weight->ndim, weight->shape), (long long)x->shape[dim], kiln_shape_text(x->ndim, x->shape));
    return kiln_targets_fit(c, x, target, dim) &&
           describe_loss(c, c->attrs.i[1], kiln_shape_without(x, dim, shape), shape);
}

/* Weights of the targets' classes, 0 where ignored. */
static kiln_tensor *weights_of(kiln_tensor *weight, kiln_tensor *target, kiln_tensor *ignored)
{
    if (!target)
        return NULL;
    kiln_tensor *index = kiln_reshape(kiln_masked_fill(target, ignored, 0), 1, (int64_t[]){kiln_numel(target)});
    kiln_tensor *each = kiln_reshape(kiln_index_select(weight, 0, index), target->ndim, target->shape);
    return kiln_masked_fill(each, ignored, 0);
}

/* weight [C] in the shape that broadcasts with x. */
static kiln_tensor *beside_classes(kiln_tensor *weight, const kiln_tensor *x)
{
    int64_t shape[KILN_MAX_DIMS] = {x->shape[class_dim(x)], 1, 1, 1, 1, 1, 1, 1};
    return kiln_reshape(weight, x->ndim - class_dim(x), shape);
}

/* The sum, or the mean by the targets' weights, of each target's loss. */
static kiln_tensor *reduce_class_losses(kiln_tensor *each, kiln_tensor *weights, kiln_tensor *ignored,
                                        int64_t reduction)
{
    if (!each || reduction == KILN_NONE)
        return each;
    kiln_tensor *sum = kiln_sum_all(each);
    if (!sum || reduction == KILN_SUM)
        return sum;
    kiln_tensor *count = kiln_sum_all(weights ? weights : kiln_logical_not(ignored));
    return kiln_div(sum, kiln_cast(count, (kiln_dtype)each->dtype));
}

/* What the losses for class indices have in common. `smoothing` NULL: none. */
static kiln_tensor *class_loss(kiln_tensor *log_p, kiln_tensor *target, kiln_tensor *weight, int64_t ignore,
                               int64_t reduction, const double *smoothing)
{
    if (!log_p || !target)
        return NULL;
    int64_t dim = class_dim(log_p);
    kiln_tensor *each = KILN_OP(nll_loss_pick, KILN_IN(log_p, target), KILN_I(dim, ignore));
    kiln_tensor *ignored = kiln_ignored_targets(target, ignore), *weights = NULL;
    if (weight) {
        weights = weights_of(weight, target, ignored);
        each = kiln_mul(each, weights);
    }
    if (smoothing) { /* a share of the loss goes to all classes alike */
        kiln_tensor *all = weight ? kiln_mul(log_p, beside_classes(weight, log_p)) : log_p;
        all = kiln_masked_fill(kiln_sum(all, 1, &dim, false), ignored, 0);
        all = kiln_mul_scalar(all, -*smoothing / (double)log_p->shape[dim]);
        each = kiln_add(kiln_mul_scalar(each, 1 - *smoothing), all);
    }
    return reduce_class_losses(each, weights, ignored, reduction);
}

static bool check_indices(const kiln_call *c)
{
    return kiln_check_dtype(c, 1, KILN_T_INTS);
}

static bool nll_loss_infer(kiln_call *c)
{
    return check_indices(c) && class_loss_infer(c);
}

static bool nll_loss_compose(kiln_call *c, kiln_tensor **out)
{
    const int64_t *i = c->attrs.i;
    kiln_tensor *y = class_loss(c->in[0], kiln_cast(c->in[1], KILN_I64), c->in[2], i[0], i[1], NULL);
    out[0] = kiln_cast(y, c->out[0].dtype);
    return out[0] != NULL;
}

const kiln_op kiln_op_nll_loss = {
    .name = "nll_loss",
    .attrs = "ignore_index reduction",
    .cls = KILN_CLASS_COMPOSITE,
    .autocast = KILN_CAST_FLOAT,
    .dtypes = KILN_T_FLOATS,
    .min_in = 2,
    .max_in = 3,
    .infer = nll_loss_infer,
    .compose = nll_loss_compose,
    .cases = KILN_CASES{"x[3,4] i4[3] - | -100 0", "x[3,4] n1,-1,3[3] q[4] | -1 0", "x[4] i4[] - | -100 1",
                        "x[2,3,5] i3[2,5] q[3] | -100 2", NULL},
};

kiln_tensor *kiln_nll_loss(kiln_tensor *log_p, kiln_tensor *target, kiln_tensor *weight, int64_t ignore_index,
                           kiln_reduction reduction)
{
    return KILN_OP(nll_loss, KILN_IN(log_p, target, weight), KILN_I(ignore_index, reduction));
}

static bool cross_entropy_infer(kiln_call *c)
{
    const kiln_tensor *x = c->in[0], *target = c->in[1];
    if (!kiln_dtype_is_float((kiln_dtype)target->dtype))
        return check_indices(c) && class_loss_infer(c);
    if (target->ndim != x->ndim || memcmp(target->shape, x->shape, (size_t)x->ndim * sizeof *x->shape)) {
        kiln_fail(KILN_E_SHAPE, c->op->name, "target %s holds probabilities (%s) and must have the shape of x, %s",
                  kiln_shape_text(target->ndim, target->shape), kiln_dtype_name((kiln_dtype)target->dtype),
                  kiln_shape_text(x->ndim, x->shape));
        return kiln_hint("class indices are integers: kiln_cast(target, KILN_I64)");
    }
    /* the rule for indices checks the rest on a target without the class dim */
    kiln_tensor index = {.dtype = KILN_I64};
    if (!kiln_check_ndim(c, 0, 1, KILN_MAX_DIMS))
        return false;
    index.ndim = (uint8_t)kiln_shape_without(x, class_dim(x), index.shape);
    kiln_call same = *c;
    kiln_tensor *in[3] = {c->in[0], &index, c->in[2]};
    same.in = in;
    if (!class_loss_infer(&same))
        return false;
    c->out[0] = same.out[0];
    return true;
}

/* -Σ target·log p over the classes; the mean is over the places, whatever the weights. */
static kiln_tensor *probability_loss(kiln_tensor *log_p, kiln_tensor *target, kiln_tensor *weight, int64_t reduction,
                                     const double *smoothing)
{
    if (!log_p)
        return NULL;
    int64_t dim = class_dim(log_p), classes = log_p->shape[dim];
    if (smoothing)
        target = kiln_add_scalar(kiln_mul_scalar(target, 1 - *smoothing), *smoothing / (double)classes);
    kiln_tensor *terms = kiln_neg(kiln_mul(log_p, target));
    if (weight)
        terms = kiln_mul(terms, beside_classes(weight, log_p));
    if (reduction == KILN_NONE)
        return kiln_sum(terms, 1, &dim, false);
    kiln_tensor *sum = kiln_sum_all(terms);
    return reduction == KILN_SUM ? sum : kiln_div_scalar(sum, (double)kiln_numel(log_p) / (double)classes);
}

/* The losses of large x [N, C], without its logarithms of probabilities ever being in memory: with d = x - max the loss
 * of a row is log Σ exp(d) - d[target]. The maximum is no part of the result, only of its precision. */
static kiln_tensor *large_class_losses(kiln_tensor *x, kiln_tensor *target, int64_t ignore)
{
    int64_t dim = class_dim(x);
    kiln_tensor *most = NULL;
    kiln_no_grad
        most = kiln_amax(x, 1, &dim, true);
    kiln_tensor *sum = kiln_sum(kiln_exp(kiln_sub(x, most)), 1, &dim, false);
    kiln_tensor *minus_x = KILN_OP(nll_loss_pick, KILN_IN(x, target), KILN_I(dim, ignore));
    kiln_tensor *each = kiln_add(kiln_log(sum), kiln_add(minus_x, kiln_squeeze(most, (int)dim)));
    return kiln_masked_fill(each, kiln_ignored_targets(target, ignore), 0);
}

static bool cross_entropy_compose(kiln_call *c, kiln_tensor **out)
{
    kiln_tensor *x = c->in[0], *target = c->in[1], *weight = c->in[2], *y;
    int64_t ignore = c->attrs.i[0], reduction = c->attrs.i[1];
    const double *smoothing = c->attrs.i[2] ? &c->attrs.f[0] : NULL;
    bool classes = !kiln_dtype_is_float((kiln_dtype)target->dtype);
    if (classes && !weight && !smoothing && kiln_is_large_choice(x, class_dim(x))) {
        target = kiln_cast(target, KILN_I64);
        y = target ? large_class_losses(x, target, ignore) : NULL;
        y = reduce_class_losses(y, NULL, kiln_ignored_targets(target, ignore), reduction);
        out[0] = kiln_cast(y, c->out[0].dtype);
        return out[0] != NULL;
    }
    kiln_tensor *log_p = kiln_log_softmax(x, class_dim(c->in[0]));
    if (!classes)
        y = probability_loss(log_p, target, weight, reduction, smoothing);
    else
        y = class_loss(log_p, kiln_cast(target, KILN_I64), weight, ignore, reduction, smoothing);
    out[0] = kiln_cast(y, c->out[0].dtype);
    return out[0] != NULL;
}

const kiln_op kiln_op_cross_entropy = {
    .name = "cross_entropy",
    .attrs = "ignore_index reduction smoothing | label_smoothing",
    .cls = KILN_CLASS_COMPOSITE,
    .autocast = KILN_CAST_FLOAT,
    .dtypes = KILN_T_FLOATS,
    .min_in = 2,
    .max_in = 3,
    .infer = cross_entropy_infer,
    .compose = cross_entropy_compose,
    .cases =
        KILN_CASES{"x[3,4] i4[3] - | -100 0 0 | 0", "x[4] i4[] - | -100 0 0 | 0", "x[2,3,5] i3[2,5] - | -100 2 0 | 0",
                   "x[3,4] n1,-1,3[3] q[4] | -1 0 0 | 0", "x[3,4] n1,-1,3[3] q[4] | -1 0 1 | 0.1",
                   "x[3,4] i4[3] - | -100 1 1 | 0.2", "x[3,4] q[3,4] - | -100 0 0 | 0",
                   "x[3,4] q[3,4] q[4] | -100 0 1 | 0.1", "x[2,3,2] q[2,3,2] - | -100 2 0 | 0", NULL},
};

kiln_tensor *kiln_cross_entropy_(kiln_tensor *x, kiln_tensor *target, const kiln_cross_entropy_options *given)
{
    kiln_cross_entropy_options o;
    if (!KILN_TAKE_OPTIONS("cross_entropy", o, given))
        return NULL;
    if (!(o.label_smoothing >= 0 && o.label_smoothing <= 1))
        return kiln_fail(KILN_E_ARGUMENT, "cross_entropy", "label_smoothing is %g; it lies between 0 and 1",
                         o.label_smoothing);
    int64_t ignore = o.ignore_index || o.ignore_zero ? o.ignore_index : -100;
    kiln_attrs a = {.nints = 3, .nfloats = 1, .f = {o.label_smoothing}};
    a.i[0] = ignore;
    a.i[1] = o.reduction;
    a.i[2] = o.label_smoothing > 0;
    return KILN_OP(cross_entropy, KILN_IN(x, target, o.weight), &a);
}

/* ---- Losses of pairs: x and target element by element ---- */

static kiln_tensor *reduce_loss(kiln_tensor *each, int64_t reduction)
{
    if (reduction == KILN_NONE)
        return each;
    return reduction == KILN_SUM ? kiln_sum_all(each) : kiln_mean_all(each);
}

/* The first integer is the reduction; x and target broadcast. */
static bool pair_infer(kiln_call *c)
{
    const kiln_tensor *x = c->in[0], *target = c->in[1];
    int64_t shape[KILN_MAX_DIMS];
    int n;
    if (!kiln_broadcast(x->ndim, x->shape, target->ndim, target->shape, &n, shape))
        return kiln_fail(KILN_E_SHAPE, c->op->name, "x %s and target %s do not broadcast",
                         kiln_shape_text(x->ndim, x->shape), kiln_shape_text(target->ndim, target->shape));
    if (!describe_loss(c, c->attrs.i[0], n, shape))
        return false;
    c->out[0].dtype = kiln_dtype_promote((kiln_dtype)x->dtype, (kiln_dtype)target->dtype);
    return true;
}

/* The same, for losses that take no broadcasting. */
static bool same_shape_infer(kiln_call *c)
{
    const kiln_tensor *x = c->in[0], *target = c->in[1];
    if (x->ndim != target->ndim || memcmp(x->shape, target->shape, (size_t)x->ndim * sizeof *x->shape))
        return kiln_fail(KILN_E_SHAPE, c->op->name, "x %s and target %s must have the same shape",
                         kiln_shape_text(x->ndim, x->shape), kiln_shape_text(target->ndim, target->shape));
    return pair_infer(c);
}

static bool finish_pair(kiln_call *c, kiln_tensor *each, kiln_tensor **out)
{
    out[0] = kiln_cast(reduce_loss(each, c->attrs.i[0]), c->out[0].dtype);
    return out[0] != NULL;
}

static kiln_tensor *difference(const kiln_call *c)
{
    return kiln_sub(c->in[0], c->in[1]);
}

static bool mse_compose(kiln_call *c, kiln_tensor **out)
{
    return finish_pair(c, kiln_square(difference(c)), out);
}

static bool l1_compose(kiln_call *c, kiln_tensor **out)
{
    return finish_pair(c, kiln_abs(difference(c)), out);
}

/* ½d² up to delta, then the tangent: with m = d clamped to ±delta both are m·(d - ½m). */
static kiln_tensor *huber(kiln_tensor *d, double delta)
{
    kiln_tensor *m = kiln_clamp(d, -delta, delta);
    return kiln_mul(m, kiln_sub(d, kiln_mul_scalar(m, 0.5)));
}

static bool huber_compose(kiln_call *c, kiln_tensor **out)
{
    return finish_pair(c, huber(difference(c), c->attrs.f[0]), out);
}

static bool smooth_l1_compose(kiln_call *c, kiln_tensor **out)
{
    return finish_pair(c, kiln_div_scalar(huber(difference(c), c->attrs.f[0]), c->attrs.f[0]), out);
}

/* f(p, t) = -(t·log p + (1-t)·log(1-p)), with logarithms of at least -100. The slope in p is (p-t) / (p·(1-p)), with a
 * denominator of at least 1e-12 (PyTorch's, an f32): where p is the target the slope is 0, also at the ends. */
KILN_PW_GRAD2(bce,
              kiln_mul(gy, kiln_div(kiln_sub(a, b), kiln_clamp(kiln_mul(a, kiln_rsub_scalar(a, 1)), 1e-12f, INFINITY))),
              kiln_mul(gy, kiln_sub(kiln_clamp(kiln_log1p(kiln_neg(a)), -100, INFINITY),
                                    kiln_clamp(kiln_log(a), -100, INFINITY))))
const kiln_op kiln_op_bce = {KILN_PW_OP(bce, 2),
                             .dtypes = KILN_T_FLOATS,
                             .lo = 0.05,
                             .hi = 0.95,
                             .grad_reads = {KILN_READS_X | KILN_READS_Y, KILN_READS_X},
                             .grad = bce_rule,
                             .cases = KILN_PW_CASES2("x", "x")};

static bool bce_compose(kiln_call *c, kiln_tensor **out)
{
    kiln_tensor *in[2], *weight = c->in[2];
    for (int k = 0; k < 2; k++)
        in[k] = kiln_require(c->in[k], KILN_REQUIRE_PROBABILITY);
    kiln_tensor *each = kiln_pw_call(&kiln_op_bce, in, 2, KILN_NO_ATTRS);
    return finish_pair(c, weight ? kiln_mul(each, weight) : each, out);
}

/* (1-t)·x - (1 + (pos_weight-1)·t)·log sigmoid(x), times weight */
static bool bce_logits_compose(kiln_call *c, kiln_tensor **out)
{
    kiln_tensor *x = c->in[0], *t = c->in[1];
    kiln_tensor *weight = c->in[2], *positive = c->in[3];
    kiln_tensor *log_yes = kiln_logsigmoid(x);
    if (positive)
        log_yes = kiln_mul(log_yes, kiln_add_scalar(kiln_mul(kiln_add_scalar(positive, -1), t), 1));
    kiln_tensor *each = kiln_sub(kiln_mul(kiln_rsub_scalar(t, 1), x), log_yes);
    return finish_pair(c, weight ? kiln_mul(each, weight) : each, out);
}

/* target·(log target - x), 0 where target is 0 */
static bool kl_div_compose(kiln_call *c, kiln_tensor **out)
{
    kiln_tensor *x = c->in[0], *t = c->in[1];
    if (c->attrs.i[1])
        return finish_pair(c, kiln_mul(kiln_exp(t), kiln_sub(t, x)), out);
    kiln_tensor *entropy = kiln_mul(t, kiln_log(kiln_masked_fill(t, kiln_eq_scalar(t, 0), 1)));
    return finish_pair(c, kiln_sub(entropy, kiln_mul(t, x)), out);
}

#define LOSS(op_name, attributes, operands, rule, composition, from, to, ...)                                          \
    const kiln_op kiln_op_##op_name = {                                                                                \
        .name = #op_name,                                                                                              \
        .attrs = attributes,                                                                                           \
        .cls = KILN_CLASS_COMPOSITE,                                                                                   \
        .autocast = KILN_CAST_FLOAT,                                                                                   \
        .dtypes = KILN_T_FLOATS,                                                                                       \
        .min_in = 2,                                                                                                   \
        .max_in = operands,                                                                                            \
        .lo = from,                                                                                                    \
        .hi = to,                                                                                                      \
        .infer = rule,                                                                                                 \
        .compose = composition,                                                                                        \
        .cases = KILN_CASES{__VA_ARGS__, NULL},                                                                        \
    }

LOSS(mse_loss, "reduction", 2, pair_infer, mse_compose, 0, 0, "x[5] x[5] | 0", "x[2,3] x[2,3] | 1", "x[2,3] x[3] | 2",
     "x[] x[] | 0");
LOSS(l1_loss, "reduction", 2, pair_infer, l1_compose, 0, 0, "x[5] x[5] | 0", "x[2,3] x[2,3] | 1", "x[2,3] x[3] | 2");
LOSS(huber_loss, "reduction | delta", 2, pair_infer, huber_compose, 0, 0, "x[5] x[5] | 0 | 1",
     "x[2,3] x[2,3] | 1 | 0.7", "x[2,3] x[3] | 2 | 1.5");
LOSS(smooth_l1_loss, "reduction | beta", 2, pair_infer, smooth_l1_compose, 0, 0, "x[5] x[5] | 0 | 1",
     "x[2,3] x[2,3] | 1 | 0.7", "x[2,3] x[3] | 2 | 1.5");
LOSS(binary_cross_entropy, "reduction", 3, same_shape_infer, bce_compose, 0.05, 0.95, "x[5] x[5] - | 0",
     "x[2,3] x[2,3] x[2,3] | 1", "x[2,3] x[2,3] x[3] | 2");
LOSS(binary_cross_entropy_with_logits, "reduction", 4, same_shape_infer, bce_logits_compose, 0, 0, "x[5] x[5] - - | 0",
     "x[2,3] x[2,3] x[2,3] - | 1", "x[2,3] x[2,3] - x[3] | 2", "x[2,3] x[2,3] x[3] x[3] | 0");
LOSS(kl_div, "reduction log_target", 2, pair_infer, kl_div_compose, 0, 0, "x[5] q[5] | 0 0", "x[2,3] q[2,3] | 1 0",
     "x[2,3] x[2,3] | 2 1", "x[2,3] x[2,3] | 0 1");

/* x in the type that it and the target promote to: integers may stand on either side. */
static kiln_tensor *promoted(kiln_tensor *x, const kiln_tensor *target)
{
    bool change = x && target && kiln_dtype_is_float((kiln_dtype)target->dtype);
    return change ? kiln_cast(x, kiln_dtype_promote((kiln_dtype)x->dtype, (kiln_dtype)target->dtype)) : x;
}

kiln_tensor *kiln_mse_loss(kiln_tensor *x, kiln_tensor *target, kiln_reduction reduction)
{
    KILN_TIDY;
    x = promoted(x, target);
    return KILN_KEPT(KILN_OP(mse_loss, KILN_IN(x, target), KILN_I(reduction)));
}

/* Distances of integers are integers; they have no mean. */
kiln_tensor *kiln_l1_loss(kiln_tensor *x, kiln_tensor *target, kiln_reduction reduction)
{
    KILN_TIDY;
    x = promoted(x, target);
    if (x && target && !kiln_dtype_is_float((kiln_dtype)x->dtype) && (reduction == KILN_SUM || reduction == KILN_NONE))
        return KILN_KEPT(reduce_loss(kiln_abs(kiln_sub(x, target)), reduction));
    return KILN_KEPT(KILN_OP(l1_loss, KILN_IN(x, target), KILN_I(reduction)));
}

kiln_tensor *kiln_huber_loss(kiln_tensor *x, kiln_tensor *target, double delta, kiln_reduction reduction)
{
    KILN_TIDY;
    if (!(delta > 0))
        return kiln_fail(KILN_E_ARGUMENT, "huber_loss", "delta is %g; it must be positive", delta);
    kiln_attrs a = {.nints = 1, .nfloats = 1, .i = {reduction}, .f = {delta}};
    return KILN_KEPT(KILN_OP(huber_loss, KILN_IN(promoted(x, target), target), &a));
}

kiln_tensor *kiln_smooth_l1_loss(kiln_tensor *x, kiln_tensor *target, double beta, kiln_reduction reduction)
{
    KILN_TIDY;
    if (!(beta >= 0))
        return kiln_fail(KILN_E_ARGUMENT, "smooth_l1_loss", "beta is %g; it must not be negative", beta);
    if (beta == 0)
        return KILN_KEPT(kiln_l1_loss(x, target, reduction));
    kiln_attrs a = {.nints = 1, .nfloats = 1, .i = {reduction}, .f = {beta}};
    return KILN_KEPT(KILN_OP(smooth_l1_loss, KILN_IN(promoted(x, target), target), &a));
}

kiln_tensor *kiln_binary_cross_entropy(kiln_tensor *p, kiln_tensor *target, kiln_tensor *weight,
                                       kiln_reduction reduction)
{
    return KILN_OP(binary_cross_entropy, KILN_IN(p, target, weight), KILN_I(reduction));
}

kiln_tensor *kiln_binary_cross_entropy_with_logits(kiln_tensor *x, kiln_tensor *target, kiln_tensor *weight,
                                                   kiln_tensor *pos_weight, kiln_reduction reduction)
{
    return KILN_OP(binary_cross_entropy_with_logits, KILN_IN(x, target, weight, pos_weight), KILN_I(reduction));
}

kiln_tensor *kiln_kl_div(kiln_tensor *log_p, kiln_tensor *target, bool log_target, kiln_reduction reduction)
{
    return KILN_OP(kl_div, KILN_IN(log_p, target), KILN_I(reduction, log_target));
}

const kiln_op *const kiln_ops_loss[] = {
    &kiln_op_nll_loss_pick,
    &kiln_op_nll_loss_place,
    &kiln_op_nll_loss,
    &kiln_op_cross_entropy,
    &kiln_op_mse_loss,
    &kiln_op_l1_loss,
    &kiln_op_huber_loss,
    &kiln_op_smooth_l1_loss,
    &kiln_op_binary_cross_entropy,
    &kiln_op_binary_cross_entropy_with_logits,
    &kiln_op_kl_div,
    NULL,
};
