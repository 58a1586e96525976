/* Data sets on a device. What lies in host memory is copied as it is; samples that are made on demand, always the same,
 * are read once by all threads. A range of a set that lies in memory uses the copy of the whole where that fits, so
 * that training and test samples of one file are there once. */
#include "data/resident.h"
#include <stdatomic.h>
#include "core/alloc.h"
#include "core/fail.h"
#include "core/fork.h"
#include "core/parallel.h"
#include "data/augment.h"
#include "ops/samples.h"
#include "plan/backend.h"
#include "tensor/memory.h"
#include "trace/thunk.h"

extern const kiln_op kiln_op_take_samples;

static void free_one(kiln_resident *r)
{
    kiln_release(r->x.data);
    kiln_release(r->x.table);
    kiln_tensor_unref(r->y.data);
    kiln_release(r->y.table);
    kiln_free(r);
}

void kiln_resident_free(kiln_resident *r)
{
    for (kiln_resident *next; r; r = next) {
        next = r->next;
        free_one(r);
    }
}

/* ---- Room ---- */

static bool fits(kiln_device device, size_t bytes, double share)
{
    kiln_device_info info;
    kiln_memory_stats stats;
    if (!kiln_device_describe(device, &info) || !kiln_memory_get_stats(device, &stats))
        return false;
    uint64_t total = stats.limit && stats.limit < info.memory_total ? stats.limit : info.memory_total;
    return (double)bytes <= share * (double)total && (int64_t)bytes <= kiln_memory_available(device);
}

/* Memory for `count` elements, one after the other, with nothing in it yet. */
static kiln_tensor *new_storage(kiln_device device, kiln_dtype dtype, int64_t count)
{
    kiln_storage *s = kiln_storage_new(device, (size_t)count * kiln_dtype_size(dtype));
    if (!s || !kiln_memory_take(device, s->bytes, &s->block)) {
        kiln_storage_unref(s);
        return NULL;
    }
    s->address = s->block.address;
    s->has_memory = true;
    s->role = KILN_ROLE_DATASET;
    return kiln_keep(kiln_tensor_make(s, dtype, 1, &count, NULL, 0));
}

static kiln_tensor *copied(kiln_device device, kiln_dtype dtype, int64_t count, const void *from)
{
    kiln_tensor *t = new_storage(device, dtype, count);
    if (!t || kiln_copy_in(device, t->storage->address, from, t->storage->bytes))
        return t;
    kiln_release(t);
    return NULL;
}

/* ---- Sets that lie in host memory ---- */

/* The part of the storage that samples use: elements begin … end-1. */
typedef struct part {
    int64_t begin, end;
} part;

static int64_t elements_of(const kiln_field *item)
{
    return kiln_count(item->ndim, item->shape);
}

static part used_part(const kiln_dataset *d, const kiln_stored_side *s, const kiln_field *item)
{
    return (part){s->start, s->start + (d->info.count - 1) * s->distance + elements_of(item)};
}

/* Both sides may be windows of one storage, as a text's are. */
static void find_parts(const kiln_dataset *d, const kiln_stored *s, part *x, part *y)
{
    *x = used_part(d, &s->x, &d->info.x);
    *y = s->y.data ? used_part(d, &s->y, &d->info.y) : (part){0, 0};
    if (s->y.data != s->x.data)
        return;
    x->begin = y->begin = x->begin < y->begin ? x->begin : y->begin;
    x->end = y->end = x->end > y->end ? x->end : y->end;
}

static size_t part_bytes(const part *p, kiln_dtype dtype)
{
    return (size_t)(p->end - p->begin) * kiln_dtype_size(dtype);
}

static size_t stored_bytes(const kiln_dataset *d, const kiln_stored *s)
{
    part x, y;
    find_parts(d, s, &x, &y);
    return part_bytes(&x, s->x.dtype) + (s->y.data && s->y.data != s->x.data ? part_bytes(&y, s->y.dtype) : 0);
}

static bool copy_side(kiln_device device, const kiln_stored_side *s, const part *p, kiln_resident_side *to)
{
    const char *from = (const char *)s->data + (size_t)p->begin * kiln_dtype_size(s->dtype);
    to->start = s->start - p->begin;
    to->distance = s->distance;
    if (!to->data && !(to->data = copied(device, s->dtype, p->end - p->begin, from)))
        return false;
    return !s->table || (to->table = copied(device, KILN_F32, KILN_SAMPLES_TABLE, s->table));
}

static bool copy_stored(const kiln_dataset *d, const kiln_stored *s, kiln_resident *r)
{
    part x, y;
    find_parts(d, s, &x, &y);
    if (!copy_side(r->device, &s->x, &x, &r->x))
        return false;
    if (s->y.data == s->x.data)
        r->y.data = kiln_tensor_ref(r->x.data);
    return !s->y.data || copy_side(r->device, &s->y, &y, &r->y);
}

/* ---- Sets that are made on demand ---- */

