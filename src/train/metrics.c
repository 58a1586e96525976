/* Sums of loss and metrics on the device. */
#include "train/metrics.h"

#include <math.h>
#include <string.h>
#include "core/alloc.h"
#include "core/fail.h"
#include "kiln/grad.h"
#include "kiln/ops.h"
#include "trace/formula.h"
#include "trace/trace.h"

static bool is_wanted(const kiln_task *task, int sum)
{
    static const unsigned asked_by[KILN_SUMS] = {
        [KILN_SUM_CORRECT] = KILN_ACCURACY, [KILN_SUM_TOP5] = KILN_TOP5, [KILN_SUM_ABSOLUTE] = KILN_MAE};
    return sum == KILN_SUM_LOSS || (sum == KILN_SUM_ITEMS && task->ignores) || (task->metrics & asked_by[sum]);
}

/* Each sum is the first of a line: steps want memory that is aligned. */
enum { LINE = KILN_BLOCK_ALIGN / sizeof(float) };
typedef struct lines {
    float at[KILN_SUMS][LINE];
} lines;

/* A tensor of its own, as steps assign to whole ones, in memory that belongs to `all`. */
static kiln_tensor *sum_at(const kiln_tensor *all, int i)
{
    kiln_storage *s = kiln_storage_new(all->device, sizeof(float));
    if (!s)
        return NULL;
    s->address = all->storage->address + (kiln_address)i * KILN_BLOCK_ALIGN;
    s->has_memory = true;
    return kiln_keep(kiln_tensor_make(s, KILN_F32, 0, NULL, NULL, 0));
}

bool kiln_meter_init(kiln_meter *m, const kiln_task *task, kiln_device device, bool confusion)
{
    *m = (kiln_meter){.task = task, .fresh = true};
    m->all = kiln_keep(kiln_tensor_new(NULL, KILN_F32, KILN_SHAPE(KILN_SUMS, LINE), device));
    if (!m->all)
        return false;
    for (int i = 0; i < KILN_SUMS; i++)
        if (is_wanted(task, i) && !(m->sum[i] = sum_at(m->all, i)))
            return false;
    if (!confusion || !(task->metrics & KILN_CONFUSION))
        return true;
    enum { MOST = 1 << 14 }; /* 2 GiB of counts */
    if (task->classes > MOST)
        return kiln_fail(KILN_E_ARGUMENT, "evaluate", "a confusion matrix of %lld classes is too large",
                         (long long)task->classes);
    int64_t cells = task->classes * task->classes;
    m->confusion = kiln_keep(kiln_tensor_new(NULL, KILN_I64, 1, &cells, device));
    return m->confusion != NULL;
}

void kiln_meter_free(kiln_meter *m)
{
    if (m->begun > 0) /* what is still being written to must not go; later moves end after earlier ones */
        kiln_copied_out(m->all->device, m->moves[(m->begun - 1) % KILN_MOVES].ticket);
    if (m->staging.memory)
        kiln_staging_give(m->all->device, &m->staging);
    for (int i = 0; i < KILN_SUMS; i++)
        kiln_release(m->sum[i]);
    kiln_release(m->all);
    kiln_release(m->confusion);
    *m = (kiln_meter){0};
}

void kiln_meter_reset(kiln_meter *m)
{
    m->collected = (kiln_totals){0};
    m->samples = 0;
    m->fresh = true;
    m->ended = m->begun;
}

/* ---- In the step ---- */

/* 0 for the first batch after a move: a run-time scalar, so that batch has the same plan as all others and nothing
 * needs to be written between steps. */
double kiln_meter_keep(const kiln_meter *m)
{
    return m->fresh ? 0 : 1;
}

/* sum = sum·keep + value·scale */
static bool add_to(const kiln_meter *m, int which, kiln_tensor *value, double scale)
{
    kiln_formula p;
    kiln_tensor *sum = m->sum[which];
    kiln_trace *tr = kiln_trace_current();
    if (!tr || !(value = kiln_cast(value, KILN_F32)))
        return false;
    int64_t at = tr->nfloats;
    kiln_formula_begin(&p, KILN_IN(sum, value));
    kiln_register more = kiln_formula_put(&p, KILN_PW_mul_scalar, 1, 0, scale);
    kiln_register kept = kiln_formula_put(&p, KILN_PW_mul_scalar, 0, 0, kiln_meter_keep(m));
    kiln_formula_assign(&p, 0, kiln_formula_put(&p, KILN_PW_add, kept, more, 0));
    return kiln_formula_record(&p) && kiln_trace_vary(tr, m, which, at + 1, 1);
}

