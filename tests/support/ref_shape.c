/* Operations that only move elements: each is a rule that says which element of x stands at a place of the output. */
#include <math.h>
#include <string.h>
#include "support/ref.h"

/* The same elements in another shape; one size may be -1. */
static void reshaped(ref_call *c, int ndim, const int64_t *wanted)
{
    const ref_tensor *x = c->in[0];
    int64_t shape[KILN_MAX_DIMS], known = 1;
    for (int d = 0; d < ndim; d++)
        known *= wanted[d] == -1 ? 1 : wanted[d];
    for (int d = 0; d < ndim; d++)
        shape[d] = wanted[d] == -1 ? (known ? x->count / known : 0) : wanted[d];
    ref_tensor *out = ref_out(c, 0, x->dtype, ndim, shape);
    memcpy(out->data, x->data, (size_t)x->count * sizeof(double));
}

static void run_reshape(ref_call *c)
{
    reshaped(c, c->attrs.nints, c->attrs.i);
}

static void run_flatten(ref_call *c)
{
    const ref_tensor *x = c->in[0];
    int64_t shape[KILN_MAX_DIMS] = {1};
    int start = ref_dim(REF_INT(c, 0), x->ndim), end = ref_dim(REF_INT(c, 1), x->ndim), n = 0;
    for (int d = 0; d < x->ndim; d++) {
        if (d > start && d <= end)
            shape[n - 1] *= x->shape[d];
        else
            shape[n++] = x->shape[d];
    }
    reshaped(c, x->ndim ? n : 1, shape);
}

static void run_squeeze(ref_call *c)
{
    const ref_tensor *x = c->in[0];
    int64_t shape[KILN_MAX_DIMS];
    int n = 0;
    for (int d = 0; d < x->ndim; d++)
        if (x->shape[d] != 1 || (REF_INT(c, 0) != KILN_FLAT && d != ref_dim(REF_INT(c, 0), x->ndim)))
            shape[n++] = x->shape[d];
    reshaped(c, n, shape);
}

static void run_unsqueeze(ref_call *c)
{
    const ref_tensor *x = c->in[0];
    int64_t shape[KILN_MAX_DIMS];
    int at = ref_dim(REF_INT(c, 0), x->ndim + 1), n = 0;
    for (int d = 0; d <= x->ndim; d++) {
        if (d == at)
            shape[n++] = 1;
        if (d < x->ndim)
            shape[n++] = x->shape[d];
    }
    reshaped(c, n, shape);
}

/* Fills `from`, the place in x, for the place `to` in the output; false where nothing of x stands (0 there). */
typedef bool (*rule)(const ref_call *c, const int64_t *to, int64_t *from);

static void moved(ref_call *c, int ndim, const int64_t *shape, rule f, double elsewhere)
{
    const ref_tensor *x = c->in[0];
    ref_tensor *out = ref_out(c, 0, x->dtype, ndim, shape);
    int64_t to[KILN_MAX_DIMS], from[KILN_MAX_DIMS];
    for (int64_t i = 0; i < out->count; i++) {
        ref_unravel(ndim, shape, i, to);
        out->data[i] = f(c, to, from) ? x->data[ref_ravel(x->ndim, x->shape, from)] : elsewhere;
    }
}

static bool permute_rule(const ref_call *c, const int64_t *to, int64_t *from)
{
    for (int d = 0; d < c->in[0]->ndim; d++)
        from[ref_dim(REF_INT(c, d), c->in[0]->ndim)] = to[d];
    return true;
}

static void run_permute(ref_call *c)
{
    const ref_tensor *x = c->in[0];
    int64_t shape[KILN_MAX_DIMS];
    for (int d = 0; d < x->ndim; d++)
        shape[d] = x->shape[ref_dim(REF_INT(c, d), x->ndim)];
    moved(c, x->ndim, shape, permute_rule, 0);
}

/* transpose and movedim are permutations. */
static void run_transpose(ref_call *c)
{
    int n = c->in[0]->ndim, a = ref_dim(REF_INT(c, 0), n), b = ref_dim(REF_INT(c, 1), n);
    c->attrs.nints = n;
    for (int d = 0; d < n; d++)
        c->attrs.i[d] = d == a ? b : d == b ? a : d;
    run_permute(c);
}

static void run_movedim(ref_call *c)
{
    int n = c->in[0]->ndim, source = ref_dim(REF_INT(c, 0), n), destination = ref_dim(REF_INT(c, 1), n);
    for (int d = 0, next = 0; d < n; d++) {
        next += next == source;
        c->attrs.i[d] = d == destination ? source : next++;
    }
    run_permute(c);
}