enum { PIECE_BYTES = 16 << 20, TASK_SAMPLES = 16 };

typedef struct reading {
    const kiln_dataset *data;
    char *x, *y;
    int64_t first, count;
    atomic_bool failed;
} reading;

static void read_some(void *context, int64_t task, int worker)
{
    (void)worker;
    reading *r = context;
    int64_t i = task * TASK_SAMPLES, end = i + TASK_SAMPLES < r->count ? i + TASK_SAMPLES : r->count;
    for (; i < end && !atomic_load_explicit(&r->failed, memory_order_relaxed); i++) {
        char *x = r->x + (size_t)i * r->data->x_bytes, *y = r->y ? r->y + (size_t)i * r->data->y_bytes : NULL;
        if (!kiln_dataset_read(r->data, r->first + i, x, y)) {
            kiln_error_clear(); /* it will be met, and told, when a batch needs that sample */
            atomic_store_explicit(&r->failed, true, memory_order_relaxed);
        }
    }
}

static bool copy_piece(const reading *r, const kiln_resident *to)
{
    size_t x_bytes = r->data->x_bytes, y_bytes = r->data->y_bytes;
    kiln_address x = to->x.data->storage->address + (uint64_t)r->first * x_bytes;
    if (!kiln_copy_in(to->device, x, r->x, (size_t)r->count * x_bytes))
        return false;
    kiln_address y = r->y ? to->y.data->storage->address + (uint64_t)r->first * y_bytes : 0;
    return !r->y || kiln_copy_in(to->device, y, r->y, (size_t)r->count * y_bytes);
}

static bool copy_pieces(reading *r, const kiln_resident *to, int64_t a_piece)
{
    int64_t all = r->data->info.count;
    for (r->first = 0; r->first < all; r->first += r->count) {
        r->count = all - r->first < a_piece ? all - r->first : a_piece;
        kiln_parallel((r->count - 1) / TASK_SAMPLES + 1, read_some, r);
        if (atomic_load(&r->failed) || !copy_piece(r, to))
            return false;
    }
    return true;
}

static bool read_all(const kiln_dataset *d, kiln_resident *r)
{
    int64_t all = d->info.count, a_piece = PIECE_BYTES / (int64_t)(d->x_bytes + d->y_bytes);
    a_piece = a_piece < 1 ? 1 : a_piece > all ? all : a_piece;
    r->x.distance = elements_of(&d->info.x);
    r->y.distance = elements_of(&d->info.y);
    r->x.data = new_storage(r->device, d->info.x.dtype, all * r->x.distance);
    if (r->x.data && d->y_bytes)
        r->y.data = new_storage(r->device, d->info.y.dtype, all * r->y.distance);
    reading in = {.data = d};
    if (r->x.data && (r->y.data || !d->y_bytes))
        in.x = kiln_alloc((size_t)a_piece, d->x_bytes);
    if (in.x && d->y_bytes)
        in.y = kiln_alloc((size_t)a_piece, d->y_bytes);
    bool ok = in.x && (in.y || !d->y_bytes) && copy_pieces(&in, r, a_piece);
    kiln_free(in.x);
    kiln_free(in.y);
    return ok;
}

/* ---- Either ---- */

static bool is_stored(const kiln_dataset *d, kiln_stored *s)
{
    *s = (kiln_stored){0};
    return d->kind->stored && d->kind->stored(d, s);
}

/* Bytes of the whole set in the form it would have there; SIZE_MAX: more than there can be. */
static size_t bytes_there(const kiln_dataset *d, const kiln_stored *s)
{
    size_t bytes;
    if (s->x.data)
        return stored_bytes(d, s);
    return __builtin_mul_overflow(d->x_bytes + d->y_bytes, (size_t)d->info.count, &bytes) ? SIZE_MAX : bytes;
}

static kiln_resident *find(const kiln_dataset *d, kiln_device device)
{
    kiln_resident *r = d->resident;
    while (r && r->device != device)
        r = r->next;
    return r;
}

/* With the lock held. */
static kiln_resident *put_there(kiln_dataset *d, kiln_device device, double share, bool *too_large)
{
    kiln_stored s;
    bool stored = is_stored(d, &s);
    if ((!stored && !d->info.repeatable) || !kiln_ok() ||
        !kiln_device_supports(device, &kiln_op_take_samples, stored ? s.x.dtype : d->info.x.dtype))
        return NULL;
    size_t bytes = bytes_there(d, &s);
    *too_large = bytes == SIZE_MAX || !fits(device, bytes, share);
    kiln_resident *r = *too_large ? NULL : kiln_alloc_zero(1, sizeof *r);
    if (r) {
        r->device = device;
        if (stored ? copy_stored(d, &s, r) : read_all(d, r)) {
            r->next = d->resident;
            return d->resident = r;
        }
        free_one(r);
    }
    kiln_error_clear(); /* batches are copied one by one: no error, whatever stood in the way */
    return NULL;
}

