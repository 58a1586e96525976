/* evaluate and predict: passes over a data set in eval mode, without gradients. */
#include "core/sized.h"
#include "train/evaluate.h"

#include <math.h>
#include <string.h>
#include "core/alloc.h"
#include "core/fail.h"
#include "kiln/grad.h"
#include "train/progress.h"
#include "trace/shapes.h"

/* ---- What all calls begin with ---- */

bool kiln_can_begin(const char *operation, const kiln_module *model, const kiln_dataset *data)
{
    if (!kiln_ok())
        return false; /* hours of work on top of an error help nobody */
    if (!model || !data)
        return kiln_fail(KILN_E_ARGUMENT, operation, "there is no %s", model ? "data set" : "model");
    return kiln_shapes_refuse(operation);
}

static bool get_modes(kiln_modes *modes, const kiln_module *m)
{
    if (!KILN_GROW(modes->training, modes->room, modes->count + 1))
        return false;
    modes->training[modes->count++] = kiln_module_training(m);
    for (int i = 0; i < kiln_module_children(m); i++)
        if (!get_modes(modes, kiln_module_child_at(m, i, NULL)))
            return false;
    return true;
}

bool kiln_modes_get(kiln_modes *modes, const kiln_module *m)
{
    *modes = (kiln_modes){0};
    if (get_modes(modes, m))
        return true;
    kiln_free(modes->training);
    return false;
}

/* kiln_module_train sets whole trees, so parents come first. */
static void restore_modes(kiln_modes *modes, kiln_module *m)
{
    kiln_module_train(m, modes->training[modes->count++]);
    for (int i = 0; i < kiln_module_children(m); i++)
        restore_modes(modes, kiln_module_child_at(m, i, NULL));
}

void kiln_modes_restore(kiln_modes *modes, kiln_module *m)
{
    modes->count = 0;
    restore_modes(modes, m);
    kiln_free(modes->training);
    *modes = (kiln_modes){0};
}

/* ---- A pass ---- */

static bool pass_batch(const kiln_pass *p, kiln_meter *meter, const kiln_batch *b)
{
    kiln_no_grad
        kiln_step {
            kiln_tensor *output = kiln_forward(p->model, b->x);
            kiln_batch_loss loss = kiln_task_loss(p->task, output, b->x, b->y);
            if (loss.value)
                kiln_meter_add(meter, &loss, output, b->x, b->y, b->size);
        }
    if (!kiln_ok())
        kiln_error_place("batch %lld of %s", (long long)b->index + 1, kiln_data_describe(p->data).name);
    return kiln_ok();
}

static bool pass_all(const kiln_pass *p, kiln_loader *loader, kiln_meter *meter, kiln_result *r)
{
    kiln_batch b;
    kiln_totals totals = {0};
    int64_t total = kiln_loader_batches(loader);
    while (!(p->stop && *p->stop) && kiln_loader_next(loader, &b)) {
        if (!pass_batch(p, meter, &b))
            return false;
        if ((b.index + 1) % KILN_COLLECT_EVERY == 0 && !kiln_meter_collect(meter))
            return false;
        if (p->show)
            p->show(p->context, meter, b.index + 1, total);
    }
    if (!kiln_ok() || !kiln_meter_read(meter, &totals))
        return false;
    *r = kiln_totals_result(p->task, &totals);
    return kiln_meter_confusion(meter, r);
}

/* The caller's from an earlier pass as new, or one for this pass. */
static bool ready_meter(const kiln_pass *p, kiln_meter *meter, kiln_device device)
{
    if (!meter->task)
        return kiln_meter_init(meter, p->task, device, p->confusion);
    kiln_meter_reset(meter);
    return true;
}

bool kiln_pass_run(const kiln_pass *p, kiln_result *r)
{
    double begun = kiln_seconds();
    kiln_random_state random = kiln_random_get(); /* validation must not change what training draws */
    kiln_device device = kiln_module_device(p->model);
    kiln_modes modes;
    kiln_meter own = {0}, *meter = p->meter ? p->meter : &own;
    bool done = false;
    if (!kiln_modes_get(&modes, p->model))
        return false;
    kiln_module_train(p->model, false);
    int64_t count = kiln_data_count(p->data), batch = p->batch < count ? p->batch : count;
    kiln_loader *loader = kiln_loader_new(p->data, .batch = batch, .workers = p->workers, .device = device);
    kiln_on_device (device)
        done = loader && ready_meter(p, meter, device) && pass_all(p, loader, meter, r);
    kiln_loader_free(loader);
    if (!p->meter)
        kiln_meter_free(meter);
    kiln_modes_restore(&modes, p->model);
    kiln_random_set(random);
    r->seconds = kiln_seconds() - begun;
    return done;
}

/* ---- evaluate ---- */

typedef struct shown {
    kiln_progress progress;
    const kiln_task *task;
    double begun;
} shown;

static void show(void *context, kiln_meter *meter, int64_t done, int64_t total)
{
    shown *s = context;
    kiln_totals totals;
    if (done < total && !kiln_progress_due(&s->progress, false))
        return;
    if (!s->progress.file || !kiln_meter_read(meter, &totals))
        return;
    double seconds = kiln_seconds() - s->begun;
    kiln_progress_line line = {.what = "Evaluating",
                               .done = done,
                               .total = total,
                               .seconds = seconds,
                               .step = seconds / (double)done,
                               .rate = (double)totals.samples / seconds,
                               .wait = NAN,
                               .first = NAN,
                               .finished = done == total};
    kiln_result r = kiln_totals_result(s->task, &totals);
    kiln_progress_result(&line, false, &r, s->task->metrics);
    kiln_progress_draw(&s->progress, &line);
}

static const kiln_result no_result = {.loss = NAN, .accuracy = NAN, .top5 = NAN, .perplexity = NAN, .mae = NAN};

