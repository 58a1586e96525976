/* What happens before the first step of kiln_fit: options are checked, model, data and loss are held against each
 * other, and the parts of the run are made, or found again in a checkpoint. */
#include "train/training.h"

#include <string.h>
#include "core/fail.h"
#include "core/sized.h"
#include "kiln/ops.h"
#include "ops/op.h"

void kiln_training_set_batch(kiln_training *t, int64_t batch)
{
    t->o.batch = batch;
    t->part = t->o.micro_batch && t->o.micro_batch < batch ? t->o.micro_batch : batch;
}

static bool fill_options(kiln_training *t, int64_t samples)
{
    kiln_fit_options *o = &t->o;
    t->auto_batch = o->batch == KILN_BATCH_AUTO;
    o->batch = t->auto_batch ? 1 : o->batch; /* until it is found */
    const struct {
        const char *name;
        double value;
    } all[] = {{"epochs", (double)o->epochs},         {"batch", (double)o->batch},
               {"accumulate", (double)o->accumulate}, {"clip_norm", o->clip_norm},
               {"clip_value", o->clip_value},         {"early_stop", (double)o->early_stop},
               {"limit", (double)o->limit},           {"save_steps", (double)o->save_steps},
               {"log_steps", (double)o->log_steps},   {"workers", (double)o->workers},
               {"ncallbacks", (double)o->ncallbacks}, {"micro_batch", (double)o->micro_batch}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!(all[i].value >= 0))
            return kiln_fail(KILN_E_ARGUMENT, "fit", "%s is %g: it must not be negative", all[i].name, all[i].value);
    if (o->save_dtype && !kiln_dtype_is_float(o->save_dtype))
        return kiln_fail(KILN_E_DTYPE, "fit", "weights cannot be saved as %s", kiln_dtype_name(o->save_dtype));
    if (o->ncallbacks && !o->callbacks)
        return kiln_fail(KILN_E_ARGUMENT, "fit", "there are %d callbacks, but .callbacks is NULL", o->ncallbacks);
    for (int i = 0; i < o->ncallbacks; i++)
        if (!KILN_UNUSED("fit", o->callbacks[i].reserved_))
            return false;
    o->epochs = o->epochs ? o->epochs : 1;
    if (!o->batch) /* one that was asked for and is more than there are samples is the loader's to refuse */
        o->batch = samples < 32 && samples > 0 ? samples : 32;
    o->accumulate = o->accumulate ? o->accumulate : 1;
    if ((unsigned)o->fit_memory > KILN_FIT_LOCAL)
        return kiln_fail(KILN_E_ARGUMENT, "fit", "fit_memory is %d: there is no such way", (int)o->fit_memory);
    kiln_training_set_batch(t, o->batch);
    o->metrics &= ~(unsigned)KILN_CONFUSION; /* evaluate's alone */
    if (o->schedule && !o->optim)
        return kiln_fail(KILN_E_ARGUMENT, "fit", "a schedule needs the optimizer it was made for in .optim");
    if (o->resume && !o->checkpoint)
        return kiln_fail(KILN_E_ARGUMENT, "fit", "to resume, the folder with the checkpoints is needed in .checkpoint");
    return true;
}

static bool same_item(const kiln_field *a, const kiln_field *b)
{
    return a->dtype == b->dtype &&
           (a->dtype == KILN_DTYPES || (a->ndim == b->ndim && a->ndim <= KILN_MAX_DIMS &&
                                        memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof *a->shape) == 0));
}

static const char *last_layer(const kiln_module *m)
{
    while (!strcmp(kiln_module_kind(m), "Sequential") && kiln_module_children(m) > 0)
        m = kiln_module_child_at(m, kiln_module_children(m) - 1, NULL);
    return kiln_module_kind(m);
}

/* These losses normalise what they are given: it trains, but badly, and nothing else says why. */
static void notice_normalised_twice(const kiln_training *t)
{
    const char *last = last_layer(t->model);
    if (t->o.loss_fn)
        return;
    if (t->o.loss == KILN_CROSS_ENTROPY && !strcmp(last, "Softmax"))
        kiln_notice(
            "the model ends in a softmax, and cross-entropy takes one itself: gradients become very small. Leave "
            "the last layer out; kiln_softmax of the outputs gives probabilities");
    if (t->o.loss == KILN_BCE_LOGITS && !strcmp(last, "Sigmoid"))
        kiln_notice(
            "the model ends in a sigmoid, and the loss takes one itself: gradients become very small. Leave the "
            "last layer out; kiln_sigmoid of the outputs gives probabilities");
}

