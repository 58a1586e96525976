/* Model files: every layer of the table can be written, sizes follow from the layer before, errors name the line and
 * suggest what was meant, and no text makes the reader take more than it should. */
#include <locale.h>

#include "support/files.h"
#include "core/alloc.h"
#include "io/layers.h"
#include "support/where.h"

static kiln_module *parse(const char *text)
{
    return kiln_model_parse(text, strlen(text), "my-model.yaml", NULL);
}

static void refuse(const char *text, const char *message, int line)
{
    kiln_module *m = parse(text);
    if (m)
        fail_msg("line %d: accepted: %s", line, text);
    core_expect(KILN_E_FORMAT, "model_file", message, __FILE__, line);
}
#define refuse(text, message) refuse(text, message, __LINE__)

static void assert_output(kiln_module *m, kiln_dtype dtype, int ndim, const int64_t *shape, int n, const int64_t *want)
{
    int out_ndim = 0;
    int64_t out[KILN_MAX_DIMS];
    assert_non_null(m);
    assert_true(kiln_module_shape(m, ndim, shape, dtype, &out_ndim, out));
    assert_int_equal(out_ndim, n);
    for (int d = 0; d < n; d++)
        assert_int_equal(out[d], want[d]);
}

static void test_lenet(void **state)
{
    (void)state;
    kiln_model_file about;
    const char *path = files_path("lenet.yaml");
    static const char text[] = "name: lenet\n"
                               "input: [1, 28, 28]\n"
                               "layers:\n"
                               "  - conv2d: {out: 6, kernel: 5, padding: 2}\n"
                               "  - relu\n"
                               "  - max_pool2d: 2\n"
                               "  - conv2d: {out: 16, kernel: 5}\n"
                               "  - relu\n"
                               "  - max_pool2d: 2\n"
                               "  - flatten\n"
                               "  - linear: 120\n"
                               "  - relu\n"
                               "  - linear: {out: 10, bias: no}  # a comment\n";
    files_put(path, text, sizeof text - 1);
    kiln_module *m = kiln_model_read(path, &about);
    assert_output(m, KILN_F32, KILN_SHAPE(7, 1, 28, 28), KILN_SHAPE(7, 10));
    assert_string_equal(about.name, "lenet");
    assert_int_equal(about.ndim, 3);
    assert_int_equal(about.shape[0], 1);
    assert_int_equal(about.shape[2], 28);
    assert_int_equal(about.dtype, KILN_F32);
    assert_int_equal(kiln_parameter_count(m), 6 * 25 + 6 + 16 * 6 * 25 + 16 + 400 * 120 + 120 + 1200);
    assert_non_null(kiln_module_tensor(m, "7.weight"));
    assert_null(kiln_module_tensor(m, "9.bias"));
    kiln_scope
        assert_int_equal(kiln_size(kiln_forward(m, kiln_zeros(KILN_SHAPE(2, 1, 28, 28), KILN_F32)), 1), 10);
    kiln_module_free(m);
}

static void test_tokens(void **state)
{
    (void)state;
    kiln_model_file about;
    static const char text[] = "input: tokens\nvocabulary: 65\ncontext: 32\nlayers:\n"
                               "- embedding: 24\n"
                               "- repeat:\n"
                               "    times: 2\n"
                               "    layers:\n"
                               "    - residual: [layer_norm, {attention: {heads: 3, causal: true}}]\n"
                               "    - residual: [layer_norm, {linear: 48}, gelu, {linear: 24}]\n"
                               "- lstm: {hidden: 20, layers: 2}\n"
                               "- linear: 65\n";
    kiln_module *m = kiln_model_parse(text, sizeof text - 1, "text.yaml", &about);
    assert_output(m, KILN_I64, KILN_SHAPE(3, 32), KILN_SHAPE(3, 32, 65));
    assert_int_equal(about.ndim, 1);
    assert_int_equal(about.shape[0], 32);
    assert_int_equal(about.dtype, KILN_I64);
    assert_string_equal(about.name, "");
    assert_non_null(kiln_module_tensor(m, "1.3.body.1.weight"));
    assert_int_equal(kiln_size(kiln_module_tensor(m, "0.weight"), 0), 65);
    kiln_module_free(m);
}

