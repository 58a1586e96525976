/* Conversion of arrays of floats: see convert.h. */
#include "core/convert.h"

#include <math.h>
#include <string.h>
#include "core/half.h"

static double get(const void *from, kiln_dtype dtype, int64_t i)
{
    switch (dtype) {
    case KILN_F64: return ((const double *)from)[i];
    case KILN_F32: return (double)((const float *)from)[i];
    case KILN_F16: return (double)kiln_f16_to_f32(((const uint16_t *)from)[i]);
    default: return (double)kiln_bf16_to_f32(((const uint16_t *)from)[i]);
    }
}

static void put(void *to, kiln_dtype dtype, int64_t i, double value)
{
    switch (dtype) {
    case KILN_F64: ((double *)to)[i] = value; break;
    case KILN_F32: ((float *)to)[i] = (float)value; break;
    case KILN_F16: ((uint16_t *)to)[i] = kiln_f32_to_f16((float)value); break;
    default: ((uint16_t *)to)[i] = kiln_f32_to_bf16((float)value); break;
    }
}

int64_t kiln_convert_floats(void *to, kiln_dtype to_dtype, const void *from, kiln_dtype from_dtype, int64_t n)
{
    int64_t first = -1;
    if (to_dtype == from_dtype) {
        memcpy(to, from, (size_t)n * kiln_dtype_size(to_dtype));
        return -1;
    }
    for (int64_t i = 0; i < n; i++) {
        double value = get(from, from_dtype, i);
        put(to, to_dtype, i, value);
        if (first < 0 && isfinite(value) && !isfinite(get(to, to_dtype, i)))
            first = i;
    }
    return first;
}
