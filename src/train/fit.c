/* kiln_fit: the training loop.
 *
 * Steps of one run are the same recorded code, so their plan is replayed; nothing is read back inside a step, and
 * outside only now and then (see train/metrics.h). What decides when that happens are step numbers, never the clock, so
 * that a run and its log can be repeated and continued to the bit. */
#include <math.h>
#include <string.h>
#include <unistd.h>
#include "core/sized.h"
#include "core/alloc.h"
#include "core/fail.h"
#include "kiln/grad.h"
#include "kiln/ops.h"
#include "optim/optim.h"
#include "train/evaluate.h"
#include "train/training.h"

/* ---- A step ---- */

static bool take_step(kiln_training *t)
{
    if (!t->scaler)
        return kiln_optim_step(t->optim);
    return kiln_scaler_step(t->scaler, t->optim) && kiln_scaler_update(t->scaler);
}

/* One batch makes the step: what most runs have. */
static bool is_whole_window(const kiln_training *t, const kiln_batch *b)
{
    return t->o.accumulate == 1 && b->size == t->step_samples;
}

/* The batch's part of its window's loss, so that the gradients of all parts add up to that of the mean over the window.
 * How many labels of the window count is known only at its end, and on the device: until then all are divided by as
 * many as there are (finish_gradients). */
static kiln_tensor *share_of_window(const kiln_training *t, const kiln_batch_loss *loss, const kiln_batch *b)
{
    if (is_whole_window(t, b))
        return kiln_batch_loss_mean(loss);
    double samples = (double)t->step_samples;
    return kiln_mul_scalar(loss->value,
                           loss->items ? 1 / (samples * (double)t->task.places) : (double)b->size / samples);
}

/* Counts the labels that count in the window so far. */
static bool count_items(kiln_training *t, const kiln_batch_loss *loss)
{
    kiln_tensor *before = t->step_seen > 0 ? t->step_items : NULL;
    return kiln_assign(t->step_items, before ? kiln_add(before, loss->items) : loss->items);
}

/* The gradients of the whole window, before they are clipped. Where no label counts they are 0, not NaN. */
static bool finish_gradients(kiln_training *t)
{
    kiln_tensor *items = kiln_clamp(t->step_items, 1, INFINITY);
    double places = (double)t->step_samples * (double)t->task.places;
    return kiln_grads_scale(kiln_parameters(t->model), kiln_rdiv_scalar(items, places));
}

/* One batch. The last one of its window also updates the weights, and forgets the gradients in the same step, so that
 * they need no memory beyond it. */
static bool write_step(kiln_training *t, const kiln_batch *b, bool last)
{
    kiln_tensor *output = kiln_forward(t->model, b->x);
    kiln_batch_loss loss = kiln_task_loss(&t->task, output, b->x, b->y);
    kiln_tensor *share = loss.value ? share_of_window(t, &loss, b) : NULL;
    bool counts = loss.items && !is_whole_window(t, b);
    if (share && t->scaler)
        share = kiln_scaler_scale(t->scaler, share);
    if (!share || !kiln_backward(share) || !kiln_meter_add(&t->meter, &loss, output, b->x, b->y, b->size))
        return false;
    if (counts && !count_items(t, &loss))
        return false;
    if (!last)
        return true;
    if ((counts && !finish_gradients(t)) || (t->scaler && !kiln_scaler_unscale(t->scaler, t->optim)))
        return false;
    if (t->o.clip_value > 0 && !kiln_clip_grad_value(kiln_parameters(t->model), t->o.clip_value))
        return false;
    if (t->o.clip_norm > 0 && !kiln_clip_grad_norm(kiln_parameters(t->model), t->o.clip_norm))
        return false;
    if (!take_step(t) || (t->o.ema && !kiln_ema_update(t->o.ema)))
        return false;
    kiln_zero_grad(t->optim);
    return true;
}

bool kiln_training_write(kiln_training *t, const kiln_batch *b, bool last)
{
    return write_step(t, b, last);
}

static bool record_batch(kiln_training *t, const kiln_batch *b, bool last)
{
    kiln_training_watch(t, b);
    kiln_step
        write_step(t, b, last);
    kiln_training_watched(t);
    return kiln_ok();
}

