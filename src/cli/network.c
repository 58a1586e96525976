/* Which network: a name with options, or a model file; its sizes from the data; what loss and metrics go with it. */
#include <stdlib.h>
#include <string.h>
#include "cli/work.h"

enum { MODEL_FILE_LIMIT = 1 << 20, BYTES = 256, TEXT_LENGTH = 128 };

/* ---- Building ---- */

/* `name` is what messages call a model file, `about` what it says of itself. */
static kiln_module *make(const network *n, const char *name, kiln_model_file *about)
{
    return n->entry ? n->entry->build(n->options) : kiln_model_parse(n->text, strlen(n->text), name, about);
}

static int64_t count_state(kiln_module *m)
{
    kiln_params state = kiln_state(m);
    int64_t all = 0;
    for (int64_t i = 0; i < state.count; i++)
        all += kiln_numel(state.tensors[i]);
    return all;
}

/* A file's metadata can name a model of any size: its shapes alone are held against what the file holds. */
static int check_file(const network *n, const char *name)
{
    kiln_model_file about;
    int64_t values = -1;
    kiln_shapes_only {
        kiln_module *m = make(n, name, &about);
        if (m)
            values = count_state(m);
        kiln_module_free(m);
    }
    if (values < 0 || values <= n->values)
        return values < 0 || !kiln_ok() ? fail_kiln() : 0;
    fail(EX_DATAERR, "%s says it is of the model %s, whose %s values are more than the %s values it holds", n->file,
         n->given, show_count(values), show_count(n->values));
    hint("the file was changed; --model says which model it is");
    return EX_DATAERR;
}

static int build(network *n, const char *name, kiln_model_file *about)
{
    int code = n->file ? check_file(n, name) : 0;
    if (!code && !(n->module = make(n, name, about)))
        code = fail_kiln();
    return code;
}

/* ---- Choosing ---- */

static bool is_model_path(const char *text)
{
    size_t n = strlen(text);
    return (n > 5 && !strcmp(text + n - 5, ".yaml")) || (n > 4 && !strcmp(text + n - 4, ".yml")) ||
           strchr(text, '/') != NULL;
}

static int choose_file(network *n, const char *name)
{
    kiln_model_file about;
    int code = build(n, name, &about);
    if (code)
        return code;
    char *shown = shown_text(about.name[0] ? about.name : name);
    snprintf(n->name, sizeof n->name, "%s", shown);
    free(shown);
    n->ndim = about.ndim;
    memcpy(n->shape, about.shape, sizeof n->shape);
    n->dtype = about.dtype;
    n->tokens = about.dtype == KILN_I64;
    return 0;
}

static bool choose_entry(network *n, const char *text, char *why, size_t size)
{
    n->entry = model_find(text, &n->options, why, size);
    if (!n->entry)
        return false;
    snprintf(n->name, sizeof n->name, "%s", n->entry->name);
    n->tokens = n->entry->tokens;
    n->loss = n->entry->loss;
    return true;
}

int network_choose(network *n, const char *text)
{
    char why[256];
    *n = (network){.given = must_format("%s", text)};
    if (is_model_path(text)) {
        int code = 0;
        n->text = read_text(text, MODEL_FILE_LIMIT, &code);
        return n->text ? choose_file(n, text) : code;
    }
    if (choose_entry(n, text, why, sizeof why))
        return 0;
    fail(EX_USAGE, "--model %s: %s", text, why);
    hint("kiln train --help lists the models; a model file's name ends in .yaml");
    return EX_USAGE;
}

static int64_t count_values(kiln_safetensors *file)
{
    int64_t all = 0;
    for (int64_t i = 0; i < kiln_safetensors_count(file); i++) {
        const kiln_safetensor *t = kiln_safetensors_at(file, i);
        all += t->dtype == KILN_DTYPES ? (int64_t)t->bytes : (int64_t)(t->bytes / kiln_dtype_size(t->dtype));
    }
    return all;
}

