/* The loader: batches of a data set, one after the other, as tensors on a device.
 *
 * On the CPU a batch is prepared where it will be used: slots of the ring lie in blocks of the device's memory, a full
 * block becomes the storage of a tensor, and the slot gets another from the pool, as a rule the one that the batch
 * before has just given back. Nothing is copied, and what still needs an earlier batch (recorded operations that did
 * not run yet, a view that was kept) holds its storage as it holds any other. To other devices batches are copied
 * beside the steps (feed.c).
 *
 * Where the whole data set lies on the device (resident.c) there is no ring: a batch is a thunk, which the
 * step that uses it makes. */
#include <string.h>
#include "core/alloc.h"
#include "core/fail.h"
#include "core/sized.h"
#include "data/augment.h"
#include "data/feed.h"
#include "data/loader.h"
#include "data/resident.h"
#include "data/ring.h"
#include "tensor/memory.h"
#include "trace/shapes.h"

enum { MOST_PREFETCH = 4096 };
static const double USUAL_SHARE = 0.25; /* of a device's memory, for a data set */

struct kiln_loader {
    kiln_ring ring;
    kiln_device device;
    const kiln_resident *resident;   /* not NULL: where batches are taken from, without slots and workers */
    int64_t first;                   /* the set's first sample there */
    kiln_block *x_blocks, *y_blocks; /* on the CPU: where slots lie */
    kiln_feed feed;                  /* on others, without a copy of the set there */
    kiln_tensor *x, *y;              /* of the batch that was handed out last */
    int64_t epoch, index;            /* the next batch */
    bool jumped;                     /* the ring does not stand there */
};

/* ---- Making ---- */

static bool check_options(const kiln_dataset *d, kiln_loader_options *o)
{
    int64_t count = d->info.count;
    if (!o->batch)
        o->batch = count < 32 ? count : 32;
    if (o->batch < 1)
        return kiln_fail(KILN_E_ARGUMENT, "loader_new", "a batch of %lld samples cannot be made", (long long)o->batch);
    if (o->batch > count) {
        kiln_fail(KILN_E_ARGUMENT, "loader_new", "a batch of %lld samples is more than %s has: %lld",
                  (long long)o->batch, d->info.name, (long long)count);
        return kiln_hint("choose a batch of at most %lld", (long long)count);
    }
    if (o->workers < 0 || o->workers > KILN_RING_WORKERS)
        return kiln_fail(KILN_E_ARGUMENT, "loader_new", "there can be 0 to %d workers, not %d", KILN_RING_WORKERS,
                         o->workers);
    if (o->prefetch < 0 || o->prefetch > MOST_PREFETCH)
        return kiln_fail(KILN_E_ARGUMENT, "loader_new", "0 to %d batches can be prepared ahead, not %d", MOST_PREFETCH,
                         o->prefetch);
    if (!(o->resident <= 1))
        return kiln_fail(KILN_E_ARGUMENT, "loader_new", "resident is a share of the device's memory, 1 at most, not %g",
                         o->resident);
    size_t most = d->x_bytes > d->y_bytes ? d->x_bytes : d->y_bytes, bytes;
    if (__builtin_mul_overflow(most, (size_t)o->batch, &bytes) || bytes > INT64_MAX / 16)
        return kiln_fail(KILN_E_MEMORY, "loader_new", "a batch of %lld samples of %zu bytes does not fit into memory",
                         (long long)o->batch, most);
    return kiln_augment_check(d, &o->augment, "loader_new") && kiln_device_describe(o->device, NULL);
}

/* Batches that lie in slots, prepared or being so. */
static int64_t slots_of(const kiln_loader_options *o, int64_t batches)
{
    int64_t n = !o->workers ? 1 + (o->device != KILN_CPU) : o->prefetch ? o->prefetch : 4 * (int64_t)o->workers;
    return n > batches ? batches : n;
}

static const kiln_resident *resident_of(kiln_dataset *d, const kiln_loader_options *o, int64_t *first)
{
    if (o->device == KILN_CPU || o->resident < 0)
        return NULL;
    return kiln_resident_of(d, o->device, o->resident > 0 ? o->resident : USUAL_SHARE, first);
}

