/* Runs: finding the weights in a folder, the network and the data they belong to; and the device to use them on. */
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include "cli/work.h"

static bool has_option(const arguments *a, const char *name)
{
    for (const option *o = a->command->options; o->name; o++)
        if (!strcmp(o->name, name))
            return true;
    return false;
}

kiln_dtype amp_of(const arguments *a)
{
    const char *type = text_of(a, "amp", NULL);
    return !type ? 0 : !strcmp(type, "f16") ? KILN_F16 : KILN_BF16;
}

int use_device(const arguments *a, kiln_device *device)
{
    *device = kiln_device_parse(text_of(a, "device", "auto"));
    if (*device == KILN_NO_DEVICE) {
        int code = fail_kiln();
        hint("kiln devices lists what there is");
        return code;
    }
    if (given(a, "threads"))
        kiln_set_num_threads((int)count_of(a, "threads", 0));
    bool limit = has_option(a, "mem-limit") && given(a, "mem-limit");
    if (has_option(a, "tf32") && given(a, "tf32"))
        kiln_set_tf32(true);
    if (has_option(a, "amp") && given(a, "amp"))
        kiln_autocast_scope_enter(amp_of(a)); /* to the end of the command */
    if (!kiln_set_default_device(*device) || (limit && !kiln_memory_set_limit(*device, size_of(a, "mem-limit", 0))))
        return fail_kiln();
    return 0;
}

/* ---- Opening ---- */

static int no_run(const char *path)
{
    if (!path_exists(path)) {
        fail(EX_NOINPUT, "%s: %s", path, strerror(errno));
        if (!strcmp(path, DEFAULT_RUN))
            hint("kiln train makes it; or name a run's folder or a safetensors file");
    } else {
        fail(EX_NOINPUT, "%s: neither weights nor a checkpoint in this folder", path);
    }
    return EX_NOINPUT;
}

/* Whether a metadata pair that is there holds a JSON object. */
static bool is_object(const char *json)
{
    json_t *o = json ? json_loads(json, 0, NULL) : NULL;
    bool fits = !json || json_is_object(o);
    json_decref(o);
    return fits;
}

int saved_open(saved *s, const char *path)
{
    *s = (saved){0};
    if (path_is_folder(path)) {
        s->path = must_format("%s/best.safetensors", path);
        if (!path_exists(s->path)) {
            char *newest = kiln_checkpoint_find(path);
            free(s->path);
            s->path = newest ? must_format("%s/model.safetensors", newest) : NULL;
            kiln_string_free(newest);
        }
        if (!kiln_ok())
            return fail_kiln();
    } else if (path_exists(path)) {
        s->path = must_format("%s", path);
    }
    if (!s->path)
        return no_run(path);
    s->file = kiln_safetensors_open(s->path);
    if (!s->file)
        return fail_kiln();
    s->model = kiln_safetensors_meta(s->file, "kiln.model");
    s->data = kiln_safetensors_meta(s->file, "kiln.data");
    s->train = kiln_safetensors_meta(s->file, "kiln.train");
    const char *wrong = !is_object(s->data) ? "kiln.data" : !is_object(s->train) ? "kiln.train" : NULL;
    return wrong ? fail(EX_DATAERR, "%s: its metadata %s is not a JSON object", s->path, wrong) : 0;
}

void saved_close(saved *s)
{
    kiln_safetensors_close(s->file);
    free(s->path);
    *s = (saved){0};
}

static json_t *member(json_t *o, const char *key)
{
    return json_is_object(o) ? json_object_get(o, key) : NULL;
}

char *meta_text(const char *json, const char *key, const char *otherwise)
{
    json_t *o = json ? json_loads(json, 0, NULL) : NULL;
    const char *found = json_string_value(member(o, key));
    char *text = found || otherwise ? must_format("%s", found ? found : otherwise) : NULL;
    json_decref(o);
    return text;
}

double meta_number(const char *json, const char *key, double otherwise)
{
    json_t *o = json ? json_loads(json, 0, NULL) : NULL, *value = member(o, key);
    double n = json_is_number(value) ? json_number_value(value) : otherwise;
    json_decref(o);
    return n;
}

int kept_number(const char *json, const char *key, double otherwise, double min, double max, double *out)
{
    double n = meta_number(json, key, otherwise);
    *out = n == otherwise || (n >= min && n <= max) ? n : otherwise;
    return *out == n ? 0
                     : fail(EX_DATAERR, "the run says %s = %g, which is none from %g to %.15g: its file was changed",
                            key, n, min, max);
}

/* ---- What a command works on ---- */

static int open_network(const arguments *a, const saved *s, network *n)
{
    if (given(a, "model"))
        return network_choose(n, text_of(a, "model", NULL));
    if (s->model)
        return network_choose_kept(n, s);
    fail(EX_USAGE, "%s does not say which model its weights belong to", s->path);
    hint("give --model, as in --model gpt2 or --model my-model.yaml");
    return EX_USAGE;
}

static int open_data(const arguments *a, const saved *s, source *data)
{
    char *origin = meta_text(s->data, "source", "digits");
    double split, length;
    int code = kept_number(s->data, "split", 0.9, 0, 1, &split);
    if (!code)
        code = kept_number(s->data, "length", 0, 0, 1 << 20, &length);
    if (!code) {
        code = source_open(data, text_of(a, "data", origin), number_of(a, "split", split),
                           count_of(a, "length", (int64_t)length));
        if (code && !given(a, "data"))
            hint("that is what the run was trained on; --data says where the data is now");
    }
    free(origin);
    return code;
}

/* How many values of tensors first … first+count-1 are no numbers; -1 with an error. */
static double count_bad(kiln_params p, int64_t first, int64_t count)
{
    double bad = -1;
    kiln_no_grad
        kiln_scope {
            kiln_tensor *sum = kiln_zeros(0, NULL, KILN_F32);
            for (int64_t i = first; i < first + count; i++) {
                kiln_tensor *wrong = kiln_logical_not(kiln_isfinite(p.tensors[i]));
                sum = kiln_add(sum, kiln_sum_all(kiln_cast(wrong, KILN_F32)));
            }
            bad = kiln_item(sum);
        }
    return kiln_ok() ? bad : -1;
}

int check_finite(const network *n, const char *path)
{
    kiln_params p = kiln_parameters(n->module);
    double bad = count_bad(p, 0, p.count);
    for (int64_t i = 0; bad > 0 && i < p.count; i++) {
        double here = count_bad(p, i, 1);
        if (here > 0) {
            fail(EX_DATAERR, "%s: %.0f values of %s are not finite (NaN or infinite)", path, here, p.names[i]);
            hint("kiln inspect --stats counts such values in every tensor of a file");
            return EX_DATAERR;
        }
    }
    return kiln_ok() ? 0 : fail_kiln();
}

int open_run(const arguments *a, network *n, source *data, kiln_device *device)
{
    saved s = {0};
    *n = (network){0};
    if (data)
        *data = (source){0};
    int code = saved_open(&s, a->count ? a->rest[0] : DEFAULT_RUN);
    if (!code)
        code = use_device(a, device);
    if (!code)
        kiln_shapes_only /* its weights get memory when they are read */
            code = open_network(a, &s, n);
    if (!code && data)
        code = open_data(a, &s, data);
    if (!code)
        kiln_shapes_only
            code = network_build(n, data ? &data->info : NULL, *device);
    if (!code && !kiln_module_load(n->module, s.path, false))
        code = fail_kiln();
    if (!code)
        code = check_finite(n, s.path);
    if (!code)
        kiln_module_train(n->module, false);
    saved_close(&s);
    return code;
}
