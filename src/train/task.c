/* Losses by name, and the checks that find a model, a data set and a loss that do not fit before the first step. */
#include "train/task.h"

#include <math.h>
#include <stdarg.h>
#include <string.h>
#include "core/fail.h"
#include "kiln/ops.h"
#include "ops/op.h"

void kiln_error_place(const char *format, ...)
{
    kiln_error e = *kiln_last_error();
    char place[240];
    if (e.code == KILN_OK)
        return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(place, sizeof place, format, arguments);
    va_end(arguments);
    kiln_error_clear();
    int room = (int)(sizeof e.message - strlen(place) - sizeof " ()");
    kiln_fail(e.code, e.operation, "%.*s (%s)", room, e.message, place);
    if (e.hint[0])
        kiln_hint("%s", e.hint);
}

/* ---- The loss ---- */

kiln_tensor *kiln_task_rows(const kiln_task *task, kiln_tensor *output)
{
    return kiln_ndim(output) == 2 ? output : kiln_reshape(output, KILN_SHAPE(-1, task->classes));
}

kiln_tensor *kiln_task_labels(kiln_tensor *y)
{
    kiln_tensor *labels = kiln_ndim(y) == 1 ? y : kiln_reshape(y, KILN_SHAPE(-1));
    return kiln_dtype_of(y) == KILN_I64 ? labels : kiln_cast(labels, KILN_I64);
}

kiln_tensor *kiln_task_goal(const kiln_task *task, kiln_tensor *output, kiln_tensor *x, kiln_tensor *y)
{
    kiln_tensor *goal = task->loss == KILN_RECONSTRUCTION && !task->loss_fn ? x : y;
    if (!output || !goal)
        return NULL;
    goal = kiln_cast(goal, kiln_dtype_of(output));
    return kiln_reshape(goal, kiln_ndim(output), kiln_shape(output));
}

kiln_tensor *kiln_task_items(kiln_tensor *labels)
{
    return kiln_sum_all(kiln_cast(kiln_ne_scalar(labels, KILN_NO_LABEL), KILN_F32));
}

bool kiln_task_sums_items(const kiln_task *task)
{
    return task->ignores && task->loss == KILN_CROSS_ENTROPY && !task->loss_fn;
}

/* In f32 at least: a sum soon leaves the range of half precision. */
static kiln_batch_loss sum_over_items(const kiln_task *task, kiln_tensor *output, kiln_tensor *y)
{
    kiln_tensor *rows = kiln_task_rows(task, output), *labels = kiln_task_labels(y);
    if (!rows || !labels)
        return (kiln_batch_loss){0};
    rows = kiln_dtype_of(rows) == KILN_F64 ? rows : kiln_cast(rows, KILN_F32);
    return (kiln_batch_loss){kiln_cross_entropy(rows, labels, .reduction = KILN_SUM), kiln_task_items(labels)};
}

kiln_tensor *kiln_batch_loss_mean(const kiln_batch_loss *loss)
{
    if (!loss->items || !loss->value)
        return loss->value;
    kiln_tensor *count = kiln_clamp(loss->items, 1, INFINITY);
    return kiln_div(loss->value, kiln_cast(count, kiln_dtype_of(loss->value)));
}

static kiln_tensor *mean_loss(const kiln_task *task, kiln_tensor *output, kiln_tensor *x, kiln_tensor *y)
{
    if (task->loss_fn)
        return task->loss_fn(output, x, y, task->loss_context);
    if (task->loss == KILN_CROSS_ENTROPY && task->labels)
        return kiln_cross_entropy(kiln_task_rows(task, output), kiln_task_labels(y));
    kiln_tensor *goal = kiln_task_goal(task, output, x, y);
    switch (task->loss) {
    case KILN_CROSS_ENTROPY: return kiln_cross_entropy(kiln_task_rows(task, output), kiln_task_rows(task, goal));
    case KILN_RECONSTRUCTION:
    case KILN_MSE: return kiln_mse_loss(output, goal, KILN_MEAN);
    case KILN_L1: return kiln_l1_loss(output, goal, KILN_MEAN);
    case KILN_HUBER: return kiln_huber_loss(output, goal, 1, KILN_MEAN);
    case KILN_BCE_LOGITS: return kiln_binary_cross_entropy_with_logits(output, goal, NULL, NULL, KILN_MEAN);
    }
    return NULL;
}