/* Room for a batch in a slot: a block of the CPU's memory. */
static bool take_room(size_t bytes, kiln_block *block, char **room)
{
    if (!kiln_memory_take(KILN_CPU, bytes, block))
        return false;
    *room = (char *)(uintptr_t)block->address;
    return true;
}

/* Always false: where memory was what was missing, what the loader takes of it is a way to mend that. */
static bool say_room(const kiln_loader *l)
{
    const kiln_ring *r = &l->ring;
    if (kiln_last_error()->code != KILN_E_MEMORY)
        return false;
    double mib = (double)(r->data->x_bytes + r->data->y_bytes) * (double)r->batch / (1 << 20);
    return kiln_hint("the loader keeps %lld batches of %.2f MiB ready beside the one in use: a smaller batch, fewer "
                     "workers or less prefetch need less",
                     (long long)r->nslots, mib);
}

static void give_room(const kiln_block *block, const char *room)
{
    if (room)
        kiln_memory_give(KILN_CPU, *block);
}

static bool make_slots(kiln_loader *l)
{
    kiln_ring *r = &l->ring;
    if (!kiln_ring_init(r))
        return false;
    if (l->device != KILN_CPU)
        return kiln_feed_init(&l->feed, r, l->device);
    l->x_blocks = kiln_alloc_zero((size_t)r->nslots, sizeof *l->x_blocks);
    l->y_blocks = kiln_alloc_zero((size_t)r->nslots, sizeof *l->y_blocks);
    if (!l->x_blocks || !l->y_blocks)
        return false;
    size_t x_bytes = (size_t)r->batch * r->data->x_bytes, y_bytes = (size_t)r->batch * r->data->y_bytes;
    for (int64_t i = 0; i < r->nslots; i++)
        if (!take_room(x_bytes, &l->x_blocks[i], &r->slots[i].x) ||
            (y_bytes && !take_room(y_bytes, &l->y_blocks[i], &r->slots[i].y)))
            return false;
    return true;
}

kiln_loader *kiln_loader_new_(kiln_dataset *d, const kiln_loader_options *given)
{
    kiln_loader_options o;
    if (!KILN_TAKE_OPTIONS("loader_new", o, given))
        return NULL;
    if (!d)
        return kiln_fail_null("loader_new", 1);
    if (!check_options(d, &o))
        return NULL;
    kiln_loader *l = kiln_alloc_zero(1, sizeof *l);
    if (!l)
        return NULL;
    l->device = o.device;
    l->jumped = true;
    kiln_ring *r = &l->ring;
    r->data = d;
    r->batch = o.batch;
    r->batches = o.drop_last ? d->info.count / o.batch : (d->info.count - 1) / o.batch + 1;
    r->shuffle = o.shuffle;
    r->seed = o.seed;
    r->augment = o.augment;
    r->workers = o.workers;
    r->nslots = slots_of(&o, r->batches);
    l->resident = resident_of(d, &o, &l->first);
    if (l->resident || make_slots(l))
        return l;
    say_room(l);
    kiln_loader_free(l);
    return NULL;
}

static void release_batch(kiln_loader *l)
{
    kiln_release(l->x);
    kiln_release(l->y);
    l->x = l->y = NULL;
    kiln_feed_release(&l->feed);
}

void kiln_loader_free(kiln_loader *l)
{
    if (!l)
        return;
    release_batch(l);
    kiln_ring_stop(&l->ring);
    const kiln_slot *slots = l->ring.slots;
    for (int64_t i = 0; l->x_blocks && l->y_blocks && i < l->ring.nslots; i++) {
        give_room(&l->x_blocks[i], slots[i].x);
        give_room(&l->y_blocks[i], slots[i].y);
    }
    if (slots && l->device != KILN_CPU)
        kiln_feed_free(&l->feed);
    kiln_ring_free(&l->ring);
    kiln_free(l->x_blocks);
    kiln_free(l->y_blocks);
    kiln_free(l);
}

/* ---- Batches ---- */

