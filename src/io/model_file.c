/* Model files: a YAML text becomes a module. The table of layers.c says what there is; here names and options are
 * checked against it, values read, and the shape carried from layer to layer. Every error names the line. */
#include <ctype.h>
#include <errno.h>
#include <locale.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/fail.h"
#include "core/nearest.h"
#include "core/sized.h"
#include "io/file.h"
#include "io/layers.h"
#include "ops/op.h"

enum { FILE_MAX = 1 << 20, LAYERS_MAX = 10000 };
#define SAMPLE_MAX 1e12 /* elements that a layer may give for one input */

static const char who[] = "model_file";

void *kiln_model_bad(const kiln_model_builder *b, int line, const char *format, ...)
{
    char what[500];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    return kiln_fail(KILN_E_FORMAT, who, "%s:%d: %s", b->name, line, what);
}

/* The error that a layer's own call has just raised, told again with the file and the line. */
static void *blame(const kiln_model_builder *b, int line, const char *layer, bool was_ok)
{
    kiln_error e = *kiln_last_error();
    if (!was_ok || !strcmp(e.operation, who))
        return NULL;
    kiln_error_clear();
    kiln_fail(e.code == KILN_E_MEMORY ? KILN_E_MEMORY : KILN_E_FORMAT, who, "%s:%d: %s: %s", b->name, line, layer,
              e.message);
    return e.hint[0] ? kiln_hint("%s", e.hint) : NULL;
}

/* ---- Suggestions ---- */

static void *unknown_layer(const kiln_model_builder *b, int line, const char *name)
{
    kiln_nearest best = {0};
    for (int i = 0; i < kiln_layer_count; i++)
        kiln_nearest_offer(&best, name, kiln_layers[i].name);
    if (!strcmp(name, "dense") || !strcmp(name, "fc") || !strcmp(name, "Dense"))
        best.word = "linear";
    if (best.word)
        return kiln_model_bad(b, line, "unknown layer '%.60s'; did you mean '%s'?", name, best.word);
    return kiln_model_bad(b, line, "unknown layer '%.60s'", name);
}

static void *unknown_option(const kiln_model_builder *b, const kiln_layer *layer, int line, const char *name)
{
    kiln_nearest best = {0};
    char all[200] = "";
    int n = 0;
    for (; n < KILN_LAYER_OPTIONS && layer->options[n].name; n++) {
        kiln_nearest_offer(&best, name, layer->options[n].name);
        snprintf(all + strlen(all), sizeof all - strlen(all), "%s%s", n ? ", " : "", layer->options[n].name);
    }
    if (best.word)
        kiln_model_bad(b, line, "unknown option '%.60s' of %s; did you mean '%s'?", name, layer->name, best.word);
    else
        kiln_model_bad(b, line, "unknown option '%.60s' of %s", name, layer->name);
    return n ? kiln_hint("%s has: %s", layer->name, all) : kiln_hint("%s has no options", layer->name);
}

/* ---- Values ---- */

static bool read_whole(const char *text, int64_t *out)
{
    char *end;
    errno = 0;
    *out = strtoll(text, &end, 10);
    return !errno && end != text && !*end && !isspace((unsigned char)*text);
}

static bool read_number(const char *text, double *out)
{
    char *end;
    *out = strtod(text, &end);
    return end != text && !*end && !isspace((unsigned char)*text) && isfinite(*out);
}

/* "true" or "false", as YAML lets them be written: 1, 0, or -1 for anything else. */
static int read_flag(const char *text)
{
    static const char *const yes[] = {"true", "True", "TRUE", "yes", "on"}, *const no[] = {"false", "False", "FALSE",
                                                                                           "no", "off"};
    for (int i = 0; i < 5; i++)
        if (!strcmp(text, yes[i]) || !strcmp(text, no[i]))
            return !strcmp(text, yes[i]);
    return -1;
}

/* The place of a word among others, -1 for none. */
static int word_place(const char *words, const char *word)
{
    size_t length = strlen(word);
    for (int place = 0; *words; place++) {
        size_t n = strcspn(words, " ");
        if (n == length && !memcmp(words, word, n))
            return place;
        words += n + (words[n] == ' ');
    }
    return -1;
}

