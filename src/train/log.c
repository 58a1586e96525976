/* Writing a run's log. */
#include "train/log.h"

#include <jansson.h>
#include <math.h>
#include <string.h>
#include <strings.h>
#include "core/fail.h"

/* ---- The file ---- */

/* Whether the text begins as one of these do, as far as it goes. */
static bool begins_with(const char *text, const char *const *beginnings)
{
    for (; *beginnings; beginnings++) {
        size_t n = strnlen(text, strlen(*beginnings));
        if (!strncmp(text, *beginnings, n))
            return true;
    }
    return false;
}

static bool begins_json(const char *text)
{
    return begins_with(text, (const char *const[]){"{\"run\": {", "{\"step\": ", "{\"epoch\": ", NULL});
}

static bool begins_csv(const char *text)
{
    return begins_with(text, (const char *const[]){"epoch,step,loss", NULL});
}

static bool put_header(kiln_log_file *l);

bool kiln_log_open(kiln_log_file *l, const char *path, unsigned metrics, bool validates, bool scales, kiln_mark mark)
{
    *l = (kiln_log_file){.journal.file = -1, .metrics = metrics, .validates = validates, .scales = scales};
    if (!path)
        return true;
    size_t length = strlen(path);
    l->csv = length >= 4 && !strcasecmp(path + length - 4, ".csv");
    return kiln_journal_open(&l->journal, path, "log", mark, l->csv ? begins_csv : begins_json) &&
           (l->journal.mark.bytes > 0 || !l->csv || put_header(l));
}

void kiln_log_close(kiln_log_file *l)
{
    kiln_journal_close(&l->journal);
}

/* ---- Lines ---- */

static json_t *number(double v)
{
    return isfinite(v) ? json_real(v) : json_null();
}

/* Writes the object and gives it up. */
static bool put_object(kiln_log_file *l, json_t *object)
{
    char *text = object ? json_dumps(object, JSON_REAL_PRECISION(9)) : NULL;
    json_decref(object);
    if (!text)
        return kiln_fail(KILN_E_MEMORY, "fit", "no memory for a line of the log");
    size_t length = strlen(text);
    text[length] = '\n'; /* in place of the end: the line goes out in one piece */
    bool done = kiln_journal_put(&l->journal, text, length + 1);
    free(text);
    return done;
}

static void set_metrics(json_t *o, const char *prefix, const kiln_result *r, unsigned metrics)
{
    const struct {
        const char *name;
        unsigned metric;
        double value;
    } all[] = {{"loss", 0, r->loss},
               {"accuracy", KILN_ACCURACY, r->accuracy},
               {"top5", KILN_TOP5, r->top5},
               {"perplexity", KILN_PERPLEXITY, r->perplexity},
               {"mae", KILN_MAE, r->mae}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        char name[32];
        snprintf(name, sizeof name, "%s%s", prefix, all[i].name);
        if (!all[i].metric || (metrics & all[i].metric))
            json_object_set_new(o, name, number(all[i].value));
    }
}

static json_t *run_object(const kiln_log_about *a)
{
    return json_pack(
        "{s:s, s:s, s:I, s:s, s:I, s:I, s:I, s:o*, s:I, s:I, s:s, s:o, s:s, s:s, s:b, s:s*, s:I, s:i, s:o}", "version",
        KILN_VERSION, "model", a->model, "parameters", (json_int_t)a->parameters, "data", a->data, "samples",
        (json_int_t)a->samples, "validation_samples", (json_int_t)a->validation_samples, "batch", (json_int_t)a->batch,
        "micro_batch", a->micro_batch ? json_integer(a->micro_batch) : NULL, "accumulate", (json_int_t)a->accumulate,
        "epochs", (json_int_t)a->epochs, "optimizer", a->optim, "lr", number(a->lr), "schedule", a->schedule, "device",
        a->device, "tf32", a->tf32, "autocast", a->autocast == KILN_F32 ? NULL : kiln_dtype_name(a->autocast), "seed",
        (json_int_t)a->seed, "threads", a->threads, "first_step_seconds", number(a->first_step));
}

bool kiln_log_run(kiln_log_file *l, const kiln_log_about *a)
{
    if (l->journal.file < 0 || l->csv)
        return true;
    json_t *run = run_object(a), *more = a->more ? json_loads(a->more, 0, NULL) : NULL;
    bool merged = !a->more || (run && json_object_update(run, more) == 0);
    json_decref(more);
    if (merged)
        return put_object(l, json_pack("{s:o}", "run", run));
    json_decref(run);
    return kiln_fail(KILN_E_MEMORY, "fit", "no memory for a line of the log");
}

bool kiln_log_step(kiln_log_file *l, int64_t step, const kiln_result *mean, double lr)
{
    if (l->journal.file < 0 || l->csv)
        return true;
    json_t *o = json_pack("{s:I}", "step", (json_int_t)step);
    set_metrics(o, "", mean, l->metrics);
    json_object_set_new(o, "lr", number(lr));
    return put_object(l, o);
}

static json_t *epoch_object(const kiln_log_file *l, const kiln_epoch *e, int64_t step)
{
    json_t *o = json_pack("{s:I, s:I}", "epoch", (json_int_t)(e->epoch + 1), "step", (json_int_t)step);
    set_metrics(o, "", &e->train, l->metrics);
    if (l->validates)
        set_metrics(o, "val_", &e->test, l->metrics);
    json_object_set_new(o, "lr", number(e->lr));
    json_object_set_new(o, "seconds", number(e->seconds));
    json_object_set_new(o, "samples_per_second", number(e->samples_per_second));
    json_object_set_new(o, "data_wait", number(e->data_wait));
    if (l->scales) {
        json_object_set_new(o, "scale", number(e->scale));
        json_object_set_new(o, "skipped", json_integer(e->skipped));
    }
    return o;
}

/* A row of CSV from the same object: its keys (the header) or its values; what is not known stays empty. */
static bool put_row(kiln_log_file *l, json_t *o, bool names)
{
    char line[1024] = "";
    size_t used = 0;
    const char *key;
    json_t *value;
    if (!o)
        return kiln_fail(KILN_E_MEMORY, "fit", "no memory for a line of the log");
    json_object_foreach(o, key, value)
    {
        char *text = NULL;
        if (!names && !json_is_null(value))
            text = json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(9)); /* a point in every locale */
        int n = snprintf(line + used, sizeof line - used, "%s%s", used ? "," : "", names ? key : text ? text : "");
        used += n > 0 ? (size_t)n : 0;
        free(text);
    }
    json_decref(o);
    used += (size_t)snprintf(line + used, sizeof line - used, "\n");
    return kiln_journal_put(&l->journal, line, used);
}

static bool put_header(kiln_log_file *l)
{
    return put_row(l, epoch_object(l, &(kiln_epoch){0}, 0), true);
}

bool kiln_log_epoch(kiln_log_file *l, const kiln_epoch *e, int64_t step)
{
    if (l->journal.file < 0)
        return true;
    json_t *o = epoch_object(l, e, step);
    if (l->csv)
        return put_row(l, o, false);
    if (e->culprit) {
        json_object_set_new(o, "culprit", json_string(e->culprit));
        json_object_set_new(o, "bad_values", json_integer(e->bad_values));
    }
    kiln_memory_stats memory = {0};
    if (kiln_memory_get_stats(l->device, &memory))
        json_object_set_new(o, "memory_peak", json_integer((json_int_t)(memory.peak + memory.overhead)));
    return put_object(l, o);
}