/* Every layer has the option; a repetition hands it to its layers. */
static void test_recompute(void **state)
{
    (void)state;
    kiln_module *m = parse("input: [8]\nlayers:\n- linear: {out: 8, recompute: true}\n- relu: {recompute: no}\n"
                           "- residual: {body: [relu, {linear: 8}], recompute: yes}\n- linear: 8\n"
                           "- repeat: {times: 2, layers: [{residual: [relu, {linear: 8}]}], recompute: true}\n");
    assert_non_null(m);
    static const struct {
        const char *path;
        bool again;
    } parts[] = {{"0", true},  {"1", false}, {"2", true},   {"2.body", false},
                 {"3", false}, {"4", false}, {"4.0", true}, {"4.1", true}};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        assert_int_equal(kiln_module_recomputes(kiln_module_child(m, parts[i].path)), parts[i].again);
    kiln_module_free(m);
    refuse("input: [8]\nlayers:\n- linear: {out: 8, recompute: 3}\n",
           "my-model.yaml:3: 'recompute' of linear must be true or false");
    refuse("input: [8]\nlayers:\n- linear: {recompute: true}\n", "linear needs 'out'");
}

static void test_shapes_of_layers(void **state)
{
    (void)state;
    kiln_module *m = parse("input: [8, 10, 12]\nlayers:\n"
                           "- conv2d: {out: 4, kernel: [3, 5], padding: [1, 0], stride: [1, 2], groups: 2}\n");
    assert_output(m, KILN_F32, KILN_SHAPE(1, 8, 10, 12), KILN_SHAPE(1, 4, 10, 4));
    kiln_module_free(m);
    m = parse("input: [8, 10, 12]\nlayers: [{residual: {body: [{conv2d: {out: 16, kernel: 3, padding: 1}}], "
              "shortcut: [{conv2d: {out: 16, kernel: 1}}]}}, {adaptive_avg_pool2d: [2, 3]}]\n");
    assert_output(m, KILN_F32, KILN_SHAPE(1, 8, 10, 12), KILN_SHAPE(1, 16, 2, 3));
    kiln_module_free(m);
    m = parse("input: 12\nlayers: [{unflatten: [3, 2, 2]}, {upsample: {scale: 2, mode: linear}}, "
              "{conv_transpose2d: {out: 5, kernel: 2, stride: 2}}]\n");
    assert_output(m, KILN_F32, KILN_SHAPE(2, 12), KILN_SHAPE(2, 5, 8, 8));
    kiln_module_free(m);
}

/* Each layer of the table with its required options alone, and with all of them. */
static void write_options(char *text, size_t size, const kiln_layer *layer, bool all)
{
    static const char *const values[] = {"2", "[2, 3]", "[2, 9]", "0.25", "true", "", "[relu]"};
    size_t used = (size_t)snprintf(text, size, "- %s: {", layer->name);
    bool first = true;
    for (int i = 0; i < KILN_LAYER_OPTIONS && layer->options[i].name; i++) {
        const kiln_layer_option *o = &layer->options[i];
        if (!all && !o->required)
            continue;
        char word[16] = "";
        const char *value = values[o->kind];
        if (o->words) {
            snprintf(word, sizeof word, "%.*s", (int)strcspn(o->words, " "), o->words);
            value = word;
        } else if (!strcmp(o->name, "output_padding") || !strcmp(o->name, "padding") || !strcmp(o->name, "dim")) {
            value = "1";
        } else if (!strcmp(o->name, "dilation") || !strcmp(o->name, "padding_idx")) {
            value = "1";
        } else if (!strcmp(o->name, "count")) {
            value = "300";
        } else if (!strcmp(o->name, "max")) {
            value = "0.5";
        }
        used += (size_t)snprintf(text + used, size - used, "%s%s: %s", first ? "" : ", ", o->name, value);
        first = false;
    }
    snprintf(text + used, size - used, "}\n");
}

