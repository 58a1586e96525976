/* Lists of a module's tensors, cached by the module. */
#ifndef KILN_NN_LISTS_H
#define KILN_NN_LISTS_H

#include "kiln/nn.h"

void kiln_lists_free(kiln_module *m);

#endif