static bool train_batch(kiln_training *t, const kiln_batch *b, bool last)
{
    if (t->part < b->size)
        return kiln_training_split(t, b, last, write_step);
    uint64_t failures = kiln_fail_count();
    kiln_rerun_outcome outcome = kiln_training_rerun(t, b);
    if (outcome != KILN_RERUN_RECORD)
        return outcome == KILN_RERUN_DONE;
    const kiln_meter meter = t->meter;
    const kiln_random_state random = kiln_random_get();
    if (record_batch(t, b, last))
        return true;
    if (!kiln_training_shrink(t, b->size, b->size, failures))
        return false;
    t->meter = meter; /* it was counted and drawn for, and did not take place */
    kiln_random_set(random);
    return kiln_training_split(t, b, last, write_step);
}

/* ---- Showing and logging ---- */

static double epoch_seconds(const kiln_training *t)
{
    return t->spent + kiln_seconds() - t->begun;
}

static kiln_progress_line make_line(kiln_training *t, const kiln_result *train)
{
    kiln_progress_line l = {.epoch = t->epoch + 1,
                            .epochs = t->o.epochs,
                            .done = t->batch,
                            .total = t->batches,
                            .seconds = epoch_seconds(t),
                            .step = NAN,
                            .rate = NAN,
                            .wait = NAN,
                            .first = NAN};
    if (t->done_here > 0)
        l.step = (kiln_seconds() - t->begun) / (double)t->done_here;
    kiln_progress_result(&l, false, train, t->task.metrics);
    return l;
}

static bool show(kiln_training *t, const char *phase)
{
    kiln_totals totals;
    /* The end of an epoch has a line of its own. */
    bool counted = t->line_due && !phase && t->batch < t->batches && kiln_progress_plain(&t->progress);
    t->line_due = false;
    if (!counted && !kiln_progress_due(&t->progress, t->o.log_steps > 0))
        return true;
    if (!kiln_meter_read(&t->meter, &totals) || !kiln_training_check_loss(t, &totals, t->step))
        return false;
    kiln_result r = kiln_totals_result(&t->task, &totals);
    kiln_progress_line line = make_line(t, &r);
    line.phase = phase;
    line.step = phase ? NAN : line.step; /* the time of validation is none of a step's */
    kiln_progress_draw(&t->progress, &line);
    return true;
}

static void show_validation(void *context, kiln_meter *meter, int64_t done, int64_t total)
{
    (void)meter;
    char phase[64];
    snprintf(phase, sizeof phase, "validating %lld/%lld", (long long)done, (long long)total);
    show(context, phase);
}

/* After the first step of a call: how long it took, and the log's first line where the log is new. */
static bool note_first_step(kiln_training *t)
{
    if (!kiln_device_wait(t->device))
        return false;
    t->history.first_step = kiln_seconds() - t->called;
    if (t->log.journal.mark.bytes > 0)
        return true;
    kiln_log_about about = {.model = kiln_module_kind(t->model),
                            .data = t->data.name,
                            .optim = kiln_optim_name(t->optim),
                            .schedule = t->o.schedule ? kiln_schedule_name(t->o.schedule) : "constant",
                            .lr = t->lr,
                            .more = t->o.about,
                            .device = kiln_device_name(t->device),
                            .parameters = kiln_parameter_count(t->model),
                            .samples = t->data.count,
                            .validation_samples = t->o.validate ? kiln_data_count(t->o.validate) : 0,
                            .batch = t->o.batch,
                            .micro_batch = t->part < t->o.batch ? t->part : 0,
                            .accumulate = t->o.accumulate,
                            .epochs = t->o.epochs,
                            .seed = t->o.seed,
                            .tf32 = kiln_get_tf32(),
                            .autocast = kiln_autocast_dtype(),
                            .threads = kiln_get_num_threads(),
                            .first_step = t->history.first_step};
    return kiln_log_run(&t->log, &about);
}

/* ---- The batches of an epoch ---- */

static bool asked_to_stop(kiln_training *t)
{
    if (t->o.stop && *t->o.stop)
        t->history.stop = KILN_STOP_ASKED;
    return t->history.stop == KILN_STOP_ASKED;
}

static bool at_limit(const kiln_training *t)
{
    return t->o.limit > 0 && t->step >= t->o.limit;
}

/* A checkpoint that was asked for by the flag, once. */
static bool asked_to_save(kiln_training *t)
{
    if (t->o.save && *t->o.save) {
        *t->o.save = 0;
        t->save_asked = t->o.checkpoint != NULL;
    }
    return t->save_asked;
}

