/* Values that an operation cannot take, where they are known only when the step runs. */
#ifndef KILN_OPS_REQUIRE_H
#define KILN_OPS_REQUIRE_H

#include "ops/op.h"

typedef enum kiln_requirement {
    KILN_REQUIRE_NOT_ZERO,    /* integers are divided by it */
    KILN_REQUIRE_PROBABILITY, /* between 0 and 1 */
    KILN_REQUIREMENTS
} kiln_requirement;

/* x's values, provided that all of them are so; otherwise the step is discarded, with an error that names the operation
 * this is a part of. On a device that has no kernel for it nothing is checked. */
kiln_tensor *kiln_require(kiln_tensor *x, kiln_requirement what);

#endif