static kiln_tensor *count_true(kiln_tensor *condition)
{
    return kiln_sum_all(kiln_cast(condition, KILN_F32));
}

/* Yes-or-no outputs: a positive logit says yes. */
static kiln_tensor *count_agreeing(const kiln_task *task, kiln_tensor *output, kiln_tensor *y)
{
    kiln_tensor *goal = kiln_task_goal(task, output, NULL, y);
    return count_true(kiln_eq(kiln_gt_scalar(output, 0), kiln_gt_scalar(goal, 0.5)));
}

/* What does not count adds 0 somewhere. */
static bool add_confusion(kiln_meter *m, kiln_tensor *labels, kiln_tensor *guess)
{
    kiln_tensor *cell = kiln_add(kiln_mul_scalar(labels, (double)m->task->classes), guess);
    kiln_tensor *more = kiln_ones_like(cell);
    if (m->task->ignores) {
        kiln_tensor *counts = kiln_ne_scalar(labels, KILN_NO_LABEL);
        cell = kiln_masked_fill(cell, kiln_logical_not(counts), 0);
        more = kiln_cast(counts, KILN_I64);
    }
    return kiln_assign(m->confusion, kiln_index_add(m->confusion, 0, cell, more));
}

static bool add_labels(kiln_meter *m, kiln_tensor *output, kiln_tensor *y)
{
    const kiln_task *task = m->task;
    kiln_tensor *rows = kiln_task_rows(task, output), *labels = kiln_task_labels(y);
    if (m->sum[KILN_SUM_CORRECT] || m->confusion) {
        kiln_tensor *guess = kiln_argmax(rows, -1, false);
        if (m->sum[KILN_SUM_CORRECT] && !add_to(m, KILN_SUM_CORRECT, count_true(kiln_eq(guess, labels)), 1))
            return false;
        if (m->confusion && !add_confusion(m, labels, guess))
            return false;
    }
    if (!m->sum[KILN_SUM_TOP5])
        return true;
    kiln_tensor *best = NULL;
    kiln_topk(rows, task->classes < 5 ? task->classes : 5, -1, true, &best);
    return add_to(m, KILN_SUM_TOP5, count_true(kiln_eq(best, kiln_unsqueeze(labels, -1))), 1);
}

bool kiln_meter_add(kiln_meter *m, const kiln_batch_loss *loss, kiln_tensor *output, kiln_tensor *x, kiln_tensor *y,
                    int64_t size)
{
    const kiln_task *task = m->task;
    bool done = true;
    kiln_no_grad {
        done = add_to(m, KILN_SUM_LOSS, loss->value, loss->items ? 1 : (double)size);
        if (done && m->sum[KILN_SUM_ITEMS])
            done = add_to(m, KILN_SUM_ITEMS, loss->items ? loss->items : kiln_task_items(kiln_task_labels(y)), 1);
        if (done && task->labels)
            done = add_labels(m, output, y);
        else if (done && m->sum[KILN_SUM_CORRECT])
            done = add_to(m, KILN_SUM_CORRECT, count_agreeing(task, output, y), 1);
        if (done && m->sum[KILN_SUM_ABSOLUTE]) {
            kiln_tensor *goal = kiln_task_goal(task, output, x, y);
            done = add_to(m, KILN_SUM_ABSOLUTE, kiln_sum_all(kiln_abs(kiln_sub(output, goal))), 1);
        }
    }
    kiln_meter_count(m, size);
    return done;
}

void kiln_meter_count(kiln_meter *m, int64_t size)
{
    m->samples = (m->fresh ? 0 : m->samples) + size;
    m->fresh = false;
}

/* ---- Moving ---- */

static lines *place_of(const kiln_meter *m, int64_t move)
{
    return (lines *)m->staging.memory + move % KILN_MOVES;
}

static void add_lines(const kiln_meter *m, const lines *from, int64_t samples, kiln_totals *t)
{
    for (int i = 0; i < KILN_SUMS; i++)
        t->sum[i] += m->sum[i] ? (double)from->at[i][0] : 0;
    t->samples += samples;
}

static bool add_move(const kiln_meter *m, int64_t move, kiln_totals *t)
{
    const struct kiln_move *one = &m->moves[move % KILN_MOVES];
    if (!kiln_copied_out(m->all->device, one->ticket))
        return false;
    add_lines(m, place_of(m, move), one->samples, t);
    return true;
}