/* A tensor that takes over the slot's block, which is replaced by another. On an error the slot keeps a block. */
static kiln_tensor *wrap(kiln_block *block, char **room, size_t bytes, kiln_dtype dtype, int ndim, const int64_t *shape)
{
    kiln_block next;
    kiln_storage *s = kiln_storage_new(KILN_CPU, bytes);
    if (!s || !kiln_memory_take(KILN_CPU, block->bytes, &next)) {
        kiln_storage_unref(s);
        return NULL;
    }
    s->block = *block;
    s->address = block->address;
    s->has_memory = true;
    *block = next;
    *room = (char *)(uintptr_t)next.address;
    return kiln_tensor_make(s, dtype, ndim, shape, NULL, 0);
}

static kiln_tensor *make_tensor(kiln_block *block, char **room, const kiln_field *item, int64_t size)
{
    int64_t shape[KILN_MAX_DIMS] = {size};
    size_t bytes = (size_t)size * kiln_dtype_size(item->dtype);
    for (int d = 0; d < item->ndim; d++) {
        shape[d + 1] = item->shape[d];
        bytes *= (size_t)item->shape[d];
    }
    return kiln_keep(wrap(block, room, bytes, item->dtype, item->ndim + 1, shape));
}

/* The slot's batch as tensors. */
static bool hand_out(kiln_loader *l, kiln_slot *slot, int64_t size)
{
    const kiln_data_info *info = &l->ring.data->info;
    int64_t i = slot - l->ring.slots;
    l->x = make_tensor(&l->x_blocks[i], &slot->x, &info->x, size);
    if (l->x && slot->y)
        l->y = make_tensor(&l->y_blocks[i], &slot->y, &info->y, size);
    return l->x && (l->y || !slot->y);
}

/* The batch as tensors that are made where they are used. The old ones become the new ones where they can. */
static bool take_resident(kiln_loader *l, int64_t size)
{
    const kiln_ring *r = &l->ring;
    const kiln_data_info *info = &r->data->info;
    kiln_pick pick = {.first = l->first,
                      .count = info->count,
                      .shuffle = r->shuffle,
                      .seed = r->seed,
                      .epoch = l->epoch,
                      .position = l->index * r->batch,
                      .size = size,
                      .augment = r->augment,
                      .blank = r->data->blank};
    l->x = kiln_resident_batch(&l->resident->x, &info->x, &pick, l->x);
    pick.augment = (kiln_augment){0};
    if (l->resident->y.data)
        l->y = kiln_resident_batch(&l->resident->y, &info->y, &pick, l->y);
    return l->x && (l->y || !l->resident->y.data);
}

/* The batch out of the ring. After an error the same one is tried again. */
static bool take_prepared(kiln_loader *l, int64_t size)
{
    release_batch(l);
    if (l->jumped)
        kiln_ring_restart(&l->ring, l->epoch, l->index);
    kiln_slot *slot = kiln_ring_take(&l->ring, l->index);
    l->jumped = !slot || (!hand_out(l, slot, size) && !say_room(l));
    if (!l->jumped)
        kiln_ring_give(&l->ring, slot);
    return !l->jumped;
}

/* The same by way of the feed. */
static bool take_fed(kiln_loader *l)
{
    release_batch(l);
    if (l->jumped)
        kiln_feed_restart(&l->feed, l->epoch, l->index);
    l->jumped = !kiln_feed_take(&l->feed, l->index, &l->x, &l->y) && !say_room(l);
    return !l->jumped;
}

static bool take_batch(kiln_loader *l, int64_t size)
{
    return l->resident ? take_resident(l, size) : l->device == KILN_CPU ? take_prepared(l, size) : take_fed(l);
}

bool kiln_loader_next_(kiln_loader *l, kiln_batch *b, size_t bytes)
{
    if (b)
        memset(b, 0, bytes);
    if (!l || !b)
        return kiln_fail_null("loader_next", l ? 2 : 1);
    if (l->index >= l->ring.batches) {
        release_batch(l);
        l->epoch++;
        l->index = 0;
        l->jumped = true;
        return false;
    }
    l->jumped |= kiln_ring_renew(&l->ring);
    int64_t size = kiln_ring_batch_size(&l->ring, l->index);
    if (!take_batch(l, size)) {
        release_batch(l);
        return false;
    }
    const kiln_batch next = {.x = l->x, .y = l->y, .size = size, .epoch = l->epoch, .index = l->index};
    KILN_GIVE_SIZED(b, bytes, next);
    l->index++;
    return true;
}

