/* What a step of kiln_fit will take of memory, and the largest batch that fits: fit's own step is recorded with a batch
 * that has only a shape, planned, and forgotten. Nothing runs, and nothing that counts is changed: the random state is
 * put back, and the optimizer finds that the steps did not take place. */
#include <string.h>
#include "core/fail.h"
#include "core/largest.h"
#include "core/sized.h"
#include "data/loader.h"
#include "kiln/grad.h"
#include "plan/backend.h"
#include "train/evaluate.h"
#include "train/training.h"

/* ---- One batch size ---- */

/* Plans what `write` records for a batch; *peak: scratch and results. */
typedef struct look {
    kiln_training *t;
    kiln_dataset *data;
    bool validates, last;
    bool rests; /* the last batch is looked at, too */
} look;

static void record(const look *l, const kiln_batch *b)
{
    kiln_training *t = l->t;
    if (!l->validates) {
        kiln_training_write(t, b, l->last);
        return;
    }
    kiln_no_grad {
        kiln_tensor *output = kiln_forward(t->model, b->x);
        kiln_batch_loss loss = kiln_task_loss(&t->validation, output, b->x, b->y);
        if (loss.value)
            kiln_meter_add(&t->meter, &loss, output, b->x, b->y, b->size);
    }
}

static bool plan_step(const look *l, const kiln_batch *b, bool lower, uint64_t *peak)
{
    kiln_plan_info info = {0};
    bool ok = false;
    kiln_meter meter = l->t->meter;
    kiln_step {
        record(l, b);
        ok = kiln_ok() && (lower ? kiln_plan_pending(&info) : kiln_plan_sketch(&info));
        kiln_discard();
    }
    l->t->meter = meter; /* it has counted samples */
    kiln_zero_grad(l->t->optim);
    *peak = (uint64_t)info.peak_bytes;
    return ok && kiln_ok();
}

static bool look_at(const look *l, int64_t batch, bool lower, uint64_t *peak, kiln_loader_room *room)
{
    kiln_training *t = l->t;
    kiln_batch b;
    kiln_loader_options o = {.batch = batch, .workers = t->o.workers, .device = t->device};
    if (!l->validates) {
        o.shuffle = !t->o.no_shuffle;
        o.augment = t->o.augment;
    }
    if (!kiln_loader_sketch(l->data, &o, &b, room))
        return false;
    t->step_samples = batch * t->o.accumulate;
    bool ok = plan_step(l, &b, lower, peak);
    kiln_release(b.x);
    kiln_release(b.y);
    return ok;
}

static uint64_t gradient_bytes(kiln_module *model)
{
    kiln_params p = kiln_parameters(model);
    uint64_t bytes = 0;
    for (int64_t i = 0; i < p.count; i++)
        bytes += (uint64_t)kiln_numel(p.tensors[i]) * kiln_dtype_size(kiln_dtype_of(p.tensors[i]));
    return bytes;
}

/* The last, shorter batch: a kernel for fewer samples may be another one, which needs more. */
static bool look_at_rest(const look *l, int64_t batch, uint64_t *peak)
{
    kiln_loader_room room;
    int64_t rest = l->rests ? kiln_data_count(l->data) % batch : 0;
    uint64_t own = 0, failures = kiln_fail_count();
    if (rest && !look_at(l, rest, false, &own, &room)) {
        if (kiln_last_error()->code == KILN_E_MEMORY)
            return false;
        kiln_fail_forget(failures); /* batch norm does not train with a single sample: the loader's to tell */
    }
    *peak = own > *peak ? own : *peak;
    return true;
}

/* Gradients of the window's other batches are there beside the last one. *held: what the loader has while it
 * validates. */
static bool look_at_training(kiln_training *t, kiln_dataset *train, int64_t batch, bool lower, kiln_forecast *f,
                             uint64_t *held)
{
    uint64_t first = 0;
    kiln_loader_room room;
    look l = {.t = t, .data = train, .last = true, .rests = t->forecasts_rests};
    if (!look_at(&l, batch, lower, &f->step, &room) || !look_at_rest(&l, batch, &f->step))
        return false;
    if (t->o.accumulate > 1) {
        f->step += gradient_bytes(t->model);
        l.last = false;
        if (!look_at(&l, batch, lower, &first, &room))
            return false;
        if (t->o.accumulate > 2) /* those between the first and the last make new gradients beside the old ones */
            first += gradient_bytes(t->model);
        f->step = first > f->step ? first : f->step;
    }
    f->batches = room.working;
    f->peak = f->batches + f->step;
    *held = t->o.limit > 0 ? room.working : room.resting; /* the limit may come in the middle of an epoch */
    return true;
}