int network_choose_kept(network *n, const saved *s)
{
    char why[256];
    const char *text = s->model;
    bool file = strchr(text, '\n') != NULL;
    *n = (network){.kept = true,
                   .file = s->path,
                   .values = count_values(s->file),
                   .given = meta_text(s->train, "model", file ? "the run's model" : text)};
    if (file) {
        n->text = must_format("%s", text);
        return choose_file(n, "the run's model");
    }
    if (choose_entry(n, text, why, sizeof why))
        return 0;
    fail(EX_DATAERR, "%s: the model it says it is of, %s: %s", s->path, text, why);
    hint("the file was changed, or is of another version of kiln; --model says which model it is");
    return EX_DATAERR;
}

/* ---- Sizes ---- */

static void set_unset(int64_t *size, int64_t value)
{
    if (!*size)
        *size = value;
}

static void sizes_from_data(model_options *o, const kiln_data_info *data)
{
    if (data->text) {
        set_unset(&o->vocabulary, BYTES);
        set_unset(&o->context, data->x.shape[0]);
        return;
    }
    int n = data->x.ndim;
    const int64_t *shape = data->x.shape;
    if (n >= 1 && n <= 3) {
        set_unset(&o->channels, n == 3 ? shape[0] : 1);
        set_unset(&o->height, n >= 2 ? shape[n - 2] : 1);
        set_unset(&o->width, shape[n - 1]);
    }
    if (data->classes > 0)
        set_unset(&o->classes, data->classes);
}

/* What models.h says a model takes where nothing is said. */
static void sizes_by_default(network *n)
{
    model_options *o = &n->options;
    bool large = !strcmp(n->name, "resnet50"),
         colour = large || !strcmp(n->name, "resnet18") || !strcmp(n->name, "vit-tiny");
    if (n->tokens) {
        bool gpt2 = !strcmp(n->name, "gpt2"), llama = !strcmp(n->name, "llama"), bert = !strcmp(n->name, "bert");
        set_unset(&o->vocabulary, gpt2 ? 50257 : llama ? 32000 : bert ? 30522 : BYTES);
        set_unset(&o->context, gpt2 ? 1024 : llama ? 2048 : bert ? 512 : TEXT_LENGTH);
        return;
    }
    set_unset(&o->channels, colour ? 3 : 1);
    set_unset(&o->height, large ? 224 : colour ? 32 : 28);
    set_unset(&o->width, large ? 224 : colour ? 32 : 28);
    set_unset(&o->classes, 10);
}

/* The name with all options that are set, so that the same network can be built from it again. */
static char *options_text(const network *n)
{
    const model_options *o = &n->options;
    const struct {
        const char *key;
        int64_t value;
    } sizes[] = {{"channels", o->channels}, {"height", o->height},         {"width", o->width},
                 {"classes", o->classes},   {"vocabulary", o->vocabulary}, {"context", o->context},
                 {"layers", o->layers},     {"heads", o->heads},           {"embed", o->embed},
                 {"hidden", o->hidden},     {"patch", o->patch},           {"kv_heads", o->kv_heads}};
    char text[512];
    int used = snprintf(text, sizeof text, "%s", n->name);
    char before = ':';
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i].value && model_has_option(n->entry, sizes[i].key)) {
            used += snprintf(text + used, sizeof text - (size_t)used, "%c%s=%lld", before, sizes[i].key,
                             (long long)sizes[i].value);
            before = ',';
        }
    if (o->dropout > 0)
        snprintf(text + used, sizeof text - (size_t)used, "%cdropout=%.15g", before, o->dropout);
    return must_format("%s", text);
}

static int build_entry(network *n, const kiln_data_info *data)
{
    char why[256];
    if (data)
        sizes_from_data(&n->options, data);
    sizes_by_default(n);
    if (!model_check(n->entry, &n->options, why, sizeof why))
        return fail(n->kept ? EX_DATAERR : EX_USAGE, "the model %s: %s", n->name, why);
    const model_options *o = &n->options;
    n->dtype = n->tokens ? KILN_I64 : KILN_F32;
    n->ndim = n->tokens ? 1 : 3;
    n->shape[0] = n->tokens ? o->context : o->channels;
    n->shape[1] = o->height;
    n->shape[2] = o->width;
    free(n->text);
    n->text = options_text(n);
    return build(n, NULL, NULL);
}

/* ---- Do they fit? ---- */

