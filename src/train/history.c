/* The history of a run, in memory and as a file. */
#include "train/history.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "core/alloc.h"
#include "core/counts.h"
#include "core/fail.h"

static const char file_name[] = "history.jsonl";

/* ---- Epochs to JSON and back: 17 digits bring a double back to the bit ---- */

static json_t *number(double v)
{
    return isfinite(v) ? json_real(v) : json_null();
}

static double get_number(const json_t *o, const char *key, double without)
{
    const json_t *v = json_object_get(o, key);
    return json_is_number(v) ? json_number_value(v) : without;
}

static int64_t get_count(const json_t *o, const char *key, int64_t without)
{
    const json_t *v = json_object_get(o, key);
    int64_t n = json_is_integer(v) ? (int64_t)json_integer_value(v) : without;
    return n >= 0 && n <= KILN_COUNT_MAX ? n : without;
}

static json_t *put_result(const kiln_result *r)
{
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:I, s:o}", "loss", number(r->loss), "accuracy", number(r->accuracy),
                     "top5", number(r->top5), "perplexity", number(r->perplexity), "mae", number(r->mae), "samples",
                     (json_int_t)r->samples, "seconds", number(r->seconds));
}

static kiln_result get_result(const json_t *o)
{
    return (kiln_result){.loss = get_number(o, "loss", NAN),
                         .accuracy = get_number(o, "accuracy", NAN),
                         .top5 = get_number(o, "top5", NAN),
                         .perplexity = get_number(o, "perplexity", NAN),
                         .mae = get_number(o, "mae", NAN),
                         .samples = get_count(o, "samples", 0),
                         .seconds = get_number(o, "seconds", 0)};
}

static json_t *put_epoch(const kiln_epoch *e)
{
    return json_pack("{s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:I, s:s?, s:I}", "epoch", (json_int_t)e->epoch, "train",
                     put_result(&e->train), "test", put_result(&e->test), "lr", number(e->lr), "seconds",
                     number(e->seconds), "samples_per_second", number(e->samples_per_second), "data_wait",
                     number(e->data_wait), "scale", number(e->scale), "skipped", (json_int_t)e->skipped, "culprit",
                     e->culprit, "bad_values", (json_int_t)e->bad_values);
}

/* Its text is the object's. */
static kiln_epoch get_epoch(const json_t *o, int64_t index)
{
    return (kiln_epoch){.epoch = get_count(o, "epoch", index),
                        .train = get_result(json_object_get(o, "train")),
                        .test = get_result(json_object_get(o, "test")),
                        .lr = get_number(o, "lr", NAN),
                        .seconds = get_number(o, "seconds", NAN),
                        .samples_per_second = get_number(o, "samples_per_second", NAN),
                        .data_wait = get_number(o, "data_wait", NAN),
                        .scale = get_number(o, "scale", 0),
                        .skipped = get_count(o, "skipped", 0),
                        .culprit = json_string_value(json_object_get(o, "culprit")),
                        .bad_values = get_count(o, "bad_values", 0)};
}

/* ---- The file ---- */

static bool begins(const char *text)
{
    static const char beginning[] = "{\"epoch\":";
    return !strncmp(text, beginning, strnlen(text, sizeof beginning - 1));
}

static bool open_file(kiln_history_file *f, kiln_mark mark)
{
    size_t room = strlen(f->folder) + sizeof file_name + 1;
    char *path = kiln_alloc(room, 1);
    if (!path)
        return false;
    snprintf(path, room, "%s/%s", f->folder, file_name);
    bool opened = kiln_journal_open(&f->journal, path, "history", mark, begins);
    kiln_free(path);
    return opened;
}

static bool put_line(kiln_history_file *f, const kiln_epoch *e)
{
    json_t *o = put_epoch(e);
    char *line = o ? json_dumps(o, JSON_COMPACT | JSON_REAL_PRECISION(17)) : NULL;
    json_decref(o);
    if (!line)
        return kiln_fail(KILN_E_MEMORY, "fit", "no memory for the history");
    size_t length = strlen(line);
    line[length] = '\n'; /* in place of the end: the line goes out in one piece */
    bool done = kiln_journal_put(&f->journal, line, length + 1);
    free(line);
    return done;
}

