/* The same bits however an operation is run: planned or at once (KILN_EAGER=1), on 1, 2 or 4 threads, on the CPU or the
 * simulated device. Runs test_ops in each of these ways and compares the digests of all its results. f16 and bf16 are
 * not compared between planned and eager runs: a fused group keeps f32 between its operations. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>
#include "kiln.h"
#include "support/skip.h"

static char program[512], folder[256];

enum { LINES = 4096 };
typedef struct digest {
    int n;
    char name[LINES][64], hash[LINES][20]; /* "matmul f32" */
} digest;
static digest base, other;

/* Runs test_ops with the given environment and reads what it wrote. */
static void run(const char *environment, digest *d)
{
    char command[1600], path[300], op[48], dtype[16];
    snprintf(path, sizeof path, "%s/digest", folder);
    snprintf(command, sizeof command, "KILN_TEST_DIGEST='%s' %s '%s' >/dev/null 2>&1", path, environment, program);
    int status = system(command);
    if (!WIFEXITED(status) || WEXITSTATUS(status) > 125)
        fail_msg("%s did not run to its end: status %d", command, status);
    FILE *f = fopen(path, "r");
    if (!f)
        fail_msg("%s wrote no digest", command);
    d->n = 0;
    while (d->n < LINES && fscanf(f, "%47s %15s %19s", op, dtype, d->hash[d->n]) == 3)
        snprintf(d->name[d->n++], sizeof d->name[0], "%s %s", op, dtype);
    fclose(f);
    remove(path);
    assert_in_range(d->n, 1, LINES - 1);
}

static void compare(const char *environment, bool with_halves)
{
    int different = 0;
    if (!base.n)
        run("KILN_NUM_THREADS=1 KILN_TEST_DEVICES=cpu", &base);
    run(environment, &other);
    assert_int_equal(base.n, other.n);
    for (int k = 0; k < base.n; k++) {
        assert_string_equal(base.name[k], other.name[k]);
        if (!with_halves && strstr(base.name[k], "f16"))
            continue;
        if (strcmp(base.hash[k], other.hash[k])) {
            fprintf(stderr, "%s: other bits with %s\n", base.name[k], environment);
            different++;
        }
    }
    assert_int_equal(different, 0);
}

static void test_two_threads(void **state)
{
    (void)state;
    compare("KILN_NUM_THREADS=2 KILN_TEST_DEVICES=cpu", true);
}

static void test_four_threads(void **state)
{
    (void)state;
    compare("KILN_NUM_THREADS=4 KILN_TEST_DEVICES=cpu", true);
}

static void test_eager(void **state)
{
    (void)state;
    compare("KILN_EAGER=1 KILN_NUM_THREADS=2 KILN_TEST_DEVICES=cpu", false);
}

static void test_simulated_device(void **state)
{
    (void)state;
    char why[256];
    if (kiln_device_count("sim", why, sizeof why) == 0) {
        skip_because(why);
    }
    compare("KILN_NUM_THREADS=2 KILN_TEST_DEVICES=sim:0", true);
}

int main(int argc, char **argv)
{
    const char *slash = argc ? strrchr(argv[0], '/') : NULL, *tmp = getenv("TMPDIR");
    snprintf(program, sizeof program, "%.*stest_ops", slash ? (int)(slash - argv[0] + 1) : 0, slash ? argv[0] : "");
    snprintf(folder, sizeof folder, "%s/kiln-bits-XXXXXX", tmp ? tmp : "/tmp");
    if (!mkdtemp(folder)) {
        perror(folder);
        return 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_threads),
        cmocka_unit_test(test_four_threads),
        cmocka_unit_test(test_eager),
        cmocka_unit_test(test_simulated_device),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    rmdir(folder);
    return failed;
}
