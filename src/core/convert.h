/* Arrays of floats from one type to another, on the host: rounded to nearest even, infinities and NaNs kept. f64 goes
 * to the 16-bit types by way of f32, as kiln_cast and PyTorch do it. */
#ifndef KILN_CORE_CONVERT_H
#define KILN_CORE_CONVERT_H

#include "kiln/dtype.h"

/* Converts n elements; both types are floats. Returns the place of the first finite number that became infinite; -1:
 * there was none. */
int64_t kiln_convert_floats(void *to, kiln_dtype to_dtype, const void *from, kiln_dtype from_dtype, int64_t n);

#endif
