/* What fit itself has to remember between two calls, beside weights, optimizer, schedule and random state, which the
 * checkpoint keeps: the sums of the epoch so far, to the bit, the best loss, how much of the history and of the log
 * belongs to it. It is of the same size after any number of epochs. */
#include "train/training.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include "core/alloc.h"
#include "core/counts.h"
#include "core/fail.h"
#include "io/checkpoint.h"

bool kiln_training_check_loss(kiln_training *t, const kiln_totals *totals, int64_t step)
{
    double sum = totals->sum[KILN_SUM_LOSS];
    if (isfinite(sum)) {
        t->finite = step > t->finite ? step : t->finite;
        return true;
    }
    kiln_fail(KILN_E_STATE, "fit", "the loss became %s in epoch %lld, between steps %lld and %lld",
              isnan(sum) ? "NaN" : "infinite", (long long)t->epoch + 1, (long long)t->finite + 1, (long long)step);
    kiln_scaler_culprit c = t->scaler ? kiln_scaler_blame(t->scaler, t->optim) : (kiln_scaler_culprit){0};
    if (c.parameter)
        return kiln_hint("%lld steps were left out since gradients were not finite, in the last one %lld values of %s, "
                         "and maybe more. Where activations leave the range of f16, bf16 helps",
                         (long long)c.skipped, (long long)c.values, c.parameter);
    kiln_hint("try a lower learning rate or clip gradients to a norm of 1, and look for huge values in the data%s%s",
              t->saved ? "; the last checkpoint is from before: " : "", t->saved ? t->o.checkpoint : "");
    return false;
}

/* ---- Numbers to JSON and back: 17 digits bring a double back to the bit ---- */

static json_t *number(double v)
{
    return isfinite(v) ? json_real(v) : json_null();
}

static double get_number(const json_t *o, const char *key, double without)
{
    const json_t *v = json_object_get(o, key);
    return json_is_number(v) ? json_number_value(v) : without;
}

/* A whole number from `least` (0 or, for "none", -1) up that can be counted on from; a checkpoint can say anything.
 * False with an error. */
static bool get_count(const json_t *o, const char *key, int64_t least, int64_t without, int64_t *out)
{
    const json_t *v = json_object_get(o, key);
    *out = json_is_integer(v) ? (int64_t)json_integer_value(v) : without;
    if (*out >= least && *out <= KILN_COUNT_MAX)
        return true;
    return kiln_fail(KILN_E_FORMAT, "fit",
                     "the checkpoint says %s = %lld, which cannot be so: its state.json was changed", key,
                     (long long)*out);
}

static json_t *put_sums(const double sums[KILN_SUMS], int64_t samples)
{
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:I}", "loss", number(sums[KILN_SUM_LOSS]), "correct",
                     number(sums[KILN_SUM_CORRECT]), "top5", number(sums[KILN_SUM_TOP5]), "absolute",
                     number(sums[KILN_SUM_ABSOLUTE]), "items", number(sums[KILN_SUM_ITEMS]), "samples",
                     (json_int_t)samples);
}

static bool get_sums(const json_t *o, double sums[KILN_SUMS], int64_t *samples)
{
    static const char *const names[KILN_SUMS] = {"loss", "correct", "top5", "absolute", "items"};
    for (int i = 0; i < KILN_SUMS; i++)
        sums[i] = get_number(o, names[i], 0);
    return get_count(o, "samples", 0, 0, samples);
}

/* ---- Saving ---- */

/* "batch": 0 is the beginning of an epoch: no sums are needed then, and batches may be cut differently afterwards. */
static json_t *put_state(kiln_training *t, const double device_sums[KILN_SUMS])
{
    kiln_meter *m = &t->meter;
    double spent = t->spent, waited = t->waited;
    if (t->batch > 0) {
        spent += kiln_seconds() - t->begun;
        waited += kiln_loader_waited(t->loader) - t->waited_at;
    }
    char hash[24];
    snprintf(hash, sizeof hash, "%016" PRIx64, t->log_mark.hash);
    const struct {
        const char *key;
        json_t *value;
    } all[] = {{"batch_size", json_integer(t->o.batch)},
               {"micro_batch", json_integer(t->part)},
               {"accumulate", json_integer(t->o.accumulate)},
               {"samples", json_integer(t->data.count)},
               {"shuffled", json_boolean(!t->o.no_shuffle)},
               {"metrics", json_integer(t->task.metrics)},
               {"sums", put_sums(m->collected.sum, m->collected.samples)},
               {"sums_on_device", put_sums(device_sums, m->samples)},
               {"sums_fresh", json_boolean(m->fresh)},
               {"line", put_sums(t->line.sum, t->line.samples)},
               {"lr", number(t->lr)},
               {"best_loss", number(t->best)},
               {"best_epoch", json_integer(t->history.best)},
               {"bad_epochs", json_integer(t->bad)},
               {"log_bytes", json_integer(t->log_mark.bytes)},
               {"log_hash", t->log_mark.hashed ? json_string(hash) : json_null()},
               {"seconds", number(spent)},
               {"waited", number(waited)},
               {"history", kiln_history_mark(&t->history_file, &t->history)}};
    json_t *fit = json_object();
    bool whole = fit != NULL;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        whole = json_object_set_new(fit, all[i].key, all[i].value) == 0 && whole;
    if (whole)
        return json_pack("{s:o}", "fit", fit);
    json_decref(fit);
    return NULL;
}

