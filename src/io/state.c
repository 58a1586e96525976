/* state.json of a checkpoint. Numbers come back to the bit: doubles are written with 17 digits, those that JSON does
 * not have (infinities) and whole numbers of 64 unsigned bits as text. */
#include "io/state.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/alloc.h"
#include "core/counts.h"
#include "core/fail.h"
#include "io/file.h"

enum { VERSION = 1, STATE_MAX = 4 << 20, EXTRA_MAX = 1 << 20 };

static const char who[] = "checkpoint";

const char *const kiln_state_names[KILN_STATE_FILES] = {"model.safetensors", "optim.safetensors", "ema.safetensors"};

/* ---- Writing ---- */

static json_t *from_double(double value)
{
    return isfinite(value) ? json_real(value) : json_string(isnan(value) ? "nan" : value > 0 ? "inf" : "-inf");
}

static json_t *from_u64(uint64_t value)
{
    char text[24];
    snprintf(text, sizeof text, "%" PRIu64, value);
    return json_string(text);
}

static json_t *describe_optim(const kiln_train_state *s)
{
    json_t *rates = json_array();
    for (int i = 0; i < s->groups; i++)
        if (json_array_append_new(rates, from_double(s->lr[i]))) {
            json_decref(rates);
            return NULL;
        }
    return json_pack("{s:s, s:I, s:o}", "name", s->optim, "steps", (json_int_t)s->optim_steps, "lr", rates);
}

static json_t *describe_schedule(const kiln_schedule_state *s)
{
    return json_pack("{s:I, s:o, s:o, s:I, s:I}", "unit", (json_int_t)s->unit, "best", from_double(s->best), "factor",
                     from_double(s->factor), "bad", (json_int_t)s->bad, "observed", (json_int_t)s->observed);
}

static json_t *describe_scaler(const kiln_scaler_state *s)
{
    return json_pack("{s:o, s:I, s:I}", "scale", from_double(s->scale), "growth_tracker", (json_int_t)s->growth_tracker,
                     "skipped", (json_int_t)s->skipped);
}

static json_t *describe_files(const kiln_train_state *s)
{
    json_t *files = json_object();
    for (int i = 0; i < KILN_STATE_FILES; i++)
        if (s->has[i] && json_object_set_new(files, kiln_state_names[i], json_integer((json_int_t)s->size[i]))) {
            json_decref(files);
            return NULL;
        }
    return files;
}

static json_t *describe(const kiln_train_state *s, const char *extra)
{
    json_t *root =
        json_pack("{s:i, s:I, s:I, s:I, s:o, s:{s:o, s:o}, s:o}", "version", VERSION, "step", (json_int_t)s->step,
                  "epoch", (json_int_t)s->epoch, "batch", (json_int_t)s->batch, "seed", from_u64(s->seed), "random",
                  "seed", from_u64(s->random.seed), "offset", from_u64(s->random.offset), "files", describe_files(s));
    bool ok = root;
    if (ok && s->optim[0])
        ok = json_object_set_new(root, "optim", describe_optim(s)) == 0;
    if (ok && s->has_schedule)
        ok = json_object_set_new(root, "schedule", describe_schedule(&s->schedule)) == 0;
    if (ok && s->has_scaler)
        ok = json_object_set_new(root, "scaler", describe_scaler(&s->scaler)) == 0;
    if (ok && extra)
        ok = json_object_set_new(root, "extra", json_string(extra)) == 0;
    if (ok)
        return root;
    json_decref(root);
    return kiln_fail(KILN_E_MEMORY, who, "memory does not suffice for the state");
}

static bool check_extra(const char *extra)
{
    if (!extra)
        return true;
    if (strlen(extra) > EXTRA_MAX)
        return kiln_fail(KILN_E_ARGUMENT, who, "extra has %zu bytes; at most %d are kept", strlen(extra), EXTRA_MAX);
    json_error_t error;
    json_t *value = json_loads(extra, JSON_REJECT_DUPLICATES, &error);
    bool object = json_is_object(value);
    json_decref(value);
    return object || kiln_fail(KILN_E_ARGUMENT, who, "extra is not a JSON object: %s",
                               value ? "it is something else" : error.text);
}

