/* Tensors as text: against PyTorch's, recorded in golden/print.txt by make_print.py. */
#include <inttypes.h>
#include <locale.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "core/alloc.h"
#include "kiln.h"
#include "support/numbers.h"
#include "support/skip.h"
#include "support/where.h"

typedef struct print_case {
    kiln_dtype dtype;
    int ndim;
    int64_t shape[KILN_MAX_DIMS];
    bool needs_grad;
    char device[16];
    void *data;
    char *want; /* the expected text */
    size_t length;
} print_case;

static kiln_dtype dtype_named(const char *name)
{
    int d = 0;
    while (d < KILN_DTYPES && strcmp(name, kiln_dtype_name((kiln_dtype)d)) != 0)
        d++;
    return (kiln_dtype)d;
}

/* "in* f32 2 3 : 1 2 3 4 5 6" */
static void parse_tensor(print_case *c, char *line)
{
    char *rest, *word = strtok_r(line, " ", &rest);
    c->needs_grad = strcmp(word, "in*") == 0;
    c->dtype = dtype_named(strtok_r(NULL, " ", &rest));
    assert_true(c->dtype < KILN_DTYPES);
    int64_t count = 1;
    for (c->ndim = 0; *(word = strtok_r(NULL, " ", &rest)) != ':'; c->ndim++) {
        assert_true(c->ndim < KILN_MAX_DIMS);
        c->shape[c->ndim] = strtoll(word, NULL, 10);
        count *= c->shape[c->ndim];
    }
    const size_t size = kiln_dtype_size(c->dtype);
    c->data = calloc((size_t)count + 1, size);
    assert_non_null(c->data);
    for (int64_t i = 0; i < count; i++) {
        word = strtok_r(NULL, " ", &rest);
        assert_non_null(word);
        void *at = (char *)c->data + (size_t)i * size;
        double value = strtod(word, NULL);
        if (c->dtype == KILN_I64) /* a double cannot hold them all */
            *(int64_t *)at = strtoll(word, NULL, 10);
        else
            number_store(at, c->dtype, &value, 1);
    }
}

static void append(print_case *c, const char *line)
{
    const size_t n = strlen(line), start = c->want ? c->length + 1 : 0;
    c->want = realloc(c->want, start + n + 1);
    assert_non_null(c->want);
    if (start)
        c->want[c->length] = '\n';
    memcpy(c->want + start, line, n + 1);
    c->length = start + n;
}

/* Reads up to "end"; false when the file ends first. */
static bool next_case(FILE *file, print_case *c)
{
    char *line = NULL;
    size_t capacity = 0;
    ssize_t n;
    bool found = false;
    *c = (print_case){.device = "cpu"};
    while (!found && (n = getline(&line, &capacity, file)) > 0) {
        line[n - 1] = 0;
        if (strncmp(line, "in", 2) == 0)
            parse_tensor(c, line);
        else if (strncmp(line, "on ", 3) == 0)
            snprintf(c->device, sizeof c->device, "%s", line + 3);
        else if (line[0] == '|')
            append(c, line + 1);
        else
            found = strcmp(line, "end") == 0;
    }
    free(line);
    return found;
}

/* True if the text agrees. A case for a device that is not there counts as skipped. */
static bool check_case(const print_case *c, int number, int *skipped)
{
    kiln_device device = kiln_device_parse(c->device);
    if (device == KILN_NO_DEVICE) {
        kiln_error_clear();
        ++*skipped;
        return true;
    }
    bool same = false;
    kiln_scope {
        kiln_tensor *t = kiln_tensor_new(c->data, c->dtype, c->ndim, c->shape, device);
        if (c->needs_grad)
            t = kiln_requires_grad(t, true);
        char *text = kiln_to_string(t);
        same = text && strcmp(text, c->want) == 0;
        if (!same)
            print_error("case %d\n%s\nshould be\n%s\n", number, text ? text : kiln_last_error()->message, c->want);
        kiln_string_free(text);
    }
    return same;
}

static void as_pytorch_prints(void **state)
{
    (void)state;
    FILE *file = fopen(test_file("golden/print.txt"), "r");
    assert_non_null(file);
    int cases = 0, wrong = 0, skipped = 0;
    print_case c;
    while (next_case(file, &c)) {
        wrong += !check_case(&c, ++cases, &skipped);
        free(c.data);
        free(c.want);
    }
    fclose(file);
    print_message("%d cases, %d skipped for want of their device\n", cases, skipped);
    assert_true(cases - skipped > 60);
    assert_int_equal(wrong, 0);
}

