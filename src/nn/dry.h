/* Recording a forward pass without running it. */
#ifndef KILN_NN_DRY_H
#define KILN_NN_DRY_H

#include "nn/module.h"

/* Sends an input of this shape and dtype through the module, in eval mode with a `watch`, which is told of each visit,
 * and in the module's own without one; `result` (when not NULL) gets the output, which is gone when this returns.
 * Nothing runs, nothing is changed: neither tensors nor the trace nor the random generator. False with an error. */
bool kiln_dry_run(kiln_module *m, int ndim, const int64_t *shape, kiln_dtype dtype, kiln_watch *watch,
                  void (*result)(const kiln_tensor *y, void *context), void *context);

#endif
