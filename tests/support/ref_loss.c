/* Losses, written from their definitions: the loss of each element or place first, then the reduction. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "support/ref.h"

static const ref_tensor *operand(const ref_call *c, int k)
{
    return k < c->nin ? c->in[k] : NULL;
}

/* Writes the losses `each` (and their magnitudes) as output 0: all, their sum, or the sum divided by `weight`. */
static void reduced(ref_call *c, int64_t reduction, int ndim, const int64_t *shape, const double *each,
                    const double *size, double weight)
{
    int64_t n = ref_count(ndim, shape);
    ref_tensor *out = ref_out(c, 0, c->in[0]->dtype, reduction == KILN_NONE ? ndim : 0, shape);
    if (reduction == KILN_NONE) {
        memcpy(out->data, each, (size_t)n * sizeof(double));
        memcpy(out->size, size, (size_t)n * sizeof(double));
        return;
    }
    out->size[0] = 0;
    for (int64_t i = 0; i < n; i++) {
        out->data[0] += each[i];
        out->size[0] += size[i];
    }
    if (reduction == KILN_MEAN) {
        out->data[0] /= weight;
        out->size[0] /= weight;
    }
}

/* ---- Element by element ---- */

typedef double (*pair_loss)(const ref_call *c, double x, double t, double w, double pos);

static double mse(const ref_call *c, double x, double t, double w, double pos)
{
    (void)c, (void)w, (void)pos;
    return (x - t) * (x - t);
}

static double l1(const ref_call *c, double x, double t, double w, double pos)
{
    (void)c, (void)w, (void)pos;
    return fabs(x - t);
}

static double huber(const ref_call *c, double x, double t, double w, double pos)
{
    (void)w, (void)pos;
    double d = fabs(x - t), delta = REF_FLOAT(c, 0);
    return d <= delta ? d * d / 2 : delta * (d - delta / 2);
}

static double smooth_l1(const ref_call *c, double x, double t, double w, double pos)
{
    (void)w, (void)pos;
    double d = fabs(x - t), beta = REF_FLOAT(c, 0);
    return d < beta ? d * d / 2 / beta : d - beta / 2;
}

static double bce(const ref_call *c, double x, double t, double w, double pos)
{
    (void)c, (void)pos;
    return -w * (t * fmax(log(x), -100) + (1 - t) * fmax(log(1 - x), -100));
}

static double bce_with_logits(const ref_call *c, double x, double t, double w, double pos)
{
    (void)c;
    double p = 1 / (1 + exp(-x));
    return -w * (pos * t * log(p) + (1 - t) * log(1 - p));
}

static double kl(const ref_call *c, double x, double t, double w, double pos)
{
    (void)w, (void)pos;
    if (REF_INT(c, 1))
        return exp(t) * (t - x);
    return t > 0 ? t * (log(t) - x) : 0;
}

static void pairs(ref_call *c, pair_loss f)
{
    const ref_tensor *weight = operand(c, 2), *positive = operand(c, 3);
    int ndim = 0;
    int64_t shape[KILN_MAX_DIMS], index[KILN_MAX_DIMS];
    ref_broadcast_shape(&ndim, shape, c->in[0]);
    ref_broadcast_shape(&ndim, shape, c->in[1]);
    int64_t n = ref_count(ndim, shape);
    double *each = calloc((size_t)n + 1, sizeof *each), *size = calloc((size_t)n + 1, sizeof *size);
    for (int64_t i = 0; i < n; i++) {
        ref_unravel(ndim, shape, i, index);
        double x = ref_broadcast_at(c->in[0], ndim, index), t = ref_broadcast_at(c->in[1], ndim, index);
        double w = weight ? ref_broadcast_at(weight, ndim, index) : 1;
        double pos = positive ? ref_broadcast_at(positive, ndim, index) : 1;
        each[i] = f(c, x, t, w, pos);
        size[i] = fabs(each[i]) + fabs(x) * (1 + fabs(t)) * fabs(w); /* terms that may cancel */
    }
    reduced(c, REF_INT(c, 0), ndim, shape, each, size, (double)n);
    free(each);
    free(size);
}

