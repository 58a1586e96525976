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
    default: return 2e-6; /* f16 and bf16 are computed in f32 */
    }
}

static bool close_enough(double got, double want, double size, kiln_dtype dtype, double loose, int roundings)
{
    double rounded = number_round(want, dtype);
    if (isnan(want) || isnan(got))
        return isnan(want) && isnan(got);
    if (got == rounded)
        return true;
    if (!kiln_dtype_is_float(dtype) || isinf(got) || isinf(rounded))
        return false;
    size = isnan(size) ? fabs(want) : fmax(size, fabs(want));
    double most = tolerance(dtype) * loose * size + (dtype == KILN_F64 ? 1e-300 : 1e-38);
    if (dtype == KILN_F16 || dtype == KILN_BF16) /* the last rounding is of the result, those before it of its terms */
        most += number_rounding(fmax(fabs(want), fabs(got)), dtype) +
                (roundings - 1) * number_rounding(fmax(size, fabs(want)), dtype);
    return fabs(got - want) <= most;
}

bool compare_result(const ref_tensor *want, const void *bits, double loose, int roundings, char why[200])
{
    double *got = calloc((size_t)want->count + 1, sizeof *got);
    number_load(got, want->dtype, bits, want->count);
    bool same = true;
    for (int64_t i = 0; same && i < want->count; i++) {
        same = close_enough(got[i], want->data[i], want->size[i], want->dtype, loose > 0 ? loose : 1, roundings);
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