/* A checkpoint between two steps. At the very end of an epoch it waits until the epoch's results are in it. */
static bool save_between(kiln_training *t)
{
    bool asked = asked_to_save(t), due = t->o.save_steps > 0 && t->step % t->o.save_steps == 0;
    if (t->batch >= t->batches || !(asked || due))
        return true;
    return kiln_training_save(t);
}

static bool after_step(kiln_training *t)
{
    int64_t steps_in_epoch = (t->batch + t->o.accumulate - 1) / t->o.accumulate;
    bool first = t->history.first_step == 0;
    t->step++;
    t->dirty = true;
    t->line_due = t->o.log_steps > 0 && t->step % t->o.log_steps == 0;
    t->lr = kiln_optim_lr(t->optim, 0);
    if (first && !note_first_step(t))
        return false;
    if (t->o.schedule && !t->o.schedule_epochs && !kiln_schedule_advance(t->o.schedule))
        return false;
    if ((steps_in_epoch % KILN_COLLECT_EVERY == 0 || t->line_due) && !kiln_training_collect(t, steps_in_epoch))
        return false;
    for (int i = 0; i < t->o.ncallbacks; i++) {
        const kiln_callback *c = &t->o.callbacks[i];
        if (c->step && !c->step(c->context, t->epoch, t->step))
            t->history.stop = KILN_STOP_ASKED;
    }
    return kiln_ok() && save_between(t);
}

static int64_t samples_of_step(const kiln_training *t)
{
    int64_t samples = 0, end = t->batch + t->o.accumulate;
    for (int64_t i = t->batch; i < end && i < t->batches; i++)
        samples += kiln_loader_batch_size(t->loader, i);
    return samples;
}

/* A device may find an error some steps after the one that caused it. */
static bool fail_here(const kiln_training *t)
{
    int64_t batch = t->batch < t->batches ? t->batch + 1 : t->batches;
    if (strcmp(kiln_last_error()->operation, "fit") != 0) /* fit's own say where */
        kiln_error_place("found in epoch %lld at batch %lld of %lld of %s", (long long)t->epoch + 1, (long long)batch,
                         (long long)t->batches, t->data.name);
    return false;
}

/* From where it stands to the end of the epoch, or until it is to stop. Stops are between windows only. */
static bool train_batches(kiln_training *t)
{
    kiln_batch b;
    t->begun = kiln_seconds();
    t->waited_at = kiln_loader_waited(t->loader);
    t->done_here = 0;
    kiln_training_expect_reruns(t);
    while (t->batch < t->batches) {
        if (t->batch % t->o.accumulate == 0) {
            if (asked_to_stop(t) || at_limit(t))
                return true;
            t->step_samples = samples_of_step(t);
            t->step_seen = 0;
        }
        if (!kiln_loader_next(t->loader, &b))
            return kiln_ok() ? kiln_fail(KILN_E_STATE, "fit", "%s ended after %lld of %lld batches", t->data.name,
                                         (long long)t->batch, (long long)t->batches)
                             : false;
        bool last = (t->batch + 1) % t->o.accumulate == 0 || t->batch + 1 == t->batches;
        if (!train_batch(t, &b, last))
            return false;
        t->step_seen += b.size;
        t->batch++;
        t->done_here++;
        if ((last && !after_step(t)) || !show(t, NULL))
            return false;
        /* The end of the epoch, so that workers begin with the next one. */
        if (t->batch == t->batches && (kiln_loader_next(t->loader, &b) || !kiln_ok()))
            return false;
    }
    asked_to_stop(t);
    return true;
}

/* After an error, too, the log tells of all that went well before it. */
static bool train_to_end(kiln_training *t)
{
    bool done = train_batches(t);
    return kiln_training_collect_all(t) && done;
}

/* ---- The end of an epoch ---- */

/* Validation, and the best weights, both with the averaged weights where there are such. */
static bool look_at_weights(kiln_training *t, kiln_epoch *e, bool *better)
{
    kiln_pass pass = {.model = t->model,
                      .data = t->o.validate,
                      .task = &t->validation,
                      .batch = t->part < t->o.batch ? t->part : t->o.batch,
                      .workers = t->o.workers,
                      .meter = &t->validation_meter,
                      .stop = t->o.stop,
                      .show = show_validation,
                      .context = t};
    if (t->o.validate && !kiln_pass_run(&pass, &e->test))
        return false;
    if (t->o.validate && e->test.samples < kiln_data_count(t->o.validate))
        return true; /* stopped */
    double loss = t->o.validate ? e->test.loss : e->train.loss;
    *better = loss < t->best;
    return !*better || kiln_training_save_best(t);
}

