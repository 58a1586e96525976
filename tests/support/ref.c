/* Finding references by name, and the few helpers they are written with. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "support/ref.h"

static const ref_entry *const families[] = {
    ref_entries_pointwise, ref_entries_reduce, ref_entries_shape,  ref_entries_index,
    ref_entries_product,   ref_entries_conv,   ref_entries_pool,   ref_entries_norm,
    ref_entries_lstm,      ref_entries_loss,   ref_entries_create, ref_entries_samples,
};

const ref_entry *ref_find(const char *name)
{
    for (size_t f = 0; f < sizeof families / sizeof *families; f++)
        for (const ref_entry *e = families[f]; e->name; e++)
            if (!strcmp(e->name, name))
                return e;
    return NULL;
}

void ref_run(const ref_entry *entry, ref_call *c)
{
    c->nout = c->op->nout ? c->op->nout : 1;
    memset(c->out, 0, sizeof c->out);
    entry->run(c);
}

void ref_free(ref_call *c)
{
    for (int j = 0; j < KILN_MAX_OUTPUTS; j++) {
        free(c->out[j].data);
        free(c->out[j].size);
        c->out[j].data = c->out[j].size = NULL;
    }
}

int64_t ref_count(int ndim, const int64_t *shape)
{
    int64_t n = 1;
    for (int d = 0; d < ndim; d++)
        n *= shape[d];
    return n;
}

ref_tensor *ref_out(ref_call *c, int j, kiln_dtype dtype, int ndim, const int64_t *shape)
{
    ref_tensor *t = &c->out[j];
    t->dtype = dtype;
    t->ndim = ndim;
    for (int d = 0; d < ndim; d++)
        t->shape[d] = shape[d];
    t->count = ref_count(ndim, shape);
    t->data = calloc((size_t)t->count + 1, sizeof(double));
    t->size = calloc((size_t)t->count + 1, sizeof(double));
    for (int64_t i = 0; i < t->count; i++)
        t->size[i] = NAN;
    return t;
}

ref_tensor *ref_out_like(ref_call *c, int j, const ref_tensor *t)
{
    return ref_out(c, j, t->dtype, t->ndim, t->shape);
}

void ref_unravel(int ndim, const int64_t *shape, int64_t flat, int64_t *index)
{
    for (int d = ndim - 1; d >= 0; d--) {
        index[d] = flat % shape[d];
        flat /= shape[d];
    }
}

int64_t ref_ravel(int ndim, const int64_t *shape, const int64_t *index)
{
    int64_t flat = 0;
    for (int d = 0; d < ndim; d++)
        flat = flat * shape[d] + index[d];
    return flat;
}

double ref_broadcast_at(const ref_tensor *t, int ndim, const int64_t *index)
{
    int64_t flat = 0;
    for (int d = 0; d < t->ndim; d++)
        flat = flat * t->shape[d] + (t->shape[d] == 1 ? 0 : index[ndim - t->ndim + d]);
    return t->data[flat];
}

void ref_broadcast_shape(int *ndim, int64_t *shape, const ref_tensor *t)
{
    if (t->ndim > *ndim) {
        int grow = t->ndim - *ndim;
        memmove(shape + grow, shape, (size_t)*ndim * sizeof *shape);
        for (int d = 0; d < grow; d++)
            shape[d] = 1;
        *ndim = t->ndim;
    }
    for (int d = 0; d < t->ndim; d++) {
        int64_t *s = &shape[*ndim - t->ndim + d];
        if (*s == 1)
            *s = t->shape[d];
    }
}

int ref_dim(int64_t dim, int ndim)
{
    return (int)(dim < 0 ? dim + (ndim ? ndim : 1) : dim);
}

ref_split ref_split_at(const ref_tensor *t, int dim)
{
    ref_split s = {1, t->ndim ? t->shape[dim] : 1, 1};
    for (int d = 0; d < t->ndim; d++) {
        if (d < dim)
            s.before *= t->shape[d];
        if (d > dim)
            s.after *= t->shape[d];
    }
    return s;
}