static bool expand_rule(const ref_call *c, const int64_t *to, int64_t *from)
{
    const ref_tensor *x = c->in[0];
    for (int d = 0; d < x->ndim; d++)
        from[d] = x->shape[d] == 1 ? 0 : to[c->attrs.nints - x->ndim + d];
    return true;
}

static void run_expand(ref_call *c)
{
    int64_t shape[KILN_MAX_DIMS];
    int n = c->attrs.nints;
    for (int d = 0; d < n; d++)
        shape[d] = REF_INT(c, d) == -1 ? c->in[0]->shape[d - (n - c->in[0]->ndim)] : REF_INT(c, d);
    moved(c, n, shape, expand_rule, 0);
}

/* Python's: start and end count from the end when negative, and are cut to the size. */
static int64_t slice_bound(int64_t at, int64_t size)
{
    at = at < 0 ? at + size : at;
    return at < 0 ? 0 : at > size ? size : at;
}

static bool slice_rule(const ref_call *c, const int64_t *to, int64_t *from)
{
    const ref_tensor *x = c->in[0];
    int dim = ref_dim(REF_INT(c, 0), x->ndim);
    for (int d = 0; d < x->ndim; d++)
        from[d] = d == dim ? slice_bound(REF_INT(c, 1), x->shape[d]) + to[d] * REF_INT(c, 3) : to[d];
    return true;
}

static void run_slice(ref_call *c)
{
    const ref_tensor *x = c->in[0];
    int64_t shape[KILN_MAX_DIMS], length = 0;
    int dim = ref_dim(REF_INT(c, 0), x->ndim);
    memcpy(shape, x->shape, sizeof shape);
    for (int64_t at = slice_bound(REF_INT(c, 1), shape[dim]); at < slice_bound(REF_INT(c, 2), shape[dim]);
         at += REF_INT(c, 3))
        length++;
    shape[dim] = length;
    moved(c, x->ndim, shape, slice_rule, 0);
}

static bool select_rule(const ref_call *c, const int64_t *to, int64_t *from)
{
    const ref_tensor *x = c->in[0];
    int dim = ref_dim(REF_INT(c, 0), x->ndim);
    for (int d = 0; d < x->ndim; d++)
        from[d] = d < dim ? to[d] : d > dim ? to[d - 1] : (REF_INT(c, 1) + x->shape[d]) % x->shape[d];
    return true;
}

static void run_select(ref_call *c)
{
    const ref_tensor *x = c->in[0];
    int64_t shape[KILN_MAX_DIMS];
    int dim = ref_dim(REF_INT(c, 0), x->ndim), n = 0;
    for (int d = 0; d < x->ndim; d++)
        if (d != dim)
            shape[n++] = x->shape[d];
    moved(c, n, shape, select_rule, 0);
}

static bool unfold_rule(const ref_call *c, const int64_t *to, int64_t *from)
{
    const ref_tensor *x = c->in[0];
    int dim = ref_dim(REF_INT(c, 0), x->ndim);
    for (int d = 0; d < x->ndim; d++)
        from[d] = d == dim ? to[d] * REF_INT(c, 2) + to[x->ndim] : to[d];
    return true;
}

static void run_unfold(ref_call *c)
{
    const ref_tensor *x = c->in[0];
    int64_t shape[KILN_MAX_DIMS], size = REF_INT(c, 1), windows = 0;
    int dim = ref_dim(REF_INT(c, 0), x->ndim);
    memcpy(shape, x->shape, sizeof shape);
    for (int64_t at = 0; at + size <= x->shape[dim]; at += REF_INT(c, 2))
        windows++;
    shape[dim] = windows;
    shape[x->ndim] = size;
    moved(c, x->ndim + 1, shape, unfold_rule, 0);
}

static bool diagonal_rule(const ref_call *c, const int64_t *to, int64_t *from)
{
    const ref_tensor *x = c->in[0];
    int64_t offset = REF_INT(c, 0), k = to[x->ndim - 2];
    int a = ref_dim(REF_INT(c, 1), x->ndim), b = ref_dim(REF_INT(c, 2), x->ndim);
    for (int d = 0, n = 0; d < x->ndim; d++)
        from[d] = d == a ? k + (offset < 0 ? -offset : 0) : d == b ? k + (offset > 0 ? offset : 0) : to[n++];
    return true;
}

static void run_diagonal(ref_call *c)
{
    const ref_tensor *x = c->in[0];
    int64_t shape[KILN_MAX_DIMS], offset = REF_INT(c, 0), length = 0;
    int a = ref_dim(REF_INT(c, 1), x->ndim), b = ref_dim(REF_INT(c, 2), x->ndim), n = 0;
    for (int d = 0; d < x->ndim; d++)
        if (d != a && d != b)
            shape[n++] = x->shape[d];
    for (int64_t row = 0; row < x->shape[a]; row++)
        length += row + offset >= 0 && row + offset < x->shape[b];
    shape[n++] = length;
    moved(c, n, shape, diagonal_rule, 0);
}

