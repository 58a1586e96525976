/* Picking elements by index and placing them, one after the other in row-major order. */
#include <math.h>
#include <string.h>
#include "support/ref.h"

/* The place in a tensor of `shape` that place i of the index tensor names: its own coordinates, but index[i] at dim. */
static int64_t named_place(const ref_tensor *index, int64_t i, int dim, int ndim, const int64_t *shape)
{
    int64_t at[KILN_MAX_DIMS] = {0};
    ref_unravel(index->ndim, index->shape, i, at);
    if (ndim == 0)
        return 0;
    at[dim] = (int64_t)index->data[i];
    return ref_ravel(ndim, shape, at);
}

static void run_gather(ref_call *c)
{
    const ref_tensor *x = c->in[0], *index = c->in[1];
    int dim = ref_dim(REF_INT(c, 0), x->ndim);
    ref_tensor *out = ref_out(c, 0, x->dtype, index->ndim, index->shape);
    for (int64_t i = 0; i < out->count; i++)
        out->data[i] = x->data[named_place(index, i, dim, x->ndim, x->shape)];
}

/* A copy of x, to be changed. */
static ref_tensor *copied(ref_call *c)
{
    ref_tensor *out = ref_out_like(c, 0, c->in[0]);
    for (int64_t i = 0; i < out->count; i++) {
        out->data[i] = c->in[0]->data[i];
        out->size[i] = fabs(out->data[i]);
    }
    return out;
}

/* Sums grow one term at a time, each addition rounded: with many equal terms the roundings all go one way. */
static void widen(ref_tensor *out, int64_t terms)
{
    for (int64_t i = 0; i < out->count; i++)
        out->size[i] *= 1 + (double)terms / 32;
}

static void scatter(ref_call *c, bool add)
{
    const ref_tensor *index = c->in[1], *src = c->in[2];
    int dim = ref_dim(REF_INT(c, 0), c->in[0]->ndim);
    ref_tensor *out = copied(c);
    for (int64_t i = 0; i < index->count; i++) {
        int64_t at[KILN_MAX_DIMS] = {0}, to = named_place(index, i, dim, out->ndim, out->shape);
        ref_unravel(index->ndim, index->shape, i, at);
        double v = src->data[ref_ravel(src->ndim, src->shape, at)];
        out->data[to] = add ? out->data[to] + v : v;
        out->size[to] = add ? out->size[to] + fabs(v) : fabs(v);
    }
    if (add)
        widen(out, index->ndim ? index->shape[dim] : 1);
}

static void run_scatter(ref_call *c)
{
    scatter(c, false);
}

static void run_scatter_add(ref_call *c)
{
    scatter(c, true);
}

static void run_index_select(ref_call *c)
{
    const ref_tensor *x = c->in[0], *index = c->in[1];
    int dim = ref_dim(REF_INT(c, 0), x->ndim);
    int64_t shape[KILN_MAX_DIMS];
    memcpy(shape, x->shape, sizeof shape);
    shape[dim] = index->count;
    ref_tensor *out = ref_out(c, 0, x->dtype, x->ndim, shape);
    ref_split s = ref_split_at(x, dim);
    for (int64_t o = 0; o < s.before; o++)
        for (int64_t i = 0; i < index->count; i++)
            for (int64_t n = 0; n < s.after; n++)
                out->data[(o * index->count + i) * s.after + n] =
                    x->data[(o * s.at + (int64_t)index->data[i]) * s.after + n];
}

static void run_index_add(ref_call *c)
{
    const ref_tensor *index = c->in[1], *src = c->in[2];
    ref_tensor *out = copied(c);
    ref_split s = ref_split_at(out, ref_dim(REF_INT(c, 0), out->ndim));
    for (int64_t o = 0; o < s.before; o++)
        for (int64_t i = 0; i < index->count; i++)
            for (int64_t n = 0; n < s.after; n++) {
                double v = src->data[(o * index->count + i) * s.after + n];
                int64_t to = (o * s.at + (int64_t)index->data[i]) * s.after + n;
                out->data[to] += v;
                out->size[to] += fabs(v);
            }
    widen(out, index->count);
}

/* ints: base ndim, base sizes, g's strides in the base, offset */
static void run_as_strided_add(ref_call *c)
{
    const ref_tensor *g = c->in[0];
    int n = (int)REF_INT(c, 0);
    const int64_t *shape = c->attrs.i + 1, *stride = shape + n;
    ref_tensor *out = ref_out(c, 0, g->dtype, n, shape);
    for (int64_t i = 0; i < out->count; i++)
        out->size[i] = 0;
    for (int64_t i = 0; i < g->count; i++) {
        int64_t at = c->attrs.nfloats ? (int64_t)c->attrs.f[0] : stride[g->ndim], index[KILN_MAX_DIMS];
        ref_unravel(g->ndim, g->shape, i, index);
        for (int d = 0; d < g->ndim; d++)
            at += index[d] * stride[d];
        out->data[at] += g->data[i];
        out->size[at] += fabs(g->data[i]);
    }
}

/* A copy of the base with x written at its places. ints: x's strides in the base, offset */
static void run_as_strided_put(ref_call *c)
{
    const ref_tensor *x = c->in[1];
    ref_tensor *out = copied(c);
    for (int64_t i = 0; i < x->count; i++) {
        int64_t at = c->attrs.nfloats ? (int64_t)c->attrs.f[0] : REF_INT(c, x->ndim), index[KILN_MAX_DIMS];
        ref_unravel(x->ndim, x->shape, i, index);
        for (int d = 0; d < x->ndim; d++)
            at += index[d] * REF_INT(c, d);
        out->data[at] = x->data[i];
        out->size[at] = fabs(x->data[i]);
    }
}

static void run_one_hot(ref_call *c)
{
    const ref_tensor *index = c->in[0];
    int64_t shape[KILN_MAX_DIMS], classes = REF_INT(c, 0);
    memcpy(shape, index->shape, sizeof shape);
    shape[index->ndim] = classes;
    ref_tensor *out = ref_out(c, 0, KILN_I64, index->ndim + 1, shape);
    for (int64_t i = 0; i < out->count; i++)
        out->data[i] = (int64_t)index->data[i / classes] == i % classes;
}

const ref_entry ref_entries_index[] = {
    {"gather", run_gather, 0},
    {"scatter", run_scatter, 0},
    {"scatter_add", run_scatter_add, 0},
    {"index_select", run_index_select, 0},
    {"index_add", run_index_add, 0},
    {"as_strided_add", run_as_strided_add, 0},
    {"as_strided_put", run_as_strided_put, 0},
    {"one_hot", run_one_hot, 0},
    {NULL, NULL, 0},
};
