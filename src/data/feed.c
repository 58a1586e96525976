/* Batches on their way to a device: see feed.h. */
#include "data/feed.h"
#include "core/alloc.h"
#include "core/fail.h"

/* ---- Slots ---- */

static size_t padded(size_t bytes)
{
    return (bytes + KILN_BLOCK_ALIGN - 1) / KILN_BLOCK_ALIGN * KILN_BLOCK_ALIGN;
}

bool kiln_feed_init(kiln_feed *f, kiln_ring *r, kiln_device device)
{
    size_t x_bytes = padded((size_t)r->batch * r->data->x_bytes), y_bytes = padded((size_t)r->batch * r->data->y_bytes);
    size_t all;
    f->device = device;
    f->ring = r;
    for (int i = 0; i < KILN_FEED_BUFFERS; i++)
        f->buffers[i].batch = -1;
    if (__builtin_mul_overflow(x_bytes + y_bytes, (size_t)r->nslots, &all))
        return kiln_fail(KILN_E_MEMORY, "loader_new", "%lld batches of %zu bytes do not fit into memory",
                         (long long)r->nslots, x_bytes + y_bytes);
    f->tickets = kiln_alloc_zero((size_t)r->nslots, sizeof *f->tickets);
    if (!f->tickets || !kiln_staging_take(device, all, &f->staging))
        return false;
    for (int64_t i = 0; i < r->nslots; i++) {
        r->slots[i].x = (char *)f->staging.memory + (size_t)i * (x_bytes + y_bytes);
        r->slots[i].y = y_bytes ? r->slots[i].x + x_bytes : NULL;
    }
    return true;
}

/* Gives slots back to the workers whose copies are done; with `wait` one at least. */
static bool give_back(kiln_feed *f, bool wait)
{
    while (f->given < f->begun) {
        int64_t slot = f->given % f->ring->nslots;
        if (!kiln_copy_done(f->device, f->tickets[slot], wait))
            return !wait; /* not yet; or an error */
        kiln_ring_give(f->ring, &f->ring->slots[slot]);
        f->given++;
        wait = false;
    }
    return true;
}

/* The ring's slot for a batch belongs to an earlier one until that has been given back. */
static bool has_slot(const kiln_feed *f, int64_t index)
{
    return index - f->given < f->ring->nslots;
}

/* ---- Buffers ---- */

/* Memory that a copy still goes to must not be given to others. */
static void drop(const kiln_feed *f, kiln_feed_buffer *b)
{
    kiln_copy_done(f->device, b->ticket, true);
    kiln_storage_unref(b->x);
    kiln_storage_unref(b->y);
    *b = (kiln_feed_buffer){.batch = -1};
}

static kiln_storage *new_storage(kiln_device device, size_t bytes)
{
    kiln_storage *s = kiln_storage_new(device, bytes);
    if (!s || !kiln_memory_take(device, bytes, &s->block)) {
        kiln_storage_unref(s);
        return NULL;
    }
    s->address = s->block.address;
    s->has_memory = true;
    return s;
}

static bool make(kiln_feed *f, kiln_feed_buffer *b)
{
    const kiln_dataset *d = f->ring->data;
    b->x = new_storage(f->device, (size_t)f->ring->batch * d->x_bytes);
    b->y = b->x && d->y_bytes ? new_storage(f->device, (size_t)f->ring->batch * d->y_bytes) : NULL;
    if (b->x && (b->y || !d->y_bytes))
        return true;
    drop(f, b);
    return false;
}

static bool alone(const kiln_storage *s)
{
    return !s || atomic_load_explicit(&s->refs, memory_order_acquire) == 1;
}

/* The buffer that has been free for longest; NULL where tensors that were kept, or what is not run yet, hold on to all.
 */
static kiln_feed_buffer *oldest_free(kiln_feed *f)
{
    kiln_feed_buffer *oldest = NULL;
    for (int i = 0; i < KILN_FEED_BUFFERS; i++) {
        kiln_feed_buffer *b = &f->buffers[i];
        if (b->x && b->batch < 0 && b != f->out && alone(b->x) && alone(b->y) && (!oldest || b->age < oldest->age))
            oldest = b;
    }
    return oldest;
}

/* A place for a new buffer: one that is empty, or one whose memory belongs to others by now. */
static kiln_feed_buffer *empty_place(kiln_feed *f, bool held)
{
    for (int i = 0; i < KILN_FEED_BUFFERS; i++) {
        kiln_feed_buffer *b = &f->buffers[i];
        if (held ? b->x && b->batch < 0 && b != f->out : !b->x)
            return b;
    }
    return NULL;
}

/* A buffer to copy to; NULL with an error. New ones are made until all are there, or the device has no more. */
static kiln_feed_buffer *find_buffer(kiln_feed *f)
{
    bool was_ok = kiln_ok();
    kiln_feed_buffer *place = empty_place(f, false), *b = place && make(f, place) ? place : oldest_free(f);
    if (b && was_ok)
        kiln_error_clear(); /* of one that could not be made */
    if (!b && !place && (place = empty_place(f, true))) {
        drop(f, place);
        b = make(f, place) ? place : NULL;
    }
    if (b && !b->marked)
        b->marked = kiln_copy_mark(f->device, &b->mark);
    return b && b->marked ? b : NULL;
}