/* While it validates, the loader of the batches to train with is still there. */
static bool look_at_validation(kiln_training *t, int64_t batch, uint64_t held, kiln_forecast *f)
{
    int64_t count = t->o.validate ? kiln_data_count(t->o.validate) : 0;
    uint64_t peak;
    kiln_loader_room room;
    kiln_modes modes;
    look l = {.t = t, .data = t->o.validate, .validates = true, .rests = t->forecasts_rests && batch < count};
    if (count <= 0 || !kiln_modes_get(&modes, t->model))
        return count <= 0;
    kiln_module_train(t->model, false);
    bool ok = look_at(&l, batch < count ? batch : count, false, &peak, &room) && look_at_rest(&l, batch, &peak);
    kiln_modes_restore(&modes, t->model);
    if (ok && held + room.working + peak > f->peak)
        f->peak = held + room.working + peak;
    return ok;
}

/* ---- The device ---- */

/* What a GPU takes for itself grows when steps run: for graphs, and for kernels that libraries load when they launch
 * them first (15 MiB were seen with resnet18). A share of what is left is kept for that, but at least so much. */
static int64_t growing(int64_t left)
{
    enum { LEAST = 32 << 20 };
    int64_t reserve = left / 64 > LEAST ? left / 64 : LEAST;
    return reserve < left ? reserve : left;
}

/* What may still be taken. Without a limit some is left to others: of the host's memory more, since who takes too much
 * of that is ended. */
static uint64_t room_left(kiln_device device, const kiln_memory_stats *stats)
{
    int64_t left = kiln_memory_available(device), limited = kiln_memory_left(device);
    if (left < 0)
        return 0;
    if (left < limited)
        return (uint64_t)(left - (device == KILN_CPU ? left / 8 : growing(left)));
    return (uint64_t)(stats->overhead ? left - growing(left) : left);
}

static bool look_at_device(const kiln_training *t, kiln_forecast *f, uint64_t *left)
{
    kiln_memory_stats stats;
    if (!kiln_memory_get_stats(t->device, &stats))
        return false;
    f->in_use = stats.in_use;
    f->overhead = stats.overhead;
    *left = room_left(t->device, &stats);
    f->room = f->in_use + f->overhead + *left;
    return true;
}

static bool look_at_batch(kiln_training *t, kiln_dataset *train, int64_t batch, bool lower, kiln_forecast *f)
{
    uint64_t held;
    enum { LITTLE = 4096 }; /* sums of a validation, receipts */
    f->batch = batch;
    if (!look_at_training(t, train, batch, lower, f, &held) || !look_at_validation(t, batch, held, f))
        return false;
    f->peak += LITTLE;
    return true;
}

/* ---- The largest batch ---- */

/* Whether it fits; *at is what was found out about it. Batch norm does not train with a batch of 1, which then is one
 * that does not fit. */
static bool try_batch(kiln_training *t, kiln_dataset *train, int64_t batch, double left, kiln_forecast *at,
                      double *spare)
{
    uint64_t failures = kiln_fail_count();
    *spare = -1;
    if (!look_at_batch(t, train, batch, false, at)) {
        kiln_code code = kiln_last_error()->code;
        if (batch > 1 || (code != KILN_E_SHAPE && code != KILN_E_ARGUMENT))
            return false;
        kiln_fail_forget(failures);
        return true;
    }
    *spare = left - (double)at->peak;
    return true;
}

/* The largest batch whose peak beside what is in use fits into `left`; f->batch 0 where there is none. A quarter of a
 * percent is near enough. */
static bool search(kiln_training *t, kiln_dataset *train, uint64_t left, kiln_forecast *f)
{
    kiln_largest l = {.most = kiln_data_count(train), .inexact = 400};
    kiln_forecast start = *f, at;
    double spare;
    f->batch = 0;
    for (int64_t batch; (batch = kiln_largest_next(&l));) {
        at = start;
        if (!try_batch(t, train, batch, (double)left, &at, &spare))
            return false;
        kiln_largest_tell(&l, batch, spare);
        if (spare >= 0)
            *f = at;
    }
    return true;
}

/* The batch that was found, or the next one below whose last, shorter batch fits as well. */
static bool leave_room_for_rests(kiln_training *t, kiln_dataset *train, uint64_t left, kiln_forecast *f)
{
    bool ok = true;
    t->forecasts_rests = true;
    while (ok && f->batch && (ok = look_at_batch(t, train, f->batch, false, f)) && f->peak > left)
        f->batch -= 1 + f->batch / 64;
    t->forecasts_rests = false;
    return ok;
}