/* The lock of a set is held while it is copied: in a forked child it may be that of a thread that is not there. */
static pthread_mutex_t renewing = PTHREAD_MUTEX_INITIALIZER;

__attribute__((constructor)) static void load(void)
{
    kiln_fork_hold(KILN_FORK_DATA, &renewing, NULL);
}

static void lock_set(kiln_dataset *d)
{
    pthread_mutex_lock(&renewing);
    if (d->forks != kiln_forks())
        pthread_mutex_init(&d->lock, NULL);
    d->forks = kiln_forks();
    pthread_mutex_unlock(&renewing);
    pthread_mutex_lock(&d->lock);
}

static const kiln_resident *find_or_put(kiln_dataset *d, kiln_device device, double share, int64_t *first,
                                        bool *too_large)
{
    kiln_stored s;
    int64_t from = 0;
    kiln_dataset *whole = d->kind->whole ? d->kind->whole(d, &from) : NULL;
    const kiln_resident *r = whole && is_stored(whole, &s) ? find_or_put(whole, device, share, first, too_large) : NULL;
    if (r) {
        *first += from;
        return r;
    }
    *first = 0;
    lock_set(d);
    r = find(d, device);
    if (!r)
        r = put_there(d, device, share, too_large);
    pthread_mutex_unlock(&d->lock);
    return r;
}

/* Said once a set. */
static void tell(kiln_dataset *d, kiln_device device, double share)
{
    kiln_stored s;
    is_stored(d, &s);
    lock_set(d);
    bool told = d->told;
    d->told = true;
    pthread_mutex_unlock(&d->lock);
    if (!told)
        kiln_notice(
            "%s would take %.1f MiB on %s, which is more than %g of its memory or than is left: its batches are "
            "copied there one by one",
            d->info.name, (double)bytes_there(d, &s) / (1 << 20), kiln_device_name(device), share);
}

const kiln_resident *kiln_resident_of(kiln_dataset *d, kiln_device device, double share, int64_t *first)
{
    bool too_large = false;
    const kiln_resident *r = find_or_put(d, device, share, first, &too_large);
    if (!r && too_large)
        tell(d, device, share);
    return r;
}

/* ---- Batches ---- */

static void set_scalars(double *f, const kiln_pick *p)
{
    f[KILN_SAMPLES_POSITION] = (double)p->position;
    f[KILN_SAMPLES_SEED_LOW] = (double)(uint32_t)p->seed;
    f[KILN_SAMPLES_SEED_HIGH] = (double)(uint32_t)(p->seed >> 32);
    f[KILN_SAMPLES_EPOCH_LOW] = (double)(uint32_t)p->epoch;
    f[KILN_SAMPLES_EPOCH_HIGH] = (double)(uint32_t)((uint64_t)p->epoch >> 32);
}

kiln_tensor *kiln_resident_batch(const kiln_resident_side *side, const kiln_field *item, const kiln_pick *pick,
                                 kiln_tensor *old)
{
    kiln_thunk *r = old && !old->extra && old->shape[0] == pick->size ? kiln_thunk_alone(old) : NULL;
    if (r) {
        set_scalars(r->attrs.f, pick);
        return old;
    }
    kiln_release(old);
    kiln_attrs a = {.nints = KILN_SAMPLES_SHAPE + 1 + item->ndim, .nfloats = KILN_SAMPLES_SCALARS};
    a.i[KILN_SAMPLES_DTYPE] = item->dtype;
    a.i[KILN_SAMPLES_COUNT] = pick->count;
    a.i[KILN_SAMPLES_START] = side->start + pick->first * side->distance;
    a.i[KILN_SAMPLES_DISTANCE] = side->distance;
    a.i[KILN_SAMPLES_SHUFFLE] = pick->shuffle;
    a.i[KILN_SAMPLES_FLIP] = pick->augment.flip;
    a.i[KILN_SAMPLES_CROP] = pick->augment.crop;
    a.i[KILN_SAMPLES_BLANK] = kiln_augments(&pick->augment) ? (int64_t)pick->blank : 0;
    a.i[KILN_SAMPLES_SHAPE] = pick->size;
    for (int d = 0; d < item->ndim; d++)
        a.i[KILN_SAMPLES_SHAPE + 1 + d] = item->shape[d];
    set_scalars(a.f, pick);
    return kiln_keep(kiln_thunk_new(&kiln_op_take_samples, KILN_IN(side->data, side->table), &a));
}

kiln_tensor *kiln_batch_part(kiln_tensor *batch, int64_t first, int64_t size)
{
    const kiln_thunk *r = batch ? batch->storage->thunk : NULL;
    if (!r || r->op != &kiln_op_take_samples)
        return batch ? kiln_slice(batch, 0, first, first + size, 1) : NULL;
    kiln_attrs a = r->attrs;
    a.i[KILN_SAMPLES_SHAPE] = size;
    a.f[KILN_SAMPLES_POSITION] += (double)first;
    return kiln_thunk_new(r->op, r->in, r->nin, &a);
}