bool kiln_state_write(const kiln_train_state *s, const char *extra, const char *folder)
{
    json_t *root = check_extra(extra) ? describe(s, extra) : NULL;
    if (!root)
        return false;
    const size_t flags = JSON_INDENT(2) | JSON_REAL_PRECISION(17);
    size_t bytes = json_dumpb(root, NULL, 0, flags);
    char *text = bytes ? kiln_alloc(bytes + 1, 1) : NULL, *path = text ? kiln_path_join(folder, KILN_STATE_JSON) : NULL;
    bool ok = path && json_dumpb(root, text, bytes, flags) == bytes;
    if (ok) {
        text[bytes] = '\n';
        ok = kiln_file_write(path, who, true, text, bytes + 1);
    } else if (!bytes || path) {
        kiln_fail(KILN_E_MEMORY, who, "memory does not suffice for the state");
    }
    json_decref(root);
    kiln_free(text);
    kiln_free(path);
    return ok;
}

/* ---- Reading ---- */

typedef struct source {
    const json_t *root;
    const char *path;
} source;

static bool bad(const source *f, const char *key, const char *what)
{
    return kiln_fail(KILN_E_FORMAT, who, "%s: '%s' %s", f->path, key, what);
}

/* A whole number from 0 up that can be counted on from. */
static bool to_count(const source *f, const json_t *object, const char *key, int64_t *out)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_integer(value) || json_integer_value(value) < 0 || json_integer_value(value) > KILN_COUNT_MAX)
        return bad(f, key, "is not a whole number from 0 to 2^53");
    *out = json_integer_value(value);
    return true;
}

static bool to_u64(const source *f, const json_t *object, const char *key, uint64_t *out)
{
    const char *text = json_string_value(json_object_get(object, key));
    if (!text || !*text || strspn(text, "0123456789") != strlen(text))
        return bad(f, key, "is not a whole number in quotes");
    errno = 0;
    *out = strtoull(text, NULL, 10);
    return !errno || bad(f, key, "does not fit 64 bits");
}

static bool to_double(const source *f, const json_t *value, const char *key, double *out)
{
    const char *text = json_string_value(value);
    if (json_is_number(value))
        *out = json_number_value(value);
    else if (text && !strcmp(text, "nan"))
        *out = NAN;
    else if (text && (!strcmp(text, "inf") || !strcmp(text, "-inf")))
        *out = *text == '-' ? -INFINITY : INFINITY;
    else
        return bad(f, key, "is not a number");
    return true;
}

static bool read_optim(const source *f, kiln_train_state *s)
{
    const json_t *optim = json_object_get(f->root, "optim"), *rates = json_object_get(optim, "lr");
    if (!optim)
        return true;
    const char *name = json_string_value(json_object_get(optim, "name"));
    if (!name || !*name || strlen(name) >= sizeof s->optim)
        return bad(f, "optim", "does not name an optimizer");
    strcpy(s->optim, name);
    if (!json_is_array(rates) || json_array_size(rates) > KILN_STATE_GROUPS)
        return bad(f, "lr", "is not a list of learning rates");
    s->groups = (int)json_array_size(rates);
    for (int i = 0; i < s->groups; i++)
        if (!to_double(f, json_array_get(rates, (size_t)i), "lr", &s->lr[i]) || !isfinite(s->lr[i]) || s->lr[i] < 0)
            return bad(f, "lr", "holds something else than learning rates");
    return to_count(f, optim, "steps", &s->optim_steps);
}

static bool read_schedule(const source *f, kiln_train_state *s)
{
    const json_t *schedule = json_object_get(f->root, "schedule");
    if (!schedule)
        return true;
    s->has_schedule = true;
    return to_count(f, schedule, "unit", &s->schedule.unit) && to_count(f, schedule, "bad", &s->schedule.bad) &&
           to_count(f, schedule, "observed", &s->schedule.observed) &&
           to_double(f, json_object_get(schedule, "best"), "best", &s->schedule.best) &&
           to_double(f, json_object_get(schedule, "factor"), "factor", &s->schedule.factor) &&
           ((isfinite(s->schedule.factor) && s->schedule.factor >= 0) || bad(f, "factor", "scales no learning rate"));
}