static bool look_at_averages(kiln_training *t, kiln_epoch *e, bool *better)
{
    if (!t->o.ema)
        return look_at_weights(t, e, better);
    if (!kiln_ema_swap(t->o.ema))
        return false;
    bool done = look_at_weights(t, e, better);
    return kiln_ema_swap(t->o.ema) && done;
}

static void show_epoch(kiln_training *t, const kiln_epoch *e, bool better)
{
    kiln_progress_line line = make_line(t, &e->train);
    if (t->o.validate)
        kiln_progress_result(&line, true, &e->test, t->task.metrics);
    line.finished = true;
    line.best = better;
    line.seconds = e->seconds;
    line.step = t->done_here > 0 ? (e->train.seconds - t->spent) / (double)t->done_here : NAN;
    line.rate = e->samples_per_second;
    line.wait = e->data_wait;
    if (t->history.count == 1 && t->history.first_step > 0)
        line.first = t->history.first_step;
    kiln_progress_draw(&t->progress, &line);
}

static bool tell_epoch(kiln_training *t, const kiln_epoch *e)
{
    for (int i = 0; i < t->o.ncallbacks; i++) {
        const kiln_callback *c = &t->o.callbacks[i];
        if (c->epoch && !c->epoch(c->context, e))
            t->history.stop = KILN_STOP_ASKED;
    }
    return kiln_ok();
}

/* Results of what was trained in this epoch: all of it, or the part up to the limit of steps. */
static bool report_epoch(kiln_training *t)
{
    kiln_totals totals;
    bool better = false;
    kiln_epoch e = {.epoch = t->epoch, .lr = t->lr};
    if (!kiln_meter_read(&t->meter, &totals) || !kiln_training_check_loss(t, &totals, t->step))
        return fail_here(t);
    /* Only now are the epoch's steps over, on a device that runs on. */
    double seconds = epoch_seconds(t), waited = t->waited + kiln_loader_waited(t->loader) - t->waited_at;
    e.train = kiln_totals_result(&t->task, &totals);
    e.train.seconds = seconds;
    e.test = (kiln_result){.loss = NAN, .accuracy = NAN, .top5 = NAN, .perplexity = NAN, .mae = NAN};
    if (!look_at_averages(t, &e, &better))
        return false;
    if (t->o.validate && e.test.samples < kiln_data_count(t->o.validate)) {
        t->history.stop = KILN_STOP_ASKED; /* stopped in the middle: done again when it goes on */
        return true;
    }
    e.seconds = seconds + e.test.seconds;
    e.samples_per_second = seconds > 0 ? (double)totals.samples / seconds : 0;
    e.data_wait = seconds > 0 ? waited / seconds : 0;
    if (t->scaler) {
        kiln_scaler_state s = kiln_scaler_get(t->scaler);
        e.scale = s.scale;
        e.skipped = s.skipped;
        kiln_scaler_culprit culprit = kiln_scaler_blame(t->scaler, t->optim);
        e.culprit = culprit.parameter;
        e.bad_values = culprit.values;
    }
    t->bad = better ? 0 : t->bad + 1;
    if (better) {
        t->best = t->o.validate ? e.test.loss : e.train.loss;
        t->history.best = t->epoch;
    }
    if (!kiln_history_add(&t->history_file, &t->history, &e) || !kiln_log_epoch(&t->log, &e, t->step))
        return false;
    show_epoch(t, &e, better);
    return tell_epoch(t, &e);
}

static void begin_next_epoch(kiln_training *t)
{
    t->epoch++;
    t->batch = 0;
    t->dirty = true;
    t->spent = t->waited = 0;
    t->line = (kiln_totals){0};
    kiln_meter_reset(&t->meter);
}

static bool advance_schedule(kiln_training *t)
{
    const kiln_epoch *e = &t->history.epochs[t->history.count - 1];
    kiln_schedule *s = t->o.schedule;
    if (!s)
        return true;
    return kiln_schedule_observe(s, t->o.validate ? e->test.loss : e->train.loss) &&
           (!t->o.schedule_epochs || kiln_schedule_advance(s));
}