static void *bad_value(const kiln_model_builder *b, const kiln_layer *layer, const kiln_layer_option *o,
                       const kiln_yaml *node)
{
    static const char *const wanted[] = {"a whole number",  "a whole number or two, [height, width]",
                                         "a list of sizes", "a number",
                                         "true or false",   "one of these words",
                                         "a list of layers"};
    const char *got = node->kind == KILN_YAML_SCALAR ? node->text
                      : node->kind == KILN_YAML_LIST ? "a list"
                                                     : "a mapping";
    char range[80] = "";
    if (o->kind <= KILN_OPTION_NUMBER)
        snprintf(range, sizeof range, " from %.10g to %.10g", o->least, o->most);
    return kiln_model_bad(b, node->line, "'%s' of %s must be %s%s%s%s, not %s%.60s%s", o->name, layer->name,
                          wanted[o->kind], range, o->words ? ": " : "", o->words ? o->words : "",
                          node->kind == KILN_YAML_SCALAR ? "'" : "", got, node->kind == KILN_YAML_SCALAR ? "'" : "");
}

/* Whole numbers within the option's range: one, or as many as a list may hold. */
static bool read_wholes(const kiln_layer_option *o, const kiln_yaml *node, int least, int most, kiln_layer_value *v)
{
    const kiln_yaml *item = node;
    v->n = 1;
    if (node->kind == KILN_YAML_LIST) {
        if (node->count < least || node->count > most)
            return false;
        v->n = node->count;
        item = node->first;
    }
    for (int i = 0; i < v->n; i++, item = item->next)
        if (item->kind != KILN_YAML_SCALAR || !read_whole(item->text, &v->whole[i]) || (double)v->whole[i] < o->least ||
            (double)v->whole[i] > o->most)
            return false;
    return true;
}

static bool read_value(const kiln_model_builder *b, const kiln_layer *layer, const kiln_layer_option *o,
                       const kiln_yaml *node, kiln_layer_value *v)
{
    bool scalar = node->kind == KILN_YAML_SCALAR, good = false;
    v->node = node;
    switch (o->kind) {
    case KILN_OPTION_WHOLE: good = scalar && read_wholes(o, node, 1, 1, v); break;
    case KILN_OPTION_PAIR: good = node->kind != KILN_YAML_MAP && read_wholes(o, node, 2, 2, v); break;
    case KILN_OPTION_SIZES: good = node->kind == KILN_YAML_LIST && read_wholes(o, node, 1, KILN_MAX_DIMS - 1, v); break;
    case KILN_OPTION_NUMBER:
        good = scalar && read_number(node->text, &v->number) && v->number >= o->least && v->number <= o->most;
        break;
    case KILN_OPTION_FLAG:
        v->whole[0] = scalar ? read_flag(node->text) : -1;
        good = v->whole[0] >= 0;
        break;
    case KILN_OPTION_WORD:
        v->whole[0] = scalar ? word_place(o->words, node->text) : -1;
        good = v->whole[0] >= 0;
        break;
    case KILN_OPTION_LAYERS: good = node->kind == KILN_YAML_LIST && node->count > 0; break;
    }
    return good || bad_value(b, layer, o, node);
}

/* ---- Layers ---- */

/* The option that every layer has. */
static bool read_recompute(const kiln_model_builder *b, const kiln_yaml *node, kiln_layer_args *a)
{
    int wanted = node->kind == KILN_YAML_SCALAR ? read_flag(node->text) : -1;
    a->recompute = wanted > 0;
    return wanted >= 0 ||
           kiln_model_bad(b, node->line, "'recompute' of %s must be true or false", a->layer->name) != NULL;
}

/* A layer that is computed again for the backward pass; of a repetition each layer is, by itself. */
static void set_recompute(const kiln_layer_args *a, kiln_module *m)
{
    if (strcmp(a->layer->name, "repeat") != 0)
        kiln_module_set_recompute(m, a->recompute);
    else
        for (int i = 0; i < kiln_module_children(m); i++)
            kiln_module_set_recompute(kiln_module_child_at(m, i, NULL), a->recompute);
}

