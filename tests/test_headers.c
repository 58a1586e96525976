/* The public headers as programs see them: the README's program, every example and every header by itself, compiled
 * without a warning by every C and C++ compiler that is there; and option lists of programs that know fewer options
 * than the library, or more. */
#include "support/command.h"
#include "kiln.h"
#include "support/where.h"

typedef struct compiler {
    const char *name, *flags;
} compiler;
static const compiler c_compilers[] = {{"gcc", "-std=c11 -pedantic -Wall -Wextra"},
                                       {"clang", "-std=c11 -pedantic -Wall -Wextra"},
                                       {"cc", "-std=c11 -pedantic -Wall -Wextra"},
                                       {NULL, NULL}};
static const compiler cxx_compilers[] = {
    {"g++", "-std=c++17 -Wall -Wextra"}, {"clang++", "-std=c++17 -Wall -Wextra"}, {"c++", "-std=c++17 -Wall -Wextra"},
    {"g++", "-std=c++20 -Wall -Wextra"}, {"clang++", "-std=c++20 -Wall -Wextra"}, {NULL, NULL}};
static char include[PATH_MAX], root[PATH_MAX];

/* Compiles a file with each of them; not one word may be said. */
static void compile(const compiler *with, const char *file)
{
    int tried = 0;
    for (; with->name; with++) {
        if (shell("command -v %s", with->name) != 0)
            continue;
        int code = shell("%s %s -I '%s' -c '%s' -o compiled.o", with->name, with->flags, include, file);
        if (code != 0 || *out || *err)
            fail_msg("%s %s %s:\n%s%s", with->name, with->flags, file, out, err);
        tried++;
    }
    if (!tried)
        skip_because("there is no compiler");
}

/* The README's only block of C. */
static void test_readme(void **state)
{
    (void)state;
    char path[PATH_MAX + 16];
    snprintf(path, sizeof path, "%s/README.md", root);
    char *text = slurp(path, NULL), *from = strstr(text, "```c\n"), *to = from ? strstr(from, "\n```\n") : NULL;
    assert_non_null(to);
    to[1] = '\0';
    put_text("readme.c", from + 5);
    put_text("readme.cpp", from + 5);
    free(text);
    compile(c_compilers, "readme.c");
    compile(cxx_compilers, "readme.cpp");
}

/* What the headers' comments show, and what else C++ is particular about. */
static void test_as_cxx(void **state)
{
    (void)state;
    put_text("lists.cpp",
             "#include <kiln.h>\n"
             "kiln_tensor *lists(int n)\n"
             "{\n"
             "    float values[] = {1, 2, 3, 4};\n"
             "    kiln_tensor *x = kiln_of_f32(values, 2, 2), *y = kiln_of_i64(((int64_t[]){1, 2}), 2);\n"
             "    x = kiln_reshape(x, KILN_SHAPE(1, n, -1));\n"
             "    x = kiln_sum(x, KILN_DIMS(0, 2), false);\n"
             "    x = kiln_conv2d(x, x, nullptr, .stride = {2, 2}, .padding = {1, 1});\n"
             "    x = kiln_max_pool2d(kiln_conv2d(x, x, nullptr), 2, 2);\n"
             "    x = kiln_cross_entropy(x, y, .label_smoothing = 0.1);\n"
             "    kiln_module *m = kiln_nn_sequential(kiln_nn_conv2d(3, 6, 5), kiln_nn_batch_norm(6, .eps = 1e-3),\n"
             "                                        kiln_nn_sequential(kiln_nn_relu(), kiln_nn_max_pool2d(2)));\n"
             "    kiln_dataset *d = kiln_data_digits(.test = true);\n"
             "    kiln_loader *l = kiln_loader_new(d, .batch = 3, .augment = {.flip = true, .crop = 2});\n"
             "    kiln_history h = kiln_fit(m, d, .epochs = 2, .metrics = KILN_ACCURACY);\n"
             "    kiln_optim *o = kiln_optim_adam(kiln_parameters(m));\n"
             "    return l && o && h.count ? x : kiln_zeros(KILN_SHAPE(n), KILN_F32);\n"
             "}\n");
    compile(cxx_compilers, "lists.cpp");
}

