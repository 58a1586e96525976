/* Random programs with views and assignments, and the same programs written without them (tests/support/twin.h): values
 * and gradients must be the same, and nothing may stay in use. */
#include "fuzz.h"
#include "support/twin.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char why[256];
    fuzz_begin();
    uint64_t before = fuzz_in_use();
    if (!twin_check(data, size, why, sizeof why)) {
        twin_print(data, size);
        fprintf(stderr, "%s\n", why);
        abort();
    }
    must(fuzz_in_use() == before);
    return 0;
}
