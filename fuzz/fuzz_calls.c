/* Calls of every public function, decoded from the input: see calls.h. */
#include "calls.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    calls_make(data, size, -1);
    return 0;
}