static kiln_result evaluate(kiln_module *model, kiln_dataset *data, const kiln_evaluate_options *given)
{
    kiln_evaluate_options o;
    if (!KILN_TAKE_OPTIONS("evaluate", o, given))
        return no_result;
    kiln_result r = no_result;
    if (!kiln_can_begin("evaluate", model, data))
        return r;
    if (o.batch < 0 || o.limit < 0) {
        kiln_fail(KILN_E_ARGUMENT, "evaluate", "batch %lld and limit %lld must not be negative", (long long)o.batch,
                  (long long)o.limit);
        return r;
    }
    kiln_dataset *part = o.limit && o.limit < kiln_data_count(data) ? kiln_data_range(data, 0, o.limit) : NULL;
    data = part ? part : data;
    kiln_task task = {.loss = o.loss, .loss_fn = o.loss_fn, .loss_context = o.loss_context, .metrics = o.metrics};
    shown s = {.task = &task, .begun = kiln_seconds()};
    kiln_progress_init(&s.progress, o.progress);
    kiln_pass pass = {.model = model,
                      .data = data,
                      .task = &task,
                      .batch = o.batch ? o.batch : 256,
                      .workers = o.workers,
                      .confusion = true,
                      .stop = o.stop,
                      .show = show,
                      .context = &s};
    kiln_random_state random = kiln_random_get();
    kiln_autocast (o.autocast ? o.autocast : kiln_autocast_dtype())
        if (kiln_ok() && kiln_task_check(&task, model, data, pass.batch, "evaluate") && !kiln_pass_run(&pass, &r)) {
            kiln_result_free(&r);
            r = no_result;
        }
    kiln_random_set(random);
    kiln_progress_close(&s.progress);
    kiln_data_free(part);
    return r;
}

void kiln_evaluate_(kiln_module *model, kiln_dataset *data, const kiln_evaluate_options *given, kiln_result *result,
                    size_t size)
{
    const kiln_result own = evaluate(model, data, given);
    KILN_GIVE_SIZED(result, size, own);
}

void kiln_result_free(kiln_result *r)
{
    if (!r)
        return;
    kiln_free(r->confusion);
    r->confusion = NULL;
    r->classes = 0;
}

/* ---- predict ---- */

/* All outputs, row-major, gathered batch by batch. */
typedef struct gathered {
    kiln_dtype dtype;
    int ndim;
    int64_t shape[KILN_MAX_DIMS];
    int64_t rows;     /* in all */
    int64_t have;     /* so far */
    size_t row_bytes; /* of one sample's outputs */
    char *data;
} gathered;

static bool gather(gathered *g, kiln_tensor *output, int64_t size)
{
    if (!output)
        return false;
    if (!g->data) {
        g->dtype = kiln_dtype_of(output);
        g->ndim = kiln_ndim(output);
        memcpy(g->shape, kiln_shape(output), (size_t)(g->ndim > 0 ? g->ndim : 0) * sizeof *g->shape);
    }
    if (g->ndim < 1 || kiln_size(output, 0) != size)
        return kiln_fail(KILN_E_SHAPE, "predict", "the model's outputs do not keep the batch of %lld", (long long)size);
    size_t bytes = (size_t)kiln_numel(output) * kiln_dtype_size(g->dtype);
    if (!g->data) {
        g->shape[0] = g->rows;
        g->row_bytes = bytes / (size_t)size;
        g->data = kiln_alloc((size_t)g->rows, g->row_bytes ? g->row_bytes : 1);
        if (!g->data)
            return false;
    }
    if (bytes != g->row_bytes * (size_t)size || g->have + size > g->rows)
        return kiln_fail(KILN_E_SHAPE, "predict", "the model's outputs differ in shape between batches");
    if (!kiln_read(output, g->data + g->row_bytes * (size_t)g->have, bytes))
        return false;
    g->have += size;
    return true;
}

static bool predict_batch(kiln_module *model, const kiln_batch *b, gathered *g)
{
    kiln_tensor *output = NULL;
    kiln_no_grad
        kiln_step {
            output = kiln_forward(model, b->x);
            output = kiln_keep(output == b->x ? kiln_clone(output) : output); /* the batch is the loader's */
        }
    bool done = kiln_ok() && gather(g, output, b->size);
    kiln_release(output);
    if (!done)
        kiln_error_place("batch %lld", (long long)b->index + 1);
    return done;
}

kiln_tensor *kiln_predict(kiln_module *model, kiln_dataset *data, int64_t batch)
{
    if (!kiln_can_begin("predict", model, data))
        return NULL;
    gathered g = {.rows = kiln_data_count(data)};
    kiln_modes modes;
    kiln_batch b;
    if (batch < 0 || g.rows <= 0)
        return kiln_fail(KILN_E_ARGUMENT, "predict", batch < 0 ? "the batch must not be negative" : "no samples");
    if (!kiln_modes_get(&modes, model))
        return NULL;
    kiln_random_state random = kiln_random_get();
    kiln_module_train(model, false);
    kiln_device device = kiln_module_device(model);
    batch = batch ? batch : 256;
    kiln_loader *loader = kiln_loader_new(data, .batch = batch < g.rows ? batch : g.rows, .device = device);
    kiln_on_device (device)
        while (loader && kiln_loader_next(loader, &b) && predict_batch(model, &b, &g))
            continue;
    kiln_loader_free(loader);
    kiln_modes_restore(&modes, model);
    kiln_random_set(random);
    kiln_tensor *all = NULL;
    if (kiln_ok() && g.have == g.rows)
        all = kiln_tensor_new(g.data, g.dtype, g.ndim, g.shape, KILN_CPU);
    kiln_free(g.data);
    return all;
}
