/* Writing a run's log. */
#include "train/log.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>
#include "core/alloc.h"
#include "core/fail.h"

/* ---- The file ---- */

static bool fail_file(kiln_journal *l, const char *what)
{
    int error = errno;
    kiln_fail(error == ENOENT ? KILN_E_MISSING : KILN_E_IO, "fit", "the log %s cannot be %s: %s", l->path, what,
              strerror(error));
    kiln_hint(error == ENOENT || error == ENOTDIR ? "is the folder there that it is to be in?"
                                                  : "is there room on the disk, and may the file be written?");
    return false;
}

static bool put(kiln_journal *l, const char *text, size_t bytes)
{
    while (bytes > 0) {
        ssize_t n = write(l->file, text, bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return fail_file(l, "written");
        text += n;
        bytes -= (size_t)n;
        l->bytes += n;
    }
    return true;
}

/* Where to go on: after `bytes`, or, where the file does not reach that far, after its last whole line. */
static bool find_end(kiln_journal *l, int64_t bytes)
{
    struct stat info;
    char c = '\n';
    if (fstat(l->file, &info) != 0)
        return fail_file(l, "read");
    l->bytes = bytes < info.st_size ? bytes : info.st_size;
    while (l->bytes > 0) {
        if (pread(l->file, &c, 1, l->bytes - 1) != 1)
            return fail_file(l, "read");
        if (c == '\n')
            break;
        l->bytes--;
    }
    if (S_ISREG(info.st_mode) && ftruncate(l->file, l->bytes) != 0)
        return fail_file(l, "cut to where the checkpoint was made");
    return lseek(l->file, l->bytes, SEEK_SET) >= 0 || errno == ESPIPE || fail_file(l, "written");
}

static bool put_header(kiln_journal *l);

bool kiln_log_open(kiln_journal *l, const char *path, unsigned metrics, bool validates, int64_t bytes)
{
    *l = (kiln_journal){.file = -1, .metrics = metrics, .validates = validates};
    if (!path)
        return true;
    size_t length = strlen(path);
    l->path = kiln_alloc(length + 1, 1);
    if (!l->path)
        return false;
    memcpy(l->path, path, length + 1);
    l->csv = length >= 4 && !strcasecmp(path + length - 4, ".csv");
    l->file = open(path, O_RDWR | O_CREAT | O_CLOEXEC | (bytes > 0 ? 0 : O_TRUNC), 0666);
    int error = errno;
    if (l->file < 0 && (error == EACCES || error == ENXIO || error == EINVAL) && !bytes)
        l->file = open(path, O_WRONLY | O_CLOEXEC); /* a pipe or a device */
    errno = error;
    if (l->file < 0)
        return fail_file(l, "opened");
    if (bytes > 0 && !find_end(l, bytes))
        return false;
    return l->bytes > 0 || !l->csv || put_header(l);
}

void kiln_log_close(kiln_journal *l)
{
    if (l->file >= 0)
        close(l->file);
    kiln_free(l->path);
    *l = (kiln_journal){.file = -1};
}

/* ---- Lines ---- */

static json_t *number(double v)
{
    return isfinite(v) ? json_real(v) : json_null();
}

/* Writes the object and gives it up. */
static bool put_object(kiln_journal *l, json_t *object)
{
    char *text = object ? json_dumps(object, JSON_REAL_PRECISION(9)) : NULL;
    json_decref(object);
    if (!text)
        return kiln_fail(KILN_E_MEMORY, "fit", "no memory for a line of the log");
    size_t length = strlen(text);
    text[length] = '\n'; /* in place of the end: the line goes out in one piece */
    bool done = put(l, text, length + 1);
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

bool kiln_log_run(kiln_journal *l, const kiln_log_about *a)
{
    if (l->file < 0 || l->csv)
        return true;
    return put_object(l, json_pack("{s:{s:s, s:I, s:s, s:I, s:I, s:I, s:I, s:I, s:s, s:s, s:b, s:I, s:i, s:o}}", "run",
                                   "model", a->model, "parameters", (json_int_t)a->parameters, "data", a->data,
                                   "samples", (json_int_t)a->samples, "validation_samples",
                                   (json_int_t)a->validation_samples, "batch", (json_int_t)a->batch, "accumulate",
                                   (json_int_t)a->accumulate, "epochs", (json_int_t)a->epochs, "optimizer", a->optim,
                                   "device", a->device, "tf32", a->tf32, "seed", (json_int_t)a->seed, "threads",
                                   a->threads, "first_step_seconds", number(a->first_step)));
}

bool kiln_log_step(kiln_journal *l, int64_t step, const kiln_result *mean, double lr)
{
    if (l->file < 0 || l->csv)
        return true;
    json_t *o = json_pack("{s:I}", "step", (json_int_t)step);
    set_metrics(o, "", mean, l->metrics);
    json_object_set_new(o, "lr", number(lr));
    return put_object(l, o);
}

static json_t *epoch_object(const kiln_journal *l, const kiln_epoch *e, int64_t step)
{
    json_t *o = json_pack("{s:I, s:I}", "epoch", (json_int_t)(e->epoch + 1), "step", (json_int_t)step);
    set_metrics(o, "", &e->train, l->metrics);
    if (l->validates)
        set_metrics(o, "val_", &e->test, l->metrics);
    json_object_set_new(o, "lr", number(e->lr));
    json_object_set_new(o, "seconds", number(e->seconds));
    json_object_set_new(o, "samples_per_second", number(e->samples_per_second));
    json_object_set_new(o, "data_wait", number(e->data_wait));
    return o;
}

/* A row of CSV from the same object: its keys (the header) or its values; what is not known stays empty. */
static bool put_row(kiln_journal *l, json_t *o, bool names)
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
    return put(l, line, used);
}

static bool put_header(kiln_journal *l)
{
    return put_row(l, epoch_object(l, &(kiln_epoch){0}, 0), true);
}

bool kiln_log_epoch(kiln_journal *l, const kiln_epoch *e, int64_t step)
{
    if (l->file < 0)
        return true;
    json_t *o = epoch_object(l, e, step);
    return l->csv ? put_row(l, o, false) : put_object(l, o);
}
