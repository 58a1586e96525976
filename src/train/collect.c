/* Step lines of the log, and the look at the loss, which both need the sums on the host. A device that works on is not
 * waited for: sums are asked for when the next ones set out, KILN_COLLECT_EVERY steps later, and before anything that
 * has to know of them: the end of an epoch, a checkpoint, a stop, an error. What a line says and where it stands do not
 * depend on when it is written. */
#include <string.h>
#include "train/training.h"

/* As often as was asked for; else at most 200 lines an epoch, at multiples of KILN_COLLECT_EVERY steps. */
static bool line_is_due(const kiln_training *t, int64_t steps_in_epoch)
{
    if (t->o.log_steps > 0)
        return t->line_due;
    int64_t steps = (t->batches + t->o.accumulate - 1) / t->o.accumulate;
    int64_t every = KILN_COLLECT_EVERY * ((steps + 200 * KILN_COLLECT_EVERY - 1) / (200 * KILN_COLLECT_EVERY));
    return steps_in_epoch % every == 0;
}

static bool look_at(kiln_training *t, const kiln_collection *d)
{
    kiln_totals totals;
    if (!kiln_meter_moved(&t->meter, &totals) || !kiln_training_check_loss(t, &totals, d->step))
        return false;
    if (!d->line)
        return true;
    kiln_totals recent = kiln_totals_since(&totals, &t->line);
    kiln_result mean = kiln_totals_result(&t->task, &recent);
    t->line = totals;
    return kiln_log_step(&t->log, d->step, &mean, d->lr);
}

/* After one that went wrong the others are not looked at. */
static bool look_at_oldest(kiln_training *t)
{
    kiln_collection oldest = t->collections[0];
    memmove(t->collections, t->collections + 1, (size_t)--t->ncollections * sizeof *t->collections);
    bool good = look_at(t, &oldest);
    t->ncollections = good ? t->ncollections : 0;
    return good;
}

bool kiln_training_collect(kiln_training *t, int64_t steps_in_epoch)
{
    if (!kiln_meter_move(&t->meter))
        return false;
    t->collections[t->ncollections++] = (kiln_collection){t->step, t->lr, line_is_due(t, steps_in_epoch)};
    return (t->ncollections < KILN_MOVES && !kiln_meter_at_once(&t->meter)) || look_at_oldest(t);
}

bool kiln_training_collect_all(kiln_training *t)
{
    bool good = true;
    while (good && t->ncollections > 0)
        good = look_at_oldest(t);
    return good;
}
