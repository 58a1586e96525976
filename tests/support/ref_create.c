/* Tensors made from numbers. What is random has no reference values: its range, moments and repeatability are tested.
 */
#include <math.h>
#include "support/ref.h"

static void run_full(ref_call *c)
{
    ref_tensor *out = ref_out(c, 0, (kiln_dtype)REF_INT(c, 0), c->attrs.nints - 1, c->attrs.i + 1);
    for (int64_t i = 0; i < out->count; i++)
        out->data[i] = REF_FLOAT(c, 0);
}

static void run_iota(ref_call *c)
{
    ref_tensor *out = ref_out(c, 0, (kiln_dtype)REF_INT(c, 0), 1, c->attrs.i + 1);
    for (int64_t i = 0; i < out->count; i++) {
        out->data[i] = REF_FLOAT(c, 0) + REF_FLOAT(c, 1) * (double)i;
        out->size[i] = fabs(REF_FLOAT(c, 0)) + fabs(out->data[i]);
    }
}

static void run_linspace(ref_call *c)
{
    double start = REF_FLOAT(c, 0), end = REF_FLOAT(c, 1);
    ref_tensor *out = ref_out(c, 0, (kiln_dtype)REF_INT(c, 0), 1, c->attrs.i + 1);
    for (int64_t i = 0; i < out->count; i++) {
        out->data[i] = out->count > 1 ? start + (end - start) * (double)i / (double)(out->count - 1) : start;
        out->size[i] = fabs(start) + fabs(end);
    }
}

static void run_eye(ref_call *c)
{
    ref_tensor *out = ref_out(c, 0, (kiln_dtype)REF_INT(c, 0), 2, c->attrs.i + 1);
    for (int64_t i = 0; i < out->count; i++)
        out->data[i] = i / out->shape[1] == i % out->shape[1];
}

const ref_entry ref_entries_create[] = {
    {"full", run_full, 0},         {"iota", run_iota, 0},
    {"linspace", run_linspace, 0}, {"eye", run_eye, 0},
    {"random_uniform", NULL, 0},   {"random_normal", NULL, 0},
    {"dropout", NULL, 0},          {"to", NULL, 0},
    {"straight_through", NULL, 0}, {NULL, NULL, 0},
};