static void test_headers_alone(void **state)
{
    (void)state;
    assert_int_equal(shell("ls '%s' '%s/kiln' | grep '[.]h$'", include, include), 0);
    char *list = strdup(out);
    for (char *rest = list, *name; (name = strtok_r(rest, "\n", &rest));) {
        char text[400];
        snprintf(text, sizeof text, "#include <%s%s>\n#include <%s%s>\nint unused;\n",
                 strcmp(name, "kiln.h") ? "kiln/" : "", name, strcmp(name, "kiln.h") ? "kiln/" : "", name);
        put_text("alone.c", text);
        put_text("alone.cpp", text);
        compile(c_compilers, "alone.c");
        compile(cxx_compilers, "alone.cpp");
    }
    free(list);
}

static void test_examples(void **state)
{
    (void)state;
    assert_int_equal(shell("ls '%s'/examples/*.c", root), 0);
    char *list = strdup(out);
    for (char *rest = list, *name; (name = strtok_r(rest, "\n", &rest));)
        compile(c_compilers, name);
    free(list);
}

/* ---- Options that travel with their size ---- */

/* As a program would have it that was compiled when there was one option, or when there will be one more. */
typedef struct old_options {
    size_t size;
    double lr;
} old_options;
typedef struct new_options {
    kiln_optim_options known;
    double unheard_of;
} new_options;

static void refused(const char *word)
{
    if (kiln_last_error()->code != KILN_E_ARGUMENT || !strstr(kiln_last_error()->message, word))
        fail_msg("\"%s\" instead of something with \"%s\"", kiln_last_error()->message, word);
    kiln_error_clear();
}

static void test_sizes_of_options(void **state)
{
    (void)state;
    kiln_module *m = kiln_nn_linear(2, 3);
    kiln_params p = kiln_parameters(m);
    struct {
        old_options given;
        double behind[40]; /* must not be looked at */
    } old = {{sizeof old.given, 0.25}, {0}};
    for (int i = 0; i < 40; i++)
        old.behind[i] = 1e30;
    kiln_optim *o = kiln_optim_new("adam", p, (const kiln_optim_options *)(const void *)&old);
    assert_non_null(o);
    assert_true(kiln_optim_lr(o, 0) == 0.25);
    kiln_optim_free(o);

    new_options later = {.known = {.size = sizeof later, .lr = 0.5}};
    o = kiln_optim_new("adam", p, &later.known);
    assert_non_null(o);
    assert_true(kiln_optim_lr(o, 0) == 0.5);
    kiln_optim_free(o);
    later.unheard_of = 1;
    assert_null(kiln_optim_new("adam", p, &later.known));
    refused("does not have");

    assert_null(kiln_optim_new("adam", p, &(kiln_optim_options){.lr = 1}));
    refused("0 bytes");
    assert_null(kiln_optim_new("adam", p, &(kiln_optim_options){.size = SIZE_MAX, .lr = 1}));
    refused("bytes");
    o = kiln_optim_new("adam", p, NULL); /* all defaults */
    assert_non_null(o);
    assert_true(kiln_optim_lr(o, 0) == 1e-3);
    kiln_optim_free(o);
    kiln_module_free(m);
    assert_null(kiln_nn_linear_(2, 3, &(kiln_linear_options){0}));
    refused("0 bytes");
    assert_true(kiln_ok());
}

int main(void)
{
    snprintf(root, sizeof root, "%s", test_file(".."));
    snprintf(include, sizeof include, "%s", test_file("../include"));
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_readme),   cmocka_unit_test(test_as_cxx),           cmocka_unit_test(test_headers_alone),
        cmocka_unit_test(test_examples), cmocka_unit_test(test_sizes_of_options),
    };
    return cmocka_run_group_tests(tests, command_before, command_after);
}
