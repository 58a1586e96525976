/* Reference implementations: every operation written a second time, naively, in double precision on dense arrays. They
 * share nothing with the library: not its loops, not its formulas, not its conversions. */
#ifndef KILN_TEST_REF_H
#define KILN_TEST_REF_H

#include "ops/op.h"

typedef struct ref_tensor {
    kiln_dtype dtype; /* what the values are rounded to in the end */
    int ndim;
    int64_t shape[KILN_MAX_DIMS], count;
    double *data;
    double *size; /* of outputs: the magnitude of the terms each element was computed from, for its tolerance */
} ref_tensor;

typedef struct ref_call {
    const kiln_op *op;
    int nin, nout;
    ref_tensor *in[KILN_MAX_INPUTS]; /* NULL where absent */
    kiln_attrs attrs;                /* as the caller gave them, dims may be negative */
    ref_tensor out[KILN_MAX_OUTPUTS];
} ref_call;

typedef struct ref_entry {
    const char *name;
    void (*run)(ref_call *c);
    double loose; /* tolerance is multiplied by this (0: 1) where rounding errors build up in several steps */
} ref_entry;

extern const ref_entry ref_entries_pointwise[], ref_entries_reduce[], ref_entries_shape[], ref_entries_index[],
    ref_entries_product[], ref_entries_conv[], ref_entries_pool[], ref_entries_norm[], ref_entries_lstm[],
    ref_entries_loss[], ref_entries_create[], ref_entries_samples[];

const ref_entry *ref_find(const char *name); /* NULL when there is none */

/* Runs the reference; outputs are freed with ref_free. */
void ref_run(const ref_entry *entry, ref_call *c);
void ref_free(ref_call *c);

/* ---- What references are written with ---- */

/* Makes output j: zeros, with `size` NaN ("the value itself"). */
ref_tensor *ref_out(ref_call *c, int j, kiln_dtype dtype, int ndim, const int64_t *shape);
ref_tensor *ref_out_like(ref_call *c, int j, const ref_tensor *t);

int64_t ref_count(int ndim, const int64_t *shape);
void ref_unravel(int ndim, const int64_t *shape, int64_t flat, int64_t *index);
int64_t ref_ravel(int ndim, const int64_t *shape, const int64_t *index);

/* The element of t that stands at `index` of a larger broadcast shape of `ndim` dims. */
double ref_broadcast_at(const ref_tensor *t, int ndim, const int64_t *index);
void ref_broadcast_shape(int *ndim, int64_t *shape, const ref_tensor *t); /* grows shape to fit t too */

int ref_dim(int64_t dim, int ndim); /* wraps a negative dim */

/* What figures beside values of a dtype are in: f32 for those of 16 bits. */
static inline kiln_dtype ref_wide(kiln_dtype dtype)
{
    return dtype == KILN_F16 || dtype == KILN_BF16 ? KILN_F32 : dtype;
}

/* The sizes before, at and after a dim, so that element (o, i, n) is data[(o * at + i) * after + n]. */
typedef struct ref_split {
    int64_t before, at, after;
} ref_split;
ref_split ref_split_at(const ref_tensor *t, int dim);

#define REF_INT(c, k)   ((c)->attrs.i[k])
#define REF_FLOAT(c, k) ((c)->attrs.f[k])

#endif