static bool end_epoch(kiln_training *t)
{
    int64_t epochs_before = t->history.count;
    /* Where the best weights are there is a checkpoint: a run that is killed between the two can be resumed. */
    if (!t->saved && !kiln_training_save(t))
        return false;
    if (!report_epoch(t))
        return false;
    if (t->history.count == epochs_before)
        return true; /* stopped while validating */
    if (!advance_schedule(t))
        return false;
    begin_next_epoch(t);
    bool due = t->o.save_steps == 0 || t->step % t->o.save_steps == 0 || asked_to_save(t);
    return !due || kiln_training_save(t);
}

/* ---- The run ---- */

static bool ran_out_of_patience(kiln_training *t)
{
    if (t->o.early_stop > 0 && t->bad >= t->o.early_stop)
        t->history.stop = KILN_STOP_EARLY;
    return t->history.stop == KILN_STOP_EARLY;
}

static bool run(kiln_training *t)
{
    if (t->resumed && (t->epoch >= t->o.epochs || at_limit(t) || (t->batch == 0 && ran_out_of_patience(t))))
        kiln_progress_note(&t->progress, "Nothing to do: the checkpoint in %s has %lld epochs and %lld steps behind it",
                           t->o.checkpoint, (long long)t->epoch, (long long)t->step);
    while (t->epoch < t->o.epochs && !(t->batch == 0 && ran_out_of_patience(t))) {
        if (!train_to_end(t))
            return fail_here(t);
        if (t->history.stop == KILN_STOP_ASKED)
            break;
        if (t->batch < t->batches) { /* the limit of steps: the rest of the epoch is for a run that goes on */
            if (t->dirty && !kiln_training_save(t))
                return false;
            return t->done_here == 0 || report_epoch(t);
        }
        if (!end_epoch(t))
            return false;
        if (t->history.stop == KILN_STOP_ASKED)
            break;
    }
    return !t->dirty || kiln_training_save(t);
}

static kiln_history fit(kiln_module *model, kiln_dataset *train, const kiln_fit_options *options)
{
    kiln_training t = {.model = model, .called = kiln_seconds(), .best = INFINITY, .lr = NAN};
    t.history.best = -1;
    t.log.journal.file = t.history_file.journal.file = t.folder = -1;
    t.history.stop = KILN_STOP_ERROR;
    kiln_modes modes;
    if (!KILN_TAKE_OPTIONS("fit", t.o, options) || !kiln_can_begin("fit", model, train) ||
        !kiln_modes_get(&modes, model))
        return t.history;
    t.history_file.folder = t.o.checkpoint;
    t.history.stop = KILN_STOP_DONE;
    t.device = kiln_module_device(model);
    kiln_progress_init(&t.progress, t.o.progress);
    if (!kiln_module_training(model)) /* otherwise parts that are in eval mode are so on purpose */
        kiln_module_train(model, true);
    bool done = false;
    kiln_on_device (t.device)
        kiln_autocast (t.o.autocast ? t.o.autocast : kiln_autocast_dtype())
            if (!(done = kiln_ok() && kiln_training_prepare(&t, train) && run(&t)))
                kiln_training_name_batch(&t, train);
    if (!done || !kiln_ok())
        t.history.stop = KILN_STOP_ERROR;
    kiln_progress_close(&t.progress);
    kiln_log_close(&t.log);
    kiln_history_close(&t.history_file);
    if (t.folder >= 0)
        close(t.folder);
    kiln_rerun_free(&t.rerun);
    kiln_loader_free(t.loader);
    kiln_meter_free(&t.meter);
    kiln_release(t.step_items);
    kiln_meter_free(&t.validation_meter);
    if (t.optim)
        kiln_zero_grad(t.optim);
    if (t.own_scaler)
        kiln_scaler_free(t.scaler);
    if (t.own_optim)
        kiln_optim_free(t.optim);
    kiln_modes_restore(&modes, model);
    t.history.steps = t.step;
    return t.history;
}

void kiln_fit_(kiln_module *model, kiln_dataset *train, const kiln_fit_options *options, kiln_history *history,
               size_t size)
{
    const kiln_history own = fit(model, train, options);
    KILN_GIVE_SIZED(history, size, own);
}

void kiln_history_free(kiln_history *h) /* which may be shorter than ours */
{
    if (!h)
        return;
    for (int64_t i = 0; i < h->count; i++) {
        kiln_result_free(&h->epochs[i].train);
        kiln_result_free(&h->epochs[i].test);
        kiln_free((char *)h->epochs[i].culprit);
    }
    kiln_free(h->epochs);
    h->epochs = NULL;
    h->count = h->steps = 0;
    h->best = -1;
}
