/* Parts of a batch: see part.h. */
#include "ops/part.h"

#include "core/alloc.h"
#include "core/fail.h"

static _Thread_local struct {
    kiln_whole *noting;
    const kiln_whole *whole;
    int64_t first, size;
    uint64_t begun; /* the offset of the random state then */
} part;

void kiln_whole_note(kiln_whole *w)
{
    part.noting = w;
    part.begun = kiln_random_get().offset;
}

void kiln_whole_free(kiln_whole *w)
{
    kiln_free(w->drawn);
    *w = (kiln_whole){0};
}

void kiln_part_begin(const kiln_whole *w, int64_t first, int64_t size)
{
    part.whole = w;
    part.first = first;
    part.size = size;
    part.begun = kiln_random_get().offset;
}

void kiln_part_mixes(void)
{
    if (part.noting)
        part.noting->mixes = true;
}

static bool note(int ndim, const int64_t *shape)
{
    kiln_whole *w = part.noting;
    if (!KILN_GROW(w->drawn, w->capacity, w->count + 1))
        return false;
    struct kiln_drawn *d = &w->drawn[w->count++];
    *d = (struct kiln_drawn){.at = kiln_random_get().offset - part.begun, .ndim = ndim};
    for (int i = 0; i < ndim; i++)
        d->shape[i] = shape[i];
    return true;
}

static const struct kiln_drawn *find_here(void)
{
    uint64_t at = kiln_random_get().offset - part.begun;
    for (int64_t i = 0; i < part.whole->count; i++)
        if (part.whole->drawn[i].at == at)
            return &part.whole->drawn[i];
    return NULL;
}

/* One dim may differ, as the batch and the part do. */
static bool compare(const struct kiln_drawn *d, int ndim, const int64_t *shape, kiln_draw_part *p)
{
    if (!d || d->ndim != ndim)
        return false;
    for (int i = 0; i < ndim; i++) {
        if (d->shape[i] == shape[i])
            continue;
        int64_t a_sample = shape[i] / part.size;
        if (p->dim >= 0 || a_sample * part.size != shape[i] || a_sample * part.whole->size != d->shape[i])
            return false;
        *p = (kiln_draw_part){i, a_sample * part.first, d->shape[i]};
    }
    return true;
}

bool kiln_part_of_draw(const char *name, int ndim, const int64_t *shape, kiln_draw_part *p)
{
    *p = (kiln_draw_part){.dim = -1};
    if (kiln_count(ndim, shape) == 0)
        return true;
    if (part.noting)
        return note(ndim, shape);
    if (!part.whole || compare(find_here(), ndim, shape, p))
        return true;
    kiln_fail(KILN_E_STATE, name,
              "%s of random numbers in a part of %lld samples: the whole batch of %lld draws nothing like it there",
              kiln_shape_text(ndim, shape), (long long)part.size, (long long)part.whole->size);
    return kiln_hint("what is drawn must not depend on values, nor its shape on more than the batch; otherwise take a "
                     "smaller batch that needs no parts");
}