bool kiln_training_save(kiln_training *t)
{
    double sums[KILN_SUMS];
    kiln_totals totals;
    if (!t->o.checkpoint)
        return true;
    /* Also so that weights which are not numbers never replace a good checkpoint. */
    if (!kiln_training_collect_all(t) || !kiln_meter_get(&t->meter, sums) || !kiln_meter_read(&t->meter, &totals) ||
        !kiln_training_check_loss(t, &totals, t->step))
        return false;
    if (t->log.journal.file >= 0)
        t->log_mark = t->log.journal.mark;
    json_t *state = put_state(t, sums);
    char *extra = state ? json_dumps(state, JSON_COMPACT) : NULL;
    json_decref(state);
    if (!extra)
        return kiln_ok() && kiln_fail(KILN_E_MEMORY, "fit", "no memory for the state of the run");
    kiln_checkpoint c = {.model = t->model,
                         .optim = t->optim,
                         .schedule = t->o.schedule,
                         .ema = t->o.ema,
                         .scaler = t->scaler,
                         .epoch = t->epoch,
                         .batch = t->batch,
                         .step = t->step,
                         .seed = t->o.seed,
                         .nmeta = t->o.nmeta,
                         .meta = t->o.meta,
                         .extra = extra};
    bool done = kiln_checkpoint_save(t->o.checkpoint, &c, 0);
    free(extra);
    t->dirty = t->dirty && !done;
    t->saved = t->saved || done;
    if (done && t->save_asked)
        kiln_progress_note(&t->progress, "Saved %s after %lld steps", t->o.checkpoint, (long long)t->step);
    t->save_asked = t->save_asked && !done;
    return done;
}

static char *best_path(const char *folder)
{
    size_t room = strlen(folder) + sizeof "/best.safetensors";
    char *path = kiln_alloc(room, 1);
    if (path)
        snprintf(path, room, "%s/best.safetensors", folder);
    return path;
}

bool kiln_training_save_best(kiln_training *t)
{
    if (!t->o.checkpoint)
        return true;
    char *path = best_path(t->o.checkpoint);
    kiln_params state = kiln_state(t->model);
    bool done = path && (t->o.save_dtype ? kiln_safetensors_save_as(path, state, t->o.nmeta, t->o.meta, t->o.save_dtype)
                                         : kiln_safetensors_save(path, state, t->o.nmeta, t->o.meta));
    kiln_free(path);
    return done;
}

/* ---- Going on ---- */

/* The folder and those above it. Found out before training begins, not when the first epoch is over. */
static bool make_folder(const char *folder)
{
    size_t length = strlen(folder);
    char *path = kiln_alloc(length + 1, 1);
    if (!path)
        return false;
    memcpy(path, folder, length + 1);
    int failed = 0;
    for (size_t i = 1; i <= length; i++)
        if (path[i] == '/' || path[i] == '\0') {
            char c = path[i];
            path[i] = '\0';
            failed = mkdir(path, 0777) != 0 && errno != EEXIST ? errno : 0;
            path[i] = c;
        }
    kiln_free(path);
    if (failed)
        return kiln_fail(KILN_E_IO, "fit", "the folder %s cannot be made: %s", folder, strerror(failed));
    if (access(folder, W_OK | X_OK) != 0)
        return kiln_fail(KILN_E_IO, "fit", "the folder %s cannot be written to: %s", folder, strerror(errno));
    return true;
}

