/* Words for people: variables KILN_… that make no sense are told of, once; names of others are shown without what would
 * move a terminal's cursor about. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "core/environment.h"
#include "kiln.h"

static void test_values(void **state)
{
    (void)state;
    static const char *const good[] = {"KILN_NUM_THREADS=2",
                                       "KILN_NUM_THREADS=",
                                       "KILN_EAGER=0",
                                       "KILN_TF32=1",
                                       "KILN_CUDA_JIT=wait",
                                       "KILN_CUDA_RUNS=50",
                                       "KILN_CUDA_MEMCHECK=exact",
                                       "KILN_ISA=avx2",
                                       "KILN_PLUGIN_PATH=/any where",
                                       "KILN_SIM_MEMORY=1073741824",
                                       "KILN_TEST_ONLY=matmul",
                                       "KILN_KILLS=7",
                                       "PATH=/bin",
                                       "OMP_NUM_THREADS=tow",
                                       "KILN_SOMETHING_ELSE=5",
                                       "KILN_"};
    static const struct {
        const char *entry, *says;
    } bad[] = {{"KILN_NUM_THREADS=tow", "KILN_NUM_THREADS=tow: expected a whole number of at least 1"},
               {"KILN_NUM_THREADS=0", "at least 1"},
               {"KILN_NUM_THREADS=-2", "at least 1"},
               {"KILN_NUM_THREADS=4x", "at least 1"},
               {"KILN_NUM_THREADS= 4", "at least 1"},
               {"KILN_EAGER=yes", "expected one of: 0 1; it is taken for 1"},
               {"KILN_TF32=off", "it is taken for 1"},
               {"KILN_RERUN=no", "expected one of: 0 1"},
               {"KILN_ISA=avx", "plain avx2 avx512 avx512bf16 amx"},
               {"KILN_CUDA_JIT=2", "0 1 wait"},
               {"KILN_CUDA_RUNS=51", "from 1 to 50"},
               {"KILN_CUDA_MEMCHECK=2", "0 1 exact"},
               {"KILN_CUDA_LIBRARIES=off", "expected one of: 0 1"},
               {"KILN_SIM_APART=x", "expected one of: 0 1"},
               {"KILN_NUM_THREAD=2", "did you mean KILN_NUM_THREADS?"},
               {"KILN_NUMTHREADS=2", "did you mean KILN_NUM_THREADS?"}};
    char why[256];
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        if (kiln_environment_wrong(good[i], why, sizeof why))
            fail_msg("%s: %s", good[i], why);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (!kiln_environment_wrong(bad[i].entry, why, sizeof why) || !strstr(why, bad[i].says))
            fail_msg("%s: %s", bad[i].entry, why);
}

static void test_once(void **state)
{
    (void)state;
    assert_int_equal(setenv("KILN_NUM_THREADS", "tow", 1), 0);
    const char *notice = kiln_next_notice();
    assert_non_null(notice);
    assert_non_null(strstr(notice, "KILN_NUM_THREADS=tow"));
    assert_null(kiln_next_notice());
    assert_true(kiln_ok());
}

static void test_report(void **state)
{
    (void)state;
    char text[2000] = "";
    FILE *f = fmemopen(text, sizeof text, "w");
    assert_null(kiln_safetensors_open("no\033[31m\xc2\x9b\x9b\x07such f\xc3\xafle\n"));
    assert_int_equal(kiln_report(f), 1);
    fclose(f);
    assert_non_null(strstr(text, "no?[31m????such f\xc3\xafle"));
    kiln_error_clear();
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_values), cmocka_unit_test(test_once),
                                       cmocka_unit_test(test_report)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
