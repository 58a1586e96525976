/* Reductions over dims, running sums and products, sorting: loops over the whole tensor, an element at a time. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "support/ref.h"

/* Which elements of x fall into each output: dims that are gone, the output's shape, how many elements an output has.
 */
typedef struct groups {
    int ndim, kept;
    int64_t shape[KILN_MAX_DIMS], kept_shape[KILN_MAX_DIMS], out_shape[KILN_MAX_DIMS], of_each;
    bool gone[KILN_MAX_DIMS];
} groups;

/* The dims are the integers from `first` on; none: all. keepdim is the integer before them. */
static groups find_groups(const ref_call *c, int first)
{
    const ref_tensor *x = c->in[0];
    groups g = {.ndim = x->ndim, .of_each = 1};
    bool keepdim = REF_INT(c, first - 1) != 0, all = c->attrs.nints <= first;
    for (int k = first; k < c->attrs.nints; k++)
        g.gone[ref_dim(REF_INT(c, k), x->ndim)] = true;
    for (int d = 0; d < x->ndim; d++) {
        g.gone[d] |= all;
        g.shape[d] = x->shape[d];
        g.kept_shape[d] = g.gone[d] ? 1 : x->shape[d];
        if (g.gone[d])
            g.of_each *= x->shape[d];
        if (!g.gone[d] || keepdim)
            g.out_shape[g.kept++] = g.kept_shape[d];
    }
    return g;
}

/* All elements, those of output 0 first, each output's in row-major order. */
static double *collect(const ref_call *c, const groups *g, int64_t outs)
{
    double *values = calloc((size_t)(outs * g->of_each) + 1, sizeof *values);
    int64_t index[KILN_MAX_DIMS], *filled = calloc((size_t)outs + 1, sizeof *filled);
    for (int64_t i = 0; i < c->in[0]->count; i++) {
        ref_unravel(g->ndim, g->shape, i, index);
        for (int d = 0; d < g->ndim; d++)
            index[d] = g->gone[d] ? 0 : index[d];
        int64_t o = ref_ravel(g->ndim, g->kept_shape, index);
        values[o * g->of_each + filled[o]++] = c->in[0]->data[i];
    }
    free(filled);
    return values;
}

/* Value and magnitude of one output from its n elements. */
typedef double (*reducer)(const ref_call *c, const double *v, int64_t n, double *size);

static void reduce(ref_call *c, int first, reducer f, kiln_dtype dtype)
{
    groups g = find_groups(c, first);
    ref_tensor *out = ref_out(c, 0, dtype, g.kept, g.out_shape);
    double *values = collect(c, &g, out->count);
    for (int64_t o = 0; o < out->count; o++)
        out->data[o] = f(c, values + o * g.of_each, g.of_each, &out->size[o]);
    free(values);
}

static double sum(const ref_call *c, const double *v, int64_t n, double *size)
{
    (void)c;
    double s = 0, a = 0;
    for (int64_t i = 0; i < n; i++) {
        s += v[i];
        a += fabs(v[i]);
    }
    *size = a;
    return s;
}

static double mean(const ref_call *c, const double *v, int64_t n, double *size)
{
    double s = sum(c, v, n, size);
    *size /= (double)n;
    return s / (double)n;
}

static double prod(const ref_call *c, const double *v, int64_t n, double *size)
{
    (void)c;
    double p = 1;
    for (int64_t i = 0; i < n; i++)
        p *= v[i];
    *size = fabs(p) * (1 + (double)n / 8);
    return p;
}

static double largest(const ref_call *c, const double *v, int64_t n, double *size)
{
    (void)c, (void)size;
    double m = -INFINITY;
    for (int64_t i = 0; i < n; i++)
        m = isnan(m) || isnan(v[i]) ? NAN : fmax(m, v[i]);
    return m;
}

static double smallest(const ref_call *c, const double *v, int64_t n, double *size)
{
    (void)c, (void)size;
    double m = INFINITY;
    for (int64_t i = 0; i < n; i++)
        m = isnan(m) || isnan(v[i]) ? NAN : fmin(m, v[i]);
    return m;
}

static double any(const ref_call *c, const double *v, int64_t n, double *size)
{
    (void)c, (void)size;
    bool b = false;
    for (int64_t i = 0; i < n; i++)
        b |= v[i] != 0;
    return b;
}

static double all(const ref_call *c, const double *v, int64_t n, double *size)
{
    (void)c, (void)size;
    bool b = true;
    for (int64_t i = 0; i < n; i++)
        b &= v[i] != 0;
    return b;
}

static double var(const ref_call *c, const double *v, int64_t n, double *size)
{
    double m = mean(c, v, n, size), s = 0, a = 0;
    for (int64_t i = 0; i < n; i++) {
        s += (v[i] - m) * (v[i] - m);
        a += v[i] * v[i];
    }
    double freedom = (double)(n - REF_INT(c, 0));
    freedom = freedom > 0 ? freedom : 0;
    *size = a / freedom;
    return s / freedom;
}