/* Two runs in one folder would take each other's checkpoints for their own. */
static bool lock_folder(kiln_training *t)
{
    t->folder = open(t->o.checkpoint, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (t->folder < 0)
        return kiln_fail(KILN_E_IO, "fit", "the folder %s cannot be opened: %s", t->o.checkpoint, strerror(errno));
    if (flock(t->folder, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) /* a file system may have no locks */
        return true;
    kiln_fail(KILN_E_IO, "fit", "another run is at work in the folder %s", t->o.checkpoint);
    kiln_hint("wait for its end, or choose another folder");
    return false;
}

/* In the middle of an epoch everything that decides which samples come next must be as it was. */
static bool same_batches(const kiln_training *t, const json_t *fit)
{
    const struct {
        const char *what, *key;
        int64_t now;
    } all[] = {{"the batch size", "batch_size", t->o.batch},
               {"accumulate", "accumulate", t->o.accumulate},
               {"the number of samples", "samples", t->data.count},
               {"the set of metrics", "metrics", (int64_t)t->task.metrics}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        int64_t then;
        if (!get_count(fit, all[i].key, 0, all[i].now, &then))
            return false;
        if (then != all[i].now) {
            kiln_fail(KILN_E_STATE, "fit",
                      "the checkpoint in %s is in the middle of an epoch, where %s was %lld; it is "
                      "%lld now",
                      t->o.checkpoint, all[i].what, (long long)then, (long long)all[i].now);
            kiln_hint("go on as before, at least to the end of the epoch, or start afresh in another folder");
            return false;
        }
    }
    const json_t *shuffled = json_object_get(fit, "shuffled");
    if (json_is_boolean(shuffled) && json_is_true(shuffled) == t->o.no_shuffle)
        return kiln_fail(KILN_E_STATE, "fit", "the checkpoint in %s is in the middle of an epoch that was %sshuffled",
                         t->o.checkpoint, t->o.no_shuffle ? "" : "not ");
    return true;
}

/* The sums of an epoch that was left in its middle. */
static bool take_sums(kiln_training *t, const json_t *fit)
{
    double sums[KILN_SUMS];
    kiln_meter *m = &t->meter;
    if (!get_sums(json_object_get(fit, "sums"), m->collected.sum, &m->collected.samples) ||
        !get_sums(json_object_get(fit, "sums_on_device"), sums, &m->samples) ||
        !get_sums(json_object_get(fit, "line"), t->line.sum, &t->line.samples))
        return false;
    m->fresh = json_is_true(json_object_get(fit, "sums_fresh"));
    t->lr = get_number(fit, "lr", NAN);
    t->spent = get_number(fit, "seconds", 0);
    t->waited = get_number(fit, "waited", 0);
    return kiln_meter_set(m, sums);
}

static bool take_state(kiln_training *t, const json_t *fit)
{
    const char *hash = json_string_value(json_object_get(fit, "log_hash"));
    if (t->auto_batch) { /* it was found when the run began */
        if (!get_count(fit, "batch_size", 0, 0, &t->o.batch))
            return false;
        t->auto_batch = t->o.batch == 0;
    }
    if (t->batch > 0 && !same_batches(t, fit))
        return false;
    if (!get_count(fit, "best_epoch", -1, -1, &t->history.best) || !get_count(fit, "bad_epochs", 0, 0, &t->bad) ||
        !get_count(fit, "log_bytes", 0, 0, &t->log_mark.bytes) ||
        !kiln_history_resume(&t->history_file, &t->history, json_object_get(fit, "history")))
        return false;
    t->best = get_number(fit, "best_loss", INFINITY);
    int64_t part; /* which did fit then: as it goes on, to the bit */
    if (!get_count(fit, "micro_batch", 1, t->part, &part))
        return false;
    if (t->o.fit_memory != KILN_FIT_WHOLE && part < t->part)
        t->part = part;
    if (hash)
        t->log_mark = (kiln_mark){t->log_mark.bytes, strtoull(hash, NULL, 16), true};
    return t->batch == 0 || take_sums(t, fit);
}

/* A run that starts afresh never mixes its checkpoints with those of another, nor takes its best weights' place. */
static bool check_unused(const char *folder, bool resume)
{
    char *there = resume ? NULL : kiln_checkpoint_find(folder), *best = best_path(folder);
    bool weights = best && access(best, F_OK) == 0;
    if (there || (weights && !resume)) {
        kiln_fail(KILN_E_STATE, "fit", "the folder %s holds a run already: %s", folder, there ? there : best);
        kiln_hint("resume it, remove it, or choose another folder");
    } else if (weights) {
        kiln_fail(KILN_E_STATE, "fit", "the folder %s has no checkpoint to resume from, but weights of a run: %s",
                  folder, best);
        kiln_hint("bring its checkpoint back, or choose another folder for a run that begins with these weights");
    }
    kiln_string_free(there);
    kiln_free(best);
    return kiln_ok();
}

bool kiln_training_resume(kiln_training *t)
{
    if (!t->o.checkpoint)
        return true;
    kiln_checkpoint c = {.model = t->model,
                         .optim = t->optim,
                         .schedule = t->o.schedule,
                         .ema = t->o.ema,
                         .scaler = t->scaler,
                         .nmeta = t->o.nmeta,
                         .meta = t->o.meta};
    if (!kiln_checkpoint_check(&c) || !make_folder(t->o.checkpoint) || !lock_folder(t))
        return false;
    if (!t->o.resume)
        return check_unused(t->o.checkpoint, false);
    if (!kiln_checkpoint_load(t->o.checkpoint, &c))
        return kiln_ok() && check_unused(t->o.checkpoint, true); /* none there: a fresh start */
    t->resumed = t->saved = true;
    t->epoch = c.epoch;
    t->batch = c.batch;
    t->step = t->finite = c.step;
    t->o.seed = c.seed;
    json_error_t problem;
    json_t *extra = c.extra ? json_loads(c.extra, 0, &problem) : NULL;
    bool done = true;
    if (c.extra && !extra)
        done = kiln_fail(KILN_E_FORMAT, "fit", "the state of the run in %s cannot be read: %s", t->o.checkpoint,
                         problem.text);
    else if (json_is_object(json_object_get(extra, "fit")))
        done = take_state(t, json_object_get(extra, "fit"));
    json_decref(extra);
    kiln_string_free((char *)c.extra);
    return done;
}