/* Fills a's values from what stands after the layer's name. */
static bool read_options(const kiln_model_builder *b, const kiln_yaml *node, kiln_layer_args *a)
{
    const kiln_layer *layer = a->layer;
    if (node && node->kind == KILN_YAML_MAP) {
        for (const kiln_yaml *value = node->first; value; value = value->next) {
            int i = 0;
            if (!strcmp(value->key, "recompute")) {
                if (!read_recompute(b, value, a))
                    return false;
                continue;
            }
            while (i < KILN_LAYER_OPTIONS && layer->options[i].name && strcmp(layer->options[i].name, value->key) != 0)
                i++;
            if (i == KILN_LAYER_OPTIONS || !layer->options[i].name)
                return unknown_option(b, layer, value->line, value->key);
            if (!read_value(b, layer, &layer->options[i], value, &a->values[i]))
                return false;
        }
    } else if (node && (node->kind == KILN_YAML_LIST || *node->text)) {
        if (!layer->options[0].name)
            return kiln_model_bad(b, a->line, "%s has no options", layer->name);
        if (!read_value(b, layer, &layer->options[0], node, &a->values[0]))
            return false;
    }
    for (int i = 0; i < KILN_LAYER_OPTIONS && layer->options[i].name; i++)
        if (layer->options[i].required && !a->values[i].node)
            return kiln_model_bad(b, a->line, "%s needs '%s'", layer->name, layer->options[i].name);
    return true;
}

bool kiln_model_room(kiln_model_builder *b, const kiln_layer_args *a, double elements)
{
    b->bytes += elements * (double)kiln_dtype_size(KILN_F32);
    if (b->bytes <= b->limit)
        return true;
    kiln_model_bad(b, a->line, "%s: with it the model's parameters take %.3g GB; %.3g GB of memory are there",
                   a->layer->name, b->bytes / 1e9, b->limit / 1e9);
    return false;
}

/* Lets the shape go through a layer. Those made of layers have done so while they were built. */
static bool advance(kiln_model_builder *b, const kiln_layer_args *a, kiln_module *m)
{
    bool was_ok = kiln_ok();
    int ndim = 0;
    int64_t shape[KILN_MAX_DIMS] = {0};
    if (a->layer->options[0].name && a->layer->options[0].kind == KILN_OPTION_LAYERS)
        return true;
    if (!kiln_module_shape(m, b->ndim, b->shape, b->dtype, &ndim, shape))
        return blame(b, a->line, a->layer->name, was_ok);
    double elements = 1;
    for (int d = 0; d < ndim; d++)
        elements *= (double)shape[d];
    if (elements < 1 || elements > SAMPLE_MAX || ndim < 2)
        return kiln_model_bad(b, a->line, "%s gives %s, a batch of two included: that cannot be meant", a->layer->name,
                              kiln_shape_text(ndim, shape));
    b->ndim = ndim;
    memcpy(b->shape, shape, sizeof shape);
    if (!strcmp(a->layer->name, "embedding"))
        b->dtype = KILN_F32;
    return true;
}

static kiln_module *build_layer(kiln_model_builder *b, const kiln_yaml *item)
{
    const kiln_yaml *options = item->kind == KILN_YAML_MAP ? item->first : NULL;
    const char *name = options ? options->key : item->text;
    kiln_layer_args a = {.line = options ? options->line : item->line};
    if (item->kind == KILN_YAML_LIST || (item->kind == KILN_YAML_MAP && item->count != 1)) {
        kiln_model_bad(b, a.line, "a layer is a name, or a name with its options");
        return kiln_hint("write '- relu' or '- linear: {out: 10, bias: false}'");
    }
    for (int i = 0; i < kiln_layer_count && !a.layer; i++)
        if (!strcmp(kiln_layers[i].name, name))
            a.layer = &kiln_layers[i];
    if (!a.layer)
        return unknown_layer(b, a.line, name);
    if (++b->layers > LAYERS_MAX)
        return kiln_model_bad(b, a.line, "more than %d layers", LAYERS_MAX);
    if (!read_options(b, options, &a))
        return NULL;
    if (a.layer->dims && b->ndim != a.layer->dims + 1)
        return kiln_model_bad(b, a.line, "%s takes %s, but %s comes from the layer before", a.layer->name,
                              a.layer->takes, kiln_shape_text(b->ndim - 1, b->shape + 1));
    bool was_ok = kiln_ok();
    kiln_module *m = a.layer->build(b, &a);
    if (!m)
        return blame(b, a.line, a.layer->name, was_ok);
    if (a.recompute)
        set_recompute(&a, m);
    if (!advance(b, &a, m)) {
        kiln_module_free(m);
        m = NULL;
    }
    return m;
}