static double std_of(const ref_call *c, const double *v, int64_t n, double *size)
{
    double s = sqrt(var(c, v, n, size));
    *size = sqrt(*size);
    return s;
}

static double logsumexp(const ref_call *c, const double *v, int64_t n, double *size)
{
    double m = largest(c, v, n, size), s = 0;
    if (isinf(m))
        return m;
    for (int64_t i = 0; i < n; i++)
        s += exp(v[i] - m);
    *size = fabs(m) + fabs(log(s));
    return m + log(s);
}

/* The first integer says which: 0 counts, 1 and 2 are those norms, 3 and 4 the extremes, the rest have p as a float. */
static double norm(const ref_call *c, const double *v, int64_t n, double *size)
{
    static const double known[] = {0, 1, 2, INFINITY, -INFINITY};
    double p = REF_INT(c, 0) < 5 ? known[REF_INT(c, 0)] : REF_FLOAT(c, 0), s = 0;
    (void)size;
    if (isinf(p))
        s = p > 0 ? 0 : INFINITY;
    for (int64_t i = 0; i < n; i++) {
        double a = fabs(v[i]);
        s = isinf(p) ? (p > 0 ? fmax(s, a) : fmin(s, a)) : s + (p == 0 ? a != 0 : pow(a, p));
    }
    return p == 0 || isinf(p) ? s : pow(s, 1 / p);
}

#define REDUCERS(F)                                                                                                    \
    F(sum, 1, sum)                                                                                                     \
    F(mean, 1, mean)                                                                                                   \
    F(prod, 1, prod)                                                                                                   \
    F(amax, 1, largest)                                                                                                \
    F(amin, 1, smallest)                                                                                               \
    F(any, 1, any)                                                                                                     \
    F(all, 1, all)                                                                                                     \
    F(var, 2, var)                                                                                                     \
    F(std, 2, std_of)                                                                                                  \
    F(logsumexp, 1, logsumexp)                                                                                         \
    F(norm, 2, norm)
#define RUN(name, first, f)                                                                                            \
    static void run_##name(ref_call *c)                                                                                \
    {                                                                                                                  \
        reduce(c, first, f, c->in[0]->dtype);                                                                          \
    }
REDUCERS(RUN)

/* ---- Along one dim ---- */

static void run_cumulative(ref_call *c, bool product)
{
    const ref_tensor *x = c->in[0];
    ref_tensor *out = ref_out_like(c, 0, x);
    ref_split s = ref_split_at(x, ref_dim(REF_INT(c, 0), x->ndim));
    for (int64_t o = 0; o < s.before; o++)
        for (int64_t n = 0; n < s.after; n++) {
            double value = product, size = product;
            for (int64_t i = 0; i < s.at; i++) {
                int64_t at = (o * s.at + i) * s.after + n;
                value = product ? value * x->data[at] : value + x->data[at];
                size = product ? fabs(value) * (1 + (double)i / 8) : size + fabs(x->data[at]);
                out->data[at] = value;
                out->size[at] = size;
            }
        }
}

static void run_cumsum(ref_call *c)
{
    run_cumulative(c, false);
}

static void run_cumprod(ref_call *c)
{
    run_cumulative(c, true);
}

/* s[i] = b[i] + a[i]·s[i-1], or, backward, b[i] + a[i+1]·s[i+1] */
static void run_linear_recurrence(ref_call *c)
{
    const ref_tensor *a = c->in[0], *b = c->in[1];
    ref_tensor *out = ref_out_like(c, 0, a);
    ref_split s = ref_split_at(a, ref_dim(REF_INT(c, 0), a->ndim));
    bool backward = REF_INT(c, 1);
    for (int64_t o = 0; o < s.before; o++)
        for (int64_t n = 0; n < s.after; n++)
            for (int64_t k = 0; k < s.at; k++) {
                int64_t i = backward ? s.at - 1 - k : k, at = (o * s.at + i) * s.after + n;
                int64_t from = backward ? at + s.after : at - s.after;
                double factor = k ? a->data[backward ? from : at] : 0;
                out->data[at] = b->data[at] + (k ? factor * out->data[from] : 0);
                out->size[at] = fabs(b->data[at]) + (k ? fabs(factor) * out->size[from] : 0);
            }
}

/* True when a stands before b: NaN counts as the greatest. */
static bool before(double a, double b, bool descending)
{
    if (isnan(a) || isnan(b))
        return descending ? isnan(a) && !isnan(b) : !isnan(a) && isnan(b);
    return descending ? a > b : a < b;
}

/* Insertion sort of the places of one row: stable, since equal elements never pass each other. */
static void sort_row(const double *row, int64_t n, bool descending, int64_t *order)
{
    for (int64_t i = 0; i < n; i++) {
        int64_t k = i;
        for (; k > 0 && before(row[i], row[order[k - 1]], descending); k--)
            order[k] = order[k - 1];
        order[k] = i;
    }
}