/* With a text of its own. */
static bool remember(kiln_history_file *f, kiln_history *h, const kiln_epoch *e)
{
    char *culprit = e->culprit ? kiln_alloc(strlen(e->culprit) + 1, 1) : NULL;
    if ((e->culprit && !culprit) || !KILN_GROW(h->epochs, f->room, h->count + 1)) {
        kiln_free(culprit);
        return false;
    }
    if (culprit)
        strcpy(culprit, e->culprit);
    h->epochs[h->count] = *e;
    h->epochs[h->count++].culprit = culprit;
    return true;
}

bool kiln_history_add(kiln_history_file *f, kiln_history *h, const kiln_epoch *e)
{
    if (f->folder && ((f->journal.file < 0 && !open_file(f, (kiln_mark){0})) || !put_line(f, e)))
        return false;
    return remember(f, h, e);
}

void kiln_history_close(kiln_history_file *f)
{
    kiln_journal_close(&f->journal);
}

/* ---- Checkpoints ---- */

json_t *kiln_history_mark(kiln_history_file *f, const kiln_history *h)
{
    char hash[24];
    snprintf(hash, sizeof hash, "%016" PRIx64, f->journal.mark.hash);
    if (f->journal.file >= 0 && !kiln_journal_sync(&f->journal))
        return NULL;
    json_t *mark = json_pack("{s:I, s:I, s:s}", "epochs", (json_int_t)h->count, "bytes",
                             (json_int_t)f->journal.mark.bytes, "hash", hash);
    return mark ? mark : kiln_fail(KILN_E_MEMORY, "fit", "no memory for the state of the run");
}

static bool bad_line(const kiln_history_file *f, int64_t number, const char *why)
{
    kiln_fail(KILN_E_FORMAT, "fit", "%s: line %lld is no epoch: %s", f->journal.path, (long long)number, why);
    return kiln_hint("move it away to go on without it");
}

static bool read_lines(kiln_history_file *f, kiln_history *h)
{
    char *text = kiln_journal_read(&f->journal);
    bool ok = text;
    int64_t number = 0;
    for (char *line = text, *end; ok && *line; line = end) {
        json_error_t error;
        end = line + strcspn(line, "\n");
        end += *end == '\n';
        json_t *o = json_loadb(line, (size_t)(end - line), 0, &error);
        ok = json_is_object(o) || bad_line(f, number + 1, o ? "no object" : error.text);
        kiln_epoch e = get_epoch(o, number++);
        ok = ok && remember(f, h, &e);
        json_decref(o);
    }
    kiln_free(text);
    return ok;
}

/* Earlier versions kept all epochs in every checkpoint: they are put into the file. */
static bool take_list(kiln_history_file *f, kiln_history *h, const json_t *list)
{
    size_t i;
    json_t *o;
    json_array_foreach(list, i, o)
    {
        kiln_epoch e = get_epoch(o, (int64_t)i);
        if (!json_is_object(o))
            return kiln_fail(KILN_E_FORMAT, "fit", "the checkpoint in %s has something else than epochs in its history",
                             f->folder);
        if (!kiln_history_add(f, h, &e))
            return false;
    }
    return true;
}

bool kiln_history_resume(kiln_history_file *f, kiln_history *h, const json_t *kept)
{
    const char *hash = json_string_value(json_object_get(kept, "hash"));
    int64_t epochs = get_count(kept, "epochs", 0);
    kiln_mark mark = {.bytes = get_count(kept, "bytes", 0)};
    if (json_is_array(kept))
        return take_list(f, h, kept);
    if (mark.bytes == 0)
        return true;
    if (hash)
        mark = (kiln_mark){mark.bytes, strtoull(hash, NULL, 16), true};
    if (!open_file(f, mark) || !read_lines(f, h))
        return false;
    if (h->count < epochs)
        kiln_notice("%s has only %lld of the %lld epochs behind the checkpoint", f->journal.path, (long long)h->count,
                    (long long)epochs);
    return true;
}