static void test_every_layer(void **state)
{
    (void)state;
    for (int i = 0; i < kiln_layer_count; i++)
        for (int all = 0; all < 2; all++) {
            const kiln_layer *layer = &kiln_layers[i];
            char text[512], options[400];
            bool tokens = !strcmp(layer->name, "embedding"), flat = !strcmp(layer->name, "unflatten");
            const char *input = tokens ? "tokens" : flat ? "18" : layer->dims == 2 ? "[4, 8]" : "[4, 8, 8]";
            write_options(options, sizeof options, layer, all);
            snprintf(text, sizeof text, "input: %s\nlayers:\n%s", input, options);
            kiln_module *m = parse(text);
            if (!m)
                fail_msg("%s%s", text, kiln_last_error()->message);
            kiln_module_free(m);
        }
}

/* The line of the page's tables that has `name` in its first cell, in `line`. */
static bool find_row(const char *page, const char *name, char line[2048])
{
    char word[64];
    snprintf(word, sizeof word, "`%s`", name);
    for (; page; page = strchr(page, '\n')) {
        page += *page == '\n';
        snprintf(line, 2048, "%.*s", (int)strcspn(page, "\n"), page);
        char *cell = strncmp(line, "| `", 3) ? NULL : strstr(line, word);
        if (cell && cell < strchr(line + 1, '|'))
            return true;
    }
    return false;
}

/* The page that describes the layers lists each layer with each of its options. */
static void test_page(void **state)
{
    (void)state;
    size_t bytes;
    char line[2048], word[64], *page = files_get(test_file("../docs/model-files.md"), &bytes);
    page[bytes] = '\0';
    for (int i = 0; i < kiln_layer_count; i++) {
        if (!find_row(page, kiln_layers[i].name, line))
            fail_msg("docs/model-files.md does not list %s", kiln_layers[i].name);
        for (int k = 0; k < KILN_LAYER_OPTIONS && kiln_layers[i].options[k].name; k++) {
            snprintf(word, sizeof word, "`%s`", kiln_layers[i].options[k].name);
            if (!strstr(line, word))
                fail_msg("docs/model-files.md does not say that %s has %s", kiln_layers[i].name, word);
        }
    }
    free(page);
}

#define HEAD "input: [1, 28, 28]\nlayers:\n" /* layers begin in line 3 */