/* ---- Copies ---- */

static bool copy_side(const kiln_feed *f, kiln_feed_buffer *b, const kiln_storage *to, const char *from, size_t bytes)
{
    uint64_t ticket;
    if (!kiln_copy_in_later(f->device, to->address, from, bytes, b->mark, &ticket))
        return false; /* the other side may be on its way: its ticket stays */
    b->ticket = ticket;
    return true;
}

static bool begin_copy(kiln_feed *f, const kiln_slot *slot, int64_t index)
{
    const kiln_dataset *d = f->ring->data;
    size_t size = (size_t)kiln_ring_batch_size(f->ring, index);
    kiln_feed_buffer *b = find_buffer(f);
    if (!b || !copy_side(f, b, b->x, slot->x, size * d->x_bytes) ||
        (b->y && !copy_side(f, b, b->y, slot->y, size * d->y_bytes)))
        return false;
    f->tickets[index % f->ring->nslots] = b->ticket;
    f->begun = index + 1;
    b->batch = index;
    return true;
}

/* Begins the copies of the next batches, as far as they are prepared. What goes wrong is met again when the batch is
 * asked for. */
static void go_ahead(kiln_feed *f, int64_t index)
{
    int64_t end = index + 1 + KILN_FEED_AHEAD < f->ring->batches ? index + 1 + KILN_FEED_AHEAD : f->ring->batches;
    bool was_ok = kiln_ok(), ok = true;
    while (ok && f->begun < end && has_slot(f, f->begun)) {
        const kiln_slot *slot = kiln_ring_peek(f->ring, f->begun);
        ok = slot && begin_copy(f, slot, f->begun);
    }
    if (was_ok)
        kiln_error_clear();
}

static kiln_feed_buffer *holding(kiln_feed *f, int64_t index)
{
    for (int i = 0; i < KILN_FEED_BUFFERS; i++)
        if (f->buffers[i].batch == index)
            return &f->buffers[i];
    return NULL;
}

static kiln_feed_buffer *arriving(kiln_feed *f, int64_t index)
{
    kiln_feed_buffer *b = holding(f, index);
    if (b)
        return b;
    while (!has_slot(f, index))
        if (!give_back(f, true))
            return NULL;
    const kiln_slot *slot = kiln_ring_take(f->ring, index);
    return slot && begin_copy(f, slot, index) ? holding(f, index) : NULL;
}

static kiln_tensor *tensor_of(kiln_storage *s, const kiln_field *item, int64_t size)
{
    int64_t shape[KILN_MAX_DIMS] = {size};
    for (int d = 0; d < item->ndim; d++)
        shape[d + 1] = item->shape[d];
    kiln_storage_ref(s);
    s->role = KILN_ROLE_DATA;
    return kiln_keep(kiln_tensor_make(s, item->dtype, item->ndim + 1, shape, NULL, 0));
}

bool kiln_feed_take(kiln_feed *f, int64_t index, kiln_tensor **x, kiln_tensor **y)
{
    const kiln_data_info *info = &f->ring->data->info;
    int64_t size = kiln_ring_batch_size(f->ring, index);
    give_back(f, false);
    kiln_feed_buffer *b = arriving(f, index);
    if (!b || !kiln_copy_await(f->device, b->ticket))
        return false;
    *x = tensor_of(b->x, &info->x, size);
    *y = *x && b->y ? tensor_of(b->y, &info->y, size) : NULL;
    if (!*x || (b->y && !*y))
        return false;
    b->batch = -1;
    f->out = b;
    go_ahead(f, index);
    return true;
}

void kiln_feed_release(kiln_feed *f)
{
    kiln_feed_buffer *b = f->out;
    if (!b)
        return;
    bool was_ok = kiln_ok();
    b->marked = alone(b->x) && alone(b->y) && kiln_copy_mark(f->device, &b->mark);
    b->age = ++f->clock;
    f->out = NULL;
    if (was_ok)
        kiln_error_clear(); /* without a mark now it is set before the next copy */
}

/* ---- Beginning and ending ---- */

/* Nothing is on its way any more. */
static void wait_for_all(kiln_feed *f)
{
    bool was_ok = kiln_ok();
    for (int i = 0; i < KILN_FEED_BUFFERS; i++) {
        kiln_copy_done(f->device, f->buffers[i].ticket, true);
        f->buffers[i].batch = -1;
    }
    if (was_ok)
        kiln_error_clear();
}

void kiln_feed_restart(kiln_feed *f, int64_t epoch, int64_t index)
{
    wait_for_all(f);
    kiln_ring_restart(f->ring, epoch, index);
    f->begun = f->given = index;
}

void kiln_feed_free(kiln_feed *f)
{
    wait_for_all(f);
    for (int i = 0; i < KILN_FEED_BUFFERS; i++)
        drop(f, &f->buffers[i]);
    kiln_staging_give(f->device, &f->staging);
    kiln_free(f->tickets);
}
