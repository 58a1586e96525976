/* Data sets: what all kinds share, and the two that only pass samples on: a user's function and a range of another set.
 */
#include "data/dataset.h"
#include <string.h>
#include "core/alloc.h"
#include "core/fail.h"
#include "core/fork.h"
#include "core/sized.h"
#include "data/resident.h"
#include "ops/op.h"

kiln_field kiln_field_make(kiln_dtype dtype, int ndim, const int64_t *shape)
{
    kiln_field item = {.dtype = dtype, .ndim = ndim};
    for (int d = 0; d < ndim; d++)
        item.shape[d] = shape[d];
    return item;
}

void kiln_dataset_name(kiln_data_info *info, const char *path)
{
    const char *from = path + strlen(path);
    for (int slashes = 0; from > path && slashes + (from[-1] == '/') < 2; from--)
        slashes += from[-1] == '/';
    size_t length = strlen(from), room = sizeof info->name - 1;
    if (length > room)
        from += length - room; /* the end of a name tells more */
    snprintf(info->name, sizeof info->name, "%s", from);
}

/* Bytes of one side of a sample; 0 when it is none that a batch can have. */
static size_t item_bytes(const kiln_field *item)
{
    size_t bytes = kiln_dtype_size(item->dtype);
    if (item->ndim < 0 || item->ndim >= KILN_MAX_DIMS) /* the batch is one more */
        return 0;
    for (int d = 0; d < item->ndim; d++)
        if (item->shape[d] < 1 || __builtin_mul_overflow(bytes, (size_t)item->shape[d], &bytes) || bytes > INT64_MAX)
            return 0;
    return bytes;
}

static bool bad_item(const char *operation, const char *which, const kiln_field *item)
{
    if (!kiln_dtype_size(item->dtype))
        return kiln_fail(KILN_E_DTYPE, operation, "%s of a sample: %d is no dtype", which, (int)item->dtype);
    if (item->ndim < 0 || item->ndim >= KILN_MAX_DIMS)
        return kiln_fail(KILN_E_SHAPE, operation,
                         "%s of a sample has 0 to %d dimensions, since the batch is one, not %d", which,
                         KILN_MAX_DIMS - 1, item->ndim);
    return kiln_fail(KILN_E_SHAPE, operation, "%s of a sample cannot have the shape %s", which,
                     kiln_shape_text(item->ndim, item->shape));
}

bool kiln_dataset_init(kiln_dataset *d, const kiln_dataset_kind *kind, const kiln_data_info *info,
                       const char *operation)
{
    d->kind = kind;
    d->info = *info;
    d->info.repeatable |= kind->stored != NULL;
    pthread_mutex_init(&d->lock, NULL);
    d->forks = kiln_forks();
    d->info.name[sizeof d->info.name - 1] = '\0';
    if (info->count < 1)
        return kiln_fail(KILN_E_ARGUMENT, operation, "a data set needs at least one sample, not %lld",
                         (long long)info->count);
    if (info->classes < 0)
        return kiln_fail(KILN_E_ARGUMENT, operation, "there cannot be %lld classes", (long long)info->classes);
    d->x_bytes = item_bytes(&info->x);
    d->y_bytes = info->y.dtype == KILN_DTYPES ? 0 : item_bytes(&info->y);
    if (!d->x_bytes)
        return bad_item(operation, "x", &info->x);
    if (!d->y_bytes && info->y.dtype != KILN_DTYPES)
        return bad_item(operation, "y", &info->y);
    return true;
}

void kiln_data_describe_(const kiln_dataset *d, kiln_data_info *info, size_t size)
{
    const kiln_data_info none = {.x.dtype = KILN_DTYPES, .y.dtype = KILN_DTYPES};
    kiln_sized_give(info, size, kiln_given(d, "data_describe") ? &d->info : &none, sizeof none);
}

int64_t kiln_data_count(const kiln_dataset *d)
{
    return kiln_given(d, "data_count") ? d->info.count : 0;
}

void kiln_data_free(kiln_dataset *d)
{
    if (!d)
        return;
    kiln_resident_free(d->resident);
    pthread_mutex_destroy(&d->lock);
    if (d->kind->free)
        d->kind->free(d);
    kiln_free(d);
}

int64_t kiln_integer_at(kiln_dtype dtype, const void *values, int64_t i)
{
    switch (dtype) {
    case KILN_I64: return ((const int64_t *)values)[i];
    case KILN_I32: return ((const int32_t *)values)[i];
    default: return ((const uint8_t *)values)[i];
    }
}

