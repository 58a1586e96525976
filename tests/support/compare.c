/* Results against references. Integers and bools must be equal. A float may differ from the reference by a few
 * roundings of the terms it was computed from: a reference gives the magnitude of those terms for each element, so that
 * a sum that cancels is measured by what was summed, and a wrong formula is still found in the sixth digit. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include "support/compare.h"
#include "support/numbers.h"

/* The error allowed relative to the terms. */
static double tolerance(kiln_dtype dtype)
{
    switch (dtype) {
    case KILN_F64: return 1e-12;
    case KILN_F32: return 2e-6;
    default: return 2 * number_epsilon(dtype); /* f16, bf16: computed in f32 and rounded once or twice */
    }
}

static bool close_enough(double got, double want, double size, kiln_dtype dtype, double loose)
{
    double rounded = number_round(want, dtype);
    if (isnan(want) || isnan(got))
        return isnan(want) && isnan(got);
    if (got == rounded)
        return true;
    if (!kiln_dtype_is_float(dtype) || isinf(got) || isinf(rounded))
        return false;
    size = isnan(size) ? fabs(want) : fmax(size, fabs(want));
    double tiniest = dtype == KILN_F16 ? 0x1p-24 : dtype == KILN_F64 ? 1e-300 : 1e-38;
    return fabs(got - want) <= tolerance(dtype) * loose * size + tiniest;
}

bool compare_result(const ref_tensor *want, const void *bits, double loose, char why[200])
{
    double *got = calloc((size_t)want->count + 1, sizeof *got);
    number_load(got, want->dtype, bits, want->count);
    bool same = true;
    for (int64_t i = 0; same && i < want->count; i++) {
        same = close_enough(got[i], want->data[i], want->size[i], want->dtype, loose > 0 ? loose : 1);
        if (!same)
            snprintf(why, 200, "element %lld of %lld is %.17g instead of %.17g", (long long)i, (long long)want->count,
                     got[i], want->data[i]);
    }
    free(got);
    return same;
}

bool compare_kind(const ref_tensor *want, const kiln_tensor *got, char why[200])
{
    bool same = kiln_ndim(got) == want->ndim;
    for (int d = 0; same && d < want->ndim; d++)
        same = kiln_shape(got)[d] == want->shape[d];
    if (same && kiln_dtype_of(got) == want->dtype)
        return true;
    snprintf(why, 200, "it is %s %s instead of %s %s", kiln_dtype_name(kiln_dtype_of(got)),
             kiln_shape_text(kiln_ndim(got), kiln_shape(got)), kiln_dtype_name(want->dtype),
             kiln_shape_text(want->ndim, want->shape));
    return false;
}