/* Lowering the plan, which is needed anyway, may make a device take memory for its libraries: looked at again then. */
static bool find_largest(kiln_training *t, kiln_dataset *train, kiln_forecast *f)
{
    uint64_t left, after, held;
    enum { TRIES = 4 };
    for (int i = 0; i < TRIES; i++) {
        if (!look_at_device(t, f, &left) || !search(t, train, left, f) || !leave_room_for_rests(t, train, left, f))
            return false;
        if (!f->batch || t->device == KILN_CPU)
            return true;
        kiln_forecast lowered = *f;
        if (!look_at_training(t, train, f->batch, true, &lowered, &held) || !look_at_device(t, f, &after))
            return false;
        if (f->peak <= after)
            return true;
    }
    return true;
}

bool kiln_training_forecast(kiln_training *t, kiln_dataset *train, int64_t batch, kiln_forecast *f)
{
    kiln_random_state random = kiln_random_get();
    uint64_t left;
    *f = (kiln_forecast){0};
    kiln_optim_state(t->optim); /* made now, as the first step would */
    bool ok = kiln_ok() &&
              (batch == KILN_BATCH_AUTO ? find_largest(t, train, f)
                                        : look_at_batch(t, train, batch, false, f) && look_at_device(t, f, &left));
    f->peak += f->batch ? f->in_use + f->overhead : 0;
    kiln_random_set(random);
    return ok;
}

bool kiln_training_find_batch(kiln_training *t, kiln_dataset *train)
{
    kiln_forecast f;
    if (!kiln_training_forecast(t, train, KILN_BATCH_AUTO, &f))
        return false;
    if (f.batch) {
        kiln_training_set_batch(t, f.batch);
        return true;
    }
    kiln_fail(KILN_E_MEMORY, "fit", "not even a batch of 1 fits into %.2f MiB of %s, of which %.2f MiB are in use",
              (double)f.room / (1 << 20), kiln_device_name(t->device), (double)f.in_use / (1 << 20));
    return kiln_hint("use a smaller model, or raise the limit");
}

/* Refused steps name a batch themselves (plan/refuse.c); a block that could not be had knows of none. */
void kiln_training_name_batch(kiln_training *t, kiln_dataset *train)
{
    const kiln_error met = *kiln_last_error();
    kiln_forecast f;
    if (met.code != KILN_E_MEMORY || strcmp(met.operation, "memory") != 0 || !t->optim)
        return;
    kiln_error_clear();
    kiln_loader_free(t->loader);
    t->loader = NULL;
    kiln_zero_grad(t->optim);
    bool found = kiln_training_forecast(t, train, KILN_BATCH_AUTO, &f) && f.batch && f.batch < t->o.batch;
    kiln_error_clear();
    kiln_fail_again(&met);
    if (found)
        kiln_hint("a batch of %lld instead of %lld would fit, with those that the loader keeps ready",
                  (long long)f.batch, (long long)t->o.batch);
}

/* ---- Public ---- */

static bool forecast(kiln_module *model, kiln_dataset *train, const kiln_fit_options *options, kiln_forecast *f)
{
    kiln_training t = {.model = model};
    kiln_modes modes;
    if (!KILN_TAKE_OPTIONS("fit_forecast", t.o, options) || !kiln_can_begin("fit_forecast", model, train) ||
        !kiln_modes_get(&modes, model))
        return false;
    t.device = kiln_module_device(model);
    if (!kiln_module_training(model))
        kiln_module_train(model, true);
    bool ok = false;
    kiln_on_device (t.device)
        kiln_autocast (t.o.autocast ? t.o.autocast : kiln_autocast_dtype())
            ok = kiln_ok() && kiln_training_equip(&t, train) &&
                 kiln_training_forecast(&t, train, t.auto_batch ? KILN_BATCH_AUTO : t.o.batch, f);
    kiln_meter_free(&t.meter);
    kiln_release(t.step_items);
    if (t.optim)
        kiln_zero_grad(t.optim);
    if (t.own_scaler)
        kiln_scaler_free(t.scaler);
    if (t.own_optim)
        kiln_optim_free(t.optim);
    kiln_modes_restore(&modes, model);
    return ok;
}

bool kiln_fit_forecast_(kiln_module *model, kiln_dataset *train, const kiln_fit_options *options, kiln_forecast *result,
                        size_t size)
{
    kiln_forecast own = {0};
    bool ok = forecast(model, train, options, &own);
    if (!ok)
        own = (kiln_forecast){0};
    if (result)
        KILN_GIVE_SIZED(result, size, own);
    return ok;
}
