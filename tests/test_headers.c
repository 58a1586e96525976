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

/* ---- Structs that are filled, and travel with their size ---- */

static kiln_module *filled_model;
static kiln_dataset *filled_data;
static kiln_loader *filled_loader;
static kiln_schedule *filled_schedule;
static char filled_folder[256];

static const char model_text[] = "input: [4]\nlayers: [{linear: 2}]\n";

/* Each fills a struct of so many bytes. */
#define FILLS(name, call)                                                                                              \
    static void name(void *to, size_t size)                                                                            \
    {                                                                                                                  \
        call;                                                                                                          \
    }
FILLS(fill_batch, kiln_loader_seek(filled_loader, 0, 1); assert_true(kiln_loader_next_(filled_loader, to, size)))
FILLS(fill_data, kiln_data_describe_(filled_data, to, size))
FILLS(fill_device, assert_true(kiln_device_describe_(KILN_CPU, to, size)))
FILLS(fill_memory, assert_true(kiln_memory_get_stats_(KILN_CPU, to, size)))
FILLS(fill_plan, assert_true(kiln_plan_last_(to, size)))
FILLS(fill_cache, kiln_plan_cache_stats_(to, size))
FILLS(fill_schedule, kiln_schedule_get_(filled_schedule, to, size))
FILLS(fill_defaults, kiln_optim_defaults_("adamw", to, size))
FILLS(fill_model, kiln_module_free(kiln_model_parse_(model_text, sizeof model_text - 1, "m", to, size)))
FILLS(fill_checkpoint, memset(to, 0, size); assert_true(kiln_checkpoint_load_(filled_folder, to, size)))
FILLS(fill_result, kiln_evaluate_(filled_model, filled_data, NULL, to, size))

enum { BEHIND = 64 };

/* A program that knows less of the struct, as much, or more: what both know is the same, what the library does not know
 * is 0, and nothing behind the struct is touched. `same` bytes are the same each time that it is filled. */
static void check_filled(void (*fill)(void *, size_t), size_t size, size_t same)
{
    unsigned char *whole = calloc(1, size), *given = malloc(size + 2 * BEHIND);
    fill(whole, size);
    for (size_t theirs = sizeof(size_t); theirs <= size + BEHIND; theirs += sizeof(size_t)) {
        memset(given, 0xa5, size + 2 * BEHIND);
        fill(given, theirs);
        for (size_t i = 0; i < theirs + BEHIND; i++)
            if (i >= theirs ? given[i] != 0xa5 : i >= size ? given[i] : i < same && given[i] != whole[i])
                fail_msg("byte %zu of %zu (the library's: %zu) is %d", i, theirs, size, given[i]);
    }
    free(whole);
    free(given);
    assert_true(kiln_ok());
}

static bool read_ones(void *context, int64_t index, void *x, void *y)
{
    (void)context;
    (void)index;
    for (int i = 0; i < 4; i++)
        ((float *)x)[i] = 1;
    *(int64_t *)y = 1;
    return true;
}

static void test_sizes_of_filled(void **state)
{
    (void)state;
    kiln_data_info about = {.count = 6, .x = {KILN_F32, 1, {4}}, .y = {.dtype = KILN_I64}, .classes = 2};
    filled_data = kiln_data_generator(about, read_ones, NULL);
    filled_model = kiln_nn_linear(4, 2);
    filled_loader = kiln_loader_new(filled_data, .batch = 2);
    kiln_optim *optim = kiln_optim_sgd(kiln_parameters(filled_model), .lr = 0.1);
    filled_schedule = kiln_schedule_cosine(optim, 10, 0);
    assert_true(kiln_schedule_advance(filled_schedule));
    snprintf(filled_folder, sizeof filled_folder, "sizes");
    assert_true(kiln_checkpoint_save(filled_folder, &(kiln_checkpoint){.model = filled_model, .step = 7}, 0));
    kiln_scope
        assert_true(kiln_read(kiln_ones(KILN_SHAPE(1), KILN_F32), &(float){0}, sizeof(float)));

    check_filled(fill_batch, sizeof(kiln_batch), 0); /* tensors are others each time */
    check_filled(fill_data, sizeof(kiln_data_info), sizeof(kiln_data_info));
    check_filled(fill_device, sizeof(kiln_device_info), offsetof(kiln_device_info, memory_free));
    check_filled(fill_memory, sizeof(kiln_memory_stats), offsetof(kiln_memory_stats, cached));
    check_filled(fill_plan, sizeof(kiln_plan_info), sizeof(kiln_plan_info));
    check_filled(fill_cache, sizeof(kiln_plan_cache), sizeof(kiln_plan_cache));
    check_filled(fill_schedule, sizeof(kiln_schedule_state), sizeof(kiln_schedule_state));
    check_filled(fill_model, sizeof(kiln_model_file), sizeof(kiln_model_file));
    check_filled(fill_checkpoint, sizeof(kiln_checkpoint), offsetof(kiln_checkpoint, meta));
    check_filled(fill_result, sizeof(kiln_result), offsetof(kiln_result, seconds));
    check_filled(fill_defaults, sizeof(kiln_optim_options), 0); /* begins with the size that it was asked for */

    struct {
        kiln_checkpoint known;
        int64_t unheard_of;
    } later = {.known = {.model = filled_model, .step = 8}};
    assert_true(kiln_checkpoint_save_(filled_folder, &later.known, sizeof later, 0));
    later.unheard_of = 1;
    assert_false(kiln_checkpoint_save_(filled_folder, &later.known, sizeof later, 0));
    refused("does not have");
    assert_null(kiln_loader_new(filled_data, .augment = {.reserved_ = {1}}));
    refused("does not have");

    /* Called without the lines of the headers. */
    assert_null(kiln_data_generator_(NULL, sizeof(kiln_data_info), read_ones, NULL));
    refused("NULL");
    assert_false(kiln_schedule_set_(filled_schedule, NULL, sizeof(kiln_schedule_state)));
    refused("NULL");
    assert_null(kiln_data_generator_(&about, 0, read_ones, NULL));
    refused("0 bytes");
    fill_data(NULL, sizeof(kiln_data_info));
    fill_cache(NULL, sizeof(kiln_plan_cache));
    fill_schedule(NULL, sizeof(kiln_schedule_state));
    fill_defaults(NULL, sizeof(kiln_optim_options));
    fill_result(NULL, sizeof(kiln_result));

    kiln_schedule_free(filled_schedule);
    kiln_optim_free(optim);
    kiln_loader_free(filled_loader);
    kiln_data_free(filled_data);
    kiln_module_free(filled_model);
}

int main(void)
{
    snprintf(root, sizeof root, "%s", test_file(".."));
    snprintf(include, sizeof include, "%s", test_file("../include"));
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_readme),           cmocka_unit_test(test_as_cxx),
        cmocka_unit_test(test_headers_alone),    cmocka_unit_test(test_examples),
        cmocka_unit_test(test_sizes_of_options), cmocka_unit_test(test_sizes_of_filled),
    };
    return cmocka_run_group_tests(tests, command_before, command_after);
}