bool kiln_meter_move(kiln_meter *m)
{
    kiln_device device = m->all->device;
    struct kiln_move *one = &m->moves[m->begun % KILN_MOVES];
    if (!kiln_eval() || (!m->staging.memory && !kiln_staging_take(device, KILN_MOVES * sizeof(lines), &m->staging)))
        return false;
    if (!kiln_copy_out_later(device, place_of(m, m->begun), m->all->storage->address, sizeof(lines), &one->ticket))
        return false;
    one->samples = m->samples;
    m->begun++;
    m->samples = 0;
    m->fresh = true;
    return true;
}

bool kiln_meter_moved(kiln_meter *m, kiln_totals *t)
{
    if (!add_move(m, m->ended, &m->collected))
        return false;
    m->ended++;
    *t = m->collected;
    return true;
}

bool kiln_meter_at_once(const kiln_meter *m)
{
    return m->begun > m->ended && !m->moves[m->ended % KILN_MOVES].ticket;
}

bool kiln_meter_collect(kiln_meter *m)
{
    kiln_totals unused;
    return kiln_meter_move(m) && (m->begun - m->ended < KILN_MOVES || kiln_meter_moved(m, &unused));
}

/* ---- Reading ---- */

bool kiln_meter_get(kiln_meter *m, double sums[KILN_SUMS])
{
    lines now;
    if (!m->fresh && !kiln_read(m->all, &now, sizeof now))
        return false;
    for (int i = 0; i < KILN_SUMS; i++)
        sums[i] = m->sum[i] && !m->fresh ? (double)now.at[i][0] : 0;
    return true;
}

bool kiln_meter_set(kiln_meter *m, const double sums[KILN_SUMS])
{
    for (int i = 0; i < KILN_SUMS; i++) {
        float value = (float)sums[i];
        if (m->sum[i] && !kiln_write(m->sum[i], &value, sizeof value))
            return false;
    }
    return true;
}

bool kiln_meter_read(kiln_meter *m, kiln_totals *t)
{
    lines now;
    *t = m->collected;
    if (!m->fresh && !kiln_read(m->all, &now, sizeof now))
        return false;
    for (int64_t i = m->ended; i < m->begun; i++)
        if (!add_move(m, i, t))
            return false;
    if (!m->fresh)
        add_lines(m, &now, m->samples, t);
    return true;
}

kiln_totals kiln_totals_since(const kiln_totals *now, const kiln_totals *before)
{
    kiln_totals t = {.samples = now->samples - before->samples};
    for (int i = 0; i < KILN_SUMS; i++)
        t.sum[i] = now->sum[i] - before->sum[i];
    return t;
}

kiln_result kiln_totals_result(const kiln_task *task, const kiln_totals *t)
{
    double n = (double)t->samples; /* 0 gives NaN throughout */
    double places = task->ignores ? t->sum[KILN_SUM_ITEMS] : n * (double)task->places;
    double elements = n * (double)task->elements;
    kiln_result r = {.samples = t->samples};
    r.loss = t->sum[KILN_SUM_LOSS] / (kiln_task_sums_items(task) ? places : n);
    r.accuracy = task->metrics & KILN_ACCURACY ? t->sum[KILN_SUM_CORRECT] / places : NAN;
    r.top5 = task->metrics & KILN_TOP5 ? t->sum[KILN_SUM_TOP5] / places : NAN;
    r.mae = task->metrics & KILN_MAE ? t->sum[KILN_SUM_ABSOLUTE] / elements : NAN;
    r.perplexity = task->metrics & KILN_PERPLEXITY ? exp(r.loss) : NAN;
    return r;
}

bool kiln_meter_confusion(kiln_meter *m, kiln_result *r)
{
    if (!m->confusion)
        return true;
    int64_t classes = m->task->classes;
    size_t cells = (size_t)(classes * classes);
    int64_t *counts = kiln_alloc(cells, sizeof *counts);
    if (!counts)
        return false;
    if (!kiln_read(m->confusion, counts, cells * sizeof *counts)) {
        kiln_free(counts);
        return false;
    }
    r->confusion = counts;
    r->classes = classes;
    return true;
}

void kiln_progress_result(kiln_progress_line *l, bool validation, const kiln_result *r, unsigned metrics)
{
    kiln_progress_value(l, validation ? "val_loss" : "loss", r->loss);
    if (metrics & KILN_ACCURACY)
        kiln_progress_value(l, validation ? "val_accuracy" : "accuracy", r->accuracy);
    if (metrics & KILN_TOP5)
        kiln_progress_value(l, validation ? "val_top5" : "top5", r->top5);
    if (metrics & KILN_PERPLEXITY)
        kiln_progress_value(l, validation ? "val_perplexity" : "perplexity", r->perplexity);
    if (metrics & KILN_MAE)
        kiln_progress_value(l, validation ? "val_mae" : "mae", r->mae);
}
