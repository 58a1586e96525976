/* Programs with views and assignments beside the same programs written without either (support/twin.h): values and
 * gradients are the same. KILN_TEST_PROGRAM=n runs one of them and prints it, KILN_TEST_PROGRAMS=n that many. */
#include "support/core.h"
#include "support/twin.h"

/* ctest: name=eager env=KILN_EAGER=1 */

static void make_program(uint64_t seed, uint8_t *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        bytes[i] = (uint8_t)(seed >> 33);
    }
}

static void check_program(unsigned number)
{
    uint8_t bytes[TWIN_INSTRUCTION * TWIN_LENGTH];
    char why[256];
    size_t count = TWIN_INSTRUCTION * (size_t)(6 + number % (TWIN_LENGTH - 5));
    make_program(number, bytes, count);
    if (twin_check(bytes, count, why, sizeof why))
        return;
    twin_print(bytes, count);
    fail_msg("program %u: %s", number, why);
}

static void test_twins(void **state)
{
    (void)state;
    const char *only = getenv("KILN_TEST_PROGRAM"), *many = getenv("KILN_TEST_PROGRAMS");
    int programs = many ? atoi(many) : kiln_default_device() == KILN_CPU ? 3000 : 500;
    if (only)
        check_program((unsigned)atoi(only));
    for (int k = 0; !only && k < programs; k++)
        check_program((unsigned)k);
}

int main(void)
{
    const struct CMUnitTest tests[] = {core_test(test_twins)};
    return CORE_MAIN(tests);
}