/* ints: ndim, sizes, strides, offset */
static void run_as_strided(ref_call *c)
{
    int n = (int)REF_INT(c, 0);
    const int64_t *shape = c->attrs.i + 1, *stride = shape + n;
    ref_tensor *out = ref_out(c, 0, c->in[0]->dtype, n, shape);
    int64_t index[KILN_MAX_DIMS];
    for (int64_t i = 0; i < out->count; i++) {
        int64_t at = c->attrs.nfloats ? (int64_t)c->attrs.f[0] : stride[n]; /* strided_copy has it as a float */
        ref_unravel(n, shape, i, index);
        for (int d = 0; d < n; d++)
            at += index[d] * stride[d];
        out->data[i] = c->in[0]->data[at];
    }
}

static bool flip_rule(const ref_call *c, const int64_t *to, int64_t *from)
{
    const ref_tensor *x = c->in[0];
    memcpy(from, to, (size_t)x->ndim * sizeof *from);
    for (int k = 0; k < c->attrs.nints && x->ndim; k++) {
        int d = ref_dim(REF_INT(c, k), x->ndim);
        from[d] = x->shape[d] - 1 - to[d];
    }
    return true;
}

static void run_flip(ref_call *c)
{
    moved(c, c->in[0]->ndim, c->in[0]->shape, flip_rule, 0);
}

static bool roll_rule(const ref_call *c, const int64_t *to, int64_t *from)
{
    const ref_tensor *x = c->in[0];
    int dim = ref_dim(REF_INT(c, 1), x->ndim);
    for (int d = 0; d < x->ndim; d++)
        from[d] = d == dim ? (((to[d] - REF_INT(c, 0)) % x->shape[d]) + x->shape[d]) % x->shape[d] : to[d];
    return true;
}

static void run_roll(ref_call *c)
{
    const ref_tensor *x = c->in[0];
    if (REF_INT(c, 1) != KILN_FLAT) {
        moved(c, x->ndim, x->shape, roll_rule, 0);
        return;
    }
    ref_tensor *out = ref_out_like(c, 0, x); /* all elements as one row */
    for (int64_t i = 0; i < x->count; i++)
        out->data[(((i + REF_INT(c, 0)) % x->count) + x->count) % x->count] = x->data[i];
}

static bool repeat_rule(const ref_call *c, const int64_t *to, int64_t *from)
{
    const ref_tensor *x = c->in[0];
    for (int d = 0; d < x->ndim; d++)
        from[d] = to[c->attrs.nints - x->ndim + d] % x->shape[d];
    return true;
}

static void run_repeat(ref_call *c)
{
    int64_t shape[KILN_MAX_DIMS];
    int n = c->attrs.nints, lead = n - c->in[0]->ndim;
    for (int d = 0; d < n; d++)
        shape[d] = REF_INT(c, d) * (d < lead ? 1 : c->in[0]->shape[d - lead]);
    moved(c, n, shape, repeat_rule, 0);
}

static bool tril_rule(const ref_call *c, const int64_t *to, int64_t *from)
{
    int n = c->in[0]->ndim;
    memcpy(from, to, (size_t)n * sizeof *from);
    return to[n - 1] - to[n - 2] <= REF_INT(c, 0);
}

static bool triu_rule(const ref_call *c, const int64_t *to, int64_t *from)
{
    int n = c->in[0]->ndim;
    memcpy(from, to, (size_t)n * sizeof *from);
    return to[n - 1] - to[n - 2] >= REF_INT(c, 0);
}

static void run_tril(ref_call *c)
{
    moved(c, c->in[0]->ndim, c->in[0]->shape, tril_rule, 0);
}

static void run_triu(ref_call *c)
{
    moved(c, c->in[0]->ndim, c->in[0]->shape, triu_rule, 0);
}

/* Padding: mode and, for each dim, what comes before and after. */
typedef struct padding {
    int64_t mode, lo[KILN_MAX_DIMS], hi[KILN_MAX_DIMS];
} padding;

/* The place in a row of n that an index outside it shows: -1 for none. */
static int64_t padded_place(int64_t at, int64_t n, int64_t mode)
{
    if (at >= 0 && at < n)
        return at;
    switch (mode) {
    case KILN_PAD_REFLECT: return at < 0 ? -at : 2 * (n - 1) - at;
    case KILN_PAD_REPLICATE: return at < 0 ? 0 : n - 1;
    case KILN_PAD_CIRCULAR: return (at + n) % n;
    default: return -1;
    }
}