bool kiln_dataset_read(const kiln_dataset *d, int64_t index, void *x, void *y)
{
    bool was_ok = kiln_ok();
    if (d->kind->read(d, index, x, y))
        return true;
    kiln_error e = *kiln_last_error();
    if (!was_ok || e.code == KILN_OK)
        return kiln_fail(KILN_E_IO, "data", "sample %lld of %s could not be read", (long long)index, d->info.name);
    kiln_error_clear(); /* and said again, with the sample's number */
    kiln_fail(e.code, e.operation, "sample %lld of %s: %s", (long long)index, d->info.name, e.message);
    if (e.hint[0])
        kiln_hint("%s", e.hint);
    return false;
}

/* ---- Samples made by a function ---- */

typedef struct generator {
    kiln_dataset base;
    kiln_read_fn read;
    void *context;
    int64_t labels; /* integers in y to be checked against the classes */
} generator;

static bool read_generated(const kiln_dataset *d, int64_t index, void *x, void *y)
{
    const generator *g = (const generator *)d;
    if (!g->read(g->context, index, x, y))
        return false;
    for (int64_t i = 0; i < g->labels; i++) {
        int64_t label = kiln_integer_at(d->info.y.dtype, y, i);
        if (!kiln_label_fits(label, d->info.classes))
            return kiln_fail(KILN_E_INDEX, "data", "its label %lld is none of the %lld classes 0 … %lld",
                             (long long)label, (long long)d->info.classes, (long long)d->info.classes - 1);
    }
    return true;
}

kiln_dataset *kiln_data_generator_(const kiln_data_info *given, size_t size, kiln_read_fn read, void *context)
{
    static const kiln_dataset_kind kind = {.read = read_generated};
    kiln_data_info info;
    if (!KILN_TAKE_SIZED("data_generator", info, given, size))
        return NULL;
    if (!read)
        return kiln_fail(KILN_E_ARGUMENT, "data_generator", "there is no function to read samples with");
    generator *g = kiln_alloc_zero(1, sizeof *g);
    if (!g)
        return NULL;
    if (!info.name[0])
        snprintf(info.name, sizeof info.name, "generator");
    if (!kiln_dataset_init(&g->base, &kind, &info, "data_generator")) {
        kiln_free(g);
        return NULL;
    }
    g->read = read;
    g->context = context;
    g->base.lacks_labels = info.y.dtype == KILN_I32 || info.y.dtype == KILN_I64; /* nobody has looked */
    if (info.classes && g->base.y_bytes && !kiln_dtype_is_float(info.y.dtype))
        g->labels = (int64_t)(g->base.y_bytes / kiln_dtype_size(info.y.dtype));
    return &g->base;
}

/* ---- A range of another set ---- */

typedef struct range {
    kiln_dataset base;
    kiln_dataset *of;
    int64_t first;
} range;

static bool read_of_range(const kiln_dataset *d, int64_t index, void *x, void *y)
{
    const range *r = (const range *)d;
    return r->of->kind->read(r->of, r->first + index, x, y);
}

static bool range_stored(const kiln_dataset *d, kiln_stored *s)
{
    const range *r = (const range *)d;
    if (!r->of->kind->stored || !r->of->kind->stored(r->of, s))
        return false;
    s->x.start += r->first * s->x.distance;
    s->y.start += r->first * s->y.distance;
    return true;
}

static kiln_dataset *whole_of_range(const kiln_dataset *d, int64_t *first)
{
    const range *r = (const range *)d;
    *first = r->first;
    return r->of;
}

kiln_dataset *kiln_data_range(kiln_dataset *d, int64_t first, int64_t count)
{
    static const kiln_dataset_kind kind = {.read = read_of_range, .stored = range_stored, .whole = whole_of_range};
    if (!d)
        return kiln_fail_null("data_range", 1);
    if (first < 0 || count < 1 || first > d->info.count || count > d->info.count - first)
        return kiln_fail(KILN_E_ARGUMENT, "data_range",
                         "%s has samples 0 … %lld: %lld of them from number %lld are not there", d->info.name,
                         (long long)d->info.count - 1, (long long)count, (long long)first);
    range *r = kiln_alloc_zero(1, sizeof *r);
    if (!r)
        return NULL;
    kiln_data_info info = d->info;
    info.count = count;
    *r = (range){.of = d, .first = first};
    kiln_dataset_init(&r->base, &kind, &info, "data_range"); /* a description that was checked before */
    r->base.info.repeatable = d->info.repeatable;
    r->base.blank = d->blank;
    r->base.lacks_labels = d->lacks_labels;
    return &r->base;
}
