/* Programs with views and assignments beside the same programs written without either (support/twin.h): values and
 * gradients are the same. KILN_TEST_PROGRAM=n runs one of them and prints it, KILN_TEST_PROGRAMS=n that many. */
#include "support/core.h"
#include "support/twin.h"

/* ctest: name=eager env=KILN_EAGER=1 */
/* ctest: name=chunks env=KILN_TEST_CHUNK=24 */

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

static const double numbers[6] = {0.1, 0.2, 0.3, 0.4, 0.5, 0.6};

/* The gradient of a row that other elements of y share memory with, after y[1, 0] was assigned to through a detached
 * window: without a gradient first if `twice`, then with one. Wherever nobody records, gradients go on as if nothing
 * had been assigned; the second assignment must not make that forgotten. */
static void detached_gradient(bool twice, double *grad)
{
    kiln_scope {
        kiln_tensor *p = kiln_tensor_new(numbers, KILN_F64, KILN_SHAPE(2, 3), kiln_default_device());
        kiln_requires_grad(p, true);
        kiln_tensor *y = kiln_mul_scalar(p, 2), *row = kiln_select(y, 0, 1);
        kiln_tensor *by = kiln_sin(kiln_sum_all(row)),
                    *cell = kiln_reshape(kiln_detach(kiln_select(row, 0, 0)), KILN_SHAPE(1));
        if (twice)
            kiln_no_grad
                assert_true(kiln_assign(cell, by));
        assert_true(kiln_assign(cell, by) && kiln_backward(kiln_sum_all(kiln_tanh(row))));
        assert_true(kiln_read(kiln_grad_of(p), grad, 6 * sizeof *grad));
    }
}

static void test_detached_windows(void **state)
{
    (void)state;
    double once[6], twice[6];
    detached_gradient(false, once);
    detached_gradient(true, twice);
    for (int i = 0; i < 6; i++)
        assert_true(once[i] == twice[i] && (i < 3) == (once[i] == 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {core_test(test_twins), core_test(test_detached_windows)};
    return CORE_MAIN(tests);
}
