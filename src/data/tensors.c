/* A data set from two tensors: a copy of their elements in host memory. */
#include <math.h>
#include <string.h>
#include "core/alloc.h"
#include "core/available.h"
#include "core/fail.h"
#include "core/half.h"
#include "data/dataset.h"
#include "ops/op.h"

typedef struct in_memory {
    kiln_dataset base;
    char *x, *y;
} in_memory;

static bool read_sample(const kiln_dataset *d, int64_t index, void *x, void *y)
{
    const in_memory *m = (const in_memory *)d;
    memcpy(x, m->x + (size_t)index * d->x_bytes, d->x_bytes);
    if (m->y)
        memcpy(y, m->y + (size_t)index * d->y_bytes, d->y_bytes);
    return true;
}

static bool stored_samples(const kiln_dataset *d, kiln_stored *s)
{
    const in_memory *m = (const in_memory *)d;
    const kiln_field *x = &d->info.x, *y = &d->info.y;
    s->x = (kiln_stored_side){.data = m->x, .dtype = x->dtype, .distance = kiln_count(x->ndim, x->shape)};
    if (m->y)
        s->y = (kiln_stored_side){.data = m->y, .dtype = y->dtype, .distance = kiln_count(y->ndim, y->shape)};
    return true;
}

static void free_samples(kiln_dataset *d)
{
    in_memory *m = (in_memory *)d;
    kiln_free(m->x);
    kiln_free(m->y);
}

static double float_at(kiln_dtype dtype, const void *values, int64_t i)
{
    switch (dtype) {
    case KILN_F64: return ((const double *)values)[i];
    case KILN_F32: return ((const float *)values)[i];
    case KILN_F16: return kiln_f16_to_f32(((const uint16_t *)values)[i]);
    default: return kiln_bf16_to_f32(((const uint16_t *)values)[i]);
    }
}

/* One NaN among the inputs makes every weight NaN: better found here, where the sample can be named. */
static bool all_finite(kiln_dtype dtype, const void *values, int64_t count, int64_t samples, const char *which)
{
    for (int64_t i = 0; i < count; i++) {
        double v = float_at(dtype, values, i);
        if (isfinite(v))
            continue;
        kiln_fail(KILN_E_ARGUMENT, "data_tensors", "%s of sample %lld has %s at place %lld", which,
                  (long long)(i / (count / samples)), isnan(v) ? "NaN" : "infinity",
                  (long long)(i % (count / samples)));
        return kiln_hint("a model cannot learn from it: leave the sample out or put a number there");
    }
    return true;
}

/* How many classes integer targets name; -1 with an error where one is no label. *lacking: some are KILN_NO_LABEL. */
static int64_t count_classes(kiln_dtype dtype, const void *values, int64_t count, int64_t samples, bool *lacking)
{
    int64_t highest = -1;
    for (int64_t i = 0; i < count; i++) {
        int64_t label = kiln_integer_at(dtype, values, i);
        if (!kiln_label_fits(label, INT64_MAX)) {
            kiln_fail(KILN_E_INDEX, "data_tensors", "the label %lld of sample %lld is negative", (long long)label,
                      (long long)(i / (count / samples)));
            kiln_hint("labels count from 0; %d stands for none. Targets that are no labels are floats", KILN_NO_LABEL);
            return -1;
        }
        highest = label > highest ? label : highest;
        *lacking |= label == KILN_NO_LABEL;
    }
    return highest + 1;
}

/* The tensor's elements, and the description of a sample of it. */
static char *take(kiln_tensor *t, const char *which, int64_t *count, kiln_field *item)
{
    if (kiln_ndim(t) < 1)
        return kiln_fail(KILN_E_SHAPE, "data_tensors", "%s is a scalar: its first dimension should count the samples",
                         which);
    const int64_t *shape = kiln_shape(t);
    int64_t n = kiln_numel(t);
    if (n < 1)
        return kiln_fail(KILN_E_SHAPE, "data_tensors", "%s of shape %s holds no samples", which,
                         kiln_shape_text(kiln_ndim(t), shape));
    *count = shape[0];
    *item = kiln_field_make(kiln_dtype_of(t), kiln_ndim(t) - 1, shape + 1);
    size_t bytes = (size_t)n * kiln_dtype_size(item->dtype);
    char *data = kiln_fits_memory(bytes, which, "data_tensors") ? kiln_alloc_aligned(bytes) : NULL;
    if (data && kiln_read(t, data, bytes) &&
        (!kiln_dtype_is_float(item->dtype) || all_finite(item->dtype, data, n, *count, which)))
        return data;
    kiln_free(data);
    return NULL;
}

static bool fill(in_memory *m, kiln_tensor *x, kiln_tensor *y)
{
    static const kiln_dataset_kind kind = {.read = read_sample, .stored = stored_samples, .free = free_samples};
    kiln_data_info info = {.name = "tensors", .y.dtype = KILN_DTYPES};
    int64_t targets = 0;
    if (!(m->x = take(x, "x", &info.count, &info.x)))
        return false;
    if (y && !(m->y = take(y, "y", &targets, &info.y)))
        return false;
    if (y && targets != info.count)
        return kiln_fail(KILN_E_SHAPE, "data_tensors", "there are %lld samples in x, but %lld in y",
                         (long long)info.count, (long long)targets);
    if (y && !kiln_dtype_is_float(info.y.dtype))
        info.classes = count_classes(info.y.dtype, m->y, kiln_numel(y), info.count, &m->base.lacks_labels);
    return info.classes >= 0 && kiln_dataset_init(&m->base, &kind, &info, "data_tensors");
}

kiln_dataset *kiln_data_tensors(kiln_tensor *x, kiln_tensor *y)
{
    if (!kiln_tensor_given(x, "data_tensors", 1) || (y && !kiln_tensor_usable(y, "data_tensors")))
        return NULL;
    in_memory *m = kiln_alloc_zero(1, sizeof *m);
    if (!m || fill(m, x, y))
        return m ? &m->base : NULL;
    free_samples(&m->base);
    kiln_free(m);
    return NULL;
}