kiln_batch_loss kiln_task_loss(const kiln_task *task, kiln_tensor *output, kiln_tensor *x, kiln_tensor *y)
{
    if (!output)
        return (kiln_batch_loss){0};
    if (kiln_task_sums_items(task))
        return sum_over_items(task, output, y);
    return (kiln_batch_loss){.value = mean_loss(task, output, x, y)};
}

/* ---- Checks ---- */

typedef struct shapes {
    const kiln_data_info *data;
    const char *operation;
    int out_ndim;
    int64_t out[KILN_MAX_DIMS], y[KILN_MAX_DIMS], x[KILN_MAX_DIMS]; /* with the batch in front */
} shapes;

static void with_batch(const kiln_field *item, int64_t batch, int64_t *shape)
{
    shape[0] = batch;
    for (int d = 0; d < item->ndim; d++)
        shape[d + 1] = item->shape[d];
}

static bool item_fits(const kiln_field *item)
{
    return item->ndim >= 0 && item->ndim < KILN_MAX_DIMS;
}

/* Targets [N, …] of whole numbers for outputs [N, …, classes]; one label a sample may also come as [N, 1]. */
static bool are_labels(const shapes *s)
{
    const kiln_field *y = &s->data->y;
    if (y->dtype == KILN_DTYPES || y->dtype == KILN_BOOL || kiln_dtype_is_float(y->dtype) || s->out_ndim < 2)
        return false;
    if (s->out_ndim == 2 && y->ndim == 1 && y->shape[0] == 1)
        return true;
    if (s->out_ndim != y->ndim + 2)
        return false;
    for (int d = 0; d < y->ndim; d++)
        if (s->out[d + 1] != y->shape[d])
            return false;
    return true;
}

static bool fail_shapes(const shapes *s, const char *want)
{
    kiln_fail(KILN_E_SHAPE, s->operation, "the model makes %s from inputs %s, but targets of %s are %s %s: %s",
              kiln_shape_text(s->out_ndim, s->out), kiln_shape_text(s->data->x.ndim + 1, s->x), s->data->name,
              kiln_dtype_name(s->data->y.dtype), kiln_shape_text(s->data->y.ndim + 1, s->y), want);
    return false;
}

static bool check_classes(kiln_task *task, const shapes *s)
{
    if (task->labels && s->data->classes > task->classes) {
        kiln_fail(KILN_E_SHAPE, s->operation, "%s has %lld classes, but the model's outputs %s have room for %lld",
                  s->data->name, (long long)s->data->classes, kiln_shape_text(s->out_ndim, s->out),
                  (long long)task->classes);
        kiln_hint("make the last layer %lld wide", (long long)s->data->classes);
        return false;
    }
    return true;
}

static bool check_loss(kiln_task *task, const shapes *s)
{
    const kiln_field *y = &s->data->y;
    if (task->loss_fn)
        return check_classes(task, s);
    if ((unsigned)task->loss > KILN_RECONSTRUCTION)
        return kiln_fail(KILN_E_ARGUMENT, s->operation, "there is no loss %d", (int)task->loss);
    if (task->loss == KILN_RECONSTRUCTION) {
        if (task->elements == kiln_count(s->data->x.ndim, s->data->x.shape))
            return true;
        return kiln_fail(KILN_E_SHAPE, s->operation,
                         "the model makes %s from inputs %s of %s: as many elements are "
                         "needed to compare them",
                         kiln_shape_text(s->out_ndim, s->out), kiln_shape_text(s->data->x.ndim + 1, s->x),
                         s->data->name);
    }
    if (y->dtype == KILN_DTYPES) {
        kiln_fail(KILN_E_ARGUMENT, s->operation, "%s has no targets", s->data->name);
        kiln_hint("give labels, or use the loss \"reconstruction\" that needs none");
        return false;
    }
    bool same = task->elements == kiln_count(y->ndim, y->shape);
    if (task->loss == KILN_CROSS_ENTROPY)
        return task->labels ? check_classes(task, s)
               : kiln_dtype_is_float(y->dtype) && same && s->out_ndim >= 2
                   ? true
                   : fail_shapes(s, "cross-entropy takes outputs [N, …, classes] and i64 targets [N, …]");
    return same || fail_shapes(s, "this loss takes as many targets as outputs");
}