static bool read_scaler(const source *f, kiln_train_state *s)
{
    const json_t *scaler = json_object_get(f->root, "scaler");
    if (!scaler)
        return true;
    s->has_scaler = true;
    return to_count(f, scaler, "growth_tracker", &s->scaler.growth_tracker) &&
           to_count(f, scaler, "skipped", &s->scaler.skipped) &&
           to_double(f, json_object_get(scaler, "scale"), "scale", &s->scaler.scale) &&
           ((isfinite((float)s->scaler.scale) && s->scaler.scale > 0) || bad(f, "scale", "scales no loss"));
}

static bool check_file(const source *f, const char *folder, const char *name, uint64_t size)
{
    struct stat st;
    char *path = kiln_path_join(folder, name);
    if (!path)
        return false;
    bool there = stat(path, &st) == 0 && S_ISREG(st.st_mode);
    kiln_free(path);
    if (!there)
        return kiln_fail(KILN_E_FORMAT, who, "%s: %s is missing", f->path, name);
    if ((uint64_t)st.st_size != size)
        return kiln_fail(KILN_E_FORMAT, who, "%s: %s has %llu bytes instead of %llu", f->path, name,
                         (unsigned long long)st.st_size, (unsigned long long)size);
    return true;
}

static bool read_files(const source *f, const char *folder, kiln_train_state *s)
{
    const json_t *files = json_object_get(f->root, "files");
    size_t known = 0;
    if (!json_is_object(files))
        return bad(f, "files", "is not an object");
    for (int i = 0; i < KILN_STATE_FILES; i++) {
        int64_t size = 0;
        if (!json_object_get(files, kiln_state_names[i]))
            continue;
        if (!to_count(f, files, kiln_state_names[i], &size) ||
            !check_file(f, folder, kiln_state_names[i], (uint64_t)size))
            return false;
        s->has[i] = true;
        s->size[i] = (uint64_t)size;
        known++;
    }
    if (known != json_object_size(files) || !s->has[KILN_STATE_MODEL])
        return bad(f, "files", "does not list the files of a checkpoint");
    return s->has[KILN_STATE_OPTIM] == (s->optim[0] != '\0') || bad(f, "optim", "and the files do not fit together");
}

static bool read_extra(const source *f, kiln_train_state *s)
{
    const json_t *extra = json_object_get(f->root, "extra");
    if (!extra)
        return true;
    if (!json_is_string(extra))
        return bad(f, "extra", "is not a text");
    s->extra = kiln_alloc(json_string_length(extra) + 1, 1);
    if (s->extra)
        memcpy(s->extra, json_string_value(extra), json_string_length(extra) + 1);
    return s->extra;
}

static bool read_root(const source *f, const char *folder, kiln_train_state *s)
{
    int64_t version = 0;
    const json_t *random = json_object_get(f->root, "random");
    if (!json_is_object(f->root))
        return bad(f, "", "is not the state of a checkpoint");
    if (!to_count(f, f->root, "version", &version))
        return false;
    if (version != VERSION)
        return bad(f, "version", "is one that this version of Kiln does not know");
    return to_count(f, f->root, "step", &s->step) && to_count(f, f->root, "epoch", &s->epoch) &&
           to_count(f, f->root, "batch", &s->batch) && to_u64(f, f->root, "seed", &s->seed) &&
           to_u64(f, random, "seed", &s->random.seed) && to_u64(f, random, "offset", &s->random.offset) &&
           read_optim(f, s) && read_schedule(f, s) && read_scaler(f, s) && read_files(f, folder, s) && read_extra(f, s);
}

bool kiln_state_read(kiln_train_state *s, const char *folder)
{
    *s = (kiln_train_state){0};
    size_t bytes;
    char *path = kiln_path_join(folder, KILN_STATE_JSON);
    char *text = path ? kiln_file_text(path, who, STATE_MAX, &bytes) : NULL;
    json_error_t error;
    json_t *root = text ? json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error) : NULL;
    if (text && !root)
        kiln_fail(json_error_code(&error) == json_error_out_of_memory ? KILN_E_MEMORY : KILN_E_FORMAT, who, "%s:%d: %s",
                  path, error.line, error.text);
    bool ok = root && read_root(&(source){root, path}, folder, s);
    json_decref(root);
    kiln_free(text);
    kiln_free(path);
    return ok;
}