static void test_mistakes(void **state)
{
    (void)state;
    refuse(HEAD "- linear: {ouputs: 3}\n", "my-model.yaml:3: unknown option 'ouputs' of linear; did you mean 'out'?");
    refuse(HEAD "- relu\n- liner: 3\n", "my-model.yaml:4: unknown layer 'liner'; did you mean 'linear'?");
    refuse(HEAD "- MaxPool2d: 2\n", "my-model.yaml:3: unknown layer 'MaxPool2d'; did you mean 'max_pool2d'?");
    refuse(HEAD "- dense: 2\n", "did you mean 'linear'?");
    refuse(HEAD "- xyzzyplugh\n", "my-model.yaml:3: unknown layer 'xyzzyplugh'");
    refuse(HEAD "- linear\n", "my-model.yaml:3: linear needs 'out'");
    refuse(HEAD "- conv2d: {out: 3}\n", "my-model.yaml:3: conv2d needs 'kernel'");
    refuse(HEAD "- linear: ten\n", "my-model.yaml:3: 'out' of linear must be a whole number from 1");
    refuse(HEAD "- linear: 0\n", "not '0'");
    refuse(HEAD "- linear: -5\n", "not '-5'");
    refuse(HEAD "- linear: 1.5\n", "not '1.5'");
    refuse(HEAD "- linear: ' 5'\n", "not ' 5'");
    refuse(HEAD "- linear: 99999999999999999999\n", "must be a whole number");
    refuse(HEAD "- linear: [1, 2]\n", "not a list");
    refuse(HEAD "- linear:\n    out: 3\n    bias: maybe\n",
           "my-model.yaml:5: 'bias' of linear must be true or false, not 'maybe'");
    refuse(HEAD "- dropout: 1.5\n", "'p' of dropout must be a number from 0 to 1, not '1.5'");
    refuse(HEAD "- dropout: nan\n", "must be a number");
    refuse(HEAD "- upsample: {scale: 2, mode: best}\n", "one of these words: nearest linear bicubic, not 'best'");
    refuse(HEAD "- conv2d: {out: 3, kernel: [1, 2, 3]}\n", "[height, width]");
    refuse(HEAD "- relu: 3\n", "my-model.yaml:3: relu has no options");
    refuse(HEAD "- relu: {size: 3}\n", "unknown option 'size' of relu");
    refuse(HEAD "- linear: 10\n  bias: false\n", "my-model.yaml:3: a layer is a name");
    refuse(HEAD "- [relu]\n", "my-model.yaml:3: a layer is a name");
    refuse(HEAD "- sequential: []\n", "'layers' of sequential must be a list of layers");
    refuse(HEAD "- residual: {shortcut: [relu]}\n", "residual needs 'body'");
    refuse(HEAD "- residual: [flatten]\n", "my-model.yaml:3: the body and the shortcut of residual end in different");
    refuse(HEAD "- flatten\n- conv2d: {out: 3, kernel: 3}\n",
           "my-model.yaml:4: conv2d takes [channels, height, width], but [784] comes from the layer before");
    refuse(HEAD "- conv2d: {out: 3, kernel: 99}\n", "my-model.yaml:3: conv2d: ");
    refuse(HEAD "- group_norm: 7\n", "my-model.yaml:3: group_norm: ");
    refuse(HEAD "- embedding: 8\n", "my-model.yaml:3: embedding takes tokens");
    refuse("input: tokens\nlayers:\n- linear: 8\n", "my-model.yaml:3: linear: ");
    refuse("input: tokens\nlayers:\n- embedding: {width: 8, count: 100}\n", "vocabulary of 256");
}

static void test_mistakes_in_the_frame(void **state)
{
    (void)state;
    refuse("", "my-model.yaml: the file is empty");
    refuse("# nothing\n", "my-model.yaml: the file is empty");
    refuse("hello\n", "my-model.yaml:1: a model file has");
    refuse("layers: [relu]\n", "'input' is missing");
    refuse("input: 3\n", "'layers' must be a list");
    refuse("input: 3\nlayers: relu\n", "my-model.yaml:2: 'layers' must be a list");
    refuse("input: 3\nlayers: []\n", "my-model.yaml:2: 'layers' must be a list");
    refuse("input: []\nlayers: [relu]\n", "my-model.yaml:1: 'input' must be the shape");
    refuse("input: [1,1,1,1,1,1,1,1]\nlayers: [relu]\n", "my-model.yaml:1: 'input' must be the shape");
    refuse("input: [3, -1]\nlayers: [relu]\n", "my-model.yaml:1: 'input' must be the shape");
    refuse("input: [1000000000, 1000000000]\nlayers: [relu]\n", "cannot be meant");
    refuse("input: 3\nlayer: [relu]\n", "my-model.yaml:2: unknown entry 'layer'; did you mean 'layers'?");
    refuse("input: 3\nvocabulary: 5\nlayers: [relu]\n", "my-model.yaml:2: 'vocabulary' belongs to");
    refuse("input: tokens\ncontext: 0\nlayers: [relu]\n", "my-model.yaml:2: 'context' must be");
    refuse("input: 3\nname: [a]\nlayers: [relu]\n", "my-model.yaml:2: 'name' must be");
    refuse("input: 3\ninput: 4\nlayers: [relu]\n", "my-model.yaml:2: 'input' is there twice; the first is in line 1");
    refuse("input: 3\nlayers: [relu]\n---\ninput: 3\n", "only one document");
    refuse("input: [3\nlayers: [relu]\n", "my-model.yaml:2: ");
    refuse("input: 3\nlayers:\n\t- relu\n", "my-model.yaml:3: ");
    refuse("input: 3\nlayers: &a [relu, *a]\n", "my-model.yaml:2: aliases");
    refuse("input: \"\\0\"\nlayers: [relu]\n", "zero byte");
    refuse("input: \xff\n", "my-model.yaml: byte 7: ");
    refuse("? [a]\n: 3\n", "a key must be a word");
    assert_null(kiln_model_parse(NULL, 0, "x", NULL));
    expect_error(KILN_E_ARGUMENT, "model_file", "NULL");
    assert_null(kiln_model_read(files_path("nothing.yaml"), NULL));
    expect_error(KILN_E_MISSING, "model_file", "nothing.yaml");
}

