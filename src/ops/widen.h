/* Half precision is for storage: compositions that add up many terms or take exponents run in f32 and round once. */
#ifndef KILN_OPS_WIDEN_H
#define KILN_OPS_WIDEN_H

#include "ops/op.h"

static inline bool kiln_is_half(kiln_dtype dtype)
{
    return dtype == KILN_F16 || dtype == KILN_BF16;
}

/* What sums and figures beside values of a type are in. */
static inline kiln_dtype kiln_wide(kiln_dtype dtype)
{
    return kiln_is_half(dtype) ? KILN_F32 : dtype;
}

/* x in f32 when it is f16 or bf16, otherwise x itself; NULL for NULL. kiln_cast(y, x->dtype) is the way back. */
static inline kiln_tensor *kiln_widen(kiln_tensor *x)
{
    return x && kiln_is_half(x->dtype) ? kiln_cast(x, KILN_F32) : x;
}

#endif