static bool check_metrics(kiln_task *task, const shapes *s)
{
    const unsigned of_labels = KILN_ACCURACY | KILN_TOP5 | KILN_CONFUSION;
    bool yes_or_no = task->loss == KILN_BCE_LOGITS && !task->loss_fn;
    unsigned wrong = task->metrics & of_labels & (yes_or_no ? ~(unsigned)KILN_ACCURACY : ~0u);
    if (task->metrics & ~(of_labels | KILN_PERPLEXITY | KILN_MAE))
        return kiln_fail(KILN_E_ARGUMENT, s->operation, "there is no metric 0x%x", task->metrics);
    if (wrong && !task->labels)
        return kiln_fail(KILN_E_ARGUMENT, s->operation,
                         "accuracy, top-5 and the confusion matrix need outputs [N, …, classes] and labels [N, …]; %s "
                         "gives outputs %s for targets %s",
                         s->data->name, kiln_shape_text(s->out_ndim, s->out),
                         s->data->y.dtype == KILN_DTYPES ? "none" : kiln_shape_text(s->data->y.ndim + 1, s->y));
    const kiln_field *goal = task->loss == KILN_RECONSTRUCTION && !task->loss_fn ? &s->data->x : &s->data->y;
    if ((task->metrics & KILN_MAE) &&
        (goal->dtype == KILN_DTYPES || task->elements != kiln_count(goal->ndim, goal->shape)))
        return kiln_fail(KILN_E_ARGUMENT, s->operation,
                         "the mean absolute error needs as many targets as outputs; %s gives outputs %s", s->data->name,
                         kiln_shape_text(s->out_ndim, s->out));
    return true;
}

bool kiln_task_check(kiln_task *task, kiln_module *model, const kiln_dataset *set, int64_t batch, const char *operation)
{
    const kiln_data_info *data = &set->info;
    shapes s = {.data = data, .operation = operation};
    if (data->count <= 0)
        return kiln_fail(KILN_E_ARGUMENT, operation, "the data set %s is empty", data->name);
    if (!item_fits(&data->x) || (data->y.dtype != KILN_DTYPES && !item_fits(&data->y)))
        return kiln_fail(KILN_E_SHAPE, operation, "samples of %s have too many dims for a batch", data->name);
    batch = batch < data->count ? batch : data->count;
    with_batch(&data->x, batch, s.x);
    if (data->y.dtype != KILN_DTYPES)
        with_batch(&data->y, batch, s.y);
    if (!kiln_module_shape(model, data->x.ndim + 1, s.x, data->x.dtype, &s.out_ndim, s.out)) {
        kiln_error_place("inputs of %s are %s %s", data->name, kiln_dtype_name(data->x.dtype),
                         kiln_shape_text(data->x.ndim + 1, s.x));
        return false;
    }
    if (s.out_ndim < 1 || s.out[0] != batch) {
        kiln_fail(KILN_E_SHAPE, operation, "the model makes %s from inputs %s of %s: its outputs must keep the batch",
                  kiln_shape_text(s.out_ndim, s.out), kiln_shape_text(data->x.ndim + 1, s.x), data->name);
        return false;
    }
    task->elements = kiln_count(s.out_ndim - 1, s.out + 1);
    task->labels = are_labels(&s);
    task->classes = s.out_ndim >= 2 ? s.out[s.out_ndim - 1] : 1;
    task->ignores = task->labels && set->lacks_labels;
    task->places = task->labels ? kiln_count(data->y.ndim, data->y.shape) : task->elements;
    return check_loss(task, &s) && check_metrics(task, &s);
}