static void expect_text(kiln_tensor *t, const char *want)
{
    char *text = kiln_to_string(t);
    assert_non_null(text);
    assert_string_equal(text, want);
    kiln_string_free(text);
}

static void computed_and_strided(void **state)
{
    (void)state;
    kiln_scope {
        kiln_tensor *x = kiln_of_f32(((float[]){1, 2, 3, 4, 5, 6}), 2, 3);
        expect_text(kiln_transpose(x, 0, 1), "tensor([[1., 4.],\n        [2., 5.],\n        [3., 6.]])");
        expect_text(kiln_expand(kiln_scalar(7, KILN_I64), KILN_SHAPE(2, 2)), "tensor([[7, 7],\n        [7, 7]])");
        assert_non_null(kiln_requires_grad(x, true));
        expect_text(kiln_mul(x, x), "tensor([[ 1.,  4.,  9.],\n        [16., 25., 36.]], requires_grad=True)");
        expect_text(kiln_gt_scalar(x, 3), "tensor([[False, False, False],\n        [ True,  True,  True]])");
    }
    assert_true(kiln_ok());
}

static void to_a_stream(void **state)
{
    (void)state;
    char line[80] = "";
    kiln_scope {
        FILE *file = tmpfile();
        assert_non_null(file);
        kiln_tensor *t = kiln_of_i64(((int64_t[]){1, 2}), 2);
        assert_true(kiln_print(t, file));
        rewind(file);
        assert_int_equal(fread(line, 1, sizeof line - 1, file), 15);
        assert_string_equal(line, "tensor([1, 2])\n");
        fclose(file);
        assert_false(kiln_print(t, NULL));
        assert_int_equal(kiln_last_error()->code, KILN_E_ARGUMENT);
        kiln_error_clear();
        FILE *full = fopen("/dev/full", "w");
        if (full) {
            setbuf(full, NULL);
            assert_false(kiln_print(t, full));
            assert_int_equal(kiln_last_error()->code, KILN_E_STATE);
            kiln_error_clear();
            fclose(full);
        }
    }
}

static void null_gives_null(void **state)
{
    (void)state;
    kiln_string_free(NULL);
    assert_true(kiln_ok());
    assert_null(kiln_to_string(NULL));
    assert_int_equal(kiln_last_error()->code, KILN_E_ARGUMENT);
    kiln_error_clear();
    assert_false(kiln_print(NULL, stdout));
    assert_int_equal(kiln_last_error()->code, KILN_E_ARGUMENT);
    kiln_error_clear();
}

/* A locale that writes a decimal comma changes nothing. */
static void in_any_locale(void **state)
{
    (void)state;
    const char *const names[] = {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "fr_FR.utf8"};
    bool found = false;
    for (size_t i = 0; i < sizeof names / sizeof *names && !found; i++)
        found = setlocale(LC_NUMERIC, names[i]) != NULL;
    if (!found)
        skip_because("no locale with a decimal comma is installed");
    kiln_scope
        expect_text(kiln_of_f32(((float[]){1.5f, 2.25f}), 2), "tensor([1.5000, 2.2500])");
    setlocale(LC_NUMERIC, "C");
}

/* Each allocation fails in turn: an error every time, and nothing leaks. */
static void out_of_memory(void **state)
{
    (void)state;
    kiln_scope {
        float data[200] = {0.5f};
        kiln_tensor *t = kiln_of_f32(data, 200);
        char *text = NULL;
        int failures = 0;
        for (; !text && failures < 1000; failures += !text) {
            kiln_alloc_fail_after(failures);
            text = kiln_to_string(t);
            kiln_alloc_fail_after(-1);
            assert_int_equal(kiln_last_error()->code, text ? KILN_OK : KILN_E_MEMORY);
            kiln_error_clear();
        }
        assert_non_null(text);
        assert_true(failures > 2);
        kiln_string_free(text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_pytorch_prints), cmocka_unit_test(computed_and_strided), cmocka_unit_test(to_a_stream),
        cmocka_unit_test(null_gives_null),   cmocka_unit_test(in_any_locale),        cmocka_unit_test(out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