/* With a negative padding the elements cut off are gone: others are not mirrored or repeated from among them. */
static void padded(ref_call *c, const padding *p, double value)
{
    const ref_tensor *x = c->in[0];
    int64_t shape[KILN_MAX_DIMS], to[KILN_MAX_DIMS], from[KILN_MAX_DIMS];
    for (int d = 0; d < x->ndim; d++)
        shape[d] = x->shape[d] + p->lo[d] + p->hi[d];
    ref_tensor *out = ref_out(c, 0, x->dtype, x->ndim, shape);
    for (int64_t i = 0; i < out->count; i++) {
        bool inside = true;
        ref_unravel(x->ndim, shape, i, to);
        for (int d = 0; d < x->ndim; d++) {
            int64_t cut = p->lo[d] < 0 ? -p->lo[d] : 0, left = x->shape[d] - cut - (p->hi[d] < 0 ? -p->hi[d] : 0);
            from[d] = cut + padded_place(to[d] - (p->lo[d] > 0 ? p->lo[d] : 0), left, p->mode);
            inside &= from[d] >= cut;
        }
        out->data[i] = inside ? x->data[ref_ravel(x->ndim, x->shape, from)] : value;
    }
}

static void run_constant_pad(ref_call *c)
{
    padding p = {0};
    for (int d = 0; d < c->in[0]->ndim; d++) {
        p.lo[d] = REF_INT(c, 2 * d);
        p.hi[d] = REF_INT(c, 2 * d + 1);
    }
    padded(c, &p, REF_FLOAT(c, 0));
}

static void run_pad(ref_call *c)
{
    padding p = {.mode = REF_INT(c, 0)};
    for (int k = 0; 2 * k + 2 < c->attrs.nints; k++) {
        int d = c->in[0]->ndim - 1 - k;
        p.lo[d] = REF_INT(c, 1 + 2 * k);
        p.hi[d] = REF_INT(c, 2 + 2 * k);
    }
    padded(c, &p, REF_FLOAT(c, 0));
}

/* Joins along an existing dim. */
static void run_cat(ref_call *c)
{
    int dim = ref_dim(REF_INT(c, 0), c->in[0]->ndim);
    int64_t shape[KILN_MAX_DIMS], start = 0;
    memcpy(shape, c->in[0]->shape, sizeof shape);
    for (int k = 1; k < c->nin; k++)
        shape[dim] += c->in[k]->shape[dim];
    ref_tensor *out = ref_out(c, 0, c->in[0]->dtype, c->in[0]->ndim, shape);
    for (int k = 0; k < c->nin; k++) {
        int64_t index[KILN_MAX_DIMS];
        for (int64_t i = 0; i < c->in[k]->count; i++) {
            ref_unravel(c->in[k]->ndim, c->in[k]->shape, i, index);
            index[dim] += start;
            out->data[ref_ravel(out->ndim, shape, index)] = c->in[k]->data[i];
        }
        start += c->in[k]->shape[dim];
    }
}

/* Joins along a new dim. */
static void run_stack(ref_call *c)
{
    const ref_tensor *x = c->in[0];
    int dim = ref_dim(REF_INT(c, 0), x->ndim + 1), n = 0;
    int64_t shape[KILN_MAX_DIMS], index[KILN_MAX_DIMS], from[KILN_MAX_DIMS];
    for (int d = 0; d <= x->ndim; d++)
        shape[d] = d == dim ? c->nin : x->shape[n++];
    ref_tensor *out = ref_out(c, 0, x->dtype, x->ndim + 1, shape);
    for (int64_t i = 0; i < out->count; i++) {
        ref_unravel(out->ndim, shape, i, index);
        n = 0;
        for (int d = 0; d < out->ndim; d++)
            if (d != dim)
                from[n++] = index[d];
        out->data[i] = c->in[index[dim]]->data[ref_ravel(x->ndim, x->shape, from)];
    }
}

const ref_entry ref_entries_shape[] = {
    {"view", run_reshape, 0},
    {"reshape", run_reshape, 0},
    {"flatten", run_flatten, 0},
    {"squeeze", run_squeeze, 0},
    {"unsqueeze", run_unsqueeze, 0},
    {"permute", run_permute, 0},
    {"transpose", run_transpose, 0},
    {"movedim", run_movedim, 0},
    {"expand", run_expand, 0},
    {"slice", run_slice, 0},
    {"select", run_select, 0},
    {"unfold", run_unfold, 0},
    {"diagonal", run_diagonal, 0},
    {"as_strided", run_as_strided, 0},
    {"strided_copy", run_as_strided, 0},
    {"flip", run_flip, 0},
    {"roll", run_roll, 0},
    {"repeat", run_repeat, 0},
    {"tril", run_tril, 0},
    {"triu", run_triu, 0},
    {"constant_pad", run_constant_pad, 0},
    {"pad", run_pad, 0},
    {"cat", run_cat, 0},
    {"stack", run_stack, 0},
    {NULL, NULL, 0},
};
