/* Element types: sizes, names and promotion. */
#include "kiln/dtype.h"

static const struct {
    const char *name;
    uint8_t size, category; /* categories: 0 bool, 1 integer, 2 float */
} dtypes[KILN_DTYPES] = {
    [KILN_BOOL] = {"bool", 1, 0}, [KILN_U8] = {"u8", 1, 1},     [KILN_I32] = {"i32", 4, 1}, [KILN_I64] = {"i64", 8, 1},
    [KILN_F16] = {"f16", 2, 2},   [KILN_BF16] = {"bf16", 2, 2}, [KILN_F32] = {"f32", 4, 2}, [KILN_F64] = {"f64", 8, 2},
};

static bool is_dtype(kiln_dtype dtype)
{
    return (unsigned)dtype < KILN_DTYPES;
}

size_t kiln_dtype_size(kiln_dtype dtype)
{
    return is_dtype(dtype) ? dtypes[dtype].size : 0;
}

const char *kiln_dtype_name(kiln_dtype dtype)
{
    return is_dtype(dtype) ? dtypes[dtype].name : "?";
}

bool kiln_dtype_is_float(kiln_dtype dtype)
{
    return is_dtype(dtype) && dtypes[dtype].category == 2;
}

kiln_dtype kiln_dtype_promote(kiln_dtype a, kiln_dtype b)
{
    if (!is_dtype(a) || !is_dtype(b))
        return KILN_DTYPES;
    if ((a == KILN_F16 && b == KILN_BF16) || (a == KILN_BF16 && b == KILN_F16))
        return KILN_F32;  /* neither holds the other's values */
    return a > b ? a : b; /* the enumeration lists categories, and types within one, from narrow to wide */
}
