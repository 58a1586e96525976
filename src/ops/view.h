/* What the rules of views share. */
#ifndef KILN_OPS_VIEW_H
#define KILN_OPS_VIEW_H

#include <string.h>
#include "ops/op.h"

/* The fields that are the same in all their records. */
#define KILN_VIEW_OP(op) .name = #op, .cls = KILN_CLASS_VIEW, .dtypes = KILN_T_ALL, .min_in = 1, .max_in = 1

/* Strides that show x in another shape (of as many elements); false when its memory order has none. */
bool kiln_view_strides(const kiln_tensor *x, int n, const int64_t *shape, int64_t *stride);

/* True if the elements offset + Σ index·stride of such a window are all among `count`. */
bool kiln_view_fits(int n, const int64_t *shape, const int64_t *stride, int64_t offset, int64_t count);

/* "[2, 3]", for messages. */
static inline const char *kiln_shape_of(const kiln_tensor *t)
{
    return kiln_shape_text(t->ndim, t->shape);
}

/* out[0] = in[0], for a rule to change. */
static inline kiln_desc *kiln_view_start(kiln_call *c)
{
    const kiln_tensor *x = c->in[0];
    kiln_desc *d = &c->out[0];
    d->dtype = (kiln_dtype)x->dtype;
    d->ndim = x->ndim;
    d->offset = x->offset;
    for (int i = 0; i < x->ndim; i++) {
        d->shape[i] = x->shape[i];
        d->stride[i] = x->stride[i];
    }
    return d;
}

static inline void kiln_view_remove(kiln_desc *d, int dim)
{
    d->ndim--;
    for (int i = dim; i < d->ndim; i++) {
        d->shape[i] = d->shape[i + 1];
        d->stride[i] = d->stride[i + 1];
    }
}

static inline void kiln_view_insert(kiln_desc *d, int dim, int64_t size, int64_t stride)
{
    for (int i = d->ndim; i > dim; i--) {
        d->shape[i] = d->shape[i - 1];
        d->stride[i] = d->stride[i - 1];
    }
    d->shape[dim] = size;
    d->stride[dim] = stride;
    d->ndim++;
}

static inline bool kiln_view_check_room(const kiln_call *c)
{
    if (c->in[0]->ndim < KILN_MAX_DIMS)
        return true;
    return kiln_fail(KILN_E_SHAPE, c->op->name, "%s has %d dims already, and no tensor can have more",
                     kiln_shape_of(c->in[0]), KILN_MAX_DIMS);
}

#endif
