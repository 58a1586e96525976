/* Batches that are gone through in parts, because a step with all of one does not fit into memory, or because that was
 * asked for. Each part is a kiln_step of its own; gradients add up between them, and the last one updates the weights:
 * what a user sees of it are the batches, steps and logs of the whole.
 *
 * How many parts are needed is found out by planning: a step that does not fit is refused before its first kernel, and
 * nothing has changed then. So the parts are made smaller and it goes on where it was. */
#include "train/training.h"

#include "core/fail.h"
#include "data/resident.h"
#include "kiln/ops.h"
#include "ops/op.h"
#include "ops/part.h"
#include "nn/dry.h"

/* ---- How large a part is ---- */

static int64_t divide_up(int64_t a, int64_t b)
{
    return (a - 1) / b + 1;
}

/* Fewer samples, in as few parts as can be. Some of what a step needs grows with its samples and some does not, so that
 * no more than the share of what is left can fit; where fewer do, it is refused again. */
static int64_t smaller_part(int64_t whole, int64_t size, int64_t need, int64_t left)
{
    double share = (double)size * ((double)left / (double)need);
    int64_t most = share < 1 ? 1 : (int64_t)share;
    most = most < size ? most : size - 1;
    return divide_up(whole, divide_up(whole, most));
}

bool kiln_training_shrink(kiln_training *t, int64_t whole, int64_t size, uint64_t failures)
{
    kiln_refused r;
    bool refused = kiln_plan_refused(&r) && kiln_last_error()->code == KILN_E_MEMORY;
    if (!refused || (t->o.fit_memory == KILN_FIT_WHOLE && r.fits < 0))
        return false;
    if (t->o.fit_memory == KILN_FIT_WHOLE) {
        const kiln_error e = *kiln_last_error();
        return kiln_hint("%.200s; or let fit take it part by part: .fit_memory = KILN_FIT_SPLIT (--fit-memory)",
                         e.hint);
    }
    if (size == 1)
        return kiln_hint("not even one sample at once fits: use a smaller model, or raise the limit");
    kiln_fail_forget(failures);
    t->part = smaller_part(whole, size, r.need, r.left);
    return true;
}

/* ---- What the whole batch would do ---- */

static kiln_tensor *zeros_of(const kiln_field *item, int64_t size)
{
    int64_t shape[KILN_MAX_DIMS] = {size};
    for (int d = 0; d < item->ndim; d++)
        shape[d + 1] = item->shape[d];
    return item->dtype == KILN_DTYPES ? NULL : kiln_zeros(item->ndim + 1, shape, item->dtype);
}

static kiln_tensor *whole_loss(kiln_module *self, kiln_tensor *x, void *context)
{
    (void)self;
    const kiln_training *t = context;
    kiln_tensor *y = zeros_of(&t->data.y, kiln_size(x, 0));
    return kiln_task_loss(&t->task, kiln_forward(t->model, x), x, y).value;
}

static bool refuse_mixing(const kiln_training *t, int64_t size)
{
    kiln_fail(KILN_E_UNSUPPORTED, "fit",
              "a batch of %lld samples would be gone through in parts of %lld, but the model takes the samples of a "
              "batch together (batch norm does, in training): in parts it would train differently",
              (long long)size, (long long)t->part);
    return kiln_hint(
        "take the statistics of each part with .fit_memory = KILN_FIT_LOCAL (--fit-memory=local), or use a "
        "batch that fits");
}

/* Notes what the pass of a whole batch draws. Recorded and thrown away: it takes no memory of the device. */
static bool look_at_whole(kiln_training *t, kiln_whole *w)
{
    int64_t shape[KILN_MAX_DIMS] = {w->size};
    for (int d = 0; d < t->data.x.ndim; d++)
        shape[d + 1] = t->data.x.shape[d];
    kiln_module *step = kiln_module_new("Step", whole_loss, t, NULL);
    if (!step)
        return false;
    kiln_whole_note(w);
    bool done = kiln_dry_run(step, t->data.x.ndim + 1, shape, t->data.x.dtype, NULL, NULL, NULL);
    kiln_whole_note(NULL);
    kiln_module_free(step);
    return done && (!w->mixes || t->o.fit_memory == KILN_FIT_LOCAL || refuse_mixing(t, w->size));
}

/* ---- The parts ---- */

static bool train_part(kiln_training *t, const kiln_batch *b, int64_t first, int64_t size, bool last,
                       kiln_write_step write)
{
    kiln_step {
        kiln_batch part = {.size = size, .epoch = b->epoch, .index = b->index};
        part.x = kiln_batch_part(b->x, first, size);
        part.y = kiln_batch_part(b->y, first, size);
        if (part.x && (part.y || !b->y))
            write(t, &part, last);
    }
    return kiln_ok();
}

static bool train_parts(kiln_training *t, const kiln_batch *b, bool last, kiln_write_step write, const kiln_whole *w)
{
    const kiln_random_state begun = kiln_random_get();
    const int64_t seen = t->step_seen;
    bool done = true;
    for (int64_t first = 0; done && first < b->size;) {
        int64_t size = t->part < b->size - first ? t->part : b->size - first;
        uint64_t failures = kiln_fail_count();
        kiln_meter before = t->meter;
        kiln_random_set(begun);
        kiln_part_begin(w, first, size);
        done = train_part(t, b, first, size, last && first + size == b->size, write);
        kiln_part_begin(NULL, 0, 0);
        if (done)
            first += size;
        else if ((done = kiln_training_shrink(t, b->size, size, failures)))
            t->meter = before; /* what it counts on the host */
        t->step_seen = seen + first;
    }
    t->step_seen = seen;
    return done;
}

bool kiln_training_split(kiln_training *t, const kiln_batch *b, bool last, kiln_write_step write)
{
    kiln_whole w = {.size = b->size};
    int64_t before = t->part_told;
    bool done = look_at_whole(t, &w) && train_parts(t, b, last, write, &w);
    kiln_whole_free(&w);
    if (done && t->part != before && !t->o.micro_batch) {
        kiln_notice("a batch of %lld samples does not fit into memory: each is gone through in parts of %lld",
                    (long long)t->o.batch, (long long)t->part);
        t->part_told = t->part;
    }
    return done;
}