bool kiln_loader_seek(kiln_loader *l, int64_t epoch, int64_t index)
{
    if (!l)
        return kiln_fail_null("loader_seek", 1);
    if (epoch < 0 || index < 0 || index > l->ring.batches)
        return kiln_fail(KILN_E_ARGUMENT, "loader_seek", "there is no batch %lld of epoch %lld: an epoch has %lld",
                         (long long)index, (long long)epoch, (long long)l->ring.batches);
    release_batch(l);
    l->jumped |= epoch != l->epoch || index != l->index;
    l->epoch = epoch;
    l->index = index;
    return true;
}

/* ---- Looking ahead ---- */

static kiln_tensor *shape_of(const kiln_field *item, int64_t size, kiln_device device)
{
    int64_t shape[KILN_MAX_DIMS] = {size};
    memcpy(shape + 1, item->shape, (size_t)item->ndim * sizeof *shape);
    return kiln_keep(kiln_shapes_tensor(item->dtype, item->ndim + 1, shape, device));
}

static uint64_t block_bytes(size_t bytes)
{
    return bytes ? (bytes + KILN_BLOCK_ALIGN - 1) / KILN_BLOCK_ALIGN * KILN_BLOCK_ALIGN : 0;
}

bool kiln_loader_sketch(kiln_dataset *d, const kiln_loader_options *given, kiln_batch *b, kiln_loader_room *room)
{
    kiln_loader_options o = *given;
    kiln_loader l = {.ring = {.data = d, .shuffle = o.shuffle, .augment = o.augment}};
    if (!check_options(d, &o))
        return false;
    l.ring.batch = o.batch;
    if ((l.resident = resident_of(d, &o, &l.first))) {
        *room = (kiln_loader_room){0};
        take_resident(&l, o.batch);
    } else {
        uint64_t one = block_bytes((size_t)o.batch * d->x_bytes) + block_bytes((size_t)o.batch * d->y_bytes);
        uint64_t slots = (uint64_t)slots_of(&o, (d->info.count - 1) / o.batch + 1);
        if (o.device == KILN_CPU)
            *room = (kiln_loader_room){(slots + 1) * one, slots * one};
        else
            *room = (kiln_loader_room){KILN_FEED_BUFFERS * one, KILN_FEED_BUFFERS * one};
        l.x = shape_of(&d->info.x, o.batch, o.device);
        l.y = l.x && d->y_bytes ? shape_of(&d->info.y, o.batch, o.device) : NULL;
    }
    bool targets = l.resident ? l.resident->y.data != NULL : d->y_bytes > 0;
    *b = (kiln_batch){.x = l.x, .y = l.y, .size = o.batch};
    if (l.x && (l.y || !targets))
        return true;
    kiln_release(l.x);
    kiln_release(l.y);
    return false;
}

/* ---- Asking ---- */

int64_t kiln_loader_batches(const kiln_loader *l)
{
    return kiln_given(l, "loader_batches") ? l->ring.batches : 0;
}

int64_t kiln_loader_batch_size(const kiln_loader *l, int64_t index)
{
    return kiln_given(l, "loader_batch_size") && index >= 0 && index < l->ring.batches
               ? kiln_ring_batch_size(&l->ring, index)
               : 0;
}

int64_t kiln_loader_sample(const kiln_loader *l, int64_t epoch, int64_t position)
{
    if (!kiln_given(l, "loader_sample"))
        return -1;
    if (epoch < 0 || position < 0 || position >= l->ring.data->info.count) {
        kiln_fail(KILN_E_ARGUMENT, "loader_sample", "there is no place %lld in epoch %lld: %s has %lld samples",
                  (long long)position, (long long)epoch, l->ring.data->info.name, (long long)l->ring.data->info.count);
        return -1;
    }
    kiln_order order;
    kiln_order_init(&order, l->ring.data->info.count, l->ring.shuffle, l->ring.seed, epoch);
    return kiln_order_at(&order, position);
}

double kiln_loader_waited(const kiln_loader *l)
{
    return kiln_given(l, "loader_waited") ? l->ring.waited : 0;
}