#define PAIRS(F)                                                                                                       \
    F(mse_loss, mse)                                                                                                   \
    F(l1_loss, l1)                                                                                                     \
    F(huber_loss, huber)                                                                                               \
    F(smooth_l1_loss, smooth_l1)                                                                                       \
    F(binary_cross_entropy, bce)                                                                                       \
    F(binary_cross_entropy_with_logits, bce_with_logits)                                                               \
    F(kl_div, kl)
#define RUN(name, f)                                                                                                   \
    static void run_##name(ref_call *c)                                                                                \
    {                                                                                                                  \
        pairs(c, f);                                                                                                   \
    }
PAIRS(RUN)

/* ---- Classes ---- */

/* x is [classes], or [batch, classes, …]: element (o, k, i) of `places` = before·after places. */
typedef struct classes {
    int dim, ndim; /* the class dim; dims of what is left */
    int64_t shape[KILN_MAX_DIMS];
    ref_split s;
} classes;

static classes find_classes(const ref_tensor *x, int dim)
{
    classes k = {.dim = dim, .s = ref_split_at(x, dim)};
    for (int d = 0; d < x->ndim; d++)
        if (d != dim)
            k.shape[k.ndim++] = x->shape[d];
    return k;
}

static double class_value(const ref_tensor *x, const classes *k, int64_t place, int64_t class)
{
    return x->data[(place / k->s.after * k->s.at + class) * k->s.after + place % k->s.after];
}

/* The logarithm of the softmax of x at one place. */
static double log_p(const ref_tensor *x, const classes *k, int64_t place, int64_t class)
{
    double largest = -INFINITY, sum = 0;
    for (int64_t j = 0; j < k->s.at; j++)
        largest = fmax(largest, class_value(x, k, place, j));
    for (int64_t j = 0; j < k->s.at; j++)
        sum += exp(class_value(x, k, place, j) - largest);
    return class_value(x, k, place, class) - largest - log(sum);
}

/* Losses of places whose classes are given: `logs` true when x holds log-probabilities already. */
static void class_loss(ref_call *c, bool logs, double smoothing)
{
    const ref_tensor *x = c->in[0], *target = c->in[1], *weight = operand(c, 2);
    classes k = find_classes(x, x->ndim > 1);
    int64_t places = ref_count(k.ndim, k.shape);
    double total = 0, *each = calloc((size_t)places + 1, sizeof *each),
           *size = calloc((size_t)places + 1, sizeof *size);
    for (int64_t p = 0; p < places; p++) {
        int64_t t = (int64_t)target->data[p];
        if (t == REF_INT(c, 0))
            continue;
        total += weight ? weight->data[t] : 1;
        for (int64_t j = 0; j < k.s.at; j++) {
            double share = (j == t ? 1 - smoothing : 0) + smoothing / (double)k.s.at;
            double term =
                -share * (weight ? weight->data[j] : 1) * (logs ? class_value(x, &k, p, j) : log_p(x, &k, p, j));
            each[p] += term;
            size[p] += fabs(term) + share;
        }
    }
    reduced(c, REF_INT(c, 1), k.ndim, k.shape, each, size, total);
    free(each);
    free(size);
}

static void run_nll_loss(ref_call *c)
{
    class_loss(c, true, 0);
}

static void probability_loss(ref_call *c, double smoothing)
{
    const ref_tensor *x = c->in[0], *target = c->in[1], *weight = operand(c, 2);
    classes k = find_classes(x, x->ndim > 1);
    int64_t places = ref_count(k.ndim, k.shape);
    double *each = calloc((size_t)places + 1, sizeof *each), *size = calloc((size_t)places + 1, sizeof *size);
    for (int64_t p = 0; p < places; p++)
        for (int64_t j = 0; j < k.s.at; j++) {
            double share = class_value(target, &k, p, j) * (1 - smoothing) + smoothing / (double)k.s.at;
            double term = -share * log_p(x, &k, p, j) * (weight ? weight->data[j] : 1);
            each[p] += term;
            size[p] += fabs(term) + share;
        }
    reduced(c, REF_INT(c, 1), k.ndim, k.shape, each, size, (double)places);
    free(each);
    free(size);
}

static void run_cross_entropy(ref_call *c)
{
    double smoothing = REF_INT(c, 2) ? REF_FLOAT(c, 0) : 0;
    if (kiln_dtype_is_float(c->in[1]->dtype))
        probability_loss(c, smoothing);
    else
        class_loss(c, false, smoothing);
}