kiln_module *kiln_model_sequence(kiln_model_builder *b, const kiln_yaml *list, int64_t times)
{
    int64_t count = times * list->count; /* at most 10,000 times what a file of 1 MB can hold */
    if (count > LAYERS_MAX)
        return kiln_model_bad(b, list->line, "more than %d layers", LAYERS_MAX);
    kiln_module **children = KILN_ARENA_NEW(&b->arena, kiln_module *, count);
    int n = 0;
    bool ok = children;
    for (int64_t round = 0; ok && round < times; round++)
        for (const kiln_yaml *item = list->first; ok && item; item = item->next)
            if ((ok = (children[n] = build_layer(b, item))))
                n++;
    if (ok)
        return kiln_nn_sequence(n, children);
    while (n > 0)
        kiln_module_free(children[--n]);
    return NULL;
}

/* ---- The file ---- */

static bool read_size(const kiln_model_builder *b, const kiln_yaml *root, const char *key, int64_t otherwise,
                      int64_t *out)
{
    const kiln_yaml *node = kiln_yaml_get(root, key);
    *out = otherwise;
    if (!node)
        return true;
    if (b->dtype != KILN_I64)
        return kiln_model_bad(b, node->line, "'%s' belongs to 'input: tokens'", key);
    if (node->kind == KILN_YAML_SCALAR && read_whole(node->text, out) && *out >= 1 && *out <= 1000000000)
        return true;
    return kiln_model_bad(b, node->line, "'%s' must be a whole number from 1 to 1000000000", key);
}

static bool read_input(kiln_model_builder *b, const kiln_yaml *root)
{
    const kiln_yaml *input = kiln_yaml_get(root, "input");
    if (!input) {
        kiln_model_bad(b, root->line, "'input' is missing: the shape of one input");
        return kiln_hint("write 'input: [1, 28, 28]' for images, 'input: tokens' for text");
    }
    b->shape[0] = 2;
    bool tokens = input->kind == KILN_YAML_SCALAR && !strcmp(input->text, "tokens");
    b->dtype = tokens ? KILN_I64 : KILN_F32;
    if (!read_size(b, root, "vocabulary", tokens ? 256 : 0, &b->vocabulary) ||
        !read_size(b, root, "context", 128, &b->shape[1]))
        return false;
    b->ndim = 2;
    if (tokens)
        return true;
    kiln_layer_value v = {0};
    if (input->kind == KILN_YAML_MAP ||
        !read_wholes(&(kiln_layer_option){.least = 1, .most = 1e9}, input, 1, KILN_MAX_DIMS - 1, &v))
        return kiln_model_bad(b, input->line, "'input' must be the shape of one input, as in [1, 28, 28], or 'tokens'");
    double elements = 1;
    for (int d = 0; d < v.n; d++)
        elements *= (double)(b->shape[d + 1] = v.whole[d]);
    b->ndim = v.n + 1;
    return elements <= SAMPLE_MAX ||
           kiln_model_bad(b, input->line, "an input of %.3g elements cannot be meant", elements);
}

