/* Steps of kiln_fit that are run again without being recorded (plan/rerun.h). What is new about such a step are the
 * batch that it gathers, the optimizer's numbers, and whether the sums begin anew; the host does with these what it
 * does otherwise while recording.
 *
 * Nothing is repeated where code that Kiln does not know runs in a step: it may do what leaves no trace in a recording.
 * What a callback can do between two steps shows in the tensors, or in the modules' outline. Each epoch records its
 * first steps. */
#include <stdlib.h>
#include <string.h>
#include "core/fail.h"
#include "optim/optim.h"
#include "optim/scaler.h"
#include "nn/module.h"
#include "trace/thunk.h"
#include "train/training.h"

/* Recordings in a row that were not foretold, and an epoch's steps are of the kind that never is: dropout draws. */
enum { TRIES = 8 };

static bool is_wanted(void)
{
    const char *text = getenv("KILN_RERUN");
    return !text || strcmp(text, "0") != 0;
}

void kiln_training_expect_reruns(kiln_training *t)
{
    bool known = t->o.accumulate == 1 && !t->o.loss_fn && kiln_module_outline(t->model, &t->rerun_outline);
    kiln_rerun_forget(&t->rerun);
    t->rerun_tries = known && is_wanted() ? TRIES : 0;
}

/* ---- The numbers of the next step ---- */

static const kiln_thunk *thunk_of(const kiln_tensor *t)
{
    return t ? t->storage->thunk : NULL;
}

static bool make_numbers(kiln_training *t, const kiln_batch *b, const kiln_varying *v, double *to)
{
    const kiln_thunk *thunk = v->owner == thunk_of(b->x)   ? thunk_of(b->x)
                              : v->owner == thunk_of(b->y) ? thunk_of(b->y)
                                                           : NULL;
    if (v->owner == t->optim)
        return kiln_optim_numbers(t->optim, v->index, to, v->count);
    if (v->owner == &t->meter)
        *to = kiln_meter_keep(&t->meter);
    else if (thunk && thunk->attrs.nfloats == v->count)
        memcpy(to, thunk->attrs.f, (size_t)v->count * sizeof *to);
    else
        return false;
    return true;
}

/* Puts the numbers of the step with this batch in place of the last one's. */
static bool foretell(kiln_training *t, const kiln_batch *b)
{
    kiln_rerun *r = &t->rerun;
    uint64_t outline;
    bool known =
        r->plan && b->size == t->rerun_size && kiln_module_outline(t->model, &outline) && outline == t->rerun_outline;
    for (int64_t i = 0; known && i < r->nvarying; i++)
        known = make_numbers(t, b, &r->varying[i], r->floats + r->varying[i].at);
    if (!known)
        kiln_rerun_forget(r);
    return known;
}

/* ---- A step ---- */

kiln_rerun_outcome kiln_training_rerun(kiln_training *t, const kiln_batch *b)
{
    if (!t->rerun_tries || !thunk_of(b->x))
        return KILN_RERUN_RECORD;
    if (!kiln_optim_settle(t->optim)) /* as at the beginning of any of its steps */
        return KILN_RERUN_FAILED;
    if (!foretell(t, b) || !kiln_rerun_ready(&t->rerun))
        return KILN_RERUN_RECORD;
    uint64_t failures = kiln_fail_count();
    if (kiln_optim_rerun(t->optim, &t->rerun)) {
        kiln_meter_count(&t->meter, b->size);
        return !t->scaler || kiln_scaler_passed(t->scaler) ? KILN_RERUN_DONE : KILN_RERUN_FAILED;
    }
    if (kiln_last_error()->code != KILN_E_MEMORY)
        return KILN_RERUN_FAILED;
    kiln_fail_forget(failures); /* recorded, it says what it needs; or finds it */
    return KILN_RERUN_RECORD;
}

void kiln_training_watch(kiln_training *t, const kiln_batch *b)
{
    if (!t->rerun_tries || !thunk_of(b->x) || !kiln_module_outline(t->model, &t->rerun_outline))
        return;
    t->rerun_size = b->size;
    kiln_rerun_watch(&t->rerun);
}

void kiln_training_watched(kiln_training *t)
{
    if (!t->rerun_tries)
        return;
    kiln_rerun_watched(&t->rerun);
    t->rerun_tries = t->rerun.foretold ? TRIES : t->rerun_tries - 1;
    if (!t->rerun_tries)
        kiln_rerun_forget(&t->rerun);
}