static bool check_data(kiln_training *t, kiln_dataset *train)
{
    t->data = kiln_data_describe(train);
    t->task = (kiln_task){
        .loss = t->o.loss, .loss_fn = t->o.loss_fn, .loss_context = t->o.loss_context, .metrics = t->o.metrics};
    t->validation = t->task;
    if (!kiln_task_check(&t->task, t->model, train, t->o.batch, "fit"))
        return false;
    if (!t->o.validate)
        return true;
    kiln_data_info test = kiln_data_describe(t->o.validate);
    const kiln_field *a = &t->data.x, *b = &test.x;
    const char *side = "inputs";
    if (same_item(a, b)) {
        a = &t->data.y, b = &test.y;
        side = "targets";
    }
    if (test.count > 0 && !same_item(a, b))
        return kiln_fail(KILN_E_SHAPE, "fit", "%s to validate with has %s %s %s, %s to train with has %s %s", test.name,
                         side, kiln_dtype_name(b->dtype), kiln_shape_text(b->ndim, b->shape), t->data.name,
                         kiln_dtype_name(a->dtype), kiln_shape_text(a->ndim, a->shape));
    return kiln_task_check(&t->validation, t->model, t->o.validate, t->o.batch, "fit");
}

static bool place_loader(kiln_training *t, kiln_dataset *train)
{
    t->loader = kiln_loader_new(train, .batch = t->o.batch, .shuffle = !t->o.no_shuffle, .seed = t->o.seed,
                                .augment = t->o.augment, .workers = t->o.workers, .device = t->device);
    if (!t->loader)
        return false;
    t->batches = kiln_loader_batches(t->loader);
    if (t->epoch < 0 || t->batch < 0 || t->batch > t->batches)
        return kiln_fail(KILN_E_FORMAT, "fit", "the checkpoint in %s stands at batch %lld of epoch %lld: %s has %lld",
                         t->o.checkpoint, (long long)t->batch, (long long)t->epoch + 1, t->data.name,
                         (long long)t->batches);
    if (t->epoch == 0 && t->batch == 0)
        return true;
    return t->batch < t->batches ? kiln_loader_seek(t->loader, t->epoch, t->batch)
                                 : kiln_loader_seek(t->loader, t->epoch + 1, 0);
}

/* A step of several batches whose labels do not all count. */
static bool make_step_items(kiln_training *t)
{
    if ((t->o.accumulate > 1 || t->o.fit_memory || t->o.micro_batch) && kiln_task_sums_items(&t->task))
        t->step_items = kiln_keep(kiln_tensor_new(NULL, KILN_F32, 0, NULL, t->device));
    return kiln_ok();
}

static bool open_log(kiln_training *t)
{
    bool ok = kiln_log_open(&t->log, t->o.log, t->task.metrics, t->o.validate != NULL, t->scaler != NULL, t->log_mark);
    t->log.device = t->device;
    return ok;
}

bool kiln_training_equip(kiln_training *t, kiln_dataset *train)
{
    kiln_random_state random = kiln_random_get();
    bool fits = fill_options(t, kiln_data_count(train)) && check_data(t, train);
    kiln_random_set(random); /* looking at shapes draws nothing */
    if (!fits)
        return false;
    t->optim = t->o.optim;
    if (!t->optim) {
        t->optim = kiln_optim_adam(kiln_parameters(t->model));
        t->own_optim = true;
    }
    if (!t->optim)
        return false;
    t->scaler = t->o.scaler;
    if (!t->scaler && kiln_autocast_dtype() == KILN_F16) {
        t->scaler = kiln_scaler_new();
        t->own_scaler = true;
        if (!t->scaler)
            return false;
    }
    kiln_zero_grad(t->optim);
    return kiln_meter_init(&t->meter, &t->task, t->device, false) && make_step_items(t);
}

bool kiln_training_prepare(kiln_training *t, kiln_dataset *train)
{
    if (!kiln_training_equip(t, train))
        return false;
    notice_normalised_twice(t);
    return kiln_training_resume(t) && (!t->auto_batch || kiln_training_find_batch(t, train)) &&
           place_loader(t, train) && open_log(t);
}