/* -x at the target's class; 0 where it is ignored. ints: dim ignore_index */
static void run_nll_loss_pick(ref_call *c)
{
    const ref_tensor *x = c->in[0], *target = c->in[1];
    classes k = find_classes(x, ref_dim(REF_INT(c, 0), x->ndim));
    ref_tensor *out = ref_out(c, 0, x->dtype, k.ndim, k.shape);
    for (int64_t p = 0; p < out->count; p++)
        if ((int64_t)target->data[p] != REF_INT(c, 1))
            out->data[p] = -class_value(x, &k, p, (int64_t)target->data[p]);
}

/* The reverse: -g at the target's class of zeros. ints: dim ignore_index classes */
static void run_nll_loss_place(ref_call *c)
{
    const ref_tensor *g = c->in[0], *target = c->in[1];
    int dim = ref_dim(REF_INT(c, 0), g->ndim + 1), n = 0;
    int64_t shape[KILN_MAX_DIMS];
    for (int d = 0; d <= g->ndim; d++)
        shape[d] = d == dim ? REF_INT(c, 2) : g->shape[n++];
    ref_tensor *out = ref_out(c, 0, g->dtype, g->ndim + 1, shape);
    ref_split s = ref_split_at(out, dim);
    for (int64_t p = 0; p < g->count; p++)
        if ((int64_t)target->data[p] != REF_INT(c, 1))
            out->data[(p / s.after * s.at + (int64_t)target->data[p]) * s.after + p % s.after] = -g->data[p];
}

/* ---- CTC ---- */

/* True when a path of classes, with repeats absorbed and blanks removed, spells the target. */
static bool spells(const int64_t *path, int64_t frames, const double *target, int64_t length, int64_t blank)
{
    int64_t n = 0;
    for (int64_t t = 0; t < frames; t++) {
        if (path[t] == blank || (t > 0 && path[t] == path[t - 1]))
            continue;
        if (n == length || path[t] != (int64_t)target[n])
            return false;
        n++;
    }
    return n == length;
}

/* Tries every path there is. */
static double ctc_of(const ref_call *c, int64_t b)
{
    const ref_tensor *x = c->in[0], *targets = c->in[1];
    int64_t batch = x->shape[1], classes_n = x->shape[2], frames = (int64_t)c->in[2]->data[b], paths = 1, path[16];
    double sum = 0;
    for (int64_t t = 0; t < frames; t++)
        paths *= classes_n;
    for (int64_t p = 0; p < paths; p++) {
        double log_probability = 0;
        int64_t rest = p;
        for (int64_t t = 0; t < frames; t++) {
            path[t] = rest % classes_n;
            rest /= classes_n;
            log_probability += x->data[(t * batch + b) * classes_n + path[t]];
        }
        if (spells(path, frames, targets->data + b * targets->shape[1], (int64_t)c->in[3]->data[b], REF_INT(c, 0)))
            sum += exp(log_probability);
    }
    return sum > 0 ? -log(sum) : REF_INT(c, 2) ? 0 : INFINITY;
}

/* log_p [T, N, C], targets [N, S], input_lengths [N], target_lengths [N]; ints blank reduction zero_infinity */
static void run_ctc_loss(ref_call *c)
{
    int64_t batch = c->in[0]->shape[1], reduction = REF_INT(c, 1);
    double *each = calloc((size_t)batch + 1, sizeof *each), *size = calloc((size_t)batch + 1, sizeof *size);
    for (int64_t b = 0; b < batch; b++) {
        double length = c->in[3]->data[b];
        each[b] = ctc_of(c, b) / (reduction == KILN_MEAN && length > 1 ? length : 1);
        size[b] = fabs(each[b]) + c->in[2]->data[b]; /* a sum over the frames */
    }
    reduced(c, reduction, 1, &batch, each, size, (double)batch);
    free(each);
    free(size);
}

#define ENTRY(name, f) {#name, run_##name, 4},
const ref_entry ref_entries_loss[] = {
    PAIRS(ENTRY){"nll_loss", run_nll_loss, 2}, {"cross_entropy", run_cross_entropy, 2},   {"ctc_loss", run_ctc_loss, 2},
    {"nll_loss_pick", run_nll_loss_pick, 0},   {"nll_loss_place", run_nll_loss_place, 0}, {NULL, NULL, 0},
};