/* Top-level keys that nobody reads are mistakes. */
static bool check_keys(const kiln_model_builder *b, const kiln_yaml *root)
{
    static const char *const known[] = {"name", "input", "vocabulary", "context", "layers"};
    if (root->kind != KILN_YAML_MAP) {
        kiln_model_bad(b, root->line, "a model file has 'input' and 'layers'");
        return kiln_hint("docs/model-files.md has examples");
    }
    for (const kiln_yaml *value = root->first; value; value = value->next) {
        kiln_nearest best = {0};
        bool found = false;
        for (int i = 0; i < 5; i++) {
            found |= !strcmp(value->key, known[i]);
            kiln_nearest_offer(&best, value->key, known[i]);
        }
        if (!found && best.word)
            return kiln_model_bad(b, value->line, "unknown entry '%.60s'; did you mean '%s'?", value->key, best.word);
        if (!found)
            return kiln_model_bad(b, value->line,
                                  "unknown entry '%.60s'; there are name, input, vocabulary, context and "
                                  "layers",
                                  value->key);
    }
    return true;
}

static bool read_name(const kiln_model_builder *b, const kiln_yaml *root, kiln_model_file *about)
{
    const kiln_yaml *node = kiln_yaml_get(root, "name");
    if (!node)
        return true;
    if (node->kind != KILN_YAML_SCALAR || !*node->text || strlen(node->text) >= sizeof about->name)
        return kiln_model_bad(b, node->line, "'name' must be a text of 1 to %zu bytes", sizeof about->name - 1);
    strcpy(about->name, node->text);
    return true;
}

/* What parameters may take: the memory of the device they will be made on. */
static double memory_there(void)
{
    kiln_memory_stats stats = {0};
    kiln_device_info info = {0};
    kiln_device device = kiln_default_device();
    if (kiln_memory_get_stats(device, &stats) && stats.limit)
        return (double)stats.limit;
    return kiln_device_describe(device, &info) && info.memory_total ? (double)info.memory_total : 1e12;
}

static kiln_module *build_model(kiln_model_builder *b, const kiln_yaml *root, kiln_model_file *about)
{
    if (!check_keys(b, root) || !read_name(b, root, about) || !read_input(b, root))
        return NULL;
    about->ndim = b->ndim - 1;
    about->dtype = b->dtype;
    memcpy(about->shape, b->shape + 1, (size_t)about->ndim * sizeof *about->shape);
    const kiln_yaml *layers = kiln_yaml_get(root, "layers");
    if (!layers || layers->kind != KILN_YAML_LIST || !layers->count)
        return kiln_model_bad(b, layers ? layers->line : root->line, "'layers' must be a list of layers");
    return kiln_model_sequence(b, layers, 1);
}

static kiln_module *parse(const char *text, size_t bytes, const char *name, kiln_model_file *about)
{
    if (!text)
        return kiln_fail(KILN_E_ARGUMENT, who, "the text is NULL");
    kiln_model_builder b = {.name = name && *name ? name : "model", .limit = memory_there()};
    if (bytes > FILE_MAX)
        return kiln_fail(KILN_E_FORMAT, who, "%s has %zu bytes; a model file has at most %d", b.name, bytes, FILE_MAX);
    /* Numbers are written with a point, whatever the program's locale says. */
    locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0), before = plain ? uselocale(plain) : (locale_t)0;
    if (!plain)
        return kiln_fail(KILN_E_MEMORY, who, "memory does not suffice to read numbers");
    kiln_yaml *root = kiln_yaml_parse(&b.arena, text, bytes, b.name, who);
    kiln_module *m = root ? build_model(&b, root, about) : NULL;
    kiln_arena_free(&b.arena);
    uselocale(before);
    freelocale(plain);
    return m;
}

kiln_module *kiln_model_parse_(const char *text, size_t bytes, const char *name, kiln_model_file *about, size_t size)
{
    kiln_model_file own = {.dtype = KILN_F32};
    kiln_module *m = parse(text, bytes, name, &own);
    if (about)
        KILN_GIVE_SIZED(about, size, own);
    return m;
}

kiln_module *kiln_model_read_(const char *path, kiln_model_file *about, size_t size)
{
    size_t bytes;
    char *text = kiln_file_text(path, who, FILE_MAX, &bytes);
    kiln_module *m = text ? kiln_model_parse_(text, bytes, path, about, size) : NULL;
    kiln_free(text);
    return m;
}