static int wrong_kind(const network *n)
{
    if (n->tokens) {
        fail(EX_USAGE, "the model %s takes text, and the data is none", n->name);
        hint("give a text: --data FILE.txt");
    } else {
        fail(EX_USAGE, "the model %s takes images, and the data is text", n->name);
        hint("for text there are --model gpt2, --model llama and --model char-lstm");
    }
    return EX_USAGE;
}

static int check_input(const network *n, const kiln_data_info *data)
{
    if (n->tokens != data->text)
        return wrong_kind(n);
    if (n->entry && n->entry->sees_ahead) {
        fail(EX_USAGE, "the model %s sees the whole text at once: there is no next byte for it to tell", n->name);
        hint("train it on masked words, in a program of your own; for text there are gpt2, llama and char-lstm");
        return EX_USAGE;
    }
    int64_t context = network_context(n);
    if (n->tokens && context && data->x.shape[0] > context) {
        fail(EX_DATAERR, "windows of %lld bytes of text, but the model %s sees only %lld at once",
             (long long)data->x.shape[0], n->name, (long long)context);
        hint("give --length %lld", (long long)context);
        return EX_DATAERR;
    }
    int64_t ours = 1, theirs = 1;
    bool same = n->ndim == data->x.ndim;
    for (int d = 0; d < n->ndim; d++) {
        same = same && n->shape[d] == data->x.shape[d];
        ours *= n->shape[d];
    }
    for (int d = 0; d < data->x.ndim; d++)
        theirs *= data->x.shape[d];
    if (n->tokens || same || (n->entry && ours == theirs))
        return 0;
    fail(EX_DATAERR, "the model %s takes inputs of %s, the samples of %s are %s", n->name,
         show_shape(n->ndim, n->shape), data->name, show_shape(data->x.ndim, data->x.shape));
    if (!n->entry)
        hint("its \"input\" has to be the shape of the samples");
    return EX_DATAERR;
}

static int check_output(network *n, const kiln_data_info *data, int ndim, const int64_t *out)
{
    bool same = ndim == n->ndim + 1;
    for (int d = 0; same && d < n->ndim; d++)
        same = out[d + 1] == n->shape[d];
    if (!n->entry)
        n->loss = same && !n->tokens ? KILN_RECONSTRUCTION : KILN_CROSS_ENTROPY;
    n->outputs = out[ndim - 1];
    n->metrics = n->loss != KILN_CROSS_ENTROPY ? 0 : n->tokens ? KILN_PERPLEXITY : KILN_ACCURACY;
    int64_t labels = data ? (data->text ? BYTES : data->classes) : 0;
    if (n->loss != KILN_CROSS_ENTROPY || labels <= n->outputs)
        return 0;
    fail(EX_DATAERR, "%s has %lld classes, the model %s gives only %lld", data->name, (long long)labels, n->name,
         (long long)n->outputs);
    if (!data->text)
        hint("its labels go up to %lld: train a model of %lld classes, or look for a label that is wrong",
             (long long)labels - 1, (long long)labels);
    return EX_DATAERR;
}

int network_build(network *n, const kiln_data_info *data, kiln_device device)
{
    if (data && n->tokens != data->text)
        return wrong_kind(n);
    int code = n->entry ? build_entry(n, data) : 0;
    n->file = NULL; /* it may be closed now */
    if (!code && data)
        code = check_input(n, data);
    if (code)
        return code;
    int64_t shape[KILN_MAX_DIMS] = {1}, out[KILN_MAX_DIMS];
    int ndim;
    memcpy(shape + 1, n->shape, (size_t)n->ndim * sizeof *shape);
    if (!kiln_module_to(n->module, device) || !kiln_module_shape(n->module, n->ndim + 1, shape, n->dtype, &ndim, out))
        return fail_kiln();
    return check_output(n, data, ndim, out);
}

void network_free(network *n)
{
    kiln_module_free(n->module);
    free(n->text);
    free(n->given);
    *n = (network){0};
}

int64_t network_context(const network *n)
{
    if (!n->tokens)
        return 0;
    if (n->entry)
        return strcmp(n->entry->name, "char-lstm") ? n->options.context : 0; /* which takes any length */
    return n->shape[0];
}