/* What would take too much is refused before it is taken, whatever the machine has. */
static void test_too_much(void **state)
{
    (void)state;
    refuse("input: 1000000\nlayers:\n- linear: 1000000000\n- linear: 1000000000\n",
           "my-model.yaml:3: linear: with it the model's");
    refuse(HEAD "- linear: 1000000000000\n", "from 1 to 1000000000");
    refuse(HEAD "- linear: 1e12\n", "not '1e12'");
    refuse(HEAD "- conv2d: {out: 1000000000, kernel: 1000000}\n", "GB of memory are there");
    refuse("input: [4, 4]\nlayers:\n- lstm: 900000000\n", "GB of memory are there");
    refuse("input: tokens\nvocabulary: 1000000000\nlayers:\n- embedding: 1000000000\n", "GB of memory are there");
    refuse(HEAD "- upsample: 10000\n- upsample: 10\n", "my-model.yaml:4: upsample gives");
    refuse(HEAD "- repeat: {times: 10000, layers: [relu, relu]}\n", "more than 10000 layers");
    refuse(HEAD "- repeat: {times: 200, layers: [{repeat: {times: 200, layers: [relu]}}]}\n", "more than 10000 layers");
    char deep[256] = HEAD "- ";
    memset(deep + strlen(deep), '[', 60);
    refuse(deep, "nested too deeply");
    size_t bytes = (1 << 20) + 1;
    char *big = malloc(bytes);
    memset(big, '#', bytes);
    assert_null(kiln_model_parse(big, bytes, "big.yaml", NULL));
    expect_error(KILN_E_FORMAT, "model_file", "big.yaml has 1048577 bytes");
    free(big);
}

/* An error that was there before stays the error. */
static void test_earlier_error_stays(void **state)
{
    (void)state;
    assert_null(kiln_model_read(files_path("nothing.yaml"), NULL));
    assert_null(parse(HEAD "- liner: 3\n"));
    assert_null(parse(HEAD "- conv2d: {out: 3, kernel: 99}\n"));
    expect_error(KILN_E_MISSING, "model_file", "nothing.yaml");
}

static void test_memory_runs_out(void **state)
{
    (void)state;
    static const char text[] = HEAD "- conv2d: {out: 2, kernel: 3}\n- residual: [relu, batch_norm]\n- flatten\n"
                                    "- linear: 3\n";
    for (int64_t n = 0, done = 0; !done; n++) {
        kiln_alloc_fail_after(n);
        kiln_module *m = parse(text);
        kiln_alloc_fail_after(-1);
        if (!m)
            expect_error(KILN_E_MEMORY, NULL, NULL);
        done = m != NULL;
        kiln_module_free(m);
        assert_true(n < 5000);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        files_test(test_lenet),           files_test(test_tokens),
        files_test(test_recompute),       files_test(test_shapes_of_layers),
        files_test(test_every_layer),     files_test(test_page),
        files_test(test_mistakes),        files_test(test_mistakes_in_the_frame),
        files_test(test_too_much),        files_test(test_earlier_error_stays),
        files_test(test_memory_runs_out),
    };
    return CORE_MAIN(tests);
}
