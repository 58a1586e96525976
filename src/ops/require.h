/* Values that an operation cannot take, where they are known only when the step runs. */
#ifndef KILN_OPS_REQUIRE_H
#define KILN_OPS_REQUIRE_H

#include "kiln/tensor.h"

typedef enum kiln_requirement {
    KILN_REQUIRE_NOT_ZERO,    /* integers are divided by it */
    KILN_REQUIRE_PROBABILITY, /* between 0 and 1 */
    KILN_REQUIREMENTS
} kiln_requirement;

/* Divisions of integers, by PyTorch's names. */
typedef enum kiln_division { KILN_FLOOR_DIVIDE, KILN_REMAINDER, KILN_FMOD, KILN_DIVISIONS } kiln_division;

/* divide_integers(a, b)[dim, division, limit]: two dense tensors of one shape. Its kernel looks at the divisors as it
 * goes, which costs nothing beside the divisions. */
extern const struct kiln_op kiln_op_divide_integers;

/* x's values, provided that all of them are so; otherwise the step is discarded, with an error that names the operation
 * this is a part of. On a device that has no kernel for it nothing is checked. */
kiln_tensor *kiln_require(kiln_tensor *x, kiln_requirement what);

#endif
