/* How operands lie in memory. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "support/layouts.h"
#include "support/numbers.h"

const char *const layout_names[LAYOUTS] = {"dense", "transposed", "sliced", "expanded", "mixed"};

/* The dim that is expanded: the first with more than one element, but not the last of rows that sum to 1. -1: none. */
static int expanded_dim(const case_operand *o)
{
    if (o->kind == 'd' || o->kind == 'n' || o->kind == 'z')
        return -1; /* their elements are chosen one by one */
    for (int d = 0; d < o->ndim - (o->kind == 'q'); d++)
        if (o->shape[d] > 1)
            return d;
    return -1;
}

layout layout_of(const test_case *c, int k, layout l)
{
    const case_operand *o = &c->in[k];
    int wide = 0;
    if (o->kind == '-')
        return LAYOUT_DENSE;
    if (l == LAYOUT_MIXED)
        l = (layout)(LAYOUT_TRANSPOSED + (k + c->number) % 3);
    for (int d = 0; d < o->ndim; d++)
        wide += o->shape[d] > 1;
    if ((l == LAYOUT_TRANSPOSED && wide < 2) || (l == LAYOUT_EXPANDED && expanded_dim(o) < 0))
        return LAYOUT_DENSE;
    return l;
}

void operand_values(const test_case *c, int k, kiln_dtype dtype, layout l, ref_tensor *values)
{
    const case_operand *o = &c->in[k];
    memset(values, 0, sizeof *values);
    values->dtype = case_dtype(c, k, dtype);
    values->ndim = o->ndim;
    values->count = case_count(o);
    memcpy(values->shape, o->shape, sizeof values->shape);
    values->data = calloc((size_t)values->count + 1, sizeof(double));
    case_fill(c, k, dtype, values->data);
    if (layout_of(c, k, l) != LAYOUT_EXPANDED)
        return;
    ref_split s = ref_split_at(values, expanded_dim(o));
    for (int64_t i = 0; i < values->count; i++)
        values->data[i] = values->data[i / (s.at * s.after) * s.at * s.after + i % s.after];
}

void operand_free(ref_tensor *values)
{
    free(values->data);
    memset(values, 0, sizeof *values);
}

/* ---- Placing ---- */

/* The buffer behind an operand: its shape, and where element `index` of the operand stands in it. */
typedef struct buffer {
    int ndim, expanded; /* the dim that has one element only; -1: none */
    int64_t shape[KILN_MAX_DIMS];
} buffer;

static buffer plan_buffer(const ref_tensor *v, layout l)
{
    buffer b = {.ndim = v->ndim, .expanded = -1};
    for (int d = 0; d < v->ndim; d++)
        b.shape[d] = l == LAYOUT_TRANSPOSED ? v->shape[v->ndim - 1 - d]
                     : l == LAYOUT_SLICED   ? 2 * v->shape[d] + 2
                                            : v->shape[d];
    if (l == LAYOUT_SLICED && v->ndim == 0) {
        b.ndim = 1;
        b.shape[0] = 3;
    }
    for (int d = 0; l == LAYOUT_EXPANDED && d < v->ndim && b.expanded < 0; d++)
        if (v->shape[d] > 1) {
            b.expanded = d;
            b.shape[d] = 1;
        }
    return b;
}

static int64_t place_in_buffer(const ref_tensor *v, const buffer *b, layout l, int64_t i)
{
    int64_t from[KILN_MAX_DIMS], to[KILN_MAX_DIMS];
    ref_unravel(v->ndim, v->shape, i, from);
    if (l == LAYOUT_SLICED && v->ndim == 0)
        return 1;
    for (int d = 0; d < v->ndim; d++)
        to[d] = l == LAYOUT_TRANSPOSED ? from[v->ndim - 1 - d]
                : l == LAYOUT_SLICED   ? 1 + 2 * from[d]
                : d == b->expanded     ? 0
                                       : from[d];
    return ref_ravel(b->ndim, b->shape, to);
}

/* The window onto the buffer that shows the operand. */
static kiln_tensor *window(kiln_tensor *base, const ref_tensor *v, layout l)
{
    int64_t dims[KILN_MAX_DIMS];
    kiln_tensor *t = base;
    if (l == LAYOUT_EXPANDED)
        return kiln_expand(base, v->ndim, v->shape);
    if (l == LAYOUT_SLICED && v->ndim == 0)
        return kiln_select(base, 0, 1);
    for (int d = 0; l == LAYOUT_SLICED && d < v->ndim; d++)
        t = kiln_slice(t, d, 1, 1 + 2 * v->shape[d], 2);
    for (int d = 0; d < v->ndim; d++)
        dims[d] = v->ndim - 1 - d;
    return l == LAYOUT_TRANSPOSED ? kiln_permute(base, v->ndim, dims) : t;
}

bool operand_place(const ref_tensor *v, layout l, kiln_device device, placed_operand *placed)
{
    buffer b = plan_buffer(v, l);
    int64_t count = ref_count(b.ndim, b.shape);
    double *numbers = calloc((size_t)count + 1, sizeof *numbers);
    for (int64_t i = 0; i < count; i++) /* what stands around the operand: it must be neither used nor changed */
        numbers[i] = v->dtype == KILN_BOOL ? 1 : kiln_dtype_is_float(v->dtype) ? NAN : -1;
    for (int64_t i = 0; i < v->count; i++)
        numbers[place_in_buffer(v, &b, l, i)] = v->data[i];
    placed->size = (size_t)count * kiln_dtype_size(v->dtype);
    placed->bits = calloc(placed->size + 1, 1);
    number_store(placed->bits, v->dtype, numbers, count);
    free(numbers);
    placed->base = kiln_tensor_new(placed->bits, v->dtype, b.ndim, b.shape, device);
    placed->tensor = window(placed->base, v, l);
    return placed->tensor != NULL;
}

bool operand_intact(const placed_operand *placed)
{
    void *now = calloc(placed->size + 1, 1);
    bool same = kiln_read(placed->base, now, placed->size) && !memcmp(now, placed->bits, placed->size);
    free(now);
    return same;
}