/* The first k of each sorted row: values to output `v`, places to output `p` (-1: not wanted). */
static void first_sorted(ref_call *c, int dim, int64_t k, bool descending, int v, int p)
{
    const ref_tensor *x = c->in[0];
    int64_t shape[KILN_MAX_DIMS];
    memcpy(shape, x->shape, sizeof shape);
    if (x->ndim)
        shape[dim] = k;
    ref_split s = ref_split_at(x, dim);
    ref_tensor *values = v < 0 ? NULL : ref_out(c, v, x->dtype, x->ndim, shape);
    ref_tensor *places = p < 0 ? NULL : ref_out(c, p, KILN_I64, x->ndim, shape);
    double *row = calloc((size_t)s.at + 1, sizeof *row);
    int64_t *order = calloc((size_t)s.at + 1, sizeof *order);
    for (int64_t o = 0; o < s.before; o++)
        for (int64_t n = 0; n < s.after; n++) {
            for (int64_t i = 0; i < s.at; i++)
                row[i] = x->data[(o * s.at + i) * s.after + n];
            sort_row(row, s.at, descending, order);
            for (int64_t i = 0; i < k; i++) {
                int64_t to = (o * k + i) * s.after + n;
                if (values)
                    values->data[to] = row[order[i]];
                if (places)
                    places->data[to] = (double)order[i];
            }
        }
    free(row);
    free(order);
}

static void run_sort(ref_call *c)
{
    int dim = ref_dim(REF_INT(c, 0), c->in[0]->ndim);
    first_sorted(c, dim, ref_split_at(c->in[0], dim).at, REF_INT(c, 1), 0, 1);
}

static void run_argsort(ref_call *c)
{
    int dim = ref_dim(REF_INT(c, 0), c->in[0]->ndim);
    first_sorted(c, dim, ref_split_at(c->in[0], dim).at, REF_INT(c, 1), -1, 0);
}

static void run_topk(ref_call *c)
{
    first_sorted(c, ref_dim(REF_INT(c, 1), c->in[0]->ndim), REF_INT(c, 0), REF_INT(c, 2), 0, 1);
}

/* The extreme along a dim and where it stands first: outputs values/places as given, dim removed unless kept. */
static void extreme_along(ref_call *c, int64_t dim_given, bool keepdim, bool largest_wanted, int v, int p)
{
    const ref_tensor *x = c->in[0];
    ref_tensor flat = *x;
    if (dim_given == KILN_FLAT) {
        flat.ndim = 1;
        flat.shape[0] = x->count;
    }
    int dim = dim_given == KILN_FLAT ? 0 : ref_dim(dim_given, x->ndim), n = 0;
    int64_t shape[KILN_MAX_DIMS];
    ref_split s = ref_split_at(&flat, dim);
    for (int d = 0; d < x->ndim; d++) {
        bool gone = dim_given == KILN_FLAT || d == dim;
        if (!gone || keepdim)
            shape[n++] = gone ? 1 : x->shape[d];
    }
    ref_tensor *values = v < 0 ? NULL : ref_out(c, v, x->dtype, n, shape);
    ref_tensor *places = p < 0 ? NULL : ref_out(c, p, KILN_I64, n, shape);
    for (int64_t o = 0; o < s.before; o++)
        for (int64_t k = 0; k < s.after; k++) {
            int64_t best = 0;
            for (int64_t i = 1; i < s.at; i++) {
                double a = x->data[(o * s.at + i) * s.after + k], b = x->data[(o * s.at + best) * s.after + k];
                if (!isnan(b) && (isnan(a) || (largest_wanted ? a > b : a < b)))
                    best = i;
            }
            if (values)
                values->data[o * s.after + k] = x->data[(o * s.at + best) * s.after + k];
            if (places)
                places->data[o * s.after + k] = (double)best;
        }
}

static void run_argmax(ref_call *c)
{
    extreme_along(c, REF_INT(c, 0), REF_INT(c, 1), true, -1, 0);
}

static void run_argmin(ref_call *c)
{
    extreme_along(c, REF_INT(c, 0), REF_INT(c, 1), false, -1, 0);
}

static void run_max(ref_call *c)
{
    extreme_along(c, REF_INT(c, 0), REF_INT(c, 1), true, 0, 1);
}

static void run_min(ref_call *c)
{
    extreme_along(c, REF_INT(c, 0), REF_INT(c, 1), false, 0, 1);
}

#define ENTRY(name, first, f) {#name, run_##name, 0},
const ref_entry ref_entries_reduce[] = {
    REDUCERS(ENTRY){"cumsum", run_cumsum, 0},
    {"cumprod", run_cumprod, 0},
    {"linear_recurrence", run_linear_recurrence, 0},
    {"sort", run_sort, 0},
    {"argsort", run_argsort, 0},
    {"topk", run_topk, 0},
    {"argmax", run_argmax, 0},
    {"argmin", run_argmin, 0},
    {"max", run_max, 0},
    {"min", run_min, 0},
    {NULL, NULL, 0},
};
