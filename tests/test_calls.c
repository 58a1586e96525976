/* Hostile calls to every public function (fuzz/calls.h), the same in each run: each function by itself, then all of
 * them mixed. The list of functions is held against the headers. */
#include "calls.h"
#include <ctype.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include "support/numbers.h"
#include "support/where.h"

static char *read_text(const char *path)
{
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    char *text = calloc(1 << 18, 1);
    assert_true(fread(text, 1, (1 << 18) - 1, f) > 0);
    fclose(f);
    return text;
}

static int number_of(const char *name, size_t length)
{
    for (int i = 0; i < calls_count(); i++)
        if (strlen(calls_name(i)) == length && !strncmp(calls_name(i), name, length))
            return i;
    return -1;
}

/* The functions that a header declares: the last name before the first bracket behind each KILN_API. */
static int declared_in(const char *header, bool *seen)
{
    char path[96];
    snprintf(path, sizeof path, "../include/kiln/%s.h", header);
    char *text = read_text(test_file(path));
    int found = 0;
    for (char *at = text; (at = strstr(at, "\nKILN_API ")); at++) {
        char *end = at + strcspn(at, "("), *begin = end;
        while (begin > at && (isalnum((unsigned char)begin[-1]) || begin[-1] == '_'))
            begin--;
        int number = number_of(begin, (size_t)(end - begin));
        if (number < 0)
            fail_msg("%s.h declares %.*s, which fuzz/calls.def does not list", header, (int)(end - begin), begin);
        seen[number] = true;
        found++;
    }
    free(text);
    return found;
}

static void test_list_is_complete(void **state)
{
    (void)state;
    static const char *const headers[] = {"dtype", "error", "device", "tensor", "ops", "grad", "amp",
                                          "plan",  "nn",    "optim",  "data",   "io",  "train"};
    bool *seen = calloc((size_t)calls_count(), 1);
    for (size_t h = 0; h < sizeof headers / sizeof *headers; h++)
        assert_true(declared_in(headers[h], seen) > 0);
    for (int i = 0; i < calls_count(); i++)
        if (!seen[i])
            fail_msg("fuzz/calls.def lists %s, which no header declares", calls_name(i));
    free(seen);
}

static void make_calls(uint64_t seed, int only)
{
    uint8_t bytes[1200];
    number_rng rng = {seed};
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)(number_next(&rng) >> 56);
    calls_make(bytes, sizeof bytes, only);
}

static void test_each(void **state)
{
    (void)state;
    enum { TIMES = 40 };
    for (int i = 0; i < calls_count(); i++)
        for (uint64_t k = 0; k < TIMES; k++)
            make_calls((uint64_t)i * TIMES + k, i);
}

static void test_mixed(void **state)
{
    (void)state;
    enum { TIMES = 6000 };
    for (uint64_t k = 0; k < TIMES; k++)
        make_calls(UINT64_C(1) << 40 | k, -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_list_is_complete), cmocka_unit_test(test_each),
                                       cmocka_unit_test(test_mixed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
